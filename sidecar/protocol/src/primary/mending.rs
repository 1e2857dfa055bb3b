//! Mending: closed copies that have rotted at a member are installed anew, while it stays what it is.
//!
//! Part of [`Primary`]. A backup finds rot by scrubbing, at a flush, or when somebody fetches; the sidecar asks each member
//! now and then what is corrupt there. See "Scrub and repair" in `docs/protocol.md`.

use std::collections::BTreeSet;

use crate::config::{MemberRef, Time};
use crate::ids::SegmentId;
use crate::layout::{Closure, SegmentIdentity};
use crate::planted::{self, Bug};
use crate::rpc::{CopyReport, CopyState, DAMAGE_REPORTS_MAX};

use super::{Output, Primary, Seat, Standing};

/// Copies of one member that are installed anew at a time: each takes one of its buffers, and one is kept for images.
pub const MENDS_MAX: usize = 1;

/// Pause before a copy that could not be mended is tried again, in terms of `open_patience_ms`: 15 × 2 s = 30 s. Its sound
/// copies may all be away, and asking for them more often brings none of them back.
const MEND_AGAIN: u64 = 15;

/// What has rotted at a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Damage {
    /// Closed segments of the log whose copies there are gone or corrupt. At most [`DAMAGE_REPORTS_MAX`].
    segments: BTreeSet<SegmentId>,
    /// Those being installed anew. At most [`MENDS_MAX`].
    under_way: Vec<SegmentId>,
    /// Those that could not be, and when they are tried again.
    in_vain: BTreeSet<SegmentId>,
    again: Time,
}

impl Damage {
    pub(super) fn count(&self) -> usize {
        self.segments.len()
    }
}

impl Primary {
    /// Closed segments of the log of which this member has told that its copies are gone or corrupt. For status.
    pub fn damaged(&self, reference: &MemberRef) -> usize {
        let same = self.members.iter().flatten().filter(|member| member.reference == *reference);
        same.map(|member| member.damage.count()).sum()
    }

    /// Takes each report for all there is: what is no longer in it has been mended, trimmed or dropped.
    pub(super) fn on_damaged(&mut self, seat: Seat, copies: &[CopyReport], out: &mut Vec<Output>) {
        let corrupt = copies.iter().filter(|copy| copy.state == CopyState::Corrupt).take(DAMAGE_REPORTS_MAX);
        let segments: BTreeSet<SegmentId> = corrupt.map(|copy| copy.identity.segment).collect();
        let closed: BTreeSet<SegmentId> = segments.into_iter().filter(|at| self.closed_at(*at).is_some()).collect();
        let Some(member) = self.member_mut(seat) else { return };
        member.damage.segments = closed;
        if let Standing::Newcomer { repairs, .. } = &member.standing {
            // They come as images anyway.
            member.damage.segments.retain(|segment| !repairs.contains(segment));
        }
        self.mend(seat, out);
    }

    pub(super) fn on_mended(&mut self, seat: Seat, segment: SegmentId, out: &mut Vec<Output>) {
        let Some(member) = self.member_mut(seat) else { return };
        member.damage.under_way.retain(|known| *known != segment);
        member.damage.segments.remove(&segment);
        member.damage.in_vain.remove(&segment);
        self.mend(seat, out);
    }

    /// Nothing is lost by it that was not lost before: the member stays, and what can be mended is not held up.
    pub(super) fn on_unmended(&mut self, now: Time, seat: Seat, segment: SegmentId, out: &mut Vec<Output>) {
        let again = now.plus(MEND_AGAIN * self.rules.open_patience_ms);
        let Some(member) = self.member_mut(seat) else { return };
        member.damage.under_way.retain(|known| *known != segment);
        if member.damage.in_vain.is_empty() {
            member.damage.again = again;
        }
        member.damage.in_vain.insert(segment);
        self.mend(seat, out);
    }

    pub(super) fn mend_again(&mut self, now: Time, out: &mut Vec<Output>) {
        for index in 0..self.members.len() {
            let Some(member) = self.members[index].as_mut().filter(|member| !member.lost) else { continue };
            if !member.damage.in_vain.is_empty() && now >= member.damage.again {
                member.damage.in_vain.clear();
                let seat = member.seat;
                self.mend(seat, out);
            }
        }
    }

    /// Nobody needs what is trimmed.
    pub(super) fn forget_trimmed_damage(&mut self) {
        let first = self.closed.front().map_or(self.segments.oldest(), |(identity, _)| identity.segment);
        for member in self.members.iter_mut().flatten() {
            member.damage.segments.retain(|segment| *segment >= first);
            member.damage.in_vain.retain(|segment| *segment >= first);
        }
    }

    /// Has the oldest of them installed anew.
    fn mend(&mut self, seat: Seat, out: &mut Vec<Output>) {
        let Some(damage) = self.member_mut(seat).map(|member| &member.damage) else { return };
        let due = |segment: &&SegmentId| !damage.under_way.contains(segment) && !damage.in_vain.contains(segment);
        let most = if planted::has(Bug::RotIsLeft) { 0 } else { MENDS_MAX };
        let room = most.saturating_sub(damage.under_way.len());
        let due: Vec<SegmentId> = damage.segments.iter().filter(due).take(room).copied().collect();
        for segment in due {
            let Some((identity, closure)) = self.closed_at(segment) else { continue };
            if let Some(member) = self.member_mut(seat) {
                member.damage.under_way.push(segment);
                out.push(Output::Mend(seat, identity, closure));
            }
        }
    }

    fn closed_at(&self, segment: SegmentId) -> Option<(SegmentIdentity, Closure)> {
        let at = self.closed.binary_search_by_key(&segment, |(identity, _)| identity.segment).ok()?;
        self.closed.get(at).copied()
    }
}
