//! The thread that brings segments to disk, one job after the other.
//!
//! Fed by the [`actor`](super::actor) in the order in which the protocol decided, so that a deletion never overtakes the
//! write before it. Reads the [`Pool`], writes the [`Disk`]. Jobs are bounded by what causes them: one closed flush for
//! each buffer, one open flush for each request under way, one deletion for each file.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::Context;
use tailwind_fabric::{Pool, SlotId};
use tailwind_protocol::backup::{FlushResult, Input, RequestId, Slot};
use tailwind_protocol::ids::{LogId, Offset, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::scan;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::disk::Disk;
use super::thread::spawn_owned;

/// Something to do on the disk.
#[derive(Debug)]
pub(super) enum Job {
    /// Write a closed segment.
    Closed(Slot, SegmentIdentity, Closure),
    /// Bring an open segment's appends that end at or before an offset to disk.
    Open(RequestId, Slot, SegmentIdentity, Offset),
    /// Write an open segment as it is, and say when that is done.
    Last(Slot, SegmentIdentity, Closure, Sender<io::Result<()>>),
    /// Delete a segment's files.
    Delete(SegmentId, LogId),
}

/// The thread, seen from the actor. Dropping it lets the thread do what is queued, and end.
#[derive(Debug)]
pub(super) struct Flusher {
    jobs: Sender<Job>,
    ended: oneshot::Receiver<()>,
}

impl Flusher {
    /// Starts the thread. It calls `answer` with what the protocol waits for.
    pub(super) fn start(
        pool: Arc<Pool>,
        disk: Arc<Disk>,
        answer: impl Fn(Input) + Send + 'static,
    ) -> anyhow::Result<Flusher> {
        let (jobs, queue) = channel();
        let worker =
            Worker { pool, disk, answer: Box::new(answer), files: HashMap::new(), bytes: Vec::new(), failing: false };
        let ended = spawn_owned("flusher", move || worker.work(&queue)).context("start the flusher thread")?;
        Ok(Flusher { jobs, ended })
    }

    /// Queues a job.
    pub(super) fn queue(&self, job: Job) -> anyhow::Result<()> {
        self.jobs.send(job).ok().context("the flusher thread has ended")
    }

    /// Writes an open segment after everything that is queued, and waits for it.
    pub(super) fn flush_last(&self, slot: Slot, identity: SegmentIdentity, closure: Closure) -> anyhow::Result<()> {
        let (done, result) = channel();
        self.queue(Job::Last(slot, identity, closure, done))?;
        let result = result.recv().context("the flusher thread has ended")?;
        result.with_context(|| format!("flush open segment {}", identity.segment))
    }

    /// Waits until everything that is queued is done.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        drop(self.jobs);
        self.ended.blocking_recv().context("the flusher thread has panicked")
    }

    /// True while the thread lives.
    pub(super) fn lives(&mut self) -> bool {
        matches!(self.ended.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }
}

struct Worker {
    pool: Arc<Pool>,
    disk: Arc<Disk>,
    answer: Box<dyn Fn(Input) + Send>,
    /// Files of open segments, and how far each is verified and on disk.
    files: HashMap<SegmentId, Growing>,
    /// One segment's bytes.
    bytes: Vec<u8>,
    /// The last flush failed: said once, not five times a second.
    failing: bool,
}

struct Growing {
    identity: SegmentIdentity,
    file: File,
    flushed: Closure,
}

impl Worker {
    fn work(mut self, queue: &Receiver<Job>) {
        let mut jobs = VecDeque::new();
        loop {
            if jobs.is_empty() {
                let Ok(job) = queue.recv() else { return };
                jobs.push_back(job);
            }
            jobs.extend(queue.try_iter());
            let Some(job) = jobs.pop_front() else { continue };
            match job {
                Job::Closed(slot, identity, closure) => self.flush_closed(slot, identity, closure),
                Job::Open(id, slot, identity, end) => {
                    let group = self.take_group(&mut jobs, id, identity, end);
                    self.flush_open(&group, slot, identity);
                }
                Job::Last(slot, identity, closure, done) => {
                    let result = self.flush_last(slot, &identity, &closure);
                    // The actor waits for this; if it is gone, so is the process.
                    let _ = done.send(result);
                }
                Job::Delete(segment, log) => self.delete(segment, log),
            }
        }
    }

    fn flush_closed(&mut self, slot: Slot, identity: SegmentIdentity, closure: Closure) {
        self.files.remove(&identity.segment);
        let result = match self.read(slot, closure.end) {
            // Corrupt, or trimmed away while its turn came: the actor knows.
            Ok(()) if !scan::verify(&self.bytes, &identity, &closure) => FlushResult::Corrupt,
            Ok(()) => self.tried(&identity, self.disk.write_closed(&identity, &closure, &self.bytes)),
            Err(error) => self.tried(&identity, Err(error)),
        };
        (self.answer)(Input::Flushed(slot, identity, result));
    }

    fn tried(&mut self, identity: &SegmentIdentity, result: io::Result<()>) -> FlushResult {
        let folder = self.disk.path().display();
        match result {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    info!(%folder, "flushes succeed again");
                }
                info!(segment = %identity.segment, epoch = %identity.epoch, "flushed");
                FlushResult::Done
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    warn!(%folder, %error, segment = %identity.segment, "flush failed: trying again until it succeeds");
                }
                FlushResult::Failed
            }
        }
    }

    /// All queued requests for the same segment: one write and one fdatasync serve them all.
    fn take_group(
        &self,
        jobs: &mut VecDeque<Job>,
        id: RequestId,
        identity: SegmentIdentity,
        end: Offset,
    ) -> Vec<(RequestId, Offset)> {
        let mut group = vec![(id, end)];
        jobs.retain(|job| match job {
            Job::Open(id, _, other, end) if *other == identity => {
                group.push((*id, *end));
                false
            }
            _ => true,
        });
        group
    }

    fn flush_open(&mut self, group: &[(RequestId, Offset)], slot: Slot, identity: SegmentIdentity) {
        let end = group.iter().map(|(_, end)| *end).max().unwrap_or_default();
        let result = self.grow(slot, identity, end).map_err(|error| {
            self.files.remove(&identity.segment);
            format!("flush segment {} to {}: {error}", identity.segment, self.disk.path().display())
        });
        for (id, _) in group {
            (self.answer)(Input::OpenFlushed(*id, result.clone()));
        }
    }

    /// Brings an open segment's file up to `end`, as far as whole valid appends go, and returns how far it is on disk.
    ///
    /// What was read is scanned before it is written. Bytes that have completed need not be visible here yet, and the
    /// buffer may have been lent to another segment by now: neither continues the chain. After any failure the file is
    /// made anew: what a disk kept of a failed fdatasync is unknown (`fsync(2)`).
    fn grow(&mut self, slot: Slot, identity: SegmentIdentity, end: Offset) -> io::Result<Offset> {
        let growing = self.files.get(&identity.segment).filter(|growing| growing.identity == identity);
        if growing.is_none() && self.disk.is_closed(&identity) {
            return Ok(end);
        }
        let known = growing.map(|growing| growing.flushed).unwrap_or_default();
        if end <= known.end {
            return Ok(known.end);
        }
        self.read_range(slot, known.end, end)?;
        let flushed = scan::scan_on(&self.bytes, &identity, known).closure;
        if flushed.end == known.end {
            return Ok(known.end);
        }
        self.bytes.truncate((flushed.end.0 - known.end.0) as usize);
        match self.files.get_mut(&identity.segment).filter(|growing| growing.identity == identity) {
            Some(growing) => {
                growing.file.write_all_at(&self.bytes, u64::from(known.end.0))?;
                growing.file.sync_data()?;
                growing.flushed = flushed;
            }
            None => {
                let file = self.disk.start_open(&identity, &self.bytes)?;
                self.files.insert(identity.segment, Growing { identity, file, flushed });
            }
        }
        Ok(flushed.end)
    }

    fn flush_last(&mut self, slot: Slot, identity: &SegmentIdentity, closure: &Closure) -> io::Result<()> {
        self.files.remove(&identity.segment);
        if closure.end == Offset(0) {
            // Not even its header arrived: there is nothing to keep.
            return Ok(());
        }
        self.read(slot, closure.end)?;
        self.disk.write_open(identity, closure, &self.bytes)?;
        info!(segment = %identity.segment, epoch = %identity.epoch, last = %closure.last, "open segment flushed");
        Ok(())
    }

    fn delete(&mut self, segment: SegmentId, log: LogId) {
        self.files.remove(&segment);
        match self.disk.delete(segment, log) {
            Ok(()) => info!(%segment, "deleted"),
            // Harmless: found at the next start, it is a copy that the primary drops or trims again.
            Err(error) => warn!(%segment, %error, "delete segment file"),
        }
    }

    fn read(&mut self, slot: Slot, end: Offset) -> io::Result<()> {
        self.read_range(slot, Offset(0), end)
    }

    fn read_range(&mut self, slot: Slot, start: Offset, end: Offset) -> io::Result<()> {
        self.bytes.resize((end.0 - start.0) as usize, 0);
        self.pool.read(SlotId(slot.0), start.0, &mut self.bytes).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests;
