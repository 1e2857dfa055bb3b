//! Which writers may write what over TCP: secrets, lendings and open connections, under one lock.
//!
//! The receiver's control calls fill and revoke it, the acceptor spends secrets, the connection readers look lendings up.
//! The lock is held for table work only, never while a thread is waited for or bytes move. Steps 1 to 4 of the proof in
//! [`tcp`](super) are this file.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::secrets::Secrets;
use crate::error::FabricError;
use crate::mapping::Mapping;
use crate::message::{SlotId, Writer};
use crate::secret::{SECRET_SIZE, Secret};

/// Open channels, of all writers. Each has a thread, and a sender needs a secret for each: so only a broken control
/// RPC could come here.
const CONNECTIONS_MAX: usize = 1024;

/// What serves a channel, in a thread of its own.
pub(crate) type Serve = fn(&Registry, Writer, &TcpStream);

/// One writer's right to write one slot.
#[derive(Debug)]
pub(crate) struct LentSlot {
    writer: Writer,
    key: u64,
    length: u32,
    /// `None` when the lending is over.
    memory: Mutex<Option<Arc<Mapping>>>,
}

/// The tables.
#[derive(Debug)]
pub(crate) struct Registry {
    state: Mutex<State>,
    /// How long a channel is polled before its thread sleeps.
    spin: Duration,
}

#[derive(Debug)]
struct State {
    revoked_below: Writer,
    secrets: Secrets<Writer>,
    /// By slot.
    lendings: Vec<Option<Arc<LentSlot>>>,
    /// The slot of each of their keys: nearly every line of a mirror names another part than the one before.
    slots: HashMap<u64, SlotId>,
    connections: Vec<Connection>,
    connections_ever: u64,
}

/// An open channel.
#[derive(Debug)]
struct Connection {
    id: u64,
    writer: Writer,
    stream: Arc<TcpStream>,
    thread: JoinHandle<()>,
}

/// The stream of a channel that has a thread. Shut down when the thread ends, also by a panic: the table holds the stream too, so
/// that the sender would take the channel for open, and wait for acknowledgements.
struct Served(Arc<TcpStream>);

impl Drop for Served {
    fn drop(&mut self) {
        // Fails only if the sender has closed it already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl LentSlot {
    /// Whether a write of `length` bytes at `offset` lies within the slot.
    pub(crate) fn holds(&self, offset: u32, length: u32) -> bool {
        u64::from(offset) + u64::from(length) <= u64::from(self.length)
    }

    /// Copies `bytes` into the slot unless the lending is over; returns whether it did. The caller has checked the range.
    #[must_use]
    pub(crate) fn write(&self, offset: u32, bytes: &[u8]) -> bool {
        match &*lock(&self.memory) {
            Some(memory) => {
                memory.write(offset, bytes);
                true
            }
            None => false,
        }
    }

    /// The key that frames name it by.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// After this returns no byte of the lending lands any more.
    fn end(&self) {
        *lock(&self.memory) = None;
    }
}

impl State {
    /// Takes the lending of `slot` out of the tables, if there is one.
    fn forget_lending(&mut self, slot: SlotId) -> Option<Arc<LentSlot>> {
        let lending = self.lendings[slot.0 as usize].take()?;
        self.slots.remove(&lending.key);
        Some(lending)
    }
}

impl Registry {
    /// Empty tables for a pool of so many slots, and channels that are polled for this long before their threads sleep.
    pub(crate) fn new(slots: u32, spin: Duration) -> Registry {
        let (secrets, connections) = (Secrets::new(), Vec::new());
        let lendings = (0..slots).map(|_| None).collect();
        let slots = HashMap::new();
        let state = State { revoked_below: Writer(0), secrets, lendings, slots, connections, connections_ever: 0 };
        Registry { state: Mutex::new(state), spin }
    }

    /// How long a channel is polled before its thread sleeps.
    pub(crate) fn spin(&self) -> Duration {
        self.spin
    }

    /// Refuses a writer that a revocation covers.
    pub(crate) fn check(&self, writer: Writer) -> Result<(), FabricError> {
        if writer < lock(&self.state).revoked_below { Err(FabricError::Revoked(writer)) } else { Ok(()) }
    }

    /// Lets a peer that presents `secret` in time open one channel for `writer`.
    pub(crate) fn expect(&self, writer: Writer, secret: Secret, now: Instant) {
        lock(&self.state).secrets.expect(writer, secret, now);
    }

    /// Lends `memory` to `writer` under `key`.
    pub(crate) fn lend(&self, writer: Writer, slot: SlotId, key: u64, memory: Arc<Mapping>) {
        let lending = LentSlot { writer, key, length: memory.slot_size(), memory: Mutex::new(Some(memory)) };
        let mut state = lock(&self.state);
        state.forget_lending(slot);
        state.slots.insert(key, slot);
        state.lendings[slot.0 as usize] = Some(Arc::new(lending));
    }

    /// Ends the lending of `slot`, if there is one.
    pub(crate) fn end(&self, slot: SlotId) {
        let lending = lock(&self.state).forget_lending(slot);
        if let Some(lending) = lending {
            lending.end();
        }
    }

    /// The lending that `key` names, if it is `writer`'s.
    pub(crate) fn find(&self, writer: Writer, key: u64) -> Option<Arc<LentSlot>> {
        let state = lock(&self.state);
        let lending = state.lendings[state.slots.get(&key)?.0 as usize].as_ref();
        lending.filter(|lending| lending.key == key && lending.writer == writer).cloned()
    }

