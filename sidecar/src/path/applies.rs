//! Requests to a table, and what a table and a log refuse of each other's: part of [`AppendLoop`], called by `requests`.

use std::sync::atomic::Ordering;

use tailwind_primary::{Table, Unapplied};
use tailwind_protocol::segment::append_size;
use tailwind_protocol::socket::{ErrorCode, Operations, VERSION_TABLE};
use tailwind_protocol::table::index::Full;
use tailwind_protocol::table::request::{Apply, Mismatch};

use super::answers::{AppendId, Asker};
use super::connection::{AnswerKind, ReadOnlyReason};
use super::requests::{Outcome, RequestContext};
use super::{AppendLoop, RoleState};

impl AppendLoop {
    pub(super) fn on_apply(&mut self, context: &mut RequestContext<'_>, operations: &Operations<'_>) -> Outcome {
        if !self.options.table {
            let message = "this group keeps a log and no table: append records";
            return self.refuse(context, ErrorCode::WrongKind, false, message);
        }
        match operations.act(|apply| self.apply(context, apply)) {
            Ok(outcome) => outcome,
            Err(large) => self.refuse(context, ErrorCode::TooLarge, false, &large.to_string()),
        }
    }

    fn apply(&mut self, context: &mut RequestContext<'_>, apply: &Apply<'_>) -> Outcome {
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
        match leading.apply(append, apply) {
            Ok(_) => {
                context.outbox.owe(AnswerKind::Append);
                self.count(apply);
                Outcome::Done
            }
            Err(Unapplied::Later) => Outcome::Later,
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

    fn count(&self, apply: &Apply<'_>) {
        let size = append_size(apply.writes().map(|write| write.payload_size(|_| 0)));
        self.counters.appends.fetch_add(1, Ordering::Relaxed);
        self.counters.records.fetch_add(u64::from(apply.write_count()), Ordering::Relaxed);
        self.counters.bytes.fetch_add(size as u64, Ordering::Relaxed);
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
