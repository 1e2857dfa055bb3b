//! A backup under callers that follow no rules, with faults of its process in between: it may die behind any output and starts
//! again from what its outputs have left. Asserts that it never panics, that its promise never goes back (S5), that each
//! request is answered once at most, and that nothing it has acknowledged is lost otherwise than by a trim.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use tailwind_protocol::backup::{
    Backup, FlushResult, Found, Input, Limits, Output, Place, Promise, Reply, Request, RequestId, Slot, SlotRow,
};
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{BootId, Claim, EPOCH_MAX, Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::inventory::check_page;
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::{
    Caller, CloseRequest, CopyReport, DropRequest, FenceRequest, FetchRequest, FlushRequest, INVENTORY_MAX, Inventory,
    InventoryRequest, OpenRequest, Purpose, TrimRequest,
};
use tailwind_protocol::scan::Tail;

/// Two for appends, one for images, one to spare.
const SLOTS: u32 = 4;
const LOG: LogId = LogId(1);
/// Numbers at which arithmetic goes wrong.
const HUGE: [u64; 6] = [0, u64::MAX, u64::MAX - 1, u64::MAX / 2, u64::MAX / 2 + 1, 1 << 33];

/// Hostile calls, writes, and deaths, as the input directs.
pub fn backup_machine(data: &[u8]) {
    let mut input = Bytes(data);
    let mut world = World::new();
    while let Some(what) = input.next() {
        let order = world.order(what, &mut input);
        // In every eighth step only some outputs are carried out before the process dies.
        let outputs = if what.is_multiple_of(8) { usize::from(input.next().unwrap_or(0) % 4) } else { usize::MAX };
        world.carry_out(order, outputs);
        world.check();
    }
    world.restart();
    world.check();
}

/// Bodies of requests, one a line: first the kind, then JSON. Each request that parses is sent to a backup.
pub fn http_body(data: &[u8]) {
    let mut world = World::new();
    for line in data.split(|byte| *byte == b'\n') {
        let Some((kind, body)) = line.split_first() else { continue };
        let request = match kind {
            b'f' => understood(body).map(Request::Fence),
            b'i' => understood(body).map(|request: InventoryRequest| Request::Inventory(request.after)),
            b'n' => understood(body).map(Request::Connect),
            b'o' => understood(body).map(Request::Open),
            b'c' => understood(body).map(Request::Close),
            b'l' => understood(body).map(Request::Flush),
            b's' => understood(body).map(Request::Sync),
            b'g' => understood(body).map(Request::Fetch),
            b't' => understood(body).map(Request::Trim),
            b'd' => understood(body).map(Request::Drop),
            // What a sidecar gets.
            b'r' => {
                drop(understood::<Inventory>(body).map(|page| check_page(&page)));
                None
            }
            _ => None,
        };
        if let Some(request) = request {
            world.carry_out(Order::Ask(request), usize::MAX);
            world.check();
        }
    }
    world.restart();
    world.check();
}

fn understood<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    fn below(&mut self, bound: u64) -> u64 {
        u64::from(self.next().unwrap_or(0)) % bound
    }

    /// A number near `small`, or a huge one.
    fn number(&mut self, small: u64) -> u64 {
        match self.next().unwrap_or(0) {
            byte @ 0..240 => small + u64::from(byte) % 3,
            byte => HUGE[usize::from(byte) % HUGE.len()],
        }
    }
}

/// What happens next.
enum Order {
    Ask(Request),
    /// The writer of a lent slot has placed valid appends, or rot has struck.
    Write(Slot, Option<Closure>),
    /// The oldest work of the disk is done, or has failed.
    Work(bool),
    Tell(Input),
    Restart,
}

/// The process died.
struct Died;

/// Work of the disk in the background.
#[derive(Clone)]
enum Job {
    Flush(Slot, SegmentIdentity, Closure),
    FlushOpen(RequestId, Slot, SegmentIdentity, Offset),
    Quarantine(Slot, SegmentIdentity, Closure),
    DeleteTrimmed(Vec<SegmentId>),
}

