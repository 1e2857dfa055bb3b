//! Files that have bytes before they have a name, and files with a name elsewhere.

use crate::sidecar::Sidecar;
use crate::{KILLED, Place};

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
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    assert_eq!(place.run_python(&sidecar, &[], SCRIPT), (KILLED, "confirmed\n".to_owned()));
    assert!(place.run(&sidecar, &[], "cd volume; cat linked moved folder/listed").wait().success());
    assert_eq!(place.read("stdout"), "linkedmovedlisted");
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
        let place = Place::new();
        let sidecar = Sidecar::start(place.path());
        let program = [OUTSIDE, more, END].concat();
        assert_eq!(place.run_python(&sidecar, &[], &program), (KILLED, "confirmed\n".to_owned()));
        assert!(place.run(&sidecar, &[], "stat -c %a volume/file; cat volume/file").wait().success());
        let bytes: String = letters.chars().map(|letter| letter.to_string().repeat(100)).collect();
        assert_eq!(place.read("stdout"), format!("640\n{bytes}"));
    }
}
