//! SIGINT and SIGTERM to an append: it ends, and says how far it has come, as after any failure.
//!
//! A thread of its own takes the signals, and cuts the connection: the append finds that as it finds any other loss. While there
//! is no connection, that thread says what is known, and ends the process.

use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, ensure};
use rustix::net::{Shutdown, shutdown};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// What the error of an append says that was interrupted.
pub(super) const INTERRUPTED: &str = "interrupted";

/// Whether an append was interrupted, and what it does when it is.
#[derive(Clone)]
pub(super) struct Interruption(Arc<Mutex<State>>);

enum State {
    /// It has a connection.
    Connected(OwnedFd),
    /// It looks for a primary; how far it has come.
    Looking(String),
    Interrupted,
}

impl Interruption {
    /// Takes the signals from now on.
    pub(super) fn listen(connection: &impl AsFd) -> anyhow::Result<Interruption> {
        let interruption = Interruption(Arc::new(Mutex::new(State::Connected(duplicate(connection)?))));
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
            match std::mem::replace(&mut *self.state(), State::Interrupted) {
                // It may have ended by itself.
                State::Connected(connection) => drop(shutdown(connection, Shutdown::Both)),
                State::Looking(reached) => end(&format!("{INTERRUPTED}\n{reached}")),
                // It does not listen.
                State::Interrupted => end(INTERRUPTED),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_come(&self) -> bool {
        matches!(*self.state(), State::Interrupted)
    }

    /// It has another connection; an error if it is to end.
    pub(super) fn connected(&self, connection: &impl AsFd) -> anyhow::Result<()> {
        self.change(State::Connected(duplicate(connection)?))
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

fn duplicate(connection: &impl AsFd) -> anyhow::Result<OwnedFd> {
    connection.as_fd().try_clone_to_owned().context("duplicate the connection")
}

fn end(what: &str) -> ! {
    super::tell(format!("append: {what}"));
    std::process::exit(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_append_finds_no_other_primary() {
        let interruption = Interruption(Arc::new(Mutex::new(State::Interrupted)));
        let (connection, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        for refused in [interruption.looking(String::new()), interruption.connected(&connection)] {
            assert_eq!(refused.unwrap_err().to_string(), INTERRUPTED);
        }
        assert!(interruption.has_come());
    }
}
