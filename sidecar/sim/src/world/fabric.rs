//! Remote memory as hardware really treats it: a write request becomes packets and 64-byte lines, which are placed in
//! some order, late, twice or never, and whose completion says nothing about when they can be seen.
//!
//! What the fabric promises, and what the protocol rests on (`docs/protocol.md`, "Fencing"), is only this: a request that
//! has completed is in the memory that is looked at after a barrier; and after a barrier nothing of what was stopped is
//! placed any more. Everything else is drawn anew in every seed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use tailwind_protocol::backup::Slot;
use tailwind_protocol::ids::Epoch;
use tailwind_protocol::planted::{self, Bug};

use super::queue::{MS, Micros};
use super::sidecar::Notice;
use super::sides::part_of;
use super::{BOARD, Event, HostNo, SidecarNo, World};
use crate::plan::Placement;
use crate::random::Random;
use crate::tally::Fault;
use crate::trace::trace;

/// What a network card places at once.
pub(crate) const LINE: u32 = 64;
/// Parts of a request that are placed apart from each other, at most.
const PARTS_MAX: u64 = 6;
/// How long a queue pair tries again before it reports an error.
const RETRY_TIME: Micros = 400 * MS;
/// Pause between two tries.
const RETRY_PAUSE: Micros = 15 * MS;
/// How long a packet may linger in the network.
const LINGER_MAX: Micros = 3000 * MS;
/// Different values of a key or a queue pair number as the wire sees them: few, so that they come again soon.
const NUMBERS: u64 = 4;

/// One queue pair, both ends; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChannelId(pub(crate) u64);

/// The right to write one lending of one slot; never given twice. On the wire it is one of [`NUMBERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(pub(crate) u64);

/// A write request.
#[derive(Debug)]
struct Work {
    number: u64,
    slot: Slot,
    key: Key,
    at: u32,
    bytes: Rc<[u8]>,
    /// Ranges of `bytes` that are still to be placed.
    parts: Vec<Option<Range<u32>>>,
    /// When all of it should have arrived.
    due: Micros,
    /// The receiver's card has all of it and has said so.
    acked: bool,
}

/// One queue pair.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) from: SidecarNo,
    life: u32,
    pub(crate) to: HostNo,
    epoch: Epoch,
    works: BTreeMap<u64, Work>,
    posted: u64,
    /// Requests are acknowledged in order: the next one.
    acks: u64,
    /// Placement in order: not before this.
    placed_until: Micros,
    /// The same for lines of the board, however the rest is placed.
    board_placed_until: Micros,
    /// The same for each line of a mirror, by slot and first byte.
    lines_placed_until: BTreeMap<(Slot, u32), Micros>,
    acked_until: Micros,
    sender_open: bool,
    receiver_open: bool,
    broken: bool,
    /// The sender knows, or its card has given up: completions that come later mean nothing to it.
    given_up: bool,
}

/// A part of a request that is placed again: a retransmission that took the long way.
#[derive(Clone, Debug)]
pub(crate) struct StaleWrite {
    channel: ChannelId,
    to: HostNo,
    epoch: Epoch,
    slot: Slot,
    key: Key,
    at: u32,
    bytes: Rc<[u8]>,
    range: Range<u32>,
}

/// All queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Fabric {
    channels: BTreeMap<ChannelId, Channel>,
    count: u64,
    /// Through these alone nothing comes.
    cut: BTreeSet<ChannelId>,
}

impl Fabric {
    /// True while a sender waits for the completion of a write to this lending.
    pub(crate) fn is_writing(&self, to: HostNo, slot: Slot, key: Key) -> bool {
        let waits =
            |channel: &&Channel| channel.to == to && channel.sender_open && !channel.broken && !channel.given_up;
        let theirs = |work: &Work| work.slot == slot && work.key == key && !work.acked;
        self.channels.values().filter(waits).any(|channel| channel.works.values().any(theirs))
    }
}

