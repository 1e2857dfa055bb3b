//! Waiting for a condition with a deadline.

use std::time::{Duration, Instant};

/// What is waited for long is looked at less often, down to this.
const INTERVAL_MAX: Duration = Duration::from_millis(25);

/// Looks every `interval` until there is something to find; `None` once `timeout` has passed. Looks once at least.
///
/// To look costs those who are asked some work. So a short interval becomes longer with the time that has passed.
pub fn poll<T>(timeout: Duration, interval: Duration, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        match find() {
            None if began.elapsed() < timeout => {
                std::thread::sleep((began.elapsed() / 8).clamp(interval, interval.max(INTERVAL_MAX)));
            }
            found => return found,
        }
    }
}
