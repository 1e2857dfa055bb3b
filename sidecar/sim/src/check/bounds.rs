//! S9: memory and queues are bounded by named constants.

use tailwind_protocol::primary::SEGMENTS_MAX;

use super::{Checks, broken};
use crate::world::{BOARD, Host};

impl Checks {
    /// A backup lends no more than it could flush.
    pub(crate) fn bounded(&self, host: &Host) {
        let Some(machine) = host.machine() else { return };
        let (used, most) = (machine.unflushed_bytes(), host.limits.unflushed_bytes_max);
        let all = u64::from(host.limits.slots) * u64::from(host.limits.slot_size);
        if used > all {
            broken("S9", format!("{} uses {used} bytes of buffers, {all} are there", host.name));
        }
        // What was found at the start, or is being recovered, may exceed a bound that has become lower; lending may not.
        let buffers = host.lendings.keys().filter(|slot| **slot != BOARD).count() as u64;
        if used > most && buffers * u64::from(host.limits.slot_size) > most {
            broken("S9", format!("{} lends more than the {most} bytes that it could flush", host.name));
        }
    }

    /// A primary keeps no more than the open end.
    pub(crate) fn bounded_primary(&self, segments: usize) {
        if segments > SEGMENTS_MAX {
            broken("S9", format!("a primary keeps {segments} segments in memory, {SEGMENTS_MAX} are allowed"));
        }
    }
}
