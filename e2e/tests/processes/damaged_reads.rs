//! Followers and readers while members are damaged or do not answer: what is shown is right and whole, from another
//! member, and the damaged copy is mended.

use std::fs;

use rustix::process::Signal;
use tailwind_client::Lsn;
use tailwind_e2e::context::{TestContext, rounds};
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::damage;
use tailwind_e2e::processes::following::Following;
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::steps::{OUTAGE, append, check_whole, primary, wait_for_standby};
use tailwind_e2e::workload::{Input, Numbered};

on_every_fabric!(
    rotten_board_is_left_for_another_members,
    rot_in_open_memory_is_never_shown_and_is_mended,
    rot_on_disk_is_never_shown_and_is_mended,
    a_sync_gets_past_rot_in_open_memory,
    frozen_backups_do_not_end_a_read,
);

/// The sidecar at which the followers are.
const STANDBY: usize = 1;
/// Several segments of 64 KiB.
const RECORDS: u64 = 2000;
/// A byte of the log's id in the board's first line, which is written once in an epoch.
const BOARD_LOG_ID: u64 = 8;

/// The member that the follower reads from.
fn read_from(group: &Group) -> usize {
    let from = |group: &Group| group.backup_named(group.status(STANDBY)["follow"]["from"].as_str()?);
    group.wait_for("a member that is read from", from).unwrap()
}

