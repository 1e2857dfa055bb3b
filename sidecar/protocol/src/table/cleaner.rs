//! The cleaner: which closed segments of a table are emptied of live records, and when they are trimmed.
//!
//! One for each term of a primary, driven by its sidecar's control (and by a model). It hands out what is to be fetched, moved and
//! trimmed; the append path judges each candidate and appends what is live
//! ([`Index::stage_moves`](super::index::Index::stage_moves)). See "Tables" in `docs/protocol.md`.
//!
//! ```text
//! Idle ──the oldest closed segment is due──▶ Fetching ──▶ Moving, batch by batch
//!   ──all judged──▶ the segment settles, and Idle or Fetching continues:
//!        all that was appended by then is on disk at every member, and published at every mirror ──GRACE──▶ Trim
//!        (without mirrors there is nobody to wait for, and no GRACE)
//! ```
//!
//! Why the trim loses nothing (S18): a record in the segment was moved, and the move is acknowledged, or it was not its key's
//! last one. Then what replaced it, or deleted its key, was appended before it was judged, and *that* is acknowledged: to wait
//! for the moves alone would be too little. A later primary would not have the delete, and no longer the record. And all of it
//! is on the members' disks, in any durability: a trim takes the record from there too, and a log that is recovered from disk
//! would have neither place.

use std::collections::VecDeque;

use crate::config::Time;
use crate::ids::{Lsn, SegmentId};
use crate::planted::{self, Bug};

use super::bounds::Bounds;

/// How long what no mirror names any more stays readable: a getter has found the record's entry and is about to read the record,
/// for 200 ms at most. The rest is for posting and landing of what the mirror was told.
pub const GRACE_MS: u64 = 500;
/// Pause before a segment is fetched again that no member could give.
pub const FETCH_AGAIN_MS: u64 = 1000;
/// Segments that a cleaner has in memory: the one whose records are moved, and the next.
pub const FETCHED_MAX: usize = 2;

/// A closed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentRecords {
    /// Which.
    pub segment: SegmentId,
    /// Its first record; the one after `last` if there is none.
    pub first: Lsn,
    /// Its last record.
    pub last: Lsn,
}

/// How far the table is; each may be told at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// Everything up to this record is acknowledged, and on disk at every member.
    pub synced: Lsn,
    /// Every mirror that is written to, filled or filling, shows what is acknowledged up to this record. `None`: there is none.
    pub published: Option<Lsn>,
    /// Bytes of live records, by the appended view.
    pub live_bytes: u64,
}

/// What happens to a cleaner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The next segment is closed at every member.
    Closed(SegmentRecords),
    /// How far the table is now.
    Progress(Progress),
    /// Answer to [`Output::Fetch`]: it is here, verified against its closure, and all of its records are keyed.
    Fetched(SegmentId),
    /// Answer to [`Output::Fetch`]: no member could give it.
    NotFetched(SegmentId),
    /// Answer to [`Output::Fetch`]: it has a record that is not keyed. It stays, and so does all behind it.
    Unkeyed(SegmentId),
    /// Answer to [`Output::Move`]: the append path has judged the segment's records up to the one before `next`.
    Moved {
        /// The segment.
        segment: SegmentId,
        /// The first record that is not judged; behind the last one if all are.
        next: Lsn,
        /// How many were appended again.
        moved: u32,
        /// The last record of the log when they were judged, moves included.
        appended: Lsn,
    },
    /// Time passes; expected every few milliseconds.
    Tick,
}

/// What a cleaner wants done. The first two have one answer each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Fetch this closed segment from any member, and verify it.
    Fetch(SegmentId),
    /// Offer a batch of the segment's candidates, from this record on, to the append path, which answers once it has judged them. It
    /// takes its time if there is no room for moves.
    Move(SegmentId, Lsn),
    /// Its bytes may go: all of it is judged, or it is not cleaned after all.
    Forget(SegmentId),
    /// All that has been appended by now is to be on disk at every member; [`Input::Progress`] tells when it is.
    Sync,
    /// The log is to begin with this record.
    Trim(Lsn),
}

