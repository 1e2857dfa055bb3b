//! Mirrors of a table's index in the members' memory: they become live in each term, on every fabric, also at members that come
//! back; a table that has them is cleaned; and a member without memory for one is no error.

use rustix::process::Signal;
use serde_json::Value;
use tailwind_client::Apply;
use tailwind_client::blocking::Table;
use tailwind_e2e::context::TestContext;
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::process::run_to_end;
use tailwind_e2e::processes::steps::{OUTAGE, UNACKNOWLEDGED, wait_for_standby};
use tailwind_e2e::processes::table_app::table;

use crate::tables::{MEMORY, number, told, with_table};

on_every_fabric!(mirrors_are_live_in_each_term, a_member_that_was_frozen_gets_other_memory);

/// A group with a table, whose backups have memory for a mirror.
fn group_with_mirrors(test: &mut TestContext, fabric: &str) -> Group {
    let mut setup = with_table(test.setup_with_default_timeouts(fabric).unwrap(), "1000");
    setup.backup_options.push(("--mirror", "8MiB".to_owned()));
    test.start_group(setup).unwrap()
}

/// What is told of each mirror.
fn mirrors(group: &Group) -> Vec<Value> {
    let primary = group.primary();
    primary.and_then(|primary| told(group, primary)["mirrors"].as_array().cloned()).unwrap_or_default()
}

/// Every member has a mirror that shows everything.
pub(super) fn are_live(group: &Group) -> bool {
    let mirrors = mirrors(group);
    let is_live = |mirror: &Value| mirror["state"] == "live" && mirror["behind"] == 0;
    mirrors.len() == group.setup().copies && mirrors.iter().all(is_live)
}

fn change(table: &mut Table, round: u64) {
    for number in 0..200_u64 {
        let key = format!("key/{}", (number * 7 + round) % 150).into_bytes();
        let request = if number % 5 == 0 { Apply::new().delete(&key) } else { Apply::new().put(&key, b"value") };
        table.submit(request).unwrap();
    }
    table.client().flush().unwrap();
}

fn connect(group: &Group) -> Table {
    table(group.observer(), group.wait_for_primary().unwrap()).unwrap()
}

fn mirrors_are_live_in_each_term(fabric: &str) {
    let mut test = TestContext::start();
    let mut group = group_with_mirrors(&mut test, fabric);
    change(&mut connect(&group), 0);
    group.wait("live mirrors", are_live).unwrap();
    assert!(mirrors(&group).iter().all(|mirror| number(mirror, "published") >= 200), "{:?}", mirrors(&group));

    let victim = group.wait_for_primary().unwrap();
    group.kill_sidecar(victim).unwrap();
    let primary = group.wait_for_primary().unwrap();
    assert_ne!(primary, victim);
    change(&mut connect(&group), 1);
    group.wait("live mirrors in the next epoch", are_live).unwrap();
    assert!(mirrors(&group).iter().all(|mirror| number(mirror, "published") >= 400), "{:?}", mirrors(&group));
    group.start_sidecar(victim).unwrap();
    wait_for_standby(&group, victim, primary).unwrap();

    // A member that dies leaves, and returns with other memory.
    let members = group.wait_for_full_set().unwrap();
    group.kill_backup(members[0]).unwrap();
    change(&mut connect(&group), 2);
    group.start_backup(members[0]).unwrap();
    group.wait_for_full_set().unwrap();
    change(&mut connect(&group), 3);
    group.wait("live mirrors at all members again", are_live).unwrap();
    let mut status = std::process::Command::new(&group.setup().program);
    let status = run_to_end(status.arg("status").arg("--socket").arg(group.socket(primary))).unwrap();
    assert!(status.out.contains("\nmirrors    ") && status.out.contains(" live"), "{}", status.out);
    group.check_logs(&[&OUTAGE[..], &[UNACKNOWLEDGED]].concat()).unwrap();
}

