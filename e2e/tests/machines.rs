//! The virtual machines themselves: what tests with soft-RoCE rely on when they kill machines and cut wires.
//!
//! Behind the feature `machines`, since it boots kernels: `cargo test -p tailwind-e2e --features machines --test machines`.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::time::Instant;

use tailwind_e2e::machine::{Hardware, Machine, Wire};
use tailwind_e2e::view::PATIENCE;

#[test]
fn machines_on_a_wire_are_cut_off_frozen_and_killed() {
    let mut wire = Wire::lay(3).unwrap();
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
    let deadline = Instant::now() + PATIENCE;
    while (machine.run(script).unwrap().status == 0) != succeeds {
        assert!(Instant::now() < deadline, "machine {}: {script}: never {succeeds}", machine.id());
    }
}
