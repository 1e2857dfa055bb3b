//! Tables: what was acknowledged is there after failovers, conditions are judged rightly, and the log stays within its memory while
//! many times its size is written.
//!
//! Several apps change keys while processes are killed under them. Segments are of 64 KiB and the memory is the least that a table
//! may have, so that the cleaner is nearly always at work.

use std::process::Command;
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value;
use tailwind_client::blocking::Table;
use tailwind_client::{Apply, Error, Options, Revision};
use tailwind_e2e::context::{TestContext, note, rounds};
use tailwind_e2e::processes::group::{Group, Process, Setup};
use tailwind_e2e::processes::process::run_to_end;
use tailwind_e2e::processes::races::Races;
use tailwind_e2e::processes::steps::{OUTAGE, UNACKNOWLEDGED, wait_for_standby};
use tailwind_e2e::processes::table_app::{Content, TableApp, read_table, table};

use crate::tables_example::{change, look};

/// Apps at once.
const APPS: u64 = 4;
/// The least memory of a table with segments of 64 KiB.
const MEMORY: u64 = 1 << 20;
/// Before the next fault, each app has so many requests acknowledged.
const REQUESTS: u64 = 150;

pub(super) fn with_table(setup: Setup, keys: &str) -> Setup {
    let mut setup = setup;
    setup.sidecar_options.extend([("--table", "1MiB".to_owned()), ("--table-keys", keys.to_owned())]);
    setup
}

/// What a sidecar says of its table.
fn told(group: &Group, index: usize) -> Value {
    group.status(index)["table"].clone()
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_default()
}

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
        let setup = with_table(test.setup_with_default_timeouts(fabric).unwrap(), "1000");
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
    fn end(self) {
        let Fixture { group, apps, races, test: _test } = self;
        let moved =
            |group: &Group| group.metric(Process::Sidecar(group.primary()?), "tailwind_table_moved_bytes_total");
        group.wait("the cleaner to move something", |group| moved(group).is_some_and(|bytes: u64| bytes > 0)).unwrap();
        let bytes: u64 = apps.iter().map(TableApp::bytes).sum();
        let ends: Vec<_> = apps.into_iter().map(|app| app.finish().unwrap()).collect();
        let last = ends.iter().map(|end| end.last).max().unwrap();
        let (mismatches, missed): (u64, u64) =
            ends.iter().fold((0, 0), |sums, end| (sums.0 + end.mismatches, sums.1 + end.missed));
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
        assert!(mismatches > 0 && raced > 0, "{mismatches} mismatches, {raced} races won");
        assert!(bytes > 4 * MEMORY, "{bytes} bytes were written: too few to say anything of cleaning");
        let primary = group.wait_for_primary().unwrap();
        group
            .wait("the log to be within its memory", |group| {
                let table = told(group, primary);
                number(&table, "log_bytes") > 0 && number(&table, "log_bytes") <= MEMORY
            })
            .unwrap();
        note(&format!(
            "tables: {} KiB written, {mismatches} mismatches, {raced} races won, {missed} answers missed",
            bytes >> 10
        ));
        group.check_logs(&[&OUTAGE[..], &[UNACKNOWLEDGED]].concat()).unwrap();
    }
}

