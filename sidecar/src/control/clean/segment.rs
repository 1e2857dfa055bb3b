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

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::{Epoch, Generation, LogId};
    use tailwind_protocol::layout::SegmentSize;
    use tailwind_protocol::segment::SegmentWriter;
    use tailwind_protocol::table::record::{Key, Value};

    use super::*;

    const PUTS: u64 = 3000;

    fn identity() -> SegmentIdentity {
        let (log, epoch, size) = (LogId(1), Epoch(1), SegmentSize::new(1 << 20).unwrap());
        SegmentIdentity { log, segment: SegmentId(7), epoch, generation: Generation(1), size }
    }

    /// Puts and deletes in turn, some of them in one append, and at last this payload.
    fn segment(last: Option<&[u8]>) -> (Bytes, Closure) {
        let mut memory = vec![0; identity().size.bytes() as usize];
        let (mut writer, mut end) = SegmentWriter::open(identity(), Lsn(100), &mut memory);
        let key = Key::new(b"key").unwrap();
        for number in 0..PUTS {
            let put = KeyedRecord::Put { key, value: Value::new(&[7; 200]).unwrap(), more: false };
            let delete = KeyedRecord::Delete { key, more: false };
            let records = [put, delete];
            end += writer.append(&mut memory[end as usize..], records[..1 + number as usize % 2].iter().copied());
        }
        if let Some(payload) = last {
            end += writer.append(&mut memory[end as usize..], [payload].into_iter());
        }
        memory.truncate(end as usize);
        (memory.into(), writer.closure())
    }

    #[test]
    fn batches_offer_each_put_once_and_no_tombstone() {
        let (bytes, closure) = segment(None);
        // All that are offered are judged, or only the first few.
        for judged_at_most in [usize::MAX, 100] {
            let mut cleaned = CleanedSegment::new(identity(), closure, bytes.clone()).unwrap();
            let (mut from, mut judged) = (closure.first, Vec::new());
            while from <= closure.last {
                let batch = cleaned.batch(from);
                let offered = &batch.offers.offered;
                let count = offered.len().min(judged_at_most);
                for offered in &offered[..count] {
                    let payload = &bytes[offered.at.0 as usize + 32..][..offered.length as usize];
                    assert_eq!(
                        KeyedRecord::decode(payload, offered.lsn).unwrap().value().unwrap().as_bytes(),
                        [7; 200]
                    );
                    judged.push(offered.lsn);
                }
                let next = batch.next(count);
                assert!(next > from, "it goes on");
                from = next;
            }
            assert_eq!(from, closure.last.next());
            assert_eq!(judged.len() as u64, PUTS);
            assert!(judged.is_sorted_by(|a, b| a < b));
        }
    }

    #[test]
    fn a_segment_with_a_record_that_is_not_keyed_is_not_cleaned() {
        let (bytes, closure) = segment(Some(b"a plain record"));
        assert!(CleanedSegment::new(identity(), closure, bytes).is_none());
    }
}