/// A member is left when its board rots under the follower, also the second one. The boards of the next epoch are whole.
fn rotten_board_is_left_for_another_members(fabric: &str) {
    let test = TestContext::start();
    let mut group = test.start_group(test.setup(fabric).unwrap()).unwrap();
    wait_for_standby(&group, STANDBY, 0).unwrap();
    let input = test.input();
    let mut app = primary(&group).unwrap();
    let mut follower = Following::start(group.observer().clone(), STANDBY, input);
    let mut end = append(&mut app, &input, 0, 100).unwrap();
    follower.wait_for_end(end).unwrap();
    let mut rotten = Vec::new();
    for _ in 0..2 {
        let victim = read_from(&group);
        assert!(!rotten.contains(&victim), "backup{victim} is read from by its rotten board");
        damage::flip_mapped(&group.pool(victim).join("side.buf"), BOARD_LOG_ID).unwrap();
        rotten.push(victim);
        for _ in 0..20 {
            end = append(&mut app, &input, end, 10).unwrap();
            follower.wait_for(end).unwrap();
        }
        group.wait("the follower to read elsewhere", |group| read_from(group) != victim).unwrap();
    }
    // Lent again, and so rewritten.
    drop(app);
    group.kill_sidecar(0).unwrap();
    follower.wait_for_turn(1).unwrap();
    group.start_sidecar(0).unwrap();
    end = append(&mut primary(&group).unwrap(), &input, end, 100).unwrap();
    let mut other = Following::start(group.observer().clone(), 0, input);
    other.wait_for(end).unwrap();
    for follower in [follower, other] {
        assert!(follower.finish().unwrap().last >= end);
    }
    check_whole(&group, &input, end).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

/// The files of closed segments of each of three members have these bytes.
fn all_have_closed(group: &Group, bytes: &[u8]) -> bool {
    let members: Vec<usize> = group.members().iter().filter_map(|name| group.backup_named(name)).collect();
    let has = |file: &std::path::PathBuf| {
        fs::read(file).is_ok_and(|file| file.windows(bytes.len()).any(|window| window == bytes))
    };
    let holds_it = |member: &usize| damage::closed(&group.flush_folder(*member)).unwrap().iter().any(has);
    members.len() == 3 && members.iter().all(holds_it)
}

/// A bit flips in the open segment of the member that is read from, within what is acknowledged and before it is read. Nothing
/// asks for a repair: the close of the segment finds it.
fn rot_in_open_memory_is_never_shown_and_is_mended(fabric: &str) {
    let test = TestContext::start();
    let group = test.start_group(test.setup(fabric).unwrap()).unwrap();
    wait_for_standby(&group, STANDBY, 0).unwrap();
    let input = test.input();
    let mut app = primary(&group).unwrap();
    let mut follower = Following::start(group.observer().clone(), STANDBY, input);
    let mut end = append(&mut app, &input, 0, 20).unwrap();
    follower.wait_for_end(end).unwrap();
    let victim = read_from(&group);
    group.freeze(Process::Sidecar(STANDBY)).unwrap();
    end = append(&mut app, &input, end, 40).unwrap();
    let bytes = (end - 30..end).map(|number| input.record(number)).max_by_key(Vec::len).unwrap();
    let (file, at) = damage::find_in_memory(&group.pool(victim), &bytes).unwrap().expect("an acknowledged record");
    damage::flip_mapped(&file, at + bytes.len() as u64 / 2).unwrap();
    group.signal(Process::Sidecar(STANDBY), Signal::CONT).unwrap();
    follower.wait_for(end).unwrap();
    group.wait("the follower to read elsewhere", |group| read_from(group) != victim).unwrap();

    end = append(&mut app, &input, end, RECORDS).unwrap();
    follower.wait_for(end).unwrap();
    group.wait("every member to have a whole copy", |group| all_have_closed(group, &bytes)).unwrap();
    assert_eq!(follower.finish().unwrap().last, end);
    check_whole(&group, &input, end).unwrap();
    group
        .check_logs(&[
            "error: closed segment is corrupt in memory",
            "a member has corrupt closed copies",
            "corrupt copy",
        ])
        .unwrap();
}

/// A standby that starts from the beginning meets it, and so the backup and the primary learn of it.
fn rot_on_disk_is_never_shown_and_is_mended(fabric: &str) {
    let test = TestContext::start();
    let mut setup = test.setup(fabric).unwrap();
    (setup.backups, setup.copies) = (2, 2);
    // So that only readers meet the damage.
    setup.backup_options.push(("--scrub-rate", "0".to_owned()));
    let group = test.start_group(setup).unwrap();
    wait_for_standby(&group, STANDBY, 0).unwrap();
    let input = test.input();
    let end = append(&mut primary(&group).unwrap(), &input, 0, RECORDS).unwrap();
    let first = |group: &Group| {
        let file = damage::closed(&group.flush_folder(0)).unwrap().into_iter().next()?;
        (!damage::is_in_memory(&group.pool(0), &group.flush_folder(0))).then_some(file)
    };
    let file = group.wait_for("closed segments to be on disk alone", first).unwrap();
    let good = fs::read(&file).unwrap();
    damage::flip(&file, good.len() as i64 / 2).unwrap();
    // Each begins with a member at random.
    let is_mended = |group: &Group| {
        assert_eq!(read_anywhere(group, &input, 1), end);
        fs::read(&file).is_ok_and(|bytes| bytes == good)
    };
    group.wait("the file to be sound again", is_mended).unwrap();
    let corruption = [
        "corrupt copy",
        "error: closed segment is corrupt",
        "closed segment is corrupt",
        "a member has corrupt closed copies",
    ];
    group.check_logs(&corruption).unwrap();
}

/// One of the members of an idle group hangs, and nobody has noticed: a read that meets it continues at another one.
fn frozen_backups_do_not_end_a_read(fabric: &str) {
    let test = TestContext::start();
    let group = test.start_group(test.setup(fabric).unwrap()).unwrap();
    wait_for_standby(&group, STANDBY, 0).unwrap();
    let input = test.input();
    let end = append(&mut primary(&group).unwrap(), &input, 0, RECORDS).unwrap();
    for victim in group.wait_for_full_set().unwrap() {
        group.freeze(Process::Backup(victim)).unwrap();
        for _ in 0..rounds(2) {
            assert_eq!(read_anywhere(&group, &input, 1), end, "with backup{victim} frozen");
        }
        group.signal(Process::Backup(victim), Signal::CONT).unwrap();
    }
    check_whole(&group, &input, end).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

/// Reads to the end at the standby, and compares; the last record.
fn read_anywhere(group: &Group, input: &Numbered, from: u64) -> u64 {
    let mut client = group.client(STANDBY, false).unwrap();
    let mut read = client.read_anywhere(Lsn(from), 0).unwrap();
    let mut next = from;
    while let Some((lsn, payload)) = read.next_record().unwrap() {
        assert_eq!((lsn.0, payload), (next, &*input.record(next)));
        next += 1;
    }
    next - 1
}

/// A bit flips in a member's open segment, and nobody appends anything any more: the member cannot bring what follows to its
/// disk, and the segment has room. It is closed for the sync, and the copy mended.
fn a_sync_gets_past_rot_in_open_memory(fabric: &str) {
    let test = TestContext::start();
    let group = test.start_group(test.setup(fabric).unwrap()).unwrap();
    let input = test.input();
    let mut app = primary(&group).unwrap();
    let end = append(&mut app, &input, 0, 40).unwrap();
    let victim = group.wait_for_full_set().unwrap()[0];
    let bytes = (10..end - 10).map(|number| input.record(number)).max_by_key(Vec::len).unwrap();
    let (file, at) = damage::find_in_memory(&group.pool(victim), &bytes).unwrap().expect("an acknowledged record");
    damage::flip_mapped(&file, at + bytes.len() as u64 / 2).unwrap();
    assert_eq!(app.sync().unwrap(), Lsn(end));
    assert!(all_have_closed(&group, &bytes));
    check_whole(&group, &input, end).unwrap();
    group.check_logs(&["error: closed segment is corrupt in memory", "corrupt"]).unwrap();
}
