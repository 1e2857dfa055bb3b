//! Members that have lost something, or hold what is corrupt: they never count as holding less than they owe, and the
//! sound copy of another member is never discarded for theirs.
//!
//! Each test is a case of "Evidence" in `docs/protocol.md`: something happens to the files of one member (or of the config
//! store) while no process runs, the member that has everything comes late, and nothing acknowledged is lost until then.

use std::fs;
use std::path::Path;

use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::damage::{self, change, flip};
use tailwind_e2e::workload::InputSequence;
use tailwind_protocol::ids::{Epoch, LogId};
use tailwind_protocol::layout::SEGMENT_HEADER_SIZE;
use tailwind_report::readiness::WaitsFor;

use crate::evidence_fixture::{Fixture, Shutdown};

on_every_fabric!(
    damaged_closed_file_is_detected,
    damaged_closed_file_is_detected_despite_memory,
    damaged_closed_file_is_detected_after_a_clean_stop,
    last_copy_is_not_discarded,
    damaged_open_file_is_detected,
    two_of_three_damaged_open_files_are_detected,
    restored_older_config_store_is_detected,
    missing_buffers_are_detected,
    missing_buffer_is_detected_after_a_sync,
    zeroed_buffers_are_detected,
    zeroed_slot_table_rows_are_detected,
    files_of_a_newer_format_are_kept,
    files_of_another_log_are_kept,
    restored_older_promises_are_detected,
);

/// Why it waits while segments of the log are missing.
const INCOMPLETE: &str = "the log cannot be put together yet";
/// Why while no member can tell where the log ends.
const NO_WITNESS: &str = "of the last set's members can tell where the log ends";
/// Why while the members know more than the config store.
const OLDER: &str = "the config store is older than the log";

