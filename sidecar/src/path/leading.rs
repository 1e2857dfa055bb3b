//! This sidecar as primary: its log, and what is measured of it.
//!
//! Part of [`AppendLoop`](super::AppendLoop), from the command to lead to the loss of the role.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tailwind_fabric::ChannelError;
use tailwind_primary::{Applied, Copies, Gets, Given, Moment, PrimaryLog, Table, Turned, Unapplied};
use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Lsn, Position};
use tailwind_protocol::primary::{Input, Output, Primary, Seat};
use tailwind_protocol::segment::Payload;
use tailwind_protocol::socket::{ErrorCode, Response};
use tailwind_protocol::table::request::Apply;
use tailwind_runtime::histogram::Histogram;

use super::answers::{Answers, AppendId, Asker, ProvedTrim};
use super::applies::CopyId;
use super::connection::{AnswerKind, ClientConnection};
use super::fabric::SidecarFabric;
use super::gets::GetId;
use super::latency::Latency;
use super::messages::Counters;
use super::moves::OfferedBatch;
use super::slots::ClientSlots;
use super::stall::{Progress, Stall};
use crate::mirror::Bell;

/// Bytes of one work request at most: large enough for a newcomer's bulk, small enough not to delay others on the wire.
const POST_SIZE_MAX: u32 = 1 << 20;

/// A primary's log, over this process's fabric and for its clients.
pub(super) type Log = PrimaryLog<SidecarFabric, AppendId, Asker>;

/// A primary's log, and what is measured of it.
pub(super) struct Leading {
    pub(super) log: Log,
    /// Appends that this turn has added.
    fresh: u64,
    /// From the turn in which an append was taken to its ack.
    append_times: Latency,
    /// What is posted and has not completed at every member that acks need.
    replication_times: Latency,
    /// Since when appends have paused for a newcomer.
    paused: Option<Instant>,
    pub(super) stall: Stall,
    /// Trims that may be answered now.
    trims: Vec<ProvedTrim>,
    /// What the cleaner of a table wants judged.
    pub(super) offered: Option<OfferedBatch>,
    /// Of a table: the gets that wait.
    pub(super) gets: Option<Gets<GetId>>,
    /// Of a table that has mirrors.
    pub(super) mirrors: Option<Arc<Bell>>,
    /// Requests to a table whose sources are fetched.
    pub(super) copies: Copies<CopyId>,
    /// Where the last append ends that was in flight when its connection was closed. See "After a failover" in
    /// `docs/append-socket.md`: a later read waits until everything up to here is acknowledged.
    pub(super) left_behind: Position,
}

impl Leading {
    pub(super) fn new(primary: Primary, table: Option<Box<Table>>) -> Leading {
        let mut log = PrimaryLog::new(primary, POST_SIZE_MAX);
        let gets = table.is_some().then(Gets::new);
        if let Some(table) = table {
            log.keep_table(table);
        }
        Leading {
            log,
            fresh: 0,
            append_times: Latency::new(),
            replication_times: Latency::new(),
            paused: None,
            stall: Stall::default(),
            trims: Vec::new(),
            offered: None,
            gets,
            mirrors: None,
            copies: Copies::new(),
            left_behind: Position::default(),
        }
    }

    /// Places an append. False: no room now.
    pub(super) fn append(
        &mut self,
        append: AppendId,
        size: usize,
        payloads: impl Iterator<Item = impl Payload>,
    ) -> bool {
        let placed = self.log.append(append, size, payloads).is_some();
        self.fresh += u64::from(placed);
        if !placed {
            self.stall.refuse();
        }
        placed
    }

    /// Judges a request to a table, and places its records.
    pub(super) fn apply(&mut self, append: AppendId, apply: &Apply<'_>, given: &Given) -> Result<Applied, Unapplied> {
        let applied = self.log.apply(append, apply, given);
        self.fresh += u64::from(applied.is_ok());
        if matches!(applied, Err(Unapplied::Later)) {
            self.stall.refuse();
        }
        applied
    }

    /// True when a barrier, a position or a sync can be taken: a member proves itself in the active segment's buffer, so there has
    /// to be one.
    pub(super) fn is_ready(&mut self) -> bool {
        let ready = self.log.is_ready();
        if !ready {
            self.stall.refuse();
        }
        ready
    }

    /// Trims, and returns the first record that can be read. `None`: beyond the last acknowledged record.
    pub(super) fn trim(&mut self, below: Lsn, now: Time, counters: &Counters) -> Option<u64> {
        let (acked, _) = self.log.acked();
        (below <= acked.next()).then(|| {
            self.log.step(now, Input::Trim(below));
            let first = self.log.primary().first_readable().0;
            counters.first.store(first, Ordering::Release);
            first
        })
    }

