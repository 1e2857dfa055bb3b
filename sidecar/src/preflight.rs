//! The preflight: can this host do RDMA, and if not, what is to be done? One finding for each thing that matters.
//!
//! [`examine`] is what `tailwind-sidecar doctor` prints; a backup over verbs asks for an [`obstacle`] and tells it in its
//! readiness.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use tailwind_fabric::verbs::DeviceSelector;
use tailwind_protocol::layout::{SegmentSize, readable_size};
use tailwind_report::readiness::{Unready, UnreadyReason};

use crate::fabric::RdmaOptions;

/// `CAP_IPC_LOCK` of capabilities(7): memory may be pinned beyond the limit.
const CAP_IPC_LOCK: u32 = 14;
/// The device nodes of libibverbs.
const NODES: &str = "/dev/infiniband";

/// What was found about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// Whether it will do.
    pub status: CheckStatus,
    /// What was found, and what to do unless it is good.
    pub text: String,
    /// The time in it, where one was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nanoseconds: Option<u64>,
}

/// Whether something will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// It will.
    Good,
    /// It will, but could be better.
    Poor,
    /// RDMA does not work without it.
    Bad,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = match self.status {
            CheckStatus::Good => "ok",
            CheckStatus::Poor => "poor",
            CheckStatus::Bad => "FAIL",
        };
        write!(f, "{status:4}  {:12} {}", self.check, self.text)
    }
}

impl Finding {
    fn good(check: &'static str, text: impl Into<String>) -> Finding {
        Finding { check, status: CheckStatus::Good, text: text.into(), nanoseconds: None }
    }

    /// The same with the time that was measured.
    #[cfg(feature = "verbs")]
    fn took(self, time: std::time::Duration) -> Finding {
        Finding { nanoseconds: u64::try_from(time.as_nanos()).ok(), ..self }
    }

    fn poor(check: &'static str, text: impl Into<String>) -> Finding {
        Finding { check, status: CheckStatus::Poor, text: text.into(), nanoseconds: None }
    }

    fn bad(check: &'static str, text: impl Into<String>) -> Finding {
        Finding { check, status: CheckStatus::Bad, text: text.into(), nanoseconds: None }
    }
}

/// Everything that matters, from the hardware up. What depends on something that is missing is left out.
pub fn examine(rdma: &RdmaOptions, pool: &Path, segment_size: SegmentSize) -> Vec<Finding> {
    let mut findings = Vec::new();
    let selector = rdma.selector(None);
    findings.extend(devices(&selector));
    findings.push(nodes(Path::new(NODES)));
    findings.push(memory_lock(segment_size));
    findings.push(huge_pages(pool));
    findings.extend(ordering());
    findings.extend(trial(rdma, pool, segment_size, &selector));
    findings
}

/// What keeps a backup that has found its device from lending, as far as can be told without lending.
pub fn obstacle(segment_size: SegmentSize) -> Option<Unready> {
    let findings = [
        (UnreadyReason::DeviceMissing, nodes(Path::new(NODES))),
        (UnreadyReason::MemlockTooLow, memory_lock(segment_size)),
    ];
    let bad = findings.into_iter().find(|(_, finding)| finding.status == CheckStatus::Bad);
    bad.map(|(reason, finding)| Unready { reason, why: finding.text })
}

/// Device files: a container that has none sees devices in sysfs and cannot open them.
fn nodes(folder: &Path) -> Finding {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut nodes: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    nodes.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("uverbs")));
    nodes.sort_unstable();
    let opens = |path: &&PathBuf| fs::File::options().read(true).write(true).open(path).is_ok();
    match (nodes.iter().find(opens), nodes.first()) {
        (Some(path), _) => Finding::good("nodes", format!("{} of {} can be opened", path.display(), nodes.len())),
        (None, Some(path)) => Finding::bad(
            "nodes",
            format!("{} cannot be opened: the container's device rules forbid it; request the device", path.display()),
        ),
        (None, None) => Finding::bad(
            "nodes",
            format!(
                "no uverbs* in {}: request the device from its plugin, or load ib_uverbs on the host",
                folder.display()
            ),
        ),
    }
}

