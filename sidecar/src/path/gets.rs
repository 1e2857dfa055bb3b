//! Gets: what clients read of a table. Part of [`AppendLoop`], called by `requests` and in each turn.
//!
//! At the primary, what is in its own memory is answered at once. The other gets wait in [`Gets`]; records of closed segments are
//! fetched by [`control`](crate::control), so that no append waits for them. In any other role a
//! [getter](super::getting) answers.
//!
//! On one connection nothing is shown that is older than what was shown before, through all changes of the role: see "Gets in
//! every role" in `docs/protocol.md`.

use std::sync::atomic::{AtomicU64, Ordering};

use tailwind_primary::{Answer, Gets, Getter};
use tailwind_protocol::config::Time;
use tailwind_protocol::history::Parted;
use tailwind_protocol::ids::{Epoch, Lsn};
use tailwind_protocol::socket::{ErrorCode, GET_FRESH, GET_NO_VALUE, Response};
use tailwind_protocol::table::get::{Found, Get, Wanted};
use tailwind_protocol::table::record::Key;
use tokio::sync::mpsc;

use super::answers::Asker;
use super::connection::AnswerKind;
use super::leading::{Leading, Log};
use super::messages::{ClientRequest, Counters};
use super::requests::{Outcome, RequestContext};
use super::slots::ClientSlots;
use super::{AppendLoop, ClientId, RoleState};

/// When it may be worth asking again for what could not be read: a failover takes about as long.
pub(super) const RETRY_MS: u32 = 500;

/// Whose get it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct GetId {
    pub(super) client: ClientId,
    pub(super) slot: u32,
    pub(super) request: u64,
}

/// Carries out what gets want.
struct PathGetter<'a> {
    epoch: Epoch,
    clients: &'a mut ClientSlots,
    counters: &'a Counters,
    control: &'a mpsc::Sender<ClientRequest>,
}

impl Getter<GetId> for PathGetter<'_> {
    fn answer(&mut self, get: GetId, as_of: Lsn, answer: Answer<'_>) {
        let Some(client) = self.clients.get(get.slot, get.client) else { return };
        counter(self.counters, &answer).fetch_add(1, Ordering::Relaxed);
        if !matches!(answer, Answer::Unavailable(_)) {
            client.outbox.shown.note(as_of);
        }
        client.outbox.settle(AnswerKind::Get, get.request, &response(as_of, &answer));
    }

    fn fetch(&mut self, number: u64, wanted: Wanted) -> bool {
        self.control.try_send(ClientRequest::Record(self.epoch, number, Box::new(wanted))).is_ok()
    }
}

fn response<'a>(Lsn(as_of): Lsn, answer: &Answer<'a>) -> Response<'a> {
    match *answer {
        Answer::Value(revision, value) => {
            Response::Value { revision: Some(revision), as_of, value, older: false, stale: false }
        }
        Answer::Absent => Response::Value { revision: None, as_of, value: &[], older: false, stale: false },
        Answer::Unavailable(message) => unavailable(message),
    }
}

pub(super) fn unavailable(message: &str) -> Response<'_> {
    Response::Error { code: ErrorCode::Unavailable, fatal: false, retry_after_ms: RETRY_MS, message }
}

/// The answer to a connection that was shown what is part of the log no more.
pub(super) fn has_parted(parted: Parted) -> Response<'static> {
    let message = match parted {
        Parted::NotKnown => return unavailable("this sidecar has not heard yet that the log was cut"),
        Parted::Cut(_) => {
            "by an administrator's order the log was cut, and what this connection was shown may be lost: connect again"
        }
        Parted::OtherLog(_) => {
            "the group was created again, with another log than this connection was shown: connect again"
        }
    };
    Response::Error { code: ErrorCode::BeyondEnd, fatal: false, retry_after_ms: 0, message }
}

fn counter<'a>(counters: &'a Counters, answer: &Answer<'_>) -> &'a AtomicU64 {
    match answer {
        Answer::Value(..) => &counters.gets_found,
        Answer::Absent => &counters.gets_absent,
        Answer::Unavailable(_) => &counters.gets_unavailable,
    }
}

