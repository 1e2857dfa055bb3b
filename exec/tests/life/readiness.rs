//! What a probe is told.

use std::fs;
use std::process::Command;

use crate::sidecar::Sidecar;
use crate::{EXEC, Place, wait_until};

fn is_ready(place: &Place, command: &[&str]) -> bool {
    let mut probe = Command::new(EXEC);
    probe.args(["ready", "--dir"]).arg(place.volume()).arg("--").args(command);
    probe.output().unwrap().status.success()
}

#[test]
fn a_running_program_is_ready_if_the_command_says_so() {
    let place = Place::new();
    assert!(!is_ready(&place, &[]), "nothing runs");
    let sidecar = Sidecar::start(place.path());
    let running = place.run(&sidecar, &[], "echo runs; sleep 86399");
    place.wait_for("stdout", "runs");
    wait_until("readiness", || is_ready(&place, &[]));
    assert!(is_ready(&place, &["true"]));
    assert!(!is_ready(&place, &["false"]));
    drop(running);
}

#[test]
fn a_standby_is_ready_once_its_directory_is_as_the_log_has_it() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    sidecar.lose_role();
    let running = place.run(&sidecar, &[], "true");
    place.wait_for("stderr", "waits for its turn");
    wait_until("readiness", || is_ready(&place, &["false"]));
    drop(running);

    // The next one has no sidecar yet, and so knows nothing.
    fs::remove_file(sidecar.socket()).unwrap();
    let running = place.run(&sidecar, &[], "true");
    place.wait_for("stderr", "waits for the sidecar");
    assert!(!is_ready(&place, &[]));
    drop(running);
}

#[test]
fn the_program_copies_itself() {
    let place = Place::new();
    for _ in 0..2 {
        let copied = Command::new(EXEC).arg("copy-to").arg(place.path()).output().unwrap();
        assert!(copied.status.success(), "{copied:?}");
    }
    let said = Command::new(place.path().join("tailwind-exec")).arg("--version").output().unwrap();
    assert!(said.status.success(), "{said:?}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing else is left");
}
