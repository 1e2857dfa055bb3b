//! The index as a fold of the log: what each record, in the order of LSNs, makes of it.
//!
//! Driven by a sidecar that may lead: while it stands by with the segments that are [closed](super::warm), and at its promotion
//! with the others. A put or a move sets its key, a delete removes it. The index is never read back from a mirror: an entry that
//! has rotted to zeros would be a lost key, and the log is there.
//!
//! A record that is not keyed is kept, and where the first one is gets reported: the cleaner stops below it.

use crate::ids::{Lsn, Offset, Position, SegmentId};
use crate::layout::{SegmentIdentity, SegmentSize, record_size};
use crate::planted::{self, Bug};
use crate::scan::{Append, Record, Scanner};

use super::index::Index;
use super::record::KeyedRecord;
use super::staged::{Change, To};

/// An index in the making.
#[derive(Debug)]
pub struct Fold {
    index: Index,
    /// The record to come; `None` before the first one.
    next: Option<Lsn>,
    unkeyed: Option<Unkeyed>,
}

/// Records of a table's log that are not keyed: appended by a sidecar of a build that does not know tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unkeyed {
    /// The first one.
    pub first: Lsn,
    /// Where it is. The cleaner trims no segment from this one on.
    pub segment: SegmentId,
    /// How many there are.
    pub records: u64,
}

/// What a fold makes of a log.
#[derive(Debug)]
pub struct Folded {
    /// The index: both views are of the last record.
    pub index: Index,
    /// The last record; `None`: there was none.
    pub last: Option<Lsn>,
    /// What is not keyed.
    pub unkeyed: Option<Unkeyed>,
}

/// Why a log cannot be folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// Begin again, with every record from the first one on.
    #[error("record {found} is not the next, {expected}")]
    Gap {
        /// The one that came.
        found: Lsn,
        /// The next one.
        expected: Lsn,
    },
    /// Begin again with another hash key, or more buckets.
    #[error("the index has no room for the key of record {0}")]
    NoRoom(Lsn),
}

impl Fold {
    /// Begins with an empty index.
    pub fn new(index: Index) -> Fold {
        Fold { index, next: None, unkeyed: None }
    }

    /// Takes the next record, which begins at this position.
    pub fn record(&mut self, at: Position, record: Record<'_>) -> Result<(), FoldError> {
        let lsn = record.lsn;
        if let Some(expected) = self.next.filter(|next| *next != lsn) {
            return Err(FoldError::Gap { found: lsn, expected });
        }
        match KeyedRecord::decode(record.payload, lsn) {
            Ok(keyed) => self.keyed(at, lsn, &keyed)?,
            Err(_) => {
                let unkeyed = self.unkeyed.get_or_insert(Unkeyed { first: lsn, segment: at.segment, records: 0 });
                unkeyed.records += 1;
            }
        }
        self.next = Some(lsn.next());
        Ok(())
    }

    /// Takes the records of the next segment, whose bytes have been verified.
    pub fn segment(&mut self, identity: &SegmentIdentity, bytes: &[u8]) -> Result<(), FoldError> {
        let mut scanner = Scanner::new(bytes, identity).expect("the segment has been verified");
        loop {
            let start = scanner.closure().end;
            let Ok(append) = scanner.next_append() else { return Ok(()) };
            positioned(identity.segment, start, &append).try_for_each(|(at, record)| self.record(at, record))?;
        }
    }

    fn keyed(&mut self, at: Position, lsn: Lsn, keyed: &KeyedRecord<'_>) -> Result<(), FoldError> {
        let index = &mut self.index;
        let hash = index.hash(keyed.key());
        let to = keyed.revision(lsn).map(|revision| {
            let length = keyed.payload_size() as u32;
            To { revision, place: index.place(at), length }
        });
        if to.is_none() && planted::has(Bug::FoldIgnoresDeletes) {
            return Ok(());
        }
        let entry = match index.find(hash) {
            Some(entry) => entry,
            // A tombstone whose put has been trimmed.
            None if to.is_none() => return Ok(()),
            None => index.reserve(hash).map_err(|_| FoldError::NoRoom(lsn))?,
        };
        index.fold(Change { lsn, entry, to });
        Ok(())
    }

    /// Keys that are present after what has been folded.
    pub fn keys(&self) -> u32 {
        self.index.keys()
    }

    /// The last record that has been folded.
    pub fn last(&self) -> Option<Lsn> {
        self.next.map(Lsn::prev)
    }

    /// What is not keyed.
    pub(super) fn unkeyed(&self) -> Option<Unkeyed> {
        self.unkeyed
    }

    pub(super) fn segment_size(&self) -> SegmentSize {
        self.index.window().segment_size()
    }

    /// See [`Index::forget_before`].
    pub(super) fn forget_before(&mut self, first: SegmentId, last: SegmentId) {
        self.index.forget_before(first, last);
    }

    /// Everything has been folded that the log has.
    pub fn finish(self) -> Folded {
        Folded { index: self.index, last: self.next.map(Lsn::prev), unkeyed: self.unkeyed }
    }
}

/// The records of an append that begins at `start`, each with its position.
pub fn positioned<'a>(
    segment: SegmentId,
    start: Offset,
    append: &Append<'a>,
) -> impl Iterator<Item = (Position, Record<'a>)> + use<'a> {
    append.records().scan(start, move |at, record| {
        let position = Position::new(segment, *at);
        *at = Offset(at.0 + record_size(record.payload.len()) as u32);
        Some((position, record))
    })
}
