//! Open: lend a buffer, all zero, to the promised epoch.
//!
//! Part of [`Backup`].

use crate::config::Durability;
use crate::ids::{Epoch, SegmentId};
use crate::layout::{SEGMENT_MAX, readable_size};
use crate::rpc::{INVENTORY_FOR_IMAGES, INVENTORY_MAX, OpenRequest, Purpose, Refusal};

use super::{Backup, Copy, IMAGE_TICKS, Output, RETRY_AFTER_MS, Reply, RequestId, Slot, SlotRow, Stage};

/// Buffers that a primary needs in order to keep appending: the one being filled, and the next one.
const SLOTS_FOR_APPENDS_MIN: u64 = 2;

impl Backup {
    pub(super) fn on_open(
        &mut self,
        id: RequestId,
        request: &OpenRequest,
        out: &mut Vec<Output>,
    ) -> Result<Option<Reply>, Refusal> {
        self.admit(&request.caller)?;
        let identity = request.identity;
        let own = identity.log == request.caller.log && (Epoch(1)..=request.caller.epoch).contains(&identity.epoch);
        let own = own && (request.purpose == Purpose::Install || identity.epoch == request.caller.epoch);
        if !own || !(SegmentId(1)..=SEGMENT_MAX).contains(&identity.segment) {
            return Err(Refusal::BadRequest {
                why: format!("segment {} is not of the caller's log", identity.segment),
            });
        }
        if identity.size.bytes() > self.limits.slot_size {
            let (size, slot) = (identity.size, readable_size(u64::from(self.limits.slot_size)));
            let why = format!(
                "segment size {size}: the buffers of backup {} are {slot}; start it with larger ones",
                self.member
            );
            return Err(Refusal::BadRequest { why });
        }
        let row = SlotRow { identity, purpose: request.purpose, lender: request.caller.epoch, closed: None };
        let known = match request.purpose {
            Purpose::Append => self.copies.get(&identity.segment),
            Purpose::Install => self.installs.get(&identity.segment),
        };
        // The reply to the first request may have been lost; lending again would wipe what has been written since.
        if let Some(slot) = known.filter(|copy| copy.is_lending(&row)).and_then(Copy::slot) {
            return Ok(Some(Reply::Opened(slot)));
        }
        if request.purpose == Purpose::Append && known.is_some() {
            let why = "a copy is here already: drop it first, if it is not part of the log".to_owned();
            return Err(Refusal::NoSuchCopy { segment: identity.segment, why });
        }
        if self.comes_late(&row) {
            let why = "a later one of this epoch is closed here, so this request comes late".to_owned();
            return Err(Refusal::NoSuchCopy { segment: identity.segment, why });
        }
        let abandoned = known.and_then(Copy::slot);
        self.be_trusted(request, out);
        self.check_inventory(request)?;
        let slot = match self.free_slot(request.purpose, abandoned) {
            Ok(slot) => slot,
            Err(refusal) => {
                self.take_from_image(out);
                return Err(refusal);
            }
        };
        self.take_durability(request, out)?;
        out.extend(abandoned.into_iter().flat_map(Self::freed));
        self.evict(slot, out);
        let table = match request.purpose {
            Purpose::Append => &mut self.copies,
            Purpose::Install => &mut self.installs,
        };
        table.insert(identity.segment, Copy::lent(slot, &row));
        out.push(Output::Lend(id, slot, request.caller.epoch));
        Ok(None)
    }

    /// True for the late repetition of a request to append to a segment that has been closed and trimmed since. That buffer
    /// would be neither written nor closed, and so be lost until the next epoch.
    ///
    /// A primary requests buffers from its active segment on, and closes earlier segments, each only after all buffers up to
    /// it were lent. So if a later segment of its epoch is closed, it does not wait for this one.
    fn comes_late(&self, row: &SlotRow) -> bool {
        let closed = |copy: &Copy| copy.stage == Stage::Closed && copy.identity.epoch == row.lender;
        let mut later = self.copies.range(row.identity.segment.next()..);
        row.purpose == Purpose::Append && later.any(|(_, copy)| closed(copy))
    }

