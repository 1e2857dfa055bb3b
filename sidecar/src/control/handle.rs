//! The way from control to the append path: a bounded queue of commands, and the bell that the path sleeps beside.
//!
//! Held by the [`Context`](super::Context); all that control tells the path goes through it.

use std::sync::mpsc::{SyncSender, TrySendError};

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::path::{Command, Waker};

/// The way to the append path.
#[derive(Clone, Debug)]
pub struct AppendLoopHandle {
    commands: SyncSender<Command>,
    waker: Waker,
}

impl AppendLoopHandle {
    /// A handle; `waker` is the bell that the path sleeps beside.
    pub fn new(commands: SyncSender<Command>, waker: Waker) -> AppendLoopHandle {
        AppendLoopHandle { commands, waker }
    }

    /// Sends a command and wakes the path; waits where there is no room, which the path makes without waiting for anybody. A path
    /// that is gone ends the process elsewhere.
    pub fn send(&self, command: Command) {
        let sent = match self.commands.try_send(command) {
            Err(TrySendError::Full(command)) => wait_apart(|| self.commands.send(command).is_ok()),
            sent => sent.is_ok(),
        };
        if sent {
            self.waker.wake();
        }
    }
}

/// Waits in this thread. If the thread is one of the runtime's, its other tasks go to another thread first: they must not wait
/// for the path, too.
fn wait_apart<T>(wait: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn wait() -> Command {
        Command::End
    }

    /// The runtime has one thread. What makes room is a task that can run only if the one that waits has left it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_full_queue_does_not_stop_other_tasks() {
        let (commands, inbox) = sync_channel(1);
        let path = AppendLoopHandle::new(commands, Waker::new().unwrap());
        path.send(wait());
        let (waits, waited_for) = tokio::sync::oneshot::channel();
        let sends = tokio::spawn(async move {
            waits.send(()).unwrap();
            path.send(wait());
        });
        let makes_room = tokio::spawn(async move {
            waited_for.await.unwrap();
            while inbox.recv().is_ok() {}
        });
        sends.await.unwrap();
        makes_room.await.unwrap();
    }
}
