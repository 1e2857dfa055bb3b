//! The program itself, with measurements so short that their figures mean nothing: a complete report comes out.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tailwind_e2e::context::cannot_run;

/// What the buffers of two groups take, and as much again for tests that run at the same time.
const MEMORY: u64 = 1 << 30;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tailwind-bench")).args(arguments).output().expect("the program starts")
}

fn error_of(arguments: &[&str]) -> String {
    let output = bench(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_short_run_writes_a_complete_report() {
    let memory = rustix::fs::statvfs("/dev/shm").map_or(0, |found| found.f_bavail * found.f_frsize);
    if memory < MEMORY {
        cannot_run("a_short_run_writes_a_complete_report", "needs 1 GiB in /dev/shm");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [first, again] = ["first", "again"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let output = bench(&["--only", "floors", "--rounds", "2", "--effort", "1", "--output", &first]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |folder: &str| fs::read_to_string(Path::new(folder).join("benchmarks.md")).unwrap();
    let report = read(&first);
    for wanted in [
        "# Benchmarks",
        "## Targets",
        "## floors",
        "| ping-pong, Unix socket, blocking |",
        "| ping-pong, shared memory, spinning |",
        "| Tailwind shm, spin |",
        "| Tailwind tcp / ping-pong, Unix socket, blocking |",
        "(benchmarks/floors-latency-one-at-a-time-128-b.svg)",
    ] {
        assert!(report.contains(wanted), "{wanted} is not in\n{report}");
    }
    assert!(Path::new(&first).join("benchmarks/floors-latency-one-at-a-time-128-b.svg").exists());

    let raw = Path::new(&first).join("results.json");
    let output = bench(&["--report-from", raw.to_str().unwrap(), "--output", &again]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(read(&again), report, "drawn again from the raw results");
}

#[test]
fn wrong_arguments_are_explained() {
    let error = error_of(&["--only", "floor"]);
    assert!(
        error.contains(
            "no comparison is called `floor`: there are floors, peers, cpu, scale, recovery, baselines, chain, followers, joining, neighbours"
        ),
        "{error}"
    );
    let error = error_of(&["--report-from", "/no/such/file"]);
    assert!(error.contains("read /no/such/file"), "{error}");
    let error = error_of(&["--only", "cpu", "--program", "/no/such/program"]);
    assert!(error.contains("/no/such/program is not a program"), "{error}");
    let error = error_of(&["--only", "cpu", "--memory", "/no/such/folder"]);
    assert!(error.contains("/no/such/folder is not a folder"), "{error}");
}

#[test]
fn the_comparisons_can_be_listed() {
    let output = bench(&["--list"]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "floors\npeers\ncpu\nscale\nrecovery\nbaselines\nchain\nfollowers\njoining\nneighbours\n"
    );
}
