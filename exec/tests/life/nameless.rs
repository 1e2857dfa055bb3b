//! Files that have bytes before they have a name, and files with a name elsewhere.

use std::process::Command;

use crate::sidecar::Sidecar;
use crate::{KILLED, Place, cannot_run};

/// By `O_TMPFILE`, with a sync that is confirmed; and under another name, all of it between two looks at the events.
const SCRIPT: &str = r#"
import os

root = os.open("volume", os.O_RDONLY)
file = os.open("volume", os.O_TMPFILE | os.O_RDWR)
os.write(file, b"linked")
os.fsync(file)
# Python follows the link if it is told where to start.
os.link(f"/proc/self/fd/{file}", "volume/linked", src_dir_fd=root)

file = os.open("volume/new", os.O_CREAT | os.O_RDWR)
os.write(file, b"moved")
os.rename("volume/new", "volume/moved")

os.makedirs("volume/folder")
file = os.open("volume/folder/new", os.O_CREAT | os.O_RDWR)
os.write(file, b"listed")
os.rename("volume/folder/new", "volume/folder/listed")

os.fsync(root)
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;

#[test]
fn a_name_brings_the_bytes_that_came_before_it() {
    let shown = Place::in_memory().show_after(SCRIPT, "cd volume; cat linked moved folder/listed");
    assert_eq!(shown, "linkedmovedlisted");
}

/// A second name that is not in the volume, and what is written under it.
const OUTSIDE: &str = r#"
import os, time

file = os.open("volume/file", os.O_CREAT | os.O_RDWR)
os.write(file, b"a" * 100)
os.fsync(file)
# For a second after an opening others are expected.
time.sleep(1.2)
os.fsync(file)
os.close(file)
os.link("volume/file", "other")
for letter in [b"b", b"c"]:
    other = os.open("other", os.O_RDWR)
    os.write(other, letter * 100)
    os.fsync(other)
os.chmod("other", 0o640)
os.fsync(other)
"#;

/// And what is written once that name has gone.
const GONE: &str = r#"
os.remove("other")
for letter in [b"d", b"e"]:
    os.write(other, letter * 100)
    os.fsync(other)
"#;

const END: &str = r#"
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;

#[test]
fn what_is_written_under_a_name_outside_is_followed() {
    for (more, letters) in [("", "c"), (GONE, "cde")] {
        let program = [OUTSIDE, more, END].concat();
        let shown = Place::new().show_after(&program, "stat -c %a volume/file; cat volume/file");
        let bytes: String = letters.chars().map(|letter| letter.to_string().repeat(100)).collect();
        assert_eq!(shown, format!("640\n{bytes}"));
    }
}

/// A write has been let go on and has not reached its file when that gets a name, and the sync of another thread is confirmed:
/// the kernel waits for the page that says what is to be written, which userfaultfd(2) withholds.
const UNDER_WAY: &str = r#"
import ctypes, fcntl, mmap, os, select, struct, threading

libc = ctypes.CDLL(None, use_errno=True)
libc.pwritev.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_long]
page = mmap.PAGESIZE

def address(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))

faults = libc.syscall(323, os.O_CLOEXEC)
assert faults >= 0, os.strerror(ctypes.get_errno())
withheld, given = mmap.mmap(-1, page), mmap.mmap(-1, page)
text = ctypes.create_string_buffer(b"b" * 100, 100)
given[:16] = struct.pack("QQ", ctypes.addressof(text), 100)
fcntl.ioctl(faults, 0xC018AA3F, struct.pack("QQQ", 0xAA, 0, 0))
fcntl.ioctl(faults, 0xC020AA00, struct.pack("QQQQ", address(withheld), page, 1, 0))

root = os.open("volume", os.O_RDONLY)
file = FILE
os.write(file, b"a" * 100)

def write():
    assert libc.pwritev(file, address(withheld), 1, 0) == 100

