//! The fabric for processes on one host: the sender maps the receiver's slot and writes it directly.
//!
//! As on RDMA, the receiver's CPU takes no part in a write and cannot stop one by talking to the writer. The backup
//! daemon makes a [`ShmReceiver`], the sidecar a [`ShmSender`]. Calls [`pool`](crate::pool) and its mapped files.
//!
//! # Why revocation is a barrier
//!
//! Each slot file carries a flag behind its bytes, *lent* or *ended*. A post copies its bytes into the mapped file,
//! makes a sequentially consistent fence, loads the flag, and counts as completed if the flag says *lent*. Revocation
//! stores *ended*, makes such a fence, copies the slot's bytes to a new file that no sender has ever mapped, and
//! renames that over the slot. From then on [`Pool::read`](crate::Pool::read) shows the copy.
//!
//! 1. All such fences have one total order. Take any post and any revocation of its slot.
//! 2. If the revocation's fence comes first, then the post's load, behind its own fence, sees *ended*: it does not
//!    complete.
//! 3. If the post's fence comes first, then the copy, which reads behind the revocation's fence, sees all the post's
//!    bytes.
//! 4. So every write that completes is in the copy (promise 3c), and no post whose fence comes after the
//!    revocation's completes (3a).
//! 5. No sender maps the copy: its flag says *never lent* and its key is zero, both of which [`Sender::attach`]
//!    refuses. A writer that was frozen in the middle of its copy writes, when it wakes, to a file without a name that
//!    nobody reads (3b).
//! 6. The receiver waits for no other process in all this. If it dies on the way, the slot's name refers to either the old file,
//!    with a flag other than *never lent*, or the copy. The next receiver over the pool does the same again for the
//!    former (promise 7).
//!
//! The argument needs nothing from the sender but the order of its three steps, which this module gives it.
//!
//! # Why memory may be lent again to the same writer
//!
//! A released slot keeps its memory if the writer had finished with it, and is lent in place to that writer alone; for
//! any other one there is a new file. So a revocation leaves such memory alone: what a revoked writer maps of it nobody
//! reads, then or later. [Retained](Receiver::retain) memory is left alone too; its readers check every byte. Of a side slot the
//! revocation ends the share as well, and copies nothing: what a frozen writer still writes there completes nowhere, and nobody
//! can read it.
//!
//! 1. A post is over when it returns. A writer that has finished has no post under way: nothing is being copied to the
//!    memory while it is cleared, or afterwards. A writer that has asked for the grant twice may have one, of the request before:
//!    then [`Receiver::doubt_end`] has the memory given up.
//! 2. Each lending has a key of its own, and a post compares the key before it copies: one that names an earlier lending
//!    of the same memory copies nothing.
//! 3. So [`ShmSender`] may keep the mapping too. It uses one again only for the grant whose key is in it.

pub(crate) mod reading;

use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::OFlags;

use crate::buffer::{AppendBuffer, BufferPool, SharedBuffer};
use crate::contract::{Channel, Opening, Receiver, RemoteBuffer, Sender, check_bytes};
use crate::error::{ChannelError, FabricError};
use crate::mapping::{Flag, Mapping, check_slot_file, is_lent_under};
use crate::message::{ChannelAnswer, FabricKind, Grant, Offer, SlotId, Writer};
use crate::pool::{Claim, Pool};
use crate::reading::{Admission, Readers, Sharer};
use crate::secret;

pub use reading::ShmReader;

/// Bytes of what `stat(2)` counts the memory of a file in.
const BLOCK_SIZE: u64 = 512;
/// Mappings that a sender keeps for later: eight members with 128 buffers each. Beyond that the oldest are let go, and mapped
/// again when they are lent again.
const MAPPED_MAX: usize = 1024;

/// The receiving half: lends slots of a pool to processes of this host.
#[derive(Debug)]
pub struct ShmReceiver {
    pool: Claim,
    revoked_below: Writer,
    /// The lending of each slot whose memory a sender may map.
    lendings: Vec<Option<Lending>>,
    readers: Readers,
}

/// The writer that has, or had, a grant for a slot's memory.
#[derive(Clone, Copy, Debug)]
struct Lending {
    writer: Writer,
    /// It has said so.
    finished: bool,
    /// What it has written is a cache by now.
    retained: bool,
}

/// The sending half.
#[derive(Debug, Default)]
pub struct ShmSender {
    buffers: BufferPool,
    /// What is mapped, for the next grant of the same memory.
    mapped: Mutex<Vec<MappedSlot>>,
}

/// A slot file that has been mapped.
#[derive(Debug)]
struct MappedSlot {
    path: String,
    /// Device and inode: what the path stood for then.
    inode: (u64, u64),
    memory: Arc<Mapping>,
}

/// A channel needs no preparation.
#[derive(Debug)]
struct ShmOpening;

