//! Why a request was refused, and why bytes are not a frame.
//!
//! Part of [`socket`](super).

use super::{BadOperations, kind};

/// Why a request was refused. The number is on the wire; the message beside it is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ErrorCode {
    /// The bytes are not a frame of this protocol, or a frame in the wrong place. The connection ends.
    BadFrame = 1,
    /// No version in common. The connection ends.
    UnsupportedVersion = 2,
    /// This sidecar is not the primary; the message names the primary, if known. Nothing was appended.
    NotPrimary = 3,
    /// The record or batch is above the limit of the welcome. Nothing was appended.
    TooLarge = 4,
    /// The LSN has been trimmed away.
    Trimmed = 5,
    /// The LSN lies beyond the next record to come.
    BeyondEnd = 6,
    /// This user may not connect. The connection ends.
    NotAllowed = 7,
    /// The sidecar lost its role while this request was in flight: the append may or may not be in the log. Read to find out.
    UnknownOutcome = 8,
    /// A read runs on this connection: stop it first, or use another connection.
    Reading = 9,
    /// Too many connections or readers; try again later.
    Busy = 10,
    /// The sidecar is ending. The connection ends.
    ShuttingDown = 11,
    /// No backup could be read, or none is reachable; try again later.
    Unavailable = 12,
    /// The table has no room for what the request adds: a bound of its keys, its buckets or its memory. Nothing was appended.
    /// Since version 4.
    TableFull = 13,
    /// The group keeps a table and the request is one for a log, or the other way round. Nothing was done. Since version 4.
    WrongKind = 14,
}

impl ErrorCode {
    /// Every code, in the order of their numbers.
    pub const ALL: [ErrorCode; 14] = [
        ErrorCode::BadFrame,
        ErrorCode::UnsupportedVersion,
        ErrorCode::NotPrimary,
        ErrorCode::TooLarge,
        ErrorCode::Trimmed,
        ErrorCode::BeyondEnd,
        ErrorCode::NotAllowed,
        ErrorCode::UnknownOutcome,
        ErrorCode::Reading,
        ErrorCode::Busy,
        ErrorCode::ShuttingDown,
        ErrorCode::Unavailable,
        ErrorCode::TableFull,
        ErrorCode::WrongKind,
    ];

    pub(super) fn from_number(number: u16) -> Option<ErrorCode> {
        ErrorCode::ALL.into_iter().find(|c| *c as u16 == number)
    }
}

/// Why bytes are not a frame. Always the end of the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is out of bounds.
    #[error("frame of {length} bytes: the limit is {max}")]
    TooLong {
        /// Length in the header.
        length: u32,
        /// The limit.
        max: usize,
    },
    /// The kind is not of this version or not of this direction.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// The two reserved bytes are not zero.
    #[error("reserved bytes of the frame header are not zero")]
    Reserved,
    /// The body does not fit its kind.
    #[error("body of frame kind {kind} is malformed: {why}")]
    Malformed {
        /// The kind.
        kind: u8,
        /// What is wrong.
        why: &'static str,
    },
    /// The operations of an `Apply` are malformed.
    #[error("body of frame kind {apply} is malformed: {0}", apply = kind::APPLY)]
    Operations(#[from] BadOperations),
}
