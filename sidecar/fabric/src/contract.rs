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
//! 2. **Completion.** Writes of one channel complete in the order they were posted. A completion means: every byte of
//!    the write, and of all earlier writes of the channel, is in the receiver's memory and will be seen by any
//!    [`Pool::read`](crate::Pool::read) that follows a completed revocation. An empty range is a valid write: it proves
//!    at completion that the channel had not been revoked when it was posted. Of the lending it proves nothing: RDMA
//!    looks at no key where there are no bytes.
//! 3. **Barrier.** When [`Receiver::revoke_below`] returns, (a) no write of a revoked writer completes any more, (b) no
//!    byte of a revoked writer lands any more in memory that [`Pool::read`](crate::Pool::read) shows, and (c) every
//!    write that has completed is in that memory. It must not wait for the sender: a sender may be frozen in the middle
//!    of a write.
//! 4. **Capability.** A sender reaches a slot only with a [`Grant`] that the receiver made for it, sent over the
//!    control RPC. A stranger who connects can neither write nor learn anything.
//! 5. **Zero.** A slot is all zero when [`Receiver::lend`] returns, and stays unreachable for every earlier lending.
//! 6. **Failure is final.** After the first error a channel reports nothing but that error; a new epoch makes a new
//!    one.
//! 7. **A new receiver over an old pool is a barrier** for every writer of earlier process lives, as if revoked.
//!
//! # How a channel is opened
//!
//! [`Sender::begin`] → [`Opening::offer`] travels to the receiver → [`Receiver::accept`] → its [`ChannelAnswer`] travels back →
//! [`Opening::connect`]. Offers, answers and grants travel inside the control RPC and nowhere else.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

use crate::buffer::{AppendBuffer, SharedBuffer};
use crate::pool::PoolError;
use crate::secret::Secret;
use crate::shm::ShmRemote;

/// One incarnation of a sender. All channels and lendings of a writer are revoked together. The protocol uses the
/// epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Writer(pub u64);

/// A slot of a receiver's pool: memory for one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotId(pub u32);

/// Which implementation moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricKind {
    /// One-sided RDMA writes by network card; the receiver's CPU does nothing.
    Verbs,
    /// Memory of the same host, written directly.
    Shm,
    /// TCP, on any network; the receiver's CPU copies.
    Tcp,
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FabricKind::Verbs => "verbs",
            FabricKind::Shm => "shm",
            FabricKind::Tcp => "tcp",
        })
    }
}

/// One end of a reliable connection, as the other end must know it: `ibv_modify_qp(3)`, INIT to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Queue-pair number, 24 bits.
    pub queue_pair: u32,
    /// The port's GID: on RoCE its IP address, IPv4 as `::ffff:a.b.c.d`.
    pub gid: Ipv6Addr,
    /// The port's local identifier on InfiniBand; 0 on RoCE.
    pub lid: u16,
    /// Number of the first packet that this end sends, 24 bits: random, so that packets of an earlier connection with the
    /// same queue-pair numbers do not fit.
    pub first_psn: u32,
    /// Bytes of a packet that this end's port takes: 256 to 4096.
    pub mtu: u16,
}

/// What a sender tells a receiver to open a channel; travels inside the control RPC.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "fabric", rename_all = "lowercase")]
pub enum Offer {
    /// The sender's end of the connection.
    Verbs {
        /// Where writes will come from.
        endpoint: Endpoint,
    },
    /// Same host: nothing to say.
    Shm,
    /// The receiver answers with an address and a secret.
    Tcp,
}

/// What a receiver answers to an [`Offer`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "fabric", rename_all = "lowercase")]
pub enum ChannelAnswer {
    /// The receiver's end of the connection, ready for writes.
    Verbs {
        /// Where writes go.
        endpoint: Endpoint,
        /// The receiver's card places the bytes of a write by rising address: `ibv_query_qp_data_in_order(3)`. Reported
        /// to people; nothing rests on it.
        in_order: bool,
    },
    /// Same host: nothing to say.
    Shm,
    /// Connect to this port (of the host that answered, when the address is unspecified) and present the secret.
    Tcp {
        /// Where the receiver listens for data.
        address: SocketAddr,
        /// Good for one connection of this writer.
        secret: Secret,
    },
}

/// The right to write one lent slot; travels inside the control RPC.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "fabric", rename_all = "lowercase")]
pub enum Grant {
    /// Registered memory.
    Verbs {
        /// Where the slot begins in the receiver's address space.
        address: u64,
        /// The rkey of this lending.
        key: u32,
        /// Bytes of the slot.
        length: u32,
    },
    /// A memory-backed file that the sender maps.
    Shm {
        /// Absolute path of the file.
        path: String,
        /// Stands in the file too: a path that has meanwhile been lent anew does not open to an old grant.
        key: u64,
        /// Bytes of the slot.
        length: u32,
    },
    /// A random key that each write names, as an rkey is on RDMA.
    Tcp {
        /// The key.
        key: u64,
        /// Bytes of the slot.
        length: u32,
    },
}

