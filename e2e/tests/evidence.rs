//! Members that have lost something, or hold what has rotted: they are never believed to hold less than they owe, and the
//! sound copy of another member is never given up for theirs.
//!
//! Each test is a story of "Evidence" in `docs/protocol.md`: something happens to the files of one member (or of the config
//! store) while nobody looks, the member that has everything comes late, and nothing acknowledged is lost meanwhile.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod story;

use std::fs;
use std::path::Path;

use tailwind_e2e::damage::{self, change, flip};
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::workload::Chapters;
use tailwind_protocol::ids::{Epoch, LogId};
use tailwind_protocol::layout::SEGMENT_HEADER_SIZE;

use story::{Ending, Story};

on_every_fabric!(
    a_damaged_closed_file_is_missed,
    a_damaged_closed_file_is_missed_beside_its_memory,
    a_damaged_closed_file_is_missed_after_a_clean_stop,
    the_last_copy_is_not_given_up,
    a_damaged_open_file_is_missed,
    two_damaged_open_files_of_three_are_missed,
    a_config_store_that_went_back_leads_nowhere,
    missing_buffers_are_missed,
    zeroed_buffers_are_missed,
    zeroed_rows_are_missed,
    files_of_a_newer_format_are_kept,
    files_of_another_log_are_kept,
    older_promises_are_no_promises,
);

/// What the sidecar says while the log's segments do not make a whole.
const INCOMPLETE: &str = "the log cannot be put together yet";
/// What it says while nobody can tell where the log ends.
const NO_WITNESS: &str = "of the last set's members can tell where the log ends";
/// What it says when the members know more than the config store.
const OLDER: &str = "the config store is older than the log";

