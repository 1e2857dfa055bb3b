//! The two ends of one ring. Each side of the connection has the producer of one ring and the consumer of the other.
//!
//! Positions count bytes from the beginning and never wrap. An end keeps its own position to itself and only publishes it; of
//! the other's it believes what is possible: `head ≤ tail ≤ head + size`, and neither goes back.

use std::sync::atomic::{Ordering, fence};

use crate::memory::Ring;
use crate::waiting::{may_sleep, moved};

/// The other side's position is one that no honest side can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {whose} of the ring is {found}, and only {lowest} to {highest} is possible")]
pub struct BadPosition {
    whose: &'static str,
    found: u64,
    lowest: u64,
    highest: u64,
}

/// Takes bytes out of a ring.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    /// Bytes taken; `released ≤ head ≤ tail`.
    head: u64,
    /// How many of them the producer may use again.
    released: u64,
    /// Bytes written, as last seen.
    tail: u64,
}

impl Consumer {
    pub(crate) fn new(ring: Ring) -> Consumer {
        Consumer { ring, head: 0, released: 0, tail: 0 }
    }

    /// Bytes that can be taken now.
    pub fn pending(&mut self) -> Result<usize, BadPosition> {
        let tail = self.ring.tail().load(Ordering::Acquire);
        // What has not been released cannot have been written over.
        let (lowest, highest) = (self.tail, self.released + self.ring.size() as u64);
        if !(lowest..=highest).contains(&tail) {
            return Err(BadPosition { whose: "tail", found: tail, lowest, highest });
        }
        self.tail = tail;
        Ok((tail - self.head) as usize)
    }

    /// Bytes taken since the beginning.
    pub fn position(&self) -> u64 {
        self.head
    }

    /// Copies the pending bytes that begin `offset` bytes on.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn peek(&self, offset: usize, target: &mut [u8]) {
        let start = self.head + offset as u64;
        assert!(start + target.len() as u64 <= self.tail, "only what is pending can be read");
        self.ring.copy_out(start, target);
    }

    /// Takes `count` of the pending bytes. The producer learns of it by [`Consumer::release`].
    ///
    /// # Panics
    /// When there are not as many.
    pub fn take(&mut self, count: usize) {
        assert!(count as u64 <= self.tail - self.head, "only what is pending can be taken");
        self.head += count as u64;
    }

    /// Moves pending bytes to `room`; returns how many. 0: there are none, or there is no room.
    pub fn read(&mut self, room: &mut [u8]) -> Result<usize, BadPosition> {
        let count = self.pending()?.min(room.len());
        self.peek(0, &mut room[..count]);
        self.take(count);
        Ok(count)
    }

    /// Gives the room of what was taken back to the producer. True: it sleeps until then, and has to be woken.
    pub fn release(&mut self) -> bool {
        if self.released == self.head {
            return false;
        }
        self.released = self.head;
        moved(self.ring.head(), self.head, self.ring.producer_waits())
    }

    /// Ends the ring. What [`Consumer::pending`] finds afterwards is all that the producer may ever count as delivered: see
    /// [`Producer::is_open`].
    pub fn close(&mut self) {
        self.ring.closed().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Asks to be woken. True: this side may sleep, as nothing has been written since [`Consumer::pending`].
    pub fn may_sleep(&mut self) -> bool {
        may_sleep(self.ring.consumer_waits(), self.ring.tail(), self.tail)
    }

    /// This side is awake.
    pub fn awake(&mut self) {
        self.ring.consumer_waits().store(0, Ordering::Relaxed);
    }
}

/// Writes bytes into a ring.
#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    /// Bytes written; `head ≤ published ≤ tail`.
    tail: u64,
    /// How many of them the consumer knows of.
    published: u64,
    /// Bytes taken, as last seen.
    head: u64,
}

impl Producer {
    pub(crate) fn new(ring: Ring) -> Producer {
        Producer { ring, tail: 0, published: 0, head: 0 }
    }

    /// Bytes that the ring holds.
    pub fn size(&self) -> usize {
        self.ring.size()
    }

    /// Bytes that can be written now.
    pub fn room(&mut self) -> Result<usize, BadPosition> {
        let head = self.ring.head().load(Ordering::Acquire);
        if !(self.head..=self.published).contains(&head) {
            return Err(BadPosition { whose: "head", found: head, lowest: self.head, highest: self.published });
        }
        self.head = head;
        Ok(self.known_room())
    }

    fn known_room(&self) -> usize {
        self.ring.size() - (self.tail - self.head) as usize
    }

    /// Room for `length` more bytes in one piece, if there is. Its contents are what an earlier round has left.
    /// [`Producer::commit`] makes it part of the stream; without that it is as if it had not been asked for.
    pub fn reserve(&mut self, length: usize) -> Result<Option<&mut [u8]>, BadPosition> {
        // The consumer's position costs a cache miss, so it is looked at only where the known one is not enough.
        if self.known_room() < length && self.room()? < length {
            return Ok(None);
        }
        Ok(Some(self.ring.bytes_mut(self.tail, length)))
    }

    /// The bytes that were reserved, once more.
    ///
    /// # Panics
    /// When there is no room for as many.
    pub fn reserved(&mut self, length: usize) -> &mut [u8] {
        assert!(length <= self.known_room(), "only what was reserved");
        self.ring.bytes_mut(self.tail, length)
    }

    /// The next `length` bytes have been filled in.
    ///
    /// # Panics
    /// When there is no room for as many.
    pub fn commit(&mut self, length: usize) {
        assert!(length <= self.known_room(), "only what was reserved");
        self.tail += length as u64;
    }

    /// Writes as many of these bytes as there is room for.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, BadPosition> {
        let count = self.room()?.min(bytes.len());
        self.ring.copy_in(self.tail, &bytes[..count]);
        self.tail += count as u64;
        Ok(count)
    }

    /// Bytes written that the consumer does not know of.
    pub fn unpublished(&self) -> usize {
        (self.tail - self.published) as usize
    }

    /// Shows the consumer what was written. True: it sleeps until then, and has to be woken.
    pub fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.published = self.tail;
        moved(self.ring.tail(), self.tail, self.ring.consumer_waits())
    }

    /// After [`Producer::publish`]: whether the consumer takes what was published, even if it has closed the ring since. Two
    /// fences as in `waiting`: a consumer that does not see the bytes has closed the ring where this sees it.
    pub fn is_open(&self) -> bool {
        fence(Ordering::SeqCst);
        self.ring.closed().load(Ordering::Relaxed) == 0
    }

    /// Asks to be woken when there is more room. True: this side may sleep, as there is none that it does not know of.
    pub fn may_sleep(&mut self) -> bool {
        may_sleep(self.ring.producer_waits(), self.ring.head(), self.head)
    }

    /// This side is awake.
    pub fn awake(&mut self) {
        self.ring.producer_waits().store(0, Ordering::Relaxed);
    }
}
