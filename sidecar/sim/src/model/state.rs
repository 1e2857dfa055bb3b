//! What a state is: the production machines, the memories they move, and everything on its way between them.
//!
//! Changed by [`step`](super::step) only. Nothing in it counts without a bound: see [`Budget`].

use std::collections::{BTreeMap, VecDeque};

use tailwind_protocol::backup::{Request, Slot};
use tailwind_protocol::config::{Configuration, MemberRef, Swap, SwapOutcome};
use tailwind_protocol::ids::{BootId, Epoch, Lsn, MemberId, Offset, Position, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::primary::{Output, Primary, Seat};
use tailwind_protocol::promotion::{Promotion, Task};
use tailwind_protocol::rpc::{Inventory, Refusal};
use tailwind_protocol::segment::SegmentWriter;

use super::follow::Follow;
use super::host::Host;
use super::judge::Judge;
use super::part::Part;
use super::scenario::Budget;

/// Backups of the model: all of them are in the first set.
pub(super) const HOSTS: usize = 2;
/// Sidecars of the model.
pub(super) const SIDES: usize = 2;
/// Bytes of a buffer that the model keeps: the header and both records, 72 + 2 × 48, and the zeros behind them.
pub(super) const BUFFER_SIZE: usize = 192;

/// A state of the whole group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) hosts: [Part<Host>; HOSTS],
    pub(super) sides: [Part<Side>; SIDES],
    pub(super) store: Part<Option<Configuration>>,
    /// Requests to backups and their answers, in the order of their digests: they may arrive in any order.
    pub(super) messages: Vec<Part<Message>>,
    /// Calls to the config store and their answers, likewise.
    pub(super) calls: Vec<Part<Call>>,
    /// Writes in the fabric, from each sidecar to each backup, in the order in which they were posted.
    pub(super) writes: [[Part<VecDeque<Write>>; HOSTS]; SIDES],
    /// In scenarios with one.
    pub(super) follow: Part<Option<Follow>>,
    pub(super) judge: Part<Judge>,
    pub(super) left: Budget,
    /// The rule that was broken, if one was. Nothing happens after that.
    pub(super) broken: Option<String>,
}

/// A sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Side {
    /// Counts the roles: answers meant for an earlier one are not for this one.
    pub(super) life: u8,
    pub(super) role: Role,
}

/// What a sidecar is now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Down,
    Standby,
    Candidate(Box<Promotion>),
    Primary(Box<Lead>),
}

/// A primary: the machine, the log's open end in local memory, a channel to each member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lead {
    pub(super) machine: Primary,
    pub(super) epoch: Epoch,
    pub(super) memory: BTreeMap<SegmentId, Vec<u8>>,
    pub(super) writer: Option<SegmentWriter>,
    pub(super) channels: BTreeMap<Seat, Channel>,
    /// A record that waits for room.
    pub(super) backlog: Option<Vec<u8>>,
    /// The last record that was acknowledged, and where its append ends.
    pub(super) acked: (Lsn, Position),
    /// Records that wait for their ack: where each ends.
    pub(super) unacked: VecDeque<(Position, Lsn)>,
}

/// The way to one member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Channel {
    pub(super) host: usize,
    pub(super) member: MemberRef,
    /// The member's process that accepted the channel.
    pub(super) life: Option<u8>,
    pub(super) lendings: BTreeMap<SegmentId, (Slot, Key)>,
}

/// The right to write one lending of one slot; never given out twice by one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key(pub(super) u8);

/// A request to a backup and, once it has arrived, the answer on its way back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Message {
    /// Who waits for the answer: a sidecar in one of its lives. Nobody: its sender has given up or is gone.
    pub(super) from: Option<(usize, u8)>,
    pub(super) to: usize,
    pub(super) request: Request,
    pub(super) then: Then,
    pub(super) answer: Option<Result<Answer, Silence>>,
}

/// What its sender does with the answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Then {
    Fence(Epoch, MemberId),
    Repair(Epoch, Task),
    Recruit(MemberRef),
    Seat(Box<Output>),
    /// Steps of copying an image.
    Fetched(Box<Image>),
    Granted(Box<Image>),
    Sealed(Box<Image>),
    Nothing,
}

/// A closed segment on its way to a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Image {
    pub(super) identity: SegmentIdentity,
    pub(super) closure: Closure,
    pub(super) epoch: Epoch,
    pub(super) target: usize,
    pub(super) sources: Vec<usize>,
    pub(super) bytes: Vec<u8>,
    pub(super) whom: Requester,
}

/// Who wants to know that an image has arrived.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Requester {
    Candidate(Epoch, Task),
    Primary(Box<Output>),
}

/// What a backup answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Inventory(Inventory),
    /// By this memory and this process.
    Connected(BootId, u8),
    /// By this process.
    Granted(Slot, Key, u8),
    Bytes(Vec<u8>),
    Done,
    Refused(Refusal),
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Silence {
    /// The message or its answer got lost.
    Lost,
    /// The backup cannot be reached.
    Gone,
}

/// A call to the config store and, once it was carried out, its answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) from: Option<(usize, u8)>,
    pub(super) ask: Ask,
    pub(super) reply: Option<StoreReply>,
}

/// What is asked of the store (a survey asks the backups, and only while there is no configuration).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ask {
    Read,
    Survey,
    Swap(Box<Swap>),
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum StoreReply {
    Read(Result<Option<Configuration>, String>),
    Surveyed(Vec<(MemberRef, Inventory)>),
    Swapped(SwapOutcome),
}

/// A posted write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Write {
    /// The sender's life: another one does not hear of it.
    pub(super) life: u8,
    pub(super) lane: Lane,
    /// The process that lent the buffer, the buffer, and the key to it.
    pub(super) lending: (u8, Slot, Key),
    pub(super) segment: SegmentId,
    pub(super) from: Offset,
    pub(super) bytes: Vec<u8>,
    pub(super) flight: WriteState,
    /// Its completion was reported already, by an environment that is wrong.
    pub(super) counted: bool,
}

/// Whose write it is: writes of one lane complete in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    Post(Seat),
    Image(Box<Image>),
}

/// How far a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WriteState {
    /// Nothing of it is visible, or a part.
    Flying,
    /// All of it is visible; the completion is on its way.
    Landed,
    /// It cannot land any more; the failure is on its way.
    Refused,
}

impl Side {
    pub(super) fn lead(&self) -> Option<&Lead> {
        match &self.role {
            Role::Primary(lead) => Some(lead),
            _ => None,
        }
    }

    pub(super) fn lead_mut(&mut self) -> Option<&mut Lead> {
        match &mut self.role {
            Role::Primary(lead) => Some(lead),
            _ => None,
        }
    }
}

impl Lane {
    /// Writes of one lane complete in order.
    pub(super) fn same(&self, other: &Lane) -> bool {
        matches!((self, other), (Lane::Post(a), Lane::Post(b)) if a == b)
    }
}
