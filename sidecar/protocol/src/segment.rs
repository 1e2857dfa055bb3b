//! Writes the log's bytes: the segment header, then one append after another, each sealed by a checksum entry.
//!
//! Called on the append path with the unpublished tail of the primary's buffer; allocates nothing.

use crate::ids::{Lsn, Offset};
use crate::layout::{
    CHECKSUM_SIZE, Chain, Closure, Lag, MARKS_SIZE, RECORD_HEADER_SIZE, RecordHeader, SEGMENT_HEADER_SIZE,
    SEGMENT_OVERHEAD, SegmentIdentity, padded, record_size,
};
use crate::planted::{self, Bug};

/// The writer of one segment: tracks where the next append goes and what its headers must contain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SegmentWriter {
    identity: SegmentIdentity,
    first: Lsn,
    end: u32,
    next: Lsn,
    chain: Chain,
    /// Everything before this offset is known to be acknowledged.
    acked: Offset,
    /// The last entries are marks that record that everything is acknowledged.
    marked: bool,
}

/// A record's bytes, wherever they are: copied once, to where the log wants them.
#[allow(clippy::len_without_is_empty, reason = "no caller needs it")]
pub trait Payload {
    /// Number of bytes.
    fn len(&self) -> usize;
    /// Copies all of them to `target`, which is as long.
    fn copy_to(&self, target: &mut [u8]);
}

impl Payload for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn copy_to(&self, target: &mut [u8]) {
        target.copy_from_slice(self);
    }
}

/// Bytes that an append of these payload lengths takes in the log, checksum entry included.
pub fn append_size(lengths: impl Iterator<Item = usize>) -> usize {
    lengths.map(record_size).sum::<usize>() + CHECKSUM_SIZE
}

impl SegmentWriter {
    /// Writes the segment header and its checksum entry at the start of `tail`, which is the whole buffer. The first
    /// record will be `first`. Returns the writer and the number of bytes written.
    pub fn open(identity: SegmentIdentity, first: Lsn, tail: &mut [u8]) -> (SegmentWriter, u32) {
        let header = identity.header(first);
        let (chain, entry) = Chain::default().extend(&header).seal(Lag::UNKNOWN);
        tail[..SEGMENT_HEADER_SIZE].copy_from_slice(&header);
        tail[SEGMENT_HEADER_SIZE..SEGMENT_OVERHEAD].copy_from_slice(&entry);
        let (end, acked) = (SEGMENT_OVERHEAD as u32, Offset(0));
        (SegmentWriter { identity, first, end, next: first, chain, acked, marked: false }, end)
    }

    /// The segment being written.
    pub fn identity(&self) -> &SegmentIdentity {
        &self.identity
    }

    /// Bytes left for appends: behind the last one there is always room for marks.
    pub fn room(&self) -> usize {
        ((self.identity.size.bytes() - self.end) as usize).saturating_sub(MARKS_SIZE)
    }

    /// Everything before this offset, where an append ends, is acknowledged: later entries will record it.
    pub fn acknowledged(&mut self, acked: Offset) {
        assert!(acked.0 <= self.end, "only what was appended is acknowledged");
        self.acked = self.acked.max(acked);
    }

    /// True when everything is acknowledged and no entry records it yet.
    pub fn wants_marks(&self) -> bool {
        !self.marked && self.acked.0 == self.end
    }

    /// Places two marks at the start of `tail`: everything before them is acknowledged. Only where
    /// [`SegmentWriter::wants_marks`]. Returns the bytes written.
    pub fn mark(&mut self, tail: &mut [u8]) -> u32 {
        assert!(self.wants_marks(), "marks stand behind what is acknowledged");
        for entry in tail[..MARKS_SIZE].chunks_exact_mut(CHECKSUM_SIZE) {
            entry.copy_from_slice(&self.seal(self.chain, self.end));
            self.end += CHECKSUM_SIZE as u32;
        }
        self.marked = true;
        MARKS_SIZE as u32
    }

    fn seal(&mut self, chain: Chain, at: u32) -> [u8; CHECKSUM_SIZE] {
        let (chain, entry) = chain.seal(Lag::between(self.acked, Offset(at)));
        self.chain = chain;
        entry
    }

    /// LSN of the next record.
    pub fn next(&self) -> Lsn {
        self.next
    }

    /// Where the segment ends now.
    pub fn closure(&self) -> Closure {
        Closure { first: self.first, last: self.next.prev(), end: Offset(self.end), chain: self.chain }
    }

    /// Places one append, all records of it, at the start of `tail` and seals it. The caller has checked that
    /// [`append_size`] fits [`SegmentWriter::room`]; `payloads` must not be empty. Returns the bytes written.
    pub fn append(&mut self, tail: &mut [u8], payloads: impl Iterator<Item = impl Payload>) -> u32 {
        let mut at = 0;
        let mut chain = self.chain;
        let mut next = self.next;
        for payload in payloads {
            let length = payload.len();
            let (head, body) = tail[at..at + record_size(length)].split_at_mut(RECORD_HEADER_SIZE);
            let (data, padding) = body.split_at_mut(length);
            payload.copy_to(data);
            padding.fill(0);
            let header = RecordHeader {
                length: length as u32,
                // The CRC of the bytes that were placed: the payload may lie in memory that its app is changing.
                payload_crc: if planted::has(Bug::NoPayloadCrc) { 0 } else { crc32fast::hash(data) },
                lsn: next,
                epoch: self.identity.epoch,
            };
            let header = header.to_bytes();
            chain = chain.extend(&header);
            next = next.next();
            head.copy_from_slice(&header);
            at += RECORD_HEADER_SIZE + padded(length);
        }
        assert!(next > self.next, "an append has at least one record");
        let entry = self.seal(chain, self.end + at as u32);
        tail[at..at + CHECKSUM_SIZE].copy_from_slice(&entry);
        at += CHECKSUM_SIZE;
        assert!(at <= self.room(), "the caller checks the room before it appends");
        (self.next, self.end, self.marked) = (next, self.end + at as u32, false);
        at as u32
    }
}
