//! The client's options, and what it returns: owned values of the sidecar's frames.

use std::time::Duration;

use tailwind_protocol::history::History;
use tailwind_protocol::ids::{Epoch, Lsn};
use tailwind_protocol::socket::{self, FRAME_BODY_MAX, Role};

use crate::Error;

/// How to connect and how to wait.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Have `connect` return only once the sidecar is primary: how a standby app that does not follow waits for its promotion. A
    /// sidecar that only reads refuses it with [`Error::NotPrimary`].
    pub hold: bool,
    /// Longest that one call waits without hearing from the sidecar; then [`Error::TimedOut`]. `None`: as long as the
    /// connection lives. It bounds the wait of `connect` with `hold`, and of a tail or follow for its next event, as well.
    pub timeout: Option<Duration>,
    /// How long the blocking client polls for an answer before it sleeps. Spares the wake-up (some 10 µs) at the price of a
    /// busy core; zero, the default, sleeps at once. Ignored by the asynchronous client, and where there is only one core.
    pub spin: Duration,
    /// Let every byte go through the socket, also where the sidecar offers shared memory.
    pub socket_only: bool,
}

/// The sidecar's answer to the hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Version of the protocol.
    pub version: u16,
    /// The sidecar's role then; for the role now see `role_info`.
    pub role: Role,
    /// Appends go through shared memory, not through the socket.
    pub ring: bool,
    /// The group keeps a table.
    pub table: bool,
    /// What it accepts.
    pub limits: Limits,
    /// The epoch then; 0 if unknown.
    pub epoch: Epoch,
    /// First record that could be read.
    pub first: Lsn,
    /// Last acknowledged record; 0 if there was none or it was unknown.
    pub last: Lsn,
    /// The primary at that time, if known.
    pub primary: Option<String>,
}

/// What a sidecar accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Largest record, in bytes.
    pub record_size_max: u32,
    /// Largest batch, in bytes of log: compare [`Limits::batch_size`] with it.
    pub batch_size_max: u32,
    /// Most records in a batch.
    pub batch_records_max: u32,
    /// Unacknowledged appends at which the sidecar stops reading from this connection. More may be submitted: they wait here.
    pub inflight_max: u32,
    /// Bytes of log that each record takes beside its payload, which is padded to a multiple of 8.
    pub record_cost: u16,
    /// Bytes of log that each batch takes beside its records.
    pub batch_cost: u16,
}

impl Limits {
    /// Bytes of log that a batch of records of these lengths takes. A batch is taken if that is no more than
    /// `batch_size_max`, and no record and no number of records is above its own limit.
    pub fn batch_size(&self, lengths: impl Iterator<Item = usize>) -> usize {
        socket::batch_log_size(self.record_cost, self.batch_cost, lengths)
    }
}

/// The sidecar's role, by its last frame that named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleInfo {
    /// Its role.
    pub role: Role,
    /// Its epoch.
    pub epoch: Epoch,
    /// The last acknowledged record that it knew then.
    pub last: Lsn,
    /// The primary, if known.
    pub primary: Option<String>,
}

/// Names one submitted append (a record or a batch) on its connection. Later submissions have greater tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// The answer to one submitted append.
#[derive(Debug)]
pub struct Ack {
    /// Which append.
    pub ticket: Ticket,
    /// The LSN of its last record, or why it was not acknowledged.
    pub outcome: Result<Lsn, Error>,
}

/// A passed barrier: the sidecar was still primary after the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassedBarrier {
    /// The epoch in which it was.
    pub epoch: Epoch,
    /// The last acknowledged record then.
    pub last: Lsn,
}

/// A position of the primary's log, taken after the call began: all that was acknowledged before is at or before `last`. An app
/// that has applied the records up to `last` may answer a request of that time as the primary would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The epoch of that primary.
    pub epoch: Epoch,
    /// The last acknowledged record there.
    pub last: Lsn,
}

/// Where a read begins. An LSN alone will do for an app that has read nothing yet; one that continues with its state names the
/// history too, and gets [`ErrorCode::BeyondEnd`](crate::ErrorCode::BeyondEnd) if the log was cut and does not have everything
/// that the state has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The first record.
    pub from: Lsn,
    /// The history in which those before it were read.
    pub history: History,
}

impl From<Lsn> for Start {
    fn from(from: Lsn) -> Start {
        Start { from, history: History::UNKNOWN }
    }
}

impl From<(History, Lsn)> for Start {
    fn from((history, from): (History, Lsn)) -> Start {
        Start { from, history }
    }
}

/// What a tail returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The next record.
    Record(Lsn, &'a [u8]),
    /// Every acknowledged record before `next` has been seen; new ones follow as they are acknowledged.
    CaughtUp {
        /// The record to come.
        next: Lsn,
    },
}

/// What a follow returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowEvent<'a> {
    /// The next record. It is acknowledged, and never disappears.
    Record(Lsn, &'a [u8]),
    /// Every record before `next` has been seen of which this sidecar knows that it is acknowledged; new ones follow.
    CaughtUp {
        /// The record to come.
        next: Lsn,
    },
    /// How old the view is: unasked, at most twice a second.
    Lag {
        /// The last acknowledged record that this sidecar knows.
        acked: Lsn,
        /// Everything that was acknowledged so long ago, and before, has been seen. `None` while that is unknown.
        behind: Option<Duration>,
        /// That is unknown, or longer than 300 ms: the records are many, or the primary is gone or out of sight.
        stale: bool,
    },
    /// The end: every acknowledged record has been seen, and this sidecar is primary. The same client may append now.
    Turn {
        /// The epoch that it leads.
        epoch: Epoch,
        /// The record to come: that of the first append.
        next: Lsn,
    },
}

impl From<socket::Welcome<'_>> for Welcome {
    fn from(welcome: socket::Welcome<'_>) -> Welcome {
        // No server may announce more than a frame can carry; one that does is held to the frame.
        let body = |size: u32| size.min(FRAME_BODY_MAX as u32);
        Welcome {
            version: welcome.version,
            role: welcome.role,
            ring: welcome.ring,
            table: welcome.table,
            limits: Limits {
                record_size_max: body(welcome.record_size_max),
                batch_size_max: body(welcome.batch_size_max),
                batch_records_max: welcome.batch_records_max.min(socket::BATCH_RECORDS_MAX),
                inflight_max: welcome.inflight_max,
                record_cost: welcome.record_cost,
                batch_cost: welcome.batch_cost,
            },
            epoch: Epoch(welcome.epoch),
            first: Lsn(welcome.first),
            last: Lsn(welcome.last),
            primary: known(welcome.primary),
        }
    }
}

impl Welcome {
    pub(crate) fn role_info(&self) -> RoleInfo {
        RoleInfo { role: self.role, epoch: self.epoch, last: self.last, primary: self.primary.clone() }
    }
}

/// An empty name on the wire means "unknown".
pub(crate) fn known(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.to_owned())
}
