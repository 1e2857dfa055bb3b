//! The side slots: memory beside the slots that is worth nothing to the next process.
//!
//! Part of [`Pool`]. The first one is small and always there, with a file `side.buf`. Behind it are *parts*, of one size, each
//! with a file like `part-0000.buf`. All are lent and shared like the slots, but nobody counts on what is in them once the right
//! of their writer has ended. So a revocation copies none of them, and a process that starts removes those of the one before.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::OFlags;
use tailwind_folder::Folder;

use super::error::PoolError;
use super::folder::{TEMPORARY, names};
use super::{Pool, SPARE_SLOTS, punch};
use crate::mapping::{FLAG_PAGE_SIZE, Mapping, SLOT_SIZE_MAX};
use crate::message::SlotId;

/// Bytes of the first side slot.
pub const SIDE_SLOT_SIZE: u32 = 4096;
/// The first side slot's file.
const SIDE_FILE: &str = "side.buf";

/// The side slots behind the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// How many there are.
    pub count: u32,
    /// Bytes of each: a power of two from 4 KiB to 64 MiB.
    pub size: u32,
}

impl Parts {
    /// No slot but the first.
    pub const NONE: Parts = Parts { count: 0, size: 0 };

    /// What is wrong with them.
    pub(super) fn problem(self) -> Option<String> {
        let Parts { count, size } = self;
        let possible = size.is_power_of_two() && (FLAG_PAGE_SIZE..=SLOT_SIZE_MAX).contains(&size);
        (count > 0 && !possible).then(|| {
            format!("{count} parts of {size} bytes: must be a power of two between {FLAG_PAGE_SIZE} and {SLOT_SIZE_MAX} bytes")
        })
    }
}

impl Pool {
    /// The first side slot: after a restart without memory, until it is lent again.
    pub fn side_slot(&self) -> SlotId {
        SlotId(self.slots)
    }

    /// The parts that there are.
    pub fn parts(&self) -> Parts {
        self.parts
    }

    /// The side slot of a part, from 0 on, which is without memory until it is lent; `None` beyond the last.
    pub fn part(&self, nth: u32) -> Option<SlotId> {
        (nth < self.parts.count).then(|| SlotId(self.slots + 1 + nth))
    }

    /// True for side slots.
    pub(crate) fn is_side(&self, slot: SlotId) -> bool {
        slot.0 >= self.slots
    }

    /// All slots, side slots included.
    pub(crate) fn all_slots(&self) -> u32 {
        self.memory.len() as u32
    }

    /// The name of a side slot's file.
    pub(super) fn side_name(&self, slot: SlotId) -> String {
        if slot == self.side_slot() { SIDE_FILE.to_owned() } else { format!("part-{:04}.buf", slot.0 - self.slots - 1) }
    }

    /// Refuses memory for a part that slots may need: they come first.
    pub(super) fn check_free_for(&self, slot: SlotId) -> Result<(), PoolError> {
        if slot <= self.side_slot() {
            return Ok(());
        }
        let missing = (0..self.slots).filter(|slot| self.shared(SlotId(*slot)).is_none()).count() as u64;
        self.check_free((missing + SPARE_SLOTS) * self.file_size(self.slot_size) + self.file_size(self.parts.size))
    }
}

/// Removes the side slots of earlier processes, however many there are, and no matter what has their names by now. What an earlier
/// process has lent or shared of them ends. A file that cannot be removed is replaced by the next lending, or in its way.
pub(super) fn discard(folder: &Folder) -> Result<(), PoolError> {
    for name in names(folder)? {
        let Some(name) = name.to_str().filter(|name| is_side_file(name)) else { continue };
        let file = folder.open_file(name, OFlags::empty());
        let found = file.ok().and_then(|file| Some((withdraw(&file).ok()??, file)));
        let removed = folder.remove_if_present(name);
        if let Some((size, file)) = found
            && removed.is_ok()
        {
            punch(&file, size);
        }
    }
    Ok(())
}

/// Ends what is lent or shared of this file; returns the size of its slot. `None`: it is the file of no slot.
fn withdraw(file: &File) -> io::Result<Option<u32>> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Ok(None);
    }
    let Some(size) = Mapping::marked_sizes(file, found.len()).next() else { return Ok(None) };
    let memory = Mapping::new(file, size)?;
    memory.end();
    memory.end_share();
    Ok(Some(size))
}

fn is_side_file(name: &str) -> bool {
    let Some((stem, "buf" | TEMPORARY)) = name.rsplit_once('.') else { return false };
    let number = stem.strip_prefix("part-").filter(|number| number.len() >= 4);
    Some(stem) == Path::new(SIDE_FILE).file_stem().and_then(|stem| stem.to_str())
        || number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
}
