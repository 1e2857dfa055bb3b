//! Syncs of what is mapped, and of file systems: of the volume, of files elsewhere, and of no file.

use std::io::Write;

use crate::sidecar::Sidecar;
use crate::{KILLED, Place};

const SCRIPT: &str = r#"
import ctypes, errno, mmap, os

libc = ctypes.CDLL(None, use_errno=True)

def sync(name, call):
    try:
        call()
        print(name, "confirmed", flush=True)
    except OSError as error:
        print(name, errno.errorcode[error.errno], flush=True)

def store(name, path):
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    os.ftruncate(file, 4096)
    memory = mmap.mmap(file, 4096)
    memory[:4] = b"data"
    sync(name, memory.flush)
    return file

def sync_file_system(name, path):
    def call():
        if libc.syncfs(os.open(path, os.O_RDONLY)) != 0:
            raise OSError(ctypes.get_errno(), name)
    sync(name, call)

store("inside", "volume/file")
os.rename("volume/file", "volume/moved")
store("outside", ELSEWHERE)
memory = mmap.mmap(-1, 4096)
memory[:4] = b"data"
sync("anonymous", memory.flush)
sync_file_system("volume", "volume")
sync_file_system("elsewhere", ELSEWHERE)
os.kill(os.getpid(), 9)
"#;

#[test]
fn what_is_elsewhere_is_never_confirmed() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    // On another file system, with a name that has a space.
    let mut elsewhere = tempfile::Builder::new().prefix("a file").tempfile_in("/dev/shm").unwrap();
    elsewhere.write_all(&[0; 4096]).unwrap();
    let path = elsewhere.path().to_str().unwrap();
    let script = SCRIPT.replace("ELSEWHERE", &format!("{path:?}"));
    for (options, outcome) in [(&[][..], "EIO"), (&["--outside", "/dev/shm"], "confirmed")] {
        let expected = format!(
            "inside confirmed\noutside {outcome}\nanonymous confirmed\nvolume confirmed\nelsewhere {outcome}\n"
        );
        assert_eq!(place.run_python(&sidecar, options, &script), (KILLED, expected));
        assert!(place.run(&sidecar, &[], "head -c 4 volume/moved").wait().success());
        assert_eq!(place.read("stdout"), "data");
    }
}

/// Files that are mapped before they have a name in the volume, and changed by stores after that.
const MAPPED_BEFORE: &str = r#"
import mmap, os

def store(memory, file, letter):
    memory[:] = letter * 4096
    memory.flush()
    os.fsync(file)

def mapped(file):
    os.ftruncate(file, 4096)
    return mmap.mmap(file, 4096)

root = os.open("volume", os.O_RDONLY)
nameless = os.open("volume", os.O_TMPFILE | os.O_RDWR)
linked = mapped(nameless)
os.link(f"/proc/self/fd/{nameless}", "volume/linked", src_dir_fd=root)

elsewhere = os.open("elsewhere", os.O_CREAT | os.O_RDWR)
moved = mapped(elsewhere)
os.rename("elsewhere", "volume/moved")

kept = os.open("volume/kept", os.O_CREAT | os.O_RDWR)
back = mapped(kept)
for memory, file in [(linked, nameless), (moved, elsewhere), (back, kept)]:
    store(memory, file, b"a")
os.rename("volume/kept", "kept")
os.fsync(root)
os.rename("kept", "volume/kept")
os.fsync(root)
for letter in [b"b", b"c"]:
    for memory, file in [(linked, nameless), (moved, elsewhere), (back, kept)]:
        store(memory, file, letter)
    os.fsync(root)
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;

#[test]
fn stores_are_followed_under_a_name_that_comes_later() {
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    assert_eq!(place.run_python(&sidecar, &[], MAPPED_BEFORE), (KILLED, "confirmed\n".to_owned()));
    assert!(place.run(&sidecar, &[], "cd volume; head -qc 4 linked moved kept").wait().success());
    assert_eq!(place.read("stdout"), "cccccccccccc");
}

/// A mapping by a name outside that is gone by the time it is synced.
const UNDER_ANOTHER_NAME: &str = r#"
import mmap, os

with open("volume/file", "wb") as file:
    file.write(b"a" * 100)
    os.fsync(file.fileno())
os.link("volume/file", "other")
file = os.open("other", os.O_RDWR)
memory = mmap.mmap(file, 100)
os.remove("other")
memory[:10] = b"b" * 10
memory.flush()
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;

#[test]
fn a_mapping_under_a_name_that_is_gone_is_synced() {
    let shown = Place::new().show_after(UNDER_ANOTHER_NAME, "cat volume/file");
    assert_eq!(shown, ["b".repeat(10), "a".repeat(90)].concat());
}
