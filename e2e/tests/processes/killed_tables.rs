//! Tables while processes are killed: what was acknowledged is there after failovers, also for gets and copies in between,
//! conditions were judged rightly, and the log is within its memory at the end, though many times its size was written. Mirrors of
//! the index are live then.
//!
//! Several apps change keys all the while, their own and some that they share.

use std::sync::Arc;

use rustix::process::Signal;
use tailwind_e2e::context::{TestContext, note, repeats};
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::races::Races;
use tailwind_e2e::processes::steps::{OUTAGE, UNACKNOWLEDGED, wait_for_standby};
use tailwind_e2e::processes::table_app::{Content, TableApp, read_table};

use crate::mirrors::are_live;
use crate::tables::{MEMORY, number, told, with_table};

on_every_fabric!(primaries_are_killed, backups_are_killed, everything_is_killed);

/// Apps at once.
const APPS: u64 = 4;
/// Before the next fault, each app has so many requests acknowledged.
const REQUESTS: u64 = 150;

/// A group that keeps a table, and the apps that change it.
struct Fixture {
    group: Group,
    apps: Vec<TableApp>,
    races: Arc<Races>,
    // Dropped last: the test's turn ends then.
    test: TestContext,
}

impl Fixture {
    fn start(fabric: &str) -> Fixture {
        let mut test = TestContext::start();
        let mut setup = with_table(test.setup_with_default_timeouts(fabric).unwrap(), "1000");
        setup.backup_options.push(("--mirror", "8MiB".to_owned()));
        let group = test.start_group(setup).unwrap();
        let races = Arc::new(Races::default());
        let seed = test.random.next();
        let start = |number| TableApp::start(group.observer().clone(), number, seed, Arc::clone(&races));
        let apps = (0..APPS).map(start).collect();
        Fixture { group, apps, races, test }
    }

    /// Each app has so many more requests acknowledged.
    fn go_on(&mut self, requests: u64) {
        for app in &mut self.apps {
            app.wait_for(requests).unwrap_or_else(|error| panic!("{error:#}\n{}", self.group.last_lines(25)));
        }
    }

    /// The primary has cleaned something in this term, and is at it.
    fn wait_until_it_cleans(&mut self) {
        let cleaned = |group: &Group| {
            let primary = group.primary()?;
            group.metric::<u64>(Process::Sidecar(primary), "tailwind_table_cleaned_segments_total")
        };
        let before = self.group.wait_for("a primary", cleaned).unwrap();
        self.group
            .wait("the cleaner to trim a segment", |group| cleaned(group).is_some_and(|now| now > before))
            .unwrap();
    }

    fn kill_the_primary(&mut self) {
        let victim = self.group.wait_for_primary().unwrap();
        self.group.kill_sidecar(victim).unwrap();
        self.go_on(REQUESTS);
        self.group.start_sidecar(victim).unwrap();
        let primary = self.group.wait_for_primary().unwrap();
        assert_ne!(primary, victim);
        wait_for_standby(&self.group, victim, primary).unwrap();
    }

    fn kill_a_backup(&mut self) {
        let members = self.group.wait_for_full_set().unwrap();
        let victim = members[self.test.random.below(members.len() as u64) as usize];
        self.group.kill_backup(victim).unwrap();
        self.go_on(REQUESTS);
        self.group.start_backup(victim).unwrap();
    }

    /// Every key has what was acknowledged last, at every sidecar; nothing is there that should not be.
    fn end(mut self) {
        // So much that the log would be far beyond its memory without the cleaner.
        let written = |apps: &[TableApp]| apps.iter().map(TableApp::bytes).sum::<u64>();
        while written(&self.apps) <= 4 * MEMORY {
            self.go_on(REQUESTS);
        }
        let Fixture { group, apps, races, test: _test } = self;
        let bytes = written(&apps);
        let moved =
            |group: &Group| group.metric(Process::Sidecar(group.primary()?), "tailwind_table_moved_bytes_total");
        group.wait("the cleaner to move something", |group| moved(group).is_some_and(|bytes: u64| bytes > 0)).unwrap();
        let ends: Vec<_> = apps.into_iter().map(|app| app.finish().unwrap()).collect();
        let last = ends.iter().map(|end| end.last).max().unwrap();
        let (mismatches, missed): (u64, u64) =
            ends.iter().fold((0, 0), |sums, end| (sums.0 + end.mismatches, sums.1 + end.missed));
        let gets: u64 = ends.iter().map(|end| end.gets).sum();
        let content: Content = ends.into_iter().flat_map(|end| end.content).collect();
        let mut raced = 0;
        for index in 0..group.sidecars() {
            let read = read_table(group.observer(), index, last).unwrap();
            raced = races.check(|key| read.get(key).map(|(revision, _)| *revision)).unwrap();
            let (ours, theirs): (Vec<_>, Vec<_>) = read.into_iter().partition(|(key, _)| key.starts_with(b"app"));
            assert!(theirs.iter().all(|(key, _)| key.starts_with(b"raced/")), "{theirs:?}");
            for (key, found) in &ours {
                assert_eq!(content.get(key), Some(found), "key {} at sidecar{index}", key.escape_ascii());
            }
            assert_eq!(ours.len(), content.len(), "keys are missing at sidecar{index}");
        }
        assert!(mismatches > 0 && raced > 0 && gets > 0, "{mismatches} mismatches, {raced} races won, {gets} gets");
        let primary = group.wait_for_primary().unwrap();
        group
            .wait("the log to be within its memory", |group| {
                let table = told(group, primary);
                number(&table, "log_bytes") > 0 && number(&table, "log_bytes") <= MEMORY
            })
            .unwrap();
        group.wait("live mirrors at all members", are_live).unwrap();
        note(&format!(
            "tables: {} KiB written, {mismatches} mismatches, {raced} races won, {gets} gets, {missed} answers missed",
            bytes >> 10
        ));
        group.check_logs(&[&OUTAGE[..], &[UNACKNOWLEDGED]].concat()).unwrap();
    }
}

/// Also in the middle of cleaning.
fn primaries_are_killed(fabric: &str) {
    let mut fixture = Fixture::start(fabric);
    for round in 0..repeats(8) {
        fixture.go_on(REQUESTS);
        if round % 2 == 1 {
            fixture.wait_until_it_cleans();
        }
        fixture.kill_the_primary();
    }
    fixture.go_on(REQUESTS);
    fixture.end();
}

fn backups_are_killed(fabric: &str) {
    let mut fixture = Fixture::start(fabric);
    for _ in 0..repeats(8) {
        fixture.go_on(REQUESTS);
        fixture.kill_a_backup();
    }
    fixture.go_on(REQUESTS);
    fixture.end();
}

fn everything_is_killed(fabric: &str) {
    let mut fixture = Fixture::start(fabric);
    for round in 0..repeats(6) {
        fixture.go_on(2 * REQUESTS);
        match round % 3 {
            0 => {
                fixture.group.kill_all().unwrap();
                fixture.group.start_all().unwrap();
            }
            1 => {
                let old = Process::Sidecar(fixture.group.wait_for_primary().unwrap());
                fixture.group.freeze(old).unwrap();
                fixture
                    .group
                    .wait("another primary", |group| group.primary().is_some_and(|now| Process::Sidecar(now) != old))
                    .unwrap();
                fixture.group.signal(old, Signal::CONT).unwrap();
            }
            _ => fixture.kill_a_backup(),
        }
    }
    fixture.go_on(REQUESTS);
    fixture.end();
}
