//! The right to lend from a pool, and what a receiver does with it: give slots memory, freeze it, take it back.
//!
//! Part of [`Pool`]; each fabric's receiver holds one.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Pool, PoolError, in_use};
use crate::mapping::{Flag, Mapping};
use crate::message::SlotId;

/// The right to lend from a pool: one receiver at a time. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    pool: Arc<Pool>,
}

impl Claim {
    pub(super) fn new(pool: Arc<Pool>) -> Claim {
        Claim { pool }
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Gives `slot` new memory, all zero and in place. What was in the slot is lost, and an earlier lending over.
    pub(crate) fn fresh(&self, slot: SlotId) -> Result<Arc<Mapping>, PoolError> {
        let mut current = self.pool.exclusive(slot);
        if self.pool.is_side(slot) {
            // A part is large, and nobody needs what is in it: there is no need to have two at a time.
            self.pool.remove(slot, &mut current)?;
        }
        let new = self.pool.create(slot)?;
        let memory = Arc::clone(&new.memory);
        self.pool.replace(slot, &mut current, new)?;
        Ok(memory)
    }

    /// The same, in the memory that was [kept](Claim::keep), if any was.
    pub(crate) fn renew(&self, slot: SlotId) -> Result<Arc<Mapping>, PoolError> {
        let mut current = self.pool.exclusive(slot);
        if let Some(inode) = current.as_mut().filter(|inode| inode.spare) {
            inode.memory.mark();
            inode.spare = false;
            return Ok(Arc::clone(&inode.memory));
        }
        drop(current);
        self.fresh(slot)
    }

    /// Gives the memory of `slot` back; it reads as zero from now on. A writer that had not finished finds its lending
    /// ended.
    pub(crate) fn release(&self, slot: SlotId) -> Result<(), PoolError> {
        self.pool.remove(slot, &mut self.pool.exclusive(slot))
    }

    /// The same, but clears the memory and keeps it for [`Claim::renew`], if it was allocated in full and is no side slot's. The
    /// caller guarantees that no writer with an earlier grant is in the middle of a write or begins one.
    pub(crate) fn keep(&self, slot: SlotId) -> Result<(), PoolError> {
        let mut current = self.pool.exclusive(slot);
        if self.pool.is_side(slot) || current.as_ref().is_some_and(|inode| inode.sparse) {
            return self.pool.remove(slot, &mut current);
        }
        if let Some(inode) = &mut *current {
            inode.withdraw();
            // It counts no more before it is cleared, whenever this process may be killed.
            inode.memory.unmark();
            inode.memory.clear();
            inode.spare = true;
        }
        Ok(())
    }

    /// Replaces the memory of `slot` by a copy that no other process has ever mapped, and that holds every write that
    /// has completed. Can be repeated: until the rename the old file remains, with its flag, as if nothing had happened.
    /// The copy is for reading: [`Claim::keep`] removes it. Memory that was kept stays as it is.
    pub(crate) fn freeze(&self, slot: SlotId) -> Result<(), PoolError> {
        let mut current = self.pool.exclusive(slot);
        let Some(old) = in_use(&current) else { return Ok(()) };
        old.memory.end();
        let copy = self.pool.copy(slot, &old.file)?;
        self.pool.replace(slot, &mut current, copy)
    }

    /// The slot's memory, if it has any.
    pub(crate) fn memory(&self, slot: SlotId) -> Option<Arc<Mapping>> {
        in_use(&self.pool.shared(slot)).map(|inode| Arc::clone(&inode.memory))
    }

    /// The file of a slot's memory, for reading.
    pub(crate) fn file(&self, slot: SlotId) -> io::Result<File> {
        match in_use(&self.pool.shared(slot)) {
            Some(inode) => inode.file.try_clone(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Freezes every slot that a process of an earlier life may still be writing (promise 7). All flags first, so that
    /// every such writer stops at once and not only when its turn to be copied comes. Ends what an earlier life has shared.
    pub(crate) fn freeze_lent(&self) -> Result<(), PoolError> {
        (0..self.pool.slots()).filter_map(|slot| self.memory(SlotId(slot))).for_each(|memory| memory.end_share());
        (self.pool.slots()..self.pool.all_slots()).try_for_each(|slot| self.release(SlotId(slot)))?;
        for slot in (0..self.pool.slots()).map(SlotId).filter(|slot| !self.pool.has(*slot)) {
            self.release(slot)?;
        }
        let was_lent = |slot: &SlotId| self.memory(*slot).is_some_and(|memory| memory.flag() != Flag::NeverLent);
        let lent: Vec<SlotId> = (0..self.pool.slots()).map(SlotId).filter(was_lent).collect();
        lent.iter().filter_map(|slot| self.memory(*slot)).for_each(|memory| memory.end());
        lent.into_iter().try_for_each(|slot| self.freeze(slot))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.pool.claimed.store(false, Ordering::Release);
    }
}
