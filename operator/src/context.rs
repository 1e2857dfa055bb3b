//! What every reconcile uses: the client, what watches have brought, what is remembered, counters.
//!
//! Made by [`run`](crate::run), read by all that is called from [`controller`](crate::controller).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use kube::Client;
use kube::runtime::events::Recorder;

use crate::cache::{Cache, GroupRef};
use crate::installation::Installation;
use crate::last_look::LastLooks;
use crate::metrics::Metrics;
use crate::options::Settings;
use crate::probe::Prober;
use crate::rollout_turns::{Key, RolloutTurns};
use crate::server_clock::ServerClock;
use crate::server_version::ServerVersion;

pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) clock: Arc<ServerClock>,
    pub(crate) server: ServerVersion,
    pub(crate) settings: Settings,
    /// Which groups are ours.
    pub(crate) installation: Installation,
    /// Which groups are being updated.
    pub(crate) rollout_turns: Arc<RolloutTurns>,
    /// What watches have brought.
    pub(crate) cache: Cache,
    /// What earlier looks at each group have left.
    pub(crate) last_looks: LastLooks,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Arc<Metrics>,
    /// Asks backups and primaries how they are, beside the reconciles.
    pub(crate) prober: Arc<Prober>,
    /// Failures in a row, by group.
    pub(crate) failures: Failures,
}

impl Context {
    /// A group is gone.
    pub(crate) fn forget(&self, group: &GroupRef) {
        let namespace = group.namespace.as_deref().unwrap_or_default();
        self.metrics.forget(namespace, &group.name);
        self.metrics.not_refused(namespace, &group.name);
        self.failures.clear(&format!("{namespace}/{}", group.name));
        self.last_looks.forget(group);
        self.rollout_turns.forget(&key(group), || self.all_groups());
    }

    /// The groups that are not in the cache any more are gone: a watch that was interrupted does not tell of each.
    pub(crate) fn forget_missing(&self) {
        for group in self.last_looks.groups() {
            if self.cache.groups.get(&group).is_none() {
                self.forget(&group);
            }
        }
    }

    /// All groups that there are; none if they are not listed yet.
    pub(crate) fn all_groups(&self) -> Option<BTreeSet<Key>> {
        self.cache.groups.wait_until_ready().now_or_never()?.ok()?;
        Some(self.cache.groups.state().iter().map(|group| key(&GroupRef::from_obj(group.as_ref()))).collect())
    }
}

/// Its namespace and name.
pub(crate) fn key(group: &GroupRef) -> Key {
    (group.namespace.clone().unwrap_or_default(), group.name.clone())
}

/// Failures in a row, by `namespace/name`, each with when the next try is due.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<BTreeMap<String, (u32, Instant)>>);

impl Failures {
    /// One more, after which `wait` says how long to wait; how many it is now, and how long to wait from now on. One that
    /// something has hastened, a change of a pod perhaps, is not one more: nothing new has been learnt.
    pub(crate) fn add(&self, group: &str, now: Instant, wait: impl FnOnce(u32) -> Duration) -> (u32, Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, due) = all.entry(group.to_owned()).or_insert((0, now));
        if now >= *due {
            *count = count.saturating_add(1);
            *due = now + wait(*count);
        }
        (*count, *due - now)
    }

    /// It went well, or is gone.
    pub(crate) fn clear(&self, group: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_early_retry_is_not_counted() {
        let (failures, began) = (Failures::default(), Instant::now());
        let after = |seconds| began + Duration::from_secs(seconds);
        let doubled = |count: u32| Duration::from_secs(5 << (count - 1));
        assert_eq!(failures.add("shop/orders", after(0), doubled), (1, Duration::from_secs(5)));
        assert_eq!(failures.add("shop/orders", after(2), doubled), (1, Duration::from_secs(3)));
        assert_eq!(failures.add("shop/orders", after(5), doubled), (2, Duration::from_secs(10)));
        failures.clear("shop/orders");
        assert_eq!(failures.add("shop/orders", after(6), doubled), (1, Duration::from_secs(5)));
    }
}
