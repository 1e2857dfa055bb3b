//! A backup's state machine: what it has promised, which buffers it has lent, what it holds, what it refuses.
//!
//! Driven by the backup daemon (and by the simulator). [`Backup::step`] takes one input and returns what to do.
//!
//! **The order of outputs is part of the protocol.** They are carried out one after the other, and the process may die
//! between any two. If an output fails and the failure is not an input, the process must end: a backup that could not
//! persist its promise, or could not revoke, must not report that it did. See "Fencing" in `docs/protocol.md`.
//!
//! Files, in the order in which data meets them: [`messages`] (inputs and outputs), [`start`] (what is present, compared
//! with what is owed), [`fence`], [`lending`], [`closing`], [`flushing`], [`syncing`] (what must survive the loss of all
//! memory), [`keeping`] (fetches, trims, drops, quarantine), [`folder`] (how full the flush folder is), [`sharing`] (what
//! readers may read), [`pulling`] (what it may copy from others by itself), [`resident`] (copies on disk that keep a buffer as a
//! cache); [`copy`] is one segment's copy.

mod closing;
mod copy;
mod fence;
mod flushing;
mod folder;
mod keeping;
mod lending;
mod messages;
mod pulling;
mod resident;
mod sharing;
mod start;
mod syncing;

use std::collections::BTreeMap;

use crate::ids::{BootId, Epoch, GroupName, Lsn, MemberId, SegmentId};
use crate::layout::{Closure, SegmentIdentity};
use crate::planted::{self, Bug};
use crate::rpc::{Caller, CloseRequest, CopyReport, DAMAGE_DESCRIPTIONS_MAX, DAMAGE_REPORTS_MAX, Refusal, SyncRequest};

pub use copy::{Copy, Place, Slot, SlotRow, Stage};
pub use fence::EPOCH_JUMP_MAX;
pub use folder::FLUSH_SEGMENTS_MIN;
pub use messages::{DOUBT_LENGTH_MAX, Doubt, FlushResult, Input, Limits, Output, Promise, Reply, Request, RequestId};
pub use start::Found;

use fence::PendingFence;
use folder::OtherFiles;
use keeping::Leaving;
use resident::Resident;

/// How long a caller should wait before it requests a buffer again: about the time to flush one segment.
const RETRY_AFTER_MS: u32 = 100;

/// Ticks after which an unclosed image gives up its buffer if another lending needs one. Its writer gives up after five
/// seconds without progress.
const IMAGE_TICKS: u32 = 30;

/// Trimmed segments whose files are being deleted at a time. A trim of more continues when these are gone: on a full disk the
/// ledger has room for about twice as many settled entries, and more once the first files are gone.
pub const TRIMMED_AT_ONCE: usize = 128;

/// The state of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backup {
    group: GroupName,
    member: MemberId,
    boot: BootId,
    limits: Limits,
    promise: Promise,
    /// The current copy of each segment.
    copies: BTreeMap<SegmentId, Copy>,
    /// Buffers of closed copies that are on disk: a cache, which nothing but reads looks at.
    residents: BTreeMap<SegmentId, Resident>,
    /// Images being installed: they count once closed.
    installs: BTreeMap<SegmentId, Copy>,
    fence: Option<PendingFence>,
    /// This process has been fenced, so the caller has seen its doubt.
    fenced: bool,
    /// A close that waits for its verification.
    closing: Option<(RequestId, Slot, CloseRequest)>,
    /// Closes that wait until their slot is on disk; see [`Backup::reply_when_safe`]. At most one for each slot.
    unflushed: BTreeMap<Slot, RequestId>,
    /// Syncs that wait for the flush of their open part. Bounded by the requests under way.
    syncs: BTreeMap<RequestId, SyncRequest>,
    /// Slots whose bytes are being moved into quarantine.
    leaving: BTreeMap<Slot, Leaving>,
    /// Open copies that a closed image has replaced, found at the start: they are being scanned.
    replaced: BTreeMap<Slot, SlotRow>,
    /// A slot whose memory or row is lost. Its row stays as long as the resulting doubt.
    missing: Option<Slot>,
    /// Open segments whose flushed files are gone. The notes of those flushes stay as long as the resulting doubt.
    gone: Vec<SegmentId>,
    other_files: OtherFiles,
    /// Trimmed segments whose files are being deleted, and the most bytes that these have.
    deleting: BTreeMap<SegmentId, u64>,
    /// The same of files that the disk did not delete: tried again at the next tick.
    undeleted: BTreeMap<SegmentId, u64>,
    /// A trim of this epoch to below this record is not done yet: it continues when files have been deleted.
    trimming: Option<Lsn>,
    ending: bool,
    finished: bool,
}

