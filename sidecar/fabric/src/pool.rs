//! A backup's memory: a folder with one memory-backed file for each slot, so that a container restart keeps the bytes.
//!
//! The backup daemon opens a [`Pool`], gives it to one receiver, reads recovered bytes from it and releases slots; the
//! receivers take fresh slots from it and freeze those of revoked writers. Not on the write path. Calls the file system
//! (tmpfs or hugetlbfs, in production) and nothing else.
//!
//! Beside the slots there are *side slots*, for what is derived: see `sides`.
//!
//! # A lending's memory is an inode
//!
//! A slot is a name, `slot-0000.buf`. To lend it is to make a new, allocated, all-zero file and rename it over that
//! name. A process that still maps the old file keeps an orphan that nobody reads. So "zero when lent" and "unreachable for
//! earlier lendings" are true by construction, no matter what a frozen writer does when it wakes. The orphan's memory is
//! given back at once (a hole is punched) instead of when its last mapping goes: a sleeping writer must not hold memory
//! of the pool. Only its flag page stays, which is where that writer finds that its lending has ended.
//!
//! A slot that is frozen gets a new file too: a copy for readers alone, with memory only where the bytes are not zero, since
//! a failover waits for it.
//!
//! A new file costs a page fault for every page, in the pool and in the writer that maps it. So a slot whose earlier
//! writers cannot touch it any more keeps its file when it is released, cleared, for the next lending ([`Claim::keep`];
//! each receiver says when that is so). Such a spare file has no mark: it counts as no memory, and a process that finds it
//! at its start does not use it.

mod claim;
mod error;
mod folder;
mod mapped_file;
mod sides;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::fs::{FallocateFlags, OFlags, fallocate, statvfs};
use rustix::io::Errno;
use tailwind_folder::Folder;

use crate::mapping::{FLAG_PAGE_SIZE, Mapping};
use crate::message::SlotId;

pub(crate) use claim::Claim;
pub use error::PoolError;
pub use mapped_file::MappedFile;
pub use sides::{Parts, SIDE_SLOT_SIZE};

use error::io_error;
use folder::{TEMPORARY, file_name, lock, private_folder, remove_if_present, tidy};

/// Free slots that a pool needs beyond those that are missing: a fence holds a slot and its copy at the same time,
/// and so does a lending of a slot that still has a file. One of each may be under way.
const SPARE_SLOTS: u64 = 2;
/// Bytes copied at a time when a slot is frozen.
const COPY_SIZE: usize = 256 * 1024;

/// The slots of one backup. All calls take `&self`; a slot that is being replaced makes its readers wait.
///
/// # Panics
/// Every call that takes a [`SlotId`] panics when the pool has no such slot: numbers from the network are checked
/// before.
#[derive(Debug)]
pub struct Pool {
    folder: Folder,
    slots: u32,
    slot_size: u32,
    parts: Parts,
    /// Bytes of a block of the file system; a huge page on hugetlbfs.
    block: u64,
    /// Of each slot; of the side slots last. `None`: no file, so no memory; reads as zero.
    memory: Vec<RwLock<Option<Inode>>>,
    /// Set while a receiver lends from this pool.
    claimed: AtomicBool,
    /// Holds the lock against other processes until the pool is dropped.
    _lock: File,
}

/// The file that has a slot's name at present.
#[derive(Debug)]
struct Inode {
    file: File,
    memory: Arc<Mapping>,
    /// Cleared, and kept for the next lending.
    spare: bool,
    /// It may have memory only where its bytes are not zero: a copy, or found at the start, where it may be one. To clear it
    /// would take memory, and be killed with SIGBUS on a full file system.
    sparse: bool,
}

impl Pool {
    /// The folder of a pool, which is created if its parent exists. Refused if another user can have made it, or can change
    /// what is in it.
    pub fn folder(dir: impl AsRef<Path>) -> Result<Folder, PoolError> {
        private_folder(dir.as_ref())
    }

