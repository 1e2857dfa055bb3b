//! `tailwind-exec` beside each sidecar of a group, each in a container as far as its life goes: whenever it ends, what is left of
//! its processes is killed, and it is started again.
//!
//! Used by [`redis`](super::redis) and the tests of other unmodified programs.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use super::group::Group;
use super::observer::TIMEOUT;
use super::process::{NOBODY, POLL_INTERVAL, exec_program, is_stopped};
use crate::logs::{check, keep, last_lines};
use crate::wait::poll;

/// Words of the warnings that a supervisor rightly writes where these tests run, and when others die.
const EXPECTED: [&str; 6] = [
    "not PID 1",
    "the program must not continue",
    "the role is lost again before the program has started",
    "waits for the sidecar",
    // It was away while the log was trimmed.
    "starts over: the log does not continue what was read",
    // The sidecar has just died, which the next append notices.
    "cannot trim the log; tries again with its next state",
];
/// Options under which the log is trimmed within seconds of load.
pub const TRIMMED_EARLY: &[&str] = &["--trim-after", "1048576"];
/// The exit code of one that has lost the role.
pub const LOST: Ended = Ended::Code(75);
/// Lines of each log that a failure shows.
const LINES_SHOWN: usize = 40;

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Ended {
        status.code().map_or(Ended::Signal(status.signal().unwrap_or_default()), Ended::Code)
    }
}

/// A container beside each sidecar of a group.
#[derive(Debug)]
pub struct Containers {
    name: &'static str,
    containers: Vec<Container>,
}

#[derive(Debug)]
struct Container {
    directory: PathBuf,
    log: PathBuf,
    life: Arc<Mutex<Life>>,
    runtime: Option<JoinHandle<()>>,
}

/// What the container's thread shares with the test.
#[derive(Debug, Default)]
struct Life {
    child: Option<Child>,
    /// The child only waits for its own child, the supervisor, which is the first process of a namespace.
    inside: bool,
    /// The supervisor got SIGKILL.
    killed: bool,
    ends: Vec<Ended>,
    error: Option<String>,
    over: bool,
}

impl Life {
    fn supervisor(&self) -> Option<Pid> {
        let child = Pid::from_child(self.child.as_ref()?);
        if self.inside { first_child(child) } else { Some(child) }
    }
}

impl Containers {
    /// Starts them all: `tailwind-exec` with these options, and the command that `program` makes for a number and its directory.
    pub fn start(
        name: &'static str,
        group: &Group,
        options: &[&str],
        program: impl Fn(usize, &Path) -> Vec<OsString>,
    ) -> Result<Containers> {
        Containers::start_each(name, group, options, program, None)
    }

    /// The same as the user `nobody`, each in namespaces of its own, so that it is the first process there as in a container.
    /// Needs root.
    pub fn start_as_nobody(
        name: &'static str,
        group: &Group,
        options: &[&str],
        program: impl Fn(usize, &Path) -> Vec<OsString>,
    ) -> Result<Containers> {
        // Where that user may execute it.
        let copy = group.memory().join("tailwind-exec");
        fs::copy(exec_program()?, &copy).context("copy tailwind-exec")?;
        Containers::start_each(name, group, options, program, Some(&copy))
    }

    fn start_each(
        name: &'static str,
        group: &Group,
        options: &[&str],
        program: impl Fn(usize, &Path) -> Vec<OsString>,
        as_nobody: Option<&Path>,
    ) -> Result<Containers> {
        let mut containers = Vec::new();
        for index in 0..group.sidecars() {
            // In memory: the volume's file system has to be one that tailwind-exec takes.
            let directory = group.memory().join(format!("{name}{index}")).join("data");
            fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
            let log = group.folder().join("logs").join(format!("{name}{index}-exec.log"));
            let mut arguments: Vec<OsString> = Vec::new();
            match as_nobody {
                // These tests may run in a container themselves.
                None => arguments.extend([exec_program()?.into(), "--without-pid-1".into()]),
                Some(copy) => {
                    let user: u32 = NOBODY.parse()?;
                    for folder in directory.ancestors().take(2) {
                        chown(folder, Some(user), Some(user)).context("give a folder away")?;
                    }
                    arguments.extend(["unshare", "--pid", "--ipc", "--mount-proc", "--fork"].map(OsString::from));
                    arguments.extend(["setpriv", "--reuid", NOBODY, "--regid", NOBODY].map(OsString::from));
                    arguments.extend(["--clear-groups".into(), copy.into()]);
                }
            }
            arguments.extend(["--socket".into(), group.socket(index).into()]);
            arguments.extend(["--dir".into(), directory.clone().into()]);
            // So few that the usual limit of descriptors is enough.
            arguments.extend(["--files-max", "4000"].map(OsString::from));
            arguments.extend(options.iter().map(OsString::from));
            arguments.push("--".into());
            arguments.extend(program(index, &directory));
            let life = Arc::new(Mutex::new(Life { inside: as_nobody.is_some(), ..Life::default() }));
            let runtime = Runtime { arguments, log: log.clone(), life: Arc::clone(&life) };
            let runtime = Some(std::thread::spawn(move || runtime.run()));
            containers.push(Container { directory, log, life, runtime });
        }
        Ok(Containers { name, containers })
    }

