//! The log: lines on standard error, which this process shares with the program.
//!
//! Started by `main`. A thread of its own writes them: standard error may be full for as long as nobody reads it, and a program
//! that must not continue has to be killed all the same. Beyond what the queue takes, lines are dropped.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// What [`finish`] waits for.
static WRITER: Mutex<Option<WorkerGuard>> = Mutex::new(None);

/// Starts it.
pub fn start(filter: EnvFilter) {
    let (writer, guard) = NonBlocking::new(io::stderr());
    *WRITER.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
    // An error of the log is no reason to panic.
    log.log_internal_errors(false).with_ansi(io::stderr().is_terminal()).init();
}

/// Writes what is in the queue, if standard error takes it within a second.
pub fn finish() {
    drop(WRITER.lock().unwrap_or_else(PoisonError::into_inner).take());
}
