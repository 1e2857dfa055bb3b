//! Carries out what a backup's machine wants, one output after the other, as the production daemon's actor does.
//!
//! Called by [`host`](super::host) when an output has taken its time.

use tailwind_protocol::backup::{FlushResult, Input, Output, Place, Reply, RequestId, Slot};
use tailwind_protocol::ids::Epoch;
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::rpc::Refusal;
use tailwind_protocol::scan::{scan, verify};

use super::fabric::Key;
use super::flusher::Job;
use super::host::{HostEvent, Lending};
use super::network::Answer;
use super::queue::Micros;
use super::{HostNo, World};
use crate::trace::{self, tell};

impl World {
    /// Carries the first output out.
    pub(super) fn carry_out(&mut self, no: HostNo) {
        let Some(output) = self.hosts[no.0].todo.pop_front() else { return };
        match output {
            Output::Persist(promise) => {
                let host = &mut self.hosts[no.0];
                if promise.epoch > host.disk.promise.epoch {
                    tell!(self, "{} promises epoch {}", self.hosts[no.0].name, promise.epoch);
                }
                self.hosts[no.0].disk.promise = promise;
            }
            Output::RevokeBelow(epoch) => {
                self.stop_channels(no, epoch);
                if !planted::has(Bug::QueuePairReused) {
                    self.hosts[no.0].lendings.retain(|_, lending| lending.writer >= epoch);
                }
            }
            Output::SaveSlot(slot, row) => {
                let host = &mut self.hosts[no.0];
                match row {
                    // From here on the memory holds what the disk does not.
                    Some(row) => {
                        host.disk.complete = false;
                        host.rows.insert(slot, row);
                    }
                    None => drop(host.rows.remove(&slot)),
                }
            }
            Output::Lend(id, slot, writer) => self.lend(no, id, slot, writer),
            Output::EndLending(slot) => {
                self.settle_slot(no, slot);
                self.hosts[no.0].lendings.remove(&slot);
            }
            Output::Scan(slot, identity) => self.scan_slot(no, slot, &identity),
            Output::Verify(slot, identity, closure) => {
                let size = identity.size.bytes().min(closure.end.0) as usize;
                let sound = verify(self.hosts[no.0].bytes(slot, 0..size), &identity, &closure);
                self.step_host(no, Input::Verified(slot, sound));
            }
            Output::StartFlush(slot, identity, closure) => self.queue_flush(no, Job::Closed(slot, identity, closure)),
            Output::StartOpenFlush(id, slot, identity, end) => {
                self.queue_flush(no, Job::Open(id, slot, identity, end));
            }
            // The daemon ends rather than say that all is on disk.
            Output::FlushOpen(..) if self.hosts[no.0].disk.full => {
                self.kill_host(no);
                self.plan_restart(no);
            }
            Output::FlushOpen(slot, identity, closure) => {
                let host = &mut self.hosts[no.0];
                let bytes = host.bytes(slot, 0..closure.end.0 as usize).to_vec();
                let file = host.disk.write_open(identity, &bytes);
                file.synced = file.bytes.len();
            }
            Output::Release(slot) => self.release(no, slot),
            Output::DeleteFile(segment) | Output::Quarantine(segment) => self.queue_flush(no, Job::Delete(segment)),
            Output::Owe(segments) => {
                let owed = segments.into_iter().map(|owed| (owed.0.segment, owed));
                self.hosts[no.0].disk.owed.extend(owed);
            }
            Output::Settle(segments) => {
                self.hosts[no.0].disk.owed.retain(|segment, _| !segments.contains(segment));
            }
            Output::StartQuarantine(slot, ..) => {
                self.hosts[no.0].inbox.push_back(HostEvent::Happened(Input::Quarantined(slot, Ok(()))));
            }
            Output::Reply(id, reply) => self.reply(no, id, reply),
            Output::Finish { complete } => {
                tell!(self, "{} ends; complete: {complete}", self.hosts[no.0].name);
                self.finish_flushes(no);
                self.hosts[no.0].disk.complete = complete;
                self.kill_host(no);
                self.plan_restart(no);
            }
        }
    }

