//! The limits, promise, inputs and outputs of a backup's machine.
//!
//! Used by [`Backup`](super::Backup); the daemon carries [`Output`]s out.

use crate::config::Durability;
use crate::ids::{BootId, Claim, Epoch, LogId, Lsn, Offset, SegmentId};
use crate::layout::{Closure, SegmentIdentity};
use crate::rpc::{
    Caller, CloseRequest, CopyReport, DAMAGE_LENGTH_MAX, DropRequest, FenceRequest, FetchRequest, FlushRequest,
    Inventory, OpenRequest, Refusal, SyncRequest, Synced, TrimRequest,
};
use crate::scan::Tail;

use super::{Place, Slot, SlotRow};

/// Limits that a backup is started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Buffers in the pool.
    pub slots: u32,
    /// Bytes of each.
    pub slot_size: u32,
    /// Most bytes that may be lent or closed but not yet on disk: flush bandwidth × hold-up time (ATC'18 section 3.2).
    pub unflushed_bytes_max: u64,
    /// Most bytes that the flush folder may hold once everything lent is on disk. `None`: as many as the disk takes.
    pub flush_bytes_max: Option<u64>,
    /// Most residents: closed copies on disk that keep a buffer, of the buffers in the pool. 0: none does.
    pub residents: u32,
    /// Most copies that it holds: [`INVENTORY_MAX`](crate::rpc::INVENTORY_MAX), or fewer where its memory has room for fewer.
    pub copies_max: usize,
}

/// What must survive the loss of all memory; kept on disk, fsynced before a promise is reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Promise {
    /// The log this backup is bound to.
    pub log: Option<LogId>,
    /// No epoch below this one may change anything.
    pub epoch: Epoch,
    /// The claim of that epoch. Another claim of the same epoch shows that the config store went back.
    #[serde(default)]
    pub claim: Option<Claim>,
    /// Records below are no longer needed.
    pub trimmed: Lsn,
    /// What the group's acks promise; decides whether disk alone is enough to keep the identity.
    pub durability: Durability,
    /// Why the copies held up to an epoch may not be complete. Cleared when a later epoch opens a segment here for appends: its
    /// primary has made this backup hold the log.
    #[serde(default)]
    pub doubt: Option<Doubt>,
    /// The log up to here is on this backup's disk; its primary may have told the app so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synced: Option<Synced>,
    /// Identities that this backup had before it lost its memory, the latest last, at most
    /// [`FORMER_MAX`](crate::rpc::FORMER_MAX). What is on its disk was written under them. Cleared like a doubt: from then on a
    /// group relies on what this backup holds under its new identity, or has no need of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<BootId>,
}

impl Promise {
    /// Adds these to what it doubts; to be persisted.
    pub fn add_doubts(&mut self, doubts: &[String]) {
        let mut why = self.doubt.take().map(|doubt| doubt.why).unwrap_or_default();
        for doubt in doubts {
            if !why.contains(doubt.as_str()) {
                why = if why.is_empty() { doubt.clone() } else { format!("{why}; {doubt}") };
            }
        }
        if why.len() > DOUBT_LENGTH_MAX {
            let cut = (0..=DOUBT_LENGTH_MAX).rev().find(|at| why.is_char_boundary(*at)).unwrap_or(0);
            why.truncate(cut);
        }
        self.doubt = Some(Doubt { epoch: self.epoch, why });
    }
}

/// A loss that a backup has noticed and cannot name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Doubt {
    /// What was held under this epoch and before is in doubt.
    pub epoch: Epoch,
    /// What was found, for people; at most [`DOUBT_LENGTH_MAX`] bytes.
    pub why: String,
}

/// Longest text of a [`Doubt`]: it lies in the promise's block of 4 KiB beside two names.
pub const DOUBT_LENGTH_MAX: usize = DAMAGE_LENGTH_MAX;

/// A number that pairs an input with the reply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A request to a backup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Stop older epochs, then report what is held.
    Fence(FenceRequest),
    /// Report what is held after this segment.
    Inventory(Option<SegmentId>),
    /// Report which closed copies are missing or corrupt.
    Damage,
    /// Admit this caller to a data channel.
    Connect(Caller),
    /// Lend a buffer.
    Open(OpenRequest),
    /// Close a segment.
    Close(CloseRequest),
    /// Flush an open segment up to an offset.
    Flush(FlushRequest),
    /// Bring the log up to a point to disk, and remember it.
    Sync(SyncRequest),
    /// Send a closed segment's bytes.
    Fetch(FetchRequest),
    /// Remove what is no longer needed.
    Trim(TrimRequest),
    /// Remove what is not part of the log.
    Drop(DropRequest),
}

