//! Repair: missing and corrupt closed copies at a member are installed again, while it stays in the set.
//!
//! Part of [`Primary`]. A backup finds corrupt copies by scrubbing, at a flush, or when one is fetched; the sidecar asks each
//! member for them periodically. See "Scrub and repair" in `docs/protocol.md`.

use std::collections::BTreeSet;

use crate::config::{MemberRef, Time};
use crate::ids::SegmentId;
use crate::layout::{Closure, SegmentIdentity};
use crate::planted::{self, Bug};
use crate::rpc::{CopyReport, CopyState, DAMAGE_REPORTS_MAX};

use super::{Membership, Output, Primary, Seat};

/// Repairs under way at one member: each takes one of its buffers, and one is kept for images.
pub const REPAIRS_MAX: usize = 1;

/// Pause before a failed repair is retried, in units of `open_timeout_ms`: 15 × 2 s = 30 s. All backups with a sound copy
/// may be down, and retrying faster does not bring them back.
const REPAIR_RETRY: u64 = 15;

/// The missing and corrupt closed copies at a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Damage {
    /// Their segments. At most [`DAMAGE_REPORTS_MAX`].
    segments: BTreeSet<SegmentId>,
    /// Those being repaired. At most [`REPAIRS_MAX`].
    under_way: Vec<SegmentId>,
    /// Those whose repair failed, and when it is retried.
    failed: BTreeSet<SegmentId>,
    retry_at: Time,
}

impl Damage {
    pub(super) fn count(&self) -> usize {
        self.segments.len()
    }

    pub(super) fn has(&self, segment: SegmentId) -> bool {
        self.segments.contains(&segment)
    }
}

impl Primary {
    /// Number of closed segments whose copies this member has reported as missing or corrupt. For status.
    pub fn damaged(&self, reference: &MemberRef) -> usize {
        let same = self.members.iter().flatten().filter(|member| member.reference == *reference);
        same.map(|member| member.damage.count()).sum()
    }

    /// Each report is complete: what is no longer in it has been repaired, trimmed or dropped.
    pub(super) fn on_damaged(&mut self, seat: Seat, copies: &[CopyReport], out: &mut Vec<Output>) {
        let corrupt = copies.iter().filter(|copy| copy.state == CopyState::Corrupt).take(DAMAGE_REPORTS_MAX);
        let segments: BTreeSet<SegmentId> = corrupt.map(|copy| copy.identity.segment).collect();
        let closed: BTreeSet<SegmentId> = segments.into_iter().filter(|at| self.closed_at(*at).is_some()).collect();
        let Some(member) = self.member_mut(seat) else { return };
        member.damage.segments = closed;
        if let Membership::Newcomer { missing, .. } = &member.membership {
            // These will be installed anyway.
            member.damage.segments.retain(|segment| !missing.contains(segment));
        }
        self.start_repairs(seat, out);
    }

    pub(super) fn on_repaired(&mut self, seat: Seat, segment: SegmentId, out: &mut Vec<Output>) {
        let Some(member) = self.member_mut(seat) else { return };
        member.damage.under_way.retain(|known| *known != segment);
        member.damage.segments.remove(&segment);
        member.damage.failed.remove(&segment);
        self.start_repairs(seat, out);
    }

    /// A failed repair loses nothing more: the member stays, and other repairs continue.
    pub(super) fn on_repair_failed(&mut self, now: Time, seat: Seat, segment: SegmentId, out: &mut Vec<Output>) {
        let retry_at = now.plus(REPAIR_RETRY * self.rules.open_timeout_ms);
        let Some(member) = self.member_mut(seat) else { return };
        member.damage.under_way.retain(|known| *known != segment);
        if member.damage.failed.is_empty() {
            member.damage.retry_at = retry_at;
        }
        member.damage.failed.insert(segment);
        self.start_repairs(seat, out);
    }

    pub(super) fn retry_repairs(&mut self, now: Time, out: &mut Vec<Output>) {
        for index in 0..self.members.len() {
            let Some(member) = self.members[index].as_mut().filter(|member| !member.is_lost()) else { continue };
            if !member.damage.failed.is_empty() && now >= member.damage.retry_at {
                member.damage.failed.clear();
                let seat = member.seat;
                self.start_repairs(seat, out);
            }
        }
    }

    /// Trimmed segments need no repair, and no newcomer lacks them once it knows of the trim, which is about to be sent.
    pub(super) fn forget_trimmed(&mut self) {
        let first = self.closed.front().map_or(self.segments.oldest(), |(identity, _)| identity.segment);
        self.lanes.forget_images_below(first);
        for member in self.members.iter_mut().flatten() {
            member.damage.segments.retain(|segment| *segment >= first);
            member.damage.failed.retain(|segment| *segment >= first);
            if let Membership::Newcomer { missing, unconfirmed } = &mut member.membership {
                let before = missing.len();
                missing.retain(|segment| *segment >= first);
                if missing.len() < before {
                    *unconfirmed = self.lanes.tidied_with_a_trim(member.seat);
                }
            }
        }
    }

    /// Repairs the oldest damaged copies first.
    fn start_repairs(&mut self, seat: Seat, out: &mut Vec<Output>) {
        let Some(damage) = self.member_mut(seat).map(|member| &member.damage) else { return };
        let due = |segment: &&SegmentId| !damage.under_way.contains(segment) && !damage.failed.contains(segment);
        let most = if planted::has(Bug::RotIsLeft) { 0 } else { REPAIRS_MAX };
        let room = most.saturating_sub(damage.under_way.len());
        let due: Vec<SegmentId> = damage.segments.iter().filter(due).take(room).copied().collect();
        for segment in due {
            let Some((identity, closure)) = self.closed_at(segment) else { continue };
            if let Some(member) = self.member_mut(seat) {
                member.damage.under_way.push(segment);
                out.push(Output::Repair(seat, identity, closure, Vec::new()));
            }
        }
    }

    fn closed_at(&self, segment: SegmentId) -> Option<(SegmentIdentity, Closure)> {
        let at = self.closed.binary_search_by_key(&segment, |(identity, _)| identity.segment).ok()?;
        self.closed.get(at).copied()
    }
}
