//! What can die or stop around an unmodified program under `tailwind-exec`, and what has to follow from it.
//!
//! Used by the tests of such programs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};

use super::exec::{Containers, Ended, LOST};
use super::group::{Group, Process, Setup};
use super::process::POLL_INTERVAL;
use super::steps::{OUTAGE, UNACKNOWLEDGED, is_standby};
use crate::context::TestContext;
use crate::workload::Random;

/// A program beside each sidecar of a group of two.
pub trait Service {
    /// A connection that can write.
    type Connection: Connection;

    /// What the programs run in.
    fn containers(&self) -> &Containers;

    /// The signal that asks a program for an orderly end.
    fn termination(&self) -> Signal {
        Signal::TERM
    }

    /// Pause between two tries, which may cost it much.
    fn pause(&self) -> Duration {
        POLL_INTERVAL
    }

    /// Whether one serves now, which it proves by a write that is confirmed.
    fn serves(&self, index: usize) -> bool;

    /// A connection to one, which need not serve.
    fn connect(&self, index: usize) -> Result<Self::Connection>;

    /// What the programs themselves have logged.
    fn last_lines(&self) -> String {
        String::new()
    }

    /// Waits until one serves.
    fn wait_until_serves(&self, index: usize) -> Result<Self::Connection> {
        let what = format!("program {index} to serve");
        let waited = self.containers().wait_polling(&what, self.pause(), || self.serves(index).then_some(()));
        waited.with_context(|| self.last_lines())?;
        self.connect(index)
    }
}

/// A connection to a program.
pub trait Connection {
    /// Sends a write that has not been sent before.
    fn send_write(&mut self) -> Result<()>;

    /// Waits until the write is confirmed. Fails when the connection has ended, and panics at anything else.
    fn confirmed(&mut self) -> Result<()>;
}

/// What dies or stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL to the program alone.
    ProgramIsKilled,
    /// The signal for it to the supervisor, which passes it on.
    ProgramIsTerminated,
    /// SIGKILL.
    SupervisorIsKilled,
    /// SIGKILL to the primary.
    SidecarIsKilled,
    /// Both at once.
    PodIsKilled,
    /// SIGKILL to a member of the set.
    BackupIsKilled,
    /// The other pod.
    StandbyIsKilled,
    /// SIGSTOP to the primary until it is replaced, then SIGCONT.
    SidecarIsFrozen,
    /// SIGSTOP to the supervisor, then SIGCONT.
    SupervisorIsFrozen,
    /// The same, and while it is stopped its sidecar dies and is replaced.
    SupervisorIsFrozenAndSidecarKilled,
    /// The primary's host has no network until another has taken over.
    PrimaryIsCutOff,
    /// The host of a member has none for some time.
    MemberIsCutOff,
    /// The primary's host loses its network, so that nobody sees a connection end, and then all that runs on it gets SIGKILL.
    HostIsLost,
    /// The standby's host has no network for some time.
    StandbyIsCutOff,
}

use Fault::*;

impl Fault {
    /// What can happen to [hosts](super::hosts).
    pub const OF_HOSTS: [Fault; 4] = [PrimaryIsCutOff, MemberIsCutOff, HostIsLost, StandbyIsCutOff];

    /// What can happen to processes.
    pub const OF_PROCESSES: [Fault; 10] = [
        ProgramIsKilled,
        SidecarIsFrozen,
        SupervisorIsKilled,
        BackupIsKilled,
        SupervisorIsFrozen,
        SidecarIsKilled,
        ProgramIsTerminated,
        SupervisorIsFrozenAndSidecarKilled,
        PodIsKilled,
        StandbyIsKilled,
    ];