/// One ordered stream of writes. A post is a copy, a fence and a load, so it is complete when it returns.
#[derive(Debug, Default)]
struct ShmChannel {
    /// Completed and not yet polled.
    completed: u32,
    failure: Option<ChannelError>,
}

impl ShmReceiver {
    /// Takes the pool over. Writers of an earlier life are revoked by this (promise 7).
    pub fn new(pool: Arc<Pool>) -> Result<ShmReceiver, FabricError> {
        let slots = pool.all_slots() as usize;
        let pool = pool.claim()?;
        pool.freeze_lent()?;
        Ok(ShmReceiver { pool, revoked_below: Writer(0), lendings: vec![None; slots], readers: Readers::default() })
    }

    fn check(&self, writer: Writer) -> Result<(), FabricError> {
        if writer < self.revoked_below { Err(FabricError::Revoked(writer)) } else { Ok(()) }
    }

    /// No write to the slot completes any more.
    fn stop(&self, slot: SlotId) {
        if let Some(memory) = self.pool.memory(slot) {
            memory.end();
        }
    }
}

impl Receiver for ShmReceiver {
    fn kind(&self) -> FabricKind {
        FabricKind::Shm
    }

    fn accept(&mut self, writer: Writer, offer: &Offer) -> Result<Admission, FabricError> {
        self.check(writer)?;
        let Offer::Shm = offer else { return Err(FabricError::mismatch(self.kind(), offer.kind())) };
        Ok(Admission::ready(ChannelAnswer::Shm))
    }

    fn lend(&mut self, writer: Writer, slot: SlotId) -> Result<Grant, FabricError> {
        self.check(writer)?;
        let key = secret::key().map_err(FabricError::io("draw a key"))?;
        let lending = &mut self.lendings[slot.0 as usize];
        let theirs = lending.is_none_or(|before| before.writer == writer);
        // Either ends the share that the slot may have.
        let memory = if theirs { self.pool.renew(slot)? } else { self.pool.fresh(slot)? };
        *lending = Some(Lending { writer, finished: false, retained: false });
        memory.lend(key);
        // The pool has made sure that its path is UTF-8.
        let path = self.pool.pool().path(slot).to_string_lossy().into_owned();
        Ok(Grant::Shm { path, key, length: memory.slot_size() })
    }

    fn end_lending(&mut self, slot: SlotId) {
        self.stop(slot);
        if let Some(lending) = &mut self.lendings[slot.0 as usize] {
            lending.finished = true;
        }
    }

    fn doubt_end(&mut self, slot: SlotId) {
        if let Some(lending) = &mut self.lendings[slot.0 as usize] {
            lending.finished = false;
        }
    }

    fn retain(&mut self, slot: SlotId) {
        if let Some(lending) = &mut self.lendings[slot.0 as usize] {
            lending.retained = true;
        }
    }

    fn hold(&mut self, slot: SlotId) -> Result<(), FabricError> {
        // Memory that was kept may be mapped by the writer that had it.
        self.pool.fresh(slot)?;
        self.lendings[slot.0 as usize] = None;
        Ok(())
    }

    fn release(&mut self, slot: SlotId) -> Result<(), FabricError> {
        match self.lendings[slot.0 as usize] {
            Some(Lending { finished: true, .. }) => self.pool.keep(slot)?,
            // A writer may still write it, or it is a copy of what was written.
            _ => {
                self.pool.release(slot)?;
                self.lendings[slot.0 as usize] = None;
            }
        }
        Ok(())
    }

    fn revoke_below(&mut self, writer: Writer) -> Result<(), FabricError> {
        self.revoked_below = self.revoked_below.max(writer);
        let slots = (0..).map(SlotId).zip(&self.lendings);
        let held =
            |lending: &Option<Lending>| lending.is_some_and(|lending| lending.writer < writer && !lending.retained);
        // Memory that was kept can wait: nobody reads it, and the next lending, which is another writer's, gets a new file.
        let revoked: Vec<SlotId> = slots
            .filter(|(slot, lending)| held(lending) && self.pool.pool().has(*slot))
            .map(|(slot, _)| slot)
            .collect();
        // All flags first: every revoked writer stops now, not only when its turn to be copied comes.
        for slot in &revoked {
            self.stop(*slot);
        }
        let (sides, revoked): (Vec<SlotId>, Vec<SlotId>) =
            revoked.into_iter().partition(|slot| self.pool.pool().is_side(*slot));
        for slot in sides {
            self.end_share(slot);
        }
        for slot in revoked {
            self.pool.freeze(slot)?;
            self.lendings[slot.0 as usize] = None;
        }
        Ok(())
    }

    fn sharer(&mut self) -> Option<&mut dyn Sharer> {
        Some(self)
    }
}

impl Sender for ShmSender {
    fn kind(&self) -> FabricKind {
        FabricKind::Shm
    }

