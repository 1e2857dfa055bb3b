//! What clients wait for, and how they are answered: acks of their appends, barriers, positions and syncs.
//!
//! Part of [`AppendLoop`]: `requests` adds to what the primary's log has wait, and each turn hands back what is due.

use std::sync::atomic::Ordering;
use std::time::Instant;

use tailwind_primary::{Gets, Listener, Proof};
use tailwind_protocol::ids::{Epoch, Lsn, Position};
use tailwind_protocol::rpc::PositionReply;
use tailwind_protocol::socket::{ErrorCode, Response};
use tailwind_protocol::table::request::Mismatch;
use tokio::sync::oneshot;

use super::AppendLoop;
use super::connection::AnswerKind;
use super::gets::GetId;
use super::latency::Latency;
use super::leading::Leading;
use super::messages::{ClientId, Counters};
use super::role::RoleState;
use super::slots::ClientSlots;

/// Of the questions that may wait, what other processes may have taken: followers and readers ask for positions as often as they
/// like, and no client of this sidecar waits for a place because of that.
const CONTROL_QUESTIONS_MAX: usize = 16;

/// When it may be worth asking for a position again: a failover takes about as long.
const POSITION_RETRY_MS: u32 = 500;

/// Whose append it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct AppendId {
    pub(super) client: ClientId,
    pub(super) slot: u32,
    pub(super) request: u64,
}

/// Who waits for proof that this sidecar is primary.
#[derive(Debug)]
pub(super) enum Asker {
    /// A client that wants to know that this sidecar was primary.
    Barrier(ClientId, u64),
    /// A client that wants to know how far the log is.
    Position(ClientId, u64),
    /// A client that wants to know that its records are on disk at every member.
    Sync(ClientId, u64),
    /// A client that wants to trim beyond the last acknowledged record, as far as is known: only a primary may say where the log
    /// ends.
    Trim(ClientId, u64, Lsn),
    /// A client of whose request to a table a condition did not hold.
    Mismatch(ClientId, u64, Mismatch),
    /// Fresh gets, of any clients.
    Gets(u64),
    /// The same as `Position`, for another process.
    RemoteProcess(oneshot::Sender<Result<PositionReply, String>>),
}

impl Asker {
    pub(super) fn client(&self) -> Option<ClientId> {
        match self {
            Asker::Barrier(client, _)
            | Asker::Position(client, _)
            | Asker::Sync(client, _)
            | Asker::Trim(client, ..)
            | Asker::Mismatch(client, ..) => Some(*client),
            Asker::Gets(_) | Asker::RemoteProcess(_) => None,
        }
    }

    /// Another process that no longer waits. Clients are forgotten when their connections are closed.
    fn is_gone(&self) -> bool {
        matches!(self, Asker::RemoteProcess(reply) if reply.is_closed())
    }
}

/// Hands what a turn brings to the connections that wait for it.
pub(super) struct Answers<'a> {
    pub(super) clients: &'a mut ClientSlots,
    pub(super) counters: &'a Counters,
    pub(super) replication: &'a mut Latency,
    /// Trims that may be answered now.
    pub(super) trims: &'a mut Vec<ProvedTrim>,
    /// Of a table: the gets that wait.
    pub(super) gets: Option<&'a mut Gets<GetId>>,
    pub(super) epoch: Epoch,
}

/// A trim that has waited until it was proved that this sidecar is primary.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProvedTrim {
    pub(super) client: ClientId,
    pub(super) request: u64,
    pub(super) below: Lsn,
}

