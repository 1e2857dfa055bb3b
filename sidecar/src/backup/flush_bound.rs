//! The bound on the flush folder. There is always one: a folder without it fills its disk, and a kubelet evicts a pod whose disk
//! use goes beyond a limit, with all that the pod holds. All members hold the same segments, so all would be evicted at once.
//!
//! Called by [`run`](super::run) at the start. `--flush-bytes` says what the volume was made for; the limit of the
//! pod may have been set by something else (a LimitRange, an admission plugin), and the disk may be smaller than what was asked
//! for. The least of the three counts.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use tailwind_protocol::backup::FLUSH_SEGMENTS_MIN;
use tailwind_protocol::layout::{SegmentSize, readable_size};
use tailwind_runtime::usage;

/// One in so many bytes stays free: a file system needs some for itself.
const MARGIN: u64 = 20;
/// The percentage that stays free of a disk that is shared with the rest of a node: by default a kubelet evicts pods when less
/// than ten are.
const NODE_PERCENT: u64 = 15;
/// What the container's logs may take of the pod's limit, as the kubelet rotates them by default: five files of 10 MiB.
const LOG_BYTES: u64 = 64 << 20;

/// Most that the flush folder may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FlushBound {
    /// Bytes of all files in it.
    pub(super) bytes: u64,
    /// What sets it.
    pub(super) from: BoundedBy,
}

/// What sets the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum BoundedBy {
    #[serde(rename = "--flush-bytes")]
    Option,
    #[serde(rename = "the pod's limit of ephemeral-storage")]
    EphemeralStorage,
    #[serde(rename = "the size of its disk")]
    Disk,
}

impl fmt::Display for BoundedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The bound on this folder. `ephemeral_storage` is the pod's limit of it, where the folder counts as such: then the disk is
/// shared with the rest of the node.
///
/// # Errors
/// A usage error if `--flush-bytes` is less than a log can work with; others if the disk does not say how large it is.
pub(super) fn flush_bound(
    folder: &Path,
    option: Option<u64>,
    ephemeral_storage: Option<u64>,
    segment_size: SegmentSize,
) -> anyhow::Result<FlushBound> {
    let segment = u64::from(segment_size.bytes());
    let min = FLUSH_SEGMENTS_MIN * segment;
    if let Some(bytes) = option.filter(|bytes| *bytes < min) {
        let (bytes, min) = (readable_size(bytes), readable_size(min));
        usage!("--flush-bytes {bytes}: must be at least {min}, {FLUSH_SEGMENTS_MIN} segments of {segment_size}");
    }
    let disk = rustix::fs::statvfs(folder)?;
    Ok(least(option, ephemeral_storage, disk.f_blocks.saturating_mul(disk.f_frsize), segment))
}

fn least(option: Option<u64>, ephemeral_storage: Option<u64>, disk: u64, segment: u64) -> FlushBound {
    // A new file of a segment is whole before the older one goes.
    let within = |bytes: u64| (bytes - bytes / MARGIN).saturating_sub(segment);
    // What others have on it now they may remove later, so their part does not count.
    let disk = if ephemeral_storage.is_some() { disk - disk / 100 * NODE_PERCENT } else { disk };
    let limit = ephemeral_storage.map(|bytes| within(bytes.saturating_sub(LOG_BYTES)));
    let others = [(option, BoundedBy::Option), (limit, BoundedBy::EphemeralStorage)];
    let others = others.into_iter().filter_map(|(bytes, from)| Some(FlushBound { bytes: bytes?, from }));
    let disk = FlushBound { bytes: within(disk), from: BoundedBy::Disk };
    others.fold(disk, |least, bound| if bound.bytes <= least.bytes { bound } else { least })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MI: u64 = 1 << 20;

    #[test]
    fn the_least_bound_counts() {
        let bound = |option: Option<u64>, limit: Option<u64>, disk: u64| {
            let (option, limit) = (option.map(|bytes| bytes * MI), limit.map(|bytes| bytes * MI));
            let FlushBound { bytes, from } = least(option, limit, disk * MI, 8 * MI);
            (bytes / MI, from)
        };
        assert_eq!(bound(None, None, 1000), (942, BoundedBy::Disk));
        assert_eq!(bound(Some(500), None, 1000), (500, BoundedBy::Option));
        assert_eq!(bound(Some(5000), None, 1000), (942, BoundedBy::Disk));
        // A limit that nobody wrote into the spec.
        assert_eq!(bound(None, Some(564), 9000), (467, BoundedBy::EphemeralStorage));
        assert_eq!(bound(Some(5000), Some(564), 9000), (467, BoundedBy::EphemeralStorage));
        assert_eq!(bound(None, Some(10), 9000), (0, BoundedBy::EphemeralStorage));
        // Without one the kubelet says what the node has. It evicts pods before the disk is full.
        assert_eq!(bound(None, Some(9000), 1000), (799, BoundedBy::Disk));
    }

    #[test]
    fn a_folder_is_bounded_by_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let bound = flush_bound(folder.path(), None, None, SegmentSize::MIN).unwrap();
        assert!(bound.bytes > 0 && bound.from == BoundedBy::Disk);
    }
}
