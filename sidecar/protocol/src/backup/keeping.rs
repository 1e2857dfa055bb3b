//! Fetches, trims, drops and quarantine: which copies are served, kept and removed.
//!
//! Part of [`Backup`].

use std::collections::BTreeSet;
use std::ops::Range;

use crate::ids::{Lsn, SegmentId};
use crate::layout::{Closure, FIRST_LSN_MAX, SegmentIdentity};
use crate::rpc::{CopyReport, DROP_MAX, DropRequest, FetchRequest, Purpose, Refusal, TrimRequest};

use super::folder::file_bytes;
use super::{Backup, Copy, Output, Place, Reply, Slot, SlotRow, Stage, TRIMMED_AT_ONCE};

/// A slot's bytes that are not part of the log and are being moved into quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leaving {
    identity: SegmentIdentity,
    closure: Closure,
    /// The write is in progress; otherwise the disk refused it, and it is retried at the next tick.
    under_way: bool,
}

impl Backup {
    pub(super) fn on_fetch(&self, request: &FetchRequest) -> Result<Reply, Refusal> {
        if request.group != self.group {
            let why = format!("backup {} serves group {}, not {}", self.member, self.group, request.group);
            return Err(Refusal::WrongLog { why });
        }
        let Range { start, end } = request.bytes();
        if request.range.is_some() && (start >= end || end > request.closure.end.0) {
            let why = format!("bytes {start} to {end} of a segment that ends at {}", request.closure.end);
            return Err(Refusal::BadRequest { why });
        }
        let segment = request.identity.segment;
        let copy = self.copies.get(&segment).filter(|copy| copy.identity == request.identity);
        match copy {
            Some(copy) if copy.stage == Stage::Closed && copy.closure == request.closure => {
                let place = self.resident(copy).map_or(copy.place, Place::Both);
                Ok(Reply::Fetch(place, copy.identity, copy.closure))
            }
            Some(copy) if copy.stage == Stage::Corrupt => Err(Refusal::Corrupt { segment }),
            Some(_) => Err(Refusal::NoSuchCopy { segment, why: "not closed at that LSN".to_owned() }),
            None => Err(Refusal::NoSuchCopy { segment, why: "not here, or of another opening".to_owned() }),
        }
    }

    /// Trims whole segments only, and never the last closed one, which shows where the log continues.
    pub(super) fn on_trim(&mut self, request: &TrimRequest, out: &mut Vec<Output>) -> Result<Reply, Refusal> {
        self.admit(&request.caller)?;
        if request.below > FIRST_LSN_MAX {
            return Err(Refusal::BadRequest { why: format!("LSN {} is beyond the last number", request.below) });
        }
        if request.below > self.promise.trimmed {
            self.promise.trimmed = request.below;
            out.push(Output::Persist(self.promise.clone()));
        }
        // Not up to what was ever trimmed: a later caller may keep more, and have installed it here.
        self.trim(request.below.max(self.trimming.unwrap_or_default()), out);
        Ok(Reply::Done)
    }

    /// Removes the oldest segments of those that are trimmed, at most as many as may be deleted at a time.
    pub(super) fn trim(&mut self, below: Lsn, out: &mut Vec<Output>) {
        self.trimming = None;
        let closed = |copy: &&Copy| copy.stage == Stage::Closed && copy.closure.records() > 0;
        let Some(newest) = self.copies.values().filter(closed).map(|copy| copy.identity.segment).max() else { return };
        let needless = |copy: &&Copy| {
            copy.was_closed() && copy.closure.last < below && copy.identity.segment < newest
                || self.is_left_behind(copy, below)
        };
        let free = TRIMMED_AT_ONCE.saturating_sub(self.deleting.len());
        let needless = self.copies.values().filter(needless).map(|copy| copy.identity.segment);
        let mut segments: Vec<SegmentId> = needless.take(free + 1).collect();
        self.trimming = (segments.len() > free).then_some(below);
        segments.truncate(free);
        let gone = self.settle(&segments, out);
        gone.iter().for_each(|copy| self.free_memory(copy, out));
        let files = gone.iter().map(|copy| (copy.identity.segment, self.copy_file_bytes(copy))).collect();
        self.delete_trimmed(files, out);
    }

    /// True for a copy that was never closed here and no longer needs to be: a later segment is closed, and its first record
    /// is the first one needed, or was trimmed too. That one is of the same epoch, or of a later one and closed in the promised
    /// one: the primary of that epoch has no other log. This happens to a backup that was lost in the middle of a segment
    /// and came back after the trim: nothing else would ever free that buffer.
    pub(super) fn is_left_behind(&self, copy: &Copy, below: Lsn) -> bool {
        let (epoch, promised) = (copy.identity.epoch, self.promise.epoch);
        let beyond = |later: &Copy| {
            let in_the_log = later.identity.epoch > epoch && later.lender == promised;
            let follows = later.identity.epoch == epoch || in_the_log;
            later.stage == Stage::Closed && follows && later.closure.first <= below
        };
        !copy.was_closed() && self.copies.range(copy.identity.segment.next()..).any(|(_, later)| beyond(later))
    }

