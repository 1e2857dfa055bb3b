//! Processes that die, freeze and come back at any moment: everything that was acknowledged is in the log, once and in order.
//!
//! An app appends while processes are killed under it; then the log is read back from its members and compared. Segments
//! are of 64 KiB, so that kills coincide with roll-overs, closes and re-replication by chance, over and over. Beside every
//! sidecar a standby app follows all the while: it is shown what is in the log, and nothing else.

use std::cell::Cell;
use std::fs;

use rustix::process::Signal;
use tailwind_client::blocking::Client;
use tailwind_client::{Error, Lsn};
use tailwind_e2e::context::{TestContext, repeats};
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::background::Background;
use tailwind_e2e::processes::checker::compare;
use tailwind_e2e::processes::following::Following;
use tailwind_e2e::processes::group::{Group, Process, Setup};
use tailwind_e2e::processes::http;
use tailwind_e2e::processes::steps::{
    OUTAGE, UNACKNOWLEDGED, append, check_whole, primary, read_back, submit, wait_for_standby,
};
use tailwind_e2e::workload::{InputSequence, Numbered};

on_every_fabric!(
    primary_is_killed,
    backup_is_killed,
    two_of_three_backups_are_killed,
    two_of_three_backups_lose_their_data,
    replaced_backup_joins_under_load,
    new_group_keeps_its_first_primary,
    all_processes_are_killed_at_once,
    resumed_old_primary_cannot_acknowledge,
    backup_hangs,
    random_faults,
    checker_detects_differences,
);

/// That a primary leads is a sign of life, before its first heartbeat.
#[test]
fn standby_that_has_just_started_misses_a_dead_primary() {
    let test = TestContext::start();
    let mut setup = test.setup("tcp").unwrap();
    let times = [("--heartbeat-interval-ms", "10000"), ("--heartbeat-silence-ms", "600000")];
    setup.sidecar_options.extend(times.map(|(option, ms)| (option, ms.to_owned())));
    let mut group = test.start_group(setup).unwrap();
    let old = group.wait_for_primary().unwrap();
    let standby = 1 - old;
    group.kill_sidecar(standby).unwrap();
    group.start_sidecar(standby).unwrap();
    group.wait("the primary to be heard", |group| !group.status(standby)["primary"]["heard_ms_ago"].is_null()).unwrap();
    group.kill_sidecar(old).unwrap();
    group.wait("the standby to lead", |group| group.observer().role(standby) == "primary").unwrap();
}

/// Over `shm` the primary writes to the buffers' files itself, and the kernel ends it at one that was cut. It says so, and its
/// successor has everything.
#[test]
fn primary_whose_buffer_is_cut_says_so() {
    let test = TestContext::start();
    let (mut group, input) = (test.group("shm").unwrap(), test.input());
    let old = group.wait_for_primary().unwrap();
    let mut client = group.client(old, true).unwrap();
    let victim = group.wait_for_full_set().unwrap()[0];
    // From here on the primary has mapped what the member lends.
    let end = append(&mut client, &input, 0, 100).unwrap();
    for entry in fs::read_dir(group.pool(victim)).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("slot-") {
            fs::File::options().write(true).open(entry.path()).unwrap().set_len(0).unwrap();
        }
    }
    assert!(append(&mut client, &input, end, 1).is_err(), "a member does not have it");
    assert_eq!(group.wait_for_end(Process::Sidecar(old)).unwrap(), None, "it is ended by a signal");
    let log = group.log(&format!("sidecar{old}"));
    assert!(log.contains("SIGBUS: a mapped file was cut while it was in use") && log.contains("--pool"), "{log}");
    let mut successor = primary(&group).unwrap();
    let last = successor.barrier().unwrap().last.0;
    assert!((end..=end + 1).contains(&last), "{last}");
    let end = append(&mut successor, &input, last, 100).unwrap();
    check_whole(&group, &input, end).unwrap();
}

/// Appends in flight at most: enough for a roll-over to catch some of them.
const WINDOW: u64 = 64;

/// Records that an app appends before its mark is moved on, if it is to append without a pause.
const LOAD: u64 = 5_000;

/// A group, an app that appends to it, and one beside each sidecar that follows.
struct Fixture {
    group: Group,
    app: Background,
    followers: Vec<Following>,
    input: Numbered,
    /// Records before this one have been compared.
    compared: u64,
    // Dropped last: the test's turn ends then.
    test: TestContext,
}

