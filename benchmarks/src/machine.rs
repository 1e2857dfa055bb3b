//! What machine this is, and how busy it is: for the head of the report.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long to look before a comparison begins.
const LOOK: Duration = Duration::from_millis(200);

/// The machine that a run was measured on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) processors: usize,
    pub(crate) memory_gib: f64,
    pub(crate) kernel: String,
    pub(crate) system: String,
}

impl Machine {
    /// This one.
    pub(crate) fn find() -> Machine {
        let memory = field("/proc/meminfo", "MemTotal").and_then(|text| text.trim_end_matches(" kB").parse().ok());
        let system = read("/etc/os-release")
            .lines()
            .find_map(|line| Some(line.strip_prefix("PRETTY_NAME=")?.trim_matches('"').to_owned()));
        Machine {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: memory.unwrap_or(0.0) / f64::from(1 << 20),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: system.unwrap_or_else(|| "unknown".to_owned()),
        }
    }
}

/// Memory that programs may still use, in GiB.
pub(crate) fn memory_available_gib() -> f64 {
    let kib = field("/proc/meminfo", "MemAvailable").and_then(|text| text.trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(0.0) / f64::from(1 << 20)
}

/// Whether a folder is on tmpfs.
pub(crate) fn is_in_memory(folder: &Path) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    rustix::fs::statfs(folder).is_ok_and(|found| found.f_type as u32 == TMPFS)
}

/// Room in a folder, in GiB.
pub(crate) fn free_gib(folder: &Path) -> f64 {
    let bytes = rustix::fs::statvfs(folder).map_or(0, |found| found.f_bavail * found.f_frsize);
    bytes as f64 / f64::from(1 << 30)
}

/// The load average of the last minute.
pub(crate) fn load() -> f64 {
    read("/proc/loadavg").split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

/// The share of all processors that is in use now, by whomever.
pub(crate) fn busy() -> f64 {
    let before = ticks();
    std::thread::sleep(LOOK);
    let after = ticks();
    let all = after.1.saturating_sub(before.1);
    if all == 0 { 0.0 } else { after.0.saturating_sub(before.0) as f64 / all as f64 }
}

/// Busy and all ticks since the machine started, from proc(5).
fn ticks() -> (u64, u64) {
    let text = read("/proc/stat");
    let fields: Vec<u64> =
        text.lines().next().unwrap_or_default().split_whitespace().skip(1).map_while(|f| f.parse().ok()).collect();
    let all: u64 = fields.iter().take(8).sum();
    let idle: u64 = fields.iter().skip(3).take(2).sum();
    (all - idle, all)
}

/// A line `name : value` of a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = read(path);
    let found = text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name);
    found.map(|(_, value)| value.trim().to_owned())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
