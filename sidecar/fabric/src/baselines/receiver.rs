//! The control calls of the receiving half over shared memory: accept, lend, end, revoke.
//!
//! Called by the backup daemon; calls [`tcp`](crate::tcp)'s registry of lendings, and the [`pool`](crate::pool) for memory;
//! `answering` has the read side.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tailwind_ring::{SidecarEnd, Sizes};

use crate::contract::Receiver;
use crate::error::FabricError;
use crate::message::{ChannelAnswer, FabricKind, Grant, Offer, ReadGrant, ReaderId, SlotId, Writer};
use crate::pool::{Claim, Pool};
use crate::reading::{Admission, Follow, Readers, Sharer};
use crate::secret::{self, Secret};
use crate::shm;
use crate::tcp::registry::Registry;

use super::Baseline;
use super::answering::{ReadConnections, Shares};
use super::meeting;
use super::ring::{self, Applier};
use super::rpc::{self, AnswerWriter, RequestReader};

/// Open channels, of all writers, as over [`tcp`](crate::tcp).
const CONNECTIONS_MAX: usize = 1024;

impl Baseline {
    /// The sizes of the memory that carries its messages. The log of `ring` has the 4 MiB of the paper; `rpc` has few messages
    /// on their way, and less memory to cycle through stays in the caches.
    pub(super) fn sizes(self) -> Sizes {
        match self {
            Baseline::Rpc | Baseline::RpcPipelined => Sizes::APPENDS,
            Baseline::Ring => Sizes { requests: 4 << 20, ..Sizes::APPENDS },
        }
    }
}

/// Lends slots of a pool to processes of this host that send messages. Dropping it ends all lendings, connections and
/// threads.
#[derive(Debug)]
pub struct MessageReceiver {
    baseline: Baseline,
    registry: Arc<Registry>,
    connections: Vec<Connection>,
    readers: Readers,
    reading: ReadConnections,
    shares: Arc<Shares>,
    pool: Claim,
    /// By all channels of `ring`.
    written: Arc<AtomicU64>,
}

/// An open channel.
#[derive(Debug)]
struct Connection {
    writer: Writer,
    socket: Arc<UnixStream>,
    /// With `ring`.
    applier: Option<Arc<Mutex<Applier>>>,
    thread: JoinHandle<()>,
}

impl MessageReceiver {
    /// Takes the pool over. Writers of an earlier life are revoked by this (promise 7).
    pub fn new(pool: Arc<Pool>, baseline: Baseline) -> Result<MessageReceiver, FabricError> {
        let registry = Arc::new(Registry::new(pool.all_slots(), Duration::ZERO));
        let pool = pool.claim()?;
        pool.freeze_lent()?;
        let (readers, reading, shares) = (Readers::default(), ReadConnections::default(), Arc::default());
        let (connections, written) = (Vec::new(), Arc::default());
        Ok(MessageReceiver { baseline, registry, connections, readers, reading, shares, pool, written })
    }

    /// The socket of an offer to this receiver.
    fn offered<'a>(&self, offer: &'a Offer) -> Result<&'a str, FabricError> {
        match offer {
            Offer::Baseline { baseline, socket } if *baseline == self.baseline => Ok(socket),
            _ => Err(FabricError::mismatch(self.kind(), offer.kind())),
        }
    }

    /// Applies what has completed by now. It may belong to a lending that is about to end.
    fn drain(&self) {
        for connection in &self.connections {
            if let Some(applier) = &connection.applier {
                // A sender that breaks the rules is disconnected, and learns of it.
                let _ = ring::lock(applier).drain(&self.registry, &connection.socket);
            }
        }
    }

    /// Ends the connections of these writers, before `end` ends their lendings.
    fn stop(
        &mut self,
        is_over: impl Fn(Writer) -> bool,
        end: impl FnOnce(&Registry) -> Result<Vec<SlotId>, FabricError>,
    ) -> Result<(), FabricError> {
        let over: Vec<Connection> = self.connections.extract_if(.., |open| is_over(open.writer)).collect();
        for Connection { applier, socket, .. } in &over {
            if let Some(applier) = applier {
                ring::lock(applier).close(&self.registry, socket);
            }
        }
        let ended = end(&self.registry)?;
        for slot in ended {
            if self.pool.pool().is_side(slot) {
                self.end_share(slot);
            }
        }
        for connection in &over {
            // Fails only if the sender has closed it already. Wakes threads that wait for messages.
            let _ = connection.socket.shutdown(Shutdown::Both);
        }
        for connection in over {
            let broken = |_| FabricError::io("stop a receiving thread")(io::Error::other("it had panicked"));
            connection.thread.join().map_err(broken)?;
        }
        Ok(())
    }

    /// Passes new memory to the sender that waits at `name`, and starts to serve it.
    fn connect(&self, writer: Writer, name: &str, secret: &Secret) -> io::Result<Connection> {
        let (socket, end) = meeting::pass(name, secret, self.baseline.sizes())?;
        let socket = Arc::new(socket);
        let SidecarEnd { requests, answers } = end;
        let (registry, stream) = (Arc::clone(&self.registry), Arc::clone(&socket));
        let thread = thread::Builder::new().name("baseline-dispatch".into());
        match self.baseline {
            Baseline::Rpc | Baseline::RpcPipelined => {
                let thread = thread.spawn(move || {
                    let (requests, answers) =
                        (RequestReader { requests, socket: &stream }, AnswerWriter { answers, socket: &stream });
                    rpc::serve(&registry, writer, requests, answers, || drop(stream.shutdown(Shutdown::Both)));
                })?;
                Ok(Connection { writer, socket, applier: None, thread })
            }
            Baseline::Ring => {
                let applier = Arc::new(Mutex::new(Applier::new(requests, writer, Arc::clone(&self.written))));
                let shared = Arc::clone(&applier);
                let thread = thread.spawn(move || {
                    ring::serve(&registry, &shared, &stream);
                    drop(stream.shutdown(Shutdown::Both));
                })?;
                Ok(Connection { writer, socket, applier: Some(applier), thread })
            }
        }
    }
}

