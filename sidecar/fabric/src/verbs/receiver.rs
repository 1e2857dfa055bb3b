//! The receiving half: a protection domain with its queue pairs for each writer, a registration for each lending.
//!
//! Called by the backup daemon. Nothing here runs while writes arrive: no receive is posted, nothing polls.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::choice::Choice;
use super::device::Context;
use super::events::Watcher;
use super::memory::{Access, Domain, Region};
use super::queue::{CompletionQueue, QueuePair};
use super::sender::OpenPort;
use super::{Tuning, ffi};
use crate::contract::{Answer, FabricError, FabricKind, Grant, Offer, Receiver, SlotId, Writer};
use crate::mapping::Mapping;
use crate::pool::{Claim, Pool};
use crate::secret;

/// Channels of one writer: it has one for appends and one for images, and makes a new one after each failure.
const CHANNELS_MAX: usize = 64;
/// Room for completions. There are none: nothing is ever posted here.
const COMPLETIONS: u32 = 1;
/// Depth of a send queue that is never used.
const DEPTH: u32 = 1;

/// Lends the slots of a pool to writers over RDMA. Dropping it ends all lendings and connections.
#[derive(Debug)]
pub struct VerbsReceiver {
    writers: BTreeMap<Writer, WriterRights>,
    revoked_below: Writer,
    /// A registration that could not be ended: everything asked from then on fails, so that the daemon ends and the kernel does it.
    stuck: Option<String>,
    completions: Arc<CompletionQueue>,
    port: OpenPort,
    tuning: Tuning,
    watcher: Watcher,
    context: Arc<Context>,
    /// Last: the next receiver finds nobody writing.
    pool: Claim,
}

/// All that one writer can write with. Fields go in this order, which is that of a revocation.
#[derive(Debug)]
struct WriterRights {
    pairs: Vec<QueuePair>,
    lendings: BTreeMap<SlotId, Lending>,
    domain: Arc<Domain>,
}

/// One slot that a card may write. The registration goes before the mapping.
#[derive(Debug)]
struct Lending {
    region: Region,
    _memory: Arc<Mapping>,
}

impl VerbsReceiver {
    /// Takes the pool over and opens the device. Writers of an earlier life are revoked by this (promise 7): over RDMA their
    /// rights died with their process, but the pool may have served [`shm`](crate::shm).
    pub fn open(pool: Arc<Pool>, choice: &Choice, tuning: Tuning) -> Result<VerbsReceiver, FabricError> {
        let pool = pool.claim()?;
        pool.freeze_strays()?;
        let open = || {
            let context = Arc::new(Context::open(&choice.device)?);
            let port = OpenPort::find(&context, choice)?;
            let completions = Arc::new(CompletionQueue::new(&context, COMPLETIONS)?);
            let watcher = Watcher::start(&context)?;
            Ok((context, port, completions, watcher))
        };
        let (context, port, completions, watcher) =
            open().map_err(FabricError::io(format!("open RDMA device {choice}")))?;
        let (writers, revoked_below, stuck) = (BTreeMap::new(), Writer(0), None);
        Ok(VerbsReceiver { writers, revoked_below, stuck, completions, port, tuning, watcher, context, pool })
    }

    fn check(&self, writer: Writer) -> Result<(), FabricError> {
        match self.problem() {
            Some(why) => Err(FabricError::io("use the RDMA device")(io::Error::other(why))),
            None if writer < self.revoked_below => Err(FabricError::Revoked(writer)),
            None => Ok(()),
        }
    }

    /// The rights of a writer, at first none.
    fn rights(&mut self, writer: Writer) -> io::Result<&mut WriterRights> {
        use std::collections::btree_map::Entry;
        match self.writers.entry(writer) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let domain = Arc::new(Domain::new(Arc::clone(&self.context))?);
                Ok(entry.insert(WriterRights { pairs: Vec::new(), lendings: BTreeMap::new(), domain }))
            }
        }
    }

    /// Ends the lending of a slot, whoever has it.
    fn end(&mut self, slot: SlotId) -> io::Result<()> {
        for rights in self.writers.values_mut() {
            if let Some(Lending { region, _memory: memory }) = rights.lendings.remove(&slot) {
                region.deregister()?;
                drop(memory);
            }
        }
        Ok(())
    }
}

