//! Members as the append path sees them: a fixed number of seats, each with its own place in the log.
//!
//! Held by [`Primary`].

use std::collections::VecDeque;
use std::ops::Range;

use crate::config::{Durability, MemberRef, Time};
use crate::ids::{Lsn, Offset, Position, SegmentId};
use crate::planted::{self, Bug};

use super::board::{MemberBoard, NO_SEGMENT};
use super::repair::Damage;
use super::{INFLIGHT_MAX, LINES_MAX, Output, Primary, SEGMENTS_MAX};

/// A member's place on the append path. Each new occupant has another tenancy, so that late answers meant for an earlier
/// one are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seat {
    /// Index into the path's arrays, below `MEMBERS_MAX`.
    pub index: u8,
    /// Grows with every new occupant of any seat.
    pub tenancy: u32,
}

/// Numbers the posts to all seats in one sequence, so that "after this post" means the same at each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Post(pub(super) u64);

/// Whether a member is in the set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Membership {
    /// In the set: acks need it.
    InSet,
    /// Catching up; not counted for acks until it is swapped in.
    Newcomer {
        /// Closed segments that it does not hold yet.
        missing: Vec<SegmentId>,
        /// Trims and drops that are not confirmed: those that were sent when it took its seat, and trims of what it lacked. Until
        /// it knows where the log begins and has dropped what is not part of it, the log cannot be recovered from this member
        /// alone.
        unconfirmed: u8,
    },
}

/// What is known of a lost member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Loss {
    /// It has not answered since.
    Silent,
    /// It answers, with the memory that it had: a promotion can count on it.
    Returned,
    /// A backup of its name answers with other memory: what this member held is gone for good.
    MemoryGone,
}

/// How far a newcomer has caught up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Progress {
    pub(super) opened: SegmentId,
    pub(super) unconfirmed: u8,
    pub(super) damaged: usize,
    pub(super) missing: usize,
    pub(super) completed: Position,
    pub(super) flushed: Position,
}

/// Since when members have been slow and what they hold up has not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stall<At> {
    pub(super) since: Time,
    at: At,
}

impl<At: PartialEq> Stall<At> {
    pub(super) fn update(known: Option<Stall<At>>, at: At, now: Time, stalls: bool) -> Option<Stall<At>> {
        if !stalls {
            return None;
        }
        known.filter(|known| known.at == at).or(Some(Stall { since: now, at }))
    }
}

/// A post in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Posted {
    /// The member has everything up to here once it completes.
    end: Position,
    number: Post,
    /// A member that has completed a post after this one has confirmed as much as this post will.
    pub(super) barrier: Post,
    /// The segment whose buffer it goes to. An empty write goes to the active one, regardless of `end`.
    segment: SegmentId,
}

/// One member, in the set or on its way into it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Member {
    pub(super) seat: Seat,
    pub(super) reference: MemberRef,
    pub(super) membership: Membership,
    /// Set once it has failed; nothing more is posted then. If it is in the set, acks stop until it is swapped out.
    pub(super) loss: Option<Loss>,
    /// First segment for which it lends a buffer in this epoch.
    pub(super) first_opened: SegmentId,
    /// Last segment for which it was asked to lend one. Initially as `opened`.
    pub(super) asked: SegmentId,
    /// It has lent buffers for all segments from `first_opened` to this one. Initially the segment before `first_opened`.
    pub(super) opened: SegmentId,
    /// Segments beyond `opened` that it has lent out of order.
    pub(super) opened_early: Vec<SegmentId>,
    pub(super) posted: Position,
    pub(super) completed: Position,
    pub(super) flushed: Position,
    /// The range of the flush in flight.
    pub(super) flushing: Option<Range<Position>>,
    /// Where the last flush ended if it brought nothing new: a flush up to here is not repeated before the next tick.
    pub(super) flush_stalled_at: Position,
    /// Its disk holds the log up to this record, and it has promised so.
    pub(super) synced: Lsn,
    /// A sync is under way.
    pub(super) syncing: bool,
    /// Last segment for which a close was sent.
    pub(super) closing: SegmentId,
    /// Last segment that it has closed.
    pub(super) closed: SegmentId,
    /// The posts in flight, oldest first. Never grows beyond [`INFLIGHT_MAX`].
    pub(super) in_flight: VecDeque<Posted>,
    /// Its latest post.
    pub(super) last_posted: Post,
    /// Its latest post that has completed.
    pub(super) last_completed: Post,
    /// Since when it has confirmed nothing while enough others have, and its latest post that has completed.
    pub(super) unproved: Option<Stall<Post>>,
    /// For a newcomer: since when it has made no progress.
    pub(super) stall: Option<Stall<Progress>>,
    /// Since when a newcomer has lacked a sync alone, and up to where it had synced.
    pub(super) unsynced: Option<Stall<Lsn>>,
    /// Its missing and corrupt copies.
    pub(super) damage: Damage,
    pub(super) board: MemberBoard,
    /// Readers look at its board.
    pub(super) followed: bool,
}

