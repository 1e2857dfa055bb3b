//! A backup's flusher: one job after the other, in the background, each with an fsync at its end.
//!
//! Used by [`host`](super::host). A job that is under way when the process dies, or the power goes, may or may not have
//! come to its end.

use tailwind_protocol::backup::{FlushResult, Input, RequestId, Slot};
use tailwind_protocol::ids::{Offset, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::scan::{scan, scan_on};

use super::daemon::flush_result;
use super::disk::ClosedFile;
use super::host::{Host, HostEvent};
use super::queue::MS;
use super::{Event, HostNo, World};
use crate::trace::{self, tell};

/// What is to be done at the disk.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// A closed segment becomes a file.
    Closed(Slot, SegmentIdentity, Closure),
    /// An open segment's file grows up to here.
    Open(RequestId, Slot, SegmentIdentity, Offset),
    /// A segment's file goes.
    Delete(SegmentId),
}

impl Host {
    /// What a flush of an open segment writes: what is on disk already, and the whole valid appends behind that which end
    /// at or before `end`, as the processor sees them now.
    fn verified(&self, slot: Slot, identity: &SegmentIdentity, end: Offset) -> Vec<u8> {
        let file = self.disk.open.get(&identity.segment).filter(|file| file.identity == *identity);
        let mut bytes = file.map(|file| file.bytes[..file.synced].to_vec()).unwrap_or_default();
        let known = scan(&bytes, identity).closure;
        bytes.truncate(known.end.0 as usize);
        let tail = self.bytes(slot, bytes.len()..bytes.len().max(end.0 as usize));
        let flushed = scan_on(tail, identity, known).closure.end;
        bytes.extend_from_slice(&tail[..(flushed.0 - known.end.0) as usize]);
        bytes
    }
}

impl World {
    pub(super) fn queue_flush(&mut self, no: HostNo, job: Job) {
        self.hosts[no.0].jobs.push_back(job);
        self.start_flush(no);
    }

    fn start_flush(&mut self, no: HostNo) {
        let host = &mut self.hosts[no.0];
        let Some(job) = host.jobs.front().filter(|_| !host.flushing && host.is_up()) else { return };
        // What is being flushed is in the file at once; it is safe only at the end.
        if let Job::Open(_, slot, identity, end) = *job
            && !host.disk.full
            && !host.disk.closed.contains_key(&identity.segment)
        {
            let bytes = host.verified(slot, &identity, end);
            host.disk.write_open(identity, &bytes);
        }
        let host = &mut self.hosts[no.0];
        let Some(job) = host.jobs.front() else { return };
        host.flushing = true;
        let (life, slow) = (host.life, if host.disk.slow { 50 } else { 1 });
        let takes = match job {
            Job::Closed(..) => self.random.within(500, 8 * MS),
            Job::Open(..) => self.random.within(200, 3 * MS),
            Job::Delete(_) => self.random.within(20, 200),
        };
        self.queue.plan(takes * slow, Event::Host(no, life, HostEvent::Flushed));
    }

    pub(super) fn on_flush_done(&mut self, no: HostNo) {
        let host = &mut self.hosts[no.0];
        host.flushing = false;
        // It was cancelled meanwhile, or another one has come to the front: that one takes its time too.
        let job = host.jobs.pop_front();
        if let Some(input) = job.and_then(|job| self.carry_out_job(no, job)) {
            self.tell_host(no, input);
        }
        self.start_flush(no);
    }

    fn carry_out_job(&mut self, no: HostNo, job: Job) -> Option<Input> {
        let fails = matches!(&job, Job::Closed(_, identity, _) if self.has_no_room(no, identity));
        let host = &mut self.hosts[no.0];
        match job {
            Job::Closed(slot, identity, closure) => {
                let bytes = host.bytes(slot, 0..closure.end.0 as usize).to_vec();
                let result = flush_result(&bytes, &identity, &closure, host.disk.full || fails);
                if result == FlushResult::Done {
                    host.disk.put_closed(ClosedFile { identity, closure, bytes });
                }
                tell!(
                    self,
                    "{} flushes segment {}, {}: {result:?}",
                    self.hosts[no.0].name,
                    identity.segment,
                    trace::closure(&closure)
                );
                Some(Input::Flushed(slot, identity, result))
            }
            Job::Open(id, ..) if host.disk.full => Some(Input::OpenFlushed(id, Err("the disk is full".to_owned()))),
            Job::Open(id, slot, identity, end) => {
                if host.disk.closed.get(&identity.segment).is_some_and(|file| file.identity == identity) {
                    return Some(Input::OpenFlushed(id, Ok(end)));
                }
                let bytes = host.verified(slot, &identity, end);
                let file = host.disk.write_open(identity, &bytes);
                file.synced = file.synced.max(bytes.len());
                Some(Input::OpenFlushed(id, Ok(Offset(bytes.len() as u32))))
            }
            Job::Delete(segment) => {
                host.disk.delete(segment);
                None
            }
        }
    }

    /// The slot's memory is given back: nothing is reported of its flushes, but whoever waits for one is told.
    pub(super) fn cancel_flushes(&mut self, no: HostNo, slot: Slot) -> Vec<Input> {
        let mut inputs = Vec::new();
        self.hosts[no.0].jobs.retain(|job| match job {
            Job::Closed(of, ..) => *of != slot,
            Job::Open(id, of, ..) if *of == slot => {
                inputs.push(Input::OpenFlushed(*id, Err("the buffer is gone".to_owned())));
                false
            }
            _ => true,
        });
        inputs
    }

    /// The process is gone. The job under way may have been carried out, or half of it.
    pub(super) fn abandon_flushes(&mut self, no: HostNo) {
        let host = &mut self.hosts[no.0];
        let under_way = host.jobs.front().cloned().filter(|_| host.flushing);
        host.jobs.clear();
        host.flushing = false;
        match under_way {
            Some(Job::Open(_, slot, identity, end)) if !host.disk.full => {
                let bytes = host.verified(slot, &identity, end);
                let reached = self.random.below(bytes.len() as u64 + 1) as usize;
                self.hosts[no.0].disk.write_open(identity, &bytes[..reached]);
            }
            Some(job) if self.random.one_in(2) => drop(self.carry_out_job(no, job)),
            _ => {}
        }
    }

    /// The process ends in good order: what is queued is done before.
    pub(super) fn finish_flushes(&mut self, no: HostNo) {
        while let Some(job) = self.hosts[no.0].jobs.pop_front() {
            self.carry_out_job(no, job);
        }
    }
}
