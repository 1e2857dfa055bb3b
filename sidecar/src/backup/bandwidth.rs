//! How fast the flush folder takes data in: measured at the start where `--flush-bandwidth` does not say it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;

/// Most bytes and time spent on measuring.
const MEASURE_SIZE_MAX: usize = 32 << 20;
const MEASURE_TIME: Duration = Duration::from_millis(300);
const MEASURE_PIECE: usize = 4 << 20;

/// Bytes a second, measured with a short write that is brought to disk piece by piece.
pub(super) fn measure(folder: &Path) -> anyhow::Result<u64> {
    let path = folder.join("bandwidth.tmp");
    let measured = write(&path).with_context(|| format!("measure the bandwidth of {}", folder.display()));
    let _ = fs::remove_file(&path);
    measured
}

fn write(path: &Path) -> io::Result<u64> {
    let piece: Vec<u8> = (0..MEASURE_PIECE).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
    let mut file = OpenOptions::new().write(true).mode(0o600).create(true).truncate(true).open(path)?;
    let start = Instant::now();
    let mut written = 0;
    while written < MEASURE_SIZE_MAX && (written == 0 || start.elapsed() < MEASURE_TIME) {
        file.write_all(&piece)?;
        file.sync_data()?;
        written += piece.len();
    }
    Ok((written as f64 / start.elapsed().as_secs_f64().max(1e-9)) as u64)
}
