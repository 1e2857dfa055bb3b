//! Before its turn a server follows the log: it keeps the keys and values warm, and answers reads from them.
//!
//! Called by [`turns`](crate::turns), which continues with the same connection and the same store once the sidecar is primary.
//! At a reader, whose sidecar never is, this is all there is.
//!
//! It answers once it is warm: once it has read as far as the log went. What it shows was acknowledged, and stays, but it is as
//! of some moment before: later writes may be missing that others have seen. With strict reads each batch of reads waits until
//! everything has been applied that was acknowledged when it came, as the primary's sidecar says.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

use tailwind_client::asynchronous::Client;
use tailwind_client::{Epoch, Error, FollowEvent, Lsn, Options, Position, Role, RoleInfo};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::info;

use crate::limits::{BATCHES_WAITING_MAX, POSITION_PATIENCE, TICK};
use crate::options::ServeOptions;
use crate::replay::Replay;
use crate::resp::Reply;
use crate::server_state::{Batch, ServerState};
use crate::stats::{Stats, set};
use crate::term::{Operation, refuse_all};
use crate::turns::{TurnError, now};

/// Records between two reports of how far a log has been read that this server must have to serve.
const REPORT_EVERY: u64 = 4096;

/// The sidecar is primary, and the store has everything that was acknowledged before.
pub struct MyTurn {
    /// The connection that has followed; it takes appends.
    pub log: Client,
    /// A connection to watch the role, ask for barriers and trim.
    pub watcher: Client,
    /// The log so far.
    pub replay: Replay,
    /// The epoch that has begun.
    pub epoch: Epoch,
    /// The record to come.
    pub next: Lsn,
}

/// Follows until it is this server's turn.
pub async fn follow(
    options: &ServeOptions,
    state: &watch::Sender<ServerState>,
    stats: &Stats,
) -> Result<MyTurn, TurnError> {
    let mut log = Client::connect_with(&options.socket, &Options::default()).await?;
    let mut watcher = Client::connect(&options.socket).await?;
    let (work, mut batches) = mpsc::channel(BATCHES_WAITING_MAX);
    let positions = options.strict_reads.then(|| Positions::start(options));
    let (next, waiting) = (Lsn(0), VecDeque::new());
    let mut standby = Standby { replay: None, next, has_caught_up: false, waiting, count: 0, positions, stats };
    let mut role = watcher.role_info().clone();
    info!(role = %role.role, primary = role.primary.as_deref().unwrap_or("unknown"), "following");
    let show = |role: &RoleInfo, standby: &Standby<'_>| {
        state.send_replace(match role.role {
            Role::Primary => ServerState::Loading { records: standby.next.prev().0 },
            Role::Standby | Role::Recovering | Role::Reader => ServerState::Standby {
                is_reader: role.role == Role::Reader,
                is_warm: standby.is_warm(),
                primary: role.primary.clone(),
                work: work.clone(),
            },
        });
    };
    show(&role, &standby);
    let mut shown_warm = false;
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut follow = log.follow(Lsn(0)).await?;
    let (epoch, next) = loop {
        tokio::select! {
            event = follow.next_event() => match event? {
                Some(FollowEvent::Record(lsn, payload)) => {
                    standby.take(lsn, payload)?;
                    if role.role == Role::Primary && lsn.0.is_multiple_of(REPORT_EVERY) {
                        show(&role, &standby);
                    }
                }
                Some(FollowEvent::CaughtUp { next }) => standby.on_caught_up(next),
                Some(FollowEvent::Lag { .. }) => {}
                Some(FollowEvent::Turn { epoch, next }) => break (epoch, next),
                None => return Err(TurnError::Over("the sidecar has ended the follow".to_owned())),
            },
            changed = watcher.next_role() => {
                role = changed?;
                info!(role = %role.role, primary = role.primary.as_deref().unwrap_or("unknown"), "the sidecar's role has changed");
                show(&role, &standby);
            }
            Some(batch) = batches.recv() => standby.on_batch(batch),
            Some((through, position)) = next_position(&mut standby.positions) => standby.on_position(through, position),
            _ = ticks.tick() => standby.on_tick(),
        }
        standby.answer_waiting();
        if standby.is_warm() && !shown_warm {
            shown_warm = true;
            show(&role, &standby);
        }
    };
    drop(follow);
    let replay = standby.finish(next, &state.borrow().refusal());
    Ok(MyTurn { log, watcher, replay, epoch, next })
}

