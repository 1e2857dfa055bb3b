//! Disks that are full, damaged or all that is left: what was acknowledged survives as the durability mode promises.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use tailwind_client::blocking::Client;
use tailwind_client::{Error, ErrorCode, FollowEvent, History, Lsn, Start};
use tailwind_e2e::context::{TestContext, is_privileged, rounds};
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::background::Background;
use tailwind_e2e::processes::checker::compare;
use tailwind_e2e::processes::damage;
use tailwind_e2e::processes::group::{Group, Process, Setup};
use tailwind_e2e::processes::steps::{OUTAGE, append, check_whole, primary, read_back, wait_for_standby};
use tailwind_protocol::layout::SEGMENT_HEADER_SIZE;

use crate::messages::waiting;

on_every_fabric!(
    flushed_records_survive_loss_of_all_memory,
    synced_records_survive_on_one_disk,
    members_are_found_at_new_addresses,
    clean_stop_survives_loss_of_all_memory,
    full_disk_does_not_stop_the_group,
    untrimmed_log_waits_at_its_bound,
    full_group_replaces_its_members,
    damaged_and_foreign_files_are_kept,
    flipped_bit_on_disk_is_never_read,
    corrupt_file_is_repaired_under_a_live_primary,
);

fn lose_memory(group: &Group) {
    for index in 0..group.backups() {
        fs::remove_dir_all(group.pool(index)).unwrap();
    }
}

fn flushed_records_survive_loss_of_all_memory(fabric: &str) {
    let mut test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(fabric).unwrap();
    setup.sidecar_options.push(("--durability", "flushed".into()));
    let mut group = test.start_group(setup).unwrap();
    let mut app = Background::start(group.observer().clone(), input, 64);
    for _ in 0..rounds(3) {
        let before = app.acked();
        let mark = app.go_on(1000);
        app.wait_for(before + test.random.below(1000)).unwrap();
        group.kill_all().unwrap();
        lose_memory(&group);
        group.start_all().unwrap();
        app.wait_for(mark).unwrap();
        check_whole(&group, &input, mark).unwrap();
    }
    app.finish().unwrap();
    // The spare, which has promised nothing yet.
    group.check_logs(&[&OUTAGE[..], &["memory is lost: starting with a new identity"]].concat()).unwrap();
}

/// An order to recover the log that the config store has, as it is now.
fn recovery_of_today(group: &Group) -> String {
    // A line with format and CRC, then the body.
    let config = fs::read_to_string(group.newest_config().unwrap()).unwrap();
    let config: serde_json::Value = serde_json::from_str(config.split_once('\n').unwrap().1).unwrap();
    let config = &config["configuration"];
    format!("{}/{}", config["log"].as_str().unwrap(), config["won"])
}

/// The group promises memory only. What was synced is on each member's disk, and one of them is enough.
fn synced_records_survive_on_one_disk(fabric: &str) {
    let test = TestContext::start();
    let input = test.input();
    let mut group = test.start_group(test.setup(fabric).unwrap()).unwrap();
    let mut client = primary(&group).unwrap();
    let synced = append(&mut client, &input, 0, 1500).unwrap();
    assert_eq!(client.sync().unwrap(), Lsn(synced));
    append(&mut client, &input, synced, 300).unwrap();
    let shown = position_after(&mut client, Lsn(1)).unwrap();
    assert_eq!(shown.from, Lsn(synced + 301));
    let members = group.wait_for_full_set().unwrap();
    let order = recovery_of_today(&group);
    drop(client);
    group.kill_all().unwrap();
    lose_memory(&group);
    for lost in &members[1..] {
        fs::remove_dir_all(group.flush_folder(*lost)).unwrap();
    }
    group.setup_mut().sidecar_options.push(("--recover-from-disk", order));
    group.start_all().unwrap();
    let mut client = primary(&group).unwrap();
    let last = client.barrier().unwrap().last;
    // What had reached the disk beside the synced records is there too.
    assert!((synced..=synced + 300).contains(&last.0), "recovered up to {last}");
    check_whole(&group, &input, last.0).unwrap();
    assert_eq!(client.sync().unwrap(), last);
    // The order stands, and has ended: nothing that is acknowledged from now on may be lost for it.
    append(&mut client, &input, last.0, 400).unwrap();
    group.wait_for_full_set().unwrap();
    check_histories(&mut client, shown, last);
    let mut elsewhere = group.client(1 - group.wait_for_primary().unwrap(), false).unwrap();
    check_histories(&mut elsewhere, shown, last);
    drop((client, elsewhere));
    group.kill_all().unwrap();
    lose_memory(&group);
    (0..group.backups()).for_each(|index| group.start_backup(index).unwrap());
    group.start_sidecar(0).unwrap();
    let has_ended = |group: &Group| waiting(group, 0).contains("the last that had a primary");
    group.wait("a sidecar to say that the order has no effect", has_ended).unwrap();
    let known = [
        "memory is lost: starting with a new identity",
        "ordered: recover the log from disk",
        "an order has no effect",
        "waiting why=",
    ];
    group.check_logs(&[&OUTAGE[..], &known].concat()).unwrap();
}