type Damage = (&'static str, fn(&Path));

/// What can happen to a closed file. One whose footer alone is gone is known by the ledger, and whole.
const SPOILED: [Damage; 3] = [
    ("its header", |file| flip(file, 20).unwrap()),
    ("its end", |file| change(file, |bytes| bytes.truncate(bytes.len() / 2)).unwrap()),
    ("all of it", |file| fs::remove_file(file).unwrap()),
];

/// The last segment of the log is closed, both members stop, and one loses its file.
fn lose_the_last_segment(fabric: &str, durability: &'static str, shutdown: Shutdown, memory_survives: bool) {
    for (what, spoil) in SPOILED {
        let mut fixture = Fixture::start(fabric, 2, durability);
        fixture.append(2000);
        fixture.close_all();
        let file = fixture.last_closed(0);
        fixture.end_all(shutdown, memory_survives);
        spoil(&file);
        let sound = fixture.closed_files(1);
        fixture.start_with(&[0]);
        fixture.waits_for(WaitsFor::Evidence, &[INCOMPLETE], what);
        fixture.group.start_backup(1).unwrap();
        fixture.check_healthy();
        fixture.check_kept(1, &sound);
    }
    // These lose nothing. The ledger knows what the footer said, and a corrupt record does not change where the log ends.
    for (at, can_be_read) in [(-20, true), (200, false)] {
        let mut fixture = Fixture::start(fabric, 2, durability);
        // Found by the scrub before the promotion, the corrupt record would make it wait for the other member.
        fixture.group.setup_mut().backup_options.push(("--scrub-rate", "0".to_owned()));
        fixture.append(2000);
        fixture.close_all();
        let file = fixture.last_closed(0);
        fixture.end_all(shutdown, memory_survives);
        flip(&file, at).unwrap();
        let sound = fixture.closed_files(1);
        fixture.start_with(&[0]);
        fixture.group.wait_for_primary().unwrap();
        if can_be_read {
            fixture.check();
        }
        fixture.group.start_backup(1).unwrap();
        fixture.group.wait_for_full_set().unwrap();
        fixture.check_healthy();
        fixture.check_kept(1, &sound);
    }
}

fn damaged_closed_file_is_detected(fabric: &str) {
    lose_the_last_segment(fabric, "flushed", Shutdown::PowerLoss, false);
}

fn damaged_closed_file_is_detected_despite_memory(fabric: &str) {
    lose_the_last_segment(fabric, "memory", Shutdown::PowerLoss, true);
}

fn damaged_closed_file_is_detected_after_a_clean_stop(fabric: &str) {
    lose_the_last_segment(fabric, "battery", Shutdown::Graceful, false);
}

/// With one backup: no other member will ever return, and still only an administrator decides.
fn last_copy_is_not_discarded(fabric: &str) {
    let mut fixture = Fixture::start(fabric, 1, "flushed");
    fixture.append(2000);
    fixture.close_all();
    let log = fixture.log();
    let closed = damage::closed(&fixture.group.flush_folder(0)).unwrap();
    let [.., kept, lost, last] = closed.as_slice() else { panic!("{closed:?}") };
    let accepted = damage::last_record(kept).unwrap();
    let (good, beyond) = (fs::read(lost).unwrap(), fs::read(last).unwrap());
    fixture.end_all(Shutdown::PowerLoss, false);
    flip(lost, 20).unwrap();
    let bad = fs::read(lost).unwrap();
    fixture.start_with(&[0]);
    fixture.waits_for(WaitsFor::Evidence, &[INCOMPLETE], "the only copy");
    // Files from a backup copy of the folder heal it.
    fixture.end_all(Shutdown::PowerLoss, false);
    fs::write(lost, good).unwrap();
    fixture.start_with(&[0]);
    fixture.check();
    // Where there is none, an administrator may decide, for this log and from here on.
    fixture.close_all();
    fixture.end_all(Shutdown::PowerLoss, false);
    flip(lost, 20).unwrap();
    fixture.start_with(&[0]);
    fixture.waits_for(WaitsFor::Evidence, &[INCOMPLETE], "the only copy, once more");
    fixture.group.kill_sidecar(0).unwrap();
    fixture.start_accepting_loss(&log, accepted);
    let inputs = InputSequence(vec![(1, fixture.input), (accepted + 1, fixture.other_input())]);
    fixture.append_after(accepted, 500);
    fixture.check_as(&inputs);
    for bytes in [bad, beyond] {
        assert!(fixture.keeps(0, &bytes), "a file is gone");
    }
    let folder = fixture.group.flush_folder(0);
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
fn damaged_open_file_is_detected(fabric: &str) {
    for (what, spoil) in TORN {
        lose_open_files(fabric, &[0], what, spoil);
    }
    let mut fixture = Fixture::start(fabric, 2, "flushed");
    fixture.append(100);
    let file = fixture.open_with_records(0);
    let older = fs::read(&file).unwrap();
    fixture.append(100);
    assert_eq!(fixture.open_with_records(0), file, "the same segment is open");
    fixture.end_all(Shutdown::PowerLoss, false);
    fs::write(&file, older).unwrap();
    let sound = fixture.closed_files(1);
    fixture.start_with(&[0]);
    fixture.waits_for(WaitsFor::Evidence, &[NO_WITNESS], "an older file");
    fixture.group.start_backup(1).unwrap();
    fixture.check_healthy();
    fixture.check_kept(1, &sound);
    for (what, spoil) in UNREADABLE {
        lose_open_file_and_notes(fabric, what, spoil);
    }
}

/// What leaves nothing of the file of an open segment that a start could read.
const UNREADABLE: [Damage; 2] = [
    ("the header, beside older notes", |file| flip(file, 20).unwrap()),
    ("all of it, beside older notes", |file| fs::remove_file(file).unwrap()),
];

/// The notes of flushes are put back from a copy that is older than the open segment.
fn lose_open_file_and_notes(fabric: &str, what: &str, spoil: fn(&Path)) {
    let mut fixture = Fixture::start(fabric, 2, "flushed");
    let notes = fixture.group.flush_folder(0).join("flushed");
    fixture.append(50);
    let older = fs::read(&notes).unwrap();
    fixture.append(2000);
    let file = fixture.open_with_records(0);
    fixture.end_all(Shutdown::PowerLoss, false);
    fs::write(notes, older).unwrap();
    spoil(&file);
    let sound = fixture.closed_files(1);
    fixture.start_with(&[0]);
    fixture.waits_for(WaitsFor::Evidence, &[NO_WITNESS], what);
    fixture.group.start_backup(1).unwrap();
    fixture.check_healthy();
    fixture.check_kept(1, &sound);
}

fn two_of_three_damaged_open_files_are_detected(fabric: &str) {
    for (what, spoil) in TORN {
        lose_open_files(fabric, &[0, 1], what, spoil);
    }
}

/// The members named are damaged; one more comes late.
fn lose_open_files(fabric: &str, damaged: &[usize], what: &str, spoil: fn(&Path)) {
    let late = damaged.len();
    let mut fixture = Fixture::start(fabric, late + 1, "flushed");
    fixture.append(1000);
    let files: Vec<_> = damaged.iter().map(|index| fixture.open_with_records(*index)).collect();
    fixture.end_all(Shutdown::PowerLoss, false);
    files.iter().for_each(|file| spoil(file));
    let sound = fixture.closed_files(late);
    fixture.start_with(damaged);
    fixture.waits_for(WaitsFor::Evidence, &[NO_WITNESS], what);
    fixture.group.start_backup(late).unwrap();
    fixture.check_healthy();
    fixture.check_kept(late, &sound);
}

/// An administrator restores an older config store, after one failover and after two.
fn restored_older_config_store_is_detected(fabric: &str) {
    for failovers in [1, 2] {
        let mut fixture = Fixture::start(fabric, 3, "memory");
        fixture.append(500);
        let config = fixture.group.config();
        let older = damage::store(&config).unwrap();
        for _ in 0..failovers {
            fixture.fail_over();
            fixture.append(300);
        }
        fixture.group.kill_sidecar(0).unwrap();
        let newer = damage::store(&config).unwrap();
        damage::put_back(&config, &older).unwrap();
        fixture.start_with(&[]);
        fixture.waits_for(WaitsFor::NewerConfigStore, &[OLDER], "the config store");
        damage::put_back(&config, &newer).unwrap();
        fixture.check_healthy();
        assert!(fixture.group.status(0)["waiting"].is_null(), "the wait is over");
    }
}

/// The files of lent buffers are gone, and the table that lists them is not.
fn missing_buffers_are_detected(fabric: &str) {
    lose_buffers(fabric, remove_buffers);
}

/// The disk has a part of the open segment's buffer: not everything that was acknowledged.
fn missing_buffer_is_detected_after_a_sync(fabric: &str) {
    let mut fixture = Fixture::start(fabric, 2, "memory");
    let synced = fixture.synced_part(0);
    fixture.append(20);
    fixture.end_all(Shutdown::PowerLoss, true);
    let pool = fixture.group.pool(0);
    let buffers = damage::files(&pool, |name| name.ends_with(".buf")).unwrap();
    let (lost, _) = buffers.iter().find(|(_, bytes)| bytes.starts_with(&synced)).expect("the segment is open");
    fs::remove_file(pool.join(lost)).unwrap();
    assert_lost_buffers_are_missed(fixture);
}

fn remove_buffers(pool: &Path) {
    let buffers = damage::files(pool, |name| name.ends_with(".buf")).unwrap();
    assert!(!buffers.is_empty(), "segments are open");
    buffers.keys().for_each(|name| fs::remove_file(pool.join(name)).unwrap());
}

/// The files are there, and hold zeros.
fn zeroed_buffers_are_detected(fabric: &str) {
    lose_buffers(fabric, |pool| {
        let buffers = damage::files(pool, |name| name.ends_with(".buf")).unwrap();
        assert!(!buffers.is_empty(), "segments are open");
        buffers.keys().for_each(|name| change(&pool.join(name), |bytes| bytes.fill(0)).unwrap());
    });
}

/// The files are there, and the table does not say what is in them.
fn zeroed_slot_table_rows_are_detected(fabric: &str) {
    lose_buffers(fabric, |pool| {
        change(&pool.join("slots.table"), |bytes| bytes[4096..].fill(0)).unwrap();
    });
}

fn lose_buffers(fabric: &str, spoil: fn(&Path)) {
    let mut fixture = Fixture::start(fabric, 2, "memory");
    fixture.append(1000);
    fixture.end_all(Shutdown::PowerLoss, true);
    spoil(&fixture.group.pool(0));
    assert_lost_buffers_are_missed(fixture);
}

fn assert_lost_buffers_are_missed(mut fixture: Fixture) {
    let sound = fixture.closed_files(1);
    fixture.start_with(&[0]);
    fixture.waits_for(WaitsFor::Evidence, &[NO_WITNESS], "its buffers");
    fixture.group.start_backup(1).unwrap();
    fixture.check_healthy();
    fixture.check_kept(1, &sound);
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
    let mut fixture = Fixture::start(fabric, 2, "flushed");
    fixture.append(2000);
    fixture.end_all(Shutdown::PowerLoss, false);
    let folder = fixture.group.flush_folder(0);
    let mut files = damage::closed(&folder).unwrap();
    files.extend(damage::open(&folder).unwrap());
    files.iter().for_each(|file| spoil(file));
    let strange: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let sound = fixture.closed_files(1);
    fixture.start_with(&[0]);
    fixture.waits_for(WaitsFor::Evidence, &[INCOMPLETE, NO_WITNESS], "all of its files");
    fixture.group.start_backup(1).unwrap();
    fixture.check_healthy();
    fixture.check_kept(1, &sound);
    strange.iter().for_each(|bytes| assert!(fixture.keeps(0, bytes), "a file that was not understood is gone"));
}

/// Every member's promise is an older one, restored from a backup of the disk.
fn restored_older_promises_are_detected(fabric: &str) {
    let mut fixture = Fixture::start(fabric, 2, "flushed");
    fixture.append(500);
    let promises = [0, 1].map(|index| fixture.group.flush_folder(index).join("promise"));
    let older = promises.clone().map(|promise| fs::read(promise).unwrap());
    fixture.fail_over();
    fixture.append(200);
    let log = fixture.log();
    fixture.end_all(Shutdown::PowerLoss, false);
    for (promise, bytes) in promises.iter().zip(older) {
        fs::write(promise, bytes).unwrap();
    }
    fixture.start_with(&[0, 1]);
    fixture.waits_for(WaitsFor::Evidence, &[NO_WITNESS], "both promises");
    // A second start does not forget it.
    fixture.group.kill_all().unwrap();
    fixture.start_with(&[0, 1]);
    fixture.waits_for(WaitsFor::Evidence, &[NO_WITNESS], "both promises, once more");
    fixture.group.kill_sidecar(0).unwrap();
    fixture.start_accepting_loss(&log, fixture.end);
    fixture.check_healthy();
    // The option is not needed any more.
    fixture.fail_over();
    fixture.check_healthy();
}
