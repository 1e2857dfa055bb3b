//! A call that opens a file tells of it before its descriptor is in the process's table, and may wait in between: here for the
//! inode, which another thread keeps by allocating beyond the end of the file.

use crate::sidecar::Sidecar;
use crate::{KILLED, Place};

/// Syncs of the file continue while the call waits. What it opens writes within the file, each time with a sync.
const SCRIPT: &str = r#"
import ctypes, os, threading, time

libc = ctypes.CDLL(None)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
first = os.open("volume/file", os.O_CREAT | os.O_RDWR)
os.write(first, b"a" * 100)
os.fsync(first)
syncs, opened = 0, False

def keep_inode():
    libc.fallocate(first, 1, 0, 256 << 20)

def sync():
    global syncs
    while not opened:
        os.fsync(first)
        syncs += 1

threads = [threading.Thread(target=keep_inode), threading.Thread(target=sync)]
threads[0].start()
time.sleep(0.01)
threads[1].start()
file = os.open("volume/file", os.O_RDWR | FLAGS)
opened = True
for thread in threads:
    thread.join()
os.ftruncate(first, 200)
os.fsync(first)
for letters in [b"b" * 50, b"c" * 50]:
    os.write(file, letters)
    os.fsync(SYNCED)
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;

/// Descriptors that were opened late are followed, no matter through which descriptor the file is synced.
fn late_descriptors_are_followed(flags: &str, synced: &str) {
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    let script = SCRIPT.replace("FLAGS", flags).replace("SYNCED", synced);
    std::fs::write(place.path().join("script.py"), script).unwrap();
    let status = place.run(&sidecar, &[], "exec python3 script.py").wait();
    assert_eq!((status.code(), place.read("stdout")), (Some(128 + 9), "confirmed\n".to_owned()));

    assert!(place.run(&sidecar, &[], "cat volume/file").wait().success());
    assert_eq!(place.read("stdout"), "b".repeat(50) + &"c".repeat(50) + &"\0".repeat(100));
}

#[test]
fn a_descriptor_that_comes_late_is_followed() {
    late_descriptors_are_followed("os.O_TRUNC", "file");
}

#[test]
fn a_descriptor_that_comes_late_is_followed_whoever_syncs() {
    late_descriptors_are_followed("os.O_TRUNC", "first");
}

/// An `open` of a leased file waits until the lease is given up, for 45 s at the most. `F_SETLEASE(2const)`
const LEASE: &str = r#"
import errno, fcntl, os, signal

# Otherwise the kernel's request to give the lease up is the end.
signal.signal(signal.SIGIO, signal.SIG_IGN)

def sync(name, file):
    try:
        os.fsync(file)
        print(name, "confirmed", flush=True)
    except OSError as error:
        print(name, errno.errorcode[error.errno], flush=True)

file = os.open("volume/file", os.O_CREAT | os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
sync("leased", file)
other = os.open("volume/other", os.O_CREAT | os.O_RDWR)
os.write(other, b"other")
sync("other", other)
os.kill(os.getpid(), 9)
"#;

#[test]
fn a_file_with_a_lease_holds_up_nobody() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let said = place.run_python(&sidecar, &[], LEASE);
    assert_eq!(said, (KILLED, "leased EIO\nother confirmed\n".to_owned()));
}
