//! Losing and gaining members: one compare-and-swap at a time, and never a guess about how it ended.
//!
//! Part of [`Primary`]. See "Membership" in `docs/protocol.md`.

use crate::config::{Durability, MemberRef, Swap, SwapOutcome, Time};
use crate::ids::{Lsn, Position, SegmentId};
use crate::layout::SegmentIdentity;
use crate::planted::{self, Bug};
use crate::recovery::RepairPlan;
use crate::rpc::Inventory;

use super::seats::Member;
use super::{Output, Primary, SEGMENTS_MAX, Seat, Standing, StepDown};

impl Primary {
    pub(super) fn on_lost(&mut self, seat: Seat, out: &mut Vec<Output>) {
        let Some(member) = self.member_mut(seat) else { return };
        member.lost = true;
        out.push(Output::Disconnect(seat));
        self.clear_lost_newcomers();
        self.forget_what_is_closed(out);
    }

    /// A newcomer that was never proposed to the config store can go without a word.
    fn clear_lost_newcomers(&mut self) {
        for index in 0..self.members.len() {
            let gone = self.members[index].as_ref().is_some_and(|m| m.lost && !self.is_required(m));
            if gone {
                self.members[index] = None;
            }
        }
    }

    /// Proposes a smaller set when a member is lost, a larger one when a newcomer has caught up.
    pub(super) fn plan_swap(&mut self, out: &mut Vec<Output>) {
        if self.swap.is_some() {
            return;
        }
        let in_set = || self.members.iter().flatten().filter(|member| member.standing == Standing::InSet);
        let members: Vec<MemberRef> = if in_set().any(|member| member.lost) {
            let left: Vec<MemberRef> = in_set().filter(|m| !m.lost).map(|m| m.reference.clone()).collect();
            let needed = self.rules.min_in_sync.max(1);
            if left.len() < usize::from(needed) {
                return self.step_down(StepDown::TooFewMembers { left: left.len() as u8, needed }, out);
            }
            left
        } else {
            let Some(newcomer) = self.members.iter().flatten().find(|member| self.has_caught_up(member)) else {
                return;
            };
            self.config.members.iter().cloned().chain([newcomer.reference.clone()]).collect()
        };
        let swap = Swap { expected: Some(self.config.stamp()), proposed: self.config.with_members(members) };
        if planted::has(Bug::ShrinkWithoutSwap) && swap.proposed.members.len() < self.config.members.len() {
            return self.adopt(swap);
        }
        self.swap = Some(swap.clone());
        out.push(Output::Swap(swap));
    }

    /// A newcomer may join once it holds every closed segment and every acknowledged byte of the open end (S8).
    fn has_caught_up(&self, member: &Member) -> bool {
        let images = self.segments.iter().all(|s| s.identity.segment >= member.first_opened);
        let newcomer = member.standing != Standing::InSet;
        let early = planted::has(Bug::NewcomerTooEarly);
        !member.lost && newcomer && (early || images && !self.lacks_something(member))
    }

    /// True for a newcomer that has not done all that it was asked for.
    fn lacks_something(&self, member: &Member) -> bool {
        let Standing::Newcomer { repairs, chores } = &member.standing else { return false };
        let opened = member.opened >= self.segments.active_id();
        !repairs.is_empty() || *chores > 0 || !opened || self.reached(member) < self.acked
    }

    pub(super) fn on_swapped(&mut self, outcome: SwapOutcome, out: &mut Vec<Output>) {
        let Some(swap) = self.swap.take() else { return };
        match outcome.settle(&swap.proposed) {
            SwapOutcome::Applied => self.adopt(swap),
            SwapOutcome::Unknown if planted::has(Bug::UnknownIsRefused) => self.clear_lost_newcomers(),
            // It may yet happen, so nothing else may be tried, and both sets stay needed.
            SwapOutcome::Unknown => {
                out.push(Output::Swap(swap.clone()));
                self.swap = Some(swap);
            }
            SwapOutcome::Conflict(Some(found)) if found.epoch > self.config.epoch => {
                self.step_down(StepDown::Superseded(found.epoch), out);
            }
            SwapOutcome::Conflict(_) => self.step_down(StepDown::Confused, out),
        }
    }

