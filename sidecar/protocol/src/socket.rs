//! Frames of the append socket: the bytes that an app and its sidecar exchange, versions 1 to 4.
//!
//! Called by the sidecar (decodes requests, encodes responses) and by the client library (the other way round). What the frames
//! say is here, and in `errors` why one is refused; `batch`, `operations`, `encode` and `decode` have their bytes.
//! The same bytes are described for other languages in `docs/append-socket.md`. Integers are little-endian. Reserved bytes
//! are sent as zero; those of the header are checked, those of a body and undefined flags are ignored.

mod batch;
mod decode;
mod encode;
mod errors;
mod operations;

use std::fmt;

use crate::table::record::{Key, Revision};
use crate::table::request::Mismatch;

pub use batch::{Batch, PADDED_TO, RecordsFrames, batch_log_size, encode_batch, put_batch_record};
pub use decode::{Decoded, announced_append, decode_request, decode_response, frame_size, read_append_header};
pub use encode::{WAKE_CLIENT_FRAME, WAKE_SIDECAR_FRAME, append_header};
pub use errors::{ErrorCode, FrameError};
pub use operations::{BadOperation, BadOperations, LargeValue, OPERATION_HEADER_SIZE, Operations, put_operation};

/// First bytes of every hello.
pub const MAGIC: [u8; 8] = *b"TWAPPEND";
/// Oldest version that is still spoken.
pub const VERSION_MIN: u16 = 1;
/// Newest version.
pub const VERSION: u16 = 4;
/// First version with [`Request::Follow`], [`Request::Position`], [`READ_ANYWHERE`] and [`Role::Reader`].
pub const VERSION_FOLLOW: u16 = 2;
/// First version with [`Response::History`] and its number in [`Request::Read`] and [`Request::Follow`].
pub const VERSION_HISTORY: u16 = 3;
/// First version with [`Request::Apply`] and [`Request::Get`], their answers, [`Welcome::table`], and the errors that belong to
/// tables.
pub const VERSION_TABLE: u16 = 4;
/// Bytes of the header of every frame.
pub const FRAME_HEADER_SIZE: usize = 16;
/// Largest body of any frame: the largest segment's batch (64 MiB / 2). A server may announce less in its welcome.
pub const FRAME_BODY_MAX: usize = 32 << 20;
/// Most records in one batch: 65,536 empty records need 2.5 MiB of log, which fits a batch of the default segment.
pub const BATCH_RECORDS_MAX: u32 = 1 << 16;
/// Bytes of payload that the server packs into one `Records` frame, unless a single record is larger.
pub const RECORDS_FRAME_TARGET: usize = 64 << 10;

/// Frame kinds. Requests are below 128, responses above.
mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const APPEND: u8 = 2;
    pub(super) const BATCH: u8 = 3;
    pub(super) const READ: u8 = 4;
    pub(super) const BARRIER: u8 = 5;
    pub(super) const TRIM: u8 = 6;
    pub(super) const STATUS: u8 = 7;
    pub(super) const STOP: u8 = 8;
    pub(super) const WAKE: u8 = 9;
    pub(super) const FOLLOW: u8 = 10;
    pub(super) const POSITION: u8 = 11;
    pub(super) const APPLY: u8 = 12;
    pub(super) const GET: u8 = 13;
    pub(super) const SYNC: u8 = 16;

    pub(super) const WELCOME: u8 = 129;
    pub(super) const ACK: u8 = 130;
    pub(super) const ERROR: u8 = 131;
    pub(super) const RECORDS: u8 = 132;
    pub(super) const END: u8 = 133;
    pub(super) const BARRIER_PASSED: u8 = 134;
    pub(super) const TRIMMED: u8 = 135;
    pub(super) const STATUS_REPORT: u8 = 136;
    pub(super) const ROLE: u8 = 137;
    pub(super) const WAKE_CLIENT: u8 = 138;
    pub(super) const TURN: u8 = 139;
    pub(super) const LAG: u8 = 140;
    pub(super) const LOG_POSITION: u8 = 141;
    pub(super) const HISTORY: u8 = 142;
    pub(super) const SYNCED: u8 = 143;
    pub(super) const MISMATCH: u8 = 144;
    pub(super) const VALUE: u8 = 145;
}

