//! The memory of mirrors: what the checkers see of it, and what befalls it.

use std::collections::BTreeSet;
use std::ops::Range;

use tailwind_protocol::backup::Slot;
use tailwind_protocol::board::mirror::{BUCKET_SIZE, MIRROR_AT};
use tailwind_protocol::ids::{Epoch, Lsn, SegmentId};

use super::lead::Lead;
use super::sides::{PART, part_of, part_slot};
use super::{BOARD, HostNo, SidecarNo, World};
use crate::check::ENTRY;
use crate::trace::trace;

/// Of so many lines of a board that say what is published, the mirror is looked at as a whole once.
const WHOLE_ONE_IN: u64 = 256;
/// Where a line 2 says whether its mirror is live.
const LIVE_AT: usize = 32;
const LIVE: u8 = 2;

impl World {
    /// Bytes of a side slot are about to change: what a mirror names there is named no more.
    pub(super) fn before_mirror_changes(&mut self, no: HostNo, slot: Slot, range: Range<usize>, epoch: Epoch) {
        if part_of(slot).is_none() {
            return;
        }
        // One that is not written to need not be waited for.
        let leads = self.sidecars.iter().find_map(|sidecar| {
            let lead = sidecar.lead().filter(|lead| lead.epoch == epoch)?;
            Some((sidecar.no, lead.table.as_ref()?.mirroring.as_ref()?))
        });
        if leads.is_some_and(|(of, mirroring)| mirroring.counts(no, self.time(of))) {
            let entries = self.settled_bytes(no, slot, range);
            self.checks.mirror_changes(self.queue.now(), epoch, &entries);
        }
    }

    /// Bytes of a side slot have changed: is what they say acknowledged, and all that is published there?
    pub(super) fn after_mirror_changed(&mut self, no: HostNo, slot: Slot, range: Range<usize>, epoch: Epoch) {
        if part_of(slot).is_some() {
            let here = (slot, range.start as u32)..(slot, range.end as u32);
            let written: Vec<_> = self.hosts[no.0].zeroed.range(here).map(|(at, _)| *at).collect();
            written.into_iter().for_each(|at| drop(self.hosts[no.0].zeroed.remove(&at)));
            let entries = self.settled_bytes(no, slot, range);
            self.checks.mirror_shows(epoch, &entries, &format!("the mirror at {}", self.hosts[no.0].name));
        } else if slot == BOARD && range.start == MIRROR_AT as usize && self.plan.mirrors.is_some() {
            self.judge_published(no, epoch);
        }
    }

    /// A part is given up, with all that it names.
    pub(super) fn part_goes(&mut self, no: HostNo, slot: Slot) {
        if let (Some(_), Some(lending)) = (part_of(slot), self.hosts[no.0].lendings.get(&slot).copied()) {
            self.before_mirror_changes(no, slot, 0..PART as usize, lending.writer);
        }
        if part_of(slot).is_some() {
            self.hosts[no.0].zeroed.retain(|(of, _), _| *of != slot);
        }
    }

    /// A board says what is published at its member (S21).
    fn judge_published(&mut self, no: HostNo, epoch: Epoch) {
        let at = MIRROR_AT as usize;
        let line = self.settled_bytes(no, BOARD, at..at + 64);
        let published = Lsn(u64::from_le_bytes(std::array::from_fn(|byte| line[byte])));
        if line[LIVE_AT] != LIVE {
            return;
        }
        let (names, hot) = self.plan.table.as_ref().map_or((1, 1), |plan| (plan.names, plan.hot));
        let some = if self.random.one_in(2) { hot } else { names };
        let some = self.random.below(some);
        let some = if self.random.one_in(WHOLE_ONE_IN) { 0..names } else { some..some + 1 };
        let place = format!("the mirror at {}", self.hosts[no.0].name);
        for name in some {
            let key = std::rc::Rc::from(format!("key/{name}").into_bytes());
            let Some(buckets) = self.checks.buckets_of(epoch, &key) else { return };
            let lent = |at: &u32| self.hosts[no.0].lendings.get(&part_slot(at / PART));
            if !buckets.iter().all(|at| lent(at).is_some_and(|lending| lending.writer == epoch)) {
                return;
            }
            let bytes = buckets.map(|at| {
                let from = (at % PART) as usize;
                self.settled_bytes(no, part_slot(at / PART), from..from + BUCKET_SIZE as usize)
            });
            let zeroed = |at: &u32| {
                let from = at % PART;
                let slot = part_slot(at / PART);
                let mut here = self.hosts[no.0].zeroed.range((slot, from)..(slot, from + BUCKET_SIZE));
                here.any(|(_, of)| *of == key)
            };
            // Until the line is written again it reads as absent: a window of the protocol.
            if !buckets.iter().any(zeroed) {
                self.checks.mirror_has(epoch, published, &key, &bytes.concat(), &place);
            }
        }
    }

