//! Waiting for a condition with a deadline.

use std::time::{Duration, Instant};

/// Looks every `interval` until there is something to find; `None` once `timeout` has passed. Looks once at least.
pub fn poll<T>(timeout: Duration, interval: Duration, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + timeout;
    loop {
        match find() {
            None if Instant::now() < deadline => std::thread::sleep(interval),
            found => return found,
        }
    }
}