impl WriterRights {
    /// In the order of the proof in [`verbs`](super).
    fn revoke(self, completions: &CompletionQueue) -> io::Result<()> {
        let WriterRights { pairs, lendings, domain } = self;
        for pair in &pairs {
            // Fails for one that is in ERROR already; what counts is the next step.
            let _ = pair.refuse_writes();
        }
        pairs.iter().try_for_each(QueuePair::fail)?;
        let mut flushed = [ffi::ibv_wc::default(); 4];
        while completions.poll(&mut flushed)? > 0 {}
        pairs.into_iter().try_for_each(QueuePair::destroy)?;
        for Lending { region, _memory: memory } in lendings.into_values() {
            region.deregister()?;
            drop(memory);
        }
        drop(domain);
        Ok(())
    }
}

impl Receiver for VerbsReceiver {
    fn kind(&self) -> FabricKind {
        FabricKind::Verbs
    }

    fn accept(&mut self, writer: Writer, offer: &Offer) -> Result<Answer, FabricError> {
        self.check(writer)?;
        let Offer::Verbs { endpoint: remote } = offer else {
            return Err(FabricError::Mismatch { ours: FabricKind::Verbs, theirs: offer.kind() });
        };
        let first_psn = secret::packet_number()?;
        let (port, tuning, completions) = (self.port.clone(), self.tuning, Arc::clone(&self.completions));
        let mut accept = || {
            let rights = self.rights(writer)?;
            if rights.pairs.len() == CHANNELS_MAX {
                return Err(io::Error::other(format!("this epoch has opened {CHANNELS_MAX} channels: its bound")));
            }
            let pair = QueuePair::new(&rights.domain, &completions, DEPTH, 0)?;
            pair.initialise(port.local.number, Access::RemoteWrite.flags())?;
            pair.connect(port.local, remote, first_psn, tuning)?;
            let answer = Answer::Verbs { endpoint: port.endpoint(&pair, first_psn), in_order: pair.places_in_order() };
            rights.pairs.push(pair);
            Ok(answer)
        };
        accept().map_err(FabricError::io(format!("connect a queue pair to {}", remote.gid)))
    }

    fn lend(&mut self, writer: Writer, slot: SlotId) -> Result<Grant, FabricError> {
        self.check(writer)?;
        self.end_lending(slot);
        self.check(writer)?;
        let memory = self.pool.fresh(slot)?;
        let length = memory.slot_size();
        let lend = || {
            let rights = self.rights(writer)?;
            // SAFETY: the lending keeps the mapping until the region is gone. No reference to a mapped slot's bytes is ever
            // made: `mapping` writes them by raw pointer, and everybody reads them through the kernel.
            let region =
                unsafe { Region::register(&rights.domain, memory.address(), length as usize, Access::RemoteWrite) }?;
            let grant = Grant::Verbs { address: region.address(), key: region.remote_key(), length };
            rights.lendings.insert(slot, Lending { region, _memory: memory });
            Ok(grant)
        };
        lend().map_err(FabricError::io(format!("register slot {}", slot.0)))
    }

    fn end_lending(&mut self, slot: SlotId) {
        if let Err(error) = self.end(slot) {
            self.stuck = Some(format!("the registration of slot {} could not be ended ({error})", slot.0));
        }
    }

    fn revoke_below(&mut self, writer: Writer) -> Result<(), FabricError> {
        self.revoked_below = self.revoked_below.max(writer);
        let kept = self.writers.split_off(&writer);
        let revoked = std::mem::replace(&mut self.writers, kept);
        let completions = Arc::clone(&self.completions);
        revoked
            .into_values()
            .try_for_each(|rights| rights.revoke(&completions))
            .map_err(FabricError::io("destroy the queue pairs and registrations of revoked writers"))?;
        // An earlier failure is one of this revocation, if the slot was theirs.
        match &self.stuck {
            Some(why) => Err(FabricError::io("revoke writers")(io::Error::other(why.clone()))),
            None => Ok(()),
        }
    }

    fn problem(&self) -> Option<String> {
        let failed = "the device has failed: restart this backup, and look at the host if that does not help";
        self.stuck.clone().or_else(|| self.watcher.device_has_failed().then(|| failed.to_owned()))
    }
}

impl Drop for VerbsReceiver {
    fn drop(&mut self) {
        // In the order of a revocation. What fails the kernel does when the process ends, and a claim of the pool within this
        // process follows only in tests.
        for rights in std::mem::take(&mut self.writers).into_values() {
            let _ = rights.revoke(&self.completions);
        }
    }
}
