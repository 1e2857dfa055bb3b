//! Syncs: everything that was appended before a request is on disk at every member, and each has promised so.
//!
//! Part of [`Primary`]: the append path asks with [`Primary::sync`] and waits for [`Primary::synced`]. One round is under way
//! at a time; requests that arrive during a round share the next one. See "Sync" in `docs/protocol.md`.

use crate::config::Time;
use crate::ids::{Lsn, Position};
use crate::planted::{self, Bug};
use crate::rpc::{OpenPart, SyncPoint};

use super::membership::SYNC_PATIENCE;
use super::seats::Member;
use super::{Output, Primary, Seat};

/// Where everything before is to be on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Target {
    /// The end of an append, or the beginning of a segment.
    at: Position,
    /// The last record before it.
    last: Lsn,
}

/// What members are asked for together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Round {
    target: Target,
    /// The first tick in it.
    since: Option<Time>,
    /// It has taken too long.
    is_late: bool,
}

/// The rounds. Positions only grow: `reached ≤ round ≤ wanted`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Syncing {
    /// On disk at every member. Newcomers reach it before they join.
    reached: Target,
    /// What members are asked for now.
    round: Option<Round>,
    /// What the next round is for: the latest request.
    wanted: Option<Target>,
}

impl Syncing {
    /// At the beginning of an epoch all members have synced `last`, and the epoch's first segment begins at `start`.
    pub(super) fn new(start: Position, last: Lsn) -> Syncing {
        Syncing { reached: Target { at: start, last }, round: None, wanted: None }
    }
}

impl Primary {
    /// Everything before this end of an append, whose last record is `last`, is to be on disk at every member.
    pub fn sync(&mut self, end: Position, last: Lsn) {
        self.syncing.wanted = self.syncing.wanted.max(Some(Target { at: end, last }));
    }

    /// Every record up to this one is on disk at every member that acks need, and each of them has promised
    /// so.
    pub fn synced(&self) -> Lsn {
        self.syncing.reached.last
    }

    /// Begins and ends rounds, and asks the members that have to sync.
    pub(super) fn sync_members(&mut self, out: &mut Vec<Output>) {
        let Syncing { reached, round, wanted } = &self.syncing;
        // Nobody has ever asked for one.
        if round.is_none() && wanted.is_none() && reached.last == Lsn(0) {
            return;
        }
        loop {
            if self.syncing.round.is_none() {
                let next = self.syncing.wanted.take_if(|wanted| wanted.at <= self.acked);
                self.syncing.round = next.map(|target| Round { target, since: None, is_late: false });
            }
            let Some(Round { target, .. }) = self.syncing.round else { break };
            if !self.required().all(|member| member.synced >= target.last) {
                break;
            }
            (self.syncing.reached, self.syncing.round) = (target, None);
        }
        for index in 0..self.members.len() {
            let Some(member) = &self.members[index] else { continue };
            let due = self.sync_due(member).filter(|_| !member.is_lost() && !member.syncing);
            if let (Some(target), Some(member)) = (due, &mut self.members[index]) {
                member.syncing = true;
                let seat = member.seat;
                out.push(Output::Sync(seat, self.sync_point(target)));
            }
        }
    }

    /// What a member has to sync up to and has not.
    fn sync_due(&self, member: &Member) -> Option<Target> {
        let target = match self.syncing.round {
            Some(round) if self.is_required(member) => round.target,
            _ => self.syncing.reached,
        };
        let written = member.completed >= target.at || member.first_opened > target.at.segment;
        let ready = member.in_set() || self.has_all_copies(member) && written;
        (ready && member.synced < target.last).then_some(target)
    }

    /// Notes how long the round has taken.
    pub(super) fn time_round(&mut self, now: Time) {
        if let Some(round) = &mut self.syncing.round {
            let since = *round.since.get_or_insert(now);
            round.is_late = now >= since.plus(SYNC_PATIENCE * self.rules.open_timeout_ms);
        }
    }

    /// True when a sync of the segment that takes appends has taken too long: it is to be sealed. In a member's memory a bit of it
    /// may have flipped, and the member can bring nothing behind that bit to its disk. Once the segment is closed it is
    /// repaired, but if nobody appends anything it would never be closed.
    pub fn sync_needs_close(&self) -> bool {
        let active = self.segments.active_id();
        self.syncing.round.is_some_and(|round| round.is_late && round.target.at.segment == active)
    }

    /// True for a newcomer whose disk does not hold yet what every member's does.
    pub(super) fn lacks_sync(&self, newcomer: &Member) -> bool {
        newcomer.synced < self.syncing.reached.last && !planted::has(Bug::NewcomerUnsynced)
    }

    fn sync_point(&self, target: Target) -> SyncPoint {
        let Target { at, last } = target;
        match self.segments.get(at.segment) {
            Some(segment) => {
                let open = OpenPart { identity: segment.identity, end: at.offset };
                SyncPoint { before: at.segment, open: Some(open).filter(|open| open.end.0 > 0), last }
            }
            // Closed everywhere since.
            None => SyncPoint { before: at.segment.next(), open: None, last },
        }
    }

    pub(super) fn on_synced(&mut self, seat: Seat, last: Lsn) {
        if let Some(member) = self.member_mut(seat) {
            member.syncing = false;
            member.synced = member.synced.max(last);
        }
    }
}