/// A backup's machine, and beside it what outlives its process.
struct World {
    backup: Backup,
    promise: Promise,
    rows: BTreeMap<Slot, SlotRow>,
    /// What a scan of each slot finds.
    memory: BTreeMap<Slot, Closure>,
    owed: BTreeMap<SegmentId, (SegmentIdentity, Closure)>,
    /// Open segments that the ledger has with a file.
    with_files: BTreeMap<SegmentId, (SegmentIdentity, Offset)>,
    files: BTreeMap<SegmentId, (SegmentIdentity, Closure)>,
    open_files: BTreeMap<SegmentId, (SegmentIdentity, Closure)>,
    quarantine: Vec<(SegmentIdentity, Closure)>,
    /// The epoch whose writer may write each slot.
    writers: BTreeMap<Slot, Epoch>,
    jobs: Vec<Job>,
    /// Closes that were requested, and those that were confirmed with the bytes present.
    closes: BTreeMap<RequestId, CloseRequest>,
    acknowledged: Vec<(SegmentIdentity, Closure)>,
    answered: BTreeSet<RequestId>,
    requests: u64,
    lends: bool,
    over: bool,
}

impl World {
    fn new() -> World {
        World {
            backup: start(Found::default()).0,
            promise: Promise::default(),
            rows: BTreeMap::new(),
            memory: BTreeMap::new(),
            owed: BTreeMap::new(),
            with_files: BTreeMap::new(),
            files: BTreeMap::new(),
            open_files: BTreeMap::new(),
            quarantine: Vec::new(),
            writers: BTreeMap::new(),
            jobs: Vec::new(),
            closes: BTreeMap::new(),
            acknowledged: Vec::new(),
            answered: BTreeSet::new(),
            requests: 0,
            lends: true,
            over: false,
        }
    }

    fn order(&self, what: u8, input: &mut Bytes<'_>) -> Order {
        let epoch = self.promise.epoch.0;
        // The promised epoch in most cases, or one around it.
        let epoch = if what < 192 { epoch } else { input.number(epoch.saturating_sub(1)) };
        let caller = Caller { group: group(), log: LOG, epoch: Epoch(epoch) };
        let copies = || self.backup.inventory().copies;
        match what / 8 % 16 {
            0 | 1 => {
                let epoch = Epoch(input.number(self.promise.epoch.0));
                let earlier = vec![Claim(epoch.0.wrapping_sub(1)); usize::from(what % 3)];
                let after = (what.is_multiple_of(5)).then(|| SegmentId(input.number(0)));
                let claim = Claim(epoch.0);
                let won = Epoch(epoch.0.saturating_sub(u64::from(what % 4)));
                let joined = what.is_multiple_of(2).then(|| self.backup.inventory().boot);
                Order::Ask(Request::Fence(FenceRequest {
                    caller: Caller { epoch, ..caller },
                    claim,
                    earlier,
                    won,
                    joined,
                    after,
                }))
            }
            2..=4 => {
                let purpose = if what.is_multiple_of(3) { Purpose::Install } else { Purpose::Append };
                let durability = if input.below(4) == 0 { Durability::Flushed } else { Durability::Memory };
                let identity = identity(input, if what.is_multiple_of(3) { epoch.min(2) } else { epoch });
                Order::Ask(Request::Open(OpenRequest { caller, identity, purpose, durability }))
            }
            5..=7 => {
                let slot = Slot(input.below(u64::from(SLOTS)) as u32);
                let written = self.memory.get(&slot).copied().unwrap_or_default();
                let identity = match self.rows.get(&slot) {
                    Some(row) if !what.is_multiple_of(7) => row.identity,
                    _ => identity(input, epoch),
                };
                let closure = if !what.is_multiple_of(5) { written } else { closure(input) };
                Order::Ask(Request::Close(CloseRequest { caller, identity, closure }))
            }
            8 => {
                let copies = copies().into_iter().filter(|_| input.below(2) == 0);
                let copies: Vec<CopyReport> = copies.collect();
                Order::Ask(Request::Drop(DropRequest { caller, copies }))
            }
            9 => Order::Ask(Request::Trim(TrimRequest { caller, below: Lsn(input.number(1 + input_of(what))) })),
            10 => {
                let slot = Slot(input.below(u64::from(SLOTS)) as u32);
                let identity = self.rows.get(&slot).map_or_else(|| identity(input, epoch), |row| row.identity);
                let end = Offset(input.number(200) as u32);
                Order::Ask(Request::Flush(FlushRequest { caller, identity, end }))
            }
            11 => {
                let asked = copies().first().copied();
                let (identity, closure) = match asked {
                    Some(copy) => (copy.identity, copy.closure),
                    None => (identity(input, epoch), closure(input)),
                };
                Order::Ask(Request::Fetch(FetchRequest { group: group(), identity, closure, check: true, range: None }))
            }
            12 | 13 => {
                let slot = Slot(input.below(u64::from(SLOTS)) as u32);
                let writes = self.writers.contains_key(&slot);
                Order::Write(slot, writes.then(|| sound_closure(input)))
            }
            14 => match what % 4 {
                0 => Order::Tell(Input::Tick),
                1 => Order::Work(false),
                _ => Order::Work(true),
            },
            _ => match what % 4 {
                0 => Order::Tell(Input::Shutdown),
                1 => Order::Tell(Input::FoundCorrupt(identity(input, epoch), Place::Disk)),
                _ => Order::Restart,
            },
        }
    }

