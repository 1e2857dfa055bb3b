//! A request that changes a table: its operations, and whether their conditions hold.
//!
//! Made from a frame of the append socket (or by a test), judged and staged by the primary's index
//! and then appended as one batch of [`KeyedRecord`]s. All or nothing happens, as in a transaction of etcd:
//!
//! - All conditions are judged against the state before the request. So two keys can be exchanged by two copies.
//! - A key may be written once in a request, and at least one is written. So of *n* writes, whose batch ends with record *l*,
//!   the *i*-th, from 1, gives its key the revision *l* − *n* + *i*.

use crate::ids::Lsn;
use crate::layout::SegmentSize;
use crate::segment::append_size;

use super::record::{KEYED_HEADER_SIZE, Key, KeyedRecord, Revision, Value, payload_size_max};

/// Most operations in a request. The table's queues have room for as many at once, and an index of one of them is a byte.
pub const OPERATIONS_MAX: usize = 256;

/// What a key must be, so that a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expected {
    /// There is no such key.
    Absent,
    /// It has the value of this revision.
    At(Revision),
}

impl Expected {
    /// As the socket has it: a revision, or 0 for absent.
    pub fn from_number(number: u64) -> Expected {
        Revision::of(Lsn(number)).map_or(Expected::Absent, Expected::At)
    }

    /// True if the key is that now.
    pub fn holds(self, now: Option<Revision>) -> bool {
        match self {
            Expected::Absent => now.is_none(),
            Expected::At(revision) => now == Some(revision),
        }
    }
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// A put, a delete or a copy.
    Write {
        /// The key.
        key: Key<'a>,
        /// What it gets.
        written: Written<'a>,
        /// Only if the key, not the source of a copy, is this now.
        only_if: Option<Expected>,
    },
    /// Writes nothing.
    Require {
        /// The key.
        key: Key<'a>,
        /// Nothing of the request is done unless the key is this now.
        expected: Expected,
    },
}

impl<'a> Operation<'a> {
    /// The key that it writes or is about.
    pub fn key(&self) -> Key<'a> {
        match self {
            Operation::Write { key, .. } | Operation::Require { key, .. } => *key,
        }
    }

    /// What must hold of the key.
    pub fn condition(&self) -> Option<Expected> {
        match self {
            Operation::Write { only_if, .. } => *only_if,
            Operation::Require { expected, .. } => Some(*expected),
        }
    }

    fn written(&self) -> Option<Written<'a>> {
        match self {
            Operation::Write { written, .. } => Some(*written),
            Operation::Require { .. } => None,
        }
    }
}

/// A request: operations that are well-formed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apply<'a> {
    operations: &'a [Operation<'a>],
    writes: u16,
}

/// What is wrong with operations as they are, in any state. The request is refused as malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadApply {
    /// None, or too many.
    #[error("{0} operations: must be 1 to {OPERATIONS_MAX}")]
    Operations(usize),
    /// A request that only asks.
    #[error("no operation writes a key")]
    NothingWritten,
    /// The revision of a key after the request must be one number.
    #[error("operations {0} and {1} write the same key")]
    WrittenTwice(u16, u16),
}

/// A request that no log of this segment size can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// One of its records.
    #[error("operation {operation} makes a record of {size} bytes: must be at most {most}")]
    Record {
        /// The operation that writes it.
        operation: u16,
        /// Bytes of its payload.
        size: usize,
        /// The most that it may have.
        most: usize,
    },
    /// All of them together.
    #[error("the request takes {size} bytes of log: must be at most {most}")]
    Request {
        /// Bytes of its append.
        size: usize,
        /// The most that it may have.
        most: usize,
    },
}

/// A condition does not hold, so nothing of the request was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mismatch {
    /// The first operation of which it does not hold; they count from 0.
    pub operation: u16,
    /// The revision that the key of the condition has instead. Of a copy whose own condition holds, the key is its source,
    /// which is absent.
    pub now: Option<Revision>,
}

