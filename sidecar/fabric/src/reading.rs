//! The read side of the fabric contract: which readers may read lent memory one-sidedly, and what a completed read is worth.
//!
//! A backup *shares* slots ([`Sharer`]); a *reader* (a standby's sidecar, a read replica, another backup) opens read
//! channels to it ([`Reader`], [`ReadChannel`]). It has rights of its own: nothing here lets anyone write, and nothing in
//! [`contract`](crate::contract) lets anyone read. The promises continue those of that file.
//!
//! # Promises
//!
//! 8. **Read.** When a read completes, each of its bytes is one that the slot held at some moment between the posting and
//!    the completion, and at which its share had not ended. There is no order among bytes: a part of a later write may be
//!    there while a part of an earlier one is not. A read sees every write to the slot that had completed before the read
//!    was posted. Reads of one channel complete in the order they were posted.
//! 9. **Reading hurts nobody.** Lending, ending, release, revocation and the calls of [`Sharer`] wait for no reader, be it
//!    frozen in the middle of a read or gone: over `tcp` at most for one copy of [`PIECE_SIZE`](crate::tcp::PIECE_SIZE)
//!    bytes in this process. Readers and their channels are bounded ([`READERS_MAX`], [`READ_CHANNELS_MAX`]).
//! 10. **Only reading.** A [`ReadGrant`] gives no right to write. It names the present memory of one slot, not the slot:
//!     when the slot is lent again or released, or another receiver takes the pool over, the share has ended, and no read
//!     posted through it completes any more, although the memory may be the same. A revocation may end the shares of the
//!     slots that it concerns, and ends those of side slots. A channel whose read has failed is over.
//!
//! A [lookup](ReadChannel::look_up), which only the fabrics of `./bench` have, is two reads and one that depends on them, in one
//! message. The promises hold for each of the three; the third is taken after the other two. If its share has
//! ended nothing of it is brought, and the channel goes on.
//!
//! # How a read channel is opened
//!
//! [`Reader::begin`] → [`ReadOpening::offer`] travels to the receiver → [`Sharer::admit`], [`Admission::complete`] → its
//! [`ChannelAnswer`] travels back → [`ReadOpening::connect`]. A [`ReadGrant`] follows for each shared slot. All of them
//! travel inside the control RPC.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::error::{FabricError, ReadError};
use crate::message::{ChannelAnswer, FabricKind, Offer, ReadGrant, ReaderId, SlotId};

/// Readers that a receiver admits at a time. Each may have [`READ_CHANNELS_MAX`] channels: 128 threads over `tcp`, 128
/// queue pairs over `verbs`, which is what caches of cards hold easily beside the writer's.
pub const READERS_MAX: usize = 32;
/// Channels of one reader: one for following and one for whole segments, and the same again while it reconnects. With one
/// more the oldest ends.
pub const READ_CHANNELS_MAX: usize = 4;
/// Reads of one channel that may be on their way.
pub const READS_MAX: usize = 64;

/// Bytes of a [`LookUp`]'s question, at most.
pub const QUESTION_MAX: usize = 32;
/// Bytes of a [`Lead`], where a lookup lands.
pub const LEAD_SIZE: u32 = 16;

/// Two reads whose bytes lead to a third one, at the receiver.
#[derive(Debug)]
pub struct LookUp<'a> {
    /// What is read first.
    pub reads: [(&'a Readable, Range<u32>); 2],
    /// For [`Follow`], which alone knows what it means. At most [`QUESTION_MAX`] bytes.
    pub question: &'a [u8],
}

/// Says what a lookup's question and the bytes of its two reads, one behind the other, lead to. Anybody may have made either.
pub type Follow = fn(question: &[u8], found: &[u8]) -> Option<Lead>;

/// Where the third read of a lookup goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lead {
    /// What the receiver has [named](Sharer::answer_lookups) a slot.
    pub name: u64,
    /// Bytes of the slot.
    pub bytes: Range<u32>,
}