    /// Spends the secret that a peer has presented: serves the channel of its writer in a thread of its own, or drops the
    /// connection. The secret is taken and the thread entered in the table under one lock, so that a revocation sees either
    /// or neither.
    pub(crate) fn admit(
        self: &Arc<Self>,
        presented: &[u8; SECRET_SIZE],
        stream: TcpStream,
        now: Instant,
        serve: Serve,
    ) -> io::Result<()> {
        let mut state = lock(&self.state);
        let Some(writer) = state.secrets.spend(presented, now) else { return Ok(()) };
        if state.connections.len() == CONNECTIONS_MAX {
            return Ok(());
        }
        let (id, stream) = (state.connections_ever, Arc::new(stream));
        let (registry, served) = (Arc::clone(self), Served(Arc::clone(&stream)));
        let thread = thread::Builder::new().name("fabric-tcp-read".into()).spawn(move || {
            serve(&registry, writer, &served.0);
            registry.forget(id);
        })?;
        state.connections_ever += 1;
        state.connections.push(Connection { id, writer, stream, thread });
        Ok(())
    }

    /// True while `slot` is lent.
    pub(crate) fn is_lent(&self, slot: SlotId) -> bool {
        lock(&self.state).lendings[slot.0 as usize].is_some()
    }

    /// Revokes every writer below `writer`, for good. When it returns nothing of them runs any more. Returns the slots that were
    /// lent to them.
    pub(crate) fn revoke_below(&self, writer: Writer) -> Result<Vec<SlotId>, FabricError> {
        let mut state = lock(&self.state);
        state.revoked_below = state.revoked_below.max(writer);
        self.stop(state, |held| held < writer)
    }

    /// Ends all lendings and connections.
    pub(crate) fn close(&self) -> Result<(), FabricError> {
        self.stop(lock(&self.state), |_| true).map(drop)
    }

    fn stop(
        &self,
        mut state: MutexGuard<'_, State>,
        is_over: impl Fn(Writer) -> bool,
    ) -> Result<Vec<SlotId>, FabricError> {
        state.secrets.forget(&is_over);
        let lent = (0..).map(SlotId).zip(&state.lendings);
        let of_these =
            |lending: &Option<Arc<LentSlot>>| lending.as_ref().is_some_and(|lending| is_over(lending.writer));
        let slots: Vec<SlotId> = lent.filter(|(_, lending)| of_these(lending)).map(|(slot, _)| slot).collect();
        let lendings: Vec<Arc<LentSlot>> = slots.iter().filter_map(|slot| state.forget_lending(*slot)).collect();
        let connections: Vec<Connection> = state.connections.extract_if(.., |open| is_over(open.writer)).collect();
        // The threads need the lock to end.
        drop(state);

        for lending in lendings {
            lending.end();
        }
        for connection in &connections {
            // Fails only if the sender has closed it already. Wakes a thread that waits for bytes, or for room to
            // acknowledge.
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
        for connection in connections {
            let broken = |_| FabricError::io("stop a receiving thread")(io::Error::other("it had panicked"));
            connection.thread.join().map_err(broken)?;
        }
        Ok(slots)
    }

    fn forget(&self, id: u64) {
        lock(&self.state).connections.retain(|connection| connection.id != id);
    }
}

/// A thread that panicked with the lock held has left no table in between two states: each change is one statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::secrets::{SECRET_LIFETIME, SECRETS_MAX};
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};

    /// Whether `secret`, presented at `now`, opens a channel.
    fn opens(registry: &Arc<Registry>, secret: &Secret, now: Instant) -> bool {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let before = lock(&registry.state).connections_ever;
        registry.admit(&secret.digits().unwrap(), listener.accept().unwrap().0, now, |_, _, _| {}).unwrap();
        lock(&registry.state).connections_ever > before
    }

    #[test]
    fn a_secret_expires() {
        let (registry, start) = (Arc::new(Registry::new(1, Duration::ZERO)), Instant::now());
        let (early, late) = (Secret::random().unwrap(), Secret::random().unwrap());
        registry.expect(Writer(1), early.clone(), start);
        registry.expect(Writer(1), late.clone(), start);
        assert!(opens(&registry, &early, start + SECRET_LIFETIME - Duration::from_millis(1)));
        assert!(!opens(&registry, &late, start + SECRET_LIFETIME));
    }

    #[test]
    fn the_oldest_secret_is_forgotten_first() {
        let (registry, start) = (Arc::new(Registry::new(1, Duration::ZERO)), Instant::now());
        let secrets: Vec<Secret> = (0..=SECRETS_MAX).map(|_| Secret::random().unwrap()).collect();
        for secret in &secrets {
            registry.expect(Writer(1), secret.clone(), start);
        }
        assert!(!opens(&registry, &secrets[0], start));
        assert!(opens(&registry, &secrets[1], start));
    }

    #[test]
    fn a_thread_that_panics_closes_its_channel() {
        let (registry, secret) = (Arc::new(Registry::new(1, Duration::ZERO)), Secret::random().unwrap());
        registry.expect(Writer(1), secret.clone(), Instant::now());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = listener.accept().unwrap().0;
        registry.admit(&secret.digits().unwrap(), stream, Instant::now(), |_, _, _| panic!("of a test")).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        assert_eq!(lock(&registry.state).connections.len(), 1, "a revocation reports it");
    }

    #[test]
    fn a_revocation_removes_secrets_too() {
        let (registry, start) = (Arc::new(Registry::new(1, Duration::ZERO)), Instant::now());
        let (revoked, spared) = (Secret::random().unwrap(), Secret::random().unwrap());
        registry.expect(Writer(1), revoked.clone(), start);
        registry.expect(Writer(2), spared.clone(), start);
        registry.revoke_below(Writer(2)).unwrap();
        assert!(!opens(&registry, &revoked, start));
        assert!(opens(&registry, &spared, start));
    }
}
