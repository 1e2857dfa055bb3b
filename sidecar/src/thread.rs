//! Threads with an owner that learns when they end, whether they return or panic.
//!
//! Used by [`run`](crate::run) for the append path, and by [`backup`](crate::backup) for its actor and its flusher.

use std::io;
use std::thread;

use tokio::sync::oneshot;

/// Starts a thread in the current span. The receiver gets its result, or an error if it panicked.
pub(crate) fn spawn_owned<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (ended, owner) = oneshot::channel();
    let span = tracing::Span::current();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _entered = span.enter();
        // An owner that is gone has ended the process.
        let _ = ended.send(body());
    })?;
    Ok(owner)
}
