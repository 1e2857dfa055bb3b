//! A group on this machine: sidecars and backups as child processes, each with its folders, ports and log.
//!
//! Everything lies below one working folder and one folder in memory; both go when the group is dropped, as do the processes.
//! What can be seen from outside is in [`View`].

use std::fs::{self, File};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

pub use crate::process::program;
use crate::process::{cpu_time, free_port, stands_still, with_options};
use crate::view::{PATIENCE, View};

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// How a group is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The `tailwind-sidecar` program.
    pub program: PathBuf,
    /// `shm` or `tcp`.
    pub fabric: String,
    /// Backup processes, spares included.
    pub backups: usize,
    /// Copies wanted.
    pub copies: usize,
    /// Sidecars: the first to start becomes primary.
    pub sidecars: usize,
    /// As for `--segment-size`.
    pub segment_size: String,
    /// Buffers of each backup.
    pub buffers: usize,
    /// More options of every sidecar, or other values of those it has.
    pub sidecar_options: Vec<(&'static str, String)>,
    /// More options of every backup, or other values.
    pub backup_options: Vec<(&'static str, String)>,
    /// Folder with `ca.pem` and, for each process, `NAME.pem` and `NAME.key`: the control RPC by mutual TLS.
    pub certificates: Option<PathBuf>,
    /// Prefix of the folders in memory; a RAM file system. `TAILWIND_TEST_MEMORY`, if that says which.
    pub memory: PathBuf,
}

impl Setup {
    /// Three copies, one spare, one primary and one standby, small segments so that they roll over often.
    pub fn new(program: PathBuf, fabric: &str) -> Setup {
        Setup {
            program,
            fabric: fabric.to_owned(),
            backups: 4,
            copies: 3,
            sidecars: 2,
            segment_size: "64KiB".to_owned(),
            buffers: 24,
            sidecar_options: Vec::new(),
            backup_options: Vec::new(),
            certificates: None,
            memory: std::env::var_os("TAILWIND_TEST_MEMORY").map_or_else(|| "/dev/shm".into(), PathBuf::from),
        }
    }
}

/// A process of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// By its number.
    Sidecar(usize),
    /// By its number.
    Backup(usize),
}

#[derive(Debug)]
struct Process {
    name: String,
    port: u16,
    child: Option<Child>,
}

/// A running group. It can be looked at like its [`View`].
#[derive(Debug)]
pub struct Group {
    setup: Setup,
    folder: tempfile::TempDir,
    memory: tempfile::TempDir,
    backups: Vec<Process>,
    sidecars: Vec<Process>,
    view: View,
}

impl Deref for Group {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}

impl Group {
    /// Starts the backups, then the sidecars one after the other; returns when the first is primary.
    pub fn start(setup: Setup) -> Result<Group> {
        let mut group = Group::prepare(setup)?;
        group.start_all()?;
        Ok(group)
    }

    /// Makes folders and chooses ports; starts nothing.
    pub fn prepare(setup: Setup) -> Result<Group> {
        let folder = tempfile::Builder::new().prefix("tailwind-").tempdir().context("make a working folder")?;
        let memory = tempfile::Builder::new().prefix("tailwind-").tempdir_in(&setup.memory);
        let memory = memory.with_context(|| format!("make a folder in {}", setup.memory.display()))?;
        let named = |kind: &str, count| {
            let process = |n| Ok(Process { name: format!("{kind}{n}"), port: free_port()?, child: None });
            (0..count).map(process).collect::<Result<Vec<_>>>()
        };
        let (backups, sidecars) = (named("backup", setup.backups)?, named("sidecar", setup.sidecars)?);
        let logs = folder.path().join("logs");
        fs::create_dir_all(&logs).context("make the folder of logs")?;
        let sockets = (0..setup.sidecars).map(|n| folder.path().join(format!("append-{n}.sock"))).collect();
        let names = sidecars.iter().chain(&backups).map(|process| process.name.clone());
        let view = View::new(sockets, names.map(|name| (name.clone(), logs.join(format!("{name}.log")))).collect());
        Ok(Group { setup, folder, memory, backups, sidecars, view })
    }

