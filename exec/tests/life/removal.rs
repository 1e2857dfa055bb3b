//! What the last run has left and the next one must not find is removed before the program starts, also from the log.

use crate::sidecar::Sidecar;
use crate::{KILLED, Place};

#[test]
fn stale_files_are_removed_at_start() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let write = "mkdir volume/folder; for name in kept stale folder/kept folder/stale; do echo 1 >volume/$name; done";
    assert!(place.run(&sidecar, &[], write).wait().success());

    let list = "cd volume; find . -type f | sort | tr '\\n' ' '";
    let stale = ["--remove-at-start", "stale", "--remove-at-start", "folder/stale", "--remove-at-start", "absent"];
    for options in [&stale[..], &[]] {
        assert!(place.run(&sidecar, options, list).wait().success());
        assert_eq!(place.read("stdout"), "./folder/kept ./kept ");
    }
}

/// Makes folders in one another, deeper than any path can name, with a file at the end.
const NEST: &str = r#"
import os

os.chdir("volume")
for _ in range(1500):
    os.mkdir("folder")
    os.chdir("folder")
file = os.open("file", os.O_CREAT | os.O_RDWR)
os.write(file, b"deep")
os.fsync(file)
print("made", flush=True)
os.kill(os.getpid(), 9)
"#;

/// Finds it.
const FIND: &str = r#"
import os

os.chdir("volume")
for _ in range(1500):
    os.chdir("folder")
print(open("file").read())
"#;

#[test]
fn deep_folders_are_emptied_and_filled_again() {
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    let options = ["--files-max", "2000"];
    assert_eq!(place.run_python(&sidecar, &options, NEST), (KILLED, "made\n".to_owned()));
    assert_eq!(place.run_python(&sidecar, &options, FIND), (Some(0), "deep\n".to_owned()));
}

/// The log may have any link, and this is the other host.
#[test]
fn nothing_outside_is_removed_at_start() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    assert!(
        place
            .run(&sidecar, &[], "mkdir elsewhere; touch elsewhere/file; ln -s ../elsewhere volume/link")
            .wait()
            .success()
    );
    let mut running = place.run(&sidecar, &["--remove-at-start", "link/file"], "echo started");
    assert_eq!(running.wait().code(), Some(1));
    assert_eq!(place.read("stdout"), "");
    assert!(place.read("stderr").contains("remove link/file"));
    assert!(place.path().join("elsewhere/file").exists());
}
