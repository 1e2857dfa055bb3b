//! Many files, and more events than the kernel keeps.

use std::fs;

use rustix::process::{Resource, getrlimit};

use crate::sidecar::Sidecar;
use crate::{KILLED, Place, cannot_run};

/// Ten thousand files, and some to spare.
const FILES_MAX: &str = "12000";

/// Makes files that say where they are, in folders of 500. That each of those is synced has the supervisor keep up with events.
const MAKE_FILES: &str = r#"
import os

for folder in range(20):
    path = f"volume/{folder}"
    os.mkdir(path)
    for number in range(500):
        file = os.open(f"{path}/{number}", os.O_CREAT | os.O_WRONLY)
        os.write(file, f"{folder}/{number}".encode())
        os.close(file)
    folder = os.open(path, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
os.sync()
print("made", flush=True)
os.kill(os.getpid(), 9)
"#;

/// Counts those that are as they were made.
const COUNT_FILES: &str = r#"
import os

count = 0
for folder, _, names in os.walk("volume"):
    for name in names:
        path = os.path.join(folder, name)
        with open(path) as file:
            count += file.read() == os.path.relpath(path, "volume")
print(count)
"#;

/// Whether this process may have a descriptor for each of so many files.
fn may_hold(files: &str, test: &str) -> bool {
    let limit = getrlimit(Resource::Nofile).maximum;
    let may = limit.is_none_or(|limit| limit >= files.parse::<u64>().unwrap() + 1024);
    if !may {
        cannot_run(test, &format!("a process may have no more than {limit:?} descriptors here"));
    }
    may
}

#[test]
fn ten_thousand_files_are_kept() {
    if !may_hold(FILES_MAX, "ten_thousand_files_are_kept") {
        return;
    }
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    let options = ["--files-max", FILES_MAX];
    assert_eq!(place.run_python(&sidecar, &options, MAKE_FILES), (KILLED, "made\n".to_owned()));
    assert!(!place.read("stderr").contains("lists the volume again"), "no event was lost");
    assert_eq!(place.run_python(&sidecar, &options, COUNT_FILES), (Some(0), "10000\n".to_owned()));
}

/// Opens files more often than the kernel keeps events, and changes names, bytes and modes of which no event tells any more.
const LOSE_EVENTS: &str = r#"
import os

def make(path, text):
    file = os.open("volume/" + path, os.O_CREAT | os.O_RDWR, 0o600)
    os.write(file, text)
    return file

for folder in ["kept", "changed", "gone"]:
    os.mkdir("volume/" + folder, 0o755)
first = make("first", b"first")
for name in ["second", "changed/file", "gone/file"]:
    make(name, name.encode())
os.sync()

with open("/proc/sys/fs/inotify/max_queued_events") as bound:
    for _ in range(int(bound.read())):
        # The same event twice would count once.
        for name in ["first", "second"]:
            os.close(os.open("volume/" + name, os.O_RDONLY))

os.write(first, b" and more")
os.link("volume/first", "volume/kept/link")
os.rename("volume/second", "volume/kept/third")
os.unlink("volume/gone/file")
os.rmdir("volume/gone")
os.chmod("volume/changed", 0o750)
os.chmod("volume/changed/file", 0o640)
os.makedirs("volume/new/deep")
os.symlink("first", "volume/new/symlink")
os.fsync(make("new/deep/file", b"made"))
os.fsync(first)
print("made", flush=True)
os.kill(os.getpid(), 9)
"#;

/// Prints each name, with its mode and its bytes.
const LIST: &str = r#"
import os

for folder, folders, files in os.walk("volume"):
    for path in [os.path.join(folder, name) for name in folders + files]:
        mode = oct(os.lstat(path).st_mode & 0o777)
        if os.path.islink(path):
            print(path, os.readlink(path))
        elif os.path.isdir(path):
            print(path, mode)
        else:
            with open(path) as file:
                print(path, mode, file.read())
"#;

#[test]
fn lost_events_lose_nothing() {
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    assert_eq!(place.run_python(&sidecar, &[], LOSE_EVENTS), (KILLED, "made\n".to_owned()));
    assert!(place.read("stderr").contains("lists the volume again"), "events were lost");
    let (code, list) = place.run_python(&sidecar, &[], LIST);
    let mut list: Vec<&str> = list.lines().collect();
    list.sort_unstable();
    let expected = [
        "volume/changed 0o750",
        "volume/changed/file 0o640 changed/file",
        "volume/first 0o600 first and more",
        "volume/kept 0o755",
        "volume/kept/link 0o600 first and more",
        "volume/kept/third 0o600 second",
        "volume/new 0o755",
        "volume/new/deep 0o755",
        "volume/new/deep/file 0o600 made",
        "volume/new/symlink first",
    ];
    assert_eq!((code, list), (Some(0), expected.to_vec()));
}

/// Loses events while a child moves folders between two others: a list of the volume may find one in neither.
const MOVE_FOLDERS: &str = r#"
import os
import signal
import time

for side in ["left", "right"]:
    os.mkdir("volume/" + side)
for folder in range(20):
    os.mkdir(f"volume/left/{folder}")
    with open(f"volume/left/{folder}/kept", "w") as file:
        file.write(f"in {folder}")
first = os.open("volume/first", os.O_CREAT | os.O_WRONLY)
os.sync()

mover = os.fork()
while mover == 0:
    for here, there in [("left", "right"), ("right", "left")]:
        for folder in range(20):
            os.rename(f"volume/{here}/{folder}", f"volume/{there}/{folder}")
            time.sleep(0.00001)

with open("/proc/sys/fs/inotify/max_queued_events") as bound:
    events = int(bound.read())
for _ in range(5):
    for _ in range(events):
        for name in ["first", "left"]:
            os.close(os.open("volume/" + name, os.O_RDONLY))
    os.fsync(first)
os.kill(mover, signal.SIGKILL)
os.wait()
os.sync()
print("moved", flush=True)
os.kill(os.getpid(), 9)
"#;

#[test]
fn folders_moved_during_a_list_keep_their_files() {
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    assert_eq!(place.run_python(&sidecar, &[], MOVE_FOLDERS), (KILLED, "moved\n".to_owned()));
    assert!(place.read("stderr").contains("lists the volume again"), "events were lost");
    let (code, list) = place.run_python(&sidecar, &[], LIST);
    let is_kept = |folder: &u32| {
        let kept = [format!("/{folder}/kept 0o"), format!(" in {folder}")];
        list.lines().filter(|line| line.contains(&kept[0]) && line.ends_with(&kept[1])).count() == 1
    };
    let missing: Vec<u32> = (0..20).filter(|folder| !is_kept(folder)).collect();
    assert_eq!((code, missing), (Some(0), vec![]), "{list}");
}

/// What all of them owe is more than this process should have in memory at once.
#[test]
fn a_sync_of_everything_has_one_file_in_memory_at_a_time() {
    const FILES: u64 = 6;
    const SIZE: u64 = 20 << 20;
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    let script = format!(
        "for file in $(seq {FILES}); do head -c {SIZE} /dev/urandom >volume/$file; done; sync; echo synced; sleep 1000"
    );
    let running = place.run(&sidecar, &[], &script);
    place.wait_for("stdout", "synced");
    let status = fs::read_to_string(format!("/proc/{}/status", running.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak << 10 < (FILES - 1) * SIZE, "{peak} KiB at most");
}
