//! A group over several machines on one wire: each has a sidecar and a backup, and records travel by soft-RoCE.
//!
//! Machines take commands through their consoles, which work while the wire is cut.
//! The config store, certificates, logs and the apps' reports are in the folder that the machines share.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::machine::{Hardware, Machine, Wire};
use crate::certificates::Authority;
use crate::cluster::ack_oracle::{OracleRequest, Run, STOPPED, push};
use crate::logs::{Logs, keep};
use crate::processes::process::verbs_program;
use crate::wait::poll;

/// How long a condition may take to come true: an emulated processor is some twenty times slower than its host.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How often a condition is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The append socket in each machine.
const SOCKET: &str = "/tmp/append.sock";
/// The config store's folder in each machine: a link into the shared folder.
const STORE: &str = "/tmp/store";
/// Time-outs so long that no busy emulated machine is taken for a dead one: hosts that die are found within seconds.
const SIDECAR_OPTIONS: &str = "--heartbeat-interval-ms 100 --heartbeat-silence-ms 3000 --fence-wait-ms 3000 \
                               --rpc-timeout-ms 10000 --spin-us 0 --rdma-retry 15/6";

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

/// A loader on one of the machines.
#[derive(Clone, Debug)]
pub struct RemoteApp {
    report: PathBuf,
}

/// What a loader has reported so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteProgress {
    session: u64,
    /// Its first record; 0 before it has begun.
    pub first: u64,
    /// The epoch in which it began.
    pub epoch: u64,
    /// The last record that was acknowledged; 0 before the first.
    pub acked: u64,
    /// Why it has ended, if it has.
    pub ended: Option<String>,
}

impl RemoteApp {
    /// What it has reported so far.
    pub fn progress(&self) -> Result<RemoteProgress> {
        let (mut progress, mut runs) = (RemoteProgress::default(), Vec::new());
        let text = fs::read_to_string(&self.report).unwrap_or_default();
        // The last line may be incomplete.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            match serde_json::from_str(line).with_context(|| line.to_owned())? {
                OracleRequest::Began { epoch, session, runs, .. } => {
                    progress = RemoteProgress { session, first: runs.last().map_or(1, Run::end), epoch, ..progress };
                }
                OracleRequest::Acked { run } => {
                    push(&mut runs, run);
                    let is_next = matches!(&runs[..], [run] if (run.number, run.lsn) == (1, progress.first));
                    ensure!(is_next, "record {} was acknowledged out of turn: {runs:?}", run.number);
                    progress.acked = run.end() - 1;
                }
                OracleRequest::Ended { why, .. } => progress.ended = Some(why),
                other => ensure!(false, "{other:?}"),
            }
        }
        Ok(progress)
    }
}