/// What it holds, and the clients that wait for more.
struct Standby<'a> {
    /// Nothing has come yet: it is not known with which record the log begins.
    replay: Option<Replay>,
    /// The record to come.
    next: Lsn,
    /// The log has been read as far as it went at some moment.
    has_caught_up: bool,
    /// Batches of reads, in the order in which they came. Only reads that are strict wait.
    waiting: VecDeque<Waiting>,
    /// Batches that have waited, or do.
    count: u64,
    /// With strict reads only.
    positions: Option<Positions>,
    stats: &'a Stats,
}

/// A batch that waits.
struct Waiting {
    number: u64,
    batch: Batch,
    since: Instant,
    /// What must be applied first; unknown until a position has come that was asked later.
    wanted: Option<Lsn>,
}

impl Standby<'_> {
    fn take(&mut self, lsn: Lsn, payload: &[u8]) -> Result<(), TurnError> {
        let stats = self.stats;
        let replay = self.replay.get_or_insert_with(|| {
            set(&stats.first, lsn.0);
            Replay::new(lsn.0)
        });
        replay.take(lsn.0, payload)?;
        self.next = lsn.next();
        Ok(())
    }

    /// Whether it has the keys and values of a moment since it began to follow, and so answers reads.
    fn is_warm(&self) -> bool {
        self.has_caught_up && self.replay.as_ref().is_some_and(Replay::is_whole)
    }

    fn on_batch(&mut self, batch: Batch) {
        if self.positions.is_none() {
            return self.answer(batch);
        }
        self.count += 1;
        self.waiting.push_back(Waiting { number: self.count, batch, since: Instant::now(), wanted: None });
        self.ask_position();
    }

    /// Asks for a position that serves all batches which have come so far, unless one is on its way.
    fn ask_position(&mut self) {
        let unserved = self.waiting.back().is_some_and(|last| last.wanted.is_none());
        if let Some(positions) = self.positions.as_mut().filter(|_| unserved) {
            positions.ask(self.count);
        }
    }

    fn on_position(&mut self, through: u64, answer: Result<Position, Error>) {
        match answer {
            Ok(position) => {
                let served = self.waiting.iter_mut().filter(|one| one.number <= through && one.wanted.is_none());
                served.for_each(|one| one.wanted = Some(position.last));
            }
            Err(why) => {
                let refusal = Reply::error(format!("LOADING strict reads need the primary: {why}"));
                let (refused, waiting) = std::mem::take(&mut self.waiting)
                    .into_iter()
                    .partition(|one| one.number <= through && one.wanted.is_none());
                self.waiting = waiting;
                let refused: VecDeque<Waiting> = refused;
                refused.into_iter().for_each(|one| refuse(one.batch, &refusal));
            }
        }
        self.ask_position();
    }

    fn answer_waiting(&mut self) {
        let applied = self.next.prev();
        while let Some(one) = self.waiting.pop_front_if(|one| one.wanted.is_some_and(|wanted| wanted <= applied)) {
            self.has_caught_up = true;
            self.answer(one.batch);
        }
    }

    fn answer(&mut self, batch: Batch) {
        let Batch { operations, answer } = batch;
        let store = self.replay.as_ref().filter(|_| self.has_caught_up).and_then(Replay::store);
        let now = now();
        let replies = operations.into_iter().map(|operation| match (operation, store) {
            (Operation::Ready(reply), _) => reply,
            (Operation::Read(read), Some(store)) => store.read(&read, now, 0),
            (Operation::Read(_), None) => {
                Reply::error("LOADING this server has begun to follow the log, and has not read it up to its end yet")
            }
            (Operation::Write(_), _) => unreachable!("connections refuse writes here"),
        });
        // A client that has gone needs no answer.
        let _ = answer.send(replies.collect());
    }

    /// There is no more for the moment. If nothing has come, the log is empty.
    fn on_caught_up(&mut self, next: Lsn) {
        self.has_caught_up = true;
        self.next = next;
        self.replay.get_or_insert_with(|| Replay::new(next.0));
    }

    /// A client that has a position and still waits long after is told to ask again: this server is far behind.
    fn refuse_old(&mut self) {
        let applied = self.next.prev();
        let is_old = |one: &mut Waiting| one.wanted.is_some() && one.since.elapsed() > 2 * POSITION_PATIENCE;
        while let Some(one) = self.waiting.pop_front_if(is_old) {
            let wanted = one.wanted.unwrap_or_default();
            let why =
                format!("LOADING strict reads: this server has applied records up to {applied}, not to {wanted} yet");
            refuse(one.batch, &Reply::error(why));
        }
    }

    /// Reports. The store's clock stays: the next record may be older than now. See "Time" in [`store`](crate::store).
    fn on_tick(&mut self) {
        self.refuse_old();
        let Some(store) = self.replay.as_ref().and_then(Replay::store) else { return };
        set(&self.stats.keys, store.len() as u64);
        set(&self.stats.bytes, store.bytes() as u64);
        set(&self.stats.applied, self.next.prev().0);
    }

    /// Waiting clients are told to ask again. Returns the log, which is whole up to `next`.
    fn finish(self, next: Lsn, refusal: &Reply) -> Replay {
        self.waiting.into_iter().for_each(|one| refuse(one.batch, refusal));
        self.replay.unwrap_or_else(|| Replay::new(next.0))
    }
}

