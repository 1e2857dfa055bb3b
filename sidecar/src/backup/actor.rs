//! The one thread that owns a backup's state machine and carries out what it decides, strictly in order.
//!
//! Asked by [`routes`](super::routes) through a [`Handle`]; calls the fabric's [`Receiver`], the [`Pool`], the promise
//! file, the slot table and the [`flusher`](super::flusher). An output that cannot be carried out and whose failure is
//! no input ends the process here, before anything is answered: a backup that could not persist or revoke must not go on
//! to say that it did.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use tailwind_fabric::{Answer as ChannelAnswer, FabricError, Grant, Offer, Pool, Receiver, SlotId, Writer};
use tailwind_protocol::backup::{
    Backup, Counts, FlushResult, Input, Output, Place, Promise, Reply, Request, RequestId, Slot, SlotRow,
};
use tailwind_protocol::ids::{Epoch, Offset};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::rpc::{Inventory, Refusal};
use tailwind_protocol::scan;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::{error, info};

use super::flusher::{Flusher, Job};
use super::promise::{PromiseFile, Standing};
use super::table::SlotTable;
use super::thread::spawn_owned;

/// Requests under way: a group's sidecars have a handful each. More wait at the door.
const REQUESTS_MAX: usize = 256;
/// How often failed flushes are tried again.
const TICK: Duration = Duration::from_secs(1);

/// A request, and what the fabric needs beside it.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) request: Request,
    /// With [`Request::Connect`].
    pub(super) offer: Option<Offer>,
}

/// What a request was answered with.
#[derive(Debug)]
pub(super) enum Answer {
    Inventory(Inventory),
    Connected(ChannelAnswer),
    Opened(Grant),
    Fetch(Place, SegmentIdentity, Closure),
    Flushed(Offset),
    Done,
}

/// How things stand, for status and metrics.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) promise: Promise,
    #[serde(flatten)]
    pub(super) counts: Counts,
    #[serde(flatten)]
    pub(super) tallies: Tallies,
    /// Why the fabric can lend nothing any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

/// What has happened since the process started.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Tallies {
    /// Fences carried out.
    pub(super) fences: u64,
    /// Buffers lent.
    pub(super) opens: u64,
    /// Requests for a buffer that were refused.
    pub(super) opens_refused: u64,
    /// Flushes that the disk refused.
    pub(super) flush_failures: u64,
}

enum Message {
    Ask(Question, oneshot::Sender<Result<Answer, Refusal>>, OwnedSemaphorePermit),
    Happened(Input),
    Report(oneshot::Sender<Report>),
}

/// Talks to the actor. Cheap to clone.
#[derive(Clone)]
pub(super) struct Handle {
    inbox: mpsc::Sender<Message>,
    places: Arc<Semaphore>,
}

