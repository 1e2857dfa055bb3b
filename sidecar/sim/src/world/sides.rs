//! Side slots of a backup beside its board: the parts of a mirror. They are lent to the promised epoch, all zero, and belong to
//! no machine: derived from the log, they are freed at a fence and lost with the process.

use tailwind_backup::Lender;
use tailwind_protocol::backup::Slot;
use tailwind_protocol::ids::Epoch;
use tailwind_protocol::planted::{self, Bug};

use super::fabric::Key;
use super::host::Running;
use super::memory::Lent;
use super::{BOARD, HostNo, World};

/// Bytes of a part.
pub(super) const PART: u32 = 4096;
/// Most parts of a backup.
const PARTS_MAX: u32 = 1024;

/// Which lending of a mirror's parts: the epoch, and its number there.
pub(super) type PartsLending = (Epoch, u64);

/// The slot of a part.
pub(super) fn part_slot(part: u32) -> Slot {
    assert!(part < PARTS_MAX, "a backup has fewer parts");
    Slot(BOARD.0 - 1 - part)
}

/// Which part a slot is.
pub(super) fn part_of(slot: Slot) -> Option<u32> {
    let part = (BOARD.0 - 1).checked_sub(slot.0)?;
    (part < PARTS_MAX).then_some(part)
}

impl World {
    /// Parts that this backup has.
    pub(super) fn parts_at(&self, no: HostNo) -> u32 {
        let plan = self.plan.mirrors.as_ref().filter(|plan| plan.without != Some(no.0));
        plan.map_or(0, |plan| plan.parts)
    }

    /// As the production daemon does: lends so many parts to the promised epoch, all zero. What was lent before is over, so that
    /// nothing lands any more of what was posted there. `None`: it has not so many, has promised another epoch, or has no memory.
    pub(super) fn lend_parts(&mut self, no: HostNo, lending: PartsLending, parts: u32) -> Option<Vec<(Slot, Key)>> {
        let promised = self.hosts[no.0].machine()?.promise().epoch;
        let (wrong, known) = (promised != lending.0 || parts > self.parts_at(no), self.hosts[no.0].parts_lending);
        // A request that comes late must not make zeros of what has been lent since.
        if wrong || lending < known || self.hosts[no.0].running != Running::Up {
            return None;
        }
        self.hosts[no.0].parts_lending = lending;
        let again = lending == known;
        (0..parts).map(part_slot).map(|slot| self.lend_part(no, lending.0, slot, again)).collect()
    }

    fn lend_part(&mut self, no: HostNo, epoch: Epoch, slot: Slot, again: bool) -> Option<(Slot, Key)> {
        let known = |world: &World| world.hosts[no.0].lendings.get(&slot).map(|lending| (slot, lending.key));
        if known(self).is_some() {
            if again || planted::has(Bug::PartsLentOnce) {
                return known(self);
            }
            Lent { world: self, no }.release(slot).ok()?;
        }
        Lent { world: self, no }.lend(epoch, slot).ok()?;
        known(self)
    }

    /// The shares of the parts that are lent to the promised epoch, in their order.
    pub(super) fn share_parts(&mut self, no: HostNo) -> Vec<(Slot, Key)> {
        let Some(promised) = self.hosts[no.0].machine().map(|machine| machine.promise().epoch) else {
            return Vec::new();
        };
        let lent = |world: &World, slot: Slot| {
            world.hosts[no.0].lendings.get(&slot).is_some_and(|lending| lending.writer == promised)
        };
        let mut shares = Vec::new();
        for slot in (0..self.parts_at(no)).map(part_slot) {
            let share = lent(self, slot).then(|| self.share(no, slot)).flatten();
            let Some(key) = share else { break };
            shares.push((slot, key));
        }
        shares
    }

    /// Side slots whose writers have been revoked are given up: nobody reads or writes them any more, and their bytes are gone.
    pub(super) fn free_parts(&mut self, no: HostNo) -> anyhow::Result<()> {
        for slot in (0..self.parts_at(no)).map(part_slot) {
            if !self.hosts[no.0].lendings.contains_key(&slot) {
                Lent { world: self, no }.release(slot)?;
            }
        }
        Ok(())
    }

    /// The process is gone, and the memory of its mirror with it.
    pub(super) fn lose_parts(&mut self, no: HostNo) {
        for slot in (0..self.parts_at(no)).map(part_slot) {
            self.hosts[no.0].pool.forget(slot);
            self.hosts[no.0].zeroed.retain(|(of, _), _| *of != slot);
        }
    }
}
