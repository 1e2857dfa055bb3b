//! The sending end: the state of one chain, and a channel for each of its members.
//!
//! Called by the append path, which posts the same range to one channel after the other and polls them all once a turn. What
//! is posted waits for the poll; until then further channels join the message. A lock guards the chain, because a channel may
//! be added by another thread; otherwise nobody contends for it. No call allocates.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::SharedBuffer;
use crate::contract::{Channel, RemoteBuffer, check_bytes, check_range};
use crate::error::ChannelError;
use crate::tcp::wire::{HEADER_SIZE, Header, Payload};

use super::super::channel::PIPELINE;
use super::super::link::Link;
use super::message::{Answers, EXTEND, HOPS_MAX, PASS, head_size};

/// Messages without an answer, as over [`tcp`](crate::tcp); and writes of one channel that are not reported.
const QUEUE_MAX: usize = 1024;

/// One chain.
#[derive(Debug)]
pub(super) struct Chain {
    link: Box<dyn Link>,
    members: Vec<Member>,
    /// What the link has not taken in full. Its capacity is [`QUEUE_MAX`], and is never exceeded.
    unsent: VecDeque<Message>,
    /// Of the first of them: its head, of so many bytes (0: nothing is sent yet, and channels may join), and how many bytes
    /// the link has taken.
    head: [u8; head_size(HOPS_MAX)],
    head_size: usize,
    sent: usize,
    /// answered ≤ taken ≤ queued ≤ answered + QUEUE_MAX.
    queued: u64,
    taken: u64,
    answers: Answers,
    /// Raised whenever answers are taken: see [`ChainChannel::poll`].
    round: u64,
    failure: Option<ChannelError>,
}

/// A member, by its place.
#[derive(Debug)]
struct Member {
    receiver: String,
    /// Writes for it.
    writes: u32,
}

/// One payload and whom it is for.
#[derive(Debug)]
struct Message {
    number: u64,
    /// By place: a key, or [`PASS`]; and the number of the write there.
    hops: [(u64, u32); HOPS_MAX],
    /// Members when it was queued.
    members: usize,
    offset: u32,
    payload: Payload,
}

impl Chain {
    /// Of one member.
    pub(super) fn new(link: Box<dyn Link>, receiver: String) -> Chain {
        Chain {
            link,
            members: vec![Member { receiver, writes: 0 }],
            unsent: VecDeque::with_capacity(QUEUE_MAX),
            head: [0; head_size(HOPS_MAX)],
            head_size: 0,
            sent: 0,
            queued: 0,
            taken: 0,
            answers: Answers::new(),
            round: 0,
            failure: None,
        }
    }

    /// Whether this receiver can become its tail.
    pub(super) fn takes(&self, receiver: &str) -> bool {
        let known = self.members.iter().any(|member| member.receiver == receiver);
        self.failure.is_none() && !known && self.members.len() < HOPS_MAX
    }

    /// Has the tail connect to another member, as the published bytes say. Done when the message of this number is answered.
    pub(super) fn extend(&mut self, receiver: String, text: SharedBuffer) -> Result<u64, ChannelError> {
        let length = text.len();
        let number = self.queue(self.members.len() - 1, EXTEND, 0, 0, Payload::Shared(text, 0..length))?;
        self.members.push(Member { receiver, writes: 0 });
        Ok(number)
    }

    /// Takes answers and sends; whether the message of this number is answered.
    pub(super) fn await_answer(&mut self, number: u64) -> Result<bool, ChannelError> {
        self.advance();
        self.failure.map_or(Ok(self.answers.count >= number), Err)
    }

    /// Ends all channels.
    pub(super) fn fail(&mut self, failure: ChannelError) {
        self.failure.get_or_insert(failure);
        self.unsent.clear();
        self.link.close();
    }

    /// Adds a write for the member at `place` to a message with the same payload, if one behind `after` has not begun to go
    /// out, or else to a new one. The number of that message.
    fn post(&mut self, place: usize, after: u64, key: u64, offset: u32, payload: Payload) -> Result<u64, ChannelError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let sequence = self.members[place].writes + 1;
        let begun = usize::from(self.head_size > 0);
        let joined = self.unsent.iter_mut().skip(begun).find(|message| {
            let is_free = place < message.members && message.hops[place].0 == PASS;
            is_free && message.number > after && message.offset == offset && is_same(&message.payload, &payload)
        });
        let number = match joined {
            Some(message) => {
                message.hops[place] = (key, sequence);
                message.number
            }
            None => self.queue(place, key, sequence, offset, payload)?,
        };
        self.members[place].writes = sequence;
        Ok(number)
    }

    fn queue(
        &mut self,
        place: usize,
        key: u64,
        sequence: u32,
        offset: u32,
        payload: Payload,
    ) -> Result<u64, ChannelError> {
        if self.queued - self.answers.count == QUEUE_MAX as u64 {
            return Err(ChannelError::QueueFull);
        }
        self.queued += 1;
        let mut hops = [(PASS, 0); HOPS_MAX];
        hops[place] = (key, sequence);
        let (number, members) = (self.queued, self.members.len());
        self.unsent.push_back(Message { number, hops, members, offset, payload });
        Ok(number)
    }

    /// Takes what has arrived, then sends what may go.
    fn advance(&mut self) {
        if self.failure.is_some() {
            return;
        }
        let moved = self.answers.receive(&mut *self.link, self.taken).and_then(|()| self.link.check());
        if let Err(failure) = moved.and_then(|()| self.send()) {
            self.fail(failure);
        }
    }

    fn send(&mut self) -> Result<(), ChannelError> {
        while let Some(message) = self.unsent.front() {
            if self.head_size == 0 {
                self.head_size = message.write_head(&mut self.head);
            }
            let payload = message.payload.bytes();
            let head = &self.head[self.sent.min(self.head_size)..self.head_size];
            let rest = [head, &payload[self.sent.saturating_sub(self.head_size)..]];
            self.sent += self.link.send(rest)?;
            if self.sent < self.head_size + payload.len() {
                return Ok(());
            }
            (self.head_size, self.sent) = (0, 0);
            self.taken += 1;
            self.unsent.pop_front();
        }
        Ok(())
    }
}

