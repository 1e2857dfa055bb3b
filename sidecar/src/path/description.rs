//! What the append path reports of itself, for the status.
//!
//! Made by [`Path`] when [`control`](crate::control) asks; read by [`status`](crate::control::status).

use std::sync::atomic::Ordering;

use serde::Serialize;
use tailwind_protocol::primary::{Membership, Positions, Primary};
use tailwind_report::readiness::AppendsWaitFor;

use super::replicator::Replicator;
use super::{Path, RoleState};

/// A primary's view of itself, for the status.
#[derive(Clone, Debug, Serialize)]
pub struct Description {
    /// `primary`, `standby`, `recovering` or `reader`.
    pub role: String,
    /// The epoch; 0 if unknown.
    pub epoch: u64,
    /// Who is primary; empty if unknown.
    pub primary: String,
    /// Version of the member set.
    pub version: u64,
    /// Last acknowledged record.
    pub acked: u64,
    /// First record that can be read.
    pub first: u64,
    /// The positions of the log, each `segment:offset`.
    pub positions: Option<PositionsDescription>,
    /// Members and newcomers.
    pub members: Vec<MemberDescription>,
    /// Members of the set that it writes to now.
    pub connected: usize,
    /// What appends have waited for, for a while. Told with its reason elsewhere.
    #[serde(skip)]
    pub appends_wait: Option<AppendsWaitFor>,
    /// Clients connected.
    pub clients: usize,
    /// Those of them that have a ring.
    pub rings: u64,
    /// Appends that wait for their ack.
    pub pending: usize,
    /// The log is on disk at every member up to this record, as far as clients have asked for it.
    pub synced: u64,
    /// Clients that wait for a sync.
    pub syncs: usize,
}

/// The positions of the log as text.
#[derive(Clone, Debug, Serialize)]
pub struct PositionsDescription {
    flushed: String,
    acked: String,
    completed: String,
    posted: String,
    appended: String,
}

impl From<Positions> for PositionsDescription {
    fn from(p: Positions) -> PositionsDescription {
        let [flushed, acked, completed, posted, appended] =
            [p.flushed, p.acked, p.completed, p.posted, p.appended].map(|position| position.to_string());
        PositionsDescription { flushed, acked, completed, posted, appended }
    }
}

/// One member in the status.
#[derive(Clone, Debug, Serialize)]
pub struct MemberDescription {
    /// Its name.
    pub name: String,
    /// Its control endpoint.
    pub control: String,
    /// `in set`, `catching up` or `lost`.
    pub state: &'static str,
    /// Completed up to here.
    pub completed: String,
    /// Closed segments whose copies there are gone or corrupt.
    pub damaged: usize,
}

impl Path {
    pub(super) fn describe(&self) -> Description {
        let replicator = match &self.state {
            RoleState::Leading(replicator) => Some(replicator),
            RoleState::Waiting { .. } => None,
        };
        let primary = replicator.map(|replicator| replicator.primary());
        let describe = |primary: &Primary| {
            let members = primary.roster().map(|(member, membership, lost, at)| MemberDescription {
                name: member.id.to_string(),
                control: member.control.clone(),
                state: match membership {
                    _ if lost => "lost",
                    Membership::InSet => "in set",
                    Membership::Newcomer { .. } => "catching up",
                },
                completed: at.to_string(),
                damaged: primary.damaged(member),
            });
            members.collect()
        };
        Description {
            role: self.role().to_string(),
            epoch: self.epoch,
            primary: self.primary_name.clone(),
            version: primary.map_or(0, |primary| primary.config().version.0),
            acked: self.counters.acked.load(Ordering::Relaxed),
            first: self.counters.first.load(Ordering::Relaxed),
            positions: primary.map(|primary| primary.positions().into()),
            members: primary.map(describe).unwrap_or_default(),
            connected: replicator.map_or(0, |replicator| replicator.members_connected()),
            appends_wait: replicator.and_then(|replicator| self.appends_wait(replicator)),
            clients: self.clients.count(),
            rings: self.counters.rings.load(Ordering::Relaxed),
            pending: self.pending.appends(),
            synced: primary.map_or(0, |primary| primary.synced().0),
            syncs: self.pending.syncs(),
        }
    }

    /// What appends wait for, if they have waited for a while.
    fn appends_wait(&self, replicator: &Replicator) -> Option<AppendsWaitFor> {
        let for_room = self.stall.told(self.now())?;
        let (primary, positions) = (replicator.primary(), replicator.primary().positions());
        // Without a member nothing completes and no segment is opened, whatever an append meets first.
        Some(match () {
            () if replicator.members_connected() < primary.config().members.len() => AppendsWaitFor::Members,
            () if for_room => AppendsWaitFor::Room,
            () if positions.completed > positions.acked => AppendsWaitFor::Disk,
            () => AppendsWaitFor::Members,
        })
    }
}