impl World {
    /// A backup accepts a queue pair of this epoch.
    pub(crate) fn accept(&mut self, from: SidecarNo, life: u32, to: HostNo, epoch: Epoch) -> ChannelId {
        self.fabric.count += 1;
        let id = ChannelId(self.fabric.count);
        if self.fabric.count > NUMBERS {
            self.tally.count(Fault::NumberReused);
        }
        let channel = Channel {
            from,
            life,
            to,
            epoch,
            works: BTreeMap::new(),
            posted: 0,
            acks: 0,
            placed_until: 0,
            board_placed_until: 0,
            lines_placed_until: BTreeMap::new(),
            acked_until: 0,
            sender_open: true,
            receiver_open: true,
            broken: false,
            given_up: false,
        };
        self.fabric.channels.insert(id, channel);
        id
    }

    /// Posts one write request.
    pub(crate) fn post(&mut self, id: ChannelId, slot: Slot, key: Key, at: u32, bytes: Rc<[u8]>) {
        let now = self.queue.now();
        let parts = self.parts(bytes.len() as u32);
        let (least, most) = self.latency_to(self.fabric.channels.get(&id).map(|channel| channel.to));
        let late = if self.fault_occurs(Fault::PlacedLate, 10) { self.random.within(1, 500) * MS } else { 0 };
        let early = self.fault_occurs(Fault::EarlyCompletion, 200);
        let placement = self.plan.placement;
        let Some(channel) = self.fabric.channels.get_mut(&id) else { return };
        if channel.broken {
            return;
        }
        let number = channel.posted;
        channel.posted += 1;
        let mut last = match placement {
            Placement::InOrder => channel.placed_until.max(now),
            _ => now,
        };
        let mut latest = last;
        // Writes to the same bytes are placed in the order in which they were posted (promise 2), and packets that take the
        // long way do not write them again: log bytes are written once, the lines of a board over and over.
        let (board, part) = (slot == BOARD, part_of(slot).is_some());
        if board {
            (last, latest) = (channel.board_placed_until.max(now), channel.board_placed_until.max(now));
        }
        let mut lines_placed = Vec::new();
        for (nth, range) in parts.iter().enumerate() {
            let lines = (at + range.start) / LINE..(at + range.end).div_ceil(LINE);
            if part {
                let placed = lines.clone().filter_map(|line| channel.lines_placed_until.get(&(slot, line)));
                last = placed.copied().fold(last, Micros::max);
            }
            let arrives = now + self.random.within(least, most) + if nth == 0 { 0 } else { self.random.below(50) };
            last = match placement {
                Placement::InOrder | Placement::InOrderWithinRequest => last.max(arrives),
                Placement::Arbitrary if board || part => last.max(arrives),
                Placement::Arbitrary => arrives,
            };
            // Only what is acknowledged before it can be seen may be placed so late: the sender waits for the rest.
            let extra = if early { late } else { 0 };
            last += extra;
            latest = latest.max(last);
            self.queue.plan_at(last, Event::Land(id, number, nth));
            if part {
                lines_placed.extend(lines.map(|line| ((slot, line), last)));
            }
        }
        channel.lines_placed_until.extend(lines_placed);
        channel.placed_until = channel.placed_until.max(latest);
        if board {
            channel.board_placed_until = latest;
        }
        let received = if early { now + self.random.within(least, most) } else { latest + late };
        channel.acked_until = channel.acked_until.max(received);
        self.queue.plan_at(channel.acked_until, Event::Arrive(id, number));
        let due = channel.acked_until;
        if self.plan.has(Fault::PlacedTwice) && !board && !part && !parts.is_empty() && self.random.per_mille(40) {
            let stale = StaleWrite {
                channel: id,
                to: channel.to,
                epoch: channel.epoch,
                slot,
                key,
                at,
                bytes: Rc::clone(&bytes),
                range: self.random.pick(&parts).clone(),
            };
            let later = self.random.within(1, 2000) * MS;
            self.queue.plan(later, Event::StaleWrite(Box::new(stale)));
        }
        let parts = parts.into_iter().map(Some).collect();
        channel.works.insert(number, Work { number, slot, key, at, bytes, parts, due, acked: false });
    }