impl Fixture {
    /// A group with the default time-outs.
    fn start(fabric: &str) -> Fixture {
        let test = TestContext::start();
        let setup = test.setup_with_default_timeouts(fabric).unwrap();
        Fixture::start_with(test, setup)
    }

    fn start_with(test: TestContext, setup: Setup) -> Fixture {
        let group = test.start_group(setup).unwrap();
        let input = test.input();
        let app = Background::start(group.observer().clone(), input, WINDOW);
        let follower = |index| Following::start(group.observer().clone(), index, input);
        let followers = (0..group.sidecars()).map(follower).collect();
        let mut fixture = Fixture { group, app, followers, input, compared: 1, test };
        let mark = fixture.app.go_on(100);
        fixture.app.wait_for(mark).unwrap();
        fixture
    }

    /// Lets the app append, and returns at a random moment; the mark that it appends up to.
    fn go_on(&mut self) -> u64 {
        let before = self.app.acked();
        let mark = self.app.go_on(1000 + self.test.random.below(1000));
        self.app.wait_for(before + self.test.random.below(1000)).unwrap();
        mark
    }

    /// Again and again: lets the app append, injects a fault, and checks the log once the app has reached its mark.
    fn repeat(mut self, times: u64, mut fault: impl FnMut(&mut Fixture)) {
        for _ in 0..repeats(times) {
            let mark = self.go_on();
            fault(&mut self);
            self.check(mark);
        }
        self.end();
    }

    /// The app reaches the mark, and everything since the last time is in the log.
    fn check(&mut self, mark: u64) {
        self.app.wait_for(mark).unwrap();
        let result = read_back(&self.group, &self.input, self.compared, mark).unwrap();
        assert!(result.is_clean(), "records {} to {mark}: {result:?}", self.compared);
        self.compared = mark;
    }

    /// Everything that was ever appended is in the log, the followers have been shown all of it, and no process has logged
    /// anything unexpected.
    fn end(self) {
        let acked = self.app.finish().unwrap().acked;
        check_whole(&self.group, &self.input, acked).unwrap();
        for mut follower in self.followers {
            follower.wait_for(acked).unwrap_or_else(|error| panic!("{error:#}\n{}", self.group.last_lines(25)));
            assert_eq!(follower.finish().unwrap().last, acked);
        }
        self.group.check_logs(&OUTAGE).unwrap();
    }

    /// Members of the set, in random order.
    fn members(&mut self) -> Vec<usize> {
        let mut members = self.group.wait_for_full_set().unwrap();
        for at in (1..members.len()).rev() {
            members.swap(at, self.test.random.below(at as u64 + 1) as usize);
        }
        members
    }

    /// Again and again: kills two members at once, then starts each again by `restart`.
    fn kill_two(&mut self, times: u64, restart: fn(&mut Group, usize)) {
        for _ in 0..repeats(times) {
            let members = self.members();
            let mark = self.go_on();
            members[..2].iter().for_each(|victim| self.group.kill_backup(*victim).unwrap());
            members[..2].iter().for_each(|victim| restart(&mut self.group, *victim));
            self.check(mark);
        }
    }
}

fn primary_is_killed(fabric: &str) {
    let mut fixture = Fixture::start(fabric);
    for _ in 0..repeats(20) {
        let mark = fixture.go_on();
        let victim = fixture.group.wait_for_primary().unwrap();
        fixture.group.kill_sidecar(victim).unwrap();
        fixture.check(mark);
        fixture.group.start_sidecar(victim).unwrap();
        fixture.group.wait("the killed one to be a standby", |group| group.role(victim) == "standby").unwrap();
    }
    fixture.end();
}

fn backup_is_killed(fabric: &str) {
    let mut fixture = Fixture::start(fabric);
    for _ in 0..repeats(20) {
        let victim = fixture.members()[0];
        let mark = fixture.go_on();
        fixture.group.kill_backup(victim).unwrap();
        fixture.check(mark);
        fixture.group.start_backup(victim).unwrap();
    }
    fixture.end();
}

fn two_of_three_backups_are_killed(fabric: &str) {
    let test = TestContext::start();
    let setup = test.setup_with_default_timeouts(fabric).unwrap();
    let mut fixture = Fixture::start_with(test, Setup { backups: 3, ..setup });
    fixture.kill_two(12, |group, victim| group.start_backup(victim).unwrap());
    fixture.end();
}