impl Lead {
    /// As it lands.
    pub fn to_bytes(&self) -> [u8; LEAD_SIZE as usize] {
        let mut out = [0; LEAD_SIZE as usize];
        out[..8].copy_from_slice(&self.name.to_le_bytes());
        out[8..12].copy_from_slice(&self.bytes.start.to_le_bytes());
        out[12..].copy_from_slice(&self.bytes.end.to_le_bytes());
        out
    }

    /// What has landed. `None`: there is none, and nothing follows it.
    pub fn from_bytes(bytes: &[u8; LEAD_SIZE as usize]) -> Option<Lead> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let name = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        let bytes = u32_at(8)..u32_at(12);
        (bytes.start < bytes.end).then_some(Lead { name, bytes })
    }
}

/// The backup's half: what is shared, and with which readers. Not on the path of writes. A [`Receiver`](crate::Receiver) that
/// can be read from gives it by [`Receiver::sharer`](crate::Receiver::sharer).
pub trait Sharer {
    /// Takes a place for one channel of `reader`, which is ready when the admission is complete. Refused when there are
    /// [`READERS_MAX`] others.
    fn admit(&mut self, reader: ReaderId, offer: &Offer) -> Result<Admission, FabricError>;
    /// Lets every admitted reader read the present memory of the slot, whether it is lent, ended or revoked. While the share
    /// lasts, each call returns the same grant. `None` when the slot has no memory; a side slot also when it is not lent.
    fn share(&mut self, slot: SlotId) -> Result<Option<ReadGrant>, FabricError>;
    /// Ends the share of the slot, if there is one (promise 10).
    fn end_share(&mut self, slot: SlotId);
    /// Names a slot that is shared, until its share ends: lookups that `follow` leads to this name read there. It is one function
    /// for all slots. Does nothing where the fabric has no lookups.
    fn answer_lookups(&mut self, _slot: SlotId, _name: u64, _follow: Follow) {}
    /// Forgets a reader, and ends its channels where the fabric can: over `shm` it may continue to read what it has attached.
    fn dismiss(&mut self, reader: ReaderId);
}

/// What is left to do for a channel that was admitted. It belongs to no thread, and holds up nobody but its writer or reader.
#[must_use = "the channel is not ready before it is complete"]
pub struct Admission(Box<dyn FnOnce() -> Result<ChannelAnswer, FabricError> + Send>);

impl Admission {
    /// Nothing is left to do.
    pub fn ready(answer: ChannelAnswer) -> Admission {
        Admission(Box::new(|| Ok(answer)))
    }

    /// This is left to do.
    pub fn after(connect: impl FnOnce() -> Result<ChannelAnswer, FabricError> + Send + 'static) -> Admission {
        Admission(Box::new(connect))
    }

    /// Makes the channel ready. May wait: over `verbs` the kernel looks for the way to the other side's address, for a second if
    /// nobody has it. Fails if the reader has been dismissed, or the writer revoked, since it was admitted.
    pub fn complete(self) -> Result<ChannelAnswer, FabricError> {
        (self.0)()
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admission")
    }
}

/// The reader's half: makes read channels and attaches grants.
pub trait Reader: Send + Sync {
    /// Which fabric this is.
    fn kind(&self) -> FabricKind;
    /// Prepares this side's end of one channel, whose reads land in memory of `landing` bytes of its own.
    fn begin(&self, landing: u32) -> Result<Box<dyn ReadOpening>, FabricError>;
    /// Makes a shared slot readable from this process.
    fn attach(&self, grant: &ReadGrant) -> Result<Readable, FabricError>;
}

/// A read channel that is being opened: this side's end of it.
pub trait ReadOpening: Send {
    /// What to send to the receiver.
    fn offer(&self) -> Offer;
    /// Opens the channel that the receiver has admitted. `peer` is the receiver's host as the control RPC reached it.
    fn connect(self: Box<Self>, answer: &ChannelAnswer, peer: IpAddr) -> Result<Box<dyn ReadChannel>, FabricError>;
}