    /// The directory that is replicated.
    pub fn directory(&self, index: usize) -> &Path {
        &self.containers[index].directory
    }

    /// How often one has ended so far.
    pub fn ends(&self, index: usize) -> usize {
        self.life(index).ends.len()
    }

    /// How this supervisor has ended, each time.
    pub fn ended(&self, index: usize) -> Vec<Ended> {
        self.life(index).ends.clone()
    }

    /// Waits until one has ended so many times, and once more; how.
    pub fn wait_for_end(&self, index: usize, before: usize) -> Result<Ended> {
        let what = format!("{}{index} to end", self.name);
        self.wait(&what, || self.life(index).ends.get(before).copied())
    }

    /// Waits until one has lost this program with the role, after so many ends: it has ended as it does then, or, as the first
    /// process of its container, follows the log again.
    pub fn wait_for_loss(&self, index: usize, before: usize, program: Pid) -> Result<()> {
        if self.life(index).inside {
            let what = format!("{}{index} to lose its program", self.name);
            return self.wait(&what, || self.program(index).map_or(true, |now| now != program).then_some(()));
        }
        let ended = self.wait_for_end(index, before)?;
        ensure!(ended == LOST, "{}{index} ended with {ended:?} instead of {LOST:?}", self.name);
        Ok(())
    }

    /// Waits until a log that is trimmed early has been, and has the standby read what is left of it from the beginning.
    pub fn replace_standby_of_trimmed_log(&self, group: &Group, primary: usize) -> Result<()> {
        let is_trimmed = || group.status(primary)["positions"]["first"].as_u64() > Some(1);
        self.wait("the log to be trimmed", || is_trimmed().then_some(()))?;
        let (standby, before) = (1 - primary, self.ends(1 - primary));
        self.signal(standby, Signal::KILL)?;
        let ended = self.wait_for_end(standby, before)?;
        ensure!(ended == Ended::Signal(9), "the standby ended with {ended:?}");
        Ok(())
    }

    /// Sends a signal to the supervisor.
    pub fn signal(&self, index: usize, signal: Signal) -> Result<()> {
        // Nobody else waits for it while the lock is held, so the number is its own.
        let mut life = self.life(index);
        let pid = life.supervisor().with_context(|| format!("{}{index} does not run", self.name))?;
        life.killed |= signal == Signal::KILL;
        Ok(kill_process(pid, signal)?)
    }

    /// The program, which is the supervisor's first child.
    pub fn program(&self, index: usize) -> Result<Pid> {
        let supervisor = self.supervisor(index)?;
        first_child(supervisor).with_context(|| format!("{}{index} has no program", self.name))
    }

    /// Stops the supervisor (SIGSTOP), not its program, and waits until each of its threads has stopped.
    pub fn freeze(&self, index: usize) -> Result<()> {
        self.signal(index, Signal::STOP)?;
        let pid = self.supervisor(index)?.as_raw_pid() as u32;
        self.wait("the supervisor to stop", || is_stopped(pid).then_some(()))
    }

    /// Waits until there is something to find; on failure the error holds the end of every log.
    pub fn wait<T>(&self, what: &str, find: impl Fn() -> Option<T>) -> Result<T> {
        self.wait_polling(what, POLL_INTERVAL, find)
    }

    /// The same, where each look costs what it looks at.
    pub fn wait_polling<T>(&self, what: &str, interval: Duration, find: impl Fn() -> Option<T>) -> Result<T> {
        let found = poll(TIMEOUT, interval, find);
        found.with_context(|| format!("waited {TIMEOUT:?} for {what}\n{}", self.last_lines()))
    }

