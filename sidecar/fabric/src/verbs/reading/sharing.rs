//! The backup's half of reading: readers' queue pairs and shared slots, in one protection domain.
//!
//! Held by [`VerbsReceiver`], made at the first share or the first reader.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::reads_on_wire;
use crate::error::FabricError;
use crate::message::{ChannelAnswer, Endpoint, FabricKind, Offer, ReadGrant, ReaderId, SlotId};
use crate::reading::{READ_CHANNELS_MAX, Readers, Sharer};
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
    pairs: BTreeMap<ReaderId, Newest<QueuePair>>,
    shares: BTreeMap<SlotId, RegisteredSlot>,
    domain: Option<Arc<Domain>>,
}

impl Sharing {
    /// Ends the share of a slot, if there is one.
    pub(in crate::verbs) fn end(&mut self, slot: SlotId) -> io::Result<()> {
        self.shares.remove(&slot).map_or(Ok(()), RegisteredSlot::end)
    }

    /// Ends everything.
    pub(in crate::verbs) fn close(&mut self, completions: &CompletionQueue) -> io::Result<()> {
        destroy(std::mem::take(&mut self.pairs).into_values().flatten(), completions)?;
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
    fn admit(&mut self, reader: ReaderId, offer: &Offer) -> Result<ChannelAnswer, FabricError> {
        self.check_device()?;
        let Offer::Verbs { endpoint: remote } = offer else {
            return Err(FabricError::mismatch(FabricKind::Verbs, offer.kind()));
        };
        self.sharing.readers.admit(reader)?;
        let mut admit = || {
            let domain = self.reading_domain()?;
            let (port, completions) = (self.port, Arc::clone(&self.completions));
            let pairs = self.sharing.pairs.entry(reader).or_insert_with(|| Newest::new(READ_CHANNELS_MAX));
            destroy(pairs.make_room(), &completions)?;
            let reads = reads_on_wire(self.context.attributes()?.max_qp_rd_atom);
            let first_psn = secret::packet_number()?;
            let pair = QueuePair::new(&domain, &completions, DEPTH, 0)?;
            pair.initialise(port.number, Access::RemoteRead.flags())?;
            pair.connect(&port, remote, first_psn, reads, self.tuning)?;
            let endpoint = Endpoint { reads, ..port.endpoint(pair.number(), first_psn) };
            pairs.push(pair);
            // The order of bytes is of no use to a reader.
            Ok(ChannelAnswer::Verbs { endpoint, in_order: false })
        };
        admit().map_err(FabricError::io(format!("connect a reader's queue pair to {}", remote.gid)))
    }

    fn share(&mut self, slot: SlotId) -> Result<Option<ReadGrant>, FabricError> {
        self.check_device()?;
        let Some(memory) = self.pool.memory(slot) else { return Ok(None) };
        let length = memory.slot_size();
        let share = || {
            if !self.sharing.shares.contains_key(&slot) {
                let domain = self.reading_domain()?;
                // SAFETY: the share keeps the mapping until the region is gone, and the card only reads by it. No reference to
                // a mapped slot's bytes is ever made, so that it does not matter who writes them meanwhile.
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
            self.stuck = Some(format!("the registration of slot {} for reading could not be ended ({error})", slot.0));
        }
    }

    fn dismiss(&mut self, reader: ReaderId) {
        self.sharing.readers.dismiss(reader);
        if let Err(error) = destroy(self.sharing.pairs.remove(&reader).into_iter().flatten(), &self.completions) {
            // It can read what is shared, until the process ends.
            tracing::warn!(%error, "a reader's queue pair could not be destroyed");
        }
    }
}