    fn allocate(&self, length: u32) -> Result<(AppendBuffer, SharedBuffer), FabricError> {
        self.buffers.allocate(length).map_err(FabricError::io(format!("allocate a buffer of {length} bytes")))
    }

    fn begin(&self) -> Result<Box<dyn Opening>, FabricError> {
        Ok(Box::new(ShmOpening))
    }

    fn attach(&self, grant: &Grant) -> Result<RemoteBuffer, FabricError> {
        let Grant::Shm { path, key, length } = grant else {
            return Err(FabricError::mismatch(self.kind(), grant.kind()));
        };
        let memory = self.map(path, *key, *length).map_err(FabricError::io(format!("map slot file {path}")))?;
        Ok(RemoteBuffer { address: 0, key: *key, length: *length, memory: Some(memory) })
    }
}

impl ShmSender {
    /// The memory that was lent under this key: mapped already, or now.
    fn map(&self, path: &str, key: u64, length: u32) -> io::Result<Arc<Mapping>> {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        // A file that has lost its name is never lent again, and its memory is not ours to hold.
        mapped.retain(|slot| fs::metadata(&slot.path).is_ok_and(|found| inode(&found) == slot.inode));
        let same = |slot: &&MappedSlot| slot.path == path && slot.memory.slot_size() == length;
        if let Some(slot) = mapped.iter().find(same).filter(|slot| is_lent(&slot.memory, key)) {
            return Ok(Arc::clone(&slot.memory));
        }
        let (memory, inode) = open(path, key, length)?;
        let memory = Arc::new(memory);
        if mapped.len() >= MAPPED_MAX {
            mapped.remove(0);
        }
        mapped.push(MappedSlot { path: path.to_owned(), inode, memory: Arc::clone(&memory) });
        Ok(memory)
    }
}

impl Opening for ShmOpening {
    fn offer(&self) -> Offer {
        Offer::Shm
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, _peer: IpAddr) -> Result<Box<dyn Channel>, FabricError> {
        let ChannelAnswer::Shm = answer else { return Err(FabricError::mismatch(FabricKind::Shm, answer.kind())) };
        Ok(Box::<ShmChannel>::default())
    }
}

impl ShmChannel {
    fn write(&mut self, remote: &RemoteBuffer, at: u32, bytes: &[u8]) -> Result<(), ChannelError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if remote.memory.as_ref().is_some_and(|memory| write(memory, remote.key, at, bytes)) {
            self.completed += 1;
            return Ok(());
        }
        Err(*self.failure.insert(ChannelError::Revoked))
    }
}

impl Channel for ShmChannel {
    fn post(&mut self, remote: &RemoteBuffer, local: &SharedBuffer, range: Range<u32>) -> Result<(), ChannelError> {
        self.write(remote, range.start, &local.published()[range.start as usize..range.end as usize])
    }

    fn post_bytes(&mut self, remote: &RemoteBuffer, at: u32, bytes: &[u8]) -> Result<(), ChannelError> {
        check_bytes(remote, at, bytes);
        self.write(remote, at, bytes)
    }

    fn poll(&mut self) -> Result<u32, ChannelError> {
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(std::mem::take(&mut self.completed)),
        }
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self) -> bool {
        self.completed > 0 || self.failure.is_some()
    }
}

/// Copies `bytes` into the slot, if it is still lent under `key`; whether the write has completed.
fn write(memory: &Mapping, key: u64, offset: u32, bytes: &[u8]) -> bool {
    if !is_lent(memory, key) {
        return false;
    }
    memory.write(offset, bytes);
    // Between the bytes and the flag: step 1 of the module's first proof rests on this line.
    fence(Ordering::SeqCst);
    is_lent(memory, key)
}

fn is_lent(memory: &Mapping, key: u64) -> bool {
    key != 0 && memory.key() == key && memory.flag() == Flag::Lent
}

fn inode(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Maps the file if it still is the one that was lent. The key is compared after the file has been opened, in the
/// mapped file itself, so that a lending of the same slot in between cannot slip in: what is mapped then never changes
/// identity.
///
/// A grant may name any file: nothing is mapped that is no slot lent under this key, and no memory is made that the file does not
/// have, as every file of a pool has it.
fn open(path: &str, key: u64, length: u32) -> io::Result<(Mapping, (u64, u64))> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path)?;
    let metadata = check_slot_file(&file, length)?;
    let over = || io::Error::new(io::ErrorKind::PermissionDenied, "the lending is over");
    if !is_lent_under(&file, length, key)? {
        return Err(over());
    }
    let has_memory = metadata.blocks().saturating_mul(BLOCK_SIZE) >= metadata.len();
    let memory = if has_memory { Mapping::prefaulted(&file, length)? } else { Mapping::new(&file, length)? };
    if !is_lent(&memory, key) {
        return Err(over());
    }
    Ok((memory, inode(&metadata)))
}
