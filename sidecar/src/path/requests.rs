//! The requests of clients, frame by frame: part of [`AppendLoop`], called for each connection that has bytes. Those that only a
//! table takes are in `applies`.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use tailwind_protocol::history::History;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::{CHECKSUM_SIZE, RECORD_HEADER_SIZE};
use tailwind_protocol::segment::{Payload, append_size};
use tailwind_protocol::socket::{
    BATCH_RECORDS_MAX, Batch, ErrorCode, HELLO_HOLD, HELLO_RING, READ_ANYWHERE, READ_TAIL, Request, Response, Role,
    VERSION, VERSION_MIN, VERSION_TABLE, Welcome, announced_append, decode_request,
};
use tailwind_ring::BadPosition;

use super::answers::{AppendId, Asker};
use super::connection::{AnswerKind, ClientConnection, INFLIGHT_MAX, Inbox, Outbox, ReadOnlyReason};
use super::options::frame_body_max;
use super::ring::ClientRing;
use super::slots::{SLOTS, is_for_status, refuse_slot};
use super::{AppendLoop, ClientId, ClientRequest, ReadKind, ReadRequest, RoleState, Start};

/// Bytes with which one client is answered at once in one turn: some 170 of the shortest answers, 30 refusals. A client that
/// causes them without end must not keep the path from its turns, by which heartbeats go.
const ANSWERED_AT_ONCE: usize = 4 << 10;

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Done with; go on with the next one.
    Done,
    /// Not now: leave it where it is and come back in a later turn.
    Later,
    /// The reader takes the connection from here, after this frame.
    HandOver(ReadRequest),
}

/// The request and its client, which is out of its slot.
pub(super) struct RequestContext<'a> {
    /// Number of the request; 0 before it is known.
    pub(super) request: u64,
    /// More has come behind it.
    has_next: bool,
    pub(super) client: ClientId,
    pub(super) slot: usize,
    pub(super) outbox: &'a mut Outbox,
    /// Its ring, or where one goes that it is given.
    ring: &'a mut Option<Box<ClientRing>>,
}

impl AppendLoop {
    /// Takes requests from a client until there are no more, or no room.
    pub(super) fn process_requests(&mut self, slot: usize) {
        // Out of its slot while the rest of the path works on its requests.
        let Some(mut client) = self.clients.take(slot) else { return };
        let answered_max = client.outbox.waiting() + ANSWERED_AT_ONCE;
        loop {
            if client.outbox.waiting() >= answered_max {
                self.has_more = true;
                break;
            }
            if client.inbox.pending().is_empty() {
                match self.append_from_ring(slot, &mut client) {
                    None => {}
                    Some(Outcome::Done) => continue,
                    Some(_) => break,
                }
            }
            if let Err(error) = client.fill() {
                self.break_ring(&mut client, error);
            }
            let ClientConnection { id, inbox, outbox, ring, .. } = &mut client;
            let mut context = RequestContext { request: 0, has_next: false, client: *id, slot, outbox, ring };
            let (outcome, size) = self.process_frame(inbox, &mut context);
            match outcome {
                Outcome::Later => break,
                Outcome::Done => client.inbox.consume(size),
                Outcome::HandOver(wanted) => {
                    client.inbox.consume(size);
                    self.sleeper.forget(client.fd());
                    self.batch_memory.leave(client.id, &client.inbox);
                    self.clients.give_to_reader();
                    let detached = client.detach(self.known_role(), wanted.request);
                    // Control is gone only when the process ends.
                    drop(self.control.requests.try_send(ClientRequest::Read(detached, wanted)));
                    return;
                }
            }
        }
        if let Some(size) = client.inbox.wants().filter(|_| !client.outbox.closing) {
            self.make_room(&mut client, size);
        }
        client.release();
        self.clients.put_back(slot, client);
    }

    /// Places the next append straight from the ring. `None`: there is no ring, or something else comes next.
    fn append_from_ring(&mut self, slot: usize, client: &mut ClientConnection) -> Option<Outcome> {
        let ClientConnection { id, outbox, ring, .. } = client;
        let ring = ring.as_mut()?;
        if outbox.closing || !outbox.may_answer() {
            // While answers wait, nothing else would look.
            let Err(error) = ring.check() else { return Some(Outcome::Later) };
            self.break_ring(client, error);
            return None;
        }
        let payload_max = self.options.segment_size.record_size_max() as usize;
        match ring.whole_append(payload_max) {
            Ok(None) => None,
            Ok(Some((request, payload))) => {
                let length = payload.len();
                let mut context =
                    RequestContext { request, has_next: false, client: *id, slot, outbox, ring: &mut None };
                let size = append_size(std::iter::once(length));
                let outcome = self.append(&mut context, size, 1, std::iter::once(payload));
                if outcome == Outcome::Done {
                    ring.take_append(length);
                }
                Some(outcome)
            }
            Err(error) => {
                self.break_ring(client, error);
                None
            }
        }
    }

