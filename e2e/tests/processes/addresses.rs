//! A dead primary's address has a new owner: another sidecar, a reader, a backup, or the standby itself. A standby takes over
//! all the same.

use std::fs;
use std::process::Command;

use tailwind_e2e::context::TestContext;
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::process::{Daemon, with_options};
use tailwind_e2e::processes::steps::{OUTAGE, append, primary};

/// The fabric plays no part in these.
const FABRIC: &str = "shm";

/// The first sidecar leads, the second stands by.
fn led_group(test: &TestContext) -> (Group, u64) {
    let group = test.group(FABRIC).unwrap();
    group.wait("the first sidecar to lead", |group| group.role(0) == "primary" && group.role(1) == "standby").unwrap();
    let end = append(&mut primary(&group).unwrap(), &test.input(), 0, 500).unwrap();
    (group, end)
}

fn address(group: &Group, process: Process) -> String {
    format!("127.0.0.1:{}", group.port(process))
}

#[test]
fn a_reader_at_the_dead_primarys_address_is_not_the_primary() {
    let test = TestContext::start();
    let (mut group, end) = led_group(&test);
    group.kill_sidecar(0).unwrap();
    let mut reader = Daemon::new("feed", group.folder().join("feed.log"));
    let socket = group.folder().join("feed.sock");
    let mut command = Command::new(&group.setup().program);
    command.args(["run", "--reader", "--group", "demo", "--name", "feed", "--fabric", FABRIC]);
    command.args(["--listen", &address(&group, Process::Sidecar(0))]);
    command.arg("--socket").arg(socket).arg("--config").arg(group.config());
    command.arg("--control-token").arg(group.token_file());
    reader.start(command).unwrap();
    group.wait("the standby to lead", |group| group.role(1) == "primary").unwrap();
    append(&mut primary(&group).unwrap(), &test.input(), end, 100).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn a_backup_at_the_dead_primarys_address_is_not_the_primary() {
    let test = TestContext::start();
    let (mut group, end) = led_group(&test);
    group.kill_sidecar(0).unwrap();
    let (pool, flush) = (group.folder().join("pool-of-another"), group.folder().join("flush-of-another"));
    let mut backup = Daemon::new("another", group.folder().join("another.log"));
    let listen = address(&group, Process::Sidecar(0));
    let command = with_options(
        &group.backup_command(0),
        [
            ("--name", "another"),
            ("--listen", &listen),
            ("--pool", pool.to_str().unwrap()),
            ("--flush-dir", flush.to_str().unwrap()),
        ],
    );
    backup.start(command).unwrap();
    group.wait("the standby to lead", |group| group.role(1) == "primary").unwrap();
    append(&mut primary(&group).unwrap(), &test.input(), end, 100).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

/// The one sidecar that is left has another name now, and the address that the config store names.
#[test]
fn a_sidecar_at_the_dead_primarys_address_takes_over() {
    let test = TestContext::start();
    let (mut group, end) = led_group(&test);
    group.kill_sidecar(0).unwrap();
    group.kill_sidecar(1).unwrap();
    let mut renamed = Daemon::new("renamed", group.folder().join("renamed.log"));
    renamed.start(with_options(&group.sidecar_command(0), [("--name", "renamed")])).unwrap();
    group.wait("it to lead", |group| group.role(0) == "primary").unwrap();
    append(&mut primary(&group).unwrap(), &test.input(), end, 100).unwrap();
    let log = fs::read_to_string(group.folder().join("renamed.log")).unwrap();
    assert!(log.contains("this is sidecar renamed, not sidecar0"), "{log}");
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn sidecars_that_swap_addresses_find_a_primary() {
    let test = TestContext::start();
    let (mut group, end) = led_group(&test);
    let addresses = [0, 1].map(|index| address(&group, Process::Sidecar(index)));
    group.kill_sidecar(0).unwrap();
    group.kill_sidecar(1).unwrap();
    let mut swapped = [0, 1].map(|index| {
        let name = format!("swapped{index}");
        let mut daemon = Daemon::new(&name, group.folder().join(format!("{name}.log")));
        daemon.start(with_options(&group.sidecar_command(index), [("--listen", &*addresses[1 - index])])).unwrap();
        daemon
    });
    group.wait("one to lead", |group| (0..2).any(|index| group.role(index) == "primary")).unwrap();
    append(&mut primary(&group).unwrap(), &test.input(), end, 100).unwrap();
    swapped.iter_mut().for_each(|daemon| daemon.kill().unwrap());
    group.check_logs(&OUTAGE).unwrap();
}
