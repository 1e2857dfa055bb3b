//! A full disk: of a program, whose writes fail and whose syncs do not, and of a standby, which says so.

use std::process::{Command, Stdio};

use crate::sidecar::Sidecar;
use crate::{EXEC, KILLED, Place, cannot_run};

const UNSHARE: [&str; 3] = ["--user", "--map-root-user", "--mount"];
/// A disk of 1 MiB, and how `tailwind-exec` is run on it.
const SMALL: &str = "
    mount -t tmpfs -o size=1m tmpfs small || exit
    run() { $EXEC --dir small/volume --without-pid-1 --files-max 1000 --socket append.sock -- python3 $1; echo code $?; }
";

/// Whether a file system may be mounted here; in most containers it may not.
fn may_mount(test: &str) -> bool {
    let mut command = Command::new("unshare");
    command.args(UNSHARE).args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"]).stderr(Stdio::null());
    let may = command.status().is_ok_and(|status| status.success());
    if !may {
        cannot_run(test, "nothing can be mounted here");
    }
    may
}

/// Runs a shell script beside a small disk. Returns what it has printed.
fn run_on_small_disk(place: &Place, programs: &[(&str, &str)], script: &str) -> String {
    for (name, program) in programs {
        std::fs::write(place.path().join(name), program).unwrap();
    }
    std::fs::create_dir_all(place.path().join("small")).unwrap();
    let mut command = place.command("unshare");
    command.args(UNSHARE).args(["sh", "-c", &format!("{SMALL}{script}")]).env("EXEC", EXEC);
    crate::Running { child: command.spawn().unwrap() }.wait();
    place.read("stdout")
}

/// Fills the disk, and syncs all that could be written.
const FILL: &str = r#"
import errno, os

def make(name):
    return os.open("small/volume/" + name, os.O_CREAT | os.O_RDWR)

first, second = make("first"), make("second")
os.write(first, b"a" * 100_000)
os.fsync(first)
written = 0
try:
    while True:
        written += os.write(second, b"b" * 10_000)
except OSError as error:
    assert error.errno == errno.ENOSPC, error
os.fsync(second)
os.pwrite(first, b"c" * 1000, 50)
os.fsync(first)
with open("written", "w") as file:
    file.write(str(written))
print("full", flush=True)
os.kill(os.getpid(), 9)
"#;

/// Finds it all, and makes room.
const FIND: &str = r#"
import os

def read(name):
    with open("small/volume/" + name, "rb") as file:
        return file.read()

written = int(open("written").read())
assert written > 500_000, written
assert read("first") == b"a" * 50 + b"c" * 1000 + b"a" * (100_000 - 1050)
assert read("second") == b"b" * written
os.unlink("small/volume/second")
# There is room once the log has that, with the next sync.
os.fsync(os.open("small/volume/first", os.O_RDWR))
third = os.open("small/volume/third", os.O_CREAT | os.O_RDWR)
os.write(third, b"d" * 500_000)
os.fsync(third)
print("found", flush=True)
"#;

#[test]
fn what_was_written_to_a_full_disk_can_be_synced() {
    if !may_mount("what_was_written_to_a_full_disk_can_be_synced") {
        return;
    }
    let place = Place::in_memory();
    let _sidecar = Sidecar::start(place.path());
    // The second start finds the disk as full as the first one has left it.
    let script = "run fill.py; run find.py";
    let said = run_on_small_disk(&place, &[("fill.py", FILL), ("find.py", FIND)], script);
    assert_eq!(said, "full\ncode 137\nfound\ncode 0\n");
}

/// Makes a file that a small disk has room for, and lets it grow beyond that.
const GROW: &str = r#"
import os

os.mkdir("volume/folder")
file = os.open("volume/folder/file", os.O_CREAT | os.O_RDWR)
for _ in range(2):
    os.write(file, b"a" * 800_000)
    os.fsync(file)
print("grown", flush=True)
os.kill(os.getpid(), 9)
"#;

#[test]
fn a_standby_with_a_full_disk_says_so() {
    if !may_mount("a_standby_with_a_full_disk_says_so") {
        return;
    }
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    assert_eq!(place.run_python(&sidecar, &[], GROW), (KILLED, "grown\n".to_owned()));

    let size = r#"import os; print(os.stat("small/volume/folder/file").st_size)"#;
    let script = "run size.py; mount -o remount,size=8m small; run size.py";
    let said = run_on_small_disk(&place, &[("size.py", size)], script);
    assert_eq!(said, "code 1\n1600000\ncode 0\n");
    let said = place.read("stderr");
    let expected =
        "cannot write to folder/file: No space left on device (os error 28). The files of the log have 1600000 bytes";
    assert!(said.contains(expected) && said.contains("small/volume, and start again"), "{said}");
}

/// Something else is mounted in the directory between two starts.
#[test]
fn what_is_mounted_in_the_directory_is_not_emptied() {
    if !may_mount("what_is_mounted_in_the_directory_is_not_emptied") {
        return;
    }
    let place = Place::in_memory();
    let _sidecar = Sidecar::start(place.path());
    let make = "import os\nos.makedirs('small/volume/folder/mount', exist_ok=True)\nos.sync()";
    let script =
        "run make.py; mount -t tmpfs tmpfs small/volume/folder/mount; echo precious >small/volume/folder/mount/file
        run make.py; cat small/volume/folder/mount/file";
    let said = run_on_small_disk(&place, &[("make.py", make)], script);
    assert_eq!(said, "code 0\ncode 1\nprecious\n");
    assert!(place.read("stderr").contains("is a mount: nothing of it is removed"), "{}", place.read("stderr"));
}