    /// Carries an order out, but dies after so many outputs.
    fn carry_out(&mut self, order: Order, mut outputs: usize) {
        let input = match order {
            Order::Restart => return self.restart(),
            Order::Write(slot, Some(closure)) => {
                let longer = self.memory.get(&slot).is_none_or(|here| here.last < closure.last || here.end.0 == 0);
                if longer {
                    self.memory.insert(slot, closure);
                }
                return;
            }
            Order::Write(..) => return,
            Order::Work(_) if self.jobs.is_empty() => return,
            Order::Work(good) => self.work(good),
            Order::Tell(input) => input,
            Order::Ask(request) => {
                self.requests += 1;
                let id = RequestId(self.requests);
                if let Request::Close(close) = &request {
                    self.closes.insert(id, close.clone());
                }
                self.lends = !self.requests.is_multiple_of(13);
                Input::Request(id, request)
            }
        };
        if self.step(input, &mut outputs).is_err() || self.over {
            self.restart();
        }
    }

    fn step(&mut self, input: Input, outputs: &mut usize) -> Result<(), Died> {
        let mut out = Vec::new();
        self.backup.step(input, &mut out);
        self.apply(out, outputs)
    }

    fn apply(&mut self, out: Vec<Output>, outputs: &mut usize) -> Result<(), Died> {
        for output in out {
            *outputs = outputs.checked_sub(1).ok_or(Died)?;
            match output {
                Output::Persist(promise) => {
                    assert!(promise.epoch >= self.promise.epoch, "S5: the promise goes back");
                    assert!(promise.epoch >= Epoch(1) && promise.epoch <= EPOCH_MAX && promise.log.is_some());
                    assert!(promise.trimmed >= self.promise.trimmed, "trimmed goes back");
                    self.promise = promise;
                }
                Output::RevokeBelow(epoch) => self.writers.retain(|_, writer| *writer >= epoch),
                Output::SaveSlot(slot, Some(row)) => drop(self.rows.insert(slot, row)),
                Output::SaveSlot(slot, None) => drop(self.rows.remove(&slot)),
                Output::Lend(id, slot, epoch) => {
                    assert!(!self.writers.contains_key(&slot), "a slot is lent to one at a time");
                    let lent = if self.lends { Ok(()) } else { Err("no memory".to_owned()) };
                    if lent.is_ok() {
                        self.memory.insert(slot, Closure::default());
                        self.writers.insert(slot, epoch);
                    }
                    self.step(Input::Lent(id, slot, lent), outputs)?;
                }
                Output::EndLending(slot) => drop(self.writers.remove(&slot)),
                Output::Scan(slot, _) => {
                    assert!(!self.writers.contains_key(&slot), "nobody writes what is scanned");
                    let closure = self.memory.get(&slot).copied().unwrap_or_default();
                    self.step(Input::Scanned(slot, Tail { closure, acked: closure.end }), outputs)?;
                }
                Output::Verify(slot, _, closure) => {
                    let sound = self.has(slot, &closure);
                    self.step(Input::Verified(slot, sound), outputs)?;
                }
                Output::StartFlush(slot, identity, closure) => self.jobs.push(Job::Flush(slot, identity, closure)),
                Output::StartOpenFlush(id, slot, identity, end) => {
                    assert!(end.0 <= identity.size.bytes());
                    self.jobs.push(Job::FlushOpen(id, slot, identity, end));
                }
                Output::StartQuarantine(slot, identity, closure) => {
                    self.jobs.push(Job::Quarantine(slot, identity, closure));
                }
                Output::FlushOpen(_, identity, tail) => {
                    self.open_files.insert(identity.segment, (identity, tail.closure));
                }
                Output::Release(slot) => {
                    self.writers.remove(&slot);
                    self.memory.remove(&slot);
                    self.jobs.retain(|job| job.slot() != Some(slot));
                }
                Output::Owe(copies) => {
                    for (identity, closure) in copies {
                        assert!(closure.fits(identity.size), "what is owed can be");
                        self.owed.insert(identity.segment, (identity, closure));
                        self.with_files.remove(&identity.segment);
                    }
                }
                Output::RecordOpen(identity, end) => {
                    assert!(Offset(0) < end && end.0 <= identity.size.bytes(), "what has a file has bytes");
                    if !self.owed.contains_key(&identity.segment) {
                        self.with_files.insert(identity.segment, (identity, end));
                    }
                }
                Output::Settle(segments) => {
                    self.owed.retain(|segment, _| !segments.contains(segment));
                    self.with_files.retain(|segment, _| !segments.contains(segment));
                }
                Output::Retain(_) | Output::Load(_) => panic!("no resident is wanted"),
                Output::MoveAside(segment) => panic!("the file of segment {segment} is understood"),
                Output::DeleteFile(segment) => {
                    self.files.remove(&segment);
                    self.open_files.remove(&segment);
                }
                Output::DeleteTrimmed(segments) => self.jobs.push(Job::DeleteTrimmed(segments)),
                Output::Quarantine(segment) => {
                    self.quarantine.extend(self.files.remove(&segment));
                    self.quarantine.extend(self.open_files.remove(&segment));
                }
                Output::Reply(id, reply) => self.replied(id, &reply),
                Output::Finish { .. } => self.over = true,
            }
        }
        Ok(())
    }

