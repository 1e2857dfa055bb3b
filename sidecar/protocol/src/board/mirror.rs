//! Line 2 of a board: what the mirror at this member is, and how far it has come.
//!
//! Written by the primary's mirror machine, with a one-sided write of its own whenever a round is over; read by getters, together
//! with the other lines.
//!
//! ```text
//!  0..8   published
//!  8..24  hash key of the index
//! 24..28  buckets of the index
//! 28..32  bytes of a part of the mirror's memory
//! 32      1 filling, 2 live
//! 33      1: a mirror of an index
//! 34..60  zero
//! 60..64  CRC-32 of line 0's 8..40, then of 0..60
//! ```
//! All zeros: there is no mirror here.

use crate::ids::Lsn;
use crate::layout::{FIRST_LSN_MAX, SegmentSize};
use crate::rpc::PARTS_MAX;
use crate::table::acked::LineId;
use crate::table::hash::{Buckets, HashKey, KEYS_MAX};

use super::{BoardIdentity, LINE_SIZE, Line, seal, u32_at, u64_at};

/// Where the mirror's line is.
pub const MIRROR_AT: u32 = 2 * LINE_SIZE as u32;
/// Where all three lines are: what a getter reads at once.
pub const LINES_WITH_MIRROR: std::ops::Range<u32> = super::IDENTITY_AT..MIRROR_AT + LINE_SIZE as u32;

const FILLING: u8 = 1;
const LIVE: u8 = 2;
/// The only kind of mirror.
const OF_INDEX: u8 = 1;

/// Bytes of each part that a mirror's memory is lent in: a power of two from 4 KiB to 64 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartSize(u32);

/// Least size of a backup's parts.
const PARTS_AT_LEAST: u32 = 8 << 20;
// The largest mirror takes 107 of them.
const _: () = assert!(PartSize(PARTS_AT_LEAST).parts(Buckets::for_keys(KEYS_MAX)) <= PARTS_MAX);

impl PartSize {
    /// Checks a size in bytes.
    pub const fn new(bytes: u32) -> Option<PartSize> {
        let possible = bytes.is_power_of_two() && bytes >= 4096 && bytes <= SegmentSize::MAX.bytes();
        if possible { Some(PartSize(bytes)) } else { None }
    }

    /// The size of a backup's parts, where its segments have this one: the same, but so large that there are few.
    pub const fn beside(segment_size: SegmentSize) -> PartSize {
        if segment_size.bytes() > PARTS_AT_LEAST { PartSize(segment_size.bytes()) } else { PartSize(PARTS_AT_LEAST) }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }

    /// How many parts an index with so many buckets takes.
    pub const fn parts(self, buckets: Buckets) -> u32 {
        (buckets.number() as u64 * BUCKET_SIZE as u64).div_ceil(self.0 as u64) as u32
    }

    /// The part in which a bucket is, and where in it. No bucket lies in two parts.
    pub const fn bucket_at(self, bucket: u32) -> (u32, u32) {
        let in_part = self.0 / BUCKET_SIZE;
        (bucket / in_part, bucket % in_part * BUCKET_SIZE)
    }

    /// The part in which a line of the index is, and where in it.
    pub const fn line_at(self, line: LineId) -> (u32, u32) {
        let in_part = self.0 / crate::table::acked::LINE_SIZE as u32;
        (line.0 / in_part, line.0 % in_part * crate::table::acked::LINE_SIZE as u32)
    }
}

/// Bytes of a bucket.
pub const BUCKET_SIZE: u32 = crate::table::hash::BUCKET_ENTRIES * crate::table::entry::ENTRY_SIZE as u32;

/// A mirror, as its board names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MirrorLine {
    /// The mirror shows every change up to this record, or a later one of the same key.
    pub published: Lsn,
    /// Of the index.
    pub hash_key: HashKey,
    /// Of the index.
    pub buckets: Buckets,
    /// Of the memory.
    pub part_size: PartSize,
    /// False while it is being filled: then it lacks keys, no matter what is published.
    pub live: bool,
}

/// A line that is torn, rotten or of another board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the board's line of the mirror does not verify")]
pub struct UnsoundLine;

impl MirrorLine {
    /// Line 2 of the board with this identity.
    pub fn encode(&self, of: &BoardIdentity) -> Line {
        let mut line = [0; LINE_SIZE];
        line[..8].copy_from_slice(&self.published.0.to_le_bytes());
        line[8..24].copy_from_slice(&self.hash_key.0);
        line[24..28].copy_from_slice(&self.buckets.number().to_le_bytes());
        line[28..32].copy_from_slice(&self.part_size.0.to_le_bytes());
        line[32] = if self.live { LIVE } else { FILLING };
        line[33] = OF_INDEX;
        seal(&mut line, of.seed());
        line
    }

    /// The mirror that a line 2 of the board with this identity names; `None`: none.
    pub fn decode(line: &Line, of: &BoardIdentity) -> Result<Option<MirrorLine>, UnsoundLine> {
        if *line == [0; LINE_SIZE] {
            return Ok(None);
        }
        let mirror = MirrorLine {
            published: Lsn(u64_at(line, 0)),
            hash_key: HashKey(std::array::from_fn(|at| line[8 + at])),
            buckets: Buckets::from_number(u32_at(line, 24)).ok_or(UnsoundLine)?,
            part_size: PartSize::new(u32_at(line, 28)).ok_or(UnsoundLine)?,
            live: line[32] == LIVE,
        };
        // If any byte differs from what would be written, it is of another format.
        let believed = mirror.published <= FIRST_LSN_MAX && mirror.encode(of) == *line;
        if believed { Ok(Some(mirror)) } else { Err(UnsoundLine) }
    }
}
