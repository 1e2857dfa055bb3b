//! Drives a backup's process: lets the production daemon carry out one output after the other, and the production flusher
//! one job, each when it has taken its time.
//!
//! Called by [`host`](super::host). A job or a write that is under way when the process dies, or the power goes, has got as
//! far as any of its calls.

use std::ops::Range;

use tailwind_backup::{Job, OutputResult, ReadError, Unchecked, fetch};
use tailwind_protocol::backup::{Input, Output, Place, Reply, RequestId};
use tailwind_protocol::ids::SegmentId;
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::pull::filled_by_others;
use tailwind_protocol::rpc::{Purpose, Refusal};

use super::host::HostEvent;
use super::memory::Lent;
use super::network::Answer;
use super::queue::{MS, Micros};
use super::{Event, HostNo, World};
use crate::trace::{self, trace};

/// Calls that it takes to grow a file, or to make one; and some more.
const CALLS: [u64; 2] = [3, 14];

impl World {
    /// Carries the first output out.
    pub(super) fn carry_out(&mut self, no: HostNo) {
        let Some(mut process) = self.hosts[no.0].process.take() else { return };
        let output = process.daemon.due().cloned();
        if let Some(Output::SaveSlot(_, Some(row))) = &output
            && !row.is_resident()
        {
            self.checks.takes(no, row.identity);
        }
        let carried = process.daemon.carry_out(&mut Lent { world: self, no });
        self.hosts[no.0].process = Some(process);
        self.trace_output(no, output.as_ref());
        self.count_injected(no);
        let carried = match carried {
            Ok(Some(carried)) if !self.hosts[no.0].files.process_died() => carried,
            Ok(None) => return,
            Ok(Some(_)) => return self.die(no, "at a call"),
            Err(error) => return self.die(no, &format!("{error:#}")),
        };
        if let Some(Output::SaveSlot(slot, row)) = output {
            let host = &mut self.hosts[no.0];
            host.rows.remove(&slot);
            host.residents.remove(&slot);
            let rows = if row.is_some_and(|row| row.is_resident()) { &mut host.residents } else { &mut host.rows };
            rows.extend(row.map(|row| (slot, row)));
        }
        self.checks.bounded(&self.hosts[no.0]);
        match carried {
            OutputResult::Out => {}
            OutputResult::Flush(job) => {
                let Some(process) = &mut self.hosts[no.0].process else { return };
                process.flusher.queue(job);
                self.start_flush(no);
            }
            OutputResult::FlushLast(slot, identity, tail) => {
                self.finish_flushes(no);
                let host = &mut self.hosts[no.0];
                let Some(process) = &mut host.process else { return };
                // The daemon ends rather than say that all is on disk.
                if let Err(error) = process.flusher.flush_last(&host.pool, slot, &identity, &tail) {
                    self.die(no, &error.to_string());
                }
            }
            OutputResult::NoRoom(why) => unreachable!("memory is there: {why}"),
            OutputResult::Reply(id, reply) => self.reply(no, id, reply),
            OutputResult::Finish { complete } => {
                trace!(self, "{} ends; complete: {complete}", self.hosts[no.0].name);
                self.finish_flushes(no);
                let process = self.hosts[no.0].process.take();
                let finished = process.map(|process| process.daemon.finish(complete));
                if let Some(Err(error)) = finished {
                    trace!(self, "{}: {error:#}", self.hosts[no.0].name);
                }
                self.kill_host(no);
                self.plan_restart(no);
            }
        }
    }

    /// The process ends because it must not go on.
    fn die(&mut self, no: HostNo, why: &str) {
        trace!(self, "{} dies: {why}", self.hosts[no.0].name);
        self.kill_host(no);
        self.plan_restart(no);
    }

    fn trace_output(&mut self, no: HostNo, output: Option<&Output>) {
        if !self.trace.is_on() {
            return;
        }
        let name = &self.hosts[no.0].name;
        match output {
            Some(Output::Persist(promise)) => trace!(self, "{name} promises epoch {}", promise.epoch),
            Some(Output::SaveSlot(_, Some(row))) if row.closed.is_none() => {
                let what = match row.purpose {
                    Purpose::Append => "",
                    Purpose::Install => " for an image",
                };
                let SegmentIdentity { segment, epoch, .. } = row.identity;
                trace!(self, "{name} lends segment {segment} of epoch {epoch}{what}");
            }
            Some(Output::Scan(_, identity)) => {
                let copies = self.hosts[no.0].machine().map(|machine| machine.inventory().copies).unwrap_or_default();
                let found = copies.into_iter().find(|copy| copy.identity == *identity).map(|copy| copy.closure);
                let closure = trace::closure(&found.unwrap_or_default());
                trace!(self, "{name} scans segment {} of epoch {}: {closure}", identity.segment, identity.epoch);
            }
            _ => {}
        }
    }

