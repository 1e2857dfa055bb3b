//! What is kept, given and forgotten: images for others, trims, drops.
//!
//! Part of [`Backup`].

use std::collections::BTreeSet;

use crate::ids::{Lsn, SegmentId};
use crate::layout::{Closure, FIRST_LSN_MAX, SegmentIdentity};
use crate::rpc::{CopyReport, DROP_MAX, DropRequest, FetchRequest, Purpose, Refusal, TrimRequest};

use super::{Backup, Copy, Output, Place, Reply, Slot, SlotRow, Stage};

/// What is no part of the log and is on its way from a slot into quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leaving {
    identity: SegmentIdentity,
    closure: Closure,
    /// The disk is being written; otherwise it refused, and is tried again at the next tick.
    under_way: bool,
}

impl Backup {
    pub(super) fn on_fetch(&self, request: &FetchRequest) -> Result<Reply, Refusal> {
        if request.group != self.group {
            let why = format!("backup {} serves group {}, not {}", self.member, self.group, request.group);
            return Err(Refusal::WrongLog { why });
        }
        let segment = request.identity.segment;
        let copy = self.copies.get(&segment).filter(|copy| copy.identity == request.identity);
        match copy {
            Some(copy) if copy.stage == Stage::Closed && copy.closure == request.closure => {
                Ok(Reply::Fetch(copy.place, copy.identity, copy.closure))
            }
            Some(copy) if copy.stage == Stage::Corrupt => Err(Refusal::Corrupt { segment }),
            Some(_) => Err(Refusal::NoSuchCopy { segment, why: "not closed at that LSN".to_owned() }),
            None => Err(Refusal::NoSuchCopy { segment, why: "not here, or of another opening".to_owned() }),
        }
    }

    // Trim: whole segments only, and never the last closed one, which tells where the log goes on.
    pub(super) fn on_trim(&mut self, request: &TrimRequest, out: &mut Vec<Output>) -> Result<Reply, Refusal> {
        self.admit(&request.caller)?;
        if request.below > FIRST_LSN_MAX {
            return Err(Refusal::BadRequest { why: format!("LSN {} is beyond the last number", request.below) });
        }
        if request.below > self.promise.trimmed {
            self.promise.trimmed = request.below;
            out.push(Output::Persist(self.promise.clone()));
        }
        let closed = |copy: &&Copy| copy.stage == Stage::Closed && copy.closure.records() > 0;
        let Some(newest) = self.copies.values().filter(closed).map(|copy| copy.identity.segment).max() else {
            return Ok(Reply::Done);
        };
        let ended = |copy: &Copy| matches!(copy.stage, Stage::Closed | Stage::Corrupt);
        let needless = |copy: &&Copy| {
            ended(copy) && copy.closure.last < request.below && copy.identity.segment < newest
                || !ended(copy) && self.is_left_behind(copy, request.below)
        };
        let segments: Vec<SegmentId> =
            self.copies.values().filter(needless).map(|copy| copy.identity.segment).collect();
        for copy in self.settle(&segments, out) {
            self.free_memory(&copy, out);
            out.push(Output::DeleteFile(copy.identity.segment));
        }
        Ok(Reply::Done)
    }

    /// True for a copy that was never closed here and needs no closing any more: a later segment of the same epoch is closed,
    /// and its first record is the first that is needed, or was trimmed too. So it is with a backup that was lost in the
    /// middle of a segment and came back when that had been trimmed: nobody else would ever give its buffer back.
    fn is_left_behind(&self, copy: &Copy, below: Lsn) -> bool {
        let beyond = |later: &Copy| {
            later.stage == Stage::Closed && later.identity.epoch == copy.identity.epoch && later.closure.first <= below
        };
        self.copies.range(copy.identity.segment.next()..).any(|(_, later)| beyond(later))
    }

