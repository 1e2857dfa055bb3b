//! A group on this machine: sidecars and backups as child processes, each with its folders, ports and log.
//!
//! Everything lies below one working folder and one folder in memory; both go when the group is dropped, as do the processes.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tailwind_client::Options as ClientOptions;
use tailwind_client::blocking::Client;

/// How long a condition may take to come true on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
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
    /// More options for every sidecar.
    pub sidecar_args: Vec<String>,
    /// More options for every backup.
    pub backup_args: Vec<String>,
    /// Prefix of the folders in memory; a RAM file system.
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
            sidecar_args: Vec::new(),
            backup_args: Vec::new(),
            memory: PathBuf::from("/dev/shm"),
        }
    }
}

/// A process of the group.
#[derive(Debug)]
struct Process {
    name: String,
    child: Option<Child>,
    /// CPU time of lives that have ended.
    starts: u32,
}

/// A running group.
#[derive(Debug)]
pub struct Group {
    setup: Setup,
    folder: tempfile::TempDir,
    memory: tempfile::TempDir,
    backups: Vec<Process>,
    sidecars: Vec<Process>,
    ports: Vec<u16>,
}

/// Finds the program that belongs to this build, building it if need be.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("TAILWIND_SIDECAR_PROGRAM") {
        return Ok(path.into());
    }
    let me = std::env::current_exe().context("find this program")?;
    let folder = me.ancestors().skip(1).find(|f| !f.ends_with("deps") && !f.ends_with("examples"));
    let folder = folder.context("find the build folder")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", "tailwind-sidecar", "--bin", "tailwind-sidecar"]);
    if folder.ends_with("release") {
        build.arg("--release");
    }
    build.env("CARGO_TARGET_DIR", folder.parent().context("find the target folder")?);
    let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().context("build tailwind-sidecar")?;
    ensure!(status.success(), "tailwind-sidecar does not build");
    Ok(folder.join("tailwind-sidecar"))
}

impl Group {
    /// Starts the backups, then the sidecars one after the other; returns when the first is primary.
    pub fn start(setup: Setup) -> Result<Group> {
        let mut group = Group::prepare(setup)?;
        for index in 0..group.setup.backups {
            group.start_backup(index)?;
        }
        for index in 0..group.setup.sidecars {
            group.start_sidecar(index)?;
            if index == 0 {
                group.wait("the first sidecar to become primary", |group| group.role(0) == "primary")?;
            }
        }
        Ok(group)
    }

    /// Makes folders and chooses ports; starts nothing.
    pub fn prepare(setup: Setup) -> Result<Group> {
        let folder = tempfile::Builder::new().prefix("tailwind-").tempdir().context("make a working folder")?;
        let memory = tempfile::Builder::new().prefix("tailwind-").tempdir_in(&setup.memory);
        let memory = memory.with_context(|| format!("make a folder in {}", setup.memory.display()))?;
        let ports = free_ports(setup.backups + setup.sidecars)?;
        let named = |kind: &str, count| {
            (0..count).map(|n| Process { name: format!("{kind}{n}"), child: None, starts: 0 }).collect::<Vec<_>>()
        };
        let (backups, sidecars) = (named("backup", setup.backups), named("sidecar", setup.sidecars));
        fs::create_dir_all(folder.path().join("logs")).context("make the folder of logs")?;
        Ok(Group { setup, folder, memory, backups, sidecars, ports })
    }

    /// Starts (or starts again) one backup.
    pub fn start_backup(&mut self, index: usize) -> Result<()> {
        let name = self.backups[index].name.clone();
        let mut command = Command::new(&self.setup.program);
        command.args(["backup", "--group", "demo", "--name", &name, "--fabric", &self.setup.fabric]);
        command.arg("--listen").arg(format!("127.0.0.1:{}", self.ports[index]));
        command.arg("--pool").arg(self.pool(index));
        command.arg("--flush-dir").arg(self.flush_folder(index));
        command.args(["--segment-size", &self.setup.segment_size, "--buffers", &self.setup.buffers.to_string()]);
        command.args(["--flush-bandwidth", "1GiB"]).args(&self.setup.backup_args);
        let child = self.spawn(&name, command)?;
        self.backups[index].child = Some(child);
        self.backups[index].starts += 1;
        Ok(())
    }

