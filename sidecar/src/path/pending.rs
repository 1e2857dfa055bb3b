//! What clients wait for: acks of their appends, barriers that have not passed, and syncs.
//!
//! Part of [`Path`]: `requests` adds to it, every turn answers what is due.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Epoch, Lsn, Position};
use tailwind_protocol::primary::Post;
use tailwind_protocol::rpc::PositionReply;
use tailwind_protocol::socket::{ErrorCode, Response};
use tailwind_runtime::histogram::Histogram;
use tokio::sync::oneshot;

use super::connection::{ClientConnection, Later};
use super::latency::Latency;
use super::messages::ClientId;
use super::replicator::Placed;
use super::stall::Progress;
use super::{Path, RoleState};

/// Appends that wait for their ack, over all connections: 64 Ki × 48 bytes = 3 MiB, allocated at the start.
const APPENDS_MAX: usize = 64 << 10;
/// Barriers that may wait, over all connections; one more waits in its connection's inbox.
const BARRIERS_MAX: usize = 64;
/// Of these, what other processes may have taken: followers and readers ask for positions as often as they like, and no client of
/// this sidecar waits for a place because of that.
const CONTROL_BARRIERS_MAX: usize = 16;

/// When it may be worth asking for a position again: a failover takes about as long.
const POSITION_RETRY_MS: u32 = 500;
/// Syncs that may wait, over all connections; one more waits in its connection's inbox.
const SYNCS_MAX: usize = 64;

/// An append that waits for its ack.
struct PendingAppend {
    end: Position,
    lsn: u64,
    client: ClientId,
    slot: u32,
    request: u64,
}

struct PendingBarrier {
    after: Post,
    asker: Asker,
}

/// Who waits for a barrier.
pub(super) enum Asker {
    /// A client that wants to know that this sidecar was primary.
    Barrier(ClientId, u64),
    /// A client that wants to know how far the log is.
    Position(ClientId, u64),
    /// A client all of whose records are on disk at every member, up to this one: it is told so if this sidecar still is primary.
    Sync(ClientId, u64, Lsn),
    /// The same as `Position`, for another process.
    Control(Option<oneshot::Sender<Result<PositionReply, String>>>),
}

impl Asker {
    fn client(&self) -> Option<ClientId> {
        match self {
            Asker::Barrier(client, _) | Asker::Position(client, _) | Asker::Sync(client, ..) => Some(*client),
            Asker::Control(_) => None,
        }
    }

    /// Another process that no longer waits. Clients are forgotten when their connections are closed.
    fn is_gone(&self) -> bool {
        matches!(self, Asker::Control(reply) if reply.as_ref().is_none_or(oneshot::Sender::is_closed))
    }
}

struct PendingSync {
    last: Lsn,
    client: ClientId,
    request: u64,
}

/// Appends and barriers in the order in which they were taken.
pub(super) struct Pending {
    appends: VecDeque<PendingAppend>,
    barriers: Vec<PendingBarrier>,
    syncs: Vec<PendingSync>,
    /// Barriers that have passed.
    passed: u64,
    latency: Latency,
    /// Appends that this turn has added.
    fresh: u64,
    /// Where the last append ends that was in flight when its connection was closed. See "After a failover" in
    /// `docs/append-socket.md`: a later read waits until everything up to here is acknowledged.
    pub(super) left_behind: Position,
}

impl Pending {
    pub(super) fn new() -> Pending {
        Pending {
            appends: VecDeque::with_capacity(APPENDS_MAX),
            barriers: Vec::with_capacity(BARRIERS_MAX),
            syncs: Vec::with_capacity(SYNCS_MAX),
            passed: 0,
            latency: Latency::new(),
            fresh: 0,
            left_behind: Position::default(),
        }
    }

    /// Appends that wait.
    pub(super) fn appends(&self) -> usize {
        self.appends.len()
    }

    /// True while an append or a barrier waits for its answer.
    pub(super) fn waits(&self) -> bool {
        !self.appends.is_empty() || !self.barriers.is_empty()
    }

    /// How far the answers have come.
    pub(super) fn progress(&self, acked: Position) -> Progress {
        Progress { acked, passed: self.passed }
    }

    pub(super) fn may_append(&self) -> bool {
        self.appends.len() < APPENDS_MAX
    }

    pub(super) fn may_add_barrier(&self) -> bool {
        self.barriers.len() < BARRIERS_MAX
    }

