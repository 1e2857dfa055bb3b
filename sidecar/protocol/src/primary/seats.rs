//! Members as the append path sees them: a fixed number of seats, each with its own place in the log.
//!
//! Held by [`Primary`].

use std::collections::VecDeque;
use std::ops::Range;

use crate::config::{Durability, MemberRef, Time};
use crate::ids::{Offset, Position, SegmentId};
use crate::planted::{self, Bug};

use super::mending::Damage;
use super::{INFLIGHT_MAX, Output, Primary, SEGMENTS_MAX};

/// A member's place on the append path. A seat that is taken again has another tenancy, so that late answers meant for
/// the one who sat there before are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seat {
    /// Index into the path's arrays, below `MEMBERS_MAX`.
    pub index: u8,
    /// Grows with every new occupant of any seat.
    pub tenancy: u32,
}

/// Counts the posts to all seats together, so that "after this moment" means the same for each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Post(pub(super) u64);

/// What a member is to the set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// In the set: acks need it.
    InSet,
    /// Being caught up; counts for nothing until it is swapped in.
    Newcomer {
        /// Closed segments that it does not hold yet.
        repairs: Vec<SegmentId>,
        /// Trims and drops that it was sent when it took its seat and has not confirmed: until it knows of a trimmed
        /// beginning, and has let go of what is no part of the log, nobody could recover from it alone.
        chores: u8,
    },
}

/// What is known of a lost member of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fate {
    /// It has not answered since.
    Silent,
    /// It answers, with the memory it had: a promotion can count on it.
    Returned,
    /// Its name answers with other memory: nobody will ever see again what it held.
    Gone,
}

/// How far a newcomer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Progress {
    pub(super) opened: SegmentId,
    pub(super) chores: u8,
    pub(super) damaged: usize,
    pub(super) repairs: usize,
    pub(super) completed: Position,
    pub(super) flushed: Position,
}

/// Since when somebody has been slow and what they hold up has not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stall<At> {
    pub(super) since: Time,
    at: At,
}

impl<At: PartialEq> Stall<At> {
    pub(super) fn follow(known: Option<Stall<At>>, at: At, now: Time, stalls: bool) -> Option<Stall<At>> {
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
    /// The segment whose buffer it goes to. An empty write goes to the active one, whatever `end` says.
    segment: SegmentId,
}

/// One member, in the set or on its way into it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Member {
    pub(super) seat: Seat,
    pub(super) reference: MemberRef,
    pub(super) standing: Standing,
    /// Failed; nothing more is posted. If it is in the set, acks stop until it is swapped out.
    pub(super) lost: bool,
    /// What is known of it since it was lost.
    pub(super) fate: Fate,
    /// First segment that it is asked to lend in this epoch.
    pub(super) first_opened: SegmentId,
    /// It has lent every segment from `first_opened` up to here; the one before `first_opened` before the first.
    pub(super) opened: SegmentId,
    /// Segments that it has lent ahead of one still asked for.
    pub(super) opened_early: Vec<SegmentId>,
    pub(super) posted: Position,
    pub(super) completed: Position,
    pub(super) flushed: Position,
    /// The flush on its way: from where, and up to where.
    pub(super) flushing: Option<Range<Position>>,
    /// The last flush brought nothing new: asking again for no more than this waits for the next tick.
    pub(super) fruitless: Position,
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
    /// Of a newcomer: since when it has got no further.
    pub(super) stall: Option<Stall<Progress>>,
    /// What has rotted there.
    pub(super) damage: Damage,
}

impl Member {
    pub(super) fn has_room(&self) -> bool {
        self.in_flight.len() < INFLIGHT_MAX
    }

    pub(super) fn post(&mut self, end: Position, number: Post, segment: SegmentId) {
        (self.posted, self.last_posted) = (end, number);
        self.in_flight.push_back(Posted { end, number, segment });
    }

    /// True when nothing is on its way to this segment's buffer: a write that meets a buffer that is no longer lent fails
    /// its channel.
    pub(super) fn has_written(&self, segment: SegmentId) -> bool {
        self.in_flight.iter().all(|posted| posted.segment != segment)
    }

    /// How far it has what an ack promises.
    pub(super) fn reached(&self, durability: Durability) -> Position {
        match durability {
            Durability::Flushed => self.flushed.min(self.completed),
            Durability::Memory | Durability::Battery => self.completed,
        }
    }

    pub(super) fn complete(&mut self, count: u32) {
        for _ in 0..count {
            let oldest = self.in_flight.pop_front().expect("only what was posted completes");
            (self.completed, self.last_completed) = (oldest.end, oldest.number);
        }
    }
}

impl Primary {
    /// Gives a member a free seat and connects it. It is to lend every segment from `first` on.
    pub(super) fn seat(
        &mut self,
        reference: MemberRef,
        standing: Standing,
        first: SegmentId,
        out: &mut Vec<Output>,
    ) -> Option<Seat> {
        let index = self.members.iter().position(Option::is_none)?;
        self.tenancies += 1;
        let seat = Seat { index: index as u8, tenancy: self.tenancies };
        let start = Position::new(first, Offset(0));
        let before = SegmentId(first.0 - 1);
        self.members[index] = Some(Member {
            seat,
            reference: reference.clone(),
            standing,
            lost: false,
            fate: Fate::Silent,
            first_opened: first,
            opened: before,
            opened_early: Vec::with_capacity(SEGMENTS_MAX),
            posted: start,
            completed: start,
            flushed: start,
            flushing: None,
            fruitless: Position::default(),
            closing: before,
            closed: before,
            in_flight: VecDeque::with_capacity(INFLIGHT_MAX),
            last_posted: Post::default(),
            last_completed: Post::default(),
            stall: None,
            damage: Damage::default(),
        });
        out.push(Output::Connect(seat, reference));
        Some(seat)
    }

    /// The member in this seat, if it is still the same one.
    pub(super) fn member_mut(&mut self, seat: Seat) -> Option<&mut Member> {
        self.members.get_mut(usize::from(seat.index))?.as_mut().filter(|member| member.seat == seat && !member.lost)
    }

    /// Seats of all members that are not lost.
    pub(super) fn seats(&self) -> impl Iterator<Item = Seat> {
        self.members.iter().flatten().filter(|member| !member.lost).map(|member| member.seat)
    }

    /// Everyone whose completion an ack needs: the set and, while a swap is in flight, also the proposed set (S7).
    pub(super) fn required(&self) -> impl Iterator<Item = &Member> {
        let old_set_only = planted::has(Bug::AckOldSetOnly);
        let counts = move |member: &&Member| !old_set_only || member.standing == Standing::InSet;
        self.members.iter().flatten().filter(|member| self.is_required(member)).filter(counts)
    }

    pub(super) fn is_required(&self, member: &Member) -> bool {
        let proposed = self.swap.as_ref().is_some_and(|swap| swap.proposed.members.contains(&member.reference));
        member.standing == Standing::InSet || proposed
    }

    /// Everyone the path knows: name, whether in the set, whether lost, how far completed. For status.
    pub fn roster(&self) -> impl Iterator<Item = (&MemberRef, &Standing, bool, Position)> {
        self.members.iter().flatten().map(|m| (&m.reference, &m.standing, m.lost, m.completed))
    }
}
