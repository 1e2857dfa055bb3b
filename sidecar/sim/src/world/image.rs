//! Copying a closed segment from one backup to another: the target pulls it, or fetch, connect, lend, write, close.
//!
//! Asked for by candidates and primaries; tells them how it ended.

use std::rc::Rc;

use tailwind_protocol::backup::{Request, Slot};
use tailwind_protocol::config::{Configuration, MemberRef};
use tailwind_protocol::ids::{Epoch, MemberId, Offset};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::primary::{self, Seat};
use tailwind_protocol::promotion::{self, Task};
use tailwind_protocol::rpc::{
    Caller, CloseRequest, Failure, FetchRequest, OpenRequest, PullRequest, PullSource, Purpose as Lent, Refusal,
};
use tailwind_protocol::scan::verify;

use super::fabric::{ChannelId, Key};
use super::network::{Answer, Ask, Silence};
use super::queue::{MS, Micros};
use super::sidecar::{Again, Purpose, failure};
use super::{HostNo, SidecarNo, World, group};
use crate::trace::{records, trace};

/// Bytes of one write of an image.
const BULK_WRITE: usize = 16 << 10;
/// How long a bulk copy may go without any completion.
const BULK_TIMEOUT: Micros = 5000 * MS;
/// Pause before a backup that said "retry later" is asked again.
pub(crate) const RETRY_LATER: Micros = 100 * MS;

/// Names an image on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ImageId(u64);

/// Who wants to know that an image has arrived.
#[derive(Clone, Debug)]
pub(crate) enum Requester {
    Candidate(Epoch, Task),
    Seat(Box<primary::Output>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The target is asked to copy it by itself.
    Pull,
    Fetch,
    Connect,
    Open,
    Write,
    Close,
}

/// A closed segment on its way to a member.
#[derive(Debug)]
pub(crate) struct Image {
    identity: SegmentIdentity,
    closure: Closure,
    caller: Caller,
    target: MemberRef,
    host: HostNo,
    /// From whom the target is asked to pull it.
    pulled_from: Vec<PullSource>,
    /// From whom it is fetched otherwise, the first one last.
    sources: Vec<HostNo>,
    bytes: Vec<u8>,
    channel: Option<ChannelId>,
    writes: usize,
    step: Step,
    whom: Requester,
}

impl World {
    /// Begins to copy: has the target pull from `pulled_from`, if members know how. Otherwise, or if that fails, asks the holders
    /// first and every other backup after them, since the closure vouches for the bytes.
    #[expect(clippy::too_many_arguments, reason = "what an image is, from whom, to whom")]
    pub(crate) fn begin_image(
        &mut self,
        of: SidecarNo,
        config: &Configuration,
        target: &MemberRef,
        (identity, closure): (SegmentIdentity, Closure),
        holders: &[MemberId],
        pulled_from: &[MemberRef],
        whom: Requester,
    ) {
        let host = self.host_of(&target.id);
        let mut sources: Vec<HostNo> = self.hosts.iter().map(|host| host.no).filter(|no| *no != host).collect();
        sources.sort_by_key(|no| !holders.contains(&self.hosts[no.0].name));
        sources.reverse();
        let named =
            |member: &MemberRef| PullSource { member: member.id.clone(), control: vec![member.control.clone()] };
        let pulled_from: Vec<PullSource> = pulled_from.iter().filter(|_| self.plan.pulls).map(named).collect();
        let image = Image {
            identity,
            closure,
            caller: Caller { group: group(), log: config.log, epoch: config.epoch },
            target: target.clone(),
            host,
            sources,
            bytes: Vec::new(),
            channel: None,
            writes: 0,
            step: if pulled_from.is_empty() { Step::Fetch } else { Step::Pull },
            pulled_from,
            whom,
        };
        let id = ImageId(self.queue.count());
        // Two images may begin at one moment.
        let id = self.sidecars[of.0].images.keys().next_back().map_or(id, |last| id.max(ImageId(last.0 + 1)));
        self.sidecars[of.0].images.insert(id, image);
        self.move_image(of, id);
    }

    /// Sends the request of the step that is due.
    pub(crate) fn move_image(&mut self, of: SidecarNo, id: ImageId) {
        let durability = self.plan.durability;
        let Some(image) = self.sidecars[of.0].images.get_mut(&id) else { return };
        let (identity, closure, caller) = (image.identity, image.closure, image.caller.clone());
        let (to, request) = match image.step {
            Step::Pull => {
                let (host, sources) = (image.host, image.pulled_from.clone());
                let request = PullRequest { caller, identity, closure, durability, sources };
                return self.call(of, host, Ask::Pull(Box::new(request)), Purpose::Image(id));
            }
            Step::Fetch => match image.sources.pop() {
                Some(source) => (
                    source,
                    Request::Fetch(FetchRequest { group: group(), identity, closure, check: true, range: None }),
                ),
                None => return self.end_image(of, id, Err(Failure::Unreachable("nobody can give it".to_owned()))),
            },
            Step::Connect => (image.host, Request::Connect(caller)),
            Step::Open => {
                (image.host, Request::Open(OpenRequest { caller, identity, purpose: Lent::Install, durability }))
            }
            Step::Write => return,
            Step::Close => (image.host, Request::Close(CloseRequest { caller, identity, closure })),
        };
        self.call(of, to, request, Purpose::Image(id));
    }

