//! Carries out what the [`Cleaner`] of a table wants, for one term: fetches its oldest segments, offers their records to the
//! append path, and trims what is cleaned.
//!
//! Started by [`lead`](super::roles) with the term, and ended with it. It learns of closed segments from the [log](super::log),
//! how far the table is from the append path's counters, and from [mirrors](super::mirrors) what these show. In memory it has two segments, as the cleaner says
//! ([`FETCHED_MAX`](tailwind_protocol::table::cleaner::FETCHED_MAX)); each is a [`CleanedSegment`].

mod segment;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tailwind_primary::Moved;
use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Epoch, Lsn, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::table::bounds::Bounds;
use tailwind_protocol::table::cleaner::{Cleaner, Doing, Input, Output, Progress, SegmentRecords};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::Context;
use super::status::table::Work;
use crate::logging::Repeats;
use crate::path::Command;
use crate::thread::result;
use segment::{Batch, CleanedSegment};

/// How often the cleaner hears of closed segments, and of how far the table is.
const TICK: Duration = Duration::from_millis(10);
/// Closed segments that it hears of in one tick; far more than a term closes in that time.
const CLOSED_AT_ONCE: usize = 1024;
/// The same trouble is logged at most so often.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// Cleans the table of the term that has just begun. `unkeyed`: the first segment that is not cleaned.
pub(super) async fn clean(
    context: Arc<Context>,
    epoch: Epoch,
    bounds: Bounds,
    unkeyed: Option<SegmentId>,
) -> Infallible {
    let closed = context.log.following(SegmentId(0), usize::MAX);
    let known = closed.last().map_or(SegmentId(0), |(identity, _)| identity.segment);
    let machine = Cleaner::new(bounds, closed.iter().map(records), unkeyed);
    let mut executor = Executor {
        context,
        epoch,
        machine,
        began: Instant::now(),
        known,
        held: VecDeque::new(),
        tasks: JoinSet::new(),
        outputs: Vec::new(),
        said: Repeats::every(SAY_AGAIN),
        stopped: None,
    };
    executor.run().await
}

struct Executor {
    context: Arc<Context>,
    epoch: Epoch,
    machine: Cleaner,
    began: Instant,
    /// The last closed segment that the machine knows of.
    known: SegmentId,
    /// What is fetched and not forgotten.
    held: VecDeque<CleanedSegment>,
    /// Fetches, one for each segment that may be held, and one batch.
    tasks: JoinSet<Done>,
    outputs: Vec<Output>,
    said: Repeats<String>,
    /// The segment at which it has said that it stops.
    stopped: Option<SegmentId>,
}

/// What comes of a task.
enum Done {
    Fetched(SegmentId, Result<Option<CleanedSegment>, String>),
    Moved(Batch, Moved),
}

impl Executor {
    async fn run(&mut self) -> Infallible {
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                Some(done) = self.tasks.join_next() => {
                    let input = self.on_done(result(done).await);
                    self.step(input);
                }
                _ = ticks.tick() => self.tick(),
            }
        }
    }

    fn tick(&mut self) {
        for closed in self.context.log.following(self.known, CLOSED_AT_ONCE) {
            self.known = closed.0.segment;
            self.step(Input::Closed(records(&closed)));
        }
        let counters = &self.context.shared;
        let synced = Lsn(counters.settled.load(Ordering::Acquire));
        let live_bytes = counters.live_bytes.load(Ordering::Relaxed);
        let published = self.context.table.mirrors().published();
        self.step(Input::Progress(Progress { synced, published, live_bytes }));
    }

    fn step(&mut self, input: Input) {
        let now = Time(self.began.elapsed().as_millis() as u64);
        let mut outputs = std::mem::take(&mut self.outputs);
        self.machine.step(now, input, &mut outputs);
        outputs.drain(..).for_each(|output| self.execute(output));
        self.outputs = outputs;
        let doing = self.machine.doing();
        self.context.table.set(Work::Cleaning(doing));
        if let Doing::Stopped(segment) = doing
            && self.stopped.replace(segment) != Some(segment)
        {
            tracing::warn!(%segment, "a record is not keyed: the table is not cleaned from this segment on");
        }
    }

    fn execute(&mut self, output: Output) {
        match output {
            Output::Fetch(segment) => self.fetch(segment),
            Output::Move(segment, from) => self.offer(segment, from),
            Output::Forget(segment) => self.held.retain(|held| held.segment() != segment),
            Output::Sync => self.context.path.send(Command::SyncTable(self.epoch)),
            Output::Trim(below) => {
                tracing::debug!(%below, "cleaned");
                self.context.path.send(Command::TrimTable(self.epoch, below));
            }
        }
    }

    fn fetch(&mut self, segment: SegmentId) {
        let context = Arc::clone(&self.context);
        self.tasks.spawn(async move {
            let found = context.log.following(SegmentId(segment.0 - 1), 1).pop().zip(context.log.sources());
            let Some(((identity, closure), sources)) = found.filter(|((identity, _), _)| identity.segment == segment)
            else {
                return Done::Fetched(segment, Err("the term is over".to_owned()));
            };
            let fetched = sources.fetch(&context, identity, closure).await;
            Done::Fetched(segment, fetched.map(|bytes| CleanedSegment::new(identity, closure, bytes)))
        });
    }

    fn offer(&mut self, segment: SegmentId, from: Lsn) {
        let held = self.held.iter_mut().find(|held| held.segment() == segment);
        let batch = held.expect("only what has been fetched is moved").batch(from);
        let (reply, moved) = oneshot::channel();
        self.context.path.send(Command::Move(self.epoch, batch.to_path(), reply));
        self.tasks.spawn(async move {
            match moved.await {
                Ok(moved) => Done::Moved(batch, moved),
                // The path leads this term no more, and this task will end with it.
                Err(_) => std::future::pending().await,
            }
        });
    }

    fn on_done(&mut self, done: Done) -> Input {
        match done {
            Done::Fetched(segment, Ok(Some(fetched))) => {
                self.held.push_back(fetched);
                Input::Fetched(segment)
            }
            Done::Fetched(segment, Ok(None)) => Input::Unkeyed(segment),
            Done::Fetched(segment, Err(why)) => {
                if self.said.is_due(why.clone(), Instant::now()) {
                    tracing::warn!(%why, "cannot clean the table: will retry");
                }
                Input::NotFetched(segment)
            }
            Done::Moved(batch, Moved { judged, moved, appended, .. }) => {
                Input::Moved { segment: batch.segment(), next: batch.next(judged), moved, appended }
            }
        }
    }
}

fn records((identity, closure): &(SegmentIdentity, Closure)) -> SegmentRecords {
    SegmentRecords { segment: identity.segment, first: closure.first, last: closure.last }
}
