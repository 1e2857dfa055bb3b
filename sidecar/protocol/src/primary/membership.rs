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

use super::seats::{Loss, Member, Progress, Stall};
use super::{Membership, Output, Primary, SEGMENTS_MAX, Seat, StepDown};

/// How long to wait for lost members that do not answer while too few are left, in units of `open_timeout_ms`:
/// 15 × 2 s = 30 s. A restarted process is back within that time, even after Kubernetes has delayed it by 10 s. A primary
/// that is cut off from members which others can reach blocks the group for as long.
const RETURN_WAIT: u64 = 15;
/// How long a sync may take, in units of `open_timeout_ms`: 15 × 2 s = 30 s. A newcomer that has not synced by then what every
/// member has is given up.
pub(super) const SYNC_PATIENCE: u64 = 15;

impl Primary {
    pub(super) fn on_lost(&mut self, seat: Seat, out: &mut Vec<Output>) {
        let Some(member) = self.member_mut(seat) else { return };
        member.loss = Some(Loss::Silent);
        let id = member.reference.id.clone();
        self.lost.retain(|known| *known != id);
        self.lost.push(id);
        out.push(Output::Disconnect(seat));
        self.clear_lost_newcomers();
        self.forget_closed_segments(out);
    }

    /// A lost newcomer that was never proposed to the config store needs no swap to go.
    fn clear_lost_newcomers(&mut self) {
        for index in 0..self.members.len() {
            let gone = self.members[index].as_ref().is_some_and(|m| m.is_lost() && !self.is_required(m));
            if gone {
                self.members[index] = None;
            }
        }
    }

