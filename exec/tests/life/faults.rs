//! What cannot be followed is never confirmed, and not by the second sync either.

use crate::sidecar::Sidecar;
use crate::{KILLED, Place};

/// More than the volume may have, or less; then two syncs.
const SCRIPT: &str = r#"
import errno, os

def make(name):
    return os.open("volume/" + name, os.O_CREAT | os.O_RDWR)

def sync(file):
    try:
        os.fsync(file)
        print("confirmed", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)

first = make("first")
os.mkdir("volume/folder")
os.write(first, b"a" * 100)
sync(first)
FAULT
root = os.open("volume", os.O_RDONLY)
sync(root)
sync(root)
os.kill(os.getpid(), 9)
"#;

/// Both of the last two syncs fail.
fn is_never_confirmed(fault: &str) {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let outcome = place.run_python(&sidecar, &["--files-max", "5"], &SCRIPT.replace("FAULT", fault));
    assert_eq!(outcome, (KILLED, "confirmed\nEIO\nEIO\n".to_owned()));
}

#[test]
fn names_of_too_many_files_are_never_confirmed() {
    is_never_confirmed("for name in range(5): make(str(name))");
}

#[test]
fn a_directory_that_has_left_is_never_confirmed() {
    is_never_confirmed(r#"os.rename("volume/folder", "elsewhere")"#);
}

/// The first file needs a larger `--scan-max`.
#[test]
fn an_end_takes_all_that_can_be_followed() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let script = "head -c 3000000 /dev/urandom >volume/first; echo second >volume/second";
    assert_eq!(place.run(&sidecar, &["--scan-max", "2097152"], script).wait().code(), Some(74));
    assert!(place.read("stderr").contains("not all that it wrote is in the log"));
    assert!(place.run(&sidecar, &[], "cat volume/second; ls volume").wait().success());
    assert_eq!(place.read("stdout"), "second\nfirst\nsecond\n");
}

/// A file that cannot be taken is moved over one that the log has: that stays.
#[test]
fn a_file_that_cannot_be_followed_replaces_none() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let script = "printf old >volume/file; sync volume/file; head -c 3000000 /dev/urandom >volume/new; mv volume/new volume/file";
    assert_eq!(place.run(&sidecar, &["--scan-max", "2097152"], script).wait().code(), Some(74));
    assert!(place.run(&sidecar, &[], "cat volume/file").wait().success());
    assert_eq!(place.read("stdout"), "old");
}

/// `new` is larger than `--scan-max` and never synced, and takes the name of a file that the log has.
const REPLACED: &str = r#"
import errno, os

def write(path, data):
    with open(path, "wb") as file:
        file.write(data)