/// Where the revision that a key has now can be looked up.
pub trait Revisions {
    /// The revision of a key; `None` while it is absent.
    fn revision(&self, key: Key<'_>) -> Option<Revision>;
}

/// What a key gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written<'a> {
    /// This value: a put.
    Value(Value<'a>),
    /// None: a delete. The key may be absent already.
    Nothing,
    /// The value that this key has before the request: a copy. Nothing of the request is done if that key is absent.
    CopyOf(Key<'a>),
}

/// A write of a request: one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The operation.
    pub operation: u16,
    /// The key.
    pub key: Key<'a>,
    /// What it gets.
    pub written: Written<'a>,
    /// Another write follows.
    pub more: bool,
}

impl<'a> Apply<'a> {
    /// Checks the operations.
    pub fn new(operations: &'a [Operation<'a>]) -> Result<Apply<'a>, BadApply> {
        if !(1..=OPERATIONS_MAX).contains(&operations.len()) {
            return Err(BadApply::Operations(operations.len()));
        }
        // The writes, sorted by key: 256 keys of 1 KiB that differ in their last byte would take 32 MiB of comparing in pairs.
        let mut order = [0_u8; OPERATIONS_MAX];
        let mut writes = 0;
        for (number, _) in operations.iter().enumerate().filter(|(_, operation)| operation.written().is_some()) {
            order[writes] = number as u8;
            writes += 1;
        }
        let key = |number: &u8| operations[usize::from(*number)].key();
        order[..writes].sort_unstable_by_key(|number| (key(number), *number));
        if let Some([a, b]) = order[..writes].array_windows().find(|[a, b]| key(a) == key(b)) {
            return Err(BadApply::WrittenTwice(u16::from(*a), u16::from(*b)));
        }
        if writes == 0 {
            return Err(BadApply::NothingWritten);
        }
        Ok(Apply { operations, writes: writes as u16 })
    }

    /// Its operations.
    pub fn operations(&self) -> &'a [Operation<'a>] {
        self.operations
    }

    /// How many records it becomes, at least one.
    pub fn write_count(&self) -> u16 {
        self.writes
    }

    /// Its writes, in the order of their records.
    pub fn writes(&self) -> impl Iterator<Item = Write<'a>> + use<'a> {
        let mut left = self.writes;
        self.operations.iter().enumerate().filter_map(move |(number, operation)| {
            let written = operation.written()?;
            left -= 1;
            Some(Write { operation: number as u16, key: operation.key(), written, more: left > 0 })
        })
    }

    /// The revision that the write with this number, from 0, gives its key, if `last` is the request's last record. `None` if
    /// there is no such write.
    pub fn revision(&self, write: u16, last: Lsn) -> Option<Revision> {
        let after = self.writes.checked_sub(write + 1)?;
        Revision::of(Lsn(last.0.checked_sub(u64::from(after))?))
    }

    /// Judges all conditions against the state before the request. The first operation that does not fit decides.
    pub fn judge(&self, before: &impl Revisions) -> Result<(), Mismatch> {
        for (number, operation) in self.operations.iter().enumerate() {
            let mismatch = |now| Err(Mismatch { operation: number as u16, now });
            if let Some(expected) = operation.condition() {
                let now = before.revision(operation.key());
                if !expected.holds(now) {
                    return mismatch(now);
                }
            }
            if let Some(Written::CopyOf(source)) = operation.written()
                && before.revision(source).is_none()
            {
                return mismatch(None);
            }
        }
        Ok(())
    }

    /// Checks its records against what segments of this size take, and returns the bytes of its append. `copied` is the length
    /// of the value that a copy takes over.
    pub fn size(&self, segment: SegmentSize, copied: impl Fn(Key<'_>) -> usize) -> Result<usize, TooLarge> {
        let most = payload_size_max(segment);
        let payload = |write: &Write<'_>| write.payload_size(&copied);
        if let Some(write) = self.writes().find(|write| payload(write) > most) {
            return Err(TooLarge::Record { operation: write.operation, size: payload(&write), most });
        }
        let size = append_size(self.writes().map(|write| payload(&write)));
        let most = segment.append_size_max() as usize;
        if size <= most { Ok(size) } else { Err(TooLarge::Request { size, most }) }
    }
}

impl<'a> Write<'a> {
    /// Bytes of its record's payload; see [`Apply::size`].
    pub fn payload_size(&self, copied: impl Fn(Key<'_>) -> usize) -> usize {
        let value = match self.written {
            Written::Value(value) => value.as_bytes().len(),
            Written::Nothing => 0,
            Written::CopyOf(source) => copied(source),
        };
        KEYED_HEADER_SIZE + self.key.as_bytes().len() + value
    }

    /// Its record. `copied` has the value that a copy takes over: the primary logs the bytes, so that the record needs no other.
    pub fn record(&self, copied: impl FnOnce(Key<'a>) -> Value<'a>) -> KeyedRecord<'a> {
        let Write { key, more, .. } = *self;
        match self.written {
            Written::Value(value) => KeyedRecord::Put { key, value, more },
            Written::Nothing => KeyedRecord::Delete { key, more },
            Written::CopyOf(source) => KeyedRecord::Put { key, value: copied(source), more },
        }
    }
}
