//! One backup: the production [`Backup`] with a memory and a disk of plain maps.
//!
//! Called by [`step`](super::step); carries out the machine's outputs one after the other, as the daemon does, and can die
//! between any two of them. Flushes of closed segments end at once: they are off every path that the model judges.

use std::collections::{BTreeMap, VecDeque};

use tailwind_protocol::backup::{
    Backup, FlushResult, Found, Input, Limits, Output, Place, Promise, Reply, Request, RequestId, Slot, SlotRow,
};
use tailwind_protocol::config::MemberRef;
use tailwind_protocol::ids::{BootId, Epoch, GroupName, LogId, Lsn, MemberId, Position, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::INVENTORY_MAX;
use tailwind_protocol::scan::{Scanner, Tail, scan, verify};

use super::scenario::Wrong;
use super::state::{Answer, BUFFER_SIZE, Key};
use super::{trusting, words};

/// Every request is answered before the next one comes, so one number does for all.
const REQUEST: RequestId = RequestId(0);
/// Buffers of a backup: two epochs with two open segments each, an image, and some to spare.
const SLOTS: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lending {
    key: Key,
    writer: Epoch,
}

/// A closed segment on disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct File {
    identity: SegmentIdentity,
    closure: Closure,
    bytes: Vec<u8>,
}

/// One backup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Host {
    pub(super) name: MemberId,
    pub(super) boot: BootId,
    /// Counts the processes: a channel ends with the process that accepted it.
    pub(super) life: u8,
    machine: Option<Backup>,
    /// Buffers that are not all zero.
    memory: BTreeMap<Slot, Vec<u8>>,
    rows: BTreeMap<Slot, SlotRow>,
    lendings: BTreeMap<Slot, Lending>,
    keys: u8,
    disk_promise: Promise,
    /// What a restart finds instead, in an environment that loses what was persisted last.
    promise_before: Promise,
    files: BTreeMap<SegmentId, File>,
    flushes: VecDeque<(Slot, SegmentIdentity, Closure)>,
    /// Whether it lends boards; if so the one that is lent: the epoch that writes it, and what it names.
    lends_board: bool,
    board: Option<(Epoch, Option<(Lsn, Position)>)>,
    /// The newest fence that was reported: nothing older may land from then on (S4).
    reported: Epoch,
}

/// What goes with one drive of a backup.
pub(super) struct Drive<'a> {
    pub(super) group: &'a GroupName,
    pub(super) wrong: Wrong,
    /// Outputs that the process still carries out before it dies.
    pub(super) fuse: Option<u8>,
    pub(super) answer: Option<Answer>,
    pub(super) story: Option<&'a mut Vec<String>>,
    pub(super) broken: Option<String>,
}

impl Drive<'_> {
    fn trace(&mut self, host: &MemberId, what: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(format!("{host} {}", what()));
        }
    }

    fn demand(&mut self, holds: bool, rule: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some(rule());
        }
    }
}

