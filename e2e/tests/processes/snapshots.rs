//! Apps that keep their state over a plain log: they write snapshots into it and trim it, while they and their sidecars are killed.

use std::thread::JoinHandle;

use anyhow::Result;
use tailwind_e2e::context::{TestContext, rounds};
use tailwind_e2e::processes::counters::{Counters, Known, Leader, start_app};
use tailwind_e2e::processes::group::Group;
use tailwind_e2e::processes::steps::{OUTAGE, UNACKNOWLEDGED, wait_for_standby};

mod shm {
    #[test]
    fn apps_with_snapshots_are_killed() {
        super::apps_with_snapshots_are_killed("shm");
    }

    #[test]
    fn a_position_at_a_standby_shows_every_append() {
        super::a_position_at_a_standby_shows_every_append("shm");
    }
}

mod tcp {
    #[test]
    fn apps_with_snapshots_are_killed() {
        super::apps_with_snapshots_are_killed("tcp");
    }

    #[test]
    fn a_position_at_a_standby_shows_every_append() {
        super::a_position_at_a_standby_shows_every_append("tcp");
    }
}

/// Waits until an app has its turn.
fn turn_of(group: &Group, app: JoinHandle<Result<Leader>>) -> Leader {
    group.wait("an app's turn", |_| app.is_finished()).unwrap();
    app.join().unwrap().unwrap_or_else(|error| panic!("{error:#}\n{}", group.last_lines(25)))
}

/// The app and its sidecar at once, or one of them. The next app has every acknowledged increment, by snapshots and by records.
fn apps_with_snapshots_are_killed(fabric: &str) {
    let mut test = TestContext::start();
    let mut group = test.start_group(test.setup_with_default_timeouts(fabric).unwrap()).unwrap();
    let start = |group: &Group, index| Some(start_app(group.observer().clone(), index));
    let mut apps = [start(&group, 0), start(&group, 1)];
    let mut known = Known::default();
    for _ in 0..rounds(8) {
        let primary = group.wait_for_primary().unwrap();
        let mut leader = turn_of(&group, apps[primary].take().unwrap());
        known.check(&leader).unwrap();
        for _ in 0..3 {
            leader.increment(&mut known, &mut test.random, 500, 500).unwrap();
        }
        let awaited = test.random.below(500);
        leader.increment(&mut known, &mut test.random, 500, awaited).unwrap();
        let kills = test.random.below(3);
        if kills != 0 {
            drop(leader);
        }
        if kills != 1 {
            group.kill_sidecar(primary).unwrap();
            group.start_sidecar(primary).unwrap();
        }
        apps[primary] = start(&group, primary);
    }
    let primary = group.wait_for_primary().unwrap();
    let mut leader = turn_of(&group, apps[primary].take().unwrap());
    known.check(&leader).unwrap();
    let last = leader.client().barrier().unwrap().last;
    let first = group.client(primary, true).unwrap().welcome().first;
    assert!(first.0 > last.0 / 2, "the log begins at record {first}, and ends at {last}");
    let standby = apps.into_iter().flatten().next().unwrap();
    assert!(!standby.is_finished(), "the app at the standby follows: {:?}", standby.join().unwrap().err());
    group.check_logs(&[&OUTAGE[..], &[UNACKNOWLEDGED]].concat()).unwrap();
}

/// Also right afterwards, and while the log is trimmed.
fn a_position_at_a_standby_shows_every_append(fabric: &str) {
    let mut test = TestContext::start();
    let mut group = test.group(fabric).unwrap();
    let primary = group.wait_for_primary().unwrap();
    let standby = 1 - primary;
    wait_for_standby(&group, standby, primary).unwrap();
    let mut leader = turn_of(&group, start_app(group.observer().clone(), primary));
    let (mut known, mut followed) = (Known::default(), Counters::default());
    let (mut asks, mut follows) = (group.client(standby, false).unwrap(), group.client(standby, false).unwrap());
    let times = rounds(12) * 100;
    for time in 1..=times {
        leader.increment(&mut known, &mut test.random, 1, 1).unwrap();
        let position = asks.position().unwrap();
        followed.follow(&mut follows, Some(position.last)).unwrap();
        assert_eq!(followed.sum(), Some(time), "at record {}", position.last);
    }
    let first = group.client(primary, true).unwrap().welcome().first;
    assert!(first.0 > 1, "nothing was trimmed");
    // The standby takes over with what it has, and lacks nothing.
    drop(leader);
    group.kill_sidecar(primary).unwrap();
    assert!(followed.follow(&mut follows, None).unwrap(), "its turn");
    assert_eq!(followed.sum(), Some(times));
    group.check_logs(&[&OUTAGE[..], &[UNACKNOWLEDGED]].concat()).unwrap();
}
