//! The programs say how they are used, and do not retry what cannot succeed. What they do is tested with a group, in `e2e`.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixListener;
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

/// Another program at the socket is not waited for.
#[test]
fn an_answer_of_no_sidecar_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("append.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            // A client that has gone already fails the test.
            let _ = client.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let python = ["tally.py", "tally_async.py"].map(|script| {
        let mut command = Command::new("python3");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        command.env("PYTHONPATH", format!("{folder}/sidecar/client/python")).env("PYTHONDONTWRITEBYTECODE", "1");
        command.arg(format!("{folder}/examples/tally/{script}"));
        command
    });
    for mut command in PROGRAMS.into_iter().map(|(_, program)| Command::new(program)).chain(python) {
        let ended = match command.arg(&path).output() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let _ =
                    writeln!(std::io::stderr(), "cannot run: an_answer_of_no_sidecar_is_an_error: there is no python3");
                return;
            }
            ended => ended.unwrap(),
        };
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(ended.status.code() == Some(1) && said.contains("rotocol"), "{command:?}: {said}");
    }
}
