//! One backup pod and the host under it: the production [`Backup`], its memory, its lendings, its volume.
//!
//! Its process takes one request at a time and carries the machine's outputs out one after the other, as the daemon does.
//! Persisting, revoking and scanning take time; the process can be killed between any two outputs, and the host can lose
//! power at any moment.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use tailwind_protocol::backup::{Backup, Found, Input, Limits, Output, Request, RequestId, Slot, SlotRow};
use tailwind_protocol::config::{Durability, MemberRef};
use tailwind_protocol::ids::{BootId, Epoch, MemberId};
use tailwind_protocol::layout::{SegmentIdentity, SegmentSize};
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::rpc::Purpose;

use super::daemon::cost;
use super::disk::Disk;
use super::fabric::Key;
use super::flusher::Job;
use super::network::CallId;
use super::queue::MS;
use super::{Event, HostNo, SidecarNo, World, group};
use crate::tally::Fault;
use crate::trace::tell;

/// The right to write one slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lending {
    pub(crate) key: Key,
    pub(crate) writer: Epoch,
}

/// What happens to a backup's process.
#[derive(Clone, Debug)]
pub(crate) enum HostEvent {
    Asked(RequestId, Request),
    Happened(Input),
    /// The output under way is done.
    Step,
    /// The flush under way is done.
    Flushed,
}

/// What the process and the machine under it are doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Running {
    Up,
    /// Stopped in mid-air; its memory can be written all the same.
    Frozen,
    /// No process; the host answers for it that nobody listens.
    Down,
    /// No power, or no network: silence.
    Dark,
}

/// One backup pod.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) no: HostNo,
    pub(crate) name: MemberId,
    pub(crate) boot: BootId,
    /// Counts the processes.
    pub(crate) life: u32,
    pub(crate) running: Running,
    pub(crate) limits: Limits,
    pub(crate) machine: Option<Backup>,
    pub(crate) inbox: VecDeque<HostEvent>,
    /// Outputs that are still to be carried out.
    pub(super) todo: VecDeque<Output>,
    /// The first of them is under way and takes time.
    working: bool,
    /// Who waits for an answer.
    pub(crate) asked: BTreeMap<RequestId, (SidecarNo, u32, CallId)>,
    pub(super) memory: BTreeMap<Slot, Vec<u8>>,
    /// The memory is that of the process before.
    has_memory: bool,
    pub(crate) rows: BTreeMap<Slot, SlotRow>,
    pub(crate) lendings: BTreeMap<Slot, Lending>,
    pub(super) keys: u64,
    boots: u64,
    pub(crate) disk: Disk,
    pub(super) jobs: VecDeque<Job>,
    pub(crate) flushing: bool,
    /// The pool has no memory.
    pub(crate) stingy: bool,
    /// The power is going; nobody starts anything here until it is back.
    pub(crate) power_goes: bool,
    /// Outputs that the process still carries out before it dies.
    pub(crate) fuse: Option<u32>,
    /// Bits that were flipped: segment, and where in it.
    pub(crate) flips: Vec<(SegmentIdentity, u32)>,
}

/// Memory that nobody has written, as large as a buffer: [`SegmentSize::MIN`].
static UNWRITTEN: [u8; 64 << 10] = [0; 64 << 10];

impl Host {
    pub(crate) fn new(no: HostNo, slots: u32, unflushed_slots_max: u32) -> Host {
        let slot_size = SegmentSize::MIN.bytes();
        let unflushed_bytes_max = u64::from(unflushed_slots_max) * u64::from(slot_size);
        let mut host = Host {
            no,
            name: format!("m{}", no.0 + 1).parse().expect("a name"),
            boot: BootId(0),
            life: 0,
            running: Running::Down,
            limits: Limits { slots, slot_size, unflushed_bytes_max },
            machine: None,
            inbox: VecDeque::new(),
            todo: VecDeque::new(),
            working: false,
            asked: BTreeMap::new(),
            memory: BTreeMap::new(),
            has_memory: false,
            rows: BTreeMap::new(),
            lendings: BTreeMap::new(),
            keys: 0,
            boots: 0,
            disk: Disk::default(),
            jobs: VecDeque::new(),
            flushing: false,
            stingy: false,
            power_goes: false,
            fuse: None,
            flips: Vec::new(),
        };
        host.boot = host.new_boot();
        host
    }

