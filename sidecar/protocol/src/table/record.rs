//! The payload of a keyed record: one key's put, delete or move.
//!
//! Made from a request of an app, or for a move, and placed into the log like any payload ([`Payload`]). Read back by folds of
//! the log, by the cleaner, and by readers of a table. Header, checksum and chain are those of every record (`layout.rs`).
//!
//! ```text
//!  0..4   TWK1, magic and format
//!  4      1 put, 2 delete
//!  5      1: more records of the same request follow
//!  6..8   length of the key
//!  8..16  revision; 0: this record's LSN
//! 16..    key, then value
//! ```
//! A put with a revision is a *move*: the cleaner has appended a live record again, and the key keeps the revision that it had.
//! Integers are little-endian.

use std::fmt;
use std::num::NonZeroU64;

use crate::ids::Lsn;
use crate::layout::{RECORD_HEADER_SIZE, SegmentSize, record_size};
use crate::segment::Payload;

/// First bytes of a keyed record; the last one is the format's version.
pub const KEYED_MAGIC: [u8; 4] = *b"TWK1";
/// Bytes before the key.
pub const KEYED_HEADER_SIZE: usize = 16;
/// Longest key.
pub const KEY_SIZE_MAX: usize = 1024;
/// Longest value, in segments of 2 MiB and more: see [`payload_size_max`].
pub const VALUE_SIZE_MAX: usize = 64 << 10;
/// Largest payload of a keyed record: 66,576 bytes.
pub const KEYED_SIZE_MAX: usize = KEYED_HEADER_SIZE + KEY_SIZE_MAX + VALUE_SIZE_MAX;

const KIND_PUT: u8 = 1;
const KIND_DELETE: u8 = 2;
/// Flag: more records of the same request follow.
const FLAG_MORE: u8 = 1;

/// A record is at most a sixteenth of its segment. The cleaner copies live records into new segments, and what does not fit
/// behind the last one there is lost until that segment is cleaned: with a quarter, as plain records have it, a table of the
/// smallest segments would need a third more memory for the same data.
const SEGMENT_SHARE: u32 = 16;

const _: () = assert!(KEY_SIZE_MAX <= u16::MAX as usize);
// The longest key has room for a value in the smallest segment.
const _: () = assert!(
    (SegmentSize::MIN.bytes() / SEGMENT_SHARE) as usize >= RECORD_HEADER_SIZE + KEYED_HEADER_SIZE + 2 * KEY_SIZE_MAX
);

/// Largest payload of a keyed record in segments of this size.
pub const fn payload_size_max(size: SegmentSize) -> usize {
    let share = (size.bytes() / SEGMENT_SHARE) as usize - RECORD_HEADER_SIZE;
    if share < KEYED_SIZE_MAX { share } else { KEYED_SIZE_MAX }
}

/// A key: 1 to [`KEY_SIZE_MAX`] bytes of any kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key<'a>(&'a [u8]);

/// The length of what is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key of {0} bytes: must be 1 to {KEY_SIZE_MAX}")]
pub struct BadKey(pub usize);

impl<'a> Key<'a> {
    /// Checks the length.
    pub fn new(bytes: &'a [u8]) -> Result<Key<'a>, BadKey> {
        if (1..=KEY_SIZE_MAX).contains(&bytes.len()) { Ok(Key(bytes)) } else { Err(BadKey(bytes.len())) }
    }

    /// Its bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0.escape_ascii())
    }
}

/// A value: up to [`VALUE_SIZE_MAX`] bytes of any kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value<'a>(&'a [u8]);

/// The length of what is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("value of {0} bytes: must be at most {VALUE_SIZE_MAX}")]
pub struct BadValue(pub usize);

impl<'a> Value<'a> {
    /// No bytes.
    pub const EMPTY: Value<'static> = Value(&[]);

    /// Checks the length.
    pub fn new(bytes: &'a [u8]) -> Result<Value<'a>, BadValue> {
        if bytes.len() <= VALUE_SIZE_MAX { Ok(Value(bytes)) } else { Err(BadValue(bytes.len())) }
    }

    /// Its bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({} bytes)", self.0.len())
    }
}

/// Of a key: the LSN of the record that first held its present value. A move does not change it. A key that is absent has
/// none: `Option<Revision>`, and 0 in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(NonZeroU64);

impl Revision {
    /// The revision that the record with this LSN gives its key. `None` for LSN 0, which no record has.
    pub fn of(lsn: Lsn) -> Option<Revision> {
        NonZeroU64::new(lsn.0).map(Revision)
    }

    /// The record's LSN.
    pub fn lsn(self) -> Lsn {
        Lsn(self.0.get())
    }

