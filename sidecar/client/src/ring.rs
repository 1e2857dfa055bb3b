//! The ring of a connection: what takes the socket's place for everything but a read's records and its stop.
//!
//! Held by `session`. Appends are written straight into shared memory as long as there is room and nothing waits before them.
//! A frame that wakes the sidecar, or stops a read, goes through the socket: see `docs/append-ring.md`.

use std::io;
use std::os::fd::OwnedFd;

use tailwind_protocol::socket::{FRAME_HEADER_SIZE, Request, WAKE_SIDECAR_FRAME, append_header};
use tailwind_ring::{BadPosition, ClientEnd, Consumer, Producer};

use crate::buffer::{Inbox, Outbox};

/// Bytes that `submit` writes before it shows them to the sidecar: showing each record would cost more than writing it.
const PUBLISH_AT: usize = 4 << 10;

/// One connection's ring.
pub(crate) struct Ring {
    requests: Producer,
    answers: Consumer,
    /// Answers that have been copied out of the ring and not been decoded.
    pub(crate) inbox: Inbox,
    /// Frames that go through the socket.
    pub(crate) aside: Outbox,
    /// The read to be stopped, once everything before that is in the ring.
    pub(crate) stop: Option<u64>,
}

impl Ring {
    /// Maps what came with the welcome.
    pub(crate) fn open(file: OwnedFd) -> io::Result<Ring> {
        let ClientEnd { requests, answers } = tailwind_ring::open(file)?;
        Ok(Ring { requests, answers, inbox: Inbox::new(), aside: Outbox::default(), stop: None })
    }

    /// Room in the ring for an append of this length, if `waiting` leaves any; the payload's part of it.
    pub(crate) fn reserve(&mut self, waiting: &mut Outbox, length: usize) -> Option<&mut [u8]> {
        // What lies in the sidecar's words is looked at again when something is sent, and found out then.
        self.write(waiting).ok()?;
        if !waiting.unsent().is_empty() {
            return None;
        }
        let frame = self.requests.reserve(FRAME_HEADER_SIZE + length).ok()??;
        Some(&mut frame[FRAME_HEADER_SIZE..])
    }

    /// The payload's part of what was reserved last.
    pub(crate) fn reserved(&mut self, length: usize) -> &mut [u8] {
        &mut self.requests.reserved(FRAME_HEADER_SIZE + length)[FRAME_HEADER_SIZE..]
    }

    /// The payload of this append has been filled in.
    pub(crate) fn commit(&mut self, request: u64, length: usize) {
        let frame = self.requests.reserved(FRAME_HEADER_SIZE + length);
        frame[..FRAME_HEADER_SIZE].copy_from_slice(&append_header(request, length));
        self.requests.commit(FRAME_HEADER_SIZE + length);
    }

    /// True when enough has been written to be shown.
    pub(crate) fn is_due(&self) -> bool {
        self.requests.unpublished() >= PUBLISH_AT
    }

    /// Moves what waits into the ring and shows it to the sidecar. What has to go through the socket is in `aside` then.
    pub(crate) fn publish(&mut self, waiting: &mut Outbox) -> Result<(), BadPosition> {
        self.write(waiting)?;
        // Anything that comes through the socket wakes the sidecar.
        if self.requests.publish() && self.aside.unsent().is_empty() {
            self.aside.tail().extend_from_slice(&WAKE_SIDECAR_FRAME);
        }
        if waiting.unsent().is_empty()
            && let Some(read) = self.stop.take()
        {
            Request::Stop.encode(read, self.aside.tail());
        }
        Ok(())
    }

    fn write(&mut self, waiting: &mut Outbox) -> Result<(), BadPosition> {
        if !waiting.unsent().is_empty() {
            let count = self.requests.write(waiting.unsent())?;
            waiting.mark_sent(count);
        }
        Ok(())
    }

    /// Copies answers out of the ring. False: there are none.
    pub(crate) fn receive(&mut self) -> Result<bool, BadPosition> {
        let count = self.answers.read(self.inbox.room())?;
        self.inbox.mark_received(count);
        if self.answers.release() && self.aside.unsent().is_empty() {
            self.aside.tail().extend_from_slice(&WAKE_SIDECAR_FRAME);
        }
        Ok(count > 0)
    }

    /// Before this side sleeps on the socket. True if it may: there is no answer, and no room that `waiting` could use.
    pub(crate) fn may_sleep(&mut self, waiting: &Outbox) -> bool {
        self.answers.may_sleep() && (waiting.unsent().is_empty() || self.requests.may_sleep())
    }

    /// This side is awake: the sidecar need not wake it.
    pub(crate) fn awake(&mut self) {
        self.answers.awake();
        self.requests.awake();
    }
}
