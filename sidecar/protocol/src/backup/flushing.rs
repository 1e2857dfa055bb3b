//! Flushes: closed segments in the background, open ones on request, and the rest when the process ends.
//!
//! Part of [`Backup`].

use crate::config::Durability;
use crate::ids::{Epoch, Offset};
use crate::layout::SegmentIdentity;
use crate::planted::{self, Bug};
use crate::rpc::{FlushRequest, Refusal};

use super::{Backup, Copy, FlushResult, IMAGE_TICKS, Output, Place, Reply, RequestId, Slot, Stage};

impl Backup {
    pub(super) fn on_flushed(
        &mut self,
        slot: Slot,
        identity: &SegmentIdentity,
        result: &FlushResult,
        out: &mut Vec<Output>,
    ) {
        let flushed = |copy: &&mut Copy| copy.slot() == Some(slot) && copy.identity == *identity && copy.flushing;
        if let Some(copy) = self.copies.values_mut().find(flushed) {
            copy.flushing = false;
            let segment = identity.segment;
            let reply = match result {
                FlushResult::Done => {
                    copy.place = Place::Disk;
                    if !std::mem::replace(&mut copy.owed, true) {
                        out.push(Output::Owe(vec![(*identity, copy.closure)]));
                    }
                    let closure = copy.closure;
                    self.keep_flushed(slot, *identity, closure, out);
                    Some(Reply::Done)
                }
                FlushResult::Corrupt => {
                    copy.stage = Stage::Corrupt;
                    Some(Reply::Refused(Refusal::Corrupt { segment }))
                }
                FlushResult::Failed => None,
            };
            let waiting = reply.and_then(|reply| Some((self.unflushed.remove(&slot)?, reply)));
            out.extend(waiting.map(|(id, reply)| Output::Reply(id, reply)));
        }
        if self.ending {
            self.finish_when_flushed(out);
        }
    }

    pub(super) fn on_tick(&mut self, out: &mut Vec<Output>) {
        if planted::has(Bug::FenceBeforeRevoke) {
            out.push(Output::RevokeBelow(self.promise.epoch));
        }
        self.quarantine_again(out);
        self.delete_again(out);
        for image in self.installs.values_mut() {
            image.ticks = (image.ticks + 1).min(IMAGE_TICKS);
        }
        for copy in self.copies.values_mut() {
            if let (Stage::Closed, Some(slot), false) = (copy.stage, copy.slot(), copy.flushing) {
                copy.flushing = true;
                out.push(Output::StartFlush(slot, copy.identity, copy.closure));
            }
        }
    }

    /// Flushes the bytes of an open segment, as durability `Flushed` requires.
    pub(super) fn on_flush(
        &mut self,
        id: RequestId,
        request: &FlushRequest,
        out: &mut Vec<Output>,
    ) -> Result<Option<Reply>, Refusal> {
        self.admit(&request.caller)?;
        let segment = request.identity.segment;
        if request.end.0 > request.identity.size.bytes() {
            let why = format!("byte {} of segment {segment}, which is {} large", request.end, request.identity.size);
            return Err(Refusal::BadRequest { why });
        }
        let copy = self.copies.get(&segment).filter(|copy| copy.identity == request.identity);
        match copy.map(|copy| (copy.stage, copy.slot())) {
            // Closed in the meantime, and wholly on disk.
            Some((Stage::Closed, None)) => Ok(Some(Reply::Flushed(request.end))),
            Some((Stage::Lent | Stage::Closed, Some(slot))) => {
                out.push(Output::StartOpenFlush(id, slot, request.identity, request.end));
                Ok(None)
            }
            _ => Err(Refusal::NoSuchCopy { segment, why: "not lent to the caller".to_owned() }),
        }
    }

    /// An open segment was flushed, for its own sake or for a sync.
    pub(super) fn on_open_flushed(
        &mut self,
        id: RequestId,
        identity: &SegmentIdentity,
        result: Result<Offset, String>,
        out: &mut Vec<Output>,
    ) {
        if let Ok(end) = result {
            self.record_open(identity, end, out);
        }
        match self.syncs.remove(&id) {
            Some(request) => self.finish_sync(id, &request, result, out),
            None => out.push(Output::Reply(id, open_flush_reply(result))),
        }
    }

    /// Before the first flush of an open segment is reported, the ledger has it: the notes of flushes alone would not show
    /// that its file is gone, if older ones were put back.
    fn record_open(&mut self, identity: &SegmentIdentity, end: Offset, out: &mut Vec<Output>) {
        let unrecorded = |copy: &&mut Copy| copy.identity == *identity && !copy.owed && !copy.has_file;
        let copy = self.copies.get_mut(&identity.segment).filter(|_| end > Offset(0));
        if let Some(copy) = copy.filter(unrecorded) {
            copy.has_file = true;
            out.push(Output::RecordOpen(*identity, end));
        }
    }

    /// Revokes all writers, then writes everything to disk. `Epoch(u64::MAX)` is never persisted, so a later process can still
    /// promise any epoch.
    pub(super) fn on_shutdown(&mut self, out: &mut Vec<Output>) {
        if self.ending {
            return;
        }
        self.ending = true;
        out.push(Output::RevokeBelow(Epoch(u64::MAX)));
        self.abandon_installs(out);
        for copy in self.copies.values().filter(|copy| copy.stage == Stage::Lent) {
            out.extend(copy.slot().map(|slot| Output::Scan(slot, copy.identity)));
        }
        self.on_tick(out);
        self.finish_when_flushed(out);
    }

    /// Ends once no flush or scan is under way. If the disk refused a segment, the identity stays with the memory alone;
    /// under `Flushed` it stays with the disk too, and nothing after that segment is written. What was acknowledged there is
    /// on disk already, and after a loss of power the rest would be the end of a log with a gap.
    pub(super) fn finish_when_flushed(&mut self, out: &mut Vec<Output>) {
        let busy = self.copies.values().any(|copy| copy.stage == Stage::Lent || copy.flushing);
        if busy || self.is_quarantining() || std::mem::replace(&mut self.finished, true) {
            return;
        }
        let mut closed = self.copies.values().filter(|copy| copy.stage == Stage::Closed && copy.slot().is_some());
        let refused = closed.next().map(|copy| copy.identity.segment);
        let gap = refused.filter(|_| self.promise.durability == Durability::Flushed);
        let readable = |copy: &&Copy| gap.is_none_or(|gap| copy.identity.segment < gap);
        let open = self.copies.values().filter(|copy| copy.stage == Stage::Recovered).filter(readable);
        let open: Vec<_> = open.filter_map(|copy| Some((copy.slot()?, copy.identity, copy.tail()))).collect();
        for (slot, identity, tail) in open {
            out.push(Output::FlushOpen(slot, identity, tail));
            self.record_open(&identity, tail.reached(), out);
        }
        out.push(Output::Finish { complete: refused.is_none() && self.leaving.is_empty() });
    }
}

fn open_flush_reply(result: Result<Offset, String>) -> Reply {
    match result {
        Ok(end) => Reply::Flushed(end),
        Err(why) => Reply::Refused(Refusal::Failed { why }),
    }
}
