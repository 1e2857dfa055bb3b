//! One backup pod and the host under it: the production daemon and flusher, its memory, its lendings, its volume.
//!
//! Its process takes one request at a time and carries the machine's outputs out one after the other. Persisting, revoking
//! and scanning take time; the process can be killed between any two outputs and at any call to its disk or its table, and
//! the host can lose power at any moment. What comes of a start is for [`start`](tailwind_backup::start()) to find out; see
//! [`memory`](super::memory) for the buffers, [`files`](super::files) for the volume, [`daemon`](super::daemon) for the
//! outputs.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;

use tailwind_backup::{BackupConfig, Daemon, Flusher, MemberState};
use tailwind_protocol::backup::{Backup, Input, Limits, Request, RequestId, Slot, SlotRow};
use tailwind_protocol::config::{Durability, MemberRef};
use tailwind_protocol::ids::{BootId, Epoch, Lsn, MemberId, SegmentId};
use tailwind_protocol::layout::{Closure, Sealed, SegmentIdentity, SegmentSize};
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::rpc::{FetchRequest, INVENTORY_MAX, PullRequest};

use super::daemon::cost;
use super::fabric::Key;
use super::files::{Files, Node};
use super::memory::Pool;
use super::network::CallId;
use super::pull::Pulls;
use super::queue::MS;
use super::sides::PartsLending;
use super::{Event, HostNo, SidecarNo, World, group};
use crate::plan::Plan;
use crate::random::Random;
use crate::tally::Fault;
use crate::trace::trace;

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
    AskedToPull(RequestId, Box<PullRequest>),
    Happened(Input),
    /// A closed copy was read from its file, to be a resident.
    Read(SegmentIdentity, Closure, Vec<u8>),
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
    Off,
}

/// A backup's process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) daemon: Daemon,
    pub(super) flusher: Flusher,
}

/// One backup pod.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) no: HostNo,
    pub(crate) name: MemberId,
    /// Who it is, or will be when it wakes up.
    pub(crate) boot: BootId,
    /// Who it will be if it wakes up as somebody new.
    fresh: BootId,
    boots: u64,
    /// Who it was when it started last.
    was: Option<BootId>,
    /// Counts the processes.
    pub(crate) life: u32,
    pub(crate) running: Running,
    pub(crate) limits: Limits,
    pub(crate) process: Option<Process>,
    pub(crate) inbox: VecDeque<HostEvent>,
    /// The first output that is due is under way and takes time.
    pub(super) working: bool,
    /// Who waits for an answer.
    pub(crate) asked: BTreeMap<RequestId, (SidecarNo, u32, CallId)>,
    pub(crate) pool: Pool,
    /// What the slot table says.
    pub(crate) rows: BTreeMap<Slot, SlotRow>,
    /// The rows of residents: they are no evidence, so no checker looks at them.
    pub(crate) residents: BTreeMap<Slot, SlotRow>,
    pub(crate) lendings: BTreeMap<Slot, Lending>,
    /// What this process copies from others, and for others.
    pub(super) pulls: Pulls,
    /// Fetches of which not the whole copy is wanted, nor checked.
    pub(super) ranges: BTreeMap<RequestId, Range<u32>>,
    /// Slots whose present memory readers may read.
    pub(crate) shares: BTreeMap<Slot, Key>,
    /// Entries of its mirror that have become zeros: in which slot and where, and whose they were.
    pub(super) zeroed: BTreeMap<(Slot, u32), std::rc::Rc<[u8]>>,
    /// The last lending of its parts.
    pub(super) parts_lending: PartsLending,
    /// Until then readers count as looking at its board.
    pub(super) followed_until: u64,
    pub(super) keys: u64,
    /// Counts the boots of the kernel.
    kernel: u64,
    pub(crate) files: Files,
    pub(crate) slow_disk: bool,
    /// Microseconds that every write takes longer on its way here.
    pub(crate) link_lag: u64,
    pub(crate) flushing: bool,
    /// The pool has no memory.
    pub(crate) pool_empty: bool,
    /// The power is going; nobody starts anything here until it is back.
    pub(crate) power_goes: bool,
    /// Outputs that the process still carries out before it dies.
    pub(crate) fuse: Option<u32>,
    /// The last closed copy that was scrubbed.
    pub(super) scrubbed: SegmentId,
    /// Where this pass ends.
    pub(super) scrub_until: SegmentId,
    /// Bits that were flipped: segment, and where in it.
    pub(crate) flips: Vec<(SegmentIdentity, u32)>,
    /// Segments of which a file, a buffer or what tells of it was damaged at rest. Goes when all that is owed is here again.
    pub(crate) lost: Vec<SegmentIdentity>,
    /// Files that have rotted, wherever they are moved.
    pub(super) rotten: Vec<Node>,
    /// What was damaged tells of no segment: the promise, the ledger, the notes.
    pub(crate) doubtful: bool,
    /// Closed files that were lost since it has last told what it holds, and their last records.
    pub(crate) missed: Vec<(SegmentIdentity, Lsn)>,
    /// Segments that were open in buffers which were lost since then.
    pub(crate) missed_open: Vec<SegmentIdentity>,
    /// Files of open segments that were lost since then, and no buffer has them.
    pub(crate) missed_files: Vec<SegmentIdentity>,
    /// Its promise was put back from an older copy since, and this is the epoch of its newest segment.
    pub(crate) stale_promise: Option<Epoch>,
    /// Its notes of flushes were put back since, from a copy that is older than its ledger.
    pub(crate) stale_notes: bool,
    /// Copies that somebody has made of segments' files and of the promise.
    pub(super) kept: BTreeMap<String, Vec<u8>>,
    pub(super) kept_promise: Option<Vec<u8>>,
    /// Copies of the notes of flushes, and of the open segments' files at that time.
    pub(super) kept_notes: Option<KeptNotes>,
}