    fn break_ring(&self, client: &mut ClientConnection, error: BadPosition) {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        client.break_ring(&error.to_string());
    }

    fn process_frame(&mut self, inbox: &Inbox, context: &mut RequestContext<'_>) -> (Outcome, usize) {
        if context.outbox.closing || !context.outbox.may_answer() {
            return (Outcome::Later, 0);
        }
        match decode_request(inbox.pending(), context.outbox.version, frame_body_max(self.options.segment_size)) {
            Ok(None) => {
                if inbox.wants().is_some() {
                    self.on_large(inbox, context);
                }
                (Outcome::Later, 0)
            }
            Ok(Some(decoded)) => {
                context.request = decoded.request;
                context.has_next = inbox.pending().len() > decoded.size;
                (self.on_request(context, &decoded.frame), decoded.size)
            }
            Err(error) => {
                self.refuse(context, ErrorCode::BadFrame, true, &error.to_string());
                (Outcome::Later, 0)
            }
        }
    }

    /// A frame has begun that takes memory from the batches': refuses it unless it may.
    fn on_large(&self, inbox: &Inbox, context: &mut RequestContext<'_>) {
        match announced_append(inbox.pending()).filter(|_| context.outbox.greeted) {
            Some(request) if is_for_status(context.slot) => {
                context.request = request;
                self.refuse_slot(context);
            }
            Some(_) => {}
            None => {
                let message = "a frame as large as this must be a batch or an apply, and come after a hello";
                self.refuse(context, ErrorCode::BadFrame, true, message);
            }
        }
    }

    fn on_request(&mut self, context: &mut RequestContext<'_>, frame: &Request<'_>) -> Outcome {
        match frame {
            Request::Hello { version_min, version_max, flags } => {
                context.outbox.wants_ring = flags & HELLO_RING != 0 && !is_for_status(context.slot);
                self.on_hello(context, *version_min..=*version_max, flags & HELLO_HOLD != 0)
            }
            _ if !context.outbox.greeted => {
                self.refuse(context, ErrorCode::BadFrame, true, "the first frame must be a hello")
            }
            Request::Status if !context.outbox.may_ask_status() => Outcome::Later,
            Request::Status | Request::Read { .. } | Request::Follow { .. } | Request::Position
                if self.control.requests.capacity() == 0 =>
            {
                Outcome::Later
            }
            Request::Status => {
                context.outbox.owe(AnswerKind::Status);
                drop(self.control.requests.try_send(ClientRequest::Status(context.client, context.request)));
                Outcome::Done
            }
            _ if is_for_status(context.slot) => self.refuse_slot(context),
            Request::Append { payload } => self.on_append(context, payload),
            Request::Batch(batch) => self.on_batch(context, batch),
            Request::Apply(operations) => self.on_apply(context, operations),
            Request::Get { key, least, flags } => self.on_get(context, *key, Lsn(*least), *flags),
            Request::Barrier => self.on_barrier(context),
            Request::Sync => self.on_sync(context),
            Request::Trim { below } => self.on_trim(context, Lsn(*below)),
            Request::Read { from, limit, flags, history } => {
                let (tail, anywhere) = (flags & READ_TAIL != 0, flags & READ_ANYWHERE != 0);
                let start = Start { from: Lsn(*from), history: History(*history) };
                self.on_read(context, start, ReadKind::Read { limit: *limit, tail, anywhere })
            }
            Request::Follow { from, history } => {
                self.on_read(context, Start { from: Lsn(*from), history: History(*history) }, ReadKind::Follow)
            }
            Request::Position => self.on_position(context),
            // Its read has ended by itself meanwhile; and this is awake.
            Request::Stop | Request::Wake => Outcome::Done,
        }
    }

