//! What keeps this sidecar from becoming primary, for those who ask it how it is.
//!
//! Written by [`promote`](super::promote) and [`standby`](super::standby), told by [`status`](super::status) and `/readyz`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tailwind_protocol::promotion;
use tailwind_report::readiness::{Waiting, WaitsFor};
use tokio::time::Instant;

/// A shorter wait belongs to every failover: members that die are waited for a little.
const WORTH_TELLING: Duration = Duration::from_secs(1);

/// What is waited for, if anything.
#[derive(Debug, Default)]
pub struct Waits(Mutex<Option<Wait>>);

#[derive(Debug)]
struct Wait {
    since: Instant,
    waiting: Waiting,
}

impl Waits {
    /// It waits, whatever it waited for before.
    pub fn wait(&self, what: WaitsFor, why: String) {
        let mut wait = self.lock();
        let since = wait.as_ref().map_or_else(Instant::now, |wait| wait.since);
        *wait = Some(Wait { since, waiting: Waiting { what, why } });
    }

    /// It goes on, or need not become primary any more.
    pub fn over(&self) {
        *self.lock() = None;
    }

    /// What it waits for, once it has waited for a while.
    pub fn told(&self) -> Option<Waiting> {
        let wait = self.lock();
        wait.as_ref().filter(|wait| wait.since.elapsed() >= WORTH_TELLING).map(|wait| wait.waiting.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Wait>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The word for what a promotion waits for.
pub fn word(waiting: &promotion::Waiting) -> WaitsFor {
    match waiting {
        promotion::Waiting::ConfigStore(_) => WaitsFor::ConfigStore,
        promotion::Waiting::Backups { .. } => WaitsFor::Backups,
        promotion::Waiting::Members { .. } => WaitsFor::Members,
        promotion::Waiting::Damage(_) | promotion::Waiting::Witnesses { .. } => WaitsFor::Evidence,
        promotion::Waiting::StoreForgot { .. } => WaitsFor::ForgottenLog,
        promotion::Waiting::StoreIsOlder { .. } => WaitsFor::NewerConfigStore,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_is_logged_when_it_starts_and_ends() {
        let waits = Waits::default();
        waits.wait(WaitsFor::Members, "b0 is missing".to_owned());
        assert_eq!(waits.told(), None);
        tokio::time::advance(WORTH_TELLING).await;
        waits.wait(WaitsFor::Evidence, "b1 is damaged".to_owned());
        let told = Waiting { what: WaitsFor::Evidence, why: "b1 is damaged".to_owned() };
        assert_eq!(waits.told(), Some(told), "it has waited all the while");
        waits.over();
        assert_eq!(waits.told(), None);
        waits.wait(WaitsFor::Members, "b0 is missing".to_owned());
        assert_eq!(waits.told(), None, "another wait");
    }
}
