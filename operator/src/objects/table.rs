//! What a table adds to a group's sidecars, and how much disk its backups need for it.
//!
//! Called by the webhook, by [`flush`](super::flush) and by the plan. Backups are given nothing more: closed segments are on their
//! disks, as in any log.

use tailwind_crds::ReplicaGroupSpec;
use tailwind_report::memory;

/// One in so many bytes of the table's memory is needed once more on a backup's disk: a failover ends a segment early, and moves may
/// then exceed the memory by the segments that are for them alone (`Bounds` of the protocol: 2, and up to 5.7 % of all).
const MOVES: u64 = 16;

/// Options of a sidecar.
pub(crate) fn flags(spec: &ReplicaGroupSpec) -> Vec<String> {
    let Some(table) = &spec.table else { return Vec::new() };
    vec![format!("--table={}", table.memory_bytes()), format!("--table-keys={}", table.keys_max())]
}

/// Bytes of memory that a sidecar takes which may lead, in whole MiB: the index, and what it cleans. One of a reader keeps none of this.
pub(crate) fn index_bytes(spec: &ReplicaGroupSpec) -> u64 {
    let table = spec.table.as_ref();
    let bytes = table.map(|table| memory::table_index(table.keys_max().into(), spec.segment_size.bytes()));
    bytes.map_or(0, |bytes| bytes.next_multiple_of(1 << 20))
}

/// Bytes that a backup has to have room for on its disk beside six segments.
pub(crate) fn flush_bytes(spec: &ReplicaGroupSpec) -> u64 {
    spec.table.as_ref().map_or(0, |table| table.memory_bytes() + table.memory_bytes() / MOVES)
}

/// Bytes of the table's log, in whole segments: what a sidecar makes of its option.
pub(crate) fn memory_bytes(spec: &ReplicaGroupSpec) -> u64 {
    let segment = spec.segment_size.bytes();
    spec.table.as_ref().map_or(0, |table| table.memory_bytes() / segment * segment)
}
