//! The program says how it is used, and does not retry what cannot succeed. What it does is tested with a group, in `e2e`.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_registry")).args(args).output().unwrap()
}

#[test]
fn other_arguments_than_its_own_get_its_usage() {
    for args in [&[][..], &["look", "append.sock"], &["watch", "append.sock", "lamp"]] {
        let ended = run(args);
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        assert_eq!(String::from_utf8(ended.stdout).unwrap(), "usage: registry [watch] SOCKET\n");
    }
}

/// Where no sidecar can come, it does not wait for one.
#[test]
fn a_path_that_is_no_socket_is_an_error() {
    for args in [&["/dev/null/append.sock"][..], &["watch", "/dev/null/append.sock"]] {
        let ended = run(args);
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(ended.status.code() == Some(1) && said.contains("/dev/null/append.sock"), "{said}");
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
    let path = path.to_str().unwrap();
    for args in [&[path][..], &["watch", path]] {
        let ended = run(args);
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(ended.status.code() == Some(1) && said.contains("rotocol"), "{said}");
    }
}
