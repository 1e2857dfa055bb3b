//! The sending end of one channel: a queue of writes, a non-blocking socket, and a count of acknowledgements.
//!
//! Called by the append path, which polls it or watches its socket. All memory is there from the start: no call
//! allocates, blocks or locks.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use crate::buffer::SharedBuffer;
use crate::contract::{Channel, RemoteBuffer, check_bytes, check_range};
use crate::error::ChannelError;

use super::wire::{ACK_SIZE, HEADER_SIZE, Header, Payload};

/// Writes posted and not completed: at some KB each, a few MB on the way, more than a 100 Gbit/s network holds in 100
/// µs.
const QUEUE_MAX: usize = 1024;
/// Each write costs a system call, packets and a wake-up at either end, regardless of its size. With a few on their way, the
/// next one waits for a quarter of a round trip at most.
const DEPTH: u32 = 4;
/// Writes handed to the kernel in one call.
const GATHER_MAX: usize = 16;
/// Acknowledgements read in one call. Only the last one counts.
const ACKS_MAX: usize = 64;

/// One ordered stream of writes over one connection.
#[derive(Debug)]
pub(super) struct TcpChannel {
    stream: TcpStream,
    /// Writes whose bytes the socket has not all taken. Its capacity is [`QUEUE_MAX`], and is never exceeded.
    unsent: VecDeque<Write>,
    /// Bytes of the first of them, header included, that the socket has taken.
    sent: usize,
    /// What is unsent waits for a post or a push, not for the socket.
    lingers: bool,
    /// completed ≤ posted ≤ completed + QUEUE_MAX.
    posted: u64,
    completed: u64,
    /// Of these, the first `acks_filled` bytes are an acknowledgement that has not arrived in full.
    acks: [u8; ACKS_MAX * ACK_SIZE],
    acks_filled: usize,
    failure: Option<ChannelError>,
}

#[derive(Debug)]
struct Write {
    header: [u8; HEADER_SIZE],
    payload: Payload,
}

impl TcpChannel {
    /// Over a non-blocking connection whose receiver is ready.
    pub(super) fn new(stream: TcpStream) -> TcpChannel {
        TcpChannel {
            stream,
            unsent: VecDeque::with_capacity(QUEUE_MAX),
            sent: 0,
            lingers: false,
            posted: 0,
            completed: 0,
            acks: [0; ACKS_MAX * ACK_SIZE],
            acks_filled: 0,
            failure: None,
        }
    }

    fn queue(&mut self, remote: &RemoteBuffer, offset: u32, length: u32, payload: Payload) -> Result<(), ChannelError> {
        if self.posted - self.completed == QUEUE_MAX as u64 {
            return Err(ChannelError::QueueFull);
        }
        self.posted += 1;
        let header = Header { key: remote.key, offset, length, sequence: self.posted as u32 };
        self.unsent.push_back(Write { header: header.encode(), payload });
        Ok(())
    }

    /// Hands the socket as much as it takes.
    fn send(&mut self) -> Result<(), ChannelError> {
        self.lingers = false;
        while !self.unsent.is_empty() {
            match self.send_some() {
                Ok(count) => self.advance(count),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(ChannelError::Disconnected),
            }
        }
        Ok(())
    }

    /// One system call: headers and payloads of several writes, without the bytes that are already on their way.
    fn send_some(&self) -> Result<usize, Errno> {
        let mut slices = [IoSlice::new(&[]); 2 * GATHER_MAX];
        let mut used = 0;
        let mut skip = self.sent;
        for write in self.unsent.iter().take(GATHER_MAX) {
            for part in [&write.header[..], write.payload.bytes()] {
                let skipped = skip.min(part.len());
                skip -= skipped;
                if skipped < part.len() {
                    slices[used] = IoSlice::new(&part[skipped..]);
                    used += 1;
                }
            }
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.stream, &slices[..used], &mut SendAncillaryBuffer::default(), flags)
    }

