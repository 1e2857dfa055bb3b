//! The bytes of a chain's links. All integers are little-endian.
//!
//! ```text
//! towards the tail   message   hops u8 · `hops` × header, as over tcp · `length` bytes
//! back               answer    messages that have been written everywhere, u64
//! ```
//!
//! Each member takes the first header off, which is its own, and sends the rest on. All headers of a message have the same
//! offset and length. An answer speaks for all messages up to its number.

use crate::error::ChannelError;
use crate::tcp::wire::{ACK_SIZE, HEADER_SIZE};

use super::super::link::Link;

/// Members of a chain: as many as a group may have.
pub(super) const HOPS_MAX: usize = 8;
/// In place of a lending's key: the bytes are for members further on.
pub(super) const PASS: u64 = 0;
/// In place of a lending's key, for the tail: the bytes say to whom it shall connect, as `ADDRESS SECRET`. That a lending has
/// this key is as likely as that somebody guesses one.
pub(super) const EXTEND: u64 = u64::MAX;
/// Longest text of this kind.
pub(super) const EXTENSION_MAX: usize = 256;
/// Answers read at a time. Only the last one counts.
const ANSWERS_MAX: usize = 64;

/// Bytes before a message's own, of a message with so many hops.
pub(super) const fn head_size(hops: usize) -> usize {
    1 + hops * HEADER_SIZE
}

/// The answers that come back through a link.
#[derive(Debug)]
pub(super) struct Answers {
    /// The last one.
    pub(super) count: u64,
    /// Of these, the first `filled` bytes are an answer that has not arrived in full.
    bytes: [u8; ANSWERS_MAX * ACK_SIZE],
    filled: usize,
}

impl Answers {
    pub(super) fn new() -> Answers {
        Answers { count: 0, bytes: [0; ANSWERS_MAX * ACK_SIZE], filled: 0 }
    }

    /// Takes those that have arrived. `sent` is what the last one may say at most.
    pub(super) fn receive(&mut self, link: &mut dyn Link, sent: u64) -> Result<(), ChannelError> {
        loop {
            let arrived = link.receive(&mut self.bytes[self.filled..])?;
            if arrived == 0 {
                return Ok(());
            }
            let filled = self.filled + arrived;
            let whole = filled - filled % ACK_SIZE;
            if let Some(last) = self.bytes[..whole].last_chunk() {
                let count = u64::from_le_bytes(*last);
                if count < self.count || count > sent {
                    return Err(ChannelError::Protocol);
                }
                self.count = count;
            }
            self.bytes.copy_within(whole..filled, 0);
            self.filled = filled - whole;
        }
    }
}
