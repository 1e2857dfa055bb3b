//! A closed segment that is being cleaned, and the batches of its records that may be live.
//!
//! Used by [`clean`](super).

use bytes::Bytes;
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::scan::Scanner;
use tailwind_protocol::table::fold::positioned;
use tailwind_protocol::table::moves::{self, Candidate};
use tailwind_protocol::table::record::KeyedRecord;

use crate::path::{MoveBatch, Offered};

/// A segment that has been fetched and verified, all of whose records are keyed.
#[derive(Debug)]
pub(super) struct CleanedSegment {
    identity: SegmentIdentity,
    closure: Closure,
    bytes: Bytes,
    /// Where the scan was at the append of the first record that is not judged.
    resume: Closure,
}

/// Candidates on their way to the append path.
#[derive(Debug)]
pub(super) struct Batch {
    offers: MoveBatch,
    /// The record behind the last one that is judged if all of these are.
    next: Lsn,
}

impl CleanedSegment {
    /// `None` if a record is not keyed.
    pub(super) fn new(identity: SegmentIdentity, closure: Closure, bytes: Bytes) -> Option<CleanedSegment> {
        let mut scanner = Scanner::new(&bytes, &identity).ok()?;
        let resume = scanner.closure();
        while let Ok(append) = scanner.next_append() {
            if append.records().any(|record| KeyedRecord::decode(record.payload, record.lsn).is_err()) {
                return None;
            }
        }
        Some(CleanedSegment { identity, closure, bytes, resume })
    }

    pub(super) fn segment(&self) -> SegmentId {
        self.identity.segment
    }

    /// The next batch: candidates from this record on. It grows with each call.
    pub(super) fn batch(&mut self, from: Lsn) -> Batch {
        let mut scanner = Scanner::resume(&self.bytes, &self.identity, self.resume);
        let mut ahead = scanner.clone();
        while ahead.next_append().is_ok() && ahead.closure().last < from {
            scanner = ahead.clone();
        }
        self.resume = scanner.closure();
        let segment = self.segment();
        let appends = std::iter::from_fn(|| {
            let start = scanner.closure().end;
            Some(positioned(segment, start, &scanner.next_append().ok()?))
        });
        let records = appends.flatten().filter(|(_, record)| record.lsn >= from);
        let mut is_last = false;
        let end = std::iter::from_fn(|| {
            is_last = true;
            None
        });
        let candidates = records.filter_map(|(at, record)| Candidate::of(at, record)).chain(end);
        let offer = |candidate: Candidate<'_>| {
            let (at, lsn, length) = (candidate.at.offset, candidate.lsn, candidate.payload_size() as u32);
            Offered { at, lsn, length }
        };
        let offered: Vec<Offered> = moves::batch(candidates).map(offer).collect();
        let next = match offered.last() {
            Some(last) if !is_last => last.lsn.next(),
            _ => self.closure.last.next(),
        };
        Batch { offers: MoveBatch { segment, bytes: self.bytes.clone(), offered }, next }
    }
}

impl Batch {
    pub(super) fn segment(&self) -> SegmentId {
        self.offers.segment
    }

    /// What the append path is told.
    pub(super) fn to_path(&self) -> MoveBatch {
        self.offers.clone()
    }

    /// The first record that is not judged, once so many of the candidates are.
    pub(super) fn next(&self, judged: usize) -> Lsn {
        self.offers.offered.get(judged).map_or(self.next, |offered| offered.lsn)
    }
}