/// The notes of flushes, and the files of open segments with them.
#[derive(Clone, Debug)]
pub(super) struct KeptNotes {
    pub(super) notes: Vec<u8>,
    pub(super) open: BTreeMap<String, Vec<u8>>,
}

impl Host {
    pub(crate) fn new(no: HostNo, plan: &Plan, random: Random) -> Host {
        let slot_size = SegmentSize::MIN.bytes();
        let unflushed_bytes_max = u64::from(plan.unflushed_slots_max) * u64::from(slot_size);
        let files = Files::new(random, plan);
        let mut host = Host {
            no,
            name: format!("m{}", no.0 + 1).parse().expect("a name"),
            boot: BootId(0),
            fresh: BootId(0),
            boots: 0,
            was: None,
            life: 0,
            running: Running::Down,
            limits: Limits {
                slots: plan.slots,
                slot_size,
                unflushed_bytes_max,
                flush_bytes_max: plan.flush_bytes_max,
                residents: plan.residents.min(plan.slots),
                copies_max: INVENTORY_MAX,
            },
            process: None,
            inbox: VecDeque::new(),
            working: false,
            asked: BTreeMap::new(),
            pool: Pool::new(files.clone()),
            rows: BTreeMap::new(),
            residents: BTreeMap::new(),
            lendings: BTreeMap::new(),
            pulls: Pulls::default(),
            ranges: BTreeMap::new(),
            shares: BTreeMap::new(),
            zeroed: BTreeMap::new(),
            parts_lending: PartsLending::default(),
            keys: 0,
            kernel: 0,
            files,
            slow_disk: false,
            link_lag: 0,
            flushing: false,
            pool_empty: false,
            power_goes: false,
            fuse: None,
            followed_until: 0,
            scrubbed: SegmentId(0),
            scrub_until: SegmentId(0),
            flips: Vec::new(),
            lost: Vec::new(),
            rotten: Vec::new(),
            doubtful: false,
            missed: Vec::new(),
            missed_open: Vec::new(),
            missed_files: Vec::new(),
            stale_promise: None,
            stale_notes: false,
            kept: BTreeMap::new(),
            kept_promise: None,
            kept_notes: None,
        };
        host.take_boot();
        host
    }

    /// It is, or will be, somebody new.
    fn take_boot(&mut self) {
        self.boots += 1;
        (self.lost, self.rotten, self.doubtful) = (Vec::new(), Vec::new(), false);
        self.miss_nothing();
        // A promise of another life beside a pool of this one starts nothing.
        self.kept_promise = None;
        self.boot = self.fresh;
        self.fresh = BootId((self.no.0 as u128 + 1) << 64 | u128::from(self.boots));
    }