    fn new_boot(&mut self) -> BootId {
        self.boots += 1;
        BootId((self.no.0 as u128 + 1) << 64 | u128::from(self.boots))
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.running, Running::Up | Running::Frozen)
    }

    pub(crate) fn is_dark(&self) -> bool {
        self.running == Running::Dark
    }

    pub(crate) fn reference(&self) -> MemberRef {
        MemberRef { id: self.name.clone(), boot: self.boot, control: format!("{}:7300", self.name) }
    }

    /// A slot's bytes as they are now.
    pub(crate) fn bytes(&self, slot: Slot, range: Range<usize>) -> &[u8] {
        self.memory.get(&slot).map_or(&UNWRITTEN[range.clone()], |memory| &memory[range.clone()])
    }

    pub(crate) fn write(&mut self, slot: Slot, at: usize, bytes: &[u8]) {
        let memory = self.memory.entry(slot).or_insert_with(|| UNWRITTEN.to_vec());
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn flip(&mut self, slot: Slot, at: usize, bit: u8) {
        if let Some(memory) = self.memory.get_mut(&slot) {
            memory[at] ^= 1 << bit;
        }
    }

    pub(super) fn is_zero(&self, slot: Slot) -> bool {
        self.memory.get(&slot).is_none_or(|memory| memory.iter().all(|byte| *byte == 0))
    }

    /// All bytes in memory are gone; the identity too, unless the disk alone proves that nothing is missing.
    pub(crate) fn lose_memory(&mut self) {
        self.memory.clear();
        self.has_memory = false;
        self.rows.clear();
        if !self.disk.proves_everything() && !planted::has(Bug::IdentityKept) {
            self.boot = self.new_boot();
        }
        // What a clean end has written of an open segment stops where a flipped bit stopped the scan. Under `flushed` no bit
        // in memory takes anything from the disk: what counts was there before.
        let disk = &self.disk;
        let clean_end = disk.complete && disk.promise.durability != Durability::Flushed;
        let cut_short = |identity: &SegmentIdentity| {
            clean_end && disk.open.get(&identity.segment).is_some_and(|file| file.identity == *identity)
        };
        self.flips.retain(|(identity, _)| disk.closed.contains_key(&identity.segment) || cut_short(identity));
    }

    /// An empty machine under the same name.
    pub(crate) fn lose_all(&mut self) {
        self.disk = Disk { full: self.disk.full, slow: self.disk.slow, ..Disk::default() };
        self.flips.clear();
        self.memory.clear();
        self.has_memory = false;
        self.rows.clear();
        self.boot = self.new_boot();
    }

    /// The daemon wakes up. Where the memory survived, files of open segments that no buffer stands behind are no part of
    /// the log any more; where it did not, they are loaded into buffers.
    fn find_open_files(&mut self) {
        let rows = &self.rows;
        if std::mem::replace(&mut self.has_memory, true) {
            return self.disk.open.retain(|_, file| rows.values().any(|row| row.identity == file.identity));
        }
        // What was lent at one time fitted the pool, and so does what is left of it.
        for (slot, file) in (0..self.limits.slots).map(Slot).zip(self.disk.open.values()) {
            let identity = file.identity;
            let row = SlotRow { identity, purpose: Purpose::Append, lender: identity.epoch, closed: None };
            self.rows.insert(slot, row);
            let mut memory = UNWRITTEN.to_vec();
            memory[..file.bytes.len()].copy_from_slice(&file.bytes);
            self.memory.insert(slot, memory);
        }
    }
}

impl World {
    /// A new process finds what memory and disk hold.
    pub(crate) fn start_host(&mut self, no: HostNo) {
        let host = &mut self.hosts[no.0];
        host.life += 1;
        host.running = Running::Up;
        host.find_open_files();
        let files = host.disk.closed.values().map(|file| (file.identity, file.closure)).collect();
        let rows = host.rows.iter().map(|(slot, row)| (*slot, *row)).collect();
        let owed = host.disk.owed.values().copied().collect();
        let found = Found { promise: host.disk.promise.clone(), rows, files, owed, ..Found::default() };
        let (backup, out) = Backup::start(group(), host.name.clone(), host.boot, host.limits, found);
        host.machine = Some(backup);
        host.todo = out.into();
        tell!(self, "{} starts, boot {}", self.hosts[no.0].name, self.hosts[no.0].boot.0 as u64);
        self.wake_host(no);
    }

    /// The process ends at once. Its queue pairs end with it: the kernel lets nothing through any more.
    pub(crate) fn kill_host(&mut self, no: HostNo) {
        self.stop_channels(no, Epoch(u64::MAX));
        let host = &mut self.hosts[no.0];
        // A promise is a file that is renamed: the process may have got as far as that.
        if let Some(Output::Persist(promise)) = host.todo.front().filter(|_| host.working)
            && self.random.one_in(2)
        {
            host.disk.promise = promise.clone();
        }
        host.running = Running::Down;
        host.machine = None;
        host.todo.clear();
        host.inbox.clear();
        host.asked.clear();
        host.lendings.clear();
        host.working = false;
        host.fuse = None;
        self.abandon_flushes(no);
    }

