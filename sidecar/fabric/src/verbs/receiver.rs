//! The receiving half: a protection domain with its queue pairs for each writer, a registration for each lending.
//!
//! Called by the backup daemon. Nothing here runs while writes arrive: no receive is posted, nothing polls.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::device::Context;
use super::events::Watcher;
use super::memory::{Access, Domain, Region};
use super::port::Port;
use super::queue::{CompletionQueue, QueuePair};
use super::reading::Sharing;
use super::select::SelectedPort;
use super::writer_pairs::WriterPairs;
use super::{Tuning, ffi};
use crate::contract::Receiver;
use crate::error::FabricError;
use crate::mapping::Mapping;
use crate::message::{ChannelAnswer, FabricKind, Grant, Offer, SlotId, Writer};
use crate::pool::{Claim, Pool};
use crate::reading::{Admission, Sharer};
use crate::secret;

/// Room for completions. There are none: nothing is ever posted here.
const COMPLETIONS: u32 = 1;
/// Depth of a send queue that is never used.
const DEPTH: u32 = 1;

/// Lends the slots of a pool to writers over RDMA. Dropping it ends all lendings and connections.
#[derive(Debug)]
pub struct VerbsReceiver {
    writers: BTreeMap<Writer, WriterRights>,
    pub(super) pairs: Arc<WriterPairs>,
    revoked_below: Writer,
    pub(super) sharing: Sharing,
    pub(super) completions: Arc<CompletionQueue>,
    pub(super) port: Port,
    pub(super) tuning: Tuning,
    watcher: Watcher,
    pub(super) context: Arc<Context>,
    /// Last: nobody is left when the next receiver starts.
    pub(super) pool: Claim,
}

/// All that one writer can write to.
#[derive(Debug)]
struct WriterRights {
    lendings: BTreeMap<SlotId, RegisteredSlot>,
    domain: Arc<Domain>,
}

/// The newest of the things that came in, a certain number at most.
#[derive(Debug)]
pub(super) struct Newest<T> {
    things: VecDeque<T>,
    most: usize,
}

impl<T> Newest<T> {
    pub(super) fn new(most: usize) -> Newest<T> {
        Newest { things: VecDeque::with_capacity(most), most }
    }

    /// Makes room for one more: the oldest, if it has to go.
    #[must_use]
    pub(super) fn make_room(&mut self) -> Option<T> {
        if self.things.len() < self.most { None } else { self.things.pop_front() }
    }

    pub(super) fn push(&mut self, newest: T) {
        debug_assert!(self.things.len() < self.most, "room was made");
        self.things.push_back(newest);
    }
}

impl<T> IntoIterator for Newest<T> {
    type Item = T;
    type IntoIter = std::collections::vec_deque::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.things.into_iter()
    }
}

/// One slot that a card may write, or read. The registration goes before the mapping.
#[derive(Debug)]
pub(super) struct RegisteredSlot {
    region: Region,
    memory: Arc<Mapping>,
}

impl RegisteredSlot {
    pub(super) fn new(region: Region, memory: Arc<Mapping>) -> RegisteredSlot {
        RegisteredSlot { region, memory }
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// When this returns without an error the card does not reach the memory any more by this registration.
    pub(super) fn end(self) -> io::Result<()> {
        let RegisteredSlot { region, memory } = self;
        region.deregister()?;
        drop(memory);
        Ok(())
    }
}

impl VerbsReceiver {
    /// Takes the pool over and opens the device. Writers of an earlier life are revoked by this (promise 7): over RDMA their
    /// rights died with their process, but the pool may have served [`shm`](crate::shm).
    pub fn open(pool: Arc<Pool>, selected: &SelectedPort, tuning: Tuning) -> Result<VerbsReceiver, FabricError> {
        let pool = pool.claim()?;
        pool.freeze_lent()?;
        let open = || {
            let context = Arc::new(Context::open(&selected.device)?);
            let port = Port::find(&context, selected)?;
            let completions = Arc::new(CompletionQueue::new(&context, COMPLETIONS)?);
            let watcher = Watcher::start(&context)?;
            Ok((context, port, completions, watcher))
        };
        let (context, port, completions, watcher) =
            open().map_err(FabricError::io(format!("open RDMA device {selected}")))?;
        let (writers, pairs, revoked_below) = (BTreeMap::new(), Arc::default(), Writer(0));
        let sharing = Sharing::default();
        Ok(VerbsReceiver { writers, pairs, revoked_below, sharing, completions, port, tuning, watcher, context, pool })
    }