impl Host {
    /// A backup that is down and has never held anything.
    pub(super) fn new(name: MemberId, boot: BootId, lends_board: bool) -> Host {
        Host {
            name,
            boot,
            life: 0,
            machine: None,
            memory: BTreeMap::new(),
            rows: BTreeMap::new(),
            lendings: BTreeMap::new(),
            keys: 0,
            disk_promise: Promise::default(),
            promise_before: Promise::default(),
            files: BTreeMap::new(),
            flushes: VecDeque::new(),
            lends_board,
            board: None,
            reported: Epoch(0),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    pub(super) fn machine(&self) -> Option<&Backup> {
        self.machine.as_ref()
    }

    /// The promise that a restart would find.
    pub(super) fn promised(&self) -> Epoch {
        self.disk_promise.epoch
    }

    pub(super) fn reference(&self) -> MemberRef {
        MemberRef { id: self.name.clone(), boot: self.boot, control: String::new() }
    }

    /// The process dies; memory stays.
    pub(super) fn kill(&mut self) {
        self.machine = None;
        self.lendings.clear();
        self.flushes.clear();
        self.board = None;
    }

    /// All bytes in memory are gone, and the identity with them, unless nobody notices.
    pub(super) fn lose_memory(&mut self, wrong: Wrong) {
        self.memory.clear();
        self.rows.clear();
        if wrong != Wrong::MemoryLossUnnoticed {
            self.boot = BootId(self.boot.0 + 16);
        }
    }

    /// A new process finds what memory and disk hold.
    pub(super) fn start(&mut self, drive: &mut Drive<'_>) {
        self.life += 1;
        self.keys = 0;
        if drive.wrong == Wrong::PromiseForgotten && self.life > 1 {
            self.disk_promise = self.promise_before.clone();
        }
        let (name, found, reported) = (&self.name, self.disk_promise.epoch, self.reported);
        drive
            .demand(found >= reported, || format!("S5: {name} starts with epoch {found} after it reported {reported}"));
        if drive.broken.is_some() {
            return;
        }
        let promise = self.disk_promise.clone();
        let files = self.files.values().map(|file| (file.identity, file.closure)).collect();
        let found = Found {
            promise,
            rows: self.rows.iter().map(|(slot, row)| (*slot, *row)).collect(),
            files,
            ..Found::default()
        };
        let slot_size = SegmentSize::MIN.bytes();
        let limits = Limits {
            slots: SLOTS,
            slot_size,
            unflushed_bytes_max: u64::from(SLOTS) * u64::from(slot_size),
            flush_bytes_max: None,
            residents: 0,
            copies_max: INVENTORY_MAX,
        };
        let (backup, out) = Backup::start(drive.group.clone(), self.name.clone(), self.boot, limits, found);
        self.machine = Some(backup);
        drive.trace(&self.name, || format!("starts, bound to epoch {}", self.disk_promise.epoch));
        self.carry(out, drive);
        self.flush_all(drive);
    }

    /// Takes one request; its answer, if the process lives to give it, is in `drive`.
    pub(super) fn ask(&mut self, request: Request, drive: &mut Drive<'_>) {
        self.step(Input::Request(REQUEST, request), drive);
        self.flush_all(drive);
    }

    fn step(&mut self, input: Input, drive: &mut Drive<'_>) {
        let Some(machine) = &mut self.machine else { return };
        let mut out = Vec::new();
        machine.step(input, &mut out);
        self.carry(out, drive);
    }

    fn flush_all(&mut self, drive: &mut Drive<'_>) {
        while let Some((slot, identity, closure)) = self.flushes.pop_front() {
            let bytes = self.buffer(slot);
            let result = if verify(&bytes, &identity, &closure) {
                let bytes = bytes[..closure.end.0 as usize].to_vec();
                self.files.insert(identity.segment, File { identity, closure, bytes });
                FlushResult::Done
            } else {
                FlushResult::Corrupt
            };
            self.step(Input::Flushed(slot, identity, result), drive);
        }
    }

    fn carry(&mut self, out: Vec<Output>, drive: &mut Drive<'_>) {
        for output in out {
            if self.machine.is_none() {
                return;
            }
            if drive.fuse == Some(0) {
                drive.trace(&self.name, || "dies".to_owned());
                drive.answer = None;
                return self.kill();
            }
            drive.fuse = drive.fuse.map(|left| left - 1);
            self.carry_one(output, drive);
        }
    }

    fn carry_one(&mut self, output: Output, drive: &mut Drive<'_>) {
        match output {
            Output::Persist(promise) => {
                drive.trace(&self.name, || format!("promises epoch {}", promise.epoch));
                let before = std::mem::replace(&mut self.disk_promise, promise);
                if drive.wrong == Wrong::PromiseForgotten {
                    let first = before.epoch == Epoch(0);
                    self.promise_before = if first { self.disk_promise.clone() } else { before };
                }
            }
            Output::RevokeBelow(_) if drive.wrong == Wrong::FenceWithoutRevoke => {}
            Output::RevokeBelow(epoch) => {
                drive.trace(&self.name, || format!("revokes every writer below epoch {epoch}"));
                self.lendings.retain(|_, lending| lending.writer >= epoch);
                self.board.take_if(|(of, _)| *of < epoch);
            }
            Output::SaveSlot(slot, Some(row)) => drop(self.rows.insert(slot, row)),
            Output::SaveSlot(slot, None) => drop(self.rows.remove(&slot)),
            Output::Lend(id, slot, writer) => self.lend(id, slot, writer, drive),
            Output::EndLending(slot) => drop(self.lendings.remove(&slot)),
            Output::Scan(slot, identity) => {
                let bytes = self.buffer(slot);
                let tail = match drive.wrong {
                    Wrong::ScanWithoutChecksums => {
                        Tail { closure: trusting::scan(&bytes, &identity), ..Tail::default() }
                    }
                    _ => scan(&bytes, &identity).tail(),
                };
                let told = words::closure(&tail.closure);
                drive.trace(&self.name, || format!("scans segment {}: {told}", identity.segment));
                self.step(Input::Scanned(slot, tail), drive);
            }
            Output::Verify(slot, identity, closure) => {
                let bytes = self.buffer(slot);
                let sound = drive.wrong == Wrong::ScanWithoutChecksums || verify(&bytes, &identity, &closure);
                self.step(Input::Verified(slot, sound), drive);
            }
            Output::StartFlush(slot, identity, closure) => self.flushes.push_back((slot, identity, closure)),
            Output::Release(slot) => {
                self.lendings.remove(&slot);
                self.memory.remove(&slot);
                self.flushes.retain(|(of, ..)| *of != slot);
            }
            Output::DeleteFile(segment) | Output::Quarantine(segment) => drop(self.files.remove(&segment)),
            Output::DeleteTrimmed(segments) => {
                self.files.retain(|segment, _| !segments.contains(segment));
                self.step(Input::Deleted(segments), drive);
            }
            Output::StartQuarantine(slot, ..) => self.step(Input::Quarantined(slot, Ok(())), drive),
            // No disk fails here, so nothing is ever missed.
            Output::Owe(_) | Output::RecordOpen(..) | Output::Settle(_) | Output::MoveAside(_) => {}
            Output::Reply(_, reply) => self.reply(reply, drive),
            Output::StartOpenFlush(..)
            | Output::FlushOpen(..)
            | Output::Retain(_)
            | Output::Load(_)
            | Output::Finish { .. } => {
                unreachable!("durability is memory, and nobody asks a backup to end")
            }
        }
    }

    /// A slot is lent all zero, and only while nobody else can write it (S6).
    fn lend(&mut self, id: RequestId, slot: Slot, writer: Epoch, drive: &mut Drive<'_>) {
        let name = &self.name;
        drive.demand(!self.lendings.contains_key(&slot), || format!("S6: {name} lends slot {} twice", slot.0));
        drive.demand(writer >= self.reported, || format!("S5: {name} lends to epoch {writer}, which it has fenced"));
        self.memory.remove(&slot);
        self.keys += 1;
        self.lendings.insert(slot, Lending { key: Key(self.keys), writer });
        drive.trace(&self.name, || format!("lends slot {} to epoch {writer}", slot.0));
        self.step(Input::Lent(id, slot, Ok(())), drive);
    }

    fn reply(&mut self, reply: Reply, drive: &mut Drive<'_>) {
        let name = &self.name;
        drive.answer = Some(match reply {
            Reply::Inventory(inventory) => {
                let (promised, on_disk) = (inventory.promised, self.disk_promise.epoch);
                drive.demand(on_disk >= promised, || {
                    format!("S5: {name} reports a promise of epoch {promised}; on its disk is epoch {on_disk}")
                });
                let reported = self.reported;
                drive.demand(promised >= reported, || {
                    format!("S5: {name} reports a promise of epoch {promised} after one of epoch {reported}")
                });
                self.reported = reported.max(promised);
                Answer::Inventory(inventory)
            }
            Reply::Damage(_) => unreachable!("nobody asks what is corrupt"),
            Reply::Connect(epoch) => {
                if self.lends_board && self.board.is_none_or(|(of, _)| of != epoch) {
                    self.board = Some((epoch, None));
                }
                Answer::Connected(self.boot, self.life)
            }
            Reply::Opened(slot) => match self.lendings.get(&slot) {
                Some(lending) => Answer::Granted(slot, lending.key, self.life),
                None => unreachable!("a slot that the machine holds for lent has a lending"),
            },
            Reply::Fetch(Place::Memory(slot) | Place::Both(slot), _, closure) => {
                Answer::Bytes(self.buffer(slot)[..closure.end.0 as usize].to_vec())
            }
            Reply::Fetch(Place::Disk, identity, _) => Answer::Bytes(self.files[&identity.segment].bytes.clone()),
            Reply::Flushed(_) => unreachable!("nobody asks for a flush under durability `memory`"),
            Reply::Done => Answer::Done,
            Reply::Refused(refusal) => Answer::Refused(refusal),
        });
    }

    fn buffer(&self, slot: Slot) -> Vec<u8> {
        self.memory.get(&slot).cloned().unwrap_or_else(|| vec![0; BUFFER_SIZE])
    }

    /// The epoch that writes the board, and what it names.
    pub(super) fn board(&self) -> Option<(Epoch, Option<(Lsn, Position)>)> {
        self.board
    }

    /// A line lands on the board.
    pub(super) fn publish(&mut self, acked: (Lsn, Position)) {
        if let Some((_, shown)) = &mut self.board {
            *shown = Some(acked);
        }
    }

    /// The bytes of this opening of a segment, if they still are in this slot.
    pub(super) fn shared(&self, slot: Slot, identity: &SegmentIdentity) -> Option<Vec<u8>> {
        self.rows.get(&slot).filter(|row| row.identity == *identity).map(|_| self.buffer(slot))
    }

    /// True while a write with this key, lent by this process, would land.
    pub(super) fn admits(&self, (life, slot, key): (u8, Slot, Key)) -> bool {
        let lent = self.lendings.get(&slot).is_some_and(|lending| lending.key == key);
        lent && self.life == life && self.is_up()
    }

    /// Bytes arrive from the fabric with a key that is good. Returns the rule that this breaks, if one.
    pub(super) fn land(&mut self, slot: Slot, at: usize, bytes: &[u8]) -> Option<String> {
        let buffer = self.memory.entry(slot).or_insert_with(|| vec![0; BUFFER_SIZE]);
        buffer[at..at + bytes.len()].copy_from_slice(bytes);
        let writer = self.lendings[&slot].writer;
        let (name, reported) = (&self.name, self.reported);
        (writer < reported).then(|| format!("S4: bytes of epoch {writer} land at {name} after its fence by {reported}"))
    }

    /// The bytes of a closed segment, read past the machine; `None` where they are not whole.
    pub(super) fn image(&self, identity: &SegmentIdentity, closure: &Closure) -> Option<Vec<u8>> {
        let closed = |row: &SlotRow| row.identity == *identity && row.closed == Some(*closure);
        let row = self.rows.iter().find(|(_, row)| closed(row)).map(|(slot, _)| self.buffer(*slot));
        let file = || self.files.get(&identity.segment).map(|file| file.bytes.clone());
        let bytes = row.or_else(file)?;
        verify(&bytes, identity, closure).then(|| bytes[..closure.end.0 as usize].to_vec())
    }

    /// Every record that lies here in valid bytes, read past the machine.
    pub(super) fn held(&self, log: LogId) -> Vec<(Lsn, Vec<u8>)> {
        let mut held = Vec::new();
        let mut read = |bytes: &[u8], identity: &SegmentIdentity| {
            let Ok(mut scanner) = Scanner::new(bytes, identity) else { return };
            while let Ok(append) = scanner.next_append() {
                held.extend(append.records().map(|record| (record.lsn, record.payload.to_vec())));
            }
        };
        for (slot, row) in self.rows.iter().filter(|(_, row)| row.identity.log == log) {
            let Some(buffer) = self.memory.get(slot) else { continue };
            let end = row.closed.map_or(BUFFER_SIZE, |closure| closure.end.0 as usize);
            read(&buffer[..end], &row.identity);
        }
        self.files.values().for_each(|file| read(&file.bytes, &file.identity));
        held
    }
}