    /// The output and the job that are under way when the process dies, or the power goes.
    pub(super) fn break_off(&mut self, no: HostNo) {
        let (working, flushing) = (self.hosts[no.0].working, self.hosts[no.0].flushing);
        if self.hosts[no.0].files.process_died() {
            return;
        }
        let most = *self.random.pick(&CALLS);
        let calls = self.random.below(most) as u32;
        if working && self.hosts[no.0].process.as_ref().and_then(|own| own.daemon.due()).is_some_and(writes) {
            self.hosts[no.0].files.light(calls);
            let Some(mut process) = self.hosts[no.0].process.take() else { return };
            // Nobody hears what comes of it.
            let _ = process.daemon.carry_out(&mut Lent { world: self, no });
            self.hosts[no.0].process = Some(process);
        }
        let host = &mut self.hosts[no.0];
        host.files.begin_process();
        if let (true, Some(process)) = (flushing, &mut host.process) {
            host.files.light(calls);
            process.flusher.work(&host.pool);
            host.files.begin_process();
        }
    }

    fn start_flush(&mut self, no: HostNo) {
        let host = &mut self.hosts[no.0];
        if host.flushing || !host.is_up() {
            return;
        }
        let Some(job) = host.process.as_ref().and_then(|process| process.flusher.due()) else { return };
        let takes = match job {
            Job::Closed(..) => self.random.within(500, 8 * MS),
            Job::Open(..) => self.random.within(200, 3 * MS),
            Job::Owed(_) | Job::Quarantine(..) | Job::MoveAside(_) => self.random.within(20, 200),
            Job::Delete(..) | Job::DeleteTrimmed(..) => self.random.within(200, 4 * MS),
            Job::QuarantineSlot(..) => self.random.within(500, 8 * MS),
        };
        host.flushing = true;
        let (life, slow) = (host.life, if host.slow_disk { 50 } else { 1 });
        self.queue.plan(takes * slow, Event::Host(no, life, HostEvent::Flushed));
    }

    pub(super) fn on_flush_done(&mut self, no: HostNo) {
        self.hosts[no.0].flushing = false;
        if self.do_job(no) {
            self.start_flush(no);
        }
    }

    /// Does one job, and tells the daemon. False when the process has died of it.
    fn do_job(&mut self, no: HostNo) -> bool {
        let due = self.hosts[no.0].process.as_ref().and_then(|process| process.flusher.due()).cloned();
        let no_room = matches!(&due, Some(Job::Closed(_, identity, _)) if self.has_no_room(no, identity));
        let host = &mut self.hosts[no.0];
        let Some(process) = &mut host.process else { return false };
        let full = host.files.is_full();
        host.files.set_full(full || no_room);
        let inputs = process.flusher.work(&host.pool);
        host.files.set_full(full);
        self.count_injected(no);
        if self.hosts[no.0].files.process_died() {
            self.die(no, "at a call of its flusher");
            return false;
        }
        for input in inputs {
            if let Input::Flushed(_, identity, result) = &input {
                trace!(self, "{} flushes segment {}: {result:?}", self.hosts[no.0].name, identity.segment);
            }
            self.hosts[no.0].inbox.push_back(HostEvent::Happened(input));
        }
        self.wake_host(no);
        self.hosts[no.0].process.is_some()
    }

    /// A flusher with nothing to do notes how far open segments are flushed.
    pub(super) fn let_flusher_rest(&mut self, no: HostNo) {
        let host = &mut self.hosts[no.0];
        let idle = host.is_up() && !host.flushing;
        let Some(process) = host.process.as_mut().filter(|process| idle && process.flusher.due().is_none()) else {
            return;
        };
        process.flusher.rest();
        self.count_injected(no);
        if self.hosts[no.0].files.process_died() {
            self.die(no, "at a call of its flusher");
        }
    }

    /// The process ends in good order: what is queued is done before.
    fn finish_flushes(&mut self, no: HostNo) {
        let host = &mut self.hosts[no.0];
        let Some(process) = &mut host.process else { return };
        while process.flusher.due().is_some() {
            let inputs = process.flusher.work(&host.pool);
            host.inbox.extend(inputs.into_iter().map(HostEvent::Happened));
        }
    }

