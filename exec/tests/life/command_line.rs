//! The command line: what is a mistake, and what help there is.

use std::process::{Command, Output};

use crate::EXEC;

fn run(arguments: &[&str]) -> Output {
    Command::new(EXEC).args(arguments).env_remove("TAILWIND_DIR").output().unwrap()
}

#[test]
fn mistakes_end_with_their_own_code() {
    let mistakes: [&[&str]; 7] = [
        &[],
        &["--dir", "x"],
        &["--", "true"],
        &["--dir", "x", "true"],
        &["--dir", "x", "--lease", "5", "--", "true"],
        &["--dir", "x", "--on-loss", "hope", "--", "true"],
        &["doctor"],
    ];
    for arguments in mistakes {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: "), "{arguments:?}");
    }
}

/// In a pod there are variables of options that no command has.
#[test]
fn commands_take_no_part_in_the_options_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut doctor = Command::new(EXEC);
    doctor.args(["doctor", "--dir"]).arg(folder.path().join("volume")).env_remove("TAILWIND_DIR");
    let output = doctor.env("TAILWIND_SOCKET", "/run/tailwind/log.sock").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("kernel"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_is_no_terminal_gets_no_colors() {
    let said = String::from_utf8(run(&["--dir", "/", "--", "true"]).stderr).unwrap();
    assert!(said.contains("ERROR") && !said.contains('\x1b'), "{said:?}");
}

#[test]
fn help_has_an_example_and_the_exit_codes() {
    let output = run(&["--help"]);
    let said = String::from_utf8(output.stdout).unwrap();
    for words in
        ["tailwind-exec --socket", "redis-server", "Exit codes", "75", "doctor", "--dry-run", "[env: TAILWIND_LEASE="]
    {
        assert!(said.contains(words), "{words:?} is missing: {said}");
    }
    assert!(!said.contains("doctor-child"), "that is for doctor alone");
    assert_eq!(output.status.code(), Some(0));
}