/// No promotion could find two members with their memory again. The primary that lives fills them from the third.
fn two_of_three_backups_lose_their_data(fabric: &str) {
    let test = TestContext::start();
    let setup = test.setup(fabric).unwrap();
    let mut fixture = Fixture::start_with(test, Setup { backups: 3, ..setup });
    let primary = fixture.group.wait_for_primary().unwrap();
    fixture.kill_two(5, |group, victim| group.replace_backup(victim).unwrap());
    assert_eq!(fixture.group.status(primary)["epoch"], 1, "the primary continues");
    fixture.end();
}

/// The app never stops appending, and an empty backup takes a member's place all the same.
#[expect(clippy::print_stdout, reason = "how long appends have paused is what a reader of the test wants to see")]
fn replaced_backup_joins_under_load(fabric: &str) {
    let test = TestContext::start();
    let setup = test.setup(fabric).unwrap();
    let mut fixture = Fixture::start_with(test, Setup { backups: 3, segment_size: "1MiB".to_owned(), ..setup });
    let primary = fixture.group.wait_for_primary().unwrap();
    let version = |group: &Group| group.status(primary)["set_version"].as_u64();
    let mark = Cell::new(fixture.app.go_on(LOAD));
    for _ in 0..repeats(2) {
        let victim = fixture.members()[0];
        let before = version(&fixture.group).unwrap();
        fixture.group.replace_backup(victim).unwrap();
        let app = &fixture.app;
        let load = |group: &Group| {
            // The app is never close to its mark, so it never pauses.
            if mark.get() < app.acked() + LOAD / 2 {
                mark.set(app.go_on(LOAD));
            }
            // The member that died left the set, and the empty one joined it.
            version(group) >= Some(before + 2) && group.members().len() == 3
        };
        fixture.group.wait("the empty backup to be a member, under load", load).unwrap();
    }
    let page = http::get(fixture.group.port(Process::Sidecar(primary)), "/metrics").unwrap().body;
    let page = String::from_utf8(page).unwrap();
    let pauses: Vec<&str> = page.lines().filter(|line| line.starts_with("tailwind_join_pause_seconds")).collect();
    assert!(pauses.iter().any(|line| line.contains("_count{")), "{page}");
    let whole = pauses.iter().filter(|line| !line.contains("_bucket{")).copied().collect::<Vec<_>>();
    println!("{fabric}: pauses of appends for newcomers\n{}", whole.join("\n"));
    fixture.check(mark.get());
    fixture.end();
}

/// Both sidecars of a new group start at the same moment. One of them creates it, and the other does not depose it.
fn new_group_keeps_its_first_primary(fabric: &str) {
    let test = TestContext::start();
    for _ in 0..repeats(5) {
        let mut group = Group::prepare(test.setup(fabric).unwrap()).unwrap();
        for index in 0..group.backups() {
            group.start_backup(index).unwrap();
        }
        for index in 0..group.sidecars() {
            group.start_sidecar(index).unwrap();
        }
        let primary = group.wait_for_primary().unwrap();
        wait_for_standby(&group, 1 - primary, primary).unwrap();
        assert_eq!(group.status(primary)["epoch"], 1, "no primary was deposed");
        group.check_logs(&OUTAGE).unwrap();
    }
}

fn all_processes_are_killed_at_once(fabric: &str) {
    Fixture::start(fabric).repeat(12, |fixture| {
        fixture.group.kill_all().unwrap();
        fixture.group.start_all().unwrap();
    });
}

fn backup_hangs(fabric: &str) {
    let mut fixture = Fixture::start(fabric);
    for _ in 0..repeats(8) {
        let hanging = Process::Backup(fixture.members()[0]);
        let mark = fixture.go_on();
        fixture.group.freeze(hanging).unwrap();
        fixture.check(mark);
        let mark = fixture.go_on();
        fixture.group.signal(hanging, Signal::CONT).unwrap();
        fixture.check(mark);
    }
    fixture.end();
}

