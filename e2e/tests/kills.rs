//! Processes that die, freeze and come back at any moment: whatever was acknowledged is in the log, once and in order.
//!
//! An app appends while processes are killed under it; then the log is read back from its members and compared. Segments
//! are of 64 KiB, so that kills meet roll-overs, closes and re-replication by chance, over and over.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use rustix::process::Signal;
use tailwind_client::blocking::Client;
use tailwind_client::{Error, Lsn};
use tailwind_e2e::background::Background;
use tailwind_e2e::checker::compare;
use tailwind_e2e::group::{Group, Who};
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::scene::Scene;
use tailwind_e2e::steps::{OUTAGE, append, check_logs, check_whole, read_back, submit, wait_for_standby};
use tailwind_e2e::workload::{Chapters, Numbered, Random};

on_every_fabric!(
    the_primary_is_killed,
    a_backup_is_killed,
    two_of_three_backups_are_killed,
    two_of_three_backups_are_emptied,
    a_new_group_stays_with_its_first_primary,
    everything_is_killed_at_once,
    a_frozen_primary_wakes_up_as_a_zombie,
    a_backup_hangs,
    anything_happens,
    the_checker_would_notice,
);

/// Appends in flight at most: enough for a roll-over to catch some of them.
const WINDOW: u64 = 64;
/// Longest record: some 400 records fill a segment.
const LENGTH_MAX: u64 = 200;
/// A group and an app that appends to it.
struct Story {
    group: Group,
    app: Background,
    input: Numbered,
    /// Records before this one have been compared.
    compared: u64,
}

impl Story {
    fn begin(scene: &Scene, group: Group) -> Story {
        let input = Numbered { seed: scene.seed(), length_max: LENGTH_MAX };
        let app = Background::start(group.view().clone(), input, WINDOW);
        let mut story = Story { group, app, input, compared: 1 };
        let mark = story.app.go_on(100);
        story.app.wait_for(mark).unwrap();
        story
    }

    /// Sets the app to work and returns at a random moment of it; the mark that it is working towards.
    fn go_on(&mut self, random: &mut Random) -> u64 {
        let before = self.app.acked();
        let mark = self.app.go_on(1000 + random.below(1000));
        self.app.wait_for(before + random.below(1000)).unwrap();
        mark
    }

    /// The app reaches the mark, and everything since the last time is in the log.
    fn check(&mut self, mark: u64) {
        self.app.wait_for(mark).unwrap();
        let result = read_back(&self.group, &self.input, self.compared, mark).unwrap();
        assert!(result.is_clean(), "records {} to {mark}: {result:?}", self.compared);
        self.compared = mark;
    }

    /// Everything that was ever appended is in the log, and nobody has logged what they should not.
    fn end(self) {
        let acked = self.app.finish().unwrap().acked;
        check_whole(&self.group, &self.input, acked).unwrap();
        check_logs(&self.group, &OUTAGE).unwrap();
    }

    /// Members of the set, in random order.
    fn members(&self, random: &mut Random) -> Vec<usize> {
        let mut members = self.group.wait_for_full_set().unwrap();
        for at in (1..members.len()).rev() {
            members.swap(at, random.below(at as u64 + 1) as usize);
        }
        members
    }
}

fn restless(scene: &Scene, fabric: &str) -> Group {
    scene.start(scene.restless_setup(fabric).unwrap()).unwrap()
}

fn the_primary_is_killed(fabric: &str) {
    let mut scene = Scene::begin();
    let mut story = Story::begin(&scene, restless(&scene, fabric));
    for _ in 0..scene.rounds(20) {
        let mark = story.go_on(&mut scene.random);
        let victim = story.group.wait_for_primary().unwrap();
        story.group.kill_sidecar(victim).unwrap();
        story.check(mark);
        story.group.start_sidecar(victim).unwrap();
        story.group.wait("the killed one to be a standby", |group| group.role(victim) == "standby").unwrap();
    }
    story.end();
}

fn a_backup_is_killed(fabric: &str) {
    let mut scene = Scene::begin();
    let mut story = Story::begin(&scene, restless(&scene, fabric));
    for _ in 0..scene.rounds(20) {
        let members = story.members(&mut scene.random);
        let mark = story.go_on(&mut scene.random);
        story.group.kill_backup(members[0]).unwrap();
        story.check(mark);
        story.group.start_backup(members[0]).unwrap();
    }
    story.end();
}