    /// Microseconds of the way to this backup, at least and at most.
    fn latency_to(&self, to: Option<HostNo>) -> (u64, u64) {
        let (least, most) = self.plan.latency;
        let lag = to.map_or(0, |to| self.hosts[to.0].link_lag);
        (least + lag, most + lag)
    }

    /// Cuts a request into what is placed at once: mostly all of it, sometimes packets, sometimes single lines.
    fn parts(&mut self, length: u32) -> Vec<Range<u32>> {
        if length == 0 {
            return Vec::new();
        }
        if !self.plan.has(Fault::Torn) || !self.random.one_in(4) {
            return std::iter::once(0..length).collect();
        }
        let unit = if self.random.one_in(2) { LINE } else { self.plan.packet_size };
        let units = u64::from(length.div_ceil(unit));
        let mut cuts: Vec<u32> =
            (1..self.random.within(1, PARTS_MAX.min(units))).map(|_| self.random.below(units) as u32 * unit).collect();
        cuts.extend([0, length]);
        cuts.sort_unstable();
        cuts.dedup();
        if cuts.len() > 2 {
            self.tally.count(Fault::Torn);
        }
        cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// A part reaches the receiver's memory, if the link, the queue pair and the key still let it.
    pub(crate) fn on_land(&mut self, id: ChannelId, number: u64, nth: usize) {
        let Some(channel) = self.fabric.channels.get_mut(&id) else { return };
        let Some(work) = channel.works.get(&number) else { return };
        let cut = self.cuts.data_there.contains(&(channel.from, channel.to)) || self.fabric.cut.contains(&id);
        let due = work.due;
        if cut && !work.acked || channel.is_behind(number, nth) {
            if self.queue.now() < due + LINGER_MAX {
                self.queue.plan(RETRY_PAUSE, Event::Land(id, number, nth));
            }
            return;
        }
        let Some(range) = channel.works.get_mut(&number).and_then(|work| work.parts[nth].take()) else { return };
        let Some(part) = channel.part(id, number, range) else { return };
        self.fabric.forget_work(id, number);
        self.place(&part);
    }

    pub(crate) fn on_stale_write(&mut self, stale: &StaleWrite) {
        self.tally.count(Fault::PlacedTwice);
        self.place(stale);
    }

    /// Places bytes. The checkers look at every byte that lands.
    fn place(&mut self, part: &StaleWrite) {
        let host = part.to;
        let let_in = self.lets_in(part);
        self.trace_placed(part, let_in);
        if let_in {
            let (from, to) = (part.range.start as usize, part.range.end as usize);
            self.checks.lands(&self.hosts[host.0], part.slot, part.key, part.epoch);
            let at = part.at as usize + from;
            self.before_mirror_changes(host, part.slot, at..at + (to - from), part.epoch);
            self.hosts[host.0].write(part.slot, at, &part.bytes[from..to]);
            self.after_mirror_changed(host, part.slot, at..at + (to - from), part.epoch);
        }
    }

    fn trace_placed(&mut self, part: &StaleWrite, let_in: bool) {
        let (host, channel) = (&self.hosts[part.to.0], self.fabric.channels.get(&part.channel));
        let (Some(channel), false) = (channel.filter(|_| self.trace.is_on()), part.range.is_empty()) else { return };
        let segment = host.rows.get(&part.slot).map(|row| row.identity.segment).unwrap_or_default();
        let (start, end) = (part.at + part.range.start, part.at + part.range.end);
        let verb = if let_in { "takes" } else { "refuses" };
        trace!(self, "{} {verb} {segment}:{start}..{end} from {}", host.name, self.sidecars[channel.from.0].name);
    }

    /// Requests from a sidecar to a backup whose arrival is still to come, the oldest first; and which of them are placed.
    pub(crate) fn in_flight(&self, from: SidecarNo, to: HostNo) -> Vec<(ChannelId, u64, bool)> {
        let works = self.fabric.works_between(from, to).filter(|(_, work)| !work.acked);
        works.map(|(id, work)| (id, work.number, work.parts.iter().all(Option::is_none))).collect()
    }

    /// Requests from a sidecar to a backup of which something is still to be placed.
    pub(crate) fn unplaced(&self, from: SidecarNo, to: HostNo) -> Vec<(ChannelId, u64)> {
        let works = self.fabric.works_between(from, to);
        works.filter(|(_, work)| work.parts.iter().any(Option::is_some)).map(|(id, work)| (id, work.number)).collect()
    }

    /// Places a piece of a request, and again whenever the whole of it is.
    pub(crate) fn place_piece(&mut self, id: ChannelId, number: u64, piece: Range<u32>) {
        let Some(channel) = self.fabric.channels.get(&id) else { return };
        let Some(work) = channel.works.get(&number) else { return };
        let most = work.bytes.len() as u32;
        if let Some(part) = channel.part(id, number, piece.start.min(most)..piece.end.min(most)) {
            self.place(&part);
        }
    }

    /// What a receiver's card compares: the queue pair with its packet sequence numbers, and the key with its protection
    /// domain.
    fn lets_in(&self, part: &StaleWrite) -> bool {
        let same_number = |id: &ChannelId| id.0 % NUMBERS == part.channel.0 % NUMBERS;
        let open = if planted::has(Bug::QueuePairReused) {
            let here = |channel: &&Channel| channel.to == part.to && channel.receiver_open;
            let open = self.fabric.channels.iter().filter(|(id, _)| same_number(id));
            open.map(|(_, channel)| channel).any(|channel| here(&channel))
        } else {
            self.fabric.channels.get(&part.channel).is_some_and(|channel| channel.receiver_open)
        };
        let lending = self.hosts[part.to.0].lendings.get(&part.slot);
        let key = lending.is_some_and(|lending| match () {
            // The buffer is registered once for all: its number outlives the lending.
            () if planted::has(Bug::QueuePairReused) => true,
            () if planted::has(Bug::RkeyReused) => lending.key.0 % NUMBERS == part.key.0 % NUMBERS,
            () => lending.key == part.key,
        });
        open && key
    }

    /// The receiver's card has all of a request: it acknowledges, or refuses.
    pub(crate) fn on_arrive(&mut self, id: ChannelId, number: u64) {
        let Some(channel) = self.fabric.channels.get_mut(&id) else { return };
        let (from, to, life) = (channel.from, channel.to, channel.life);
        if channel.broken {
            return;
        }
        let Some(work) = channel.works.get(&number) else { return };
        let cut = self.cuts.data_there.contains(&(from, to)) || self.fabric.cut.contains(&id);
        if cut || channel.acks < number {
            // It is sent again until the sender's card gives up.
            return match self.queue.now() > work.due + RETRY_TIME {
                true => self.break_channel(id, true),
                false => self.queue.plan(RETRY_PAUSE, Event::Arrive(id, number)),
            };
        }
        let channel_open = channel.receiver_open;
        let valid =
            channel_open && self.hosts[to.0].lendings.get(&work.slot).is_some_and(|lending| lending.key == work.key);
        if !valid {
            // Whoever lives is told; a receiver that was fenced or is gone may never say anything.
            return self.break_channel(id, channel_open);
        }
        let (slot, at) = (work.slot, work.at as usize);
        let changes = at..at + work.bytes.len();
        let (epoch, unplaced) = (channel.epoch, work.parts.iter().any(Option::is_some));
        // Every read from now on sees it, placed or not.
        if unplaced {
            self.before_mirror_changes(to, slot, changes.clone(), epoch);
        }
        let Some(channel) = self.fabric.channels.get_mut(&id) else { return };
        let Some(work) = channel.works.get_mut(&number) else { return };
        work.acked = true;
        channel.acks = number + 1;
        if unplaced {
            self.after_mirror_changed(to, slot, changes, epoch);
        }
        self.fabric.forget_work(id, number);
        let (least, most) = self.plan.latency;
        let back = self.random.within(least, most);
        let acked_at = self.queue.now();
        self.queue.plan(back, Event::Sidecar(from, life, Notice::Completed(id, acked_at)));
    }

    /// The queue pair has failed. Its sender learns of it late, or never where its own card does not find out.
    pub(super) fn break_channel(&mut self, id: ChannelId, surely_told: bool) {
        let Some(channel) = self.fabric.channels.get_mut(&id) else { return };
        if std::mem::replace(&mut channel.broken, true) {
            return;
        }
        let (from, life) = (channel.from, channel.life);
        if !surely_told && self.fault_occurs(Fault::NoError, 300) {
            return;
        }
        let later = self.random.within(1, 600) * MS;
        self.queue.plan(later, Event::Sidecar(from, life, Notice::Broken(id)));
    }

    /// The way back to the sender is cut: its card asks again for a while, then takes the request for failed, though every
    /// byte of it is there. True when the completion cannot be told now.
    pub(crate) fn holds_up_completion(&mut self, id: ChannelId, acked_at: Micros) -> bool {
        let Some(channel) = self.fabric.channels.get(&id) else { return false };
        let (from, life) = (channel.from, channel.life);
        if !self.cuts.data_back.contains(&(from, channel.to)) {
            // A receiver that was fenced meanwhile changes nothing: what it had confirmed before is on its way.
            return channel.given_up || !channel.sender_open;
        }
        match self.queue.now() > acked_at + RETRY_TIME {
            true => {
                self.break_channel(id, true);
                self.fabric.channels.entry(id).and_modify(|channel| channel.given_up = true);
            }
            false => {
                let again = Event::Sidecar(from, life, Notice::Completed(id, acked_at));
                self.queue.plan(RETRY_PAUSE, again);
            }
        }
        true
    }

    /// The sender lets go of the queue pair, or dies: what has left its card arrives, the rest never does.
    pub(crate) fn close_sender(&mut self, id: ChannelId) {
        let Some(channel) = self.fabric.channels.get_mut(&id) else { return };
        channel.sender_open = false;
        channel.broken = true;
        let unsent: Vec<u64> = channel.works.values().filter(|work| !work.acked).map(|work| work.number).collect();
        if unsent.is_empty() {
            return;
        }
        let left = self.random.below(unsent.len() as u64 + 1) as usize;
        for (nth, number) in unsent.iter().enumerate().skip(left) {
            let Some(work) = channel.works.get_mut(number) else { continue };
            // Of the one that was being sent the first parts are on their way.
            let kept = if nth == left { self.random.below(work.parts.len() as u64 + 1) as usize } else { 0 };
            work.parts.iter_mut().skip(kept).for_each(|part| *part = None);
            let at = work.at;
            if let Some(Some(last)) = work.parts.get_mut(kept.wrapping_sub(1))
                && nth == left
            {
                last.end = line_within(&mut self.random, at, last);
            }
        }
        self.tally.count(Fault::PartialWrite);
    }

    /// Channels that were cut alone carry again.
    pub(super) fn heal_channels(&mut self) {
        self.fabric.cut.clear();
    }

    /// Nothing comes through this channel for now, or again.
    pub(super) fn cut_channel(&mut self, id: ChannelId, cut: bool) {
        if cut {
            self.fabric.cut.insert(id);
        } else {
            self.fabric.cut.remove(&id);
        }
    }

    pub(crate) fn close_all_senders(&mut self, from: SidecarNo) {
        let open = self.fabric.channels.iter().filter(|(_, channel)| channel.from == from && channel.sender_open);
        let open: Vec<ChannelId> = open.map(|(id, _)| *id).collect();
        open.into_iter().for_each(|id| self.close_sender(id));
    }

    /// The barrier: what was acknowledged is placed now, the rest perhaps, and then nothing any more.
    pub(crate) fn stop_channels(&mut self, to: HostNo, below: Epoch) {
        if planted::has(Bug::QueuePairReused) && below.0 != u64::MAX {
            return;
        }
        let old = |channel: &Channel| channel.to == to && channel.receiver_open && channel.epoch < below;
        let stopped = self.fabric.channels.iter().filter(|(_, channel)| old(channel));
        let stopped: Vec<ChannelId> = stopped.map(|(id, _)| *id).collect();
        for id in stopped {
            self.settle(id, None);
            if let Some(channel) = self.fabric.channels.get_mut(&id) {
                channel.receiver_open = false;
            }
            self.break_channel(id, false);
        }
    }

    /// The barrier for one lending, before its key is taken back.
    pub(crate) fn settle_slot(&mut self, to: HostNo, slot: Slot) {
        let here = self.fabric.channels.iter().filter(|(_, channel)| channel.to == to && channel.receiver_open);
        let here: Vec<ChannelId> = here.map(|(id, _)| *id).collect();
        here.into_iter().for_each(|id| self.settle(id, Some(slot)));
    }

    fn settle(&mut self, id: ChannelId, slot: Option<Slot>) {
        let Some(channel) = self.fabric.channels.get_mut(&id) else { return };
        let (to, epoch) = (channel.to, channel.epoch);
        let placement = self.plan.placement;
        let mut landing = Vec::new();
        // In order: from the first byte that does not come on, nothing comes any more.
        let mut flows = true;
        for work in channel.works.values_mut().filter(|work| slot.is_none_or(|slot| work.slot == slot)) {
            flows |= placement != Placement::InOrder;
            let promised = work.acked && !planted::has(Bug::CompletionBeforePlacement);
            for part in &mut work.parts {
                let Some(range) = part.take() else { continue };
                let pieces = match (promised, placement) {
                    (true, _) => vec![range],
                    (false, Placement::Arbitrary) => some_lines(&mut self.random, work.at, range),
                    (false, _) if !flows => Vec::new(),
                    (false, _) if self.random.one_in(2) => vec![range],
                    (false, _) => {
                        flows = false;
                        let end = line_within(&mut self.random, work.at, &range);
                        vec![Range { end, ..range }]
                    }
                };
                let (slot, key, at) = (work.slot, work.key, work.at);
                let bytes = || Rc::clone(&work.bytes);
                let stale = |range| StaleWrite { channel: id, to, epoch, slot, key, at, bytes: bytes(), range };
                landing.extend(pieces.into_iter().map(stale));
            }
        }
        landing.iter().for_each(|part| self.place(part));
    }

    /// The host is gone with all that was on its card.
    pub(crate) fn lose_channels(&mut self, to: HostNo) {
        let open: Vec<ChannelId> = self.fabric.channels.iter().filter(|(_, c)| c.to == to).map(|(id, _)| *id).collect();
        for id in open {
            if let Some(channel) = self.fabric.channels.get_mut(&id) {
                channel.receiver_open = false;
                channel.works.clear();
            }
            self.break_channel(id, false);
        }
    }

    /// What a backup's slot would hold after a barrier: what is placed, and over it what was acknowledged.
    pub(crate) fn settled_bytes(&self, to: HostNo, slot: Slot, range: Range<usize>) -> Vec<u8> {
        let mut bytes = self.hosts[to.0].bytes(slot, range.clone()).to_vec();
        let here = self.fabric.channels.values().filter(|channel| channel.to == to && channel.receiver_open);
        let key = self.hosts[to.0].lendings.get(&slot).map(|lending| lending.key);
        for work in here.flat_map(|channel| channel.works.values()) {
            if !work.acked || work.slot != slot || Some(work.key) != key {
                continue;
            }
            for part in work.parts.iter().flatten() {
                let at = work.at as usize;
                let placed = at + part.start as usize..at + part.end as usize;
                let (from, end) = (placed.start.max(range.start), placed.end.min(range.end));
                if from < end {
                    bytes[from - range.start..end - range.start].copy_from_slice(&work.bytes[from - at..end - at]);
                }
            }
        }
        bytes
    }

    /// Queue pairs that nobody has any more are forgotten.
    pub(crate) fn sweep_channels(&mut self) {
        let now = self.queue.now();
        self.fabric.channels.retain(|_, channel| {
            let lingers = now < channel.placed_until.max(channel.acked_until) + LINGER_MAX;
            channel.sender_open || (channel.receiver_open && lingers)
        });
    }

    pub(crate) fn note_failed_channel(&mut self, id: ChannelId) {
        if let Some(channel) = self.fabric.channels.get_mut(&id) {
            channel.given_up = true;
            let (from, to) = (&self.sidecars[channel.from.0].name, &self.hosts[channel.to.0].name);
            trace!(self, "{from}: the queue pair to {to} has failed");
        }
    }
}

/// An end for this range, which begins `at` bytes into the buffer: between two lines, or one of its own.
fn line_within(random: &mut Random, at: u32, range: &Range<u32>) -> u32 {
    let lines = u64::from((range.end - range.start).div_ceil(LINE));
    let end = (at + range.start) / LINE * LINE + random.within(0, lines) as u32 * LINE;
    end.saturating_sub(at).clamp(range.start, range.end)
}

/// Some of the lines of this range, in a few pieces.
fn some_lines(random: &mut Random, at: u32, range: Range<u32>) -> Vec<Range<u32>> {
    let mut cuts: Vec<u32> = (0..random.below(PARTS_MAX)).map(|_| line_within(random, at, &range)).collect();
    cuts.extend([range.start, range.end]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| pair[0]..pair[1]).filter(|_| random.one_in(2)).collect()
}

impl Channel {
    /// True while an earlier request, which is tried again, has not written bytes that this part writes too (promise 2).
    fn is_behind(&self, number: u64, nth: usize) -> bool {
        let Some(work) = self.works.get(&number) else { return false };
        let Some(own) = work.parts[nth].as_ref() else { return false };
        if work.slot != BOARD && part_of(work.slot).is_none() {
            return false;
        }
        let (from, to) = (work.at + own.start, work.at + own.end);
        let overlaps = |earlier: &Work| {
            let unplaced = earlier.parts.iter().flatten();
            unplaced
                .map(|range| earlier.at + range.start..earlier.at + range.end)
                .any(|it| it.start < to && from < it.end)
        };
        self.works.range(..number).any(|(_, earlier)| earlier.slot == work.slot && overlaps(earlier))
    }

