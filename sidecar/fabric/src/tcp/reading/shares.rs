//! Which readers may read what over TCP: readers, their secrets and connections, and the shared slots.
//!
//! The receiver's control calls fill it, the acceptor spends secrets, the answering threads look shares up. Its lock is
//! held for table work only, and is not that of the [`registry`](crate::tcp::registry): writers never meet it.

use std::fs::File;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::answering;
use crate::error::FabricError;
use crate::message::{ReaderId, SlotId};
use crate::reading::{READ_CHANNELS_MAX, READERS_MAX, Readers};
use crate::secret::{SECRET_SIZE, Secret};
use crate::tcp::secrets::Secrets;

/// Connections of all readers, those included that have been shut down and whose threads are about to end.
const CONNECTIONS_MAX: usize = 2 * READERS_MAX * READ_CHANNELS_MAX;

/// The right to read one slot's present memory.
#[derive(Debug)]
pub(crate) struct SharedSlot {
    slot: SlotId,
    key: u64,
    length: u32,
    /// `None` when the share is over.
    file: Mutex<Option<File>>,
}

/// The tables.
#[derive(Debug)]
pub(in crate::tcp) struct Shares {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    readers: Readers,
    secrets: Secrets<ReaderId>,
    shares: Vec<Arc<SharedSlot>>,
    /// Oldest first.
    connections: Vec<Connection>,
    connections_ever: u64,
}

/// A read channel.
#[derive(Debug)]
struct Connection {
    id: u64,
    reader: ReaderId,
    stream: Arc<TcpStream>,
    thread: JoinHandle<()>,
}

impl SharedSlot {
    /// A share of the memory in `file`.
    pub(crate) fn new(slot: SlotId, key: u64, length: u32, file: File) -> SharedSlot {
        SharedSlot { slot, key, length, file: Mutex::new(Some(file)) }
    }

    /// Whether a read of `length` bytes at `offset` is one, and lies within the slot.
    pub(crate) fn holds(&self, offset: u32, length: u32) -> bool {
        length > 0 && u64::from(offset) + u64::from(length) <= u64::from(self.length)
    }

    /// Copies bytes out of the slot unless the share is over; returns whether it did. The caller has checked the range.
    #[must_use]
    pub(crate) fn read(&self, offset: u32, out: &mut [u8]) -> bool {
        lock(&self.file).as_ref().is_some_and(|file| file.read_exact_at(out, offset.into()).is_ok())
    }

    /// The key that requests name it by.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// After this returns no byte of the share is taken any more.
    pub(crate) fn end(&self) {
        *lock(&self.file) = None;
    }
}

impl Shares {
    pub(in crate::tcp) fn new() -> Shares {
        let (readers, secrets, connections) = (Readers::default(), Secrets::new(), Vec::new());
        Shares { state: Mutex::new(State { readers, secrets, shares: Vec::new(), connections, connections_ever: 0 }) }
    }

    /// Lets a peer that presents `secret` in time open one channel of `reader`.
    pub(super) fn expect(&self, reader: ReaderId, secret: Secret, now: Instant) -> Result<(), FabricError> {
        let mut state = lock(&self.state);
        state.readers.admit(reader)?;
        state.secrets.expect(reader, secret, now);
        Ok(())
    }

    /// The key under which a slot is shared.
    pub(super) fn key(&self, slot: SlotId) -> Option<u64> {
        lock(&self.state).shares.iter().find(|share| share.slot == slot).map(|share| share.key)
    }

    /// Shares the memory in `file`.
    pub(super) fn share(&self, slot: SlotId, key: u64, length: u32, file: File) {
        lock(&self.state).shares.push(Arc::new(SharedSlot::new(slot, key, length, file)));
    }

    /// Ends the share of `slot`, if there is one.
    pub(in crate::tcp) fn end(&self, slot: SlotId) {
        let ended: Vec<_> = lock(&self.state).shares.extract_if(.., |share| share.slot == slot).collect();
        ended.iter().for_each(|share| share.end());
    }

    /// The share that `key` names.
    pub(super) fn find(&self, key: u64) -> Option<Arc<SharedSlot>> {
        lock(&self.state).shares.iter().find(|share| share.key == key).cloned()
    }

    /// Spends the secret that a peer has presented: answers the channel of its reader in a thread of its own, or drops the
    /// connection. The oldest channel of a reader that has too many ends.
    pub(in crate::tcp) fn admit(
        self: &Arc<Self>,
        presented: &[u8; SECRET_SIZE],
        stream: TcpStream,
        now: Instant,
    ) -> io::Result<()> {
        let mut state = lock(&self.state);
        let Some(reader) = state.secrets.spend(presented, now) else { return Ok(()) };
        if state.connections.len() == CONNECTIONS_MAX {
            return Ok(());
        }
        let own: Vec<&Connection> = state.connections.iter().filter(|open| open.reader == reader).collect();
        for oldest in &own[..(own.len() + 1).saturating_sub(READ_CHANNELS_MAX)] {
            // Its thread ends and takes it out of the table. Fails if the reader has closed it already.
            let _ = oldest.stream.shutdown(Shutdown::Both);
        }
        let (id, stream) = (state.connections_ever, Arc::new(stream));
        let (shares, socket) = (Arc::clone(self), Arc::clone(&stream));
        let thread = thread::Builder::new().name("fabric-tcp-share".into()).spawn(move || {
            answering::serve(&shares, &socket);
            lock(&shares.state).connections.retain(|connection| connection.id != id);
        })?;
        state.connections_ever += 1;
        state.connections.push(Connection { id, reader, stream, thread });
        Ok(())
    }

    /// Forgets a reader. When it returns nothing of it runs any more.
    pub(super) fn dismiss(&self, reader: ReaderId) {
        let mut state = lock(&self.state);
        state.readers.dismiss(reader);
        stop(state, |of| of == reader);
    }

    /// Ends all shares and connections.
    pub(in crate::tcp) fn close(&self) {
        let mut state = lock(&self.state);
        let ended = std::mem::take(&mut state.shares);
        ended.iter().for_each(|share| share.end());
        stop(state, |_| true);
    }
}

fn stop(mut state: MutexGuard<'_, State>, is_over: impl Fn(ReaderId) -> bool) {
    state.secrets.forget(&is_over);
    let connections: Vec<Connection> = state.connections.extract_if(.., |open| is_over(open.reader)).collect();
    // The threads need the lock to end.
    drop(state);
    for connection in &connections {
        // Wakes a thread that waits for a request, or for room to answer.
        let _ = connection.stream.shutdown(Shutdown::Both);
    }
    for connection in connections {
        // One that had panicked has ended too, and had nothing but bytes to give away.
        let _ = connection.thread.join();
    }
}

/// A thread that panicked with the lock held has left no table in between two states: each change is one statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