fn two_of_three_backups_are_killed(fabric: &str) {
    let mut scene = Scene::begin();
    let mut setup = scene.restless_setup(fabric).unwrap();
    setup.backups = 3;
    let mut story = Story::begin(&scene, scene.start(setup).unwrap());
    for _ in 0..scene.rounds(12) {
        let members = story.members(&mut scene.random);
        let mark = story.go_on(&mut scene.random);
        for victim in &members[..2] {
            story.group.kill_backup(*victim).unwrap();
        }
        for victim in &members[..2] {
            story.group.start_backup(*victim).unwrap();
        }
        story.check(mark);
    }
    story.end();
}

/// No promotion could find two members with their memory again. The primary that lives fills them from the third.
fn two_of_three_backups_are_emptied(fabric: &str) {
    let mut scene = Scene::begin();
    let mut setup = scene.setup(fabric).unwrap();
    setup.backups = 3;
    let mut story = Story::begin(&scene, scene.start(setup).unwrap());
    let primary = story.group.wait_for_primary().unwrap();
    for _ in 0..scene.rounds(5) {
        let members = story.members(&mut scene.random);
        let mark = story.go_on(&mut scene.random);
        for victim in &members[..2] {
            story.group.kill_backup(*victim).unwrap();
        }
        for victim in &members[..2] {
            story.group.replace_backup(*victim).unwrap();
        }
        story.check(mark);
        assert_eq!(story.group.status(primary)["epoch"], 1, "the primary goes on");
    }
    story.end();
}

/// Both sidecars of a new group start at the same moment. One of them makes it, and the other leaves it alone.
fn a_new_group_stays_with_its_first_primary(fabric: &str) {
    let scene = Scene::begin();
    for _ in 0..scene.rounds(5) {
        let mut group = Group::prepare(scene.setup(fabric).unwrap()).unwrap();
        for index in 0..group.backups() {
            group.start_backup(index).unwrap();
        }
        for index in 0..group.sidecars() {
            group.start_sidecar(index).unwrap();
        }
        let primary = group.wait_for_primary().unwrap();
        wait_for_standby(&group, 1 - primary, primary).unwrap();
        assert_eq!(group.status(primary)["epoch"], 1, "nobody was deposed");
        check_logs(&group, &OUTAGE).unwrap();
    }
}

fn everything_is_killed_at_once(fabric: &str) {
    let mut scene = Scene::begin();
    let mut story = Story::begin(&scene, restless(&scene, fabric));
    for _ in 0..scene.rounds(12) {
        let mark = story.go_on(&mut scene.random);
        story.group.kill_all().unwrap();
        story.group.start_all().unwrap();
        story.check(mark);
    }
    story.end();
}

fn a_backup_hangs(fabric: &str) {
    let mut scene = Scene::begin();
    let mut story = Story::begin(&scene, restless(&scene, fabric));
    for _ in 0..scene.rounds(8) {
        let members = story.members(&mut scene.random);
        let mark = story.go_on(&mut scene.random);
        let hanging = Who::Backup(members[0]);
        story.group.freeze(hanging).unwrap();
        story.check(mark);
        let mark = story.go_on(&mut scene.random);
        story.group.signal(hanging, Signal::CONT).unwrap();
        story.check(mark);
    }
    story.end();
}

/// The app on the old primary keeps its connection, with appends in flight, through freeze and wake-up; another app takes
/// over on the new primary. What that one has read as absent must never appear, and nothing more may be acknowledged.
fn a_frozen_primary_wakes_up_as_a_zombie(fabric: &str) {
    let mut scene = Scene::begin();
    let group = restless(&scene, fabric);
    let mut chapters = Chapters::default();
    let mut end = 0;
    for _ in 0..scene.rounds(12) {
        let old = group.wait_for_primary().unwrap();
        let new = 1 - old;
        let input = |random: &mut Random| Numbered { seed: random.next(), length_max: LENGTH_MAX };
        let first = input(&mut scene.random);
        chapters.begin(end + 1, first);
        let mut zombie = group.client(old, true).unwrap();
        let known = append(&mut zombie, &first, end, 500).unwrap();
        let submitted = submit(&mut zombie, &first, known, 1 + scene.random.below(2000)).unwrap();
        for _ in 0..scene.random.below(8) {
            std::thread::yield_now();
        }
        group.freeze(Who::Sidecar(old)).unwrap();

        group.wait("the standby to take over", |group| group.role(new) == "primary").unwrap();
        let mut client = group.client(new, true).unwrap();
        let found = end_of_log(&mut client, known);
        assert!(found <= submitted, "{found} records are in the log, {submitted} were submitted");
        let second = input(&mut scene.random);
        chapters.begin(found + 1, second);
        end = append(&mut client, &second, found, 500).unwrap();

        group.signal(Who::Sidecar(old), Signal::CONT).unwrap();
        // Beyond what was in its pipe already.
        let ghost = input(&mut scene.random);
        submit(&mut zombie, &ghost, submitted, 500).unwrap();
        let barrier = group.client(old, false).map(|mut client| client.barrier());
        assert!(!matches!(barrier, Ok(Ok(_))), "a barrier passed at a zombie: {barrier:?}");
        let last = last_ack(&mut zombie);
        assert!(last <= found, "the zombie acknowledged record {last}, the log was taken over after {found}");

        end = append(&mut client, &second, end, 500).unwrap();
        let result = compare(&mut client, &chapters, end, |_| {}).unwrap();
        assert!(result.is_clean(), "{result:?}");
        wait_for_standby(&group, old, new).unwrap();
        group.wait_for_full_set().unwrap();
    }
    check_logs(&group, &OUTAGE).unwrap();
}