    fn adopt(&mut self, swap: Swap) {
        self.config = swap.proposed;
        for place in &mut self.members {
            let Some(member) = place else { continue };
            let in_set = self.config.members.contains(&member.reference);
            match (in_set, member.standing == Standing::InSet) {
                (true, false) => member.standing = Standing::InSet,
                (false, true) => *place = None,
                _ => {}
            }
        }
    }

    /// Looks for a spare when the set is too small and nobody is on the way into it.
    pub(super) fn recruit(&mut self, now: Time, out: &mut Vec<Output>) {
        let present = self.members.iter().flatten().count();
        let wanted = present < usize::from(self.rules.backups) && self.swap.is_none() && self.is_ready();
        if wanted && !self.recruiting && now >= self.recruit_after {
            self.recruiting = true;
            self.recruit_after = now.plus(self.rules.recruit_interval_ms);
            out.push(Output::Recruit);
        }
    }

    pub(super) fn on_no_spare(&mut self, now: Time) {
        self.recruiting = false;
        self.recruit_after = now.plus(self.rules.recruit_interval_ms);
    }

    /// A spare takes a seat: it drops what is no part of the log, lends buffers for the open end from the active segment
    /// on, and gets everything before as closed images.
    pub(super) fn on_recruited(&mut self, reference: MemberRef, inventory: &Inventory, out: &mut Vec<Output>) {
        self.recruiting = false;
        let known = self.members.iter().flatten().any(|member| member.reference.id == reference.id);
        if known || self.config.member(&reference.id).is_some() {
            return;
        }
        let mut plan = RepairPlan::new(self.closed.iter().map(|(identity, closure)| (identity, closure)), inventory);
        let repairs = plan.close.iter().chain(&plan.install).map(|(identity, _)| identity.segment).collect();
        // A copy of one of our own whole segments stays until the image replaces it: a drop that comes late, after this
        // seat has been lost and taken again, could hit the image.
        let sealed: Vec<SegmentIdentity> =
            self.segments.iter().filter(|s| s.closure.is_some()).map(|s| s.identity).collect();
        plan.drop.retain(|copy| !sealed.contains(&copy.identity));
        let chores = u8::from(self.first_readable() > Lsn(1)) + u8::from(!plan.drop.is_empty());
        let Some(seat) = self.seat(reference, Standing::Newcomer { repairs, chores }, out) else { return };
        self.trim_to_first(seat, out);
        if !plan.drop.is_empty() {
            out.push(Output::Drop(seat, plan.drop));
        }
        out.extend(plan.close.into_iter().map(|(identity, closure)| Output::Close(seat, identity, closure)));
        let active = self.segments.active_id();
        let ahead = self.segments.iter().filter(|segment| segment.identity.segment >= active);
        out.extend(ahead.map(|segment| Output::Open(seat, segment.identity)));
        out.extend(plan.install.into_iter().map(|(identity, closure)| Output::Install(seat, identity, closure)));
    }

    /// Orders are carried out one after the other, so the first ones to be confirmed are those of the start.
    pub(super) fn on_tidied(&mut self, seat: Seat) {
        if let Some(Member { standing: Standing::Newcomer { chores, .. }, .. }) = self.member_mut(seat) {
            *chores = chores.saturating_sub(1);
        }
    }

    pub(super) fn on_installed(&mut self, seat: Seat, segment: SegmentId) {
        if let Some(Member { standing: Standing::Newcomer { repairs, .. }, .. }) = self.member_mut(seat) {
            repairs.retain(|waiting| *waiting != segment);
        }
    }

    /// A member that has not lent the next segment for too long, one that keeps the open end from shrinking, or one whose
    /// flushes keep acks from moving counts as lost: one slow disk must not stop the group. If everybody is slow there is
    /// nobody to go on with, so wait.
    pub(super) fn drop_who_holds_up(&mut self, now: Time, out: &mut Vec<Output>) {
        let slow = self.who_holds_up_segments();
        let ends = (self.segments.oldest(), self.segments.active_id());
        self.segment_stall = Stall::follow(self.segment_stall, ends, now, !slow.is_empty());
        if self.segment_stall.is_some_and(|stall| self.is_too_long(stall.since, now)) {
            self.drop_slow(slow, out);
        }
        let slow = self.who_holds_up_acks();
        self.ack_stall = Stall::follow(self.ack_stall, self.acked, now, !slow.is_empty());
        if self.ack_stall.is_some_and(|stall| self.is_too_long(stall.since, now)) {
            self.drop_slow(slow, out);
        }
    }

