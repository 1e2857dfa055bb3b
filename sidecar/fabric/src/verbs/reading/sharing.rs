//! The backup's half of reading: readers' queue pairs and shared slots, in one protection domain.
//!
//! Held by [`VerbsReceiver`], made at the first share or the first reader.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::reads_on_wire;
use crate::error::FabricError;
use crate::message::{ChannelAnswer, Endpoint, FabricKind, Offer, ReadGrant, ReaderId, SlotId};
use crate::reading::{Admission, READ_CHANNELS_MAX, Readers, Sharer};
use crate::secret;
use crate::verbs::memory::{Access, Domain, Region};
use crate::verbs::queue::{CompletionQueue, QueuePair};
use crate::verbs::receiver::{Newest, RegisteredSlot, VerbsReceiver, destroy};

/// Depth of a send queue that is never used.
const DEPTH: u32 = 1;

/// All that readers can read with.
#[derive(Debug, Default)]
pub(in crate::verbs) struct Sharing {
    readers: Readers,
    pairs: Arc<Pairs>,
    shares: BTreeMap<SlotId, RegisteredSlot>,
    domain: Option<Arc<Domain>>,
}

/// The connected queue pairs of each admitted reader. Admissions add theirs when they are complete, from other threads: the
/// lock is not held while one connects.
#[derive(Debug, Default)]
struct Pairs(Mutex<BTreeMap<ReaderId, Newest<QueuePair>>>);

impl Pairs {
    fn all(&self) -> MutexGuard<'_, BTreeMap<ReaderId, Newest<QueuePair>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on pairs of this reader are taken.
    fn expect(&self, reader: ReaderId) {
        self.all().entry(reader).or_insert_with(|| Newest::new(READ_CHANNELS_MAX));
    }

    /// Keeps a connected pair. With one too many the oldest goes.
    fn keep(&self, reader: ReaderId, pair: QueuePair, completions: &CompletionQueue) -> io::Result<()> {
        let mut all = self.all();
        let pairs = all.get_mut(&reader).ok_or_else(|| io::Error::other("the reader has been dismissed"))?;
        destroy(pairs.make_room(), completions)?;
        pairs.push(pair);
        Ok(())
    }

    fn destroy_of(&self, reader: ReaderId, completions: &CompletionQueue) -> io::Result<()> {
        destroy(self.all().remove(&reader).into_iter().flatten(), completions)
    }

    fn destroy_all(&self, completions: &CompletionQueue) -> io::Result<()> {
        destroy(std::mem::take(&mut *self.all()).into_values().flatten(), completions)
    }
}

impl Sharing {
    /// Ends the share of a slot, if there is one.
    pub(in crate::verbs) fn end(&mut self, slot: SlotId) -> io::Result<()> {
        self.shares.remove(&slot).map_or(Ok(()), RegisteredSlot::end)
    }

    /// Ends everything.
    pub(in crate::verbs) fn close(&mut self, completions: &CompletionQueue) -> io::Result<()> {
        self.pairs.destroy_all(completions)?;
        std::mem::take(&mut self.shares).into_values().try_for_each(RegisteredSlot::end)
    }
}

impl VerbsReceiver {
    fn reading_domain(&mut self) -> io::Result<Arc<Domain>> {
        if self.sharing.domain.is_none() {
            self.sharing.domain = Some(Arc::new(Domain::new(Arc::clone(&self.context))?));
        }
        Ok(Arc::clone(self.sharing.domain.as_ref().expect("made just now, if it was missing")))
    }
}

impl Sharer for VerbsReceiver {
    fn admit(&mut self, reader: ReaderId, offer: &Offer) -> Result<Admission, FabricError> {
        self.check_device()?;
        let Offer::Verbs { endpoint: remote } = *offer else {
            return Err(FabricError::mismatch(FabricKind::Verbs, offer.kind()));
        };
        self.sharing.readers.admit(reader)?;
        self.sharing.pairs.expect(reader);
        let cannot_connect = move || FabricError::io(format!("connect a reader's queue pair to {}", remote.gid));
        let mut prepare = || {
            let reads = reads_on_wire(self.context.attributes()?.max_qp_rd_atom);
            let first_psn = secret::packet_number()?;
            let pair = QueuePair::new(&self.reading_domain()?, &self.completions, DEPTH, 0)?;
            pair.initialise(self.port.number, Access::RemoteRead.flags())?;
            Ok((pair, reads, first_psn))
        };
        let (pair, reads, first_psn) = prepare().map_err(cannot_connect())?;
        let (port, tuning) = (self.port, self.tuning);
        let (pairs, completions) = (Arc::clone(&self.sharing.pairs), Arc::clone(&self.completions));
        let connect = move || {
            pair.connect(&port, &remote, first_psn, reads, tuning)?;
            let endpoint = Endpoint { reads, ..port.endpoint(pair.number(), first_psn) };
            pairs.keep(reader, pair, &completions)?;
            // A reader does not need the order of bytes.
            Ok(ChannelAnswer::Verbs { endpoint, in_order: false })
        };
        Ok(Admission::after(move || connect().map_err(cannot_connect())))
    }

    fn share(&mut self, slot: SlotId) -> Result<Option<ReadGrant>, FabricError> {
        self.check_device()?;
        let Some(memory) = self.pool.memory(slot) else { return Ok(None) };
        if self.pool.pool().is_side(slot) && !self.is_lent(slot) {
            return Ok(None);
        }
        let length = memory.slot_size();
        let share = || {
            if !self.sharing.shares.contains_key(&slot) {
                let domain = self.reading_domain()?;
                // SAFETY: the share keeps the mapping until the region is gone, and the card only reads by it. No reference to
                // a mapped slot's bytes is ever made, so it does not matter what writes them at the same time.
                let region =
                    unsafe { Region::register(&domain, memory.address(), length as usize, Access::RemoteRead) }?;
                self.sharing.shares.insert(slot, RegisteredSlot::new(region, memory));
            }
            let region = self.sharing.shares[&slot].region();
            Ok(ReadGrant::Verbs { address: region.address(), key: region.remote_key(), length })
        };
        share().map(Some).map_err(FabricError::io(format!("register slot {} for reading", slot.0)))
    }

    fn end_share(&mut self, slot: SlotId) {
        if let Err(error) = self.sharing.end(slot) {
            self.pairs.note_stuck(&format!("the registration of slot {} for reading", slot.0), &error);
        }
    }

    fn dismiss(&mut self, reader: ReaderId) {
        self.sharing.readers.dismiss(reader);
        if let Err(error) = self.sharing.pairs.destroy_of(reader, &self.completions) {
            // It can read what is shared, until the process ends.
            tracing::warn!(%error, "a reader's queue pair could not be destroyed");
        }
    }
}