impl Backup {
    /// Takes one input; appends to `out` what to do, in order.
    pub fn step(&mut self, input: Input, out: &mut Vec<Output>) {
        let before = out.len();
        match input {
            Input::Request(id, _) if self.ending => out.push(Output::Reply(id, Reply::Refused(ending()))),
            Input::Request(id, request) => self.on_request(id, request, out),
            Input::Scanned(slot, tail) => self.on_scanned(slot, tail, out),
            Input::Verified(slot, sound) => self.on_verified(slot, sound, out),
            Input::Lent(id, slot, result) => self.on_lent(id, slot, result, out),
            Input::Flushed(slot, identity, result) => self.on_flushed(slot, &identity, &result, out),
            Input::OpenFlushed(id, identity, result) => self.on_open_flushed(id, &identity, result, out),
            Input::Quarantined(slot, result) => self.on_quarantined(slot, result, out),
            Input::FoundCorrupt(identity, place) => self.on_found_corrupt(&identity, place, out),
            Input::Load(identity, closure) => self.on_load(identity, closure, out),
            Input::Loaded(slot, result) => self.on_loaded(slot, result, out),
            Input::GivenUp(slot) => self.on_given_up(slot, out),
            Input::Deleted(segments) => self.on_deleted(&segments, out),
            Input::NotDeleted(segments) => self.on_not_deleted(&segments, out),
            Input::OtherFiles(bytes) => self.on_other_files(bytes),
            Input::Tick => self.on_tick(out),
            Input::Shutdown => self.on_shutdown(out),
        }
        self.free_strays(out);
        self.note_quarantined(&out[before..]);
        self.check();
    }