    fn count_injected(&mut self, no: HostNo) {
        let injected = self.hosts[no.0].files.take_injected();
        injected.into_iter().for_each(|fault| self.tally.count(fault));
    }

    fn reply(&mut self, no: HostNo, id: RequestId, reply: Reply) {
        let asked = self.hosts[no.0].asked.get(&id).copied();
        self.checks.replies(&self.hosts[no.0], id, &reply);
        if matches!(reply, Reply::Inventory(_)) {
            self.hosts[no.0].miss_nothing();
        }
        let answer = match reply {
            Reply::Inventory(inventory) => Answer::Inventory(inventory),
            Reply::Damage(copies) => Answer::Damage(copies),
            Reply::Connect(epoch) => {
                let Some((from, life, _)) = asked else { return };
                let channel = self.accept(from, life, no, epoch);
                let board = self.lend_board(no, epoch);
                Answer::Connected(self.hosts[no.0].boot, channel, board)
            }
            Reply::Opened(slot) if !self.takes_slot(no, id, slot) => Answer::Refused(filled_by_others(SegmentId(0))),
            Reply::Opened(slot) => {
                match self.hosts[no.0].lendings.get(&slot).map(|lending| (lending.writer, lending.key)) {
                    Some((writer, key)) => Answer::Granted(slot, key, self.lend_board(no, writer)),
                    None => Answer::Refused(Refusal::Failed { why: "the lending is over".to_owned() }),
                }
            }
            Reply::Fetch(place, identity, closure) => {
                let range = self.hosts[no.0].ranges.remove(&id);
                let unchecked = range.is_some() || self.hosts[no.0].pulls.is_unchecked(id);
                self.fetch(no, place, &identity, &closure, unchecked.then(|| range.unwrap_or(0..closure.end.0)))
            }
            Reply::Flushed(end) => Answer::Flushed(end),
            Reply::Done => Answer::Done,
            Reply::Refused(refusal) => Answer::Refused(refusal),
        };
        self.answer(no, id, answer);
    }

    /// At one moment: the copy does not move while it is read.
    fn fetch(
        &mut self,
        no: HostNo,
        place: Place,
        identity: &SegmentIdentity,
        closure: &Closure,
        unchecked: Option<Range<u32>>,
    ) -> Answer {
        let host = &self.hosts[no.0];
        let Some(process) = &host.process else { return Answer::Refused(gone()) };
        let disk = process.daemon.disk();
        let fetched = match unchecked.clone() {
            Some(range) => Unchecked::open(disk, place, identity, closure).and_then(|copy| {
                let copy = copy.only(range);
                let mut bytes = vec![0; copy.len() as usize];
                copy.read(&host.pool, 0, &mut bytes).map_err(ReadError::Io)?;
                Ok(bytes)
            }),
            None => fetch(disk, &host.pool, place, identity, closure),
        };
        match (fetched, place) {
            (Ok(bytes), Place::Both(_)) => {
                self.tally.from_residents += 1;
                Answer::Bytes(bytes)
            }
            (Ok(bytes), _) => Answer::Bytes(bytes),
            // A cache: the machine forgets it, and the file is next.
            (Err(_), Place::Both(_)) => {
                trace!(self, "{}: the resident of segment {} does not verify", host.name, identity.segment);
                self.tally.residents_corrupt += 1;
                self.step_host(no, Input::FoundCorrupt(*identity, place));
                self.fetch(no, Place::Disk, identity, closure, unchecked)
            }
            (Err(ReadError::Io(error)), _) => Answer::Refused(Refusal::Failed { why: error.to_string() }),
            (Err(ReadError::Missing | ReadError::Corrupt), _) => {
                trace!(self, "{}: segment {} is corrupt", host.name, identity.segment);
                self.step_host(no, Input::FoundCorrupt(*identity, place));
                Answer::Refused(Refusal::Corrupt { segment: identity.segment })
            }
        }
    }
}

fn gone() -> Refusal {
    Refusal::Failed { why: "this backup has ended".to_owned() }
}

/// True for what the daemon itself writes: of that a part may be there.
fn writes(output: &Output) -> bool {
    matches!(output, Output::Persist(_) | Output::SaveSlot(..))
}

/// How long an output takes, if it takes any time worth the name.
pub(super) fn cost(output: &Output) -> Option<(Micros, Micros)> {
    match output {
        Output::Persist(_) => Some((200, 4000)),
        Output::RevokeBelow(_) => Some((20, 3000)),
        Output::Scan(..) => Some((50, 800)),
        Output::Verify(..) => Some((50, 400)),
        Output::FlushOpen(..) => Some((500, 5000)),
        _ => None,
    }
}