    /// All of the mirror at a backup, as who reads it finds it.
    fn mirror_memory(&self, no: HostNo, epoch: Epoch) -> Vec<u8> {
        let mut memory = Vec::new();
        for slot in (0..self.parts_at(no)).map(part_slot) {
            if self.hosts[no.0].lendings.get(&slot).is_some_and(|lending| lending.writer == epoch) {
                memory.extend(self.settled_bytes(no, slot, 0..PART as usize));
            }
        }
        memory
    }

    /// How a mirror differs from what the log folds to, if it does.
    pub(super) fn mirror_differs(&self, no: HostNo, epoch: Epoch) -> Option<String> {
        self.checks.mirror_differs(epoch, &self.mirror_memory(no, epoch))
    }

    /// The cleaner trims the log below this record: no mirror names what is trimmed, nor has one for a while (S19).
    pub(super) fn judge_named(&mut self, of: SidecarNo, lead: &Lead, below: Lsn) {
        let Some(table) = lead.table.as_ref() else { return };
        let Some(mirroring) = &table.mirroring else { return };
        let (now, clock) = (self.time(of), (self.queue.now(), self.sidecars[of.0].clock.1));
        let trimmed = lead.machine().closed().iter().filter(|(_, closure)| closure.last < below);
        let segments: BTreeSet<SegmentId> = trimmed.map(|(identity, _)| identity.segment).collect();
        let counted: Vec<(HostNo, Vec<u8>)> = (0..self.hosts.len())
            .map(HostNo)
            .filter(|no| mirroring.counts(*no, now))
            .map(|no| (no, self.mirror_memory(no, lead.epoch)))
            .collect();
        self.checks.mirrors_name(clock, lead.epoch, &segments, &counted);
    }

    // ---- Faults ---------------------------------------------------------------------------------------------------------

    fn some_part(&mut self, no: HostNo) -> Option<(Slot, Epoch)> {
        let lent = self.hosts[no.0].lendings.iter().filter(|(slot, _)| part_of(**slot).is_some());
        let lent: Vec<(Slot, Epoch)> = lent.map(|(slot, lending)| (*slot, lending.writer)).collect();
        self.random.pick_one(&lent).copied()
    }

    /// An entry becomes zeros.
    pub(super) fn zero_entry(&mut self, no: HostNo) -> bool {
        let Some((slot, epoch)) = self.some_part(no) else { return false };
        let bytes = self.hosts[no.0].bytes(slot, 0..PART as usize).to_vec();
        let entries = bytes.chunks_exact(ENTRY).zip(0..);
        let present: Vec<_> =
            entries.filter_map(|(entry, nth)| Some((nth * ENTRY as u32, self.checks.key_of(epoch, entry)?))).collect();
        let Some((at, key)) = self.random.pick_one(&present).cloned() else { return false };
        self.before_mirror_changes(no, slot, at as usize..at as usize + ENTRY, epoch);
        trace!(self, "the entry of {} becomes zeros in the mirror at {}", key.escape_ascii(), self.hosts[no.0].name);
        self.hosts[no.0].write(slot, at as usize, &[0; ENTRY]);
        self.hosts[no.0].zeroed.insert((slot, at), key);
        true
    }

    /// A bit flips in a mirror, or in what a board says of it.
    pub(super) fn flip_mirror_bit(&mut self, no: HostNo) -> bool {
        let Some((slot, epoch)) = self.some_part(no) else { return false };
        let board = self.random.one_in(6) && self.hosts[no.0].lendings.contains_key(&BOARD);
        let (slot, at) = if board {
            (BOARD, MIRROR_AT as usize + self.random.below(64) as usize)
        } else {
            (slot, self.random.below(PART.into()) as usize)
        };
        let entry = at / ENTRY * ENTRY;
        self.before_mirror_changes(no, slot, entry..entry + ENTRY, epoch);
        let bit = self.random.below(8) as u8;
        self.hosts[no.0].pool.flip(slot, at, bit);
        trace!(self, "a bit flips in the mirror at {}: byte {at} of slot {}", self.hosts[no.0].name, slot.0);
        true
    }

    /// What a getter reads through is shared no more.
    pub(super) fn end_mirror_share(&mut self, no: HostNo) -> bool {
        let shared: Vec<Slot> = self.hosts[no.0].shares.keys().copied().collect();
        let Some(slot) = self.random.pick_one(&shared).copied() else { return false };
        trace!(self, "{} shares slot {} no more", self.hosts[no.0].name, slot.0);
        self.end_share(no, slot);
        true
    }
}
