//! Both programs say how they are used. What they do is tested with a group, in `e2e`.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::process::Command;

const PROGRAMS: [(&str, &str); 2] =
    [("tally", env!("CARGO_BIN_EXE_tally")), ("tally-async", env!("CARGO_BIN_EXE_tally-async"))];

/// Where no sidecar can come, they do not wait for one.
#[test]
fn a_path_that_is_no_socket_is_an_error() {
    for (_, program) in PROGRAMS {
        let ended = Command::new(program).arg("/dev/null/append.sock").output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(ended.status.code() == Some(1) && said.contains("/dev/null/append.sock"), "{said}");
    }
}

#[test]
fn without_a_socket_they_tell_their_usage() {
    for (name, program) in PROGRAMS {
        let ended = Command::new(program).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        assert_eq!(String::from_utf8(ended.stdout).unwrap(), format!("usage: {name} SOCKET\n"));
    }
}