    pub(crate) fn on_image_answer(&mut self, of: SidecarNo, id: ImageId, answer: Result<Answer, Silence>) {
        let Some(image) = self.sidecars[of.0].images.get_mut(&id) else { return };
        match (image.step, answer) {
            (Step::Pull, Ok(Answer::Done)) => self.end_image(of, id, Ok(())),
            (Step::Pull, Ok(Answer::Refused(Refusal::RetryLater { .. }))) => {
                self.plan_again(of, RETRY_LATER, Again::Image(id));
            }
            (
                Step::Pull,
                Err(_)
                | Ok(Answer::Refused(
                    Refusal::NoSuchCopy { .. }
                    | Refusal::Corrupt { .. }
                    | Refusal::Failed { .. }
                    | Refusal::BadRequest { .. },
                )),
            ) => {
                image.step = Step::Fetch;
                self.move_image(of, id);
            }
            (Step::Fetch, Ok(Answer::Bytes(bytes))) if verify(&bytes, &image.identity, &image.closure) => {
                (image.bytes, image.step) = (bytes, Step::Connect);
                self.move_image(of, id);
            }
            (Step::Fetch, _) => self.move_image(of, id),
            (Step::Connect, Ok(Answer::Connected(boot, channel, _))) => {
                image.channel = Some(channel);
                if boot != image.target.boot {
                    let why = "it has restarted without its memory".to_owned();
                    return self.end_image(of, id, Err(Failure::Unreachable(why)));
                }
                image.step = Step::Open;
                self.move_image(of, id);
            }
            (Step::Open, Ok(Answer::Granted(slot, key, _))) => {
                image.step = Step::Write;
                self.write_image(of, id, slot, key);
            }
            (Step::Close, Ok(Answer::Done)) => self.end_image(of, id, Ok(())),
            (Step::Open | Step::Close, Ok(Answer::Refused(Refusal::RetryLater { .. }))) => {
                self.plan_again(of, RETRY_LATER, Again::Image(id));
            }
            (_, answer) => self.end_image(of, id, Err(failure(answer))),
        }
    }

    fn write_image(&mut self, of: SidecarNo, id: ImageId, slot: Slot, key: Key) {
        let Some(image) = self.sidecars[of.0].images.get_mut(&id) else { return };
        let Some(channel) = image.channel else { return };
        image.writes = image.bytes.len().div_ceil(BULK_WRITE);
        let bytes = std::mem::take(&mut image.bytes);
        for (nth, part) in bytes.chunks(BULK_WRITE).enumerate() {
            self.post(channel, slot, key, (nth * BULK_WRITE) as u32, Rc::from(part));
        }
        let writes = bytes.len().div_ceil(BULK_WRITE);
        self.plan_again(of, BULK_TIMEOUT, Again::ImageIdle(id, writes));
    }

    /// A bulk copy may go only so long without any completion: its queue pair may have failed without a word.
    pub(crate) fn give_up_idle_image(&mut self, of: SidecarNo, id: ImageId, writes: usize) {
        let Some(image) = self.sidecars[of.0].images.get(&id).filter(|image| image.step == Step::Write) else { return };
        match image.writes {
            left if left < writes => self.plan_again(of, BULK_TIMEOUT, Again::ImageIdle(id, left)),
            _ => self.end_image(of, id, Err(Failure::Unreachable("no completion for long".to_owned()))),
        }
    }

    /// A write over this queue pair has completed; true if it was an image's.
    pub(crate) fn on_image_written(&mut self, of: SidecarNo, channel: ChannelId) -> bool {
        let images = &mut self.sidecars[of.0].images;
        let Some((id, image)) = images.iter_mut().find(|(_, image)| image.channel == Some(channel)) else {
            return false;
        };
        let id = *id;
        image.writes -= 1;
        if image.writes == 0 {
            image.step = Step::Close;
            self.move_image(of, id);
        }
        true
    }

    pub(crate) fn on_image_broken(&mut self, of: SidecarNo, channel: ChannelId) -> bool {
        let images = &self.sidecars[of.0].images;
        let found = images.iter().find(|(_, image)| image.channel == Some(channel)).map(|(id, _)| *id);
        if let Some(id) = found {
            self.end_image(of, id, Err(Failure::Unreachable("the write failed".to_owned())));
        }
        found.is_some()
    }

    /// Nobody waits any more for images to a seat that is gone.
    pub(crate) fn give_up_image(&mut self, of: SidecarNo, seat: Seat) {
        let gone = |image: &Image| matches!(&image.whom, Requester::Seat(output) if output.seat() == Some(seat));
        let images = &mut self.sidecars[of.0].images;
        let channels: Vec<ChannelId> = images.values().filter(|i| gone(i)).filter_map(|i| i.channel).collect();
        images.retain(|_, image| !gone(image));
        channels.into_iter().for_each(|channel| self.close_sender(channel));
    }

    fn end_image(&mut self, of: SidecarNo, id: ImageId, result: Result<(), Failure>) {
        let Some(image) = self.sidecars[of.0].images.remove(&id) else { return };
        if let Some(channel) = image.channel {
            self.close_sender(channel);
        }
        if result.is_ok() {
            let (name, records) = (&self.sidecars[of.0].name, records(image.closure.first, image.closure.last));
            let (segment, target) = (image.identity.segment, &image.target.id);
            match image.step {
                Step::Pull => trace!(self, "{name} learns that {target} has pulled segment {segment}, {records}"),
                _ => trace!(self, "{name} copies segment {segment}, {records}, to {target}"),
            }
        }
        match (image.whom, result) {
            (Requester::Candidate(epoch, task), result) => {
                self.promotion_input(of, promotion::Input::Repaired(epoch, task, result));
            }
            (Requester::Seat(output), Ok(())) => {
                if let Some(done) = output.done(Offset(0)) {
                    self.primary_input(of, done);
                }
            }
            (Requester::Seat(output), Err(failure)) => self.seat_failed(of, &output, &failure),
        }
    }
}
