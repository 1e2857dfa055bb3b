//! Counts what a program was refused. Used by `listener` in dry runs, where refused calls are stopped.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use libc::seccomp_data;
use rustix::io::Errno;

use super::filter::ARCHITECTURE;
use super::rules::{self, LAST_NUMBER, Outcome};

/// Calls that were refused for one reason.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Refused {
    /// The call's name, or its number if it is newer than the table.
    pub call: String,
    /// What of it is refused; empty if all.
    pub when: &'static str,
    /// What it fails with, as the kernel numbers errors.
    errno: i32,
}

impl Refused {
    /// What it fails with.
    pub fn errno(&self) -> Errno {
        Errno::from_raw_os_error(self.errno)
    }

    fn new(call: impl Into<String>, when: &'static str, errno: Errno) -> Refused {
        Refused { call: call.into(), when, errno: errno.raw_os_error() }
    }

    /// `None` if the table does not refuse this call.
    pub(super) fn find(data: &seccomp_data) -> Option<Refused> {
        let number = data.nr.cast_unsigned();
        if data.arch != ARCHITECTURE {
            return Some(Refused::new("all calls", "programs for another architecture, such as 32 bits", Errno::NOSYS));
        }
        if number > LAST_NUMBER {
            return Some(Refused::new(format!("call {number}"), "newer than tailwind-exec", Errno::NOSYS));
        }
        let rule = rules::find(number, &data.args)?;
        let Outcome::Refuse(errno) = rule.outcome else { return None };
        let name = rule.calls.iter().find(|name| name.number == number)?;
        Some(Refused::new(name.name(), rule.when, errno))
    }
}

/// How often each call was refused.
#[derive(Default, Debug)]
pub(super) struct Counts(Mutex<BTreeMap<Refused, u64>>);

impl Counts {
    pub(super) fn add(&self, refused: Refused) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(refused).or_default() += 1;
    }

    pub(super) fn get(&self) -> BTreeMap<Refused, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