    /// No supervisor has logged an error, or a warning other than those that others' deaths bring.
    pub fn check_logs(&self) -> Result<()> {
        for (index, container) in self.containers.iter().enumerate() {
            if let Some(error) = &self.life(index).error {
                bail!("{}{index}: {error}", self.name);
            }
            let log = fs::read_to_string(&container.log)?;
            ensure!(!log.is_empty(), "{} is empty", container.log.display());
            let lines = log.lines().filter(|line| !line.starts_with("unshare: ")).map(str::to_owned);
            check([(format!("{}{index}", self.name), lines.collect())], &EXPECTED)?;
        }
        Ok(())
    }

    /// The end of every log.
    pub fn last_lines(&self) -> String {
        let lines = |(index, Container { log, .. }): (usize, &Container)| {
            let log = fs::read_to_string(log).unwrap_or_default();
            last_lines(&format!("{}{index}", self.name), log.lines(), LINES_SHOWN)
        };
        self.containers.iter().enumerate().map(lines).collect()
    }

    fn supervisor(&self, index: usize) -> Result<Pid> {
        self.life(index).supervisor().with_context(|| format!("{}{index} does not run", self.name))
    }

    fn life(&self, index: usize) -> MutexGuard<'_, Life> {
        lock(&self.containers[index].life)
    }
}

impl Drop for Containers {
    #[allow(clippy::print_stderr, reason = "a failing test reports to people")]
    fn drop(&mut self) {
        for index in 0..self.containers.len() {
            self.life(index).over = true;
        }
        for runtime in self.containers.iter_mut().filter_map(|container| container.runtime.take()) {
            // Its error is in `Life`.
            let _ = runtime.join();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.last_lines());
            keep(self.name, self.containers.iter().map(|container| container.log.clone()));
        }
    }
}

/// What starts a container again and again, in a thread of its own.
struct Runtime {
    /// Program and arguments.
    arguments: Vec<OsString>,
    log: PathBuf,
    life: Arc<Mutex<Life>>,
}

impl Runtime {
    fn run(self) {
        if let Err(error) = self.run_until_over() {
            lock(&self.life).error = Some(format!("{error:#}"));
        }
    }

    fn run_until_over(&self) -> Result<()> {
        while !lock(&self.life).over {
            let child = self.start()?;
            let pid = Pid::from_child(&child);
            lock(&self.life).child = Some(child);
            // It stays a zombie, so the group's number is not given to others until all its processes are gone.
            let exited = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            while waitid(WaitId::Pid(pid), exited)?.is_none() {
                let life = lock(&self.life);
                if life.over {
                    // It may have ended just now.
                    let _ = kill_process(life.supervisor().unwrap_or(pid), Signal::KILL);
                }
                drop(life);
                std::thread::sleep(POLL_INTERVAL);
            }
            kill_rest(pid)?;
            let mut life = lock(&self.life);
            if let Some(mut child) = life.child.take() {
                let mut ended = child.wait()?.into();
                // unshare(1) wants to die of the same signal as its child, and fails.
                if life.inside && std::mem::take(&mut life.killed) && ended == Ended::Code(1) {
                    ended = Ended::Signal(9);
                }
                life.ends.push(ended);
            }
        }
        Ok(())
    }

    fn start(&self) -> Result<Child> {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("open {}", self.log.display()))?;
        let [program, arguments @ ..] = &self.arguments[..] else { bail!("no program") };
        let mut command = Command::new(program);
        command.args(arguments).env("NO_COLOR", "1").process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("start {}", program.display()))
    }
}

/// The end of a container is that of all its processes: the kernel does it for those of a container's first process.
fn kill_rest(group: Pid) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while lives(group)? {
        // It may have ended just now.
        let _ = kill_process_group(group, Signal::KILL);
        ensure!(Instant::now() < deadline, "processes of the group {group:?} do not die");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The oldest child of a process, from proc(5).
pub fn first_child(pid: Pid) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", pid.as_raw_pid())).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}

/// Whether a process of this group is no zombie, from proc(5).
fn lives(group: Pid) -> Result<bool> {
    let group = group.as_raw_nonzero().to_string();
    for entry in fs::read_dir("/proc").context("list the processes")?.flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // After the name: the state, the parent, the process group.
        let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let state = fields.next();
        if fields.nth(1) == Some(&group) && !matches!(state, Some("Z" | "X")) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn lock(life: &Mutex<Life>) -> MutexGuard<'_, Life> {
    life.lock().unwrap_or_else(PoisonError::into_inner)
}