/// What happens to a backup.
#[derive(Clone, Debug)]
pub enum Input {
    /// A request has arrived.
    Request(RequestId, Request),
    /// The answer to [`Output::Scan`]: where the valid bytes of the slot end.
    Scanned(Slot, Tail),
    /// The answer to [`Output::Verify`]: whether the slot's bytes match the closure.
    Verified(Slot, bool),
    /// The answer to [`Output::Lend`]: lent, or why the pool has no memory for it.
    Lent(RequestId, Slot, Result<(), String>),
    /// The answer to [`Output::StartFlush`].
    Flushed(Slot, SegmentIdentity, FlushResult),
    /// The answer to [`Output::StartOpenFlush`]: where the last whole valid append of this segment on disk ends, or why the disk
    /// refused.
    OpenFlushed(RequestId, SegmentIdentity, Result<Offset, String>),
    /// The answer to [`Output::StartQuarantine`]: in quarantine, or the disk refused.
    Quarantined(Slot, Result<(), String>),
    /// A pull has failed that was to fill the image in this slot, and nobody else was given the slot.
    GivenUp(Slot),
    /// Bytes of the files in the flush folder that are no segments of the log: the ledger, the promise, the quarantine. Counted
    /// from time to time, because an administrator may remove files.
    OtherFiles(u64),
    /// The answer to [`Output::DeleteTrimmed`], perhaps in parts: these files are deleted.
    Deleted(Vec<SegmentId>),
    /// The answer to [`Output::DeleteTrimmed`], perhaps in parts: the disk refused, and these files may still be there.
    NotDeleted(Vec<SegmentId>),
    /// A closed segment that was read did not match its closure, or is missing. The place says which copy was read: an image
    /// may have replaced it since. Of a copy that is in both places, what was read is the buffer.
    FoundCorrupt(SegmentIdentity, Place),
    /// A closed copy that is on disk alone was read there and verified; the reader has its bytes, see
    /// [`Backup::loadable`](super::Backup::loadable).
    Load(SegmentIdentity, Closure),
    /// The answer to [`Output::Load`]: the bytes are in the slot, or why the pool has no memory for them.
    Loaded(Slot, Result<(), String>),
    /// Time to retry what failed, such as flushes that found the disk full. Once a second.
    Tick,
    /// The process must end (SIGTERM), or power is about to fail (SIGPWR).
    Shutdown,
}

/// How the flush of a closed segment ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlushResult {
    /// On disk, folder fsynced.
    Done,
    /// The slot's bytes do not match its closure: nothing was written.
    Corrupt,
    /// The disk refused; the bytes stay in memory and the flush is retried at the next tick.
    Failed,
}

/// A reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `Fence` and `Inventory`.
    Inventory(Inventory),
    /// To `Damage`.
    Damage(Vec<CopyReport>),
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
    /// End the slot's lending: its writer has finished, and writes nothing more.
    EndLending(Slot),
    /// Scan the slot for this segment; answer with [`Input::Scanned`] before the next output.
    Scan(Slot, SegmentIdentity),
    /// Check the slot's bytes against the closure; answer with [`Input::Verified`] before the next output.
    Verify(Slot, SegmentIdentity, Closure),
    /// Write the closed segment to disk in the background, in place of any older file of that segment, open or closed;
    /// answer with [`Input::Flushed`]. Flushes, deletions and quarantine are carried out one after the other, in this
    /// order; [`Output::DeleteTrimmed`] is the exception.
    StartFlush(Slot, SegmentIdentity, Closure),
    /// Flush an open segment's appends that end at or before the offset, in the background; answer with
    /// [`Input::OpenFlushed`]. Scan on from where the last flush ended, and write whole valid appends only. The offset says
    /// what has completed, but with RDMA the network card may have completed a write that the processor does not see yet:
    /// zeros or half a record would be written and reported as flushed. A work request may also end in the middle of an
    /// append. What is on disk stays there: a late request may name a smaller offset than an earlier one.
    StartOpenFlush(RequestId, Slot, SegmentIdentity, Offset),
    /// Write an open segment to disk as it is, now, because the process is about to end, and record how far it reached: if it is
    /// damaged, what proves that is not among the bytes that are written.
    FlushOpen(Slot, SegmentIdentity, Tail),
    /// The slot's lending has ended, and its bytes are a cache from now on: no revocation needs to take them out of anybody's
    /// reach.
    Retain(Slot),
    /// Put the bytes that [`Input::Load`] was about into the slot, which nobody may write; answer with [`Input::Loaded`] before
    /// the next output.
    Load(Slot),
    /// Give the slot's bytes up: end its lending, if any, and its flush, which is then not reported. Its writer may not have
    /// finished.
    Release(Slot),
    /// Record durably that these closed segments are now owed, each in place of what was owed of it before.
    /// Failure ends the process.
    Owe(Vec<(SegmentIdentity, Closure)>),
    /// Record durably that this open segment reached at least this offset: a start that finds less misses the rest. Failure ends
    /// the process.
    RecordOpen(SegmentIdentity, Offset),
    /// Record durably that these segments are no longer owed, and need no file. Failure ends the process.
    Settle(Vec<SegmentId>),
    /// Delete a flushed segment's files, whether open or closed: the records are no longer needed.
    DeleteFile(SegmentId),
    /// Delete the files of trimmed segments, whether open or closed, in the background and in any order; answer with
    /// [`Input::Deleted`] or [`Input::NotDeleted`]. What concerns other segments need not wait for it, what concerns the same one
    /// must: a trim may be of thousands of segments.
    DeleteTrimmed(Vec<SegmentId>),
    /// Move a segment's files, whether open or closed, into quarantine: they are not part of the log, but may be the last
    /// copy of their records.
    Quarantine(SegmentId),
    /// Give the file that has an open segment's name and is not understood another name.
    MoveAside(SegmentId),
    /// Write what the slot holds into quarantine, in the background; answer with [`Input::Quarantined`].
    StartQuarantine(Slot, SegmentIdentity, Closure),
    /// Answer a request.
    Reply(RequestId, Reply),
    /// End the process. `complete`: everything is on disk; leave the mark that lets the identity survive the memory.
    Finish {
        /// Nothing is in memory only.
        complete: bool,
    },
}
