//! One thread for each channel: reads frames from the socket and writes them into the lent slots.
//!
//! Started by [`registry`](super::registry) when the [`acceptor`](super::acceptor) has seen the right secret; calls the
//! lendings of [`registry`](super::registry) and acknowledges. Plain blocking reads: a thread that sleeps in `recv(2)`
//! costs nothing, wakes as fast as anything does, and `shutdown(2)` and a join make it end, which is all that
//! revocation asks for.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use crate::contract::Writer;

use super::registry::{Lending, Registry};
use super::wire::{HEADER_SIZE, Header};

/// Bytes taken from the socket at a time: many small frames to a system call, and little enough to be still in the
/// cache when they are copied into the slot.
const INBOX_SIZE: usize = 256 * 1024;

/// The receiving end of one channel.
#[derive(Debug)]
pub(super) struct ConnectionReader {
    registry: Arc<Registry>,
    writer: Writer,
    stream: Arc<TcpStream>,
    /// The lending of the last frame: the next one nearly always names the same.
    lending: Option<Arc<Lending>>,
    /// The frame whose bytes are arriving.
    open: Option<Frame>,
    /// acknowledged ≤ applied.
    applied: u64,
    acknowledged: u64,
}

/// What is still to come of a frame.
#[derive(Debug)]
struct Frame {
    lending: Arc<Lending>,
    offset: u32,
    left: u32,
}

impl ConnectionReader {
    /// For a connection that has shown `writer`'s secret.
    pub(super) fn new(registry: Arc<Registry>, writer: Writer, stream: Arc<TcpStream>) -> ConnectionReader {
        ConnectionReader { registry, writer, stream, lending: None, open: None, applied: 0, acknowledged: 0 }
    }

    /// Serves the channel until either side ends it or the sender does what it may not.
    pub(super) fn run(mut self) {
        // Whatever went wrong, the answer is the same: a closed connection. The sender knows why, or must not know.
        let _ = self.serve();
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn serve(&mut self) -> io::Result<()> {
        self.acknowledge()?;
        let mut inbox = vec![0; INBOX_SIZE];
        let mut filled = 0;
        loop {
            match (&*self.stream).read(&mut inbox[filled..]) {
                Ok(0) => return Ok(()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let taken = self.apply(&inbox[..filled]).ok_or(io::ErrorKind::InvalidData)?;
            // What is left is a part of a header.
            inbox.copy_within(taken..filled, 0);
            filled -= taken;
            if self.acknowledged < self.applied {
                self.acknowledge()?;
            }
        }
    }

    /// Writes whatever `bytes` hold into the slots, in address order; returns how many it took. `None`: the sender
    /// broke the rules, or its lending is over.
    fn apply(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut taken = 0;
        loop {
            let frame = match &mut self.open {
                Some(frame) => frame,
                None => {
                    let Some(header) = bytes[taken..].first_chunk::<HEADER_SIZE>() else { return Some(taken) };
                    taken += HEADER_SIZE;
                    let frame = self.begin(header)?;
                    self.open.insert(frame)
                }
            };
            let count = (frame.left as usize).min(bytes.len() - taken);
            // Also when no bytes come with it: an empty write proves that the lending stands.
            if !frame.lending.write(frame.offset, &bytes[taken..taken + count]) {
                return None;
            }
            taken += count;
            frame.offset += count as u32;
            frame.left -= count as u32;
            if frame.left > 0 {
                return Some(taken);
            }
            self.open = None;
            self.applied += 1;
        }
    }

    fn begin(&mut self, header: &[u8; HEADER_SIZE]) -> Option<Frame> {
        let header = Header::decode(header)?;
        if header.sequence != (self.applied + 1) as u32 {
            return None;
        }
        let lending = match self.lending.take() {
            Some(lending) if lending.key() == header.key => lending,
            _ => self.registry.find(self.writer, header.key)?,
        };
        if !lending.holds(header.offset, header.length) {
            return None;
        }
        self.lending = Some(Arc::clone(&lending));
        Some(Frame { lending, offset: header.offset, left: header.length })
    }

    fn acknowledge(&mut self) -> io::Result<()> {
        (&*self.stream).write_all(&self.applied.to_le_bytes())?;
        self.acknowledged = self.applied;
        Ok(())
    }
}
