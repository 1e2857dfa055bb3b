//! As PID 1 of a container: a PID namespace of its own.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::sidecar::Sidecar;
use crate::{EXEC, LOST, Place, Running, cannot_run, wait_until};

const UNSHARE: [&str; 5] = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];

/// Whether namespaces may be made here; in most containers they may not.
fn may_unshare(test: &str) -> bool {
    let tried = Command::new("unshare").args(UNSHARE).arg("true").stderr(Stdio::null()).status();
    let may = tried.is_ok_and(|status| status.success());
    if !may {
        cannot_run(test, "no PID namespace can be made here");
    }
    may
}

/// `tailwind-exec` as PID 1, with a shell script.
fn start(place: &Place, sidecar: &Sidecar, script: &str) -> Running {
    let mut command = place.command("unshare");
    command.args(UNSHARE).arg("--kill-child").arg(EXEC).arg("--dir").arg(place.volume());
    command.arg("--socket").arg(sidecar.socket()).args(["--", "sh", "-c", script]);
    Running { child: command.spawn().unwrap() }
}

/// A program with a child in a session of its own, which has the argument that comes back.
fn start_with_session(place: &Place, sidecar: &Sidecar) -> (Running, String) {
    let mark = place.path().join("mark").display().to_string();
    let script = format!("setsid sh -c 'echo ready; while :; do sleep 0.01; done' {mark} & sleep 86399");
    let running = start(place, sidecar, &script);
    place.wait_for("stdout", "ready");
    (running, mark)
}

/// The number of `tailwind-exec` outside of its namespace.
fn first(running: &Running) -> Pid {
    let unshare = running.child.id();
    let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap();
    Pid::from_raw(children.trim().parse().unwrap()).unwrap()
}

/// Processes that have this word among their arguments.
fn with_argument(word: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let arguments = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    arguments.filter(|arguments| arguments.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())).count()
}

#[test]
fn the_exit_code_is_the_programs() {
    if !may_unshare("the_exit_code_is_the_programs") {
        return;
    }
    let (place, other) = (Place::new(), Place::new());
    assert_eq!(start(&place, &Sidecar::start(place.path()), "exit 7").wait().code(), Some(7));
    assert_eq!(start(&other, &Sidecar::start(other.path()), "kill -9 $$").wait().code(), Some(128 + 9));
}

#[test]
fn signals_reach_the_program() {
    if !may_unshare("signals_reach_the_program") {
        return;
    }
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let mut running =
        start(&place, &sidecar, "trap 'echo usr1' USR1; trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done");
    place.wait_for("stdout", "ready");
    kill_process(first(&running), Signal::USR1).unwrap();
    place.wait_for("stdout", "usr1");
    kill_process(first(&running), Signal::TERM).unwrap();
    assert_eq!(running.wait().code(), Some(3));
}

#[test]
fn orphans_are_reaped() {
    if !may_unshare("orphans_are_reaped") {
        return;
    }
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let script = "
        i=0; while [ $i -lt 20 ]; do (sh -c 'echo orphan' &); i=$((i + 1)); done
        while [ $(grep -c orphan stdout) != 20 ]; do sleep 0.01; done
        while grep -q '^State:.Z' /proc/[0-9]*/status 2>/dev/null; do sleep 0.01; done";
    assert!(start(&place, &sidecar, script).wait().success());
}

#[test]
fn nobody_outlives_a_killed_supervisor() {
    if !may_unshare("nobody_outlives_a_killed_supervisor") {
        return;
    }
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let (mut running, mark) = start_with_session(&place, &sidecar);
    assert_ne!(with_argument(&mark), 0);
    kill_process(first(&running), Signal::KILL).unwrap();
    assert_ne!(running.wait().into_raw(), 0);
    wait_until("the end of all processes", || with_argument(&mark) == 0);
}

#[test]
fn a_lost_role_kills_every_process() {
    if !may_unshare("a_lost_role_kills_every_process") {
        return;
    }
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let (mut running, mark) = start_with_session(&place, &sidecar);
    sidecar.lose_role();
    wait_until("the end of all processes", || with_argument(&mark) == 0);
    // It continues as a standby, and ends when it is asked to.
    place.wait_for("stderr", "follows the log again");
    kill_process(first(&running), Signal::TERM).unwrap();
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn who_is_asked_to_end_does_so_when_the_role_is_lost() {
    if !may_unshare("who_is_asked_to_end_does_so_when_the_role_is_lost") {
        return;
    }
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let script = "trap 'echo term' TERM; echo ready; while :; do sleep 0.01; done";
    let mut running = start(&place, &sidecar, script);
    place.wait_for("stdout", "ready");
    kill_process(first(&running), Signal::TERM).unwrap();
    place.wait_for("stdout", "term");
    sidecar.lose_role();
    assert_eq!(running.wait().code(), Some(LOST));
}

#[test]
fn behind_another_pid_1_it_refuses() {
    if !may_unshare("behind_another_pid_1_it_refuses") {
        return;
    }
    let place = Place::new();
    let mut command = place.command("unshare");
    let script = format!("{EXEC} --dir volume -- true; echo code $?");
    command.args(UNSHARE).args(["sh", "-c", &script]);
    assert!(command.status().unwrap().success());
    assert_eq!(place.read("stdout"), "code 1\n");
    let said = place.read("stderr");
    assert!(said.contains("is PID 2, and PID 1 is `sh`") && said.contains("by `exec`"), "{said}");
    assert!(!place.volume().exists(), "nothing was touched");
}
