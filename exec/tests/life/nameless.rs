//! Files that have bytes before they have a name.

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
