//! The server by itself. What it does in a group is tested in `e2e`.

use std::process::Command;

#[test]
fn an_unknown_option_is_a_usage_error() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_tailwind-kv"));
    let ended = server.arg("--lisen").output().unwrap();
    assert_eq!(ended.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("--listen"), "{ended:?}");
}
