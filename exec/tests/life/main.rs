//! The program `tailwind-exec` from its start to its end, beside a sidecar that does what a test tells it.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and says then what was said"
)]

mod command_line;
mod doctor;
mod dry_run;
mod faults;
mod full;
mod import;
mod lease;
mod loss;
mod many;
mod mapping;
mod nameless;
mod opening;
mod own_folder;
mod page;
mod pid_1;
mod readiness;
mod removal;
mod seeking;
mod sidecar;
mod signals;
mod sparse;
mod survivors;
mod threads;
mod trimming;
mod users;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use sidecar::Sidecar;

const EXEC: &str = env!("CARGO_BIN_EXE_tailwind-exec");

/// The exit code after a loss.
const LOST: i32 = 75;
/// The exit code of a program that has killed itself, so that nothing is captured at its end.
const KILLED: Option<i32> = Some(128 + 9);
/// For what takes milliseconds on an idle machine.
const DEADLINE: Duration = Duration::from_secs(180);

/// A folder for one test: the volume, what the program says, the log of `tailwind-exec`.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap() }
    }

    /// On a file system in memory.
    fn in_memory() -> Place {
        Place { folder: tempfile::tempdir_in("/dev/shm").unwrap() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn volume(&self) -> PathBuf {
        self.path().join("volume")
    }

    /// `tailwind-exec` with these options, also where tests run in a container.
    fn exec(&self, options: &[&str]) -> Command {
        let mut command = self.command(EXEC);
        command.env("TAILWIND_FILES_MAX", "1000");
        command.arg("--dir").arg(self.volume()).arg("--without-pid-1").args(options);
        command
    }

    /// A command in this folder.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.path())
            .stdin(Stdio::null())
            .stdout(self.create("stdout"))
            .stderr(self.create("stderr"));
        command
    }

    /// Runs a shell script beside a sidecar. Its folder is this one, and the volume is `volume`.
    fn run(&self, sidecar: &Sidecar, options: &[&str], script: &str) -> Running {
        let mut command = self.exec(options);
        command.arg("--socket").arg(sidecar.socket()).args(["--", "sh", "-c", script]);
        Running { child: command.spawn().unwrap() }
    }

    /// Runs a Python program in the same way until it ends. Returns its exit code, and what it has printed.
    fn run_python(&self, sidecar: &Sidecar, options: &[&str], program: &str) -> (Option<i32>, String) {
        fs::write(self.path().join("program.py"), program).unwrap();
        let status = self.run(sidecar, options, "exec python3 program.py").wait();
        (status.code(), self.read("stdout"))
    }

    /// Runs a Python program that says that all of its syncs are confirmed, and kills itself. Returns what a shell command shows of
    /// the volume beside the next one.
    #[track_caller]
    fn show_after(&self, program: &str, command: &str) -> String {
        let sidecar = Sidecar::start(self.path());
        assert_eq!(self.run_python(&sidecar, &[], program), (KILLED, "confirmed\n".to_owned()), "{program}");
        assert!(self.run(&sidecar, &[], command).wait().success());
        self.read("stdout")
    }

    fn create(&self, name: &str) -> fs::File {
        fs::File::create(self.path().join(name)).unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }

    /// Waits until the program, or `tailwind-exec` in `stderr`, has said this.
    fn wait_for(&self, name: &str, words: &str) {
        wait_until(&format!("{words:?} in {name}"), || self.read(name).contains(words));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["stdout", "stderr"] {
                println!("{name}:\n{}", self.read(name));
            }
        }
    }
}

/// A `tailwind-exec` that is killed at the end of its test.
struct Running {
    child: Child,
}

impl Running {
    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the end of tailwind-exec", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says that a test cannot run here, past the test harness, which would swallow it: see `CONTRIBUTING.md`.
fn cannot_run(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "cannot run: {test}: {why}");
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
