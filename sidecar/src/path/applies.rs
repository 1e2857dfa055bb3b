//! Requests to a table, and what a table and a log refuse of each other's: part of [`AppendLoop`], called by `requests`.

use std::sync::atomic::Ordering;

use tailwind_primary::{Given, Table, Taken, Unapplied};
use tailwind_protocol::config::Time;
use tailwind_protocol::ids::Epoch;
use tailwind_protocol::socket::{ErrorCode, Operations, VERSION_TABLE};
use tailwind_protocol::table::index::Full;
use tailwind_protocol::table::request::{Apply, Mismatch};

use super::answers::{AppendId, Asker};
use super::connection::{AnswerKind, ReadOnlyReason};
use super::gets::RETRY_MS;
use super::leading::Leading;
use super::messages::ClientRequest;
use super::requests::{Outcome, RequestContext};
use super::{AppendLoop, ClientId, RoleState};

/// A request that takes over values, and waits in its client's inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyId {
    pub(super) client: ClientId,
    request: u64,
}

impl AppendLoop {
    pub(super) fn on_apply(&mut self, context: &mut RequestContext<'_>, operations: &Operations<'_>) -> Outcome {
        if !self.options.table {
            return self.refuse_for_table(context, "append records");
        }
        match operations.act(|apply| self.apply(context, apply)) {
            Ok(outcome) => outcome,
            Err(large) => self.refuse(context, ErrorCode::TooLarge, false, &large.to_string()),
        }
    }

    fn apply(&mut self, context: &mut RequestContext<'_>, apply: &Apply<'_>) -> Outcome {
        let now = self.now();
        let RoleState::Leading(leading) = &mut self.state else {
            context.outbox.read_only.get_or_insert(ReadOnlyReason::NotTaken);
            return self.not_primary(context);
        };
        if let Some(read_only) = context.outbox.read_only {
            return self.refuse(context, ErrorCode::NotPrimary, false, read_only.message());
        }
        if !leading.log.may_append() || !context.outbox.may_append() {
            return Outcome::Later;
        }
        let append = AppendId { client: context.client, slot: context.slot as u32, request: context.request };
        let copy = CopyId { client: context.client, request: context.request };
        if leading.copies.waits(copy, now) {
            return Outcome::Later;
        }
        let taken = leading.copies.take(copy);
        match leading.apply(append, apply, taken.as_ref().map_or(&Given::default(), |taken| &taken.given)) {
            Ok(applied) => {
                context.outbox.owe(AnswerKind::Append);
                self.counters.appends.fetch_add(1, Ordering::Relaxed);
                self.counters.records.fetch_add(u64::from(apply.write_count()), Ordering::Relaxed);
                self.counters.bytes.fetch_add(applied.size as u64, Ordering::Relaxed);
                Outcome::Done
            }
            Err(Unapplied::Later) => {
                if let Some(taken) = taken {
                    leading.copies.keep(copy, taken);
                }
                Outcome::Later
            }
            Err(Unapplied::Sources) => self.fetch_sources(context, copy, apply, taken, now),
            Err(Unapplied::Mismatch(mismatch)) => self.tell_mismatch(context, mismatch),
            Err(Unapplied::Full(full)) => {
                let message = leading.log.table().map(|table| why_full(full, table)).unwrap_or_default();
                self.refuse(context, ErrorCode::TableFull, false, &message)
            }
            Err(Unapplied::TooLarge(too_large)) => {
                self.refuse(context, ErrorCode::TooLarge, false, &too_large.to_string())
            }
        }
    }

    /// Once nothing that it was judged by can be lost any more.
    fn tell_mismatch(&mut self, context: &mut RequestContext<'_>, mismatch: Mismatch) -> Outcome {
        let RoleState::Leading(leading) = &mut self.state else { unreachable!("only a primary judges") };
        // As for any question: a member proves itself in the active segment's buffer.
        if !leading.is_ready() || !leading.log.may_ask_behind() {
            return Outcome::Later;
        }
        context.outbox.owe(AnswerKind::Mismatch);
        leading.log.ask_behind(Asker::Mismatch(context.client, context.request, mismatch));
        Outcome::Done
    }

    /// Has the values fetched that a request's copies take over. It stays in its client's inbox until they have come.
    fn fetch_sources(
        &mut self,
        context: &mut RequestContext<'_>,
        copy: CopyId,
        apply: &Apply<'_>,
        taken: Option<Taken>,
        now: Time,
    ) -> Outcome {
        let RoleState::Leading(leading) = &mut self.state else { unreachable!("only a primary judges") };
        let Leading { copies, log, .. } = &mut **leading;
        let (epoch, control) = (log.primary().config().epoch, &self.control.requests);
        let wanted = log.sources(apply, taken.as_ref().map_or(&Given::default(), |taken| &taken.given));
        let fetch =
            |number, wanted: &[_]| control.try_send(ClientRequest::Sources(epoch, number, wanted.to_vec())).is_ok();
        match copies.want(copy, taken, wanted, now, fetch) {
            Ok(()) => Outcome::Later,
            Err(why) => {
                context.outbox.refuse(context.request, ErrorCode::Unavailable, false, RETRY_MS, &why);
                Outcome::Done
            }
        }
    }

    /// What a request with copies needs, in the term of this epoch, has come, or nobody could give it.
    pub(super) fn on_sources(&mut self, epoch: Epoch, number: u64, values: Result<Vec<Vec<u8>>, String>, now: Time) {
        if let RoleState::Leading(leading) = &mut self.state
            && leading.log.primary().config().epoch == epoch
        {
            leading.copies.fetched(number, values, now);
        }
    }

    /// A log is asked for what only a table does.
    pub(super) fn refuse_for_table(&self, context: &mut RequestContext<'_>, instead: &str) -> Outcome {
        let message = format!("this group keeps a log and no table: {instead}");
        self.refuse(context, ErrorCode::WrongKind, false, &message)
    }

    /// A table is asked for what only a log does.
    pub(super) fn refuse_for_log(&self, context: &mut RequestContext<'_>, instead: &str) -> Outcome {
        let message = format!("this group keeps a table: {instead}");
        if context.outbox.version >= VERSION_TABLE {
            return self.refuse(context, ErrorCode::WrongKind, false, &message);
        }
        // Its client does not know that code, and no other tells it what to do but to be another client.
        let message = format!("{message}; that needs version {VERSION_TABLE} of the append socket: update the client");
        self.refuse(context, ErrorCode::BadFrame, true, &message)
    }
}

/// Which bound of a table was reached, and what helps.
fn why_full(full: Full, table: &Table) -> String {
    let index = table.index();
    let (keys, limits) = (index.keys(), index.limits());
    let reached = match full {
        Full::Keys => format!("it has {keys} keys, and may have {}", limits.keys_max),
        Full::Buckets => format!("both buckets of a new key are full, with {keys} keys in all"),
        Full::Memory => {
            format!(
                "its keys and values take {} bytes of the log, and may take {}",
                index.live_bytes(),
                limits.live_bytes_max
            )
        }
    };
    let more = if full == Full::Memory { "memory" } else { "keys" };
    format!("{reached}: delete some, or give the table more {more}")
}
