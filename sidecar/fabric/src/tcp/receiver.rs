//! The control calls of the receiving half: accept, lend, end, revoke.
//!
//! Called by the backup daemon; calls [`registry`](super::registry), and the [`pool`](crate::pool) for memory.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::contract::Receiver;
use crate::error::FabricError;
use crate::message::{ChannelAnswer, FabricKind, Grant, Offer, SlotId, Writer};
use crate::pool::{Claim, Pool};
use crate::reading::{Admission, Sharer};
use crate::secret::{self, Secret};

use super::acceptor::Acceptor;
use super::connection_reader;
use super::reading::shares::Shares;
use super::registry::{Registry, Serve};

/// Lends the slots of a pool to writers anywhere on the network. Dropping it ends all lendings, connections and
/// threads.
#[derive(Debug)]
pub struct TcpReceiver {
    acceptor: Acceptor,
    pub(super) registry: Arc<Registry>,
    pub(super) shares: Arc<Shares>,
    pub(super) pool: Claim,
}

impl TcpReceiver {
    /// Takes the pool over and accepts connections of `listener`. Writers of an earlier life are revoked by this (promise 7): over
    /// TCP they died with their process, but the pool may have served [`shm`](crate::shm).
    pub fn new(pool: Arc<Pool>, listener: TcpListener) -> Result<TcpReceiver, FabricError> {
        TcpReceiver::polling(pool, listener, Duration::ZERO)
    }

    /// The same, and each channel is polled for this long after its last bytes before its thread sleeps. That saves a wake-up
    /// where a processor is free, and takes one from others where none is.
    pub fn polling(pool: Arc<Pool>, listener: TcpListener, spin: Duration) -> Result<TcpReceiver, FabricError> {
        TcpReceiver::serving(pool, listener, connection_reader::serve, spin)
    }

    /// The same, with `serve` for each channel.
    pub(crate) fn serving(
        pool: Arc<Pool>,
        listener: TcpListener,
        serve: Serve,
        spin: Duration,
    ) -> Result<TcpReceiver, FabricError> {
        let registry = Arc::new(Registry::new(pool.all_slots(), spin));
        let pool = pool.claim()?;
        pool.freeze_lent()?;
        let shares = Arc::new(Shares::new());
        let acceptor = Acceptor::open(listener, Arc::clone(&registry), serve, Arc::clone(&shares));
        let acceptor = acceptor.map_err(FabricError::io("accept data connections"))?;
        Ok(TcpReceiver { acceptor, registry, shares, pool })
    }

    /// Where it listens for data.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// The same, if connections are still taken there.
    pub(super) fn open_address(&self) -> Result<SocketAddr, FabricError> {
        match self.problem() {
            Some(why) => Err(FabricError::io("accept a data connection")(std::io::Error::other(why))),
            None => Ok(self.acceptor.address()),
        }
    }
}

impl Receiver for TcpReceiver {
    fn kind(&self) -> FabricKind {
        FabricKind::Tcp
    }

    fn accept(&mut self, writer: Writer, offer: &Offer) -> Result<Admission, FabricError> {
        self.registry.check(writer)?;
        let Offer::Tcp = offer else {
            return Err(FabricError::mismatch(self.kind(), offer.kind()));
        };
        let address = self.open_address()?;
        let secret = Secret::random().map_err(FabricError::io("draw a secret"))?;
        self.registry.expect(writer, secret.clone(), Instant::now());
        Ok(Admission::ready(ChannelAnswer::Tcp { address, secret }))
    }

    fn lend(&mut self, writer: Writer, slot: SlotId) -> Result<Grant, FabricError> {
        self.registry.check(writer)?;
        let key = secret::key().map_err(FabricError::io("draw a key"))?;
        self.registry.end(slot);
        self.shares.end(slot);
        let memory = self.pool.renew(slot)?;
        let length = memory.slot_size();
        self.registry.lend(writer, slot, key, memory);
        Ok(Grant::Tcp { key, length })
    }

    fn end_lending(&mut self, slot: SlotId) {
        self.registry.end(slot);
    }

    fn hold(&mut self, slot: SlotId) -> Result<(), FabricError> {
        self.registry.end(slot);
        self.shares.end(slot);
        self.pool.renew(slot)?;
        Ok(())
    }

    fn release(&mut self, slot: SlotId) -> Result<(), FabricError> {
        self.registry.end(slot);
        self.shares.end(slot);
        // Only this process maps the memory, and after the end no thread of it writes there.
        self.pool.keep(slot)?;
        Ok(())
    }

    fn revoke_below(&mut self, writer: Writer) -> Result<(), FabricError> {
        let ended = self.registry.revoke_below(writer)?;
        // Of what is in a side slot nothing counts any more.
        ended.into_iter().filter(|slot| self.pool.pool().is_side(*slot)).for_each(|slot| self.shares.end(slot));
        Ok(())
    }

    fn sharer(&mut self) -> Option<&mut dyn Sharer> {
        Some(self)
    }

    fn problem(&self) -> Option<String> {
        let ended = "the thread that takes connections has ended: restart this backup";
        (!self.acceptor.is_open()).then(|| ended.to_owned())
    }
}

impl Drop for TcpReceiver {
    fn drop(&mut self) {
        // The pool's claim goes after this, with the other fields: nobody is left when the next receiver starts.
        // Do not panic here because a thread has panicked.
        let _ = self.registry.close();
        self.shares.close();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Otherwise it would be ready, and be asked for channels that nobody accepts.
    #[test]
    fn a_receiver_without_its_acceptor_reports_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::open(dir.path(), 1, 64 << 10).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut receiver = TcpReceiver::new(pool, listener).unwrap();
        assert_eq!(receiver.problem(), None);
        rustix::io::write(&*receiver.acceptor.stop, &1u64.to_ne_bytes()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while receiver.problem().is_none() {
            assert!(Instant::now() < deadline, "it reports nothing");
            std::thread::yield_now();
        }
        assert!(receiver.accept(Writer(1), &Offer::Tcp).unwrap_err().to_string().contains("restart this backup"));
    }
}
