//! The folder beside the directory, in which the program may do what it likes.

use std::fs;

use crate::Place;
use crate::sidecar::Sidecar;

#[test]
fn a_pipe_in_the_place_of_a_file_holds_nobody_up() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    for file in ["readiness", "directory"] {
        let script = format!("cd .tailwind-exec; rm -f {file}; mkfifo {file}");
        assert!(place.run(&sidecar, &[], &script).wait().success());
        assert!(place.run(&sidecar, &["--import"], "true").wait().success(), "{file}");
    }
    assert!(place.run(&sidecar, &[], "rm .tailwind-exec/lock; mkfifo .tailwind-exec/lock").wait().success());
    assert_eq!(place.run(&sidecar, &[], "true").wait().code(), Some(1));
    assert!(place.read("stderr").contains("lock is no file: remove it"));
}

#[test]
fn a_link_in_the_place_of_a_file_or_folder_leads_nowhere() {
    for (link, said) in [("stage", "stage"), ("lock", "lock"), ("readiness", "")] {
        let place = Place::new();
        let sidecar = Sidecar::start(place.path());
        fs::create_dir(place.path().join("folder")).unwrap();
        fs::write(place.path().join("folder/precious"), "precious").unwrap();
        let target = if link == "stage" { "../folder" } else { "../folder/precious" };
        let script = format!("cd .tailwind-exec; rm -r {link}; ln -s {target} {link}");
        assert!(place.run(&sidecar, &[], &script).wait().success());
        let next = place.run(&sidecar, &[], "true").wait();
        assert_eq!(next.success(), said.is_empty(), "{link}");
        assert!(place.read("stderr").contains(said));
        assert_eq!(place.read("folder/precious"), "precious", "{link}");
    }
}
