//! The fabric contract: what every implementation promises, so that the protocol above need not know which one runs.
//!
//! A *receiver* (backup) owns a pool of slots and lends them, one lending for each segment buffer. A *sender* (sidecar)
//! opens *channels* to a receiver and posts writes into lent slots. The receiver's CPU need not take part in a write.
//!
//! # Promises
//!
//! 1. **One work request, one range.** [`Channel::post`] writes one contiguous range of the local buffer to the same
//!    offsets of the remote slot. Within a range bytes may land in any order; nothing may be inferred from a part of
//!    it. It is on its way at the latest after the next [`Channel::poll`].
//!    [`Channel::post_bytes`] writes a few bytes that it copies, to any offset: the caller may change them at once. Where a
//!    write costs the receiver's processor something, they *linger*: they go out together with the next post, or when they are
//!    [pushed](Channel::push).
//! 2. **Completion.** Writes of one channel complete in the order they were posted. A completion means: every byte of
//!    the write, and of all earlier writes of the channel, is in the receiver's memory and will be seen by any
//!    [`Pool::read`](crate::Pool::read) that follows a completed revocation. An empty range is a valid write: it proves
//!    at completion that the channel had not been revoked when it was posted. Of the lending it proves nothing: RDMA
//!    looks at no key where there are no bytes. Where two writes of a channel overlap, the bytes of the later one stay.
//! 3. **Barrier.** When [`Receiver::revoke_below`] returns, (a) no write of a revoked writer completes any more, (b) no
//!    byte of a revoked writer lands any more in memory that [`Pool::read`](crate::Pool::read) shows, and (c) every
//!    write that has completed is in that memory. It must not wait for the sender: a sender may be frozen in the middle
//!    of a write. Slots that are [retained](Receiver::retain) are left out of (b). So are side slots, of which no byte is copied:
//!    but their shares have ended by then.
//! 4. **Capability.** A sender reaches a slot only with a [`Grant`] that the receiver made for it, sent over the
//!    control RPC. Anyone else who connects can neither write nor learn anything.
//! 5. **Zero.** A slot is all zero when [`Receiver::lend`] returns, and stays unreachable for every earlier lending.
//! 6. **Failure is final.** After the first error a channel reports nothing but that error; a new epoch makes a new
//!    one.
//! 7. **A new receiver over an old pool is a barrier** for every writer of earlier process lives, as if revoked.
//!
//! Promises 8 to 10 are about reading: see [`reading`](crate::reading). A grant of this file never lets anyone read.
//!
//! # How a channel is opened
//!
//! [`Sender::begin`] → [`Opening::offer`] travels to the receiver → [`Receiver::accept`], [`Admission::complete`] → its
//! [`ChannelAnswer`] travels back → [`Opening::connect`]. Offers, answers and grants travel inside the control RPC and nowhere else.

use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::buffer::{AppendBuffer, SharedBuffer};
use crate::error::{ChannelError, FabricError};
use crate::mapping::Mapping;
use crate::message::{ChannelAnswer, FabricKind, Grant, Offer, SlotId, Writer};
use crate::reading::{Admission, Sharer};

/// Checks what [`Channel::post`] panics at.
pub(crate) fn check_range(remote: &RemoteBuffer, local: &SharedBuffer, range: &Range<u32>) {
    assert!(range.start <= range.end && range.end <= local.len(), "a write lies within what is published");
    assert!(range.end <= remote.length, "a write lies within its slot");
}

/// Checks what every fabric's [`Channel::post_bytes`] panics at.
pub(crate) fn check_bytes(remote: &RemoteBuffer, at: u32, bytes: &[u8]) {
    assert!(bytes.len() <= POSTED_BYTES_MAX, "a few bytes only are copied");
    assert!(u64::from(at) + bytes.len() as u64 <= u64::from(remote.length), "a write lies within its slot");
}

/// Most bytes of one [`Channel::post_bytes`]: a line, which every card takes with the work request itself.
pub const POSTED_BYTES_MAX: usize = 64;

/// A lent slot as the sender sees it, made from a [`Grant`] by [`Sender::attach`]. Cheap to clone.
///
/// It looks the same for every fabric. A buffer that another fabric's sender has attached is one without a valid key, and
/// promise 4 covers it.
#[derive(Clone, Debug)]
pub struct RemoteBuffer {
    /// Where the slot begins in the receiver's address space, if writes name addresses.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only verbs writes to addresses"))]
    pub(crate) address: u64,
    /// Named in each write.
    pub(crate) key: u64,
    /// Bytes of the slot.
    pub(crate) length: u32,
    /// The slot itself, where the sender writes it directly.
    pub(crate) memory: Option<Arc<Mapping>>,
}