    /// It has told what it holds, or is somebody new: whatever it must miss, it has missed, or need not.
    pub(crate) fn miss_nothing(&mut self) {
        (self.missed, self.missed_open, self.missed_files) = (Vec::new(), Vec::new(), Vec::new());
        (self.stale_promise, self.stale_notes) = (None, false);
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.running, Running::Up | Running::Frozen)
    }

    /// True while a fault excuses that it does not hold all that it should.
    pub(crate) fn is_damaged(&self) -> bool {
        !self.flips.is_empty() || !self.lost.is_empty() || self.doubtful
    }

    pub(crate) fn is_off(&self) -> bool {
        self.running == Running::Off
    }

    pub(crate) fn machine(&self) -> Option<&Backup> {
        self.process.as_ref().map(|process| process.daemon.machine())
    }

    pub(crate) fn reference(&self) -> MemberRef {
        MemberRef { id: self.name.clone(), boot: self.boot, control: format!("{}:7300", self.name) }
    }

    /// A slot's bytes as they are now.
    pub(crate) fn bytes(&self, slot: Slot, range: Range<usize>) -> &[u8] {
        self.pool.bytes(slot, range)
    }

    pub(crate) fn write(&mut self, slot: Slot, at: usize, bytes: &[u8]) {
        self.pool.write(slot, at, bytes);
    }

    /// True when the disk alone proves that nothing acknowledged is missing: the identity may outlive the memory.
    pub(crate) fn proves_everything(&self) -> bool {
        let proves =
            |member_state: MemberState| member_state.complete || member_state.promise.durability == Durability::Flushed;
        self.files.member_state().is_some_and(proves)
    }

    /// All bytes in memory are gone; the identity too, unless the disk alone proves that nothing is missing.
    fn lose_memory(&mut self) {
        self.pool.lose();
        self.kernel += 1;
        self.rows.clear();
        self.residents.clear();
        if !self.proves_everything() && !planted::has(Bug::IdentityKept) {
            self.take_boot();
        }
        // What a clean end has written of an open segment stops where a flipped bit stopped the scan. Under `flushed` no bit
        // in memory takes anything from the disk: what counts was there before.
        let member_state = self.files.member_state();
        let clean_end = member_state.is_some_and(|own| own.complete && own.promise.durability != Durability::Flushed);
        let files = &self.files;
        let (flips, gone): (Vec<_>, Vec<_>) = self.flips.drain(..).partition(|(identity, _)| {
            let open = files.segment(identity.segment, Sealed::Open).and_then(|node| node.inode().identity());
            files.segment(identity.segment, Sealed::Closed).is_some() || clean_end && open == Some(*identity)
        });
        if clean_end {
            // What was corrupt in memory is not on disk, and owed all the same; nor is what lay behind it in an open segment.
            let closed = |identity: &SegmentIdentity| files.segment(identity.segment, Sealed::Closed).is_some();
            let cut = flips.iter().filter(|(identity, _)| !closed(identity));
            self.lost.extend(gone.iter().chain(cut).map(|(identity, _)| *identity));
        }
        self.flips = flips;
    }

    /// An empty machine under the same name.
    pub(crate) fn lose_all(&mut self) {
        self.files.wipe();
        (self.kept, self.kept_promise, self.kept_notes) = (BTreeMap::new(), None, None);
        self.flips.clear();
        self.pool.lose();
        self.kernel += 1;
        self.rows.clear();
        self.residents.clear();
        self.take_boot();
    }

    fn home(&self) -> BackupConfig {
        BackupConfig {
            group: group(),
            member: self.name.clone(),
            pool: PathBuf::from("pool"),
            buffers: self.limits.slots,
            segment_size: SegmentSize::MIN,
            kernel: self.kernel.to_string(),
        }
    }

    /// The process wakes up, as the daemon does.
    fn start(&mut self) -> anyhow::Result<()> {
        let woken = tailwind_backup::start(&self.home(), Box::new(self.files.clone()), &mut self.pool, self.fresh)?;
        if woken.member_state.boot == self.fresh {
            self.take_boot();
        }
        self.boot = woken.member_state.boot;
        self.rows = woken.found.rows.iter().copied().collect();
        self.residents = woken.found.residents.iter().copied().collect();
        let (daemon, flusher) = Daemon::new(woken, self.limits);
        self.process = Some(Process { daemon, flusher });
        Ok(())
    }
}