fn refuse(batch: Batch, refusal: &Reply) {
    let Batch { operations, answer } = batch;
    let _ = answer.send(refuse_all(operations, refusal));
}

/// Asks for positions of the primary's log, one at a time, over a connection of its own.
struct Positions {
    questions: mpsc::Sender<u64>,
    answers: mpsc::Receiver<(u64, Result<Position, Error>)>,
    /// A question is on its way.
    busy: bool,
}

impl Positions {
    fn start(options: &ServeOptions) -> Positions {
        let (questions, asked) = mpsc::channel(1);
        let (answer, answers) = mpsc::channel(1);
        tokio::spawn(ask_positions(options.socket.clone(), asked, answer));
        Positions { questions, answers, busy: false }
    }

    /// Asks, for all batches up to this number; not if a question is on its way.
    fn ask(&mut self, through: u64) {
        self.busy = self.busy || self.questions.try_send(through).is_ok();
    }
}

/// Ends with the [`Positions`] that it works for.
async fn ask_positions(
    socket: PathBuf,
    mut asked: mpsc::Receiver<u64>,
    answer: mpsc::Sender<(u64, Result<Position, Error>)>,
) {
    let mut client: Option<Client> = None;
    while let Some(through) = asked.recv().await {
        let question = async {
            let client = match &mut client {
                Some(client) => client,
                None => client.insert(Client::connect(&socket).await?),
            };
            client.position().await
        };
        let late = || Err(Error::TimedOut { after: POSITION_PATIENCE, in_flight: None });
        let position = timeout(POSITION_PATIENCE, question).await.unwrap_or_else(|_| late());
        if position.is_err() {
            client = None;
        }
        if answer.send((through, position)).await.is_err() {
            return;
        }
    }
}

async fn next_position(positions: &mut Option<Positions>) -> Option<(u64, Result<Position, Error>)> {
    let Some(positions) = positions else { return std::future::pending().await };
    let answer = positions.answers.recv().await;
    positions.busy = false;
    answer
}

#[cfg(test)]
mod tests;
