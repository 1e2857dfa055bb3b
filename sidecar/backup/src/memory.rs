//! A backup's memory, as narrow as its shells need it: the traits that the daemon's pool and fabric implement, and the
//! simulator's.
//!
//! [`Memory`] is asked by [`start`](crate::start()), before anything is lent; [`Lender`] by [`daemon`](crate::daemon);
//! [`Buffers`] by [`flusher`](crate::flusher) too, which may do so at any time. What a slot's memory and a lending are is
//! for the fabric to say (`tailwind_fabric::Pool`, `tailwind_fabric::Receiver`).

use std::fmt;
use std::io;

use tailwind_protocol::backup::Slot;
use tailwind_protocol::ids::Epoch;

use crate::table::TableError;

/// Bytes of slots, readable at any time.
pub trait Buffers {
    /// Copies the bytes of `slot` from `offset` on to `out`: old, new or mixed during a concurrent write. A slot
    /// without memory reads as zero. The range lies within the slot.
    fn read(&self, slot: Slot, offset: u32, out: &mut [u8]) -> io::Result<()>;
}

/// The result of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// It is done.
    Done,
    /// There is no memory for what it takes, in words for people. Nobody may be told anything that depends on it; the same call
    /// is to be made again.
    NoRoom(String),
}

/// Controls which writer may write which slot.
pub trait Lender: Buffers {
    /// Zeroes the slot and lets the writer of `epoch` write it. An error is why there is no memory for it just now.
    fn lend(&mut self, epoch: Epoch, slot: Slot) -> Result<(), String>;

    /// Ends one lending whose writer has said that it is finished: it writes nothing more.
    fn end_lending(&mut self, slot: Slot);

    /// The slot's lending has ended, and its bytes are a cache of what is on disk: a revocation leaves them where they are.
    fn retain(&mut self, slot: Slot);

    /// Fills a slot that is not in use, and that nobody may write, with the bytes of such a cache. An error is why there is no
    /// memory for it just now.
    fn load(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), String>;

    /// Revokes every writer of an epoch below this one, for good: when it returns `Done`, none of their writes arrives. On
    /// an error the process must end.
    fn revoke_below(&mut self, epoch: Epoch) -> anyhow::Result<Revocation>;

    /// Ends the slot's lending, if any, and gives its bytes up. On an error the process must end.
    fn release(&mut self, slot: Slot) -> anyhow::Result<()>;
}

/// The pool as a starting process finds it.
pub trait Memory {
    /// The file beside the slots that holds the [table](crate::table), made if need be; nobody else has it.
    fn table(&mut self) -> Result<Box<dyn Mapped>, TableError>;

    /// Removes the slots of an earlier life.
    fn clear(&mut self) -> anyhow::Result<()>;

    /// Opens the slots.
    fn open(&mut self) -> anyhow::Result<()>;

    /// True when the slot has memory; the slots are open.
    fn has(&self, slot: Slot) -> bool;

    /// Puts bytes into a slot that is not in use; the slots are open.
    fn load(&mut self, slot: Slot, bytes: &[u8]) -> anyhow::Result<()>;
}

/// A small file that lives and dies with the slots, and is written without system calls: what is stored stays when the
/// process is killed behind it.
pub trait Mapped: fmt::Debug + Send {
    /// Bytes in it.
    fn length(&self) -> u64;

    /// Makes it at least `length` bytes long; new bytes are zero.
    fn grow(&mut self, length: u64) -> io::Result<()>;

    /// Reads as many bytes as `out` has; they lie within the file.
    fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()>;

    /// Copies `bytes`, which fit. A process that is killed during the copy leaves some of them written.
    fn write(&self, at: u64, bytes: &[u8]);

    /// Stores a word, little-endian, whole or not at all, behind everything that was written before.
    fn store(&self, at: u64, word: u64);
}
