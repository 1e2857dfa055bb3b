//! Carries out what the [`Backup`] machine decides, strictly in order, one output at a time.
//!
//! Driven step by step: [`Daemon::tell`] what has happened, then [`Daemon::carry_out`] until nothing is left. Calls the
//! promise file, the slot table and a [`Lender`]; what is for others to do (the flusher's jobs, replies, the end) it hands
//! back as [`OutputResult`]. An output that cannot be carried out and whose failure is no input is an error: the process must end
//! there, before anything else is said. A backup that could not persist or revoke must not then say that it did.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;
use tailwind_protocol::backup::{
    Backup, Counts, FlushResult, Input, Limits, Output, Place, Promise, Reply, RequestId, Slot, SlotRow,
};
use tailwind_protocol::ids::{Epoch, Offset, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::rpc::Purpose;
use tailwind_protocol::scan::{self, Tail};
use tracing::{error, info, warn};

use crate::disk::Disk;
use crate::flusher::{Flusher, Job};
use crate::ledger::Ledger;
use crate::memory::{Lender, Revocation};
use crate::promise::{MemberState, PromiseFile};
use crate::start::Started;
use crate::table::SlotTable;

/// What has happened since the process started.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DaemonCounters {
    /// Fences carried out.
    pub fences: u64,
    /// Buffers lent.
    pub opens: u64,
    /// Requests for a buffer that were refused.
    pub opens_refused: u64,
    /// Flushes that the disk refused.
    pub flush_failures: u64,
    /// Closed segments that were read from disk into a buffer, to be residents.
    pub resident_loads: u64,
}

/// The result of an output.
#[derive(Debug)]
pub enum OutputResult {
    /// It is done.
    Out,
    /// For the flusher.
    Flush(Job),
    /// For the flusher, after everything that is queued there; done before the next output, or the process must end.
    FlushLast(Slot, SegmentIdentity, Tail),
    /// There is no memory for it, in words for people. It stays due, and nothing may be told to the machine before it is done:
    /// what follows would come first.
    NoRoom(String),
    /// For the caller.
    Reply(RequestId, Reply),
    /// No more callers are served. Once the flusher has done what is queued, [`Daemon::finish`].
    Finish {
        /// Nothing is in memory only.
        complete: bool,
    },
}

/// A backup's machine and what it writes itself.
#[derive(Debug)]
pub struct Daemon {
    machine: Backup,
    /// Outputs that are still to be carried out.
    todo: VecDeque<Output>,
    disk: Arc<Disk>,
    table: SlotTable,
    ledger: Ledger,
    promise_file: PromiseFile,
    member_state: MemberState,
    /// What each slot is used for.
    rows: Vec<Option<SlotRow>>,
    /// One segment's bytes, for scans.
    bytes: Vec<u8>,
    /// The bytes that are to be loaded next.
    to_load: Option<Vec<u8>>,
    /// What has happened since the process started.
    pub tallies: DaemonCounters,
}

impl Daemon {
    /// A backup that has just started, and its flusher. The outputs of its start are due.
    pub fn new(started: Started, limits: Limits) -> (Daemon, Flusher) {
        let Started { disk, table, ledger, flushed, promise_file, member_state, found, .. } = started;
        let (group, member) = (member_state.group.clone(), member_state.member.clone());
        let (machine, outputs) = Backup::start(group, member, member_state.boot, limits, found);
        let flusher = Flusher::new(Arc::clone(&disk), flushed);
        let daemon = Daemon {
            machine,
            todo: outputs.into(),
            disk,
            table,
            ledger,
            promise_file,
            member_state,
            rows: vec![None; limits.slots as usize],
            bytes: Vec::new(),
            to_load: None,
            tallies: DaemonCounters::default(),
        };
        (daemon, flusher)
    }

    /// The machine.
    pub fn machine(&self) -> &Backup {
        &self.machine
    }

    /// Its identity and its promises, as on disk.
    pub fn member_state(&self) -> &MemberState {
        &self.member_state
    }

    /// The segment that a slot is used for.
    pub fn segment_in(&self, slot: Slot) -> Option<SegmentId> {
        self.rows.get(slot.0 as usize)?.as_ref().map(|row| row.identity.segment)
    }

    /// The flush folder.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// The output that is due.
    pub fn due(&self) -> Option<&Output> {
        self.todo.front()
    }

