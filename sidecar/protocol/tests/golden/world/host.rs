//! One backup pod: the production [`Backup`] with a memory of plain vectors and a disk of plain maps.
//!
//! Driven by [`World`](super::World); carries out the machine's outputs one after the other, as the daemon does, and can be
//! killed between any two of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use tailwind_protocol::backup::{
    Backup, FlushResult, Found, Input, Limits, Output, Place, Promise, Reply, Request, RequestId, Slot, SlotRow,
};
use tailwind_protocol::config::{Durability, MemberRef};
use tailwind_protocol::ids::{BootId, Epoch, LogId, Lsn, MemberId, Offset, SegmentId};
use tailwind_protocol::layout::{
    Closure, FOOTER_SIZE, Footer, SEGMENT_HEADER_SIZE, Sealed, SegmentIdentity, SegmentSize,
};
use tailwind_protocol::recovery::ClosedSegment;
use tailwind_protocol::rpc::{CopyReport, Inventory, Purpose, Refusal};
use tailwind_protocol::scan::{Scanner, scan, scan_on, verify};

use super::tale;

/// What a backup answers to a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Inventory(Inventory),
    Damage(Vec<CopyReport>),
    Connected,
    Granted(Slot, Key),
    Bytes(Vec<u8>),
    Flushed(Offset),
    Done,
    Refused(Refusal),
}

/// The right to write one lending of one slot; never given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u64);

#[derive(Clone, Copy, Debug)]
struct Lending {
    key: Key,
    writer: Epoch,
}

/// What a backup's volume holds.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    promise: Promise,
    /// Closed segments, footer included.
    files: BTreeMap<SegmentId, Vec<u8>>,
    /// Open segments, as far as they were flushed.
    open: BTreeMap<SegmentId, Vec<u8>>,
    pub(crate) full: bool,
    /// Closed segments that this backup owes.
    owed: BTreeMap<SegmentId, (SegmentIdentity, Closure)>,
    /// What was dropped and held records.
    pub(crate) quarantine: Vec<Vec<u8>>,
    /// The mark that everything was on disk when the process ended.
    complete: bool,
}

/// A flush in the background.
#[derive(Debug)]
enum Job {
    Closed(Slot, SegmentIdentity, Closure),
    Open(RequestId, Slot, SegmentIdentity, Offset),
}

/// One backup pod.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: MemberId,
    pub(crate) boot: BootId,
    /// Counts the processes: a channel ends with the process that accepted it.
    pub(crate) life: u32,
    limits: Limits,
    machine: Option<Backup>,
    memory: Vec<Vec<u8>>,
    rows: BTreeMap<Slot, SlotRow>,
    lendings: BTreeMap<Slot, Lending>,
    keys: u64,
    pub(crate) disk: Disk,
    jobs: VecDeque<Job>,
    /// What the card has taken and the processor does not see yet: it reads zeros there. Every barrier ends it.
    hidden: Vec<(Slot, Range<usize>)>,
    /// The newest fence that was reported: nothing older may land from then on (S4).
    fenced: Epoch,
    /// The pool has no memory to lend.
    pub(crate) stingy: bool,
    /// Outputs that the process still carries out before it dies.
    pub(crate) fuse: Option<u32>,
    /// Its bytes were tampered with: it may hold less than it owes.
    pub(crate) flipped: bool,
    /// Segments whose flush has failed, so that it is told once.
    complaints: BTreeSet<SegmentId>,
    /// What happened, for people.
    pub(crate) events: Vec<String>,
}

impl Host {
    pub(crate) fn new(name: &str, slots: u32) -> Host {
        let slot_size = SegmentSize::MIN.bytes();
        let unflushed_bytes_max = u64::from(slots) * u64::from(slot_size);
        let mut host = Host {
            name: name.parse().expect("a name of the script"),
            boot: BootId(0),
            life: 0,
            limits: Limits { slots, slot_size, unflushed_bytes_max },
            machine: None,
            memory: vec![vec![0; slot_size as usize]; slots as usize],
            rows: BTreeMap::new(),
            lendings: BTreeMap::new(),
            keys: 0,
            disk: Disk::default(),
            jobs: VecDeque::new(),
            hidden: Vec::new(),
            fenced: Epoch(0),
            stingy: false,
            fuse: None,
            flipped: false,
            complaints: BTreeSet::new(),
            events: Vec::new(),
        };
        host.boot = host.new_boot();
        host.start();
        host.events.clear();
        host
    }

