//! `ring`: a thread polls a log in this process's memory, which the sender writes, and copies its frames into the slots.
//!
//! As in HydraDB's non-blocking replication: the sender counts a write as completed when it is in the log, and learns of its
//! application only as room that comes back. [`serve`] runs in a thread that [`receiver`](super::receiver) starts for each
//! channel; the control calls apply what is in the log themselves, under the same lock.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tailwind_ring::Consumer;

use crate::message::Writer;
use crate::tcp::registry::Registry;
use crate::tcp::wire::HEADER_SIZE;

use super::frames::{Frame, Frames};
use super::link::wake;
use super::spin_until;

/// Bytes copied out of the log at a time. They are looked at and copied on while they are in the cache, and their room is the
/// sender's again.
const CHUNK_SIZE: usize = 64 * 1024;

/// One channel's log.
#[derive(Debug)]
pub(super) struct Applier {
    requests: Consumer,
    frames: Frames,
    /// The frame whose bytes are arriving.
    open: Option<Frame>,
    chunk: Vec<u8>,
    /// Bytes that were written to the log, and those that were copied from there into slots.
    written: Arc<AtomicU64>,
    /// Nothing is applied any more.
    ended: bool,
}

/// The sender has broken the rules, its lending is over, or the log is closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended;

impl Applier {
    pub(super) fn new(requests: Consumer, writer: Writer, written: Arc<AtomicU64>) -> Applier {
        let (frames, chunk) = (Frames::new(writer), vec![0; CHUNK_SIZE]);
        Applier { requests, frames, open: None, chunk, written, ended: false }
    }

    /// Applies what has been published when this is called, at most one log full; how many bytes that was.
    pub(super) fn drain(&mut self, registry: &Registry, socket: &UnixStream) -> Result<usize, Ended> {
        if self.ended {
            return Err(Ended);
        }
        let drained = self.apply(registry, socket);
        if drained.is_err() {
            self.end();
        }
        drained
    }

    /// Applies what has completed, and lets nothing complete any more.
    pub(super) fn close(&mut self, registry: &Registry, socket: &UnixStream) {
        self.requests.close();
        let _ = self.drain(registry, socket);
        self.end();
    }

    fn end(&mut self) {
        self.ended = true;
        self.requests.close();
    }

    fn apply(&mut self, registry: &Registry, socket: &UnixStream) -> Result<usize, Ended> {
        let pending = self.requests.pending().map_err(|_| Ended)?;
        let mut left = pending;
        // A header that wraps around the end of a chunk is read in whole with the next one.
        while left >= HEADER_SIZE || (left > 0 && self.open.is_some()) {
            let size = left.min(CHUNK_SIZE);
            let mut chunk = std::mem::take(&mut self.chunk);
            self.requests.peek(0, &mut chunk[..size]);
            let taken = self.write(registry, &chunk[..size]);
            self.chunk = chunk;
            let (taken, copied) = taken.ok_or(Ended)?;
            self.requests.take(taken);
            self.written.fetch_add((taken + copied) as u64, Ordering::Relaxed);
            if self.requests.release() {
                wake(socket);
            }
            left -= taken;
        }
        Ok(pending - left)
    }

    /// Writes what `bytes` hold into the slots, in order; how many of them it took, all but a part of a header, and how many are in
    /// slots now.
    fn write(&mut self, registry: &Registry, bytes: &[u8]) -> Option<(usize, usize)> {
        let (mut taken, mut copied) = (0, 0);
        loop {
            let frame = match &mut self.open {
                Some(frame) => frame,
                None => {
                    let Some(header) = bytes[taken..].first_chunk::<HEADER_SIZE>() else {
                        return Some((taken, copied));
                    };
                    taken += HEADER_SIZE;
                    self.open.insert(self.frames.begin(registry, header)?)
                }
            };
            let count = (frame.left as usize).min(bytes.len() - taken);
            if !frame.lending.write(frame.offset, &bytes[taken..taken + count]) {
                return None;
            }
            taken += count;
            copied += count;
            frame.offset += count as u32;
            frame.left -= count as u32;
            if frame.left > 0 {
                return Some((taken, copied));
            }
            self.open = None;
        }
    }
}

/// Polls the log and applies what it finds, until either side ends the connection.
pub(super) fn serve(registry: &Registry, applier: &Mutex<Applier>, socket: &UnixStream) {
    loop {
        let mut drained = Ok(0);
        spin_until(|| {
            drained = lock(applier).drain(registry, socket).map_err(|_| ());
            drained != Ok(0)
        });
        match drained {
            Ok(0) => {}
            Ok(_) => continue,
            Err(()) => return,
        }
        if lock(applier).requests.may_sleep() && !sleep(socket) {
            // What the sender had published before it went has completed.
            let _ = lock(applier).drain(registry, socket);
            return;
        }
        lock(applier).requests.awake();
    }
}

/// Waits to be woken; false at the end of the connection.
fn sleep(mut socket: &UnixStream) -> bool {
    match socket.read(&mut [0; 64]) {
        Ok(count) => count > 0,
        Err(error) => error.kind() == ErrorKind::Interrupted,
    }
}

/// A thread that panicked with the lock held has ended its channel: nothing of it is applied afterwards than what is whole.
pub(super) fn lock(applier: &Mutex<Applier>) -> MutexGuard<'_, Applier> {
    applier.lock().unwrap_or_else(PoisonError::into_inner)
}