    /// Opens the pool in `dir`, which is created if its parent exists. Slots keep the bytes they had; slots without a
    /// file get their memory when they are lent.
    pub fn open(dir: impl AsRef<Path>, slots: u32, slot_size: u32) -> Result<Arc<Pool>, PoolError> {
        Pool::open_with(dir, slots, slot_size, Parts::NONE)
    }

    /// The same, with side slots behind the first one. They get their memory when they are lent, if there is room for it then.
    pub fn open_with(dir: impl AsRef<Path>, slots: u32, slot_size: u32, parts: Parts) -> Result<Arc<Pool>, PoolError> {
        let folder = private_folder(dir.as_ref())?;
        let dir = folder.path().to_owned();
        let config = |problem: String| PoolError::Config { dir: dir.clone(), problem };
        if slots == 0 || slot_size == 0 || !slot_size.is_multiple_of(FLAG_PAGE_SIZE) {
            return Err(config(format!(
                "{slots} slots of {slot_size} bytes: must be at least one slot, of a multiple of {FLAG_PAGE_SIZE} bytes"
            )));
        }
        if let Some(problem) = parts.problem() {
            return Err(config(problem));
        }
        if dir.to_str().is_none() {
            return Err(config("the path must be UTF-8, because it travels in messages: rename the folder".into()));
        }
        let lock = lock(&folder)?;
        let space = statvfs(&dir).map_err(|errno| io_error("read the free space of", &dir)(errno.into()))?;
        let present = tidy(&folder, slots)?;
        sides::discard(&folder)?;
        let pool = Pool {
            folder,
            slots,
            slot_size,
            parts,
            block: space.f_bsize.max(1),
            memory: (0..=slots + parts.count).map(|_| RwLock::default()).collect(),
            claimed: AtomicBool::new(false),
            _lock: lock,
        };
        let missing = u64::from(slots - present) + SPARE_SLOTS;
        pool.check_free(missing * pool.file_size(slot_size))?;
        for slot in (0..slots).map(SlotId) {
            *pool.exclusive(slot) = pool.open_existing(slot)?;
        }
        Ok(Arc::new(pool))
    }

    /// How many slots there are, apart from side slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of each slot, apart from side slots.
    pub fn slot_size(&self) -> u32 {
        self.slot_size
    }

    /// The file of `slot`. It exists while the slot has memory.
    pub fn path(&self, slot: SlotId) -> PathBuf {
        self.folder.path().join(self.name(slot))
    }

    fn name(&self, slot: SlotId) -> String {
        if self.is_side(slot) { self.side_name(slot) } else { file_name(slot) }
    }

    /// Bytes of this slot.
    fn size(&self, slot: SlotId) -> u32 {
        match slot.cmp(&self.side_slot()) {
            std::cmp::Ordering::Less => self.slot_size,
            std::cmp::Ordering::Equal => SIDE_SLOT_SIZE,
            std::cmp::Ordering::Greater => self.parts.size,
        }
    }

    /// Bytes of a slot file: the slot and its flag page, in whole blocks.
    fn file_size(&self, slot_size: u32) -> u64 {
        (u64::from(slot_size) + u64::from(FLAG_PAGE_SIZE)).next_multiple_of(self.block)
    }

    /// Copies the bytes of `slot` from `offset` on to `out`. A copy, because others may be writing the slot: bytes that
    /// are being written come out old, new or mixed. A slot without memory reads as zero.
    ///
    /// # Panics
    /// When the range does not lie within the slot.
    pub fn read(&self, slot: SlotId, offset: u32, out: &mut [u8]) -> Result<(), PoolError> {
        let end = u64::from(offset) + out.len() as u64;
        assert!(end <= u64::from(self.size(slot)), "a read lies within its slot");
        match in_use(&self.shared(slot)) {
            Some(inode) => inode.file.read_exact_at(out, offset.into()).map_err(io_error("read", &self.path(slot))),
            None => {
                out.fill(0);
                Ok(())
            }
        }
    }