/// Flag of `Hello`: answer only once this sidecar is primary.
pub const HELLO_HOLD: u32 = 1;
/// Flag of `Hello`: the client can use a ring. See `docs/append-ring.md`.
pub const HELLO_RING: u32 = 2;
/// Flag of `Welcome`: a ring comes with this frame.
const WELCOME_RING: u8 = 1;
/// Flag of `Welcome`: this group keeps a table. Since version 4.
const WELCOME_TABLE: u8 = 2;
/// Flag of `Read`: after the last acknowledged record continue with new ones, until `Stop`.
pub const READ_TAIL: u32 = 1;
/// Flag of `Read`: read in any role of the sidecar. Off the primary, what was acknowledged last may be missing. Since version
/// 2; version 1 ignores it.
pub const READ_ANYWHERE: u32 = 2;
/// Flag of `Get`: everything that was acknowledged to anybody before the request. Since version 4.
pub const GET_FRESH: u16 = 1;
/// Flag of `Get`: if no sound copy of the key's newest value can be had, the one before will do. Since version 4.
pub const GET_OLDER: u16 = 2;
/// Flag of `Get`: leave the value out. Since version 4.
pub const GET_NO_VALUE: u16 = 4;
/// What `Value` says of a key.
mod found {
    pub(super) const ABSENT: u8 = 0;
    pub(super) const VALUE: u8 = 1;
    pub(super) const OLDER: u8 = 2;
}
/// Flag of `Value`: the view is stale.
const VALUE_STALE: u8 = 1;
/// Flag of `End`: the reader has caught up and the tail continues.
const END_TAILING: u8 = 1;
/// Flag of `Lag`: the view is stale.
const LAG_STALE: u32 = 1;
/// [`Response::Lag::behind_ms`] while it is unknown.
pub const BEHIND_UNKNOWN: u32 = u32::MAX;

/// A sidecar's role at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Takes appends.
    Primary = 1,
    /// Waits for the primary to die; knows which sidecar that is.
    Standby = 2,
    /// On its way to become primary.
    Recovering = 3,
    /// Serves reads and follows, and never becomes primary. Since version 2.
    Reader = 4,
}

impl Role {
    fn from_byte(byte: u8) -> Option<Role> {
        [Role::Primary, Role::Standby, Role::Recovering, Role::Reader].into_iter().find(|r| *r as u8 == byte)
    }

    /// What a client of this version is told: to those of version 1 a reader is a standby.
    pub fn in_version(self, version: u16) -> Role {
        if self == Role::Reader && version < VERSION_FOLLOW { Role::Standby } else { self }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Primary => "primary",
            Role::Standby => "standby",
            Role::Recovering => "recovering",
            Role::Reader => "reader",
        })
    }
}

