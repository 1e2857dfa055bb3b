//! `doctor`, where everything will do and where something is missing.

use std::fs;
use std::process::Command;

use crate::Place;

/// The exit code. The lines are in `stdout`.
fn doctor(place: &Place, command: &mut Command) -> Option<i32> {
    command.args(["doctor", "--files-max", "1000", "--dir"]).arg(place.volume());
    command.status().unwrap().code()
}

#[test]
fn everything_will_do_here() {
    let place = Place::new();
    // A variable of the run options, as a pod has them, wants none of their arguments here.
    let code = doctor(&place, place.command(crate::EXEC).env("TAILWIND_SOCKET", "/nowhere"));
    assert_eq!(code, Some(0));
    let said = place.read("stdout");
    assert!(said.lines().all(|line| line.starts_with("ok")), "{said}");
    assert!(said.contains("ok      trial        a child has written, renamed and made 5 syncs"), "{said}");
    let mut left: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["stderr", "stdout"], "nothing is left");
}

#[test]
fn too_few_descriptors_are_found() {
    let place = Place::new();
    let mut command = place.command("sh");
    command.args(["-c", "ulimit -n 1200; exec \"$0\" \"$@\"", crate::EXEC]);
    assert_eq!(doctor(&place, &mut command), Some(1));
    let said = place.read("stdout");
    assert!(said.contains("FAILED  descriptors  at most 1200") && said.contains("give --files-max 176"), "{said}");
}

#[test]
fn a_filter_with_a_listener_above_is_found() {
    let place = Place::new();
    // A program that is followed itself stands for a container runtime with a listener.
    let mut command = place.command(crate::EXEC);
    let outer = place.path().join("outer");
    command.arg("--dir").arg(outer).args(["--files-max", "1000", "--dry-run", "--", crate::EXEC]);
    assert_eq!(doctor(&place, &mut command), Some(1));
    let said = place.read("stdout");
    assert!(said.contains("FAILED  seccomp") && said.contains("a seccomp listener of its own"), "{said}");
}