    /// A slot is lent all zero, and only while nobody else can write it.
    fn lend(&mut self, no: HostNo, id: RequestId, slot: Slot, writer: Epoch) {
        let host = &mut self.hosts[no.0];
        if host.stingy {
            return self.step_host(no, Input::Lent(id, slot, Err("the pool has no memory".to_owned())));
        }
        self.checks.lends(host, slot);
        // What an unseeded chain would accept lies in memory that is not zeroed.
        let kept = planted::has(Bug::NoRezeroing) || planted::has(Bug::UnseededChain);
        if !kept {
            host.memory.remove(&slot);
        }
        host.keys += 1;
        let key = Key(host.keys);
        let zero = host.is_zero(slot) || planted::has(Bug::UnseededChain);
        host.lendings.insert(slot, Lending { key, writer });
        self.checks.lent(&self.hosts[no.0], slot, zero);
        self.step_host(no, Input::Lent(id, slot, Ok(())));
    }

    fn scan_slot(&mut self, no: HostNo, slot: Slot, identity: &SegmentIdentity) {
        let host = &self.hosts[no.0];
        let report = scan(host.bytes(slot, 0..identity.size.bytes() as usize), identity);
        tell!(
            self,
            "{} scans segment {} of epoch {}: {}; {}",
            self.hosts[no.0].name,
            identity.segment,
            identity.epoch,
            trace::closure(&report.closure),
            report.stop.why
        );
        self.step_host(no, Input::Scanned(slot, report.tail()));
    }

    fn release(&mut self, no: HostNo, slot: Slot) {
        self.settle_slot(no, slot);
        self.hosts[no.0].lendings.remove(&slot);
        for input in self.cancel_flushes(no, slot) {
            self.hosts[no.0].inbox.push_back(HostEvent::Happened(input));
        }
    }

    fn reply(&mut self, no: HostNo, id: RequestId, reply: Reply) {
        let asked = self.hosts[no.0].asked.get(&id).copied();
        self.checks.replies(&self.hosts[no.0], id, &reply);
        let answer = match reply {
            Reply::Inventory(inventory) => Answer::Inventory(inventory),
            Reply::Connect(epoch) => {
                let Some((from, life, _)) = asked else { return };
                let channel = self.accept(from, life, no, epoch);
                Answer::Connected(self.hosts[no.0].boot, channel)
            }
            Reply::Opened(slot) => match self.hosts[no.0].lendings.get(&slot) {
                Some(lending) => Answer::Granted(slot, lending.key),
                None => Answer::Refused(Refusal::Failed { why: "the lending is over".to_owned() }),
            },
            Reply::Fetch(place, identity, closure) => self.fetch(no, place, &identity, &closure),
            Reply::Flushed(end) => Answer::Flushed(end),
            Reply::Done => Answer::Done,
            Reply::Refused(refusal) => Answer::Refused(refusal),
        };
        self.answer(no, id, answer);
    }

    fn fetch(&mut self, no: HostNo, place: Place, identity: &SegmentIdentity, closure: &Closure) -> Answer {
        let host = &self.hosts[no.0];
        let end = closure.end.0 as usize;
        match place {
            Place::Memory(slot) => Answer::Bytes(host.bytes(slot, 0..end).to_vec()),
            Place::Disk => {
                let file = host.disk.closed.get(&identity.segment).filter(|file| file.bytes.len() >= end);
                match file.map(|file| &file.bytes[..end]).filter(|bytes| verify(bytes, identity, closure)) {
                    Some(bytes) => Answer::Bytes(bytes.to_vec()),
                    None => {
                        tell!(self, "{}: the file of segment {} is corrupt", host.name, identity.segment);
                        self.step_host(no, Input::FoundCorrupt(*identity));
                        Answer::Refused(Refusal::Corrupt { segment: identity.segment })
                    }
                }
            }
        }
    }
}

/// How long an output takes, if it takes any time worth the name.
pub(super) fn cost(output: &Output) -> Option<(Micros, Micros)> {
    match output {
        Output::Persist(_) => Some((200, 4000)),
        Output::RevokeBelow(_) => Some((20, 3000)),
        Output::Scan(..) => Some((50, 800)),
        Output::Verify(..) => Some((50, 400)),
        Output::FlushOpen(..) => Some((500, 5000)),
        _ => None,
    }
}

/// How a closed segment's flush ends: its bytes are looked at once more on their way to the disk.
pub(crate) fn flush_result(bytes: &[u8], identity: &SegmentIdentity, closure: &Closure, full: bool) -> FlushResult {
    match full {
        true => FlushResult::Failed,
        false if verify(bytes, identity, closure) => FlushResult::Done,
        false => FlushResult::Corrupt,
    }
}
