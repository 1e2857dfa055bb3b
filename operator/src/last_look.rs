//! What is remembered of each group from one look to the next: nothing that would be missed after a restart.
//!
//! Part of [`Context`](crate::context::Context).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cache::GroupRef;
use crate::observed::Certificates;
use crate::plan::news::News;

/// A group is looked at through the API server after so long at the latest, and after half of it at the earliest: each group
/// has its own interval, lest all of them that were seen first at the same time are looked at together from then on. A look
/// takes fifteen requests, which is two a minute.
const LOOK_INTERVAL_MAX: Duration = Duration::from_mins(10);
/// [Figures](News::Figures) are written so long after what was written before, at the earliest.
const FIGURES_INTERVAL: Duration = Duration::from_mins(1);

/// What is remembered, by group.
#[derive(Debug, Default)]
pub(crate) struct LastLooks(Mutex<HashMap<GroupRef, LastLook>>);

#[derive(Debug, Default)]
struct LastLook {
    certificates: Option<Read>,
    /// When a status was written last.
    written: Option<Instant>,
    /// See [`Plan::spare_nodes`](crate::plan::Plan), less the nodes that have changed since.
    spare_nodes: Option<usize>,
}

/// What was in the secrets, without what is secret.
#[derive(Debug)]
struct Read {
    at: Instant,
    /// [Of the group](crate::wake::digest), as it was then.
    digest: u64,
    certificates: Certificates,
}

impl LastLooks {
    fn all(&self) -> MutexGuard<'_, HashMap<GroupRef, LastLook>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was in the group's secrets, if that was read lately, and the group was then as it is now.
    pub(crate) fn certificates(&self, group: &GroupRef, digest: u64, now: Instant) -> Option<Certificates> {
        let all = self.all();
        let read = all.get(group)?.certificates.as_ref()?;
        let is_current = read.digest == digest && now.duration_since(read.at) < look_interval(group);
        is_current.then(|| read.certificates.clone())
    }

    pub(crate) fn keep_certificates(&self, group: &GroupRef, digest: u64, now: Instant, certificates: Certificates) {
        self.all().entry(group.clone()).or_default().certificates = Some(Read { at: now, digest, certificates });
    }

    /// They are about to change.
    pub(crate) fn drop_certificates(&self, group: &GroupRef) {
        if let Some(look) = self.all().get_mut(group) {
            look.certificates = None;
        }
    }

    /// How long such news waits to be written, if there is anything to write.
    pub(crate) fn wait(&self, group: &GroupRef, news: News, now: Instant) -> Option<Duration> {
        let written = || self.all().get(group).and_then(|look| look.written);
        match news {
            News::Nothing => None,
            News::Figures => {
                let due = written().map(|written| written + FIGURES_INTERVAL);
                Some(due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now)))
            }
            News::Texts | News::Facts => Some(Duration::ZERO),
        }
    }

    /// A status was written, with all figures.
    pub(crate) fn status_written(&self, group: &GroupRef, now: Instant) {
        self.all().entry(group.clone()).or_default().written = Some(now);
    }

    pub(crate) fn keep_spare_nodes(&self, group: &GroupRef, spare: usize) {
        self.all().entry(group.clone()).or_default().spare_nodes = Some(spare);
    }

    /// Notes that so many nodes have changed: true if any of them may change the plan for the group, or if that is not known.
    pub(crate) fn change_nodes(&self, group: &GroupRef, changed: usize) -> bool {
        let mut all = self.all();
        let Some(spare) = all.get_mut(group).and_then(|look| look.spare_nodes.as_mut()) else { return true };
        let are_scarce = *spare <= changed;
        *spare = spare.saturating_sub(changed);
        are_scarce
    }

    pub(crate) fn forget(&self, group: &GroupRef) {
        self.all().remove(group);
    }

    /// All groups of which something is remembered.
    pub(crate) fn groups(&self) -> Vec<GroupRef> {
        self.all().keys().cloned().collect()
    }
}

fn look_interval(group: &GroupRef) -> Duration {
    let mut hasher = DefaultHasher::new();
    group.hash(&mut hasher);
    let share = u32::try_from(hasher.finish() % 256).unwrap_or_default();
    LOOK_INTERVAL_MAX / 2 + LOOK_INTERVAL_MAX / 512 * share
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::group_ref;

    #[test]
    fn certificates_are_read_again_in_time_and_on_request() {
        let (last_looks, group, now) = (LastLooks::default(), group_ref("shop", "orders"), Instant::now());
        assert_eq!(last_looks.certificates(&group, 1, now), None);
        last_looks.keep_certificates(&group, 1, now, Certificates::default());
        let later = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(last_looks.certificates(&group, 1, later(299)), Some(Certificates::default()));
        assert_eq!(last_looks.certificates(&group, 1, later(600)), None, "they are old");
        assert_eq!(last_looks.certificates(&group, 2, later(1)), None, "the group is another one");
        last_looks.drop_certificates(&group);
        assert_eq!(last_looks.certificates(&group, 1, now), None);
    }

    #[test]
    fn looks_at_many_groups_are_spread() {
        let intervals: Vec<_> = (0..200).map(|n| look_interval(&group_ref("shop", &format!("g{n}")))).collect();
        assert!(intervals.iter().all(|wait| (LOOK_INTERVAL_MAX / 2..LOOK_INTERVAL_MAX).contains(wait)));
        let minutes: std::collections::BTreeSet<u64> = intervals.iter().map(|wait| wait.as_secs() / 60).collect();
        assert_eq!(minutes.len(), 5);
    }

    #[test]
    fn figures_are_written_once_a_minute() {
        let (last_looks, group, now) = (LastLooks::default(), group_ref("shop", "orders"), Instant::now());
        let wait = |news, seconds| {
            let wait = last_looks.wait(&group, news, now + Duration::from_secs(seconds));
            wait.map(|wait| wait.as_secs())
        };
        assert_eq!(wait(News::Figures, 0), Some(0));
        last_looks.status_written(&group, now);
        assert_eq!(wait(News::Figures, 20), Some(40));
        assert_eq!(wait(News::Figures, 60), Some(0));
        assert_eq!((wait(News::Texts, 0), wait(News::Facts, 0), wait(News::Nothing, 60)), (Some(0), Some(0), None));
        last_looks.forget(&group);
        assert_eq!(wait(News::Figures, 0), Some(0));
        assert!(last_looks.groups().is_empty());
    }
}
