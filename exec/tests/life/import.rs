//! A directory that has files already: they go into an empty log, and a log that has files does not go over them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::sidecar::Sidecar;
use crate::{Place, Running, wait_until};

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

/// The log may have gone, and the directory have the only copy.
#[test]
fn files_of_an_earlier_log_are_not_removed_for_an_empty_one() {
    let place = Place::new();
    let first = Sidecar::start(place.path());
    assert!(place.run(&first, &[], "mkdir volume/folder; printf mine >volume/folder/file").wait().success());
    let other = Place::new();
    let second = Sidecar::start(other.path());
    assert_eq!(run(&place, &second, &[]).wait().code(), Some(1));
    let said = place.read("stderr");
    assert!(said.contains("files of an earlier log") && said.contains("give --import"), "{said}");
    for options in [&["--import"][..], &[]] {
        assert_eq!(run(&place, &second, options).wait().code(), Some(128 + 9));
        assert_eq!(place.read("stdout"), "mine");
    }
    assert_eq!(run(&other, &second, &[]).wait().code(), Some(128 + 9));
    assert_eq!(other.read("stdout"), "mine");
}

/// File systems give the inode of a removed directory away again. When it was made tells the two apart.
#[test]
fn a_directory_that_was_made_again_is_not_taken_for_the_old_one() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    assert!(place.run(&sidecar, &[], "echo precious >volume/file").wait().success());
    let mark = place.path().join(".tailwind-exec/directory");
    let text = fs::read_to_string(&mark).unwrap();
    let [inode, made, log] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert_ne!(made, "0.000000000", "this file system says when a directory was made");
    fs::write(&mark, format!("{inode} 1.000000000 {log}")).unwrap();
    assert_eq!(place.run(&sidecar, &[], "true").wait().code(), Some(1));
    assert!(place.read("stderr").contains("nothing says that tailwind-exec has put them there"));
    assert_eq!(place.read("volume/file"), "precious\n");
}

/// What was taken before the import was given up is void, and in nobody's way.
#[test]
fn an_import_that_fails_is_tried_again() {
    let place = place_with_file();
    fs::write(place.volume().join("large"), vec![1_u8; 3 << 20]).unwrap();
    let sidecar = Sidecar::start(place.path());
    assert_eq!(run(&place, &sidecar, &["--import", "--scan-max", "2097152"]).wait().code(), Some(1));
    assert!(place.read("stderr").contains("--scan-max"));
    assert_eq!(run(&place, &sidecar, &["--import"]).wait().code(), Some(128 + 9));
    let other = Place::new();
    assert!(other.run(&sidecar, &[], "cat volume/folder/file; wc -c <volume/large").wait().success());
    assert_eq!(other.read("stdout").trim(), "mine3145728");
}

/// Nor for one that others have begun; nor for the log of another program.
#[test]
fn files_of_an_earlier_log_are_not_removed_for_another_one() {
    let place = Place::new();
    let first = Sidecar::start(place.path());
    assert!(place.run(&first, &[], "printf mine >volume/file").wait().success());
    let other = Place::new();
    let begun = Sidecar::start(other.path());
    assert!(other.run(&begun, &[], "true").wait().success());
    let elsewhere = Place::new();
    let foreign = Sidecar::start(elsewhere.path());
    foreign.append_of_another();
    for (sidecar, said) in [(&begun, "files of another log"), (&foreign, "record 1 of the log")] {
        for options in [&[][..], &["--import"]] {
            assert_eq!(place.run(sidecar, options, "true").wait().code(), Some(1));
            assert!(place.read("stderr").contains(said), "{}", place.read("stderr"));
            assert_eq!(place.read("volume/file"), "mine");
        }
    }
    assert!(place.run(&first, &[], "true").wait().success());
    assert_eq!(place.read("volume/file"), "mine");
}

/// Waits at a socket that nobody serves yet, and has claimed its empty directory.
fn start_alone(place: &Place, socket: &Path) -> Running {
    let mut command = place.exec(&[]);
    command.arg("--socket").arg(socket).args(["--", "true"]);
    let running = Running { child: command.spawn().unwrap() };
    wait_until("the mark", || !place.read(".tailwind-exec/directory").is_empty());
    running
}

/// An empty directory is marked at the start. That says nothing of files that come later.
#[test]
fn files_that_came_after_a_fruitless_start_are_not_removed() {
    let first = Place::new();
    let sidecar = Sidecar::start(first.path());
    assert!(first.run(&sidecar, &[], "echo log >volume/file").wait().success());
    let place = Place::new();
    let mut waiting = start_alone(&place, Path::new("nobody.sock"));
    kill_process(Pid::from_child(&waiting.child), Signal::TERM).unwrap();
    assert!(waiting.wait().success());
    fs::write(place.volume().join("file"), "restored").unwrap();
    for (options, said) in [(&[][..], "give --import"), (&["--import"], "leave out --import")] {
        assert_eq!(place.run(&sidecar, options, "true").wait().code(), Some(1));
        assert!(place.read("stderr").contains(said), "{}", place.read("stderr"));
        assert_eq!(place.read("volume/file"), "restored");
    }
}

/// Nor are those that come before the sidecar does.
#[test]
fn files_that_come_after_the_start_are_not_removed() {
    let first = Place::new();
    let sidecar = Sidecar::start(first.path());
    assert!(first.run(&sidecar, &[], "echo log >volume/file").wait().success());
    let place = Place::new();
    let socket = place.path().join("late.sock");
    let mut waiting = start_alone(&place, &socket);
    fs::write(place.volume().join("file"), "restored").unwrap();
    symlink(sidecar.socket(), &socket).unwrap();
    assert_eq!(waiting.wait().code(), Some(1));
    assert!(place.read("stderr").contains("was empty at the start"), "{}", place.read("stderr"));
    assert_eq!(place.read("volume/file"), "restored");
}
