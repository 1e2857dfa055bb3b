//! A directory that has files already: they go into an empty log, and a log that has files does not go over them.

use std::fs;

use crate::sidecar::Sidecar;
use crate::{Place, Running};

/// A volume with a file, of which no log knows.
fn place_with_file() -> Place {
    let place = Place::new();
    fs::create_dir_all(place.volume().join("folder")).unwrap();
    fs::write(place.volume().join("folder/file"), "mine").unwrap();
    place
}

/// Its program is killed, so that nothing is captured at its end.
fn run(place: &Place, sidecar: &Sidecar, options: &[&str]) -> Running {
    place.run(sidecar, options, "cat volume/folder/file; kill -9 $$")
}

#[test]
fn files_of_the_directory_go_into_an_empty_log() {
    let place = place_with_file();
    let sidecar = Sidecar::start(place.path());
    assert_eq!(run(&place, &sidecar, &[]).wait().code(), Some(1));
    assert!(place.read("stderr").contains("give --import"));
    for options in [&["--import"][..], &[]] {
        assert_eq!(run(&place, &sidecar, options).wait().code(), Some(128 + 9));
        assert_eq!(place.read("stdout"), "mine");
    }
    let other = Place::new();
    assert_eq!(run(&other, &sidecar, &[]).wait().code(), Some(128 + 9));
    assert_eq!(other.read("stdout"), "mine");
}

#[test]
fn a_log_with_files_does_not_go_over_those_of_the_directory() {
    let first = Place::new();
    let sidecar = Sidecar::start(first.path());
    let write = "mkdir volume/folder; echo log >volume/folder/file";
    assert!(first.run(&sidecar, &[], write).wait().success());
    // Beside a primary and beside a standby.
    for _ in 0..2 {
        let place = place_with_file();
        assert_eq!(run(&place, &sidecar, &["--import"]).wait().code(), Some(1));
        let said = place.read("stderr");
        assert!(said.contains("leave out --import"), "{said}");
        assert_eq!(fs::read_to_string(place.volume().join("folder/file")).unwrap(), "mine");
        assert_eq!(fs::read_dir(place.volume()).unwrap().count(), 1);
        sidecar.lose_role();
    }
}
