//! Follows the log until the sidecar is primary, serves until the role is lost, and starts over.
//!
//! The one task that appends; [`standby`] follows, [`term`](crate::term) decides, this carries out. After any failure, what was
//! in memory is dropped and the next turn begins with the log: there is no other way back.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use tailwind_client::asynchronous::Client;
use tailwind_client::{Ack, Error, Lsn, Role};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use crate::limits::{BATCHES_PER_TURN, BATCHES_WAITING_MAX, CHUNK_SIZE, RETRY_PAUSE, TICK};
use crate::options::ServeOptions;
use crate::record::{self, CHUNK_OVERHEAD, Record};
use crate::replay::{Replay, ReplayError};
use crate::resp::Reply;
use crate::server_state::{Batch, ServerState};
use crate::sidecar::{SidecarEvent, SidecarLink, SidecarRequest};
use crate::standby::{self, MyTurn};
use crate::stats::{Stats, count, set};
use crate::term::{Output, Rules, Term};

/// Why a turn, or the wait for one, is over.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// Part of life: the log has another primary, or the sidecar is gone.
    #[error("{0}")]
    Over(String),
    /// An administrator must look.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

impl From<Error> for TurnError {
    fn from(error: Error) -> TurnError {
        TurnError::Over(error.to_string())
    }
}

/// Takes turn after turn. Returns only with an error that an administrator must resolve.
pub async fn run(options: ServeOptions, state: watch::Sender<ServerState>, stats: Arc<Stats>) -> Result<()> {
    let turns = Turns { options, state, stats };
    loop {
        match turns.take_one().await {
            TurnError::Over(why) => {
                // The same again and again is told once, as is the end of a turn, by `lead`.
                if !matches!(&*turns.state.borrow(), ServerState::Alone { why: known } if *known == why) {
                    warn!(%why, "waiting for a turn");
                }
                turns.state.send_replace(ServerState::Alone { why });
            }
            error @ TurnError::Replay(_) => return Err(error).context("read the log"),
        }
        sleep(RETRY_PAUSE).await;
    }
}

struct Turns {
    options: ServeOptions,
    state: watch::Sender<ServerState>,
    stats: Arc<Stats>,
}

impl Turns {
    async fn take_one(&self) -> TurnError {
        let turn = match standby::follow(&self.options, &self.state, &self.stats).await {
            Ok(turn) => turn,
            Err(error) => return error,
        };
        match self.lead(turn).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn lead(&self, turn: MyTurn) -> Result<std::convert::Infallible, TurnError> {
        let MyTurn { mut log, watcher, replay, epoch, next } = turn;
        let term = self.begin(&mut log, replay, next).await?;
        count(&self.stats.turns);
        let store = term.store();
        info!(%epoch, last = term.applied(), keys = store.len(), bytes = store.bytes(), "primary");
        let (work, batches) = mpsc::channel(BATCHES_WAITING_MAX);
        let sidecar = SidecarLink::start(watcher, epoch);
        self.state.send_replace(ServerState::Primary { epoch: epoch.0, work });
        let mut turn = Turn { log, term, batches, sidecar, epoch, stats: &self.stats };
        let Err(why) = turn.serve().await;
        // In this order: no further batch comes, and then the clients that still wait are told.
        self.state.send_replace(ServerState::Alone { why: why.to_string() });
        turn.end(&self.state.borrow().refusal());
        warn!(%epoch, %why, "the turn as primary is over");
        Err(why)
    }

    /// The log as it was followed is whole, and nobody else may append. The record that is appended first proves it.
    async fn begin(
        &self,
        log: &mut Client,
        mut replay: Replay,
        next: Lsn,
    ) -> Result<Term<oneshot::Sender<Vec<Reply>>>, TurnError> {
        let opening = record::encode(now(), &Record::Open);
        let opened = log.append(&opening).await?;
        if opened != next {
            return Err(TurnError::Over(format!("the log was followed up to {next}, and continues with {opened}")));
        }
        replay.take(opened.0, &opening)?;
        let record_size_max = log.welcome().limits.record_size_max as usize;
        assert!(record_size_max > 2 * CHUNK_OVERHEAD, "a log for records of {record_size_max} bytes");
        let rules = Rules {
            record_size_max,
            chunk_size: CHUNK_SIZE.min(record_size_max - CHUNK_OVERHEAD),
            compact_at: self.options.compact_at,
            memory_max: usize::try_from(self.options.memory_max).unwrap_or(usize::MAX),
            strict_reads: self.options.strict_reads,
        };
        let logged = replay.bytes();
        Ok(Term::new(rules, replay.finish()?, opened.0, logged))
    }
}

/// A turn that serves.
struct Turn<'a> {
    log: Client,
    term: Term<oneshot::Sender<Vec<Reply>>>,
    batches: mpsc::Receiver<Batch>,
    sidecar: SidecarLink,
    epoch: tailwind_client::Epoch,
    stats: &'a Stats,
}

