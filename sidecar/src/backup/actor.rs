//! The one thread that owns a backup's [`Daemon`] and lets it carry out what its machine decides.
//!
//! Asked by [`routes`](super::routes) through a [`Handle`]; gives the [`flusher`](super::flusher) its jobs and callers their
//! answers. An output that cannot be carried out ends the process here, before anything is answered.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use tailwind_backup::{Daemon, DaemonCounters, OutputResult};
use tailwind_fabric::{Admission, ChannelAnswer, FabricError, FabricKind, Grant, Offer, ReadGrant, ReaderId, Writer};
use tailwind_protocol::backup::{Counts, Input, Place, Promise, Reply, Request, RequestId, Slot};
use tailwind_protocol::ids::{Epoch, Offset, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::pull::filled_by_others;
use tailwind_protocol::rpc::{
    CopyReport, Inventory, MirrorReply, MirrorRequest, PullRequest, Purpose, ReadConnectRequest, Refusal, SHARES_MAX,
    ShareReply, ShareRequest, SharedSegment,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::error;

use super::flusher::FlusherThread;
use super::memory::{Admitted, Filling, Lent};
use super::mirror::Lending;
use super::sending::{TakenPlace, blocking};
use crate::thread::spawn_owned;

/// Requests under way: a group's sidecars have a handful each. More wait at the door.
const REQUESTS_MAX: usize = 256;
/// Questions under way that the actor answers as soon as it reads them: those of the status, of the scrub, of loads and of pulls
/// that have failed. They do not wait behind requests, so that the status shows what those wait for.
const QUESTIONS_MAX: usize = 64;
/// How often failed flushes are tried again.
const TICK: Duration = Duration::from_secs(1);
/// How long nobody asks for anything before the memory of a part is given back that a fence has ended.
const FREE_PAUSE: Duration = Duration::from_millis(10);

/// A request, and what the fabric needs beside it.
#[derive(Debug)]
pub(super) struct ActorRequest {
    pub(super) request: Request,
    /// With [`Request::Connect`].
    pub(super) channel: Option<ChannelRequest>,
    /// The part of a pull.
    pub(super) pull: Option<PullPart>,
}

/// A pull's part of a request.
#[derive(Debug)]
pub(super) enum PullPart {
    /// With [`Request::Open`]: the buffer is for this process to fill.
    Fill,
    /// With [`Request::Close`]: what was filled is closed, if nobody else has filled it since.
    Filled(Filling),
}

/// The fabric's part of a [`Request::Connect`].
#[derive(Debug)]
pub(super) struct ChannelRequest {
    pub(super) offer: Offer,
    /// The board is wanted too.
    pub(super) board: bool,
}

/// The reply to a request.
#[derive(Debug)]
pub(super) enum ActorReply {
    Inventory(Inventory),
    Damage(Vec<CopyReport>),
    /// The channel is ready once this is complete: see [`connect`].
    Connecting(Admission, Option<Grant>),
    Opened(Grant, Option<Grant>),
    Filling(Filling),
    Fetch(Place, SegmentIdentity, Closure),
    Flushed(Offset),
    Done,
}

/// The actor's state, for status and metrics.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ActorStatus {
    pub(super) promise: Promise,
    #[serde(flatten)]
    pub(super) counts: Counts,
    #[serde(flatten)]
    pub(super) tallies: DaemonCounters,
    /// Parts of a mirror that are lent.
    pub(super) mirror_parts_lent: u32,
    /// Bytes written into its memory, where the fabric counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) written_bytes: Option<u64>,
    /// What this backup must hold and does not, or doubts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) damage: Vec<String>,
    /// Why the fabric can lend nothing any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
    /// Why it lends nothing until there is room in its pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) no_room: Option<String>,
}

/// Messages wait in a queue that has no bound of its own. Those with an [`Answer`] hold a place, of [`REQUESTS_MAX`] or
/// [`QUESTIONS_MAX`], until they have been read, even if the caller has gone. Of the others there is one for each of the flusher's
/// jobs, for each copy that a scrub or a fetch finds corrupt, and for each reader whose channel is being made ready.
enum ActorMessage {
    Request(ActorRequest, Answer<Result<ActorReply, Refusal>>),
    Input(Input),
    Status(Answer<ActorStatus>),
    NewestClosed(Answer<SegmentId>),
    ClosedBehind(SegmentId, Answer<Option<ClosedCopy>>),
    ReadConnect(ReadConnectRequest<Offer>, bool, Answer<Result<Admitted, Refusal>>),
    GiveUpReader(ReaderId, Instant),
    AdmitPull(Box<PullRequest>, Answer<Result<bool, Refusal>>),
    GiveUp(Filling, Answer<()>),
    Mirror(MirrorRequest, Answer<Result<MirrorReply<Grant>, Refusal>>),
    Share(ShareRequest, Answer<Result<ShareReply<ReadGrant>, Refusal>>),
    ShareMirror(Epoch, u32, Answer<Result<Vec<ReadGrant>, Refusal>>),
    Loadable(Answer<Option<(SegmentIdentity, Closure)>>),
    Load(SegmentIdentity, Closure, Vec<u8>, Answer<bool>),
}

/// Where an answer goes, and the place that its question holds until then.
struct Answer<T> {
    to: oneshot::Sender<T>,
    _place: OwnedSemaphorePermit,
}

impl<T> Answer<T> {
    fn send(self, answer: T) {
        // The caller may be gone.
        let _ = self.to.send(answer);
    }
}

/// A closed copy, and where its bytes are.
pub(super) type ClosedCopy = (Place, SegmentIdentity, Closure);

/// Talks to the actor. Cheap to clone.
#[derive(Clone)]
pub(super) struct Handle {
    inbox: mpsc::Sender<ActorMessage>,
    requests: Arc<Semaphore>,
    questions: Arc<Semaphore>,
}

fn gone() -> Refusal {
    Refusal::Failed { why: "this backup has ended".to_owned() }
}

impl Handle {
    /// Asks, and waits for the answer.
    pub(super) async fn ask(&self, request: Request, channel: Option<ChannelRequest>) -> Result<ActorReply, Refusal> {
        self.send(ActorRequest { request, channel, pull: None }).await
    }

    /// Asks for a pull, and waits for the answer.
    pub(super) async fn ask_for_pull(&self, request: Request, part: PullPart) -> Result<ActorReply, Refusal> {
        self.send(ActorRequest { request, channel: None, pull: Some(part) }).await
    }

    /// As [`Backup::admit_pull`](tailwind_protocol::backup::Backup::admit_pull).
    pub(super) async fn admit_pull(&self, request: PullRequest) -> Result<bool, Refusal> {
        self.request(|answer| ActorMessage::AdmitPull(Box::new(request), answer)).await
    }

    /// A pull has failed: frees the buffer that it was to fill, unless that was lent again in the meantime.
    pub(super) async fn give_up(&self, filling: Filling) {
        // An actor that is gone has ended the process.
        let _ = self.question(|answer| ActorMessage::GiveUp(filling, answer)).await;
    }

    async fn send(&self, request: ActorRequest) -> Result<ActorReply, Refusal> {
        self.request(|answer| ActorMessage::Request(request, answer)).await
    }

    /// Tells what has happened.
    pub(super) fn tell(&self, input: Input) {
        // An actor that is gone has ended the process.
        let _ = self.inbox.send(ActorMessage::Input(input));
    }

    /// The newest closed segment.
    pub(super) async fn newest_closed(&self) -> Option<SegmentId> {
        self.question(ActorMessage::NewestClosed).await
    }

    /// The first closed copy behind this segment; `None` when there is none, or the actor is gone.
    pub(super) async fn closed_behind(&self, segment: SegmentId) -> Option<ClosedCopy> {
        self.question(|answer| ActorMessage::ClosedBehind(segment, answer)).await?
    }

    /// The closed copy that is to be read into a buffer next, if any.
    pub(super) async fn loadable(&self) -> Option<(SegmentIdentity, Closure)> {
        self.question(ActorMessage::Loadable).await?
    }

    /// These bytes of a closed copy were read from its file and verified. True if they are in a buffer now.
    pub(super) async fn load(&self, identity: SegmentIdentity, closure: Closure, bytes: Vec<u8>) -> bool {
        self.question(|answer| ActorMessage::Load(identity, closure, bytes, answer)).await.unwrap_or(false)
    }

    /// Makes a reader's channel ready. Guests have a certificate of readers, and fewer places. `place` is held until it is.
    pub(super) async fn read_connect(
        &self,
        request: ReadConnectRequest<Offer>,
        is_guest: bool,
        place: TakenPlace,
    ) -> Result<ChannelAnswer, Refusal> {
        let reader = ReaderId(request.reader);
        let Admitted { admission, new_at } =
            self.request(|answer| ActorMessage::ReadConnect(request, is_guest, answer)).await?;
        let inbox = self.inbox.clone();
        let give_up = move || {
            if let Some(new_at) = new_at {
                // An actor that is gone has no readers. Perhaps nobody would ever hear of this one again.
                let _ = inbox.send(ActorMessage::GiveUpReader(reader, new_at));
            }
        };
        complete(admission, place, give_up).await
    }

    /// Lends a part of the memory for a mirror.
    pub(super) async fn mirror(&self, request: MirrorRequest) -> Result<MirrorReply<Grant>, Refusal> {
        self.request(|answer| ActorMessage::Mirror(request, answer)).await
    }

    /// Shares memory with a reader. Parts of a mirror a few at a time: over verbs each is registered, and no fence is to wait for
    /// all of them. If one comes in between, it ends those that were shared before.
    pub(super) async fn share(&self, request: ShareRequest) -> Result<ShareReply<ReadGrant>, Refusal> {
        let mut more = request.mirror;
        let mut shared = self.request(|answer| ActorMessage::Share(request, answer)).await?;
        while more {
            let (epoch, first) = (shared.promised, shared.mirror.len() as u32);
            let parts = self.request(|answer| ActorMessage::ShareMirror(epoch, first, answer)).await?;
            more = parts.len() == SHARES_MAX;
            shared.mirror.extend(parts);
        }
        Ok(shared)
    }

    /// How things stand; `None` when the actor is gone.
    pub(super) async fn status(&self) -> Option<ActorStatus> {
        self.question(ActorMessage::Status).await
    }

    async fn request<T>(&self, message: impl FnOnce(Answer<Result<T, Refusal>>) -> ActorMessage) -> Result<T, Refusal> {
        self.wait_for(&self.requests, message).await.unwrap_or_else(|| Err(gone()))
    }

    async fn question<T>(&self, message: impl FnOnce(Answer<T>) -> ActorMessage) -> Option<T> {
        self.wait_for(&self.questions, message).await
    }

    /// `None` when the actor is gone.
    async fn wait_for<T>(&self, places: &Arc<Semaphore>, message: impl FnOnce(Answer<T>) -> ActorMessage) -> Option<T> {
        let place = Arc::clone(places).acquire_owned().await.ok()?;
        let (to, answer) = oneshot::channel();
        self.inbox.send(message(Answer { to, _place: place })).ok()?;
        answer.await.ok()
    }
}

/// Makes a writer's channel ready that the actor has admitted. Fails if the writer has been revoked by then.
pub(super) async fn connect(admission: Admission, place: TakenPlace) -> Result<ChannelAnswer, Refusal> {
    complete(admission, place, || {}).await
}

/// Completes an admission on another thread than the actor's, since it may take a second: to its end, even if the caller has
/// gone. `place` is held until then.
async fn complete(
    admission: Admission,
    place: TakenPlace,
    on_failure: impl FnOnce() + Send + 'static,
) -> Result<ChannelAnswer, Refusal> {
    let complete = move || {
        let _place = place;
        admission.complete().inspect_err(|_| on_failure())
    };
    blocking(complete).await.map_err(|error| Refusal::Failed { why: error.to_string() })
}

/// Where the actor's messages will arrive. Made before the actor, so that its flusher can answer.
pub(super) struct Inbox {
    messages: mpsc::Receiver<ActorMessage>,
}

/// A handle and the inbox behind it.
pub(super) fn inbox() -> (Handle, Inbox) {
    let (sender, messages) = mpsc::channel();
    let places = |count| Arc::new(Semaphore::new(count));
    (Handle { inbox: sender, requests: places(REQUESTS_MAX), questions: places(QUESTIONS_MAX) }, Inbox { messages })
}

/// Everything a backup owns.
pub(super) struct Actor {
    pub(super) daemon: Daemon,
    pub(super) lent: Lent,
    pub(super) flusher: FlusherThread,
}

/// Starts the actor's thread, which first carries out what the start asks for. It ends when everything is finished.
pub(super) fn start(actor: Actor, inbox: Inbox) -> anyhow::Result<oneshot::Receiver<()>> {
    let work = move || {
        let (requests, postponed) = (HashMap::new(), VecDeque::new());
        let running = Running { actor, requests, next: 0, finished: None, blocked: None, postponed };
        if let Err(error) = running.work(&inbox) {
            error!(error = format!("{error:#}"), "fatal error: exiting before anything incorrect is sent");
            std::process::abort();
        }
    };
    spawn_owned("backup", work).context("start the backup thread")
}

/// A backup has no buffer to lend because its disk takes no segment: the disk is what must be seen to.
fn with_cause(refusal: Refusal, trouble: &str) -> Refusal {
    match refusal {
        Refusal::RetryLater { after_ms, why } => {
            let why = format!("{why}: it cannot write full ones to {trouble}; free space there, or trim the log");
            Refusal::RetryLater { after_ms, why }
        }
        other => other,
    }
}

fn until_there_is_room(why: &str) -> Refusal {
    Refusal::RetryLater { after_ms: TICK.as_millis() as u32, why: why.to_owned() }
}

/// What a caller is told that uses another fabric, from its own point of view.
pub(super) fn other_fabric(ours: FabricKind, theirs: FabricKind) -> String {
    format!("this backup runs --fabric {ours}, the caller --fabric {theirs}: give both the same")
}

/// Keeps an input for later: of the counts of other files the newest, and of what is found corrupt each copy once. The scrub and
/// the count continue for as long as the pool has no room.
fn postpone(postponed: &mut VecDeque<Input>, input: Input) {
    match &input {
        Input::OtherFiles(_) => postponed.retain(|other| !matches!(other, Input::OtherFiles(_))),
        Input::FoundCorrupt(identity, place) => {
            let is_it = |other: &Input| matches!(other, Input::FoundCorrupt(of, at) if (of, at) == (identity, place));
            if postponed.iter().any(is_it) {
                return;
            }
        }
        _ => {}
    }
    postponed.push_back(input);
}

struct Running {
    actor: Actor,
    requests: HashMap<RequestId, Waiting>,
    next: u64,
    /// Set by [`OutputResult::Finish`].
    finished: Option<bool>,
    /// Set by [`OutputResult::NoRoom`]: the output is still due.
    blocked: Option<String>,
    /// Inputs that have arrived while `blocked`. Bounded by the flusher's jobs, the copies, and one; see [`postpone`].
    postponed: VecDeque<Input>,
}

struct Waiting {
    answer: Answer<Result<ActorReply, Refusal>>,
    channel: Option<ChannelRequest>,
    is_open: bool,
    /// For appends.
    appends: bool,
    /// What is opened is for this process to fill.
    fills: bool,
}

impl Running {
    fn work(mut self, inbox: &Inbox) -> anyhow::Result<()> {
        self.carry_out()?;
        let mut tick = Instant::now() + TICK;
        loop {
            if let Some(complete) = self.finished {
                return self.finish(complete);
            }
            // However much there is to answer.
            if Instant::now() >= tick {
                tick = Instant::now() + TICK;
                anyhow::ensure!(self.actor.flusher.lives(), "the flusher thread has panicked");
                self.actor.lent.dismiss_silent_readers();
                self.actor.lent.look_for_room();
                self.actor.lent.free_part()?;
                self.try_again()?;
                if self.blocked.is_none() {
                    self.step(Input::Tick)?;
                }
            }
            let pause = if self.actor.lent.has_parts_to_free() { FREE_PAUSE } else { TICK };
            match inbox.messages.recv_timeout(pause.min(tick.saturating_duration_since(Instant::now()))) {
                Ok(message) => self.on_message(message)?,
                Err(RecvTimeoutError::Timeout) => self.actor.lent.free_part()?,
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!("every handle was dropped"),
            }
        }
    }

    fn on_message(&mut self, message: ActorMessage) -> anyhow::Result<()> {
        match message {
            ActorMessage::Request(ActorRequest { request, channel, pull }, answer) => {
                if let (Request::Close(request), Some(PullPart::Filled(filling))) = (&request, &pull)
                    && filling.is_over()
                {
                    answer.send(Err(filled_by_others(request.identity.segment)));
                    return Ok(());
                }
                if let Some(why) = &self.blocked {
                    answer.send(Err(until_there_is_room(why)));
                    return Ok(());
                }
                let id = RequestId(self.next);
                self.next += 1;
                let is_open = matches!(request, Request::Open(_));
                let appends = matches!(&request, Request::Open(request) if request.purpose == Purpose::Append);
                let fills = pull.is_some();
                self.requests.insert(id, Waiting { answer, channel, is_open, appends, fills });
                self.step(Input::Request(id, request))
            }
            ActorMessage::Input(Input::Shutdown) => self.shut_down(),
            ActorMessage::Input(input) => self.step(input),
            ActorMessage::NewestClosed(answer) => {
                answer.send(self.actor.daemon.machine().newest_closed());
                Ok(())
            }
            ActorMessage::ClosedBehind(segment, answer) => {
                answer.send(self.actor.daemon.machine().closed_behind(segment));
                Ok(())
            }
            ActorMessage::ReadConnect(request, is_guest, answer) => {
                answer.send(self.read_connect(&request, is_guest));
                Ok(())
            }
            ActorMessage::GiveUpReader(reader, new_at) => {
                self.actor.lent.give_up_reader(reader, new_at);
                Ok(())
            }
            ActorMessage::AdmitPull(request, answer) => {
                answer.send(self.actor.daemon.machine().admit_pull(&request));
                Ok(())
            }
            ActorMessage::GiveUp(filling, answer) => {
                // A revocation, done or due, has ended them all.
                if !filling.is_over() {
                    self.step(Input::GivenUp(filling.slot()))?;
                }
                answer.send(());
                Ok(())
            }
            ActorMessage::Mirror(request, answer) => {
                answer.send(self.mirror(&request));
                Ok(())
            }
            ActorMessage::ShareMirror(epoch, first, answer) => {
                answer.send(self.actor.lent.share_mirror(epoch, first));
                Ok(())
            }
            ActorMessage::Share(request, answer) => {
                answer.send(self.share(&request));
                Ok(())
            }
            ActorMessage::Loadable(answer) => {
                let loadable = self.actor.daemon.machine().loadable();
                answer.send(loadable.filter(|_| self.blocked.is_none()));
                Ok(())
            }
            ActorMessage::Load(identity, closure, bytes, answer) => {
                if self.blocked.is_none() {
                    self.actor.daemon.load(identity, closure, bytes);
                    self.carry_out()?;
                }
                answer.send(self.actor.daemon.machine().is_resident(identity.segment));
                Ok(())
            }
            ActorMessage::Status(answer) => {
                let daemon = &self.actor.daemon;
                let status = ActorStatus {
                    promise: daemon.machine().promise().clone(),
                    counts: daemon.machine().counts(),
                    tallies: daemon.tallies,
                    mirror_parts_lent: self.actor.lent.mirror_parts_lent(),
                    written_bytes: self.actor.lent.receiver.written_bytes(),
                    damage: daemon.machine().damage(),
                    problem: self.actor.lent.receiver.problem(),
                    no_room: self.actor.lent.no_room().map(str::to_owned),
                };
                answer.send(status);
                Ok(())
            }
        }
    }

    fn step(&mut self, input: Input) -> anyhow::Result<()> {
        if self.blocked.is_some() {
            postpone(&mut self.postponed, input);
            return Ok(());
        }
        self.actor.daemon.tell(input);
        self.carry_out()
    }

    /// Everything goes to disk, even if the pool has no room. A fence that waited for room has been refused, and after this
    /// input every request is.
    fn shut_down(&mut self) -> anyhow::Result<()> {
        self.actor.lent.end();
        self.try_again()?;
        self.step(Input::Shutdown)
    }

    /// There may be room for what is due.
    fn try_again(&mut self) -> anyhow::Result<()> {
        if self.blocked.take().is_none() {
            return Ok(());
        }
        self.carry_out()?;
        while self.blocked.is_none()
            && let Some(input) = self.postponed.pop_front()
        {
            self.step(input)?;
        }
        Ok(())
    }

    /// The machine gets no input until the output that is due has been carried out. Waiting callers are told why, and ask
    /// again.
    fn block(&mut self, why: String) {
        for (_, waiting) in self.requests.drain() {
            waiting.answer.send(Err(until_there_is_room(&why)));
        }
        self.blocked = Some(why);
    }

    fn carry_out(&mut self) -> anyhow::Result<()> {
        while let Some(carried) = self.actor.daemon.carry_out(&mut self.actor.lent)? {
            match carried {
                OutputResult::Out => {}
                OutputResult::NoRoom(why) => {
                    self.block(why);
                    return Ok(());
                }
                OutputResult::Flush(job) => self.actor.flusher.queue(job)?,
                OutputResult::FlushLast(slot, identity, tail) => self.actor.flusher.flush_last(slot, identity, tail)?,
                OutputResult::Reply(id, reply) => self.reply(id, reply),
                OutputResult::Finish { complete } => self.finished = Some(complete),
            }
        }
        Ok(())
    }

    fn reply(&mut self, id: RequestId, reply: Reply) {
        let Some(waiting) = self.requests.remove(&id) else { return };
        let answer = match reply {
            Reply::Inventory(inventory) => Ok(ActorReply::Inventory(inventory)),
            Reply::Damage(copies) => Ok(ActorReply::Damage(copies)),
            Reply::Connect(epoch) => self.accept(epoch, waiting.channel.as_ref()),
            Reply::Opened(slot) if waiting.fills => self.fill(slot).map(ActorReply::Filling),
            Reply::Opened(slot) => self.grant(slot).map(|grant| {
                let promised = self.actor.daemon.machine().promise().epoch;
                ActorReply::Opened(grant, if waiting.appends { self.actor.lent.board(promised) } else { None })
            }),
            Reply::Fetch(place, identity, closure) => Ok(ActorReply::Fetch(place, identity, closure)),
            Reply::Flushed(end) => Ok(ActorReply::Flushed(end)),
            Reply::Done => Ok(ActorReply::Done),
            Reply::Refused(refusal) => {
                self.actor.daemon.tallies.opens_refused += u64::from(waiting.is_open);
                match self.actor.daemon.disk().trouble() {
                    Some(trouble) if waiting.is_open => Err(with_cause(refusal, &trouble)),
                    _ => Err(refusal),
                }
            }
        };
        waiting.answer.send(answer);
    }

    fn accept(&mut self, epoch: Epoch, channel: Option<&ChannelRequest>) -> Result<ActorReply, Refusal> {
        let channel = channel.ok_or_else(|| Refusal::BadRequest { why: "no offer".to_owned() })?;
        let lent = &mut self.actor.lent;
        let admission = lent.receiver.accept(Writer(epoch.0), &channel.offer).map_err(|error| match error {
            FabricError::Mismatch { ours, theirs } => Refusal::BadRequest { why: other_fabric(ours, theirs) },
            _ => Refusal::Failed { why: error.to_string() },
        })?;
        let board = if channel.board { lent.board(epoch) } else { None };
        Ok(ActorReply::Connecting(admission, board))
    }

    fn read_connect(&mut self, request: &ReadConnectRequest<Offer>, is_guest: bool) -> Result<Admitted, Refusal> {
        let Actor { daemon, lent, .. } = &mut self.actor;
        daemon.machine().admit_reader(&request.group, request.log)?;
        lent.admit_reader(ReaderId(request.reader), &request.offer, is_guest)
    }

    fn mirror(&mut self, request: &MirrorRequest) -> Result<MirrorReply<Grant>, Refusal> {
        if let Some(why) = &self.blocked {
            return Err(until_there_is_room(why));
        }
        self.actor.daemon.machine().admit_mirror(&request.caller)?;
        let lending = Lending { epoch: request.caller.epoch, number: request.lending };
        self.actor.lent.mirror(lending, request.part)
    }

    fn share(&mut self, request: &ShareRequest) -> Result<ShareReply<ReadGrant>, Refusal> {
        let Actor { daemon, lent, .. } = &mut self.actor;
        daemon.machine().admit_reader(&request.group, request.log)?;
        lent.note_reader(ReaderId(request.reader), request.board)?;
        let promised = daemon.machine().promise().epoch;
        let board = if request.board { lent.share_board(promised)? } else { None };
        let mut segments = Vec::new();
        for (slot, identity, closure) in daemon.machine().shareable(&request.segments)? {
            let shared = lent.share(slot, identity.segment)?;
            segments.extend(shared.map(|grant| SharedSegment { identity, closure, grant }));
        }
        let mirror_parts = request.mirror.then(|| lent.mirror_parts().count);
        // It follows, a few at a time: see `Handle::share`.
        Ok(ShareReply { promised, board, mirror: Vec::new(), mirror_parts, segments })
    }

    fn fill(&mut self, slot: Slot) -> Result<Filling, Refusal> {
        let segment = self.actor.daemon.segment_in(slot).unwrap_or_default();
        self.actor.lent.fill(slot).ok_or_else(|| filled_by_others(segment))
    }

    fn grant(&mut self, slot: Slot) -> Result<Grant, Refusal> {
        // A lending of an earlier process life has no grant; the machine counts it as fenced and never answers with it.
        let grant = self.actor.lent.grant(slot).cloned();
        grant.ok_or_else(|| Refusal::Failed { why: "the lending is over".to_owned() })
    }

    fn finish(self, complete: bool) -> anyhow::Result<()> {
        let Running { actor: Actor { daemon, lent, flusher }, requests, .. } = self;
        drop(lent);
        flusher.finish()?;
        daemon.finish(complete)?;
        drop(requests);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;
    use tailwind_backup::{BackupConfig, OsFolder, PromiseFile, start as begin};
    use tailwind_fabric::shm::ShmReceiver;
    use tailwind_fabric::{PoolError, Receiver, SlotId};
    use tailwind_protocol::backup::Limits;
    use tailwind_protocol::config::Durability;
    use tailwind_protocol::ids::{BootId, Claim, Generation, LogId, Lsn};
    use tailwind_protocol::layout::SegmentSize;
    use tailwind_protocol::rpc::{Caller, FenceRequest, OpenRequest};
    use tailwind_protocol::segment::SegmentWriter;

    use super::super::memory::{PoolBuffers, PoolMemory};
    use super::super::sending::Places;
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Its channels become ready when the test says so, unless their writers have been revoked.
    struct SlowReceiver {
        shm: ShmReceiver,
        revoked_below: Arc<Mutex<Writer>>,
        ready: Arc<Mutex<mpsc::Receiver<()>>>,
        /// There is no room to revoke anybody.
        full: Arc<AtomicBool>,
    }

    impl Receiver for SlowReceiver {
        fn kind(&self) -> FabricKind {
            self.shm.kind()
        }

        fn accept(&mut self, writer: Writer, _: &Offer) -> Result<Admission, FabricError> {
            let (revoked_below, ready) = (Arc::clone(&self.revoked_below), Arc::clone(&self.ready));
            Ok(Admission::after(move || {
                ready.lock().unwrap().recv().unwrap();
                let is_revoked = writer < *revoked_below.lock().unwrap();
                if is_revoked { Err(FabricError::Revoked(writer)) } else { Ok(ChannelAnswer::Shm) }
            }))
        }

        fn lend(&mut self, writer: Writer, slot: SlotId) -> Result<Grant, FabricError> {
            self.shm.lend(writer, slot)
        }

        fn end_lending(&mut self, slot: SlotId) {
            self.shm.end_lending(slot);
        }

        fn hold(&mut self, slot: SlotId) -> Result<(), FabricError> {
            self.shm.hold(slot)
        }

        fn release(&mut self, slot: SlotId) -> Result<(), FabricError> {
            self.shm.release(slot)
        }

        fn revoke_below(&mut self, writer: Writer) -> Result<(), FabricError> {
            if self.full.load(Ordering::Acquire) {
                return Err(PoolError::NoSpace { dir: "pool".into(), needed: 1, free: 0 }.into());
            }
            *self.revoked_below.lock().unwrap() = writer;
            self.shm.revoke_below(writer)
        }
    }

    /// A backup whose channels become ready one for each message, and the end of its thread. `full`: its pool has no room.
    fn slow_backup(dir: &std::path::Path, full: &Arc<AtomicBool>) -> (Handle, mpsc::Sender<()>, oneshot::Receiver<()>) {
        let home = BackupConfig {
            group: "db".parse().unwrap(),
            member: "b0".parse().unwrap(),
            pool: dir.join("pool"),
            buffers: 2,
            segment_size: SegmentSize::MIN,
            kernel: "this boot".to_owned(),
        };
        let mut memory = PoolMemory::new(home.pool.clone(), home.buffers, home.segment_size);
        let folder = OsFolder::open(&dir.join("flush")).unwrap();
        let started = begin(&home, Box::new(folder), &mut memory, BootId(1)).unwrap();
        let pool = Arc::clone(memory.pool().unwrap());
        let (ready, wait) = mpsc::channel();
        let shm = ShmReceiver::new(Arc::clone(&pool)).unwrap();
        let (revoked_below, wait) = (Arc::new(Mutex::new(Writer(0))), Arc::new(Mutex::new(wait)));
        let limits = Limits {
            slots: home.buffers,
            slot_size: home.segment_size.bytes(),
            unflushed_bytes_max: u64::MAX,
            flush_bytes_max: None,
            residents: 0,
            copies_max: usize::MAX,
        };
        let (daemon, flusher) = Daemon::new(started, limits);
        let (handle, inbox) = inbox();
        let answers = handle.clone();
        let flusher = FlusherThread::start(flusher, PoolBuffers(Arc::clone(&pool)), move |input| answers.tell(input));
        let receiver = SlowReceiver { shm, revoked_below, ready: wait, full: Arc::clone(full) };
        let lent = Lent::new(Box::new(receiver), pool);
        let finished = start(Actor { daemon, lent, flusher: flusher.unwrap() }, inbox).unwrap();
        (handle, ready, finished)
    }

    fn caller(epoch: u64) -> Caller {
        Caller { group: "db".parse().unwrap(), log: LogId(1), epoch: Epoch(epoch) }
    }

    /// By the claim of the epoch's number.
    fn fence_of(epoch: u64, earlier: Vec<Claim>) -> Request {
        let (caller, claim, won) = (caller(epoch), Claim(epoch), Epoch(epoch - 1));
        Request::Fence(FenceRequest { caller, claim, earlier, won, joined: None, after: None })
    }

    /// Over verbs connecting takes a second where a writer's address does not answer. A promotion must not wait for that.
    #[tokio::test]
    async fn a_fence_waits_for_no_channel() {
        let dir = tempfile::tempdir().unwrap();
        let (handle, ready, finished) = slow_backup(dir.path(), &Arc::default());
        let fence = |epoch, earlier| tokio::time::timeout(LONG, handle.ask(fence_of(epoch, earlier), None));
        let connect = |epoch| {
            let channel = ChannelRequest { offer: Offer::Shm, board: false };
            tokio::time::timeout(LONG, handle.ask(Request::Connect(caller(epoch)), Some(channel)))
        };
        let admission = |reply: ActorReply| match reply {
            ActorReply::Connecting(admission, None) => admission,
            other => panic!("{other:?}"),
        };
        let places = Places::new();
        fence(1, Vec::new()).await.unwrap().unwrap();
        let old = admission(connect(1).await.unwrap().unwrap());
        let old = tokio::spawn(super::connect(old, places.channel().await));
        let fenced = fence(2, vec![Claim(1)]).await.expect("it waits for no channel").unwrap();
        assert!(matches!(fenced, ActorReply::Inventory(_)), "{fenced:?}");
        ready.send(()).unwrap();
        let refused = old.await.unwrap().unwrap_err();
        assert!(matches!(&refused, Refusal::Failed { why } if why.contains("revoked")), "{refused:?}");
        ready.send(()).unwrap();
        let new = admission(connect(2).await.unwrap().unwrap());
        super::connect(new, places.channel().await).await.unwrap();
        handle.tell(Input::Shutdown);
        tokio::time::timeout(LONG, finished).await.unwrap().unwrap();
    }

    fn identity(segment: u64) -> SegmentIdentity {
        let (log, segment, generation) = (LogId(1), SegmentId(segment), Generation(segment));
        SegmentIdentity { log, segment, epoch: Epoch(1), generation, size: SegmentSize::MIN }
    }

    /// With durability `battery` the power lasts for as long as that takes.
    #[tokio::test]
    async fn a_backup_without_room_flushes_everything_at_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let full = Arc::new(AtomicBool::new(false));
        let (handle, _ready, finished) = slow_backup(dir.path(), &full);
        let fence = |epoch, earlier| tokio::time::timeout(LONG, handle.ask(fence_of(epoch, earlier), None));
        fence(1, Vec::new()).await.unwrap().unwrap();
        let (identity, purpose, durability) = (identity(1), Purpose::Append, Durability::Battery);
        let request = OpenRequest { caller: caller(1), identity, purpose, durability };
        let opened = tokio::time::timeout(LONG, handle.ask(Request::Open(request), None)).await.unwrap();
        let path = match opened {
            Ok(ActorReply::Opened(Grant::Shm { path, .. }, _)) => path,
            other => panic!("{other:?}"),
        };
        let mut bytes = vec![0; SegmentSize::MIN.bytes() as usize];
        let (mut writer, mut end) = SegmentWriter::open(identity, Lsn(1), &mut bytes);
        end += writer.append(&mut bytes[end as usize..], [b"a record".as_slice()].into_iter());
        let bytes = &bytes[..end as usize];
        let buffer = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        buffer.write_all_at(bytes, 0).unwrap();

        full.store(true, Ordering::Release);
        let refused = fence(2, vec![Claim(1)]).await.unwrap().unwrap_err();
        assert!(matches!(&refused, Refusal::RetryLater { why, .. } if why.contains("no room")), "{refused:?}");
        handle.tell(Input::Shutdown);
        tokio::time::timeout(LONG, finished).await.expect("it waits for no room").unwrap();
        let flush = dir.path().join("flush");
        let written = std::fs::read(flush.join("segment-0000000000000001.open")).unwrap();
        assert_eq!(written.get(..bytes.len()), Some(bytes));
        let (_, state) = PromiseFile::open(&OsFolder::open(&flush).unwrap()).unwrap().unwrap();
        assert!(state.complete, "it keeps its identity");
    }

    #[test]
    fn what_is_postponed_is_bounded() {
        let mut postponed = VecDeque::new();
        for pass in 0..3 {
            for segment in 1..=2 {
                postpone(&mut postponed, Input::FoundCorrupt(identity(segment), Place::Disk));
            }
            postpone(&mut postponed, Input::OtherFiles(pass));
        }
        let image = Input::FoundCorrupt(identity(1), Place::Memory(Slot(0)));
        postpone(&mut postponed, image.clone());
        let found = |segment| Input::FoundCorrupt(identity(segment), Place::Disk);
        let expected = [found(1), found(2), Input::OtherFiles(2), image];
        assert_eq!(format!("{postponed:?}"), format!("{expected:?}"));
    }

    #[test]
    fn callers_that_have_gone_leave_a_bounded_queue() {
        let (handle, inbox) = inbox();
        for _ in 0..2 * REQUESTS_MAX {
            let share = ShareRequest {
                group: "g".parse().unwrap(),
                log: LogId(1),
                reader: 1,
                board: true,
                mirror: false,
                segments: Vec::new(),
            };
            // Polled once, and dropped: the question is in the queue, and the caller is gone.
            assert!(handle.share(share).now_or_never().is_none());
            assert!(handle.status().now_or_never().is_none());
        }
        assert_eq!(inbox.messages.try_iter().count(), REQUESTS_MAX + QUESTIONS_MAX);
        assert!(handle.status().now_or_never().is_none());
        assert_eq!(inbox.messages.try_iter().count(), 1, "what has been read leaves its place");
    }

    #[test]
    fn a_refusal_names_the_disk_that_causes_it() {
        let refused = |why: &str| Refusal::RetryLater { after_ms: 100, why: why.to_owned() };
        let trouble = "/var/lib/tailwind/b0: No space left on device";
        assert_eq!(
            with_cause(refused("all 3 buffers of backup s0 are in use"), trouble),
            refused(
                "all 3 buffers of backup s0 are in use: it cannot write full ones to /var/lib/tailwind/b0: No space left on \
                 device; free space there, or trim the log"
            )
        );
        let other = Refusal::Fenced { promised: Epoch(3) };
        assert_eq!(with_cause(other.clone(), trouble), other, "the disk has nothing to do with it");
    }
}
