//! The one place that moves bytes to remote memory.
//!
//! [`contract`] says what a fabric promises; [`shm`], [`tcp`] and, with the feature of that name, [`verbs`] keep it. The
//! backup daemon calls the receiving half ([`Receiver`]), the sidecar the sending half ([`Sender`], [`Channel`]). [`reading`]
//! is the contract of one-sided reads, with rights of its own ([`Sharer`], [`Reader`], [`ReadChannel`]). This crate knows
//! nothing of logs: a writer is a number, a slot is a piece of memory, a write is a range of bytes. The feature `baselines`
//! adds two-sided replication, for `./bench` to compare with.

#[cfg(feature = "baselines")]
pub mod baselines;
#[cfg(not(feature = "baselines"))]
#[path = "no_baselines.rs"]
pub mod baselines;
pub mod buffer;
mod bus_error;
pub mod contract;
mod error;
mod mapping;
mod message;
pub mod pool;
pub mod reading;
mod secret;
pub mod shm;
pub mod tcp;
pub mod verbs;

pub use buffer::{AppendBuffer, BufferPool, SharedBuffer};
pub use bus_error::explain_bus_errors;
pub use contract::{Channel, Opening, POSTED_BYTES_MAX, Receiver, RemoteBuffer, Sender};
pub use error::{ChannelError, FabricError, ReadError};
pub use mapping::SLOT_SIZE_MAX;
pub use message::{ChannelAnswer, Endpoint, FabricKind, Grant, Offer, ReadGrant, ReaderId, SlotId, Writer};
pub use pool::{MappedFile, Parts, Pool, PoolError, SIDE_SLOT_SIZE};
pub use reading::{Admission, LookUp, ReadChannel, ReadOpening, Readable, Reader, Sharer};
pub use secret::Secret;