    pub(super) fn refuse(
        &self,
        context: &mut RequestContext<'_>,
        code: ErrorCode,
        fatal: bool,
        message: &str,
    ) -> Outcome {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        context.outbox.refuse(context.request, code, fatal, 0, message);
        Outcome::Done
    }

    fn refuse_slot(&self, context: &mut RequestContext<'_>) -> Outcome {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        refuse_slot(context.outbox, context.request);
        Outcome::Done
    }

    fn on_hello(&self, context: &mut RequestContext<'_>, versions: RangeInclusive<u16>, hold: bool) -> Outcome {
        if context.outbox.greeted || context.outbox.held.is_some() {
            return self.refuse(context, ErrorCode::BadFrame, true, "a second hello");
        }
        let (oldest, newest) = versions.into_inner();
        let version = newest.min(VERSION);
        if version < oldest.max(VERSION_MIN) {
            let message = format!(
                "this sidecar supports versions {VERSION_MIN} to {VERSION}; the client supports {oldest} to {newest}"
            );
            return self.refuse(context, ErrorCode::UnsupportedVersion, true, &message);
        }
        if hold && is_for_status(context.slot) {
            return self.refuse_slot(context);
        }
        if hold && self.role() == Role::Reader {
            let message = "this sidecar is a reader and never becomes primary: connect without hold, or elsewhere";
            return self.refuse(context, ErrorCode::NotPrimary, true, message);
        }
        context.outbox.version = version;
        if hold && self.role() != Role::Primary {
            context.outbox.held = Some(context.request);
        } else {
            self.welcome(context);
        }
        Outcome::Done
    }

    fn welcome(&self, context: &mut RequestContext<'_>) {
        if context.outbox.wants_ring && context.has_next {
            let message = "after a hello with the flag ring, nothing may be sent until the welcome has come";
            self.refuse(context, ErrorCode::BadFrame, true, message);
            return;
        }
        let RequestContext { request, outbox, ring, .. } = context;
        outbox.greeted = true;
        if outbox.wants_ring && self.counters.rings.load(Ordering::Relaxed) < self.options.rings_max {
            match ClientRing::create(&self.counters) {
                Ok(created) => **ring = Some(Box::new(created)),
                Err(error) => tracing::warn!(%error, "failed to make a ring for a client: it uses the socket"),
            }
        }
        let segment = self.options.segment_size;
        outbox.answer(
            *request,
            &Response::Welcome(Welcome {
                version: outbox.version,
                role: self.role().in_version(outbox.version),
                ring: ring.is_some(),
                table: self.options.table && outbox.version >= VERSION_TABLE,
                record_size_max: segment.record_size_max(),
                batch_size_max: frame_body_max(self.options.segment_size) as u32,
                batch_records_max: BATCH_RECORDS_MAX,
                inflight_max: INFLIGHT_MAX,
                record_cost: RECORD_HEADER_SIZE as u16,
                batch_cost: CHECKSUM_SIZE as u16,
                epoch: self.epoch,
                first: self.counters.first.load(Ordering::Relaxed),
                last: self.counters.acked.load(Ordering::Relaxed),
                primary: &self.primary_name,
            }),
        );
    }

    /// Answers the hellos that have waited for this sidecar to become primary.
    pub(super) fn welcome_held(&mut self) {
        for slot in 0..SLOTS {
            let Some(mut client) = self.clients.take(slot) else { continue };
            let ClientConnection { id, inbox, outbox, ring, .. } = &mut client;
            if let Some(request) = outbox.held.take() {
                let has_next = !inbox.pending().is_empty();
                self.welcome(&mut RequestContext { request, has_next, client: *id, slot, outbox, ring });
                client.busy = true;
            }
            self.clients.put_back(slot, client);
        }
    }

    fn on_append(&mut self, context: &mut RequestContext<'_>, payload: &[u8]) -> Outcome {
        let limit = self.options.segment_size.record_size_max();
        if payload.len() > limit as usize {
            let message = format!("record of {} bytes: the limit is {limit}", payload.len());
            return self.refuse(context, ErrorCode::TooLarge, false, &message);
        }
        self.append(context, append_size(std::iter::once(payload.len())), 1, std::iter::once(payload))
    }

