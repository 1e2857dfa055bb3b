//! A backup daemon as a child process, with folders of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A start or an end that takes longer is a failure.
const DEADLINE: Duration = Duration::from_secs(20);

/// One backup: its folders, and its process while it runs. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    dir: tempfile::TempDir,
    arguments: Vec<String>,
    measures: bool,
    child: Option<Child>,
}

impl Daemon {
    /// A backup `b0` of group `db` that has not been started.
    pub(crate) fn new(arguments: &[&str]) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Daemon { dir, arguments, measures: false, child: None }
    }

    /// The same, but it measures the bandwidth of its flush folder.
    pub(crate) fn measuring(arguments: &[&str]) -> Daemon {
        let mut daemon = Daemon::new(arguments);
        daemon.measures = true;
        daemon
    }

    /// The same, started.
    pub(crate) fn started(arguments: &[&str]) -> Daemon {
        let mut daemon = Daemon::new(arguments);
        daemon.start();
        daemon
    }

    pub(crate) fn pool(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    pub(crate) fn flush_dir(&self) -> PathBuf {
        self.dir.path().join("flush")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The file of the control token.
    pub(crate) fn token(&self) -> PathBuf {
        self.dir.path().join("token")
    }

    fn port_file(&self) -> PathBuf {
        self.dir.path().join("port")
    }

    fn command(&self, pool: &Path, flush_dir: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar"));
        // By environment, so that a test's own arguments come first.
        command.env("TAILWIND_LISTEN", "127.0.0.1:0");
        if !self.measures {
            command.env("TAILWIND_FLUSH_BANDWIDTH", "100MiB");
        }
        command.envs([("TAILWIND_SEGMENT_SIZE", "64KiB"), ("TAILWIND_BUFFERS", "4")]);
        command.args(["backup", "--group", "db", "--name", "b0"]);
        command.env("TAILWIND_CONTROL_TOKEN", self.token());
        command.arg("--pool").arg(pool).arg("--flush-dir").arg(flush_dir).arg("--port-file").arg(self.port_file());
        command.args(&self.arguments);
        let log = File::options().append(true).create(true).open(self.dir.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    /// Starts it, and waits until it is ready.
    pub(crate) fn start(&mut self) {
        self.spawn();
        self.wait_until_ready();
    }

    /// Starts it.
    pub(crate) fn spawn(&mut self) {
        assert!(self.child.is_none(), "stop it first");
        let _ = fs::remove_file(self.port_file());
        self.child = Some(self.command(&self.pool(), &self.flush_dir()).spawn().unwrap());
    }

    /// Waits until it is ready.
    pub(crate) fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        while !self.port_file().exists() {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "not ready: {ended:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts another process over folders of choice, which must refuse to run. Returns its exit code and what it said.
    pub(crate) fn refuses(&self, pool: &Path, flush_dir: &Path, arguments: &[&str]) -> (i32, String) {
        let mut command = self.command(pool, flush_dir);
        let output = command.args(arguments).stderr(Stdio::piped()).output().unwrap();
        let code = output.status.code().unwrap_or_else(|| panic!("{output:?}"));
        (code, String::from_utf8(output.stderr).unwrap())
    }

    /// Where its control RPC is.
    pub(crate) fn control(&self) -> String {
        fs::read_to_string(self.port_file()).unwrap().trim().to_owned()
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().unwrap()), signal).unwrap();
    }

    /// Ends it in good order.
    pub(crate) fn terminate(&mut self, signal: Signal) {
        self.signal(signal);
        let status = self.wait();
        assert!(status.success(), "{status}\n{}", self.log());
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                panic!("it did not end\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Loses all memory, as a power failure would.
    pub(crate) fn lose_memory(&self) {
        assert!(self.child.is_none(), "stop it first");
        fs::remove_dir_all(self.pool()).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}
