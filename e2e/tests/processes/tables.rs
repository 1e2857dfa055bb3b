//! Tables without faults: the log stays within its memory while many times its size is written, a full table says so, and the
//! other kind of group is refused at both ends.
//!
//! Segments are of 64 KiB and the memory is the least that a table may have, so that the cleaner is nearly always at work.
//! [`killed_tables`](super::killed_tables) kills what a table runs on.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use tailwind_client::blocking::Table;
use tailwind_client::{Apply, Error, Get, Lsn, Options, Revision};
use tailwind_e2e::context::TestContext;
use tailwind_e2e::processes::damage;
use tailwind_e2e::processes::group::{Group, Process, Setup};
use tailwind_e2e::processes::observer::TIMEOUT;
use tailwind_e2e::processes::process::run_to_end;
use tailwind_e2e::processes::steps::{OUTAGE, wait_for_standby};
use tailwind_e2e::processes::table_app::{read_table, table};

use crate::tables_example::{change, look};

/// The least memory of a table with segments of 64 KiB.
pub(super) const MEMORY: u64 = 1 << 20;

pub(super) fn with_table(setup: Setup, keys: &str) -> Setup {
    let mut setup = setup;
    setup.sidecar_options.extend([("--table", "1MiB".to_owned()), ("--table-keys", keys.to_owned())]);
    setup
}

/// What a sidecar says of its table.
pub(super) fn told(group: &Group, index: usize) -> Value {
    group.status(index)["table"].clone()
}

pub(super) fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_default()
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
    // A hundred keys, and one that is put once: the cleaner moves it for as long as the group lives.
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