impl Member {
    pub(super) fn in_set(&self) -> bool {
        self.membership == Membership::InSet
    }

    pub(super) fn is_lost(&self) -> bool {
        self.loss.is_some()
    }

    /// True if there is room for one post that is no line of its board.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight.len() + LINES_MAX < INFLIGHT_MAX
    }

    pub(super) fn has_room_for_lines(&self) -> bool {
        self.in_flight.len() + LINES_MAX <= INFLIGHT_MAX
    }

    pub(super) fn post(&mut self, end: Position, barrier: Post, number: Post, segment: SegmentId) {
        (self.posted, self.last_posted) = (end, number);
        self.in_flight.push_back(Posted { end, number, barrier, segment });
    }

    /// True when no write to this segment's buffer is in flight: a write to a buffer that is no longer lent breaks the
    /// channel.
    pub(super) fn has_written(&self, segment: SegmentId) -> bool {
        self.in_flight.iter().all(|posted| posted.segment != segment)
    }

    /// The position up to which it holds the log as durably as an ack promises.
    pub(super) fn reached(&self, durability: Durability) -> Position {
        match durability {
            Durability::Flushed => self.flushed.min(self.completed),
            Durability::Memory | Durability::Battery => self.completed,
        }
    }

    /// Returns how many of them were no lines of its board.
    pub(super) fn complete(&mut self, count: u32) -> u32 {
        let mut others = 0;
        for _ in 0..count {
            let oldest = self.in_flight.pop_front().expect("only what was posted completes");
            (self.completed, self.last_completed) = (oldest.end, oldest.number);
            others += u32::from(oldest.segment != NO_SEGMENT);
        }
        others
    }
}

impl Primary {
    /// Gives a member a free seat and connects it. It will lend buffers for all segments from `first` on.
    pub(super) fn seat(
        &mut self,
        reference: MemberRef,
        membership: Membership,
        first: SegmentId,
        out: &mut Vec<Output>,
    ) -> Option<Seat> {
        let index = self.members.iter().position(Option::is_none)?;
        self.tenancies += 1;
        let seat = Seat { index: index as u8, tenancy: self.tenancies };
        let start = Position::new(first, Offset(0));
        // Members of the set have synced what the log's last recovery found synced; see `Reference::synced`.
        let synced = if membership == Membership::InSet { self.synced() } else { Lsn(0) };
        let before = SegmentId(first.0 - 1);
        self.members[index] = Some(Member {
            seat,
            reference: reference.clone(),
            membership,
            loss: None,
            first_opened: first,
            asked: before,
            opened: before,
            opened_early: Vec::with_capacity(SEGMENTS_MAX),
            posted: start,
            completed: start,
            flushed: start,
            flushing: None,
            flush_stalled_at: Position::default(),
            synced,
            syncing: false,
            closing: before,
            closed: before,
            in_flight: VecDeque::with_capacity(INFLIGHT_MAX),
            last_posted: Post::default(),
            last_completed: Post::default(),
            unproved: None,
            stall: None,
            unsynced: None,
            damage: Damage::default(),
            board: MemberBoard::None,
            followed: false,
        });
        out.push(Output::Connect(seat, reference));
        Some(seat)
    }

    /// The member in this seat, if it is still the same one.
    pub(super) fn member_mut(&mut self, seat: Seat) -> Option<&mut Member> {
        self.members
            .get_mut(usize::from(seat.index))?
            .as_mut()
            .filter(|member| member.seat == seat && !member.is_lost())
    }

    /// Seats of all members that are not lost.
    pub(super) fn seats(&self) -> impl Iterator<Item = Seat> {
        self.members.iter().flatten().filter(|member| !member.is_lost()).map(|member| member.seat)
    }

    /// Seats of the members in the set that are not lost.
    pub fn seats_in_set(&self) -> impl Iterator<Item = Seat> {
        let in_set = self.members.iter().flatten().filter(|member| member.in_set() && !member.is_lost());
        in_set.map(|member| member.seat)
    }

    /// The members whose completion an ack needs: the set and, while a swap is in flight, also the proposed set (S7).
    pub(super) fn required(&self) -> impl Iterator<Item = &Member> {
        let old_set_only = planted::has(Bug::AckOldSetOnly);
        let counts = move |member: &&Member| !old_set_only || member.in_set();
        self.members.iter().flatten().filter(|member| self.is_required(member)).filter(counts)
    }

    pub(super) fn is_required(&self, member: &Member) -> bool {
        let proposed = self.swap.as_ref().is_some_and(|swap| swap.proposed.members.contains(&member.reference));
        member.in_set() || proposed
    }

    /// All members and newcomers: name, whether in the set, whether lost, how far completed. For status.
    pub fn roster(&self) -> impl Iterator<Item = (&MemberRef, &Membership, bool, Position)> {
        self.members.iter().flatten().map(|m| (&m.reference, &m.membership, m.is_lost(), m.completed))
    }
}