    /// This range of a request, as it is on its way.
    fn part(&self, id: ChannelId, number: u64, range: Range<u32>) -> Option<StaleWrite> {
        let work = self.works.get(&number)?;
        Some(StaleWrite {
            channel: id,
            to: self.to,
            epoch: self.epoch,
            slot: work.slot,
            key: work.key,
            at: work.at,
            bytes: Rc::clone(&work.bytes),
            range,
        })
    }
}

impl Fabric {
    fn works_between(&self, from: SidecarNo, to: HostNo) -> impl Iterator<Item = (ChannelId, &Work)> {
        let channels = self.channels.iter().filter(move |(_, channel)| channel.from == from && channel.to == to);
        channels.flat_map(|(id, channel)| channel.works.values().map(|work| (*id, work)))
    }

    pub(crate) fn channels_of(&self, from: SidecarNo) -> impl Iterator<Item = ChannelId> {
        self.channels.iter().filter(move |(_, channel)| channel.from == from).map(|(id, _)| *id)
    }

    /// Drops a request of which nothing is awaited any more.
    fn forget_work(&mut self, id: ChannelId, number: u64) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        if channel.works.get(&number).is_some_and(|work| work.acked && work.parts.iter().all(Option::is_none)) {
            channel.works.remove(&number);
        }
    }
}