/// What a cleaner is doing, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// Nothing is due.
    Idle,
    /// It waits for a segment.
    Fetching(SegmentId),
    /// Its records are judged.
    Moving(SegmentId),
    /// A record in this segment is not keyed: nothing from there on is cleaned.
    Stopped(SegmentId),
}

/// A segment whose records are all judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Settling {
    last: Lsn,
    /// It may go when this record is on disk at every member and published.
    until: Lsn,
    /// Since when it is.
    since: Option<Time>,
}

/// Where a segment in memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Held {
    /// On its way, or to be asked for again at that time.
    Coming(Option<Time>),
    /// Here.
    Here,
    /// The append path judges a batch.
    Judged,
}

/// The state of a cleaner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cleaner {
    bounds: Bounds,
    progress: Progress,
    /// There has been a mirror in this term: a getter may be about to read what it has named.
    mirrored: bool,
    /// Closed and not judged as a whole, oldest first.
    uncleaned: VecDeque<SegmentRecords>,
    /// Of the first of them, as they are fetched; at most [`FETCHED_MAX`].
    held: VecDeque<Held>,
    /// The first record of the oldest segment that is not judged, and what has to be synced for those that are.
    next: Lsn,
    until: Lsn,
    settling: VecDeque<Settling>,
    /// Nothing from this segment on is cleaned.
    stop: Option<SegmentId>,
}

impl Cleaner {
    /// The cleaner of a term that begins with these closed segments, oldest first. `stop` is the first segment with a record that
    /// is not keyed, as far as the fold of the log has found one.
    pub fn new(bounds: Bounds, closed: impl Iterator<Item = SegmentRecords>, stop: Option<SegmentId>) -> Cleaner {
        let mut cleaner = Cleaner {
            bounds,
            progress: Progress::default(),
            mirrored: false,
            uncleaned: VecDeque::new(),
            held: VecDeque::with_capacity(FETCHED_MAX),
            next: Lsn(0),
            until: Lsn(0),
            settling: VecDeque::new(),
            stop,
        };
        closed.for_each(|segment| cleaner.on_closed(segment));
        cleaner
    }

