//! Processes of this host: the program under test, commands that end by themselves, what a process uses, free ports.
//!
//! Used by [`group`](super::group) and by the tests.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::observer::TIMEOUT;
use crate::wait::poll;

/// How often a condition is looked at.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A program of this workspace.
struct Program {
    package: &'static str,
    name: &'static str,
    /// Environment variable that names another one to be used.
    variable: &'static str,
    options: &'static [&'static str],
    built: OnceLock<PathBuf>,
}

impl Program {
    const fn sidecar(options: &'static [&'static str]) -> Program {
        let (name, variable) = ("tailwind-sidecar", "TAILWIND_SIDECAR_PROGRAM");
        Program { package: "tailwind-sidecar", name, variable, options, built: OnceLock::new() }
    }

    const fn kv() -> Program {
        let (name, variable) = ("tailwind-kv", "TAILWIND_KV_PROGRAM");
        Program { package: "tailwind-example-kv", name, variable, options: &[], built: OnceLock::new() }
    }

    const fn exec() -> Program {
        let (name, variable) = ("tailwind-exec", "TAILWIND_EXEC_PROGRAM");
        Program { package: "tailwind-exec", name, variable, options: &[], built: OnceLock::new() }
    }

    const fn tally(name: &'static str, variable: &'static str) -> Program {
        Program { package: "tailwind-example-tally", name, variable, options: &[], built: OnceLock::new() }
    }

    const fn registry() -> Program {
        let (name, variable) = ("registry", "TAILWIND_REGISTRY_PROGRAM");
        Program { package: "tailwind-example-registry", name, variable, options: &[], built: OnceLock::new() }
    }

    /// Finds the program that belongs to this build, building it if need be.
    fn find(&self) -> Result<PathBuf> {
        let Program { package, name, variable, options, built } = self;
        if let Some(path) = std::env::var_os(variable) {
            return Ok(path.into());
        }
        if let Some(path) = built.get() {
            return Ok(path.clone());
        }
        let me = std::env::current_exe().context("find this program")?;
        let folder = me.ancestors().skip(1).find(|f| !f.ends_with("deps") && !f.ends_with("examples"));
        let folder = folder.context("find the build folder")?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", package, "--bin", name]).args(*options);
        if folder.ends_with("release") {
            build.arg("--release");
        }
        build.env("CARGO_TARGET_DIR", folder.parent().context("find the target folder")?);
        // With this test's folder in it, build scripts would run again, and what depends on them be compiled again.
        build.env_remove("CARGO_MANIFEST_DIR");
        let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        let status = status.with_context(|| format!("build {name}"))?;
        ensure!(status.success(), "{name} does not build");
        Ok(built.get_or_init(|| folder.join(name)).clone())
    }
}

/// The sidecar's program.
pub fn program() -> Result<PathBuf> {
    static SIDECAR: Program = Program::sidecar(&[]);
    SIDECAR.find()
}

/// The same, able to use RDMA. A program that is named by the environment should be as well.
pub(crate) fn verbs_program() -> Result<PathBuf> {
    static SIDECAR: Program = Program::sidecar(&["--features", "verbs"]);
    SIDECAR.find()
}

/// The example app's program.
pub(crate) fn kv_program() -> Result<PathBuf> {
    static KV: Program = Program::kv();
    KV.find()
}

/// What runs unmodified programs.
pub fn exec_program() -> Result<PathBuf> {
    static EXEC: Program = Program::exec();
    EXEC.find()
}

/// A program of the distribution, which `./check` installs with its package.
pub fn installed(name: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    found
        .with_context(|| format!("there is no {name} here; as root: apt-get install --no-install-recommends {package}"))
}

/// The tally of the examples, with the blocking client and with the asynchronous one.
pub fn tally_programs() -> Result<[PathBuf; 2]> {
    static BLOCKING: Program = Program::tally("tally", "TAILWIND_TALLY_PROGRAM");
    static ASYNCHRONOUS: Program = Program::tally("tally-async", "TAILWIND_TALLY_ASYNC_PROGRAM");
    Ok([BLOCKING.find()?, ASYNCHRONOUS.find()?])
}

/// The registry of the examples.
pub fn registry_program() -> Result<PathBuf> {
    static REGISTRY: Program = Program::registry();
    REGISTRY.find()
}

/// The same command with more options, or with other values of those it has.
pub fn with_options<'a>(command: &Command, options: impl IntoIterator<Item = (&'a str, &'a str)>) -> Command {
    let mut args: Vec<OsString> = command.get_args().map(OsStr::to_owned).collect();
    for (flag, value) in options {
        match args.iter().position(|arg| arg == flag) {
            Some(at) => args[at + 1] = value.into(),
            None => args.extend([flag.into(), value.into()]),
        }
    }
    let mut changed = Command::new(command.get_program());
    changed.args(args);
    changed
}

