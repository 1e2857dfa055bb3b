//! What is on its way: control messages, calls to the config store, and writes in the fabric.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tailwind_protocol::backup::{Request, RequestId, Slot};
use tailwind_protocol::config::{Configuration, MemberRef, Swap, SwapOutcome};
use tailwind_protocol::ids::{Epoch, MemberId, Offset, SegmentId, SidecarId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::primary::{Output, Seat};
use tailwind_protocol::promotion::Task;

use super::host::{Answer, Key};

/// A request to a backup.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) from: SidecarId,
    pub(crate) life: u32,
    pub(crate) to: MemberId,
    pub(crate) request: Request,
    pub(crate) then: Then,
}

/// What its sender does with the answer.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    /// A candidate's fence.
    Fence(Epoch),
    /// A candidate's repair.
    Repair(Epoch, Task),
    /// A primary's search for a spare.
    Recruit(MemberRef),
    /// A primary's question what is corrupt at a member.
    Damage(Seat),
    /// What a primary wants of a member.
    Seat(Box<Output>),
    /// A step of copying an image.
    Fetched(Image),
    Granted(Image),
    Sealed(Image),
    /// A repetition: nobody waits for it.
    Nothing,
}

/// A closed segment on its way to a member.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) identity: SegmentIdentity,
    pub(crate) closure: Closure,
    pub(crate) epoch: Epoch,
    pub(crate) target: MemberId,
    pub(crate) sources: Vec<MemberId>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) whom: Whom,
}

/// Who wants to know that an image has arrived.
#[derive(Clone, Debug)]
pub(crate) enum Whom {
    Candidate(Epoch, Task),
    Primary(Box<Output>),
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// The message or its answer got lost.
    Lost,
    /// The backup cannot be reached.
    Gone,
}

/// An answer, or none, on its way back.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Backup(Box<Message>, Result<Answer, Silence>),
    Read(Result<Option<Configuration>, String>),
    Swapped(SwapOutcome),
    /// The oldest write to this seat has ended.
    Written(Seat, bool),
}

/// A call to the config store.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) from: SidecarId,
    pub(crate) life: u32,
    pub(crate) what: Ask,
}

/// What is asked of the store.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Read,
    Swap(Swap),
}

/// A posted write.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) life: u32,
    pub(crate) seat: Seat,
    pub(crate) segment: SegmentId,
    pub(crate) lending: (Slot, Key),
    pub(crate) from: Offset,
    pub(crate) bytes: Vec<u8>,
    /// The member has it; only the completion is still to come.
    pub(crate) landed: bool,
}

/// Everything on its way.
#[derive(Debug, Default)]
pub(crate) struct Network {
    pub(crate) messages: VecDeque<Message>,
    pub(crate) calls: VecDeque<Call>,
    pub(crate) writes: BTreeMap<(SidecarId, MemberId), VecDeque<Write>>,
    /// Channels that refused a write: a queue pair that failed carries nothing any more.
    pub(crate) broken: BTreeSet<(SidecarId, u32, Seat)>,
    /// Requests that a backup has taken and not answered yet.
    pub(crate) asked: BTreeMap<(MemberId, RequestId), Message>,
    /// Everything that was ever sent, for repetitions.
    pub(crate) sent: Vec<Message>,
    requests: u64,
}

impl Network {
    pub(crate) fn next_request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    pub(crate) fn send(&mut self, message: Message) {
        self.sent.push(message.clone());
        self.messages.push_back(message);
    }
}

/// The name of a request, as scripts say it.
pub(crate) fn name(request: &Request) -> &'static str {
    match request {
        Request::Fence(_) => "fence",
        Request::Inventory(_) => "inventory",
        Request::Damage => "damage",
        Request::Connect(_) => "connect",
        Request::Open(_) => "open",
        Request::Close(_) => "close",
        Request::Flush(_) => "flush",
        Request::Fetch(_) => "fetch",
        Request::Trim(_) => "trim",
        Request::Drop(_) => "drop",
    }
}