    fn on_batch(&mut self, context: &mut RequestContext<'_>, batch: &Batch<'_>) -> Outcome {
        let limit = self.options.segment_size.record_size_max();
        if batch.is_empty() {
            return self.refuse(context, ErrorCode::BadFrame, false, "a batch has at least one record");
        }
        if let Some(record) = batch.iter().find(|record| record.len() > limit as usize) {
            let message = format!("record of {} bytes in a batch: the limit is {limit}", record.len());
            return self.refuse(context, ErrorCode::TooLarge, false, &message);
        }
        let size = append_size(batch.iter().map(<[u8]>::len));
        let limit = self.options.segment_size.append_size_max();
        if size > limit as usize {
            let message = format!("batch takes {size} bytes of log: the limit is {limit}; split it");
            return self.refuse(context, ErrorCode::TooLarge, false, &message);
        }
        self.append(context, size, u64::from(batch.len()), batch.iter())
    }

    fn append(
        &mut self,
        context: &mut RequestContext<'_>,
        size: usize,
        records: u64,
        payloads: impl Iterator<Item = impl Payload>,
    ) -> Outcome {
        if self.options.table {
            return self.refuse_for_log(context, "put and delete keys by `Apply`");
        }
        let RoleState::Leading(leading) = &mut self.state else {
            context.outbox.read_only.get_or_insert(ReadOnlyReason::NotTaken);
            return self.not_primary(context);
        };
        if let Some(read_only) = context.outbox.read_only {
            return self.refuse(context, ErrorCode::NotPrimary, false, read_only.message());
        }
        let append = AppendId { client: context.client, slot: context.slot as u32, request: context.request };
        if !leading.log.may_append() || !context.outbox.may_append() || !leading.append(append, size, payloads) {
            return Outcome::Later;
        }
        context.outbox.owe(AnswerKind::Append);
        self.counters.appends.fetch_add(1, Ordering::Relaxed);
        self.counters.records.fetch_add(records, Ordering::Relaxed);
        self.counters.bytes.fetch_add(size as u64, Ordering::Relaxed);
        Outcome::Done
    }

    pub(super) fn not_primary(&self, context: &mut RequestContext<'_>) -> Outcome {
        let message = match (self.role(), self.primary_name.as_str()) {
            (Role::Recovering, _) => "this sidecar is recovering the log; try again soon".to_owned(),
            (Role::Reader, "") => "this sidecar only reads; who is primary is not known yet".to_owned(),
            (Role::Reader, primary) => format!("this sidecar only reads; sidecar {primary} is primary"),
            (_, "") => "this sidecar is not primary; who is, is not known yet".to_owned(),
            (_, primary) => format!("this sidecar is not primary; sidecar {primary} is"),
        };
        self.refuse(context, ErrorCode::NotPrimary, false, &message)
    }

    fn on_barrier(&mut self, context: &mut RequestContext<'_>) -> Outcome {
        let RoleState::Leading(leading) = &mut self.state else { return self.not_primary(context) };
        // What its client knew was true in the epoch of the connection; a barrier proves nothing about those since.
        if let Some(read_only) = context.outbox.read_only {
            return self.refuse(context, ErrorCode::NotPrimary, false, read_only.message());
        }
        // A seat proves itself in the active segment's buffer, so there has to be one.
        if !leading.is_ready() || !leading.log.may_ask() {
            return Outcome::Later;
        }
        context.outbox.owe(AnswerKind::Barrier);
        leading.log.ask(Asker::Barrier(context.client, context.request));
        Outcome::Done
    }

    fn on_sync(&mut self, context: &mut RequestContext<'_>) -> Outcome {
        let RoleState::Leading(leading) = &mut self.state else { return self.not_primary(context) };
        // What its client has appended in the epoch of the connection may not be in the log.
        if let Some(read_only) = context.outbox.read_only {
            return self.refuse(context, ErrorCode::NotPrimary, false, read_only.message());
        }
        if !leading.is_ready() || !leading.log.may_sync() {
            return Outcome::Later;
        }
        context.outbox.owe(AnswerKind::Sync);
        leading.log.sync(Asker::Sync(context.client, context.request));
        Outcome::Done
    }

    fn on_trim(&mut self, context: &mut RequestContext<'_>, below: Lsn) -> Outcome {
        if self.options.table {
            return self.refuse_for_log(context, "it trims its log itself");
        }
        let now = self.now();
        let RoleState::Leading(leading) = &mut self.state else { return self.not_primary(context) };
        if let Some(first) = leading.trim(below, now, &self.counters) {
            context.outbox.answer(context.request, &Response::Trimmed { first });
            return Outcome::Done;
        }
        // Where the log ends only a primary may say.
        if !leading.is_ready() || !leading.log.may_ask() {
            return Outcome::Later;
        }
        context.outbox.owe(AnswerKind::Trim);
        leading.log.ask(Asker::Trim(context.client, context.request, below));
        Outcome::Done
    }

