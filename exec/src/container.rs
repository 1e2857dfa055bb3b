//! Whether this process is the first of its container: its death then takes every process of the container with it.
//!
//! Called by `life` before anything else, and by `doctor`.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Pid, getpid};

/// The inode of the machine's own PID namespace (`PROC_PID_INIT_INO` in the kernel's `include/linux/proc_ns.h`).
const INITIAL_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Programs that do nothing but start another one and reap its orphans, as tailwind-exec does itself.
const INITS: [&str; 6] = ["tini", "docker-init", "dumb-init", "catatonit", "s6-svscan", "init"];
const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ash", "busybox"];

/// Where this process is among others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In no container, as far as processes are concerned.
    Host,
    /// PID 1 of a container.
    First,
    /// In a container whose PID 1 is another process.
    Behind(Behind),
}

/// A process that is not the first.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("tailwind-exec must be PID 1 of its container, but is PID {own}, and PID 1 is `{first}`: {}", self.advice())]
pub struct Behind {
    own: u32,
    first: String,
}

impl Behind {
    fn advice(&self) -> &'static str {
        match &self.first[..] {
            "pause" => "leave out shareProcessNamespace",
            first if INITS.contains(&first) => {
                "leave that out (`docker run` without --init): tailwind-exec reaps orphans itself"
            }
            first if SHELLS.contains(&first) => "make it the container's command, or start it by `exec`",
            _ => "make it the container's command",
        }
    }
}

impl Place {
    /// Looks.
    pub fn find() -> io::Result<Place> {
        let namespace = fs::metadata("/proc/self/ns/pid")?.ino();
        // Its name may be hidden.
        let first = || fs::read_to_string("/proc/1/comm").unwrap_or_default().trim().to_owned();
        Ok(Place::of(getpid(), namespace, first))
    }

    fn of(own: Pid, namespace: u64, first: impl FnOnce() -> String) -> Place {
        if own == Pid::INIT {
            Place::First
        } else if namespace == INITIAL_NAMESPACE {
            Place::Host
        } else {
            Place::Behind(Behind { own: own.as_raw_nonzero().get().unsigned_abs(), first: first() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(own: i32, namespace: u64, first: &str) -> Place {
        Place::of(Pid::from_raw(own).unwrap(), namespace, || first.to_owned())
    }

    #[test]
    fn only_pid_1_of_a_container_will_do() {
        assert_eq!(of(1, 4_026_532_000, "tailwind-exec"), Place::First);
        assert_eq!(of(4711, INITIAL_NAMESPACE, "systemd"), Place::Host);
        assert!(matches!(of(7, 4_026_532_000, "tini"), Place::Behind(_)));
    }

    #[test]
    fn the_advice_depends_on_who_is_pid_1() {
        for (first, advice) in [
            ("pause", "shareProcessNamespace"),
            ("docker-init", "without --init"),
            ("sh", "by `exec`"),
            ("java", "the container's command"),
        ] {
            let Place::Behind(behind) = of(7, 4_026_532_000, first) else { panic!("it is PID 7") };
            let text = behind.to_string();
            assert!(text.contains(advice) && text.contains(&format!("is PID 7, and PID 1 is `{first}`")), "{text}");
        }
    }
}
