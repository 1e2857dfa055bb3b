//! A small log in memory, as a primary has it: segments of the smallest size, written and scanned by the crate's own code, and
//! beside it each record's payload for the judge.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::{SegmentIdentity, SegmentSize, record_size};
use tailwind_protocol::scan::{Record, Scanner};
use tailwind_protocol::segment::{Payload, SegmentWriter};
use tailwind_protocol::table::cleaner::SegmentRecords;
use tailwind_protocol::table::fold::positioned;
use tailwind_protocol::table::record::KeyedRecord;

pub(super) const SIZE: SegmentSize = SegmentSize::MIN;

/// One segment.
pub(super) struct Segment {
    identity: SegmentIdentity,
    writer: SegmentWriter,
    bytes: Vec<u8>,
    end: u32,
    first: u64,
    last: u64,
    /// The cleaner knows of it.
    pub(super) told: bool,
}

impl Segment {
    fn open(segment: u64, epoch: u64, first: u64) -> Segment {
        let (log, generation) = (LogId(1), Generation(segment * 1000 + epoch));
        let identity =
            SegmentIdentity { log, segment: SegmentId(segment), epoch: Epoch(epoch), generation, size: SIZE };
        let mut bytes = vec![0; SIZE.bytes() as usize];
        let (writer, end) = SegmentWriter::open(identity, Lsn(first), &mut bytes);
        Segment { identity, writer, bytes, end, first, last: first - 1, told: false }
    }

    pub(super) fn id(&self) -> SegmentId {
        self.identity.segment
    }

    pub(super) fn closed(&self) -> SegmentRecords {
        SegmentRecords { segment: self.id(), first: Lsn(self.first), last: Lsn(self.last) }
    }

    pub(super) fn room(&self) -> usize {
        self.writer.room()
    }

    /// These of its bytes.
    pub(super) fn bytes(&self, range: Range<u32>) -> &[u8] {
        &self.bytes[range.start as usize..range.end as usize]
    }

    /// Its records up to this one, as a scan of its bytes finds them.
    pub(super) fn records(&self, last: u64) -> Vec<(Position, Record<'_>)> {
        let mut scanner = Scanner::new(&self.bytes, &self.identity).expect("a segment header");
        let mut found = Vec::new();
        loop {
            let start = scanner.closure().end;
            let Ok(append) = scanner.next_append() else { return found };
            found.extend(positioned(self.id(), start, &append).take_while(|(_, record)| record.lsn.0 <= last));
        }
    }
}

/// The log, from its first record on.
pub(super) struct Log {
    pub(super) segments: VecDeque<Segment>,
    pub(super) epoch: u64,
    /// The last record of each append that is not acknowledged.
    appends: VecDeque<u64>,
    pub(super) acked: u64,
    /// Each record's payload.
    records: BTreeMap<u64, Vec<u8>>,
    by_position: BTreeMap<Position, u64>,
}

impl Log {
    pub(super) fn new() -> Log {
        let segments = VecDeque::from([Segment::open(1, 1, 1)]);
        let (appends, records, by_position) = Default::default();
        Log { segments, epoch: 1, appends, acked: 0, records, by_position }
    }

    /// The segment that takes appends.
    pub(super) fn open(&self) -> &Segment {
        self.segments.back().expect("one is open")
    }

    pub(super) fn len(&self) -> u32 {
        self.segments.len() as u32
    }

    pub(super) fn last(&self) -> u64 {
        self.open().last
    }

    pub(super) fn roll(&mut self) {
        let (segment, first) = (self.open().id().0 + 1, self.last() + 1);
        self.segments.push_back(Segment::open(segment, self.epoch, first));
    }

    /// Appends a batch for which the open segment has room; returns its first record, and where it begins.
    pub(super) fn append(&mut self, records: &[KeyedRecord<'_>]) -> (Lsn, Position) {
        let open = self.segments.back_mut().expect("one is open");
        let (first, at) = (open.last + 1, Position::new(open.id(), Offset(open.end)));
        let mut position = at;
        for (lsn, record) in (first..).zip(records) {
            let mut payload = vec![0; record.len()];
            record.copy_to(&mut payload);
            self.by_position.insert(position, lsn);
            position.offset.0 += record_size(payload.len()) as u32;
            self.records.insert(lsn, payload);
        }
        open.end += open.writer.append(&mut open.bytes[open.end as usize..], records.iter().copied());
        open.last += records.len() as u64;
        self.appends.push_back(open.last);
        (Lsn(first), at)
    }

    /// The ends of appends at which an acknowledgement or a crash may come, the acknowledged one first.
    pub(super) fn ends(&self) -> Vec<u64> {
        std::iter::once(self.acked).chain(self.appends.iter().copied()).collect()
    }

    pub(super) fn ack(&mut self, acked: u64) {
        self.acked = acked;
        self.appends.retain(|last| *last > acked);
    }

    /// What the log begins with is this record.
    pub(super) fn trim(&mut self, below: u64) {
        while self.segments.len() > 1 && self.segments[0].last < below {
            self.segments.pop_front();
        }
        let first = self.segments[0].first;
        self.records = self.records.split_off(&first);
        self.by_position.retain(|_, lsn| *lsn >= first);
    }

    /// The log ends here, and another epoch continues.
    pub(super) fn crash(&mut self, cut: u64) {
        self.epoch += 1;
        let oldest = self.segments[0].id().0;
        self.segments.retain(|segment| segment.first <= cut && segment.last >= segment.first);
        self.records.split_off(&(cut + 1));
        self.by_position.retain(|_, lsn| *lsn <= cut);
        self.appends.clear();
        self.acked = cut;
        if let Some(last) = self.segments.back_mut() {
            last.last = last.last.min(cut);
        }
        let next = self.segments.back().map_or(oldest, |last| last.id().0 + 1);
        self.segments.push_back(Segment::open(next, self.epoch, cut + 1));
        self.segments.iter_mut().for_each(|segment| segment.told = false);
    }

    /// LSN and payload of each record up to this one.
    pub(super) fn payloads(&self, last: u64) -> impl Iterator<Item = (u64, &[u8])> {
        self.records.range(..=last).map(|(lsn, payload)| (*lsn, &payload[..]))
    }

    /// The record that begins here.
    pub(super) fn record_at(&self, at: Position) -> Option<(u64, &[u8])> {
        let lsn = self.by_position.get(&at)?;
        Some((*lsn, &self.records[lsn]))
    }
}