    /// As [`Pending::may_add_barrier`], for another process.
    fn may_add_control_barrier(&mut self) -> bool {
        self.barriers.retain(|barrier| !barrier.asker.is_gone());
        let of_control = self.barriers.iter().filter(|barrier| barrier.asker.client().is_none()).count();
        self.may_add_barrier() && of_control < CONTROL_BARRIERS_MAX
    }

    pub(super) fn add_append(&mut self, placed: Placed, client: ClientId, slot: usize, request: u64) {
        let (lsn, slot) = (placed.last.0, slot as u32);
        self.appends.push_back(PendingAppend { end: placed.end, lsn, client, slot, request });
        self.fresh += 1;
    }

    /// The turn that began then has taken all the appends that it takes.
    pub(super) fn end_turn(&mut self, began: Instant) {
        if let (fresh @ 1.., Some(last)) = (std::mem::take(&mut self.fresh), self.appends.back()) {
            self.latency.begin(last.end, fresh, began);
        }
    }

    /// The acks of everything up to here have been handed out.
    pub(super) fn measure(&mut self, acked: Position, times: &Histogram) {
        self.latency.finish(acked, Instant::now(), times);
    }

    pub(super) fn add_barrier(&mut self, after: Post, asker: Asker) {
        self.barriers.push(PendingBarrier { after, asker });
    }

    pub(super) fn may_add_sync(&self) -> bool {
        self.syncs.len() < SYNCS_MAX
    }

    /// A client waits until everything up to `last` is on disk at every member.
    pub(super) fn add_sync(&mut self, last: Lsn, client: ClientId, request: u64) {
        self.syncs.push(PendingSync { last, client, request });
    }

    /// Clients that wait for a sync.
    pub(super) fn syncs(&self) -> usize {
        let proved = self.barriers.iter().filter(|barrier| matches!(barrier.asker, Asker::Sync(..)));
        self.syncs.len() + proved.count()
    }

    /// True while an append up to this position is not acknowledged.
    pub(super) fn waits_up_to(&self, end: Position) -> bool {
        self.appends.front().is_some_and(|append| append.end <= end)
    }

    /// A connection is closed: its barriers and syncs are forgotten, its appends are not.
    pub(super) fn on_close(&mut self, client: &ClientConnection) {
        self.barriers.retain(|barrier| barrier.asker.client() != Some(client.id));
        self.syncs.retain(|sync| sync.client != client.id);
        if let (true, Some(last)) = (client.outbox.has_appends(), self.appends.back()) {
            // Perhaps another client's, and so a little later than needed.
            self.left_behind = last.end;
        }
    }
}

/// The answer to a request for a position that cannot be taken now.
fn no_position(message: &str) -> Response<'_> {
    Response::Error { code: ErrorCode::Unavailable, fatal: false, retry_after_ms: POSITION_RETRY_MS, message }
}

impl Path {
    /// Acknowledges, in order, everything that every needed member has. Returns how far that is if there was anything.
    pub(super) fn acknowledge(&mut self) -> Option<Position> {
        let RoleState::Leading(replicator) = &mut self.state else { return None };
        let acked = replicator.primary().acked();
        let mut last = 0;
        while let Some(append) = self.pending.appends.pop_front_if(|append| append.end <= acked) {
            last = append.lsn;
            replicator.acknowledged(append.end, Lsn(append.lsn));
            if let Some(client) = self.clients.get(append.slot, append.client) {
                client.outbox.settle(Later::Append, append.request, &Response::Ack { lsn: append.lsn });
            }
        }
        if last == 0 {
            return None;
        }
        self.counters.acked.store(last, Ordering::Release);
        if self.counters.tailing.load(Ordering::Relaxed) > 0 {
            self.counters.news.notify_waiters();
        }
        Some(acked)
    }