impl Message {
    /// How many bytes the head has.
    fn write_head(&self, head: &mut [u8; head_size(HOPS_MAX)]) -> usize {
        head[0] = self.members as u8;
        let length = self.payload.bytes().len() as u32;
        for (&(key, sequence), bytes) in self.hops[..self.members].iter().zip(head[1..].chunks_exact_mut(HEADER_SIZE)) {
            bytes.copy_from_slice(&Header { key, offset: self.offset, length, sequence }.encode());
        }
        head_size(self.members)
    }
}

/// Whether two payloads are the same bytes, without a look at shared ones.
fn is_same(one: &Payload, other: &Payload) -> bool {
    match (one, other) {
        (Payload::Shared(one, range), Payload::Shared(other, same)) => range == same && one.is(other),
        (Payload::Copied(..), Payload::Copied(..)) => one.bytes() == other.bytes(),
        _ => false,
    }
}

/// The writes to one member of a chain.
#[derive(Debug)]
pub(super) struct ChainChannel {
    chain: Arc<Mutex<Chain>>,
    place: usize,
    /// The link's.
    readiness: OwnedFd,
    /// Numbers of the messages with writes that are not reported. Its capacity is [`QUEUE_MAX`], and is never exceeded.
    posted: VecDeque<u64>,
    /// The last of all.
    last: u64,
    /// That of the chain when this was last polled.
    round: u64,
    failure: Option<ChannelError>,
}

impl ChainChannel {
    /// To the newest member.
    pub(super) fn to_tail(chain: &Arc<Mutex<Chain>>) -> std::io::Result<ChainChannel> {
        let locked = lock(chain);
        Ok(ChainChannel {
            chain: Arc::clone(chain),
            place: locked.members.len() - 1,
            readiness: locked.link.readiness().try_clone_to_owned()?,
            posted: VecDeque::with_capacity(QUEUE_MAX),
            last: 0,
            round: locked.round,
            failure: None,
        })
    }

    fn queue(&mut self, key: u64, offset: u32, payload: Payload) -> Result<(), ChannelError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if self.posted.len() == QUEUE_MAX {
            return Err(ChannelError::QueueFull);
        }
        let posted = lock(&self.chain).post(self.place, self.last, key, offset, payload);
        let number = posted.inspect_err(|error| {
            self.failure = Some(*error).filter(|error| *error != ChannelError::QueueFull);
        })?;
        self.posted.push_back(number);
        self.last = number;
        Ok(())
    }
}

impl Channel for ChainChannel {
    fn post(&mut self, remote: &RemoteBuffer, local: &SharedBuffer, range: Range<u32>) -> Result<(), ChannelError> {
        check_range(remote, local, &range);
        self.queue(remote.key, range.start, Payload::Shared(local.clone(), range))
    }

    fn post_bytes(&mut self, remote: &RemoteBuffer, at: u32, bytes: &[u8]) -> Result<(), ChannelError> {
        check_bytes(remote, at, bytes);
        self.queue(remote.key, at, Payload::copy(bytes))
    }

    /// All channels of a chain are told of the same answers in one turn of whoever polls them, so that they go on with the
    /// same range: only one that has been told already has new answers taken.
    fn poll(&mut self) -> Result<u32, ChannelError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let mut chain = lock(&self.chain);
        if self.round == chain.round {
            chain.round += 1;
            chain.advance();
        }
        self.round = chain.round;
        let completed = self.posted.iter().take_while(|number| **number <= chain.answers.count).count();
        self.posted.drain(..completed);
        // What has completed is reported first, the failure by the next call.
        self.failure = chain.failure.filter(|_| completed == 0);
        self.failure.map_or(Ok(completed as u32), Err)
    }

    fn depth(&self) -> u32 {
        PIPELINE
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.readiness.as_fd())
    }

    fn arm(&mut self) -> bool {
        let mut chain = lock(&self.chain);
        if chain.failure.is_none()
            && let Err(failure) = chain.send()
        {
            chain.fail(failure);
        }
        let completed = self.posted.front().is_some_and(|number| *number <= chain.answers.count);
        let full = !chain.unsent.is_empty();
        chain.failure.is_some() || completed || chain.link.arm(full)
    }
}

impl Drop for ChainChannel {
    /// Without this member the chain is broken.
    fn drop(&mut self) {
        lock(&self.chain).fail(ChannelError::Disconnected);
    }
}

/// A thread that panicked with the lock held has posted something that nobody counts: the chain ends with its channel.
pub(super) fn lock(chain: &Mutex<Chain>) -> MutexGuard<'_, Chain> {
    chain.lock().unwrap_or_else(PoisonError::into_inner)
}
