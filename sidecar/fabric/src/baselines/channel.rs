//! The sending end of one channel: a queue of messages, a link, and the rule by which they complete.
//!
//! Called by the append path. All memory is there from the start: no call allocates, blocks or locks. The bytes are those of
//! [`tcp`](crate::tcp): frames there, counts of applied writes back.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::buffer::SharedBuffer;
use crate::contract::{Channel, RemoteBuffer, check_bytes, check_range};
use crate::error::ChannelError;
use crate::tcp::wire::{ACK_SIZE, HEADER_SIZE, Header, Payload};

use super::Baseline;
use super::link::Link;

/// Writes posted and not completed, as over [`tcp`](crate::tcp).
const QUEUE_MAX: usize = 1024;
/// Messages without an answer, pipelined. More of them do not help: the append path gathers what waits into one.
pub(super) const PIPELINE: u32 = 8;
/// Answers read at a time. Only the last one counts.
const ANSWERS_MAX: usize = 64;

/// One ordered stream of writes over one link.
#[derive(Debug)]
pub(super) struct MessageChannel<L> {
    link: L,
    baseline: Baseline,
    /// Messages that the link has not taken in full. Its capacity is [`QUEUE_MAX`], and is never exceeded.
    unsent: VecDeque<Message>,
    /// Bytes of the first of them, header included, that the link has taken.
    sent: usize,
    /// reported ≤ completed ≤ taken ≤ posted ≤ completed + QUEUE_MAX.
    posted: u64,
    taken: u64,
    completed: u64,
    reported: u64,
    /// Of these, the first `answers_filled` bytes are an answer that has not arrived in full.
    answers: [u8; ANSWERS_MAX * ACK_SIZE],
    answers_filled: usize,
    failure: Option<ChannelError>,
}

#[derive(Debug)]
struct Message {
    header: [u8; HEADER_SIZE],
    payload: Payload,
}

impl Message {
    /// Its bytes from `from` on, in two parts.
    fn rest(&self, from: usize) -> [&[u8]; 2] {
        let header = &self.header[from.min(HEADER_SIZE)..];
        [header, &self.payload.bytes()[from.saturating_sub(HEADER_SIZE)..]]
    }
}

impl<L: Link> MessageChannel<L> {
    /// Over a link whose receiver is ready.
    pub(super) fn new(link: L, baseline: Baseline) -> MessageChannel<L> {
        MessageChannel {
            link,
            baseline,
            unsent: VecDeque::with_capacity(QUEUE_MAX),
            sent: 0,
            posted: 0,
            taken: 0,
            completed: 0,
            reported: 0,
            answers: [0; ANSWERS_MAX * ACK_SIZE],
            answers_filled: 0,
            failure: None,
        }
    }

    /// Messages that may be on their way.
    fn in_flight_max(&self) -> u32 {
        match self.baseline {
            Baseline::Rpc => 1,
            Baseline::RpcPipelined => PIPELINE,
            Baseline::Ring => u32::MAX,
        }
    }

    fn queue(&mut self, remote: &RemoteBuffer, offset: u32, length: u32, payload: Payload) -> Result<(), ChannelError> {
        if self.posted - self.completed >= QUEUE_MAX as u64 {
            return Err(ChannelError::QueueFull);
        }
        self.posted += 1;
        let header = Header { key: remote.key, offset, length, sequence: self.posted as u32 };
        self.unsent.push_back(Message { header: header.encode(), payload });
        Ok(())
    }

    /// Takes what has arrived, then sends what may go.
    fn advance(&mut self) -> Result<(), ChannelError> {
        self.receive()?;
        self.link.check()?;
        self.send()
    }

    fn send(&mut self) -> Result<(), ChannelError> {
        while let Some(message) = self.unsent.front() {
            if self.sent == 0 && self.taken - self.completed >= u64::from(self.in_flight_max()) {
                return Ok(());
            }
            let rest = message.rest(self.sent);
            let left = rest[0].len() + rest[1].len();
            let count = self.link.send(rest)?;
            if count < left {
                self.sent += count;
                return Ok(());
            }
            self.sent = 0;
            self.taken += 1;
            self.unsent.pop_front();
            if self.baseline == Baseline::Ring {
                // Behind the publishing of its last byte: step 1 of the proof in `baselines`.
                self.link.check()?;
                self.completed = self.taken;
            }
        }
        Ok(())
    }

    /// Takes the answers that have arrived.
    fn receive(&mut self) -> Result<(), ChannelError> {
        loop {
            let count = self.link.receive(&mut self.answers[self.answers_filled..])?;
            if count == 0 {
                return Ok(());
            }
            let filled = self.answers_filled + count;
            let whole = filled - filled % ACK_SIZE;
            if let Some(last) = self.answers[..whole].last_chunk() {
                let completed = u64::from_le_bytes(*last);
                if completed < self.completed || completed > self.taken || self.baseline == Baseline::Ring {
                    return Err(ChannelError::Protocol);
                }
                self.completed = completed;
            }
            self.answers.copy_within(whole..filled, 0);
            self.answers_filled = filled - whole;
        }
    }

    fn fail(&mut self, failure: ChannelError) -> ChannelError {
        self.unsent.clear();
        *self.failure.insert(failure)
    }
}

impl<L: Link> Channel for MessageChannel<L> {
    fn post(&mut self, remote: &RemoteBuffer, local: &SharedBuffer, range: Range<u32>) -> Result<(), ChannelError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        check_range(remote, local, &range);
        let (start, length) = (range.start, range.end - range.start);
        self.queue(remote, start, length, Payload::Shared(local.clone(), range))?;
        // With others waiting before it the link is full, or too many are on their way: the next poll continues.
        if self.unsent.len() == 1 { self.send().map_err(|failure| self.fail(failure)) } else { Ok(()) }
    }

    fn post_bytes(&mut self, remote: &RemoteBuffer, at: u32, bytes: &[u8]) -> Result<(), ChannelError> {
        check_bytes(remote, at, bytes);
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        self.queue(remote, at, bytes.len() as u32, Payload::copy(bytes))
    }

    fn poll(&mut self) -> Result<u32, ChannelError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let advanced = self.advance();
        let count = (self.completed - self.reported) as u32;
        self.reported = self.completed;
        match advanced {
            Err(failure) if count == 0 => Err(self.fail(failure)),
            // What has completed is reported first, the failure by the next call.
            Err(failure) => {
                self.fail(failure);
                Ok(count)
            }
            Ok(()) => Ok(count),
        }
    }

    fn depth(&self) -> u32 {
        self.in_flight_max()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.link.readiness())
    }

    fn arm(&mut self) -> bool {
        // Bytes that were only queued must not wait until something wakes the path.
        let sent = self.failure.map_or_else(|| self.send(), Err);
        let failed = sent.map_err(|failure| self.fail(failure)).is_err();
        failed || self.completed > self.reported || self.link.arm(!self.unsent.is_empty())
    }
}