/// Registered memory is pinned, and counts against RLIMIT_MEMLOCK unless the process may lock what it likes.
fn memory_lock(segment_size: SegmentSize) -> Finding {
    let may_lock = effective_capabilities().is_some_and(|set| set & (1 << CAP_IPC_LOCK) != 0);
    match getrlimit(Resource::Memlock).current {
        None => Finding::good("memory lock", "no limit"),
        Some(limit) if may_lock => Finding::good(
            "memory lock",
            format!("capability IPC_LOCK (the limit of {} does not count)", readable_size(limit)),
        ),
        Some(limit) if limit < u64::from(segment_size.bytes()) => Finding::bad(
            "memory lock",
            format!(
                "at most {} may be pinned, less than one buffer of {segment_size}: give the container the capability IPC_LOCK, \
                 or raise the limit (ulimit -l, LimitMEMLOCK=)",
                readable_size(limit)
            ),
        ),
        Some(limit) => Finding::poor(
            "memory lock",
            format!(
                "at most {} may be pinned: all buffers of a backup and its --mirror must fit twice, as those that are read count \
                 again, or give the container the capability IPC_LOCK",
                readable_size(limit)
            ),
        ),
    }
}

/// The set of proc(5), `/proc/self/status`.
fn effective_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// 2 MiB pages make registration a matter of a few entries instead of thousands.
fn huge_pages(pool: &Path) -> Finding {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let pool = fs::canonicalize(pool).unwrap_or_else(|_| pool.to_owned());
    match mount_of(&mounts, &pool) {
        Some(("hugetlbfs", _)) => Finding::good("huge pages", format!("{} is on hugetlbfs", pool.display())),
        Some(("tmpfs", options)) if options.contains("huge=") && !options.contains("huge=never") => {
            Finding::good("huge pages", format!("{} is on a tmpfs with huge pages", pool.display()))
        }
        _ => Finding::poor(
            "huge pages",
            format!(
                "{} has 4 KiB pages, so lending takes longer: use hugetlbfs, or a tmpfs with huge=always",
                pool.display()
            ),
        ),
    }
}

/// Type and options of the file system that a path is on: the longest mount point above it, and of equal ones the last.
fn mount_of<'a>(mounts: &'a str, path: &Path) -> Option<(&'a str, &'a str)> {
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?, fields.next()?))
    });
    let above = fields.filter(|(point, _, _)| path.starts_with(point));
    above.max_by_key(|(point, _, _)| point.len()).map(|(_, kind, options)| (kind, options))
}

/// The variable has mlx5 cards place packets in any order. Nothing depends on their order, but users should know.
fn ordering() -> Option<Finding> {
    let set = std::env::var_os("MLX5_RELAXED_PACKET_ORDERING_ON").is_some();
    set.then(|| Finding::poor("ordering", "MLX5_RELAXED_PACKET_ORDERING_ON is set: it has no benefit here, unset it"))
}

#[cfg(feature = "verbs")]
fn devices(selector: &DeviceSelector) -> Vec<Finding> {
    use tailwind_fabric::verbs::{LinkLayer, list_devices, select};
    let devices = match list_devices() {
        Ok(devices) => devices,
        Err(error) => return vec![Finding::bad("devices", format!("cannot be listed: {error}"))],
    };
    let mut findings = Vec::new();
    for device in &devices {
        let place = device.pci.as_ref().map_or_else(String::new, |pci| format!(" at PCI {pci}"));
        match &device.problem {
            Some(problem) => {
                findings.push(Finding::poor("device", format!("{}{place} cannot be opened: {problem}", device.name)));
            }
            None => findings.push(Finding::good("device", format!("{}{place}, GUID {}", device.name, device.guid))),
        }
        for port in &device.ports {
            let link = match port.link {
                LinkLayer::Ethernet => "RoCE",
                LinkLayer::InfiniBand => "InfiniBand",
                LinkLayer::Other => "neither RoCE nor InfiniBand",
            };
            let ours = port.gids.iter().filter(|gid| gid.is_ours).count();
            let text = format!(
                "{}/{} {link}, MTU {}, {} GIDs, {ours} of them with a local address",
                device.name,
                port.number,
                port.mtu,
                port.gids.len()
            );
            findings.push(match port.is_active {
                true => Finding::good("port", text),
                false => Finding::poor("port", format!("{text}: not active; check cable, switch port and `ip link`")),
            });
        }
    }
    findings.push(match select(&devices, selector) {
        Ok(selected) => {
            let port = devices.iter().find(|device| device.name == selected.device);
            let port = port.and_then(|device| device.ports.iter().find(|port| port.number == selected.port));
            let gid = port.and_then(|port| port.gids.iter().find(|gid| gid.index == selected.gid_index));
            Finding::good(
                "selected",
                format!("{selected}{}", gid.map_or_else(String::new, |gid| format!(" {}", gid.address()))),
            )
        }
        Err(why) => Finding::bad("selected", why.to_string()),
    });
    findings
}

