//! Hands a client what members hold of the log, in any role: carries out what a [`Follower`] wants.
//!
//! Called by [`reads`](super) while this sidecar does not lead; over as soon as it does. Decides nothing about records:
//! every output of the machine becomes a call or a read ([`visit`](super::visit)), every answer an input, and every record that
//! it hands out a part of a frame. Records leave before the next thing is begun, so a client that is slow slows its own follow
//! down, and nothing else.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwind_protocol::follower::{Follower, Input, Output, STALE_AFTER, Visit};
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::rpc::CopyReport;
use tailwind_protocol::socket::{BEHIND_UNKNOWN, ErrorCode, RecordsFrames, Response};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::ahead::{Fetch, Part};
use super::alarm::Alarm;
use super::client_stream::End;
use super::follows::{FOLLOWS_MAX, FollowSlot, Follows};
use super::visit::{LANDING, ReadEnd, SIGN_OF_LIFE, SharedCopy, VisitedMember};
use super::{AtEnd, ClientRead, parted};
use crate::control::desired::READS_DISABLED;
use crate::control::log::Term;
use crate::control::random_below;
use crate::control::sources::Sources;
use crate::path::{beyond_the_end, trimmed};
use crate::thread::result;

/// The client of a follow hears so often how far behind it is.
const LAG_INTERVAL: Duration = Duration::from_millis(500);
/// So often is told elsewhere how far a follow is.
const TELL_INTERVAL: Duration = Duration::from_millis(10);
/// A read that is to end waits so long for members to show the next record, and longer than any failover takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Hands out records until this sidecar leads, or another end.
pub(super) async fn follow(read: &mut ClientRead<'_>, leading: &mut watch::Receiver<Option<Term>>) -> End {
    if !read.context.may_read() {
        return End::Refused(ErrorCode::Unavailable, READS_DISABLED.to_owned());
    }
    let next = read.client.next();
    let Some(slot) = read.context.follows.take(next) else {
        let message = format!("{FOLLOWS_MAX} follows are running already: try again when one has ended");
        return End::Refused(ErrorCode::Busy, message);
    };
    let alarm = match Alarm::new() {
        Ok(alarm) => alarm,
        Err(error) => return End::Refused(ErrorCode::Unavailable, format!("make a timer: {error}")),
    };
    let now = Instant::now();
    let following = Following {
        machine: Follower::new(Duration::ZERO, next, LANDING, random_below(u64::from(u16::MAX)) as usize, Visit(0))
            .in_history(read.history),
        frames: read.ahead.frames(read.client.request()),
        read,
        slot,
        alarm,
        began: now,
        outputs: Vec::new(),
        sources: None,
        visiting: None,
        calls: JoinSet::new(),
        lag_due: now + LAG_INTERVAL,
        told: now,
        progress: now,
        left: "no backup has been asked yet".to_owned(),
    };
    match following.run(leading).await {
        Err(end) => end,
        Ok(never) => match never {},
    }
}

struct Following<'r, 'c> {
    read: &'r mut ClientRead<'c>,
    slot: FollowSlot,
    machine: Follower,
    alarm: Alarm,
    /// Zero of the machine's clock.
    began: Instant,
    outputs: Vec<Output>,
    /// Records that the last step has handed out.
    frames: RecordsFrames,
    /// Who is asked for closed segments.
    sources: Option<Arc<Sources>>,
    visiting: Option<Visiting>,
    /// Calls of this visit; they end with it.
    calls: JoinSet<Answer>,
    lag_due: Instant,
    /// When its progress was told last.
    told: Instant,
    /// When records were handed out last.
    progress: Instant,
    /// Why the last visit ended.
    left: String,
}