    fn who_holds_up_segments(&self) -> Vec<Seat> {
        let active = self.segments.active_id();
        let oldest = self.segments.oldest();
        let wanted = if self.is_ready() { active.next() } else { active };
        // With the open end full nobody was asked for the next one: then the oldest is what holds up.
        let asked = self.segments.get(wanted).is_some();
        let full = self.segments.len() == SEGMENTS_MAX;
        let holds_up = |m: &&Member| {
            let opens_late = asked && m.opened < wanted && self.is_required(m);
            let closes_late = full && m.first_opened <= oldest && m.closed < oldest;
            !m.lost && (opens_late || closes_late)
        };
        self.members.iter().flatten().filter(holds_up).map(|member| member.seat).collect()
    }

    /// Durability `Flushed`: whoever has completed more than is acknowledged and does not get it to its disk. That disk may
    /// hang; or a bit has flipped in its open buffer, so that it never finds another valid append there.
    fn who_holds_up_acks(&self) -> Vec<Seat> {
        let holds_up = |m: &&Member| {
            let unflushed = self.segments.after(m.flushed).is_some_and(|(from, _)| from < m.completed);
            !m.lost && unflushed && self.reached(m) <= self.acked
        };
        let flushes = self.rules.durability == Durability::Flushed;
        self.required().filter(|_| flushes).filter(holds_up).map(|member| member.seat).collect()
    }

    /// A newcomer that gets no further for twice the patience is given up: it holds a place that a spare could take, and
    /// under load it fills the open end.
    pub(super) fn give_up_newcomers(&mut self, now: Time, out: &mut Vec<Output>) {
        let repairs = |member: &Member| match &member.standing {
            Standing::Newcomer { repairs, .. } if !member.lost => repairs.len(),
            _ => 0,
        };
        let all_repairs = self.members.iter().flatten().map(repairs).sum();
        let mut stuck = Vec::new();
        for index in 0..self.members.len() {
            let Some(member) = &self.members[index] else { continue };
            let Standing::Newcomer { chores, .. } = member.standing else { continue };
            let opened = member.opened >= self.segments.active_id();
            let progress = Progress {
                opened: member.opened,
                chores,
                // Few images are copied at once, whoever they are for. But an open waits for nobody else's.
                repairs: if opened { all_repairs } else { repairs(member) },
                completed: member.completed,
                flushed: member.flushed,
            };
            let stalls = !member.lost && !self.is_required(member) && self.lacks_something(member);
            let stall = Stall::follow(member.stall, progress, now, stalls);
            let too_long = |stall: Stall<Progress>| now >= stall.since.plus(2 * self.rules.open_patience_ms);
            if stall.is_some_and(too_long) {
                stuck.push(member.seat);
            }
            if let Some(member) = &mut self.members[index] {
                member.stall = stall;
            }
        }
        stuck.into_iter().for_each(|seat| self.on_lost(seat, out));
    }

    fn is_too_long(&self, since: Time, now: Time) -> bool {
        now >= since.plus(self.rules.open_patience_ms)
    }

    /// Counts them as lost, if enough others are left.
    fn drop_slow(&mut self, slow: Vec<Seat>, out: &mut Vec<Output>) {
        let left = self.required().filter(|m| !m.lost && !slow.contains(&m.seat)).count();
        if left >= usize::from(self.rules.min_in_sync.max(1)) {
            slow.into_iter().for_each(|seat| self.on_lost(seat, out));
        }
    }
}

/// How far a newcomer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Progress {
    opened: SegmentId,
    chores: u8,
    repairs: usize,
    completed: Position,
    flushed: Position,
}

/// Since when somebody has been slow and what they hold up has not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stall<At> {
    since: Time,
    at: At,
}

impl<At: PartialEq> Stall<At> {
    fn follow(known: Option<Stall<At>>, at: At, now: Time, stalls: bool) -> Option<Stall<At>> {
        if !stalls {
            return None;
        }
        known.filter(|known| known.at == at).or(Some(Stall { since: now, at }))
    }
}