    /// Starts what does not run: the backups, then the sidecars one after the other; returns when there is a primary.
    pub fn start_all(&mut self) -> Result<()> {
        for index in (0..self.backups.len()).filter(|index| self.backups[*index].child.is_none()).collect::<Vec<_>>() {
            self.start_backup(index)?;
        }
        for index in (0..self.sidecars.len()).filter(|index| self.sidecars[*index].child.is_none()).collect::<Vec<_>>()
        {
            self.start_sidecar(index)?;
            if index == 0 {
                self.wait_for_primary()?;
            }
        }
        Ok(())
    }

    /// Starts (or starts again) one process.
    pub fn start_one(&mut self, who: Who) -> Result<()> {
        match who {
            Who::Sidecar(index) => self.start_sidecar(index),
            Who::Backup(index) => self.start_backup(index),
        }
    }

    /// Starts (or starts again) one backup.
    pub fn start_backup(&mut self, index: usize) -> Result<()> {
        let command = self.backup_command(index);
        self.backups[index].child = Some(self.spawn(&self.backups[index].name, command)?);
        Ok(())
    }

    /// Starts (or starts again) one sidecar.
    pub fn start_sidecar(&mut self, index: usize) -> Result<()> {
        let command = self.sidecar_command(index);
        self.sidecars[index].child = Some(self.spawn(&self.sidecars[index].name, command)?);
        Ok(())
    }

    /// The command line of a backup.
    pub fn backup_command(&self, index: usize) -> Command {
        let Process { name, port, .. } = &self.backups[index];
        let mut command = Command::new(&self.setup.program);
        command.args(["backup", "--group", "demo", "--name", name, "--fabric", &self.setup.fabric]);
        command.arg("--listen").arg(format!("127.0.0.1:{port}"));
        command.arg("--pool").arg(self.pool(index));
        command.arg("--flush-dir").arg(self.flush_folder(index));
        command.args(["--segment-size", &self.setup.segment_size, "--buffers", &self.setup.buffers.to_string()]);
        command.args(["--flush-bandwidth", "1GiB"]);
        self.guard(&mut command, name);
        with_options(&command, self.setup.backup_options.iter().map(|(flag, value)| (*flag, value.as_str())))
    }

    /// The command line of a sidecar.
    pub fn sidecar_command(&self, index: usize) -> Command {
        let Process { name, port, .. } = &self.sidecars[index];
        let mut command = Command::new(&self.setup.program);
        command.args(["run", "--group", "demo", "--name", name, "--fabric", &self.setup.fabric]);
        command.arg("--listen").arg(format!("127.0.0.1:{port}"));
        command.arg("--socket").arg(self.socket(index));
        command.arg("--config").arg(self.config());
        command.args(["--backups", &self.setup.copies.to_string(), "--segment-size", &self.setup.segment_size]);
        for Process { name, port, .. } in &self.backups {
            command.arg("--backup").arg(format!("{name}=127.0.0.1:{port}"));
        }
        self.guard(&mut command, name);
        with_options(&command, self.setup.sidecar_options.iter().map(|(flag, value)| (*flag, value.as_str())))
    }

    fn guard(&self, command: &mut Command, name: &str) {
        if let Some(folder) = &self.setup.certificates {
            command.arg("--tls-ca").arg(folder.join("ca.pem"));
            command.arg("--tls-cert").arg(folder.join(format!("{name}.pem")));
            command.arg("--tls-key").arg(folder.join(format!("{name}.key")));
        } else {
            // Not the usual file: nothing shall be left on this host.
            command.arg("--control-token").arg(self.token_file());
        }
    }