impl World {
    /// A new process finds what memory and disk hold.
    pub(crate) fn start_host(&mut self, no: HostNo) {
        let host = &mut self.hosts[no.0];
        host.life += 1;
        host.followed_until = 0;
        host.files.begin_process();
        if self.faults_on && self.plan.has(Fault::BackupDies) && self.random.one_in(8) {
            host.files.light(self.random.below(60) as u32);
        }
        let started = host.start();
        if host.files.process_died() {
            trace!(self, "{} dies while it starts", self.hosts[no.0].name);
            self.kill_host(no);
            return self.plan_restart(no);
        }
        host.files.clear_fuse();
        if let Err(error) = started {
            trace!(self, "{} cannot start: {error:#}", self.hosts[no.0].name);
            self.kill_host(no);
            return self.plan_restart(no);
        }
        self.hosts[no.0].running = Running::Up;
        self.checks.starts(&self.hosts[no.0]);
        let host = &mut self.hosts[no.0];
        let same = host.was.replace(host.boot) == Some(host.boot);
        trace!(self, "{} starts with {} identity", self.hosts[no.0].name, if same { "the same" } else { "a new" });
        self.wake_host(no);
    }

    /// The process ends at once. Its queue pairs end with it: the kernel lets nothing through any more.
    pub(crate) fn kill_host(&mut self, no: HostNo) {
        self.stop_channels(no, Epoch(u64::MAX));
        self.break_off(no);
        let host = &mut self.hosts[no.0];
        host.running = Running::Down;
        host.process = None;
        host.inbox.clear();
        host.asked.clear();
        host.lendings.clear();
        host.shares.clear();
        host.pulls = Pulls::default();
        host.working = false;
        host.flushing = false;
        host.fuse = None;
        let rows = host.pool.rows(host.limits.slots).into_iter();
        (host.residents, host.rows) = rows.partition(|(_, row)| row.is_resident());
        self.lose_parts(no);
    }

    /// The host loses power: memory, and what no fsync has confirmed.
    pub(crate) fn cut_power(&mut self, no: HostNo) {
        self.lose_channels(no);
        self.kill_host(no);
        let torn = self.plan.has(Fault::TornWrite);
        let host = &mut self.hosts[no.0];
        host.running = Running::Off;
        if host.files.lose_power(torn) {
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
            let Some(process) = &host.process else { return };
            if let Some(output) = process.daemon.due() {
                if host.fuse == Some(0) {
                    trace!(self, "{} dies between two outputs", self.hosts[no.0].name);
                    self.kill_host(no);
                    return self.plan_restart(no);
                }
                host.fuse = host.fuse.map(|left| left - 1);
                match cost(output) {
                    Some((least, most)) => {
                        let slow = if host.slow_disk { 30 } else { 1 };
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
                Some(HostEvent::AskedToPull(id, request)) => {
                    self.begin_pull(no, id, *request);
                    continue;
                }
                Some(HostEvent::Asked(id, request)) if self.is_filled_by_others(no, id, &request) => continue,
                Some(HostEvent::Asked(id, request)) => {
                    self.checks.asked(&self.hosts[no.0], id, &request);
                    if let Request::Fetch(FetchRequest { range: Some(range), .. }) = &request {
                        self.hosts[no.0].ranges.insert(id, range.clone());
                    }
                    Input::Request(id, request)
                }
                Some(HostEvent::Happened(input)) => input,
                Some(HostEvent::Read(identity, closure, bytes)) => {
                    let Some(process) = &mut self.hosts[no.0].process else { return };
                    process.daemon.load(identity, closure, bytes);
                    continue;
                }
                Some(_) => continue,
                None => return,
            };
            self.step_host(no, input);
        }
    }

    /// Feeds the machine; what follows comes before everything else that waits.
    pub(super) fn step_host(&mut self, no: HostNo, input: Input) {
        let Some(process) = &mut self.hosts[no.0].process else { return };
        process.daemon.tell(input);
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
            HostEvent::Asked(..) | HostEvent::AskedToPull(..) | HostEvent::Happened(_) | HostEvent::Read(..) => {
                host.inbox.push_back(event);
                self.wake_host(no);
            }
        }
    }

    /// Tells the process something from outside the network.
    pub(crate) fn notify_host(&mut self, no: HostNo, input: Input) {
        if self.hosts[no.0].is_up() {
            self.hosts[no.0].inbox.push_back(HostEvent::Happened(input));
            self.wake_host(no);
        }
    }

    /// Somebody starts the process, or the host, again after a while.
    pub(crate) fn plan_restart(&mut self, no: HostNo) {
        if self.by_hand {
            return;
        }
        let after = self.random.within(5, 1500) * MS;
        self.queue.plan(after, Event::Restart(no));
    }
}

#[cfg(test)]
mod tests {
    use tailwind_backup::{Disk, PromiseFile};
    use tailwind_protocol::ids::{Generation, LogId, Lsn};
    use tailwind_protocol::segment::SegmentWriter;

