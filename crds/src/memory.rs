//! How much memory a backup takes beside its buffers, in the worst case.
//!
//! Here, since two programs have to agree on it: the operator requests so much for a backup's container, and a test of the
//! backup (`sidecar/backup/tests/memory.rs`) measures that it suffices. All members hold the same segments, so a container
//! that is too small for a long log would be killed at all of them, with the buffers that are in its memory.

/// Most segments that a backup holds: it lends no buffer beyond, and the test requires that this is the same number.
pub const SEGMENTS_MAX: u64 = 1 << 17;
/// Bytes for each of them, at the worst moment: a start reads the ledger (160 bytes), what is owed (80) and what is on disk
/// (80), and makes the machine's copies of it (220). That was measured as 537 bytes. Afterwards it is 377.
pub const SEGMENT_BYTES: u64 = 576;
/// The program without a log: code, connections, threads, pages of inventories.
pub const PROGRAM_BYTES: u64 = 96 << 20;
/// Segments that are in memory as a whole, outside the buffers: four being sent to sidecars, which are checked first, and one
/// each that is scanned, flushed and scrubbed.
pub const WHOLE_SEGMENTS: u64 = 4 + 3;

/// Bytes beside the buffers, for segments of this size: 224 MiB by default, of which 72 MiB are for the longest log.
pub const fn beside_buffers(segment_size: u64) -> u64 {
    PROGRAM_BYTES + SEGMENTS_MAX * SEGMENT_BYTES + WHOLE_SEGMENTS * segment_size
}
