//! A group over several machines on one wire: each has a sidecar and a backup, and records travel by soft-RoCE.
//!
//! Used by `tests/machines.rs`. Machines are told what to do through their consoles, which work while the wire is cut.
//! The config store, certificates, logs and the apps' reports are in the folder that the machines share.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::machine::{Hardware, Machine, Wire};
use crate::process::verbs_program;
use crate::view::View;

/// How long a condition may take to come true: an emulated processor is some twenty times slower than its host.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// The append socket in each machine.
const SOCKET: &str = "/tmp/append.sock";
/// The config store's folder in each machine: a link into the shared folder.
const STORE: &str = "/tmp/store";
/// Longest record: some 400 records fill a segment.
const LENGTH_MAX: u64 = 200;
/// So much patience that nobody takes a busy emulated machine for a dead one: hosts that die are found within seconds.
const SIDECAR_OPTIONS: &str = "--heartbeat-interval-ms 100 --heartbeat-silence-ms 3000 --fence-patience-ms 3000 \
                               --rpc-timeout-ms 10000 --spin-us 0 --rdma-patience 15/6";

/// Machines with a sidecar and a backup each, numbered from 1.
#[derive(Debug)]
pub struct Fleet {
    /// Before the wire, which is dropped after its machines.
    machines: BTreeMap<usize, Machine>,
    wire: Wire,
    hardware: Hardware,
    size: usize,
    apps: usize,
    /// The programs, as machines get them.
    _programs: TempDir,
}

/// An app on one of the machines.
#[derive(Clone, Debug)]
pub struct Appender {
    /// What its records are made from.
    pub seed: u64,
    report: PathBuf,
}

/// What an app has reported so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its first record; 0 before it has begun.
    pub first: u64,
    /// The epoch in which it began.
    pub epoch: u64,
    /// The last record that was acknowledged; 0 before the first.
    pub acked: u64,
    /// Why it has ended, if it has: `done` when it was told to.
    pub end: Option<String>,
}

impl Appender {
    /// What it has reported so far.
    pub fn report(&self) -> Result<Report> {
        let mut report = Report::default();
        let text = fs::read_to_string(&self.report).unwrap_or_default();
        // The last line may be on its way.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).context(line.to_owned());
            match words[0] {
                "begin" => (report.first, report.epoch) = (number(1)?, number(2)?),
                "acked" => report.acked = number(1)?,
                "done" | "lost" => report.end = Some(line.to_owned()),
                _ => bail!("a report says: {line}"),
            }
        }
        Ok(report)
    }
}

impl Fleet {
    /// Boots machines 1 to `size`. `certify` writes `ca.pem`, `NAME.pem` and `NAME.key` for `sidecarN` and `backupN`.
    pub fn boot(size: usize, appender: &Path, certify: impl FnOnce(&Path)) -> Result<Fleet> {
        let programs = tempfile::tempdir().context("make a folder")?;
        let strip = |program: &Path| {
            // Debugging symbols would fill the machines' memory.
            let stripped = programs.path().join(program.file_name().unwrap_or_default());
            let status = Command::new("strip").arg("-o").arg(&stripped).arg(program).status().context("run strip")?;
            ensure!(status.success(), "strip {}", program.display());
            Ok(stripped)
        };
        let carried = vec![strip(&verbs_program()?)?, strip(appender)?];
        let hardware = Hardware { programs: carried, ..Hardware::default() };
        let mut wire = Wire::lay(size)?;
        let share = wire.share();
        fs::create_dir(share.join("certificates")).context("make a folder")?;
        certify(&share.join("certificates"));
        let ids: Vec<usize> = (1..=size).collect();
        let machines = wire.boot(&ids, &hardware)?.into_iter().map(|machine| (machine.id(), machine)).collect();
        Ok(Fleet { machines, wire, hardware, size, apps: 0, _programs: programs })
    }

    /// Starts the backups and then the sidecars; the first is primary, and each has every member in its set, when this
    /// returns.
    pub fn start(&mut self) -> Result<()> {
        (1..=self.size).try_for_each(|id| self.start_backup(id))?;
        for id in 1..=self.size {
            self.start_sidecar(id)?;
            self.wait("a primary", |fleet| Ok(fleet.status(1)["role"] == "primary"))?;
        }
        self.wait_for_members(self.size)
    }