    use super::*;

    /// A backup with an open segment on its disk and a flipped bit behind it; then the power goes.
    fn left_after_a_flip(complete: bool, durability: Durability) -> usize {
        let identity = SegmentIdentity {
            log: LogId(1),
            segment: SegmentId(1),
            epoch: Epoch(1),
            generation: Generation(1),
            size: SegmentSize::MIN,
        };
        let mut random = Random::new(1);
        let mut host = Host::new(HostNo(0), &Plan::draw(&mut random), random);
        let mut bytes = vec![0; 64 << 10];
        let (_, end) = SegmentWriter::open(identity, Lsn(1), &mut bytes);
        Disk::new(Box::new(host.files.clone())).start_open(&identity, &bytes[..end as usize]).unwrap();
        let mut member_state = MemberState {
            group: group(),
            member: host.name.clone(),
            boot: host.boot,
            promise: Default::default(),
            complete,
        };
        member_state.promise.durability = durability;
        PromiseFile::create(&host.files, &member_state).unwrap();
        host.flips.push((identity, 2));
        host.lose_memory();
        host.flips.len()
    }

    /// A process that dies between two calls of its first start; the next one is asked to fence, and the power goes.
    #[test]
    fn promise_survives_power_loss_after_any_crash() {
        for (calls, seed) in (0..40).flat_map(|calls| (0..20).map(move |seed| (calls, seed))) {
            let mut random = Random::new(seed);
            let plan = Plan { faults: Vec::new(), ..Plan::draw(&mut random) };
            let mut host = Host::new(HostNo(0), &plan, random);
            host.files.light(calls);
            let died = host.start().is_err() || host.files.process_died();
            host.files.begin_process();
            if died {
                host.start().unwrap();
            }
            host.files.lose_power(true);
            assert!(host.files.member_state().is_some(), "killed at call {calls}");
        }
    }

    /// A bit flips in one block of the promise file; the next start mends it, and the power goes at any call of that.
    #[test]
    fn repair_of_one_promise_block_keeps_the_other() {
        for (calls, seed) in (0..12).flat_map(|calls| (0..40).map(move |seed| (calls, seed))) {
            let mut random = Random::new(seed);
            let plan = Plan { faults: Vec::new(), ..Plan::draw(&mut random) };
            let mut host = Host::new(HostNo(0), &plan, random);
            host.start().unwrap();
            for _ in 0..seed % 3 {
                host.lose_memory();
                host.start().unwrap();
            }
            assert!(host.files.flip("promise", if seed % 2 == 0 { 100 } else { 4196 }, 3));
            host.files.light(calls);
            let _ = host.start();
            host.files.lose_power(true);
            assert!(host.files.member_state().is_some(), "the power went at call {calls}, seed {seed}");
        }
    }

    /// Syncs fail and drop what they should have written, start after start; then one start succeeds, and the power goes.
    #[test]
    fn promise_read_at_start_is_durable() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let plan = Plan { faults: Vec::new(), ..Plan::draw(&mut random) };
            let mut host = Host::new(HostNo(0), &plan, random);
            host.start().unwrap();
            host.files.make_frequent(Fault::SyncFails);
            while host.start().is_err() {}
            let (_, found) = PromiseFile::open(&host.files).ok().flatten().unwrap_or_else(|| {
                host.files.stop_faults();
                PromiseFile::open(&host.files).unwrap().unwrap()
            });
            host.files.lose_power(true);
            assert_eq!(host.files.member_state(), Some(found), "seed {seed}");
        }
    }

    /// It comes back as who it was, and without what lay behind the flipped bit.
    #[test]
    fn log_cut_by_a_bit_flip_stays_cut_on_disk() {
        assert_eq!(left_after_a_flip(true, Durability::Battery), 1);
    }

    #[test]
    fn bit_flip_is_lost_with_memory() {
        assert_eq!(left_after_a_flip(false, Durability::Battery), 0);
        assert_eq!(left_after_a_flip(true, Durability::Flushed), 0);
    }
}
