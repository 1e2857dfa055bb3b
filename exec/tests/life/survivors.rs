//! Processes of the program that outlive a `tailwind-exec` which is not PID 1.

use rustix::process::{Pid, Signal, kill_process_group};

use crate::sidecar::Sidecar;
use crate::{Place, wait_until};

/// Nothing that it does is stopped: neither opening a file nor appending to it.
const SURVIVOR: &str = "setsid sh -c 'echo $$ >survivor; while :; do echo x >>volume/file; sleep 0.05; done' & wait";

#[test]
fn a_directory_to_which_a_survivor_writes_stays_locked() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let mut running = place.run(&sidecar, &[], SURVIVOR);
    wait_until("the survivor to write", || place.volume().join("file").exists());
    running.child.kill().unwrap();
    assert!(!running.wait().success());
    assert_eq!(place.run(&sidecar, &[], "true").wait().code(), Some(1));
    let said = place.read("stderr");
    assert!(said.contains("lock is locked: ") && said.contains("have outlived theirs"), "{said}");

    let survivor = Pid::from_raw(place.read("survivor").trim().parse().unwrap()).unwrap();
    // And its children, which may wait for an answer that nobody will give.
    kill_process_group(survivor, Signal::KILL).unwrap();
    wait_until("its directory to be free", || place.run(&sidecar, &[], "true").wait().success());
}