/// Who is visited.
struct Visiting {
    visit: Visit,
    member: VisitedMember,
    /// Once there is a channel.
    end: Option<ReadEnd>,
    /// What is being read, and when the read was posted.
    posted: Option<(Posted, Instant)>,
    /// When the member was asked last.
    asked: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Posted {
    Board,
    Segment,
}

/// What came of a call.
enum Answer {
    Connected(Result<ReadEnd, String>),
    Surveyed(Result<Vec<CopyReport>, String>),
    Shared(Result<Option<SharedCopy>, String>),
    Fetched(Result<RecordsFrames, String>),
    SignOfLife(Result<(), String>),
}

enum Event {
    Leads,
    Configuration,
    Desired,
    Completed(Result<(), String>),
    Answer(Answer),
    Spoken,
    Rang,
}

impl Following<'_, '_> {
    async fn run(mut self, leading: &mut watch::Receiver<Option<Term>>) -> Result<Infallible, End> {
        let mut configurations = self.read.context.configuration.clone();
        configurations.mark_changed();
        let mut desired = self.read.context.desired.clone();
        self.read.client.listen().await?;
        loop {
            self.send_records().await?;
            self.carry_out().await?;
            self.read.tell_history().await?;
            self.tell().await?;
            self.set_alarm()?;
            let Following { machine, read, visiting, calls, alarm, .. } = &mut self;
            let follows = &read.context.follows;
            machine.log().iter().for_each(|log| follows.note(*log, machine.epoch()));
            let event = tokio::select! {
                biased;
                () = leads(leading, follows) => Event::Leads,
                Ok(()) = configurations.changed() => Event::Configuration,
                Ok(()) = desired.changed() => Event::Desired,
                completed = completed(visiting) => Event::Completed(completed),
                Some(answer) = calls.join_next() => Event::Answer(result(answer).await),
                spoken = read.client.speaks() => {
                    spoken?;
                    Event::Spoken
                }
                rang = alarm.rings() => {
                    rang?;
                    Event::Rang
                }
            };
            match event {
                Event::Leads => return Err(End::RoleLost),
                Event::Configuration => {
                    let configuration = configurations.borrow_and_update().clone();
                    // Without members there is nobody to visit.
                    if let Some(config) = configuration.filter(|config| !config.members.is_empty()) {
                        self.sources = Some(Arc::new(Sources::of(self.read.context, &config)));
                        self.step(Input::Config(&config));
                        self.read.history = self.machine.history();
                    }
                }
                Event::Desired if self.read.context.may_read() => {}
                Event::Desired => return Err(End::Refused(ErrorCode::Unavailable, READS_DISABLED.to_owned())),
                Event::Completed(completed) => self.on_completed(completed),
                Event::Answer(answer) => self.on_answer(answer).await?,
                Event::Spoken => self.read.client.listen().await?,
                Event::Rang => self.on_time(),
            }
        }
    }

    fn step(&mut self, input: Input<'_>) {
        let Following { machine, outputs, frames, read, began, .. } = self;
        // Known since an earlier step than that which hands out the first record.
        read.begin_at(machine.next());
        let until = read.until;
        machine.step(began.elapsed(), input, outputs, |record| {
            if record.lsn < until {
                frames.put(record.lsn.0, record.payload);
            }
        });
    }

    /// Sends what the last step has handed out.
    async fn send_records(&mut self) -> Result<(), End> {
        let before = self.read.client.next();
        self.read.client.send_records(&mut self.frames).await?;
        self.frames.clear();
        let next = self.read.client.next();
        if next > before {
            self.progress = Instant::now();
            self.slot.update(next.0 - before.0, |progress| progress.lsn = next.prev());
        }
        if next >= self.read.until { Err(End::Done) } else { Ok(()) }
    }

    async fn carry_out(&mut self) -> Result<(), End> {
        let mut outputs = std::mem::take(&mut self.outputs);
        for output in outputs.drain(..) {
            match output {
                Output::CaughtUp => self.on_caught_up().await?,
                Output::Trimmed(first) => {
                    let message = trimmed(self.read.client.next(), first.0);
                    return Err(End::Refused(ErrorCode::Trimmed, message));
                }
                Output::BeyondEnd(last) => {
                    let next = self.read.client.next();
                    let message = beyond_the_end(next.0, last.0).expect("the machine knows of no such record");
                    return Err(End::Refused(ErrorCode::BeyondEnd, message));
                }
                Output::Parted(why) => return Err(parted(self.read.client.next(), why)),
                Output::Connect(visit, log, member) => {
                    tracing::debug!(member = %member.id, ?visit, "visits a backup");
                    let member = VisitedMember::new(self.read.context, log, member, self.slot.reader());
                    let connecting = member.clone().connect();
                    self.visiting = Some(Visiting { visit, member, end: None, posted: None, asked: Instant::now() });
                    self.call(async move { Answer::Connected(connecting.await) });
                }
                Output::Leave(visit, why) => {
                    tracing::debug!(?visit, %why, "leaves a backup");
                    (self.visiting, self.calls, self.left) = (None, JoinSet::new(), why);
                    self.slot.update(0, |progress| progress.from = None);
                }
                Output::Fetch(_, identity, closure, wanted) => {
                    if let Some(fetch) = self.fetch(identity, closure, &wanted) {
                        self.call(async move { Answer::Fetched(fetch.await) });
                    }
                }
                Output::Look(_) => self.post(Posted::Board, ReadEnd::look),
                Output::Read(_, range) => self.post(Posted::Segment, |end| end.read(range)),
                Output::Survey(_) => {
                    let next = self.machine.next();
                    self.ask(|member| async move { Answer::Surveyed(member.survey(next).await) });
                }
                Output::Share(_, segment) => {
                    self.ask(|member| async move { Answer::Shared(member.share_segment(segment).await) });
                }
            }
        }
        self.outputs = outputs;
        Ok(())
    }