/// Also in the middle of cleaning.
fn primaries_are_killed(fabric: &str) {
    let mut fixture = Fixture::start(fabric);
    for round in 0..rounds(8) {
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
    for _ in 0..rounds(8) {
        fixture.go_on(REQUESTS);
        fixture.kill_a_backup();
    }
    fixture.go_on(REQUESTS);
    fixture.end();
}

fn everything_is_killed(fabric: &str) {
    let mut fixture = Fixture::start(fabric);
    for round in 0..rounds(6) {
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

mod shm {
    #[test]
    fn primaries_are_killed() {
        super::primaries_are_killed("shm");
    }

    #[test]
    fn backups_are_killed() {
        super::backups_are_killed("shm");
    }

    #[test]
    fn everything_is_killed() {
        super::everything_is_killed("shm");
    }
}

mod tcp {
    #[test]
    fn primaries_are_killed() {
        super::primaries_are_killed("tcp");
    }

    #[test]
    fn backups_are_killed() {
        super::backups_are_killed("tcp");
    }

    #[test]
    fn everything_is_killed() {
        super::everything_is_killed("tcp");
    }
}

/// A table of one group, without faults.
pub(super) fn group_with_table(keys: &str) -> (TestContext, Group) {
    let test = TestContext::start();
    let setup = with_table(test.setup("shm").unwrap(), keys);
    let group = test.start_group(setup).unwrap();
    let primary = group.wait_for_primary().unwrap();
    wait_for_standby(&group, 1 - primary, primary).unwrap();
    (test, group)
}

fn connect(group: &Group) -> Table {
    table(group.observer(), group.wait_for_primary().unwrap()).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("key/{number}").into_bytes()
}

#[test]
fn a_tables_log_stays_within_its_memory() {
    let (_test, group) = group_with_table("1000");
    let (primary, mut table) = (group.wait_for_primary().unwrap(), connect(&group));
    let mut written = 0;
    // A hundred keys, and of one of them no put but the first: it has to be moved for as long as the group lives.
    let first = table.put(b"first", b"stays").unwrap();
    while written < 24 * MEMORY {
        for number in 0..100 {
            let value = vec![number as u8; 1000];
            table.submit(Apply::new().put(&key(number), &value)).unwrap();
            written += value.len() as u64;
        }
        table.client().flush().unwrap();
        let told = told(&group, primary);
        assert!(number(&told, "log_bytes") <= MEMORY, "{told}");
        assert_eq!(number(&told, "memory_bytes"), MEMORY);
    }
    let cleaned: u64 = group.metric(Process::Sidecar(primary), "tailwind_table_cleaned_segments_total").unwrap();
    let moved: u64 = group.metric(Process::Sidecar(primary), "tailwind_table_moved_bytes_total").unwrap();
    assert!(cleaned * (64 << 10) > 20 * MEMORY && moved > 0, "{cleaned} segments, {moved} bytes");
    let last = table.client().barrier().unwrap().last;
    let read = read_table(group.observer(), 1 - primary, last).unwrap();
    assert_eq!(read.len(), 101);
    assert_eq!(read.get(b"first".as_slice()), Some(&(first, b"stays".to_vec())), "a move keeps the revision");
    let mut status = Command::new(&group.setup().program);
    let status = run_to_end(status.arg("status").arg("--socket").arg(group.socket(primary))).unwrap();
    assert!(status.out.contains("table      101 of 1,000 keys, "), "{}", status.out);
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn a_full_table_says_so_and_takes_deletes() {
    let (_test, mut group) = group_with_table("2000");
    let mut table = connect(&group);
    for number in 0..2000 {
        table.submit(Apply::new().put(&key(number), b"")).unwrap();
    }
    table.client().flush().unwrap();
    let full = |result: Result<Revision, Error>, words: &str| match result {
        Err(Error::TableFull { message }) => assert!(message.contains(words), "{message}"),
        other => panic!("{other:?}"),
    };
    full(table.put(b"another", b""), "2000 keys");
    table.put(&key(7), b"another value").unwrap();
    table.delete(&key(8)).unwrap();
    table.put(b"another", b"").unwrap();

    // The next primary's option says less than there is: it leads all the same, and takes no new key.
    let victim = group.wait_for_primary().unwrap();
    group.kill_sidecar(victim).unwrap();
    group.kill_sidecar(1 - victim).unwrap();
    for (flag, value) in &mut group.setup_mut().sidecar_options {
        if *flag == "--table-keys" {
            "1000".clone_into(value);
        }
    }
    group.start_sidecar(victim).unwrap();
    let mut table = connect(&group);
    full(table.put(b"one more", b""), "2000 keys");
    table.put(&key(9), b"another value").unwrap();
    for number in 100..2000 {
        table.submit(Apply::new().delete(&key(number))).unwrap();
    }
    table.client().flush().unwrap();
    table.put(b"one more", b"").unwrap();

    let large = vec![7; 3000];
    let last = (0..900).find_map(|number| table.put(&key(10_000 + number), &large).err());
    full(Err(last.unwrap()), "bytes of the log");
    table.put(&key(10_000), b"a smaller value").unwrap();
    table.delete(&key(10_001)).unwrap();
    table.put(&key(20_000), &vec![8; 1000]).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn a_sidecar_of_the_other_kind_takes_no_part() {
    for (is_table, words) in [(true, "was started without --table"), (false, "was started with --table")] {
        let test = TestContext::start();
        let log = test.setup("shm").unwrap();
        let table = with_table(log.clone(), "1000");
        let (right, wrong) = if is_table { (table, log) } else { (log, table) };
        let options = wrong.sidecar_options.clone();
        let mut group = test.start_group(Setup { sidecars: 2, ..right }).unwrap();
        let (primary, other) = (0, 1);
        group.kill_sidecar(other).unwrap();
        group.setup_mut().sidecar_options = options;
        group.start_sidecar(other).unwrap();
        let waits = |group: &Group| {
            let waiting = &group.status(other)["waiting"];
            waiting["for"] == "other-kind" && waiting["why"].as_str().is_some_and(|why| why.contains(words))
        };
        group.wait("the sidecar to say that the group is of another kind", waits).unwrap();
        assert_eq!(group.status(other)["primary"]["name"], "sidecar0", "it knows who leads");
        group.kill_sidecar(primary).unwrap();
        // Also once it was started again, with nobody else there: the config store knows.
        group.kill_sidecar(other).unwrap();
        group.start_sidecar(other).unwrap();
        group.wait("it to wait again", waits).unwrap();
        assert_eq!(group.primary(), None);
        group.check_logs(&OUTAGE).unwrap();
    }
}

#[test]
fn a_reader_of_the_other_kind_says_so() {
    let test = TestContext::start();
    let setup = with_table(test.setup("shm").unwrap(), "1000");
    // The harness gives a reader no more options than it needs in a log.
    let group = test.start_group(Setup { sidecars: 2, readers: 1, ..setup }).unwrap();
    let says = |group: &Group| {
        let status = group.status(1);
        status["waiting"]["for"] == "other-kind" && status["role"] == "reader"
    };
    group.wait("the reader to say that the group keeps a table", says).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn a_client_of_the_other_kind_is_refused() {
    let (test, group) = group_with_table("1000");
    let primary = group.wait_for_primary().unwrap();
    let mut client = group.client(primary, true).unwrap();
    match client.append(b"a plain record") {
        Err(Error::WrongKind { message }) => assert!(message.contains("keeps a table"), "{message}"),
        other => panic!("{other:?}"),
    }
    drop((client, group, test));
    let test = TestContext::start();
    let group = test.group("shm").unwrap();
    let options = Options { hold: true, ..Options::default() };
    let refused = Table::connect_with(group.socket(group.wait_for_primary().unwrap()), &options);
    match refused.map(|_| ()) {
        Err(Error::WrongKind { message }) => assert!(message.contains("keeps a log"), "{message}"),
        other => panic!("{other:?}"),
    }
}

/// What the page shows is what runs here.
#[test]
fn the_example_of_the_page_works() {
    let (page, source) = (include_str!("../../../docs/tables.md"), include_str!("tables_example.rs"));
    let (_, shown) = source.split_once("// The page shows what follows.\n").unwrap();
    let (shown, _) = shown.split_once("// The page ends here.").unwrap();
    let shown = format!("```rust\n{}```", shown.replace("pub(super) ", ""));
    assert!(page.contains(&shown), "docs/tables.md has other code than tables_example.rs");
    let (_test, group) = group_with_table("1000");
    let primary = group.wait_for_primary().unwrap();
    let lease = change(&group.socket(primary)).unwrap();
    let mut table = connect(&group);
    let last = table.client().barrier().unwrap().last;
    let read = read_table(group.observer(), 1 - primary, last).unwrap();
    let has = |key: &[u8]| read.get(key).map(|(_, value)| value.as_slice());
    assert_eq!((has(b"device/7"), has(b"job/1"), has(b"job/0")), (Some(&b"offline"[..]), Some(&b"done"[..]), None));
    assert_eq!(read.get(b"lease".as_slice()), Some(&(lease, b"app-0".to_vec())));
    for index in [primary, 1 - primary] {
        let count =
            group.wait_for("the local table", |group| look(&group.socket(index), b"device/").ok().filter(|n| *n == 1));
        assert_eq!(count.unwrap(), 1);
    }
}

/// What the options say is checked before anything is started.
#[test]
fn a_tables_size_is_checked() {
    let test = TestContext::start();
    let mut group = Group::prepare(test.setup("shm").unwrap()).unwrap();
    for (table, keys, words) in [
        ("1000KiB", "1000", "--table 1000 KiB: must be from 1 MiB to 7936 MiB with --segment-size 64 KiB"),
        ("1MiB", "999", "must be a number from 1000 to 16777216"),
    ] {
        group.setup_mut().sidecar_options = vec![("--table", table.to_owned()), ("--table-keys", keys.to_owned())];
        let ended = run_to_end(&mut group.sidecar_command(0)).unwrap();
        assert_eq!(ended.code, Some(2), "{}", ended.errors);
        assert!(ended.errors.contains(words), "{}", ended.errors);
    }
}
