//! The bounds of a table's log: when it is cleaned, when puts wait, and what its live records may have.
//!
//! Used by the append path, which asks before it places anything, and by the [`cleaner`](super::cleaner). All follow from two
//! numbers: *C*, the segments of the table's memory, and *R*, those of them that only moves may take.

use crate::layout::{CHECKSUM_SIZE, MARKS_SIZE, RECORD_HEADER_SIZE, SEGMENT_OVERHEAD, SegmentSize, padded};
use crate::rpc::{INVENTORY_FOR_IMAGES, INVENTORY_MAX};

use super::moves::{KEYED_RECORD_SIZE_MIN, MOVE_BATCH_SIZE, MOVES_MAX};
use super::place::TABLE_SIZE_MAX;
use super::record::payload_size_max;

/// Fewest segments of a table.
pub const SEGMENTS_MIN: u32 = 16;
/// Most, of any size: a backup lists so many closed segments.
pub const SEGMENTS_MAX: u32 = (INVENTORY_MAX - INVENTORY_FOR_IMAGES) as u32;
/// Uncleaned segments at which a table with little live data is cleaned too.
const UNCLEANED_MIN: u32 = 8;
/// So many times the live data may be kept uncleaned.
const UNCLEANED_PER_LIVE: u64 = 4;
/// Cleaning begins so many segments before puts would wait.
const EARLY: u32 = 4;
/// Between what live records may fill and where cleaning begins: one segment that is partly filled by puts, one by moves.
const PARTLY: u32 = 2;

/// A table's memory that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("memory of {segments} segments: must be {SEGMENTS_MIN} to {most}")]
pub struct BadMemory {
    /// Segments asked for.
    pub segments: u32,
    /// The most of this size.
    pub most: u32,
}

/// The bounds.
///
/// *How long the log is* counts the segments from the first one to the one that takes appends. One that is lent ahead has no
/// record yet and is not counted.
///
/// Why *R* segments for moves are enough, so that a table that is full can always be cleaned. Let puts have left a log of at
/// most *C* − *R* segments, in each of which *U* bytes can hold appends:
///
/// 1. To clean a segment takes the bytes of its live records, at most *U*, and a checksum entry for each batch, at most *e* bytes
///    together. When it is trimmed, a whole segment is free.
/// 2. Moves fill each new segment, but for less than their largest record with its checksum entry, *r* bytes. So when *n* segments
///    are trimmed and the next one is being cleaned, the moves are in at most (*n* + 1) · (*U* + *e*) / (*U* − *r*) + 1 segments, and
///    the log has grown by at most 2 + (*n* + 1) · (*e* + *r*) / (*U* − *r*).
/// 3. That is the case if all of them were full of live records. There are no more such segments than live bytes have room in:
///    *n* + 1 is at most ⅘·*C*. Segments with less make the log grow less.
///
/// So *R* = 2 + ⅘·*C* · (*e* + *r*) / (*U* − *r*), rounded up: 3 of 16 segments of 8 MiB, 4 of 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    size: SegmentSize,
    segments: u32,
    reserve: u32,
}

impl Bounds {
    /// The bounds of a table with this memory.
    pub fn new(size: SegmentSize, segments: u32) -> Result<Bounds, BadMemory> {
        let most = ((TABLE_SIZE_MAX / u64::from(size.bytes())) as u32).min(SEGMENTS_MAX);
        if !(SEGMENTS_MIN..=most).contains(&segments) {
            return Err(BadMemory { segments, most });
        }
        let usable = usable(size);
        let record = RECORD_HEADER_SIZE + padded(payload_size_max(size)) + CHECKSUM_SIZE;
        // A batch ends when it has enough bytes, enough records, no more candidates, or no more room in its segment.
        let by_records = size.bytes() as usize / (MOVES_MAX * KEYED_RECORD_SIZE_MIN);
        let batches = by_records + size.bytes() as usize / MOVE_BATCH_SIZE + 3;
        let extra = (batches * CHECKSUM_SIZE + record) as u64;
        let repacked = (u64::from(segments) * 4 * extra).div_ceil(5 * (usable - record as u64));
        Ok(Bounds { size, segments, reserve: 2 + repacked as u32 })
    }

    /// *C*: segments of the table's memory.
    pub fn segments(&self) -> u32 {
        self.segments
    }

    /// *R*: how many of them only moves may take.
    pub fn reserve(&self) -> u32 {
        self.reserve
    }

    /// Bytes that live records may have: above, the table takes nothing that adds to them. Four fifths of what is left when
    /// moves, early cleaning and two partly filled segments have theirs. The last fifth is what cleaning finds at the least: a
    /// byte of a put then costs five bytes of log, at half of the memory two.
    pub fn live_bytes_max(&self) -> u64 {
        u64::from(self.segments - self.reserve - EARLY - PARTLY) * usable(self.size) * 4 / 5
    }

    /// Whether a put may be placed, if the log is so long with it; if not, it waits until something is trimmed. To be asked of a put
    /// that fits the open segment too: that may be one for moves, and what puts took of it would be missing for them.
    pub fn may_put(&self, segments: u32) -> bool {
        segments <= self.segments - self.reserve
    }

    /// Whether a move may, in a term that began with so many segments. A failover ends a segment early. If several do so while the
    /// table is full, moves need their reserve beyond what they found: then the log is longer than *C* for a while, by at most
    /// *R* + 1 segments for each failover.
    pub fn may_move(&self, segments: u32, at_first: u32) -> bool {
        segments <= self.segments.max(at_first + self.reserve)
    }

    /// Whether the oldest segment is to be cleaned, if so many are closed and not cleaned, and live records have so many bytes.
    pub fn is_due(&self, uncleaned: u32, live_bytes: u64) -> bool {
        let bytes = u64::from(uncleaned) * u64::from(self.size.bytes());
        let dirty = uncleaned > UNCLEANED_MIN && bytes > UNCLEANED_PER_LIVE * live_bytes;
        dirty || uncleaned > self.segments - self.reserve - EARLY
    }
}

/// Bytes of a segment that can hold appends.
fn usable(size: SegmentSize) -> u64 {
    u64::from(size.bytes()) - (SEGMENT_OVERHEAD + MARKS_SIZE) as u64
}