/// Reads from there to the end, anywhere; returns where to continue.
fn position_after(client: &mut Client, start: impl Into<Start>) -> Result<Start, Error> {
    let start = start.into();
    let mut records = client.read_anywhere(start, 0)?;
    let mut next = start.from;
    while let Some((lsn, _)) = records.next_record()? {
        next = lsn.next();
    }
    Ok((records.history(), next).into())
}

/// The log was cut after `last`, and is longer again than what was `shown`: a client that was shown more must not continue.
fn check_histories(client: &mut Client, shown: Start, last: Lsn) {
    let common = Start { from: last.next(), ..shown };
    let now = position_after(client, common).unwrap();
    assert!(now.from > shown.from && now.history != shown.history, "{now:?}, {shown:?}");
    assert_eq!(position_after(client, now).unwrap(), now);
    if shown.from > common.from {
        let cut_off = position_after(client, shown);
        let Err(Error::Refused { code: ErrorCode::BeyondEnd, message }) = cut_off else { panic!("{cut_off:?}") };
        assert!(message.contains(&format!("the log was cut after LSN {last}")), "{message}");
        let followed = client.follow(shown).unwrap().next_event().unwrap_err();
        assert!(matches!(followed, Error::Refused { code: ErrorCode::BeyondEnd, .. }), "{followed:?}");
    }
    let not_known = position_after(client, Start { history: History(now.history.0 + 1), ..common });
    assert!(matches!(not_known, Err(Error::Retry { .. })), "{not_known:?}");
    let foreign = position_after(client, Start { history: History(now.history.0 ^ 1 << 63), ..common });
    assert!(matches!(foreign, Err(Error::Refused { code: ErrorCode::BeyondEnd, .. })), "{foreign:?}");
}