    /// Starts (or starts again) one sidecar.
    pub fn start_sidecar(&mut self, index: usize) -> Result<()> {
        let name = self.sidecars[index].name.clone();
        let command = self.sidecar_command(index, &name);
        let child = self.spawn(&name, command)?;
        self.sidecars[index].child = Some(child);
        self.sidecars[index].starts += 1;
        Ok(())
    }

    /// The command line of a sidecar, for tests that want to change it.
    pub fn sidecar_command(&self, index: usize, name: &str) -> Command {
        let mut command = Command::new(&self.setup.program);
        command.args(["run", "--group", "demo", "--name", name, "--fabric", &self.setup.fabric]);
        command.arg("--listen").arg(format!("127.0.0.1:{}", self.ports[self.setup.backups + index]));
        command.arg("--socket").arg(self.socket(index));
        command.arg("--config").arg(self.config());
        command.args(["--backups", &self.setup.copies.to_string(), "--segment-size", &self.setup.segment_size]);
        for (backup, port) in self.backups.iter().zip(&self.ports) {
            command.arg("--backup").arg(format!("{}=127.0.0.1:{port}", backup.name));
        }
        command.args(&self.setup.sidecar_args);
        command
    }

    fn spawn(&self, name: &str, mut command: Command) -> Result<Child> {
        let log = self.log(name);
        let file =
            File::options().create(true).append(true).open(&log).with_context(|| format!("open {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        command.spawn().with_context(|| format!("start {name} ({})", self.setup.program.display()))
    }

    /// Sends a signal to a backup.
    pub fn signal_backup(&self, index: usize, signal: Signal) -> Result<()> {
        send(&self.backups[index], signal)
    }

    /// Sends a signal to a sidecar.
    pub fn signal_sidecar(&self, index: usize, signal: Signal) -> Result<()> {
        send(&self.sidecars[index], signal)
    }

    /// Kills a backup and waits until it is gone.
    pub fn kill_backup(&mut self, index: usize) -> Result<()> {
        kill(&mut self.backups[index])
    }

    /// Kills a sidecar and waits until it is gone.
    pub fn kill_sidecar(&mut self, index: usize) -> Result<()> {
        kill(&mut self.sidecars[index])
    }

    /// Waits until a backup has ended by itself; its exit code.
    pub fn wait_for_end_of_backup(&mut self, index: usize) -> Result<Option<i32>> {
        let deadline = Instant::now() + PATIENCE;
        let process = &mut self.backups[index];
        let child = process.child.as_mut().with_context(|| format!("{} does not run", process.name))?;
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait()? {
                process.child = None;
                return Ok(status.code());
            }
            std::thread::sleep(LOOK);
        }
        bail!("{} does not end", process.name)
    }

    /// The append socket of a sidecar.
    pub fn socket(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("append-{index}.sock"))
    }

