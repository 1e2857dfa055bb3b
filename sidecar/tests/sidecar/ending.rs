//! `tailwind-sidecar run` is told to end before it has started.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// No program takes longer to say something, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: none, user: {}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
current-context: none
";

#[test]
fn a_sidecar_that_finds_no_group_ends_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, KUBECONFIG).unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar"));
        command
            .args(["run", "--replica-group", "ns/none", "--name", "a", "--socket"])
            .arg(folder.path().join("socket"));
        command.env("KUBECONFIG", &kubeconfig).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut sidecar = command.spawn().unwrap();
        let mut log = BufReader::new(sidecar.stderr.take().unwrap());
        let (says, said) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            while log.read_line(&mut line).is_ok_and(|size| size > 0) {
                let _ = says.send(std::mem::take(&mut line));
            }
        });
        let next = || said.recv_timeout(PATIENCE);
        while !next().unwrap().contains("failed to watch the ReplicaGroup") {}
        kill_process(Pid::from_child(&sidecar), signal).unwrap();
        let end = std::iter::from_fn(|| next().ok()).last();
        if end.as_ref().is_none_or(|line| !line.contains("ending")) {
            sidecar.kill().unwrap();
        }
        assert_eq!(sidecar.wait().unwrap().code(), Some(0), "{end:?}");
    }
}
