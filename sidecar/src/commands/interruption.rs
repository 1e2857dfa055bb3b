//! SIGINT and SIGTERM to a command that moves records: it fails, and says how far it has come, as after any failure.
//!
//! Used by [`append`](super::append), [`read`](super::read) and [`follow`](super::follow). A thread of its own takes the signals,
//! and cuts the connection: the command finds that as it finds any other loss. While there is no connection, that thread says
//! what is known, and ends the process. It also ends a command that does not end by itself.

use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{Shutdown, shutdown};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use tailwind_runtime::exit::Exit;

use super::tell;

/// What the error of a command says that was interrupted.
pub(super) const INTERRUPTED: &str = "interrupted";
/// A command whose connection is cut has only its output left to write. If that takes longer, nobody takes it.
const WRITE_WITHIN: Duration = Duration::from_secs(2);
/// And what it says then.
const STUCK: &str = "interrupted, and the output cannot be written: where it ends shows how far this has come";

/// Whether a command was interrupted, and what it does when it is.
#[derive(Clone)]
pub(super) struct Interruption {
    /// The command's name.
    command: &'static str,
    state: Arc<Mutex<State>>,
}

enum State {
    /// It has a connection.
    Connected(OwnedFd),
    /// It looks for a sidecar; how far it has come.
    Looking(String),
    Interrupted,
}

impl Interruption {
    /// Takes the signals from now on. The command has no connection yet; `reached` says how far it has come, and how to resume.
    pub(super) fn listen(command: &'static str, reached: String) -> anyhow::Result<Interruption> {
        let interruption = Interruption { command, state: Arc::new(Mutex::new(State::Looking(reached))) };
        let (signals, signal) = io::pipe().context("make a pipe for signals")?;
        for number in [SIGINT, SIGTERM] {
            pipe::register(number, signal.try_clone()?).context("take SIGINT and SIGTERM")?;
        }
        let taken = interruption.clone();
        thread::spawn(move || taken.take(signals));
        Ok(interruption)
    }

    fn take(&self, mut signals: PipeReader) {
        while signals.read_exact(&mut [0]).is_ok() {
            let mut state = self.state();
            match std::mem::replace(&mut *state, State::Interrupted) {
                State::Connected(connection) => {
                    drop(state);
                    // It may have ended by itself.
                    let _ = shutdown(connection, Shutdown::Both);
                    if !is_readable_within(&signals, WRITE_WITHIN) {
                        self.end(STUCK);
                    }
                }
                // Still locked: the command cannot go on in the meantime.
                State::Looking(reached) => self.end(&format!("{INTERRUPTED}\n{reached}")),
                // It does not listen.
                State::Interrupted => self.end(INTERRUPTED),
            }
        }
    }

    fn end(&self, what: &str) -> ! {
        tell(format_args!("{}: {what}", self.command));
        std::process::exit(Exit::Failure.code().into())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_come(&self) -> bool {
        matches!(*self.state(), State::Interrupted)
    }

    /// It has a connection now, or another one; an error if it is to end.
    pub(super) fn connected(&self, connection: &impl AsFd) -> anyhow::Result<()> {
        let connection = connection.as_fd().try_clone_to_owned().context("duplicate the connection")?;
        self.change(State::Connected(connection))
    }

    /// It has none; an error if it is to end.
    pub(super) fn looking(&self, reached: String) -> anyhow::Result<()> {
        self.change(State::Looking(reached))
    }

    fn change(&self, to: State) -> anyhow::Result<()> {
        let mut state = self.state();
        // A signal that comes from here on finds the new state.
        ensure!(!matches!(*state, State::Interrupted), INTERRUPTED);
        *state = to;
        Ok(())
    }
}

/// The error of a command that was interrupted. `reached` says how far it has come, and how to resume.
pub(super) fn interrupted(reached: &str) -> anyhow::Error {
    anyhow!("{INTERRUPTED}\n{reached}")
}

/// Whether another signal has come by then.
fn is_readable_within(signals: &PipeReader, time: Duration) -> bool {
    let timeout = Timespec::try_from(time).ok();
    let mut fds = [PollFd::new(signals, PollFlags::IN)];
    retry_on_intr(|| poll(&mut fds, timeout.as_ref())).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_command_gets_no_other_connection() {
        let interruption = Interruption { command: "append", state: Arc::new(Mutex::new(State::Interrupted)) };
        let (connection, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        for refused in [interruption.looking(String::new()), interruption.connected(&connection)] {
            assert_eq!(refused.unwrap_err().to_string(), INTERRUPTED);
        }
        assert!(interruption.has_come());
    }
}
