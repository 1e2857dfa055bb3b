//! Hands a client what members hold of the log, in any role: carries out what a [`Follower`] wants.
//!
//! Called by [`reads`](super) while this sidecar does not lead; over as soon as it does. Decides nothing about records: every
//! output of the machine becomes a call or a read of the [`visit`](super::visit) that is under way, or a fetch
//! ([`ahead`](super::ahead)), every answer an input, and every record that it hands out a part of a frame. Records leave before
//! the next thing is begun, so a client that is slow slows its own follow down, and nothing else.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwind_protocol::config::Configuration;
use tailwind_protocol::follower::{Follower, Input, Output, STALE_AFTER, Visit};
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::socket::{BEHIND_UNKNOWN, ErrorCode, RecordsFrames, Response};
use tokio::sync::watch;

use super::ahead::Part;
use super::alarm::Alarm;
use super::client_stream::End;
use super::follows::{FOLLOWS_MAX, FollowSlot, Follows};
use super::headway::{Headway, PATIENCE};
use super::visit::{Answer, LANDING, MemberVisit};
use super::{AtEnd, ClientRead, parted};
use crate::control::desired::READS_DISABLED;
use crate::control::log::Term;
use crate::control::random_below;
use crate::control::sources::Sources;
use crate::path::{beyond_the_end, trimmed};

/// The client of a follow hears so often how far behind it is.
const LAG_INTERVAL: Duration = Duration::from_millis(500);
/// The status hears so often how far a follow is.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(10);

/// Hands out records until this sidecar leads, or another end.
pub(super) async fn follow(
    read: &mut ClientRead<'_>,
    leading: &mut watch::Receiver<Option<Term>>,
) -> Result<Infallible, End> {
    if !read.context.may_read() {
        return Err(reads_disabled());
    }
    let next = read.client.next;
    let slot = read.context.follows.take(next).ok_or_else(|| {
        let message = format!("{FOLLOWS_MAX} follows are running already: try again when one has ended");
        End::Refused(ErrorCode::Busy, message)
    })?;
    let alarm = Alarm::new().map_err(|error| End::Refused(ErrorCode::Unavailable, format!("make a timer: {error}")))?;
    let now = Instant::now();
    let turn = random_below(u64::from(u16::MAX)) as usize;
    let following = Following {
        machine: Follower::new(Duration::ZERO, if read.begins() { Lsn(0) } else { next }, LANDING, turn, Visit(0))
            .in_history(read.history),
        frames: read.ahead.frames(read.client.request),
        headway: Headway::new(now, read.ahead.received()),
        read_bytes: 0,
        read,
        slot,
        alarm,
        began: now,
        outputs: Vec::new(),
        sources: None,
        visit: None,
        lag_due: now + LAG_INTERVAL,
        progress_due: now + PROGRESS_INTERVAL,
        left: "no backup has been asked yet".to_owned(),
    };
    following.run(leading).await
}

