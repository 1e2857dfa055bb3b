//! What keeps this sidecar from becoming primary, or a reader from being read from, for those who ask it how it is.
//!
//! Written by [`roles`](crate::control::roles), told by [`status`](super) and `/readyz`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tailwind_protocol::config::Configuration;
use tailwind_protocol::promotion::{self, AcceptedLoss, DiskRecovery};
use tailwind_report::readiness::{Waiting, WaitsFor};
use tokio::time::Instant;

use crate::control::desired::{DesiredState, READS_DISABLED};

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

    /// The same, if the sidecar may be read from. If it may not, it waits for that alone, and has been told so.
    pub fn told_while(&self, may_read: bool) -> Option<Waiting> {
        match may_read {
            true => self.told(),
            false => Some(Waiting { what: WaitsFor::Reads, why: READS_DISABLED.to_owned() }),
        }
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

/// What an administrator has ordered of a promotion, compared with the log that the group has.
#[derive(Debug)]
pub struct Orders {
    accept_loss: Option<AcceptedLoss>,
    recover_from_disk: Option<DiskRecovery>,
    /// The orders that have no effect, and why.
    mistaken: Option<String>,
}

impl Orders {
    /// What the desired state orders.
    pub fn new(accept_loss: Option<AcceptedLoss>, recover_from_disk: Option<DiskRecovery>) -> Orders {
        Orders { accept_loss, recover_from_disk, mistaken: None }
    }

    /// The config store has this. An order for another log, or one that has been carried out, has no effect, and is said to have none.
    pub fn compare(&mut self, found: &Configuration) {
        let Configuration { log, won, .. } = found;
        let accepted = self.accept_loss.filter(|order| !order.is_for(found)).map(|order| match order.log == *log {
            true => format!("the loss of records after LSN {} was accepted once, and has been made use of", order.last),
            false => {
                format!("the loss of records is accepted for log {}, but the log of this group is {log}", order.log)
            }
        });
        let recovery = self.recover_from_disk.filter(|order| !order.is_for(found)).map(|order| {
            format!(
                "the recovery from disk is ordered for {order}, but the log of this group is {log}, and epoch {won} the last that \
                 had a primary: {}",
                DiskRecovery { log: *log, after: *won }
            )
        });
        let mistaken: Vec<String> = accepted.into_iter().chain(recovery).collect();
        let mistaken = (!mistaken.is_empty()).then(|| mistaken.join("; "));
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
    use tailwind_protocol::config::{Cut, Kind, PrimaryRef};
    use tailwind_protocol::ids::{Claim, Epoch, LogId, Lsn, Version};

    use super::*;

    fn desired(backups: &[(&str, &str)]) -> DesiredState {
        let backups = backups.iter().map(|(name, control)| (name.parse().unwrap(), (*control).to_owned())).collect();
        DesiredState {
            kind: None,
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
    fn an_order_that_has_no_effect_names_the_one_that_would_have() {
        let (log, other) = (LogId(0xabc), LogId(0xdef));
        let order = |log, after| DiskRecovery { log, after: Epoch(after) };
        let cuts = vec![Cut { epoch: Epoch(7), last: Lsn(45), ordered: Some(Lsn(40)) }];
        let primary = PrimaryRef { id: "s0".parse().unwrap(), control: String::new() };
        let (kind, epoch, claim, version) = (Kind::Log, Epoch(9), Claim(1), Version(3));
        let (earlier, members) = (Vec::new(), Vec::new());
        let found = Configuration { log, kind, epoch, claim, earlier, won: Epoch(7), cuts, version, primary, members };
        let waiting =
            promotion::Waiting::Members { fenced: 0, needed: 2, missing: "b0 (its memory is new)".to_owned() };
        let told = |accepted, ordered| {
            let mut orders = Orders::new(accepted, ordered);
            orders.compare(&found);
            orders.explain(&waiting, &desired(&[]), &[])
        };
        assert_eq!(told(None, Some(order(log, 7))), waiting.to_string());
        for (log_ordered, after) in [(other, 7), (log, 6), (log, 9)] {
            assert_eq!(
                told(None, Some(order(log_ordered, after))),
                format!(
                    "{waiting}; the recovery from disk is ordered for {log_ordered}/{after}, but the log of this group is {log}, \
                     and epoch 7 the last that had a primary: {log}/7"
                )
            );
        }
        let accepted = |log, last| Some(AcceptedLoss { log, last: Lsn(last) });
        assert_eq!(told(accepted(log, 41), None), waiting.to_string());
        assert_eq!(
            told(accepted(log, 40), None),
            format!("{waiting}; the loss of records after LSN 40 was accepted once, and has been made use of")
        );
        assert_eq!(
            told(accepted(other, 40), None),
            format!("{waiting}; the loss of records is accepted for log {other}, but the log of this group is {log}")
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

    #[test]
    fn a_reader_that_may_not_read_waits_for_that() {
        let waits = Waits::default();
        let waiting = Some(Waiting { what: WaitsFor::Reads, why: READS_DISABLED.to_owned() });
        assert_eq!((waits.told_while(true), waits.told_while(false)), (None, waiting.clone()));
        waits.wait(WaitsFor::ConfigStore, "it does not answer".to_owned());
        assert_eq!(waits.told_while(false), waiting);
    }
}
