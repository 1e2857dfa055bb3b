//! What the group wants: in some seeds somebody edits the spec while everything else goes on.
//!
//! Random numbers of its own, so that seeds without edits play as they did before there were any. The production sidecar
//! treats a candidate whose group wants something else as if it had died; here some of them go on with what they know.

use tailwind_protocol::primary::Input;
use tailwind_protocol::promotion::DiskRecovery;

use super::queue::{MS, Micros};
use super::sidecar::Role;
use super::{Event, SidecarNo, World};
use crate::random::Random;
use crate::tally::Fault;
use crate::trace::trace;

/// Tells these random numbers from all others of a seed.
const SALT: u64 = 0x7769_7368_6573;
/// Edits come so far apart at most.
const PAUSE_MAX: Micros = 800 * MS;

/// How many copies the group wants, and how many it needs.
#[derive(Debug)]
pub(crate) struct DesiredState {
    random: Random,
    pub(crate) backups: u8,
    pub(crate) min_in_sync: u8,
    /// A person has ordered that this log is recovered from disks.
    pub(crate) recover_from_disk: Option<DiskRecovery>,
}

impl DesiredState {
    pub(crate) fn new(seed: u64, backups: u8, min_in_sync: u8) -> DesiredState {
        DesiredState { random: Random::new(seed ^ SALT), backups, min_in_sync, recover_from_disk: None }
    }
}

impl World {
    /// In a third of the seeds there will be edits.
    pub(super) fn plan_edits(&mut self) {
        if self.desired.random.one_in(3) {
            self.plan_edit();
        }
    }

    fn plan_edit(&mut self) {
        let pause = self.desired.random.within(1, PAUSE_MAX);
        self.queue.plan(pause, Event::Edit);
    }

    pub(super) fn on_edit(&mut self) {
        if !self.faults_on {
            return;
        }
        // Never less in sync than the plan says: it also bounds how many may lose their memory at once.
        let least = self.plan.min_in_sync;
        let backups = self.desired.random.within(u64::from(least), self.hosts.len() as u64) as u8;
        let min_in_sync = self.desired.random.within(u64::from(least), u64::from(backups.min(least + 1))) as u8;
        self.tally.count(Fault::DesiredChanges);
        self.want(backups, min_in_sync);
        self.plan_edit();
    }

    /// The group wants what it was made with, and everybody knows it.
    pub(super) fn want_as_planned(&mut self) {
        self.want(self.plan.backups, self.plan.min_in_sync);
    }

    /// A person orders that the group's log is recovered from disks, and everybody knows it: what was not synced may be lost,
    /// once.
    pub(crate) fn order_recovery_from_disk(&mut self) {
        let order = self.store.content().map(|config| DiskRecovery { log: config.log, after: config.won });
        trace!(self, "a person orders the recovery from disk");
        self.desired.recover_from_disk = order;
        self.checks.forgive_unsynced();
        self.want_as_planned();
    }

    fn want(&mut self, backups: u8, min_in_sync: u8) {
        trace!(self, "{backups} members are wanted, {min_in_sync} in sync at least");
        (self.desired.backups, self.desired.min_in_sync) = (backups, min_in_sync);
        for no in (0..self.sidecars.len()).map(SidecarNo) {
            let candidate_heeds = !self.faults_on || self.desired.random.one_in(2);
            match &self.sidecars[no.0].role {
                Role::Primary(_) => self.primary_input(no, Input::Wanted { backups, min_in_sync }),
                Role::Candidate(_) if candidate_heeds => self.rest(no, 10),
                Role::Standby(_) => self.notify_standby(no),
                _ => {}
            }
        }
    }
}
