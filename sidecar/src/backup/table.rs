//! The slot table: what each buffer of the pool is used for, beside the buffers, so that it lives and dies with them.
//!
//! Read at the start by [`wake`](super::wake); rows are rewritten by the [`actor`](super::actor), in space that was allocated
//! when the table was made. The table's lock keeps a second daemon away from the pool.
//!
//! # Bytes
//! An entry of 4096 bytes for the owner, then one of 2048 bytes for each slot. An entry has two halves, so that a killed process
//! leaves it as it was before or after: a write fills the half that does not count, and then a word, which is stored whole, says
//! that it counts. (The pool may be on hugetlbfs, which takes no write(2): the file is written through its mapping.)
//! ```text
//! entry: which half counts: 0 none, 1, 2 (8)  zeros up to 512  first half  second half
//! half:  CRC-32 of what follows (4)  format version (2)  length of the JSON (2)  JSON  zeros
//! ```
//! A row of which no half counts is a free slot. An owner of which none counts is no table: it is written last.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tailwind_fabric::MappedFile;
use tailwind_protocol::backup::{Slot, SlotRow};
use tailwind_protocol::ids::{BootId, GroupName, MemberId};

const VERSION: u16 = 2;
/// From an entry's beginning to its first half.
const HALVES_AT: u64 = 512;
/// Bytes of a row's half.
const ROW_SIZE: usize = 512;
/// Bytes of the owner's: its longest parts are two names.
const OWNER_SIZE: usize = 1024;
/// From one entry to the next.
const ROW_STRIDE: u64 = 2048;
const ROWS_AT: u64 = 4096;
const HEAD_SIZE: usize = 8;
const _: () = assert!(HALVES_AT + 2 * ROW_SIZE as u64 <= ROW_STRIDE && HALVES_AT + 2 * OWNER_SIZE as u64 <= ROWS_AT);

/// Whose memory this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    /// The group that lent it.
    pub(super) group: GroupName,
    /// The backup that lent it.
    pub(super) member: MemberId,
    /// The memory's identity.
    pub(super) boot: BootId,
    /// The kernel's own boot identity: with another one, memory that seems to be there is something else.
    pub(super) kernel: String,
}

/// Why the table cannot be used, for people.
#[derive(Debug, thiserror::Error)]
pub(super) enum TableError {
    #[error("{action} slot table {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("pool {path} is in use by another backup daemon: stop that first, or give this one a --pool of its own")]
    InUse { path: PathBuf },
    #[error(
        "slot table {path} has format {found}, written by a newer version; this one reads up to {VERSION}: run the newer \
         version"
    )]
    Newer { path: PathBuf, found: u16 },
    #[error(
        "slot table {path} is damaged ({what}): what the buffers hold is unknown; remove the pool folder, which loses the \
         records in it that are not flushed, and let the group fill this backup anew"
    )]
    Damaged { path: PathBuf, what: String },
}

/// The open table.
#[derive(Debug)]
pub(super) struct SlotTable {
    file: MappedFile,
    path: PathBuf,
}

enum Half<T> {
    Sound(T),
    Newer(u16),
    Damaged(&'static str),
}

impl SlotTable {
    /// Opens the table in `pool`, making one of nobody if there is none, and locks it.
    pub(super) fn open(pool: &Path) -> Result<SlotTable, TableError> {
        let path = pool.join("slots.table");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(io_error("open", &path))?;
        match file.try_lock() {
            Ok(()) => SlotTable::map(file, path, ROWS_AT),
            Err(TryLockError::WouldBlock) => Err(TableError::InUse { path: pool.to_owned() }),
            Err(TryLockError::Error(error)) => Err(io_error("lock", &path)(error)),
        }
    }

    fn map(file: File, path: PathBuf, length: u64) -> Result<SlotTable, TableError> {
        let file = MappedFile::map(file, length).map_err(io_error("map", &path))?;
        Ok(SlotTable { file, path })
    }

    /// Whose memory this is; `None`: nobody's.
    pub(super) fn owner(&self) -> Result<Option<Owner>, TableError> {
        self.read::<OWNER_SIZE, _>(0, "owner")
    }

    /// The slots in use.
    pub(super) fn rows(&self) -> Result<Vec<(Slot, SlotRow)>, TableError> {
        let mut rows = Vec::new();
        for slot in self.slots() {
            let row = self.read::<ROW_SIZE, _>(row_offset(slot), &format!("row of slot {}", slot.0))?;
            rows.extend(row.map(|row| (slot, row)));
        }
        Ok(rows)
    }

