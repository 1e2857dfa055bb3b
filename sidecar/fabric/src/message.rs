//! What travels between the two halves of a fabric, inside the control RPC, and the numbers that name things there.
//!
//! A channel is opened by an [`Offer`] and its [`ChannelAnswer`]; a [`Grant`] follows for each lending, and a [`ReadGrant`]
//! for each shared slot.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

#[cfg(feature = "baselines")]
use crate::baselines::Baseline;
use crate::error::FabricError;
use crate::secret::Secret;

/// One incarnation of a sender. All channels and lendings of a writer are revoked together. The protocol uses the
/// epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Writer(pub u64);

/// One incarnation of a reader: a random number, drawn when its process starts. All its read channels end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReaderId(pub u64);

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
    /// Two-sided replication, to compare with.
    #[cfg(feature = "baselines")]
    Baseline(Baseline),
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FabricKind::Verbs => "verbs",
            FabricKind::Shm => "shm",
            FabricKind::Tcp => "tcp",
            #[cfg(feature = "baselines")]
            FabricKind::Baseline(Baseline::Rpc) => "rpc-shm",
            #[cfg(feature = "baselines")]
            FabricKind::Baseline(Baseline::RpcPipelined) => "rpc-pipelined-shm",
            #[cfg(feature = "baselines")]
            FabricKind::Baseline(Baseline::Ring) => "ring-shm",
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
    /// Reads that this end answers at a time; 1 where nothing is read.
    #[serde(default = "one")]
    pub reads: u8,
}

fn one() -> u8 {
    1
}

/// What a sender sends a receiver to open a channel; travels inside the control RPC.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "fabric", rename_all = "lowercase")]
pub enum Offer {
    /// The sender's end of the connection.
    Verbs {
        /// Where writes will come from.
        endpoint: Endpoint,
    },
    /// Same host: nothing is needed.
    Shm,
    /// The receiver answers with an address and a secret.
    Tcp,
    /// Same host: where the receiver finds the sender.
    #[cfg(feature = "baselines")]
    Baseline {
        /// Which one.
        baseline: Baseline,
        /// Name of an abstract Unix socket on which the sender listens.
        socket: String,
    },
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
        /// in the status; nothing depends on it.
        in_order: bool,
    },
    /// Same host: nothing is needed.
    Shm,
    /// Connect to this port (of the host that answered, when the address is unspecified) and present the secret.
    Tcp {
        /// Where the receiver listens for data.
        address: SocketAddr,
        /// Good for one connection of this writer or reader.
        secret: Secret,
    },
    /// The receiver has connected.
    #[cfg(feature = "baselines")]
    Baseline {
        /// Which one.
        baseline: Baseline,
        /// What the receiver presents to the sender.
        secret: Secret,
    },
}

/// The right to write one lent slot; travels inside the control RPC. Each lending has another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        /// Is in the file too: a path that has been lent again since does not open to an old grant.
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
    /// The same.
    #[cfg(feature = "baselines")]
    Baseline {
        /// Which one.
        baseline: Baseline,
        /// The key.
        key: u64,
        /// Bytes of the slot.
        length: u32,
    },
}

impl Grant {
    /// Refuses a slot that has fewer bytes than will be written: at the first write behind its end a channel panics.
    pub fn check_length(&self, size: u32) -> Result<(), FabricError> {
        let length = match self {
            Grant::Verbs { length, .. } | Grant::Shm { length, .. } | Grant::Tcp { length, .. } => *length,
            #[cfg(feature = "baselines")]
            Grant::Baseline { length, .. } => *length,
        };
        if length < size { Err(FabricError::TooShort { length, size }) } else { Ok(()) }
    }
}

/// The right to read the present memory of one slot; travels inside the control RPC. It gives no right to write: its keys
/// are none that a [`Grant`] has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fabric", rename_all = "lowercase")]
pub enum ReadGrant {
    /// Memory registered for remote reads alone.
    Verbs {
        /// Where the slot begins in the receiver's address space.
        address: u64,
        /// The rkey of this share.
        key: u32,
        /// Bytes of the slot.
        length: u32,
    },
    /// A memory-backed file that the reader opens for reading.
    Shm {
        /// Absolute path of the file.
        path: String,
        /// Is in the file too, for as long as the share lasts.
        key: u64,
        /// Bytes of the slot.
        length: u32,
    },
    /// A random key that each read names.
    Tcp {
        /// The key.
        key: u64,
        /// Bytes of the slot.
        length: u32,
    },
    /// As [`ReadGrant::Shm`]; lookups name the key.
    #[cfg(feature = "baselines")]
    Baseline {
        /// Which one.
        baseline: Baseline,
        /// Absolute path of the file.
        #[serde(default)]
        path: String,
        /// The key.
        key: u64,
        /// Bytes of the slot.
        length: u32,
    },
}

macro_rules! kind {
    ($($message:ident),*) => {$(
        impl $message {
            /// The fabric that it is for.
            pub(crate) fn kind(&self) -> FabricKind {
                match self {
                    $message::Verbs { .. } => FabricKind::Verbs,
                    $message::Shm { .. } => FabricKind::Shm,
                    $message::Tcp { .. } => FabricKind::Tcp,
                    #[cfg(feature = "baselines")]
                    $message::Baseline { baseline, .. } => FabricKind::Baseline(*baseline),
                }
            }
        }
    )*};
}
kind!(Offer, ChannelAnswer, Grant, ReadGrant);