    /// Does it beside the primary, and undoes it. `connection` leads to the primary's program; `load` waits until clients have
    /// continued.
    pub fn inject<S: Service>(
        self,
        group: &mut Group,
        service: &S,
        primary: usize,
        connection: S::Connection,
        random: &mut Random,
        mut load: impl FnMut(),
    ) -> Result<()> {
        let containers = service.containers();
        let other = 1 - primary;
        let (before, program) = (containers.ends(primary), containers.program(primary)?);
        let ends_with = |expected: Ended| {
            let ended = containers.wait_for_end(primary, before)?;
            ensure!(ended == expected, "{self:?}: it ended with {ended:?} instead of {expected:?}");
            Ok(())
        };
        match self {
            ProgramIsKilled => {
                kill_process(program, Signal::KILL)?;
                ends_with(Ended::Code(128 + 9))?;
            }
            ProgramIsTerminated => {
                containers.signal(primary, service.termination())?;
                ends_with(Ended::Code(0))?;
            }
            SupervisorIsKilled => {
                containers.signal(primary, Signal::KILL)?;
                ends_with(Ended::Signal(9))?;
            }
            SidecarIsKilled => {
                group.kill_sidecar(primary)?;
                containers.wait_for_loss(primary, before, program)?;
                service.wait_until_serves(other)?;
                group.start_sidecar(primary)?;
            }
            PodIsKilled => {
                // None of them sees the other go.
                group.signal(Process::Sidecar(primary), Signal::STOP)?;
                containers.signal(primary, Signal::KILL)?;
                group.kill_sidecar(primary)?;
                ends_with(Ended::Signal(9))?;
                service.wait_until_serves(other)?;
                group.start_sidecar(primary)?;
            }
            BackupIsKilled => {
                let victim = any_member(group, random)?;
                group.kill_backup(victim)?;
                load();
                group.start_backup(victim)?;
            }
            StandbyIsKilled => {
                let before = containers.ends(other);
                containers.signal(other, Signal::KILL)?;
                group.kill_sidecar(other)?;
                let ended = containers.wait_for_end(other, before)?;
                ensure!(ended == Ended::Signal(9), "the standby ended with {ended:?}");
                load();
                group.start_sidecar(other)?;
            }
            SidecarIsFrozen => {
                group.freeze(Process::Sidecar(primary))?;
                service.wait_until_serves(other)?;
                let stale = Stale::write(connection)?;
                group.signal(Process::Sidecar(primary), Signal::CONT)?;
                stale.expect_no_confirmation()?;
                containers.wait_for_loss(primary, before, program)?;
            }
            SupervisorIsFrozen => {
                containers.freeze(primary)?;
                let mut late = Stale::write(connection)?;
                containers.signal(primary, Signal::CONT)?;
                late.connection.confirmed()?;
            }
            SupervisorIsFrozenAndSidecarKilled => {
                containers.freeze(primary)?;
                group.kill_sidecar(primary)?;
                service.wait_until_serves(other)?;
                let stale = Stale::write(connection)?;
                containers.signal(primary, Signal::CONT)?;
                stale.expect_no_confirmation()?;
                containers.wait_for_loss(primary, before, program)?;
                group.start_sidecar(primary)?;
            }
            PrimaryIsCutOff => {
                let (hosts, host) = (group.hosts()?, Process::Sidecar(primary));
                hosts.cut_off(host)?;
                service.wait_until_serves(other)?;
                let stale = Stale::write(connection)?;
                load();
                hosts.connect(host)?;
                stale.expect_no_confirmation()?;
                containers.wait_for_loss(primary, before, program)?;
            }
            HostIsLost => {
                let (hosts, host) = (group.hosts()?, Process::Sidecar(primary));
                hosts.cut_off(host)?;
                containers.signal(primary, Signal::KILL)?;
                group.kill_sidecar(primary)?;
                ends_with(Ended::Signal(9))?;
                service.wait_until_serves(other)?;
                load();
                hosts.connect(host)?;
                group.start_sidecar(primary)?;
            }
            StandbyIsCutOff => cut_off_for_a_while(group, Process::Sidecar(other), load)?,
            MemberIsCutOff => cut_off_for_a_while(group, Process::Backup(any_member(group, random)?), load)?,
        }
        Ok(())
    }
}

fn any_member(group: &Group, random: &mut Random) -> Result<usize> {
    let members = group.wait_for_full_set()?;
    Ok(members[random.below(members.len() as u64) as usize])
}

fn cut_off_for_a_while(group: &Group, process: Process, mut load: impl FnMut()) -> Result<()> {
    let hosts = group.hosts()?;
    hosts.cut_off(process)?;
    load();
    hosts.connect(process)
}

/// Setup of a group for such tests: a frozen process is replaced, but not one that is slow only because the machine is busy.
/// Dead processes are still noticed at once.
pub fn setup(test: &TestContext, fabric: &str, segment_size: &str) -> Result<Setup> {
    let mut setup = test.setup_with_default_timeouts(fabric)?;
    setup.segment_size = segment_size.to_owned();
    setup.sidecar_options.push(("--heartbeat-silence-ms", "2000".to_owned()));
    Ok(setup)
}

/// The primary, once every member and the standby are what they should be; a connection to its program.
pub fn wait_until_whole<S: Service>(group: &Group, service: &S) -> Result<(usize, S::Connection)> {
    // All of one moment: roles may change between two.
    let whole = || {
        let primary = group.primary().filter(|primary| is_standby(group, 1 - primary, *primary))?;
        (group.has_full_set() && service.serves(primary)).then_some(primary)
    };
    let waited = service.containers().wait_polling("all to be whole", service.pause(), whole);
    let primary = waited.with_context(|| format!("{}{}", group.last_lines(25), service.last_lines()))?;
    Ok((primary, service.connect(primary)?))
}

/// No process has logged or done what a healthy one does not when others die around it.
pub fn check_health(group: &Group, containers: &Containers) -> Result<()> {
    group.check_logs(&[&OUTAGE[..], &[UNACKNOWLEDGED]].concat())?;
    containers.check_logs()?;
    for index in 0..group.sidecars() {
        let expected = [Ended::Code(0), Ended::Code(128 + 9), Ended::Signal(9), LOST];
        let ended = containers.ended(index);
        ensure!(ended.iter().all(|end| expected.contains(end)), "beside sidecar{index} they have ended so: {ended:?}");
    }
    Ok(())
}

/// A write to a program whose syncs cannot be acknowledged.
struct Stale<C: Connection> {
    connection: C,
}

impl<C: Connection> Stale<C> {
    fn write(mut connection: C) -> Result<Stale<C>> {
        connection.send_write()?;
        Ok(Stale { connection })
    }

    fn expect_no_confirmation(mut self) -> Result<()> {
        ensure!(self.connection.confirmed().is_err(), "a write was confirmed after a successor had confirmed others");
        Ok(())
    }
}