    fn spawn(&self, name: &str, mut command: Command) -> Result<Child> {
        let log = self.log_file(name);
        let file =
            File::options().create(true).append(true).open(&log).with_context(|| format!("open {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        command.spawn().with_context(|| format!("start {name} ({})", self.setup.program.display()))
    }

    fn process(&self, who: Who) -> &Process {
        match who {
            Who::Sidecar(index) => &self.sidecars[index],
            Who::Backup(index) => &self.backups[index],
        }
    }

    fn process_mut(&mut self, who: Who) -> &mut Process {
        match who {
            Who::Sidecar(index) => &mut self.sidecars[index],
            Who::Backup(index) => &mut self.backups[index],
        }
    }

    /// Sends a signal.
    pub fn signal(&self, who: Who, signal: Signal) -> Result<()> {
        let process = self.process(who);
        let child = process.child.as_ref().with_context(|| format!("{} does not run", process.name))?;
        Ok(kill_process(Pid::from_child(child), signal)?)
    }

    /// Stops a process (SIGSTOP) and waits until each of its threads stands still.
    pub fn freeze(&self, who: Who) -> Result<()> {
        self.signal(who, Signal::STOP)?;
        let pid = self.pid(who).context("it runs")?;
        self.wait("the process to stand still", |_| stands_still(pid)).map(|_| ())
    }

    /// Kills a process and waits until it is gone.
    pub fn kill(&mut self, who: Who) -> Result<()> {
        kill(self.process_mut(who))
    }

    /// Kills a backup and waits until it is gone.
    pub fn kill_backup(&mut self, index: usize) -> Result<()> {
        self.kill(Who::Backup(index))
    }

    /// Kills a backup and starts another of its name, with empty folders.
    pub fn replace_backup(&mut self, index: usize) -> Result<()> {
        self.kill_backup(index)?;
        for folder in [self.pool(index), self.flush_folder(index)] {
            fs::remove_dir_all(&folder).with_context(|| format!("empty {}", folder.display()))?;
        }
        self.start_backup(index)
    }

    /// Kills a sidecar and waits until it is gone.
    pub fn kill_sidecar(&mut self, index: usize) -> Result<()> {
        self.kill(Who::Sidecar(index))
    }

    /// Kills everything that runs, as a power cut would: nobody sees the others go before it goes itself.
    pub fn kill_all(&mut self) -> Result<()> {
        for process in self.sidecars.iter_mut().chain(&mut self.backups) {
            if let Some(child) = &process.child {
                kill_process(Pid::from_child(child), Signal::KILL)?;
            }
        }
        self.sidecars.iter_mut().chain(&mut self.backups).try_for_each(kill)
    }

    /// True while the process has not been killed.
    pub fn runs(&self, who: Who) -> bool {
        self.process(who).child.is_some()
    }

    /// Process id of a running process.
    pub fn pid(&self, who: Who) -> Option<u32> {
        self.process(who).child.as_ref().map(Child::id)
    }

    /// Waits until a process has ended by itself; its exit code.
    pub fn wait_for_end(&mut self, who: Who) -> Result<Option<i32>> {
        let deadline = Instant::now() + PATIENCE;
        let process = self.process_mut(who);
        let child = process.child.as_mut().with_context(|| format!("{} does not run", process.name))?;
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait()? {
                process.child = None;
                return Ok(status.code());
            }
            std::thread::sleep(LOOK);
        }
        let name = process.name.clone();
        bail!("{name} does not end\n{}", self.logs(25))
    }

    /// What can be seen from outside.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The working folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The config store's file.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("config.json")
    }

    /// The numbered file beside it that holds the newest configuration.
    pub fn newest_config(&self) -> Result<PathBuf> {
        let first = self.config();
        let number =
            |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("config.json.")?.parse::<u64>().ok();
        let highest = fs::read_dir(self.folder()).context("list the folder")?.flatten().filter_map(number).max();
        Ok(highest.map_or(first.clone(), |number| first.with_file_name(format!("config.json.{number}"))))
    }

    /// The folder of a backup's buffers.
    pub fn pool(&self, index: usize) -> PathBuf {
        self.memory.path().join(&self.backups[index].name)
    }