    /// Drops exactly the copies that the caller saw: a late repetition finds others and leaves them alone. They are no part
    /// of the log, and go into quarantine: should the caller be wrong, nothing is lost.
    pub(super) fn on_drop(&mut self, request: &DropRequest, out: &mut Vec<Output>) -> Result<Reply, Refusal> {
        self.admit(&request.caller)?;
        if request.copies.len() > DROP_MAX {
            let why = format!("{} copies in one drop: at most {DROP_MAX}", request.copies.len());
            return Err(Refusal::BadRequest { why });
        }
        let report = |copy: &Copy| copy.report(self.promise.durability);
        // Whoever closed a copy in this epoch has made it a part of the log. Under `Flushed` it is reported as open until it is
        // on disk, and then looks like what was here before, if a drop of that comes late.
        let kept = |copy: &Copy| copy.stage == Stage::Closed && copy.lender == self.promise.epoch;
        let seen = |asked: &&CopyReport| {
            let copy = self.copies.get(&asked.identity.segment);
            copy.is_some_and(|copy| copy.stage != Stage::Lent && !kept(copy) && report(copy) == **asked)
        };
        // Newest first: what is left of a torn end when this breaks off in the middle is torn at the same place. Without its
        // oldest segment it would look like a log that has lost one.
        let segments: BTreeSet<SegmentId> =
            request.copies.iter().filter(seen).map(|copy| copy.identity.segment).collect();
        let segments: Vec<SegmentId> = segments.into_iter().rev().collect();
        for copy in self.settle(&segments, out) {
            let segment = copy.identity.segment;
            // What the caller is writing in its epoch it still has, and is about to write here once more. Bytes that were
            // closed here it may have given up by now: with one bit wrong they may be the last.
            let its_own = copy.identity.epoch >= request.caller.epoch && copy.stage != Stage::Corrupt;
            let more = !its_own && copy.holds_more_than(None);
            if copy.slot().is_some() {
                self.leave(&copy, more, out);
            }
            // Its file; of an open segment in memory, what has been flushed of it.
            out.push(if more { Output::Quarantine(segment) } else { Output::DeleteFile(segment) });
        }
        Ok(Reply::Done)
    }

    /// These copies count no longer.
    fn settle(&mut self, segments: &[SegmentId], out: &mut Vec<Output>) -> Vec<Copy> {
        let gone: Vec<Copy> = segments.iter().filter_map(|segment| self.copies.remove(segment)).collect();
        if !gone.is_empty() {
            out.push(Output::Settle(segments.to_vec()));
        }
        gone
    }

    /// A copy that counts no longer gives its place up: by way of quarantine, if it may hold more than is held elsewhere.
    pub(super) fn leave(&mut self, copy: &Copy, by_quarantine: bool, out: &mut Vec<Output>) {
        match copy.place {
            Place::Memory(slot) if by_quarantine => {
                self.tell_who_waits(copy, out);
                out.push(Output::SaveSlot(slot, Some(SlotRow { purpose: Purpose::Install, ..copy.row_closed() })));
                self.take_out(slot, copy.identity, copy.closure, out);
            }
            Place::Memory(_) => self.free_memory(copy, out),
            Place::Disk if by_quarantine => out.push(Output::Quarantine(copy.identity.segment)),
            Place::Disk => {}
        }
    }

    /// Brings a slot's bytes into quarantine. By its row, which no other slot can have, a restart knows that it is on the way
    /// out: it would take it for the segment's copy, or for a needless one, if another has been lent or closed since.
    pub(super) fn take_out(&mut self, slot: Slot, identity: SegmentIdentity, closure: Closure, out: &mut Vec<Output>) {
        self.leaving.insert(slot, Leaving { identity, closure, under_way: true });
        out.push(Output::StartQuarantine(slot, identity, closure));
    }

    /// A slot's bytes are in quarantine, or the disk refused and is asked again later: they stay where they are till then.
    pub(super) fn on_quarantined(&mut self, slot: Slot, result: Result<(), String>, out: &mut Vec<Output>) {
        match (self.leaving.get_mut(&slot), result) {
            (Some(_), Ok(())) => {
                self.leaving.remove(&slot);
                out.extend(Self::freed(slot));
            }
            (Some(leaving), Err(_)) => leaving.under_way = false,
            (None, _) => {}
        }
        if self.ending {
            self.finish_when_flushed(out);
        }
    }

    /// Tries again what the disk refused.
    pub(super) fn quarantine_again(&mut self, out: &mut Vec<Output>) {
        for (slot, leaving) in self.leaving.iter_mut().filter(|(_, leaving)| !leaving.under_way) {
            leaving.under_way = true;
            out.push(Output::StartQuarantine(*slot, leaving.identity, leaving.closure));
        }
    }

    /// True while something is being written into quarantine.
    pub(super) fn is_quarantining(&self) -> bool {
        self.leaving.values().any(|leaving| leaving.under_way)
    }

    pub(super) fn on_found_corrupt(&mut self, identity: &SegmentIdentity, place: Place) {
        let read = |copy: &&mut Copy| (copy.identity, copy.place, copy.stage) == (*identity, place, Stage::Closed);
        if let Some(copy) = self.copies.get_mut(&identity.segment).filter(read) {
            copy.stage = Stage::Corrupt;
        }
    }

    pub(super) fn free_memory(&mut self, copy: &Copy, out: &mut Vec<Output>) {
        self.tell_who_waits(copy, out);
        out.extend(copy.slot().into_iter().flat_map(Self::freed));
    }

    fn tell_who_waits(&mut self, copy: &Copy, out: &mut Vec<Output>) {
        let Some(slot) = copy.slot() else { return };
        let why = "replaced or dropped before it was on disk".to_owned();
        let gone = Refusal::NoSuchCopy { segment: copy.identity.segment, why };
        out.extend(self.unflushed.remove(&slot).map(|id| Output::Reply(id, Reply::Refused(gone))));
    }
}