thread = threading.Thread(target=write)
thread.start()
select.select([faults], [], [])
NAME
os.fsync(file)
assert thread.is_alive()
fcntl.ioctl(faults, 0xC028AA03, struct.pack("QQQQQ", address(withheld), address(given), page, 0, 0))
thread.join()
os.fsync(file)
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;

/// Fails where userfaultfd(2) is forbidden, as in most containers, or missing.
const WITHHOLDS: &str = r#"
import ctypes, errno, os

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(323, os.O_CLOEXEC)
exit(ctypes.get_errno() in [errno.EPERM, errno.ENOSYS])
"#;

fn may_withhold_pages(test: &str) -> bool {
    let may = Command::new("python3").args(["-c", WITHHOLDS]).status().unwrap().success();
    if !may {
        cannot_run(test, "userfaultfd(2) is not allowed here");
    }
    may
}

fn a_write_under_way_is_followed(file: &str, name: &str) {
    let script = UNDER_WAY.replace("FILE", file).replace("NAME", name);
    assert_eq!(Place::in_memory().show_after(&script, "cat volume/file"), "b".repeat(100));
}

#[test]
fn a_write_under_way_is_followed_when_its_file_gets_a_name() {
    if !may_withhold_pages("a_write_under_way_is_followed_when_its_file_gets_a_name") {
        return;
    }
    let file = r#"os.open("volume", os.O_TMPFILE | os.O_RDWR)"#;
    let name = r#"os.link(f"/proc/self/fd/{file}", "volume/file", src_dir_fd=root)"#;
    a_write_under_way_is_followed(file, name);
}

#[test]
fn a_write_under_way_is_followed_when_its_file_comes_back() {
    if !may_withhold_pages("a_write_under_way_is_followed_when_its_file_comes_back") {
        return;
    }
    let file = r#"os.open("volume/first", os.O_CREAT | os.O_RDWR)"#;
    let name = r#"os.rename("volume/first", "first"); os.sync(); os.rename("first", "volume/file")"#;
    a_write_under_way_is_followed(file, name);
}

/// What has left the volume is no part of it, from its first sync on.
#[test]
fn a_file_that_has_left_is_never_confirmed() {
    let script = r#"
import os

for number, is_logged in enumerate([False, True]):
    name = f"file{number}"
    file = os.open(f"volume/{name}", os.O_CREAT | os.O_RDWR)
    os.write(file, b"a" * 100)
    if is_logged:
        os.fsync(file)
    os.rename(f"volume/{name}", name)
    os.write(file, b"b" * 100)
    try:
        os.fsync(file)
        print("confirmed")
    except OSError as error:
        print(os.strerror(error.errno))
"#;
    for (options, outcome) in [(&[][..], "Input/output error"), (&["--outside", "/dev/shm"], "confirmed")] {
        let place = Place::in_memory();
        let sidecar = Sidecar::start(place.path());
        assert_eq!(place.run_python(&sidecar, options, script), (Some(0), format!("{outcome}\n{outcome}\n")));
    }
}

/// A name elsewhere that is gone again by the next sync, and the descriptor that was opened under it.
const GONE_BEFORE: &str = r#"
import os, time

file = os.open("volume/file", os.O_CREAT | os.O_RDWR)
os.write(file, b"a" * 100)
os.mkdir("volume/folder")
os.link("volume/file", "volume/second")
os.sync()
time.sleep(1.2)
os.sync()
GET
os.write(other, b"b" * 100)
os.fsync(SYNCED)
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;

#[test]
fn what_is_written_under_a_name_that_is_gone_is_followed() {
    let link = r#"os.link("volume/file", "other"); other = os.open("other", os.O_RDWR); os.remove("other")"#;
    let rename = r#"os.rename("volume/second", "other"); other = os.open("other", os.O_RDWR); os.remove("other")"#;
    let folder = r#"
os.mkdir("volume/new")
os.link("volume/file", "volume/new/other")
other = os.open("volume/new/other", os.O_RDWR)
os.remove("volume/new/other")
"#;
    for get in [link, rename, folder] {
        for synced in ["file", "other"] {
            let script = GONE_BEFORE.replace("GET", get).replace("SYNCED", synced);
            assert_eq!(Place::in_memory().show_after(&script, "cat volume/file"), "b".repeat(100), "{get}");
        }
    }
}

