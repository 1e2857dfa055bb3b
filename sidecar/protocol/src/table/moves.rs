//! What the cleaner offers for a move: the records of a closed segment that may be live.
//!
//! Made by the cleaner's executor from a fetched and verified segment, in batches, and judged by the append path
//! ([`Index::stage_moves`](super::index::Index::stage_moves)).

use crate::ids::{Lsn, Position};
use crate::layout::record_size;
use crate::scan::Record;

use super::record::{KEYED_HEADER_SIZE, Key, KeyedRecord, Value};

/// Most bytes of log that one batch of candidates had: what the append path judges and copies in one turn.
pub const MOVE_BATCH_SIZE: usize = 256 << 10;
/// Most candidates of a batch: small records cost a hash each. 1,024 of the smallest have 56 KiB of log.
pub const MOVES_MAX: usize = 1024;
/// Bytes of the smallest keyed record in the log: a key of one byte and no value.
pub const KEYED_RECORD_SIZE_MIN: usize = 56;

const _: () = assert!(KEYED_RECORD_SIZE_MIN == crate::layout::RECORD_HEADER_SIZE + KEYED_HEADER_SIZE + 8);

/// A record that may be live: a put or a move. A tombstone in the oldest segment never is, since nothing older is left that it
/// would have to hide once the segment is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Where it begins.
    pub at: Position,
    /// Its LSN.
    pub lsn: Lsn,
    /// Its key.
    pub key: Key<'a>,
    /// The key's value, if it is live.
    pub value: Value<'a>,
}

impl<'a> Candidate<'a> {
    /// The record that begins at this position, if it may be live.
    pub fn of(at: Position, record: Record<'a>) -> Option<Candidate<'a>> {
        let keyed = KeyedRecord::decode(record.payload, record.lsn).ok()?;
        Some(Candidate { at, lsn: record.lsn, key: keyed.key(), value: keyed.value()? })
    }

    /// Bytes of its payload, which a move does not change.
    pub fn payload_size(&self) -> usize {
        KEYED_HEADER_SIZE + self.key.as_bytes().len() + self.value.as_bytes().len()
    }
}

/// The next batch: as many of these candidates as one batch has.
pub fn batch<'a>(candidates: impl Iterator<Item = Candidate<'a>>) -> impl Iterator<Item = Candidate<'a>> {
    let mut size = 0;
    candidates.take(MOVES_MAX).take_while(move |candidate| {
        size += record_size(candidate.payload_size());
        size <= MOVE_BATCH_SIZE
    })
}
