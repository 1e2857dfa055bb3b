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

use std::fs::OpenOptions;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::OFlags;

use crate::buffer::SharedBuffer;
use crate::contract::{Channel, Opening, Receiver, RemoteBuffer, Sender};
use crate::error::{ChannelError, FabricError};
use crate::mapping::{Flag, Mapping};
use crate::message::{ChannelAnswer, FabricKind, Grant, Offer, SlotId, Writer};
use crate::pool::{Claim, Pool};
use crate::secret;

/// The receiving half: lends slots of a pool to processes of this host.
#[derive(Debug)]
pub struct ShmReceiver {
    pool: Claim,
    revoked_below: Writer,
    /// Who may still be writing each slot. An ended lending stays here, because a late write may repeat bytes of it.
    writers: Vec<Option<Writer>>,
}

/// The sending half.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShmSender;

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
        let slots = pool.slots() as usize;
        let pool = pool.claim()?;
        pool.freeze_lent()?;
        Ok(ShmReceiver { pool, revoked_below: Writer(0), writers: vec![None; slots] })
    }

    fn check(&self, writer: Writer) -> Result<(), FabricError> {
        if writer < self.revoked_below { Err(FabricError::Revoked(writer)) } else { Ok(()) }
    }
}

impl Receiver for ShmReceiver {
    fn kind(&self) -> FabricKind {
        FabricKind::Shm
    }

    fn accept(&mut self, writer: Writer, offer: &Offer) -> Result<ChannelAnswer, FabricError> {
        self.check(writer)?;
        let Offer::Shm = offer else { return Err(FabricError::mismatch(self.kind(), offer.kind())) };
        Ok(ChannelAnswer::Shm)
    }

    fn lend(&mut self, writer: Writer, slot: SlotId) -> Result<Grant, FabricError> {
        self.check(writer)?;
        let key = secret::key().map_err(FabricError::io("draw a key"))?;
        let memory = self.pool.fresh(slot)?;
        memory.lend(key);
        self.writers[slot.0 as usize] = Some(writer);
        // The pool has made sure that its path is UTF-8.
        let path = self.pool.pool().path(slot).to_string_lossy().into_owned();
        Ok(Grant::Shm { path, key, length: memory.slot_size() })
    }

    fn end_lending(&mut self, slot: SlotId) {
        if let Some(memory) = self.pool.memory(slot) {
            memory.end();
        }
    }

    fn revoke_below(&mut self, writer: Writer) -> Result<(), FabricError> {
        self.revoked_below = self.revoked_below.max(writer);
        let slots = (0..).map(SlotId).zip(&self.writers);
        let revoked: Vec<SlotId> =
            slots.filter(|(_, held)| held.is_some_and(|held| held < writer)).map(|(slot, _)| slot).collect();
        // All flags first: every revoked writer stops now, not only when its turn to be copied comes.
        for slot in &revoked {
            self.end_lending(*slot);
        }
        for slot in revoked {
            self.pool.freeze(slot)?;
            self.writers[slot.0 as usize] = None;
        }
        Ok(())
    }
}

impl Sender for ShmSender {
    fn kind(&self) -> FabricKind {
        FabricKind::Shm
    }

    fn begin(&self) -> Result<Box<dyn Opening>, FabricError> {
        Ok(Box::new(*self))
    }

    fn attach(&self, grant: &Grant) -> Result<RemoteBuffer, FabricError> {
        let Grant::Shm { path, key, length } = grant else {
            return Err(FabricError::mismatch(self.kind(), grant.kind()));
        };
        let memory = open(path, *key, *length).map_err(FabricError::io(format!("map slot file {path}")))?;
        Ok(RemoteBuffer { address: 0, key: *key, length: *length, memory: Some(Arc::new(memory)) })
    }
}

/// There is nothing to prepare: the sender itself is the opening.
impl Opening for ShmSender {
    fn offer(&self) -> Offer {
        Offer::Shm
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, _peer: IpAddr) -> Result<Box<dyn Channel>, FabricError> {
        let ChannelAnswer::Shm = answer else { return Err(FabricError::mismatch(self.kind(), answer.kind())) };
        Ok(Box::<ShmChannel>::default())
    }
}

impl Channel for ShmChannel {
    fn post(&mut self, remote: &RemoteBuffer, local: &SharedBuffer, range: Range<u32>) -> Result<(), ChannelError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let bytes = &local.published()[range.start as usize..range.end as usize];
        if remote.memory.as_ref().is_some_and(|memory| write(memory, range.start, bytes)) {
            self.completed += 1;
            return Ok(());
        }
        Err(*self.failure.insert(ChannelError::Revoked))
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

/// Copies `bytes` into the slot; whether the write has completed.
fn write(memory: &Mapping, offset: u32, bytes: &[u8]) -> bool {
    memory.write(offset, bytes);
    // Between the bytes and the flag: step 1 of the module's proof rests on this line.
    fence(Ordering::SeqCst);
    memory.flag() == Flag::Lent
}

/// Maps the file if it still is the one that was lent. The key is compared after the file has been opened, in the
/// mapped file itself, so that a lending of the same slot in between cannot slip in: what is mapped then never changes
/// identity.
fn open(path: &str, key: u64, length: u32) -> io::Result<Mapping> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
    }
    let memory = Mapping::prefaulted(&file, length)?;
    if key == 0 || memory.key() != key || memory.flag() != Flag::Lent {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the lending is over"));
    }
    Ok(memory)
}