    /// Something has happened. What follows comes before everything else that is due: an output that is answered by an
    /// input is answered, and what follows from the answer carried out, before the next one begins.
    pub fn tell(&mut self, input: Input) {
        let failed = |input: &Input| match input {
            Input::OpenFlushed(_, _, result) => result.is_err(),
            Input::Flushed(_, _, result) => *result != FlushResult::Done,
            _ => false,
        };
        self.tallies.flush_failures += u64::from(failed(&input));
        let corrupt = match &input {
            Input::Flushed(_, identity, FlushResult::Corrupt) => Some((*identity, self.machine.counts().corrupt)),
            _ => None,
        };
        let rotten = match &input {
            Input::FoundCorrupt(identity, Place::Both(slot)) => {
                Some((*identity, slot.0, self.machine.counts().resident))
            }
            _ => None,
        };
        let mut outputs = Vec::new();
        self.machine.step(input, &mut outputs);
        if let Some((SegmentIdentity { segment, epoch, .. }, slot, _)) =
            rotten.filter(|(_, _, before)| self.machine.counts().resident < *before)
        {
            warn!(%segment, %epoch, slot, "a resident does not verify: its segment is read from disk again");
        }
        outputs.into_iter().rev().for_each(|output| self.todo.push_front(output));
        // One that was trimmed away while its flush waited is not.
        if let Some((SegmentIdentity { segment, epoch, .. }, _)) =
            corrupt.filter(|(_, before)| self.machine.counts().corrupt > *before)
        {
            error!(%segment, %epoch, "closed segment is corrupt in memory: not flushed");
        }
    }

    /// These bytes of a closed copy were read from its file and verified: they become a resident, if there still is a slot for
    /// it.
    pub fn load(&mut self, identity: SegmentIdentity, closure: Closure, bytes: Vec<u8>) {
        self.tell(Input::Load(identity, closure));
        self.to_load = self.todo.iter().any(|output| matches!(output, Output::Load(_))).then_some(bytes);
    }

    /// Carries out the output that is due; `None` when there is none.
    pub fn carry_out(&mut self, lender: &mut dyn Lender) -> anyhow::Result<Option<OutputResult>> {
        let Some(output) = self.todo.pop_front() else { return Ok(None) };
        match output {
            Output::Persist(promise) => self.persist(promise)?,
            Output::RevokeBelow(epoch) => {
                if let Revocation::NoRoom(why) = self.revoke_below(lender, epoch)? {
                    self.todo.push_front(Output::RevokeBelow(epoch));
                    return Ok(Some(OutputResult::NoRoom(why)));
                }
            }
            Output::SaveSlot(slot, row) => self.save_slot(slot, row)?,
            Output::Lend(id, slot, epoch) => {
                let lent = self.lend(lender, slot, epoch);
                self.tell(Input::Lent(id, slot, lent));
            }
            Output::EndLending(slot) => lender.end_lending(slot),
            Output::Retain(slot) => lender.retain(slot),
            Output::Load(slot) => {
                let bytes = self.to_load.take().context("load a segment that nobody has read")?;
                let loaded = lender.load(slot, &bytes);
                self.tallies.resident_loads += u64::from(loaded.is_ok());
                self.tell(Input::Loaded(slot, loaded));
            }
            Output::Scan(slot, identity) => {
                let tail = self.scan(lender, slot, &identity)?;
                self.tell(Input::Scanned(slot, tail));
            }
            Output::Verify(slot, identity, closure) => {
                let sound = self.verify(lender, slot, &identity, &closure)?;
                self.tell(Input::Verified(slot, sound));
            }
            Output::StartFlush(slot, identity, closure) => {
                return Ok(Some(OutputResult::Flush(Job::Closed(slot, identity, closure))));
            }
            Output::StartOpenFlush(id, slot, identity, end) => {
                return Ok(Some(OutputResult::Flush(Job::Open(id, slot, identity, end))));
            }
            Output::FlushOpen(slot, identity, tail) => {
                return Ok(Some(OutputResult::FlushLast(slot, identity, tail)));
            }
            Output::Release(slot) => lender.release(slot)?,
            Output::DeleteFile(segment) => {
                let log = self.member_state.promise.log.context("delete a segment of no log")?;
                return Ok(Some(OutputResult::Flush(Job::Delete(segment, log))));
            }
            Output::DeleteTrimmed(segments) => {
                let log = self.member_state.promise.log.context("delete segments of no log")?;
                return Ok(Some(OutputResult::Flush(Job::DeleteTrimmed(segments, log))));
            }
            Output::Quarantine(segment) => {
                let log = self.member_state.promise.log.context("quarantine a segment of no log")?;
                return Ok(Some(OutputResult::Flush(Job::Quarantine(segment, log))));
            }
            Output::MoveAside(segment) => return Ok(Some(OutputResult::Flush(Job::MoveAside(segment)))),
            Output::StartQuarantine(slot, identity, closure) => {
                return Ok(Some(OutputResult::Flush(Job::QuarantineSlot(slot, identity, closure))));
            }
            Output::Owe(_) if planted::has(Bug::LedgerNotWritten) => {}
            Output::Owe(segments) => {
                self.ledger.owe(self.disk.folder(), &segments).context("write to the ledger")?;
                let segments = segments.iter().map(|(identity, _)| identity.segment).collect();
                return Ok(Some(OutputResult::Flush(Job::Owed(segments))));
            }
            Output::RecordOpen(..) if planted::has(Bug::FileNotRecorded) => {}
            Output::RecordOpen(identity, end) => {
                self.ledger.record_open(self.disk.folder(), &identity, end).context("write to the ledger")?;
            }
            Output::Settle(segments) => {
                self.ledger.settle(self.disk.folder(), &segments).context("write to the ledger")?;
            }
            Output::Reply(id, reply) => {
                return Ok(Some(OutputResult::Reply(id, reply)));
            }
            Output::Finish { complete } => return Ok(Some(OutputResult::Finish { complete })),
        }
        Ok(Some(OutputResult::Out))
    }

