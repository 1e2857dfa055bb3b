//! The program itself, with measurements so short that their figures mean nothing: complete pages come out.

use std::fs;
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
fn a_short_run_writes_complete_pages() {
    let memory = rustix::fs::statvfs("/dev/shm").map_or(0, |found| found.f_bavail * found.f_frsize);
    if memory < MEMORY {
        cannot_run("a_short_run_writes_complete_pages", "needs 1 GiB in /dev/shm");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().to_str().unwrap();
    let ran = bench(&["--only", "floors", "--rounds", "2", "--effort", "1", "--output", output]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let read = |file: &str| fs::read_to_string(folder.path().join(file)).unwrap();
    let (page, data, table) = (read("benchmarks.md"), read("benchmarks/README.md"), read("benchmarks/floors.tsv"));
    for (text, wanted) in [
        (&page, "# Benchmarks"),
        (&page, "Not compared with an earlier commit yet"),
        (&page, "## Targets"),
        (&page, "## How it was measured"),
        (&data, "## floors"),
        (&data, "| Tailwind tcp |"),
        (&table, "one at a time, 128 B\tping-pong, Unix socket, blocking\t\t1\t"),
        (&table, "one at a time, 128 B\tTailwind tcp, spin\t\t2\t"),
    ] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
    fs::write(folder.path().join("benchmarks.md"), "").unwrap();
    let ran = bench(&["--render", "--output", output]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(read("benchmarks.md"), page, "drawn again from the data");
}

#[test]
fn a_commit_that_could_not_be_built_is_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().to_str().unwrap();
    let ran = bench(&["--gate", "--output", output, "--earlier", output, "--earlier-commit", "abcdef0 A subject"]);
    assert_eq!(ran.status.code(), Some(2), "{}", String::from_utf8_lossy(&ran.stderr));
    let page = fs::read_to_string(folder.path().join("benchmarks.md")).unwrap();
    assert!(page.contains("**Not compared with commit `abcdef0` (A subject)**, which cannot be measured"), "{page}");
}

#[test]
fn wrong_arguments_are_explained() {
    let error = error_of(&["--only", "floor"]);
    assert!(
        error.contains(
            "no comparison is called `floor`: there are floors, peers, cpu, scale, recovery, baselines, followers, joining, neighbours, exec, tables"
        ),
        "{error}"
    );
    let error = error_of(&["--only", "cpu", "--program", "/no/such/program"]);
    assert!(error.contains("/no/such/program is not a program"), "{error}");
    let error = error_of(&["--only", "cpu", "--memory", "/no/such/folder"]);
    assert!(error.contains("/no/such/folder is not a folder"), "{error}");
    let error = error_of(&["--gate"]);
    assert!(error.contains("no earlier commit is given: run ./bench, which builds it"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let error = error_of(&["--gate", "--rounds", "8", "--earlier", folder, "--earlier-commit", "abcdef0 A subject"]);
    assert!(error.contains("--rounds 8: with --gate at least 9"), "{error}");
}

#[test]
fn the_comparisons_can_be_listed() {
    let output = bench(&["--list"]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "floors\npeers\ncpu\nscale\nrecovery\nbaselines\nfollowers\njoining\nneighbours\nexec\ntables\nwritten\n"
    );
}
