//! Brings segments to disk, one job after the other.
//!
//! Fed by [`daemon`](crate::daemon) in the order in which the protocol decided, so that a deletion never overtakes the
//! write before it. Reads [`Buffers`], writes the [`Disk`]. Jobs are bounded by what causes them: one closed flush for each
//! buffer, one open flush for each request under way, one deletion for each file. A backup daemon gives it a thread.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

use tailwind_protocol::backup::{FlushResult, Input, RequestId, Slot};
use tailwind_protocol::ids::{LogId, Offset, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::scan;
use tracing::{info, warn};

use crate::disk::Disk;
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
    /// Move a segment's files into quarantine.
    Quarantine(SegmentId, LogId),
    /// Write what a slot holds into quarantine.
    QuarantineSlot(Slot, SegmentIdentity, Closure),
}

/// What is to be done on the disk, and what is known of it.
#[derive(Debug)]
pub struct Flusher {
    disk: Arc<Disk>,
    jobs: VecDeque<Job>,
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
        let (jobs, files, bytes) = (VecDeque::new(), BTreeMap::new(), PageBuffer::default());
        Flusher { disk, jobs, files, unwritten: BTreeSet::new(), flushed, bytes, failing: false }
    }

    /// Queues a job.
    pub fn queue(&mut self, job: Job) {
        self.jobs.push_back(job);
    }

    /// The job that is due.
    pub fn due(&self) -> Option<&Job> {
        self.jobs.front()
    }

    /// Does the job that is due. Returns what the protocol waits for.
    pub fn work(&mut self, buffers: &dyn Buffers) -> Vec<Input> {
        match self.jobs.pop_front() {
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
                self.delete(segment, log);
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

    /// Nothing has been to do for a moment, or the process ends: notes what no answer waits for.
    pub fn rest(&mut self) {
        if let Err(error) = self.flushed.write() {
            warn!(folder = %self.disk.path().display(), %error, "failed to record how far open segments are flushed");
        }
    }

    /// True while [`Flusher::rest`] has something to do.
    pub fn is_restless(&self) -> bool {
        self.flushed.is_dirty()
    }

    /// Writes an open segment as it is, the last of all: nothing else is queued. A file that holds more stays: then it is
    /// the memory that has rotted.
    pub fn flush_last(
        &mut self,
        buffers: &dyn Buffers,
        slot: Slot,
        identity: &SegmentIdentity,
        closure: &Closure,
    ) -> io::Result<()> {
        assert!(self.jobs.is_empty(), "what the protocol decided before is done before");
        self.files.remove(&identity.segment);
        if self.disk.open_end(identity)? > closure.end {
            warn!(segment = %identity.segment, end = %closure.end, "the open segment's file is longer than its buffer: kept");
            return Ok(());
        }
        if closure.end == Offset(0) {
            // Not even its header arrived. That it was open here all the same tells that nothing is missing.
            self.flushed.note(identity, Offset(0));
            return self.flushed.write();
        }
        self.read(buffers, slot, Offset(0), closure.end)?;
        self.disk.write_open(identity, closure, &self.bytes)?;
        self.flushed.note(identity, closure.end);
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
        group.iter().map(|(id, _)| Input::OpenFlushed(*id, result.clone())).collect()
    }

    /// Notes how far an open segment is flushed, before anybody hears of it: what its file loses from now on is missed.
    fn note(&mut self, identity: &SegmentIdentity, end: Offset) -> io::Result<Offset> {
        if !self.is_closed(identity) {
            self.flushed.note(identity, end);
            self.flushed.write()?;
        }
        Ok(end)
    }

    /// Brings an open segment's file up to `end`, as far as whole valid appends go, and returns how far it is on disk.
    ///
    /// What was read is scanned before it is written. Bytes that have completed need not be visible here yet, and the
    /// buffer may have been lent to another segment by now: neither continues the chain. After any failure the file is
    /// made anew: what a disk kept of a failed fdatasync is unknown (`fsync(2)`).
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

    /// Whatever happens to the file, it is no longer missed.
    fn forget(&mut self, segment: SegmentId) -> io::Result<()> {
        self.files.remove(&segment);
        self.unwritten.remove(&segment);
        self.flushed.forget(segment);
        self.flushed.write()
    }

    fn quarantine(&mut self, segment: SegmentId, log: LogId) {
        match self.forget(segment).and_then(|()| self.disk.quarantine(segment, log)) {
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

    fn delete(&mut self, segment: SegmentId, log: LogId) {
        match self.forget(segment).and_then(|()| self.disk.delete(segment, log)) {
            Ok(()) => info!(%segment, "deleted"),
            // Harmless: found at the next start, it is a copy that the primary drops or trims again.
            Err(error) => warn!(%segment, %error, "failed to delete a segment file"),
        }
    }

    fn read(&mut self, buffers: &dyn Buffers, slot: Slot, start: Offset, end: Offset) -> io::Result<()> {
        self.bytes.resize((end.0 - start.0) as usize);
        buffers.read(slot, start.0, &mut self.bytes)
    }
}

#[cfg(test)]
mod tests;
