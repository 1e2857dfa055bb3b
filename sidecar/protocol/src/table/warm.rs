//! The index that a standby has ready: it folds the log ahead of its promotion, so that little is left to fold when it wins.
//!
//! Driven by the sidecar's control while it does not lead (and by the simulator). It asks one member after the other what it holds,
//! and folds what is closed there, segment by segment. Open segments are left to the promotion, which has to read their end in any
//! case.
//!
//! Nothing of this is believed at a win. A closure proves every byte of its segment, so the folded segments are compared with the
//! recovered log: those that it still has must be its first ones, each with the same closure. Otherwise a loss was accepted, the log
//! was recovered from disk, or a promotion that did not win had closed a copy elsewhere; then the index is made from the log alone.
//!
//! Why the index that is kept is the fold of the recovered log (S18): what a key has depends on its last record only. Let *F* be
//! the folded segments that the log still has, its first ones. A key with a record in *F* has what the last of these says, no matter
//! what was folded before. A key without one may still have what a trimmed segment says, where a cut has taken the record that replaced
//! it: such keys are [removed](Index::forget_before). What remains is the fold of *F*, and the rest of the log is folded behind it.
//!
//! [`Index::forget_before`]: super::index::Index

use std::collections::VecDeque;

use crate::ids::{LogId, Lsn, SegmentId};
use crate::layout::{Closure, SegmentIdentity};
use crate::planted::{self, Bug};
use crate::rpc::{CopyReport, CopyState, Inventory};

use super::fold::{Fold, FoldError};
use super::index::Index;
use super::place::Window;

/// A closed segment: which one, and the proof of its bytes.
pub type Segment = (SegmentIdentity, Closure);

/// What a standby's index needs next, by what one member says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This segment, fetched from any backup and verified: [take](Warm::take) it.
    Fold(Segment),
    /// Nothing that this member has. The rest of the log is open, or not at this member.
    Nothing,
    /// To begin again, with an empty index: what comes next is trimmed, or the member's log is another one than was folded.
    Again,
}

/// An index in the making.
#[derive(Debug)]
pub struct Warm {
    fold: Fold,
    /// What it is the fold of, in the order of the log, but for empty segments. Those that are trimmed leave it now and then.
    segments: VecDeque<Segment>,
}

impl Warm {
    /// Begins with an empty index.
    pub fn new(index: Index) -> Warm {
        Warm { fold: Fold::new(index), segments: VecDeque::new() }
    }

    /// The last record that is folded.
    pub fn last(&self) -> Option<Lsn> {
        self.fold.last()
    }

    /// Keys that are present after it.
    pub fn keys(&self) -> u32 {
        self.fold.keys()
    }

    /// Which log it is of.
    pub fn log(&self) -> Option<LogId> {
        self.segments.back().map(|(identity, _)| identity.log)
    }

    /// A member is asked for its copies after this segment: the last one that is folded comes first, to be compared.
    pub fn after(&self) -> Option<SegmentId> {
        self.segments.back().map(|(identity, _)| SegmentId(identity.segment.0 - 1))
    }

    /// What is needed next, where a member has these copies [after](Warm::after) the one that was named to it.
    pub fn next(&mut self, page: &Inventory) -> Next {
        let (trimmed, size) = (page.trimmed, self.fold.segment_size());
        let is_usable = |copy: &&CopyReport| {
            let CopyReport { identity, state, .. } = copy;
            *state == CopyState::Closed && Some(identity.log) == page.log && identity.size == size
        };
        let closed = || page.copies.iter().filter(is_usable).map(|copy| (copy.identity, copy.closure));
        let mut filled = closed().filter(|(_, closure)| closure.records() > 0);
        let Some(last) = self.segments.back().copied() else {
            // The first record that there is must be in it: a member that is being filled may have later ones alone.
            let first = filled.find(|(_, closure)| closure.last >= trimmed);
            let first = first.filter(|(_, closure)| closure.first <= trimmed.max(Lsn(1)));
            return first.map_or(Next::Nothing, Next::Fold);
        };
        let replaced = closed().any(|copy| copy.0.segment == last.0.segment && copy != last);
        if self.log() != page.log || last.1.last < trimmed || replaced {
            return Next::Again;
        }
        self.forget_some(trimmed);
        match filled.find(|(identity, _)| identity.segment > last.0.segment) {
            Some((_, closure)) if closure.first <= last.1.last => Next::Again,
            Some(next) if next.1.first == last.1.last.next() && self.has_room(next.0.segment) => Next::Fold(next),
            Some(_) | None => Next::Nothing,
        }
    }

    /// Takes the segment that came [next](Warm::next): `fold` gives all of its records to the fold.
    ///
    /// # Errors
    /// As [`Fold::record`]; to begin again.
    pub fn take(
        mut self,
        segment: Segment,
        fold: impl FnOnce(&mut Fold) -> Result<(), FoldError>,
    ) -> Result<Warm, FoldError> {
        fold(&mut self.fold)?;
        assert_eq!(self.fold.last(), Some(segment.1.last), "the closure names the last record of the segment");
        self.segments.push_back(segment);
        Ok(self)
    }

    /// The fold of the beginning of this recovered log, and the segments that are still to be folded. `None`: what is folded is not
    /// what the log begins with.
    pub fn lead(mut self, log: &[Segment]) -> Option<(Fold, Vec<Segment>)> {
        let log: Vec<Segment> = log.iter().filter(|(_, closure)| closure.records() > 0).copied().collect();
        let first = log.first()?.0.segment;
        if planted::has(Bug::WarmIndexIsBelieved) {
            let last = self.segments.back()?.0.segment;
            return Some((self.fold, log.into_iter().filter(|(identity, _)| identity.segment > last).collect()));
        }
        self.forget_before(first);
        let folded = self.segments.len();
        let is_its_beginning = folded > 0 && log.get(..folded).is_some_and(|begins| self.segments == begins);
        // How many there are, and which is the first one, is known of the whole only.
        let counts_others = self.fold.unkeyed().is_some_and(|unkeyed| unkeyed.segment < first);
        (is_its_beginning && !counts_others).then(|| (self.fold, log[folded..].to_vec()))
    }

    /// Trimmed segments leave once they are an eighth of what a place can tell apart: three quarters are the log's.
    fn forget_some(&mut self, trimmed: Lsn) {
        let gone = self.segments.partition_point(|(_, closure)| closure.last < trimmed);
        let (first, left) = (self.segments.front(), self.segments.get(gone));
        if let (Some((first, _)), Some((left, _))) = (first, left)
            && left.segment.0 - first.segment.0 >= self.window().segments() / 8
        {
            self.forget_before(left.segment);
        }
    }

    /// Makes it the fold of what it has from this segment on.
    fn forget_before(&mut self, first: SegmentId) {
        let gone = self.segments.partition_point(|(identity, _)| identity.segment < first);
        if let Some((last, _)) = self.segments.back().filter(|_| gone > 0) {
            self.fold.forget_before(first, last.segment);
            self.segments.drain(..gone);
        }
    }

    fn has_room(&self, next: SegmentId) -> bool {
        self.segments.front().is_none_or(|(first, _)| next.0 - first.segment.0 < self.window().segments())
    }

    fn window(&self) -> Window {
        Window::new(self.fold.segment_size())
    }
}
