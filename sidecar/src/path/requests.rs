//! What clients ask, frame by frame: part of [`Path`], called for each connection that has bytes.

use std::sync::atomic::Ordering;

use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::{CHECKSUM_SIZE, RECORD_HEADER_SIZE, SegmentSize};
use tailwind_protocol::primary::Input;
use tailwind_protocol::socket::{
    BATCH_RECORDS_MAX, Batch, ErrorCode, FRAME_BODY_MAX, HELLO_HOLD, READ_TAIL, Request, Response, Role, VERSION,
    Welcome, announces_append, decode_request,
};

use super::connection::{Broken, Connection, INFLIGHT_MAX, Inbox, Outbox};
use super::places::{is_for_status, refuse_place};
use super::replicator::size_of;
use super::{ClientId, Event, PENDING_MAX, Part, Path, Pending, PendingBarrier};

/// Barriers that may wait, over all connections; one more waits in its connection's inbox.
const BARRIERS_MAX: usize = 64;

/// Largest body of a frame that a client may send: a batch's body is smaller than what it takes in the log.
pub(super) fn frame_body_max(segment_size: SegmentSize) -> usize {
    (segment_size.append_size_max() as usize).min(FRAME_BODY_MAX)
}

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Done with; go on with the next one.
    Yes,
    /// Not now: leave it where it is and come back in a later turn.
    Later,
    /// The reader takes the connection from here, after this frame.
    HandOver { request: u64, from: u64, limit: u64, tail: bool },
}

/// Who asks, while its connection is out of its place.
struct RequestContext<'a> {
    id: ClientId,
    place: usize,
    outbox: &'a mut Outbox,
}

impl Path {
    /// Takes frames from a connection until there are no more, or no room.
    pub(super) fn decode_frames(&mut self, place: usize) {
        // Out of its place while the rest of the path works on its frames.
        let Some(mut client) = self.clients[place].take() else { return };
        self.serving = Some(place);
        loop {
            let Connection { inbox, outbox, .. } = &mut client.connection;
            let mut context = RequestContext { id: client.id, place, outbox };
            let (taken, size) = self.take_frame(inbox, &mut context);
            match taken {
                Outcome::Later => break,
                Outcome::Yes => client.connection.inbox.consume(size),
                Outcome::HandOver { request, from, limit, tail } => {
                    self.serving = None;
                    client.connection.inbox.consume(size);
                    self.sleeper.forget(client.connection.fd());
                    self.batch_memory.leave(client.id, &client.connection.inbox);
                    self.reading += 1;
                    let detached = client.connection.into_parcel(self.epoch);
                    drop(self.events.send(Event::Read { detached, request, from, limit, tail }));
                    return;
                }
            }
        }
        if let Some(size) = client.connection.inbox.wants().filter(|_| !client.connection.outbox.closing) {
            self.make_room(&mut client, size);
        }
        self.serving = None;
        self.clients[place] = Some(client);
    }

    fn frame_body_max(&self) -> usize {
        frame_body_max(self.options.segment_size)
    }

    fn take_frame(&mut self, inbox: &Inbox, context: &mut RequestContext<'_>) -> (Outcome, usize) {
        if context.outbox.closing || !context.outbox.may_answer() {
            return (Outcome::Later, 0);
        }
        match decode_request(inbox.pending(), self.frame_body_max()) {
            Ok(None) if inbox.wants().is_some() && !may_be_large(inbox, context) => {
                let message = "a frame as large as this must be a batch, and come after a hello";
                self.refuse(context, 0, ErrorCode::BadFrame, true, message);
                (Outcome::Later, 0)
            }
            Ok(None) => (Outcome::Later, 0),
            Ok(Some(decoded)) => (self.on_request(context, decoded.request, &decoded.frame), decoded.size),
            Err(error) => {
                self.refuse(context, 0, ErrorCode::BadFrame, true, &error.to_string());
                (Outcome::Later, 0)
            }
        }
    }