    fn on_request(&mut self, id: RequestId, request: Request, out: &mut Vec<Output>) {
        let reply = match request {
            Request::Fence(request) => self.on_fence(id, &request, out),
            Request::Inventory(after) => Ok(Some(Reply::Inventory(self.page(after)))),
            Request::Damage => Ok(Some(Reply::Damage(self.corrupt_copies()))),
            Request::Connect(caller) => self.admit(&caller).map(|()| Some(Reply::Connect(caller.epoch))),
            Request::Open(request) => self.on_open(id, &request, out),
            Request::Close(request) => self.on_close(id, request, out),
            Request::Flush(request) => self.on_flush(id, &request, out),
            Request::Sync(request) => self.on_sync(id, request, out),
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
        // Epoch 0 means "none yet". A backup that is bound to no log has promised it, and would admit the caller.
        if caller.epoch == Epoch(0) {
            return Err(Refusal::BadRequest { why: "epoch 0: the first epoch is 1".to_owned() });
        }
        if caller.group != self.group {
            let why = format!("backup {} serves group {}, not {}", self.member, self.group, caller.group);
            return Err(Refusal::WrongLog { why });
        }
        match self.promise.log {
            Some(log) if log != caller.log => Err(Refusal::WrongLog {
                why: format!(
                    "backup {member} holds log {log} of group {}, not log {}: give this sidecar the config store (--config) of \
                     that log, and delete nothing. If that log's group is well without {member}, start {member} with a new \
                     --pool and --flush-dir",
                    self.group,
                    caller.log,
                    member = self.member
                ),
            }),
            _ => Ok(()),
        }
    }

    fn freed(slot: Slot) -> [Output; 2] {
        [Output::SaveSlot(slot, None), Output::Release(slot)]
    }

    /// Slots that are not free; those of residents are.
    fn slots_in_use(&self) -> impl Iterator<Item = Slot> {
        // One beyond the slots that there are takes none of them.
        self.slots_to_flush().chain(self.missing.filter(|slot| slot.0 < self.limits.slots))
    }

    /// Slots whose bytes are lent or not yet on disk. The one whose row remembers a loss holds nothing that could be flushed.
    fn slots_to_flush(&self) -> impl Iterator<Item = Slot> {
        let copies = self.copies.values().chain(self.installs.values()).filter_map(Copy::slot);
        let taken_out = self.leaving.keys().chain(self.replaced.keys()).copied();
        copies.chain(taken_out)
    }

    /// Bytes lent, or closed and not yet on disk.
    pub fn unflushed_bytes(&self) -> u64 {
        self.slots_to_flush().count() as u64 * u64::from(self.limits.slot_size)
    }

    /// The current promise.
    pub fn promise(&self) -> &Promise {
        &self.promise
    }

    /// What this backup should hold and does not, or doubts, in words; at most [`DAMAGE_DESCRIPTIONS_MAX`].
    pub fn damage(&self) -> Vec<String> {
        let of_copy = |copy: &Copy| {
            let segment = copy.identity.segment;
            match copy.stage {
                Stage::Corrupt => {
                    Some(format!("segment {segment}, closed at LSN {}, is gone or corrupt", copy.closure.last))
                }
                Stage::Recovered if copy.is_damaged() => Some(format!(
                    "segment {segment} is valid up to byte {} only (LSN {}), and was acknowledged or flushed up to byte {}",
                    copy.closure.end,
                    copy.closure.last,
                    copy.acked.max(copy.flushed)
                )),
                _ => None,
            }
        };
        let copies = self.copies.values().filter_map(of_copy);
        let doubt = self.promise.doubt.iter().map(|doubt| doubt.why.clone());
        copies.chain(doubt).take(DAMAGE_DESCRIPTIONS_MAX).collect()
    }

    /// Closed copies that are missing or corrupt, oldest first, at most [`DAMAGE_REPORTS_MAX`].
    fn corrupt_copies(&self) -> Vec<CopyReport> {
        let corrupt = self.copies.values().filter(|copy| copy.stage == Stage::Corrupt);
        corrupt.map(|copy| copy.report(self.promise.durability)).take(DAMAGE_REPORTS_MAX).collect()
    }

    /// The first closed copy after this segment, and where its bytes are: what a scrub reads next.
    pub fn closed_behind(&self, segment: SegmentId) -> Option<(Place, SegmentIdentity, Closure)> {
        let mut behind = self.copies.range(segment.next()..).map(|(_, copy)| copy);
        let copy = behind.find(|copy| copy.stage == Stage::Closed)?;
        Some((copy.place, copy.identity, copy.closure))
    }

    /// The newest closed segment: where a scrub that begins now ends. Otherwise a pass would never end over a log that grows
    /// faster than it is read, and the oldest copies would not be read again.
    pub fn newest_closed(&self) -> SegmentId {
        let mut newest = self.copies.iter().rev().filter(|(_, copy)| copy.stage == Stage::Closed);
        newest.next().map_or(SegmentId(0), |(segment, _)| *segment)
    }

    /// True when this backup can tell where its log ends.
    pub fn is_witness(&self) -> bool {
        planted::has(Bug::DamagedIsAWitness)
            || self.promise.doubt.is_none() && !self.copies.values().any(Copy::is_damaged)
    }

    /// Numbers of copies and of buffers in use, for status and metrics.
    pub fn counts(&self) -> Counts {
        let stage = |wanted: Stage| self.copies.values().filter(|copy| copy.stage == wanted).count() as u64;
        Counts {
            lent: stage(Stage::Lent) + self.installs.len() as u64,
            recovered: stage(Stage::Recovered),
            closed: stage(Stage::Closed),
            corrupt: stage(Stage::Corrupt),
            damaged: self.copies.values().filter(|copy| copy.is_damaged()).count() as u64,
            doubtful: u64::from(self.promise.doubt.is_some()),
            resident: self.residents.len() as u64,
            on_disk: self.copies.values().filter(|copy| copy.place == Place::Disk).count() as u64,
            unflushed_bytes: self.unflushed_bytes(),
            flush_bytes: self.flush_bytes(),
        }
    }

    /// What must be true between any two inputs.
    fn check(&self) {
        let mut slots: Vec<Slot> = self.slots_in_use().chain(self.resident_slots()).collect();
        slots.sort_unstable();
        let used = slots.len();
        slots.dedup();
        assert_eq!(slots.len(), used, "a slot serves one segment at a time");
        assert!(used as u64 <= u64::from(self.limits.slots), "no more slots in use than there are");
        assert!(self.residents.len() <= self.limits.residents as usize, "no more residents than there may be");
        for (segment, copy) in self.copies.iter().chain(&self.installs) {
            assert_eq!(*segment, copy.identity.segment);
            assert!(!matches!(copy.place, Place::Both(_)), "a resident is no place of its copy");
            let excused = self.promise.doubt.is_some() || planted::any();
            let promised = copy.identity.epoch <= self.promise.epoch;
            assert!(promised || excused, "only a copy found at start may be of an epoch that was never promised");
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
    /// Closed copies whose bytes are gone or no longer match.
    pub corrupt: u64,
    /// Copies of open segments that end before what was acknowledged.
    pub damaged: u64,
    /// 1 if there is a doubt: something is missing that cannot be named.
    pub doubtful: u64,
    /// Of the closed copies on disk, those that have a buffer too.
    pub resident: u64,
    /// Copies on disk.
    pub on_disk: u64,
    /// Bytes lent, or closed and not yet on disk.
    pub unflushed_bytes: u64,
    /// Bytes that the flush folder holds, or will hold once everything lent is on disk.
    pub flush_bytes: u64,
}

fn ending() -> Refusal {
    Refusal::Failed { why: "this backup is shutting down".to_owned() }
}
