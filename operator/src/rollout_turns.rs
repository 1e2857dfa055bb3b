//! Which groups are being updated, of all that the operator manages: at most `--max-concurrent-rollouts` at a time.
//!
//! Asked by [`controller`](crate::controller) for each group with outdated backups. Whether a group has begun stands in its
//! status; this is the sum over all groups. Each new leader learns it by looking at every group once. A group that it has not
//! seen yet may have begun, and counts so; where a look fails, its status decides. One that gets nowhere gives its place back,
//! lest a few of them stop all others. If what it waited for happens after all, it takes a place, even if that is one too many:
//! then no other group begins until there are fewer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cache::group_ref;
use crate::plan::Rollout;
use crate::wake::Wakes;

/// A group: its namespace and its name.
pub(crate) type Key = (String, String);

/// How far each group is.
#[derive(Debug)]
pub(crate) struct RolloutTurns {
    max: usize,
    groups: Mutex<BTreeMap<Key, Rollout>>,
    /// Groups to look at again, since it is their turn.
    wakes: Arc<Wakes>,
}

impl RolloutTurns {
    /// Nothing is known about any group. Groups whose turn it is are added to `wakes`.
    pub(crate) fn new(max: u16, wakes: Arc<Wakes>) -> RolloutTurns {
        RolloutTurns { max: usize::from(max), groups: Mutex::default(), wakes }
    }

    fn groups(&self) -> MutexGuard<'_, BTreeMap<Key, Rollout>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a group that waits may begin: it counts as begun from now on. `all` are the groups that there are, if that is
    /// known. Of several that wait those begin first whose names come first.
    pub(crate) fn claim(&self, key: &Key, all: impl Fn() -> Option<BTreeSet<Key>>) -> bool {
        let mut groups = self.groups();
        if groups.get(key).is_some_and(|known| known.takes_place()) {
            return true;
        }
        let before = groups.insert(key.clone(), Rollout::Queued);
        let allowed = next(&mut groups, &all, self.max).contains(key);
        if allowed {
            groups.insert(key.clone(), Rollout::Begins);
        } else if before.is_none() {
            // As long as its state was unknown, the group kept others waiting.
            self.wake_next(&mut groups, all);
        }
        allowed
    }

    /// Records what was planned for a group. If its update has ended, the next group is woken.
    pub(crate) fn saw(&self, key: &Key, now: Rollout, all: impl Fn() -> Option<BTreeSet<Key>>) {
        let mut groups = self.groups();
        let before = groups.insert(key.clone(), now);
        // One that was not known has kept others waiting, too.
        if !now.takes_place() && before.is_none_or(Rollout::takes_place) {
            self.wake_next(&mut groups, all);
        }
    }

    /// A group could not be reconciled: it does not keep those waiting that come after it. If it has begun, it still has; where
    /// nothing was planned for it yet, its status tells whether it is `updating`.
    pub(crate) fn pass_over(&self, key: &Key, updating: bool, all: impl Fn() -> Option<BTreeSet<Key>>) {
        let mut groups = self.groups();
        let passed = match groups.get(key) {
            Some(Rollout::Queued) => Rollout::Idle,
            None if updating => Rollout::Underway,
            None => Rollout::Idle,
            Some(_) => return,
        };
        groups.insert(key.clone(), passed);
        self.wake_next(&mut groups, all);
    }

    /// A group is gone.
    pub(crate) fn forget(&self, key: &Key, all: impl Fn() -> Option<BTreeSet<Key>>) {
        let mut groups = self.groups();
        if groups.remove(key).is_some_and(Rollout::takes_place) {
            self.wake_next(&mut groups, all);
        }
    }

    /// How many have begun, and how many wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let groups = self.groups();
        let count = |which: fn(&Rollout) -> bool| groups.values().filter(|rollout| which(rollout)).count();
        (count(|rollout| rollout.takes_place()), count(|rollout| *rollout == Rollout::Queued))
    }

    fn wake_next(&self, groups: &mut BTreeMap<Key, Rollout>, all: impl Fn() -> Option<BTreeSet<Key>>) {
        let next = next(groups, all, self.max);
        self.wakes.add(next.iter().map(|(namespace, name)| group_ref(namespace, name)));
    }
}

