//! Keeps an error that repeats from filling the log.
//!
//! Used by retry loops: a standby, a promotion, swaps of the config store, the append socket's listener, and a backup's listing
//! of its quarantine.

use std::time::{Duration, Instant};

/// The same error is logged at most this often.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Most errors that are remembered: those of a group's members and their combinations, a few at a time.
const REMEMBERED_MAX: usize = 16;

/// Says when to log an error: at once when it is new, then once per interval. Errors that take turns are new once each.
#[derive(Debug)]
pub struct Repeats<T> {
    interval: Duration,
    /// What was logged, and when it was last; the newest last.
    logged: Vec<(T, Instant)>,
}

impl<T: PartialEq> Default for Repeats<T> {
    fn default() -> Repeats<T> {
        Repeats::every(REPEAT_INTERVAL)
    }
}

impl<T: PartialEq> Repeats<T> {
    /// The same error is logged once per `interval`.
    pub const fn every(interval: Duration) -> Repeats<T> {
        Repeats { interval, logged: Vec::new() }
    }

    /// True if this error is to be logged now; then it counts as logged.
    pub fn is_due(&mut self, error: T, now: Instant) -> bool {
        self.logged.retain(|(_, at)| now.saturating_duration_since(*at) < self.interval);
        if self.logged.iter().any(|(logged, _)| *logged == error) {
            return false;
        }
        if self.logged.len() == REMEMBERED_MAX {
            self.logged.remove(0);
        }
        self.logged.push((error, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As when two members take turns in being the one that does not answer.
    #[test]
    fn errors_that_alternate_are_logged_once_each() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let due = (0..100).filter(|nth| repeats.is_due(nth % 3, start + Duration::from_millis(50 * nth))).count();
        assert_eq!(due, 3);
    }

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