    fn new_boot(&self) -> BootId {
        let name = self.name.as_str().bytes().fold(0, |sum: u128, byte| sum << 8 | u128::from(byte));
        BootId(name << 64 | (self.boot.0 as u64 as u128 + 1))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    pub(crate) fn reference(&self) -> MemberRef {
        MemberRef { id: self.name.clone(), boot: self.boot, control: format!("{}:7300", self.name) }
    }

    pub(crate) fn machine(&self) -> Option<&Backup> {
        self.machine.as_ref()
    }

    /// The process dies; memory stays for now.
    pub(crate) fn kill(&mut self) {
        self.machine = None;
        self.lendings.clear();
        self.jobs.clear();
        self.hidden.clear();
        self.fuse = None;
    }

    /// All bytes in memory are gone. The identity goes too, unless the disk alone is known to hold everything.
    pub(crate) fn lose_memory(&mut self) {
        self.memory.iter_mut().for_each(|slot| slot.fill(0));
        self.rows.clear();
        let kept = self.disk.complete || self.disk.promise.durability == Durability::Flushed;
        if !kept {
            self.boot = self.new_boot();
        }
    }

    /// The volume is gone too: a stranger comes back, who has promised nothing and is in no set.
    pub(crate) fn lose_all(&mut self) {
        self.disk = Disk::default();
        self.fenced = Epoch(0);
        self.lose_memory();
    }

    /// A new process finds what memory and disk hold.
    pub(crate) fn start(&mut self) {
        self.life += 1;
        self.disk.complete = false;
        self.load_open_files();
        let files = self.disk.files.values().map(|bytes| closed_file(bytes)).collect();
        let rows = self.rows.iter().map(|(slot, row)| (*slot, *row)).collect();
        let owed = self.disk.owed.values().copied().collect();
        let found = Found { promise: self.disk.promise.clone(), rows, files, owed, ..Found::default() };
        let group = "g".parse().expect("a group name");
        let (backup, out) = Backup::start(group, self.name.clone(), self.boot, self.limits, found);
        self.machine = Some(backup);
        self.carry(out, &mut Vec::new());
    }

    /// Open segments that are only on disk get a slot.
    fn load_open_files(&mut self) {
        for bytes in self.disk.open.values() {
            let Some((identity, _)) = bytes.first_chunk::<SEGMENT_HEADER_SIZE>().and_then(SegmentIdentity::from_header)
            else {
                continue;
            };
            if self.rows.values().any(|row| row.identity.segment == identity.segment) {
                continue;
            }
            let free = (0..self.limits.slots).map(Slot).find(|slot| !self.rows.contains_key(slot));
            let slot = free.expect("a slot for each open segment");
            let row = SlotRow { identity, purpose: Purpose::Append, lender: identity.epoch, closed: None };
            self.memory[slot.0 as usize].fill(0);
            self.memory[slot.0 as usize][..bytes.len()].copy_from_slice(bytes);
            self.rows.insert(slot, row);
        }
    }

    /// Takes one input; returns the answers that are due.
    pub(crate) fn drive(&mut self, input: Input) -> Vec<(RequestId, Answer)> {
        let mut answers = Vec::new();
        self.step(input, &mut answers);
        answers
    }

    pub(crate) fn ask(&mut self, id: RequestId, request: Request) -> Vec<(RequestId, Answer)> {
        self.drive(Input::Request(id, request))
    }

    fn step(&mut self, input: Input, answers: &mut Vec<(RequestId, Answer)>) {
        let Some(machine) = &mut self.machine else { return };
        let mut out = Vec::new();
        machine.step(input, &mut out);
        self.carry(out, answers);
    }

    fn carry(&mut self, out: Vec<Output>, answers: &mut Vec<(RequestId, Answer)>) {
        for output in out {
            if self.fuse == Some(0) {
                self.events.push(format!("{} dies", self.name));
                self.kill();
            }
            if self.machine.is_none() {
                return;
            }
            self.fuse = self.fuse.map(|left| left - 1);
            self.carry_one(output, answers);
        }
    }

    fn carry_one(&mut self, output: Output, answers: &mut Vec<(RequestId, Answer)>) {
        match output {
            Output::Persist(promise) => {
                if promise.epoch > self.disk.promise.epoch {
                    self.tell(format!("promises epoch {}", promise.epoch));
                }
                self.disk.promise = promise;
            }
            Output::RevokeBelow(epoch) => {
                self.show();
                self.lendings.retain(|_, lending| lending.writer >= epoch);
            }
            Output::SaveSlot(slot, Some(row)) => {
                let lent = self.lendings.get(&slot).filter(|_| row.purpose == Purpose::Append && row.closed.is_none());
                if let Some(Lending { writer, .. }) = lent {
                    self.tell(format!("lends segment {} to epoch {writer}", row.identity.segment));
                }
                self.rows.insert(slot, row);
            }
            Output::SaveSlot(slot, None) => drop(self.rows.remove(&slot)),
            Output::Lend(id, slot, writer) => self.lend(id, slot, writer, answers),
            Output::EndLending(slot) => {
                self.show();
                self.lendings.remove(&slot);
            }
            Output::Scan(slot, identity) => {
                let report = scan(&self.memory[slot.0 as usize], &identity);
                if let Some(stopped) = tale::stopped(&report.stop) {
                    self.tell(format!("scans segment {} and {stopped}", identity.segment));
                }
                self.step(Input::Scanned(slot, report.tail()), answers);
            }
            Output::Verify(slot, identity, closure) => {
                let sound = verify(&self.memory[slot.0 as usize], &identity, &closure);
                self.step(Input::Verified(slot, sound), answers);
            }
            Output::StartFlush(slot, identity, closure) => self.jobs.push_back(Job::Closed(slot, identity, closure)),
            Output::StartOpenFlush(id, slot, identity, end) => {
                self.jobs.push_back(Job::Open(id, slot, identity, end));
            }
            Output::FlushOpen(slot, identity, closure) => {
                self.tell(format!("flushes open segment {}, {}", identity.segment, tale::records(&closure)));
                self.write_open(slot, &identity, closure.end);
            }
            Output::Release(slot) => self.release(slot, answers),
            Output::DeleteFile(segment) => {
                self.disk.files.remove(&segment);
                self.disk.open.remove(&segment);
            }
            Output::Owe(segments) => {
                self.disk.owed.extend(segments.into_iter().map(|owed| (owed.0.segment, owed)));
            }
            Output::Settle(segments) => self.disk.owed.retain(|segment, _| !segments.contains(segment)),
            Output::Quarantine(segment) => {
                let files = [self.disk.files.remove(&segment), self.disk.open.remove(&segment)];
                self.disk.quarantine.extend(files.into_iter().flatten());
            }
            Output::StartQuarantine(slot, _, closure) => {
                let bytes = self.memory[slot.0 as usize][..closure.end.0 as usize].to_vec();
                self.disk.quarantine.push(bytes);
                self.step(Input::Quarantined(slot, Ok(())), answers);
            }
            Output::Reply(id, reply) => self.reply(id, reply, answers),
            Output::Finish { complete } => {
                self.tell(format!("ends; {}", if complete { "everything is on disk" } else { "not all is on disk" }));
                self.disk.complete = complete;
                self.kill();
            }
        }
    }

    fn tell(&mut self, what: String) {
        self.events.push(format!("{} {what}", self.name));
    }

    /// A slot is lent all zero, and only while nobody else can write it (S6).
    fn lend(&mut self, id: RequestId, slot: Slot, writer: Epoch, answers: &mut Vec<(RequestId, Answer)>) {
        assert!(!self.lendings.contains_key(&slot), "{}: slot {} is lent twice", self.name, slot.0);
        assert!(writer >= self.fenced, "{}: lends to epoch {writer} after epoch {}", self.name, self.fenced);
        if self.stingy {
            let why = Err("the pool has no memory".to_owned());
            return self.step(Input::Lent(id, slot, why), answers);
        }
        self.memory[slot.0 as usize].fill(0);
        self.keys += 1;
        self.lendings.insert(slot, Lending { key: Key(self.keys), writer });
        self.step(Input::Lent(id, slot, Ok(())), answers);
    }

    /// The memory is zeroed after every way to write it is gone, and its flush with it.
    fn release(&mut self, slot: Slot, answers: &mut Vec<(RequestId, Answer)>) {
        self.show();
        self.lendings.remove(&slot);
        self.memory[slot.0 as usize].fill(0);
        let jobs = std::mem::take(&mut self.jobs);
        for job in jobs {
            match job {
                Job::Closed(of, ..) if of == slot => {}
                Job::Open(id, of, ..) if of == slot => {
                    self.step(Input::OpenFlushed(id, Err("the buffer is gone".to_owned())), answers);
                }
                job => self.jobs.push_back(job),
            }
        }
    }

    fn reply(&mut self, id: RequestId, reply: Reply, answers: &mut Vec<(RequestId, Answer)>) {
        let answer = match reply {
            Reply::Inventory(inventory) => {
                self.fenced = self.fenced.max(inventory.promised);
                Answer::Inventory(inventory)
            }
            Reply::Damage(copies) => Answer::Damage(copies),
            Reply::Connect(_) => Answer::Connected,
            Reply::Opened(slot) => match self.lendings.get(&slot) {
                Some(lending) => Answer::Granted(slot, lending.key),
                None => Answer::Refused(Refusal::Failed { why: "the lending is gone".to_owned() }),
            },
            Reply::Fetch(place, identity, closure) => self.fetch(place, &identity, &closure, answers),
            Reply::Flushed(end) => Answer::Flushed(end),
            Reply::Done => Answer::Done,
            Reply::Refused(refusal) => Answer::Refused(refusal),
        };
        answers.push((id, answer));
    }

    /// Reads every closed file.
    pub(crate) fn scrub(&mut self) {
        let mut at = SegmentId(0);
        while let Some((place, identity, closure)) = self.machine.as_ref().and_then(|own| own.closed_behind(at)) {
            at = identity.segment;
            let answer = self.fetch(place, &identity, &closure, &mut Vec::new());
            if matches!(answer, Answer::Refused(_)) {
                self.tell(format!("finds the file of segment {at} corrupt"));
            }
        }
    }

    fn fetch(
        &mut self,
        place: Place,
        identity: &SegmentIdentity,
        closure: &Closure,
        answers: &mut Vec<(RequestId, Answer)>,
    ) -> Answer {
        let end = closure.end.0 as usize;
        match place {
            Place::Memory(slot) => Answer::Bytes(self.memory[slot.0 as usize][..end].to_vec()),
            Place::Disk => {
                let bytes = self.disk.files[&identity.segment][..end].to_vec();
                if verify(&bytes, identity, closure) {
                    return Answer::Bytes(bytes);
                }
                self.step(Input::FoundCorrupt(*identity, place), answers);
                Answer::Refused(Refusal::Corrupt { segment: identity.segment })
            }
        }
    }

    /// Runs the oldest flush. `None`: there is none.
    pub(crate) fn flush_one(&mut self) -> Option<Vec<(RequestId, Answer)>> {
        match self.jobs.pop_front()? {
            Job::Closed(slot, identity, closure) => {
                let result = self.write_closed(slot, &identity, &closure);
                Some(self.drive(Input::Flushed(slot, identity, result)))
            }
            Job::Open(id, ..) if self.disk.full => {
                Some(self.drive(Input::OpenFlushed(id, Err("the disk is full".to_owned()))))
            }
            Job::Open(id, slot, identity, end) => {
                let flushed = self.write_open(slot, &identity, end);
                let segment = identity.segment;
                match flushed < end {
                    false => self.tell(format!("flushes {segment}:0..{end}")),
                    true => {
                        self.tell(format!("flushes {segment}:0..{flushed}: beyond that it sees no whole append yet"))
                    }
                }
                Some(self.drive(Input::OpenFlushed(id, Ok(flushed))))
            }
        }
    }

    /// An open segment's file grows only, by whole valid appends that end at or before `end`; a repeated flush of less takes
    /// nothing away. Returns how far it is on disk.
    fn write_open(&mut self, slot: Slot, identity: &SegmentIdentity, end: Offset) -> Offset {
        let bytes = self.seen(slot);
        let file = self.disk.open.entry(identity.segment).or_default();
        // Ours ends where an append does; one of another opening goes.
        let known = scan(file, identity).closure;
        file.truncate(known.end.0 as usize);
        let tail = &bytes[known.end.0 as usize..end.max(known.end).0 as usize];
        let flushed = scan_on(tail, identity, known).closure.end;
        file.extend(&tail[..(flushed.0 - known.end.0) as usize]);
        flushed
    }

    fn write_closed(&mut self, slot: Slot, identity: &SegmentIdentity, closure: &Closure) -> FlushResult {
        let segment = identity.segment;
        let bytes = &self.memory[slot.0 as usize];
        if !verify(bytes, identity, closure) {
            self.tell(format!("finds segment {segment} corrupt: does not flush it"));
            return FlushResult::Corrupt;
        }
        if self.disk.full {
            if self.complaints.insert(segment) {
                self.tell(format!("cannot flush segment {segment}: the disk is full"));
            }
            return FlushResult::Failed;
        }
        let mut file = bytes[..closure.end.0 as usize].to_vec();
        file.extend(Footer { sealed: Sealed::Closed, closure: *closure }.to_bytes());
        self.disk.files.insert(segment, file);
        self.disk.open.remove(&segment);
        self.tell(format!("has flushed segment {segment}"));
        FlushResult::Done
    }

    /// Bytes arrive from the fabric. Without the key nothing lands.
    pub(crate) fn land(&mut self, slot: Slot, key: Key, from: usize, bytes: &[u8]) -> bool {
        let lending = self.lendings.get(&slot).copied().filter(|lending| lending.key == key);
        let Some(lending) = lending.filter(|_| self.is_up()) else { return false };
        assert!(lending.writer >= self.fenced, "{}: epoch {} lands after its fence", self.name, lending.writer);
        self.memory[slot.0 as usize][from..from + bytes.len()].copy_from_slice(bytes);
        true
    }

    /// The processor does not see this part of a slot yet.
    pub(crate) fn hide(&mut self, slot: Slot, part: Range<usize>) {
        self.hidden.push((slot, part));
    }

    pub(crate) fn hides(&self) -> bool {
        !self.hidden.is_empty()
    }

    /// All that the card has taken is visible.
    pub(crate) fn show(&mut self) {
        self.hidden.clear();
    }

    /// A slot's bytes as the processor sees them while the slot is lent.
    fn seen(&self, slot: Slot) -> Vec<u8> {
        let mut bytes = self.memory[slot.0 as usize].clone();
        for (_, part) in self.hidden.iter().filter(|(of, _)| *of == slot) {
            bytes[part.clone()].fill(0);
        }
        bytes
    }

    /// Turns one byte of a segment's copy, in memory or on disk.
    pub(crate) fn flip(&mut self, segment: SegmentId, offset: usize) -> &'static str {
        self.flipped = true;
        if let Some((slot, _)) = self.rows.iter().find(|(_, row)| row.identity.segment == segment) {
            self.memory[slot.0 as usize][offset] ^= 0x10;
            return "memory";
        }
        let file = self.disk.files.get_mut(&segment).expect("the segment is here");
        file[offset] ^= 0x10;
        "the file"
    }