/// Those that may begin now. Groups that are gone are forgotten: nothing else tells of it.
fn next(groups: &mut BTreeMap<Key, Rollout>, all: impl Fn() -> Option<BTreeSet<Key>>, max: usize) -> Vec<Key> {
    if !groups.values().any(|rollout| *rollout == Rollout::Queued) {
        return Vec::new();
    }
    let Some(all) = all() else { return Vec::new() };
    groups.retain(|key, _| all.contains(key));
    let begun = groups.values().filter(|rollout| rollout.takes_place()).count();
    let queued = groups.iter().filter(|(_, rollout)| **rollout == Rollout::Queued);
    let unknown = all.iter().filter(|key| !groups.contains_key(*key)).count();
    queued.map(|(key, _)| key.clone()).take(max.saturating_sub(begun + unknown)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("shop".to_owned(), name.to_owned())
    }

    fn all(names: &'static [&str]) -> impl Fn() -> Option<BTreeSet<Key>> + Copy {
        move || Some(names.iter().map(|name| key(name)).collect())
    }

    fn turns(max: u16) -> RolloutTurns {
        RolloutTurns::new(max, Arc::default())
    }

    fn woken(turns: &RolloutTurns) -> Vec<String> {
        let names: BTreeSet<String> = turns.wakes.take().into_iter().map(|group| group.name).collect();
        names.into_iter().collect()
    }

    /// As after each start of an operator: whichever group is looked at last, the first one is woken.
    #[test]
    fn the_last_group_that_becomes_known_wakes_the_first() {
        let turns = turns(1);
        let all = all(&["a", "b", "c"]);
        for name in ["b", "a", "c"] {
            assert!(!turns.claim(&key(name), all), "{name}");
            turns.saw(&key(name), Rollout::Queued, all);
        }
        assert_eq!(woken(&turns), ["a"]);
        assert!(turns.claim(&key("a"), all));
    }

    #[test]
    fn the_first_by_name_begin_and_the_others_follow() {
        let turns = turns(2);
        let all = all(&["a", "b", "c", "d"]);
        for name in ["d", "c", "b", "a"] {
            turns.saw(&key(name), Rollout::Queued, all);
        }
        woken(&turns);
        assert!(!turns.claim(&key("c"), all));
        assert!(turns.claim(&key("b"), all));
        assert!(turns.claim(&key("b"), all), "its status was not written: it asks again");
        assert!(turns.claim(&key("a"), all));
        assert!(!turns.claim(&key("c"), all));
        assert_eq!(turns.counts(), (2, 2));
        turns.saw(&key("b"), Rollout::Underway, all);
        assert_eq!(woken(&turns), Vec::<String>::new());
        turns.saw(&key("b"), Rollout::Idle, all);
        assert_eq!(woken(&turns), ["c"]);
        assert!(turns.claim(&key("c"), all) && !turns.claim(&key("d"), all));
        let without =
            |name: &'static str| move || all().map(|all| all.into_iter().filter(|(_, n)| n != name).collect());
        assert!(turns.claim(&key("d"), without("a")), "one that had begun was deleted");
    }

    #[test]
    fn a_group_that_is_woken_again_waits_once() {
        let turns = turns(1);
        let all = all(&["a", "b"]);
        turns.saw(&key("b"), Rollout::Queued, all);
        for _ in 0..1000 {
            turns.saw(&key("a"), Rollout::Underway, all);
            turns.saw(&key("a"), Rollout::Idle, all);
        }
        assert_eq!(turns.wakes.take().len(), 1);
    }

    #[test]
    fn a_group_that_fails_keeps_nobody_waiting() {
        let turns = turns(1);
        let all = all(&["a", "b"]);
        turns.saw(&key("a"), Rollout::Queued, all);
        turns.saw(&key("b"), Rollout::Queued, all);
        woken(&turns);
        turns.pass_over(&key("a"), false, all);
        assert_eq!(woken(&turns), ["b"]);
        assert!(turns.claim(&key("b"), all));
        turns.pass_over(&key("b"), false, all);
        assert!(!turns.claim(&key("a"), all), "the other has begun, whatever fails");
    }

    /// As after a change of leader, if a group cannot be observed.
    #[test]
    fn an_unknown_group_that_fails_counts_as_its_status_says() {
        for updating in [false, true] {
            let turns = turns(1);
            let all = all(&["a", "b"]);
            turns.saw(&key("b"), Rollout::Queued, all);
            turns.pass_over(&key("a"), updating, all);
            assert_eq!(woken(&turns), if updating { vec![] } else { vec!["b"] });
            assert_eq!(turns.claim(&key("b"), all), !updating);
        }
    }

    #[test]
    fn nothing_begins_before_the_groups_are_listed() {
        let turns = turns(2);
        assert!(!turns.claim(&key("a"), || None));
    }

    #[test]
    fn a_new_leader_begins_nothing_before_it_has_looked() {
        let turns = turns(2);
        let all = all(&["a", "b", "c", "d"]);
        assert!(!turns.claim(&key("a"), all), "three others may have begun");
        turns.saw(&key("d"), Rollout::Underway, all);
        assert!(!turns.claim(&key("a"), all));
        turns.saw(&key("c"), Rollout::Idle, all);
        turns.saw(&key("b"), Rollout::Idle, all);
        assert_eq!(woken(&turns), ["a"]);
        assert!(turns.claim(&key("a"), all));
    }

    #[test]
    fn a_stalled_group_gives_its_place_back() {
        let turns = turns(1);
        let all = all(&["a", "b", "c"]);
        turns.saw(&key("a"), Rollout::Underway, all);
        turns.saw(&key("b"), Rollout::Queued, all);
        turns.saw(&key("c"), Rollout::Queued, all);
        assert!(!turns.claim(&key("b"), all));
        woken(&turns);
        turns.saw(&key("a"), Rollout::Stalled, all);
        assert_eq!(woken(&turns), ["b"]);
        assert!(turns.claim(&key("b"), all));
        turns.saw(&key("a"), Rollout::Underway, all);
        turns.saw(&key("b"), Rollout::Idle, all);
        assert!(!turns.claim(&key("c"), all), "it goes on, and has its place again");
        turns.saw(&key("a"), Rollout::Stalled, all);
        assert!(turns.claim(&key("c"), all));
    }

    /// What has begun under a larger limit comes to its end.
    #[test]
    fn a_smaller_limit_stops_nobody() {
        let turns = turns(1);
        let all = all(&["a", "b", "c"]);
        turns.saw(&key("b"), Rollout::Underway, all);
        turns.saw(&key("c"), Rollout::Underway, all);
        assert!(!turns.claim(&key("a"), all));
        turns.saw(&key("c"), Rollout::Idle, all);
        assert!(!turns.claim(&key("a"), all));
        turns.saw(&key("b"), Rollout::Idle, all);
        assert!(turns.claim(&key("a"), all));
    }
}
