//! Syncs: the caller wants the log up to a point on disk, and remembered through the loss of all memory.
//!
//! Part of [`Backup`]. See "Sync" in `docs/protocol.md`.

use crate::ids::{Offset, SegmentId};
use crate::layout::{FIRST_LSN_MAX, SEGMENT_MAX};
use crate::planted::{self, Bug};
use crate::rpc::{OpenPart, Refusal, SyncPoint, SyncRequest, Synced};

use super::{Backup, Copy, Output, Place, RETRY_AFTER_MS, Reply, RequestId, Stage};

/// How long a caller should wait for a write that has completed and cannot be seen here yet.
const VISIBLE_AFTER_MS: u32 = 5;

impl Backup {
    /// Brings the open part to disk first; what is closed is on its way there already.
    pub(super) fn on_sync(
        &mut self,
        id: RequestId,
        request: SyncRequest,
        out: &mut Vec<Output>,
    ) -> Result<Option<Reply>, Refusal> {
        self.admit(&request.caller)?;
        let SyncPoint { before, open, last } = request.point;
        let fits = |part: OpenPart| part.identity.segment == before && part.end.0 <= part.identity.size.bytes();
        if before > SEGMENT_MAX || last > FIRST_LSN_MAX || open.is_some_and(|part| !fits(part)) {
            return Err(Refusal::BadRequest { why: format!("no log reaches LSN {last} before segment {before}") });
        }
        // What was trimmed since need not be on any disk, and its segment may be gone.
        let needed = last >= self.promise.trimmed && !planted::has(Bug::SyncedBeforeFlushed);
        let Some(OpenPart { identity, end }) = open.filter(|_| needed) else {
            return self.remember_synced(&request, out).map(Some);
        };
        let copy = self.copies.get(&before).filter(|copy| copy.identity == identity);
        match copy.map(|copy| (copy.stage, copy.slot())) {
            Some((Stage::Closed, None)) => self.remember_synced(&request, out).map(Some),
            Some((Stage::Lent | Stage::Closed, Some(slot))) => {
                out.push(Output::StartOpenFlush(id, slot, identity, end));
                self.syncs.insert(id, request);
                Ok(None)
            }
            _ => {
                let why = format!("segment {before} is not lent to the caller, or must be repaired first");
                Err(Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why })
            }
        }
    }

    /// The open part is on disk, or as much of it as can be seen here.
    pub(super) fn finish_sync(
        &mut self,
        id: RequestId,
        request: &SyncRequest,
        result: Result<Offset, String>,
        out: &mut Vec<Output>,
    ) {
        let wanted = request.point.open.map(|part| part.end).unwrap_or_default();
        let reply = match result {
            Ok(end) if end >= wanted => self.remember_synced(request, out),
            Ok(end) => {
                let why = format!("visible here up to byte {end} of {wanted}");
                Err(Refusal::RetryLater { after_ms: VISIBLE_AFTER_MS, why })
            }
            Err(why) => Err(Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why }),
        };
        out.push(Output::Reply(id, reply.unwrap_or_else(Reply::Refused)));
    }

    /// Everything is on disk: promises so. The caller may have been fenced while the disk was busy.
    fn remember_synced(&mut self, request: &SyncRequest, out: &mut Vec<Output>) -> Result<Reply, Refusal> {
        self.admit(&request.caller)?;
        if !planted::has(Bug::SyncedBeforeFlushed) {
            self.check_on_disk(request.point.before)?;
        }
        let synced = Synced { epoch: request.caller.epoch, last: request.point.last };
        // A late repetition takes nothing back. A later epoch may: an administrator may have shortened the log.
        if self.promise.synced < Some(synced) {
            self.promise.synced = Some(synced);
            out.push(Output::Persist(self.promise.clone()));
        }
        Ok(Reply::Done)
    }

    fn check_on_disk(&self, before: SegmentId) -> Result<(), Refusal> {
        let waits = |copy: &&Copy| {
            (copy.stage != Stage::Closed || copy.place != Place::Disk)
                && !self.is_left_behind(copy, self.promise.trimmed)
        };
        let Some(copy) = self.copies.range(..before).map(|(_, copy)| copy).find(waits) else { return Ok(()) };
        let what = match copy.stage {
            Stage::Closed => "is not on disk yet",
            Stage::Corrupt => "is gone or corrupt, and must be repaired first",
            Stage::Lent | Stage::Recovered => "is not closed yet",
        };
        let why = format!("segment {} {what}", copy.identity.segment);
        Err(Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why })
    }
}
