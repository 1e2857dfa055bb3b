//! Reading over TCP: requests name a share and a range, and the receiver's CPU answers with the bytes.
//!
//! The backup daemon calls the [`Sharer`] half of [`TcpReceiver`], a reader makes a [`TcpReader`]. In the
//! order in which bytes meet them: `reader` and its `channel`; the [`acceptor`](super::acceptor), which serves both sides;
//! `answering`, one thread for each channel; `shares`, what the control calls share with those threads.
//!
//! # Why a completed read is of its share (promises 8 to 10)
//!
//! 1. An answering thread reaches a slot's memory only through its share, and holds the share's lock while it copies
//!    [`PIECE_SIZE`](super::PIECE_SIZE) bytes at most. It never waits for the network with that lock held.
//! 2. The end of a share takes the memory out of it, under the same lock. So no byte is taken afterwards, and it waits for
//!    no reader. The receiver ends the share before it lends the slot again, clears it or gives it up.
//! 3. Shares and readers have tables and a lock of their own. A revocation ends the shares of side slots, as in step 2, and touches
//!    nothing else of them: no reader can delay a fence by more than one such copy for each.
//! 4. Shares and lendings have different keys, in different tables, and a connection of one side is never served by the
//!    thread of the other: its hello says which it is, and its secret is valid for that side only.

mod answering;
mod channel;
mod reader;
pub(crate) mod shares;

use std::io;
use std::time::Instant;

use super::TcpReceiver;
use crate::error::FabricError;
use crate::message::{ChannelAnswer, FabricKind, Offer, ReadGrant, ReaderId, SlotId};
use crate::reading::{Admission, Sharer};
use crate::secret::{self, Secret};

pub use reader::TcpReader;

impl Sharer for TcpReceiver {
    fn admit(&mut self, reader: ReaderId, offer: &Offer) -> Result<Admission, FabricError> {
        let Offer::Tcp = offer else { return Err(FabricError::mismatch(FabricKind::Tcp, offer.kind())) };
        let address = self.open_address()?;
        let secret = Secret::random().map_err(FabricError::io("draw a secret"))?;
        self.shares.expect(reader, secret.clone(), Instant::now())?;
        Ok(Admission::ready(ChannelAnswer::Tcp { address, secret }))
    }

    fn share(&mut self, slot: SlotId) -> Result<Option<ReadGrant>, FabricError> {
        let Some(memory) = self.pool.memory(slot) else { return Ok(None) };
        if self.pool.pool().is_side(slot) && !self.registry.is_lent(slot) {
            return Ok(None);
        }
        let length = memory.slot_size();
        let open = || -> io::Result<u64> {
            match self.shares.key(slot) {
                Some(key) => Ok(key),
                None => {
                    let key = secret::key()?;
                    self.shares.share(slot, key, length, self.pool.file(slot)?);
                    Ok(key)
                }
            }
        };
        let key = open().map_err(FabricError::io(format!("share slot {}", slot.0)))?;
        Ok(Some(ReadGrant::Tcp { key, length }))
    }

    fn end_share(&mut self, slot: SlotId) {
        self.shares.end(slot);
    }

    fn dismiss(&mut self, reader: ReaderId) {
        self.shares.dismiss(reader);
    }
}
