//! Residents: closed copies that keep a buffer after their flush, so that they are read from memory.
//!
//! Part of [`Backup`]. A resident is a cache of a file, never evidence: its copy is on disk, and inventories, syncs, bounds,
//! scrubs and starts look at that alone. So residents are in a table of their own, and none is held longer than the file that
//! it stands for. See "Residents" in `docs/protocol.md`.

use crate::ids::{Epoch, SegmentId};
use crate::layout::{Closure, SegmentIdentity};
use crate::planted::{self, Bug};
use crate::rpc::Purpose;

use super::{Backup, Copy, Output, Place, Slot, SlotRow, Stage};

/// The buffer of a copy that is on disk too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Resident {
    pub(super) slot: Slot,
    identity: SegmentIdentity,
    closure: Closure,
}

impl Resident {
    /// True if this holds the bytes of the copy's file.
    fn is_of(&self, copy: &Copy) -> bool {
        (copy.stage, copy.place) == (Stage::Closed, Place::Disk) && self.is_same(&copy.identity, &copy.closure)
    }

    fn is_same(&self, identity: &SegmentIdentity, closure: &Closure) -> bool {
        (&self.identity, &self.closure) == (identity, closure)
    }

    fn row(&self) -> SlotRow {
        let closed = Some(self.closure);
        SlotRow { identity: self.identity, purpose: Purpose::Append, lender: SlotRow::NOBODY, closed }
    }
}

impl SlotRow {
    /// What a resident's row has as its lender.
    const NOBODY: Epoch = Epoch(0);

    /// True for the row of a resident: what is in the slot is in a file too, and counts for nothing.
    pub fn is_resident(&self) -> bool {
        self.lender == Self::NOBODY && self.closed.is_some()
    }
}

impl Backup {
    /// The buffer of this copy, if it is a resident.
    pub(super) fn resident(&self, copy: &Copy) -> Option<Slot> {
        let resident = self.residents.get(&copy.identity.segment);
        resident.filter(|resident| resident.is_of(copy)).map(|resident| resident.slot)
    }

    /// The slots of residents.
    pub(super) fn resident_slots(&self) -> impl Iterator<Item = Slot> {
        self.residents.values().map(|resident| resident.slot)
    }

    /// A closed copy is on disk: its slot becomes a resident's, in place of the oldest one's if there are as many as may be.
    pub(super) fn keep_flushed(
        &mut self,
        slot: Slot,
        identity: SegmentIdentity,
        closure: Closure,
        out: &mut Vec<Output>,
    ) {
        let is_full = self.residents.len() >= self.limits.residents as usize;
        let oldest = self.residents.keys().next().copied();
        match oldest.filter(|_| is_full) {
            Some(oldest) if oldest < identity.segment => self.free_resident(oldest, out),
            None if !is_full => {}
            _ => return out.extend(Self::freed(slot)),
        }
        let resident = Resident { slot, identity, closure };
        self.residents.insert(identity.segment, resident);
        out.extend([Output::Retain(slot), Output::SaveSlot(slot, Some(resident.row()))]);
    }

    /// The newest closed copy that is on disk alone, if there are slots to spare: what is to be loaded next.
    pub fn loadable(&self) -> Option<(SegmentIdentity, Closure)> {
        self.spare_slot()?;
        let alone = |copy: &&Copy| {
            let on_disk = (copy.stage, copy.place) == (Stage::Closed, Place::Disk);
            on_disk && !self.residents.contains_key(&copy.identity.segment)
        };
        self.copies.values().rev().find(alone).map(|copy| (copy.identity, copy.closure))
    }

    /// True while this segment has a resident.
    pub fn is_resident(&self, segment: SegmentId) -> bool {
        self.residents.contains_key(&segment)
    }

    /// A slot for another resident, if there may be one: a free one, never a resident's.
    fn spare_slot(&self) -> Option<Slot> {
        if self.ending || self.residents.len() >= self.limits.residents as usize {
            return None;
        }
        let used: Vec<Slot> = self.slots_in_use().chain(self.resident_slots()).collect();
        (0..self.limits.slots).map(Slot).find(|slot| !used.contains(slot))
    }

