//! The slot table: what each buffer of the pool is used for, beside the buffers, so that it lives and dies with them.
//!
//! Read at the start by [`wake`](super::wake); rows are rewritten in place by the [`actor`](super::actor), in space that
//! was allocated when the table was made. The table's lock keeps a second daemon away from the pool.
//!
//! # Bytes
//! A header of 1024 bytes, then a row of 512 bytes for each slot. None straddles a page, so that a killed process leaves
//! each of them written or not. All look alike:
//! ```text
//! CRC-32 of what follows (4)  format version (2)  length of the JSON (2)  JSON  zeros
//! ```
//! A row of zeros is a free slot. A header of zeros is no table: it is written last.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tailwind_protocol::backup::{Slot, SlotRow};
use tailwind_protocol::ids::{BootId, GroupName, MemberId};

const VERSION: u16 = 1;
const UNIT_SIZE: usize = 512;
const HEAD_SIZE: usize = 8;
/// A header's longest parts are two names.
const HEADER_SIZE: usize = 2 * UNIT_SIZE;

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
    file: File,
    path: PathBuf,
}

enum Unit<T> {
    Nothing,
    Sound(T),
    Newer(u16),
    Damaged(&'static str),
}

impl SlotTable {
    /// Opens the table in `pool`, making an empty file if there is none, and locks it.
    pub(super) fn open(pool: &Path) -> Result<SlotTable, TableError> {
        let path = pool.join("slots.table");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(io_error("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(SlotTable { file, path }),
            Err(TryLockError::WouldBlock) => Err(TableError::InUse { path: pool.to_owned() }),
            Err(TryLockError::Error(error)) => Err(io_error("lock", &path)(error)),
        }
    }

    /// Whose memory this is; `None`: nobody's.
    pub(super) fn owner(&self) -> Result<Option<Owner>, TableError> {
        self.read::<HEADER_SIZE, _>(0, "header")
    }

    /// The slots in use.
    pub(super) fn rows(&self) -> Result<Vec<(Slot, SlotRow)>, TableError> {
        let length = self.file.metadata().map_err(io_error("read", &self.path))?.len();
        let slots = length.saturating_sub(HEADER_SIZE as u64) / UNIT_SIZE as u64;
        let mut rows = Vec::new();
        for slot in (0..slots as u32).map(Slot) {
            let row = self.read::<UNIT_SIZE, _>(row_offset(slot), &format!("row of slot {}", slot.0))?;
            rows.extend(row.map(|row| (slot, row)));
        }
        Ok(rows)
    }

    /// Makes this the table of nobody, with room for `slots`.
    pub(super) fn clear(&self, slots: u32) -> Result<(), TableError> {
        self.file.set_len(0).map_err(io_error("empty", &self.path))?;
        self.reserve(slots)
    }

    /// Makes room for `slots`.
    pub(super) fn reserve(&self, slots: u32) -> Result<(), TableError> {
        fallocate(&self.file, FallocateFlags::empty(), 0, row_offset(Slot(slots)))
            .map_err(|errno| io_error("allocate", &self.path)(errno.into()))
    }

    /// Makes this the table of `owner`.
    pub(super) fn claim(&self, owner: &Owner) -> Result<(), TableError> {
        self.write(0, &to_unit::<HEADER_SIZE>(owner))
    }

    /// Records what a slot is used for.
    pub(super) fn save(&self, slot: Slot, row: Option<&SlotRow>) -> Result<(), TableError> {
        let unit = row.map_or([0; UNIT_SIZE], to_unit::<UNIT_SIZE>);
        self.write(row_offset(slot), &unit)
    }

    fn write(&self, offset: u64, unit: &[u8]) -> Result<(), TableError> {
        self.file.write_all_at(unit, offset).map_err(io_error("write", &self.path))
    }

    fn read<const N: usize, T: DeserializeOwned>(&self, offset: u64, what: &str) -> Result<Option<T>, TableError> {
        let mut unit = [0; N];
        match self.file.read_exact_at(&mut unit, offset) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(io_error("read", &self.path)(error)),
        }
        match from_unit(&unit) {
            Unit::Nothing => Ok(None),
            Unit::Sound(value) => Ok(Some(value)),
            Unit::Newer(found) => Err(TableError::Newer { path: self.path.clone(), found }),
            Unit::Damaged(why) => Err(TableError::Damaged { path: self.path.clone(), what: format!("{what}: {why}") }),
        }
    }
}

fn row_offset(slot: Slot) -> u64 {
    HEADER_SIZE as u64 + u64::from(slot.0) * UNIT_SIZE as u64
}

fn to_unit<const N: usize>(value: &impl Serialize) -> [u8; N] {
    let json = serde_json::to_vec(value).expect("plain data");
    assert!(json.len() <= N - HEAD_SIZE, "a unit holds the longest numbers and names");
    let mut unit = [0; N];
    unit[4..6].copy_from_slice(&VERSION.to_le_bytes());
    unit[6..8].copy_from_slice(&(json.len() as u16).to_le_bytes());
    unit[HEAD_SIZE..HEAD_SIZE + json.len()].copy_from_slice(&json);
    let crc = crc32fast::hash(&unit[4..]);
    unit[..4].copy_from_slice(&crc.to_le_bytes());
    unit
}

fn from_unit<const N: usize, T: DeserializeOwned>(unit: &[u8; N]) -> Unit<T> {
    if unit.iter().all(|byte| *byte == 0) {
        return Unit::Nothing;
    }
    if crc32fast::hash(&unit[4..]).to_le_bytes() != unit[..4] {
        return Unit::Damaged("checksum does not match");
    }
    let version = u16::from_le_bytes([unit[4], unit[5]]);
    if version > VERSION {
        return Unit::Newer(version);
    }
    let length = usize::from(u16::from_le_bytes([unit[6], unit[7]]));
    let json = unit[HEAD_SIZE..].get(..length).and_then(|json| serde_json::from_slice(json).ok());
    json.map_or(Unit::Damaged("not understood"), Unit::Sound)
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
        let table = SlotTable::open(dir.path()).unwrap();
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
        table.file.write_all_at(b"?", row_offset(Slot(1)) + 40).unwrap();
        let error = table.rows().unwrap_err().to_string();
        assert!(error.contains("row of slot 1"), "{error}");
    }

    #[test]
    fn a_second_daemon_is_kept_out() {
        let (dir, _table) = table();
        let error = SlotTable::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("in use by another backup daemon"), "{error}");
    }
}