    /// The folder that a backup flushes to.
    pub fn flush_folder(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("{}-disk", self.backups[index].name))
    }

    /// The control port of a process.
    pub fn port(&self, who: Who) -> u16 {
        self.process(who).port
    }

    /// The file of the control token, where there are no certificates.
    pub fn token_file(&self) -> PathBuf {
        self.folder.path().join("control.token")
    }

    /// Gives a backup that does not run another port; sidecars that are started from now on are told.
    pub fn move_backup(&mut self, index: usize) -> Result<()> {
        self.backups[index].port = free_port()?;
        Ok(())
    }

    /// Two backups that do not run change ports.
    pub fn swap_ports(&mut self, one: usize, other: usize) {
        let ports = (self.backups[one].port, self.backups[other].port);
        (self.backups[other].port, self.backups[one].port) = ports;
    }

    /// Number of sidecars.
    pub fn sidecars(&self) -> usize {
        self.sidecars.len()
    }

    /// Number of backups.
    pub fn backups(&self) -> usize {
        self.backups.len()
    }

    /// The setup.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Index of a backup by its name.
    pub fn backup_named(&self, name: &str) -> Option<usize> {
        self.backups.iter().position(|backup| backup.name == name)
    }

    /// The setup, to be changed for the processes that are started from now on.
    pub fn setup_mut(&mut self) -> &mut Setup {
        &mut self.setup
    }

    /// Waits for a condition; on failure the error holds the end of every log.
    pub fn wait(&self, what: &str, condition: impl Fn(&Group) -> bool) -> Result<Duration> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if condition(self) {
                return Ok(started.elapsed());
            }
            std::thread::sleep(LOOK);
        }
        bail!("waited {PATIENCE:?} for {what}\n{}", self.logs(25))
    }

    /// Waits until there is something to find; on failure the error holds the end of every log.
    pub fn wait_for<T>(&self, what: &str, find: impl Fn(&Group) -> Option<T>) -> Result<T> {
        let found = std::cell::OnceCell::new();
        self.wait(what, |group| find(group).is_some_and(|value| found.set(value).is_ok()))?;
        found.into_inner().context("found")
    }

    /// Waits for a primary; its number.
    pub fn wait_for_primary(&self) -> Result<usize> {
        self.wait_for("a primary", |group| group.primary())
    }

    /// Waits until as many members as wanted are in the set; their numbers.
    pub fn wait_for_full_set(&self) -> Result<Vec<usize>> {
        self.wait_for("a full set", |group| {
            let members = group.members();
            let known = members.iter().filter_map(|name| group.backup_named(name)).collect();
            (members.len() == group.setup.copies).then_some(known)
        })
    }

    /// CPU time, user and system, of all running backups.
    pub fn cpu_of_backups(&self) -> Duration {
        self.backups.iter().filter_map(|backup| cpu_time(backup.child.as_ref()?.id())).sum()
    }
}

impl Drop for Group {
    #[allow(clippy::print_stderr, reason = "a failing test reports to people")]
    fn drop(&mut self) {
        for process in self.sidecars.iter_mut().chain(&mut self.backups) {
            // A frozen process dies of SIGKILL all the same.
            let _ = kill(process);
        }
        if std::thread::panicking() {
            eprintln!("{}", self.logs(LINES_SHOWN));
            self.keep_logs();
        }
    }
}

/// Lines of each process's log that a failing test shows.
const LINES_SHOWN: usize = 30;

impl Group {
    fn keep_logs(&self) {
        let Some(kept) = std::env::var_os("TAILWIND_KEEP_LOGS").map(PathBuf::from) else { return };
        let kept = kept.join(self.folder.path().file_name().unwrap_or_default());
        // Nobody to tell if it cannot be: the test fails anyway.
        let _ = fs::create_dir_all(&kept);
        for process in self.sidecars.iter().chain(&self.backups) {
            let _ = fs::copy(self.log_file(&process.name), kept.join(&process.name));
        }
    }
}

fn kill(process: &mut Process) -> Result<()> {
    if let Some(mut child) = process.child.take() {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}
