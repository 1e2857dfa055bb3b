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
