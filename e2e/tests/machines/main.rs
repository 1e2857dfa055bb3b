//! Groups over machines that die, are cut off or lose packets, over real verbs; and the virtual machines themselves: what
//! tests with soft-RoCE rely on when they kill machines and cut wires.
//!
//! Behind the feature `machines`, since it boots kernels: `cargo test -p tailwind-e2e --features machines --test machines`.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::path::Path;
use std::time::Instant;

use tailwind_e2e::cluster::ack_oracle::STOPPED;
use tailwind_e2e::context::{TestContext, exclusive};
use tailwind_e2e::machines::fleet::{Fleet, RemoteApp};
use tailwind_e2e::machines::machine::{Hardware, Machine, Wire};
use tailwind_e2e::processes::observer::TIMEOUT;
use tailwind_e2e::processes::steps::OUTAGE;
use tailwind_report::readiness::WaitsFor;

/// Machines 1 to 3, each with a sidecar and a backup; machine 1 is primary, every backup is in the set. Of three copies
/// two are needed, so that one machine may be missing, and one machine alone can acknowledge nothing.
fn group() -> Fleet {
    let mut fleet = Fleet::boot(3, Path::new(env!("CARGO_BIN_EXE_loader"))).unwrap();
    fleet.start().unwrap();
    fleet
}

/// A machine with a standby and a backup. While it is cut off it still reaches the config store, as where that is in
/// another network, and finds its primary silent: it must not depose it.
#[test]
fn standby_host_is_cut_off_and_dies() {
    let (_exclusive, mut test, mut fleet) = (exclusive(), TestContext::start(), group());
    let app = fleet.append(1).unwrap();
    fleet.wait_for_acks(&app, 500 + test.random.below(1000)).unwrap();
    let victim = 2 + test.random.below(2) as usize;
    fleet.wire().block(victim, true).unwrap();
    let waits = |fleet: &mut Fleet| Ok(fleet.status(victim)["waiting"]["for"] == WaitsFor::Members.as_str());
    fleet.wait("it to notice that it is cut off", waits).unwrap();
    fleet.wait_for_members(2).unwrap();
    fleet.wait_for_acks(&app, 1000).unwrap();
    fleet.wire().block(victim, false).unwrap();
    fleet.wait_for_members(3).unwrap();
    assert_eq!(fleet.wait_for_status(1).unwrap()["epoch"], 1, "deposed");

    fleet.kill(victim).unwrap();
    fleet.wait_for_members(2).unwrap();
    fleet.wait_for_acks(&app, 1000).unwrap();
    let end = fleet.finish(&app).unwrap();
    fleet.check(1, &[&app], end).unwrap();
    fleet.logs().check_logs(&OUTAGE).unwrap();
}

/// Kills the host of the primary, machine 1. Another machine takes over, beyond everything that was acknowledged to the
/// app; the app that appends there.
fn lose_the_primary(fleet: &mut Fleet, app: &RemoteApp) -> (usize, RemoteApp) {
    fleet.kill(1).unwrap();
    let acked = app.progress().unwrap().acked;
    let successor = fleet.wait_for_successor(1).unwrap();
    let next = fleet.append(successor).unwrap();
    let begun = next.progress().unwrap();
    assert!(begun.first > acked, "record {acked} was acknowledged, and {begun:?}");
    assert_eq!(begun.epoch, fleet.wait_for_status(successor).unwrap()["epoch"]);
    (successor, next)
}

#[test]
fn primary_host_dies() {
    let (_exclusive, mut test, mut fleet) = (exclusive(), TestContext::start(), group());
    let app = fleet.append(1).unwrap();
    fleet.wait_for_acks(&app, 500 + test.random.below(1000)).unwrap();
    let (successor, next) = lose_the_primary(&mut fleet, &app);
    fleet.wait_for_acks(&next, 2000).unwrap();
    let end = fleet.finish(&next).unwrap();
    fleet.check(successor, &[&app, &next], end).unwrap();

    // It comes back without its memory, and gets it filled.
    fleet.boot_again(1).unwrap();
    fleet.start_backup(1).unwrap();
    fleet.wait_for_members(3).unwrap();
    fleet.logs().check_logs(&OUTAGE).unwrap();
}

