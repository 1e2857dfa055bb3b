//! What is kept, given and forgotten: images for others, trims, drops.
//!
//! Part of [`Backup`].

use crate::ids::{Lsn, SegmentId};
use crate::layout::SegmentIdentity;
use crate::rpc::{DropRequest, FetchRequest, Refusal, TrimRequest};

use super::{Backup, Copy, Output, Reply, Stage};

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
        self.forget(&segments, out);
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

    /// Drops exactly the copies that the caller saw: a late repetition finds others and leaves them alone.
    pub(super) fn on_drop(&mut self, request: &DropRequest, out: &mut Vec<Output>) -> Result<Reply, Refusal> {
        self.admit(&request.caller)?;
        let report = |copy: &Copy| copy.report(self.promise.durability);
        // Whoever closed a copy in this epoch has made it a part of the log. Under `Flushed` it is reported as open until it is
        // on disk, and then looks like what was here before, if a drop of that comes late.
        let kept = |copy: &Copy| copy.stage == Stage::Closed && copy.lender == self.promise.epoch;
        let seen = |copy: &&Copy| copy.stage != Stage::Lent && !kept(copy) && request.copies.contains(&report(copy));
        // Newest first: what is left of a torn end when this breaks off in the middle is torn at the same place. Without its
        // oldest segment it would look like a log that has lost one.
        let segments: Vec<SegmentId> =
            self.copies.values().rev().filter(seen).map(|copy| copy.identity.segment).collect();
        self.forget(&segments, out);
        Ok(Reply::Done)
    }

    fn forget(&mut self, segments: &[SegmentId], out: &mut Vec<Output>) {
        for segment in segments {
            if let Some(copy) = self.copies.remove(segment) {
                self.free_memory(&copy, out);
                out.push(Output::DeleteFile(*segment));
            }
        }
    }

    pub(super) fn on_found_corrupt(&mut self, identity: &SegmentIdentity) {
        if let Some(copy) = self.copies.get_mut(&identity.segment).filter(|copy| copy.identity == *identity) {
            copy.stage = Stage::Corrupt;
        }
    }

    pub(super) fn free_memory(&mut self, copy: &Copy, out: &mut Vec<Output>) {
        let Some(slot) = copy.slot() else { return };
        let why = "replaced or dropped before it was on disk".to_owned();
        let gone = Refusal::NoSuchCopy { segment: copy.identity.segment, why };
        out.extend(self.unflushed.remove(&slot).map(|id| Output::Reply(id, Reply::Refused(gone))));
        out.extend(Self::freed(slot));
    }
}
