//! Reading on one host: the reader opens the slot's file for reading only, and reads it by `pread(2)`.
//!
//! The backup daemon calls the [`Sharer`] half of [`ShmReceiver`], a reader makes a [`ShmReader`].
//!
//! # Why a completed read is of its share (promises 8 and 10)
//!
//! Behind a slot's bytes is the key of its share. A read takes the bytes, makes a sequentially consistent fence, takes the
//! key, and completes if the key is its own. To end a share, the receiver stores zero in place of the key and makes such a
//! fence, before it clears the memory, lends it again or gives it back.
//!
//! 1. All such fences have one total order. If the receiver's comes first, the read's key, taken behind its own fence, is
//!    not its own any more: keys are random, and none is drawn twice. The read fails.
//! 2. Otherwise the read took its bytes before its fence, and so before anything that the receiver does to the memory
//!    behind the receiver's fence.
//! 3. The receiver waits for no reader in this, and a reader has no mapping that it could write to (promises 9 and 10).

use std::fs::{File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::OFlags;

use super::ShmReceiver;
use crate::error::{FabricError, ReadError};
use crate::mapping::{Flag, Mapping, SHARE_OFFSET, check_slot_file};
use crate::message::{ChannelAnswer, FabricKind, Offer, ReadGrant, ReaderId, SlotId};
use crate::pool::Claim;
use crate::reading::{Admission, READS_MAX, ReadChannel, ReadOpening, Readable, Reader, Sharer, check_read};
use crate::secret;

/// Reads slots of a pool on this host.
#[derive(Debug, Default)]
pub struct ShmReader;

/// A read channel that is being opened: only its memory has to be made.
#[derive(Debug)]
struct ShmReadOpening {
    landing: u32,
}

/// One ordered stream of reads. A read is a copy, a fence and a look at the key, so it is complete when it returns.
#[derive(Debug)]
struct ShmReadChannel {
    landing: Vec<u8>,
    /// Completed and not yet polled.
    completed: u32,
    failure: Option<ReadError>,
}

impl Sharer for ShmReceiver {
    fn admit(&mut self, reader: ReaderId, offer: &Offer) -> Result<Admission, FabricError> {
        let Offer::Shm = offer else { return Err(FabricError::mismatch(FabricKind::Shm, offer.kind())) };
        self.readers.admit(reader)?;
        Ok(Admission::ready(ChannelAnswer::Shm))
    }

    fn share(&mut self, slot: SlotId) -> Result<Option<ReadGrant>, FabricError> {
        let Some(memory) = self.pool.memory(slot) else { return Ok(None) };
        if self.pool.pool().is_side(slot) && memory.flag() != Flag::Lent {
            return Ok(None);
        }
        let (path, key) = share(&self.pool, slot, &memory)?;
        Ok(Some(ReadGrant::Shm { path, key, length: memory.slot_size() }))
    }

    fn end_share(&mut self, slot: SlotId) {
        if let Some(memory) = self.pool.memory(slot) {
            memory.end_share();
        }
    }

    fn dismiss(&mut self, reader: ReaderId) {
        self.readers.dismiss(reader);
    }
}

/// Shares a slot's memory: the path of its file, and the key of the share.
pub(crate) fn share(pool: &Claim, slot: SlotId, memory: &Mapping) -> Result<(String, u64), FabricError> {
    let key = match memory.share_key() {
        0 => secret::key().map_err(FabricError::io("draw a key"))?,
        key => key,
    };
    memory.share(key);
    // The pool has made sure that its path is UTF-8.
    Ok((pool.pool().path(slot).to_string_lossy().into_owned(), key))
}

impl Reader for ShmReader {
    fn kind(&self) -> FabricKind {
        FabricKind::Shm
    }

    fn begin(&self, landing: u32) -> Result<Box<dyn ReadOpening>, FabricError> {
        Ok(Box::new(ShmReadOpening { landing }))
    }

    fn attach(&self, grant: &ReadGrant) -> Result<Readable, FabricError> {
        let ReadGrant::Shm { path, key, length } = grant else {
            return Err(FabricError::mismatch(FabricKind::Shm, grant.kind()));
        };
        attach(path, *key, *length)
    }
}

/// The shared slot in this file.
pub(crate) fn attach(path: &str, key: u64, length: u32) -> Result<Readable, FabricError> {
    let file = open(path, key, length).map_err(FabricError::io(format!("open slot file {path}")))?;
    Ok(Readable { address: 0, key, length, file: Some(Arc::new(file)) })
}

/// Opens the file if it still is the one that was shared: the key is compared in the open file itself.
fn open(path: &str, key: u64, length: u32) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    check_slot_file(&file, length)?;
    if share_key(&file, length)? != key || key == 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the share is over"));
    }
    Ok(file)
}

fn share_key(file: &File, length: u32) -> io::Result<u64> {
    let mut key = [0; 8];
    file.read_exact_at(&mut key, u64::from(length) + SHARE_OFFSET as u64)?;
    Ok(u64::from_ne_bytes(key))
}

impl ReadOpening for ShmReadOpening {
    fn offer(&self) -> Offer {
        Offer::Shm
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, _peer: IpAddr) -> Result<Box<dyn ReadChannel>, FabricError> {
        let ChannelAnswer::Shm = answer else { return Err(FabricError::mismatch(FabricKind::Shm, answer.kind())) };
        let landing = vec![0; self.landing as usize];
        Ok(Box::new(ShmReadChannel { landing, completed: 0, failure: None }))
    }
}

/// Copies bytes of a shared slot; whether the read has completed.
#[must_use]
pub(crate) fn take(from: &Readable, at: u32, out: &mut [u8]) -> bool {
    let taken = from.file.as_ref().is_some_and(|file| {
        let read = file.read_exact_at(out, at.into());
        // Between the bytes and the key: the module's proof rests on this line.
        fence(Ordering::SeqCst);
        read.is_ok() && share_key(file, from.length).is_ok_and(|key| key == from.key && key != 0)
    });
    if !taken {
        // What was taken is not of the share.
        out.fill(0);
    }
    taken
}

impl ReadChannel for ShmReadChannel {
    fn read(&mut self, from: &Readable, at: Range<u32>, place: u32) -> Result<(), ReadError> {
        let place = check_read(from, &at, place, self.landing.len());
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if self.completed as usize == READS_MAX {
            return Err(ReadError::QueueFull);
        }
        let out = &mut self.landing[place.start as usize..place.end as usize];
        if !take(from, at.start, out) {
            return Err(*self.failure.insert(ReadError::Ended));
        }
        self.completed += 1;
        Ok(())
    }

    fn poll(&mut self) -> Result<u32, ReadError> {
        match (std::mem::take(&mut self.completed), self.failure) {
            (0, Some(failure)) => Err(failure),
            (completed, _) => Ok(completed),
        }
    }

    fn landed(&self, range: Range<u32>) -> &[u8] {
        &self.landing[range.start as usize..range.end as usize]
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self) -> bool {
        self.completed > 0 || self.failure.is_some()
    }
}