/// It leaves the set and returns in the same epoch, and what was written into its mirror may be on its way all the while.
fn a_member_that_was_frozen_gets_other_memory(fabric: &str) {
    let mut test = TestContext::start();
    let group = group_with_mirrors(&mut test, fabric);
    change(&mut connect(&group), 0);
    group.wait("live mirrors", are_live).unwrap();
    let (members, epoch) = (group.wait_for_full_set().unwrap(), number(&group.status(0), "epoch"));
    group.signal(Process::Backup(members[1]), Signal::STOP).unwrap();
    let set = |group: &Group| mirrors(group).len();
    group.wait("the frozen member to leave", |group| set(group) == members.len() - 1).unwrap();
    change(&mut connect(&group), 1);
    group.signal(Process::Backup(members[1]), Signal::CONT).unwrap();
    group.wait_for_full_set().unwrap();
    change(&mut connect(&group), 2);
    // Over TCP the board's line may have been on its way when it was lost.
    let given_up = |group: &Group| {
        let why = |mirror: &Value| mirror["why"].as_str().is_some_and(|why| why.contains("may still land"));
        fabric != "shm" && mirrors(group).iter().any(why)
    };
    group.wait("live mirrors again", |group| are_live(group) || given_up(group)).unwrap();
    assert_eq!(number(&group.status(0), "epoch"), epoch, "in the same term");
    group.check_logs(&[&OUTAGE[..], &[UNACKNOWLEDGED]].concat()).unwrap();
}

#[test]
fn a_table_with_mirrors_is_cleaned() {
    let mut test = TestContext::start();
    let group = group_with_mirrors(&mut test, "shm");
    let (mut table, primary) = (connect(&group), group.wait_for_primary().unwrap());
    group.wait("live mirrors", are_live).unwrap();
    let metric = |name| group.metric::<u64>(Process::Sidecar(primary), name);
    let mut written = 0;
    while metric("tailwind_table_cleaned_segments_total") < Some(40) {
        for number in 0..100_u64 {
            let value = vec![number as u8; 1000];
            table.submit(Apply::new().put(&number.to_le_bytes(), &value)).unwrap();
            written += value.len() as u64;
        }
        table.client().flush().unwrap();
        assert!(written < 64 * MEMORY, "nothing is cleaned");
    }
    group.wait("live mirrors after cleaning", are_live).unwrap();
    assert_eq!(metric("tailwind_table_mirror_behind_records"), Some(0));
    let posted = group.samples(Process::Sidecar(primary), "tailwind_posted_bytes_total");
    let of = |what: &str| posted.iter().find(|(labels, _)| labels.contains(what)).map_or(0, |(_, bytes)| *bytes);
    assert!(
        of("what=\"log\"") > written * group.setup().copies as u64,
        "{posted:?}: each member has all of {written} bytes"
    );
    assert!(of("what=\"mirror\"") > 0, "{posted:?}");
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn a_member_without_memory_has_no_mirror() {
    let test = TestContext::start();
    let mut setup = with_table(test.setup("shm").unwrap(), "1000");
    (setup.backups, setup.copies) = (2, 2);
    let mut group = test.start_group(setup).unwrap();
    connect(&group).put(b"key", b"value").unwrap();
    let none = |group: &Group| {
        let mirrors = mirrors(group);
        mirrors.len() == 2 && mirrors.iter().all(|mirror| mirror["state"] == "none" && mirror["why"].is_string())
    };
    group.wait("members that say why they have no mirror", none).unwrap();
    group.signal(Process::Backup(0), Signal::TERM).unwrap();
    group.wait_for_end(Process::Backup(0)).unwrap();
    group.start_backup(0).unwrap();
    group.wait_for_full_set().unwrap();
    connect(&group).put(b"key", b"value").unwrap();
    group.check_logs(&[&OUTAGE[..], &["no board"]].concat()).unwrap();
}
