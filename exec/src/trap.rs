//! The room of `unsafe`: the seccomp filter, its listener, and the start of a program under both.
//!
//! [`spawn`] starts a program whose calls go through the filter, and gives the [`Listener`] at which the stopped ones arrive;
//! the supervisor receives and answers them. What the filter does with which call is the table [`RULES`]; the filter is
//! assembled from it, and a stopped call is decoded by it.
//!
//! A program that continues (`Answer::Go`) runs its call after the answer, with the arguments as they then lie in its memory:
//! so only register arguments are ever looked at, here and in the filter.

use std::io;

use rustix::io::Errno;

use crate::call::{Call, Thread};

mod filter;
mod listener;
mod refused;
mod rules;
mod start;

pub use listener::Listener;
pub use refused::Refused;
pub use rules::{LAST_NUMBER, Name, Outcome, RULES, Rule};
pub use start::{Settings, spawn, spawn_with};

/// What refuses the calls that the table refuses.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Refusals {
    /// The filter, and nobody learns of it.
    #[default]
    Unseen,
    /// The listener, with the same error, and it counts them: such calls are stopped, too. For dry runs.
    Counted,
}

/// A stopped call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped {
    /// The number of this stop: the kernel never uses it again as long as the listener lives.
    pub id: u64,
    /// The calling thread, as the receiving process's namespace numbers it; 0 if it is outside of that namespace.
    pub thread: Thread,
    /// What it asked for.
    pub call: Call,
}

/// How a stopped thread continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The kernel carries the call out.
    Go,
    /// The call returns 0, and the kernel does nothing.
    Done,
    /// The call fails, and the kernel does nothing.
    Fail(Errno),
}

/// An error of the kernel, and what could not be done.
fn cannot(what: &str, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("cannot {what}: {error}"))
}
