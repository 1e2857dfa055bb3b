//! Threads and tasks with an owner that learns when they end, whether they return or panic.
//!
//! Used by [`run`](crate::run) for the append path, and by [`backup`](crate::backup) for its actor and its flusher; [`result`] by
//! all that wait for a task.

use std::io;
use std::thread;

use tokio::sync::oneshot;
use tokio::task::JoinError;

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

/// What a task has returned. If it panicked, so does the caller. Nobody cancels a task that is waited for, except when the
/// process ends: then there is nothing left to do.
pub(crate) async fn result<T>(joined: Result<T, JoinError>) -> T {
    match result_now(joined) {
        Some(result) => result,
        None => std::future::pending().await,
    }
}

/// The same for a caller that cannot wait: `None` if the task was cancelled.
pub(crate) fn result_now<T>(joined: Result<T, JoinError>) -> Option<T> {
    match joined.map_err(JoinError::try_into_panic) {
        Ok(result) => Some(result),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::JoinSet;

    use super::*;

    /// When a runtime ends it cancels its tasks, each before or after those that wait for it.
    #[tokio::test(start_paused = true)]
    async fn a_cancelled_task_is_no_panic() {
        let mut tasks = JoinSet::new();
        tasks.spawn(std::future::pending::<()>());
        tasks.abort_all();
        let joined = tasks.join_next().await.unwrap();
        let waited = tokio::time::timeout(Duration::from_secs(60), result(joined)).await;
        assert!(waited.is_err(), "there is no result");
    }

    #[tokio::test]
    #[should_panic(expected = "of the task")]
    async fn a_panic_goes_on() {
        result(tokio::spawn(async { panic!("of the task") }).await).await;
    }
}