    /// Drops exactly the copies that the caller saw: a late repetition finds others and leaves them alone. They are not part
    /// of the log. They go into quarantine, so that nothing is lost if the caller is wrong.
    pub(super) fn on_drop(&mut self, request: &DropRequest, out: &mut Vec<Output>) -> Result<Reply, Refusal> {
        self.admit(&request.caller)?;
        if request.copies.len() > DROP_MAX {
            let why = format!("{} copies in one drop: at most {DROP_MAX}", request.copies.len());
            return Err(Refusal::BadRequest { why });
        }
        let report = |copy: &Copy| copy.report(self.promise.durability);
        // A copy closed in this epoch is part of the log. Under `Flushed` it is reported as open until it is on disk, so a late
        // drop of what was here before could match it.
        let kept = |copy: &Copy| copy.stage == Stage::Closed && copy.lender == self.promise.epoch;
        let seen = |named: &&CopyReport| {
            let copy = self.copies.get(&named.identity.segment);
            copy.is_some_and(|copy| copy.stage != Stage::Lent && !kept(copy) && report(copy) == **named)
        };
        // Newest first: if this is interrupted, the rest of a torn end is torn at the same place. Without its oldest segment
        // it would look like a log that has lost one.
        let segments: BTreeSet<SegmentId> =
            request.copies.iter().filter(seen).map(|copy| copy.identity.segment).collect();
        let segments: Vec<SegmentId> = segments.into_iter().rev().collect();
        for copy in self.settle(&segments, out) {
            let segment = copy.identity.segment;
            // The caller still has what it writes in its epoch, and will write it here again. It may have forgotten what was
            // closed here: a corrupt copy of that, with one wrong bit, may be the last one.
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

    /// Removes these copies, which are no longer owed.
    fn settle(&mut self, segments: &[SegmentId], out: &mut Vec<Output>) -> Vec<Copy> {
        let gone: Vec<Copy> = segments.iter().filter_map(|segment| self.copies.remove(segment)).collect();
        if !gone.is_empty() {
            out.push(Output::Settle(segments.to_vec()));
        }
        gone
    }

    /// Frees the slot or file of a removed copy, by way of quarantine if it may hold records that are held nowhere else.
    pub(super) fn leave(&mut self, copy: &Copy, by_quarantine: bool, out: &mut Vec<Output>) {
        match copy.place {
            Place::Memory(slot) if by_quarantine => {
                self.refuse_waiting_close(copy, out);
                out.push(Output::SaveSlot(slot, Some(SlotRow { purpose: Purpose::Install, ..copy.row_closed() })));
                self.take_out(slot, copy.identity, copy.closure, out);
            }
            Place::Memory(_) => self.free_memory(copy, out),
            Place::Disk | Place::Both(_) if by_quarantine => out.push(Output::Quarantine(copy.identity.segment)),
            Place::Disk | Place::Both(_) => {}
        }
    }

    /// Moves a slot's bytes into quarantine. A restart recognises such a slot by its row, see [`SlotRow::leaving`]: otherwise
    /// it would take the bytes for the segment's copy, or for a needless older one.
    pub(super) fn take_out(&mut self, slot: Slot, identity: SegmentIdentity, closure: Closure, out: &mut Vec<Output>) {
        self.leaving.insert(slot, Leaving { identity, closure, under_way: true });
        out.push(Output::StartQuarantine(slot, identity, closure));
    }

    /// A slot's bytes are in quarantine, or the disk refused them: then they stay in the slot until a retry succeeds.
    pub(super) fn on_quarantined(&mut self, slot: Slot, result: Result<(), String>, out: &mut Vec<Output>) {
        match (self.leaving.get_mut(&slot), result) {
            (Some(leaving), Ok(())) => {
                let bytes = file_bytes(leaving.closure.end);
                self.add_quarantined(bytes);
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

    /// Retries what the disk refused.
    pub(super) fn quarantine_again(&mut self, out: &mut Vec<Output>) {
        for (slot, leaving) in self.leaving.iter_mut().filter(|(_, leaving)| !leaving.under_way) {
            leaving.under_way = true;
            out.push(Output::StartQuarantine(*slot, leaving.identity, leaving.closure));
        }
    }

    /// True while a slot is being written into quarantine.
    pub(super) fn is_quarantining(&self) -> bool {
        self.leaving.values().any(|leaving| leaving.under_way)
    }

    pub(super) fn on_found_corrupt(&mut self, identity: &SegmentIdentity, place: Place, out: &mut Vec<Output>) {
        if let Place::Both(slot) = place {
            return self.on_resident_corrupt(identity, slot, out);
        }
        if self.is_excused(identity.segment) {
            return;
        }
        let read = |copy: &&mut Copy| (copy.identity, copy.place, copy.stage) == (*identity, place, Stage::Closed);
        if let Some(copy) = self.copies.get_mut(&identity.segment).filter(read) {
            copy.stage = Stage::Corrupt;
        }
    }

    pub(super) fn free_memory(&mut self, copy: &Copy, out: &mut Vec<Output>) {
        self.refuse_waiting_close(copy, out);
        out.extend(copy.slot().into_iter().flat_map(Self::freed));
    }

    fn refuse_waiting_close(&mut self, copy: &Copy, out: &mut Vec<Output>) {
        let Some(slot) = copy.slot() else { return };
        let why = "replaced or dropped before it was on disk".to_owned();
        let gone = Refusal::NoSuchCopy { segment: copy.identity.segment, why };
        out.extend(self.unflushed.remove(&slot).map(|id| Output::Reply(id, Reply::Refused(gone))));
    }
}
