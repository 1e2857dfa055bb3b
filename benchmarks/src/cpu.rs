//! CPU time and memory of processes, from proc(5).

use std::fs;
use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// CPU time of some processes, in nanoseconds; the kernel counts in ticks of 10 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cpu {
    pub(crate) user: f64,
    pub(crate) kernel: f64,
}

impl Add for Cpu {
    type Output = Cpu;

    fn add(self, other: Cpu) -> Cpu {
        Cpu { user: self.user + other.user, kernel: self.kernel + other.kernel }
    }
}

impl Sub for Cpu {
    type Output = Cpu;

    fn sub(self, other: Cpu) -> Cpu {
        Cpu { user: self.user - other.user, kernel: self.kernel - other.kernel }
    }
}

/// What these processes have used since they started, threads that ended included.
pub(crate) fn used(pids: &[u32]) -> Result<Cpu> {
    let tick = 1e9 / rustix::param::clock_ticks_per_second() as f64;
    let mut sum = Cpu::default();
    for pid in pids {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("read {path}: has the process ended?"))?;
        let (user, kernel) = parse_stat(&stat).with_context(|| format!("understand {path}"))?;
        sum = sum + Cpu { user: user as f64 * tick, kernel: kernel as f64 * tick };
    }
    Ok(sum)
}

/// What the threads that these processes have now have used, in nanoseconds: finer than ticks. `None` where the kernel does not
/// count so.
pub(crate) fn used_by_threads(pids: &[u32]) -> Option<f64> {
    let mut sum = 0.0;
    for pid in pids {
        for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
            // One that ends in between has not.
            let Ok(stat) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
            sum += stat.split_whitespace().next()?.parse::<f64>().ok()?;
        }
    }
    Some(sum)
}

/// `utime` and `stime`, in ticks. Fields are counted from behind the name, which may hold blanks and brackets.
fn parse_stat(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Waits until these processes have become idle: for what they still do after the last answer, such as flushing. Gives up
/// after a while, because some processes never rest.
pub(crate) fn settle(pids: &[u32]) -> Result<Cpu> {
    const QUIET: Duration = Duration::from_millis(200);
    const PATIENCE: Duration = Duration::from_secs(10);
    let give_up = Instant::now() + PATIENCE;
    let mut last = used(pids)?;
    loop {
        std::thread::sleep(QUIET);
        let now = used(pids)?;
        let spent = now - last;
        // One tenth of one processor.
        if spent.user + spent.kernel <= QUIET.as_nanos() as f64 / 10.0 || Instant::now() > give_up {
            return Ok(now);
        }
        last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 31 17 5 5 20 0 1 0 99 1 1";
        assert_eq!(parse_stat(stat), Some((31, 17)));
        assert_eq!(parse_stat("7 (a) S 1"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn this_process_uses_time() {
        assert!(used(&[std::process::id()]).is_ok());
        let before = used_by_threads(&[std::process::id()]).unwrap();
        let busy = Instant::now();
        while busy.elapsed() < Duration::from_millis(20) {}
        assert!(used_by_threads(&[std::process::id()]).unwrap() > before);
        assert_eq!(used_by_threads(&[u32::MAX]), None);
        let gone = used(&[u32::MAX]).unwrap_err().to_string();
        assert!(gone.contains("has the process ended"), "{gone}");
    }
}
