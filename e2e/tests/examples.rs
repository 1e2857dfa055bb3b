//! The examples that newcomers copy: each counts on where the others have stopped, through the death of its sidecar.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use tailwind_e2e::process::tally_programs;
use tailwind_e2e::scene::Scene;
use tailwind_e2e::view::PATIENCE;

/// A tally that runs; it ends with this.
struct Tally {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Tally {
    fn start(mut command: Command, socket: &Path) -> Tally {
        let mut child = command.arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Tally { child, input, lines: lines_of(output) }
    }

    /// Gives it a word, and waits for what it says.
    fn count(&mut self, word: &str) -> String {
        writeln!(self.input, "{word}").unwrap();
        self.lines.recv_timeout(PATIENCE).unwrap()
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(output: ChildStdout) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    lines
}

fn commands() -> Vec<Command> {
    let mut python = Command::new("python3");
    python.arg("-B").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tally/tally.py"));
    python.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/../sidecar/client/python"));
    tally_programs().unwrap().into_iter().map(Command::new).chain([python]).collect()
}

#[test]
fn every_tally_counts_on_through_a_failover() {
    let scene = Scene::begin();
    let mut group = scene.group("shm").unwrap();
    let mut before = 0;
    for (first, second) in commands().into_iter().zip(commands()) {
        let primary = group.wait_for_primary().unwrap();
        let standby = 1 - primary;
        let mut leads = Tally::start(first, &group.socket(primary));
        let mut waits = Tally::start(second, &group.socket(standby));
        for more in 1..=20 {
            assert_eq!(leads.count("word"), format!("word {}", before + more));
        }
        group.kill_sidecar(primary).unwrap();
        for more in 21..=40 {
            assert_eq!(waits.count("word"), format!("word {}", before + more));
        }
        // Back to the first one, whose app connects again and has missed nothing.
        group.start_sidecar(primary).unwrap();
        group.kill_sidecar(standby).unwrap();
        for more in 41..=60 {
            assert_eq!(leads.count("word"), format!("word {}", before + more));
        }
        group.start_sidecar(standby).unwrap();
        assert_eq!(leads.count("another one"), format!("another one {}", before / 60 + 1));
        before += 60;
    }
}
