//! A group on this machine: sidecars and backups as child processes, each with its folders, ports and log.
//!
//! Everything lies below one working folder and one folder in memory; both go when the group is dropped, as do the processes.
//! What can be seen from outside is in [`Observer`].

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::hosts::Hosts;
use super::http;
use super::observer::{Observer, TIMEOUT};
use super::process::{Daemon, POLL_INTERVAL, as_user, cpu_time, free_port, is_stopped, with_options};
use crate::logs::Logs;
use crate::wait::poll;

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
    /// How many of them, the last ones, only read.
    pub readers: usize,
    /// As for `--segment-size`.
    pub segment_size: String,
    /// Buffers of each backup.
    pub buffers: usize,
    /// More options of every sidecar that may lead, or other values of those it has.
    pub sidecar_options: Vec<(&'static str, String)>,
    /// More options of those that only read.
    pub reader_options: Vec<(&'static str, String)>,
    /// More options of every backup, or other values.
    pub backup_options: Vec<(&'static str, String)>,
    /// Folder with `ca.pem` and, for each process, `NAME.pem` and `NAME.key`: the control RPC by mutual TLS.
    pub certificates: Option<PathBuf>,
    /// The address at which processes reach each other: of loopback.
    pub host: IpAddr,
    /// The address that they listen on, if it is not `host`.
    pub listen: Option<IpAddr>,
    /// A host for each process, if they do not run on this one.
    pub hosts: Option<Arc<Hosts>>,
    /// The user that all processes run as, in group 0; this process's own if not given.
    pub user: Option<&'static str>,
    /// Prefix of the folders in memory; a RAM file system. `TAILWIND_TEST_MEMORY`, if set.
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
            readers: 0,
            reader_options: Vec::new(),
            segment_size: "64KiB".to_owned(),
            buffers: 24,
            sidecar_options: Vec::new(),
            backup_options: Vec::new(),
            certificates: None,
            host: Ipv4Addr::LOCALHOST.into(),
            listen: None,
            hosts: None,
            user: None,
            memory: std::env::var_os("TAILWIND_TEST_MEMORY").map_or_else(|| "/dev/shm".into(), PathBuf::from),
        }
    }
}

/// A process of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// By its number.
    Sidecar(usize),
    /// By its number.
    Backup(usize),
}

#[derive(Debug)]
struct Instance {
    daemon: Daemon,
    port: u16,
}

/// A running group, with all that its [`Observer`] has.
#[derive(Debug)]
pub struct Group {
    setup: Setup,
    folder: tempfile::TempDir,
    memory: tempfile::TempDir,
    backups: Vec<Instance>,
    sidecars: Vec<Instance>,
    observer: Observer,
}

impl Deref for Group {
    type Target = Observer;

    fn deref(&self) -> &Observer {
        &self.observer
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
        let logs = folder.path().join("logs");
        fs::create_dir_all(&logs).context("make the folder of logs")?;
        let named = |kind: &str, count| {
            let instance = |n| {
                let name = format!("{kind}{n}");
                Ok(Instance { daemon: Daemon::new(&name, logs.join(format!("{name}.log"))), port: free_port()? })
            };
            (0..count).map(instance).collect::<Result<Vec<_>>>()
        };
        let (backups, sidecars) = (named("backup", setup.backups)?, named("sidecar", setup.sidecars)?);
        let sockets = (0..setup.sidecars).map(|n| folder.path().join(format!("append-{n}.sock"))).collect();
        let logs =
            sidecars.iter().chain(&backups).map(|instance| (instance.daemon.name.clone(), instance.daemon.log.clone()));
        let observer = Observer::new(sockets, Logs(logs.collect()));
        Ok(Group { setup, folder, memory, backups, sidecars, observer })
    }

    /// Starts what does not run: the backups, then the sidecars one after the other; returns when there is a primary.
    pub fn start_all(&mut self) -> Result<()> {
        for index in 0..self.backups.len() {
            if !self.runs(Process::Backup(index)) {
                self.start_backup(index)?;
            }
        }
        for index in 0..self.sidecars.len() {
            if !self.runs(Process::Sidecar(index)) {
                self.start_sidecar(index)?;
                if index == 0 {
                    self.wait_for_primary()?;
                }
            }
        }
        Ok(())
    }

    /// Starts (or starts again) one process.
    pub fn start_process(&mut self, process: Process) -> Result<()> {
        let command = match process {
            Process::Sidecar(index) => self.sidecar_command(index),
            Process::Backup(index) => self.backup_command(index),
        };
        let command = match &self.setup.hosts {
            Some(hosts) => hosts.place(process, &command)?,
            None => command,
        };
        let command = match self.setup.user {
            Some(user) => as_user(&command, user, "0"),
            None => command,
        };
        self.instance_mut(process).daemon.start(command)
    }