    /// Starts a machine's backup.
    pub fn start_backup(&mut self, id: usize) -> Result<()> {
        let options = "--pool /dev/shm/pool --flush-dir /tmp/disk --buffers 24 --segment-size 64KiB \
                       --flush-bandwidth 1GiB --rdma-patience 15/6";
        self.start_process("backup", "backup", id, 7420, options)
    }

    /// Starts a machine's sidecar.
    pub fn start_sidecar(&mut self, id: usize) -> Result<()> {
        let backups: String = (1..=self.size).map(|id| format!(" --backup backup{id}=10.9.0.{id}:7420")).collect();
        let options = format!(
            "--socket {SOCKET} --config {STORE}/config.json --backups {} --segment-size 64KiB \
             {SIDECAR_OPTIONS}{backups}",
            self.size
        );
        self.hide_store(id, false)?;
        self.start_process("run", "sidecar", id, 7410, &options)
    }

    /// Takes the config store away from a machine, as if it were beyond the wire; or gives it back.
    pub fn hide_store(&mut self, id: usize, hidden: bool) -> Result<()> {
        // A folder where a file should be is an error. No file at all would be a group that has never been started.
        let target = if hidden { "/tmp/hidden" } else { "/share/config" };
        let script = format!(
            "mkdir -p /share/config /tmp/hidden/config.json && ln -s {target} {STORE}.new && mv -T {STORE}.new {STORE}"
        );
        self.machine(id)?.must(&script).map(|_| ())
    }

    fn start_process(&mut self, command: &str, kind: &str, id: usize, port: u16, options: &str) -> Result<()> {
        let (name, tls) = (format!("{kind}{id}"), "/share/certificates");
        let machine = self.machine(id)?;
        let script = format!(
            "exec tailwind-sidecar {command} --group demo --name {name} --fabric verbs --listen {}:{port} {options} \
             --tls-ca {tls}/ca.pem --tls-cert {tls}/{name}.pem --tls-key {tls}/{name}.key",
            machine.address()
        );
        machine.start(&script, &format!("{name}.log")).map(|_| ())
    }

    /// Boots a machine that was killed. It has lost all that it had.
    pub fn boot_again(&mut self, id: usize) -> Result<()> {
        let machine = self.wire.boot(&[id], &self.hardware)?.pop().context("booted")?;
        self.machines.insert(id, machine);
        Ok(())
    }

    /// A machine that has not been killed.
    pub fn machine(&mut self, id: usize) -> Result<&mut Machine> {
        self.machines.get_mut(&id).with_context(|| format!("machine {id} was killed"))
    }

    /// The wire.
    pub fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    /// Ends a machine as a power cut does.
    pub fn kill(&mut self, id: usize) -> Result<()> {
        self.machines.remove(&id).with_context(|| format!("machine {id} was killed before"))?.kill()
    }

    /// The machines that have not been killed.
    pub fn alive(&self) -> Vec<usize> {
        self.machines.keys().copied().collect()
    }

    /// A sidecar's status; `Null` if it does not answer.
    pub fn status(&mut self, id: usize) -> Value {
        let script = format!("tailwind-sidecar status --json --timeout-ms 2000 --socket {SOCKET}");
        let answer = self.machine(id).and_then(|machine| machine.run(&script));
        answer.ok().and_then(|answer| answer.text.parse().ok()).unwrap_or_default()
    }

    /// The machine whose sidecar is primary, and its status. Of two that say so the one with the newer epoch is right.
    pub fn primary(&mut self) -> Option<(usize, Value)> {
        let all: Vec<_> = self.alive().into_iter().map(|id| (id, self.status(id))).collect();
        let primaries = all.into_iter().filter(|(_, status)| status["role"] == "primary");
        primaries.max_by_key(|(_, status)| status["epoch"].as_u64())
    }

    /// Waits until another machine's sidecar is primary; which one.
    pub fn wait_for_successor(&mut self, of: usize) -> Result<usize> {
        let mut found = None;
        self.wait("a successor", |fleet| {
            found = fleet.primary().map(|(id, _)| id).filter(|id| *id != of);
            Ok(found.is_some())
        })?;
        found.context("found")
    }

    /// Waits until the set has so many members.
    pub fn wait_for_members(&mut self, count: usize) -> Result<()> {
        self.wait(&format!("{count} members"), |fleet| {
            let status = fleet.primary().map(|(_, status)| status).unwrap_or_default();
            let members = status["members"].as_array().cloned().unwrap_or_default();
            Ok(members.iter().filter(|member| member["standing"] == "in set").count() == count)
        })
    }