impl Turn<'_> {
    async fn serve(&mut self) -> Result<std::convert::Infallible, TurnError> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(batch) = self.batches.recv(), if self.term.has_room() => self.take_batches(batch),
                ack = next_ack(&mut self.log) => self.on_ack(ack?)?,
                event = self.sidecar.next() => self.on_event(event)?,
                _ = ticks.tick() => {
                    self.term.on_tick(now());
                    self.report();
                }
            }
            self.carry_out().await?;
        }
    }

    fn take_batches(&mut self, first: Batch) {
        let mut next = Some(first);
        for _ in 0..BATCHES_PER_TURN {
            let Some(Batch { operations, answer }) = next else { return };
            self.term.on_batch(now(), operations, answer);
            next = if self.term.has_room() { self.batches.try_recv().ok() } else { None };
        }
        if let Some(Batch { operations, answer }) = next {
            self.term.on_batch(now(), operations, answer);
        }
    }

    fn on_ack(&mut self, ack: Ack) -> Result<(), TurnError> {
        let lsn = ack.outcome?;
        self.term.on_ack(now(), lsn.0).map_err(|gap| TurnError::Over(gap.to_string()))
    }

    fn on_event(&mut self, event: SidecarEvent) -> Result<(), TurnError> {
        match event {
            SidecarEvent::Passed(epoch) if epoch != self.epoch => {
                return Err(TurnError::Over(format!("a barrier passed in epoch {epoch}, not in {}", self.epoch)));
            }
            SidecarEvent::Passed(_) => self.term.on_barrier(now()),
            SidecarEvent::Trimmed(first) => {
                self.term.on_trimmed();
                set(&self.stats.first, first.0);
                info!(%first, snapshots = self.term.snapshots(), "trimmed the log");
            }
            SidecarEvent::Copies(copies) => {
                self.term.on_copies(copies);
                set(&self.stats.copies, copies as u64);
            }
            SidecarEvent::Lost(why) => return Err(TurnError::Over(why)),
        }
        Ok(())
    }

    /// Does what the term wants, and takes what acks that brings, until it wants no more.
    async fn carry_out(&mut self) -> Result<(), TurnError> {
        loop {
            while let Some(output) = self.term.next_output() {
                match output {
                    Output::Submit(record) => drop(self.log.submit(&record).await?),
                    // A client that has gone needs no answer.
                    Output::Answer(client, replies) => drop(client.send(replies)),
                    Output::Barrier => self.sidecar.send(SidecarRequest::Barrier),
                    Output::Trim(below) => self.sidecar.send(SidecarRequest::Trim(Lsn(below))),
                }
            }
            self.log.pump()?;
            let Some(mut ack) = self.log.try_next_ack() else { return Ok(()) };
            loop {
                self.on_ack(ack)?;
                match self.log.try_next_ack() {
                    Some(next) => ack = next,
                    None => break,
                }
            }
        }
    }

    fn report(&self) {
        let store = self.term.store();
        set(&self.stats.keys, store.len() as u64);
        set(&self.stats.bytes, store.bytes() as u64);
        set(&self.stats.applied, self.term.applied());
        set(&self.stats.snapshots, self.term.snapshots());
    }

    /// Leaves nobody without an answer. Acks that have come are taken first: these writes are in the log.
    fn end(mut self, refusal: &Reply) {
        while let Some(ack) = self.log.try_next_ack() {
            if self.on_ack(ack).is_err() {
                break;
            }
        }
        for (client, replies) in self.term.abandon(refusal) {
            let _ = client.send(replies);
        }
        self.batches.close();
        while let Ok(Batch { operations, answer }) = self.batches.try_recv() {
            let refused = operations.iter().map(|_| refusal.clone()).collect();
            let _ = answer.send(refused);
        }
        for number in [&self.stats.keys, &self.stats.bytes, &self.stats.copies] {
            set(number, 0);
        }
    }
}

/// Waits for an ack. While nothing is in flight it sends and takes in what there is, and waits without a limit, unless the
/// connection ends; a lost role is an event of the sidecar link.
async fn next_ack(log: &mut Client) -> Result<Ack, TurnError> {
    loop {
        if let Some(ack) = log.next_ack().await? {
            return Ok(ack);
        }
        let info = log.next_role().await?;
        if info.role != Role::Primary {
            return Err(TurnError::Over("the sidecar has lost the role".to_owned()));
        }
    }
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
