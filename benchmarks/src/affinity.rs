//! Which processors a process may use: all its threads are moved, and threads that they start stay there.
//!
//! Used by the comparisons `followers` and `neighbours`.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this thread may use, by number.
pub(crate) fn processors() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("ask which processors there are")?;
    Ok((0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect())
}

/// Keeps this thread on these processors.
pub(crate) fn keep_this_thread_on(processors: &[usize]) -> Result<()> {
    sched_setaffinity(None, &set(processors)).context("choose this thread's processors")
}

/// Keeps a process on these processors.
pub(crate) fn keep_on(pid: u32, processors: &[usize]) -> Result<()> {
    let folder = format!("/proc/{pid}/task");
    // Twice: a thread that started while the first look was under way belongs to one that had been moved, or is seen now.
    for _ in 0..2 {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {folder}: has the process ended?"))? {
            let thread = entry?.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
            match sched_setaffinity(thread, &set(processors)) {
                // It has ended in the meantime.
                Err(rustix::io::Errno::SRCH) => {}
                other => other.with_context(|| format!("choose the processors of process {pid}"))?,
            }
        }
    }
    Ok(())
}

fn set(processors: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_of_a_process_are_moved() {
        let all = processors().unwrap();
        let last = [*all.last().unwrap()];
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        keep_on(child.id(), &last).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        let _ = child.kill();
        let _ = child.wait();
        assert_eq!(allowed.trim(), last[0].to_string());
        assert!(keep_on(u32::MAX / 2, &last).is_err(), "no such process");
    }
}