impl AppendLoop {
    pub(super) fn on_get(&mut self, context: &mut RequestContext<'_>, key: Key<'_>, least: Lsn, flags: u16) -> Outcome {
        if !self.options.table {
            return self.refuse_for_table(context, "read records");
        }
        let now = self.now();
        let RoleState::Leading(leading) = &mut self.state else {
            return self.on_get_off_primary(context, key, least, flags);
        };
        let config = leading.log.primary().config();
        // Something of a later epoch may have been shown here: this term is over, and it has not been noticed.
        if self.getting.as_ref().is_some_and(|getting| getting.epoch() > config.epoch) {
            return self.refuse(context, ErrorCode::NotPrimary, false, "another sidecar is primary by now");
        }
        if let Err(parted) = context.outbox.shown.go_on(config.log, &config.cuts) {
            context.outbox.answer(context.request, &has_parted(parted));
            return Outcome::Done;
        }
        let (gets, index) = (leading.gets.as_mut(), leading.log.table().map(|table| table.index()));
        let (gets, index) = gets.zip(index).expect("a table is led with its index");
        if !gets.may_take() || !context.outbox.may_get() {
            return Outcome::Later;
        }
        let least = least.max(context.outbox.shown.last);
        let (fresh, no_value) = (flags & GET_FRESH != 0, flags & GET_NO_VALUE != 0);
        let what = Get { hash: index.hash(key), least, fresh, no_value };
        if !fresh && least <= leading.log.acked().0 && answer_at_once(&leading.log, &what, context, &self.counters) {
            return Outcome::Done;
        }
        context.outbox.owe(AnswerKind::Get);
        gets.take(GetId { client: context.client, slot: context.slot as u32, request: context.request }, what, now);
        Outcome::Done
    }

    /// Asks one question for all fresh gets that were taken since the last one. They are to see what was taken from connections
    /// that have ended, so those end first.
    pub(super) fn ask_for_gets(&mut self) {
        let RoleState::Leading(leading) = &mut self.state else { return };
        let wants = leading.gets.as_ref().is_some_and(Gets::want_proof);
        if !wants || !leading.is_ready() || !leading.log.may_ask_behind() || self.close_dead().is_none() {
            return;
        }
        if let RoleState::Leading(leading) = &mut self.state
            && let Some(gets) = &mut leading.gets
        {
            leading.log.ask_behind(Asker::Gets(gets.ask()));
        }
    }

    /// Looks at the gets that wait.
    pub(super) fn turn_gets(&mut self, now: Time) {
        self.with_gets(|gets, log, getter| {
            if !gets.is_empty() {
                gets.turn(log, now, getter);
            }
        });
    }

    /// What a get in the term of this epoch needs has come, or nobody could give it.
    pub(super) fn on_record(&mut self, epoch: Epoch, number: u64, value: Result<Vec<u8>, String>, now: Time) {
        self.with_gets(|gets, log, getter| {
            if getter.epoch == epoch {
                gets.fetched(number, value.as_deref().map_err(Clone::clone), log, now, getter);
            }
        });
    }

    fn with_gets(&mut self, act: impl FnOnce(&mut Gets<GetId>, &Log, &mut PathGetter<'_>)) {
        let RoleState::Leading(leading) = &mut self.state else { return };
        let Leading { gets: Some(gets), log, .. } = &mut **leading else { return };
        let (clients, counters, control) = (&mut self.clients, &*self.counters, &self.control.requests);
        let epoch = log.primary().config().epoch;
        act(gets, log, &mut PathGetter { epoch, clients, counters, control });
    }
}

/// Answers a get if its record is in this primary's own memory.
fn answer_at_once(log: &Log, what: &Get, context: &mut RequestContext<'_>, counters: &Counters) -> bool {
    let as_of = log.acked().0;
    log.look(what.hash, what.no_value, |found| {
        let answer = match found {
            Found::Absent => Answer::Absent,
            Found::Here(revision, value) => Answer::Value(revision, value),
            Found::There(_) => return false,
        };
        counter(counters, &answer).fetch_add(1, Ordering::Relaxed);
        context.outbox.shown.note(as_of);
        context.outbox.answer(context.request, &response(as_of, &answer));
        true
    })
}
