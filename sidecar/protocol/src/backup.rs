//! A backup's state machine: what it has promised, which buffers it has lent, what it holds, what it refuses.
//!
//! Driven by the backup daemon (and by the simulator). [`Backup::step`] takes one input and returns what to do.
//!
//! **The order of outputs is part of the protocol.** They are carried out one after the other; the process may die
//! between any two. An output whose failure is not an input must end the process when it fails: a backup that could not
//! persist its promise, or could not revoke, must not go on to say that it did. See "Fencing" in `docs/protocol.md`.

mod copy;

use std::collections::BTreeMap;

use crate::config::Durability;
use crate::ids::{BootId, Epoch, GroupName, LogId, Lsn, MemberId, Offset, SegmentId};
use crate::layout::{Closure, SegmentIdentity};
use crate::planted::{self, Bug};
use crate::rpc::{
    Caller, CloseRequest, DropRequest, FenceRequest, FetchRequest, FlushRequest, Inventory, OpenRequest, Purpose,
    Refusal, TrimRequest,
};

pub use copy::{Copy, Place, Slot, SlotRow, Stage};

/// How long a caller should wait before it asks again for a buffer: about the time to flush one segment.
const RETRY_AFTER_MS: u32 = 100;

/// Limits that a backup is started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Buffers in the pool.
    pub slots: u32,
    /// Bytes of each.
    pub slot_size: u32,
    /// Most bytes that may be lent or closed but not yet on disk: flush bandwidth × hold-up time (ATC'18 section 3.2).
    pub unflushed_bytes_max: u64,
}

/// What must survive the loss of all memory; kept on disk, fsynced before a promise is reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Promise {
    /// The log this backup is bound to.
    pub log: Option<LogId>,
    /// No epoch below this one may change anything.
    pub epoch: Epoch,
    /// Records below are no longer needed.
    pub trimmed: Lsn,
    /// What the group's acks promise; decides whether disk alone is enough to keep the identity.
    pub durability: Durability,
}

/// A number that pairs an input with the reply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What a caller asks of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Stop older epochs, tell what is here.
    Fence(FenceRequest),
    /// Tell what is here.
    Inventory,
    /// May this caller open a data channel?
    Connect(Caller),
    /// Lend a buffer.
    Open(OpenRequest),
    /// A segment ends.
    Close(CloseRequest),
    /// Bring an open segment to disk up to an offset.
    Flush(FlushRequest),
    /// Where are a closed segment's bytes?
    Fetch(FetchRequest),
    /// Forget what is no longer needed.
    Trim(TrimRequest),
    /// Forget what is not part of the log.
    Drop(DropRequest),
}

/// What happens to a backup.
#[derive(Clone, Debug)]
pub enum Input {
    /// A caller asks.
    Request(RequestId, Request),
    /// The answer to [`Output::Scan`]: where the valid bytes of the slot end.
    Scanned(Slot, Closure),
    /// The answer to [`Output::Verify`]: whether the slot's bytes match the closure.
    Verified(Slot, bool),
    /// The answer to [`Output::Lend`]: lent, or why the pool has no memory for it.
    Lent(RequestId, Slot, Result<(), String>),
    /// The answer to [`Output::StartFlush`].
    Flushed(Slot, SegmentIdentity, FlushResult),
    /// The answer to [`Output::StartOpenFlush`]: where the last whole valid append on disk ends, or why the disk refused.
    OpenFlushed(RequestId, Result<Offset, String>),
    /// A closed segment that was read from disk did not match its footer.
    FoundCorrupt(SegmentIdentity),
    /// Time to try again what failed: flushes that found the disk full.
    Tick,
    /// The process is told to end (SIGTERM), or power is about to go (SIGPWR).
    Shutdown,
}