/// As when every host loses power and gets another address from the network: the configuration knows the old ones only.
fn members_are_found_at_new_addresses(fabric: &str) {
    let test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(fabric).unwrap();
    (setup.backups, setup.copies, setup.sidecars) = (2, 2, 1);
    setup.sidecar_options.push(("--durability", "flushed".into()));
    let mut group = test.start_group(setup).unwrap();
    let mut end = append(&mut primary(&group).unwrap(), &input, 0, 2000).unwrap();
    let moves: [fn(&mut Group); 3] = [
        |group| (0..2).for_each(|index| group.move_backup(index).unwrap()),
        // Each answers where the other is looked for.
        |group| group.swap_ports(0, 1),
        |group| group.move_backup(1).unwrap(),
    ];
    for change in moves {
        group.kill_all().unwrap();
        lose_memory(&group);
        change(&mut group);
        group.start_all().unwrap();
        check_whole(&group, &input, end).unwrap();
        end = append(&mut primary(&group).unwrap(), &input, end, 1000).unwrap();
        group.wait_for_full_set().unwrap();
    }
    check_whole(&group, &input, end).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

fn clean_stop_survives_loss_of_all_memory(fabric: &str) {
    let test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(fabric).unwrap();
    setup.sidecar_options.push(("--durability", "battery".into()));
    let mut group = test.start_group(setup).unwrap();
    let mut end = 0;
    for (signal, count) in [(Signal::TERM, 1000), (Signal::POWER, 1), (Signal::POWER, 700)] {
        end = append(&mut primary(&group).unwrap(), &input, end, count).unwrap();
        let leads = group.wait_for_primary().unwrap();
        // One that has only just been started does not listen to signals yet, and dies of them.
        let standbys: Vec<usize> = (0..group.sidecars()).filter(|index| *index != leads).collect();
        standbys.iter().for_each(|index| wait_for_standby(&group, *index, leads).unwrap());
        for index in 0..group.sidecars() {
            group.signal(Process::Sidecar(index), Signal::TERM).unwrap();
            assert_eq!(group.wait_for_end(Process::Sidecar(index)).unwrap(), Some(0));
        }
        for index in 0..group.backups() {
            group.signal(Process::Backup(index), signal).unwrap();
        }
        for index in 0..group.backups() {
            assert_eq!(group.wait_for_end(Process::Backup(index)).unwrap(), Some(0));
        }
        lose_memory(&group);
        group.start_all().unwrap();
        check_whole(&group, &input, end).unwrap();
    }
    group.wait_for_full_set().unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

/// A small file system in memory, in place of a disk.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path, bytes: u64) -> SmallDisk {
        fs::create_dir_all(path).unwrap();
        let options = format!("size={bytes},mode=0700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tailwind"]).arg(path).status();
        assert!(mounted.unwrap().success(), "mount a tmpfs on {}", path.display());
        SmallDisk(path.to_owned())
    }

    /// Leaves no room at all.
    fn fill(&self) {
        let filler = fs::File::create(self.0.join("filler")).unwrap();
        let full = (0..)
            .find_map(|block: u64| std::os::unix::fs::FileExt::write_all_at(&filler, &[1; 4096], block * 4096).err());
        assert_eq!(full.unwrap().kind(), std::io::ErrorKind::StorageFull);
    }

    fn relieve(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the daemon still holds files of it and is killed a moment later.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn full_disk_does_not_stop_the_group(fabric: &str) {
    if !is_privileged("disk: full_disk_does_not_stop_the_group") {
        return;
    }
    let test = TestContext::start();
    let input = test.input();
    let setup = Setup { buffers: 8, ..test.setup(fabric).unwrap() };
    let mut group = Group::prepare(setup).unwrap();
    let disk = SmallDisk::mount(&group.flush_folder(0), 4 << 20);
    // The spare starts last: the first three that answer become members.
    (0..3).for_each(|member| group.start_backup(member).unwrap());
    group.start_sidecar(0).unwrap();
    let members = group.wait_for_full_set().unwrap();
    assert!(members.contains(&0), "{members:?}");
    group.start_all().unwrap();
    disk.fill();
    // More than the buffers hold: the backup with the full disk can lend no more, and the spare takes its place.
    let app = Background::start(group.observer().clone(), input, 64);
    app.go_on(8 * 1000);
    let end = app.finish().unwrap().acked;
    group
        .wait("the full one to be replaced", |group| {
            let members = group.members();
            members.len() == 3 && !members.contains(&"backup0".to_owned())
        })
        .unwrap();
    check_whole(&group, &input, end).unwrap();
    // The primary says what must be seen to, and where.
    let cause = format!("it cannot write full ones to {}: No space left on device", group.flush_folder(0).display());
    let told = (0..group.sidecars()).filter(|index| group.log(&format!("sidecar{index}")).contains(&cause)).count();
    assert_eq!(told, 1, "`{cause}` is in no sidecar's log");
    let on_disk = |group: &Group| metric(group, 0, "tailwind_backup_segments_on_disk");
    let before = on_disk(&group);
    disk.relieve();
    group.wait("its flushes to succeed", |group| on_disk(group) > before).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, end, 500).unwrap();
    check_whole(&group, &input, end).unwrap();
    group.check_logs(&[&OUTAGE[..], &["flush failed: will retry", "a member lends no buffer"]].concat()).unwrap();
}

fn metric(group: &Group, backup: usize, name: &str) -> u64 {
    group.metric(Process::Backup(backup), name).unwrap_or_else(|| panic!("backup{backup} has no {name}"))
}

