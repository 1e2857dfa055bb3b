//! The index of a table, made from the recovered log before a term begins.
//!
//! Called by [`roles`](super::roles) between a promotion that is won and the term. The log is read as a client would read it: its
//! closed segments come from the members, a few ahead, and each byte is verified. Until then the sidecar is
//! recovering: standbys hear its heartbeats, and a newer epoch in the config store ends it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tailwind_primary::Table;
use tailwind_protocol::config::Configuration;
use tailwind_protocol::ids::{Epoch, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::scan::Scanner;
use tailwind_protocol::table::fold::{Fold, FoldError, Folded, positioned};
use tailwind_protocol::table::hash::{Buckets, HashKey, KEYS_MAX};
use tailwind_protocol::table::index::Index;
use tailwind_protocol::table::place::Window;
use tailwind_report::readiness::WaitsFor;

use super::Context;
use super::roles::lead::later_epoch;
use super::sources::{Fetch, Sources};
use super::status::table::Work;
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
#[derive(Debug)]
pub(super) enum Ended {
    /// The config store has a newer epoch.
    Superseded(Epoch),
    /// The group is to have no primary.
    Fenced,
}

/// The index of the recovered log, if this sidecar's group keeps a table.
pub(super) async fn rebuild(
    context: &Arc<Context>,
    config: &Configuration,
    reference: &Reference,
) -> Result<Option<Rebuilt>, Ended> {
    let Some(size) = context.rules.table else { return Ok(None) };
    let mut configuration = context.configuration.clone();
    let rebuilt = tokio::select! {
        rebuilt = fold(context, config, reference, &size) => Ok(Some(rebuilt)),
        epoch = later_epoch(&mut configuration, config.epoch) => Err(Ended::Superseded(epoch)),
        () = context.desires(|desired| desired.fenced) => Err(Ended::Fenced),
    };
    context.waits.over();
    context.table.set(Work::Nothing);
    rebuilt
}

async fn fold(context: &Arc<Context>, config: &Configuration, reference: &Reference, size: &TableSize) -> Rebuilt {
    let began = Instant::now();
    let log: Vec<_> = reference.segments.iter().map(|segment| (segment.identity, segment.closure)).collect();
    let sources = Arc::new(Sources::of(context, config));
    let mut limits = size.limits();
    loop {
        let window = Window::new(context.rules.segment_size);
        // So much memory is not there at once.
        let empty = tokio::task::spawn_blocking(move || Fold::new(Index::new(hash_key(), limits, window)));
        match fold_all(context, &sources, &log, result(empty.await).await).await {
            Ok(Folded { index, last, unkeyed }) => {
                let (segments, keys, took_ms) = (log.len(), index.keys(), began.elapsed().as_millis() as u64);
                tracing::info!(
                    segments,
                    last = last.map_or(0, |last| last.0),
                    keys,
                    took_ms,
                    "rebuilt the table's index"
                );
                if let Some(unkeyed) = unkeyed {
                    let (first, segment, records) = (unkeyed.first, unkeyed.segment, unkeyed.records);
                    tracing::warn!(%first, %segment, records, "records that are not keyed: nothing is cleaned from there on");
                }
                let table = Box::new(Table::new(index, size.bounds));
                return Rebuilt { table, unkeyed: unkeyed.map(|unkeyed| unkeyed.segment) };
            }
            Err(keys) => {
                // More than this sidecar's option says: another one's was larger. The log may have more of them still.
                if keys >= size.keys {
                    limits.buckets = Buckets::for_keys(keys.saturating_mul(2).min(KEYS_MAX));
                }
                tracing::info!(keys, buckets = limits.buckets.number(), "the index has no room for a key: once more");
            }
        }
    }
}

/// Folds every record. The error, where the index has no room, is the number of keys that it has.
async fn fold_all(
    context: &Arc<Context>,
    sources: &Arc<Sources>,
    log: &[(SegmentIdentity, Closure)],
    mut fold: Fold,
) -> Result<Folded, u32> {
    let segments = log.len();
    let fetch = |(identity, closure): (SegmentIdentity, Closure)| {
        let (context, sources) = (Arc::clone(context), Arc::clone(sources));
        Fetch::begin(async move { Ok(fetch_patiently(&context, &sources, identity, closure).await) })
    };
    let mut coming: VecDeque<Fetch<Bytes>> = log.iter().take(FETCHES).copied().map(fetch).collect();
    let mut told = Instant::now();
    for (nth, (identity, _)) in log.iter().enumerate() {
        context.table.set(Work::Folding { folded: nth, segments });
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            tracing::info!(folded = nth, segments, keys = fold.keys(), "rebuilding the table's index");
        }
        let next = coming.pop_front().expect("as many are on their way as are left");
        let bytes = match next.done().await {
            Ok(bytes) => bytes,
            // Its task was cancelled, as all are when the process ends.
            Err(_) => std::future::pending().await,
        };
        coming.extend(log.get(nth + FETCHES).copied().map(fetch));
        let identity = *identity;
        let folding = tokio::task::spawn_blocking(move || fold_segment(fold, &identity, &bytes));
        fold = result(folding.await).await?;
    }
    Ok(fold.finish())
}

/// Folds the records of one segment, which has been verified.
fn fold_segment(mut fold: Fold, identity: &SegmentIdentity, bytes: &[u8]) -> Result<Fold, u32> {
    let mut scanner = Scanner::new(bytes, identity).expect("the segment has been verified");
    loop {
        let start = scanner.closure().end;
        let Ok(append) = scanner.next_append() else { return Ok(fold) };
        for (at, record) in positioned(identity.segment, start, &append) {
            match fold.record(at, record) {
                Ok(()) => {}
                Err(FoldError::NoRoom(_)) => return Err(fold.keys()),
                Err(gap @ FoldError::Gap { .. }) => unreachable!("a recovered log has no gap: {gap}"),
            }
        }
    }
}

/// Fetches a segment, however often it takes: the table cannot be led without it.
async fn fetch_patiently(context: &Context, sources: &Sources, identity: SegmentIdentity, closure: Closure) -> Bytes {
    let mut said = Repeats::every(SAY_AGAIN);
    let mut waited = false;
    loop {
        let why = match sources.fetch(context, identity, closure).await {
            Ok(bytes) => {
                if waited {
                    context.waits.over();
                }
                return bytes;
            }
            Err(why) => format!("the table's index needs a segment that no member gives: {why}"),
        };
        waited = true;
        context.waits.wait(WaitsFor::Evidence, why.clone());
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