/// The receiving half: a backup's memory and which writers may write it. Not on the write path.
pub trait Receiver: Send {
    /// Which fabric this is.
    fn kind(&self) -> FabricKind;
    /// Prepares for one channel of `writer`, which is ready when the admission is complete. Refused when a revocation covers it,
    /// now or before it is complete.
    fn accept(&mut self, writer: Writer, offer: &Offer) -> Result<Admission, FabricError>;
    /// Zeroes the slot (promise 5) and lets `writer` write it. An earlier lending of the slot is over.
    fn lend(&mut self, writer: Writer, slot: SlotId) -> Result<Grant, FabricError>;
    /// Ends one lending whose writer has finished with it, which is what the caller answers for: it waits for no write's
    /// completion and posts no further one. None completes any more, and all that have completed are readable.
    /// Not a barrier for a writer that does not keep to this.
    fn end_lending(&mut self, slot: SlotId);
    /// After [`end_lending`](Receiver::end_lending): a post of the writer may be under way all the same, since more than one of its
    /// requests has got the grant, and those before the last are not known to have ended. The slot's memory is not kept for the
    /// next lending where such a post could touch it.
    fn doubt_end(&mut self, _slot: SlotId) {}
    /// After [`end_lending`](Receiver::end_lending): what is in the slot is a cache, of which every reader checks every byte. A
    /// revocation leaves it where it is, and its share with it: taking memory that nobody relies on out of a writer's reach would
    /// only make a fence longer.
    fn retain(&mut self, _slot: SlotId) {}
    /// Gives the slot memory that is nobody's to write, all zero, for a cache that this process fills
    /// ([`Pool::write`](crate::Pool::write)). An earlier lending of the slot, and its share, are over.
    fn hold(&mut self, slot: SlotId) -> Result<(), FabricError>;
    /// Ends the lending of the slot, if there is one, whether its writer has finished or not, and gives the bytes up: the
    /// slot reads as zero. Its memory may be kept for the next lending, where no earlier writer can touch it.
    fn release(&mut self, slot: SlotId) -> Result<(), FabricError>;
    /// Revokes every writer smaller than `writer`, for good (promise 3), and waits for no admission. On an error the caller must
    /// end the process.
    fn revoke_below(&mut self, writer: Writer) -> Result<(), FabricError>;
    /// The read side of this receiver; `None` where the fabric has none.
    fn sharer(&mut self) -> Option<&mut dyn Sharer> {
        None
    }
    /// Why nothing can be lent any more, for the administrator; `None` while there is no problem.
    fn problem(&self) -> Option<String> {
        None
    }
    /// Bytes that have been written into this process's memory for what was posted: those of messages where they arrive, and once
    /// more where they are copied to. `None` where the receiver does not see them, or does not count them.
    fn written_bytes(&self) -> Option<u64> {
        None
    }
}

/// The sending half: makes channels and attaches grants. Used by control code, off the append path.
pub trait Sender: Send + Sync {
    /// Which fabric this is.
    fn kind(&self) -> FabricKind;
    /// Local memory that may be posted from (registered, where the fabric requires it), zeroed and prefaulted.
    fn allocate(&self, length: u32) -> Result<(AppendBuffer, SharedBuffer), FabricError>;
    /// Prepares this side's end of one channel.
    fn begin(&self) -> Result<Box<dyn Opening>, FabricError>;
    /// Makes a lent slot writable from this process.
    fn attach(&self, grant: &Grant) -> Result<RemoteBuffer, FabricError>;
}

/// A channel that is being opened: this side's end of it.
pub trait Opening: Send {
    /// What to send to the receiver.
    fn offer(&self) -> Offer;
    /// Opens the channel that the receiver has accepted. `peer` is the receiver's host as the control RPC reached it.
    fn connect(self: Box<Self>, answer: &ChannelAnswer, peer: IpAddr) -> Result<Box<dyn Channel>, FabricError>;
}

/// One ordered stream of writes to one receiver. On the append path: no call allocates, blocks or logs.
pub trait Channel: Send + fmt::Debug {
    /// Posts one write of `range` of `local` to the same offsets of `remote`.
    /// `range` must lie within what `local` has published and within the remote slot; otherwise it panics: a wrong
    /// offset is a bug in the caller, and a wrong ack is worse than none.
    fn post(&mut self, remote: &RemoteBuffer, local: &SharedBuffer, range: Range<u32>) -> Result<(), ChannelError>;
    /// Posts one write of `bytes` to `remote` from offset `at` on. They are copied, and may linger until the next post or a
    /// [push](Channel::push). There are at most [`POSTED_BYTES_MAX`], and they lie within the remote slot; otherwise it panics.
    fn post_bytes(&mut self, remote: &RemoteBuffer, at: u32, bytes: &[u8]) -> Result<(), ChannelError>;
    /// True while bytes linger: nothing but a post or a push sends them.
    fn lingers(&self) -> bool {
        false
    }
    /// Sends bytes that linger. The next poll reports it if that fails.
    fn push(&mut self) {}
    /// How many further writes have completed, in the order they were posted. Also moves queued bytes along.
    fn poll(&mut self) -> Result<u32, ChannelError>;
    /// How many writes it is worth having on their way: with more, each one costs more than it gains, and what waits is better
    /// gathered into a larger one. A hint.
    fn depth(&self) -> u32 {
        u32::MAX
    }
    /// Readable when [`Channel::poll`] has something to report, if [`Channel::arm`] was called since the last time that it
    /// had; none where completions are immediate.
    fn readiness(&self) -> Option<BorrowedFd<'_>>;
    /// True where bytes that are posted may have to wait for room in a socket; [`Channel::poll`] moves them along. Then
    /// [`Channel::readiness`] becomes writable when there is room again, and is to be watched for that too, edge-triggered: at
    /// other times it is writable as well.
    fn waits_for_room(&self) -> bool {
        false
    }
    /// To be called before sleeping on [`Channel::readiness`], with everything polled; what was posted since is on its way
    /// then, except for what lingers or waits for room. True when something has completed or failed since: then poll, instead of sleeping.
    fn arm(&mut self) -> bool;
}