/// A directory elsewhere on the same device, and the file system of both.
#[test]
fn syncs_elsewhere_on_the_device_confirm_nothing_else() {
    let script = r#"
import ctypes, os

libc = ctypes.CDLL(None)
os.mkdir("elsewhere")
elsewhere = os.open("elsewhere", os.O_RDONLY)
try:
    os.fsync(elsewhere)
    print("wrong")
except OSError as error:
    print(os.strerror(error.errno))
open("elsewhere/file", "w").close()
os.mkfifo("volume/pipe")
for number, path in enumerate(["elsewhere/file", "volume/pipe"]):
    with open(f"volume/file{number}", "w") as file:
        file.write("line")
    assert libc.syncfs(os.open(path, os.O_RDWR)) == 0
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    assert_eq!(place.run_python(&sidecar, &[], script), (KILLED, "Input/output error\nconfirmed\n".to_owned()));
    assert!(place.run(&sidecar, &[], "cat volume/file0 volume/file1").wait().success());
    assert_eq!(place.read("stdout"), "lineline");
}

/// A file that was made elsewhere is opened again by its descriptor: nothing tells of that.
const AGAIN: &str = r#"
import os, time

root = os.open("volume", os.O_RDONLY)
os.mkdir("beside")
file = os.open("beside", os.O_TMPFILE | os.O_RDWR)
os.write(file, b"a" * 100)
os.link(f"/proc/self/fd/{file}", "volume/file", src_dir_fd=root)
os.fsync(file)
# For a second after an opening others are expected.
time.sleep(1.2)
os.fsync(file)
again = os.open(f"/proc/self/fd/{file}", os.O_RDWR)
os.write(again, b"b" * 10)
os.fsync(SYNCED)
"#;

#[test]
fn what_is_written_by_a_second_descriptor_is_followed() {
    for synced in ["file", "again"] {
        let program = [&AGAIN.replace("SYNCED", synced), END].concat();
        let shown = Place::new().show_after(&program, "cat volume/file");
        assert_eq!(shown, ["b".repeat(10), "a".repeat(90)].concat(), "{synced}");
    }
}

/// A file is published under a second name, which is moved away.
const PUBLISHED: &str = r#"
import os

root = os.open("volume", os.O_RDONLY)
os.mkdir("archive")
file = os.open("volume/new", os.O_CREAT | os.O_RDWR)
os.write(file, b"a" * 100)
os.fsync(file)
os.link("volume/new", "volume/final")
os.remove("volume/new")
os.fsync(root)
os.rename("volume/final", "archive/final")
os.fsync(root)
"#;

#[test]
fn a_file_that_leaves_under_its_second_name_is_gone() {
    let program = [PUBLISHED, END].concat();
    assert_eq!(Place::new().show_after(&program, "ls volume; cat archive/final | wc -c"), "100\n");
}

/// The only descriptor is on its way from one process to another, and the file is synced by one that only reads.
const ON_ITS_WAY: &str = r#"
import os, socket, time

here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
reader = os.open("volume/file", os.O_CREAT | os.O_RDONLY)
file = os.open("volume/file", os.O_WRONLY)
os.write(file, b"a" * 100)
os.close(file)
file = os.open("volume/file", os.O_WRONLY)
os.fsync(file)
socket.send_fds(here, [b"x"], [file])
os.close(file)
for _ in range(2):
    # For a second after an opening others are expected.
    time.sleep(1.2)
    os.fsync(reader)
_, [file], _, _ = socket.recv_fds(there, 1, 1)
os.write(file, b"b" * 10)
os.fsync(file)
"#;

#[test]
fn what_is_written_by_a_received_descriptor_is_followed() {
    let program = [ON_ITS_WAY, END].concat();
    let shown = Place::new().show_after(&program, "cat volume/file");
    assert_eq!(shown, ["b".repeat(10), "a".repeat(90)].concat());
}