    /// Writes `bytes` to `slot` from `offset` on, for a copy that this process makes itself. The caller answers for it that
    /// nothing else counts on what is there, and that the slot is not given away until this returns. In a slot without memory
    /// nothing is written.
    ///
    /// # Panics
    /// When the range does not lie within the slot.
    pub fn write(&self, slot: SlotId, offset: u32, bytes: &[u8]) {
        if let Some(inode) = in_use(&self.shared(slot)) {
            inode.memory.write(offset, bytes);
        }
    }

    /// True if the file system has room for a slot and the copy of another, as a fence takes it.
    pub fn has_room(&self) -> bool {
        self.check_free(SPARE_SLOTS * self.file_size(self.slot_size)).is_ok()
    }

    /// True when `slot` has memory. A file that has lost its bytes is none.
    pub fn has(&self, slot: SlotId) -> bool {
        in_use(&self.shared(slot)).is_some()
    }

    /// Takes the right to lend from this pool.
    pub(crate) fn claim(self: &Arc<Self>) -> Result<Claim, PoolError> {
        if self.claimed.swap(true, Ordering::AcqRel) {
            return Err(PoolError::InUse {
                dir: self.folder.path().to_owned(),
                by: "another receiver of this process",
            });
        }
        Ok(Claim::new(Arc::clone(self)))
    }

    /// A new file for a lending: allocated in full, so that no write can ever find the file system full and die of SIGBUS;
    /// all zero, because allocation zeroes.
    fn create(&self, slot: SlotId) -> Result<Inode, PoolError> {
        self.check_free_for(slot)?;
        let slot_size = self.size(slot);
        self.make(slot, |file| {
            allocate(file, 0, self.file_size(slot_size))?;
            Mapping::prefaulted(file, slot_size)
        })
    }

    /// A new file that holds the bytes of an old one, and has memory only where these are not zero. For reading alone.
    fn copy(&self, slot: SlotId, old: &File) -> Result<Inode, PoolError> {
        let slot_size = self.size(slot);
        let copy = self.make(slot, |file| {
            file.set_len(self.file_size(slot_size))?;
            allocate(file, slot_size.into(), FLAG_PAGE_SIZE.into())?;
            let memory = Mapping::new(file, slot_size)?;
            let mut bytes = vec![0; COPY_SIZE.min(slot_size as usize)];
            for offset in (0..slot_size).step_by(bytes.len()) {
                let bytes = &mut bytes[..COPY_SIZE.min((slot_size - offset) as usize)];
                old.read_exact_at(bytes, offset.into())?;
                if bytes.iter().any(|byte| *byte != 0) {
                    allocate(file, offset.into(), bytes.len() as u64)?;
                    memory.write(offset, bytes);
                }
            }
            Ok(memory)
        })?;
        Ok(Inode { sparse: true, ..copy })
    }

    /// A new file under a name of its own, which `fill` gives its memory.
    fn make(&self, slot: SlotId, fill: impl FnOnce(&File) -> io::Result<Mapping>) -> Result<Inode, PoolError> {
        let name = self.temporary(slot);
        let path = self.folder.path().join(&name);
        let failed = |source: io::Error| match Errno::from_io_error(&source) {
            Some(Errno::NOSPC | Errno::NOMEM | Errno::DQUOT) => {
                let (needed, free) = (self.file_size(self.size(slot)), self.free().unwrap_or(0));
                PoolError::NoSpace { dir: self.folder.path().to_owned(), needed, free }
            }
            _ => io_error("make", &path)(source),
        };
        remove_if_present(&self.folder, &name)?;
        let file = self.folder.open_file(&name, OFlags::CREATE | OFlags::EXCL).map_err(failed)?;
        match fill(&file) {
            Ok(memory) => {
                memory.mark();
                Ok(Inode { file, memory: Arc::new(memory), spare: false, sparse: false })
            }
            Err(error) => {
                // The half-made file holds memory that the next attempt will want.
                remove_if_present(&self.folder, &name)?;
                Err(failed(error))
            }
        }
    }