    /// Where others reach it.
    fn address(&self, process: Process) -> SocketAddr {
        let hosts = self.setup.hosts.as_ref();
        let host = hosts.and_then(|hosts| hosts.address(process)).unwrap_or(self.setup.host);
        SocketAddr::new(host, self.port(process))
    }

    /// Starts (or starts again) one backup.
    pub fn start_backup(&mut self, index: usize) -> Result<()> {
        self.start_process(Process::Backup(index))
    }

    /// Starts (or starts again) one sidecar.
    pub fn start_sidecar(&mut self, index: usize) -> Result<()> {
        self.start_process(Process::Sidecar(index))
    }

    /// The command line of a backup.
    pub fn backup_command(&self, index: usize) -> Command {
        let Instance { daemon: Daemon { name, .. }, .. } = &self.backups[index];
        let mut command = Command::new(&self.setup.program);
        command.args(["backup", "--group", "demo", "--name", name, "--fabric", &self.setup.fabric]);
        self.listen(&mut command, Process::Backup(index));
        command.arg("--pool").arg(self.pool(index));
        command.arg("--flush-dir").arg(self.flush_folder(index));
        command.args(["--segment-size", &self.setup.segment_size, "--buffers", &self.setup.buffers.to_string()]);
        command.args(["--flush-bandwidth", "1GiB"]);
        self.guard(&mut command, name);
        with_options(&command, self.setup.backup_options.iter().map(|(flag, value)| (*flag, value.as_str())))
    }

    /// The command line of a sidecar.
    pub fn sidecar_command(&self, index: usize) -> Command {
        let Instance { daemon: Daemon { name, .. }, .. } = &self.sidecars[index];
        let mut command = Command::new(&self.setup.program);
        command.args(["run", "--group", "demo", "--name", name, "--fabric", &self.setup.fabric]);
        self.listen(&mut command, Process::Sidecar(index));
        command.arg("--socket").arg(self.socket(index));
        command.arg("--config").arg(self.config());
        command.args(["--backups", &self.setup.copies.to_string(), "--segment-size", &self.setup.segment_size]);
        if index + self.setup.readers >= self.setup.sidecars {
            command.arg("--reader");
            self.guard(&mut command, name);
            return with_options(
                &command,
                self.setup.reader_options.iter().map(|(flag, value)| (*flag, value.as_str())),
            );
        }
        for (index, Instance { daemon: Daemon { name, .. }, .. }) in self.backups.iter().enumerate() {
            command.arg("--backup").arg(format!("{name}={}", self.address(Process::Backup(index))));
        }
        self.guard(&mut command, name);
        with_options(&command, self.setup.sidecar_options.iter().map(|(flag, value)| (*flag, value.as_str())))
    }

    fn listen(&self, command: &mut Command, process: Process) {
        let address = self.address(process);
        let listen = self.setup.listen.unwrap_or(address.ip());
        command.arg("--listen").arg(SocketAddr::new(listen, address.port()).to_string());
        if listen.is_unspecified() {
            command.arg("--advertise-ip").arg(address.ip().to_string());
        }
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

    fn instance(&self, process: Process) -> &Instance {
        match process {
            Process::Sidecar(index) => &self.sidecars[index],
            Process::Backup(index) => &self.backups[index],
        }
    }

    fn instance_mut(&mut self, process: Process) -> &mut Instance {
        match process {
            Process::Sidecar(index) => &mut self.sidecars[index],
            Process::Backup(index) => &mut self.backups[index],
        }
    }

    fn daemons(&mut self) -> impl Iterator<Item = &mut Daemon> {
        self.sidecars.iter_mut().chain(&mut self.backups).map(|instance| &mut instance.daemon)
    }

    /// Sends a signal.
    pub fn signal(&self, process: Process, signal: Signal) -> Result<()> {
        self.instance(process).daemon.signal(signal)
    }

    /// Stops a process (SIGSTOP) and waits until each of its threads has stopped.
    pub fn freeze(&self, process: Process) -> Result<()> {
        self.signal(process, Signal::STOP)?;
        let pid = self.pid(process)?;
        self.wait("the process to stop", |_| is_stopped(pid)).map(|_| ())
    }

    /// Kills a process and waits until it is gone.
    pub fn kill(&mut self, process: Process) -> Result<()> {
        self.instance_mut(process).daemon.kill()
    }

    /// Kills a backup and waits until it is gone.
    pub fn kill_backup(&mut self, index: usize) -> Result<()> {
        self.kill(Process::Backup(index))
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
        self.kill(Process::Sidecar(index))
    }

    /// Kills everything that runs, as a power cut would: no process sees others go before it goes itself.
    pub fn kill_all(&mut self) -> Result<()> {
        // At one moment: none notices the death of another.
        for signal in [Signal::STOP, Signal::KILL] {
            for daemon in self.daemons().filter(|daemon| daemon.is_running()) {
                daemon.signal(signal)?;
            }
        }
        self.daemons().try_for_each(Daemon::kill)
    }

    /// True while the process has not been killed.
    pub fn runs(&self, process: Process) -> bool {
        self.instance(process).daemon.is_running()
    }

    /// Process id of a running process.
    pub fn pid(&self, process: Process) -> Result<u32> {
        self.instance(process).daemon.pid().map(|pid| pid.as_raw_pid() as u32)
    }

    /// Waits until a process has ended by itself; its exit code.
    pub fn wait_for_end(&mut self, process: Process) -> Result<Option<i32>> {
        let ended = self.instance_mut(process).daemon.wait_for_end();
        ended.with_context(|| self.last_lines(25))
    }

    /// What can be seen from outside.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// The working folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder in memory.
    pub fn memory(&self) -> &Path {
        self.memory.path()
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
        self.memory.path().join(&self.backups[index].daemon.name)
    }

    /// The folder that a backup flushes to.
    pub fn flush_folder(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("{}-disk", self.backups[index].daemon.name))
    }