    /// The bytes of a closed segment, read past the machine; `None` where they are not whole.
    pub(crate) fn image(&self, segment: &ClosedSegment) -> Option<Vec<u8>> {
        let (identity, closure) = (segment.identity, segment.closure);
        let row = self.rows.iter().find(|(_, row)| row.identity == identity && row.closed == Some(closure));
        let file = self.disk.files.get(&identity.segment);
        let bytes = row.map(|(slot, _)| &self.memory[slot.0 as usize]).or(file)?;
        verify(bytes, &identity, &closure).then(|| bytes[..closure.end.0 as usize].to_vec())
    }

    /// Every record that lies here in valid bytes, read past the machine.
    pub(crate) fn held(&self) -> BTreeMap<(LogId, Lsn), Vec<&[u8]>> {
        let in_memory = self.rows.iter().map(|(slot, row)| {
            let end = row.closed.map_or(usize::MAX, |closure| closure.end.0 as usize);
            let bytes = &self.memory[slot.0 as usize];
            (row.identity, &bytes[..end.min(bytes.len())])
        });
        records(in_memory.chain(self.closed_files()))
    }

    /// Every record that lies on disk in valid bytes, read past the machine.
    pub(crate) fn held_on_disk(&self) -> BTreeMap<(LogId, Lsn), Vec<&[u8]>> {
        let open = self.disk.open.values().filter_map(|file| {
            let (identity, _) = SegmentIdentity::from_header(file.first_chunk::<SEGMENT_HEADER_SIZE>()?)?;
            Some((identity, file.as_slice()))
        });
        records(open.chain(self.closed_files()))
    }

    fn closed_files(&self) -> impl Iterator<Item = (SegmentIdentity, &[u8])> {
        self.disk.files.values().map(|file| (closed_file(file).0, &file[..file.len() - FOOTER_SIZE]))
    }
}

fn records<'a>(copies: impl Iterator<Item = (SegmentIdentity, &'a [u8])>) -> BTreeMap<(LogId, Lsn), Vec<&'a [u8]>> {
    let mut held: BTreeMap<(LogId, Lsn), Vec<&[u8]>> = BTreeMap::new();
    for (identity, bytes) in copies {
        let Ok(mut scanner) = Scanner::new(bytes, &identity) else { continue };
        while let Ok(append) = scanner.next_append() {
            for record in append.records() {
                held.entry((identity.log, record.lsn)).or_default().push(record.payload);
            }
        }
    }
    held
}

fn closed_file(bytes: &[u8]) -> (SegmentIdentity, Closure) {
    let header = bytes.first_chunk::<SEGMENT_HEADER_SIZE>().and_then(SegmentIdentity::from_header);
    let footer = bytes.last_chunk::<FOOTER_SIZE>().and_then(Footer::from_bytes);
    (header.expect("a segment's file").0, footer.expect("a footer").closure)
}
