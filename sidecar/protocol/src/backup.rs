//! A backup's state machine: what it has promised, which buffers it has lent, what it holds, what it refuses.
//!
//! Driven by the backup daemon (and by the simulator). [`Backup::step`] takes one input and returns what to do.
//!
//! **The order of outputs is part of the protocol.** They are carried out one after the other; the process may die
//! between any two. An output whose failure is not an input must end the process when it fails: a backup that could not
//! persist its promise, or could not revoke, must not go on to say that it did. See "Fencing" in `docs/protocol.md`.
//!
//! Files, in the order in which data meets them: [`messages`] (inputs and outputs), [`fence`], [`lending`], [`closing`],
//! [`flushing`], [`keeping`] (images for others, trims, drops); [`copy`] is one segment's copy.

mod closing;
mod copy;
mod fence;
mod flushing;
mod keeping;
mod lending;
mod messages;

use std::collections::BTreeMap;

use crate::ids::{BootId, GroupName, MemberId, SegmentId};
use crate::layout::{Closure, SegmentIdentity};
use crate::planted::{self, Bug};
use crate::rpc::{Caller, CloseRequest, Purpose, Refusal};

pub use copy::{Copy, Place, Slot, SlotRow, Stage};
pub use messages::{FlushResult, Input, Limits, Output, Promise, Reply, Request, RequestId};

use fence::PendingFence;
use flushing::open_flush_reply;

/// How long a caller should wait before it asks again for a buffer: about the time to flush one segment.
const RETRY_AFTER_MS: u32 = 100;

/// The state of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backup {
    group: GroupName,
    member: MemberId,
    boot: BootId,
    limits: Limits,
    promise: Promise,
    /// The copy of each segment that counts.
    copies: BTreeMap<SegmentId, Copy>,
    /// Images being installed: they count once closed.
    installs: BTreeMap<SegmentId, Copy>,
    fence: Option<PendingFence>,
    /// A close that waits for its verification.
    closing: Option<(RequestId, Slot, CloseRequest)>,
    /// Closes that wait until their slot is on disk; see [`Backup::reply_when_safe`]. At most one for each slot.
    unflushed: BTreeMap<Slot, RequestId>,
    ending: bool,
    finished: bool,
}

/// What a process finds when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// The promise on disk.
    pub promise: Promise,
    /// Slots in use, from memory that survived or from files of open segments loaded into slots.
    pub rows: Vec<(Slot, SlotRow)>,
    /// Closed segments on disk.
    pub files: Vec<(SegmentIdentity, Closure)>,
}

impl Backup {
    /// Starts a backup from what its memory and disk hold. A restarted backup counts as fenced: whatever was lent is
    /// revoked (making the fabric's receiver anew is a barrier) and scanned. The outputs do that; carry them out first.
    pub fn start(
        group: GroupName,
        member: MemberId,
        boot: BootId,
        limits: Limits,
        found: Found,
    ) -> (Backup, Vec<Output>) {
        let mut backup = Backup {
            group,
            member,
            boot,
            limits,
            promise: found.promise,
            copies: BTreeMap::new(),
            installs: BTreeMap::new(),
            fence: None,
            closing: None,
            unflushed: BTreeMap::new(),
            ending: false,
            finished: false,
        };
        let mut out = Vec::new();
        for (identity, closure) in found.files {
            backup.copies.insert(identity.segment, Copy::on_disk(identity, closure));
        }
        let (rows, needless) = newest_of_each_segment(found.rows);
        out.extend(needless.into_iter().flat_map(Self::freed));
        for (slot, row) in rows {
            backup.on_found(slot, row, &mut out);
        }
        (backup, out)
    }

    fn on_found(&mut self, slot: Slot, row: SlotRow, out: &mut Vec<Output>) {
        let file = self.copies.get(&row.identity.segment);
        let on_disk = file.is_some_and(|copy| copy.identity == row.identity && Some(copy.closure) == row.closed);
        match (row.purpose, row.closed) {
            // Closed and flushed, or an image that never got closed: nothing to keep.
            (_, Some(_)) if on_disk => out.extend(Self::freed(slot)),
            (Purpose::Install, None) => out.extend(Self::freed(slot)),
            (_, Some(closure)) => {
                self.copies.insert(row.identity.segment, Copy::closed_in(slot, &row, closure));
                out.push(Output::StartFlush(slot, row.identity, closure));
            }
            (Purpose::Append, None) => {
                self.copies.insert(row.identity.segment, Copy::lent(slot, &row));
                out.push(Output::Scan(slot, row.identity));
            }
        }
    }

