//! The API server's clock. What a plan compares with the present was dated there: when a pod was to have ended, since when a node
//! is silent. With a clock of its own, an operator on a node whose clock is wrong would take a pod that ends for one that hangs.
//!
//! Set by [`api_requests`](crate::api_requests) from the dates of answers, read by [`observe`](crate::observe). What kubelets
//! date themselves, such as the start of a container, is not covered.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use axum::http::HeaderValue;
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};

/// The date of an answer that took longer says too little.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// A date has whole seconds, and an answer takes up to one: a smaller difference may be none.
const NEGLIGIBLE: SignedDuration = SignedDuration::from_secs(2);

/// How far the API server's clock is ahead of this machine's, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(AtomicI64);

impl ServerClock {
    /// How far it is ahead; negative if it is behind.
    pub(crate) fn ahead(&self) -> SignedDuration {
        SignedDuration::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// Takes the header `Date` of an answer that has just come, so long after its request.
    pub(crate) fn heard(&self, date: &HeaderValue, after: Duration) {
        let parsed = date.to_str().ok().and_then(|date| rfc2822::parse(date).ok());
        let Some(date) = parsed.filter(|_| after < ANSWER_MAX) else { return };
        let ahead = date.timestamp().duration_since(Timestamp::now());
        let ahead = if ahead.abs() < NEGLIGIBLE { SignedDuration::ZERO } else { ahead };
        self.0.store(i64::try_from(ahead.as_millis()).unwrap_or(0), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_prompt_answers_and_large_differences_count() {
        let clock = ServerClock::default();
        let date = |seconds: i64| {
            let at = Timestamp::now() + SignedDuration::from_secs(seconds);
            let date = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).unwrap();
            HeaderValue::from_str(&date).unwrap()
        };
        let hear = |date: &HeaderValue, after_ms| {
            clock.heard(date, Duration::from_millis(after_ms));
            (clock.ahead().as_secs_f64() / 60.0).round()
        };
        assert_eq!(hear(&date(-300), 20), -5.0);
        assert_eq!(hear(&date(600), 1500), -5.0, "the answer took too long");
        assert_eq!(hear(&HeaderValue::from_static("today"), 20), -5.0);
        assert_eq!(hear(&date(600), 20), 10.0);
        hear(&date(1), 20);
        assert_eq!(clock.ahead(), SignedDuration::ZERO);
    }
}
