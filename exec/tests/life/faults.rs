//! What cannot be followed is never confirmed: not by the second sync either, nor if no sync was the first to meet it.

use crate::sidecar::Sidecar;
use crate::{KILLED, Place};

/// More than the volume may have, whoever meets that first; then two syncs.
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
sync(SYNCED)
sync(SYNCED)
os.kill(os.getpid(), 9)
"#;

const TOO_MANY: &str = "for name in range(5): make(str(name))";

/// Both of the last two syncs fail.
fn is_never_confirmed(fault: &str, synced: &str) {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let script = SCRIPT.replace("FAULT", fault).replace("SYNCED", synced);
    let outcome = place.run_python(&sidecar, &["--files-max", "5"], &script);
    assert_eq!(outcome, (KILLED, "confirmed\nEIO\nEIO\n".to_owned()));
}

#[test]
fn names_of_too_many_files_are_never_confirmed() {
    is_never_confirmed(TOO_MANY, r#"os.open("volume", os.O_RDONLY)"#);
}

#[test]
fn a_directory_that_has_left_is_never_confirmed() {
    is_never_confirmed(r#"os.rename("volume/folder", "elsewhere")"#, r#"os.open("volume", os.O_RDONLY)"#);
}

/// A position that goes back and forth over the same bytes looks as if nothing was written.
#[test]
fn a_seek_that_was_not_followed_is_never_confirmed() {
    is_never_confirmed(&format!("{TOO_MANY}\nos.lseek(first, 0, os.SEEK_SET)\nos.write(first, b'b' * 100)"), "first");
}
