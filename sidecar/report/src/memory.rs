//! How much memory a backup takes, and so the segments that it can hold where its memory has a limit; and what a table takes of a
//! sidecar's, and of a backup's.
//!
//! Here, since two programs have to agree on it: the operator requests as much for a backup's container as the longest log takes,
//! and a backup that has been given less holds fewer segments. `sidecar/backup/tests/memory.rs` measures that it suffices. All
//! members hold the same segments, so a container that is too small for a long log would be killed at all of them, with the
//! buffers that are in its memory.

/// Most segments that a backup holds, as many as its inventory can list: it lends no buffer beyond.
pub const SEGMENTS_MAX: u64 = 1 << 17;
/// Bytes for each of them, at the worst moment: a start reads the ledger (160 bytes), what is owed (80) and what is on disk
/// (80), and makes the machine's copies of it (220). That was measured as 537 bytes. Afterwards it is 377.
pub const SEGMENT_BYTES: u64 = 576;
/// The program without a log: code, connections, threads, pages of inventories.
const PROGRAM_BYTES: u64 = 96 << 20;
/// Segments that are in memory as a whole, outside the buffers: four being sent to sidecars, which are checked first, and one
/// each that is scanned, flushed and scrubbed.
const WHOLE_SEGMENTS: u64 = 4 + 3;
/// Buffers that a pool has room for beside its own: a fence holds a buffer and its copy at the same time, and so does a lending of a
/// buffer that still has a file. One of each may be under way.
const SPARE_BUFFERS: u64 = 2;
/// Most buffers of a backup, with those of residents.
pub const BUFFERS_MAX: u64 = 1 << 12;
/// Behind each buffer its file has a page with a flag.
const FLAG_PAGE_BYTES: u64 = 4096;
/// A pool has a table with a row for each buffer,
const TABLE_ROW_BYTES: u64 = 2048;
/// and other files: the table's head, the board, and the one that names its owner.
const POOL_SLACK_BYTES: u64 = 1 << 20;

/// Bytes of an index for each key that there may be: 56 for an entry and its side view, of which at most 60 % are in use.
const KEY_BYTES: u64 = 93;
/// Segments of a table that are being cleaned: the one whose records are moved, and the next.
const CLEANED_SEGMENTS: u64 = 2;
/// What else a table takes: candidates for moves, changes that wait for their acks, and what is lost by rounding.
const TABLE_SLACK_BYTES: u64 = 8 << 20;

/// Bytes of a mirror for each eight entries of an index, of which at most 60 % are in use: 53.3 for a key.
const BUCKET_BYTES: u64 = 8 * 32;
/// Fewest bytes of a part that a mirror's memory is lent in.
const MIRROR_PART_BYTES_MIN: u64 = 8 << 20;

/// Bytes that a table of so many keys takes of a sidecar that may lead.
pub const fn table_index(keys: u64, segment_size: u64) -> u64 {
    keys * KEY_BYTES + CLEANED_SEGMENTS * segment_size + TABLE_SLACK_BYTES
}

/// Bytes of a mirror of the index for so many keys.
pub const fn mirrored_index(keys: u64) -> u64 {
    let entries = (keys * 10).div_ceil(6);
    entries.div_ceil(8) * BUCKET_BYTES
}

/// Bytes of each part that a mirror's memory is lent in.
pub const fn mirror_part(segment_size: u64) -> u64 {
    if segment_size < MIRROR_PART_BYTES_MIN { MIRROR_PART_BYTES_MIN } else { segment_size }
}

/// Bytes beside the pool for a segment that is read from the disk to be resident, and is in memory twice.
pub const fn loading(segment_size: u64) -> u64 {
    segment_size + FLAG_PAGE_BYTES + TABLE_ROW_BYTES
}

/// Bytes of a pool of so many buffers, in a file system with blocks of `block` bytes. With less free space a backup waits for more
/// before it begins.
pub const fn pool(buffers: u64, buffer_size: u64, block: u64) -> u64 {
    let file = (buffer_size + FLAG_PAGE_BYTES).next_multiple_of(block);
    (buffers + SPARE_BUFFERS) * file + buffers * TABLE_ROW_BYTES + POOL_SLACK_BYTES
}

/// Bytes that so many parts of a mirror add to a pool.
pub const fn mirror(parts: u64, part_size: u64, block: u64) -> u64 {
    parts * (part_size + FLAG_PAGE_BYTES).next_multiple_of(block)
}

/// Bytes beside the pool for so many segments of this size: 224 MiB by default for the longest log, of which 72 MiB are for its
/// segments.
pub const fn beside_pool(segments: u64, segment_size: u64) -> u64 {
    PROGRAM_BYTES + WHOLE_SEGMENTS * segment_size + segments * SEGMENT_BYTES
}

/// Segments of this size for which so many bytes beside the pool have room.
pub const fn segments(bytes: u64, segment_size: u64) -> u64 {
    bytes.saturating_sub(beside_pool(0, segment_size)) / SEGMENT_BYTES
}
