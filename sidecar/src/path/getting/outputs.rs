//! Carries out what a getter wants: reads at once, and the rest by control. Part of [`Getting`].

use tailwind_fabric::ReadError;
use tailwind_protocol::config::MemberRef;
use tailwind_protocol::follower::Visit;
use tailwind_protocol::ids::LogId;
use tailwind_protocol::table::getter::{Input, Output};
use tailwind_protocol::table::record::Key;
use tokio::sync::mpsc;

use super::messages::{GetterRequest, WISHES_MAX, Wish};
use super::reads::{MirrorMemory, Reading};
use super::{Getting, Surroundings, Visiting, reads_of};
use crate::path::messages::ClientRequest;

impl Getting {
    /// The read channel is over: nothing more is read through it.
    pub(super) fn broken(&mut self, visit: Visit, error: &ReadError, around: &mut Surroundings<'_>) {
        if let Some(reads) = self.visiting.as_mut().and_then(|visiting| visiting.reads.take()) {
            close(Box::new(reads.memory), around);
        }
        self.step(Input::Broken(visit, &error.to_string()), around);
    }

    /// Does what the machine wants, and what could not be done before.
    pub(super) fn carry_out(&mut self, around: &mut Surroundings<'_>) {
        let mut outputs = std::mem::take(&mut self.deferred);
        outputs.append(&mut self.outputs);
        let mut round = outputs.into_iter();
        while let Some(output) = round.next() {
            if let Err((visit, error)) = self.carry_out_one(output, around) {
                self.deferred.extend(round);
                return self.broken(visit, &error, around);
            }
        }
        self.ask_for_shares();
    }

    fn carry_out_one(&mut self, output: Output, around: &mut Surroundings<'_>) -> Result<(), (Visit, ReadError)> {
        match output {
            Output::Connect(visit, log, member) => self.connect(visit, log, member, around),
            Output::Leave(visit, why) => self.leave(visit, &why, around),
            Output::Ask(question) => {
                let request = ClientRequest::Getter(GetterRequest::Ask(question));
                if around.control.try_send(request).is_err() {
                    self.step(Input::Told(question, Err("this sidecar is busy")), around);
                }
            }
            Output::Look(visit) => {
                let now = around.now;
                self.reads_of(visit).map_or(Ok(()), |reads| reads.look(now)).map_err(|error| (visit, error))?;
            }
            Output::Buckets(visit, id, buckets) => {
                let key = self.gets.get(&id).and_then(|asked| Key::new(&asked.key).ok());
                let Some(reads) = reads_of(&mut self.visiting, visit) else { return Ok(()) };
                match reads.buckets(id, key, buckets).map_err(|error| (visit, error))? {
                    Reading::Later if self.gets.contains_key(&id) => self.deferred.push(output),
                    Reading::Posted | Reading::Later => {}
                    Reading::NotThere => {
                        self.step(Input::Broken(visit, "its mirror is smaller than its board says"), around);
                    }
                }
            }
            Output::Record(visit, id, segment, ref bytes) => {
                let now = around.now;
                let (bytes, Some(reads)) = (bytes.clone(), self.reads_of(visit)) else { return Ok(()) };
                match reads.record(id, segment, bytes, now).map_err(|error| (visit, error))? {
                    Reading::Later if self.gets.contains_key(&id) => self.deferred.push(output),
                    Reading::Posted | Reading::Later => {}
                    Reading::NotThere => self.step(Input::Record(visit, id, None), around),
                }
            }
            Output::Fetch(visit, id, segment, bytes) => {
                let visiting = self.visiting.as_ref().filter(|visiting| visiting.visit == visit);
                let sent = visiting.is_some_and(|it| it.wishes.try_send(Wish::Fetch(id, segment, bytes)).is_ok());
                if !sent {
                    self.step(Input::Fetched(visit, id, Err("this sidecar is busy")), around);
                }
            }
        }
        Ok(())
    }

    fn connect(&mut self, visit: Visit, log: LogId, member: MemberRef, around: &mut Surroundings<'_>) {
        if self.used.is_none() {
            return self.step(Input::Connected(visit, Err("nobody asks")), around);
        }
        let (wishes, wished) = mpsc::channel(WISHES_MAX);
        let request = ClientRequest::Getter(GetterRequest::Visit(visit, log, member, wished));
        match around.control.try_send(request) {
            Ok(()) => self.visiting = Some(Visiting { visit, wishes, reads: None }),
            Err(_) => self.step(Input::Connected(visit, Err("this sidecar is busy")), around),
        }
    }

    fn leave(&mut self, visit: Visit, why: &str, around: &Surroundings<'_>) {
        let Some(visiting) = self.visiting.take_if(|visiting| visiting.visit == visit) else { return };
        tracing::debug!(why, "a getter has left its member");
        if let Some(reads) = visiting.reads {
            close(Box::new(reads.memory), around);
        }
    }

    fn ask_for_shares(&mut self) {
        let Some(Visiting { wishes, reads: Some(reads), .. }) = &mut self.visiting else { return };
        let Ok(place) = wishes.try_reserve() else { return };
        let wanted = reads.take_wanted();
        if !wanted.is_empty() {
            place.send(Wish::Share(wanted));
        }
    }
}

/// Closes a channel, which may take a while: control does it, unless it is gone.
pub(super) fn close(memory: Box<MirrorMemory>, around: &Surroundings<'_>) {
    drop(around.control.try_send(ClientRequest::Getter(GetterRequest::Close(memory))));
}
