//! How long failovers take, and the steps of the promotions in them.
//!
//! Counted by [`roles`](crate::control::roles), shown by [`status`](super).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tailwind_protocol::promotion::Output;
use tailwind_runtime::histogram::Histogram;

/// The promotions of this process that were won.
#[derive(Debug, Default)]
pub struct PromotionTimes {
    /// From the moment at which a standby misses its primary to the moment at which it is primary itself.
    pub failover: Histogram,
    /// From the start of a promotion until its epoch is claimed.
    pub claim: Histogram,
    /// From there until enough members are fenced and the log is put together.
    pub fence: Histogram,
    /// From there until every member holds the log.
    pub repair: Histogram,
    /// The last failover, in milliseconds and one more; 0 if there was none.
    last_failover: AtomicU64,
}

impl PromotionTimes {
    /// A failover has ended: this sidecar is primary.
    pub fn failed_over(&self, took: Duration) {
        self.failover.observe(took, 1);
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.last_failover.store(ms.saturating_add(1), Ordering::Relaxed);
    }

    /// How long the last failover took, in milliseconds.
    pub fn last_failover_ms(&self) -> Option<u64> {
        self.last_failover.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// How far one promotion is.
#[derive(Debug)]
pub(in crate::control) struct Steps {
    began: Instant,
    claimed: Option<Instant>,
    assembled: Option<Instant>,
}

impl Steps {
    pub(in crate::control) fn begin(now: Instant) -> Steps {
        Steps { began: now, claimed: None, assembled: None }
    }

    /// The promotion goes on with this.
    pub(in crate::control) fn note(&mut self, output: &Output, now: Instant) {
        match output {
            Output::Fence(..) => _ = self.claimed.get_or_insert(now),
            // Asking again is part of each step.
            Output::ReadConfig | Output::Survey(_) | Output::Waiting(_) => {}
            _ if self.claimed.is_some() => _ = self.assembled.get_or_insert(now),
            _ => {}
        }
    }

    /// It has been won.
    pub(in crate::control) fn end(&self, now: Instant, times: &PromotionTimes) {
        let claimed = self.claimed.unwrap_or(now);
        let assembled = self.assembled.unwrap_or(now);
        times.claim.observe(claimed.duration_since(self.began), 1);
        times.fence.observe(assembled.saturating_duration_since(claimed), 1);
        times.repair.observe(now.saturating_duration_since(assembled), 1);
    }
}