    /// Does the disk's oldest work; the answer.
    fn work(&mut self, good: bool) -> Input {
        match self.jobs.remove(0) {
            Job::Flush(slot, identity, closure) => {
                let result = match (good, self.has(slot, &closure)) {
                    (false, _) => FlushResult::Failed,
                    (true, false) => FlushResult::Corrupt,
                    (true, true) => FlushResult::Done,
                };
                if result == FlushResult::Done {
                    self.files.insert(identity.segment, (identity, closure));
                    self.open_files.remove(&identity.segment);
                }
                Input::Flushed(slot, identity, result)
            }
            Job::FlushOpen(id, _, identity, end) => {
                Input::OpenFlushed(id, identity, if good { Ok(end) } else { Err("the disk is full".to_owned()) })
            }
            Job::Quarantine(slot, identity, closure) => {
                if good {
                    self.quarantine.push((identity, self.memory.get(&slot).copied().unwrap_or(closure)));
                }
                Input::Quarantined(slot, if good { Ok(()) } else { Err("the disk is full".to_owned()) })
            }
            Job::DeleteTrimmed(segments) => {
                if !good {
                    return Input::NotDeleted(segments);
                }
                for segment in &segments {
                    self.files.remove(segment);
                    self.open_files.remove(segment);
                }
                Input::Deleted(segments)
            }
        }
    }

    /// True when the slot holds the bytes of this closure, or more.
    fn has(&self, slot: Slot, closure: &Closure) -> bool {
        self.memory.get(&slot).is_some_and(|here| covers(here, closure))
    }

    fn replied(&mut self, id: RequestId, reply: &Reply) {
        assert!(self.answered.insert(id), "a request is answered once");
        if let Reply::Inventory(inventory) = reply {
            assert_eq!(inventory.promised, self.promise.epoch, "a promise is persisted before it is reported");
            assert_eq!(check_page(inventory), Ok(()));
        }
        let (Reply::Done, Some(close)) = (reply, self.closes.remove(&id)) else { return };
        let CloseRequest { identity, closure, .. } = close;
        let there = |(slot, row): (&Slot, &SlotRow)| row.identity == identity && self.has(*slot, &closure);
        if closure.records() > 0 && self.rows.iter().any(there) {
            self.acknowledged.push((identity, closure));
        }
    }

