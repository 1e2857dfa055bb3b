//! What can go wrong: [`FabricError`] in control calls, [`ChannelError`] on the append path, [`ReadError`] on a read channel.

use std::io;

use crate::message::{FabricKind, Writer};
use crate::pool::PoolError;
use crate::reading::READERS_MAX;

/// What went wrong on either side, outside the write path.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// The pool cannot give memory; try again when buffers have been freed.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The other side speaks another fabric.
    #[error("this side runs --fabric {ours}, the other side --fabric {theirs}: give both the same")]
    Mismatch {
        /// This side.
        ours: FabricKind,
        /// The other side.
        theirs: FabricKind,
    },
    /// The slot has fewer bytes than are to be written.
    #[error("a slot of {length} bytes is lent where there should be {size}")]
    TooShort {
        /// Bytes of the slot.
        length: u32,
        /// Bytes that it should have.
        size: u32,
    },
    /// The writer has been revoked.
    #[error("writer {0:?} has been revoked")]
    Revoked(Writer),
    /// As many readers as a receiver admits have not been dismissed. Try again later, or at another backup.
    #[error("{READERS_MAX} readers are admitted already: read from another backup, or try again later")]
    TooManyReaders,
    /// The operating system refused.
    #[error("{action}: {source}")]
    Io {
        /// What was being done, in the present tense.
        action: String,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl FabricError {
    pub(crate) fn mismatch(ours: FabricKind, theirs: FabricKind) -> FabricError {
        FabricError::Mismatch { ours, theirs }
    }

    /// Adds what was being done when the operating system refused.
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

/// Why a read was not taken or did not complete. Apart from `QueueFull` it is final for the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Too many reads in flight: poll, then read again. Not an error of the channel.
    #[error("read queue full")]
    QueueFull,
    /// The share has ended: ask where the segment is now.
    #[error("the backup no longer shares this memory")]
    Ended,
    /// The other side is gone, does not answer, or has ended the channel, as it does when the share has ended.
    #[error("connection to the backup lost")]
    Disconnected,
    /// The other side broke the data protocol.
    #[error("the backup broke the data protocol")]
    Protocol,
}
