//! The reader's end of one channel: a queue of requests, a non-blocking socket, and the memory that answers land in.
//!
//! All memory is there from the start: no call allocates, blocks or locks.

use std::collections::VecDeque;
use std::fmt;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::error::ReadError;
use crate::reading::{READS_MAX, ReadChannel, Readable, check_read, check_settled};
use crate::tcp::wire::{ANSWER_SIZE, HEADER_SIZE, Header, answer};

/// One ordered stream of reads over one connection.
pub(super) struct TcpReadChannel {
    stream: TcpStream,
    /// Requests that the socket has not taken. Its capacity is that of [`READS_MAX`] requests, and is never exceeded.
    unsent: VecDeque<u8>,
    /// Where the reads on their way land, oldest first. As above.
    open: VecDeque<Range<u32>>,
    /// Reads so far; the low half numbers the last one.
    posted: u64,
    /// Bytes of the oldest answer that have arrived: first its header, then its bytes.
    header: [u8; ANSWER_SIZE],
    arrived: usize,
    landing: Vec<u8>,
    failure: Option<ReadError>,
}

impl fmt::Debug for TcpReadChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TcpReadChannel { stream, open, posted, failure, .. } = self;
        let mut text = f.debug_struct("TcpReadChannel");
        text.field("stream", stream).field("open", open).field("posted", posted).field("failure", failure);
        text.finish_non_exhaustive()
    }
}

impl TcpReadChannel {
    /// Over a non-blocking connection whose receiver is ready.
    pub(super) fn new(stream: TcpStream, landing: u32) -> TcpReadChannel {
        TcpReadChannel {
            stream,
            unsent: VecDeque::with_capacity(READS_MAX * HEADER_SIZE),
            open: VecDeque::with_capacity(READS_MAX),
            posted: 0,
            header: [0; ANSWER_SIZE],
            arrived: 0,
            landing: vec![0; landing as usize],
            failure: None,
        }
    }

    /// Hands the socket as much as it takes.
    fn send(&mut self) -> Result<(), ReadError> {
        while !self.unsent.is_empty() {
            match send(&self.stream, self.unsent.as_slices().0, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(ReadError::Disconnected),
            }
        }
        Ok(())
    }

    /// Takes what has arrived; how many reads have completed by it, and why there will be no more.
    fn receive(&mut self) -> (u32, Result<(), ReadError>) {
        let mut completed = 0;
        loop {
            // With nothing on its way a byte is kept for one that must not come, and for the end.
            let wanted = match self.open.front() {
                Some(place) if self.arrived >= ANSWER_SIZE => {
                    let from = place.start as usize + self.arrived - ANSWER_SIZE;
                    &mut self.landing[from..place.end as usize]
                }
                _ => &mut self.header[self.arrived..],
            };
            match recv(&self.stream, wanted, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return (completed, Err(ReadError::Disconnected)),
                Ok((count, _)) => self.arrived += count,
                Err(Errno::AGAIN) => return (completed, Ok(())),
                Err(Errno::INTR) => continue,
                Err(_) => return (completed, Err(ReadError::Disconnected)),
            }
            let Some(place) = self.open.front() else { return (completed, Err(ReadError::Protocol)) };
            let sequence = sequence(self.posted - self.open.len() as u64 + 1);
            if self.arrived == ANSWER_SIZE && self.header != answer(sequence, place.len() as u32) {
                return (completed, Err(ReadError::Protocol));
            }
            if self.arrived == ANSWER_SIZE + place.len() {
                self.open.pop_front();
                self.arrived = 0;
                completed += 1;
            }
        }
    }
}

/// Requests are numbered from 1; after 2³² − 1 comes 1 again.
fn sequence(number: u64) -> u32 {
    ((number - 1) % u64::from(u32::MAX)) as u32 + 1
}

impl ReadChannel for TcpReadChannel {
    fn read(&mut self, from: &Readable, at: Range<u32>, place: u32) -> Result<(), ReadError> {
        let place = check_read(from, &at, place, self.landing.len());
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        check_settled(&place, self.open.iter());
        if self.open.len() == READS_MAX {
            return Err(ReadError::QueueFull);
        }
        self.posted += 1;
        let (key, sequence) = (from.key, sequence(self.posted));
        let request = Header { key, offset: at.start, length: at.end - at.start, sequence };
        self.unsent.extend(request.encode());
        self.open.push_back(place);
        self.send().map_err(|failure| *self.failure.insert(failure))
    }

    fn poll(&mut self) -> Result<u32, ReadError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        // Answers first: a connection that breaks while sending would take them with it.
        let (completed, received) = self.receive();
        match received.and_then(|()| self.send()) {
            Ok(()) => Ok(completed),
            Err(failure) => {
                self.failure = Some(failure);
                // What completed before the end is reported first.
                if completed > 0 { Ok(completed) } else { Err(failure) }
            }
        }
    }

    fn landed(&self, range: Range<u32>) -> &[u8] {
        check_settled(&range, self.open.iter());
        &self.landing[range.start as usize..range.end as usize]
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }

    /// A socket stays readable until it is read.
    fn arm(&mut self) -> bool {
        self.failure.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_numbered_as_they_are_answered() {
        let answered = (1..=u32::MAX).cycle();
        assert!(answered.take(3).eq((1..=3).map(sequence)));
        let wrap = u64::from(u32::MAX);
        assert_eq!([sequence(wrap), sequence(wrap + 1), sequence(2 * wrap)], [u32::MAX, 1, u32::MAX]);
    }
}
