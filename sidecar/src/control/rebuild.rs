//! The index of a table, made from the recovered log before a term begins.
//!
//! Called by [`roles`](super::roles) between a promotion that is won and the term. The log is read as a client would read it: its
//! closed segments come from the members, a few ahead, and each byte is verified. Until then the sidecar is
//! recovering: standbys hear its heartbeats, and a newer epoch in the config store ends it. What it has folded as a
//! [standby](super::warm) is not folded again, if it is what the recovered log begins with.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tailwind_primary::Table;
use tailwind_protocol::config::Configuration;
use tailwind_protocol::ids::{Epoch, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::table::fold::{Fold, FoldError, Folded};
use tailwind_protocol::table::hash::{Buckets, HashKey, KEYS_MAX};
use tailwind_protocol::table::index::{Index, Limits};
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::warm::Segment;
use tailwind_report::readiness::WaitsFor;
use tokio::sync::watch;

use super::Context;
use super::roles::lead::later_epoch;
use super::sources::{Fetch, Sources};
use super::status::table::{TableWork, Work};
use super::status::waits::Waits;
use super::warm::Warming;
use crate::logging::Repeats;
use crate::options::TableSize;
use crate::thread::result;

/// Segments fetched side by side, most of them ahead of the one that is folded: from all members at once.
const FETCHES: usize = 4;
/// Pause before a segment is fetched again that nobody could give.
const FETCH_AGAIN: Duration = Duration::from_secs(1);
/// The same trouble is logged at most so often.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// Between two lines on how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(3);

/// A table that can be led.
#[derive(Debug)]
pub(super) struct Rebuilt {
    /// The index of the recovered log, with the bounds.
    pub(super) table: Box<Table>,
    /// Nothing from this segment on is cleaned: it has a record that is not keyed.
    pub(super) unkeyed: Option<SegmentId>,
}

/// Why no term begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The config store has a newer epoch.
    Superseded(Epoch),
    /// The group is to have no primary.
    Fenced,
}

/// Who gives the segments, and who hears how far it is.
trait Surroundings: Send + Sync + 'static {
    /// A closed segment's bytes, verified; or why nobody gives it.
    fn fetch(&self, identity: SegmentIdentity, closure: Closure) -> impl Future<Output = Result<Bytes, String>> + Send;

    fn waits(&self) -> &Waits;

    fn work(&self) -> &TableWork;
}

/// The members of the set that holds the log.
struct Members {
    context: Arc<Context>,
    sources: Sources,
}

impl Surroundings for Members {
    async fn fetch(&self, identity: SegmentIdentity, closure: Closure) -> Result<Bytes, String> {
        self.sources.fetch(&self.context, identity, closure).await
    }

    fn waits(&self) -> &Waits {
        &self.context.waits
    }

    fn work(&self) -> &TableWork {
        &self.context.table
    }
}

/// The index of the recovered log, if this sidecar's group keeps a table. `warming` has a part of it, perhaps.
pub(super) async fn rebuild(
    context: &Arc<Context>,
    config: &Configuration,
    reference: &Reference,
    warming: Option<Warming>,
) -> Result<Option<Rebuilt>, Ended> {
    let Some(size) = context.rules.table else { return Ok(None) };
    let members = Members { context: Arc::clone(context), sources: Sources::of(context, config) };
    let log = reference.segments.iter().map(|segment| (segment.identity, segment.closure)).collect();
    let (surroundings, segment_size) = (Arc::new(members), context.rules.segment_size);
    let rebuild = Rebuild { surroundings, size, segment_size, log, warming };
    let fenced = context.desires(|desired| desired.fenced);
    rebuild.unless(context.configuration.clone(), config.epoch, fenced).await.map(Some)
}

/// What is to be done.
struct Rebuild<S> {
    surroundings: Arc<S>,
    size: TableSize,
    segment_size: SegmentSize,
    log: Vec<Segment>,
    warming: Option<Warming>,
}

impl<S: Surroundings> Rebuild<S> {
    /// Carries it out, unless a newer epoch than this one, or a fence, ends it. Then nothing is fetched any more.
    async fn unless(
        self,
        mut configuration: watch::Receiver<Option<Configuration>>,
        epoch: Epoch,
        fenced: impl Future<Output = ()>,
    ) -> Result<Rebuilt, Ended> {
        let surroundings = Arc::clone(&self.surroundings);
        let rebuilt = tokio::select! {
            rebuilt = self.fold() => Ok(rebuilt),
            epoch = later_epoch(&mut configuration, epoch) => Err(Ended::Superseded(epoch)),
            () = fenced => Err(Ended::Fenced),
        };
        surroundings.waits().over();
        surroundings.work().set(Work::Nothing);
        rebuilt
    }