/// How the flush of a closed segment ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlushResult {
    /// On disk, folder fsynced.
    Done,
    /// The slot's bytes do not match its closure: nothing was written.
    Corrupt,
    /// The disk refused; the bytes stay in memory and the flush is tried again at the next tick.
    Failed,
}

/// A reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `Fence` and `Inventory`.
    Inventory(Inventory),
    /// To `Connect`: accept a channel for this writer.
    Connect(Epoch),
    /// To `Open`: send the grant of this slot's lending.
    Opened(Slot),
    /// To `Fetch`: send the bytes that lie here.
    Fetch(Place, SegmentIdentity, Closure),
    /// To `Flush`: on disk up to here.
    Flushed(Offset),
    /// To the others.
    Done,
    /// To any.
    Refused(Refusal),
}

/// What a backup must do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write the promise to disk and fsync. Failure ends the process.
    Persist(Promise),
    /// Revoke every writer of an epoch below this one, with the fabric's barrier. Failure ends the process.
    RevokeBelow(Epoch),
    /// Record what a slot is used for, where a restart of the process finds it. Failure ends the process.
    SaveSlot(Slot, Option<SlotRow>),
    /// Lend the slot, all zero, to the writer of this epoch; answer with [`Input::Lent`] before the next output.
    Lend(RequestId, Slot, Epoch),
    /// End the slot's lending: its writer has finished.
    EndLending(Slot),
    /// Scan the slot for this segment; answer with [`Input::Scanned`] before the next output.
    Scan(Slot, SegmentIdentity),
    /// Check the slot's bytes against the closure; answer with [`Input::Verified`] before the next output.
    Verify(Slot, SegmentIdentity, Closure),
    /// Write the closed segment to disk in the background, in place of any older file of that segment, open or closed;
    /// answer with [`Input::Flushed`]. Flushes and deletions are carried out one after the other, in this order.
    StartFlush(Slot, SegmentIdentity, Closure),
    /// Bring an open segment's appends that end at or before the offset to disk, in the background; answer with
    /// [`Input::OpenFlushed`]. Scan on from where the last flush ended, and write whole valid appends only: the request says
    /// what has completed, and with RDMA that is with the network card, but perhaps not yet where the processor sees it;
    /// zeros or half a record would be written and called flushed. And a work request may end in the middle of an append.
    /// What is on disk already stays there: a late request may ask for less than an earlier one.
    StartOpenFlush(RequestId, Slot, SegmentIdentity, Offset),
    /// Write an open segment to disk as it is, now, because the process is about to end.
    FlushOpen(Slot, SegmentIdentity, Closure),
    /// Give the slot's memory back: end its lending, if any, and its flush, of which nothing is reported any more.
    Release(Slot),
    /// Delete a flushed segment's file, whether open or closed.
    DeleteFile(SegmentId),
    /// Answer a request.
    Reply(RequestId, Reply),
    /// End the process. `complete`: everything is on disk; leave the mark that lets the identity survive the memory.
    Finish {
        /// Nothing is in memory only.
        complete: bool,
    },
}