/// One ordered stream of reads from one receiver. No call allocates, blocks or logs.
pub trait ReadChannel: Send + fmt::Debug {
    /// Posts one read of the bytes `at` of the slot, to land from `place` on. It is on its way at the latest after the next
    /// [`ReadChannel::poll`].
    ///
    /// # Panics
    /// When the range is empty or does not lie within the slot, or when the place does not lie within the landing or is
    /// that of a read on its way: a wrong offset is a bug in the caller.
    fn read(&mut self, from: &Readable, at: Range<u32>, place: u32) -> Result<(), ReadError>;
    /// Posts a lookup, which lands in `place`: the bytes of its two reads, the [`Lead`], and the bytes that it names; no lead if
    /// they have no room there, or in a message. It completes as one read. False: this fabric has no lookups.
    ///
    /// # Panics
    /// As [`ReadChannel::read`], and when the place has no room for two reads and a lead, or the question is too long.
    fn look_up(&mut self, _lookup: &LookUp<'_>, _place: Range<u32>) -> Result<bool, ReadError> {
        Ok(false)
    }
    /// How many further reads have completed, in the order they were posted. Also moves queued requests along.
    fn poll(&mut self) -> Result<u32, ReadError>;
    /// What has landed in a range of the landing; zero where nothing has.
    ///
    /// # Panics
    /// When the range overlaps the place of a read that has not completed, or leaves the landing.
    fn landed(&self, range: Range<u32>) -> &[u8];
    /// As [`Channel::readiness`](crate::Channel::readiness).
    fn readiness(&self) -> Option<BorrowedFd<'_>>;
    /// As [`Channel::arm`](crate::Channel::arm).
    fn arm(&mut self) -> bool;
}

/// A shared slot as the reader sees it, made from a [`ReadGrant`] by [`Reader::attach`]. Cheap to clone.
///
/// It looks the same for every fabric. One that another fabric's reader has attached has no valid key.
#[derive(Clone, Debug)]
pub struct Readable {
    /// Where the slot begins in the receiver's address space, if reads name addresses.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only verbs reads from addresses"))]
    pub(crate) address: u64,
    /// The key of the share.
    pub(crate) key: u64,
    /// Bytes of the slot.
    pub(crate) length: u32,
    /// The slot itself, where the reader reads it directly.
    pub(crate) file: Option<Arc<File>>,
}

impl Readable {
    /// Bytes of the slot.
    #[allow(clippy::len_without_is_empty, reason = "no slot is empty")]
    pub fn len(&self) -> u32 {
        self.length
    }
}

/// The readers that a receiver has admitted.
#[derive(Debug, Default)]
pub(crate) struct Readers(BTreeSet<ReaderId>);

impl Readers {
    /// Admits one more, or one that is admitted already.
    pub(crate) fn admit(&mut self, reader: ReaderId) -> Result<(), FabricError> {
        if self.0.len() >= READERS_MAX && !self.0.contains(&reader) {
            return Err(FabricError::TooManyReaders);
        }
        self.0.insert(reader);
        Ok(())
    }

    pub(crate) fn dismiss(&mut self, reader: ReaderId) {
        self.0.remove(&reader);
    }
}

/// Checks what every fabric's [`ReadChannel::read`] panics at; returns where the bytes land.
pub(crate) fn check_read(from: &Readable, at: &Range<u32>, place: u32, landing: usize) -> Range<u32> {
    assert!(at.start < at.end && at.end <= from.length, "a read lies within its slot");
    let end = u64::from(place) + u64::from(at.end - at.start);
    assert!(end <= landing as u64, "a read lands within the landing");
    place..end as u32
}

/// True when two ranges have a byte in common.
pub(crate) fn overlap(one: &Range<u32>, other: &Range<u32>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Panics when `range` meets the place of a read that is on its way.
pub(crate) fn check_settled<'a>(range: &Range<u32>, mut open: impl Iterator<Item = &'a Range<u32>>) {
    assert!(!open.any(|place| overlap(range, place)), "a read is on its way to these bytes");
}