/// Nobody is dropped, nothing is lost; and a primary that finds every folder full can be read from, and trims.
fn untrimmed_log_waits_at_its_bound(fabric: &str) {
    let test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(fabric).unwrap();
    (setup.backups, setup.copies, setup.sidecars) = (2, 2, 2);
    setup.backup_options.push(("--flush-bytes", "1MiB".into()));
    let mut group = test.start_group(setup).unwrap();
    let app = Background::start(group.observer().clone(), input, 64);
    let mark = app.go_on(40_000);
    let refuses = |group: &Group, backup| metric(group, backup, "tailwind_backup_opens_refused_total") > 10;
    group.wait("both backups to be full", |group| refuses(group, 0) && refuses(group, 1)).unwrap();
    let acked = app.acked();
    assert!(acked < mark, "{acked} records are more than the folders hold");
    assert_eq!(group.members().len(), 2, "both reach the bound together");
    let first = group.wait_for_primary().unwrap();
    let tells = |group: &Group| {
        let members = group.status(first)["members"].clone();
        let why = |nth: usize| members[nth]["why"].as_str().unwrap_or_default().contains("--flush-bytes");
        why(0) && why(1)
    };
    group.wait("the primary to tell why appends wait", tells).unwrap();
    let for_room = |group: &Group| group.status(first)["appends_wait"]["for"] == "room";
    group.wait("the primary to say that appends wait for room", for_room).unwrap();
    for backup in 0..2 {
        let [bytes, max] =
            ["bytes", "bytes_max"].map(|what| metric(&group, backup, &format!("tailwind_backup_flush_{what}")));
        assert!(max == 1 << 20 && bytes <= max && bytes > max * 8 / 10, "{bytes} of {max}");
    }

    group.kill_sidecar(first).unwrap();
    let client = RefCell::new(primary(&group).unwrap());
    assert!(compare(&mut client.borrow_mut(), &input, 1, acked, |_| {}).unwrap().lost == 0);
    // Nothing can be written, so no barrier passes; its app reads to the end, and gets its turn, all the same.
    let last = client.borrow_mut().read(Lsn(1), 0).unwrap().map(|record| record.unwrap().0).last();
    let last = last.filter(|last| last.0 >= acked).unwrap();
    assert!(is_its_turn(&mut client.borrow_mut(), last.next()));
    let trim = || client.borrow_mut().trim(Lsn(app.acked().max(1))).unwrap();
    group.wait("the log to continue while it is trimmed", |_| trim().0 > 1 && app.acked() >= mark).unwrap();
    let end = app.finish().unwrap().acked;
    let kept = client.borrow_mut().trim(Lsn(1)).unwrap().0;
    let result = read_back(&group, &input, kept, end).unwrap();
    assert!(result.is_clean() && result.read == end + 1 - kept, "{result:?}");
    group.check_logs(&[&OUTAGE[..], &["a member lends no buffer"]].concat()).unwrap();
}

/// Follows from there until its turn comes.
fn is_its_turn(client: &mut Client, from: Lsn) -> bool {
    let mut follow = client.follow(from).unwrap();
    loop {
        match follow.next_event().unwrap() {
            Some(FollowEvent::Turn { .. }) => return true,
            Some(_) => {}
            None => return false,
        }
    }
}

/// The memory of each member, as the config store names it.
fn boots(group: &Group) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(group.newest_config().unwrap()).unwrap();
    let (_, body) = text.split_once('\n').unwrap_or_default();
    let file: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let members = file["configuration"]["members"].as_array().cloned().unwrap_or_default();
    members.into_iter().map(|member| member["boot"].clone()).collect()
}

/// While appends wait for room, members that are gone are replaced: also under a primary that has never appended anything.
fn full_group_replaces_its_members(fabric: &str) {
    let test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(fabric).unwrap();
    (setup.backups, setup.copies, setup.sidecars) = (3, 2, 2);
    setup.backup_options.push(("--flush-bytes", "1MiB".into()));
    let mut group = test.start_group(setup).unwrap();
    let app = Background::start(group.observer().clone(), input, 64);
    let mark = app.go_on(40_000);
    let refused = |group: &Group, backup| metric(group, backup, "tailwind_backup_opens_refused_total");
    let replace = |group: &mut Group| {
        let members = group.wait_for_full_set().unwrap();
        group.wait("full folders", |group| members.iter().all(|backup| refused(group, *backup) > 10)).unwrap();
        let gone = boots(group)[0].clone();
        group.replace_backup(group.backup_named(&group.members()[0]).unwrap()).unwrap();
        let replaced = |group: &Group| {
            let boots = boots(group);
            boots.len() == 2 && !boots.contains(&gone)
        };
        group.wait("a member that is gone to be replaced", replaced).unwrap();
    };
    replace(&mut group);
    let acked = app.acked();
    assert!(acked < mark, "{acked} records are more than the folders hold");

    let first = group.wait_for_primary().unwrap();
    group.kill_sidecar(first).unwrap();
    group.wait("the other to be primary", |group| group.primary().is_some_and(|index| index != first)).unwrap();
    replace(&mut group);
    assert!(app.acked() < mark, "there is no room for all");

    let client = RefCell::new(primary(&group).unwrap());
    assert!(compare(&mut client.borrow_mut(), &input, 1, acked, |_| {}).unwrap().lost == 0);
    let trim = || client.borrow_mut().trim(Lsn(app.acked().max(1))).unwrap();
    group.wait("the log to continue while it is trimmed", |_| trim().0 > 1 && app.acked() >= mark).unwrap();
    let end = app.finish().unwrap().acked;
    let kept = client.borrow_mut().trim(Lsn(1)).unwrap().0;
    let result = read_back(&group, &input, kept, end).unwrap();
    assert!(result.is_clean() && result.read == end + 1 - kept, "{result:?}");
    group.check_logs(&[&OUTAGE[..], &["a member lends no buffer"]].concat()).unwrap();
}

