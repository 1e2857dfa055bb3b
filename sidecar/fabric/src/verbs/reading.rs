//! Reading over RDMA: remote reads, which the receiver's card answers without its processor.
//!
//! - `sharing`: the backup's half, a protection domain for all readers, a registration for each shared slot.
//! - `reader` and its `channel`: the reader's half.
//!
//! # Why a completed read is of its share (promises 8 to 10)
//!
//! 1. Readers have a protection domain of their own. Its queue pairs and registrations allow remote reads and nothing else,
//!    those of writers allow remote writes and nothing else, and no request crosses from one domain to another. So neither
//!    side's keys are worth anything to the other, on any queue pair.
//! 2. A read completes when all its bytes have arrived, so after the card has fetched them by the registration.
//!    `ibv_dereg_mr(3)` returns when the card no longer uses it. The receiver ends the share by this before it clears the
//!    memory or lends it again.
//! 3. A write that has completed is in memory or on its way there through the card's PCIe function, and so is every read:
//!    reads do not pass posted writes (PCI Express Base Specification, "Transaction Ordering"). A receiver has one device.
//! 4. Revocation touches nothing of this. To end a share or a reader is a command to the device that waits for no peer.

mod channel;
mod reader;
mod sharing;

pub use reader::VerbsReader;
pub(super) use sharing::Sharing;

/// Reads that one queue pair may have on the wire at a time: what common cards allow.
const READS_ON_WIRE: i32 = 16;

/// What a device allows, as `max_rd_atomic` and `max_dest_rd_atomic` take it.
fn reads_on_wire(allowed: i32) -> u8 {
    allowed.clamp(1, READS_ON_WIRE) as u8
}