    /// What is on the disk and in memory that survives the process, and the slots' memory with it.
    fn restart(&mut self) {
        (self.writers, self.jobs, self.over) = (BTreeMap::new(), Vec::new(), false);
        let (here, missing) =
            self.rows.iter().map(|(slot, row)| (*slot, *row)).partition(|(slot, _)| self.memory.contains_key(slot));
        let found = Found {
            promise: self.promise.clone(),
            rows: here,
            missing,
            files: self.files.values().copied().collect(),
            owed: self.owed.values().copied().collect(),
            flushed: self.with_files.values().copied().collect(),
            ..Found::default()
        };
        let (backup, out) = start(found);
        self.backup = backup;
        assert!(self.apply(out, &mut usize::MAX.clone()).is_ok(), "nothing interrupts this start");
    }

    /// What was acknowledged is in a slot that the table names, in a file, or in quarantine, unless it was trimmed.
    fn check(&self) {
        for (identity, closure) in &self.acknowledged {
            let same = |other: &SegmentIdentity, end: &Closure| other == identity && covers(end, closure);
            let in_memory =
                || self.rows.iter().any(|(slot, row)| row.identity == *identity && self.has(*slot, closure));
            let on_disk = || self.files.values().chain(&self.quarantine).any(|(other, end)| same(other, end));
            let trimmed = closure.last < self.promise.trimmed;
            assert!(trimmed || in_memory() || on_disk(), "{identity:?} {closure:?} was acknowledged and is gone");
        }
        assert_eq!(self.backup.promise().epoch, self.promise.epoch);
    }
}

impl Job {
    fn slot(&self) -> Option<Slot> {
        match self {
            Job::Flush(slot, ..) | Job::FlushOpen(_, slot, ..) | Job::Quarantine(slot, ..) => Some(*slot),
            Job::DeleteTrimmed(_) => None,
        }
    }
}

/// True when bytes that end like `here` hold those that end like `there`.
fn covers(here: &Closure, there: &Closure) -> bool {
    here.first == there.first && here.last >= there.last && here.end >= there.end && chained(here) && chained(there)
}

fn start(found: Found) -> (Backup, Vec<Output>) {
    let slot_size = SegmentSize::MIN.bytes();
    let limits = Limits {
        slots: SLOTS,
        slot_size,
        unflushed_bytes_max: u64::from(SLOTS) * u64::from(slot_size),
        flush_bytes_max: None,
        residents: 0,
        copies_max: INVENTORY_MAX,
    };
    Backup::start(group(), "m1".parse().expect("a name"), BootId(1), limits, found)
}

fn group() -> tailwind_protocol::ids::GroupName {
    "g".parse().expect("a name")
}

fn input_of(what: u8) -> u64 {
    u64::from(what % 32)
}

fn identity(input: &mut Bytes<'_>, epoch: u64) -> SegmentIdentity {
    let segment = input.number(1);
    let epoch = if input.below(8) == 0 { input.number(0) } else { epoch };
    let generation = Generation(segment.wrapping_mul(16).wrapping_add(input.below(2)));
    let (segment, epoch) = (SegmentId(segment), Epoch(epoch));
    SegmentIdentity { log: LOG, segment, epoch, generation, size: SegmentSize::MIN }
}

fn sound_closure(input: &mut Bytes<'_>) -> Closure {
    let first = 1 + input.below(20);
    let records = input.below(8);
    let end = Offset(72 + 40 * records as u32);
    let last = first + records - 1;
    Closure { first: Lsn(first), last: Lsn(last), end, chain: chain(first, last) }
}

fn chain(first: u64, last: u64) -> Chain {
    Chain((first << 8 | (last & 0xff)) as u32 + 1)
}

/// A closure of bytes that a writer has placed.
fn chained(closure: &Closure) -> bool {
    closure.chain == chain(closure.first.0, closure.last.0)
}

fn closure(input: &mut Bytes<'_>) -> Closure {
    let sound = sound_closure(input);
    let last = if input.below(3) == 0 { input.number(1) } else { sound.last.0 };
    let end = if input.below(3) == 0 { input.number(72) as u32 } else { sound.end.0 };
    Closure { last: Lsn(last), end: Offset(end), ..sound }
}
