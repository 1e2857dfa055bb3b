//! The memory that a backup takes beside its buffers, and so the segments that it can hold where its memory has a limit.
//!
//! Asked by the backup daemon when it starts. The operator requests as much for a container (`tailwind_crds::memory`);
//! `tests/memory.rs` compares the numbers with those, and measures them.

/// Bytes for each segment, at the worst moment: while a backup starts.
pub const SEGMENT_BYTES: u64 = 576;
/// The program without a log: code, connections, threads, pages of inventories.
pub const PROGRAM_BYTES: u64 = 96 << 20;
/// Segments that are in memory as a whole, outside the buffers: four being sent to sidecars, which are checked first, and one
/// each that is scanned, flushed and scrubbed.
pub const WHOLE_SEGMENTS: u64 = 4 + 3;

/// Segments of this size for which a memory limit has room, beside a pool of `pool` bytes.
pub const fn segments(limit: u64, pool: u64, segment_size: u64) -> u64 {
    let others = PROGRAM_BYTES + WHOLE_SEGMENTS * segment_size;
    limit.saturating_sub(pool).saturating_sub(others) / SEGMENT_BYTES
}

/// The memory limit that has room for so many of them.
pub const fn limit(segments: u64, pool: u64, segment_size: u64) -> u64 {
    pool + PROGRAM_BYTES + WHOLE_SEGMENTS * segment_size + segments * SEGMENT_BYTES
}
