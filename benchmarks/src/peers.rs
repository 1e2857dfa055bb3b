//! What one would take instead of Tailwind: each peer is started from its Debian package, with all its data in memory and
//! the copies that its answer claims.
//!
//! Called by the comparisons `peers` and `exec`. A peer that does not start is named in the report, with the reason.

mod etcd;
mod nats;
mod postgres;
pub(crate) mod redis;
pub(crate) mod wire;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tailwind_e2e::processes::process::Daemon;
use tailwind_e2e::wait::poll;
use tempfile::TempDir;

use crate::load::Connection;
use crate::results::Contestant;

/// How long a peer may take to be ready.
const START: Duration = Duration::from_secs(60);
/// How often to look.
const LOOK: Duration = Duration::from_millis(50);

/// A running peer. Ends when dropped.
pub(crate) trait Peer {
    /// Its entry in the report.
    fn contestant(&self) -> Contestant;
    /// A connection to the process that takes writes.
    fn connection(&self) -> Result<Box<dyn Connection>>;
    /// Lets go of what was written, where memory is not bounded otherwise.
    fn rest(&self) -> Result<()> {
        Ok(())
    }
}

/// A peer's name, and how it is started with its data in a folder in memory.
pub(crate) type Starter = (&'static str, fn(&Path) -> Result<Box<dyn Peer>>);

/// All of them.
pub(crate) const ALL: [Starter; 4] =
    [("Redis", redis::start), ("etcd", etcd::start), ("PostgreSQL", postgres::start), ("NATS JetStream", nats::start)];

/// The processes of a peer and their folder. The processes go first.
pub(crate) struct Processes {
    daemons: Vec<Daemon>,
    folder: TempDir,
}

impl Processes {
    pub(crate) fn new(memory: &Path, prefix: &str) -> Result<Processes> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(memory);
        let folder = folder.with_context(|| format!("make a folder in {}", memory.display()))?;
        Ok(Processes { daemons: Vec::new(), folder })
    }

    pub(crate) fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.folder.path().join(name.as_ref())
    }

    pub(crate) fn start(&mut self, name: &str, command: Command) -> Result<()> {
        let mut daemon = Daemon::new(name, self.path(format!("{name}.log")));
        daemon.start(command)?;
        self.daemons.push(daemon);
        Ok(())
    }

    /// Waits for something that fails until it is ready. If it never is, the error has the ends of the logs.
    fn wait<T>(&self, what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut last = anyhow!("not asked yet");
        poll(START, LOOK, || attempt().map_err(|error| last = error).ok())
            .with_context(|| format!("{what} within {START:?}: {last:#}{}", self.logs()))
    }

    fn logs(&self) -> String {
        let end = |daemon: &Daemon| daemon.log().lines().last().map(|line| format!("; {line}")).unwrap_or_default();
        self.daemons.iter().map(end).collect()
    }
}

/// A program on the path, or in a folder of its own.
pub(crate) fn find(name: &str, package: &str, folders: &[PathBuf]) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = folders.iter().cloned().chain(std::env::split_paths(&path)).map(|folder| folder.join(name));
    let found = found.into_iter().find(|file| file.is_file());
    found.with_context(|| format!("{name} is not installed (Debian package {package})"))
}

/// The first line of what a program says of its version.
pub(crate) fn version(program: &Path, argument: &str) -> String {
    let output = Command::new(program).arg(argument).output();
    let text = output.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}