    async fn fold(mut self) -> Rebuilt {
        let began = Instant::now();
        let mut limits = self.size.limits();
        let mut warm = self.lead_warm().await;
        let log = std::mem::take(&mut self.log);
        loop {
            let (fold, rest) = match warm.take() {
                Some(warm) => warm,
                None => (Fold::new(empty_index(limits, self.segment_size).await), log.clone()),
            };
            match self.fold_all(fold, log.len(), &rest).await {
                Ok(Folded { index, last, unkeyed }) => {
                    let (segments, keys, took_ms) = (log.len(), index.keys(), began.elapsed().as_millis() as u64);
                    let (last, read) = (last.map_or(0, |last| last.0), rest.len());
                    tracing::info!(segments, read, last, keys, took_ms, "rebuilt the table's index");
                    if let Some(unkeyed) = unkeyed {
                        let (first, segment, records) = (unkeyed.first, unkeyed.segment, unkeyed.records);
                        tracing::warn!(%first, %segment, records, "records that are not keyed: nothing is cleaned from there on");
                    }
                    let table = Box::new(Table::new(index, self.size.bounds));
                    return Rebuilt { table, unkeyed: unkeyed.map(|unkeyed| unkeyed.segment) };
                }
                Err(keys) => limits = with_more_room(limits, keys, &self.size),
            }
        }
    }

    /// What was folded as a standby, and the segments that it lacks; if it is the beginning of the log.
    async fn lead_warm(&mut self) -> Option<(Fold, Vec<Segment>)> {
        let (warm, log) = (self.warming.take()?.end().await?, self.log.clone());
        warm.last()?;
        // It looks at each key.
        let led = tokio::task::spawn_blocking(move || warm.lead(&log));
        let led = result(led.await).await;
        if led.is_none() {
            tracing::info!(
                "the recovered log does not begin with what was folded of the table's index: all of it is read"
            );
        }
        led
    }

    /// Folds every record of the last segments of a log. The error, where the index has no room, is the number of keys that it has.
    async fn fold_all(&self, mut fold: Fold, segments: usize, rest: &[Segment]) -> Result<Folded, u32> {
        let work = self.surroundings.work();
        let fetch = |(identity, closure): Segment| {
            let surroundings = Arc::clone(&self.surroundings);
            Fetch::begin(async move { Ok(fetch_patiently(&*surroundings, identity, closure).await) })
        };
        let mut coming: VecDeque<Fetch<Bytes>> = rest.iter().take(FETCHES).copied().map(fetch).collect();
        let mut told = Instant::now();
        for (nth, (identity, _)) in rest.iter().enumerate() {
            let folded = segments - rest.len() + nth;
            work.set(Work::Folding { folded, segments });
            if told.elapsed() >= PROGRESS_EVERY {
                told = Instant::now();
                tracing::info!(folded, segments, keys = fold.keys(), "rebuilding the table's index");
            }
            let next = coming.pop_front().expect("as many are on their way as are left");
            let bytes = match next.done().await {
                Ok(bytes) => bytes,
                // Its task was cancelled, as all are when the process ends.
                Err(_) => std::future::pending().await,
            };
            coming.extend(rest.get(nth + FETCHES).copied().map(fetch));
            let identity = *identity;
            let folding = tokio::task::spawn_blocking(move || match fold.segment(&identity, &bytes) {
                Ok(()) => Ok(fold),
                Err(error) => Err(no_room(&error, fold.keys())),
            });
            fold = result(folding.await).await?;
        }
        Ok(fold.finish())
    }
}

/// An empty index, with all the memory that it takes: so much is not there at once.
pub(super) async fn empty_index(limits: Limits, segment_size: SegmentSize) -> Index {
    let window = Window::new(segment_size);
    let empty = tokio::task::spawn_blocking(move || Index::new(hash_key(), limits, window));
    result(empty.await).await
}

/// What the next index is made for, where one with these limits had no room for a key beside so many.
pub(super) fn with_more_room(mut limits: Limits, keys: u32, size: &TableSize) -> Limits {
    // More than this sidecar's option says: another one's was larger. The log may have more of them still.
    if keys >= size.keys {
        limits.buckets = Buckets::for_keys(keys.saturating_mul(2).min(KEYS_MAX));
    }
    tracing::info!(keys, buckets = limits.buckets.number(), "the index has no room for a key: once more");
    limits
}

/// A fold has stopped because its index, with so many keys, has no room for another one: nothing else can stop it.
pub(super) fn no_room(error: &FoldError, keys: u32) -> u32 {
    match error {
        FoldError::NoRoom(_) => keys,
        FoldError::Gap { .. } => unreachable!("the segments of a log follow each other: {error}"),
    }
}

/// Fetches a segment, however often it takes: the table cannot be led without it.
async fn fetch_patiently(surroundings: &impl Surroundings, identity: SegmentIdentity, closure: Closure) -> Bytes {
    let mut said = Repeats::every(SAY_AGAIN);
    let mut waited = false;
    loop {
        let why = match surroundings.fetch(identity, closure).await {
            Ok(bytes) => {
                if waited {
                    surroundings.waits().over();
                }
                return bytes;
            }
            Err(why) => format!("the table's index needs a segment that no member gives: {why}"),
        };
        waited = true;
        surroundings.waits().wait(WaitsFor::Evidence, why.clone());
        if said.is_due(why.clone(), Instant::now()) {
            tracing::warn!(%why, "waiting");
        }
        tokio::time::sleep(FETCH_AGAIN).await;
    }
}

fn hash_key() -> HashKey {
    let mut key = [0; 16];
    getrandom::fill(&mut key).expect("the operating system gives random numbers");
    HashKey(key)
}

#[cfg(test)]
mod tests;