    async fn on_caught_up(&mut self) -> Result<(), End> {
        self.read.begin_at(self.machine.next());
        match self.read.at_end {
            AtEnd::Done => Err(End::Done),
            AtEnd::GoOn | AtEnd::Turn => self.read.client.send_caught_up().await,
        }
    }

    fn post(&mut self, what: Posted, post: impl FnOnce(&mut ReadEnd)) {
        if let Some(Visiting { end: Some(end), posted, .. }) = &mut self.visiting {
            *posted = Some((what, Instant::now()));
            post(end);
        }
    }

    fn ask<F>(&mut self, call: impl FnOnce(VisitedMember) -> F)
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        if let Some(visiting) = &mut self.visiting {
            visiting.asked = Instant::now();
            let call = call(visiting.member.clone());
            self.call(call);
        }
    }

    fn call(&mut self, call: impl Future<Output = Answer> + Send + 'static) {
        self.calls.spawn(call);
    }

    /// The wanted records of a closed segment; those after it are on their way meanwhile.
    fn fetch(&mut self, identity: SegmentIdentity, closure: Closure, wanted: &Range<Lsn>) -> Option<Fetch> {
        let Following { read, machine, sources, .. } = self;
        let sources = sources.as_ref()?;
        let then = wanted.end..read.until;
        let upcoming = machine.upcoming().filter_map(|(identity, closure)| Part::new(identity, closure, &then));
        let wanted = wanted.start..wanted.end.min(read.until);
        let first = Part::new(identity, closure, &wanted)?;
        Some(read.ahead.fetch(read.context, sources, read.client.request(), first, upcoming))
    }

    fn on_completed(&mut self, completed: Result<(), String>) {
        let Some(visiting) = &mut self.visiting else { return };
        let (Some((what, at)), Some(end)) = (visiting.posted.take(), visiting.end.take()) else { return };
        let visit = visiting.visit;
        match (completed, what) {
            (Err(why), _) => self.step(Input::Broken(visit, why)),
            (Ok(()), Posted::Segment) => self.step(Input::Read(visit, end.landed())),
            (Ok(()), Posted::Board) => {
                let posted = at.saturating_duration_since(self.began);
                self.step(Input::Looked(visit, posted, end.landed()));
            }
        }
        if let Some(visiting) = &mut self.visiting {
            visiting.end = Some(end);
        }
    }

    async fn on_answer(&mut self, answer: Answer) -> Result<(), End> {
        let Some(visiting) = &mut self.visiting else { return Ok(()) };
        let visit = visiting.visit;
        match answer {
            Answer::Connected(connected) => {
                let connected = connected.map(|end| drop(visiting.end.replace(end)));
                self.step(Input::Connected(visit, connected));
            }
            Answer::Surveyed(surveyed) => {
                self.step(Input::Surveyed(visit, surveyed.as_deref().map_err(String::clone)));
            }
            Answer::Shared(shared) => {
                let shared = shared.map(|shared| {
                    let copy = shared?;
                    let of = (copy.identity, copy.closure);
                    visiting.end.as_mut()?.set_segment(copy);
                    Some(of)
                });
                self.step(Input::Shared(visit, shared));
            }
            Answer::Fetched(Ok(mut frames)) => {
                if self.machine.fetches(visit) {
                    // Sent before the machine hears of it: it looks at the board again, however long the client takes.
                    std::mem::swap(&mut self.frames, &mut frames);
                    self.send_records().await?;
                    // The next segment goes where this one was: no buffer as large as a segment stays here.
                    std::mem::swap(&mut self.frames, &mut frames);
                    self.read.ahead.keep(frames);
                    self.step(Input::Fetched(visit, Ok(())));
                }
            }
            Answer::Fetched(Err(why)) => self.step(Input::Fetched(visit, Err(why))),
            Answer::SignOfLife(Ok(())) => {}
            // It has forgotten this reader, and will end its channel.
            Answer::SignOfLife(Err(why)) => self.step(Input::Broken(visit, why)),
        }
        Ok(())
    }