/// What an app asks. Payloads borrow from the receive buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// First frame of a connection.
    Hello {
        /// Lowest version the client speaks.
        version_min: u16,
        /// Highest version the client speaks.
        version_max: u16,
        /// [`HELLO_HOLD`] and [`HELLO_RING`].
        flags: u32,
    },
    /// Append one record.
    Append {
        /// The record; may be empty.
        payload: &'a [u8],
    },
    /// Append several records, at least one: all or none of them survive.
    Batch(Batch<'a>),
    /// Change keys of a table: all operations or none. Since version 4.
    Apply(Operations<'a>),
    /// Answer with what is acknowledged of a key of a table. Since version 4.
    Get {
        /// The key.
        key: Key<'a>,
        /// The state after this record, or later; 0 for any.
        least: u64,
        /// [`GET_FRESH`], [`GET_OLDER`] and [`GET_NO_VALUE`].
        flags: u16,
    },
    /// Send acknowledged records from an LSN on.
    Read {
        /// First record wanted.
        from: u64,
        /// At most so many records; 0 for no limit.
        limit: u64,
        /// [`READ_TAIL`] and [`READ_ANYWHERE`].
        flags: u32,
        /// The [history](Response::History) of what was read before; 0 if it is not known. Since version 3.
        history: u64,
    },
    /// Send acknowledged records from an LSN on, in any role, until this sidecar is primary. Since version 2.
    Follow {
        /// First record wanted; 0 for the first that can be read.
        from: u64,
        /// The [history](Response::History) of what was read before; 0 if it is not known. Since version 3.
        history: u64,
    },
    /// Answer with a position of the primary's log that was taken after this request came in. Since version 2.
    Position,
    /// Answer once it is proved that this sidecar was primary after the request came in.
    Barrier,
    /// Answer once everything that was appended before is on disk at every member.
    Sync,
    /// Records below this LSN are no longer needed.
    Trim {
        /// First record that must stay.
        below: u64,
    },
    /// Report as JSON.
    Status,
    /// End the read of this very request number. A stop whose read has already ended has no answer: the two may cross.
    Stop,
    /// Look at the ring, in which something has changed. Has no answer.
    Wake,
}

/// What a sidecar answers. Each carries the request number of what it answers; `Role` carries 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response<'a> {
    /// Answer to a hello.
    Welcome(Welcome<'a>),
    /// Every current backup has the append, or the records of the `Apply`.
    Ack {
        /// LSN of the append's last record.
        lsn: u64,
    },
    /// The request was refused or failed.
    Error {
        /// Why.
        code: ErrorCode,
        /// True when the server closes the connection after this frame.
        fatal: bool,
        /// When it may be worth trying again; 0 for no advice.
        retry_after_ms: u32,
        /// For people: what was wrong, where, what to do.
        message: &'a str,
    },
    /// Records of a read, LSNs ascending without gaps.
    Records {
        /// LSN of the first record.
        first: u64,
        /// The records.
        records: Batch<'a>,
    },
    /// A read has ended or, with `tailing`, has caught up and continues; the same of a follow. Bears its number, also when a
    /// stop ended it.
    End {
        /// LSN that a further read would start at.
        next: u64,
        /// The read continues.
        tailing: bool,
    },
    /// The barrier has been passed.
    BarrierPassed {
        /// The epoch in which it was.
        epoch: u64,
        /// Last acknowledged record then.
        last: u64,
    },
    /// The log is on disk at every member.
    Synced {
        /// Up to this record.
        lsn: u64,
    },
    /// The log has been trimmed as far as whole segments allow.
    Trimmed {
        /// First record that can still be read.
        first: u64,
    },
    /// A JSON document.
    StatusReport {
        /// The document.
        json: &'a str,
    },
    /// This sidecar's role has changed, or the primary that it knows of.
    Role {
        /// The role now.
        role: Role,
        /// The epoch now.
        epoch: u64,
        /// Last acknowledged record that this sidecar knows.
        last: u64,
        /// The primary; empty if unknown.
        primary: &'a str,
    },
    /// A follow has ended: its client has every record, and this sidecar is primary.
    Turn {
        /// The epoch that this sidecar leads.
        epoch: u64,
        /// The record to come.
        next: u64,
    },
    /// How old the view of a follow is. Comes unasked while it runs, at most twice a second.
    Lag {
        /// Last acknowledged record that this sidecar knows.
        acked: u64,
        /// Everything that was acknowledged so many milliseconds ago, and before, has been sent; [`BEHIND_UNKNOWN`].
        behind_ms: u32,
        /// That is unknown, or longer than 300 ms: the records are many, or the primary is gone or out of sight.
        stale: bool,
    },
    /// A position of the primary's log.
    Position {
        /// The epoch of that primary.
        epoch: u64,
        /// The last acknowledged record there: all that was acknowledged before the request is at or before it.
        last: u64,
    },
    /// The history of the log that a read or follow sends: the answer to each begins with it, and it comes again if the log was cut
    /// behind what was sent. Since version 3.
    History {
        /// Its number.
        history: u64,
    },
    /// A condition of an `Apply` did not hold, so nothing of it was done. Since version 4.
    Mismatch(Mismatch),
    /// What is acknowledged of a key. Since version 4.
    Value {
        /// The key's revision; `None`: it is absent, or the value is an older one.
        revision: Option<Revision>,
        /// The state after this record, or after a later one; 0 with an older value.
        as_of: u64,
        /// The value; empty if the key is absent, or if none was asked for.
        value: &'a [u8],
        /// The key had this value some time before the one that cannot be had; which revision it had is not known.
        older: bool,
        /// The view is older than 300 ms, or nobody knows how old.
        stale: bool,
    },
    /// Look at the ring, in which something has changed. Answers nothing: request 0.
    Wake,
}

/// What the server says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome<'a> {
    /// The version spoken from now on.
    pub version: u16,
    /// The server's role.
    pub role: Role,
    /// A ring comes with this frame.
    pub ring: bool,
    /// This group keeps a table. Since version 4.
    pub table: bool,
    /// Largest record, in bytes.
    pub record_size_max: u32,
    /// Largest batch, in bytes of log: see [`batch_log_size`]. No frame body may be larger either.
    pub batch_size_max: u32,
    /// Most records in a batch.
    pub batch_records_max: u32,
    /// Unacknowledged appends that a connection may have before the server stops reading from it.
    pub inflight_max: u32,
    /// Bytes of log that a record takes beside its payload, which is padded to a multiple of [`PADDED_TO`].
    pub record_cost: u16,
    /// Bytes of log that a batch takes beside its records.
    pub batch_cost: u16,
    /// The current epoch; 0 if unknown.
    pub epoch: u64,
    /// First record that can be read.
    pub first: u64,
    /// Last acknowledged record; 0 if there is none or it is unknown.
    pub last: u64,
    /// The primary; empty if unknown.
    pub primary: &'a str,
}

/// Bytes of an ack frame: what the server must keep free for each append that it has taken.
pub const ACK_FRAME_SIZE: usize = FRAME_HEADER_SIZE + 8;
