//! Processes that `/proc` shows otherwise: one whose first thread has ended has its descriptors at the others only, and the name of
//! another is no text.

use crate::Place;

/// The second thread writes twice by one descriptor, and each time has a sync confirmed.
const SCRIPT: &str = r#"
import ctypes, os, threading, time

def state():
    return open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0]

def write():
    while state() != "Z":
        time.sleep(0.001)
    file = os.open("volume/file", os.O_RDWR)
    for letters in [b"b" * 50, b"c" * 30]:
        os.write(file, letters)
        os.fsync(file)
    print("confirmed", flush=True)
    os.kill(os.getpid(), 9)

with open("volume/file", "w") as file:
    file.write("a" * 100)
    file.flush()
    os.fsync(file.fileno())
threading.Thread(target=write).start()
SYS_exit = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
ctypes.CDLL(None).syscall(SYS_exit, 0)
"#;

#[test]
fn a_process_without_its_first_thread_is_followed() {
    assert_eq!(Place::new().show_after(SCRIPT, "cat volume/file"), "b".repeat(50) + &"c".repeat(30) + &"a".repeat(20));
}

/// The kernel cuts names off in the middle of a character.
#[test]
fn a_process_whose_name_is_no_text_is_followed() {
    let script = r#"
import ctypes, os, time

ctypes.CDLL(None).prctl(15, b"name-\xd0")
file = os.open("volume/file", os.O_CREAT | os.O_RDWR)
os.write(file, b"a" * 100)
os.fsync(file)
time.sleep(1.2)
os.fsync(file)
os.lseek(file, 0, os.SEEK_SET)
os.write(file, b"b" * 50)
os.fsync(file)
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;
    assert_eq!(Place::new().show_after(script, "cat volume/file"), "b".repeat(50) + &"a".repeat(50));
}