    /// The control port of a process.
    pub fn port(&self, process: Process) -> u16 {
        self.instance(process).port
    }

    /// A number on a process's page of metrics, by its name without labels; `None` where there is none, or no answer.
    pub fn metric<N: FromStr>(&self, process: Process, name: &str) -> Option<N> {
        let page = String::from_utf8(http::get(self.port(process), "/metrics").ok()?.body).ok()?;
        let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")))?;
        line.rsplit_once(' ')?.1.parse().ok()
    }

    /// All samples of a metric of whole numbers on a process's page, with their labels as they stand there; none without an answer.
    pub fn samples(&self, process: Process, name: &str) -> Vec<(String, u64)> {
        let page =
            http::get(self.port(process), "/metrics").ok().and_then(|answer| String::from_utf8(answer.body).ok());
        let sample = |line: &str| {
            let (labels, number) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} ")?;
            Some((labels.to_owned(), number.parse().ok()?))
        };
        page.iter().flat_map(|page| page.lines()).filter_map(sample).collect()
    }

    /// The file of the control token, where there are no certificates.
    pub fn token_file(&self) -> PathBuf {
        self.folder.path().join("control.token")
    }

    /// Gives a backup that does not run another port; sidecars that are started from now on look for it there.
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

    /// The hosts of its processes.
    pub fn hosts(&self) -> Result<Arc<Hosts>> {
        self.setup.hosts.clone().context("its processes run on this host")
    }

    /// Index of a backup by its name.
    pub fn backup_named(&self, name: &str) -> Option<usize> {
        self.backups.iter().position(|backup| backup.daemon.name == name)
    }

    /// The setup, to be changed for the processes that are started from now on.
    pub fn setup_mut(&mut self) -> &mut Setup {
        &mut self.setup
    }

    /// Waits for a condition; how long it took. On failure the error holds the end of every log.
    pub fn wait(&self, what: &str, condition: impl Fn(&Group) -> bool) -> Result<Duration> {
        let started = Instant::now();
        self.wait_for(what, |group| condition(group).then(|| started.elapsed()))
    }

    /// Waits until there is something to find; on failure the error holds the end of every log.
    pub fn wait_for<T>(&self, what: &str, find: impl Fn(&Group) -> Option<T>) -> Result<T> {
        let found = poll(TIMEOUT, POLL_INTERVAL, || find(self));
        found.with_context(|| format!("waited {TIMEOUT:?} for {what}\n{}", self.last_lines(25)))
    }

    /// Waits for a primary; its number.
    pub fn wait_for_primary(&self) -> Result<usize> {
        self.wait_for("a primary", |group| group.primary())
    }

    /// Whether as many members as wanted are in the set.
    pub fn has_full_set(&self) -> bool {
        self.members().len() == self.setup.copies
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
        let running = (0..self.backups.len()).filter_map(|index| self.pid(Process::Backup(index)).ok());
        running.filter_map(cpu_time).sum()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for daemon in self.daemons() {
            // A stopped process dies of SIGKILL all the same.
            let _ = daemon.kill();
        }
        if std::thread::panicking() {
            self.report_failure(&self.folder.path().file_name().unwrap_or_default().to_string_lossy());
        }
    }
}
