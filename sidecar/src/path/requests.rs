//! What clients ask, frame by frame: part of [`Path`], called for each connection that has bytes.

use std::sync::atomic::Ordering;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::primary::Input;
use tailwind_protocol::socket::{
    BATCH_RECORDS_MAX, Batch, ErrorCode, FRAME_BODY_MAX, HELLO_HOLD, READ_TAIL, Request, Response, Role, VERSION,
    Welcome, decode_request,
};

use super::connection::{Connection, INFLIGHT_MAX, Inbox, Outbox, Parcel};
use super::replicator::size_of;
use super::{CONNECTIONS_MAX, Client, ClientId, Event, PENDING_MAX, Part, Path, Pending, PendingBarrier};

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// Done with; go on with the next one.
    Yes,
    /// Not now: leave it where it is and come back in a later turn.
    Later,
    /// The reader takes the connection from here, after this frame.
    HandOver { request: u64, from: u64, limit: u64, tail: bool },
}

/// Who asks, while its connection is out of its place.
struct Asker<'a> {
    id: ClientId,
    place: usize,
    outbox: &'a mut Outbox,
}

impl Path {
    /// Lets new clients in, as many as there are places.
    pub(super) fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    // A socket that blocks would stop the path for everybody.
                    if let Err(error) = stream.set_nonblocking(true) {
                        tracing::warn!(%error, "make a client's socket non-blocking");
                        continue;
                    }
                    let parcel = Parcel { stream, received: Vec::new(), unsent: Vec::new(), broken: false };
                    self.adopt(parcel, false);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "accept a client");
                    return;
                }
            }
        }
    }

    /// Gives a connection a place: a new one, or one that comes back from the reader.
    pub(super) fn adopt(&mut self, parcel: Parcel, greeted: bool) {
        let place = self.clients.iter().position(Option::is_none);
        let mut connection = Connection::new(parcel, self.frame_max());
        connection.outbox.greeted = greeted;
        let Some(place) = place else {
            // No place: say so if the socket takes it at once, and close.
            let message = format!("{CONNECTIONS_MAX} clients are connected already");
            connection.outbox.refuse(0, ErrorCode::Busy, true, 1000, &message);
            let _ = connection.send();
            return;
        };
        if !greeted && let Err(why) = self.admit(&connection) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            connection.outbox.refuse(0, ErrorCode::NotAllowed, true, 0, &why);
            let _ = connection.send();
            return;
        }
        if let Err(error) = self.sleeper.watch_client(connection.fd(), place) {
            tracing::warn!(%error, "watch a client");
            return;
        }
        let id = ClientId(self.next_client);
        self.next_client += 1;
        self.shared.clients.fetch_add(1, Ordering::Relaxed);
        if greeted && self.role() != Role::Primary {
            // It was with the reader when the others were told.
            let (role, epoch, last) = (self.role(), self.epoch, self.shared.acked.load(Ordering::Relaxed));
            connection.outbox.answer(0, &Response::Role { role, epoch, last, primary: &self.primary_name });
        }
        self.clients[place] = Some(Client { id, connection, busy: true, silent_turns: 0 });
    }

    fn admit(&self, connection: &Connection) -> Result<(), String> {
        // Not rustix: an app in another container has no process number here, which the kernel says by a 0, and rustix takes
        // that for an error.
        let peer = getsockopt(&connection.fd(), PeerCredentials);
        let uid = peer.map_err(|error| format!("your user cannot be told: {error}"))?.uid();
        let allowed = self.options.allowed.admits(uid);
        if allowed { Ok(()) } else { Err(format!("user {uid} is not on the allow-list (--allow-uid)")) }
    }

    /// Largest frame body that a client may send.
    fn frame_max(&self) -> usize {
        (self.options.segment_size.append_size_max() as usize).min(FRAME_BODY_MAX)
    }

    /// Takes frames from a connection until there are no more, or no room.
    pub(super) fn understand(&mut self, place: usize) {
        // Out of its place while the rest of the path works on its frames.
        let Some(mut client) = self.clients[place].take() else { return };
        loop {
            let Connection { inbox, outbox, .. } = &mut client.connection;
            let mut asker = Asker { id: client.id, place, outbox };
            let (taken, size) = self.take_frame(inbox, &mut asker);
            match taken {
                Taken::Later => break,
                Taken::Yes => client.connection.inbox.consume(size),
                Taken::HandOver { request, from, limit, tail } => {
                    client.connection.inbox.consume(size);
                    self.sleeper.forget(client.connection.fd());
                    self.shared.clients.fetch_sub(1, Ordering::Relaxed);
                    let parcel = client.connection.into_parcel();
                    drop(self.events.send(Event::Read { parcel, request, from, limit, tail }));
                    return;
                }
            }
        }
        self.clients[place] = Some(client);
    }

    fn take_frame(&mut self, inbox: &Inbox, asker: &mut Asker<'_>) -> (Taken, usize) {
        if asker.outbox.closing || !asker.outbox.may_answer() {
            return (Taken::Later, 0);
        }
        match decode_request(inbox.pending(), self.frame_max()) {
            Ok(None) => (Taken::Later, 0),
            Ok(Some(decoded)) => (self.on_request(asker, decoded.request, &decoded.frame), decoded.size),
            Err(error) => {
                self.refuse(asker, 0, ErrorCode::BadFrame, true, &error.to_string());
                (Taken::Later, 0)
            }
        }
    }

    fn on_request(&mut self, asker: &mut Asker<'_>, request: u64, frame: &Request<'_>) -> Taken {
        if let Request::Hello { version_min, version_max, flags } = frame {
            return self.on_hello(asker, request, (*version_min, *version_max), *flags);
        }
        if !asker.outbox.greeted {
            return self.refuse(asker, request, ErrorCode::BadFrame, true, "the first frame must be a hello");
        }
        match frame {
            Request::Append { payload } => self.on_append(asker, request, payload),
            Request::Batch(batch) => self.on_batch(asker, request, batch),
            Request::Barrier => self.on_barrier(asker, request),
            Request::Trim { below } => self.on_trim(asker, request, Lsn(*below)),
            Request::Status if !asker.outbox.may_ask() => Taken::Later,
            Request::Status => {
                asker.outbox.questions += 1;
                drop(self.events.send(Event::Status(asker.id, request)));
                Taken::Yes
            }
            Request::Read { from, limit, flags } => self.on_read(asker, request, *from, *limit, flags & READ_TAIL != 0),
            // Its read has ended by itself meanwhile.
            Request::Stop => Taken::Yes,
            Request::Hello { .. } => unreachable!("handled above"),
        }
    }

    fn refuse(&mut self, asker: &mut Asker<'_>, request: u64, code: ErrorCode, fatal: bool, message: &str) -> Taken {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        asker.outbox.refuse(request, code, fatal, 0, message);
        Taken::Yes
    }

    fn on_hello(&mut self, asker: &mut Asker<'_>, request: u64, versions: (u16, u16), flags: u32) -> Taken {
        if asker.outbox.greeted || asker.outbox.held.is_some() {
            return self.refuse(asker, request, ErrorCode::BadFrame, true, "a second hello");
        }
        if !(versions.0..=versions.1).contains(&VERSION) {
            let message =
                format!("this sidecar speaks version {VERSION}; the client speaks {} to {}", versions.0, versions.1);
            return self.refuse(asker, request, ErrorCode::UnsupportedVersion, true, &message);
        }
        if flags & HELLO_HOLD != 0 && self.role() != Role::Primary {
            asker.outbox.held = Some(request);
        } else {
            self.welcome(asker.outbox, request);
        }
        Taken::Yes
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
                batch_size_max: self.frame_max() as u32,
                batch_records_max: BATCH_RECORDS_MAX,
                inflight_max: INFLIGHT_MAX,
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

    fn on_append(&mut self, asker: &mut Asker<'_>, request: u64, payload: &[u8]) -> Taken {
        let limit = self.options.segment_size.record_size_max();
        if payload.len() > limit as usize {
            let message = format!("record of {} bytes: the limit is {limit}", payload.len());
            return self.refuse(asker, request, ErrorCode::TooLarge, false, &message);
        }
        self.place(asker, request, size_of(std::iter::once(payload.len())), 1, std::iter::once(payload))
    }

    fn on_batch(&mut self, asker: &mut Asker<'_>, request: u64, batch: &Batch<'_>) -> Taken {
        let limit = self.options.segment_size.record_size_max();
        if batch.is_empty() {
            return self.refuse(asker, request, ErrorCode::BadFrame, false, "a batch has at least one record");
        }
        if let Some(record) = batch.iter().find(|record| record.len() > limit as usize) {
            let message = format!("record of {} bytes in a batch: the limit is {limit}", record.len());
            return self.refuse(asker, request, ErrorCode::TooLarge, false, &message);
        }
        let size = size_of(batch.iter().map(<[u8]>::len));
        let limit = self.options.segment_size.append_size_max();
        if size > limit as usize {
            let message = format!("batch takes {size} bytes of log: the limit is {limit}; split it");
            return self.refuse(asker, request, ErrorCode::TooLarge, false, &message);
        }
        self.place(asker, request, size, u64::from(batch.len()), batch.iter())
    }

    fn place<'a>(
        &mut self,
        asker: &mut Asker<'_>,
        request: u64,
        size: usize,
        records: u64,
        payloads: impl Iterator<Item = &'a [u8]>,
    ) -> Taken {
        if asker.outbox.broken {
            let message =
                "an earlier append of this connection was not taken, so that no later one may be: connect again";
            return self.refuse(asker, request, ErrorCode::NotPrimary, false, message);
        }
        let Part::Leading(replicator) = &mut self.part else {
            asker.outbox.broken = true;
            return self.not_primary(asker, request);
        };
        if self.pending.len() >= PENDING_MAX || !asker.outbox.may_append() {
            return Taken::Later;
        }
        let Some(placed) = replicator.append(size, payloads) else { return Taken::Later };
        asker.outbox.inflight += 1;
        let place = asker.place as u32;
        self.pending.push_back(Pending { end: placed.end, lsn: placed.last.0, client: asker.id, place, request });
        self.shared.appends.fetch_add(1, Ordering::Relaxed);
        self.shared.records.fetch_add(records, Ordering::Relaxed);
        self.shared.bytes.fetch_add(size as u64, Ordering::Relaxed);
        Taken::Yes
    }

    fn not_primary(&mut self, asker: &mut Asker<'_>, request: u64) -> Taken {
        let message = match (self.role(), self.primary_name.as_str()) {
            (Role::Recovering, _) => "this sidecar is recovering the log; try again soon".to_owned(),
            (_, "") => "this sidecar is not primary; who is, is not known yet".to_owned(),
            (_, primary) => format!("this sidecar is not primary; sidecar {primary} is"),
        };
        self.refuse(asker, request, ErrorCode::NotPrimary, false, &message)
    }

    fn on_barrier(&mut self, asker: &mut Asker<'_>, request: u64) -> Taken {
        let Part::Leading(replicator) = &self.part else { return self.not_primary(asker, request) };
        // A seat proves itself in the active segment's buffer, so there has to be one.
        if self.barriers.len() >= CONNECTIONS_MAX || !replicator.is_ready() {
            return Taken::Later;
        }
        asker.outbox.barriers += 1;
        self.barriers.push(PendingBarrier { after: replicator.primary().barrier(), client: asker.id, request });
        Taken::Yes
    }

    fn on_trim(&mut self, asker: &mut Asker<'_>, request: u64, below: Lsn) -> Taken {
        let now = self.now();
        let acked = self.shared.acked.load(Ordering::Relaxed);
        let Part::Leading(replicator) = &mut self.part else { return self.not_primary(asker, request) };
        if below > Lsn(acked).next() {
            let message = format!("cannot trim below {below}: the last acknowledged record is {acked}");
            return self.refuse(asker, request, ErrorCode::BeyondEnd, false, &message);
        }
        replicator.step(now, Input::Trim(below));
        let first = replicator.primary().first_readable().0;
        self.shared.first.store(first, Ordering::Release);
        asker.outbox.answer(request, &Response::Trimmed { first });
        Taken::Yes
    }

    fn on_read(&mut self, asker: &mut Asker<'_>, request: u64, from: u64, limit: u64, tail: bool) -> Taken {
        let Part::Leading(_) = &self.part else { return self.not_primary(asker, request) };
        // Answers come in order: what was appended before the read is acknowledged before the first record.
        if !asker.outbox.is_settled() {
            return Taken::Later;
        }
        let first = self.shared.first.load(Ordering::Relaxed);
        let acked = self.shared.acked.load(Ordering::Relaxed);
        if from > acked + 1 || from == 0 {
            let message = format!("cannot read from LSN {from}: the log goes from {first} to {acked}");
            return self.refuse(asker, request, ErrorCode::BeyondEnd, false, &message);
        }
        if from < first {
            let message = format!("LSN {from} has been trimmed: the log begins at {first}");
            return self.refuse(asker, request, ErrorCode::Trimmed, false, &message);
        }
        Taken::HandOver { request, from, limit, tail }
    }
}
