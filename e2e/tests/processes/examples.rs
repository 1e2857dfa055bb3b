//! The examples to copy: each continues the others' count, through the death of its sidecar.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use tailwind_e2e::context::TestContext;
use tailwind_e2e::processes::observer::TIMEOUT;
use tailwind_e2e::processes::process::{python, tally_programs};

/// An example that runs, killed when dropped.
pub(crate) struct App {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl App {
    pub(crate) fn start(mut command: Command, socket: &Path) -> App {
        let mut child = command.arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        App { child, input, lines: lines_of(output) }
    }

    /// Sends it a line, and waits for the answer.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.next_line()
    }

    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// What it prints next.
    pub(crate) fn next_line(&self) -> String {
        self.lines.recv_timeout(TIMEOUT).unwrap()
    }
}

impl Drop for App {
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
    let python = ["tally.py", "tally_async.py"].map(|script| python(format!("examples/tally/{script}")));
    tally_programs().unwrap().into_iter().map(Command::new).chain(python).collect()
}

#[test]
fn tallies_survive_failovers() {
    let test = TestContext::start();
    let mut group = test.group("shm").unwrap();
    let mut before = 0;
    for (first, second) in commands().into_iter().zip(commands()) {
        let primary = group.wait_for_primary().unwrap();
        let standby = 1 - primary;
        let mut leads = App::start(first, &group.socket(primary));
        let mut waits = App::start(second, &group.socket(standby));
        for more in 1..=20 {
            assert_eq!(leads.ask("word"), format!("word {}", before + more));
        }
        group.kill_sidecar(primary).unwrap();
        for more in 21..=40 {
            assert_eq!(waits.ask("word"), format!("word {}", before + more));
        }
        // Back to the first one, whose app connects again and reads what it has missed.
        group.start_sidecar(primary).unwrap();
        group.kill_sidecar(standby).unwrap();
        for more in 41..=60 {
            assert_eq!(leads.ask("word"), format!("word {}", before + more));
        }
        group.start_sidecar(standby).unwrap();
        assert_eq!(leads.ask("another one"), format!("another one {}", before / 60 + 1));
        before += 60;
    }
}