/// The app on the old primary keeps its connection, with appends in flight, while it is frozen and after; another app takes
/// over on the new primary. What that one has read as absent must never appear, and nothing more may be acknowledged.
fn resumed_old_primary_cannot_acknowledge(fabric: &str) {
    let mut test = TestContext::start();
    let group = test.start_group(test.setup_with_default_timeouts(fabric).unwrap()).unwrap();
    let mut inputs = InputSequence::default();
    let mut end = 0;
    for _ in 0..repeats(12) {
        let old = group.wait_for_primary().unwrap();
        let new = 1 - old;
        let first = test.next_input();
        inputs.0.push((end + 1, first));
        let mut old_client = group.client(old, true).unwrap();
        let known = append(&mut old_client, &first, end, 500).unwrap();
        let submitted = submit(&mut old_client, &first, known, 1 + test.random.below(2000)).unwrap();
        for _ in 0..test.random.below(8) {
            std::thread::yield_now();
        }
        group.freeze(Process::Sidecar(old)).unwrap();

        group.wait("the standby to take over", |group| group.role(new) == "primary").unwrap();
        let mut client = group.client(new, true).unwrap();
        let found = end_of_log(&mut client, known);
        assert!(found <= submitted, "{found} records are in the log, {submitted} were submitted");
        let second = test.next_input();
        inputs.0.push((found + 1, second));
        end = append(&mut client, &second, found, 500).unwrap();

        group.signal(Process::Sidecar(old), Signal::CONT).unwrap();
        // Beyond what was in its socket already.
        let stale = test.next_input();
        submit(&mut old_client, &stale, submitted, 500).unwrap();
        let barrier = group.client(old, false).map(|mut client| client.barrier());
        assert!(!matches!(barrier, Ok(Ok(_))), "a barrier passed at a deposed primary: {barrier:?}");
        let last = last_ack(&mut old_client);
        assert!(last <= found, "the old primary acknowledged record {last}, the log was taken over after {found}");

        end = append(&mut client, &second, end, 500).unwrap();
        let result = compare(&mut client, &inputs, 1, end, |_| {}).unwrap();
        assert!(result.is_clean(), "{result:?}");
        wait_for_standby(&group, old, new).unwrap();
        group.wait_for_full_set().unwrap();
    }
    group.check_logs(&[&OUTAGE[..], &[UNACKNOWLEDGED]].concat()).unwrap();
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
                Err(error) => panic!("the old primary answered: {error}"),
            },
            Ok(None) | Err(Error::Disconnected { .. }) => return last,
            Err(error) => panic!("the old primary answered: {error}"),
        }
    }
}

/// What can happen to a process, and how it is undone.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill(Process),
    Freeze(Process),
}

impl Fault {
    fn inject(self, group: &mut Group) {
        match self {
            Fault::Kill(process) => group.kill(process).unwrap(),
            Fault::Freeze(process) => group.freeze(process).unwrap(),
        }
    }

    fn undo(self, group: &mut Group) {
        match self {
            Fault::Kill(process) => group.start_process(process).unwrap(),
            Fault::Freeze(process) => group.signal(process, Signal::CONT).unwrap(),
        }
    }
}

/// Any processes, in any combination, in any order, healed in any order while the app continues.
fn random_faults(fabric: &str) {
    Fixture::start(fabric).repeat(24, |Fixture { group, test, .. }| {
        let sidecars = (0..group.sidecars()).map(Process::Sidecar);
        let mut processes: Vec<Process> = sidecars.chain((0..group.backups()).map(Process::Backup)).collect();
        let mut random = |bound: usize| test.random.below(bound as u64) as usize;
        let mut faults = Vec::new();
        for _ in 0..1 + random(3) {
            let process = processes.swap_remove(random(processes.len()));
            let fault = if random(3) == 0 { Fault::Freeze(process) } else { Fault::Kill(process) };
            fault.inject(group);
            faults.push(fault);
            for _ in 0..random(200) {
                std::thread::yield_now();
            }
        }
        while !faults.is_empty() {
            faults.swap_remove(random(faults.len())).undo(group);
        }
    });
}

/// A checker that never complains would pass every test above.
fn checker_detects_differences(fabric: &str) {
    let fixture = Fixture::start(fabric);
    let acked = fixture.app.acked();
    let of = |input: Numbered, acked| read_back(&fixture.group, &input, 1, acked).unwrap();
    assert!(of(fixture.input, acked).is_clean());
    assert_eq!(of(fixture.input, acked + 1).lost, 1, "a record more was acknowledged");
    assert_eq!(of(fixture.input, acked - 1).duplicated, 1, "a record less was submitted");
    let other = Numbered { seed: fixture.input.seed + 1, ..fixture.input };
    assert!(of(other, acked).lost > acked / 2, "something else was submitted");
    fixture.end();
}