/// The winner reads the last segments only, although the log was written and cleaned many times while it stood by.
#[test]
fn a_standby_has_its_index_ready() {
    let (_test, mut group) = group_with_table("1000");
    let primary = group.wait_for_primary().unwrap();
    let (standby, mut table) = (1 - primary, connect(&group));
    let mut wanted = BTreeMap::new();
    for round in 0..40 {
        for number in 0..100_u64 {
            let value = vec![round as u8; 1000 + number as usize];
            table.submit(Apply::new().put(&key(number), &value)).unwrap();
            wanted.insert(key(number), value);
        }
        table.client().flush().unwrap();
    }
    let last = table.client().barrier().unwrap().last.0;
    drop(table);
    // All but the open segment, and one that is being closed.
    let is_warm = |group: &Group| number(&told(group, standby), "warm") > last - 200;
    group.wait("the standby to have folded what is closed", is_warm).unwrap();
    let mut status = Command::new(&group.setup().program);
    let status = run_to_end(status.arg("status").arg("--socket").arg(group.socket(standby))).unwrap();
    assert!(status.out.contains("; index warm up to LSN "), "{}", status.out);

    group.kill_sidecar(primary).unwrap();
    let winner = group.wait_for("another primary", |group| group.primary().filter(|now| *now != primary));
    assert_eq!(winner.unwrap(), standby);
    let read = read_table(group.observer(), standby, tailwind_client::Lsn(last)).unwrap();
    assert!(read.into_iter().map(|(key, (_, value))| (key, value)).eq(wanted), "each key has its last value");
    let log = group.log(&format!("sidecar{standby}"));
    let line = log.lines().rfind(|line| line.contains("rebuilt the table's index")).expect("it says so");
    let field = |name: &str| {
        let (_, rest) = line.split_once(name).unwrap_or_else(|| panic!("{line}"));
        rest.split(|digit: char| !digit.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap()
    };
    assert!(field("segments=") >= 8 && field("read=") <= 3, "{line}");
    group.check_logs(&OUTAGE).unwrap();
}

/// A bit flips in a member's closed copy, on its disk. Each get and each copy begins with a member at random.
#[test]
fn gets_and_copies_pass_a_rotten_copy_by() {
    let test = TestContext::start();
    let mut setup = with_table(test.setup("shm").unwrap(), "1000");
    // So that only gets meet the damage.
    setup.backup_options.push(("--scrub-rate", "0".to_owned()));
    let group = test.start_group(setup).unwrap();
    let (mut table, value) = (connect(&group), b"this is going to rot".repeat(20));
    let revision = table.put(b"first", &value).unwrap();
    for number in 0..150 {
        table.submit(Apply::new().put(&key(number), &[7; 1000])).unwrap();
    }
    table.client().flush().unwrap();
    let at = |file: &PathBuf| fs::read(file).ok()?.windows(value.len()).position(|window| window == value);
    let holds = |group: &Group| {
        let closed = damage::closed(&group.flush_folder(0)).unwrap();
        let found = closed.into_iter().find_map(|file| at(&file).map(|at| (file, at)))?;
        (!damage::is_in_memory(&group.pool(0), &group.flush_folder(0))).then_some(found)
    };
    let (file, at) = group.wait_for("its segment to be on disk alone", holds).unwrap();
    let good = fs::read(&file).unwrap();
    damage::flip(&file, at as i64 + 5).unwrap();
    let mut copies = 0;
    let mut is_mended = |_: &Group| {
        let entry = table.get(b"first").unwrap().unwrap();
        assert_eq!((entry.revision, &*entry.value), (revision, &value[..]));
        let made = table.copy(b"second", b"first").unwrap();
        let entry =
            table.get_with(b"second", &Get { least: Some(made.lsn()), ..Get::default() }).unwrap().entry.unwrap();
        assert_eq!((entry.revision, &*entry.value), (made, &value[..]));
        copies += 1;
        fs::read(&file).is_ok_and(|bytes| bytes == good)
    };
    let give_up = Instant::now() + TIMEOUT;
    while !is_mended(&group) {
        assert!(Instant::now() < give_up, "nobody mends the copy");
    }
    let fresh = Get { fresh: true, no_value: true, ..Get::default() };
    assert_eq!(
        table.get_with(b"first", &fresh).unwrap().entry.map(|entry| (entry.revision, entry.value.len())),
        Some((revision, 0))
    );
    assert_eq!(table.get_with(b"third", &fresh).unwrap().entry, None);
    assert!(copies > 0);
    let corruption = [
        "corrupt copy",
        "error: closed segment is corrupt",
        "closed segment is corrupt",
        "a member has corrupt closed copies",
    ];
    group.check_logs(&[&OUTAGE[..], &corruption].concat()).unwrap();
}

#[test]
fn gets_off_the_primary_need_a_mirror() {
    let (_test, group) = group_with_table("1000");
    let primary = group.wait_for_primary().unwrap();
    let mut standby = table(group.observer(), 1 - primary).unwrap();
    // Until each backup has been asked a get waits, in vain.
    let mut told = || match standby.get(b"key") {
        Err(Error::Retry { message, .. }) => message.contains("no backup has memory for a mirror (backup --mirror)"),
        other => panic!("{other:?}"),
    };
    let give_up = Instant::now() + TIMEOUT;
    while !told() {
        assert!(Instant::now() < give_up, "no get is told that there is no mirror");
    }
    let mut table = connect(&group);
    let late = Get { least: Some(Lsn(1000)), ..Get::default() };
    match table.get_with(b"key", &late) {
        Err(Error::Retry { message, .. }) => assert!(message.contains("LSN 1000 is not acknowledged"), "{message}"),
        other => panic!("{other:?}"),
    }
    let revision = table.put(b"key", b"value").unwrap();
    for index in [primary, 1 - primary] {
        // Off the primary, what was acknowledged last may be missing for a moment.
        let shows_it = |group: &Group| {
            let mut command = Command::new(&group.setup().program);
            command.args(["table", "get", "key"]).arg("--socket").arg(group.socket(index));
            run_to_end(&mut command).unwrap().out == "value\n"
        };
        group.wait("the command to show the key", shows_it).unwrap();
    }
    assert_eq!(table.get(b"key").unwrap().map(|entry| entry.revision), Some(revision));
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
