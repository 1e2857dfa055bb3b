//! After a loss no sync is confirmed any more, and nobody is left.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::sidecar::Sidecar;
use crate::{LOST, Place, Running, wait_until};

/// Syncs a line again and again, and says after each whether that was confirmed. A child in a session of its own keeps running,
/// whatever happens to the others.
const WRITER: &str = "
    setsid sleep 86399 & echo $! >descendant
    while :; do
        echo line >>volume/file
        if sync volume/file; then echo confirmed; else echo refused; fi
    done";

fn runs(process: &str) -> bool {
    Path::new("/proc").join(process.trim()).exists()
}

/// A writer that has had a sync confirmed.
fn start(place: &Place, sidecar: &Sidecar, options: &[&str], script: &str) -> Running {
    let running = place.run(sidecar, options, script);
    place.wait_for("stdout", "confirmed");
    running
}

/// Waits for the exit code of a loss. Nobody is left then.
pub(crate) fn check_end(place: &Place, mut running: Running) {
    let status = running.wait();
    assert_eq!(status.code(), Some(LOST), "{status}");
    assert!(!runs(&place.read("descendant")), "a process of the program is left");
}

#[test]
fn a_lost_role_kills_every_process() {
    let place = end_after(Sidecar::lose_role);
    assert!(!place.read("stdout").contains("refused"), "nobody has answered");
}

/// Waits for the end of a writer after its sidecar has done this.
fn end_after(loss: impl FnOnce(&Sidecar)) -> Place {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let running = start(&place, &sidecar, &[], WRITER);
    loss(&sidecar);
    check_end(&place, running);
    place
}

#[test]
fn a_dead_sidecar_is_a_loss() {
    end_after(Sidecar::hang_up);
}

#[test]
fn records_of_another_writer_are_a_loss() {
    let place = end_after(Sidecar::append_of_another);
    assert!(place.read("stderr").contains("the log has records of another writer"));
}

#[test]
fn a_sync_without_an_ack_is_never_confirmed() {
    const SCRIPT: &str = "
        setsid sleep 86399 & echo $! >descendant
        echo line >volume/first; sync volume/first && echo confirmed
        while [ ! -e go ]; do sleep 0.01; done
        echo line >volume/second; sync volume/second && echo wrong
        sleep 86399";
    for on_loss in ["kill", "term"] {
        let place = Place::new();
        let sidecar = Sidecar::start(place.path());
        let running = start(&place, &sidecar, &["--on-loss", on_loss], SCRIPT);
        let records = sidecar.log().len();
        sidecar.hold_acks();
        place.create("go");
        wait_until("an append", || sidecar.log().len() > records);
        sidecar.hang_up();
        check_end(&place, running);
        assert!(!place.read("stdout").contains("wrong"), "--on-loss {on_loss}");
    }
}

/// What is in the log already may have been overwritten by a successor's program.
#[test]
fn a_sync_of_nothing_new_waits_for_an_ack() {
    const SCRIPT: &str = "
        echo line >volume/first; sync volume/first && echo confirmed
        while [ ! -e go ]; do sleep 0.01; done
        sync volume/first && echo wrong
        sleep 86399";
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let mut running = place.run(&sidecar, &[], SCRIPT);
    place.wait_for("stdout", "confirmed");
    let records = sidecar.log().len();
    sidecar.hold_acks();
    place.create("go");
    wait_until("an append", || sidecar.log().len() > records);
    sidecar.hang_up();
    assert_eq!(running.wait().code(), Some(LOST));
    assert!(!place.read("stdout").contains("wrong"));
}

#[test]
fn a_program_that_is_asked_to_end_gets_errors_and_time() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    // A shell that waits is interrupted by nothing but the signal.
    let script = format!(
        "trap 'echo line >>volume/other; sync volume/other || echo refused in the end; exit 0' TERM
        ({WRITER}) & wait"
    );
    let running = start(&place, &sidecar, &["--on-loss", "term"], &script);
    sidecar.lose_role();
    check_end(&place, running);
    assert!(place.read("stdout").contains("refused in the end\n"));
}

#[test]
fn a_program_that_does_not_end_is_killed() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let running = start(&place, &sidecar, &["--on-loss", "term"], &format!("trap '' TERM\n{WRITER}"));
    sidecar.lose_role();
    check_end(&place, running);
    let said = place.read("stdout");
    let after = said.rsplit("confirmed").next().unwrap();
    assert!(after.contains("refused"), "it was heard out with errors");
}

/// Asks `tailwind-exec` to end.
fn terminate(running: &Running) {
    kill_process(Pid::from_child(&running.child), Signal::TERM).unwrap();
}

#[test]
fn a_turn_without_acks_ends_when_asked() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    sidecar.hold_acks();
    let mut running = place.run(&sidecar, &[], "echo started");
    wait_until("an append", || !sidecar.log().is_empty());
    terminate(&running);
    assert_eq!((running.wait().code(), place.read("stdout")), (Some(0), String::new()));
}

#[test]
fn an_end_without_acks_ends_when_asked_and_is_none() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let script = "echo started; while [ ! -e go ]; do sleep 0.01; done; echo line >volume/file";
    let mut running = place.run(&sidecar, &[], script);
    place.wait_for("stdout", "started");
    let records = sidecar.log().len();
    sidecar.hold_acks();
    place.create("go");
    wait_until("an append", || sidecar.log().len() > records);
    terminate(&running);
    assert_eq!(running.wait().code(), Some(LOST));
}