    /// Fails if the device cannot be used.
    pub(super) fn check_device(&self) -> Result<(), FabricError> {
        let problem = self.problem();
        problem.map_or(Ok(()), |why| Err(FabricError::io("use the RDMA device")(io::Error::other(why))))
    }

    fn check(&self, writer: Writer) -> Result<(), FabricError> {
        self.check_device()?;
        if writer < self.revoked_below { Err(FabricError::Revoked(writer)) } else { Ok(()) }
    }

    /// The rights of a writer, at first none.
    fn rights(&mut self, writer: Writer) -> io::Result<&mut WriterRights> {
        use std::collections::btree_map::Entry;
        match self.writers.entry(writer) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let domain = Arc::new(Domain::new(Arc::clone(&self.context))?);
                Ok(entry.insert(WriterRights { lendings: BTreeMap::new(), domain }))
            }
        }
    }

    /// True while the slot is lent.
    pub(super) fn is_lent(&self, slot: SlotId) -> bool {
        self.writers.values().any(|rights| rights.lendings.contains_key(&slot))
    }

    /// Ends the lending of a slot, to any writer.
    fn end(&mut self, slot: SlotId) -> io::Result<()> {
        for rights in self.writers.values_mut() {
            if let Some(lending) = rights.lendings.remove(&slot) {
                lending.end()?;
            }
        }
        Ok(())
    }
}

impl WriterRights {
    /// After the writer's queue pairs, in the order of the proof in [`verbs`](super).
    fn revoke(self) -> io::Result<()> {
        let WriterRights { lendings, domain } = self;
        lendings.into_values().try_for_each(RegisteredSlot::end)?;
        drop(domain);
        Ok(())
    }
}

/// Ends queue pairs, in the order of the proof in [`verbs`](super): after this no packet for them is taken any more.
pub(super) fn destroy(pairs: impl IntoIterator<Item = QueuePair>, completions: &CompletionQueue) -> io::Result<()> {
    let pairs: Vec<QueuePair> = pairs.into_iter().collect();
    for pair in &pairs {
        // Fails for one that is in ERROR already; what counts is the next step.
        let _ = pair.refuse_all();
    }
    pairs.iter().try_for_each(QueuePair::fail)?;
    let mut flushed = [ffi::ibv_wc::default(); 4];
    while completions.poll(&mut flushed)? > 0 {}
    pairs.into_iter().try_for_each(QueuePair::destroy)
}

impl Receiver for VerbsReceiver {
    fn kind(&self) -> FabricKind {
        FabricKind::Verbs
    }

    fn accept(&mut self, writer: Writer, offer: &Offer) -> Result<Admission, FabricError> {
        self.check(writer)?;
        let Offer::Verbs { endpoint: remote } = *offer else {
            return Err(FabricError::mismatch(self.kind(), offer.kind()));
        };
        let cannot_connect = move || FabricError::io(format!("connect a queue pair to {}", remote.gid));
        let (port, tuning, completions) = (self.port, self.tuning, Arc::clone(&self.completions));
        let mut prepare = || {
            let first_psn = secret::packet_number()?;
            let pair = QueuePair::new(&self.rights(writer)?.domain, &completions, DEPTH, 0)?;
            pair.initialise(port.number, Access::RemoteWrite.flags())?;
            Ok((pair, first_psn))
        };
        let (pair, first_psn) = prepare().map_err(cannot_connect())?;
        self.pairs.expect(writer);
        let pairs = Arc::clone(&self.pairs);
        Ok(Admission::after(move || {
            pair.connect(&port, &remote, first_psn, 1, tuning).map_err(cannot_connect())?;
            let endpoint = port.endpoint(pair.number(), first_psn);
            let answer = ChannelAnswer::Verbs { endpoint, in_order: pair.places_in_order() };
            // Before anybody learns of it.
            pairs.keep(writer, pair, &completions)?;
            Ok(answer)
        }))
    }

