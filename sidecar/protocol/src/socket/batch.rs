//! A run of records in one frame: of a `Batch` request, or of a `Records` response.
//!
//! Part of [`socket`](super).

use std::fmt;

use super::encode::frame;
use super::{FRAME_HEADER_SIZE, RECORDS_FRAME_TARGET, kind};

/// A run of length-prefixed records, checked as a whole when decoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Batch<'a> {
    count: u32,
    bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Checks that `bytes` hold exactly `count` records, each a `u32` length and as many bytes.
    pub fn new(count: u32, bytes: &'a [u8]) -> Result<Batch<'a>, &'static str> {
        let mut rest = bytes;
        for _ in 0..count {
            let (length, tail) = rest.split_first_chunk::<4>().ok_or("a record's length is cut off")?;
            let length = u32::from_le_bytes(*length) as usize;
            rest = tail.get(length..).ok_or("a record is cut off")?;
        }
        if rest.is_empty() { Ok(Batch { count, bytes }) } else { Err("bytes left over after the last record") }
    }

    /// Number of records.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// True when there is no record.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of all payloads together.
    pub fn payload_size(&self) -> usize {
        self.bytes.len() - 4 * self.count as usize
    }

    /// The length-prefixed bytes.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The records in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |_| {
            let (length, tail) = rest.split_first_chunk::<4>()?;
            let (payload, tail) = tail.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = tail;
            Some(payload)
        })
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} records, {} bytes)", self.count, self.payload_size())
    }
}

/// Appends one record in a batch's form to `out`.
pub fn put_batch_record(out: &mut Vec<u8>, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
}

pub(super) fn put_batch(out: &mut Vec<u8>, batch: &Batch<'_>) {
    out.extend_from_slice(&batch.count.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(batch.bytes);
}

/// Appends a whole batch request to `out`, each record copied once. Allocates only if `out` lacks room.
pub fn encode_batch<'a>(request: u64, records: impl ExactSizeIterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    frame(out, kind::BATCH, 0, request, |out| {
        out.extend_from_slice(&(records.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        records.for_each(|payload| put_batch_record(out, payload));
    });
}

/// What the log pads each payload to, and so what a payload counts as in a batch.
pub const PADDED_TO: usize = 8;

/// Bytes of log that a batch of these payload lengths takes, by the costs of a welcome: what `batch_size_max` bounds. Never
/// less than the bytes of the batch's body.
pub fn batch_log_size(record_cost: u16, batch_cost: u16, lengths: impl Iterator<Item = usize>) -> usize {
    // A server that tells no costs is held to the body: 4 bytes for each record, 8 for the run of them.
    let (record_cost, batch_cost) = (usize::from(record_cost).max(4), usize::from(batch_cost).max(8));
    batch_cost + lengths.map(|length| record_cost + length.next_multiple_of(PADDED_TO)).sum::<usize>()
}

/// `Records` frames in a row, each record copied once.
#[derive(Debug)]
pub struct RecordsFrames {
    request: u64,
    bytes: Vec<u8>,
    /// Where each whole frame ends, and the record after its last one.
    ends: Vec<(usize, u64)>,
    /// Where the frame that is being filled begins, and its records.
    start: usize,
    count: u32,
    /// The record after the last one put.
    next: u64,
}

impl RecordsFrames {
    /// Frames that answer this request.
    pub fn new(request: u64) -> RecordsFrames {
        RecordsFrames { request, bytes: Vec::new(), ends: Vec::new(), start: 0, count: 0, next: 0 }
    }

    /// Adds a record. Within a frame LSNs follow one another: the caller puts them in order, without gaps.
    pub fn put(&mut self, lsn: u64, payload: &[u8]) {
        let size = self.bytes.len() - self.start;
        if self.count > 0 && size + payload.len() > RECORDS_FRAME_TARGET {
            self.end_frame();
        }
        if self.count == 0 {
            self.start = self.bytes.len();
            self.bytes.extend_from_slice(&[0, 0, 0, 0, kind::RECORDS, 0, 0, 0]);
            self.bytes.extend_from_slice(&self.request.to_le_bytes());
            self.bytes.extend_from_slice(&lsn.to_le_bytes());
            self.bytes.extend_from_slice(&[0; 8]);
        }
        put_batch_record(&mut self.bytes, payload);
        self.count += 1;
        self.next = lsn + 1;
    }

    fn end_frame(&mut self) {
        if self.count == 0 {
            return;
        }
        let length = self.bytes.len() - self.start - FRAME_HEADER_SIZE;
        self.bytes[self.start..self.start + 4].copy_from_slice(&(length as u32).to_le_bytes());
        let count = self.start + FRAME_HEADER_SIZE + 8;
        self.bytes[count..count + 4].copy_from_slice(&self.count.to_le_bytes());
        self.ends.push((self.bytes.len(), self.next));
        self.count = 0;
    }

    /// The frames, in pieces of whole frames with this many bytes or a little more: each with the record that follows.
    pub fn pieces(&mut self, size: usize) -> impl Iterator<Item = (&[u8], u64)> {
        self.end_frame();
        let (mut start, mut ends) = (0, self.ends.iter());
        let bytes = &self.bytes;
        std::iter::from_fn(move || {
            let enough = ends.by_ref().find(|(end, _)| end - start >= size || *end == bytes.len());
            let (end, next) = enough?;
            Some((&bytes[std::mem::replace(&mut start, *end)..*end], *next))
        })
    }

    /// Forgets all records; the memory is kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        (self.start, self.count) = (0, 0);
    }
}
