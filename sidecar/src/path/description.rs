//! What the append path reports of itself, for the status.
//!
//! Made by [`AppendLoop`] when [`control`](crate::control) asks; read by [`status`](crate::control::status).

use std::sync::atomic::Ordering;

use tailwind_primary::Table;
use tailwind_protocol::config::MemberRef;
use tailwind_protocol::ids::Position;
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::primary::{Membership, Positions, Primary};
use tailwind_report::readiness::AppendsWaitFor;

use super::leading::Leading;
use super::{AppendLoop, RoleState};

/// A sidecar's view of itself, for the status.
#[derive(Clone, Debug)]
pub struct Description {
    /// `primary`, `standby`, `recovering` or `reader`.
    pub role: String,
    /// The epoch; 0 if unknown.
    pub epoch: u64,
    /// Who is primary; empty if unknown.
    pub primary: String,
    /// Last acknowledged record.
    pub acked: u64,
    /// First record that can be read.
    pub first: u64,
    /// What a primary knows beside.
    pub leading: Option<LeadingDescription>,
    /// Clients connected.
    pub clients: usize,
    /// Those of them that have a ring.
    pub rings: u64,
    /// Appends that wait for their ack.
    pub pending: usize,
    /// Clients that wait for a sync.
    pub syncs: usize,
}

/// A primary's view of its log.
#[derive(Clone, Debug)]
pub struct LeadingDescription {
    /// Version of the member set.
    pub version: u64,
    /// The positions of the log.
    pub positions: Positions,
    /// Members and newcomers.
    pub members: Vec<MemberDescription>,
    /// Members of the set that it writes to now.
    pub connected: usize,
    /// What appends have waited for, for a while.
    pub appends_wait: Option<AppendsWaitFor>,
    /// The log is on disk at every member up to this record, as far as clients have asked for it.
    pub synced: u64,
    /// Its table, if it keeps one.
    pub table: Option<TableDescription>,
}

/// A primary's view of its table.
#[derive(Clone, Copy, Debug)]
pub struct TableDescription {
    /// Keys that are present.
    pub keys: u32,
    /// Bytes of their last records in the log.
    pub live_bytes: u64,
    /// Segments of the log.
    pub log_segments: u32,
}

/// One member in the status.
#[derive(Clone, Debug)]
pub struct MemberDescription {
    /// Who it is.
    pub member: MemberRef,
    /// It has failed. If it is in the set, acks wait for it.
    pub lost: bool,
    /// Of a newcomer: closed segments that it lacks.
    pub missing: Option<usize>,
    /// Completed up to here.
    pub completed: Position,
    /// Bytes from there to the end of the log, about.
    pub behind: u64,
    /// Closed segments whose copies there are gone or corrupt.
    pub damaged: usize,
}

/// Bytes between two positions, as if every segment between them were full.
fn bytes_between(from: Position, to: Position, size: SegmentSize) -> u64 {
    if from >= to {
        return 0;
    }
    let segments = to.segment.0 - from.segment.0;
    let bytes = segments.saturating_mul(size.bytes().into()).saturating_add(to.offset.0.into());
    bytes.saturating_sub(from.offset.0.into())
}

impl AppendLoop {
    pub(super) fn describe(&self) -> Description {
        let leading = match &self.state {
            RoleState::Leading(leading) => Some(leading),
            RoleState::Waiting { .. } => None,
        };
        Description {
            role: self.role().to_string(),
            epoch: self.epoch,
            primary: self.primary_name.clone(),
            acked: self.counters.acked.load(Ordering::Relaxed),
            first: self.counters.first.load(Ordering::Relaxed),
            leading: leading.map(|leading| self.describe_log(leading)),
            clients: self.clients.count(),
            rings: self.counters.rings.load(Ordering::Relaxed),
            pending: leading.map_or(0, |leading| leading.log.appends().len()),
            syncs: leading.map_or(0, |leading| leading.log.syncs()),
        }
    }

    fn describe_log(&self, leading: &Leading) -> LeadingDescription {
        let primary = leading.log.primary();
        LeadingDescription {
            version: primary.config().version.0,
            positions: primary.positions(),
            members: self.describe_members(primary),
            connected: leading.log.members_connected(),
            appends_wait: self.appends_wait(leading),
            synced: primary.synced().0,
            table: leading.log.table().map(|table| TableDescription {
                keys: table.index().keys(),
                live_bytes: table.index().live_bytes(),
                log_segments: primary.log_segments(),
            }),
        }
    }

    fn describe_members(&self, primary: &Primary) -> Vec<MemberDescription> {
        let end = primary.positions().appended;
        let members = primary.roster().map(|(member, membership, lost, completed)| MemberDescription {
            member: member.clone(),
            lost,
            missing: match membership {
                Membership::InSet => None,
                Membership::Newcomer { missing, .. } => Some(missing.len()),
            },
            completed,
            behind: bytes_between(completed, end, self.options.segment_size),
            damaged: primary.damaged(member),
        });
        members.collect()
    }

    /// What appends wait for, if they have waited for a while.
    fn appends_wait(&self, leading: &Leading) -> Option<AppendsWaitFor> {
        let for_room = leading.stall.told(self.now())?;
        let (primary, positions) = (leading.log.primary(), leading.log.primary().positions());
        // Without a member nothing completes and no segment is opened, whatever an append meets first.
        Some(match () {
            () if leading.log.members_connected() < primary.config().members.len() => AppendsWaitFor::Members,
            () if for_room && leading.log.table().is_some_and(Table::waits_for_trim) => AppendsWaitFor::Cleaner,
            () if for_room => AppendsWaitFor::Room,
            () if positions.completed > positions.acked => AppendsWaitFor::Disk,
            () => AppendsWaitFor::Members,
        })
    }
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::{Offset, SegmentId};

    use super::*;

    #[test]
    fn a_member_is_behind_by_about_so_many_bytes() {
        let at = |segment, offset| Position::new(SegmentId(segment), Offset(offset));
        let size = SegmentSize::new(64 << 10).unwrap();
        let behind = |from, to| bytes_between(from, to, size);
        assert_eq!(behind(at(2, 8), at(2, 100)), 92);
        assert_eq!(behind(at(2, 100), at(2, 100)), 0);
        assert_eq!(behind(at(2, 100), at(4, 8)), (128 << 10) - 92);
        assert_eq!(behind(at(3, 8), at(2, 100)), 0, "a newcomer begins where the open end will be");
    }
}
