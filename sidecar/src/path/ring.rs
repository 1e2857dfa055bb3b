//! A client's ring: what takes the socket's place for requests and answers. See `docs/append-ring.md`.
//!
//! Held by a [`ClientConnection`](super::connection::ClientConnection) whose client asked for it. Appends are placed from the
//! ring straight into the segment; every other frame is copied to the connection's inbox, and goes on as if it came from the
//! socket. Through the socket itself come only the frames that must not wait for others: wake-ups, and the stop of a read.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tailwind_protocol::segment::Payload;
use tailwind_protocol::socket::{
    FRAME_HEADER_SIZE, Request, VERSION, WAKE_CLIENT_FRAME, decode_request, frame_size, read_append_header,
};
use tailwind_ring::{BadPosition, Consumer, Producer};

use super::connection::Inbox;
use super::messages::Counters;

/// Bytes requested from the socket in one read: 16 frames of the kinds that come there.
pub(super) const ASIDE_SIZE: usize = 16 * FRAME_HEADER_SIZE;

/// One client's ring.
#[derive(Debug)]
pub struct ClientRing {
    requests: Consumer,
    answers: Producer,
    /// To be passed with the welcome; until then answers go through the socket.
    file: Option<OwnedFd>,
    /// Bytes received through the socket that are no whole frame yet.
    aside: Vec<u8>,
    /// The read that the client has stopped last.
    stopped: u64,
    _counted: Counted,
}

/// Counts a ring for as long as it lives.
#[derive(Debug)]
struct Counted(Arc<Counters>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.rings.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An append's payload in the ring.
pub(super) struct RingPayload<'a> {
    requests: &'a Consumer,
    length: usize,
}

impl Payload for RingPayload<'_> {
    fn len(&self) -> usize {
        self.length
    }

    fn copy_to(&self, target: &mut [u8]) {
        self.requests.peek(FRAME_HEADER_SIZE, target);
    }
}

impl ClientRing {
    /// A new ring, of which its client does not know yet.
    pub(super) fn create(counters: &Arc<Counters>) -> io::Result<ClientRing> {
        let (file, end) = tailwind_ring::create()?;
        counters.rings.fetch_add(1, Ordering::Relaxed);
        let aside = Vec::with_capacity(ASIDE_SIZE + FRAME_HEADER_SIZE);
        let counted = Counted(Arc::clone(counters));
        let tailwind_ring::SidecarEnd { requests, answers } = end;
        Ok(ClientRing { requests, answers, file: Some(file), aside, stopped: 0, _counted: counted })
    }

    /// True while the client has written requests that are not taken. What it cannot have written counts too: it is found out
    /// when they are.
    pub(super) fn has_requests(&mut self) -> bool {
        self.requests.pending() != Ok(0)
    }

    /// An error if the client says to have written what it cannot have written.
    pub(super) fn check(&mut self) -> Result<(), BadPosition> {
        self.requests.pending().map(drop)
    }

    /// Bytes of requests taken so far.
    pub(super) fn position(&self) -> u64 {
        self.requests.position()
    }

    /// The append that comes next, if it is whole and no larger than this: its request number, and its payload.
    pub(super) fn whole_append(&mut self, payload_max: usize) -> Result<Option<(u64, RingPayload<'_>)>, BadPosition> {
        let pending = self.requests.pending()?;
        if pending < FRAME_HEADER_SIZE {
            return Ok(None);
        }
        // Copied once, then checked: the client can change it at any time.
        let mut header = [0; FRAME_HEADER_SIZE];
        self.requests.peek(0, &mut header);
        let append = read_append_header(&header);
        let fits = |length: usize| length <= payload_max && FRAME_HEADER_SIZE + length <= pending;
        let append = append.filter(|(_, length)| fits(*length));
        Ok(append.map(|(request, length)| (request, RingPayload { requests: &self.requests, length })))
    }

    /// The append of this length has been placed.
    pub(super) fn take_append(&mut self, length: usize) {
        self.requests.take(FRAME_HEADER_SIZE + length);
    }

    /// Copies what has come of the next frame to the inbox, and nothing of the one after it.
    pub(super) fn fill(&mut self, inbox: &mut Inbox) -> Result<(), BadPosition> {
        loop {
            let frame = frame_size(inbox.pending()).unwrap_or(FRAME_HEADER_SIZE);
            let wanted = frame - inbox.pending().len();
            let room = inbox.room();
            let count = wanted.min(room.len());
            let count = self.requests.read(&mut room[..count])?;
            if count == 0 {
                return Ok(());
            }
            inbox.add(count);
        }
    }

    /// Gives the room of what was taken back, and wakes the client if it waits for that.
    pub(super) fn release(&mut self, stream: &UnixStream) {
        if self.requests.release() {
            wake(stream);
        }
    }

    /// Sends answers: the first through the socket, with the ring itself, and all others through the ring.
    pub(super) fn send(&mut self, stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
        if let Some(file) = &self.file {
            let sent = tailwind_ring::send(stream, bytes, file)?;
            if sent < bytes.len() {
                return Err(io::Error::other("an empty socket took a part of a welcome"));
            }
            self.file = None;
            return Ok(sent);
        }
        let sent = self.answers.write(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if self.answers.publish() {
            wake(stream);
        }
        if sent == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(sent) }
    }

    /// Before the path sleeps. True if it may: the client has written nothing since, and made no room that answers wait for.
    pub(super) fn may_sleep(&mut self, has_answers: bool) -> bool {
        self.requests.may_sleep() && (!has_answers || self.answers.may_sleep())
    }

    /// The path is awake.
    pub(super) fn awake(&mut self) {
        self.requests.awake();
        self.answers.awake();
    }

    /// Bytes have come through the socket.
    pub(super) fn receive_aside(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.aside.extend_from_slice(bytes);
        let mut at = 0;
        // None of the frames that may come here has a body.
        while let Some(decoded) = decode_request(&self.aside[at..], VERSION, 0).map_err(|error| error.to_string())? {
            match decoded.frame {
                Request::Stop => self.stopped = decoded.request,
                Request::Wake => {}
                _ => return Err("with a ring only wake-ups and stops go through the socket".to_owned()),
            }
            at += decoded.size;
        }
        self.aside.drain(..at);
        Ok(())
    }

    /// What this read has to look at first: bytes that have come through the socket.
    pub(super) fn hand_over(&mut self, read: u64) -> Vec<u8> {
        let mut received = Vec::new();
        if self.stopped == read {
            Request::Stop.encode(read, &mut received);
        }
        received.append(&mut self.aside);
        received
    }
}

/// Has the client look at the ring.
fn wake(mut stream: &UnixStream) {
    // A full socket wakes its client as well; one that is closed is found out when it is read.
    let _ = stream.write(&WAKE_CLIENT_FRAME);
}
