//! The slot table: what each buffer of the pool is used for, beside the buffers, so that it lives and dies with them.
//!
//! Read at the start by [`start`](crate::start()); rows are rewritten by the [`daemon`](crate::daemon), in space that was
//! allocated when the table was made. The table's lock keeps a second daemon away from the pool.
//!
//! # Bytes
//! An entry of 4096 bytes for the owner, then one of 2048 bytes for each slot. An entry has two halves, so that a killed process
//! leaves it as it was before or after: a write fills the half that does not count, and then a word, which is stored whole, says
//! that it counts. (The pool may be on hugetlbfs, which takes no write(2): the file is written through its mapping.)
//! ```text
//! entry: which half counts: 0 none, 1, 2; 3 the slot is free (8)  zeros up to 512  first half  second half
//! half:  CRC-32 of what follows (4)  format version (2)  length of the JSON (2)  JSON  zeros
//! ```
//! A row says that its slot is free, and the owner's entry that the table is nobody's: an entry that says nothing has been lost.
//! The owner is written last, and names the rows there are.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tailwind_protocol::backup::{Slot, SlotRow};
use tailwind_protocol::ids::{BootId, GroupName, MemberId};
use tailwind_protocol::planted::{self, Bug};

use crate::memory::Mapped;

/// The table's file in the pool's folder.
pub const TABLE: &str = "slots.table";
const VERSION: u16 = 3;
/// Distance from an entry's beginning to its first half.
const HALVES_AT: u64 = 512;
/// Bytes of a row's half.
const ROW_SIZE: usize = 512;
/// Bytes of the owner's: its longest parts are two names.
const OWNER_SIZE: usize = 1024;
/// Distance from one entry to the next.
const ROW_STRIDE: u64 = 2048;
const ROWS_AT: u64 = 4096;
const HEAD_SIZE: usize = 8;
const _: () = assert!(HALVES_AT + 2 * ROW_SIZE as u64 <= ROW_STRIDE && HALVES_AT + 2 * OWNER_SIZE as u64 <= ROWS_AT);

/// The process that the memory belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The group that lent it.
    pub group: GroupName,
    /// The backup that lent it.
    pub member: MemberId,
    /// The memory's identity.
    pub boot: BootId,
    /// The kernel's own boot identity: with another one, memory that seems to be there is something else.
    pub kernel: String,
    /// Rows of the table.
    pub slots: u32,
}

/// Why the table cannot be used, for people.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The pool's file system said no.
    #[error("{action} slot table {path}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// The table.
        path: PathBuf,
        /// What the file system said.
        source: io::Error,
    },
    /// The pool's folder cannot be made, or is not to be trusted.
    #[error("{0}")]
    Folder(String),
    /// Another daemon has it.
    #[error("pool {path} is in use by another backup daemon: stop that first, or give this one its own --pool")]
    InUse {
        /// The pool's folder.
        path: PathBuf,
    },
    /// A newer version wrote it.
    #[error(
        "slot table {path} has format {found}, written by a newer version; this one reads up to {VERSION}: run the newer \
         version"
    )]
    Newer {
        /// The table.
        path: PathBuf,
        /// Its format.
        found: u16,
    },
    /// An entry is not what was written.
    #[error(
        "slot table {path} is damaged ({what}): whose buffers these are is unknown. If the group is well without this backup, \
         start it with another --pool. The group copies the log to it; keep the old pool until it has, and never do this at two \
         backups at once"
    )]
    Damaged {
        /// The table.
        path: PathBuf,
        /// Which entry, and what is wrong with it.
        what: String,
    },
}

impl TableError {
    /// Says what was being done when the file system said no.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TableError + use<> {
        let path = path.to_owned();
        move |source| TableError::Io { action, path, source }
    }
}

/// The open table.
#[derive(Debug)]
pub struct SlotTable {
    file: Box<dyn Mapped>,
    path: PathBuf,
}

/// What the rows say.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// The slots in use.
    pub used: Vec<(Slot, SlotRow)>,
    /// Slots whose use is unknown.
    pub damaged: Vec<Slot>,
}

enum Half<T> {
    Sound(T),
    Newer(u16),
    Damaged(&'static str),
}

impl SlotTable {
    /// The table in this file, which is in the folder `pool`. A new file has no owner.
    pub fn open(mut file: Box<dyn Mapped>, pool: &Path) -> Result<SlotTable, TableError> {
        let path = pool.join(TABLE);
        let length = file.length().max(ROWS_AT);
        file.grow(length).map_err(TableError::io("map", &path))?;
        Ok(SlotTable { file, path })
    }