    /// The end: everything that was queued at the flusher is done.
    pub fn finish(mut self, complete: bool) -> anyhow::Result<()> {
        if complete {
            self.member_state.complete = true;
            self.write_member_state()?;
        }
        let counts: Counts = self.machine.counts();
        let epoch = self.member_state.promise.epoch;
        info!(%epoch, complete, on_disk = counts.on_disk, open = counts.recovered, "finished");
        Ok(())
    }

    fn persist(&mut self, promise: Promise) -> anyhow::Result<()> {
        let Promise { log, epoch, trimmed, durability, doubt, .. } = &promise;
        let doubted = doubt.is_some();
        match (doubt, &self.member_state.promise.doubt) {
            (Some(doubt), None) => {
                error!(epoch = %doubt.epoch, why = %doubt.why, "damaged: cannot tell where the log ends")
            }
            (None, Some(_)) => info!("holds the log again: no longer damaged"),
            _ => {}
        }
        let raised = *epoch > self.member_state.promise.epoch;
        if raised {
            let log = log.map(tracing::field::display);
            info!(log, %epoch, %trimmed, %durability, "promised");
        }
        self.member_state.promise = promise;
        self.write_member_state()?;
        if doubted {
            // What raised the doubt is remembered now.
            self.ledger.mend(self.disk.folder()).context("repair the ledger")?;
        }
        Ok(())
    }

    fn write_member_state(&mut self) -> anyhow::Result<()> {
        Ok(self.promise_file.write(&self.member_state)?)
    }

    fn revoke_below(&mut self, lender: &mut dyn Lender, epoch: Epoch) -> anyhow::Result<Revocation> {
        let revocation = lender.revoke_below(epoch).context("revoke the writers of older epochs")?;
        self.tallies.fences += u64::from(revocation == Revocation::Done && epoch != Epoch(u64::MAX));
        Ok(revocation)
    }

    fn save_slot(&mut self, slot: Slot, row: Option<SlotRow>) -> anyhow::Result<()> {
        // From here on the memory holds what the disk does not: the mark of the last shutdown is no longer true.
        let is_resident = row.as_ref().is_some_and(SlotRow::is_resident);
        if row.is_some() && !is_resident && std::mem::take(&mut self.member_state.complete) {
            self.write_member_state()?;
        }
        self.table.save(slot, row.as_ref())?;
        match &row {
            Some(_) if is_resident => {}
            Some(SlotRow { identity, purpose: Purpose::Install, closed: Some(_), .. }) => {
                info!(segment = %identity.segment, epoch = %identity.epoch, slot = slot.0, "moving to quarantine");
            }
            Some(SlotRow { identity, closed: Some(closure), .. }) => {
                info!(segment = %identity.segment, epoch = %identity.epoch, last = %closure.last, "closed");
            }
            Some(SlotRow { identity, purpose, lender: epoch, .. }) => {
                info!(segment = %identity.segment, %epoch, ?purpose, slot = slot.0, "lent");
            }
            None => {}
        }
        // A row that could not be read may be of a buffer that a lower --buffers has taken away.
        if let Some(known) = self.rows.get_mut(slot.0 as usize) {
            *known = row;
        }
        Ok(())
    }

    fn lend(&mut self, lender: &mut dyn Lender, slot: Slot, epoch: Epoch) -> Result<(), String> {
        lender.lend(epoch, slot)?;
        self.tallies.opens += 1;
        Ok(())
    }

    fn scan(&mut self, lender: &dyn Lender, slot: Slot, identity: &SegmentIdentity) -> anyhow::Result<Tail> {
        self.read(lender, slot, Offset(identity.size.bytes()))?;
        let report = scan::scan(&self.bytes, identity);
        let (last, end, why) = (report.closure.last, report.closure.end, report.stop.why);
        let (segment, epoch, acked) = (identity.segment, identity.epoch, report.acked);
        if report.tail().is_damaged() {
            error!(%segment, %epoch, %last, %end, %why, %acked, "damaged: acknowledged records are no longer valid here");
        } else {
            info!(%segment, %epoch, %last, %end, %why, "scanned");
        }
        Ok(report.tail())
    }

    fn verify(
        &mut self,
        lender: &dyn Lender,
        slot: Slot,
        identity: &SegmentIdentity,
        closure: &Closure,
    ) -> anyhow::Result<bool> {
        // The closure comes from the network.
        if closure.end.0 > identity.size.bytes() {
            return Ok(false);
        }
        self.read(lender, slot, closure.end)?;
        Ok(scan::verify(&self.bytes, identity, closure))
    }

    fn read(&mut self, lender: &dyn Lender, slot: Slot, end: Offset) -> anyhow::Result<()> {
        self.bytes.resize(end.0 as usize, 0);
        lender.read(slot, 0, &mut self.bytes).with_context(|| format!("read buffer {}", slot.0))
    }
}