    /// The host loses power: memory, and what no fsync has confirmed.
    pub(crate) fn darken_host(&mut self, no: HostNo) {
        self.lose_channels(no);
        self.kill_host(no);
        let host = &mut self.hosts[no.0];
        host.running = Running::Dark;
        if self.plan.has(Fault::TornWrite) && host.disk.lose_power(&mut self.random) {
            self.tally.count(Fault::TornWrite);
        }
        self.hosts[no.0].lose_memory();
    }

    /// Lets the process go on, if it has anything to do.
    pub(crate) fn wake_host(&mut self, no: HostNo) {
        loop {
            let host = &mut self.hosts[no.0];
            if host.running != Running::Up || host.working {
                return;
            }
            if let Some(output) = host.todo.front() {
                if host.fuse == Some(0) {
                    tell!(self, "{} dies between two outputs", self.hosts[no.0].name);
                    self.kill_host(no);
                    return self.plan_restart(no);
                }
                host.fuse = host.fuse.map(|left| left - 1);
                match cost(output) {
                    Some((least, most)) => {
                        let slow = if host.disk.slow { 30 } else { 1 };
                        host.working = true;
                        let life = host.life;
                        let cost = self.random.within(least, most) * slow;
                        return self.queue.plan(cost, Event::Host(no, life, HostEvent::Step));
                    }
                    None => self.carry_out(no),
                }
                continue;
            }
            let input = match host.inbox.pop_front() {
                Some(HostEvent::Asked(id, request)) => {
                    self.checks.asked(&self.hosts[no.0], id, &request);
                    Input::Request(id, request)
                }
                Some(HostEvent::Happened(input)) => input,
                Some(_) => continue,
                None => return,
            };
            self.step_host(no, input);
        }
    }

    /// Feeds the machine; what follows comes before everything else that waits.
    pub(super) fn step_host(&mut self, no: HostNo, input: Input) {
        let host = &mut self.hosts[no.0];
        let Some(machine) = &mut host.machine else { return };
        let mut out = Vec::new();
        machine.step(input, &mut out);
        out.into_iter().rev().for_each(|output| host.todo.push_front(output));
        self.checks.bounded(&self.hosts[no.0]);
    }

    pub(crate) fn on_host_event(&mut self, no: HostNo, life: u32, event: HostEvent) {
        let host = &mut self.hosts[no.0];
        if host.life != life || !host.is_up() {
            return;
        }
        match event {
            HostEvent::Step => {
                host.working = false;
                self.carry_out(no);
                self.wake_host(no);
            }
            HostEvent::Flushed => self.on_flush_done(no),
            HostEvent::Asked(..) | HostEvent::Happened(_) => {
                host.inbox.push_back(event);
                self.wake_host(no);
            }
        }
    }

    /// Tells the process something from outside the network.
    pub(crate) fn tell_host(&mut self, no: HostNo, input: Input) {
        if self.hosts[no.0].is_up() {
            self.hosts[no.0].inbox.push_back(HostEvent::Happened(input));
            self.wake_host(no);
        }
    }

    /// Somebody starts the process, or the host, again after a while.
    pub(crate) fn plan_restart(&mut self, no: HostNo) {
        let after = self.random.within(5, 1500) * MS;
        self.queue.plan(after, Event::Restart(no));
    }
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::{Generation, LogId, SegmentId};

    use super::*;

    /// A backup with two bytes of an open segment on its disk and a flipped bit behind them; then the power goes.
    fn left_after_a_flip(complete: bool, durability: Durability) -> usize {
        let identity = SegmentIdentity {
            log: LogId(1),
            segment: SegmentId(1),
            epoch: Epoch(1),
            generation: Generation(1),
            size: SegmentSize::MIN,
        };
        let mut host = Host::new(HostNo(0), 4, 4);
        host.disk.write_open(identity, &[1, 2]).synced = 2;
        host.disk.complete = complete;
        host.disk.promise.durability = durability;
        host.flips.push((identity, 2));
        host.lose_memory();
        host.flips.len()
    }

    /// It comes back as who it was, and without what lay behind the flipped bit.
    #[test]
    fn what_a_flipped_bit_has_cut_off_stays_cut_off_on_disk() {
        assert_eq!(left_after_a_flip(true, Durability::Battery), 1);
    }

    #[test]
    fn a_flipped_bit_goes_with_the_memory() {
        assert_eq!(left_after_a_flip(false, Durability::Battery), 0);
        assert_eq!(left_after_a_flip(true, Durability::Flushed), 0);
    }
}
