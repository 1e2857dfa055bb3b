//! The control calls of the receiving half over shared memory: accept, lend, end, revoke.
//!
//! Called by the backup daemon; calls [`tcp`](crate::tcp)'s registry of lendings, and the [`pool`](crate::pool) for memory.
//! For each channel it listens on a socket of its own, under a name and with a secret that only the control RPC carries, and
//! gives the memory for the messages to whoever presents the secret.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tailwind_ring::Sizes;

use crate::contract::Receiver;
use crate::error::FabricError;
use crate::message::{ChannelAnswer, FabricKind, Grant, Offer, SlotId, Writer};
use crate::pool::{Claim, Pool};
use crate::secret::{self, SECRET_SIZE, Secret};
use crate::tcp::registry::Registry;

use super::super::link::{Link, ShmLink, next_connection};
use super::{CONNECT_TIMEOUT, Carrier, agent};

/// Open channels, of all writers, as over [`tcp`](crate::tcp).
const CONNECTIONS_MAX: usize = 1024;
/// How long a secret waits for its connection, as over [`tcp`](crate::tcp).
const SECRET_LIFETIME: Duration = Duration::from_secs(10);

/// Lends slots of a pool to writers that reach it through a chain of processes of this host. Dropping it ends all lendings,
/// connections and threads.
#[derive(Debug)]
pub struct ChainReceiver {
    /// Tells it from others.
    number: u64,
    registry: Arc<Registry>,
    connections: Vec<Connection>,
    pool: Claim,
}

/// An open channel, or one whose connection has not come yet.
#[derive(Debug)]
struct Connection {
    writer: Writer,
    door: Arc<Door>,
    thread: JoinHandle<()>,
}

/// Where one connection comes in.
#[derive(Debug)]
struct Door {
    listener: UnixListener,
    /// That connection.
    socket: OnceLock<UnixStream>,
    closed: AtomicBool,
}

impl Door {
    fn open(name: &str) -> io::Result<Door> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Door { listener, socket: OnceLock::new(), closed: AtomicBool::new(false) })
    }

    /// The receiver's end of the connection that presents the secret; none comes after [`Door::close`].
    fn admit(&self, secret: &Secret) -> io::Result<Box<dyn Link>> {
        let deadline = Instant::now() + SECRET_LIFETIME;
        while !self.closed.load(Ordering::SeqCst) {
            let Some((socket, left)) = next_connection(&self.listener, deadline)? else { continue };
            socket.set_nonblocking(false)?;
            socket.set_read_timeout(Some(CONNECT_TIMEOUT.min(left)))?;
            let mut presented = [0; SECRET_SIZE];
            if (&socket).read_exact(&mut presented).is_err() || !secret.matches(&presented) {
                continue;
            }
            let (file, end) = tailwind_ring::create_sized(Sizes::APPENDS)?;
            socket.set_nonblocking(true)?;
            let link = ShmLink::of_receiver(end, socket.try_clone()?);
            tailwind_ring::send(self.socket.get_or_init(|| socket), &[1], file)?;
            // Who has closed it before saw no connection to shut down.
            if self.closed.load(Ordering::SeqCst) {
                break;
            }
            return Ok(Box::new(link));
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    /// Ends the connection, or the waiting for it. Wakes the thread.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Each fails only if it has been closed already.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(socket) = self.socket.get() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl ChainReceiver {
    /// Takes the pool over. Writers of an earlier life are revoked by this (promise 7).
    pub fn new(pool: Arc<Pool>) -> Result<ChainReceiver, FabricError> {
        let number = secret::key().map_err(FabricError::io("draw a number"))?;
        let registry = Arc::new(Registry::new(pool.side_slot().0 + 1, Duration::ZERO));
        let pool = pool.claim()?;
        pool.freeze_lent()?;
        Ok(ChainReceiver { number, registry, connections: Vec::new(), pool })
    }

    fn listen(&self, writer: Writer, name: &str, secret: &Secret) -> io::Result<Connection> {
        let door = Arc::new(Door::open(name)?);
        let (registry, secret, shared) = (Arc::clone(&self.registry), secret.clone(), Arc::clone(&door));
        let thread = thread::Builder::new().name("baseline-agent".into()).spawn(move || {
            // Without a connection there is nobody to tell.
            if let Ok(link) = shared.admit(&secret) {
                agent::serve(&registry, writer, Carrier::Shm, link);
            }
        })?;
        Ok(Connection { writer, door, thread })
    }

    /// Ends the connections of these writers, after `end` has ended their lendings.
    fn stop(
        &mut self,
        is_over: impl Fn(Writer) -> bool,
        end: impl Fn(&Registry) -> Result<(), FabricError>,
    ) -> Result<(), FabricError> {
        end(&self.registry)?;
        let over: Vec<Connection> = self.connections.extract_if(.., |open| is_over(open.writer)).collect();
        over.iter().for_each(|connection| connection.door.close());
        for connection in over {
            let broken = |_| FabricError::io("stop an agent")(io::Error::other("it had panicked"));
            connection.thread.join().map_err(broken)?;
        }
        Ok(())
    }
}

impl Receiver for ChainReceiver {
    fn kind(&self) -> FabricKind {
        FabricKind::Chain
    }

    fn accept(&mut self, writer: Writer, offer: &Offer) -> Result<ChannelAnswer, FabricError> {
        self.registry.check(writer)?;
        let Offer::Chain = offer else { return Err(FabricError::mismatch(self.kind(), offer.kind())) };
        self.connections.retain(|connection| !connection.thread.is_finished());
        let listen = FabricError::io("listen for the chain");
        if self.connections.len() == CONNECTIONS_MAX {
            return Err(listen(io::Error::other("too many channels are open")));
        }
        let draw = |_| Secret::random().map_err(FabricError::io("draw a secret"));
        let [secret, name] = [draw(0)?, draw(1)?];
        let digits = name.digits().unwrap_or_default();
        let socket = format!("tailwind-{}", String::from_utf8_lossy(&digits));
        self.connections.push(self.listen(writer, &socket, &secret).map_err(listen)?);
        Ok(ChannelAnswer::Chain { receiver: self.number, socket, secret })
    }

    fn lend(&mut self, writer: Writer, slot: SlotId) -> Result<Grant, FabricError> {
        self.registry.check(writer)?;
        let key = secret::key().map_err(FabricError::io("draw a key"))?;
        self.end_lending(slot);
        let memory = self.pool.renew(slot)?;
        let length = memory.slot_size();
        self.registry.lend(writer, slot, key, memory);
        Ok(Grant::Chain { key, length })
    }

    fn end_lending(&mut self, slot: SlotId) {
        self.registry.end(slot);
    }

    fn release(&mut self, slot: SlotId) -> Result<(), FabricError> {
        self.end_lending(slot);
        // Only this process maps the memory, and after the end no thread of it writes there.
        self.pool.keep(slot);
        Ok(())
    }

    fn revoke_below(&mut self, writer: Writer) -> Result<(), FabricError> {
        self.stop(|held| held < writer, |registry| registry.revoke_below(writer))
    }
}

impl Drop for ChainReceiver {
    fn drop(&mut self) {
        // The pool's claim goes after this, with the other fields. That a thread has panicked is no reason to panic here.
        let _ = self.stop(|_| true, Registry::close);
    }
}