    /// The config store's file.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("config.json")
    }

    /// The folder of a backup's buffers.
    pub fn pool(&self, index: usize) -> PathBuf {
        self.memory.path().join(&self.backups[index].name)
    }

    /// The folder that a backup flushes to.
    pub fn flush_folder(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("{}-disk", self.backups[index].name))
    }

    /// A process's log.
    pub fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join("logs").join(format!("{name}.log"))
    }

    /// The control port of a backup.
    pub fn backup_port(&self, index: usize) -> u16 {
        self.ports[index]
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

    /// A client of a sidecar; with `hold` it waits until that one is primary.
    pub fn client(&self, index: usize, hold: bool) -> Result<Client> {
        let options = ClientOptions { hold, timeout: Some(PATIENCE), ..ClientOptions::default() };
        Ok(Client::connect_with(self.socket(index), &options)?)
    }

    /// A sidecar's status; `Null` if it does not answer.
    pub fn status(&self, index: usize) -> Value {
        let options = ClientOptions { timeout: Some(Duration::from_secs(2)), ..ClientOptions::default() };
        let status = Client::connect_with(self.socket(index), &options).and_then(|mut client| client.status());
        status.ok().and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default()
    }

    /// A sidecar's role; empty if it does not answer.
    pub fn role(&self, index: usize) -> String {
        self.status(index)["role"].as_str().unwrap_or_default().to_owned()
    }

    /// The sidecar that is primary and answers.
    pub fn primary(&self) -> Option<usize> {
        (0..self.sidecars.len()).find(|index| self.sidecars[*index].child.is_some() && self.role(*index) == "primary")
    }

    /// Names of the members that acks need, as the primary sees them.
    pub fn members(&self) -> Vec<String> {
        let Some(primary) = self.primary() else { return Vec::new() };
        let status = self.status(primary);
        let members = status["members"].as_array().cloned().unwrap_or_default();
        let in_set = members.iter().filter(|member| member["standing"] == "in set");
        in_set.filter_map(|member| Some(member["name"].as_str()?.to_owned())).collect()
    }

    /// Index of a backup by its name.
    pub fn backup_named(&self, name: &str) -> Option<usize> {
        self.backups.iter().position(|backup| backup.name == name)
    }

    /// Waits for a condition; on failure the error holds the end of every log.
    pub fn wait(&mut self, what: &str, condition: impl Fn(&Group) -> bool) -> Result<Duration> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if condition(self) {
                return Ok(started.elapsed());
            }
            std::thread::sleep(LOOK);
        }
        bail!("waited {PATIENCE:?} for {what}\n{}", self.logs(25))
    }

    /// The last lines of every log.
    pub fn logs(&self, lines: usize) -> String {
        let mut text = String::new();
        for process in self.sidecars.iter().chain(&self.backups) {
            let log = fs::read_to_string(self.log(&process.name)).unwrap_or_default();
            let all: Vec<&str> = log.lines().collect();
            let tail = &all[all.len().saturating_sub(lines)..];
            text.push_str(&format!("--- {} ({} lines)\n{}\n", process.name, all.len(), tail.join("\n")));
        }
        text
    }

    /// CPU time, user and system, of all running backups.
    pub fn cpu_of_backups(&self) -> Duration {
        self.backups.iter().filter_map(|backup| cpu_time(backup.child.as_ref()?.id())).sum()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for process in self.sidecars.iter_mut().chain(&mut self.backups) {
            // A frozen process dies of SIGKILL all the same.
            let _ = kill(process);
        }
        if std::thread::panicking() || std::env::var_os("TAILWIND_KEEP_LOGS").is_some() {
            let kept = std::env::temp_dir().join("tailwind-logs").join(std::process::id().to_string());
            let _ = fs::create_dir_all(&kept);
            for process in self.sidecars.iter().chain(&self.backups) {
                let _ = fs::copy(self.log(&process.name), kept.join(&process.name));
            }
        }
    }
}

fn send(process: &Process, signal: Signal) -> Result<()> {
    let child = process.child.as_ref().with_context(|| format!("{} does not run", process.name))?;
    Ok(kill_process(Pid::from_child(child), signal)?)
}

fn kill(process: &mut Process) -> Result<()> {
    if let Some(mut child) = process.child.take() {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}

/// User and system time of a process, from proc(5).
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // Fields are counted after the name, which may hold blanks: utime is the 12th from there, stime the 13th.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_nanos(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second()))
}

/// Ports that nobody listens on at the moment.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>().context("find free ports")?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}
