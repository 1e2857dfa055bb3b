//! The bytes of a lookup. All integers are little-endian.
//!
//! ```text
//! reader → receiver   request   2 × (key u64 · offset u32 · length u32) · room u32 · length of the question u32 · question, 32 bytes
//! receiver → reader   answer    length u32 · 0, or 1: a share has ended, and so has the channel · `length` bytes, as they land
//! ```

use std::ops::Range;

use tailwind_ring::Sizes;

use crate::reading::{LEAD_SIZE, QUESTION_MAX, READS_MAX};

/// Bytes of a request.
pub(super) const REQUEST_SIZE: usize = 2 * 16 + 8 + QUESTION_MAX;
/// Bytes before those of an answer that land.
pub(super) const HEAD_SIZE: usize = 8;
/// Most bytes of an answer. What a lookup leads to is taken along if it has room in it.
pub(super) const ANSWER_MAX: usize = 4096;
/// The memory that carries both: as small as may be, so that it stays in the caches.
pub(super) const SIZES: Sizes = Sizes { requests: 64 << 10, answers: 256 << 10 };

// So nobody ever waits for room.
const _: () = assert!(READS_MAX * REQUEST_SIZE <= SIZES.requests && READS_MAX * ANSWER_MAX <= SIZES.answers);

/// A lookup, as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The shares' keys, and what is read of each.
    pub(super) reads: [(u64, Range<u32>); 2],
    /// Bytes that may land.
    pub(super) room: u32,
    question: [u8; QUESTION_MAX],
    question_size: usize,
}

impl Request {
    /// # Panics
    /// When the question is too long, or an answer has no room for two reads and a lead.
    pub(super) fn new(reads: [(u64, Range<u32>); 2], question: &[u8], room: u32) -> Request {
        assert!(question.len() <= QUESTION_MAX, "a question is short");
        let mut padded = [0; QUESTION_MAX];
        padded[..question.len()].copy_from_slice(question);
        let room = room.min((ANSWER_MAX - HEAD_SIZE) as u32);
        let request = Request { reads, room, question: padded, question_size: question.len() };
        assert!(request.least() <= u64::from(room), "a lookup has room for two reads and what they lead to");
        request
    }

    /// Bytes that land in any case.
    pub(super) fn least(&self) -> u64 {
        self.reads.iter().map(|(_, at)| u64::from(at.end) - u64::from(at.start)).sum::<u64>() + u64::from(LEAD_SIZE)
    }

    /// The question.
    pub(super) fn question(&self) -> &[u8] {
        &self.question[..self.question_size]
    }

    pub(super) fn encode(&self) -> [u8; REQUEST_SIZE] {
        let mut out = [0; REQUEST_SIZE];
        for (read, (key, at)) in out.chunks_mut(16).zip(&self.reads) {
            read[..8].copy_from_slice(&key.to_le_bytes());
            read[8..12].copy_from_slice(&at.start.to_le_bytes());
            read[12..].copy_from_slice(&(at.end - at.start).to_le_bytes());
        }
        out[32..36].copy_from_slice(&self.room.to_le_bytes());
        out[36..40].copy_from_slice(&(self.question_size as u32).to_le_bytes());
        out[40..].copy_from_slice(&self.question);
        out
    }

    /// `None`: no honest reader has made it.
    pub(super) fn decode(bytes: &[u8; REQUEST_SIZE]) -> Option<Request> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let key_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let read = |at: usize| Some((key_at(at), u32_at(at + 8)..u32_at(at + 8).checked_add(u32_at(at + 12))?));
        let (reads, room, question_size) = ([read(0)?, read(16)?], u32_at(32), u32_at(36) as usize);
        let question = std::array::from_fn(|i| bytes[40 + i]);
        let request = Request { reads, room, question, question_size };
        let possible = question_size <= QUESTION_MAX && request.least() <= u64::from(room);
        (possible && room as usize <= ANSWER_MAX - HEAD_SIZE).then_some(request)
    }
}

/// What an answer begins with.
pub(super) fn head(length: usize, ended: bool) -> [u8; HEAD_SIZE] {
    let mut out = [0; HEAD_SIZE];
    out[..4].copy_from_slice(&(length as u32).to_le_bytes());
    out[4..].copy_from_slice(&u32::from(ended).to_le_bytes());
    out
}

/// What an answer begins with, as it has arrived: how many bytes land, and whether a share has ended.
pub(super) fn read_head(bytes: &[u8; HEAD_SIZE]) -> (usize, bool) {
    let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    (u32_at(0) as usize, u32_at(4) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_what_was_asked() {
        let request = Request::new([(1, 2..514), (u64::MAX, 7..8)], b"what", 2000);
        assert_eq!(Request::decode(&request.encode()), Some(request.clone()));
        assert_eq!((request.question(), request.least()), (&b"what"[..], 512 + 1 + 16));
        assert_eq!(Request::new([(1, 0..1), (1, 0..1)], b"", u32::MAX).room as usize, ANSWER_MAX - HEAD_SIZE);
    }

    #[test]
    fn what_no_reader_asks_is_refused() {
        let bytes = Request::new([(1, 2..514), (3, 7..8)], b"what", 2000).encode();
        for (at, byte) in [(15, 0xff), (31, 0xff), (35, 1), (36, 33), (37, 1)] {
            let mut bytes = bytes;
            bytes[at] = byte;
            assert_eq!(Request::decode(&bytes), None, "byte {at}");
        }
        let mut bytes = bytes;
        bytes[8..16].fill(0xff);
        assert_eq!(Request::decode(&bytes), None, "a range without an end");
    }

    #[test]
    fn a_head_is_what_was_written() {
        assert_eq!(read_head(&head(4000, false)), (4000, false));
        assert_eq!(read_head(&head(0, true)), (0, true));
    }
}
