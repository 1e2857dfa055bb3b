//! The open end of the log: segments not yet closed at every member, including the active one and the one opened ahead.
//!
//! Held by [`Primary`].

use std::collections::VecDeque;

use crate::board::{BoardIdentity, Progress};
use crate::config::{Configuration, Durability};
use crate::ids::{Epoch, Generation, LogId, Lsn, Offset, Position, SegmentId, Version};
use crate::layout::{Closure, SegmentIdentity, SegmentSize};
use crate::planted::{self, Bug};
use crate::recovery::Reference;

use super::board::Board;
use super::seats::Member;
use super::{Membership, Output, Primary, Rules, SEGMENTS_MAX, Seat};

/// One segment of the open end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Segment {
    pub(super) identity: SegmentIdentity,
    /// Bytes placed so far.
    end: Offset,
    /// Where it ends, once sealed.
    pub(super) closure: Option<Closure>,
}

/// The open end of the log, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Segments {
    log: LogId,
    epoch: Epoch,
    size: SegmentSize,
    first_lsn: Lsn,
    open: VecDeque<Segment>,
    /// The segment being appended to, once its buffers are lent.
    active: SegmentId,
    next: SegmentId,
    random: u64,
}

impl Segments {
    pub(super) fn new(config: &Configuration, rules: &Rules, reference: &Reference, seed: u64) -> Segments {
        let last = reference.last_segment();
        Segments {
            log: config.log,
            epoch: config.epoch,
            size: rules.segment_size,
            first_lsn: reference.last().next(),
            open: VecDeque::with_capacity(SEGMENTS_MAX),
            active: last.next(),
            next: last.next(),
            random: seed,
        }
    }

    /// Before the first byte of this epoch.
    pub(super) fn start(&self) -> Position {
        Position::new(self.active, Offset(0))
    }

    /// The boards of this epoch, before anything is posted to them.
    pub(super) fn board(&self, reference: &Reference, start: Position, version: Version) -> Board {
        // Beside the sequence of the segments' generations.
        let generation = Generation(split_mix(&mut !self.random));
        let identity = BoardIdentity { log: self.log, epoch: self.epoch, generation, segment_size: self.size };
        let first = reference.segments.first().map_or(self.first_lsn, |segment| segment.closure.first);
        Board::new(identity, Progress { beat: 0, acked: reference.last(), end: start, first, version })
    }

    pub(super) fn first_lsn(&self) -> Lsn {
        self.first_lsn
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.open.iter()
    }

    pub(super) fn get(&self, segment: SegmentId) -> Option<&Segment> {
        let front = self.open.front()?.identity.segment;
        self.open.get(usize::try_from(segment.0.checked_sub(front.0)?).ok()?)
    }

    fn get_mut(&mut self, segment: SegmentId) -> Option<&mut Segment> {
        let front = self.open.front()?.identity.segment;
        self.open.get_mut(usize::try_from(segment.0.checked_sub(front.0)?).ok()?)
    }

    /// Adds one more segment at the end.
    pub(super) fn push(&mut self) -> SegmentIdentity {
        let identity = SegmentIdentity {
            log: self.log,
            segment: self.next,
            epoch: self.epoch,
            generation: Generation(split_mix(&mut self.random)),
            size: self.size,
        };
        self.next = self.next.next();
        self.open.push_back(Segment { identity, end: Offset(0), closure: None });
        identity
    }

    pub(super) fn active(&self) -> Option<SegmentIdentity> {
        self.get(self.active).map(|segment| segment.identity)
    }

    pub(super) fn active_id(&self) -> SegmentId {
        self.active
    }

    pub(super) fn appended(&mut self, end: Offset) {
        let active = self.active;
        let segment = self.get_mut(active).expect("appends go to an open segment");
        assert!(end >= segment.end && end.0 <= segment.identity.size.bytes());
        segment.end = end;
    }

    pub(super) fn roll(&mut self, closure: Closure) -> SegmentIdentity {
        let active = self.active;
        let segment = self.get_mut(active).expect("the active segment is open");
        assert_eq!(segment.end, closure.end, "a segment is sealed where its last append ended");
        segment.closure = Some(closure);
        self.active = active.next();
        self.get(self.active).expect("the next segment was opened ahead").identity
    }

