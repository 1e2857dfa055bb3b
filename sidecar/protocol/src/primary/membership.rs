//! Losing and gaining members: one compare-and-swap at a time, and never a guess about how it ended.
//!
//! Part of [`Primary`]. See "Membership" in `docs/protocol.md`.

use std::collections::VecDeque;

use crate::config::{Durability, MemberRef, Swap, SwapOutcome, Time};
use crate::ids::{Lsn, MemberId, SegmentId};
use crate::layout::SegmentIdentity;
use crate::planted::{self, Bug};
use crate::recovery::RepairPlan;
use crate::rpc::{Failure, Inventory};

use super::seats::{Fate, Member, Progress, Stall};
use super::{Output, Primary, SEGMENTS_MAX, Seat, Standing, StepDown};

/// Patience with lost members that do not answer while too few are left, in terms of `open_patience_ms`: 15 × 2 s = 30 s.
/// A process that is started anew is back within that time, even after Kubernetes has let it wait for 10 s. Whoever is
/// cut off from members that others can reach stands in their way for so long.
const RETURN_PATIENCE: u64 = 15;

impl Primary {
    pub(super) fn on_lost(&mut self, seat: Seat, out: &mut Vec<Output>) {
        let Some(member) = self.member_mut(seat) else { return };
        member.lost = true;
        let id = member.reference.id.clone();
        self.lost.retain(|known| *known != id);
        self.lost.push(id);
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

    /// Proposes a smaller set when a member is lost, a larger one when a newcomer has caught up. With too few members left
    /// newcomers take the place of those that were lost: see "Refilling" in `docs/protocol.md`.
    pub(super) fn plan_swap(&mut self, out: &mut Vec<Output>) {
        if self.swap.is_some() {
            return;
        }
        let in_set = || self.members.iter().flatten().filter(|member| member.standing == Standing::InSet);
        let members: Vec<MemberRef> = if in_set().any(|member| member.lost) {
            let mut left: Vec<MemberRef> = in_set().filter(|m| !m.lost).map(|m| m.reference.clone()).collect();
            if self.is_short() {
                if self.shall_step_down() {
                    return self.step_down_short(out);
                }
                let newcomers = self.members.iter().flatten().filter(|member| self.has_caught_up(member));
                left.extend(newcomers.map(|member| member.reference.clone()));
                // Acks stop meanwhile: those who were lost are still required.
                if left.len() < self.needed() {
                    return;
                }
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

    /// Members that the set must have. One that was smaller already when more were wanted need not become larger at once;
    /// a promotion asks for no more either.
    fn needed(&self) -> usize {
        usize::from(self.rules.min_in_sync.max(1)).min(self.config.members.len())
    }

    /// Members of the set that are not lost.
    fn left(&self) -> usize {
        self.members.iter().flatten().filter(|member| member.standing == Standing::InSet && !member.lost).count()
    }

    /// Members of the set that are lost, and of whom this is known.
    fn lost_and(&self, fate: Fate) -> usize {
        let such = |member: &&Member| member.standing == Standing::InSet && member.lost && member.fate == fate;
        self.members.iter().flatten().filter(such).count()
    }

    /// True while members are lost and too few are left to go on without them.
    fn is_short(&self) -> bool {
        self.swap.is_none() && self.left() < self.needed()
    }

    /// True when a promotion would do better: nobody is left to refill from, or it would find enough with the log at once.
    fn shall_step_down(&self) -> bool {
        self.left() == 0
            || self.left() + self.lost_and(Fate::Returned) >= self.needed()
            || planted::has(Bug::StepsDownAtOnce)
    }

    fn step_down_short(&mut self, out: &mut Vec<Output>) {
        let (left, needed) = (self.left() as u8, self.rules.min_in_sync.max(1));
        self.step_down(StepDown::TooFewMembers { left, needed }, out);
    }

    /// Those who do not answer may be back with what they held, and somebody else may reach them already. So after a while
    /// the others get their chance: unless somebody is on the way in, or even with all of the silent ones a promotion
    /// would find too few.
    pub(super) fn wait_for_the_lost(&mut self, now: Time, out: &mut Vec<Output>) {
        if !self.is_short() {
            self.short_since = None;
            return;
        }
        let since = *self.short_since.get_or_insert(now);
        let over = now >= since.plus(RETURN_PATIENCE * self.rules.open_patience_ms);
        let helped = self.members.iter().flatten().any(|m| m.standing != Standing::InSet && !m.lost);
        let hopeful = self.left() + self.lost_and(Fate::Returned) + self.lost_and(Fate::Silent);
        if over && !helped && hopeful >= self.needed() {
            self.step_down_short(out);
        }
    }

    /// A lost member has been met again. While enough are left it comes back as a newcomer, after the swap.
    fn on_returned(&mut self, reference: &MemberRef) {
        let same = |member: &&mut Member| member.reference.is_same(reference) && member.lost;
        if let Some(member) = self.members.iter_mut().flatten().find(same) {
            member.fate = Fate::Returned;
        }
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
        !repairs.is_empty()
            || member.damage.count() > 0
            || *chores > 0
            || !opened
            || member.reached(self.rules.durability) < self.acked
    }

    pub(super) fn on_swapped(&mut self, now: Time, outcome: SwapOutcome, out: &mut Vec<Output>) {
        let Some(swap) = self.swap.take() else { return };
        match outcome.settle(&swap.proposed) {
            SwapOutcome::Applied => self.adopt(swap),
            SwapOutcome::Unknown if planted::has(Bug::UnknownIsRefused) => self.clear_lost_newcomers(),
            // It may yet happen, so nothing else may be tried, and both sets stay needed.
            SwapOutcome::Unknown => {
                self.swap_again = Some(now.plus(self.rules.swap_interval_ms));
                self.swap = Some(swap);
                self.swap_again(now, out);
            }
            SwapOutcome::Conflict(Some(found)) if found.epoch > self.config.epoch => {
                self.step_down(StepDown::Superseded(found.epoch), out);
            }
            SwapOutcome::Conflict(_) => self.step_down(StepDown::Confused, out),
        }
    }

    pub(super) fn swap_again(&mut self, now: Time, out: &mut Vec<Output>) {
        if self.swap_again.take_if(|at| now >= *at).is_some() {
            out.extend(self.swap.clone().map(Output::Swap));
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
        let short = self.is_short();
        let present = self.members.iter().flatten().filter(|member| !short || !member.lost).count();
        let few = present < usize::from(self.rules.backups).max(if short { self.needed() } else { 0 });
        // Who was lost before it had lent the active segment never lends it.
        let wanted = few && self.swap.is_none() && (short || self.is_ready());
        if wanted && !self.over && self.search == Search::Idle && now >= self.recruit_after {
            self.search = Search::Surveying { lost: self.lost.clone() };
            self.recruit_after = now.plus(self.rules.recruit_interval_ms);
            out.push(Output::Survey);
        }
    }

    /// Backups that answered the search for a spare. One with a full disk answers well: if it were always asked first, nobody
    /// else would ever take its place. A member's name with other memory behind it is outside the set. One that was lost in
    /// this term and has its memory still is only noted: a promotion may need it as it is. Of members that were lost after the
    /// search had begun the answer may be older than the loss.
    pub(super) fn on_surveyed(&mut self, now: Time, found: Vec<MemberRef>, out: &mut Vec<Output>) {
        let Search::Surveying { lost } = std::mem::take(&mut self.search) else { return };
        let is_member = |found: &MemberRef| self.config.member(&found.id).is_some_and(|known| known.is_same(found));
        let (members, mut spares): (Vec<_>, Vec<_>) = found.into_iter().partition(is_member);
        members.iter().filter(|member| lost.contains(&member.id)).for_each(|member| self.on_returned(member));
        spares.retain(|spare| !self.is_seated(spare));
        spares.sort_by_key(|spare| self.lost.iter().position(|id| *id == spare.id));
        self.fence_next(now, spares.into(), out);
    }

    fn fence_next(&mut self, now: Time, mut spares: VecDeque<MemberRef>, out: &mut Vec<Output>) {
        self.search = match spares.pop_front() {
            Some(spare) => {
                out.push(Output::Fence(spare.clone()));
                Search::Fencing { spare, others: spares }
            }
            None => {
                self.recruit_after = now.plus(self.rules.recruit_interval_ms);
                Search::Idle
            }
        };
    }

    pub(super) fn on_fenced(
        &mut self,
        now: Time,
        member: MemberRef,
        result: Result<Inventory, Failure>,
        out: &mut Vec<Output>,
    ) {
        let others = match std::mem::take(&mut self.search) {
            Search::Fencing { spare, others } if spare == member => others,
            other => return self.search = other,
        };
        match result {
            Ok(inventory) => {
                let member = MemberRef { boot: inventory.boot, ..member };
                self.on_recruited(member, &inventory, out);
            }
            Err(Failure::Superseded(epoch)) => self.on_superseded(epoch, out),
            Err(Failure::ClaimedBefore(_) | Failure::Unreachable(_)) => self.fence_next(now, others, out),
        }
    }

    /// True for a member that is not lost, and for one that is and has its memory still: it may be what a promotion needs, so
    /// nothing of it may be dropped.
    fn is_seated(&self, reference: &MemberRef) -> bool {
        let same = |member: &Member| {
            member.reference.id == reference.id && (!member.lost || member.reference.is_same(reference))
        };
        self.members.iter().flatten().any(same)
    }

    /// A spare takes a seat: it drops what is no part of the log, lends buffers for the open end from the first segment that
    /// is not acknowledged as a whole, and gets everything before as closed images. Nobody closes that first segment until
    /// acks reach its end, so with acks stopped it could never come as an image.
    fn on_recruited(&mut self, reference: MemberRef, inventory: &Inventory, out: &mut Vec<Output>) {
        let in_set = self.config.member(&reference.id).is_some_and(|known| known.is_same(&reference));
        if in_set || self.is_seated(&reference) {
            return;
        }
        for member in self.members.iter_mut().flatten().filter(|member| member.reference.id == reference.id) {
            member.fate = Fate::Gone;
        }
        let mut plan = RepairPlan::new(self.closed.iter().map(|(identity, closure)| (identity, closure)), inventory);
        let repairs = plan.close.iter().chain(&plan.install).map(|(identity, _)| identity.segment).collect();
        let first = self.first_unacked();
        // A copy of one of our own whole segments stays until the image replaces it: a drop that comes late, after this
        // seat has been lost and taken again, could hit the image.
        let whole: Vec<SegmentIdentity> =
            self.segments.iter().map(|s| s.identity).filter(|identity| identity.segment < first).collect();
        plan.drop.retain(|copy| !whole.contains(&copy.identity));
        let chores = u8::from(self.first_readable() > Lsn(1)) + u8::from(!plan.drop.is_empty());
        let Some(seat) = self.seat(reference, Standing::Newcomer { repairs, chores }, first, out) else { return };
        self.trim_to_first(seat, out);
        if !plan.drop.is_empty() {
            out.push(Output::Drop(seat, plan.drop));
        }
        out.extend(plan.close.into_iter().map(|(identity, closure)| Output::Close(seat, identity, closure)));
        let ahead = self.segments.iter().filter(|segment| segment.identity.segment >= first);
        out.extend(ahead.map(|segment| Output::Open(seat, segment.identity)));
        out.extend(plan.install.into_iter().map(|(identity, closure)| Output::Install(seat, identity, closure)));
    }

    /// Trims and drops go one after the other, so the first ones to be confirmed are those of the start.
    pub(super) fn on_tidied(&mut self, seat: Seat) {
        if let Some(Member { standing: Standing::Newcomer { chores, .. }, .. }) = self.member_mut(seat) {
            *chores = chores.saturating_sub(1);
        }
    }

    /// A newcomer has a segment that it lacked. After the last one it is told once more where the log begins: it may hold
    /// a buffer that it lent earlier in this epoch, for a segment that was trimmed while it was away, and gives that back
    /// only when a later segment is closed there. Nobody else would ever ask for it.
    pub(super) fn on_repaired(&mut self, seat: Seat, segment: SegmentId, out: &mut Vec<Output>) {
        let Some(member) = self.member_mut(seat) else { return };
        let Standing::Newcomer { repairs, .. } = &mut member.standing else { return };
        let before = repairs.len();
        repairs.retain(|waiting| *waiting != segment);
        if before > 0 && repairs.is_empty() {
            self.trim_to_first(seat, out);
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
            !m.lost && unflushed && m.reached(self.rules.durability) <= self.acked
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
                damaged: member.damage.count(),
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

/// The search for a spare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Search {
    /// Nobody is looked for.
    #[default]
    Idle,
    /// All backups are asked; these members had been lost by then.
    Surveying {
        /// Their names.
        lost: Vec<MemberId>,
    },
    /// One that answered is being fenced; the others come after it.
    Fencing {
        /// The one.
        spare: MemberRef,
        /// In the order in which they are tried.
        others: VecDeque<MemberRef>,
    },
}
