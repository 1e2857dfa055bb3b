//! How fast the flush folder takes data in: measured at the start unless `--flush-bandwidth` gives it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use tailwind_backup::is_full;
use tailwind_protocol::layout::{SegmentSize, readable_size};
use tracing::warn;

/// Most bytes and time spent on measuring.
const MEASURE_SIZE_MAX: usize = 32 << 20;
const MEASURE_TIME: Duration = Duration::from_millis(300);
const MEASURE_PIECE: usize = 4 << 20;

/// Segments within the hold-up time that a disk counts for which is too full to be measured: one to append to, the next one,
/// one that is being flushed and one for an image. Any disk is faster.
const UNMEASURED_SEGMENTS: u64 = 4;

/// Bytes a second, measured with a short write that is brought to disk piece by piece. A full disk cannot be measured: the
/// backup starts all the same, for its memory may hold records, and counts on as few bytes as let it lend.
pub(super) fn measure(folder: &Path, segment_size: SegmentSize, hold_up: u64) -> anyhow::Result<u64> {
    let path = folder.join("bandwidth.tmp");
    let measured = write(&path);
    let _ = fs::remove_file(&path);
    if let Some(measured) = measured.with_context(|| format!("measure the bandwidth of {}", folder.display()))? {
        return Ok(measured);
    }
    let assumed = (UNMEASURED_SEGMENTS * u64::from(segment_size.bytes())).div_ceil(hold_up);
    let (folder, assumed_a_second) = (folder.display(), readable_size(assumed));
    warn!(%folder, assumed_a_second, "the disk of the flush folder is full: cannot measure its bandwidth, so few buffers are lent. \
        Make room and start this backup again, or give its --flush-bandwidth");
    Ok(assumed)
}

/// As far as there is room; `None` where there is none for the first piece.
fn write(path: &Path) -> io::Result<Option<u64>> {
    let piece: Vec<u8> = (0..MEASURE_PIECE).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
    let mut file = OpenOptions::new().write(true).mode(0o600).create(true).truncate(true).open(path)?;
    let start = Instant::now();
    let mut written = 0;
    while written < MEASURE_SIZE_MAX && (written == 0 || start.elapsed() < MEASURE_TIME) {
        match file.write_all(&piece).and_then(|()| file.sync_data()) {
            Err(error) if is_full(&error) => break,
            result => result?,
        }
        written += piece.len();
    }
    let a_second = written as f64 / start.elapsed().as_secs_f64().max(1e-9);
    Ok((written > 0).then_some(a_second as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_not_measured() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.path().join("bandwidth.tmp")).unwrap();
        let segments = |hold_up| measure(folder.path(), SegmentSize::MIN, hold_up).unwrap() * hold_up / (64 << 10);
        assert_eq!(segments(30), UNMEASURED_SEGMENTS);
        assert_ne!(segments(30), UNMEASURED_SEGMENTS, "its file is removed, and there is room for another");
    }

    #[test]
    fn a_folder_that_is_gone_is_an_error() {
        let error = measure(Path::new("/nonexistent"), SegmentSize::MIN, 30).unwrap_err();
        assert!(error.to_string().contains("measure the bandwidth of /nonexistent"), "{error}");
    }
}
