//! Close: a segment is now whole.
//!
//! Part of [`Backup`]; [`flushing`](super::flushing) writes it to disk.

use crate::config::Durability;
use crate::layout::Closure;
use crate::planted::{self, Bug};
use crate::rpc::{CloseRequest, Purpose, Refusal};

use super::{Backup, Copy, Output, RETRY_AFTER_MS, Reply, RequestId, Slot, SlotRow, Stage};

impl Backup {
    /// The segment is whole: flushes it, then frees its memory.
    pub(super) fn on_close(
        &mut self,
        id: RequestId,
        request: CloseRequest,
        out: &mut Vec<Output>,
    ) -> Result<Option<Reply>, Refusal> {
        self.admit(&request.caller)?;
        let segment = request.identity.segment;
        if !request.closure.fits(request.identity.size) {
            let (Closure { first, last, end, .. }, size) = (request.closure, request.identity.size);
            let why = format!("segment {segment} of {size} cannot hold LSN {first} to {last} and end at byte {end}");
            return Err(Refusal::BadRequest { why });
        }
        let here = |copy: &&Copy| copy.identity == request.identity;
        let install = self.installs.get(&segment).filter(here).filter(|copy| copy.stage == Stage::Lent);
        let copy = install.or_else(|| self.copies.get(&segment).filter(here));
        let Some(copy) = copy else {
            let why = "not here, or of another opening".to_owned();
            return Err(Refusal::NoSuchCopy { segment, why });
        };
        let Some(slot) = copy.slot().filter(|_| copy.stage != Stage::Corrupt) else {
            return Self::closed_already(copy, &request).map(|()| Some(Reply::Done));
        };
        match copy.stage {
            Stage::Closed | Stage::Corrupt => {
                Self::closed_already(copy, &request)?;
                self.reply_when_safe(id, slot, out);
                Ok(None)
            }
            // Closed by the primary that wrote it: the flush verifies, off the path.
            Stage::Lent if copy.purpose == Purpose::Append => {
                out.push(Output::EndLending(slot));
                // Under `Flushed`, what was acknowledged is in the open file and noted there, but the segment's last marks
                // may be in memory only: after a loss of power their absence must not look like damage.
                let owed = self.promise.durability != Durability::Flushed;
                self.seal(slot, &request, owed, out);
                Ok(Some(Reply::Done))
            }
            // An image, or a recovered tail: it may become the only copy, so verify it first.
            Stage::Lent | Stage::Recovered => {
                let is_image = copy.stage == Stage::Lent;
                if is_image {
                    out.push(Output::EndLending(slot));
                }
                if is_image && planted::has(Bug::ImageUnverified) {
                    self.seal(slot, &request, self.promise.durability != Durability::Flushed, out);
                    self.reply_when_safe(id, slot, out);
                    return Ok(None);
                }
                out.push(Output::Verify(slot, request.identity, request.closure));
                self.closing = Some((id, slot, request));
                Ok(None)
            }
        }
    }

    fn closed_already(copy: &Copy, request: &CloseRequest) -> Result<(), Refusal> {
        let segment = request.identity.segment;
        if copy.stage == Stage::Corrupt {
            return Err(Refusal::Corrupt { segment });
        }
        if copy.closure == request.closure {
            return Ok(());
        }
        let why = format!("closed at LSN {} already, not at {}", copy.closure.last, request.closure.last);
        Err(Refusal::NoSuchCopy { segment, why })
    }

    /// Reports a slot as closed: now, or under durability `Flushed` once it is on disk. There a restart keeps its identity
    /// with nothing but the disk, so a copy that is only in memory must not count yet.
    fn reply_when_safe(&mut self, id: RequestId, slot: Slot, out: &mut Vec<Output>) {
        if self.promise.durability != Durability::Flushed {
            return out.push(Output::Reply(id, Reply::Done));
        }
        if let Some(earlier) = self.unflushed.insert(slot, id) {
            let why = "a later request waits for the same flush".to_owned();
            let refusal = Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why };
            out.push(Output::Reply(earlier, Reply::Refused(refusal)));
        }
    }

    pub(super) fn on_verified(&mut self, slot: Slot, sound: bool, out: &mut Vec<Output>) {
        let Some((id, _, request)) = self.closing.take_if(|(_, waiting, _)| *waiting == slot) else {
            return self.on_verified_at_start(slot, sound);
        };
        if sound {
            let owed = self.promise.durability != Durability::Flushed;
            self.seal(slot, &request, owed, out);
            return self.reply_when_safe(id, slot, out);
        }
        let segment = request.identity.segment;
        let image = self.installs.get(&segment).is_some_and(|image| image.slot() == Some(slot));
        if image {
            self.installs.remove(&segment);
            out.extend(Self::freed(slot));
        }
        out.push(Output::Reply(id, Reply::Refused(Refusal::Corrupt { segment })));
        // The bytes have changed since the scan: the next inventory must report what is still valid.
        if !image {
            out.push(Output::Scan(slot, request.identity));
        }
    }

    /// The verdict on a copy that was closed in memory when the previous process ended.
    fn on_verified_at_start(&mut self, slot: Slot, sound: bool) {
        let copy = self.copies.values_mut().find(|copy| copy.slot() == Some(slot));
        if let Some(copy) = copy.filter(|_| !sound) {
            copy.stage = Stage::Corrupt;
        }
    }

    /// The slot now holds a whole segment. An image replaces an older copy, which is removed from memory. The older copy's
    /// file stays until the flush replaces it, because a restart may find nothing else; a copy with records that the image
    /// lacks goes into quarantine.
    ///
    /// The segment is `owed` once the caller has its answer: now, or when it is on disk.
    fn seal(&mut self, slot: Slot, request: &CloseRequest, owed: bool, out: &mut Vec<Output>) {
        let segment = request.identity.segment;
        let is_image = self.installs.get(&segment).is_some_and(|image| image.slot() == Some(slot));
        if is_image {
            self.installs.remove(&segment);
        }
        let row = SlotRow {
            identity: request.identity,
            purpose: Purpose::Append,
            lender: request.caller.epoch,
            closed: Some(request.closure),
        };
        out.push(Output::SaveSlot(slot, Some(row)));
        if owed {
            out.push(Output::Owe(vec![(request.identity, request.closure)]));
        }
        let copy = Copy { owed, ..Copy::closed_in(slot, &row, request.closure) };
        let old = self.copies.insert(segment, copy);
        if let Some(old) = old.filter(|_| is_image) {
            let more = old.holds_more_than(Some((&request.identity, &request.closure)));
            self.leave(&old, more, out);
        }
        out.push(Output::StartFlush(slot, request.identity, request.closure));
    }
}