impl Handle {
    /// Asks, and waits for the answer.
    pub(super) async fn ask(&self, request: Request, offer: Option<Offer>) -> Result<Answer, Refusal> {
        let gone = || Refusal::Failed { why: "this backup has ended".to_owned() };
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| gone())?;
        let (reply, answer) = oneshot::channel();
        self.inbox.send(Message::Ask(Question { request, offer }, reply, place)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Tells what has happened.
    pub(super) fn tell(&self, input: Input) {
        // An actor that is gone has ended the process.
        let _ = self.inbox.send(Message::Happened(input));
    }

    /// How things stand; `None` when the actor is gone.
    pub(super) async fn report(&self) -> Option<Report> {
        let (reply, report) = oneshot::channel();
        self.inbox.send(Message::Report(reply)).ok()?;
        report.await.ok()
    }
}

/// Where the actor's messages will arrive. Made before the actor, so that its flusher can answer.
pub(super) struct Inbox {
    messages: mpsc::Receiver<Message>,
}

/// A handle and the inbox behind it.
pub(super) fn inbox() -> (Handle, Inbox) {
    let (sender, messages) = mpsc::channel();
    (Handle { inbox: sender, places: Arc::new(Semaphore::new(REQUESTS_MAX)) }, Inbox { messages })
}

/// Everything a backup owns.
pub(super) struct Actor {
    pub(super) machine: Backup,
    pub(super) receiver: Box<dyn Receiver>,
    pub(super) pool: Arc<Pool>,
    pub(super) table: SlotTable,
    pub(super) promise_file: PromiseFile,
    pub(super) standing: Standing,
    pub(super) flusher: Flusher,
}

/// Starts the actor's thread, which first carries out `outputs`. It ends when everything is finished.
pub(super) fn start(actor: Actor, outputs: Vec<Output>, inbox: Inbox) -> anyhow::Result<oneshot::Receiver<()>> {
    let work = move || {
        let running = Running {
            slots: vec![Lending::default(); actor.pool.slots() as usize],
            actor,
            requests: HashMap::new(),
            next: 0,
            bytes: Vec::new(),
            tallies: Tallies::default(),
            finished: None,
        };
        if let Err(error) = running.work(outputs, &inbox) {
            error!(error = format!("{error:#}"), "cannot go on: ending at once, so that nothing false is said");
            std::process::abort();
        }
    };
    spawn_owned("backup", work).context("start the backup thread")
}

struct Running {
    actor: Actor,
    slots: Vec<Lending>,
    requests: HashMap<RequestId, Waiting>,
    next: u64,
    /// One segment's bytes, for scans.
    bytes: Vec<u8>,
    tallies: Tallies,
    /// Set by [`Output::Finish`].
    finished: Option<bool>,
}

/// A slot's grant, kept because a repeated open gets the same one.
#[derive(Clone, Debug, Default)]
struct Lending {
    grant: Option<Grant>,
    row: Option<SlotRow>,
}

struct Waiting {
    reply: oneshot::Sender<Result<Answer, Refusal>>,
    offer: Option<Offer>,
    is_open: bool,
    _place: OwnedSemaphorePermit,
}

impl Running {
    fn work(mut self, outputs: Vec<Output>, inbox: &Inbox) -> anyhow::Result<()> {
        self.carry_out(outputs)?;
        let mut tick = Instant::now() + TICK;
        loop {
            if let Some(complete) = self.finished {
                return self.finish(complete);
            }
            match inbox.messages.recv_timeout(tick.saturating_duration_since(Instant::now())) {
                Ok(message) => self.on_message(message)?,
                Err(RecvTimeoutError::Timeout) => {
                    tick = Instant::now() + TICK;
                    anyhow::ensure!(self.actor.flusher.lives(), "the flusher thread has panicked");
                    self.step(Input::Tick)?;
                }
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!("every handle is gone"),
            }
        }
    }

    fn on_message(&mut self, message: Message) -> anyhow::Result<()> {
        match message {
            Message::Ask(Question { request, offer }, reply, place) => {
                let id = RequestId(self.next);
                self.next += 1;
                let is_open = matches!(request, Request::Open(_));
                self.requests.insert(id, Waiting { reply, offer, is_open, _place: place });
                self.step(Input::Request(id, request))
            }
            Message::Happened(input) => {
                let failed = matches!(
                    &input,
                    Input::OpenFlushed(_, Err(_)) | Input::Flushed(_, _, FlushResult::Failed | FlushResult::Corrupt)
                );
                self.tallies.flush_failures += u64::from(failed);
                let corrupt = match &input {
                    Input::Flushed(_, identity, FlushResult::Corrupt) => Some(*identity),
                    _ => None,
                };
                let before = corrupt.map_or(0, |_| self.actor.machine.counts().corrupt);
                self.step(input)?;
                // One that was trimmed away while its flush waited is not.
                if let Some(SegmentIdentity { segment, epoch, .. }) =
                    corrupt.filter(|_| self.actor.machine.counts().corrupt > before)
                {
                    error!(%segment, %epoch, "closed segment is corrupt in memory: not flushed");
                }
                Ok(())
            }
            Message::Report(reply) => {
                let machine = &self.actor.machine;
                let report = Report {
                    promise: machine.promise().clone(),
                    counts: machine.counts(),
                    tallies: self.tallies,
                    problem: self.actor.receiver.problem(),
                };
                // Whoever asked may have gone.
                let _ = reply.send(report);
                Ok(())
            }
        }
    }

