//! What a getter takes and hands out.

use std::ops::Range;
use std::time::Duration;

use crate::config::{Configuration, MemberRef};
use crate::follower::Visit;
use crate::ids::{LogId, Lsn, SegmentId};
use crate::table::record::{Key, Revision, Value};

/// A get's number, given by the caller; never twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GetId(pub u64);

/// A connection's number, given by the caller; never twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'a> {
    /// Names the get.
    pub id: GetId,
    /// Who asks.
    pub connection: ConnectionId,
    /// The key.
    pub key: Key<'a>,
    /// The state after this record, or later.
    pub least: Lsn,
    /// What the connection has seen elsewhere: nothing older than the state after this record.
    pub floor: Lsn,
    /// Everything that was acknowledged to anybody before the request.
    pub fresh: bool,
    /// If there is no sound copy of the key's record, the one before will do.
    pub older: bool,
    /// Only the revision.
    pub no_value: bool,
}

/// What a get is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The key has this value; empty if none was asked for.
    Value {
        /// Its revision.
        revision: Revision,
        /// The value.
        value: Value<'a>,
        /// The state after this record, or after a later one.
        as_of: Lsn,
        /// The view is older than [`STALE_AFTER`](crate::follower::STALE_AFTER), or nobody knows how old.
        stale: bool,
    },
    /// The key is absent.
    Absent {
        /// As of a value.
        as_of: Lsn,
        /// Of a value.
        stale: bool,
    },
    /// The key had this value some time before the one that no member can give; or has it, if that record was only moved. Which
    /// revision it had is not proved: no entry says it, and a record's CRC does not cover its LSN.
    Older(Value<'a>),
    /// There is no answer within [`PATIENCE`](super::PATIENCE), or at any member, or none has memory for a mirror; why, for people.
    Unavailable(&'a str),
}

/// What happens to a getter. Errors are for people.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The config store shows this configuration.
    Config(&'a Configuration),
    /// Somebody asks; [`Getter::may_take`](super::Getter::may_take) says that there is room.
    Get(Get<'a>),
    /// A connection has ended: its gets need no answer.
    Gone(ConnectionId),
    /// Answer to [`Output::Ask`].
    Told(u64, Result<Lsn, &'a str>),
    /// Answer to [`Output::Connect`]: there is a read channel, and board and mirror are shared.
    Connected(Visit, Result<(), &'a str>),
    /// Answer to [`Output::Connect`], too: the member says that it was given no memory for a mirror.
    NoMemory(Visit),
    /// Answer to [`Output::Look`]: when the read was posted, by the same clock as all moments, and what it found at
    /// [`LINES_WITH_MIRROR`](crate::board::mirror::LINES_WITH_MIRROR).
    Looked(Visit, Duration, &'a [u8]),
    /// Answer to [`Output::Buckets`]: both, one after the other.
    Buckets(Visit, GetId, &'a [u8]),
    /// Answer to [`Output::Record`]: the bytes, of a read that completed while the segment was shared. `None`: it is not in the
    /// member's memory.
    Record(Visit, GetId, Option<&'a [u8]>),
    /// Answer to [`Output::Fetch`].
    Fetched(Visit, GetId, Result<&'a [u8], &'a str>),
    /// The read channel is over; what is on its way has no other answer.
    Broken(Visit, &'a str),
    /// Time passes. Expected at [`Getter::wake_at`](super::Getter::wake_at); more often does no harm.
    Tick,
}

/// What a getter wants done. Each but the last has one answer, unless its visit has ended before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Ask the primary how far the log is acknowledged, with proof that it still is the primary.
    Ask(u64),
    /// Open a read channel to this member and have its board and its mirror shared.
    Connect(Visit, LogId, MemberRef),
    /// Read the board.
    Look(Visit),
    /// Read two buckets of the mirror: each in this part of its memory, from this byte on.
    Buckets(Visit, GetId, [(u32, u32); 2]),
    /// Read these bytes of a segment, which has to be shared for that.
    Record(Visit, GetId, SegmentId, Range<u32>),
    /// Fetch these bytes of a closed segment from any member that has it.
    Fetch(Visit, GetId, SegmentId, Range<u32>),
    /// The visit is over, and why: close its channel.
    Leave(Visit, String),
}
