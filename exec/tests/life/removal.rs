//! What the last run has left and the next one must not find is removed before the program starts, also from the log.

use crate::Place;
use crate::sidecar::Sidecar;

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
