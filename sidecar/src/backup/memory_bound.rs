//! The bound on segments: as many as an inventory can list, or fewer where the memory of this process is limited. A backup beyond
//! its limit is killed, and its buffers are in the same memory. All members hold the same segments, so all would be killed at once.
//!
//! Called by [`run`](super::run) at the start. The operator gives a container memory for the longest log, but a spec, a webhook or
//! a `LimitRange` may have given it less. So the limit is read where the kernel has it: in the cgroups of this process.
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files>

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Serialize;
use tailwind_fabric::Parts;
use tailwind_protocol::backup::FLUSH_SEGMENTS_MIN;
use tailwind_protocol::layout::{SegmentSize, readable_size};
use tailwind_protocol::rpc::{INVENTORY_FOR_IMAGES, INVENTORY_MAX};
use tailwind_report::memory;
use tailwind_report::readiness::{Unready, UnreadyReason};

/// Where the kernel shows cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Version 1 shows a number near this one where there is no limit.
const UNLIMITED: u64 = 1 << 60;
/// Memory-backed files count as memory of the process that has touched them first. Huge pages do not, and a disk's can be written
/// back. `statfs(2)`
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// A block of such a file system.
const PAGE_BYTES: u64 = 4096;
/// As the operator rounds the size of a pool.
const POOL_ROUNDED_TO_BYTES: u64 = 2 << 20;
/// With room for fewer it could not append at all.
const SEGMENTS_MIN: u64 = INVENTORY_FOR_IMAGES as u64 + FLUSH_SEGMENTS_MIN;

/// Most segments that this backup holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct MemoryBound {
    pub(super) segments: u64,
    /// What sets it.
    pub(super) from: BoundedBy,
    /// The memory limit that has room for a log.
    #[serde(skip)]
    needed: u64,
}

impl MemoryBound {
    /// Without a memory limit.
    pub(super) const UNLIMITED: MemoryBound =
        MemoryBound { segments: INVENTORY_MAX as u64, from: BoundedBy::Inventory, needed: 0 };
}

/// What sets the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum BoundedBy {
    #[serde(rename = "the length of an inventory")]
    Inventory,
    /// Bytes.
    #[serde(rename = "the memory limit of its cgroup")]
    Limit(u64),
}

impl fmt::Display for BoundedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BoundedBy::Inventory => f.write_str("the length of an inventory"),
            BoundedBy::Limit(bytes) => write!(f, "the memory limit of its cgroup, {}", readable_size(*bytes)),
        }
    }
}

/// The bound for a pool of so many buffers in this folder, and these parts of a mirror.
pub(super) fn memory_bound(
    pool: &Path,
    buffers: u32,
    segment_size: SegmentSize,
    parts: Parts,
) -> anyhow::Result<MemoryBound> {
    let segment = u64::from(segment_size.bytes());
    let in_memory = rustix::fs::statfs(pool)?.f_type == TMPFS_MAGIC;
    let mirror = memory::mirror(parts.count.into(), parts.size.into(), PAGE_BYTES);
    let pool = (memory::pool(buffers.into(), segment, PAGE_BYTES) + mirror).next_multiple_of(POOL_ROUNDED_TO_BYTES);
    let pool = if in_memory { pool } else { 0 };
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Ok(bound(limit(Path::new(CGROUPS), &own), pool, segment))
}

fn bound(limit: Option<u64>, pool: u64, segment: u64) -> MemoryBound {
    let needed = pool + memory::beside_pool(SEGMENTS_MIN, segment);
    let fits = limit.map(|bytes| (memory::segments(bytes.saturating_sub(pool), segment), BoundedBy::Limit(bytes)));
    let listed = (INVENTORY_MAX as u64, BoundedBy::Inventory);
    let (segments, from) = fits.filter(|(segments, _)| *segments < listed.0).unwrap_or(listed);
    MemoryBound { segments, from, needed }
}

/// The least memory limit of this process's cgroup and of those around it, as far as it sees them. In a container the path may be
/// that of the host, of which only the end is shown.
fn limit(root: &Path, own: &str) -> Option<u64> {
    let files = own.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let (mount, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        let around = Path::new(path.trim_start_matches('/')).ancestors();
        around.map(|group| mount.join(group).join(file)).collect()
    });
    let limits = files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    limits.filter(|bytes| *bytes < UNLIMITED).min()
}

/// With less memory than a log needs this backup would be recruited, and dropped again at its first segment; or killed.
pub(super) fn too_little_memory(MemoryBound { segments, from, needed }: MemoryBound) -> Option<Unready> {
    let needs = readable_size(needed);
    let why = format!("{from}, has no room for a log beside the buffers: it must be {needs} at least");
    (segments < SEGMENTS_MIN).then_some(Unready { reason: UnreadyReason::NoRoom, why })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MI: u64 = 1 << 20;

    #[test]
    fn a_smaller_limit_has_room_for_fewer_segments() {
        // What the operator gives by default: 16 buffers of 8 MiB.
        let of = |limit: Option<u64>| {
            let found = bound(limit.map(|bytes| bytes * MI), 146 * MI, 8 * MI);
            (found.segments, found.from, too_little_memory(found).is_some())
        };
        let limited = |bytes: u64| BoundedBy::Limit(bytes * MI);
        assert_eq!(of(None), (131_072, BoundedBy::Inventory, false));
        assert_eq!(of(Some(370)), (131_072, BoundedBy::Inventory, false));
        assert_eq!(of(Some(369)), (129_251, limited(369), false));
        assert_eq!(of(Some(302)), (7281, limited(302), false));
        assert_eq!(of(Some(300)), (3640, limited(300), true));
        assert_eq!(of(Some(64)), (0, limited(64), true));
        let why = too_little_memory(bound(Some(64 * MI), 146 * MI, 8 * MI)).unwrap().why;
        assert!(why.starts_with("the memory limit of its cgroup, 64 MiB, has no room for a log"), "{why}");
    }

    #[test]
    fn the_least_limit_of_all_cgroups_around_counts() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let found = |own: &str| limit(dir.path(), own);
        assert_eq!(found("0::/\n"), None);
        write("pod/container/memory.max", "max\n");
        assert_eq!(found("0::/pod/container\n"), None);
        write("pod/memory.max", "500\n");
        assert_eq!(found("0::/pod/container\n"), Some(500), "the pod's");
        write("pod/container/memory.max", "300\n");
        assert_eq!(found("0::/pod/container\n"), Some(300));
        // A container sees its own at the root, whether its path is that of the host or not.
        write("memory.max", "200\n");
        assert_eq!(found("0::/kubepods/pod1/container1\n"), Some(200));
        // Version 1.
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(found("5:cpu,cpuacct:/x\n4:memory:/y\n"), None, "no limit");
        write("memory/y/memory.limit_in_bytes", "100\n");
        assert_eq!(found("5:cpu,cpuacct:/x\n4:memory:/y\n"), Some(100));
        assert_eq!(found(""), None);
    }

    #[test]
    fn this_process_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let found = memory_bound(folder.path(), 3, SegmentSize::MIN, Parts::NONE).unwrap();
        assert!((1..=INVENTORY_MAX as u64).contains(&found.segments));
    }
}