/// Reads from a known record to the end of the log; the last LSN.
fn end_of_log(client: &mut Client, known: u64) -> u64 {
    client.read(Lsn(known + 1), 0).unwrap().map(|record| record.unwrap().0.0).last().unwrap_or(known)
}

/// Waits until every append has its answer or the connection has ended; the last LSN that was acknowledged.
fn last_ack(client: &mut Client) -> u64 {
    let mut last = 0;
    loop {
        match client.next_ack() {
            Ok(Some(ack)) => match ack.outcome {
                Ok(lsn) => last = lsn.0,
                Err(Error::UnknownOutcome { .. } | Error::NotPrimary { .. }) => {}
                Err(error) => panic!("the zombie answered: {error}"),
            },
            Ok(None) | Err(Error::Disconnected { .. }) => return last,
            Err(error) => panic!("the zombie answered: {error}"),
        }
    }
}

/// What can happen to a process, and how it is undone.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Kill(Who),
    Freeze(Who),
}

impl Blow {
    fn strike(self, group: &mut Group) {
        match self {
            Blow::Kill(who) => group.kill(who).unwrap(),
            Blow::Freeze(who) => group.freeze(who).unwrap(),
        }
    }

    fn undo(self, group: &mut Group) {
        match self {
            Blow::Kill(who) => group.start_one(who).unwrap(),
            Blow::Freeze(who) => group.signal(who, Signal::CONT).unwrap(),
        }
    }
}

/// Any processes, in any combination, in any order, healed in any order while the app goes on.
fn anything_happens(fabric: &str) {
    let mut scene = Scene::begin();
    let mut story = Story::begin(&scene, restless(&scene, fabric));
    for _ in 0..scene.rounds(24) {
        let mark = story.go_on(&mut scene.random);
        let everyone = (0..story.group.sidecars()).map(Who::Sidecar).chain((0..story.group.backups()).map(Who::Backup));
        let mut everyone: Vec<Who> = everyone.collect();
        let mut blows = Vec::new();
        for _ in 0..1 + scene.random.below(3) {
            let who = everyone.swap_remove(scene.random.below(everyone.len() as u64) as usize);
            let blow = if scene.random.below(3) == 0 { Blow::Freeze(who) } else { Blow::Kill(who) };
            blow.strike(&mut story.group);
            blows.push(blow);
            for _ in 0..scene.random.below(200) {
                std::thread::yield_now();
            }
        }
        while !blows.is_empty() {
            blows.swap_remove(scene.random.below(blows.len() as u64) as usize).undo(&mut story.group);
        }
        story.check(mark);
    }
    story.end();
}

/// A checker that never complains would pass every test above.
fn the_checker_would_notice(fabric: &str) {
    let scene = Scene::begin();
    let story = Story::begin(&scene, restless(&scene, fabric));
    let acked = story.app.acked();
    let of = |input: Numbered, acked| read_back(&story.group, &input, 1, acked).unwrap();
    assert!(of(story.input, acked).is_clean());
    assert_eq!(of(story.input, acked + 1).lost, 1, "a record more was promised");
    assert_eq!(of(story.input, acked - 1).duplicated, 1, "a record less was submitted");
    let other = Numbered { seed: scene.seed() + 1, ..story.input };
    assert!(of(other, acked).lost > acked / 2, "something else was submitted");
    story.end();
}