    fn step(&mut self, input: Input) -> anyhow::Result<()> {
        let mut outputs = Vec::new();
        self.actor.machine.step(input, &mut outputs);
        self.carry_out(outputs)
    }

    /// One after the other. An output that is answered by an input is answered, and what follows from the answer carried
    /// out, before the next one begins.
    fn carry_out(&mut self, outputs: Vec<Output>) -> anyhow::Result<()> {
        for output in outputs {
            if let Some(input) = self.act(output)? {
                self.step(input)?;
            }
        }
        Ok(())
    }

    fn act(&mut self, output: Output) -> anyhow::Result<Option<Input>> {
        match output {
            Output::Persist(promise) => self.persist(promise)?,
            Output::RevokeBelow(epoch) => self.revoke_below(epoch)?,
            Output::SaveSlot(slot, row) => self.save_slot(slot, row)?,
            Output::Lend(id, slot, epoch) => return Ok(Some(Input::Lent(id, slot, self.lend(slot, epoch)))),
            Output::EndLending(slot) => self.actor.receiver.end_lending(SlotId(slot.0)),
            Output::Scan(slot, identity) => return Ok(Some(Input::Scanned(slot, self.scan(slot, &identity)?))),
            Output::Verify(slot, identity, closure) => {
                return Ok(Some(Input::Verified(slot, self.verify(slot, &identity, &closure)?)));
            }
            Output::StartFlush(slot, identity, closure) => {
                self.actor.flusher.queue(Job::Closed(slot, identity, closure))?;
            }
            Output::StartOpenFlush(id, slot, identity, end) => {
                self.actor.flusher.queue(Job::Open(id, slot, identity, end))?;
            }
            Output::FlushOpen(slot, identity, closure) => self.actor.flusher.flush_last(slot, identity, closure)?,
            Output::Release(slot) => self.release(slot)?,
            Output::DeleteFile(segment) => {
                let log = self.actor.standing.promise.log.context("delete a segment of no log")?;
                self.actor.flusher.queue(Job::Delete(segment, log))?;
            }
            Output::Reply(id, reply) => self.reply(id, reply),
            Output::Finish { complete } => self.finished = Some(complete),
        }
        Ok(None)
    }

    fn persist(&mut self, promise: Promise) -> anyhow::Result<()> {
        let Promise { log, epoch, trimmed, durability } = &promise;
        let raised = *epoch > self.actor.standing.promise.epoch;
        if raised {
            let log = log.map(tracing::field::display);
            info!(log, %epoch, %trimmed, %durability, "promised");
        }
        self.actor.standing.promise = promise;
        self.write_standing()
    }

    fn write_standing(&mut self) -> anyhow::Result<()> {
        Ok(self.actor.promise_file.write(&self.actor.standing)?)
    }

    fn revoke_below(&mut self, epoch: Epoch) -> anyhow::Result<()> {
        self.actor.receiver.revoke_below(Writer(epoch.0)).context("revoke the writers of older epochs")?;
        self.tallies.fences += u64::from(epoch != Epoch(u64::MAX));
        Ok(())
    }

    fn save_slot(&mut self, slot: Slot, row: Option<SlotRow>) -> anyhow::Result<()> {
        // From here on the memory holds what the disk does not: the mark of the last shutdown is no longer true.
        if row.is_some() && std::mem::take(&mut self.actor.standing.complete) {
            self.write_standing()?;
        }
        self.actor.table.save(slot, row.as_ref())?;
        if let Some(SlotRow { identity, closed: Some(closure), .. }) = &row {
            info!(segment = %identity.segment, epoch = %identity.epoch, last = %closure.last, "closed");
        }
        self.slots[slot.0 as usize].row = row;
        Ok(())
    }