def sync(path):
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        print("confirmed", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
    os.close(file)

write("volume/file", b"old")
write("volume/other", b"other")
BEFORE
sync("volume")
write("volume/new", os.urandom(3_000_000))
os.rename("volume/new", "volume/file")
sync("volume")
sync("volume")
sync("volume/other")
AFTER
os.kill(os.getpid(), 9)
"#;

/// Returns what the syncs said, and what a shell command shows of the volume beside the next one.
fn after_a_replacement(before: &str, after: &str, command: &str) -> (String, String) {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let script = REPLACED.replace("BEFORE", before).replace("AFTER", after);
    let (code, said) = place.run_python(&sidecar, &["--scan-max", "2097152"], &script);
    assert_eq!(code, KILLED, "{said}");
    assert!(place.run(&sidecar, &[], command).wait().success());
    (said.replace('\n', " "), place.read("stdout").replace('\n', " "))
}

const REFUSED_TWICE: &str = "confirmed confirmed EIO EIO confirmed ";

#[test]
fn a_rename_that_is_held_back_is_never_confirmed() {
    let (said, left) = after_a_replacement("sync('volume/file')", "", "cat volume/file; echo; ls volume");
    assert_eq!((said.as_str(), left.as_str()), (REFUSED_TWICE, "old file other "));
}

#[test]
fn names_are_confirmed_once_the_one_held_back_is_gone() {
    let after = "os.unlink('volume/file')\nsync('volume')";
    let (said, left) = after_a_replacement("sync('volume/file')", after, "ls volume");
    assert_eq!((said, left.as_str()), (format!("{REFUSED_TWICE}confirmed "), "other "));
}

/// The log has it as an empty file: it was synced under its first name before it had bytes.
#[test]
fn a_file_that_cannot_be_followed_keeps_its_first_name() {
    let before = "sync('volume/file')\nwrite('volume/new', b'')";
    let (said, left) = after_a_replacement(before, "", "cat volume/file; echo; ls volume; wc -c <volume/new");
    assert_eq!((said.as_str(), left.as_str()), (REFUSED_TWICE, "old file new other 0 "));
}

/// The new file has a directory's name: the log must not have that directory twice.
#[test]
fn a_name_held_back_was_that_of_a_directory() {
    let before = "sync('volume/file')\nos.mkdir('volume/folder')";
    let after = "os.rename('volume/folder', 'volume/moved')\nos.rename('volume/file', 'volume/folder')\n\
                 sync('volume')\nwrite('volume/moved/inner', b'')\nsync('volume/moved/inner')\nsync('volume/moved/inner')";
    let (said, left) = after_a_replacement(before, after, "ls volume; ls volume/moved");
    assert_eq!((said, left.as_str()), (format!("{REFUSED_TWICE}EIO EIO confirmed "), "moved other inner "));
}

/// A child goes on with the descriptor of its parent: nothing of the file has to be compared again.
const CHILD: &str = r#"
import os, time

file = os.open("volume/file", os.O_CREAT | os.O_WRONLY)
for _ in range(3):
    os.write(file, os.urandom(1_000_000))
    os.fsync(file)
# For a second after an opening others are expected.
time.sleep(1.2)
os.fsync(file)
if os.fork() == 0:
    os.write(file, b"child")
    os.fsync(file)
    os._exit(0)
_, status = os.wait()
assert status == 0, status
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;

#[test]
fn a_child_may_sync_what_is_too_large_to_be_compared() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let outcome = place.run_python(&sidecar, &["--scan-max", "2097152"], CHILD);
    assert_eq!(outcome, (KILLED, "confirmed\n".to_owned()));
    assert!(place.run(&sidecar, &[], "tail -c 5 volume/file").wait().success());
    assert_eq!(place.read("stdout"), "child");
}

const SEEKS: &str = r#"
import os, time

file = os.open("volume/file", os.O_CREAT | os.O_RDWR)
reader = os.open("volume/file", os.O_RDONLY)

def append():
    os.write(file, os.urandom(1_000_000))
    os.fsync(file)

for _ in range(3):
    append()
time.sleep(1.2)
os.fsync(file)
CALLS
for _ in range(3):
    append()
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;

#[test]
fn a_reader_that_seeks_makes_nothing_doubtful() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let script = SEEKS.replace("CALLS", "os.lseek(reader, 0, os.SEEK_SET)");
    let outcome = place.run_python(&sidecar, &["--scan-max", "2097152"], &script);
    assert_eq!(outcome, (KILLED, "confirmed\n".to_owned()));
}

/// What a child may have changed is compared once after it has ended; from the second sync on that would be too much.
fn costs_once(call: &str) {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let calls = format!("if os.fork() == 0:\n    {call}\n    os._exit(0)\nos.wait()\nos.fsync(file)");
    let outcome = place.run_python(&sidecar, &["--scan-max", "4194304"], &SEEKS.replace("CALLS", &calls));
    assert_eq!(outcome, (KILLED, "confirmed\n".to_owned()), "{call}");
}

#[test]
fn a_seek_of_a_child_that_has_ended_costs_once() {
    costs_once("os.lseek(file, 0, os.SEEK_SET); os.lseek(file, 0, os.SEEK_END)");
}

#[test]
fn a_write_of_unknown_length_by_an_ended_child_costs_once() {
    costs_once("os.pwritev(file, [b'child'], 0)");
}