    /// Proposes a smaller set when a member is lost, and a larger one when a newcomer has caught up. With too few members
    /// left, newcomers take the places of the lost ones: see "Refilling" in `docs/protocol.md`.
    pub(super) fn plan_swap(&mut self, out: &mut Vec<Output>) {
        if self.swap.is_some() {
            return;
        }
        let in_set = || self.members.iter().flatten().filter(|member| member.in_set());
        let members: Vec<MemberRef> = if in_set().any(|member| member.is_lost()) {
            let mut left: Vec<MemberRef> = in_set().filter(|m| !m.is_lost()).map(|m| m.reference.clone()).collect();
            if self.is_short() {
                if self.should_step_down() {
                    return self.step_down_short(out);
                }
                let newcomers = self.members.iter().flatten().filter(|member| self.has_caught_up(member));
                left.extend(newcomers.map(|member| member.reference.clone()));
                // Until then acks stop: the lost members are still required.
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

    /// Members that the set must have. A set that was already smaller when the bound was raised need not grow at once; a
    /// promotion requires no more either.
    fn needed(&self) -> usize {
        usize::from(self.rules.min_in_sync.max(1)).min(self.config.members.len())
    }

    /// Members of the set that are not lost.
    fn left(&self) -> usize {
        self.members.iter().flatten().filter(|member| member.in_set() && !member.is_lost()).count()
    }

    /// Members of the set that are lost in this way.
    fn lost_as(&self, loss: Loss) -> usize {
        self.members.iter().flatten().filter(|member| member.in_set() && member.loss == Some(loss)).count()
    }

    /// True while too few members are left to continue without the lost ones.
    fn is_short(&self) -> bool {
        self.swap.is_none() && self.left() < self.needed()
    }

    /// True when a promotion would do better: no member is left to refill from, or enough members with the log answer.
    fn should_step_down(&self) -> bool {
        self.left() == 0
            || self.left() + self.lost_as(Loss::Returned) >= self.needed()
            || planted::has(Bug::StepsDownAtOnce)
    }

    fn step_down_short(&mut self, out: &mut Vec<Output>) {
        let (left, needed) = (self.left() as u8, self.needed() as u8);
        self.step_down(StepDown::TooFewMembers { left, needed }, out);
    }

    /// Silent members may be back with their memory, and other sidecars may already reach them. So step down after a while,
    /// unless a newcomer is catching up, or a promotion would find too few members even with all silent ones.
    pub(super) fn wait_for_lost_members(&mut self, now: Time, out: &mut Vec<Output>) {
        if !self.is_short() {
            self.short_since = None;
            return;
        }
        let since = *self.short_since.get_or_insert(now);
        let over = now >= since.plus(RETURN_WAIT * self.rules.open_timeout_ms);
        let joining = self.members.iter().flatten().any(|m| !m.in_set() && !m.is_lost());
        let reachable_at_most = self.left() + self.lost_as(Loss::Returned) + self.lost_as(Loss::Silent);
        if over && !joining && reachable_at_most >= self.needed() {
            self.step_down_short(out);
        }
    }

    /// A lost member answers again. If enough members are left, it comes back as a newcomer after the swap.
    fn on_returned(&mut self, reference: &MemberRef) {
        let same = |member: &&mut Member| member.reference.is_same(reference) && member.is_lost();
        if let Some(member) = self.members.iter_mut().flatten().find(same) {
            member.loss = Some(Loss::Returned);
        }
    }

    /// A newcomer may join once it holds every closed segment and every acknowledged byte of the open end (S8).
    pub(super) fn has_caught_up(&self, member: &Member) -> bool {
        if member.is_lost() || member.in_set() {
            return false;
        }
        let early = planted::has(Bug::NewcomerTooEarly) || self.is_admitted_by_a_bug(member);
        early || self.has_all_copies(member) && !self.lacks_sync(member) && !self.is_behind(member)
    }

    /// True once nothing can be missing at a newcomer but the end of the log.
    pub(super) fn has_all_copies(&self, member: &Member) -> bool {
        !self.lacks_copies(member) && self.segments.iter().all(|s| s.identity.segment >= member.first_opened)
    }

    /// True for a newcomer that has not finished catching up.
    fn lacks_something(&self, member: &Member) -> bool {
        !member.in_set() && (self.lacks_copies(member) || self.is_behind(member))
    }

    /// True for a newcomer that lacks closed segments, or has not confirmed what is not part of the log.
    fn lacks_copies(&self, member: &Member) -> bool {
        let Membership::Newcomer { missing, unconfirmed } = &member.membership else { return false };
        !missing.is_empty() || member.damage.count() > 0 || *unconfirmed > 0
    }

    /// True for a newcomer that lacks the end of the log.
    fn is_behind(&self, member: &Member) -> bool {
        !self.has_lent_what_members_have(member) || member.reached(self.rules.durability) < self.acked
    }

    /// True for a newcomer that has lent its buffer for the active segment. Where the members have lent nothing yet, nothing
    /// was appended either.
    pub(super) fn has_lent_what_members_have(&self, member: &Member) -> bool {
        member.opened >= self.segments.active_id().min(self.lent_by_members())
    }

    pub(super) fn on_swapped(&mut self, now: Time, outcome: SwapOutcome, out: &mut Vec<Output>) {
        let Some(swap) = self.swap.take() else { return };
        match outcome.settle(&swap.proposed) {
            SwapOutcome::Applied => self.adopt(swap),
            SwapOutcome::Unknown if planted::has(Bug::UnknownIsRefused) => self.clear_lost_newcomers(),
            // It may still be applied, so no other swap may be tried, and acks need both sets.
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
            match (in_set, member.in_set()) {
                (true, false) => member.membership = Membership::InSet,
                (false, true) => *place = None,
                _ => {}
            }
        }
    }

    /// Looks for a spare when the set is too small and no newcomer is catching up.
    pub(super) fn recruit(&mut self, now: Time, out: &mut Vec<Output>) {
        let short = self.is_short();
        let present = self.members.iter().flatten().filter(|member| !short || !member.is_lost()).count();
        let few = present < usize::from(self.rules.backups).max(if short { self.needed() } else { 0 });
        // A member that was lost before it lent the active segment will never lend it. Those that are left may have no room
        // for it before the log is trimmed.
        let waits = self.segment_stall.is_some_and(|stall| self.is_too_long(stall.since, now));
        let wanted = few && self.swap.is_none() && (short || waits || self.is_ready());
        if wanted && !self.over && self.search == Search::Idle && now >= self.recruit_after {
            let lost = self.members.iter().flatten().filter(|member| member.is_lost());
            self.search = Search::Surveying { lost: lost.map(|member| member.reference.id.clone()).collect() };
            self.recruit_after = now.plus(self.rules.recruit_interval_ms);
            out.push(Output::Survey);
        }
    }

    /// Chooses among the backups that answered the survey. Those lost in this epoch come last: a backup with a full disk
    /// answers too, and if it were always tried first, no other would ever take its place. A backup with a member's name but
    /// other memory is a spare. A lost member that still has its memory is only noted, because a promotion may need it as it
    /// is. For a member lost after the survey began, the answer may be older than the loss and is ignored.
    pub(super) fn on_surveyed(&mut self, now: Time, found: Vec<MemberRef>, out: &mut Vec<Output>) {
        let Search::Surveying { lost } = std::mem::take(&mut self.search) else { return };
        let is_member = |found: &MemberRef| self.config.member(&found.id).is_some_and(|known| known.is_same(found));
        let (members, mut spares): (Vec<_>, Vec<_>) = found.into_iter().partition(is_member);
        members.iter().filter(|member| lost.contains(&member.id)).for_each(|member| self.on_returned(member));
        // With too few members left, a backup that refused is asked all the same: the log may have room there by now.
        let short = self.is_short();
        spares.retain(|spare| !self.is_seated(spare) && (short || !self.refusals.has(spare, now)));
        spares.sort_by_key(|spare| self.lost.iter().position(|id| *id == spare.id));
        self.fence_next(now, spares.into(), out);
    }

    /// Leaves a spare alone for a while, and tries the next.
    pub(super) fn turn_down(
        &mut self,
        now: Time,
        spare: MemberRef,
        others: VecDeque<MemberRef>,
        out: &mut Vec<Output>,
    ) {
        self.note_refusal(spare, now);
        self.fence_next(now, others, out);
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
            Err(Failure::Superseded(epoch)) if planted::has(Bug::SpareIsBelieved) => self.on_superseded(epoch, out),
            Err(Failure::Superseded(epoch)) if epoch > self.config.epoch => {
                self.search = Search::Comparing { spare: member, others };
                self.read_config(out);
            }
            Err(Failure::Superseded(_)) => self.turn_down(now, member, others, out),
            Err(Failure::ClaimedBefore(_) | Failure::Unreachable(_)) => self.fence_next(now, others, out),
        }
    }

    /// True for a member that is not lost, and for a lost one that still has its memory: a promotion may need it, so none of
    /// its copies may be dropped.
    fn is_seated(&self, reference: &MemberRef) -> bool {
        let same = |member: &Member| {
            member.reference.id == reference.id && (!member.is_lost() || member.reference.is_same(reference))
        };
        self.members.iter().flatten().any(same)
    }

    /// A spare takes a seat: it drops what is not part of the log, lends buffers from the first segment that is not fully
    /// acknowledged on, and receives everything before as closed images. No member closes that first segment until acks
    /// reach its end, so with acks stopped it could never come as an image.
    fn on_recruited(&mut self, reference: MemberRef, inventory: &Inventory, out: &mut Vec<Output>) {
        let in_set = self.config.member(&reference.id).is_some_and(|known| known.is_same(&reference));
        if in_set || self.is_seated(&reference) {
            return;
        }
        for member in self.members.iter_mut().flatten().filter(|member| member.reference.id == reference.id) {
            member.loss = Some(Loss::MemoryGone);
        }
        let mut plan = RepairPlan::new(self.closed.iter().map(|(identity, closure)| (identity, closure)), inventory);
        let missing = plan.close.iter().chain(&plan.install).map(|(identity, _)| identity.segment).collect();
        let first = self.first_unacked();
        // A copy of one of our own sealed segments stays until the image replaces it: a late drop, executed after this
        // seat was lost and taken again, could hit the image.
        let whole: Vec<SegmentIdentity> =
            self.segments.iter().map(|s| s.identity).filter(|identity| identity.segment < first).collect();
        plan.drop.retain(|copy| !whole.contains(&copy.identity));
        let unconfirmed = u8::from(self.first_readable() > Lsn(1)) + u8::from(!plan.drop.is_empty());
        let newcomer = Membership::Newcomer { missing, unconfirmed };
        let Some(seat) = self.seat(reference, newcomer, first, out) else { return };
        self.trim_to_first(seat, out);
        if !plan.drop.is_empty() {
            out.push(Output::Drop(seat, plan.drop));
        }
        out.extend(plan.close.into_iter().map(|(identity, closure)| Output::Close(seat, identity, closure)));
        self.ask_for_buffers(out);
        out.extend(
            plan.install.into_iter().map(|(identity, closure)| Output::Install(seat, identity, closure, Vec::new())),
        );
    }

    /// Trims and drops are sent one at a time, so the first ones confirmed are those that were sent first.
    pub(super) fn on_tidied(&mut self, seat: Seat) {
        if let Some(Member { membership: Membership::Newcomer { unconfirmed, .. }, .. }) = self.member_mut(seat) {
            *unconfirmed = unconfirmed.saturating_sub(1);
        }
    }

    /// A newcomer now holds a segment that was missing. After the last one the trim is sent again: the newcomer may hold a
    /// buffer that it lent earlier in this epoch for a segment trimmed while it was away, and it frees that buffer only once
    /// a later segment is closed there. Nothing else would free it.
    pub(super) fn on_segment_held(&mut self, seat: Seat, segment: SegmentId, out: &mut Vec<Output>) {
        let Some(member) = self.member_mut(seat) else { return };
        let Membership::Newcomer { missing, .. } = &mut member.membership else { return };
        let before = missing.len();
        missing.retain(|waiting| *waiting != segment);
        if before > 0 && missing.is_empty() {
            self.trim_to_first(seat, out);
        }
    }

    /// A newcomer that cannot be given a segment will never be a member, unless the segment has been trimmed since: then it is
    /// possible that no source has it any more, and none is needed.
    pub(super) fn on_install_failed(&mut self, seat: Seat, segment: SegmentId, out: &mut Vec<Output>) {
        let Some(member) = self.member_mut(seat) else { return };
        if matches!(&member.membership, Membership::Newcomer { missing, .. } if missing.contains(&segment)) {
            self.on_lost(seat, out);
        }
    }

    /// A member counts as lost if for too long it does not lend the next segment, keeps open segments from closing, or
    /// keeps acks or barriers waiting: one slow disk must not stop the group. If too few others are left, it stays.
    pub(super) fn drop_stalled_members(&mut self, now: Time, out: &mut Vec<Output>) {
        let slow = self.members_stalling_segments();
        // While nobody has room for the next segment, nobody is slow: when one lends it at last, the others have their time.
        let everybody = self.required().all(|member| member.is_lost() || slow.contains(&member.seat));
        let held_up = (self.segments.oldest(), self.segments.active_id(), everybody);
        self.segment_stall = Stall::update(self.segment_stall, held_up, now, !slow.is_empty());
        if self.segment_stall.is_some_and(|stall| self.is_too_long(stall.since, now)) {
            let wanted = self.wanted_segment();
            let refuses = |member: &&Member| slow.contains(&member.seat) && member.opened < wanted;
            let refusing: Vec<_> = self.members.iter().flatten().filter(refuses).map(|m| m.reference.clone()).collect();
            if self.count_as_lost(slow, out) {
                refusing.into_iter().for_each(|member| self.note_refusal(member, now));
            }
        }
        let slow = self.members_stalling_acks();
        self.ack_stall = Stall::update(self.ack_stall, self.acked, now, !slow.is_empty());
        if self.ack_stall.is_some_and(|stall| self.is_too_long(stall.since, now)) {
            self.count_as_lost(slow, out);
        }
        let slow = self.members_stalling_barriers(now);
        self.count_as_lost(slow, out);
    }

    /// The segment that appends need next.
    fn wanted_segment(&self) -> SegmentId {
        let active = self.segments.active_id();
        if self.is_ready() { active.next() } else { active }
    }

    fn members_stalling_segments(&self) -> Vec<Seat> {
        let oldest = self.segments.oldest();
        let wanted = self.wanted_segment();
        // If the open end is full, the next one has not been requested: then the oldest is what holds up.
        let requested = self.segments.get(wanted).is_some();
        let full = self.segments.len() == SEGMENTS_MAX;
        let holds_up = |m: &&Member| {
            let opens_late = requested && m.opened < wanted && self.is_required(m);
            let closes_late = full && m.first_opened <= oldest && m.closed < oldest;
            !m.is_lost() && (opens_late || closes_late)
        };
        self.members.iter().flatten().filter(holds_up).map(|member| member.seat).collect()
    }

    /// Members that keep acks waiting. Some do not confirm what is posted to them, while enough others have: a connection may be
    /// half dead, and heartbeats go another way. Under durability `Flushed` others have completed more than is acknowledged and
    /// have not flushed it: the disk may hang, or a bit may have flipped in the open buffer, so that no further append in it is
    /// valid.
    fn members_stalling_acks(&self) -> Vec<Seat> {
        let reached = |m: &Member| m.reached(self.rules.durability);
        let further = self.required().filter(|m| !m.is_lost() && reached(m) > self.acked).count();
        let enough = further >= usize::from(self.rules.min_in_sync.max(1));
        let flushes = self.rules.durability == Durability::Flushed;
        let holds_up = |m: &&Member| {
            let unconfirmed = enough && m.completed < m.posted && m.completed <= self.acked;
            let unflushed = flushes && self.segments.after(m.flushed).is_some_and(|(from, _)| from < m.completed);
            !m.is_lost() && (unconfirmed || unflushed) && reached(m) <= self.acked
        };
        self.required().filter(holds_up).map(|member| member.seat).collect()
    }

    /// Members that have confirmed nothing for too long, while enough others have. In an idle group only empty writes and lines
    /// of boards are in flight: no ack waits for them, but barriers do.
    fn members_stalling_barriers(&mut self, now: Time) -> Vec<Seat> {
        let mut slow = Vec::new();
        for index in 0..self.members.len() {
            let Some(member) = &self.members[index] else { continue };
            let unproved = Stall::update(member.unproved, member.last_completed, now, self.stalls_barriers(member));
            if unproved.is_some_and(|stall| self.is_too_long(stall.since, now)) {
                slow.push(member.seat);
            }
            if let Some(member) = &mut self.members[index] {
                member.unproved = unproved;
            }
        }
        slow
    }

    fn stalls_barriers(&self, member: &Member) -> bool {
        let Some(oldest) = member.in_flight.front() else { return false };
        let further = self.required().filter(|m| !m.is_lost() && m.last_completed > oldest.barrier).count();
        let enough = further >= usize::from(self.rules.min_in_sync.max(1));
        enough && !member.is_lost() && self.is_required(member)
    }

    /// A newcomer without progress for twice `open_timeout_ms` is given up: it occupies a seat that a spare could take, and
    /// under load it keeps segments open. So is one whose disk does not come to hold what every member's does.
    pub(super) fn give_up_newcomers(&mut self, now: Time, out: &mut Vec<Output>) {
        let missing = |member: &Member| match &member.membership {
            Membership::Newcomer { missing, .. } if !member.is_lost() => missing.len(),
            _ => 0,
        };
        let all_missing = self.members.iter().flatten().map(missing).sum();
        let mut stuck = Vec::new();
        for index in 0..self.members.len() {
            let Some(member) = &self.members[index] else { continue };
            let Membership::Newcomer { unconfirmed, .. } = member.membership else { continue };
            let opened = member.opened >= self.segments.active_id();
            let progress = Progress {
                opened: member.opened,
                unconfirmed,
                damaged: member.damage.count(),
                // Few images are copied at once over all newcomers, so progress of any counts. Opens do not wait for others.
                missing: if opened { all_missing } else { missing(member) },
                completed: member.completed,
                flushed: member.flushed,
            };
            let stalls = !member.is_lost() && !self.is_required(member) && self.lacks_something(member);
            let stall = Stall::update(member.stall, progress, now, stalls);
            let too_long = |stall: Stall<Progress>| now >= stall.since.plus(2 * self.rules.open_timeout_ms);
            // Its other progress says nothing of its disk: under load it never ends.
            let lacks_sync = !member.is_lost() && self.has_all_copies(member) && self.lacks_sync(member);
            let unsynced = Stall::update(member.unsynced, member.synced, now, lacks_sync);
            let too_slow = |stall: Stall<Lsn>| now >= stall.since.plus(SYNC_PATIENCE * self.rules.open_timeout_ms);
            if stall.is_some_and(too_long) || unsynced.is_some_and(too_slow) {
                let refuses = member.opened < self.segments.active_id().min(self.lent_by_members());
                stuck.push((member.seat, refuses.then(|| member.reference.clone())));
            }
            if let Some(member) = &mut self.members[index] {
                (member.stall, member.unsynced) = (stall, unsynced);
            }
        }
        for (seat, refusing) in stuck {
            self.on_lost(seat, out);
            refusing.into_iter().for_each(|member| self.note_refusal(member, now));
        }
    }

    pub(super) fn note_refusal(&mut self, member: MemberRef, now: Time) {
        self.refusals.note(member, self.rules.recruit_interval_ms, now);
    }

    fn is_too_long(&self, since: Time, now: Time) -> bool {
        now >= since.plus(self.rules.open_timeout_ms)
    }

    /// Counts them as lost if enough others are left; true if so.
    fn count_as_lost(&mut self, slow: Vec<Seat>, out: &mut Vec<Output>) -> bool {
        let left = self.required().filter(|m| !m.is_lost() && !slow.contains(&m.seat)).count();
        let enough = left >= usize::from(self.rules.min_in_sync.max(1));
        if enough {
            slow.into_iter().for_each(|seat| self.on_lost(seat, out));
        }
        enough
    }
}

/// The search for a spare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Search {
    /// No search is under way.
    #[default]
    Idle,
    /// All backups are being surveyed.
    Surveying {
        /// Members that were lost before the survey began.
        lost: Vec<MemberId>,
    },
    /// One backup is being fenced.
    Fencing {
        /// The spare.
        spare: MemberRef,
        /// The spares to try next, in order.
        others: VecDeque<MemberRef>,
    },
    /// One backup says that it has promised a later epoch, and the config store is being read.
    Comparing {
        /// The spare.
        spare: MemberRef,
        /// The spares to try next, in order.
        others: VecDeque<MemberRef>,
    },
}