    /// When the machine wants to hear of time that has passed. A read counts from its posting: before it the client may have
    /// kept it waiting.
    fn machine_due(&self) -> Option<Instant> {
        let due = self.began + self.machine.wake_at()?;
        let posted = self.visiting.as_ref().and_then(|visiting| visiting.posted);
        Some(posted.map_or(due, |(_, at)| due.max(at + STALE_AFTER)))
    }

    fn sign_due(&self) -> Option<Instant> {
        let connected = self.visiting.as_ref().filter(|visiting| visiting.end.is_some())?;
        Some(connected.asked + SIGN_OF_LIFE)
    }

    fn set_alarm(&mut self) -> Result<(), End> {
        let patience = (self.read.at_end == AtEnd::Done).then(|| self.progress + PATIENCE);
        let lag = (self.read.at_end == AtEnd::Turn).then_some(self.lag_due);
        let due = [self.machine_due(), self.sign_due(), patience, lag].into_iter().flatten().min();
        Ok(self.alarm.set(due)?)
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        if self.machine_due().is_some_and(|due| due <= now) {
            self.step(Input::Tick);
        }
        if self.sign_due().is_some_and(|due| due <= now) {
            self.ask(|member| async move { Answer::SignOfLife(member.give_sign_of_life().await) });
        }
    }

    /// Tells the client and the status how far it is, if it is time for it.
    async fn tell(&mut self) -> Result<(), End> {
        let now = Instant::now();
        if now >= self.told + TELL_INTERVAL {
            self.told = now;
            let from = self.machine.from().map(|member| &member.id);
            let lag = self.machine.lag(now - self.began);
            self.slot.update(0, |progress| {
                if progress.from.as_ref() != from {
                    progress.from = from.cloned();
                }
                progress.covers = lag.behind.and_then(|behind| now.checked_sub(behind));
            });
        }
        if self.read.at_end == AtEnd::Turn && now >= self.lag_due {
            self.lag_due = now + LAG_INTERVAL;
            let lag = self.machine.lag(now - self.began);
            let behind_ms = lag.behind.map_or(BEHIND_UNKNOWN, |behind| {
                // Rounded up: it is that much at most.
                u32::try_from(behind.as_micros().div_ceil(1000)).unwrap_or(BEHIND_UNKNOWN - 1)
            });
            let said = Response::Lag { acked: lag.acked.0, behind_ms, stale: lag.is_stale() };
            self.read.client.send(&said).await?;
        }
        if self.read.at_end == AtEnd::Done && now >= self.progress + PATIENCE {
            let (next, why) = (self.read.client.next(), &self.left);
            let message = format!(
                "no backup has shown record {next} for {PATIENCE:?} (last: {why}): read from a lower LSN, or try again"
            );
            return Err(End::Refused(ErrorCode::Unavailable, message));
        }
        Ok(())
    }
}

/// Returns once this sidecar leads, in an epoch that is not older than what was handed out here.
async fn leads(leading: &mut watch::Receiver<Option<Term>>, follows: &Follows) {
    if leading.wait_for(|term| term.is_some_and(|term| !follows.have_outlived(&term))).await.is_err() {
        // The process ends.
        std::future::pending().await
    }
}

/// Returns when the read that is on its way has completed.
async fn completed(visiting: &mut Option<Visiting>) -> Result<(), String> {
    match visiting {
        Some(Visiting { end: Some(end), posted: Some(_), .. }) => end.completed().await,
        _ => std::future::pending().await,
    }
}