    /// Takes one input; appends to `out` what to do, in order.
    pub fn step(&mut self, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Request(id, _) if self.ending => out.push(Output::Reply(id, Reply::Refused(ending()))),
            Input::Request(id, request) => self.on_request(id, request, out),
            Input::Scanned(slot, closure) => self.on_scanned(slot, closure, out),
            Input::Verified(slot, sound) => self.on_verified(slot, sound, out),
            Input::Lent(id, slot, result) => self.on_lent(id, slot, result, out),
            Input::Flushed(slot, identity, result) => self.on_flushed(slot, &identity, &result, out),
            Input::OpenFlushed(id, result) => out.push(Output::Reply(id, open_flush_reply(result))),
            Input::FoundCorrupt(identity) => self.on_found_corrupt(&identity),
            Input::Tick => self.on_tick(out),
            Input::Shutdown => self.on_shutdown(out),
        }
        self.check();
    }

    fn on_request(&mut self, id: RequestId, request: Request, out: &mut Vec<Output>) {
        let reply = match request {
            Request::Fence(request) => self.on_fence(id, &request, out),
            Request::Inventory => Ok(Some(Reply::Inventory(self.inventory()))),
            Request::Connect(caller) => self.admit(&caller).map(|()| Some(Reply::Connect(caller.epoch))),
            Request::Open(request) => self.on_open(id, &request, out),
            Request::Close(request) => self.on_close(id, request, out),
            Request::Flush(request) => self.on_flush(id, &request, out),
            Request::Fetch(request) => self.on_fetch(&request).map(Some),
            Request::Trim(request) => self.on_trim(&request, out).map(Some),
            Request::Drop(request) => self.on_drop(&request, out).map(Some),
        };
        match reply {
            Ok(None) => {}
            Ok(Some(reply)) => out.push(Output::Reply(id, reply)),
            Err(refusal) => out.push(Output::Reply(id, Reply::Refused(refusal))),
        }
    }

    /// Refuses callers of another group, another log or another epoch than the promised one (S5).
    fn admit(&self, caller: &Caller) -> Result<(), Refusal> {
        self.admit_log(caller)?;
        match caller.epoch.cmp(&self.promise.epoch) {
            std::cmp::Ordering::Less if planted::has(Bug::OldEpochAdmitted) => Ok(()),
            std::cmp::Ordering::Less => Err(Refusal::Fenced { promised: self.promise.epoch }),
            std::cmp::Ordering::Greater => Err(Refusal::NotFenced { promised: self.promise.epoch }),
            std::cmp::Ordering::Equal => Ok(()),
        }
    }

    fn admit_log(&self, caller: &Caller) -> Result<(), Refusal> {
        if caller.group != self.group {
            let why = format!("backup {} serves group {}, not {}", self.member, self.group, caller.group);
            return Err(Refusal::WrongLog { why });
        }
        match self.promise.log {
            Some(log) if log != caller.log => Err(Refusal::WrongLog {
                why: format!(
                    "backup {} holds log {log} of group {}, not log {}: if that log is no longer needed, start the \
                     backup with empty folders",
                    self.member, self.group, caller.log
                ),
            }),
            _ => Ok(()),
        }
    }

    fn freed(slot: Slot) -> [Output; 2] {
        [Output::SaveSlot(slot, None), Output::Release(slot)]
    }

    fn slots_in_use(&self) -> impl Iterator<Item = Slot> {
        self.copies.values().chain(self.installs.values()).filter_map(Copy::slot)
    }

    /// Bytes lent, or closed and not yet on disk.
    pub fn unflushed_bytes(&self) -> u64 {
        self.slots_in_use().count() as u64 * u64::from(self.limits.slot_size)
    }

    /// The promise as it stands.
    pub fn promise(&self) -> &Promise {
        &self.promise
    }

    /// Copies that count, and buffers that images are being copied into; for status and metrics.
    pub fn counts(&self) -> Counts {
        let stage = |wanted: Stage| self.copies.values().filter(|copy| copy.stage == wanted).count() as u64;
        Counts {
            lent: stage(Stage::Lent) + self.installs.len() as u64,
            recovered: stage(Stage::Recovered),
            closed: stage(Stage::Closed),
            corrupt: stage(Stage::Corrupt),
            on_disk: self.copies.values().filter(|copy| copy.place == Place::Disk).count() as u64,
            unflushed_bytes: self.unflushed_bytes(),
        }
    }

    /// What must be true between any two inputs.
    fn check(&self) {
        let mut slots: Vec<Slot> = self.slots_in_use().collect();
        slots.sort_unstable();
        let used = slots.len();
        slots.dedup();
        assert_eq!(slots.len(), used, "a slot serves one segment at a time");
        assert!(used as u64 <= u64::from(self.limits.slots), "no more slots in use than there are");
        for (segment, copy) in self.copies.iter().chain(&self.installs) {
            assert_eq!(*segment, copy.identity.segment);
            let promised = copy.identity.epoch <= self.promise.epoch || planted::any();
            assert!(promised, "nothing of an epoch that was never promised");
        }
    }
}

/// Numbers for status and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Buffers lent now.
    pub lent: u64,
    /// Copies of open segments left by an older epoch.
    pub recovered: u64,
    /// Closed copies.
    pub closed: u64,
    /// Copies that no longer match their closure.
    pub corrupt: u64,
    /// Copies on disk.
    pub on_disk: u64,
    /// Bytes lent, or closed and not yet on disk.
    pub unflushed_bytes: u64,
}

/// Of two slots for one segment, the one that was lent later and got further counts: the process died after it had taken
/// an image in and before it gave the older copy's slot back. Returns the rows to keep and the needless slots.
fn newest_of_each_segment(mut rows: Vec<(Slot, SlotRow)>) -> (Vec<(Slot, SlotRow)>, Vec<Slot>) {
    rows.sort_by_key(|(_, row)| (row.purpose == Purpose::Append, row.lender, row.closed.is_some()));
    let mut newest: BTreeMap<SegmentId, (Slot, SlotRow)> = BTreeMap::new();
    let mut needless = Vec::new();
    for (slot, row) in rows {
        let older = newest.insert(row.identity.segment, (slot, row));
        needless.extend(older.map(|(slot, _)| slot));
    }
    (newest.into_values().collect(), needless)
}

fn ending() -> Refusal {
    Refusal::Failed { why: "this backup is shutting down".to_owned() }
}