#[cfg(not(feature = "verbs"))]
fn devices(selector: &DeviceSelector) -> Vec<Finding> {
    crate::fabric::find_device(selector).err().map(|why| Finding::bad("selected", why)).into_iter().collect()
}

/// Does what a group does, small: lends a buffer, writes to it through the device, reads it, and writes into nothing.
#[cfg(feature = "verbs")]
fn trial(rdma: &RdmaOptions, pool: &Path, segment_size: SegmentSize, selector: &DeviceSelector) -> Vec<Finding> {
    use tailwind_fabric::Pool;
    use tailwind_fabric::verbs::{Measurements, measure};
    let Ok(port) = crate::fabric::find_device(selector) else { return Vec::new() };
    let folder = pool.join(format!("tailwind-doctor-{}", std::process::id()));
    let tuning = rdma.tuning();
    let result = Pool::open(&folder, 1, segment_size.bytes())
        .map_err(|error| error.to_string())
        .and_then(|pool| measure(&pool, &port, tuning).map_err(|error| error.to_string()));
    // Only this process uses the folder.
    let _ = fs::remove_dir_all(&folder);
    let Measurements { lending, ending, write, read, black_hole, inline_max, in_order } = match result {
        Ok(measured) => measured,
        Err(why) => return vec![Finding::bad("self-test", why)],
    };
    let size = segment_size;
    let (retry, soonest, latest) = (tuning.retry, tuning.retry.shortest(), tuning.retry.longest());
    let dead_end = format!(
        "a dead peer is detected after {black_hole:.0?} (expected with --rdma-retry {retry}: {soonest:.0?} to {latest:.0?})"
    );
    vec![
        Finding::good(
            "lending",
            format!("{size} zeroed and registered in {lending:.0?}, deregistered in {ending:.0?} (medians)"),
        ),
        Finding::good(
            "write",
            format!("128 bytes through the device and back in {write:.1?} (median), {inline_max} bytes inline"),
        )
        .took(write),
        match read {
            Ok(read) => {
                let rate = f64::from(size.bytes()) / read.as_secs_f64().max(1e-9) / 1e9;
                let text = format!("{size} through the device and back in {read:.1?} (median), {rate:.2} GB/s");
                Finding::good("read", text).took(read)
            }
            Err(why) => {
                Finding::poor("read", format!("{why}: standbys and readers cannot follow the log over this device"))
            }
        },
        match black_hole <= 2 * latest {
            true => Finding::good("retry", dead_end),
            false => Finding::poor(
                "retry",
                format!("{dead_end}: the card enforces a longer minimum; heartbeats detect dead hosts first"),
            ),
        },
        Finding::good(
            "placement",
            match in_order {
                true => "the card places a write's bytes in address order",
                false => {
                    "the card guarantees no order of a write's bytes; none is needed, as records are verified as a whole"
                }
            },
        ),
    ]
}

#[cfg(not(feature = "verbs"))]
fn trial(_rdma: &RdmaOptions, _pool: &Path, _segment_size: SegmentSize, _wishes: &DeviceSelector) -> Vec<Finding> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_result_a_subject_and_advice() {
        let line = Finding::bad("nodes", "no uverbs*: request the device").to_string();
        assert_eq!(line, "FAIL  nodes        no uverbs*: request the device");
    }

    #[test]
    fn the_device_nodes_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(nodes(folder.path()).status, CheckStatus::Bad);
        fs::write(folder.path().join("rdma_cm"), "").unwrap();
        assert_eq!(nodes(folder.path()).status, CheckStatus::Bad, "that is another one");
        fs::write(folder.path().join("uverbs0"), "").unwrap();
        assert_eq!(nodes(folder.path()).status, CheckStatus::Good);
    }

    #[test]
    fn a_path_is_on_the_longest_mount_above_it() {
        let mounts =
            "/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\nhuge /dev/shm/huge tmpfs rw,huge=always 0 0\n";
        let kind = |path: &str| mount_of(mounts, Path::new(path));
        assert_eq!(kind("/dev/shm/tailwind"), Some(("tmpfs", "rw")));
        assert_eq!(kind("/dev/shm/huge/tailwind"), Some(("tmpfs", "rw,huge=always")));
        assert_eq!(kind("/dev/shm2"), Some(("ext4", "rw")));
    }

    #[test]
    fn capabilities_are_read_from_proc() {
        assert!(effective_capabilities().is_some());
    }
}
