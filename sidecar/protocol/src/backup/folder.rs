//! How full the flush folder is: what is there, what else is to come, and how much it may be.
//!
//! Part of [`Backup`]; asked by [`lending`](super::lending). A folder on a node's disk that grows beyond its limit takes the pod
//! with it: the kubelet evicts the pod, and all members hold the same segments. So a backup stops lending before (S9).

use crate::ids::{Offset, SegmentId};
use crate::layout::{FOOTER_SIZE, readable_size};
use crate::rpc::{Purpose, Refusal};

use super::{Backup, Copy, Output, Place, RETRY_AFTER_MS};

/// Fewest segments that a bound on the flush folder may have room for: the ledger and its like count as one, the newest closed
/// segment is never trimmed, one is being filled, one is ready, and one is kept for images. And one to append to.
pub const FLUSH_SEGMENTS_MIN: u64 = 6;

/// Bytes of files that are no segments of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OtherFiles {
    counted: u64,
    /// What has gone into quarantine since: the next count may have begun before or after. So it is added to that count, and
    /// forgotten at the one after.
    quarantined: u64,
}

impl OtherFiles {
    pub(super) fn new(counted: u64) -> OtherFiles {
        OtherFiles { counted, quarantined: 0 }
    }

    fn bytes(self) -> u64 {
        self.counted.saturating_add(self.quarantined)
    }
}

impl Backup {
    pub(super) fn on_other_files(&mut self, bytes: u64) {
        self.other_files = OtherFiles::new(bytes.saturating_add(self.other_files.quarantined));
    }

    /// Files that move into quarantine stay in the folder. Their lengths are not known here: each may be a whole segment.
    pub(super) fn note_quarantined(&mut self, out: &[Output]) {
        let moved = out.iter().filter(|output| matches!(output, Output::Quarantine(_))).count() as u64;
        self.add_quarantined(moved * self.file_bytes_max());
    }

    /// Without a bound nothing depends on it, and the next count is soon enough.
    pub(super) fn add_quarantined(&mut self, bytes: u64) {
        if self.limits.flush_bytes_max.is_some() {
            self.other_files.quarantined = self.other_files.quarantined.saturating_add(bytes);
        }
    }

    /// Bytes that the flush folder holds, or will hold once everything lent is on disk.
    pub fn flush_bytes(&self) -> u64 {
        let to_come = self.slots_to_flush().count() as u64 * self.file_bytes_max();
        self.segment_file_bytes() + self.other_files.bytes() + to_come
    }

    /// What is to be said when lending for this purpose, with this many slots in use, could fill the folder beyond its bound.
    pub(super) fn check_folder(&self, purpose: Purpose, used: u64) -> Result<(), Refusal> {
        let Some(max) = self.limits.flush_bytes_max else { return Ok(()) };
        let slot_size = u64::from(self.limits.slot_size);
        // In whole segments: the ledgers of members differ by some kilobytes. Without this, one member could refuse a segment
        // that the others lend, and be dropped from the set for that.
        let others = self.other_files.bytes().div_ceil(slot_size).saturating_mul(slot_size);
        let kept = u64::from(purpose == Purpose::Append);
        let to_come = (used + 1 + kept) * self.file_bytes_max();
        if self.segment_file_bytes().saturating_add(others).saturating_add(to_come) <= max {
            return Ok(());
        }
        let why = format!(
            "the flush folder of backup {} is full: it holds {}, what is lent included, and may hold {} (see --flush-bytes), with \
             room for one more segment and one image; trim the log or release files in quarantine",
            self.member,
            readable_size(self.flush_bytes()),
            readable_size(max)
        );
        Err(Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why })
    }

    /// Has the files of trimmed segments deleted. They count until they are gone: what is lent from now on may be written
    /// before.
    pub(super) fn delete_trimmed(&mut self, trimmed: Vec<(SegmentId, u64)>, out: &mut Vec<Output>) {
        if trimmed.is_empty() {
            return;
        }
        out.push(Output::DeleteTrimmed(trimmed.iter().map(|(segment, _)| *segment).collect()));
        self.deleting.extend(trimmed);
    }

    pub(super) fn on_deleted(&mut self, segments: &[SegmentId], out: &mut Vec<Output>) {
        for segment in segments {
            self.deleting.remove(segment);
        }
        self.go_on_trimming(out);
    }

    pub(super) fn on_not_deleted(&mut self, segments: &[SegmentId], out: &mut Vec<Output>) {
        let left = segments.iter().filter_map(|segment| self.deleting.remove_entry(segment));
        self.undeleted.extend(left);
        self.go_on_trimming(out);
    }

    /// A trim continues once the disk has answered for everything that it has removed so far.
    fn go_on_trimming(&mut self, out: &mut Vec<Output>) {
        if let Some(below) = self.trimming.filter(|_| self.deleting.is_empty() && !self.ending) {
            self.trim(below, out);
        }
    }

    /// Time passes: the disk may delete now what it did not. A copy that has come since has these files' names.
    pub(super) fn delete_again(&mut self, out: &mut Vec<Output>) {
        let undeleted = std::mem::take(&mut self.undeleted).into_iter();
        self.delete_trimmed(undeleted.filter(|(segment, _)| !self.copies.contains_key(segment)).collect(), out);
    }

    /// The most bytes that the file of a copy may have.
    pub(super) fn copy_file_bytes(&self, copy: &Copy) -> u64 {
        match copy.place {
            Place::Disk | Place::Both(_) => file_bytes(copy.closure.end),
            // For an open segment what has been flushed, for a closed one what is being flushed.
            Place::Memory(_) => self.file_bytes_max(),
        }
    }

    /// Bytes of the closed files that are there or should be, and of those that are being deleted. A missing one counts: its
    /// repair will write it again.
    fn segment_file_bytes(&self) -> u64 {
        let on_disk = self.copies.values().filter(|copy| copy.place == Place::Disk);
        let kept: u64 = on_disk.map(|copy| file_bytes(copy.closure.end)).sum();
        kept + self.deleting.values().chain(self.undeleted.values()).sum::<u64>()
    }

    fn file_bytes_max(&self) -> u64 {
        file_bytes(Offset(self.limits.slot_size))
    }
}

pub(super) fn file_bytes(end: Offset) -> u64 {
    u64::from(end.0) + FOOTER_SIZE as u64
}
