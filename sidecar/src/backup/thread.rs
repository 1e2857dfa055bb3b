//! Threads with an owner that learns when they end, whether they return or panic.
//!
//! Used for the [`actor`](super::actor) and the [`flusher`](super::flusher).

use std::io;
use std::thread;

use tokio::sync::oneshot;

/// Starts a thread. The receiver gets its result, or an error if it panicked.
pub(super) fn spawn_owned<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (ended, owner) = oneshot::channel();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        // An owner that is gone has ended the process.
        let _ = ended.send(body());
    })?;
    Ok(owner)
}