#[test]
fn primary_cable_is_pulled() {
    the_primary_is_cut_off(|fleet, cut| fleet.machine(1).unwrap().cut_link(cut).unwrap());
}

#[test]
fn primary_switch_fails() {
    the_primary_is_cut_off(|fleet, cut| fleet.wire().block(1, cut).unwrap());
}

/// The others cannot reach the machine, and it can reach neither the others nor the config store. The old primary and its app go
/// on as long as they can. The app on the new one begins after the last record of the log;
/// from then on the old one acknowledges nothing, neither while it is cut off nor afterwards.
fn the_primary_is_cut_off(cut_off: impl Fn(&mut Fleet, bool)) {
    let (_exclusive, mut test, mut fleet) = (exclusive(), TestContext::start(), group());
    let app = fleet.append(1).unwrap();
    fleet.wait_for_acks(&app, 500 + test.random.below(1000)).unwrap();
    fleet.hide_store(1, true).unwrap();
    cut_off(&mut fleet, true);
    let successor = fleet.wait_for_successor(1).unwrap();
    let next = fleet.append(successor).unwrap();
    let begun = next.progress().unwrap();
    let last = |when: &str| {
        let progress = app.progress().unwrap();
        assert!(progress.acked < begun.first, "{when} the old primary has {progress:?}, and its successor {begun:?}");
        progress
    };
    last("cut off");
    fleet.wait_for_acks(&next, 1000).unwrap();
    last("still cut off");

    cut_off(&mut fleet, false);
    fleet.hide_store(1, false).unwrap();
    fleet.wait_for_acks(&next, 1000).unwrap();
    fleet.wait_for_progress(&app, "the old app to lose its primary", |progress| progress.ended.is_some()).unwrap();
    let progress = last("in the end");
    assert_ne!(progress.ended.as_deref(), Some(STOPPED), "{progress:?}");
    let primary = format!("sidecar{successor}");
    let steps_down = |fleet: &mut Fleet| {
        let status = fleet.status(1);
        Ok(status["role"] == "standby" && status["primary"]["name"] == *primary)
    };
    fleet.wait("the old primary to be a standby", steps_down).unwrap();
    let end = fleet.finish(&next).unwrap();
    fleet.check(successor, &[&app, &next], end).unwrap();
    fleet.wait_for_members(3).unwrap();
    // Its own backup may be the only one with the first records of a segment: nobody acknowledged them, and they are kept aside.
    let causes = ["event=port error", "the configuration", "not part of the log: quarantined"];
    let expected: Vec<&str> = OUTAGE.into_iter().chain(causes).collect();
    fleet.logs().check_logs(&expected).unwrap();
}

/// Packets get lost and overtake each other, those of TCP as those of RDMA.
#[test]
fn packets_are_lost_and_reordered() {
    let (_exclusive, mut test, mut fleet) = (exclusive(), TestContext::start(), group());
    for id in fleet.alive() {
        let rule = "tc qdisc add dev eth0 root netem loss 1% delay 1ms reorder 25% 50%";
        fleet.machine(id).unwrap().must(rule).unwrap();
    }
    let app = fleet.append(1).unwrap();
    fleet.wait_for_acks(&app, 1000 + test.random.below(1000)).unwrap();
    let (successor, next) = lose_the_primary(&mut fleet, &app);
    fleet.wait_for_acks(&next, 1000).unwrap();
    let end = fleet.finish(&next).unwrap();
    fleet.check(successor, &[&app, &next], end).unwrap();
    fleet.logs().check_logs(&OUTAGE).unwrap();
}