    /// The position of the next byte after `at`, and the end of its segment. After a sealed segment comes the next one's
    /// start.
    pub(super) fn after(&self, at: Position) -> Option<(Position, Offset)> {
        let here = self.get(at.segment);
        let at = match here {
            Some(segment) if segment.closure.is_none() || at.offset < segment.end => at,
            // At the end of a sealed segment, or in one that is closed everywhere and forgotten.
            _ => Position::new(at.segment.next(), Offset(0)),
        };
        self.get(at.segment).map(|segment| (at, segment.end))
    }

    /// The oldest open segment.
    pub(super) fn oldest(&self) -> SegmentId {
        self.open.front().map_or(self.active, |segment| segment.identity.segment)
    }

    pub(super) fn appended_position(&self) -> Position {
        let end = self.get(self.active).map_or(Offset(0), |segment| segment.end);
        Position::new(self.active, end)
    }

    pub(super) fn start_of_unclosed(&self) -> Position {
        Position::new(self.oldest(), Offset(0))
    }

    /// Takes the oldest segment out, if it is sealed.
    pub(super) fn pop_sealed(&mut self) -> Option<(SegmentIdentity, Closure)> {
        let closure = self.open.front()?.closure?;
        self.open.pop_front().map(|segment| (segment.identity, closure))
    }
}

impl Primary {
    /// Opens buffers until there is an active segment and one ahead.
    pub(super) fn open_ahead(&mut self, out: &mut Vec<Output>) {
        while self.segments.next <= self.segments.active_id().next() && self.segments.len() < SEGMENTS_MAX {
            let identity = self.segments.push();
            out.push(Output::Prepare(identity));
        }
        self.ask_for_buffers(out);
    }

    /// Asks members for buffers for all open segments, and newcomers for those that the members have lent. A newcomer whose
    /// folder is still empty could lend more than members that have no room: they would be dropped from the set for it.
    pub(super) fn ask_for_buffers(&mut self, out: &mut Vec<Output>) {
        let next = self.segments.next;
        let is_behind = |member: &&Member| !member.is_lost() && member.asked.next() < next;
        if !self.members.iter().flatten().any(|member| is_behind(&member)) {
            return;
        }
        let lent = self.lent_by_members();
        for index in 0..self.members.len() {
            let Some(member) = self.members[index].as_ref().filter(is_behind) else { continue };
            let (seat, asked, required) = (member.seat, member.asked, self.is_required(member));
            let open = self.segments.iter().map(|segment| segment.identity).filter(|identity| identity.segment > asked);
            let due: Vec<_> = open.filter(|identity| required || identity.segment <= lent).collect();
            if let (Some(last), Some(member)) = (due.last(), &mut self.members[index]) {
                member.asked = last.segment;
            }
            out.extend(due.into_iter().map(|identity| Output::Open(seat, identity)));
        }
    }

    /// The last segment for which every required member that is not lost has lent a buffer.
    pub(super) fn lent_by_members(&self) -> SegmentId {
        let lent = self.required().filter(|member| !member.is_lost()).map(|member| member.opened).min();
        lent.unwrap_or(self.segments.active_id())
    }

    /// The first segment that is not fully acknowledged. No close has been sent for it yet.
    pub(super) fn first_unacked(&self) -> SegmentId {
        let whole = |segment: &&Segment| {
            let end = segment.closure.map(|closure| Position::new(segment.identity.segment, closure.end));
            end.is_some_and(|end| end <= self.acked)
        };
        let first = self.segments.iter().find(|segment| !whole(segment));
        first.map_or(self.segments.active_id(), |segment| segment.identity.segment)
    }

    /// True when every required member has lent the segment after the active one.
    pub(super) fn next_is_ready(&self) -> bool {
        let next = self.segments.active_id().next();
        self.segments.get(next).is_some() && self.required().all(|member| member.opened >= next)
    }

    /// True when every required member has lent the active segment: appends may begin.
    pub fn is_ready(&self) -> bool {
        let active = self.segments.active_id();
        !self.over && self.segments.active().is_some() && self.required().all(|member| member.opened >= active)
    }