    fn on_request(&mut self, context: &mut RequestContext<'_>, request: u64, frame: &Request<'_>) -> Outcome {
        if let Request::Hello { version_min, version_max, flags } = frame {
            return self.on_hello(context, request, (*version_min, *version_max), *flags);
        }
        if !context.outbox.greeted {
            return self.refuse(context, request, ErrorCode::BadFrame, true, "the first frame must be a hello");
        }
        if is_for_status(context.place) && !matches!(frame, Request::Status) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            refuse_place(context.outbox, request);
            return Outcome::Yes;
        }
        match frame {
            Request::Append { payload } => self.on_append(context, request, payload),
            Request::Batch(batch) => self.on_batch(context, request, batch),
            Request::Barrier => self.on_barrier(context, request),
            Request::Trim { below } => self.on_trim(context, request, Lsn(*below)),
            Request::Status if !context.outbox.may_ask() => Outcome::Later,
            Request::Status => {
                context.outbox.questions += 1;
                drop(self.events.send(Event::Status(context.id, request)));
                Outcome::Yes
            }
            Request::Read { from, limit, flags } => {
                self.on_read(context, request, *from, *limit, flags & READ_TAIL != 0)
            }
            // Its read has ended by itself meanwhile.
            Request::Stop => Outcome::Yes,
            Request::Hello { .. } => unreachable!("handled above"),
        }
    }

    fn refuse(
        &mut self,
        context: &mut RequestContext<'_>,
        request: u64,
        code: ErrorCode,
        fatal: bool,
        message: &str,
    ) -> Outcome {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        context.outbox.refuse(request, code, fatal, 0, message);
        Outcome::Yes
    }

    fn on_hello(
        &mut self,
        context: &mut RequestContext<'_>,
        request: u64,
        versions: (u16, u16),
        flags: u32,
    ) -> Outcome {
        if context.outbox.greeted || context.outbox.held.is_some() {
            return self.refuse(context, request, ErrorCode::BadFrame, true, "a second hello");
        }
        if !(versions.0..=versions.1).contains(&VERSION) {
            let message =
                format!("this sidecar speaks version {VERSION}; the client speaks {} to {}", versions.0, versions.1);
            return self.refuse(context, request, ErrorCode::UnsupportedVersion, true, &message);
        }
        if flags & HELLO_HOLD != 0 && is_for_status(context.place) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            refuse_place(context.outbox, request);
        } else if flags & HELLO_HOLD != 0 && self.role() != Role::Primary {
            context.outbox.held = Some(request);
        } else {
            self.welcome(context.outbox, request);
        }
        Outcome::Yes
    }

    fn welcome(&self, outbox: &mut Outbox, request: u64) {
        outbox.greeted = true;
        let segment = self.options.segment_size;
        outbox.answer(
            request,
            &Response::Welcome(Welcome {
                version: VERSION,
                role: self.role(),
                record_size_max: segment.record_size_max(),
                batch_size_max: self.frame_body_max() as u32,
                batch_records_max: BATCH_RECORDS_MAX,
                inflight_max: INFLIGHT_MAX,
                record_cost: RECORD_HEADER_SIZE as u16,
                batch_cost: CHECKSUM_SIZE as u16,
                epoch: self.epoch,
                first: self.shared.first.load(Ordering::Relaxed),
                last: self.shared.acked.load(Ordering::Relaxed),
                primary: &self.primary_name,
            }),
        );
    }

    /// Answers the hellos that have waited for this sidecar to become primary.
    pub(super) fn welcome_held(&mut self) {
        for place in 0..self.clients.len() {
            let Some(mut client) = self.clients[place].take() else { continue };
            if let Some(request) = client.connection.outbox.held.take() {
                self.welcome(&mut client.connection.outbox, request);
                client.busy = true;
            }
            self.clients[place] = Some(client);
        }
    }

    fn on_append(&mut self, context: &mut RequestContext<'_>, request: u64, payload: &[u8]) -> Outcome {
        let limit = self.options.segment_size.record_size_max();
        if payload.len() > limit as usize {
            let message = format!("record of {} bytes: the limit is {limit}", payload.len());
            return self.refuse(context, request, ErrorCode::TooLarge, false, &message);
        }
        self.place(context, request, size_of(std::iter::once(payload.len())), 1, std::iter::once(payload))
    }

    fn on_batch(&mut self, context: &mut RequestContext<'_>, request: u64, batch: &Batch<'_>) -> Outcome {
        let limit = self.options.segment_size.record_size_max();
        if batch.is_empty() {
            return self.refuse(context, request, ErrorCode::BadFrame, false, "a batch has at least one record");
        }
        if let Some(record) = batch.iter().find(|record| record.len() > limit as usize) {
            let message = format!("record of {} bytes in a batch: the limit is {limit}", record.len());
            return self.refuse(context, request, ErrorCode::TooLarge, false, &message);
        }
        let size = size_of(batch.iter().map(<[u8]>::len));
        let limit = self.options.segment_size.append_size_max();
        if size > limit as usize {
            let message = format!("batch takes {size} bytes of log: the limit is {limit}; split it");
            return self.refuse(context, request, ErrorCode::TooLarge, false, &message);
        }
        self.place(context, request, size, u64::from(batch.len()), batch.iter())
    }

    fn place<'a>(
        &mut self,
        context: &mut RequestContext<'_>,
        request: u64,
        size: usize,
        records: u64,
        payloads: impl Iterator<Item = &'a [u8]>,
    ) -> Outcome {
        if self.role() != Role::Primary {
            context.outbox.broken.get_or_insert(Broken::NotTaken);
            return self.not_primary(context, request);
        }
        if let Some(broken) = context.outbox.broken {
            return self.refuse(context, request, ErrorCode::NotPrimary, false, broken.message());
        }
        let Part::Leading(replicator) = &mut self.part else { unreachable!("a primary leads") };
        if self.pending.len() >= PENDING_MAX || !context.outbox.may_append() {
            return Outcome::Later;
        }
        let Some(placed) = replicator.append(size, payloads) else { return Outcome::Later };
        context.outbox.inflight += 1;
        let place = context.place as u32;
        self.pending.push_back(Pending { end: placed.end, lsn: placed.last.0, client: context.id, place, request });
        self.shared.appends.fetch_add(1, Ordering::Relaxed);
        self.shared.records.fetch_add(records, Ordering::Relaxed);
        self.shared.bytes.fetch_add(size as u64, Ordering::Relaxed);
        Outcome::Yes
    }

    fn not_primary(&mut self, context: &mut RequestContext<'_>, request: u64) -> Outcome {
        let message = match (self.role(), self.primary_name.as_str()) {
            (Role::Recovering, _) => "this sidecar is recovering the log; try again soon".to_owned(),
            (_, "") => "this sidecar is not primary; who is, is not known yet".to_owned(),
            (_, primary) => format!("this sidecar is not primary; sidecar {primary} is"),
        };
        self.refuse(context, request, ErrorCode::NotPrimary, false, &message)
    }

    fn on_barrier(&mut self, context: &mut RequestContext<'_>, request: u64) -> Outcome {
        let Part::Leading(replicator) = &self.part else { return self.not_primary(context, request) };
        // What its client knew was true in the epoch of the connection; a barrier proves nothing about those since.
        if let Some(broken) = context.outbox.broken {
            return self.refuse(context, request, ErrorCode::NotPrimary, false, broken.message());
        }
        // A seat proves itself in the active segment's buffer, so there has to be one.
        if self.barriers.len() >= BARRIERS_MAX || !replicator.is_ready() {
            return Outcome::Later;
        }
        context.outbox.barriers += 1;
        self.barriers.push(PendingBarrier { after: replicator.primary().barrier(), client: context.id, request });
        Outcome::Yes
    }

    fn on_trim(&mut self, context: &mut RequestContext<'_>, request: u64, below: Lsn) -> Outcome {
        let now = self.now();
        let acked = self.shared.acked.load(Ordering::Relaxed);
        let Part::Leading(replicator) = &mut self.part else { return self.not_primary(context, request) };
        if below > Lsn(acked).next() {
            let message = match acked {
                0 => format!("cannot trim below LSN {below}: no record has been acknowledged yet"),
                _ => {
                    format!("cannot trim below LSN {below}: LSN {acked} is the last acknowledged record; trim up to it")
                }
            };
            return self.refuse(context, request, ErrorCode::BeyondEnd, false, &message);
        }
        replicator.step(now, Input::Trim(below));
        let first = replicator.primary().first_readable().0;
        self.shared.first.store(first, Ordering::Release);
        context.outbox.answer(request, &Response::Trimmed { first });
        Outcome::Yes
    }

    fn on_read(
        &mut self,
        context: &mut RequestContext<'_>,
        request: u64,
        from: u64,
        limit: u64,
        tail: bool,
    ) -> Outcome {
        let Part::Leading(_) = &self.part else { return self.not_primary(context, request) };
        // Answers come in order: what was appended before the read is acknowledged before the first record.
        if !context.outbox.is_settled() {
            return Outcome::Later;
        }
        // The app may be one that died and has returned: it must see everything of its earlier self that will ever land.
        let after = match context.outbox.read_after {
            Some(after) => after,
            None => match self.end_the_dead() {
                Some(after) => *context.outbox.read_after.insert(after),
                None => return Outcome::Later,
            },
        };
        if self.pending.front().is_some_and(|pending| pending.end <= after) {
            return Outcome::Later;
        }
        context.outbox.read_after = None;
        let first = self.shared.first.load(Ordering::Relaxed);
        let acked = self.shared.acked.load(Ordering::Relaxed);
        if let Some(message) = beyond_the_end(from, acked) {
            return self.refuse(context, request, ErrorCode::BeyondEnd, false, &message);
        }
        if from < first {
            return self.refuse(context, request, ErrorCode::Trimmed, false, &trimmed(Lsn(from), first));
        }
        Outcome::HandOver { request, from, limit, tail }
    }
}

/// Whether the frame that has begun may take memory from the batches'.
fn may_be_large(inbox: &Inbox, context: &RequestContext<'_>) -> bool {
    context.outbox.greeted && !is_for_status(context.place) && announces_append(inbox.pending())
}

/// Why a read cannot begin there, if it cannot.
fn beyond_the_end(from: u64, acked: u64) -> Option<String> {
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

/// What the reader of a record hears that has been trimmed away.
pub(crate) fn trimmed(wanted: Lsn, first: u64) -> String {
    format!(
        "LSN {wanted} has been trimmed: the log begins at LSN {first}; read from there, after a snapshot that covers what was before"
    )
}
