//! Keeps an error that repeats from filling the log.
//!
//! Used by retry loops: a standby, and a backup's listing of its quarantine.

use std::time::{Duration, Instant};

/// The same error is logged at most this often.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Says when to log an error: at once when it is new, then once per interval.
#[derive(Debug)]
pub struct Repeats<T> {
    interval: Duration,
    last: Option<(T, Instant)>,
}

impl<T: PartialEq> Default for Repeats<T> {
    fn default() -> Repeats<T> {
        Repeats::every(REPEAT_INTERVAL)
    }
}

impl<T: PartialEq> Repeats<T> {
    /// The same error is logged once per `interval`.
    pub const fn every(interval: Duration) -> Repeats<T> {
        Repeats { interval, last: None }
    }

    /// True if this error is to be logged now; then it counts as logged.
    pub fn is_due(&mut self, error: T, now: Instant) -> bool {
        let is_due = self.last.as_ref().is_none_or(|(last, at)| *last != error || now - *at >= self.interval);
        if is_due {
            self.last = Some((error, now));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_error_is_logged_again_after_a_pause() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        assert!(repeats.is_due("a", start));
        assert!(!repeats.is_due("a", start + Duration::from_millis(60)));
        assert!(!repeats.is_due("a", start + REPEAT_INTERVAL / 2));
        assert!(repeats.is_due("a", start + REPEAT_INTERVAL));
        assert!(!repeats.is_due("a", start + REPEAT_INTERVAL));
        assert!(repeats.is_due("b", start + REPEAT_INTERVAL));
    }
}