/// A fence that waits for its scans.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PendingFence {
    requests: Vec<RequestId>,
    scans: Vec<Slot>,
}

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
#[derive(Debug)]
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

    // Fence: persist the promise, revoke, scan, only then reply (S4, S5).
    fn on_fence(
        &mut self,
        id: RequestId,
        request: &FenceRequest,
        out: &mut Vec<Output>,
    ) -> Result<Option<Reply>, Refusal> {
        let caller = &request.caller;
        self.admit_log(caller)?;
        if caller.epoch < self.promise.epoch {
            return Err(Refusal::Fenced { promised: self.promise.epoch });
        }
        if caller.epoch == self.promise.epoch && self.promise.log == Some(caller.log) {
            // Asked again: the first fence is done, or its scans are under way.
            return match &mut self.fence {
                Some(fence) => {
                    fence.requests.push(id);
                    Ok(None)
                }
                None => Ok(Some(Reply::Inventory(self.inventory()))),
            };
        }
        self.promise = Promise { log: Some(caller.log), epoch: caller.epoch, ..self.promise.clone() };
        if !planted::has(Bug::EpochNotPersisted) {
            out.push(Output::Persist(self.promise.clone()));
        }
        if !planted::has(Bug::FenceBeforeRevoke) {
            out.push(Output::RevokeBelow(caller.epoch));
        }
        self.abandon_installs(out);
        // Whoever waits for an older fence must not read the answer to a newer one.
        let outrun = self.fence.take().map(|fence| fence.requests).unwrap_or_default();
        let fenced = || Reply::Refused(Refusal::Fenced { promised: caller.epoch });
        out.extend(outrun.into_iter().map(|id| Output::Reply(id, fenced())));
        let lent = self.copies.values().filter(|copy| copy.stage == Stage::Lent);
        let scans: Vec<Slot> = lent.filter_map(Copy::slot).collect();
        let wanted = self.copies.values().filter(|copy| copy.stage == Stage::Lent);
        out.extend(wanted.filter_map(|copy| Some(Output::Scan(copy.slot()?, copy.identity))));
        self.fence = Some(PendingFence { requests: vec![id], scans });
        self.finish_fence(out);
        Ok(None)
    }

    fn on_scanned(&mut self, slot: Slot, closure: Closure, out: &mut Vec<Output>) {
        if let Some(copy) = self.copies.values_mut().find(|copy| copy.slot() == Some(slot)) {
            copy.stage = Stage::Recovered;
            copy.closure = closure;
        }
        if let Some(fence) = &mut self.fence {
            fence.scans.retain(|waiting| *waiting != slot);
            self.finish_fence(out);
        }
        if self.ending {
            self.finish_when_flushed(out);
        }
    }

    /// An image counts only once closed, so one that its writer can no longer finish is nothing.
    fn abandon_installs(&mut self, out: &mut Vec<Output>) {
        for image in std::mem::take(&mut self.installs).into_values() {
            out.extend(image.slot().into_iter().flat_map(Self::freed));
        }
    }

    fn finish_fence(&mut self, out: &mut Vec<Output>) {
        if self.fence.as_ref().is_none_or(|fence| !fence.scans.is_empty()) {
            return;
        }
        let inventory = self.inventory();
        let requests = self.fence.take().map(|fence| fence.requests).unwrap_or_default();
        out.extend(requests.into_iter().map(|id| Output::Reply(id, Reply::Inventory(inventory.clone()))));
    }

    /// What this backup holds.
    pub fn inventory(&self) -> Inventory {
        let listed = self.copies.values().filter(|copy| copy.stage != Stage::Lent);
        Inventory {
            member: self.member.clone(),
            boot: self.boot,
            log: self.promise.log,
            promised: self.promise.epoch,
            trimmed: self.promise.trimmed,
            copies: listed.map(|copy| copy.report(self.promise.durability)).collect(),
        }
    }

    // Open: lend a buffer, all zero, to the promised epoch.
    fn on_open(
        &mut self,
        id: RequestId,
        request: &OpenRequest,
        out: &mut Vec<Output>,
    ) -> Result<Option<Reply>, Refusal> {
        self.admit(&request.caller)?;
        let identity = request.identity;
        if identity.log != request.caller.log || identity.epoch > request.caller.epoch {
            return Err(Refusal::BadRequest {
                why: format!("segment {} is not of the caller's log", identity.segment),
            });
        }
        if identity.size.bytes() > self.limits.slot_size {
            let (size, slot) = (identity.size, crate::layout::readable_size(u64::from(self.limits.slot_size)));
            let why = format!(
                "segment size {size}: the buffers of backup {} are {slot}; start it with larger ones",
                self.member
            );
            return Err(Refusal::BadRequest { why });
        }
        let row = SlotRow { identity, purpose: request.purpose, lender: request.caller.epoch, closed: None };
        let known = match request.purpose {
            Purpose::Append => self.copies.get(&identity.segment),
            Purpose::Install => self.installs.get(&identity.segment),
        };
        // The reply to the first request may have been lost; lending anew would wipe what has been written since.
        if let Some(slot) = known.filter(|copy| copy.is_lending(&row)).and_then(Copy::slot) {
            return Ok(Some(Reply::Opened(slot)));
        }
        if request.purpose == Purpose::Append && known.is_some() {
            let why = "a copy is here already: drop it first, if it is no part of the log".to_owned();
            return Err(Refusal::NoSuchCopy { segment: identity.segment, why });
        }
        let abandoned = known.and_then(Copy::slot);
        let slot = self.free_slot(abandoned)?;
        if self.promise.durability != request.durability {
            self.promise.durability = request.durability;
            out.push(Output::Persist(self.promise.clone()));
        }
        out.extend(abandoned.into_iter().flat_map(Self::freed));
        let table = match request.purpose {
            Purpose::Append => &mut self.copies,
            Purpose::Install => &mut self.installs,
        };
        table.insert(identity.segment, Copy::lent(slot, &row));
        out.push(Output::SaveSlot(slot, Some(row)));
        out.push(Output::Lend(id, slot, request.caller.epoch));
        Ok(None)
    }

    fn on_lent(&mut self, id: RequestId, slot: Slot, result: Result<(), String>, out: &mut Vec<Output>) {
        let reply = match result {
            Ok(()) => Reply::Opened(slot),
            Err(why) => {
                self.copies.retain(|_, copy| copy.slot() != Some(slot));
                self.installs.retain(|_, copy| copy.slot() != Some(slot));
                out.extend(Self::freed(slot));
                Reply::Refused(Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why })
            }
        };
        out.push(Output::Reply(id, reply));
    }

    /// A slot to lend, within the bound of what could be flushed. `freed` will be free by then.
    fn free_slot(&self, freed: Option<Slot>) -> Result<Slot, Refusal> {
        let used: Vec<Slot> = self.slots_in_use().filter(|slot| Some(*slot) != freed).collect();
        let unflushed = self.unflushed_bytes() - freed.map_or(0, |_| u64::from(self.limits.slot_size));
        if unflushed + u64::from(self.limits.slot_size) > self.limits.unflushed_bytes_max {
            let readable = crate::layout::readable_size;
            let why = format!(
                "{} are lent or not yet flushed; backup {} may have at most {} (flush bandwidth × hold-up time)",
                readable(unflushed),
                self.member,
                readable(self.limits.unflushed_bytes_max)
            );
            return Err(Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why });
        }
        // `freed` itself is not taken: its writer may still be on its way out.
        let free = (0..self.limits.slots).map(Slot).find(|slot| !used.contains(slot) && Some(*slot) != freed);
        free.ok_or_else(|| Refusal::RetryLater {
            after_ms: RETRY_AFTER_MS,
            why: format!("all {} buffers of backup {} are in use", self.limits.slots, self.member),
        })
    }

    // Close: the segment is whole; flush it, then give its memory back.
    fn on_close(
        &mut self,
        id: RequestId,
        request: CloseRequest,
        out: &mut Vec<Output>,
    ) -> Result<Option<Reply>, Refusal> {
        self.admit(&request.caller)?;
        let segment = request.identity.segment;
        let here = |copy: &&Copy| copy.identity == request.identity;
        let install = self.installs.get(&segment).filter(here).filter(|copy| copy.stage == Stage::Lent);
        let copy = install.or_else(|| self.copies.get(&segment).filter(here));
        let Some(copy) = copy else {
            let why = "not here, or of another opening".to_owned();
            return Err(Refusal::NoSuchCopy { segment, why });
        };
        let Some(slot) = copy.slot().filter(|_| copy.stage != Stage::Corrupt) else {
            return Self::closed_already(copy, &request).map(|()| Some(Reply::Done));
        };
        match copy.stage {
            Stage::Closed | Stage::Corrupt => {
                Self::closed_already(copy, &request)?;
                self.reply_when_safe(id, slot, out);
                Ok(None)
            }
            // Closed by the primary that wrote it: the flush verifies, off the path.
            Stage::Lent if copy.purpose == Purpose::Append => {
                out.push(Output::EndLending(slot));
                self.seal(slot, &request, out);
                Ok(Some(Reply::Done))
            }
            // An image, or a recovered tail: from now on it may be the only copy that counts, so look first.
            Stage::Lent | Stage::Recovered => {
                if copy.stage == Stage::Lent {
                    out.push(Output::EndLending(slot));
                }
                out.push(Output::Verify(slot, request.identity, request.closure));
                self.closing = Some((id, slot, request));
                Ok(None)
            }
        }
    }

    fn closed_already(copy: &Copy, request: &CloseRequest) -> Result<(), Refusal> {
        let segment = request.identity.segment;
        if copy.stage == Stage::Corrupt {
            return Err(Refusal::Corrupt { segment });
        }
        if copy.closure == request.closure {
            return Ok(());
        }
        let why = format!("closed at LSN {} already, not at {}", copy.closure.last, request.closure.last);
        Err(Refusal::NoSuchCopy { segment, why })
    }

    /// Says that a slot is closed: now, or under durability `Flushed` once it is on disk. There a restart may find
    /// nothing but the disk and still keep its identity, so what was only copied into memory must not count yet.
    fn reply_when_safe(&mut self, id: RequestId, slot: Slot, out: &mut Vec<Output>) {
        if self.promise.durability != Durability::Flushed {
            return out.push(Output::Reply(id, Reply::Done));
        }
        if let Some(earlier) = self.unflushed.insert(slot, id) {
            let why = "a later request waits for the same flush".to_owned();
            let refusal = Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why };
            out.push(Output::Reply(earlier, Reply::Refused(refusal)));
        }
    }

    fn on_verified(&mut self, slot: Slot, sound: bool, out: &mut Vec<Output>) {
        let Some((id, _, request)) = self.closing.take_if(|(_, waiting, _)| *waiting == slot) else { return };
        if sound {
            self.seal(slot, &request, out);
            return self.reply_when_safe(id, slot, out);
        }
        let segment = request.identity.segment;
        let image = self.installs.get(&segment).is_some_and(|image| image.slot() == Some(slot));
        if image {
            self.installs.remove(&segment);
            out.extend(Self::freed(slot));
        }
        out.push(Output::Reply(id, Reply::Refused(Refusal::Corrupt { segment })));
        // The bytes have changed since the scan: the next inventory must tell what is left of them.
        if !image {
            out.push(Output::Scan(slot, request.identity));
        }
    }

    /// The slot holds a whole segment from now on. An image takes the place of an older copy, which goes from memory; its
    /// file stays until the flush replaces it, because until then it may be all that a restart would find.
    fn seal(&mut self, slot: Slot, request: &CloseRequest, out: &mut Vec<Output>) {
        let segment = request.identity.segment;
        let is_image = self.installs.get(&segment).is_some_and(|image| image.slot() == Some(slot));
        if is_image {
            self.installs.remove(&segment);
        }
        let row = SlotRow {
            identity: request.identity,
            purpose: Purpose::Append,
            lender: request.caller.epoch,
            closed: Some(request.closure),
        };
        out.push(Output::SaveSlot(slot, Some(row)));
        let old = self.copies.insert(segment, Copy::closed_in(slot, &row, request.closure));
        if let Some(old) = old.filter(|_| is_image) {
            self.free_memory(&old, out);
        }
        out.push(Output::StartFlush(slot, request.identity, request.closure));
    }

    fn on_flushed(&mut self, slot: Slot, identity: &SegmentIdentity, result: &FlushResult, out: &mut Vec<Output>) {
        let flushed = |copy: &&mut Copy| copy.slot() == Some(slot) && copy.identity == *identity && copy.flushing;
        if let Some(copy) = self.copies.values_mut().find(flushed) {
            copy.flushing = false;
            let segment = identity.segment;
            let reply = match result {
                FlushResult::Done => {
                    copy.place = Place::Disk;
                    out.extend(Self::freed(slot));
                    Some(Reply::Done)
                }
                FlushResult::Corrupt => {
                    copy.stage = Stage::Corrupt;
                    Some(Reply::Refused(Refusal::Corrupt { segment }))
                }
                FlushResult::Failed => None,
            };
            let waiting = reply.and_then(|reply| Some((self.unflushed.remove(&slot)?, reply)));
            out.extend(waiting.map(|(id, reply)| Output::Reply(id, reply)));
        }
        if self.ending {
            self.finish_when_flushed(out);
        }
    }

    fn on_tick(&mut self, out: &mut Vec<Output>) {
        if planted::has(Bug::FenceBeforeRevoke) {
            out.push(Output::RevokeBelow(self.promise.epoch));
        }
        for copy in self.copies.values_mut() {
            if let (Stage::Closed, Some(slot), false) = (copy.stage, copy.slot(), copy.flushing) {
                copy.flushing = true;
                out.push(Output::StartFlush(slot, copy.identity, copy.closure));
            }
        }
    }

    // Flush: durability `flushed` asks for the bytes of an open segment.
    fn on_flush(
        &mut self,
        id: RequestId,
        request: &FlushRequest,
        out: &mut Vec<Output>,
    ) -> Result<Option<Reply>, Refusal> {
        self.admit(&request.caller)?;
        let segment = request.identity.segment;
        let copy = self.copies.get(&segment).filter(|copy| copy.identity == request.identity);
        match copy.map(|copy| (copy.stage, copy.slot())) {
            // Closed meanwhile and on disk as a whole.
            Some((Stage::Closed, None)) => Ok(Some(Reply::Flushed(request.end))),
            Some((Stage::Lent | Stage::Closed, Some(slot))) if request.end.0 <= request.identity.size.bytes() => {
                out.push(Output::StartOpenFlush(id, slot, request.identity, request.end));
                Ok(None)
            }
            _ => Err(Refusal::NoSuchCopy { segment, why: "not lent to the caller".to_owned() }),
        }
    }

    fn on_fetch(&self, request: &FetchRequest) -> Result<Reply, Refusal> {
        if request.group != self.group {
            let why = format!("backup {} serves group {}, not {}", self.member, self.group, request.group);
            return Err(Refusal::WrongLog { why });
        }
        let segment = request.identity.segment;
        let copy = self.copies.get(&segment).filter(|copy| copy.identity == request.identity);
        match copy {
            Some(copy) if copy.stage == Stage::Closed && copy.closure == request.closure => {
                Ok(Reply::Fetch(copy.place, copy.identity, copy.closure))
            }
            Some(copy) if copy.stage == Stage::Corrupt => Err(Refusal::Corrupt { segment }),
            Some(_) => Err(Refusal::NoSuchCopy { segment, why: "not closed at that LSN".to_owned() }),
            None => Err(Refusal::NoSuchCopy { segment, why: "not here, or of another opening".to_owned() }),
        }
    }

    // Trim: whole closed segments only, and never the last one, which tells where the log goes on.
    fn on_trim(&mut self, request: &TrimRequest, out: &mut Vec<Output>) -> Result<Reply, Refusal> {
        self.admit(&request.caller)?;
        if request.below > self.promise.trimmed {
            self.promise.trimmed = request.below;
            out.push(Output::Persist(self.promise.clone()));
        }
        let closed = |copy: &&Copy| copy.stage == Stage::Closed && copy.closure.records() > 0;
        let Some(newest) = self.copies.values().filter(closed).map(|copy| copy.identity.segment).max() else {
            return Ok(Reply::Done);
        };
        let ended = |copy: &Copy| matches!(copy.stage, Stage::Closed | Stage::Corrupt);
        let needless =
            |copy: &&Copy| ended(copy) && copy.closure.last < request.below && copy.identity.segment < newest;
        let segments: Vec<SegmentId> =
            self.copies.values().filter(needless).map(|copy| copy.identity.segment).collect();
        self.forget(&segments, out);
        Ok(Reply::Done)
    }

    /// Drops exactly the copies that the caller saw: a late repetition finds others and leaves them alone.
    fn on_drop(&mut self, request: &DropRequest, out: &mut Vec<Output>) -> Result<Reply, Refusal> {
        self.admit(&request.caller)?;
        let report = |copy: &Copy| copy.report(self.promise.durability);
        let seen = |copy: &&Copy| copy.stage != Stage::Lent && request.copies.contains(&report(copy));
        let segments: Vec<SegmentId> = self.copies.values().filter(seen).map(|copy| copy.identity.segment).collect();
        self.forget(&segments, out);
        Ok(Reply::Done)
    }

    fn forget(&mut self, segments: &[SegmentId], out: &mut Vec<Output>) {
        for segment in segments {
            if let Some(copy) = self.copies.remove(segment) {
                self.free_memory(&copy, out);
                out.push(Output::DeleteFile(*segment));
            }
        }
    }

    fn on_found_corrupt(&mut self, identity: &SegmentIdentity) {
        if let Some(copy) = self.copies.get_mut(&identity.segment).filter(|copy| copy.identity == *identity) {
            copy.stage = Stage::Corrupt;
        }
    }

    // Shutdown: nobody may write any more, then everything goes to disk. A refused promise of a later epoch stays open:
    // `Epoch(u64::MAX)` is never persisted.
    fn on_shutdown(&mut self, out: &mut Vec<Output>) {
        if self.ending {
            return;
        }
        self.ending = true;
        out.push(Output::RevokeBelow(Epoch(u64::MAX)));
        self.abandon_installs(out);
        for copy in self.copies.values().filter(|copy| copy.stage == Stage::Lent) {
            out.extend(copy.slot().map(|slot| Output::Scan(slot, copy.identity)));
        }
        self.on_tick(out);
        self.finish_when_flushed(out);
    }

    /// Ends once no flush is under way and no scan is awaited. Where the disk refused a segment the identity stays with
    /// the memory alone.
    fn finish_when_flushed(&mut self, out: &mut Vec<Output>) {
        let busy = self.copies.values().any(|copy| copy.stage == Stage::Lent || copy.flushing);
        if busy || std::mem::replace(&mut self.finished, true) {
            return;
        }
        let open = self.copies.values().filter(|copy| copy.stage == Stage::Recovered);
        out.extend(open.filter_map(|copy| Some(Output::FlushOpen(copy.slot()?, copy.identity, copy.closure))));
        let refused = self.copies.values().any(|copy| copy.stage == Stage::Closed && copy.slot().is_some());
        out.push(Output::Finish { complete: !refused });
    }

    fn free_memory(&mut self, copy: &Copy, out: &mut Vec<Output>) {
        let Some(slot) = copy.slot() else { return };
        let why = "replaced or dropped before it was on disk".to_owned();
        let gone = Refusal::NoSuchCopy { segment: copy.identity.segment, why };
        out.extend(self.unflushed.remove(&slot).map(|id| Output::Reply(id, Reply::Refused(gone))));
        out.extend(Self::freed(slot));
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

fn open_flush_reply(result: Result<Offset, String>) -> Reply {
    match result {
        Ok(end) => Reply::Flushed(end),
        Err(why) => Reply::Refused(Refusal::Failed { why }),
    }
}