fn reads_disabled() -> End {
    End::Refused(ErrorCode::Unavailable, READS_DISABLED.to_owned())
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
    visit: Option<MemberVisit>,
    /// When the client is told next how far behind it is.
    lag_due: Instant,
    /// When the status is told next.
    progress_due: Instant,
    /// For a read that is to end.
    headway: Headway,
    /// Bytes of open segments that have been read.
    read_bytes: u64,
    /// Why the last visit ended.
    left: String,
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
            let follows = &self.read.context.follows;
            self.machine.log().iter().for_each(|log| follows.note(*log, self.machine.epoch()));
            tokio::select! {
                biased;
                () = leads(leading, follows) => return Err(End::RoleLost),
                Ok(()) = configurations.changed() => self.on_configuration(&mut configurations),
                Ok(()) = desired.changed() => if !self.read.context.may_read() {
                    return Err(reads_disabled());
                },
                answer = next_answer(&mut self.visit) => self.on_answer(answer).await?,
                spoken = self.read.client.speaks() => {
                    spoken?;
                    self.read.client.listen().await?;
                }
                rang = self.alarm.rings() => {
                    rang?;
                    self.on_time();
                }
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
        let before = self.read.client.next;
        self.read.client.send_records(&mut self.frames).await?;
        self.frames.clear();
        let next = self.read.client.next;
        if next > before {
            self.headway.on_records(Instant::now(), self.bytes());
            self.slot.update(next.0 - before.0, |progress| progress.lsn = next.prev());
        }
        if next >= self.read.until { Err(End::Done) } else { Ok(()) }
    }

    /// Carries out what the last step wants.
    async fn carry_out(&mut self) -> Result<(), End> {
        let mut outputs = std::mem::take(&mut self.outputs);
        for output in outputs.drain(..) {
            match (output, &mut self.visit) {
                (Output::Connect(number, log, member), visit) => {
                    tracing::debug!(member = %member.id, visit = ?number, "visits a backup");
                    *visit = Some(MemberVisit::begin(self.read.context, number, log, member, self.slot.reader()));
                    self.headway.on_visit(Instant::now(), self.bytes());
                }
                (Output::Look(_), Some(visit)) => visit.look(),
                (Output::Survey(_), Some(visit)) => visit.survey(self.machine.next()),
                (Output::Share(_, segment), Some(visit)) => visit.share(segment),
                (Output::Read(_, range), Some(visit)) => visit.read(range),
                (Output::Fetch(_, identity, closure, wanted), _) => self.fetch(identity, closure, &wanted),
                // Of a visit that is over.
                (Output::Look(_) | Output::Survey(_) | Output::Share(..) | Output::Read(..), None) => {}
                (Output::Leave(number, why), visit) => {
                    tracing::debug!(visit = ?number, %why, "leaves a backup");
                    (*visit, self.left) = (None, why);
                    self.slot.update(0, |progress| progress.from = None);
                }
                (Output::CaughtUp, _) => self.on_caught_up().await?,
                (Output::Trimmed(first), _) => {
                    let message = trimmed(self.read.client.next, first.0);
                    return Err(End::Refused(ErrorCode::Trimmed, message));
                }
                (Output::BeyondEnd(last), _) => {
                    let next = self.read.client.next;
                    let message = beyond_the_end(next.0, last.0).expect("the machine knows of no such record");
                    return Err(End::Refused(ErrorCode::BeyondEnd, message));
                }
                (Output::Parted(why), _) => return Err(parted(self.read.client.next, why)),
            }
        }
        self.outputs = outputs;
        Ok(())
    }

    /// Has the wanted records of a closed segment fetched; those after it are on their way, too.
    fn fetch(&mut self, identity: SegmentIdentity, closure: Closure, wanted: &Range<Lsn>) {
        let Following { read, machine, sources, visit, .. } = self;
        let (Some(sources), Some(visit)) = (sources, visit) else { return };
        let then = wanted.end..read.until;
        let upcoming = machine.upcoming().filter_map(|(identity, closure)| Part::new(identity, closure, &then));
        let wanted = wanted.start..wanted.end.min(read.until);
        match Part::new(identity, closure, &wanted) {
            Some(first) => visit.fetch(read.ahead.fetch(read.context, sources, read.client.request, first, upcoming)),
            None => visit.fail_to_fetch(format!("it has no record of segment {} that is wanted", identity.segment)),
        }
    }

    async fn on_caught_up(&mut self) -> Result<(), End> {
        self.read.begin_at(self.machine.next());
        match self.read.at_end {
            AtEnd::Done => Err(End::Done),
            AtEnd::GoOn | AtEnd::Turn => self.read.client.send_caught_up().await,
        }
    }

    fn on_configuration(&mut self, configurations: &mut watch::Receiver<Option<Configuration>>) {
        let configuration = configurations.borrow_and_update().clone();
        // Without members there is nobody to visit.
        if let Some(config) = configuration.filter(|config| !config.members.is_empty()) {
            self.sources = Some(Arc::new(Sources::of(self.read.context, &config)));
            self.step(Input::Config(&config));
            self.read.history = self.machine.history();
        }
    }

    async fn on_answer(&mut self, answer: Answer) -> Result<(), End> {
        let Some(mut visit) = self.visit.take() else { return Ok(()) };
        let number = visit.number;
        match answer {
            Answer::Connected(connected) => {
                let connected = connected.map(|memory| visit.memory = Some(memory));
                self.step(Input::Connected(number, connected));
            }
            Answer::Looked(at, length) => {
                let posted = at.saturating_duration_since(self.began);
                self.step(Input::Looked(number, posted, visit.landed(length)));
            }
            Answer::Surveyed(surveyed) => {
                self.step(Input::Surveyed(number, surveyed.as_deref().map_err(String::clone)));
            }
            Answer::Shared(shared) => {
                let shared = shared.map(|copy| visit.shared(copy?));
                self.step(Input::Shared(number, shared));
            }
            Answer::Read(length) => {
                self.read_bytes += u64::from(length);
                self.step(Input::Read(number, visit.landed(length)));
            }
            Answer::Fetched(Ok(mut frames)) => {
                if self.machine.fetches(number) {
                    // Sent before the machine hears of it: it looks at the board again, however long the client takes.
                    std::mem::swap(&mut self.frames, &mut frames);
                    self.send_records().await?;
                    // The next segment goes where this one was: no buffer as large as a segment stays here.
                    std::mem::swap(&mut self.frames, &mut frames);
                    self.read.ahead.keep(frames);
                    self.step(Input::Fetched(number, Ok(())));
                }
            }
            Answer::Fetched(Err(why)) => self.step(Input::Fetched(number, Err(why))),
            Answer::Broken(why) => self.step(Input::Broken(number, why)),
            Answer::KnowsReader => {}
        }
        self.visit = Some(visit);
        Ok(())
    }

    /// Bytes of the log that have come from members.
    fn bytes(&self) -> u64 {
        self.read_bytes + self.read.ahead.received()
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        if self.machine_due().is_some_and(|due| due <= now) {
            self.step(Input::Tick);
        }
        if let Some(visit) = &mut self.visit {
            visit.give_sign_of_life(now);
        }
    }

    /// When the machine wants to hear of time that has passed. A read counts from its posting: before it the client may have
    /// kept it waiting.
    fn machine_due(&self) -> Option<Instant> {
        let due = self.began + self.machine.wake_at()?;
        let posted = self.visit.as_ref().and_then(MemberVisit::posted_at);
        Some(posted.map_or(due, |at| due.max(at + STALE_AFTER)))
    }

    fn set_alarm(&mut self) -> Result<(), End> {
        let sign = self.visit.as_ref().and_then(MemberVisit::sign_due);
        let patience = (self.read.at_end == AtEnd::Done).then(|| self.headway.ends_at());
        let lag = (self.read.at_end == AtEnd::Turn).then_some(self.lag_due);
        let due = [self.machine_due(), sign, patience, lag].into_iter().flatten().min();
        Ok(self.alarm.set(due)?)
    }

    /// Tells the client and the status how far it is, if it is time for it.
    async fn tell(&mut self) -> Result<(), End> {
        let now = Instant::now();
        let lag = self.machine.lag(now - self.began);
        if now >= self.progress_due {
            self.progress_due = now + PROGRESS_INTERVAL;
            let from = self.machine.from().map(|member| &member.id);
            self.slot.update(0, |progress| {
                if progress.from.as_ref() != from {
                    progress.from = from.cloned();
                }
                progress.covers = lag.behind.and_then(|behind| now.checked_sub(behind));
            });
        }
        if self.read.at_end == AtEnd::Turn && now >= self.lag_due {
            self.lag_due = now + LAG_INTERVAL;
            let behind_ms = lag.behind.map_or(BEHIND_UNKNOWN, |behind| {
                // Rounded up: it is that much at most.
                u32::try_from(behind.as_micros().div_ceil(1000)).unwrap_or(BEHIND_UNKNOWN - 1)
            });
            let said = Response::Lag { acked: lag.acked.0, behind_ms, stale: lag.is_stale() };
            self.read.client.send(&said).await?;
        }
        self.headway.on_bytes(now, self.bytes());
        if self.read.at_end == AtEnd::Done && now >= self.headway.ends_at() {
            let (next, why) = (self.read.client.next, &self.left);
            let message = format!(
                "no backup has shown record {next}, or more of the log before it, for {PATIENCE:?} (last: {why}): read from a \
                 lower LSN, or try again"
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

async fn next_answer(visit: &mut Option<MemberVisit>) -> Answer {
    match visit {
        Some(visit) => visit.next().await,
        None => std::future::pending().await,
    }
}