    fn advance(&mut self, count: usize) {
        self.sent += count;
        while let Some(first) = self.unsent.front() {
            let length = HEADER_SIZE + first.payload.bytes().len();
            if self.sent < length {
                break;
            }
            self.sent -= length;
            self.unsent.pop_front();
        }
    }

    /// Takes the acknowledgements that have arrived; how many writes have completed by them.
    fn receive(&mut self) -> Result<u32, ChannelError> {
        let before = self.completed;
        loop {
            let room = &mut self.acks[self.acks_filled..];
            let room_size = room.len();
            let count = match recv(&self.stream, room, RecvFlags::DONTWAIT) {
                // What completed before the end is reported first; the next call finds the end again.
                Ok((0, _)) if self.completed > before => break,
                Ok((0, _)) => return Err(ChannelError::Disconnected),
                Ok((count, _)) => count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(_) if self.completed > before => break,
                Err(_) => return Err(ChannelError::Disconnected),
            };
            self.count(count)?;
            if count < room_size {
                break;
            }
        }
        Ok((self.completed - before) as u32)
    }

    /// Reads the newest of the acknowledgements in the buffer, to which `arrived` bytes have been added.
    fn count(&mut self, arrived: usize) -> Result<(), ChannelError> {
        let filled = self.acks_filled + arrived;
        let whole = filled - filled % ACK_SIZE;
        if let Some(last) = self.acks[..whole].last_chunk() {
            let completed = u64::from_le_bytes(*last);
            let sent = self.posted - self.unsent.len() as u64;
            if completed < self.completed || completed > sent {
                return Err(ChannelError::Protocol);
            }
            self.completed = completed;
        }
        self.acks.copy_within(whole..filled, 0);
        self.acks_filled = filled - whole;
        Ok(())
    }

    fn fail(&mut self, failure: ChannelError) -> ChannelError {
        self.unsent.clear();
        self.lingers = false;
        self.failure = Some(failure);
        failure
    }
}

impl Channel for TcpChannel {
    fn post(&mut self, remote: &RemoteBuffer, local: &SharedBuffer, range: Range<u32>) -> Result<(), ChannelError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        check_range(remote, local, &range);
        let (start, length) = (range.start, range.end - range.start);
        // With others waiting for the socket it is full: the next poll sends them together.
        let at_once = self.unsent.is_empty() || self.lingers;
        self.queue(remote, start, length, Payload::Shared(local.clone(), range))?;
        if at_once { self.send().map_err(|failure| self.fail(failure)) } else { Ok(()) }
    }

    fn post_bytes(&mut self, remote: &RemoteBuffer, at: u32, bytes: &[u8]) -> Result<(), ChannelError> {
        check_bytes(remote, at, bytes);
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let first = self.unsent.is_empty();
        self.queue(remote, at, bytes.len() as u32, Payload::copy(bytes))?;
        // Alone it would cost a system call here, a packet, and at the receiver a wake-up and an answer: as much as an append.
        self.lingers |= first;
        Ok(())
    }

    fn lingers(&self) -> bool {
        self.lingers
    }

    fn push(&mut self) {
        if self.lingers
            && let Err(failure) = self.send()
        {
            self.fail(failure);
        }
    }

    fn poll(&mut self) -> Result<u32, ChannelError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        // Acknowledgements first: a connection that breaks while sending would take them with it.
        let completed = self.receive().map_err(|failure| self.fail(failure))?;
        let sent = if self.lingers { Ok(()) } else { self.send() };
        match sent {
            Err(failure) if completed == 0 => Err(self.fail(failure)),
            // Reported by the next call.
            Err(failure) => {
                self.fail(failure);
                Ok(completed)
            }
            Ok(()) => Ok(completed),
        }
    }

    fn depth(&self) -> u32 {
        DEPTH
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }

    fn waits_for_room(&self) -> bool {
        true
    }

    /// A socket stays readable until it is read, and what is unsent has found it full: it becomes writable.
    fn arm(&mut self) -> bool {
        self.failure.is_some()
    }
}
