//! A member's agent: the thread that takes a chain's messages, writes what is for this member, and sends the rest on.
//!
//! One for each chain, started by the receiver for a connection that has presented the secret. It takes a message apart as it
//! comes: what has arrived of a large one is at the next member while the rest is still on its way here.

use std::io::Write;
use std::net::TcpStream;
use std::ops::Range;

use rustix::event::{PollFd, PollFlags, poll};

use crate::error::ChannelError;
use crate::message::Writer;
use crate::secret::Secret;
use crate::tcp::registry::Registry;
use crate::tcp::wire::{HEADER_SIZE, Header, READY};

use super::super::frames::{Frame, Frames};
use super::super::link::{Link, TcpLink};
use super::super::spin_until;
use super::Carrier;
use super::message::{Answers, EXTEND, EXTENSION_MAX, HOPS_MAX, PASS, head_size};

/// Bytes taken at a time.
const BUFFER_SIZE: usize = 256 * 1024;

/// Serves a connection of `writer` until either side ends it, the next member does, or somebody breaks a rule.
pub(super) fn serve(registry: &Registry, writer: Writer, carrier: Carrier, up: Box<dyn Link>) {
    let mut agent = Agent {
        registry,
        frames: Frames::new(writer),
        carrier,
        up,
        next: None,
        buffer: vec![0; BUFFER_SIZE],
        arrived: 0..0,
        open: None,
        onward: Onward { head: [0; head_size(HOPS_MAX)], head_left: 0..0, piece_left: 0..0 },
        taken: 0,
        answered: 0,
    };
    // Whatever went wrong, the answer is the same: the end of the chain.
    let Err(_) = agent.run();
    agent.up.close();
    if let Some(next) = &mut agent.next {
        next.link.close();
    }
}

/// The same over TCP: see [`chain_tcp_receiver`](super::chain_tcp_receiver).
pub(super) fn serve_tcp(registry: &Registry, writer: Writer, stream: &TcpStream) {
    let link = { stream }.write_all(&READY).and_then(|()| stream.try_clone()).map(TcpLink);
    match link {
        Ok(link) => serve(registry, writer, Carrier::Tcp, Box::new(link)),
        Err(_) => drop(stream.shutdown(std::net::Shutdown::Both)),
    }
}

#[derive(Debug)]
struct Agent<'a> {
    registry: &'a Registry,
    frames: Frames,
    carrier: Carrier,
    /// To the sender, or to the member before this one.
    up: Box<dyn Link>,
    /// `None` at the tail.
    next: Option<Next>,
    buffer: Vec<u8>,
    /// What has arrived and is not taken.
    arrived: Range<usize>,
    /// The message whose bytes are arriving.
    open: Option<Message>,
    onward: Onward,
    /// Messages, in all. answered ≤ taken.
    taken: u64,
    answered: u64,
}

/// The member behind this one.
#[derive(Debug)]
struct Next {
    link: Box<dyn Link>,
    /// Messages before its time.
    before: u64,
    answers: Answers,
}

/// A message, and what of it is still to come.
#[derive(Debug)]
struct Message {
    place: Place,
    left: usize,
}

/// Where a message's bytes go at this member.
#[derive(Debug)]
enum Place {
    Slot(Frame),
    Elsewhere,
    Extension(Vec<u8>),
}

/// What is on its way to the next member: a head, and behind it a piece of the buffer.
#[derive(Debug)]
struct Onward {
    head: [u8; head_size(HOPS_MAX)],
    /// Of these, the bytes that are still to be sent.
    head_left: Range<usize>,
    piece_left: Range<usize>,
}

impl Onward {
    fn is_empty(&self) -> bool {
        self.head_left.is_empty() && self.piece_left.is_empty()
    }

    fn sent(&mut self, count: usize) {
        let of_head = count.min(self.head_left.len());
        self.head_left.start += of_head;
        self.piece_left.start += count - of_head;
    }
}

enum Never {}