    /// Buffers may be lent out of order; `opened` advances only without a gap.
    pub(super) fn on_opened(&mut self, seat: Seat, segment: SegmentId) {
        let known = self.segments.get(segment).is_some();
        let Some(member) = self.member_mut(seat).filter(|_| known) else { return };
        if segment > member.opened && !member.opened_early.contains(&segment) {
            member.opened_early.push(segment);
        }
        while let Some(at) = member.opened_early.iter().position(|early| *early == member.opened.next()) {
            member.opened = member.opened_early.swap_remove(at);
        }
    }

    /// Sends closes for sealed segments that are fully acknowledged.
    pub(super) fn close_acked_segments(&mut self, out: &mut Vec<Output>) {
        for segment in self.segments.iter() {
            let Some(closure) = segment.closure else { break };
            let id = segment.identity.segment;
            let whole = Position::new(id, closure.end);
            if self.acked < whole {
                break;
            }
            for member in self.members.iter_mut().flatten() {
                // Under `Flushed` it must be on the member's disk: once the segment is forgotten, it is not flushed again.
                let reached = match planted::has(Bug::NewcomerUnflushed) {
                    false => member.reached(self.rules.durability),
                    true => member.completed,
                };
                let written = reached >= whole || planted::has(Bug::ClosedWhileWritten);
                let has_it = member.opened >= id && written && member.first_opened <= id;
                let has_it = has_it && member.has_written(id);
                if has_it && !member.is_lost() && member.closing < id {
                    member.closing = id;
                    out.push(Output::Close(member.seat, segment.identity, closure));
                }
            }
        }
    }

    pub(super) fn on_closed(&mut self, seat: Seat, segment: SegmentId, out: &mut Vec<Output>) {
        let Some(member) = self.member_mut(seat) else { return };
        member.closed = member.closed.max(segment);
        self.on_segment_held(seat, segment, out);
        self.forget_closed_segments(out);
    }

    pub(super) fn forget_closed_segments(&mut self, out: &mut Vec<Output>) {
        loop {
            let id = self.segments.oldest();
            let waits = |member: &Member| !member.is_lost() && member.first_opened <= id && member.closed < id;
            if self.members.iter().flatten().any(waits) {
                return;
            }
            // With every member lost there is nothing to wait for, but no member has the segment either.
            let whole = self.segments.get(id).and_then(|segment| segment.closure).map(|closure| closure.end);
            if whole.is_none_or(|end| self.acked < Position::new(id, end)) {
                return;
            }
            let Some((identity, closure)) = self.segments.pop_sealed() else { return };
            self.closed.push_back((identity, closure));
            out.push(Output::Forget(id, closure));
            // A newcomer that lends no buffer for this segment needs it as a closed image.
            for member in self.members.iter_mut().flatten().filter(|member| member.first_opened > id) {
                if let Membership::Newcomer { missing, .. } = &mut member.membership {
                    missing.push(id);
                    out.push(Output::Install(member.seat, identity, closure, Vec::new()));
                }
            }
            self.open_ahead(out);
        }
    }

    /// Under durability `Flushed`: one flush in flight per member, always up to the last completion. The member's processor
    /// may see less than that; the rest is requested again.
    pub(super) fn flush_completed(&mut self, out: &mut Vec<Output>) {
        if self.rules.durability != Durability::Flushed {
            return;
        }
        for member in self.members.iter_mut().flatten().filter(|member| !member.is_lost() && member.flushing.is_none())
        {
            let Some((from, end)) = self.segments.after(member.flushed) else { continue };
            let until = if member.completed.segment == from.segment { member.completed.offset } else { end };
            let to = Position::new(from.segment, until);
            if let Some(segment) = self.segments.get(from.segment)
                && from < to
                && to <= member.completed
                && to > member.flush_stalled_at
            {
                member.flushing = Some(from..to);
                out.push(Output::Flush(member.seat, segment.identity, until));
            }
        }
    }

    pub(super) fn on_flushed(&mut self, seat: Seat, position: Position) {
        if let Some(member) = self.member_mut(seat) {
            if let Some(range) = member.flushing.take().filter(|range| position <= range.start) {
                member.flush_stalled_at = range.end;
            }
            member.flushed = member.flushed.max(position);
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): spreads one random seed over the generations of an epoch.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
