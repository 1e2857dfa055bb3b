//! One thread for each channel: reads frames from the socket and writes them into the lent slots.
//!
//! Started by the registry when the acceptor has received a valid secret; calls the lendings of
//! [`registry`](super::registry) and acknowledges. Plain blocking reads: a thread that sleeps in `recv(2)` costs nothing,
//! wakes as fast as anything does, and `shutdown(2)` and a join make it end, which is all that revocation needs. Where the
//! backup is told to, it polls for a while before it sleeps; a shutdown ends that too.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::message::Writer;

use super::registry::{LentSlot, Registry};
use super::wire::{HEADER_SIZE, Header};

/// Bytes taken from the socket at a time: many small frames to a system call, and little enough to be still in the
/// cache when they are copied into the slot.
const BUFFER_SIZE: usize = 256 * 1024;

/// The receiving end of one channel.
#[derive(Debug)]
struct ConnectionReader<'a> {
    registry: &'a Registry,
    writer: Writer,
    stream: &'a TcpStream,
    /// The lending of the last frame: the next one nearly always names the same.
    lending: Option<Arc<LentSlot>>,
    /// The frame whose bytes are arriving.
    open: Option<Frame>,
    /// acknowledged ≤ applied.
    applied: u64,
    acknowledged: u64,
}

/// What is still to come of a frame.
#[derive(Debug)]
struct Frame {
    lending: Arc<LentSlot>,
    offset: u32,
    left: u32,
}

/// Serves a connection that has presented `writer`'s secret, until either side ends it or the sender breaks a rule.
pub(super) fn serve(registry: &Registry, writer: Writer, stream: &TcpStream) {
    let mut reader =
        ConnectionReader { registry, writer, stream, lending: None, open: None, applied: 0, acknowledged: 0 };
    // Every failure has the same result: a closed connection. The sender knows why, or must not know.
    let _ = reader.serve();
    let _ = stream.shutdown(Shutdown::Both);
}

impl ConnectionReader<'_> {
    fn serve(&mut self) -> io::Result<()> {
        self.acknowledge()?;
        let mut buffer = vec![0; BUFFER_SIZE];
        let mut filled = 0;
        loop {
            match self.receive(&mut buffer[filled..])? {
                0 => return Ok(()),
                count => filled += count,
            }
            let taken = self.apply(&buffer[..filled]).ok_or(io::ErrorKind::InvalidData)?;
            // What is left is a part of a header.
            buffer.copy_within(taken..filled, 0);
            filled -= taken;
            if self.acknowledged < self.applied {
                self.acknowledge()?;
            }
        }
    }

    /// What has come, as soon as something has; nothing once the connection has ended.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(count) = self.poll(into)? {
            return Ok(count);
        }
        loop {
            match self.stream.read(into) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// The same for as long as the connection is polled; `None` where nothing has come in that time.
    fn poll(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let spin = self.registry.spin();
        let began = (!spin.is_zero()).then(Instant::now);
        while began.is_some_and(|began| began.elapsed() < spin) {
            match rustix::net::recv(self.stream, &mut *into, RecvFlags::DONTWAIT) {
                Ok((_, count)) => return Ok(Some(count)),
                Err(Errno::AGAIN | Errno::INTR) => std::hint::spin_loop(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Writes the pieces in `bytes` into the slots, in address order; returns how many it took. `None`: the sender broke the
    /// rules, or its lending is over.
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
            // Also when no bytes come with it: an empty write proves that the lending is not over.
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
        self.stream.write_all(&self.applied.to_le_bytes())?;
        self.acknowledged = self.applied;
        Ok(())
    }
}
