//! With a lease no program answers reads from memory that may be outdated.

use std::io::Write;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;

use crate::loss::check_end;
use crate::sidecar::Sidecar;
use crate::{LOST, Place, Running, wait_until};

/// So long that a busy machine sends barriers in time.
const LEASE_MS: &str = "1500";
const LEASE: Duration = Duration::from_millis(1500);

/// Answers reads until it is killed.
const SERVER: &str = "setsid sleep 86399 & echo $! >descendant; echo started; wait";

#[test]
fn a_program_that_is_cut_off_is_killed() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let running = place.run(&sidecar, &["--lease", LEASE_MS], SERVER);
    place.wait_for("stdout", "started");
    sidecar.hold_acks();
    sidecar.hold_barriers();
    check_end(&place, running);
}

#[test]
fn a_program_lives_on_while_barriers_pass() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let script = "echo started; while [ ! -e end ]; do sleep 0.01; done";
    let mut running = place.run(&sidecar, &["--lease", LEASE_MS], script);
    place.wait_for("stdout", "started");
    let (began, before) = (Instant::now(), sidecar.barriers());
    wait_until("barriers for longer than a lease", || {
        sidecar.barriers() > before + 6 && began.elapsed() > LEASE * 3 / 2
    });
    place.create("end");
    assert!(running.wait().success());
}

#[test]
fn barriers_of_a_later_epoch_prove_nothing() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let running = place.run(&sidecar, &["--lease", LEASE_MS], SERVER);
    place.wait_for("stdout", "started");
    sidecar.lead_later_epoch();
    check_end(&place, running);
}

#[test]
fn a_new_primary_waits_for_the_end_of_other_leases() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let _running = place.run(&sidecar, &["--lease", LEASE_MS], SERVER);
    place.wait_for("stdout", "started");
    let waited = sidecar.turn().unwrap().elapsed();
    assert!(waited >= LEASE * 6 / 5, "{waited:?}");
}

#[test]
fn without_a_barrier_no_program_starts() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    sidecar.hold_barriers();
    let mut running = place.run(&sidecar, &["--lease", LEASE_MS], SERVER);
    assert_eq!(running.wait().code(), Some(LOST));
    assert_eq!(place.read("stdout"), "");
}

/// Nobody reads standard error any more. In the second case the program has asked never to wait for that, for itself and so for
/// `tailwind-exec`.
#[test]
fn a_program_is_killed_although_the_log_is_stuck() {
    for nonblocking in [false, true] {
        let place = Place::new();
        let sidecar = Sidecar::start(place.path());
        let (_reader, mut writer) = std::io::pipe().unwrap();
        let mut command = place.exec(&["--lease", LEASE_MS]);
        command.arg("--socket").arg(sidecar.socket()).args(["--", "sh", "-c", SERVER]);
        let running = Running { child: command.stderr(writer.try_clone().unwrap()).spawn().unwrap() };
        place.wait_for("stdout", "started");
        ioctl_fionbio(&writer, true).unwrap();
        while writer.write_all(&[b'.'; 512]).is_ok() {}
        ioctl_fionbio(&writer, nonblocking).unwrap();
        sidecar.hold_acks();
        sidecar.hold_barriers();
        check_end(&place, running);
    }
}
