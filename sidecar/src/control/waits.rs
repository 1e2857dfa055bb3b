//! What keeps this sidecar from becoming primary, for those who ask it how it is.
//!
//! Written by [`promote`](super::promote) and [`standby`](super::standby), told by [`status`](super::status) and `/readyz`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tailwind_protocol::ids::LogId;
use tailwind_protocol::promotion::{self, AcceptedLoss};
use tailwind_report::readiness::{Waiting, WaitsFor};
use tokio::time::Instant;

use super::desired::DesiredState;

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

/// What an operator has ordered of a promotion, compared with the log that the group has.
#[derive(Debug)]
pub struct Orders {
    /// What was ordered, and for which log.
    given: Vec<(&'static str, LogId)>,
    /// The orders that are for another log than this group's.
    mistaken: Option<String>,
}

impl Orders {
    /// What the desired state orders.
    pub fn new(accept_loss: Option<AcceptedLoss>, recover_from_disk: Option<LogId>) -> Orders {
        let accepted = accept_loss.map(|accepted| ("the loss of records is accepted for", accepted.log));
        let recovery = recover_from_disk.map(|log| ("the recovery from disk is ordered for", log));
        Orders { given: accepted.into_iter().chain(recovery).collect(), mistaken: None }
    }

    /// The config store names this log. An order for another one has no effect, and is said to have none.
    pub fn compare(&mut self, log: LogId) {
        let others = self.given.iter().filter(|(_, ordered)| *ordered != log);
        let others = others.map(|(what, ordered)| format!("{what} log {ordered}")).collect::<Vec<_>>().join(", ");
        let mistaken = (!others.is_empty()).then(|| format!("{others}, but the log of this group is {log}"));
        if mistaken != self.mistaken {
            mistaken.iter().for_each(|why| tracing::warn!(%why, "an order has no effect"));
            self.mistaken = mistaken;
        }
    }

    /// What a promotion waits for, in words. `unfounded`: what came back from the backups that a group cannot be founded with.
    pub fn explain(&self, waiting: &promotion::Waiting, desired: &DesiredState, unfounded: &[String]) -> String {
        let mut why = match waiting {
            promotion::Waiting::Backups { empty, needed } => {
                let listed = desired.backups.len();
                let mut why = format!("cannot start the group: {empty} of {listed} backups are ready, {needed} needed");
                if !unfounded.is_empty() {
                    why += ". ";
                    why += &unfounded.join("; ");
                }
                why
            }
            other => other.to_string(),
        };
        if let Some(mistaken) = &self.mistaken {
            why += "; ";
            why += mistaken;
        }
        why
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desired(backups: &[(&str, &str)]) -> DesiredState {
        let backups = backups.iter().map(|(name, control)| (name.parse().unwrap(), (*control).to_owned())).collect();
        DesiredState {
            members: 3,
            min_in_sync: 2,
            backups,
            fenced: false,
            may_read: true,
            accept_loss: None,
            recover_from_disk: None,
            switchover: None,
        }
    }

    #[test]
    fn a_group_that_cannot_start_names_each_backup() {
        let desired = desired(&[("a0", "127.0.0.1:7501"), ("zz", "127.0.0.1:7550"), ("a2", "127.0.0.1:7503")]);
        let came_back = ["a0 127.0.0.1:7501: connection refused", "zz 127.0.0.1:7550: the backup there is named q0"];
        let waiting = promotion::Waiting::Backups { empty: 1, needed: 2 };
        let why = Orders::new(None, None).explain(&waiting, &desired, &came_back.map(str::to_owned));
        assert_eq!(
            why,
            "cannot start the group: 1 of 3 backups are ready, 2 needed. a0 127.0.0.1:7501: connection refused; \
             zz 127.0.0.1:7550: the backup there is named q0"
        );
    }

    #[test]
    fn an_order_for_another_log_names_this_groups() {
        let (mine, other) = (LogId(0xabc), LogId(0xdef));
        let waiting =
            promotion::Waiting::Members { fenced: 0, needed: 2, missing: "b0 (its memory is new)".to_owned() };
        let told = |ordered| {
            let mut orders = Orders::new(None, Some(ordered));
            orders.compare(mine);
            orders.explain(&waiting, &desired(&[]), &[])
        };
        assert_eq!(told(mine), waiting.to_string());
        assert_eq!(
            told(other),
            format!(
                "{waiting}; the recovery from disk is ordered for log {other}, but the log of this group is {mine}"
            )
        );
    }

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