#[test]
fn machines_are_cut_off_frozen_and_killed() {
    let _exclusive = exclusive();
    let mut wire = Wire::create(3).unwrap();
    let mut machines = wire.boot(&[1, 2, 3], &Hardware::default()).unwrap();

    for machine in &mut machines {
        assert_eq!(machine.must("ls /sys/class/infiniband").unwrap(), "rxe0\n");
        assert_eq!(machine.run("echo out; echo error >&2; exit 3").unwrap().status, 3);
        assert_eq!(machine.run("echo 'no end").unwrap().status, 2, "a syntax error ends only its own shell");
    }
    let [mut one, mut two, mut three] = <[Machine; 3]>::try_from(machines).unwrap();
    wait_until(&mut one, true, &ping(&two));
    wait_until(&mut two, true, &ping(&three));
    wait_until(&mut three, true, &ping(&one));

    the_share_is_one_folder(&wire, &mut one, &mut two);
    a_started_script_goes_on(&wire, &mut one);

    // The cable is out: its card knows.
    two.cut_link(true).unwrap();
    wait_until(&mut two, true, "grep -q DOWN /sys/class/infiniband/rxe0/ports/1/state");
    wait_until(&mut one, false, &ping(&two));
    wait_until(&mut one, true, &ping(&three));
    two.cut_link(false).unwrap();
    wait_until(&mut two, true, "grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state");
    wait_until(&mut one, true, &ping(&two));

    // The switch is broken: its card does not.
    wire.block(two.id(), true).unwrap();
    wait_until(&mut one, false, &ping(&two));
    assert_eq!(two.must("cat /sys/class/infiniband/rxe0/ports/1/state").unwrap(), "4: ACTIVE\n");
    wire.block(two.id(), false).unwrap();
    wait_until(&mut one, true, &ping(&two));

    three.freeze(true).unwrap();
    wait_until(&mut one, false, &ping(&three));
    three.freeze(false).unwrap();
    wait_until(&mut one, true, &ping(&three));

    let gone = ping(&three);
    three.kill().unwrap();
    wait_until(&mut one, false, &gone);
    wait_until(&mut one, true, &ping(&two));
    let three = wire.boot(&[3], &Hardware::default()).unwrap();
    wait_until(&mut one, true, &ping(&three[0]));
}

fn the_share_is_one_folder(wire: &Wire, one: &mut Machine, two: &mut Machine) {
    one.must("cd /share && echo whole >new && sync new && mv new file && ln file linked").unwrap();
    assert_eq!(fs::read_to_string(wire.share().join("linked")).unwrap(), "whole\n");
    assert_eq!(two.must("cat /share/file").unwrap(), "whole\n");
    let exclusively = "set -C; echo mine >/share/lock";
    assert_eq!(one.run(exclusively).unwrap().status, 0);
    assert_ne!(two.run(exclusively).unwrap().status, 0, "only one of them creates it");
    fs::remove_file(wire.share().join("lock")).unwrap();
    assert_eq!(two.run(exclusively).unwrap().status, 0);
}

fn a_started_script_goes_on(wire: &Wire, machine: &mut Machine) {
    let process = machine.start("echo began; sleep 1000", "log").unwrap();
    wait_until(machine, true, "grep -q began /share/log");
    assert_eq!(fs::read_to_string(wire.share().join("log")).unwrap(), "began\n");
    machine.must(&format!("kill -KILL -{process}")).unwrap();
    wait_until(machine, false, &format!("kill -0 {process}"));
}

fn ping(to: &Machine) -> String {
    format!("ping -c 1 -W 1 {}", to.address())
}

/// Waits until a script succeeds, or until it fails.
fn wait_until(machine: &mut Machine, succeeds: bool, script: &str) {
    let deadline = Instant::now() + TIMEOUT;
    while (machine.run(script).unwrap().status == 0) != succeeds {
        assert!(Instant::now() < deadline, "machine {}: {script}: never {succeeds}", machine.id());
    }
}