    /// Puts `new` in the place of `current`. The order matters: once the name has moved, a crash would leave no process that
    /// knows the old file, so its writer must have been stopped before.
    fn replace(&self, slot: SlotId, current: &mut Option<Inode>, new: Inode) -> Result<(), PoolError> {
        if let Some(old) = &*current {
            old.withdraw();
        }
        let renamed = self.folder.rename(&self.temporary(slot), &self.name(slot));
        renamed.map_err(io_error("rename a new slot file to", &self.path(slot)))?;
        self.retire(current.replace(new));
        Ok(())
    }

    /// Removes the file of `slot`, if it has one.
    fn remove(&self, slot: SlotId, current: &mut Option<Inode>) -> Result<(), PoolError> {
        let Some(old) = &*current else { return Ok(()) };
        old.withdraw();
        match self.is_side(slot) {
            // A file that somebody else has removed held nothing of value.
            true => remove_if_present(&self.folder, &self.name(slot))?,
            false => self.folder.remove(&self.name(slot)).map_err(io_error("remove", &self.path(slot)))?,
        }
        self.retire(current.take());
        Ok(())
    }

    /// Gives the memory of a file without a name back, even if a sleeping writer maps it for years. When that one
    /// wakes, what remains of its one write takes memory again, until it ends. Best effort: where the file system
    /// cannot punch holes, the memory comes back with the last mapping.
    fn retire(&self, old: Option<Inode>) {
        if let Some(old) = old {
            punch(&old.file, old.memory.slot_size());
        }
    }

    fn open_existing(&self, slot: SlotId) -> Result<Option<Inode>, PoolError> {
        let path = self.path(slot);
        let file = match self.folder.open_file(&self.name(slot), OFlags::empty()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("open", &path)(error)),
        };
        let found = file.metadata().map_err(io_error("read the size of", &path))?.len();
        let (slot_size, expected) = (self.size(slot), self.file_size(self.size(slot)));
        if found != expected {
            // Made for slots of another size, or cut: what was in a file that was cut is gone.
            return match Mapping::marked_sizes(&file, found).any(|size| size != slot_size) {
                true => Err(PoolError::SlotSize { path, found, slot_size, expected }),
                false => Ok(None),
            };
        }
        let memory = Arc::new(Mapping::new(&file, slot_size).map_err(io_error("map", &path))?);
        // A file of zeros, a foreign one, or one that an earlier process had kept as a spare. The next lending takes its name.
        Ok(memory.is_marked().then_some(Inode { file, memory, spare: false, sparse: true }))
    }

    fn check_free(&self, needed: u64) -> Result<(), PoolError> {
        match self.free() {
            Some(free) if free < needed => Err(PoolError::NoSpace { dir: self.folder.path().to_owned(), needed, free }),
            _ => Ok(()),
        }
    }

    /// Bytes free, unless the file system has no bound of its own (then it says that it has no blocks at all).
    fn free(&self) -> Option<u64> {
        let space = statvfs(self.folder.path()).ok()?;
        (space.f_blocks > 0).then(|| space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn temporary(&self, slot: SlotId) -> String {
        Path::new(&self.name(slot)).with_extension(TEMPORARY).to_string_lossy().into_owned()
    }

    // A poisoned lock is taken all the same: between two statements a slot is never in a state that a reader could not
    // bear.
    fn shared(&self, slot: SlotId) -> RwLockReadGuard<'_, Option<Inode>> {
        self.memory[slot.0 as usize].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self, slot: SlotId) -> RwLockWriteGuard<'_, Option<Inode>> {
        self.memory[slot.0 as usize].write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inode {
    /// Writes and reads of the memory through a grant fail from now on.
    fn withdraw(&self) {
        self.memory.end();
        self.memory.end_share();
    }
}

/// Takes the memory of a slot's bytes away, if the file system can. The flag page stays.
fn punch(file: &File, slot_size: u32) {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = fallocate(file, hole, 0, slot_size.into());
}

/// Gives these bytes of a file memory; what had none is zero.
fn allocate(file: &File, offset: u64, length: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::empty(), offset, length)?)
}

/// The file, if what is in it counts.
fn in_use(current: &Option<Inode>) -> Option<&Inode> {
    current.as_ref().filter(|inode| !inode.spare)
}