    /// The owner; `None` if the table has none.
    pub fn owner(&self) -> Result<Option<Owner>, TableError> {
        // Rows are made once the table is known to be nobody's; a process that died while it made them leaves none.
        if self.counting(0)? == NONE && self.has_rows()? {
            let what = "the owner's entry is empty".to_owned();
            return Err(TableError::Damaged { path: self.path.clone(), what });
        }
        self.read::<OWNER_SIZE, _>(0, "owner")
    }

    fn has_rows(&self) -> Result<bool, TableError> {
        let rows = ((self.file.length() - ROWS_AT) / ROW_STRIDE) as u32;
        for slot in (0..rows).map(Slot) {
            if self.counting(row_offset(slot))? != NONE {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The slots in use, of the first `slots`, and those whose rows are damaged.
    pub fn rows(&self, slots: u32) -> Result<Rows, TableError> {
        let Rows { mut used, mut damaged } = Rows::default();
        for slot in (0..slots).map(Slot) {
            if row_offset(Slot(slot.0 + 1)) > self.file.length() || self.counting(row_offset(slot))? == NONE {
                if !planted::has(Bug::TableZeroIsFree) {
                    damaged.push(slot);
                }
                continue;
            }
            match self.read::<ROW_SIZE, _>(row_offset(slot), &format!("row of slot {}", slot.0)) {
                Ok(row) => used.extend(row.map(|row| (slot, row))),
                Err(TableError::Damaged { .. }) => damaged.push(slot),
                Err(error) => return Err(error),
            }
        }
        Ok(Rows { used, damaged })
    }

    /// Makes this a table without an owner, with `slots` rows.
    pub fn clear(&mut self, slots: u32) -> Result<(), TableError> {
        self.file.store(0, FREE);
        self.add_rows(0, slots)
    }

    /// Adds rows to those that `owner` names, all free. Rows of his that were cut off come back as zeros, which is damage.
    pub fn reserve(&mut self, owner: &Owner, slots: u32) -> Result<(), TableError> {
        let length = row_offset(Slot(owner.slots)).max(self.file.length());
        self.file.grow(length).map_err(TableError::io("map", &self.path))?;
        if slots > owner.slots {
            self.add_rows(owner.slots, slots)?;
            self.claim(&Owner { slots, ..owner.clone() })?;
        }
        Ok(())
    }

    fn add_rows(&mut self, from: u32, to: u32) -> Result<(), TableError> {
        let length = row_offset(Slot(to)).max(self.file.length());
        self.file.grow(length).map_err(TableError::io("map", &self.path))?;
        (from..to).for_each(|slot| self.file.store(row_offset(Slot(slot)), FREE));
        Ok(())
    }

    /// Makes this the table of `owner`.
    pub fn claim(&self, owner: &Owner) -> Result<(), TableError> {
        self.write(0, &to_half::<OWNER_SIZE>(owner))
    }

    /// Records what a slot is used for.
    pub fn save(&self, slot: Slot, row: Option<&SlotRow>) -> Result<(), TableError> {
        match row {
            Some(row) => self.write(row_offset(slot), &to_half::<ROW_SIZE>(row)),
            None => {
                self.file.store(row_offset(slot), FREE);
                Ok(())
            }
        }
    }

    fn write<const N: usize>(&self, entry: u64, half: &[u8; N]) -> Result<(), TableError> {
        let target = if self.counting(entry)? == FIRST { SECOND } else { FIRST };
        self.file.write(half_offset(entry, target, N), half);
        self.file.store(entry, target);
        Ok(())
    }

    /// The word of an entry.
    fn counting(&self, entry: u64) -> Result<u64, TableError> {
        let mut word = [0; 8];
        self.file.read(entry, &mut word).map_err(TableError::io("read", &self.path))?;
        Ok(u64::from_le_bytes(word))
    }

    fn read<const N: usize, T: DeserializeOwned>(&self, entry: u64, what: &str) -> Result<Option<T>, TableError> {
        let damaged = |why: &str| TableError::Damaged { path: self.path.clone(), what: format!("{what}: {why}") };
        let counting = self.counting(entry)?;
        match counting {
            NONE | FREE => return Ok(None),
            FIRST | SECOND => {}
            _ => return Err(damaged("which half counts is not known")),
        }
        let mut half = [0; N];
        self.file.read(half_offset(entry, counting, N), &mut half).map_err(TableError::io("read", &self.path))?;
        match from_half(&half) {
            Half::Sound(value) => Ok(Some(value)),
            Half::Newer(found) => Err(TableError::Newer { path: self.path.clone(), found }),
            Half::Damaged(why) => Err(damaged(why)),
        }
    }
}

/// Values of an entry's word.
const NONE: u64 = 0;
const FIRST: u64 = 1;
const SECOND: u64 = 2;
const FREE: u64 = 3;

fn half_offset(entry: u64, half: u64, size: usize) -> u64 {
    entry + HALVES_AT + (half - FIRST) * size as u64
}

fn row_offset(slot: Slot) -> u64 {
    ROWS_AT + u64::from(slot.0) * ROW_STRIDE
}

fn to_half<const N: usize>(value: &impl Serialize) -> [u8; N] {
    let json = serde_json::to_vec(value).expect("plain data");
    assert!(json.len() <= N - HEAD_SIZE, "a half holds the longest numbers and names");
    let mut half = [0; N];
    half[4..6].copy_from_slice(&VERSION.to_le_bytes());
    half[6..8].copy_from_slice(&(json.len() as u16).to_le_bytes());
    half[HEAD_SIZE..HEAD_SIZE + json.len()].copy_from_slice(&json);
    let crc = crc32fast::hash(&half[4..]);
    half[..4].copy_from_slice(&crc.to_le_bytes());
    half
}

fn from_half<const N: usize, T: DeserializeOwned>(half: &[u8; N]) -> Half<T> {
    if crc32fast::hash(&half[4..]).to_le_bytes() != half[..4] {
        return Half::Damaged("checksum does not match");
    }
    let version = u16::from_le_bytes([half[4], half[5]]);
    if version > VERSION {
        return Half::Newer(version);
    }
    let length = usize::from(u16::from_le_bytes([half[6], half[7]]));
    let json = half[HEAD_SIZE..].get(..length).and_then(|json| serde_json::from_slice(json).ok());
    json.map_or(Half::Damaged("not understood"), Half::Sound)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, SegmentId};
    use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
    use tailwind_protocol::rpc::Purpose;

    use super::*;

    /// A file that lives in this process.
    #[derive(Clone, Debug, Default)]
    struct Bytes(Arc<Mutex<Vec<u8>>>);

    impl Mapped for Bytes {
        fn length(&self) -> u64 {
            self.0.lock().unwrap().len() as u64
        }

        fn grow(&mut self, length: u64) -> io::Result<()> {
            let length = self.length().max(length) as usize;
            self.0.lock().unwrap().resize(length, 0);
            Ok(())
        }

        fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
            out.copy_from_slice(&self.0.lock().unwrap()[at as usize..][..out.len()]);
            Ok(())
        }

        fn write(&self, at: u64, bytes: &[u8]) {
            self.0.lock().unwrap()[at as usize..][..bytes.len()].copy_from_slice(bytes);
        }

        fn store(&self, at: u64, word: u64) {
            self.write(at, &word.to_le_bytes());
        }
    }

    fn open(file: &Bytes) -> SlotTable {
        SlotTable::open(Box::new(file.clone()), Path::new("pool")).unwrap()
    }

    fn owner() -> Owner {
        let kernel = "4a1e2c0e-0000-4000-8000-000000000000".to_owned();
        Owner { group: "db".parse().unwrap(), member: "b0".parse().unwrap(), boot: BootId(1), kernel, slots: 4 }
    }

    fn longest_row() -> SlotRow {
        let identity = SegmentIdentity {
            log: LogId(u128::MAX),
            segment: SegmentId(u64::MAX),
            epoch: Epoch(u64::MAX),
            generation: Generation(u64::MAX),
            size: SegmentSize::MAX,
        };
        let closure =
            Closure { first: Lsn(u64::MAX), last: Lsn(u64::MAX), end: Offset(u32::MAX), chain: Chain(u32::MAX) };
        SlotRow { identity, purpose: Purpose::Install, lender: Epoch(u64::MAX), closed: Some(closure) }
    }

    fn table() -> (Bytes, SlotTable) {
        let file = Bytes::default();
        let mut table = open(&file);
        table.clear(4).unwrap();
        (file, table)
    }

    fn rows(table: &SlotTable, slots: u32) -> Vec<(Slot, SlotRow)> {
        let Rows { used, damaged } = table.rows(slots).unwrap();
        assert_eq!(damaged, []);
        used
    }

    #[test]
    fn a_new_table_has_no_owner() {
        let (_file, table) = table();
        assert_eq!(table.owner().unwrap(), None);
        assert_eq!(rows(&table, 4), []);
    }

    #[test]
    fn rows_are_read_back_and_cleared() {
        let (file, table) = table();
        table.save(Slot(2), Some(&longest_row())).unwrap();
        table.claim(&owner()).unwrap();
        drop(table);
        let table = open(&file);
        assert_eq!(table.owner().unwrap(), Some(owner()));
        assert_eq!(rows(&table, 4), [(Slot(2), longest_row())]);
        table.save(Slot(2), None).unwrap();
        assert_eq!(rows(&table, 4), []);
    }

    #[test]
    fn a_header_holds_the_longest_names() {
        let long = "n".repeat(253);
        let owner = Owner { group: long.parse().unwrap(), member: long.parse().unwrap(), ..owner() };
        let (_file, table) = table();
        table.claim(&owner).unwrap();
        assert_eq!(table.owner().unwrap(), Some(owner));
    }

    #[test]
    fn damage_is_reported() {
        let (_file, table) = table();
        table.save(Slot(1), Some(&longest_row())).unwrap();
        table.file.write(half_offset(row_offset(Slot(1)), FIRST, ROW_SIZE) + 40, b"?");
        assert_eq!(table.rows(4).unwrap(), Rows { used: vec![], damaged: vec![Slot(1)] });
    }

    #[test]
    fn a_row_of_zeros_is_damaged_and_not_free() {
        let (file, table) = table();
        table.save(Slot(1), Some(&longest_row())).unwrap();
        for slot in [1, 3] {
            table.file.write(row_offset(Slot(slot)), &[0; ROW_STRIDE as usize]);
        }
        assert_eq!(table.rows(4).unwrap().damaged, [Slot(1), Slot(3)]);
        file.0.lock().unwrap().truncate(row_offset(Slot(2)) as usize);
        assert_eq!(table.rows(4).unwrap().damaged, [Slot(1), Slot(2), Slot(3)], "the file was cut off");
    }

    #[test]
    fn a_cut_table_gets_its_rows_back_as_damaged() {
        let (file, table) = table();
        table.save(Slot(3), Some(&longest_row())).unwrap();
        table.claim(&owner()).unwrap();
        drop(table);
        file.0.lock().unwrap().truncate(row_offset(Slot(2)) as usize);
        let mut table = open(&file);
        table.reserve(&owner(), 4).unwrap();
        assert_eq!(table.rows(4).unwrap(), Rows { used: vec![], damaged: vec![Slot(2), Slot(3)] });
        table.save(Slot(2), None).unwrap();
        table.save(Slot(3), Some(&longest_row())).unwrap();
        assert_eq!(rows(&table, 4), [(Slot(3), longest_row())]);
    }

    #[test]
    fn a_torn_write_leaves_the_row_unchanged() {
        let (_file, table) = table();
        let row = |epoch| SlotRow { lender: Epoch(epoch), ..longest_row() };
        for epoch in 1..4 {
            table.save(Slot(3), Some(&row(epoch))).unwrap();
            let counting = table.counting(row_offset(Slot(3))).unwrap();
            let other = if counting == FIRST { SECOND } else { FIRST };
            let cut_off = &to_half::<ROW_SIZE>(&row(9))[..200];
            table.file.write(half_offset(row_offset(Slot(3)), other, ROW_SIZE), cut_off);
            assert_eq!(rows(&table, 4), [(Slot(3), row(epoch))]);
        }
    }

    #[test]
    fn a_table_with_a_lost_owner_is_not_unowned() {
        let (_file, table) = table();
        assert_eq!(table.owner().unwrap(), None, "nobody has claimed it yet");
        table.claim(&owner()).unwrap();
        table.file.write(0, &[0; ROWS_AT as usize]);
        assert!(matches!(table.owner(), Err(TableError::Damaged { .. })));
    }

    #[test]
    fn a_table_grows_and_is_cleared() {
        let (_file, mut table) = table();
        table.save(Slot(3), Some(&longest_row())).unwrap();
        table.claim(&owner()).unwrap();
        table.reserve(&owner(), 1000).unwrap();
        table.save(Slot(999), Some(&longest_row())).unwrap();
        assert_eq!(rows(&table, 1000).len(), 2);
        assert_eq!(table.owner().unwrap(), Some(Owner { slots: 1000, ..owner() }));
        table.clear(4).unwrap();
        assert_eq!((rows(&table, 4), table.owner().unwrap()), (vec![], None));
    }
}