    /// Takes an input and hands out what is to be done.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Closed(segment) => self.on_closed(segment),
            Input::Progress(progress) => self.on_progress(progress),
            Input::Fetched(segment) => self.on_fetched(segment, out),
            Input::NotFetched(segment) => self.on_not_fetched(segment, now),
            Input::Unkeyed(segment) => self.on_unkeyed(segment, out),
            Input::Moved { segment, next, moved, appended } => self.on_moved(segment, next, moved, appended, out),
            Input::Tick => {}
        }
        self.settle(now, out);
        self.clean(now, out);
    }

    /// What it is doing.
    pub fn doing(&self) -> Doing {
        match (self.uncleaned.front(), self.held.front(), self.stop) {
            (Some(oldest), Some(Held::Coming(_)), _) => Doing::Fetching(oldest.segment),
            (Some(oldest), Some(_), _) => Doing::Moving(oldest.segment),
            (Some(oldest), None, Some(stop)) if oldest.segment >= stop => Doing::Stopped(stop),
            _ => Doing::Idle,
        }
    }

    /// Segments that are judged and not trimmed yet.
    pub fn settling(&self) -> usize {
        self.settling.len()
    }

    fn on_closed(&mut self, closed: SegmentRecords) {
        let follows =
            self.uncleaned.back().is_none_or(|last| last.segment < closed.segment && last.last < closed.first);
        assert!(follows && closed.first <= closed.last.next(), "segments close in order");
        self.uncleaned.push_back(closed);
    }

    fn on_progress(&mut self, progress: Progress) {
        self.mirrored |= progress.published.is_some();
        self.progress = progress;
    }

    fn on_fetched(&mut self, segment: SegmentId, out: &mut Vec<Output>) {
        match self.held_at(segment) {
            Some(held) => {
                assert!(*held == Held::Coming(None), "only what was asked for is answered");
                *held = Held::Here;
            }
            // One before it has a record that is not keyed.
            None => out.push(Output::Forget(segment)),
        }
    }

    fn on_not_fetched(&mut self, segment: SegmentId, now: Time) {
        if let Some(held) = self.held_at(segment) {
            assert!(*held == Held::Coming(None), "only what was asked for is answered");
            *held = Held::Coming(Some(now.plus(FETCH_AGAIN_MS)));
        }
    }

    fn on_unkeyed(&mut self, segment: SegmentId, out: &mut Vec<Output>) {
        self.stop = Some(self.stop.map_or(segment, |stop| stop.min(segment)));
        let kept = self.uncleaned.iter().take_while(|closed| closed.segment < segment).count();
        for (held, closed) in self.held.drain(kept.min(self.held.len())..).zip(self.uncleaned.iter().skip(kept)) {
            // One that is on its way is forgotten when it comes.
            if held == Held::Here {
                out.push(Output::Forget(closed.segment));
            }
        }
    }

    fn on_moved(&mut self, segment: SegmentId, next: Lsn, moved: u32, appended: Lsn, out: &mut Vec<Output>) {
        let held = self.held_at(segment).filter(|held| **held == Held::Judged);
        *held.expect("only what was asked for is answered") = Held::Here;
        assert!(next >= self.next && appended >= self.until, "judging goes on, and so does the log");
        self.next = next;
        // Not the last move: what was dropped may have been replaced, or deleted, by a later record.
        if moved > 0 || !planted::has(Bug::DropsUnacked) {
            self.until = appended;
        }
        if let Some(oldest) = self.uncleaned.pop_front_if(|oldest| next > oldest.last) {
            self.held.pop_front();
            self.settling.push_back(Settling { last: oldest.last, until: self.until, since: None });
            self.next = Lsn(0);
            out.push(Output::Forget(segment));
            if self.until > self.progress.synced {
                out.push(Output::Sync);
            }
        }
    }

    /// Trims what has settled long enough: in order, since a log loses its beginning only.
    fn settle(&mut self, now: Time, out: &mut Vec<Output>) {
        let Progress { synced, published, .. } = self.progress;
        let reached = published.map_or(synced, |published| published.min(synced));
        for settling in self.settling.iter_mut().filter(|settling| settling.since.is_none()) {
            if settling.until <= reached || planted::has(Bug::TrimBeforeMoved) {
                settling.since = Some(now);
            }
        }
        let grace = if self.mirrored && !planted::has(Bug::TrimWithoutGrace) { GRACE_MS } else { 0 };
        let over = |settling: &mut Settling| settling.since.is_some_and(|since| since.plus(grace) <= now);
        let mut trimmed = None;
        while let Some(settled) = self.settling.pop_front_if(over) {
            trimmed = Some(settled.last.next());
        }
        out.extend(trimmed.map(Output::Trim));
    }

    /// Fetches what is due, and has the next batch of the oldest one judged.
    fn clean(&mut self, now: Time, out: &mut Vec<Output>) {
        while self.held.len() < FETCHED_MAX && self.is_due(self.held.len()) {
            self.held.push_back(Held::Coming(Some(now)));
        }
        for (held, closed) in self.held.iter_mut().zip(&self.uncleaned) {
            if let Held::Coming(Some(again)) = held
                && *again <= now
            {
                *held = Held::Coming(None);
                out.push(Output::Fetch(closed.segment));
            }
        }
        if let (Some(held @ Held::Here), Some(oldest)) = (self.held.front_mut(), self.uncleaned.front()) {
            *held = Held::Judged;
            self.next = self.next.max(oldest.first);
            out.push(Output::Move(oldest.segment, self.next));
        }
    }

    /// Whether the segment behind so many of the oldest ones is to be cleaned, once those are.
    fn is_due(&self, behind: usize) -> bool {
        let stops = |closed: &SegmentRecords| self.stop.is_some_and(|stop| closed.segment >= stop);
        let cleanable = self.uncleaned.get(behind).is_some_and(|closed| !stops(closed));
        cleanable && self.bounds.is_due((self.uncleaned.len() - behind) as u32, self.progress.live_bytes)
    }

    fn held_at(&mut self, segment: SegmentId) -> Option<&mut Held> {
        let mut held = self.held.iter_mut().zip(&self.uncleaned);
        held.find_map(|(held, closed)| (closed.segment == segment).then_some(held))
    }
}