/// Waits until so many closed segments are on every member's disk; the file of the first one at each.
fn flushed(group: &Group, count: usize) -> Vec<PathBuf> {
    let files = |index: usize| damage::closed(&group.flush_folder(index)).unwrap();
    let members = group.wait_for_full_set().unwrap();
    group.wait("closed segments on every disk", |_| members.iter().all(|index| files(*index).len() >= count)).unwrap();
    members.iter().map(|index| files(*index)[0].clone()).collect()
}

fn damaged_and_foreign_files_are_kept(fabric: &str) {
    let test = TestContext::start();
    let input = test.input();
    let mut group = test.group(fabric).unwrap();
    let mut end = append(&mut primary(&group).unwrap(), &input, 0, 2000).unwrap();
    let sound = flushed(&group, 3)[0].clone();
    let folder = sound.parent().unwrap().to_owned();
    let index = (0..group.backups()).find(|index| group.flush_folder(*index) == folder).unwrap();
    let strange = [
        ("segment-0000000000000901.closed", b"nothing of ours".to_vec()),
        ("segment-0000000000000902.closed", Vec::new()),
        ("segment-0000000000000903.open", vec![0xFF; 70_000]),
        ("segment-0000000000000904.closed", fs::read(&sound).unwrap()),
        ("segment-abc.closed", b"not a number".to_vec()),
        ("notes.txt", b"somebody's notes".to_vec()),
    ];
    for (rounds, restart_with) in [(1, Signal::KILL), (2, Signal::TERM)] {
        for (name, bytes) in &strange {
            fs::write(folder.join(name), bytes).unwrap();
        }
        group.signal(Process::Backup(index), restart_with).unwrap();
        group.wait_for_end(Process::Backup(index)).unwrap();
        group.start_backup(index).unwrap();
        end = append(&mut primary(&group).unwrap(), &input, end, 500).unwrap();
        group.wait_for_full_set().unwrap();
        for (name, bytes) in &strange {
            // Those with a segment's name make way for segments; nothing is ever written over them.
            let segment = name.starts_with("segment-0");
            let kept = || {
                let files = damage::files(&folder, |other| other.starts_with(name)).unwrap();
                let kept = files.iter().filter(|(other, found)| *found == bytes && (*other == name) != segment);
                kept.count() == if segment { rounds } else { 1 }
            };
            group.wait(&format!("{name} to be kept"), |_| kept()).unwrap();
        }
    }
    check_whole(&group, &input, end).unwrap();
    // The one with an open segment's name may be what is left of that segment.
    let expected = ["unexpected segment file", "damaged: ", "error: damaged: "];
    group.check_logs(&[&OUTAGE[..], &expected].concat()).unwrap();
}