    /// As it stands in bytes: 0 for an absent key.
    pub fn number(revision: Option<Revision>) -> u64 {
        revision.map_or(0, |revision| revision.0.get())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A keyed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyedRecord<'a> {
    /// The key has this value from here on; the revision is this record's LSN.
    Put {
        /// The key.
        key: Key<'a>,
        /// Its value.
        value: Value<'a>,
        /// The next record is of the same request.
        more: bool,
    },
    /// The key is absent from here on. Such a record is called a *tombstone*.
    Delete {
        /// The key.
        key: Key<'a>,
        /// The next record is of the same request.
        more: bool,
    },
    /// A live record again: nothing changes but where it is. It belongs to no request.
    Move {
        /// The key.
        key: Key<'a>,
        /// Its value.
        value: Value<'a>,
        /// The revision that the key has, and keeps.
        revision: Revision,
    },
}

/// Why a payload is no keyed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotKeyed {
    /// It does not begin as one, or ends before the key.
    #[error("not a keyed record")]
    Foreign,
    /// Neither a put nor a delete.
    #[error("keyed record of unknown kind {0}")]
    Kind(u8),
    /// Flags of another format.
    #[error("keyed record with unknown flags {0:#04x}")]
    Flags(u8),
    /// The length of the key.
    #[error("keyed record: {0}")]
    Key(#[from] BadKey),
    /// The length of the value.
    #[error("keyed record: {0}")]
    Value(#[from] BadValue),
    /// A key is cut off.
    #[error("keyed record that ends within its key")]
    CutOff,
    /// A tombstone has no value.
    #[error("keyed record that deletes, with a value")]
    DeleteWithValue,
    /// A tombstone is never moved.
    #[error("keyed record that deletes, with a revision")]
    DeleteMoved,
    /// A move is of no request.
    #[error("keyed record that was moved, within a request")]
    MoveInRequest,
    /// What is moved is older than the move.
    #[error("keyed record {lsn} with revision {revision}")]
    Revision {
        /// In the payload.
        revision: u64,
        /// Of the record.
        lsn: Lsn,
    },
}

impl<'a> KeyedRecord<'a> {
    /// Reads the payload of the record with this LSN.
    pub fn decode(payload: &'a [u8], lsn: Lsn) -> Result<KeyedRecord<'a>, NotKeyed> {
        let Some((header, rest)) = payload.split_first_chunk::<KEYED_HEADER_SIZE>() else {
            return Err(NotKeyed::Foreign);
        };
        let [m0, m1, m2, m3, kind, flags, l0, l1, r @ ..] = *header;
        if [m0, m1, m2, m3] != KEYED_MAGIC {
            return Err(NotKeyed::Foreign);
        }
        if flags & !FLAG_MORE != 0 {
            return Err(NotKeyed::Flags(flags));
        }
        let (key, value) = rest.split_at_checked(usize::from(u16::from_le_bytes([l0, l1]))).ok_or(NotKeyed::CutOff)?;
        let (key, value) = (Key::new(key)?, Value::new(value)?);
        let more = flags == FLAG_MORE;
        let number = u64::from_le_bytes(r);
        // A put of record 0 would have no revision, and a move not before what it moves changes nothing.
        if number >= lsn.0 {
            return Err(NotKeyed::Revision { revision: number, lsn });
        }
        match (kind, Revision::of(Lsn(number))) {
            (KIND_PUT, None) => Ok(KeyedRecord::Put { key, value, more }),
            (KIND_PUT, Some(_)) if more => Err(NotKeyed::MoveInRequest),
            (KIND_PUT, Some(revision)) => Ok(KeyedRecord::Move { key, value, revision }),
            (KIND_DELETE, Some(_)) => Err(NotKeyed::DeleteMoved),
            (KIND_DELETE, None) if !value.as_bytes().is_empty() => Err(NotKeyed::DeleteWithValue),
            (KIND_DELETE, None) => Ok(KeyedRecord::Delete { key, more }),
            _ => Err(NotKeyed::Kind(kind)),
        }
    }

    /// The bytes before the key.
    pub fn header(&self) -> [u8; KEYED_HEADER_SIZE] {
        let (kind, more, revision) = match self {
            KeyedRecord::Put { more, .. } => (KIND_PUT, *more, None),
            KeyedRecord::Delete { more, .. } => (KIND_DELETE, *more, None),
            KeyedRecord::Move { revision, .. } => (KIND_PUT, false, Some(*revision)),
        };
        let mut out = [0; KEYED_HEADER_SIZE];
        out[..4].copy_from_slice(&KEYED_MAGIC);
        out[4] = kind;
        out[5] = if more { FLAG_MORE } else { 0 };
        out[6..8].copy_from_slice(&(self.key().0.len() as u16).to_le_bytes());
        out[8..].copy_from_slice(&Revision::number(revision).to_le_bytes());
        out
    }

    /// Its key.
    pub fn key(&self) -> Key<'a> {
        match self {
            KeyedRecord::Put { key, .. } | KeyedRecord::Delete { key, .. } | KeyedRecord::Move { key, .. } => *key,
        }
    }

    /// The value that the key has after it; `None`: it is absent.
    pub fn value(&self) -> Option<Value<'a>> {
        match self {
            KeyedRecord::Put { value, .. } | KeyedRecord::Move { value, .. } => Some(*value),
            KeyedRecord::Delete { .. } => None,
        }
    }

    /// True if the next record is of the same request.
    pub fn has_more(&self) -> bool {
        matches!(self, KeyedRecord::Put { more: true, .. } | KeyedRecord::Delete { more: true, .. })
    }

    /// The revision that the key has after it, if it is the record with this LSN, which is not 0.
    pub fn revision(&self, lsn: Lsn) -> Option<Revision> {
        match self {
            KeyedRecord::Put { .. } => Revision::of(lsn),
            KeyedRecord::Delete { .. } => None,
            KeyedRecord::Move { revision, .. } => Some(*revision),
        }
    }

    /// Bytes of the payload.
    pub fn payload_size(&self) -> usize {
        KEYED_HEADER_SIZE + self.key().0.len() + self.value().map_or(0, |value| value.0.len())
    }

    /// Bytes that it takes in the log, without the checksum entry of its append.
    pub fn size_in_log(&self) -> usize {
        record_size(self.payload_size())
    }
}

impl Payload for KeyedRecord<'_> {
    fn len(&self) -> usize {
        self.payload_size()
    }

    fn copy_to(&self, target: &mut [u8]) {
        let (header, rest) = target.split_at_mut(KEYED_HEADER_SIZE);
        let (key, value) = rest.split_at_mut(self.key().0.len());
        header.copy_from_slice(&self.header());
        key.copy_from_slice(self.key().0);
        value.copy_from_slice(self.value().map_or(&[], Value::as_bytes));
    }
}
