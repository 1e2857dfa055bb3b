//! Both programs say how they are used, and what they cannot reach.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::process::{Command, Output};

const PROGRAMS: [(&str, &str); 2] =
    [("tally", env!("CARGO_BIN_EXE_tally")), ("tally-async", env!("CARGO_BIN_EXE_tally-async"))];

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

#[test]
fn without_a_socket_they_tell_their_usage() {
    for (name, program) in PROGRAMS {
        let ended = run(program, &[]);
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        assert_eq!(String::from_utf8(ended.stdout).unwrap(), format!("usage: {name} SOCKET\n"));
    }
}

#[test]
fn a_socket_that_is_not_there_is_named() {
    for (_, program) in PROGRAMS {
        let ended = run(program, &["/nonexistent/append.sock"]);
        assert!(!ended.status.success(), "{ended:?}");
        assert!(String::from_utf8(ended.stderr).unwrap().contains("/nonexistent/append.sock"));
    }
}