impl Listener<AppendId, Asker> for Answers<'_> {
    fn acknowledged(&mut self, append: Option<AppendId>, last: Lsn) {
        self.counters.acked.store(last.0, Ordering::Release);
        let Some(append) = append else { return };
        if let Some(client) = self.clients.get(append.slot, append.client) {
            client.outbox.settle(AnswerKind::Append, append.request, &Response::Ack { lsn: last.0 });
        }
    }

    fn proved(&mut self, asker: Asker, proof: Proof) {
        let epoch = self.epoch.0;
        match (asker, proof) {
            (Asker::Barrier(client, request), Proof::Last(Lsn(last))) => {
                self.settle(client, AnswerKind::Barrier, request, &Response::BarrierPassed { epoch, last });
            }
            (Asker::Position(client, request), Proof::Last(Lsn(last))) => {
                self.settle(client, AnswerKind::Position, request, &Response::Position { epoch, last });
            }
            (Asker::Sync(client, request), Proof::Synced(Lsn(lsn))) => {
                self.settle(client, AnswerKind::Sync, request, &Response::Synced { lsn });
            }
            (Asker::Trim(client, request, below), Proof::Last(_)) => {
                self.trims.push(ProvedTrim { client, request, below });
            }
            (Asker::Mismatch(client, request, mismatch), Proof::Behind(_)) => {
                self.settle(client, AnswerKind::Mismatch, request, &Response::Mismatch(mismatch));
            }
            (Asker::Gets(question), Proof::Behind(_)) => {
                if let Some(gets) = &mut self.gets {
                    gets.proved(question);
                }
            }
            (Asker::RemoteProcess(reply), Proof::Last(last)) => {
                // The caller may be gone.
                drop(reply.send(Ok(PositionReply { epoch: self.epoch, last })));
            }
            (asker, proof) => unreachable!("{asker:?} is not answered with {proof:?}"),
        }
    }

    fn posted(&mut self, end: Position, bytes: u64) {
        self.counters.posted_log_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.replication.begin(end, 1, Instant::now());
    }

    fn published(&mut self, bytes: u64) {
        self.counters.posted_board_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn completed(&mut self, end: Position) {
        self.replication.finish(end, Instant::now(), &self.counters.replication_times);
    }
}

impl Answers<'_> {
    fn settle(&mut self, client: ClientId, kind: AnswerKind, request: u64, answer: &Response<'_>) {
        if let Some(client) = self.clients.by_id(client) {
            client.outbox.settle(kind, request, answer);
        }
    }
}

/// The answer to a request for a position that cannot be taken now.
fn no_position(message: &str) -> Response<'_> {
    Response::Error { code: ErrorCode::Unavailable, fatal: false, retry_after_ms: POSITION_RETRY_MS, message }
}

impl AppendLoop {
    /// Takes a position of the log for another process.
    pub(super) fn take_position(&mut self, reply: oneshot::Sender<Result<PositionReply, String>>) {
        let refusal = match &mut self.state {
            RoleState::Waiting { .. } => "not primary",
            RoleState::Leading(leading) if !leading.log.is_ready() => "primary, and not ready for appends yet",
            RoleState::Leading(leading) => match may_take_another(leading) {
                true => return leading.log.ask(Asker::RemoteProcess(reply)),
                false => "too many barriers wait already",
            },
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
        client.outbox.settle(AnswerKind::Position, request, &answer);
    }

    /// Refuses every append, barrier, sync, mismatch and get that waits: the term is over.
    pub(super) fn refuse_waiting(&mut self, ended: Leading, message: &str) {
        let refusal = |code, message| Response::Error { code, fatal: false, retry_after_ms: 0, message };
        let unknown = refusal(ErrorCode::UnknownOutcome, message);
        let lost = refusal(ErrorCode::NotPrimary, "no longer primary");
        for get in ended.gets.into_iter().flat_map(Gets::end) {
            if let Some(client) = self.clients.get(get.slot, get.client) {
                client.outbox.settle(AnswerKind::Get, get.request, &lost);
            }
        }
        let (appends, questions) = ended.log.end();
        for append in appends {
            if let Some(client) = self.clients.get(append.slot, append.client) {
                client.outbox.settle(AnswerKind::Append, append.request, &unknown);
            }
        }
        for asker in questions {
            let (client, kind, request, answer) = match asker {
                Asker::Barrier(client, request) => (client, AnswerKind::Barrier, request, &lost),
                Asker::Sync(client, request) => (client, AnswerKind::Sync, request, &lost),
                Asker::Trim(client, request, _) => (client, AnswerKind::Trim, request, &lost),
                // Nothing was appended for it. What it was judged by may be lost, so the condition may hold now.
                Asker::Mismatch(client, request, _) => (client, AnswerKind::Mismatch, request, &lost),
                Asker::Position(client, request) => {
                    (client, AnswerKind::Position, request, &no_position("no longer primary"))
                }
                // They have been answered one by one.
                Asker::Gets(_) => continue,
                Asker::RemoteProcess(reply) => {
                    // The caller may be gone.
                    drop(reply.send(Err("no longer primary".to_owned())));
                    continue;
                }
            };
            if let Some(client) = self.clients.by_id(client) {
                client.outbox.settle(kind, request, answer);
            }
        }
    }
}

/// Whether another process may have one more question wait.
fn may_take_another(leading: &mut Leading) -> bool {
    leading.log.retain_questions(|asker| !asker.is_gone());
    let of_control = leading.log.questions().filter(|asker| asker.client().is_none()).count();
    leading.log.may_ask() && of_control < CONTROL_QUESTIONS_MAX
}
