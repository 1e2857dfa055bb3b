//! A standby's index of the table: it folds what members have closed, so that a promotion has little left to fold.
//!
//! Begun by [`roles`](super::roles) while this sidecar does not lead, and handed to [`rebuild`](super::rebuild) when it has won. In a
//! task of its own, which folds on threads of their own: heartbeats, claims and clients do not wait for it. What is needed next,
//! and whether any of it can be led, is [`Warm`]'s to decide.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tailwind_protocol::config::{Configuration, Kind};
use tailwind_protocol::inventory::check_page;
use tailwind_protocol::rpc::{Inventory, InventoryRequest, path};
use tailwind_protocol::table::index::Limits;
use tailwind_protocol::table::warm::{Next, Segment, Warm};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::Context;
use super::rebuild::{empty_index, no_room, with_more_room};
use super::sources::Sources;
use super::status::table::Work;
use crate::logging::Repeats;
use crate::options::TableSize;
use crate::thread::result;

/// Pause before a member is asked again, once everything is folded that the last one has closed; doubled with each look that finds
/// nothing. A small table under many puts is cleaned as a whole within a tenth of a second.
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(10);
/// The longest such pause.
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(500);
/// So many looks in a row may fail before it is said: a failover, or a backup that restarts, is over by then.
const FAILURES_UNTOLD: u32 = 20;
/// That it begins again is said at most so often.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// An index that is being folded.
#[derive(Debug)]
pub(super) struct Warming {
    /// Dropped when nothing more shall be folded.
    stop: oneshot::Sender<()>,
    task: JoinSet<Option<Warm>>,
}

impl Warming {
    /// Begins, if this sidecar's group keeps a table.
    pub(super) fn begin(context: &Arc<Context>) -> Option<Warming> {
        let size = context.rules.table?;
        let (stop, stopped) = oneshot::channel();
        let standby = Standby {
            context: Arc::clone(context),
            size,
            limits: size.limits(),
            warm: None,
            page: None,
            turn: super::random_below(u64::from(u16::MAX)) as usize,
            failures: 0,
            pause: LOOK_AGAIN_MIN,
            said: Repeats::every(SAY_AGAIN),
        };
        Some(Warming { stop, task: JoinSet::from_iter([standby.fold_until(stopped)]) })
    }

    /// One that is there already.
    #[cfg(test)]
    pub(super) fn done(warm: Warm) -> Warming {
        Warming { stop: oneshot::channel().0, task: JoinSet::from_iter([async { Some(warm) }]) }
    }

    /// Nothing more is folded: what there is, if anything. The segment that is being folded is folded to its end.
    pub(super) async fn end(self) -> Option<Warm> {
        let Warming { stop, mut task } = self;
        drop(stop);
        result(task.join_next().await.expect("there is one task")).await
    }
}

struct Standby {
    context: Arc<Context>,
    size: TableSize,
    limits: Limits,
    warm: Option<Warm>,
    /// What a member holds, while there is something to fold in it.
    page: Option<Inventory>,
    /// Which member is asked next.
    turn: usize,
    /// Looks in a row that have failed.
    failures: u32,
    /// Before the next look.
    pause: Duration,
    /// What has been logged.
    said: Repeats<&'static str>,
}

impl Standby {
    async fn fold_until(mut self, mut stopped: oneshot::Receiver<()>) -> Option<Warm> {
        loop {
            let (segment, bytes) = tokio::select! {
                biased;
                _ = &mut stopped => break,
                fetched = self.fetch_next() => fetched,
            };
            self.fold(segment, bytes).await;
        }
        self.warm
    }

    /// The next segment, when a member has closed it. Loses nothing if it is not waited for to the end.
    async fn fetch_next(&mut self) -> (Segment, Bytes) {
        loop {
            match self.look().await {
                Ok(Some(fetched)) => {
                    (self.failures, self.pause) = (0, LOOK_AGAIN_MIN);
                    return fetched;
                }
                Ok(None) => self.failures = 0,
                Err(why) => {
                    self.failures += 1;
                    if self.failures == FAILURES_UNTOLD {
                        tracing::info!(%why, "no more of the table's index can be folded ahead of a promotion");
                    }
                }
            }
            (self.page, self.turn) = (None, self.turn.wrapping_add(1));
            let pause = self.pause;
            self.pause = (pause * 2).min(LOOK_AGAIN_MAX);
            tokio::time::sleep(pause).await;
        }
    }

    /// Fetches what comes next, if the member whose turn it is has it.
    async fn look(&mut self) -> Result<Option<(Segment, Bytes)>, String> {
        let config = self.context.configuration.borrow().clone();
        let is_table = |config: &Configuration| config.kind == Kind::Table && !config.members.is_empty();
        let Some(config) = config.filter(is_table) else { return Ok(None) };
        if self.page.is_none() {
            self.page = Some(self.ask(&config).await?);
        }
        if self.warm.is_none() {
            self.warm = Some(Warm::new(empty_index(self.limits, self.context.rules.segment_size).await));
        }
        let (Some(warm), Some(page)) = (&mut self.warm, &self.page) else { return Ok(None) };
        match warm.next(page) {
            Next::Fold(segment) => {
                let sources = Sources::of(&self.context, &config);
                let bytes = sources.fetch(&self.context, segment.0, segment.1).await?;
                Ok(Some((segment, bytes)))
            }
            Next::Nothing => Ok(None),
            Next::Again => {
                let why = "what comes next of the table's index is trimmed, or the log is another one: begins again";
                if self.said.is_due(why, Instant::now()) {
                    tracing::info!(last = %warm.last().unwrap_or_default(), "{why}");
                }
                self.begin_again();
                Ok(None)
            }
        }
    }

    /// A page of what a member holds.
    async fn ask(&self, config: &Configuration) -> Result<Inventory, String> {
        let member = &config.members[self.turn % config.members.len()];
        let client = self.context.backup(&member.id, Some(&member.control));
        let request = InventoryRequest { after: self.warm.as_ref().and_then(Warm::after) };
        let page = client.call(path::INVENTORY, &request, self.context.rules.rpc_timeout).await;
        let page: Inventory = page.map_err(|error| format!("{}: {error}", member.id))?;
        check_page(&page).map_err(|why| format!("{}: {why}", member.id))?;
        if page.log != Some(config.log) || page.boot != member.boot {
            return Err(format!("{}: it has another memory than the member, or another log", member.id));
        }
        Ok(page)
    }

    async fn fold(&mut self, segment: Segment, bytes: Bytes) {
        let warm = self.warm.take().expect("it has said what comes next");
        let mut keys = 0;
        let folding = tokio::task::spawn_blocking(move || {
            let folded = warm.take(segment, |fold| {
                let folded = fold.segment(&segment.0, &bytes);
                keys = fold.keys();
                folded
            });
            folded.map_err(|error| no_room(&error, keys))
        });
        match result(folding.await).await {
            Ok(warm) => {
                self.context.table.set(Work::Warm { last: segment.1.last });
                self.warm = Some(warm);
            }
            Err(keys) => {
                self.limits = with_more_room(self.limits, keys, &self.size);
                self.begin_again();
            }
        }
    }

    fn begin_again(&mut self) {
        (self.warm, self.page) = (None, None);
        self.context.table.set(Work::Nothing);
    }
}