    pub(super) fn on_lent(&mut self, id: RequestId, slot: Slot, result: Result<(), String>, out: &mut Vec<Output>) {
        let mut lent = self.copies.values().chain(self.installs.values()).filter(|copy| copy.slot() == Some(slot));
        let row = lent.next().map(Copy::row);
        let reply = match result {
            // Recorded once there is memory, and before it can be written: a row without memory means that it was lost.
            Ok(()) => {
                out.push(Output::SaveSlot(slot, row));
                Reply::Opened(slot)
            }
            Err(why) => {
                self.copies.retain(|_, copy| copy.slot() != Some(slot));
                self.installs.retain(|_, copy| copy.slot() != Some(slot));
                out.extend(Self::freed(slot));
                Reply::Refused(Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why })
            }
        };
        out.push(Output::Reply(id, reply));
    }

    /// Clears the doubt and the former identities: a primary appends only to a backup that holds the log or is being caught
    /// up, and the caller that fenced this process has seen the doubt. If this process has not been fenced since it started,
    /// the caller knows nothing of a doubt that arose at the start.
    fn be_trusted(&mut self, request: &OpenRequest, out: &mut Vec<Output>) {
        if request.purpose != Purpose::Append || !self.fenced {
            return;
        }
        let (doubt, former) = (self.promise.doubt.take(), std::mem::take(&mut self.promise.former));
        if doubt.is_some() || !former.is_empty() {
            out.push(Output::Persist(self.promise.clone()));
            out.extend(self.missing.take().map(|slot| Output::SaveSlot(slot, None)));
            // A copy that has come since has files, and a note, of its own.
            let mut gone = std::mem::take(&mut self.gone);
            gone.retain(|segment| !self.copies.contains_key(segment));
            if !gone.is_empty() {
                out.push(Output::Settle(gone.clone()));
            }
            out.extend(gone.into_iter().map(Output::DeleteFile));
        }
    }

    /// Adopts the durability of the caller's acks. Under `Flushed` this backup keeps its identity with its disk alone, so by
    /// then nothing may be in memory only, except what this caller writes and flushes itself. Until then an append waits. An
    /// image need not: it may replace such a copy, and may count in memory.
    fn take_durability(&mut self, request: &OpenRequest, out: &mut Vec<Output>) -> Result<(), Refusal> {
        if self.promise.durability == request.durability {
            return Ok(());
        }
        let lent = |copy: &Copy| copy.stage == Stage::Lent && copy.lender == request.caller.epoch;
        let volatile = self.copies.values().find(|copy| copy.slot().is_some() && !lent(copy));
        if let (Durability::Flushed, Some(copy)) = (request.durability, volatile) {
            if request.purpose == Purpose::Install {
                return Ok(());
            }
            let why = format!(
                "backup {} does not have segment {} on disk yet, so durability cannot become flushed",
                self.member, copy.identity.segment
            );
            return Err(Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why });
        }
        self.promise.durability = request.durability;
        out.push(Output::Persist(self.promise.clone()));
        Ok(())
    }

    /// Refuses another copy where an inventory has no room for it: no sidecar would read it to its end, and this backup could not
    /// take part in a promotion any more. Or where the memory of this process has none: it would be killed, with its buffers. Images may take some more places than appends, because they repair.
    fn check_inventory(&self, request: &OpenRequest) -> Result<(), Refusal> {
        let segment = request.identity.segment;
        let more = self.installs.keys().filter(|image| !self.copies.contains_key(image)).count();
        let kept = if request.purpose == Purpose::Append { INVENTORY_FOR_IMAGES } else { 0 };
        let is_new = !self.copies.contains_key(&segment) && !self.installs.contains_key(&segment);
        let max = self.limits.copies_max;
        if is_new && self.copies.len() + more + kept >= max {
            let (can, more) = match max {
                INVENTORY_MAX.. => ("can list", ""),
                _ => ("has, by its memory limit, room for", "more memory or "),
            };
            let why = format!(
                "backup {} holds {} segments and {can} {max}, with {INVENTORY_FOR_IMAGES} kept for repairs; trim the log, or \
                 give it {more}larger segments (--segment-size)",
                self.member,
                self.copies.len(),
            );
            return Err(Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why });
        }
        Ok(())
    }

    /// A slot to lend, within the bounds on unflushed bytes and on the flush folder. `freed` will be free by then.
    fn free_slot(&self, purpose: Purpose, freed: Option<Slot>) -> Result<Slot, Refusal> {
        let to_flush = self.slots_to_flush().filter(|slot| Some(*slot) != freed).count() as u64;
        let used: Vec<Slot> = self.slots_in_use().filter(|slot| Some(*slot) != freed).collect();
        let kept = self.kept_for_images(purpose);
        let bytes = |slots: u64| slots * u64::from(self.limits.slot_size);
        let for_images = if kept > 0 { " (one more is kept for repairs)" } else { "" };
        if bytes(to_flush + 1 + kept) > self.limits.unflushed_bytes_max {
            let why = format!(
                "{} are lent or not yet flushed; backup {} may have at most {}{for_images} (flush bandwidth × hold-up time)",
                readable_size(bytes(to_flush)),
                self.member,
                readable_size(self.limits.unflushed_bytes_max - bytes(kept))
            );
            return Err(Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why });
        }
        self.check_folder(purpose, to_flush)?;
        // `freed` itself is not taken: its last writer may not have stopped yet.
        let cached: Vec<Slot> = self.resident_slots().collect();
        let taken = |slot: &Slot| used.contains(slot) || cached.contains(slot) || Some(*slot) == freed;
        let free = (0..self.limits.slots).map(Slot).find(|slot| !taken(slot)).or_else(|| self.oldest_resident());
        let wanted = used.len() as u64 + 1 + kept;
        free.filter(|_| wanted <= u64::from(self.limits.slots)).ok_or_else(|| Refusal::RetryLater {
            after_ms: RETRY_AFTER_MS,
            why: format!(
                "all {} buffers of backup {} are in use{for_images}",
                u64::from(self.limits.slots) - kept,
                self.member
            ),
        })
    }

    /// Frees the buffer of an image that was lent long ago and may have no writer: its request was repeated late, or its
    /// segment was trimmed in the meantime. A caller that was refused a buffer retries and gets this one.
    fn take_from_image(&mut self, out: &mut Vec<Output>) {
        self.end_image(|image| image.ticks >= IMAGE_TICKS, out);
    }

    /// The image of a pull that has failed: nobody writes it any more.
    pub(super) fn on_given_up(&mut self, slot: Slot, out: &mut Vec<Output>) {
        self.end_image(|image| image.slot() == Some(slot), out);
    }

    /// Frees the buffer of one image that is not being verified.
    fn end_image(&mut self, wanted: impl Fn(&Copy) -> bool, out: &mut Vec<Output>) {
        let verified = self.closing.as_ref().map(|(_, slot, _)| *slot);
        let idle = |image: &&Copy| wanted(image) && image.slot() != verified;
        let Some(segment) = self.installs.values().find(idle).map(|image| image.identity.segment) else { return };
        if let Some(slot) = self.installs.remove(&segment).and_then(|image| image.slot()) {
            out.extend(Self::freed(slot));
        }
    }

    /// Buffers that must stay free when one is lent for this purpose. An image that repairs a copy needs a buffer of its own:
    /// until the image is whole, the copy may hold the only bytes there are. With every buffer lent for appends, a member whose
    /// copies all end too early could never be repaired, and a group that needs it would wait indefinitely.
    ///
    /// A pool of two has none to spare: one is being filled and one is ready.
    fn kept_for_images(&self, purpose: Purpose) -> u64 {
        let most = (self.limits.unflushed_bytes_max / u64::from(self.limits.slot_size)).min(self.limits.slots.into());
        u64::from(purpose == Purpose::Append && most > SLOTS_FOR_APPENDS_MIN)
    }
}