    fn on_position(&mut self, context: &mut RequestContext<'_>) -> Outcome {
        if !context.outbox.may_ask_position() {
            return Outcome::Later;
        }
        match &mut self.state {
            RoleState::Leading(leading) => {
                if !leading.is_ready() || !leading.log.may_ask() {
                    return Outcome::Later;
                }
                leading.log.ask(Asker::Position(context.client, context.request));
            }
            RoleState::Waiting { .. } => {
                drop(self.control.requests.try_send(ClientRequest::Position(context.client, context.request)));
            }
        }
        context.outbox.owe(AnswerKind::Position);
        Outcome::Done
    }

    fn on_read(&mut self, context: &mut RequestContext<'_>, start: Start, kind: ReadKind) -> Outcome {
        let leads = matches!(self.state, RoleState::Leading(_));
        if !leads && !kind.is_anywhere() {
            return self.not_primary(context);
        }
        // Answers come in order: what was appended before the read is acknowledged before the first record.
        if !context.outbox.is_settled() || (context.ring.is_some() && context.outbox.waiting() > 0) {
            return Outcome::Later;
        }
        if !leads {
            // Where the log begins and ends is not known here.
            return Outcome::HandOver(ReadRequest { request: context.request, start, kind });
        }
        if let Some((code, message)) = self.refusal(start.from, kind) {
            context.outbox.read_after = None;
            return self.refuse(context, code, false, &message);
        }
        // The app may be one that died and has returned: it must see everything of its earlier self that will ever land.
        let after = match context.outbox.read_after {
            Some(after) => after,
            None => match self.close_dead() {
                Some(after) => *context.outbox.read_after.insert(after),
                None => return Outcome::Later,
            },
        };
        if let RoleState::Leading(leading) = &self.state
            && leading.waits_up_to(after)
        {
            return Outcome::Later;
        }
        context.outbox.read_after = None;
        Outcome::HandOver(ReadRequest { request: context.request, start, kind })
    }

    /// Why a read cannot begin there, if a primary knows it at once. Where the log ends only a primary may say: the read proves
    /// first that this sidecar still is.
    fn refusal(&self, from: Lsn, kind: ReadKind) -> Option<(ErrorCode, String)> {
        let first = self.counters.first.load(Ordering::Relaxed);
        match from {
            Lsn(0) if kind.is_anywhere() => None,
            Lsn(0) => beyond_the_end(0, 0).map(|message| (ErrorCode::BeyondEnd, message)),
            _ if from < Lsn(first) => Some((ErrorCode::Trimmed, trimmed(from, first))),
            _ => None,
        }
    }
}

/// Why a read cannot begin there, if it cannot.
pub(crate) fn beyond_the_end(from: u64, acked: u64) -> Option<String> {
    match (from, acked) {
        (0, _) => Some("cannot read from LSN 0: the first record of a log is LSN 1".to_owned()),
        (1, _) => None,
        (_, 0) => Some(format!("cannot read from LSN {from}: no record has been acknowledged yet; the first is LSN 1")),
        _ if from - 1 > acked => Some(format!(
            "cannot read from LSN {from}: LSN {acked} is the last acknowledged record; read from LSN {} at most",
            acked.saturating_add(1)
        )),
        _ => None,
    }
}

/// The error message for a read of a record that has been trimmed away.
pub(crate) fn trimmed(wanted: Lsn, first: u64) -> String {
    format!(
        "LSN {wanted} has been trimmed: the log begins at LSN {first}; read from there, after a snapshot that covers what was before"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_beyond_the_end_says_where_that_is() {
        let why = |from, acked| beyond_the_end(from, acked).unwrap_or_default();
        assert_eq!([why(1, 0), why(1, 1), why(2, 1)], ["", "", ""]);
        assert_eq!(why(2, 0), "cannot read from LSN 2: no record has been acknowledged yet; the first is LSN 1");
        let ends = "LSN 1 is the last acknowledged record; read from LSN 2 at most";
        assert_eq!(why(3, 1), format!("cannot read from LSN 3: {ends}"));
        assert_eq!(why(u64::MAX, 1), format!("cannot read from LSN {}: {ends}", u64::MAX));
    }
}