impl Agent<'_> {
    fn run(&mut self) -> Result<Never, ChannelError> {
        loop {
            let mut turn = Ok(false);
            match self.carrier {
                Carrier::Shm => drop(spin_until(|| {
                    turn = self.turn();
                    turn != Ok(false)
                })),
                // Looking for work costs system calls, and a socket stays readable until it is read.
                Carrier::Tcp => turn = self.turn().map(|_| false),
            }
            if !turn? {
                self.sleep()?;
            }
        }
    }

    /// Does what can be done now; whether there was anything.
    fn turn(&mut self) -> Result<bool, ChannelError> {
        self.up.check()?;
        let was_stuck = !self.onward.is_empty();
        self.take()?;
        let mut moved = was_stuck && self.onward.is_empty();
        if self.onward.is_empty() {
            // What is left is a part of a head.
            let left = self.arrived.len();
            self.buffer.copy_within(self.arrived.clone(), 0);
            let count = self.up.receive(&mut self.buffer[left..])?;
            self.arrived = 0..left + count;
            self.take()?;
            moved |= count > 0;
        }
        Ok(self.answer()? | moved)
    }

    /// Takes what has arrived, until more has to come or the next member has no room.
    fn take(&mut self) -> Result<(), ChannelError> {
        while self.send_on()? && (self.open.is_some() || self.begin()?) {
            if self.apply()? == 0 && self.open.is_some() && self.onward.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// False if the next member has no room.
    fn send_on(&mut self) -> Result<bool, ChannelError> {
        while !self.onward.is_empty() {
            let next = self.next.as_mut().ok_or(ChannelError::Protocol)?;
            let Onward { head, head_left, piece_left } = &self.onward;
            let parts = [&head[head_left.clone()], &self.buffer[piece_left.clone()]];
            match next.link.send(parts)? {
                0 => return Ok(false),
                count => self.onward.sent(count),
            }
        }
        Ok(true)
    }

    /// Reads the next message's head; false if it has not arrived in full.
    fn begin(&mut self) -> Result<bool, ChannelError> {
        let bytes = &self.buffer[self.arrived.clone()];
        let Some(&hops) = bytes.first() else { return Ok(false) };
        let hops = usize::from(hops);
        if hops == 0 || hops > HOPS_MAX || (hops > 1) != self.next.is_some() {
            return Err(ChannelError::Protocol);
        }
        let Some(head) = bytes.get(..head_size(hops)) else { return Ok(false) };
        let own: &[u8; HEADER_SIZE] = head[1..].first_chunk().ok_or(ChannelError::Protocol)?;
        let header = Header::decode(own).ok_or(ChannelError::Protocol)?;
        let left = header.length as usize;
        let place = match header.key {
            PASS => Place::Elsewhere,
            EXTEND if hops == 1 && left <= EXTENSION_MAX => Place::Extension(Vec::with_capacity(left)),
            _ => Place::Slot(self.frames.begin(self.registry, own).ok_or(ChannelError::Revoked)?),
        };
        if hops > 1 {
            self.onward.head[0] = hops as u8 - 1;
            self.onward.head[1..head_size(hops - 1)].copy_from_slice(&head[head_size(1)..]);
            self.onward.head_left = 0..head_size(hops - 1);
        }
        self.arrived.start += head_size(hops);
        self.open = Some(Message { place, left });
        Ok(true)
    }

    /// Takes what has arrived of the open message, and hands it on; how many bytes that was.
    fn apply(&mut self) -> Result<usize, ChannelError> {
        let Some(message) = &mut self.open else { return Ok(0) };
        let count = message.left.min(self.arrived.len());
        let piece = self.arrived.start..self.arrived.start + count;
        match &mut message.place {
            Place::Slot(frame) => {
                // Also when it is empty: an answer proves that the lending is not over.
                if !frame.lending.write(frame.offset, &self.buffer[piece.clone()]) {
                    return Err(ChannelError::Revoked);
                }
                frame.offset += count as u32;
            }
            Place::Elsewhere => {}
            Place::Extension(text) => text.extend_from_slice(&self.buffer[piece.clone()]),
        }
        message.left -= count;
        self.arrived.start = piece.end;
        if self.next.is_some() {
            self.onward.piece_left = piece;
        }
        if message.left == 0 {
            self.taken += 1;
            if let Some(Message { place: Place::Extension(text), .. }) = self.open.take() {
                self.extend(&text)?;
            }
        }
        Ok(count)
    }

    /// Is no longer the tail.
    fn extend(&mut self, text: &[u8]) -> Result<(), ChannelError> {
        let text = str::from_utf8(text).map_err(|_| ChannelError::Protocol)?;
        let (address, secret) = text.split_once(' ').ok_or(ChannelError::Protocol)?;
        let link = self.carrier.connect(address, &Secret::given(secret)).map_err(|_| ChannelError::Disconnected)?;
        self.next = Some(Next { link, before: self.taken, answers: Answers::new() });
        Ok(())
    }

    /// Tells how many messages have been written everywhere from here on; whether that was news.
    fn answer(&mut self) -> Result<bool, ChannelError> {
        let count = match &mut self.next {
            None => self.taken,
            Some(Next { link, before, answers }) => {
                link.check()?;
                answers.receive(&mut **link, self.taken - *before)?;
                *before + answers.count
            }
        };
        if count == self.answered {
            return Ok(false);
        }
        // An honest sender has room for all answers that it waits for.
        let answer = count.to_le_bytes();
        if self.up.send([&answer, &[]])? < answer.len() {
            return Err(ChannelError::Protocol);
        }
        self.answered = count;
        Ok(true)
    }

    /// Until either neighbour has something, or room.
    fn sleep(&mut self) -> Result<(), ChannelError> {
        let stuck = !self.onward.is_empty();
        if (!stuck && self.up.arm(false)) || self.next.as_mut().is_some_and(|next| next.link.arm(stuck)) {
            return Ok(());
        }
        // What cannot be sent on keeps further messages out, but not the end of the connection.
        let wanted = if stuck { PollFlags::empty() } else { self.up.events(false) };
        let up = self.up.readiness();
        let next = self.next.as_ref().map(|next| (next.link.readiness(), next.link.events(stuck)));
        let (next, events) = next.unwrap_or((up, PollFlags::empty()));
        let mut fds = [PollFd::from_borrowed_fd(up, wanted), PollFd::from_borrowed_fd(next, events)];
        match poll(&mut fds, None) {
            Ok(_) if stuck && fds[0].revents().contains(PollFlags::HUP) => Err(ChannelError::Disconnected),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(_) => Err(ChannelError::Disconnected),
        }
    }
}