/// A lent slot as the sender sees it, made from a [`Grant`] by [`Sender::attach`]. Cheap to clone.
#[derive(Clone, Debug)]
pub enum RemoteBuffer {
    /// Address, key and length.
    Verbs {
        /// Where the slot begins in the receiver's address space.
        address: u64,
        /// Named in each write.
        key: u32,
        /// Bytes of the slot.
        length: u32,
    },
    /// The mapped file.
    Shm(ShmRemote),
    /// Key and length.
    Tcp {
        /// Named in each write.
        key: u64,
        /// Bytes of the slot.
        length: u32,
    },
}

impl Offer {
    /// The fabric that it is for.
    pub fn kind(&self) -> FabricKind {
        match self {
            Offer::Verbs { .. } => FabricKind::Verbs,
            Offer::Shm => FabricKind::Shm,
            Offer::Tcp => FabricKind::Tcp,
        }
    }
}

impl ChannelAnswer {
    /// The fabric that it is for.
    pub fn kind(&self) -> FabricKind {
        match self {
            ChannelAnswer::Verbs { .. } => FabricKind::Verbs,
            ChannelAnswer::Shm => FabricKind::Shm,
            ChannelAnswer::Tcp { .. } => FabricKind::Tcp,
        }
    }
}

impl Grant {
    /// The fabric that it is for.
    pub fn kind(&self) -> FabricKind {
        match self {
            Grant::Verbs { .. } => FabricKind::Verbs,
            Grant::Shm { .. } => FabricKind::Shm,
            Grant::Tcp { .. } => FabricKind::Tcp,
        }
    }
}

/// What went wrong on either side, outside the write path.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// The pool cannot give memory; try again when buffers have been freed.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The other side speaks another fabric.
    #[error("fabric mismatch: this side runs {ours}, the other side {theirs}: give both the same --fabric")]
    Mismatch {
        /// This side.
        ours: FabricKind,
        /// The other side.
        theirs: FabricKind,
    },
    /// The writer has been revoked.
    #[error("writer {0:?} has been revoked")]
    Revoked(Writer),
    /// The operating system said no.
    #[error("{action}: {source}")]
    Io {
        /// What was being done, in the present tense.
        action: String,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl FabricError {
    /// Says what was being done when the operating system said no.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> FabricError {
        let action = action.into();
        move |source| FabricError::Io { action, source }
    }
}

/// Why a write was not taken or did not complete. Apart from `QueueFull` it is final for the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// Too many writes in flight: poll, then post again. Not an error of the channel.
    #[error("send queue full")]
    QueueFull,
    /// The receiver has revoked this writer or ended this lending.
    #[error("write right revoked by the receiver")]
    Revoked,
    /// The other side is gone or does not answer.
    #[error("connection to the receiver lost")]
    Disconnected,
    /// The other side broke the data protocol.
    #[error("the receiver broke the data protocol")]
    Protocol,
}

/// The receiving half: a backup's memory and who may write it. Not on the write path.
pub trait Receiver: Send {
    /// Which fabric this is.
    fn kind(&self) -> FabricKind;
    /// Prepares for one channel of `writer`. Refused when a revocation covers it.
    fn accept(&mut self, writer: Writer, offer: &Offer) -> Result<ChannelAnswer, FabricError>;
    /// Zeroes the slot (promise 5) and lets `writer` write it. An earlier lending of the slot is over.
    fn lend(&mut self, writer: Writer, slot: SlotId) -> Result<Grant, FabricError>;
    /// Ends one lending whose writer has said that it is finished with it: no further write to it completes, all its
    /// completed writes are readable. Not a barrier: a straggler may repeat bytes until the slot is lent again.
    fn end_lending(&mut self, slot: SlotId);
    /// Revokes every writer smaller than `writer`, for good (promise 3). On an error the caller must end the process.
    fn revoke_below(&mut self, writer: Writer) -> Result<(), FabricError>;
    /// Why nothing can be lent any more, for people; `None` while all is well.
    fn problem(&self) -> Option<String> {
        None
    }
}

/// The sending half: makes channels and attaches grants. Used by control code, off the append path.
pub trait Sender: Send + Sync {
    /// Which fabric this is.
    fn kind(&self) -> FabricKind;
    /// Local memory that may be posted from (registered, where the fabric asks for it), prefaulted.
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
    /// How many further writes have completed, in the order they were posted. Also moves queued bytes along.
    fn poll(&mut self) -> Result<u32, ChannelError>;
    /// Readable when [`Channel::poll`] has something to report, if [`Channel::arm`] was called since the last time that it
    /// had; none where completions are immediate.
    fn readiness(&self) -> Option<BorrowedFd<'_>>;
    /// To be called before sleeping on [`Channel::readiness`], with everything polled. True when something has completed
    /// or failed meanwhile: then poll, instead of sleeping.
    fn arm(&mut self) -> bool;
    /// True while bytes wait for the socket to take them: watch [`Channel::readiness`] for writability too.
    fn wants_write(&self) -> bool;
}