    fn lend(&mut self, writer: Writer, slot: SlotId) -> Result<Grant, FabricError> {
        self.check(writer)?;
        self.end_lending(slot);
        self.end_share(slot);
        self.check(writer)?;
        let memory = self.pool.renew(slot)?;
        let length = memory.slot_size();
        let lend = || {
            let rights = self.rights(writer)?;
            // SAFETY: the lending keeps the mapping until the region is gone. No reference to a mapped slot's bytes is ever
            // made: `mapping` writes them by raw pointer, and everybody reads them through the kernel.
            let region =
                unsafe { Region::register(&rights.domain, memory.address(), length as usize, Access::RemoteWrite) }?;
            let grant = Grant::Verbs { address: region.address(), key: region.remote_key(), length };
            rights.lendings.insert(slot, RegisteredSlot::new(region, memory));
            Ok(grant)
        };
        lend().map_err(FabricError::io(format!("register slot {}", slot.0)))
    }

    fn end_lending(&mut self, slot: SlotId) {
        if let Err(error) = self.end(slot) {
            self.pairs.note_stuck(&format!("the registration of slot {}", slot.0), &error);
        }
    }

    fn hold(&mut self, slot: SlotId) -> Result<(), FabricError> {
        self.end_lending(slot);
        self.end_share(slot);
        self.pool.renew(slot)?;
        Ok(())
    }

    fn release(&mut self, slot: SlotId) -> Result<(), FabricError> {
        self.end_lending(slot);
        self.end_share(slot);
        match self.pairs.stuck() {
            // Its keys are gone, and with them every way to write the memory.
            None => self.pool.keep(slot)?,
            Some(_) => self.pool.release(slot)?,
        }
        Ok(())
    }

    fn revoke_below(&mut self, writer: Writer) -> Result<(), FabricError> {
        self.revoked_below = self.revoked_below.max(writer);
        let kept = self.writers.split_off(&writer);
        let revoked = std::mem::replace(&mut self.writers, kept);
        let (pairs, stuck) = self.pairs.take_below(writer);
        let lent = revoked.values().flat_map(|rights| rights.lendings.keys().copied());
        let sides: Vec<SlotId> = lent.filter(|slot| self.pool.pool().is_side(*slot)).collect();
        destroy(pairs, &self.completions)
            .and_then(|()| revoked.into_values().try_for_each(WriterRights::revoke))
            // Of what is in a side slot nothing counts any more.
            .and_then(|()| sides.into_iter().try_for_each(|slot| self.sharing.end(slot)))
            .map_err(FabricError::io("destroy the queue pairs and registrations of revoked writers"))?;
        // An earlier failure is one of this revocation, if the slot was theirs.
        match stuck {
            Some(why) => Err(FabricError::io("revoke writers")(io::Error::other(why))),
            None => Ok(()),
        }
    }

    fn sharer(&mut self) -> Option<&mut dyn Sharer> {
        Some(self)
    }

    fn problem(&self) -> Option<String> {
        let failed = "the device has failed: restart this backup, and look at the host if that does not help";
        self.pairs.stuck().or_else(|| self.watcher.device_has_failed().then(|| failed.to_owned()))
    }
}

impl Drop for VerbsReceiver {
    fn drop(&mut self) {
        // In the order of a revocation. What fails the kernel does when the process ends, and a claim of the pool within this
        // process follows only in tests.
        let _ = destroy(self.pairs.close(), &self.completions);
        for rights in std::mem::take(&mut self.writers).into_values() {
            let _ = rights.revoke();
        }
        let _ = self.sharing.close(&self.completions);
    }
}