    /// Starts an app that appends on a machine as soon as the sidecar there is primary, and waits until it does.
    pub fn append(&mut self, id: usize, seed: u64) -> Result<Appender> {
        self.apps += 1;
        let name = format!("app{}", self.apps);
        let script = format!(
            "exec appender append --socket {SOCKET} --seed {seed} --length-max {LENGTH_MAX} --report /share/{name}"
        );
        self.machine(id)?.start(&script, &format!("{name}.log"))?;
        let app = Appender { seed, report: self.wire.share().join(&name) };
        self.wait_for_report(&app, "an app to begin", |report| report.first > 0)?;
        Ok(app)
    }

    /// Waits until an app has reported something; what it has reported by then.
    pub fn wait_for_report(&mut self, app: &Appender, what: &str, fits: impl Fn(&Report) -> bool) -> Result<Report> {
        self.wait(what, |_| Ok(fits(&app.report()?))).with_context(|| format!("{:?}", app.report()))?;
        app.report()
    }

    /// Waits until so many more records are acknowledged to an app.
    pub fn wait_for_acks(&mut self, app: &Appender, more: u64) -> Result<Report> {
        let from = app.report()?;
        let aim = from.acked.max(from.first - 1) + more;
        self.wait_for_report(app, &format!("record {aim} to be acknowledged"), |report| report.acked >= aim)
    }

    /// Tells an app to end once all its records are acknowledged; the last one.
    pub fn finish(&mut self, app: &Appender) -> Result<u64> {
        fs::write(app.report.with_extension("stop"), "").context("write a file")?;
        let report = self.wait_for_report(app, "an app to end", |report| report.end.is_some())?;
        ensure!(report.end.as_deref() == Some(&format!("done {}", report.acked)), "{report:?}");
        Ok(report.acked)
    }

    /// The log, as the sidecar on a machine reads it back, is what these apps have appended, each from its first record
    /// on, and its last record is `end`: each record once, in order, no others.
    pub fn check(&mut self, id: usize, apps: &[&Appender], end: u64) -> Result<()> {
        let mut script = format!("exec appender check --socket {SOCKET} --length-max {LENGTH_MAX} --acked {end}");
        for app in apps {
            script.push_str(&format!(" --chapter {}:{}", app.report()?.first, app.seed));
        }
        let found = self.machine(id)?.run_within(&script, PATIENCE)?;
        ensure!(found.text == format!("read {end} lost 0 duplicated 0\n"), "records 1 to {end}: {found:?}");
        Ok(())
    }

    /// No process has logged an error, and no warning but those expected.
    pub fn check_logs(&self, expected: &[&str]) -> Result<()> {
        let unexpected = self.view().unexpected(expected);
        ensure!(unexpected.is_empty(), "unexpected lines in the logs:\n{}", unexpected.join("\n"));
        Ok(())
    }

    /// A process's log.
    pub fn log(&self, name: &str) -> String {
        self.view().log(name)
    }

    fn view(&self) -> View {
        let sidecars = (1..=self.size).map(|id| format!("sidecar{id}"));
        let backups = (1..=self.size).map(|id| format!("backup{id}"));
        let apps = (1..=self.apps).map(|number| format!("app{number}"));
        let log = |name: String| (name.clone(), self.wire.share().join(format!("{name}.log")));
        View::new(Vec::new(), sidecars.chain(backups).chain(apps).map(log).collect())
    }

    /// Waits for a condition; on failure the error holds the end of every log.
    pub fn wait(&mut self, what: &str, mut condition: impl FnMut(&mut Fleet) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self)? {
            ensure!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}\n{}", self.view().logs(25));
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Fleet {
    #[allow(clippy::print_stderr, reason = "a failing test reports to people")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.view().logs(30));
            let kept = std::env::var_os("TAILWIND_KEEP_LOGS").map(PathBuf::from);
            for path in fs::read_dir(self.wire.share()).into_iter().flatten().flatten().map(|entry| entry.path()) {
                if let (Some(kept), true) = (&kept, path.is_file()) {
                    // Nobody to tell if it cannot be: the test fails anyway.
                    let _ = fs::create_dir_all(kept);
                    let _ = fs::copy(&path, kept.join(path.file_name().unwrap_or_default()));
                }
            }
        }
    }
}
