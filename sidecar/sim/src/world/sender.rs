//! A primary's memory and its ends of the queue pairs, as [`tailwind_primary`] sees them: what it posts is on the wire when its
//! turn ends, and what comes back waits for its next poll.
//!
//! A sender may have room for a few requests only, keep lines of a board until something else is posted, report completions
//! bit by bit, and fail at a post: in some seeds each of these, in others none ([`Sending`]).

use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use tailwind_primary::Fabric;
use tailwind_protocol::backup::Slot;
use tailwind_protocol::layout::SegmentIdentity;

use super::World;
use super::fabric::{ChannelId, Key};
use super::lead::Lead;
use crate::plan::Sending;
use crate::random::Random;
use crate::tally::Fault;

/// What moves a primary's bytes here.
#[derive(Debug)]
pub(crate) struct SimFabric;

/// A segment's memory, as far as it is published; zeros follow.
#[derive(Clone, Debug)]
pub(crate) struct Published(Rc<RefCell<Vec<u8>>>);

/// The writing side of a segment's memory.
#[derive(Debug)]
pub(crate) struct SegmentMemory {
    bytes: Vec<u8>,
    end: usize,
    published: Published,
}

impl SegmentMemory {
    pub(super) fn new(identity: &SegmentIdentity) -> (SegmentMemory, Published) {
        let bytes = vec![0; identity.size.bytes() as usize];
        let published = Published(Rc::new(RefCell::new(bytes.clone())));
        (SegmentMemory { bytes, end: 0, published: published.clone() }, published)
    }
}

impl Published {
    pub(super) fn bytes(&self) -> Ref<'_, Vec<u8>> {
        self.0.borrow()
    }

    fn range(&self, range: &Range<u32>) -> Rc<[u8]> {
        Rc::from(&self.0.borrow()[range.start as usize..range.end as usize])
    }
}

impl Fabric for SimFabric {
    type Append = SegmentMemory;
    type Shared = Published;
    type Remote = (Slot, Key);
    type Error = &'static str;
    type Channel = Sender;

    fn tail(memory: &mut SegmentMemory) -> &mut [u8] {
        &mut memory.bytes[memory.end..]
    }

    fn publish(memory: &mut SegmentMemory, count: u32) {
        let fresh = memory.end..memory.end + count as usize;
        memory.end = fresh.end;
        memory.published.0.borrow_mut()[fresh.clone()].copy_from_slice(&memory.bytes[fresh]);
    }

    fn published<R>(shared: &Published, read: impl FnOnce(&[u8]) -> R) -> R {
        read(&shared.bytes())
    }
}

/// A write that is to go out.
#[derive(Clone, Debug)]
struct Posted {
    channel: ChannelId,
    slot: Slot,
    key: Key,
    at: u32,
    bytes: Rc<[u8]>,
}

/// Between a primary's queue pairs and its card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wire(Rc<RefCell<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    posted: Vec<Posted>,
    completed: BTreeMap<ChannelId, u32>,
    broken: BTreeSet<ChannelId>,
    /// Posts may fail now.
    fails: bool,
}

impl Wire {
    /// One more request of this queue pair has completed.
    pub(super) fn complete(&self, channel: ChannelId) {
        *self.0.borrow_mut().completed.entry(channel).or_default() += 1;
    }

    /// The queue pair has failed.
    pub(super) fn break_channel(&self, channel: ChannelId) {
        self.0.borrow_mut().broken.insert(channel);
    }
}

/// The sending end of one queue pair.
#[derive(Debug)]
pub(crate) struct Sender {
    channel: ChannelId,
    wire: Wire,
    sending: Sending,
    random: Random,
    lingering: Vec<Posted>,
    failed: bool,
}

impl Sender {
    /// True when the queue pair is of no more use, from this post on if not before.
    fn fails(&mut self) -> bool {
        self.failed |= self.wire.0.borrow().fails && self.random.per_mille(2);
        self.failed
    }

    fn send(&mut self, posted: Posted) {
        self.wire.0.borrow_mut().posted.push(posted);
    }
}

impl tailwind_primary::Channel<SimFabric> for Sender {
    fn post(&mut self, (slot, key): &(Slot, Key), local: &Published, range: Range<u32>) -> Result<(), &'static str> {
        if self.fails() {
            return Err("the post failed");
        }
        self.push();
        let (channel, bytes) = (self.channel, local.range(&range));
        self.send(Posted { channel, slot: *slot, key: *key, at: range.start, bytes });
        Ok(())
    }

    fn post_bytes(&mut self, (slot, key): &(Slot, Key), at: u32, bytes: &[u8]) -> Result<(), &'static str> {
        if self.fails() {
            return Err("the post of a line failed");
        }
        let posted = Posted { channel: self.channel, slot: *slot, key: *key, at, bytes: Rc::from(bytes) };
        match self.sending.lingers {
            true => self.lingering.push(posted),
            false => self.send(posted),
        }
        Ok(())
    }

    fn lingers(&self) -> bool {
        !self.lingering.is_empty()
    }

    fn push(&mut self) {
        for posted in std::mem::take(&mut self.lingering) {
            self.send(posted);
        }
    }

    fn poll(&mut self) -> Result<u32, &'static str> {
        let waiting = &mut *self.wire.0.borrow_mut();
        if self.failed || waiting.broken.contains(&self.channel) {
            self.failed = true;
            return Err("the queue pair has failed");
        }
        let Some(completed) = waiting.completed.get_mut(&self.channel) else { return Ok(0) };
        let kept = match self.sending.bit_by_bit && self.random.one_in(3) {
            true => self.random.below(u64::from(*completed) + 1) as u32,
            false => 0,
        };
        Ok(std::mem::replace(completed, kept) - kept)
    }

    fn depth(&self) -> u32 {
        self.sending.depth
    }

    fn arm(&mut self) -> bool {
        false
    }
}

impl World {
    /// The sending end of a queue pair that a backup has accepted.
    pub(super) fn sender(&mut self, channel: ChannelId, wire: &Wire) -> Sender {
        let (sending, random) = (self.plan.sending, self.random.split());
        Sender { channel, wire: wire.clone(), sending, random, lingering: Vec::new(), failed: false }
    }

    /// A primary's turn is about to begin.
    pub(super) fn prepare_wire(&self, lead: &Lead) {
        lead.wire.0.borrow_mut().fails = self.faults_on && self.plan.has(Fault::PostFails);
    }

    /// What a primary has posted in its turn goes out.
    pub(super) fn send_posted(&mut self, lead: &Lead) {
        let posted = std::mem::take(&mut lead.wire.0.borrow_mut().posted);
        for Posted { channel, slot, key, at, bytes } in posted {
            self.post(channel, slot, key, at, bytes);
        }
    }

    /// Counts the channels that have failed.
    pub(super) fn count_failures(&mut self, lead: &mut Lead) {
        for (_, why) in lead.log.failures.drain(..) {
            if why != "the queue pair has failed" {
                self.tally.count(Fault::PostFails);
            }
        }
    }
}