    /// Answers a trim, of a client that may be gone.
    fn answer_trim(&mut self, trim: ProvedTrim, now: Time, clients: &mut ClientSlots, counters: &Counters) {
        let ProvedTrim { client, request, below } = trim;
        let trimmed = self.trim(below, now, counters);
        let Some(client) = clients.by_id(client) else { return };
        match trimmed {
            Some(first) => client.outbox.settle(AnswerKind::Trim, request, &Response::Trimmed { first }),
            None => {
                counters.refused.fetch_add(1, Ordering::Relaxed);
                let (code, message) = (ErrorCode::BeyondEnd, cannot_trim(below, self.log.acked().0));
                let refusal = Response::Error { code, fatal: false, retry_after_ms: 0, message: &message };
                client.outbox.settle(AnswerKind::Trim, request, &refusal);
            }
        }
    }

    /// Takes one turn, which began at `began`. Its acks and answers are with the clients' connections then, and not sent.
    pub(super) fn turn(
        &mut self,
        began: Instant,
        moment: Moment,
        clients: &mut ClientSlots,
        counters: &Counters,
    ) -> Turned {
        let judged = self.offered.is_some() && self.judge_offered(moment.ticks, counters);
        let last = self.log.appends().next_back();
        if let (fresh @ 1.., Some((_, last))) = (std::mem::take(&mut self.fresh), last) {
            self.append_times.begin(last.end, fresh, began);
        }
        let epoch = self.log.primary().config().epoch;
        let replication = &mut self.replication_times;
        let (trims, gets) = (&mut self.trims, self.gets.as_mut());
        let mut turned = self.log.turn(moment, &mut Answers { clients, counters, replication, trims, gets, epoch });
        turned.progress |= judged;
        if let (Some(mirrors), Some(_)) = (&self.mirrors, turned.acked) {
            mirrors.ring();
        }
        self.publish_table(counters);
        for trim in std::mem::take(&mut self.trims) {
            self.answer_trim(trim, moment.now, clients, counters);
        }
        if moment.ticks {
            self.tick(moment.now);
        }
        self.measure_pause(began, &counters.join_pauses);
        turned
    }

    fn tick(&mut self, now: Time) {
        let progress = Progress { acked: self.log.primary().acked(), passed: self.log.proved() };
        let waits = self.log.appends().len() > 0 || self.log.questions().len() > 0 || self.log.behind() > 0;
        self.stall.tick(now, progress, waits);
    }

    /// The acks of everything up to here have been sent.
    pub(super) fn measure_appends(&mut self, acked: Position, times: &Histogram) {
        self.append_times.finish(acked, Instant::now(), times);
    }

    /// Counts how long a pause for a newcomer has taken, once it is over. `now`: when this turn began.
    fn measure_pause(&mut self, now: Instant, times: &Histogram) {
        if !self.log.primary().takes_appends() {
            self.paused.get_or_insert(now);
        } else if let Some(began) = self.paused.take() {
            times.observe(now.saturating_duration_since(began), 1);
        }
    }

    /// A connection is closed: its barriers, syncs and gets are forgotten, its appends are not.
    pub(super) fn on_close(&mut self, client: &ClientConnection) {
        if let Some(gets) = &mut self.gets {
            gets.retain(|get| get.client != client.id);
        }
        self.copies.retain(|copy| copy.client != client.id);
        self.log.retain_questions(|asker| asker.client() != Some(client.id));
        if let (true, Some((_, last))) = (client.outbox.has_appends(), self.log.appends().next_back()) {
            // Perhaps another client's, and so a little later than needed.
            self.left_behind = last.end;
        }
    }

    /// True while an append up to this position is not acknowledged.
    pub(super) fn waits_up_to(&self, end: Position) -> bool {
        self.log.appends().next().is_some_and(|(_, append)| append.end <= end)
    }

    /// As after nearly every turn: no channel has failed, and the machine wants nothing done.
    pub(super) fn has_nothing_to_report(&self) -> bool {
        self.log.failures.is_empty() && self.log.outputs.is_empty()
    }

    /// Up to so many channels that have failed.
    pub(super) fn failures(&mut self, most: usize) -> impl Iterator<Item = (Seat, ChannelError)> {
        let count = most.min(self.log.failures.len());
        self.log.failures.drain(..count)
    }

    /// Up to so many outputs of the machine. The rest stay until a later turn.
    pub(super) fn outputs(&mut self, most: usize) -> impl Iterator<Item = Output> {
        let count = most.min(self.log.outputs.len());
        self.log.outputs.drain(..count)
    }
}

/// The error message for a trim beyond the end of the log.
fn cannot_trim(below: Lsn, acked: Lsn) -> String {
    match acked {
        Lsn(0) => format!("cannot trim below LSN {below}: no record has been acknowledged yet"),
        _ => format!("cannot trim below LSN {below}: LSN {acked} is the last acknowledged record; trim up to it"),
    }
}