    /// A copy's bytes have been read from its file and verified, to be loaded. It may be gone by now, and so may the slot.
    pub(super) fn on_load(&mut self, identity: SegmentIdentity, closure: Closure, out: &mut Vec<Output>) {
        let Some(slot) = self.spare_slot() else { return };
        let resident = Resident { slot, identity, closure };
        let segment = identity.segment;
        let wanted = self.copies.get(&segment).is_some_and(|copy| resident.is_of(copy));
        if wanted && !self.residents.contains_key(&segment) {
            self.residents.insert(segment, resident);
            out.push(Output::Load(slot));
        }
    }

    pub(super) fn on_loaded(&mut self, slot: Slot, result: Result<(), String>, out: &mut Vec<Output>) {
        let Some(resident) = self.residents.values().find(|resident| resident.slot == slot) else { return };
        match result {
            // Recorded once the bytes are there: a row of a resident is believed until they are read.
            Ok(()) => out.push(Output::SaveSlot(slot, Some(resident.row()))),
            Err(_) => self.free_resident(resident.identity.segment, out),
        }
    }

    /// A resident that was read does not verify. Its copy is well, as far as this shows.
    pub(super) fn on_resident_corrupt(&mut self, identity: &SegmentIdentity, slot: Slot, out: &mut Vec<Output>) {
        let resident = self.residents.get(&identity.segment);
        if resident.is_some_and(|resident| resident.slot == slot && resident.identity == *identity) {
            self.free_resident(identity.segment, out);
        }
    }

    /// What a planted bug takes for a copy whose file is gone or has rotted.
    pub(super) fn is_excused(&self, segment: SegmentId) -> bool {
        planted::has(Bug::ResidentIsEvidence) && self.residents.contains_key(&segment)
    }

    /// The slot that is lent next where no other is free.
    pub(super) fn oldest_resident(&self) -> Option<Slot> {
        self.residents.values().next().map(|resident| resident.slot)
    }

    /// This slot is to be lent.
    pub(super) fn evict(&mut self, slot: Slot, out: &mut Vec<Output>) {
        let mut evicted = self.residents.iter().filter(|(_, resident)| resident.slot == slot);
        if let Some(segment) = evicted.next().map(|(segment, _)| *segment) {
            self.free_resident(segment, out);
        }
    }

    /// Frees the residents whose copy was trimmed, dropped, replaced or found corrupt: after every input, so that no way of
    /// losing a copy can forget them.
    pub(super) fn free_strays(&mut self, out: &mut Vec<Output>) {
        let is_stray = |(segment, resident): &(&SegmentId, &Resident)| {
            !self.copies.get(*segment).is_some_and(|copy| resident.is_of(copy))
        };
        let strays: Vec<SegmentId> = self.residents.iter().filter(is_stray).map(|(segment, _)| *segment).collect();
        strays.into_iter().for_each(|segment| self.free_resident(segment, out));
    }

    fn free_resident(&mut self, segment: SegmentId, out: &mut Vec<Output>) {
        let freed = self.residents.remove(&segment);
        out.extend(freed.into_iter().flat_map(|resident| Self::freed(resident.slot)));
    }

    /// Takes in the residents of the last process, the newest first: those whose file is here, and is owed.
    pub(super) fn take_residents(&mut self, mut rows: Vec<(Slot, SlotRow)>, out: &mut Vec<Output>) {
        rows.sort_unstable_by_key(|(_, row)| std::cmp::Reverse(row.identity.segment));
        for (slot, row) in rows {
            let resident = Resident { slot, identity: row.identity, closure: row.closed.unwrap_or_default() };
            let segment = row.identity.segment;
            if let Some(copy) = self.copies.get_mut(&segment).filter(|_| planted::has(Bug::ResidentIsEvidence))
                && resident.is_same(&copy.identity, &copy.closure)
            {
                copy.stage = Stage::Closed;
            }
            let is_here = self.copies.get(&segment).is_some_and(|copy| resident.is_of(copy));
            let is_full = self.residents.len() >= self.limits.residents as usize;
            if is_here && !is_full && !self.residents.contains_key(&segment) {
                self.residents.insert(segment, resident);
            } else {
                out.extend(Self::freed(slot));
            }
        }
    }
}