    /// Answers the barriers that every needed member has passed.
    pub(super) fn pass_barriers(&mut self, now: Time) {
        let RoleState::Leading(replicator) = &mut self.state else { return };
        let Some(newest) = self.pending.barriers.last() else { return };
        // A line may be the write that a member has had since the barrier.
        replicator.push_lines();
        replicator.probe(newest.after, now);
        let (epoch, last) = (self.epoch, self.counters.acked.load(Ordering::Relaxed));
        let waiting = self.pending.barriers.len();
        self.pending.barriers.retain_mut(|barrier| {
            if !replicator.primary().passed(barrier.after) {
                return true;
            }
            match &mut barrier.asker {
                Asker::Barrier(client, request) => {
                    if let Some(client) = self.clients.by_id(*client) {
                        let passed = Response::BarrierPassed { epoch, last };
                        client.outbox.settle(Later::Barrier, *request, &passed);
                    }
                }
                Asker::Position(client, request) => {
                    if let Some(client) = self.clients.by_id(*client) {
                        let position = Response::Position { epoch, last };
                        client.outbox.settle(Later::Position, *request, &position);
                    }
                }
                Asker::Sync(client, request, last) => {
                    if let Some(client) = self.clients.by_id(*client) {
                        client.outbox.settle(Later::Sync, *request, &Response::Synced { lsn: last.0 });
                    }
                }
                Asker::Control(reply) => {
                    // The caller may be gone.
                    let position = PositionReply { epoch: Epoch(epoch), last: Lsn(last) };
                    drop(reply.take().map(|reply| reply.send(Ok(position))));
                }
            }
            false
        });
        self.pending.passed += (waiting - self.pending.barriers.len()) as u64;
    }

    /// The syncs of which everything is on disk at every member are answered once a barrier has passed: where nothing new had to be
    /// brought to disk, nothing else has shown that this sidecar is still primary.
    pub(super) fn prove_syncs(&mut self) {
        if self.pending.syncs.is_empty() {
            return;
        }
        let RoleState::Leading(replicator) = &self.state else { return };
        let (synced, barrier) = (replicator.primary().synced(), replicator.primary().barrier());
        let mut room = BARRIERS_MAX - self.pending.barriers.len();
        self.pending.syncs.retain(|sync| {
            if sync.last > synced || room == 0 {
                return true;
            }
            room -= 1;
            let asker = Asker::Sync(sync.client, sync.request, synced);
            self.pending.barriers.push(PendingBarrier { after: barrier, asker });
            false
        });
    }

    /// Takes a position of the log for another process.
    pub(super) fn take_position(&mut self, reply: oneshot::Sender<Result<PositionReply, String>>) {
        let refusal = match &self.state {
            RoleState::Waiting { .. } => "not primary",
            RoleState::Leading(replicator) if !replicator.is_ready() => "primary, and not ready for appends yet",
            RoleState::Leading(_) if !self.pending.may_add_control_barrier() => "too many barriers wait already",
            RoleState::Leading(replicator) => {
                let barrier = replicator.primary().barrier();
                return self.pending.add_barrier(barrier, Asker::Control(Some(reply)));
            }
        };
        // The caller may be gone.
        drop(reply.send(Err(refusal.to_owned())));
    }

    /// Passes on to a client what the primary has said.
    pub(super) fn answer_position(&mut self, client: ClientId, request: u64, position: Result<PositionReply, String>) {
        let Some(client) = self.clients.by_id(client) else { return };
        let answer = match &position {
            Ok(PositionReply { epoch, last }) => Response::Position { epoch: epoch.0, last: last.0 },
            Err(why) => no_position(why),
        };
        client.outbox.settle(Later::Position, request, &answer);
    }

    /// Refuses every append, barrier and sync that waits.
    pub(super) fn fail_pending(&mut self, message: &str) {
        self.pending.latency.forget();
        let refusal = |code, message| Response::Error { code, fatal: false, retry_after_ms: 0, message };
        for append in self.pending.appends.drain(..) {
            if let Some(client) = self.clients.get(append.slot, append.client) {
                client.outbox.settle(Later::Append, append.request, &refusal(ErrorCode::UnknownOutcome, message));
            }
        }
        let lost = refusal(ErrorCode::NotPrimary, "no longer primary");
        for barrier in self.pending.barriers.drain(..) {
            let (client, request, later, answer) = match barrier.asker {
                Asker::Barrier(client, request) => (client, request, Later::Barrier, &lost),
                Asker::Sync(client, request, _) => (client, request, Later::Sync, &lost),
                Asker::Position(client, request) => {
                    (client, request, Later::Position, &no_position("no longer primary"))
                }
                Asker::Control(reply) => {
                    // The caller may be gone.
                    drop(reply.map(|reply| reply.send(Err("no longer primary".to_owned()))));
                    continue;
                }
            };
            if let Some(client) = self.clients.by_id(client) {
                client.outbox.settle(later, request, answer);
            }
        }
        for sync in self.pending.syncs.drain(..) {
            if let Some(client) = self.clients.by_id(sync.client) {
                client.outbox.settle(Later::Sync, sync.request, &lost);
            }
        }
    }
}