type Damage = (&'static str, fn(&Path));

/// What can happen to a closed file. One whose footer alone is gone is known by the ledger, and whole.
const SPOILED: [Damage; 3] = [
    ("its header", |file| flip(file, 20).unwrap()),
    ("its end", |file| change(file, |bytes| bytes.truncate(bytes.len() / 2)).unwrap()),
    ("all of it", |file| fs::remove_file(file).unwrap()),
];

/// The last segment of the log is closed, both members stop, and one loses its file.
fn lose_the_last_segment(fabric: &str, durability: &'static str, ending: Ending, memory_survives: bool) {
    for (what, spoil) in SPOILED {
        let mut story = Story::begin(fabric, 2, durability);
        story.append(2000);
        story.close_all();
        let file = story.last_closed(0);
        story.end_all(ending, memory_survives);
        spoil(&file);
        let sound = story.closed_files(1);
        story.start_with(&[0]);
        story.waits_for(&[INCOMPLETE], what);
        story.group.start_backup(1).unwrap();
        story.is_whole();
        story.has_kept(1, &sound);
    }
    // These lose nothing. The ledger knows what the footer said, and a rotten record does not change where the log ends.
    for (at, can_be_read) in [(-20, true), (200, false)] {
        let mut story = Story::begin(fabric, 2, durability);
        // Found by the scrub before the promotion, the rotten record would make it wait for the other member.
        story.group.setup_mut().backup_options.push(("--scrub-rate", "0".to_owned()));
        story.append(2000);
        story.close_all();
        let file = story.last_closed(0);
        story.end_all(ending, memory_survives);
        flip(&file, at).unwrap();
        let sound = story.closed_files(1);
        story.start_with(&[0]);
        story.group.wait_for_primary().unwrap();
        if can_be_read {
            story.check();
        }
        story.group.start_backup(1).unwrap();
        story.group.wait_for_full_set().unwrap();
        story.is_whole();
        story.has_kept(1, &sound);
    }
}

fn a_damaged_closed_file_is_missed(fabric: &str) {
    lose_the_last_segment(fabric, "flushed", Ending::Kill, false);
}

fn a_damaged_closed_file_is_missed_beside_its_memory(fabric: &str) {
    lose_the_last_segment(fabric, "memory", Ending::Kill, true);
}

fn a_damaged_closed_file_is_missed_after_a_clean_stop(fabric: &str) {
    lose_the_last_segment(fabric, "battery", Ending::Clean, false);
}

/// With one backup: nobody else will ever come, and still nothing is decided without a person.
fn the_last_copy_is_not_given_up(fabric: &str) {
    let mut story = Story::begin(fabric, 1, "flushed");
    story.append(2000);
    story.close_all();
    let log = story.log();
    let closed = damage::closed(&story.group.flush_folder(0)).unwrap();
    let [.., kept, lost, last] = closed.as_slice() else { panic!("{closed:?}") };
    let accepted = damage::last_record(kept).unwrap();
    let (good, beyond) = (fs::read(lost).unwrap(), fs::read(last).unwrap());
    story.end_all(Ending::Kill, false);
    flip(lost, 20).unwrap();
    let bad = fs::read(lost).unwrap();
    story.start_with(&[0]);
    story.waits_for(&[INCOMPLETE], "the only copy");
    story.tells_that_it_waits_for("evidence");
    // What a person finds in a backup of the folder heals it.
    story.end_all(Ending::Kill, false);
    fs::write(lost, good).unwrap();
    story.start_with(&[0]);
    story.check();
    // Where there is none, a person may decide, for this log and from here on.
    story.close_all();
    story.end_all(Ending::Kill, false);
    flip(lost, 20).unwrap();
    story.start_with(&[0]);
    story.waits_for(&[INCOMPLETE], "the only copy, once more");
    story.group.kill_sidecar(0).unwrap();
    story.start_accepting_loss(&log, accepted);
    let mut chapters = Chapters::default();
    chapters.begin(1, story.input);
    chapters.begin(accepted + 1, story.other_input());
    story.append_after(accepted, 500);
    story.check_as(&chapters);
    for bytes in [bad, beyond] {
        assert!(story.keeps(0, &bytes), "a file is gone");
    }
    let folder = story.group.flush_folder(0);
    let quarantined = damage::files(&folder, |name| name.starts_with("quarantined-")).unwrap();
    assert!(!quarantined.is_empty(), "what is beyond the accepted end is in quarantine");
}

/// What can happen to the file of an open segment; the older one is put back by the test itself.
const TORN: [Damage; 3] = [
    ("a record", |file| flip(file, 200).unwrap()),
    ("its content", |file| fs::write(file, b"").unwrap()),
    ("all of it", |file| fs::remove_file(file).unwrap()),
];

/// Power is lost everywhere, and one member's open file is not what it was.
fn a_damaged_open_file_is_missed(fabric: &str) {
    for (what, spoil) in TORN {
        lose_open_files(fabric, &[0], what, spoil);
    }
    let mut story = Story::begin(fabric, 2, "flushed");
    story.append(100);
    let file = story.open_with_records(0);
    let older = fs::read(&file).unwrap();
    story.append(100);
    assert_eq!(story.open_with_records(0), file, "the same segment is open");
    story.end_all(Ending::Kill, false);
    fs::write(&file, older).unwrap();
    let sound = story.closed_files(1);
    story.start_with(&[0]);
    story.waits_for(&[NO_WITNESS], "an older file");
    story.group.start_backup(1).unwrap();
    story.is_whole();
    story.has_kept(1, &sound);
}

fn two_damaged_open_files_of_three_are_missed(fabric: &str) {
    for (what, spoil) in TORN {
        lose_open_files(fabric, &[0, 1], what, spoil);
    }
}

/// The members named are damaged; one more comes late.
fn lose_open_files(fabric: &str, damaged: &[usize], what: &str, spoil: fn(&Path)) {
    let late = damaged.len();
    let mut story = Story::begin(fabric, late + 1, "flushed");
    story.append(1000);
    let files: Vec<_> = damaged.iter().map(|index| story.open_with_records(*index)).collect();
    story.end_all(Ending::Kill, false);
    files.iter().for_each(|file| spoil(file));
    let sound = story.closed_files(late);
    story.start_with(damaged);
    story.waits_for(&[NO_WITNESS], what);
    story.group.start_backup(late).unwrap();
    story.is_whole();
    story.has_kept(late, &sound);
}

/// Somebody restores an older config store, after one failover and after two.
fn a_config_store_that_went_back_leads_nowhere(fabric: &str) {
    for failovers in [1, 2] {
        let mut story = Story::begin(fabric, 3, "memory");
        story.append(500);
        let config = story.group.config();
        let older = damage::store(&config).unwrap();
        for _ in 0..failovers {
            story.fail_over();
            story.append(300);
        }
        story.group.kill_sidecar(0).unwrap();
        let newer = damage::store(&config).unwrap();
        damage::put_back(&config, &older).unwrap();
        story.start_with(&[]);
        story.waits_for(&[OLDER], "the config store");
        story.tells_that_it_waits_for("newer-config-store");
        damage::put_back(&config, &newer).unwrap();
        story.is_whole();
        assert!(story.group.status(0)["waiting"].is_null(), "the wait is over");
    }
}

/// The files of lent buffers are gone, and the table that lists them is not.
fn missing_buffers_are_missed(fabric: &str) {
    lose_buffers(fabric, |pool| {
        let buffers = damage::files(pool, |name| name.ends_with(".buf")).unwrap();
        assert!(!buffers.is_empty(), "segments are open");
        buffers.keys().for_each(|name| fs::remove_file(pool.join(name)).unwrap());
    });
}

/// The files are there, and hold zeros.
fn zeroed_buffers_are_missed(fabric: &str) {
    lose_buffers(fabric, |pool| {
        let buffers = damage::files(pool, |name| name.ends_with(".buf")).unwrap();
        assert!(!buffers.is_empty(), "segments are open");
        buffers.keys().for_each(|name| change(&pool.join(name), |bytes| bytes.fill(0)).unwrap());
    });
}

/// The files are there, and the table does not say what is in them.
fn zeroed_rows_are_missed(fabric: &str) {
    lose_buffers(fabric, |pool| {
        change(&pool.join("slots.table"), |bytes| bytes[4096..].fill(0)).unwrap();
    });
}

fn lose_buffers(fabric: &str, spoil: fn(&Path)) {
    let mut story = Story::begin(fabric, 2, "memory");
    story.append(1000);
    story.end_all(Ending::Kill, true);
    spoil(&story.group.pool(0));
    let sound = story.closed_files(1);
    story.start_with(&[0]);
    story.waits_for(&[NO_WITNESS], "its buffers");
    story.group.start_backup(1).unwrap();
    story.is_whole();
    story.has_kept(1, &sound);
}

/// A newer program has written the files.
fn files_of_a_newer_format_are_kept(fabric: &str) {
    misread_files(fabric, |file| change(file, |bytes| bytes[7] += 1).unwrap());
}

/// The folder is another one's.
fn files_of_another_log_are_kept(fabric: &str) {
    misread_files(fabric, |file| {
        let mut identity = damage::identity(file).unwrap();
        identity.log = LogId(identity.log.0 ^ 1);
        identity.epoch = Epoch(identity.epoch.0 + 1);
        let header = identity.header(tailwind_protocol::ids::Lsn(1));
        change(file, |bytes| bytes[..SEGMENT_HEADER_SIZE].copy_from_slice(&header)).unwrap();
    });
}

fn misread_files(fabric: &str, spoil: fn(&Path)) {
    let mut story = Story::begin(fabric, 2, "flushed");
    story.append(2000);
    story.end_all(Ending::Kill, false);
    let folder = story.group.flush_folder(0);
    let mut files = damage::closed(&folder).unwrap();
    files.extend(damage::open(&folder).unwrap());
    files.iter().for_each(|file| spoil(file));
    let strange: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let sound = story.closed_files(1);
    story.start_with(&[0]);
    story.waits_for(&[INCOMPLETE, NO_WITNESS], "all of its files");
    story.group.start_backup(1).unwrap();
    story.is_whole();
    story.has_kept(1, &sound);
    strange.iter().for_each(|bytes| assert!(story.keeps(0, bytes), "a file that was not understood is gone"));
}

/// Every member's promise is an older one, restored from a backup of the disk.
fn older_promises_are_no_promises(fabric: &str) {
    let mut story = Story::begin(fabric, 2, "flushed");
    story.append(500);
    let promises = [0, 1].map(|index| story.group.flush_folder(index).join("promise"));
    let older = promises.clone().map(|promise| fs::read(promise).unwrap());
    story.fail_over();
    story.append(200);
    let log = story.log();
    story.end_all(Ending::Kill, false);
    for (promise, bytes) in promises.iter().zip(older) {
        fs::write(promise, bytes).unwrap();
    }
    story.start_with(&[0, 1]);
    story.waits_for(&[NO_WITNESS], "both promises");
    // A second start does not forget it.
    story.group.kill_all().unwrap();
    story.start_with(&[0, 1]);
    story.waits_for(&[NO_WITNESS], "both promises, once more");
    story.group.kill_sidecar(0).unwrap();
    story.start_accepting_loss(&log, story.end);
    story.is_whole();
    // The word is not needed any more.
    story.fail_over();
    story.is_whole();
}