impl Receiver for MessageReceiver {
    fn kind(&self) -> FabricKind {
        FabricKind::Baseline(self.baseline)
    }

    fn accept(&mut self, writer: Writer, offer: &Offer) -> Result<Admission, FabricError> {
        self.registry.check(writer)?;
        let socket = self.offered(offer)?;
        self.connections.retain(|connection| !connection.thread.is_finished());
        let accept = FabricError::io("pass memory to the sender");
        if self.connections.len() == CONNECTIONS_MAX {
            return Err(accept(io::Error::other("too many channels are open")));
        }
        let secret = Secret::random().map_err(FabricError::io("draw a secret"))?;
        self.connections.push(self.connect(writer, socket, &secret).map_err(accept)?);
        Ok(Admission::ready(ChannelAnswer::Baseline { baseline: self.baseline, secret }))
    }

    fn lend(&mut self, writer: Writer, slot: SlotId) -> Result<Grant, FabricError> {
        self.registry.check(writer)?;
        let key = secret::key().map_err(FabricError::io("draw a key"))?;
        self.end_lending(slot);
        self.shares.end(slot);
        let memory = self.pool.renew(slot)?;
        let length = memory.slot_size();
        self.registry.lend(writer, slot, key, memory);
        Ok(Grant::Baseline { baseline: self.baseline, key, length })
    }

    fn end_lending(&mut self, slot: SlotId) {
        self.drain();
        self.registry.end(slot);
    }

    fn hold(&mut self, slot: SlotId) -> Result<(), FabricError> {
        self.end_lending(slot);
        self.shares.end(slot);
        self.pool.renew(slot)?;
        Ok(())
    }

    fn release(&mut self, slot: SlotId) -> Result<(), FabricError> {
        self.end_lending(slot);
        self.shares.end(slot);
        // Only this process maps the memory, and after the end no thread of it writes there.
        self.pool.keep(slot)?;
        Ok(())
    }

    fn revoke_below(&mut self, writer: Writer) -> Result<(), FabricError> {
        // What has completed of writers that continue can be read afterwards, too (promise 2).
        self.drain();
        self.stop(|held| held < writer, |registry| registry.revoke_below(writer))
    }

    fn written_bytes(&self) -> Option<u64> {
        (self.baseline == Baseline::Ring).then(|| self.written.load(Ordering::Relaxed))
    }

    fn sharer(&mut self) -> Option<&mut dyn Sharer> {
        match self.baseline {
            Baseline::Rpc | Baseline::RpcPipelined => Some(self),
            // A write that has completed may not be in its slot yet, where promise 8 has it read.
            Baseline::Ring => None,
        }
    }
}

impl Sharer for MessageReceiver {
    fn admit(&mut self, reader: ReaderId, offer: &Offer) -> Result<Admission, FabricError> {
        let socket = self.offered(offer)?;
        self.readers.admit(reader)?;
        let secret = Secret::random().map_err(FabricError::io("draw a secret"))?;
        let connected = self.reading.connect(&self.shares, reader, socket, &secret);
        connected.map_err(FabricError::io("pass memory to the reader"))?;
        Ok(Admission::ready(ChannelAnswer::Baseline { baseline: self.baseline, secret }))
    }

    fn share(&mut self, slot: SlotId) -> Result<Option<ReadGrant>, FabricError> {
        let Some(memory) = self.pool.memory(slot) else { return Ok(None) };
        if self.pool.pool().is_side(slot) && !self.registry.is_lent(slot) {
            return Ok(None);
        }
        let (path, key) = shm::reading::share(&self.pool, slot, &memory)?;
        let length = memory.slot_size();
        let shared = self.shares.share(slot, key, length, || self.pool.file(slot));
        shared.map_err(FabricError::io(format!("share slot {}", slot.0)))?;
        Ok(Some(ReadGrant::Baseline { baseline: self.baseline, path, key, length }))
    }

    fn end_share(&mut self, slot: SlotId) {
        self.shares.end(slot);
        if let Some(memory) = self.pool.memory(slot) {
            memory.end_share();
        }
    }

    fn answer_lookups(&mut self, slot: SlotId, name: u64, follow: Follow) {
        self.shares.name(slot, name, follow);
    }

    fn dismiss(&mut self, reader: ReaderId) {
        self.readers.dismiss(reader);
        self.reading.stop(|of| of == reader);
    }
}

impl Drop for MessageReceiver {
    fn drop(&mut self) {
        // The pool's claim goes after this, with the other fields. That a thread has panicked is no reason to panic here.
        let _ = self.stop(|_| true, |registry| registry.close().map(|()| Vec::new()));
        self.reading.stop(|_| true);
    }
}
