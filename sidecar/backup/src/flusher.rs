//! Brings segments to disk, one job after the other.
//!
//! Fed by [`daemon`](crate::daemon) in the order in which the protocol decided, so that a deletion never overtakes the
//! write before it. Only the deletions of a trim, which may be thousands, are done in slices, in turns with the jobs of other
//! segments. Reads [`Buffers`], writes the [`Disk`]. Jobs are bounded by what causes them: one closed flush for each
//! buffer, one open flush for each request under way, one deletion for each file. A backup daemon gives it a thread.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::slice;
use std::sync::Arc;

use tailwind_protocol::backup::{FlushResult, Input, RequestId, Slot};
use tailwind_protocol::ids::{LogId, Offset, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::scan::{self, Tail};
use tracing::{info, warn};

use crate::disk::{Disk, NotDeleted};
use crate::files::File;
use crate::flushed::Flushed;
use crate::memory::Buffers;
use crate::page_buffer::PageBuffer;

/// Something to do on the disk.
#[derive(Clone, Debug)]
pub enum Job {
    /// Write a closed segment.
    Closed(Slot, SegmentIdentity, Closure),
    /// Bring an open segment's appends that end at or before an offset to disk.
    Open(RequestId, Slot, SegmentIdentity, Offset),
    /// The ledger has these segments, so that no open file of theirs is missed.
    Owed(Vec<SegmentId>),
    /// Delete a segment's files.
    Delete(SegmentId, LogId),
    /// Delete the files of trimmed segments.
    DeleteTrimmed(Vec<SegmentId>, LogId),
    /// Give the file that has an open segment's name and is not understood another one.
    MoveAside(SegmentId),
    /// Move a segment's files into quarantine.
    Quarantine(SegmentId, LogId),
    /// Write what a slot holds into quarantine.
    QuarantineSlot(Slot, SegmentIdentity, Closure),
}

impl Job {
    /// The segments whose files it is about.
    fn segments(&self) -> &[SegmentId] {
        match self {
            Job::Closed(_, identity, _) | Job::Open(_, _, identity, _) | Job::QuarantineSlot(_, identity, _) => {
                slice::from_ref(&identity.segment)
            }
            Job::Delete(segment, _) | Job::Quarantine(segment, _) | Job::MoveAside(segment) => slice::from_ref(segment),
            Job::Owed(segments) | Job::DeleteTrimmed(segments, _) => segments,
        }
    }
}

/// Trimmed segments that are deleted at once, with one sync of the folder: some milliseconds, of the two seconds for which the
/// caller of an open flush waits.
const DELETED_AT_ONCE: usize = 16;

/// What is to be done on the disk, and what is known of it.
#[derive(Debug)]
pub struct Flusher {
    disk: Arc<Disk>,
    jobs: VecDeque<Job>,
    /// Slices of trimmed segments, which take turns with the jobs.
    trims: VecDeque<Job>,
    /// The segments in `trims`: a job for one of them waits until its files are deleted.
    trimmed: BTreeSet<SegmentId>,
    /// The last thing that was done was a slice: now it is a job's turn.
    trimmed_last: bool,
    /// Files of open segments, and how far each is verified and on disk.
    files: BTreeMap<SegmentId, Growing>,
    /// Segments whose closed file could not be written: one with its name may be there and gone after a loss of power. A few:
    /// each keeps its buffer until it is written, or deleted.
    unwritten: BTreeSet<SegmentId>,
    /// What is remembered of that.
    flushed: Flushed,
    /// One segment's bytes.
    bytes: PageBuffer,
    /// The last flush failed: said once, not five times a second.
    failing: bool,
    /// The last deletion failed.
    delete_fails: bool,
    /// What no answer waits for could not be noted.
    rest_fails: bool,
}

#[derive(Debug)]
struct Growing {
    identity: SegmentIdentity,
    file: Box<dyn File>,
    flushed: Closure,
}

impl Flusher {
    /// A flusher with nothing to do.
    pub fn new(disk: Arc<Disk>, flushed: Flushed) -> Flusher {
        Flusher {
            disk,
            jobs: VecDeque::new(),
            trims: VecDeque::new(),
            trimmed: BTreeSet::new(),
            trimmed_last: false,
            files: BTreeMap::new(),
            unwritten: BTreeSet::new(),
            flushed,
            bytes: PageBuffer::default(),
            failing: false,
            delete_fails: false,
            rest_fails: false,
        }
    }

    /// Queues a job.
    pub fn queue(&mut self, job: Job) {
        match job {
            Job::DeleteTrimmed(segments, log) => self.queue_trimmed(&segments, log),
            job => self.jobs.push_back(job),
        }
    }

    /// In slices. Where a segment still has a job, its files are deleted after that job, like by any other job.
    fn queue_trimmed(&mut self, segments: &[SegmentId], log: LogId) {
        let busy: BTreeSet<SegmentId> = self.jobs.iter().flat_map(Job::segments).copied().collect();
        let (behind, free): (Vec<_>, Vec<_>) = segments.iter().copied().partition(|segment| busy.contains(segment));
        let slices = |segments: Vec<SegmentId>| -> Vec<Job> {
            segments.chunks(DELETED_AT_ONCE).map(|slice| Job::DeleteTrimmed(slice.to_vec(), log)).collect()
        };
        self.trimmed.extend(&free);
        self.trims.extend(slices(free));
        self.jobs.extend(slices(behind));
    }

    /// The job that is due.
    pub fn due(&self) -> Option<&Job> {
        if self.is_trims_turn() { self.trims.front() } else { self.jobs.front() }
    }

    /// Slices and jobs take turns. A job for a segment that is still to be deleted waits for all slices up to that one.
    fn is_trims_turn(&self) -> bool {
        let waits = |job: &Job| job.segments().iter().any(|segment| self.trimmed.contains(segment));
        !self.trims.is_empty() && (!self.trimmed_last || self.jobs.front().is_none_or(waits))
    }

    fn take_due(&mut self) -> Option<Job> {
        self.trimmed_last = self.is_trims_turn();
        if !self.trimmed_last {
            return self.jobs.pop_front();
        }
        let slice = self.trims.pop_front();
        for segment in slice.iter().flat_map(Job::segments) {
            self.trimmed.remove(segment);
        }
        slice
    }

    /// Does the job that is due. Returns what the protocol waits for.
    pub fn work(&mut self, buffers: &dyn Buffers) -> Vec<Input> {
        match self.take_due() {
            Some(Job::Closed(slot, identity, closure)) => {
                let result = self.flush_closed(buffers, slot, &identity, &closure);
                vec![Input::Flushed(slot, identity, result)]
            }
            Some(Job::Open(id, slot, identity, end)) => {
                let group = self.take_group(id, identity, end);
                self.flush_open(buffers, &group, slot, identity)
            }
            Some(Job::Owed(segments)) => {
                segments.into_iter().for_each(|segment| self.flushed.forget(segment));
                Vec::new()
            }
            Some(Job::Delete(segment, log)) => {
                self.delete(&[segment], log);
                Vec::new()
            }
            Some(Job::DeleteTrimmed(segments, log)) => {
                let left = self.delete(&segments, log);
                let (left, gone): (Vec<_>, Vec<_>) = segments.into_iter().partition(|segment| left.contains(segment));
                let deleted = (!gone.is_empty()).then_some(Input::Deleted(gone));
                deleted.into_iter().chain((!left.is_empty()).then_some(Input::NotDeleted(left))).collect()
            }
            Some(Job::MoveAside(segment)) => {
                // Where it fails, the next start finds the file again.
                if let Err(error) = self.disk.move_aside(segment) {
                    warn!(%segment, %error, "failed to move an unexpected segment file aside");
                }
                Vec::new()
            }
            Some(Job::Quarantine(segment, log)) => {
                self.quarantine(segment, log);
                Vec::new()
            }
            Some(Job::QuarantineSlot(slot, identity, closure)) => {
                let result = self.quarantine_slot(buffers, slot, &identity, &closure);
                vec![Input::Quarantined(slot, result)]
            }
            None => Vec::new(),
        }
    }

    /// Nothing has been to do for a moment, or the process ends: notes what no answer waits for. False if the disk refused.
    pub fn rest(&mut self) -> bool {
        let result = self.flushed.write();
        let failed_before = std::mem::replace(&mut self.rest_fails, result.is_err());
        if let (Err(error), false) = (&result, failed_before) {
            warn!(folder = %self.disk.path().display(), %error, "failed to record how far open segments are flushed: will retry");
        }
        result.is_ok()
    }

    /// True while [`Flusher::rest`] has something to do.
    pub fn is_restless(&self) -> bool {
        self.flushed.is_dirty()
    }

    /// Writes an open segment as it is, the last of all: nothing else is queued. A file that holds more stays: then it is
    /// the memory that has rotted. How far the segment reached is noted in any case.
    pub fn flush_last(
        &mut self,
        buffers: &dyn Buffers,
        slot: Slot,
        identity: &SegmentIdentity,
        tail: &Tail,
    ) -> io::Result<()> {
        let closure = &tail.closure;
        assert!(self.due().is_none(), "what the protocol decided before is done before");
        self.files.remove(&identity.segment);
        if self.disk.open_end(identity)? > closure.end {
            warn!(segment = %identity.segment, end = %closure.end, "the open segment's file is longer than its buffer: kept");
            self.flushed.raise(identity, tail.reached());
            return self.flushed.write();
        }
        if closure.end == Offset(0) {
            // Not even its header is sound. Where it never arrived, the note tells that nothing is missing.
            self.flushed.raise(identity, tail.reached());
            return self.flushed.write();
        }
        self.read(buffers, slot, Offset(0), closure.end)?;
        self.disk.write_open(identity, closure, &self.bytes)?;
        self.flushed.raise(identity, tail.reached());
        self.flushed.write()?;
        info!(segment = %identity.segment, epoch = %identity.epoch, last = %closure.last, "open segment flushed");
        Ok(())
    }

    fn flush_closed(
        &mut self,
        buffers: &dyn Buffers,
        slot: Slot,
        identity: &SegmentIdentity,
        closure: &Closure,
    ) -> FlushResult {
        self.files.remove(&identity.segment);
        match self.read(buffers, slot, Offset(0), closure.end) {
            // Corrupt, or trimmed away while its turn came: the machine knows.
            Ok(()) if !scan::verify(&self.bytes, identity, closure) => FlushResult::Corrupt,
            Ok(()) => self.tried(identity, self.disk.write_closed(identity, closure, &self.bytes)),
            Err(error) => self.tried(identity, Err(error)),
        }
    }

    fn tried(&mut self, identity: &SegmentIdentity, result: io::Result<()>) -> FlushResult {
        let folder = self.disk.path().display();
        self.disk.note(&result);
        match result {
            Ok(()) => {
                self.unwritten.remove(&identity.segment);
                if std::mem::take(&mut self.failing) {
                    info!(%folder, "flushes succeed again");
                }
                info!(segment = %identity.segment, epoch = %identity.epoch, "flushed");
                FlushResult::Done
            }
            Err(error) => {
                self.unwritten.insert(identity.segment);
                if !std::mem::replace(&mut self.failing, true) {
                    warn!(%folder, %error, segment = %identity.segment, "flush failed: will retry");
                }
                FlushResult::Failed
            }
        }
    }

    /// All queued requests for the same segment: one write and one fdatasync serve them all.
    fn take_group(&mut self, id: RequestId, identity: SegmentIdentity, end: Offset) -> Vec<(RequestId, Offset)> {
        let mut group = vec![(id, end)];
        self.jobs.retain(|job| match job {
            Job::Open(id, _, other, end) if *other == identity => {
                group.push((*id, *end));
                false
            }
            _ => true,
        });
        group
    }

    fn flush_open(
        &mut self,
        buffers: &dyn Buffers,
        group: &[(RequestId, Offset)],
        slot: Slot,
        identity: SegmentIdentity,
    ) -> Vec<Input> {
        let end = group.iter().map(|(_, end)| *end).max().unwrap_or_default();
        let result = self.grow(buffers, slot, identity, end).and_then(|end| self.note(&identity, end));
        let result = result.map_err(|error| {
            self.files.remove(&identity.segment);
            if !self.flushed.knows(&identity) {
                // That it is open here all the same tells, should the power go, that nothing is missing.
                self.flushed.note(&identity, Offset(0));
            }
            format!("flush segment {} to {}: {error}", identity.segment, self.disk.path().display())
        });
        group.iter().map(|(id, _)| Input::OpenFlushed(*id, identity, result.clone())).collect()
    }

    /// Notes how far an open segment is flushed, before it is reported: what its file loses from now on is missed.
    fn note(&mut self, identity: &SegmentIdentity, end: Offset) -> io::Result<Offset> {
        if !self.is_closed(identity) {
            assert!(!self.flushed.is_behind(), "what a start doubts is on disk before anything is flushed");
            self.flushed.note(identity, end);
            self.flushed.write()?;
        }
        Ok(end)
    }

    /// Brings an open segment's file up to `end`, as far as whole valid appends go, and returns how far it is on disk.
    ///
    /// What was read is scanned before it is written. Bytes that have completed need not be visible here yet, and the
    /// buffer may have been lent to another segment by now: neither continues the chain. After any failure the file is
    /// recreated: what a disk kept of a failed fdatasync is unknown (`fsync(2)`).
    fn grow(
        &mut self,
        buffers: &dyn Buffers,
        slot: Slot,
        identity: SegmentIdentity,
        end: Offset,
    ) -> io::Result<Offset> {
        let growing = self.files.get(&identity.segment).filter(|growing| growing.identity == identity);
        if growing.is_none() && self.is_closed(&identity) {
            return Ok(end);
        }
        let known = growing.map(|growing| growing.flushed).unwrap_or_default();
        if end <= known.end {
            return Ok(known.end);
        }
        self.read(buffers, slot, known.end, end)?;
        let flushed = scan::scan_on(&self.bytes, &identity, known).closure;
        if flushed.end == known.end {
            return Ok(known.end);
        }
        self.bytes.resize((flushed.end.0 - known.end.0) as usize);
        match self.files.get_mut(&identity.segment).filter(|growing| growing.identity == identity) {
            Some(growing) => {
                growing.file.write_all_at(u64::from(known.end.0), &self.bytes)?;
                growing.file.sync()?;
                growing.flushed = flushed;
            }
            None => {
                let there = self.disk.open_end(&identity)?;
                if there > flushed.end {
                    let end = flushed.end;
                    return Err(io::Error::other(format!(
                        "its buffer is sound up to byte {end}, and its file up to {there}"
                    )));
                }
                let file = self.disk.start_open(&identity, &self.bytes)?;
                self.files.insert(identity.segment, Growing { identity, file, flushed });
            }
        }
        Ok(flushed.end)
    }

    /// True when this very segment is on disk as a whole, and its file's name as well.
    fn is_closed(&self, identity: &SegmentIdentity) -> bool {
        !self.unwritten.contains(&identity.segment) && self.disk.is_closed(identity)
    }

    /// From now on nothing misses the files, whether they still exist or not.
    fn forget(&mut self, segments: &[SegmentId]) -> io::Result<()> {
        for segment in segments {
            self.files.remove(segment);
            self.unwritten.remove(segment);
            self.flushed.forget(*segment);
        }
        self.flushed.write()
    }

    fn quarantine(&mut self, segment: SegmentId, log: LogId) {
        match self.forget(&[segment]).and_then(|()| self.disk.quarantine(segment, log)) {
            Ok(names) => names.iter().for_each(|name| warn!(%segment, name, "not part of the log: quarantined")),
            // Harmless: found at the next start, it is a copy that the primary drops again.
            Err(error) => warn!(%segment, %error, "failed to move a segment file into quarantine"),
        }
    }

    fn quarantine_slot(
        &mut self,
        buffers: &dyn Buffers,
        slot: Slot,
        identity: &SegmentIdentity,
        closure: &Closure,
    ) -> Result<(), String> {
        let written = self.read(buffers, slot, Offset(0), closure.end);
        match written.and_then(|()| self.disk.write_quarantine(identity, closure, &self.bytes)) {
            Ok(name) => {
                warn!(segment = %identity.segment, last = %closure.last, name, "not part of the log: quarantined");
                Ok(())
            }
            Err(error) => {
                warn!(segment = %identity.segment, %error, "failed to move a segment to quarantine: will retry");
                Err(error.to_string())
            }
        }
    }

    /// Returns the segments whose files may still be there. As long as there may be a note of one, its file must stay.
    fn delete(&mut self, segments: &[SegmentId], log: LogId) -> BTreeSet<SegmentId> {
        let forgotten = self.forget(segments);
        let is_noted = |segment: &SegmentId| forgotten.is_err() && self.flushed.may_name(*segment);
        let (noted, free): (Vec<_>, Vec<_>) = segments.iter().copied().partition(is_noted);
        let (mut left, deleted) = match self.disk.delete(&free, log) {
            Ok(()) => (BTreeSet::new(), Ok(())),
            Err(NotDeleted { segments, error }) => (segments, Err(error)),
        };
        left.extend(noted);
        let gone = segments.iter().filter(|segment| !left.contains(segment));
        gone.for_each(|segment| info!(%segment, "deleted"));
        let result = forgotten.and(deleted);
        let failed_before = std::mem::replace(&mut self.delete_fails, result.is_err());
        if let (Err(error), false) = (result, failed_before) {
            let (first, count) = (left.first().map(tracing::field::display), left.len());
            warn!(segment = first, count, %error, "failed to delete segment files");
        }
        left
    }

    fn read(&mut self, buffers: &dyn Buffers, slot: Slot, start: Offset, end: Offset) -> io::Result<()> {
        self.bytes.resize((end.0 - start.0) as usize);
        buffers.read(slot, start.0, &mut self.bytes)
    }
}

#[cfg(test)]
mod tests;
