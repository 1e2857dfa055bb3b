//! A dry run: no sidecar, no log, and a report.

use std::fs;
use std::ops::Range;

use crate::{Place, Running};

/// The program's exit code. Its report is in `stderr`.
fn dry_run(place: &Place, options: &[&str], script: &str) -> Option<i32> {
    let mut command = place.exec(options);
    command.args(["--dry-run", "--", "sh", "-c", script]);
    Running { child: command.spawn().unwrap() }.wait().code()
}

#[track_caller]
fn check_report(place: &Place, lines: &[&str]) {
    let report = place.read("stderr");
    for line in lines {
        assert!(report.contains(line), "{line:?} is missing");
    }
}

/// Checks how many MiB were compared.
#[track_caller]
fn check_compared(place: &Place, mib: Range<f64>) {
    let report = place.read("stderr");
    let compared = report.lines().find_map(|line| line.trim().strip_prefix("compared  ")?.split(" MiB").next());
    let compared: f64 = compared.unwrap_or_else(|| panic!("{report}")).parse().unwrap();
    assert!(mib.contains(&compared), "{report}");
}

#[test]
fn a_program_that_fits_does_its_work() {
    let place = Place::new();
    fs::create_dir(place.volume()).unwrap();
    fs::write(place.volume().join("old"), "there before\n").unwrap();
    let script = "cat volume/old; head -c 1000000 /dev/urandom >volume/new; sync volume/new; mv volume/new volume/old; sync volume; exit 3";
    assert_eq!(dry_run(&place, &[], script), Some(3));
    assert_eq!(place.read("stdout"), "there before\n");
    check_report(&place, &["exit code 3", "2 confirmed, 0 failed", "976.7 KiB would have been appended", "It fits."]);
    assert_eq!(fs::metadata(place.volume().join("old")).unwrap().len(), 1_000_000);
    assert!(!place.path().join(".tailwind-exec").exists(), "the directory is not claimed");
}

#[test]
fn refused_calls_are_counted_and_fail_as_ever() {
    let place = Place::new();
    let script = "
        echo line >volume/file; sync volume/file
        dd if=/dev/zero of=volume/direct bs=4096 count=1 oflag=direct 2>/dev/null || echo refused
        unshare --user true 2>/dev/null || echo refused";
    assert_eq!(dry_run(&place, &[], script), Some(0));
    assert_eq!(place.read("stdout"), "refused\nrefused\n");
    let lines = [
        "1 x openat (O_SYNC, O_DSYNC, O_DIRECT): EINVAL; turn its synchronous or direct I/O off",
        "1 x unshare: EPERM; it has to do without",
        "It fits if it has done its work in spite of the refused calls",
    ];
    check_report(&place, &lines);
}

#[test]
fn syncs_that_fail_do_not_fit() {
    let place = Place::new();
    let script = "echo line >outside; sync outside || sync outside || exit 5";
    assert_eq!(dry_run(&place, &[], script), Some(5));
    let path = fs::canonicalize(place.path().join("outside")).unwrap();
    let line = format!("2 x {} is not in the volume", path.display());
    check_report(&place, &["0 confirmed, 2 failed", &line, "It does not fit yet"]);
    let folder = path.parent().unwrap().to_str().unwrap();
    assert_eq!(dry_run(&place, &["--outside", folder], script), Some(0));
    check_report(&place, &["0 confirmed, 0 failed", "It has synced nothing"]);
}

#[test]
fn bounds_are_those_of_a_real_run() {
    let place = Place::new();
    let script = "head -c 100000 /dev/zero >volume/large; sync volume/large";
    assert_eq!(dry_run(&place, &["--bytes-max", "65536"], script), Some(1));
    check_report(&place, &["(--bytes-max 65536)", "It does not fit yet"]);
}

/// Children that cut files by their paths, one of them killed in the midst of it: what they may have done is settled once.
const CHILDREN: &str = r#"
import os, signal

with open("volume/file", "wb") as file:
    file.write(os.urandom(4 << 20))
file = os.open("volume/file", os.O_RDWR)
os.fsync(file)
for number in range(40):
    child = os.fork()
    if child == 0:
        try:
            while True:
                os.truncate("absent", 0)
        except FileNotFoundError:
            if number > 0:
                signal.pause()
            os._exit(0)
    if number > 0:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
for _ in range(40):
    os.fsync(file)
"#;

#[test]
fn ended_children_cost_no_later_sync_anything() {
    let place = Place::new();
    fs::write(place.path().join("program.py"), CHILDREN).unwrap();
    assert_eq!(dry_run(&place, &[], "exec python3 program.py"), Some(0));
    check_compared(&place, 4.0..20.0);
}

/// A large file, and a small one that gets a name at the place `NAME`.
const LINKED: &str = r#"
import os, time

for name, size in [("large", 4 << 20), ("small", 100)]:
    with open(f"volume/{name}", "wb") as file:
        file.write(b"a" * size)
os.sync()
# For a second after an opening others are expected.
time.sleep(1.2)
os.sync()
for number in range(5):
    os.link("volume/small", f"NAME{number}")
    os.sync()
"#;

/// A name in the volume is seen to come, and nothing else is compared for it.
#[test]
fn links_in_the_volume_make_no_other_file_doubtful() {
    for (name, mib) in [("volume/name", 4.0..20.0), ("name", 24.0..100.0)] {
        let place = Place::in_memory();
        fs::write(place.path().join("program.py"), LINKED.replace("NAME", name)).unwrap();
        assert_eq!(dry_run(&place, &[], "exec python3 program.py"), Some(0));
        check_compared(&place, mib);
    }
}