/// A process that logs to a file, and can be started again after its end. Killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    pub(crate) name: String,
    pub(crate) log: PathBuf,
    child: Option<Child>,
}

impl Daemon {
    /// One that does not run yet.
    pub fn new(name: &str, log: PathBuf) -> Daemon {
        Daemon { name: name.to_owned(), log, child: None }
    }

    /// Starts it, or starts it again.
    pub fn start(&mut self, mut command: Command) -> Result<()> {
        let file = File::options().create(true).append(true).open(&self.log);
        let file = file.with_context(|| format!("open {}", self.log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("start {} ({:?})", self.name, command.get_program()))?;
        self.child = Some(child);
        Ok(())
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// True until its end was waited for.
    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Its number; fails unless it runs.
    pub(crate) fn pid(&self) -> Result<Pid> {
        self.child.as_ref().map(Pid::from_child).with_context(|| format!("{} does not run", self.name))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.pid()?, signal)?)
    }

    /// Kills it, if it runs, and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Waits until it has ended by itself; its exit code.
    pub fn wait_for_end(&mut self) -> Result<Option<i32>> {
        let child = self.child.as_mut().with_context(|| format!("{} does not run", self.name))?;
        let ended = poll(TIMEOUT, POLL_INTERVAL, || child.try_wait().transpose());
        let status = ended.with_context(|| format!("{} does not end", self.name))??;
        self.child = None;
        Ok(status.code())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A stopped process dies of SIGKILL all the same.
        let _ = self.kill();
    }
}

/// The same command, run as the user `nobody` in the root folder.
pub fn as_nobody(command: &Command) -> Command {
    as_user(command, NOBODY, NOBODY)
}

/// The same command, run as a user with no other group than this one, in the root folder.
pub fn as_user(command: &Command, user: &str, group: &str) -> Command {
    let mut other = Command::new("setpriv");
    other.args(["--reuid", user, "--regid", group, "--clear-groups"]);
    other.arg(command.get_program()).args(command.get_args()).current_dir("/");
    other
}

/// The same command, run in a network namespace. The process keeps its id.
pub fn in_namespace(command: &Command, namespace: &str) -> Command {
    let mut other = Command::new("ip");
    other.args(["netns", "exec", namespace]).arg(command.get_program()).args(command.get_args());
    other
}

/// The user `nobody`, and its group.
pub const NOBODY: &str = "65534";

/// Python 3 with a script, whose path may be relative to the top of this repository, and our client.
pub fn python(script: impl AsRef<Path>) -> Command {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut python = Command::new("python3");
    python.arg("-B").arg(root.join(script)).env("PYTHONPATH", root.join("sidecar/client/python"));
    python
}

/// How a command that ends by itself has ended.
#[derive(Clone, Debug)]
pub struct ProcessOutput {
    /// Its exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub errors: String,
}

/// Runs a command to its end. Kills it if it has none within [`TIMEOUT`].
pub fn run_to_end(command: &mut Command) -> Result<ProcessOutput> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.with_context(|| format!("start {command:?}"))?;
    let pid = Pid::from_child(&child);
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let late = ended.recv_timeout(TIMEOUT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        // Not reaped yet, since the other end of the channel lives: the number is still its own.
        late && kill_process(pid, Signal::KILL).is_ok()
    });
    let output = child.wait_with_output();
    drop(done);
    let killed = watchdog.join().unwrap_or_default();
    let output = output.with_context(|| format!("wait for {command:?}"))?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let ended = ProcessOutput { code: output.status.code(), out: text(output.stdout), errors: text(output.stderr) };
    ensure!(!killed, "{command:?} does not end: {ended:?}");
    Ok(ended)
}

/// User and system time of a process, from proc(5).
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // Fields are counted after the name, which may hold blanks: utime is the 12th from there, stime the 13th.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_nanos(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second()))
}

/// The same to the nanosecond, of the threads that live: `schedstat` of each.
pub fn precise_cpu_time(pid: u32) -> Option<Duration> {
    let threads = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")).ok()?;
    let spent = threads.flatten().map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    spent.sum::<Option<u64>>().map(Duration::from_nanos)
}

/// True when every thread of a process is stopped, from proc(5).
pub(crate) fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, state)| state.trim_start().starts_with('T'))
    })
}

/// Resident memory of a process in bytes, without what it shares with others (the buffers of `shm`), from proc(5).
pub fn resident_memory(pid: u32) -> Option<u64> {
    let statm = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("statm")).ok()?;
    let mut pages = statm.split_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some((resident - shared) * rustix::param::page_size() as u64)
}

/// A port that is not in use, below those that the kernel gives to outgoing connections: one of these
/// could take the port of a process that is being restarted.
pub fn free_port() -> Result<u16> {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % 312) as u16 * 64;
    for _ in 0..COUNT {
        let port = FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port from {FIRST} on")
}