impl Fleet {
    /// Boots machines 1 to `size`, which get this program and the sidecar's.
    pub fn boot(size: usize, loader: &Path) -> Result<Fleet> {
        let programs = tempfile::tempdir().context("make a folder")?;
        let strip = |program: &Path| {
            // Debugging symbols would fill the machines' memory.
            let stripped = programs.path().join(program.file_name().unwrap_or_default());
            let status = Command::new("strip").arg("-o").arg(&stripped).arg(program).status().context("run strip")?;
            ensure!(status.success(), "strip {}", program.display());
            Ok(stripped)
        };
        let carried = vec![strip(&verbs_program()?)?, strip(loader)?];
        let hardware = Hardware { programs: carried, ..Hardware::default() };
        let mut wire = Wire::create(size)?;
        let share = wire.share();
        fs::create_dir(share.join("certificates")).context("make a folder")?;
        Authority::generate()?.issue_group(&share.join("certificates"), 1..size + 1, 1..size + 1)?;
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
                       --flush-bandwidth 1GiB --rdma-retry 15/6";
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

    /// The same, once it answers.
    pub fn wait_for_status(&mut self, id: usize) -> Result<Value> {
        let mut status = Value::Null;
        self.wait("a status", |fleet| {
            status = fleet.status(id);
            Ok(!status.is_null())
        })?;
        Ok(status)
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
            Ok(members.iter().filter(|member| member["state"] == "in-set").count() == count)
        })
    }

    /// Starts an app that appends on a machine as soon as the sidecar there is primary, and waits until it does.
    pub fn append(&mut self, id: usize) -> Result<RemoteApp> {
        self.apps += 1;
        let name = format!("app{}", self.apps);
        let script = format!(
            "exec loader append --name {name} --socket {SOCKET} --report /share/{name} --rate 1000000 --window 64"
        );
        self.machine(id)?.start(&script, &format!("{name}.out"))?;
        let app = RemoteApp { report: self.wire.share().join(&name) };
        self.wait_for_progress(&app, "an app to begin", |progress| progress.first > 0)?;
        Ok(app)
    }

    /// Waits until an app has reported something; what it has reported by then.
    pub fn wait_for_progress(
        &mut self,
        app: &RemoteApp,
        what: &str,
        condition: impl Fn(&RemoteProgress) -> bool,
    ) -> Result<RemoteProgress> {
        self.wait(what, |_| Ok(condition(&app.progress()?))).with_context(|| format!("{:?}", app.progress()))?;
        app.progress()
    }

    /// Waits until so many more records are acknowledged to an app.
    pub fn wait_for_acks(&mut self, app: &RemoteApp, more: u64) -> Result<RemoteProgress> {
        let from = app.progress()?;
        let aim = from.acked.max(from.first - 1) + more;
        self.wait_for_progress(app, &format!("record {aim} to be acknowledged"), |progress| progress.acked >= aim)
    }

    /// Stops an app once all its records are acknowledged; the last one.
    pub fn finish(&mut self, app: &RemoteApp) -> Result<u64> {
        fs::write(app.report.with_extension("stop"), "").context("write a file")?;
        let progress = self.wait_for_progress(app, "an app to end", |progress| progress.ended.is_some())?;
        ensure!(progress.ended.as_deref() == Some(STOPPED), "{progress:?}");
        Ok(progress.acked)
    }

    /// The log, as the sidecar on a machine reads it back, is what these apps have appended, each from its first record
    /// on, and its last record is `end`: each record once, in order, no others.
    pub fn check(&mut self, id: usize, apps: &[&RemoteApp], end: u64) -> Result<()> {
        let script = format!("exec loader read --socket {SOCKET}");
        let found = self.machine(id)?.run_within(&script, TIMEOUT)?;
        let runs: Vec<Run> = serde_json::from_str(&found.text).with_context(|| format!("{found:?}"))?;
        let begun = apps.iter().map(|app| app.progress()).collect::<Result<Vec<_>>>()?;
        let ends = begun.iter().skip(1).map(|next| next.first).chain([end + 1]);
        let run = |(app, end): (&RemoteProgress, u64)| Run {
            session: app.session,
            number: 1,
            lsn: app.first,
            count: end - app.first,
        };
        let expected: Vec<Run> = begun.iter().zip(ends).map(run).collect();
        ensure!(runs == expected, "the log has {runs:x?} instead of {expected:x?}");
        Ok(())
    }

    /// What the processes have logged.
    pub fn logs(&self) -> Logs {
        let names = (1..=self.size).flat_map(|id| [format!("sidecar{id}"), format!("backup{id}")]);
        Logs(names.map(|name| (name.clone(), self.wire.share().join(format!("{name}.log")))).collect())
    }

    /// Waits for a condition; on failure the error holds the end of every log.
    pub fn wait(&mut self, what: &str, mut condition: impl FnMut(&mut Fleet) -> Result<bool>) -> Result<()> {
        let waited = poll(TIMEOUT, POLL_INTERVAL, || match condition(self) {
            Ok(false) => None,
            met => Some(met.map(|_| ())),
        });
        waited.with_context(|| format!("waited {TIMEOUT:?} for {what}\n{}", self.logs().last_lines(25)))?
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.logs().report_failure("machines");
            let share = fs::read_dir(self.wire.share()).into_iter().flatten().flatten();
            keep("machines", share.map(|entry| entry.path()));
        }
    }
}