fn flipped_bit_on_disk_is_never_read(fabric: &str) {
    let mut test = TestContext::start();
    let input = test.input();
    // Three backups and no spare, and no process is taken for dead on a busy machine: a member that is refilled would have
    // a sound copy that this test does not know of.
    let mut setup = test.setup(fabric).unwrap();
    setup.backups = 3;
    setup.sidecar_options.push(("--heartbeat-silence-ms", "20000".to_owned()));
    // So that only readers meet the damage.
    setup.backup_options.push(("--scrub-rate", "0".to_owned()));
    let group = test.start_group(setup).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, 0, 2000).unwrap();
    let files = flushed(&group, 3);
    let mut kept = None;
    for file in &files[1..] {
        let good = fs::read(file).unwrap();
        kept = flip_a_bit(file, &mut test).or(kept);
        // Readers begin with any member: often enough one meets the damage.
        let is_repaired = |group: &Group| {
            check_whole(group, &input, end).unwrap();
            fs::read(file).is_ok_and(|bytes| bytes == good)
        };
        group.wait("the copy to be repaired", is_repaired).unwrap();
    }
    let good: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    for file in &files {
        flip_a_bit(file, &mut test);
    }
    let read = compare(&mut primary(&group).unwrap(), &input, 1, end, |_| {});
    let error = read.expect_err("no sound copy is left").to_string();
    assert!(error.contains("cannot be fetched"), "{error}");
    files.iter().zip(good).for_each(|(file, good)| fs::write(file, good).unwrap());
    // Members that have reported "corrupt" do so until they are refilled, and stay in the set; the log continues.
    let members = group.wait_for_full_set().unwrap();
    assert_eq!(members.len(), 3);
    append(&mut primary(&group).unwrap(), &input, end, 100).unwrap();
    group.wait("the damage in the status", |group| damaged(group) == 3).unwrap();
    let unrepaired = "failed to repair a closed copy";
    group
        .wait("a log line on the failed repair", |group| group.last_lines(usize::MAX).matches(unrepaired).count() == 3)
        .unwrap();
    let expected: Vec<&str> = ["corrupt copy", unrepaired].into_iter().chain(kept).collect();
    check_logs_with_corruption(&group, &expected);
}

/// Corruption is an error where it is found, and a warning at the primary.
fn check_logs_with_corruption(group: &Group, expected: &[&str]) {
    let corruption =
        ["error: closed segment is corrupt", "closed segment is corrupt", "a member has corrupt closed copies"];
    group.check_logs(&[expected, &corruption].concat()).unwrap();
}

/// Damaged copies at members, as the primary's status counts them.
fn damaged(group: &Group) -> u64 {
    let status = group.primary().map(|index| group.status(index)).unwrap_or_default();
    let members = status["members"].as_array().into_iter().flatten();
    members.filter_map(|member| member["damaged"].as_u64()).sum()
}

/// Without a reader: the backup's scrub finds it, and the primary installs it again. Then it is the only copy.
fn corrupt_file_is_repaired_under_a_live_primary(fabric: &str) {
    let mut test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(fabric).unwrap();
    (setup.backups, setup.copies, setup.sidecars) = (2, 2, 2);
    setup.sidecar_options.push(("--min-in-sync", "1".to_owned()));
    setup.sidecar_options.push(("--heartbeat-silence-ms", "20000".to_owned()));
    let mut group = test.start_group(setup).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, 0, 2000).unwrap();
    flushed(&group, 3);
    let file = flushed(&group, 3).into_iter().find(|file| file.starts_with(group.flush_folder(0))).unwrap();
    let good = fs::read(&file).unwrap();
    let kept = flip_a_bit(&file, &mut test);
    group.wait("the file to be sound again", |_| fs::read(&file).is_ok_and(|bytes| bytes == good)).unwrap();
    group
        .wait("the metrics of the repair", |group| {
            let metric = |name| group.metric(Process::Backup(0), name);
            metric("tailwind_backup_scrub_corrupt_total") == Some(1)
                && metric("tailwind_backup_segments_corrupt") == Some(0)
                && metric("tailwind_backup_scrub_passes_total").is_some_and(|passes| passes > 0)
                && damaged(group) == 0
        })
        .unwrap();
    assert_eq!(group.members().len(), 2, "no member was lost");
    group.kill_backup(1).unwrap();
    let leads = group.primary().unwrap();
    group.kill_sidecar(leads).unwrap();
    check_whole(&group, &input, end).unwrap();
    let expected: Vec<&str> = OUTAGE.into_iter().chain(kept).collect();
    check_logs_with_corruption(&group, &expected);
}

/// What the repair warns of, if the bit is in the header: then the file is no segment's, and is kept beside the copy that takes
/// its name.
fn flip_a_bit(file: &Path, test: &mut TestContext) -> Option<&'static str> {
    let mut bytes = fs::read(file).unwrap();
    // Not in the footer, which is read at the start only.
    let at = test.random.below(bytes.len() as u64 - 64) as usize;
    bytes[at] ^= 1 << test.random.below(8);
    fs::write(file, bytes).unwrap();
    (at < SEGMENT_HEADER_SIZE).then_some("another file has this name")
}
