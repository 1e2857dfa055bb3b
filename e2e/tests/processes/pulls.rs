//! Segments that members copy from each other: none of their bytes pass through the primary, even if a source fails.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use tailwind_e2e::context::{TestContext, rounds};
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::steps::{OUTAGE, append, check_whole, primary};

on_every_fabric!(replaced_backup_pulls_what_it_lacks, rotten_source_is_passed_over, source_is_killed_in_a_pull);

/// Records of a log with many closed segments.
const RECORDS: u64 = 4_000;

/// The closed segments in a backup's flush folder, by their names.
fn closed(group: &Group, backup: usize) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(group.flush_folder(backup)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("segment-") && name.ends_with(".closed") {
            found.extend(fs::read(entry.path()).ok().map(|bytes| (name, bytes)));
        }
    }
    found
}

/// The closed segments of a backup once there are as many as at another one.
fn all_closed(group: &Group, backup: usize, other: usize) -> BTreeMap<String, Vec<u8>> {
    let whole = |group: &Group| {
        let (here, there) = (closed(group, backup), closed(group, other));
        here.len() > 2 && here.keys().eq(there.keys())
    };
    group.wait("two backups to have the same closed segments on disk", whole).unwrap();
    closed(group, backup)
}

/// The copies that were there before are there, as they were. More may have come: what is closed is flushed later.
fn assert_kept(found: &BTreeMap<String, Vec<u8>>, before: &BTreeMap<String, Vec<u8>>, why: &str) {
    let other: Vec<&String> =
        before.iter().filter(|(name, bytes)| found.get(*name) != Some(bytes)).map(|(name, _)| name).collect();
    assert!(other.is_empty(), "{why}: {other:?} are missing or differ");
}

/// The bytes go from member to member, and the primary sends none of them.
fn replaced_backup_pulls_what_it_lacks(fabric: &str) {
    let test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(fabric).unwrap();
    (setup.backups, setup.copies) = (3, 3);
    let mut group = test.start_group(setup).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, 0, RECORDS).unwrap();
    let good = all_closed(&group, 0, 1);
    group.replace_backup(2).unwrap();
    group
        .wait("the empty backup to pull every closed segment and to join", |group| {
            let pulled = group.metric(Process::Backup(2), "tailwind_backup_pulled_segments_total");
            pulled >= Some(good.len() as u64) && group.members().len() == 3
        })
        .unwrap();
    let leads = group.wait_for_primary().unwrap();
    assert_eq!(group.metric(Process::Sidecar(leads), "tailwind_image_bytes_total"), Some(0));
    assert_kept(&all_closed(&group, 2, 0), &good, "pulled as they were");
    check_whole(&group, &input, end).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

/// Every copy of one member has rotted, and nobody knows. The newcomer gets sound ones all the same, and the member's own are
/// repaired from others once they are found: none of them is taken for sound or copied over another's.
fn rotten_source_is_passed_over(fabric: &str) {
    let mut test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(fabric).unwrap();
    (setup.backups, setup.copies) = (3, 3);
    // So that only pulls meet the damage.
    setup.backup_options.push(("--scrub-rate", "0".to_owned()));
    let mut group = test.start_group(setup).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, 0, RECORDS).unwrap();
    let good = all_closed(&group, 0, 1);
    for (name, bytes) in &good {
        let mut rotten = bytes.clone();
        let at = test.random.below(bytes.len() as u64 - 64) as usize;
        rotten[at] ^= 1 << test.random.below(8);
        fs::write(group.flush_folder(0).join(name), rotten).unwrap();
    }
    group.replace_backup(2).unwrap();
    group.wait("the empty backup to join", |group| group.members().len() == 3).unwrap();
    assert_kept(&all_closed(&group, 2, 1), &good, "no rotten copy was taken");
    let repaired = |group: &Group| closed(group, 0).iter().any(|(name, bytes)| good.get(name) == Some(bytes));
    group.wait("a copy that a pull has found to be rotten to be repaired", repaired).unwrap();
    assert_kept(&closed(&group, 1), &good, "nothing was copied over what was sound");
    check_whole(&group, &input, end).unwrap();
    let corruption = [
        "error: closed segment is corrupt",
        "closed segment is corrupt",
        "a member has corrupt closed copies",
        "corrupt copy",
    ];
    group.check_logs(&[&OUTAGE[..], &corruption].concat()).unwrap();
}

/// The remaining members have the segments, and the set comes back to its size.
fn source_is_killed_in_a_pull(fabric: &str) {
    let mut test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(fabric).unwrap();
    (setup.backups, setup.copies) = (3, 3);
    setup.sidecar_options.push(("--min-in-sync", "1".to_owned()));
    let mut group = test.start_group(setup).unwrap();
    let mut end = 0;
    for round in 0..rounds(3) as usize {
        end = append(&mut primary(&group).unwrap(), &input, end, RECORDS).unwrap();
        let good = all_closed(&group, 0, 1);
        let (emptied, killed) = (round % 3, (round + 1) % 3);
        group.replace_backup(emptied).unwrap();
        // At any moment of the pulls.
        std::thread::sleep(Duration::from_millis(test.random.below(100)));
        group.kill_backup(killed).unwrap();
        group.start_backup(killed).unwrap();
        assert_eq!(group.wait_for_full_set().unwrap().len(), 3);
        let other = (round + 2) % 3;
        let sound = all_closed(&group, emptied, other);
        assert_kept(&sound, &good, "nothing was lost");
        check_whole(&group, &input, end).unwrap();
    }
    group.check_logs(&OUTAGE).unwrap();
}