    fn lend(&mut self, slot: Slot, epoch: Epoch) -> Result<(), String> {
        let grant = self.actor.receiver.lend(Writer(epoch.0), SlotId(slot.0)).map_err(|error| error.to_string())?;
        let lending = &mut self.slots[slot.0 as usize];
        lending.grant = Some(grant);
        self.tallies.opens += 1;
        if let Some(SlotRow { identity, purpose, .. }) = &lending.row {
            info!(segment = %identity.segment, %epoch, ?purpose, slot = slot.0, "lent");
        }
        Ok(())
    }

    fn scan(&mut self, slot: Slot, identity: &SegmentIdentity) -> anyhow::Result<Closure> {
        self.read(slot, Offset(identity.size.bytes()))?;
        let report = scan::scan(&self.bytes, identity);
        let (last, end, why) = (report.closure.last, report.closure.end, report.stop.why);
        info!(segment = %identity.segment, epoch = %identity.epoch, %last, %end, %why, "scanned");
        Ok(report.closure)
    }

    fn verify(&mut self, slot: Slot, identity: &SegmentIdentity, closure: &Closure) -> anyhow::Result<bool> {
        // The closure comes from the network.
        if closure.end.0 > identity.size.bytes() {
            return Ok(false);
        }
        self.read(slot, closure.end)?;
        Ok(scan::verify(&self.bytes, identity, closure))
    }

    fn read(&mut self, slot: Slot, end: Offset) -> anyhow::Result<()> {
        self.bytes.resize(end.0 as usize, 0);
        Ok(self.actor.pool.read(SlotId(slot.0), 0, &mut self.bytes)?)
    }

    fn release(&mut self, slot: Slot) -> anyhow::Result<()> {
        self.slots[slot.0 as usize] = Lending::default();
        // A straggler must find its lending over before its memory is.
        self.actor.receiver.end_lending(SlotId(slot.0));
        Ok(self.actor.pool.release(SlotId(slot.0))?)
    }

    fn reply(&mut self, id: RequestId, reply: Reply) {
        let Some(waiting) = self.requests.remove(&id) else { return };
        let answer = match reply {
            Reply::Inventory(inventory) => Ok(Answer::Inventory(inventory)),
            Reply::Connect(epoch) => self.accept(epoch, waiting.offer.as_ref()).map(Answer::Connected),
            Reply::Opened(slot) => self.grant(slot).map(Answer::Opened),
            Reply::Fetch(place, identity, closure) => Ok(Answer::Fetch(place, identity, closure)),
            Reply::Flushed(end) => Ok(Answer::Flushed(end)),
            Reply::Done => Ok(Answer::Done),
            Reply::Refused(refusal) => {
                self.tallies.opens_refused += u64::from(waiting.is_open);
                Err(refusal)
            }
        };
        // Whoever asked may have gone.
        let _ = waiting.reply.send(answer);
    }

    fn accept(&mut self, epoch: Epoch, offer: Option<&Offer>) -> Result<ChannelAnswer, Refusal> {
        let offer = offer.ok_or_else(|| Refusal::BadRequest { why: "no offer".to_owned() })?;
        self.actor.receiver.accept(Writer(epoch.0), offer).map_err(|error| match error {
            FabricError::Mismatch { .. } => Refusal::BadRequest { why: error.to_string() },
            _ => Refusal::Failed { why: error.to_string() },
        })
    }

    fn grant(&self, slot: Slot) -> Result<Grant, Refusal> {
        // A lending of an earlier process life has no grant; the machine counts it as fenced and never answers with it.
        let grant = self.slots[slot.0 as usize].grant.clone();
        grant.ok_or_else(|| Refusal::Failed { why: "the lending is over".to_owned() })
    }

    fn finish(mut self, complete: bool) -> anyhow::Result<()> {
        let Running { actor, .. } = &mut self;
        let (epoch, counts) = (actor.standing.promise.epoch, actor.machine.counts());
        let Running { actor: Actor { flusher, mut promise_file, standing, receiver, .. }, requests, .. } = self;
        drop(receiver);
        flusher.finish()?;
        if complete {
            promise_file.write(&Standing { complete, ..standing })?;
        }
        info!(%epoch, complete, on_disk = counts.on_disk, open = counts.recovered, "finished");
        drop(requests);
        Ok(())
    }
}