    /// All that there is room for.
    fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..((self.file.len() - ROWS_AT) / ROW_STRIDE) as u32).map(Slot)
    }

    /// Makes this the table of nobody, with room for `slots`.
    pub(super) fn clear(&mut self, slots: u32) -> Result<(), TableError> {
        self.file.store(0, NONE);
        self.reserve(slots)?;
        self.slots().for_each(|slot| self.file.store(row_offset(slot), NONE));
        Ok(())
    }

    /// Makes room for `slots`.
    pub(super) fn reserve(&mut self, slots: u32) -> Result<(), TableError> {
        // The handle that is locked stays open in the old mapping until the new one, a copy of the same handle, is there.
        let file = self.file.file().try_clone().map_err(io_error("map", &self.path))?;
        *self = SlotTable::map(file, self.path.clone(), row_offset(Slot(slots)))?;
        Ok(())
    }

    /// Makes this the table of `owner`.
    pub(super) fn claim(&self, owner: &Owner) -> Result<(), TableError> {
        self.write(0, &to_half::<OWNER_SIZE>(owner))
    }

    /// Records what a slot is used for.
    pub(super) fn save(&self, slot: Slot, row: Option<&SlotRow>) -> Result<(), TableError> {
        match row {
            Some(row) => self.write(row_offset(slot), &to_half::<ROW_SIZE>(row)),
            None => {
                self.file.store(row_offset(slot), NONE);
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
        self.file.read(entry, &mut word).map_err(io_error("read", &self.path))?;
        Ok(u64::from_le_bytes(word))
    }

    fn read<const N: usize, T: DeserializeOwned>(&self, entry: u64, what: &str) -> Result<Option<T>, TableError> {
        let damaged = |why: &str| TableError::Damaged { path: self.path.clone(), what: format!("{what}: {why}") };
        let counting = self.counting(entry)?;
        match counting {
            NONE => return Ok(None),
            FIRST | SECOND => {}
            _ => return Err(damaged("which half counts is not known")),
        }
        let mut half = [0; N];
        self.file.read(half_offset(entry, counting, N), &mut half).map_err(io_error("read", &self.path))?;
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

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TableError {
    let path = path.to_owned();
    move |source| TableError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, SegmentId};
    use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
    use tailwind_protocol::rpc::Purpose;

    use super::*;

    fn owner() -> Owner {
        let kernel = "4a1e2c0e-0000-4000-8000-000000000000".to_owned();
        Owner { group: "db".parse().unwrap(), member: "b0".parse().unwrap(), boot: BootId(1), kernel }
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

    fn table() -> (tempfile::TempDir, SlotTable) {
        let dir = tempfile::tempdir().unwrap();
        let mut table = SlotTable::open(dir.path()).unwrap();
        table.clear(4).unwrap();
        (dir, table)
    }

    #[test]
    fn a_new_table_is_nobodys() {
        let (_dir, table) = table();
        assert_eq!(table.owner().unwrap(), None);
        assert_eq!(table.rows().unwrap(), []);
    }

    #[test]
    fn rows_are_read_back_and_cleared() {
        let (dir, table) = table();
        table.save(Slot(2), Some(&longest_row())).unwrap();
        table.claim(&owner()).unwrap();
        drop(table);
        let table = SlotTable::open(dir.path()).unwrap();
        assert_eq!(table.owner().unwrap(), Some(owner()));
        assert_eq!(table.rows().unwrap(), [(Slot(2), longest_row())]);
        table.save(Slot(2), None).unwrap();
        assert_eq!(table.rows().unwrap(), []);
    }

    #[test]
    fn a_header_holds_the_longest_names() {
        let long = "n".repeat(253);
        let owner = Owner { group: long.parse().unwrap(), member: long.parse().unwrap(), ..owner() };
        let (_dir, table) = table();
        table.claim(&owner).unwrap();
        assert_eq!(table.owner().unwrap(), Some(owner));
    }

    #[test]
    fn damage_is_told() {
        let (_dir, table) = table();
        table.save(Slot(1), Some(&longest_row())).unwrap();
        table.file.write(half_offset(row_offset(Slot(1)), FIRST, ROW_SIZE) + 40, b"?");
        let error = table.rows().unwrap_err().to_string();
        assert!(error.contains("row of slot 1"), "{error}");
    }

    #[test]
    fn a_write_that_was_cut_off_leaves_the_row_as_it_was() {
        let (_dir, table) = table();
        let row = |epoch| SlotRow { lender: Epoch(epoch), ..longest_row() };
        for epoch in 1..4 {
            table.save(Slot(3), Some(&row(epoch))).unwrap();
            let counting = table.counting(row_offset(Slot(3))).unwrap();
            let other = if counting == FIRST { SECOND } else { FIRST };
            let cut_off = &to_half::<ROW_SIZE>(&row(9))[..200];
            table.file.write(half_offset(row_offset(Slot(3)), other, ROW_SIZE), cut_off);
            assert_eq!(table.rows().unwrap(), [(Slot(3), row(epoch))]);
        }
    }

    #[test]
    fn a_table_grows_and_is_cleared() {
        let (_dir, mut table) = table();
        table.save(Slot(3), Some(&longest_row())).unwrap();
        table.claim(&owner()).unwrap();
        table.reserve(1000).unwrap();
        table.save(Slot(999), Some(&longest_row())).unwrap();
        assert_eq!(table.rows().unwrap().len(), 2);
        assert_eq!(table.owner().unwrap(), Some(owner()));
        table.clear(4).unwrap();
        assert_eq!((table.rows().unwrap(), table.owner().unwrap()), (vec![], None));
    }

    #[test]
    fn a_second_daemon_is_kept_out() {
        let (dir, _table) = table();
        let error = SlotTable::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("in use by another backup daemon"), "{error}");
    }
}
