//! One client of the append socket: what it has sent, what it is owed, both bounded.
//!
//! Held in a slot of [`AppendLoop`](super::AppendLoop). Inbox and outbox are apart, so that a frame can be read in place while it is
//! answered.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tailwind_protocol::config::Cut;
use tailwind_protocol::history::{History, Parted};
use tailwind_protocol::ids::{LogId, Lsn, Position};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::socket::{ACK_FRAME_SIZE, ErrorCode, FRAME_HEADER_SIZE, Response, Role, frame_size};
use tailwind_ring::BadPosition;

use super::messages::ClientId;
use super::ring::{ASIDE_SIZE, ClientRing};

/// Unacknowledged appends of one connection. With 128-byte records it keeps 1 MiB in flight; more only adds latency.
pub(super) const INFLIGHT_MAX: u32 = 8192;
/// Bytes of answers that may wait for a client: the acks of everything it may have in flight.
const OUTBOX_SIZE: usize = INFLIGHT_MAX as usize * ACK_FRAME_SIZE;
/// Room beyond [`OUTBOX_SIZE`] for answers other than acks: all mismatches that may be owed take half of it. The outbox grows
/// only past that, by one answer, or by the values of the gets that are owed.
const OUTBOX_SLACK: usize = 64 << 10;
/// Status requests of one connection that may wait for control.
const STATUS_REQUESTS_MAX: u32 = 4;
/// Positions of one connection that may be owed.
const POSITION_REQUESTS_MAX: u32 = 8;
/// Gets of one connection that may be owed. Their answers take 66 KiB each at most, 2 MiB in all, beyond what the outbox has
/// room for.
const GETS_OWED_MAX: u32 = 32;
/// Bytes requested from the socket in one read: enough for a thousand small appends per system call.
const READ_SIZE: usize = 256 << 10;
/// A connection is read from directly for so many turns after bytes have come from it or gone to it; then `epoll` has to report
/// it. An app that waits for each ack comes back within a few turns, however long that ack took.
const SILENT_TURNS: u32 = 64;

/// What is left of a connection when it changes hands between the append path and a read.
#[derive(Debug)]
pub struct DetachedConnection {
    /// Its name, if it has one already.
    pub id: Option<ClientId>,
    /// The socket, non-blocking.
    pub stream: UnixStream,
    /// What takes the socket's place, except for a read.
    pub ring: Option<Box<ClientRing>>,
    /// Bytes received through the socket and not yet decoded.
    pub received: Vec<u8>,
    /// Bytes to be sent first.
    pub unsent: Vec<u8>,
    /// The version that its client speaks; 0 before the hello.
    pub version: u16,
    /// Why the connection takes no append any more, if it does not.
    pub read_only: Option<ReadOnlyReason>,
    /// What its client knows of this sidecar.
    pub known: KnownRole,
    /// What its client has been shown of a table.
    pub shown: Shown,
}

/// How much of a table gets have shown on a connection: nothing older is shown on it any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The state after this record, or an earlier one.
    pub(super) last: Lsn,
    /// The history to which it belongs.
    pub(super) history: History,
}

impl Shown {
    /// This log, with these cuts, is shown from now on; unless something was shown that a cut has taken.
    pub(super) fn go_on(&mut self, log: LogId, cuts: &[Cut]) -> Result<(), Parted> {
        if self.last == Lsn(0) {
            self.history = History::UNKNOWN;
        }
        self.history.go_on(self.last.next(), log, cuts)
    }

    /// The state after this record has been shown.
    pub(super) fn note(&mut self, as_of: Lsn) {
        self.last = self.last.max(as_of);
    }
}

/// What a client knows of its sidecar's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownRole {
    /// The role.
    pub role: Role,
    /// The epoch of it.
    pub epoch: u64,
    /// How often the sidecar had lost the role of primary by then.
    pub losses: u64,
}

impl DetachedConnection {
    /// One whose client has said nothing yet.
    pub(super) fn fresh(stream: UnixStream) -> DetachedConnection {
        let (received, unsent) = (Vec::new(), Vec::new());
        DetachedConnection {
            id: None,
            stream,
            ring: None,
            received,
            unsent,
            version: 0,
            read_only: None,
            known: KnownRole::NOTHING,
            shown: Shown::default(),
        }
    }
}

impl KnownRole {
    /// Before the welcome.
    const NOTHING: KnownRole = KnownRole { role: Role::Standby, epoch: 0, losses: 0 };
}

/// Why a connection takes no append and passes no barrier any more; its client has to connect again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOnlyReason {
    /// This sidecar has lost the role since the client connected: others may have appended, which its app does not know.
    RoleLost,
    /// An append was refused for want of the role: a later one, submitted before the client knew, would leave a gap.
    NotTaken,
}

impl ReadOnlyReason {
    /// The error message for the client.
    pub(super) fn message(self) -> &'static str {
        match self {
            ReadOnlyReason::RoleLost => {
                "this sidecar has lost its role since this connection was made, and others may have appended: connect \
                 again and read the new records"
            }
            ReadOnlyReason::NotTaken => {
                "an earlier append of this connection was not taken, so that no later one may be: connect again"
            }
        }
    }
}

/// A client's connection.
#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) id: ClientId,
    stream: UnixStream,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) ring: Option<Box<ClientRing>>,
    /// When it connected; a hello must follow soon.
    pub(super) since: Instant,
    /// Its socket is looked at in every turn: bytes have arrived lately, or its frames wait for room.
    pub(super) busy: bool,
    /// Turns without a byte.
    silent_turns: u32,
}

/// Bytes received and not yet consumed.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes of the connection's own; what `bytes` has beyond that is granted from the batches' memory.
    own: usize,
    /// Bytes may be received up to here: `own`, or the end of the large frame that is being received, and not more.
    limit: usize,
    /// When that frame began.
    large_since: Option<Instant>,
}

/// Answers on their way, and answers owed.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    /// Since when the client has taken none of the bytes that wait for it.
    unread_since: Option<Instant>,
    /// The version that its client speaks; 0 before the hello.
    pub(super) version: u16,
    /// A hello has been answered.
    pub(super) greeted: bool,
    /// The hello that waits for this sidecar to become primary.
    pub(super) held: Option<u64>,
    /// The hello has asked for a ring.
    pub(super) wants_ring: bool,
    /// Requests whose answer is owed, by [`AnswerKind`].
    owed: [u32; ANSWER_KINDS],
    /// Why it takes no append and passes no barrier any more, if so.
    pub(super) read_only: Option<ReadOnlyReason>,
    /// What its client has been shown of a table.
    pub(super) shown: Shown,
    /// The read that comes next waits until everything up to here is acknowledged.
    pub(super) read_after: Option<Position>,
    /// To be closed once everything has been sent.
    pub(super) closing: bool,
}

/// A kind of answer that comes after its request.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnswerKind {
    /// An append's ack.
    Append,
    /// That a barrier has passed.
    Barrier,
    /// That everything is on disk.
    Sync,
    /// A position of the log.
    Position,
    /// Whether the log ends before what is to be trimmed.
    Trim,
    /// That a condition did not hold.
    Mismatch,
    /// What a key of a table has.
    Get,
    /// Control's answer to a status request.
    Status,
}

/// How many kinds there are.
const ANSWER_KINDS: usize = AnswerKind::Status as usize + 1;

impl ClientConnection {
    /// Its own inbox holds the largest record of segments of this size, and one more read.
    pub(super) fn new(id: ClientId, detached: DetachedConnection, segment_size: SegmentSize) -> ClientConnection {
        let own = FRAME_HEADER_SIZE + segment_size.record_size_max() as usize + READ_SIZE;
        let mut unsent = Vec::with_capacity((OUTBOX_SIZE + OUTBOX_SLACK).max(detached.unsent.len()));
        unsent.extend_from_slice(&detached.unsent);
        let has_ring = detached.ring.is_some();
        let mut client = ClientConnection {
            id,
            stream: detached.stream,
            inbox: Inbox::new(own, if has_ring { &[] } else { &detached.received }),
            outbox: Outbox {
                bytes: unsent,
                version: detached.version,
                read_only: detached.read_only,
                shown: detached.shown,
                ..Outbox::default()
            },
            ring: detached.ring,
            since: Instant::now(),
            busy: true,
            silent_turns: 0,
        };
        if has_ring {
            client.take_aside(&detached.received);
        }
        client
    }

    /// Takes the connection apart, to hand it over to this read.
    pub(super) fn detach(mut self, known: KnownRole, read: u64) -> DetachedConnection {
        self.release();
        let received = match &mut self.ring {
            Some(ring) => ring.hand_over(read),
            None => self.inbox.pending().to_vec(),
        };
        DetachedConnection {
            id: Some(self.id),
            known,
            shown: self.outbox.shown,
            received,
            unsent: self.outbox.bytes[self.outbox.sent..].to_vec(),
            version: self.outbox.version,
            read_only: self.outbox.read_only,
            ring: self.ring,
            stream: self.stream,
        }
    }

    /// True if it may have something to be processed.
    pub(super) fn is_busy(&mut self) -> bool {
        self.busy || self.ring.as_mut().is_some_and(|ring| ring.has_requests() || !self.inbox.pending().is_empty())
    }

    /// Changes with everything that is processed.
    pub(super) fn progress(&self) -> (usize, u64) {
        (self.inbox.pending().len(), self.ring.as_ref().map_or(0, |ring| ring.position()))
    }

    /// One read, if there is room for it; false when the client has closed its end. A full inbox means that the frames in it
    /// wait: back-pressure.
    pub(super) fn receive(&mut self) -> bool {
        if self.ring.is_some() {
            return self.receive_aside();
        }
        let room = self.inbox.room();
        let received = if room.is_empty() { Err(ErrorKind::WouldBlock.into()) } else { self.stream.read(room) };
        match received {
            Ok(0) => return false,
            Ok(count) => {
                self.inbox.add(count);
                self.silent_turns = 0;
                return true;
            }
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return false,
            Err(_) => {}
        }
        self.silent_turns += 1;
        self.busy = self.silent_turns < SILENT_TURNS || !self.inbox.pending().is_empty();
        true
    }

    /// One read of the socket beside a ring, if `epoll` has reported it; false when the client has closed its end.
    fn receive_aside(&mut self) -> bool {
        if !self.busy {
            return true;
        }
        let mut bytes = [0; ASIDE_SIZE];
        match self.stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(count) => self.take_aside(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.busy = false,
            Err(_) => return false,
        }
        true
    }

    fn take_aside(&mut self, bytes: &[u8]) {
        let taken = self.ring.as_mut().map_or(Ok(()), |ring| ring.receive_aside(bytes));
        if let Err(why) = taken {
            self.outbox.refuse(0, ErrorCode::BadFrame, true, 0, &why);
        }
    }

    /// Copies what has come of the next frame from the ring, if there is one, to the inbox.
    pub(super) fn fill(&mut self) -> Result<(), BadPosition> {
        self.ring.as_mut().map_or(Ok(()), |ring| ring.fill(&mut self.inbox))
    }

    /// Gives the ring's room back.
    pub(super) fn release(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.release(&self.stream);
        }
    }

    /// The client has put into the ring what no client of the protocol does: it is told so through the socket.
    pub(super) fn break_ring(&mut self, why: &str) {
        tracing::warn!(why, "disconnected a client whose ring is broken");
        self.ring = None;
        self.outbox.bytes.clear();
        self.outbox.sent = 0;
        self.outbox.refuse(0, ErrorCode::BadFrame, true, 0, why);
    }

    /// Before the path sleeps. True if it may: nothing has come in through the ring, or can go out.
    pub(super) fn may_sleep(&mut self) -> bool {
        self.ring.as_mut().is_none_or(|ring| ring.may_sleep(self.outbox.waiting() > 0))
    }

    /// The path is awake: its client need not wake it.
    pub(super) fn awake(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.awake();
        }
    }

    /// Has it served in the next turns.
    pub(super) fn wake(&mut self) {
        (self.busy, self.silent_turns) = (true, 0);
    }

    /// Sends what waits, as far as the socket takes it; false when the connection is over.
    pub(super) fn send(&mut self) -> bool {
        while self.outbox.waiting() > 0 {
            let bytes = &self.outbox.bytes[self.outbox.sent..];
            let sent = match &mut self.ring {
                Some(ring) => ring.send(&self.stream, bytes),
                None => self.stream.write(bytes),
            };
            match sent {
                Ok(count) => {
                    self.outbox.sent += count;
                    self.outbox.unread_since = None;
                    // Who waited for this may come back at once.
                    self.silent_turns = 0;
                    self.busy |= self.ring.is_none();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.outbox.unread_since.get_or_insert_with(Instant::now);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => self.break_ring(&error.to_string()),
                Err(_) => return false,
            }
        }
        self.outbox.bytes.clear();
        self.outbox.sent = 0;
        !self.outbox.closing
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Inbox {
    fn new(own: usize, received: &[u8]) -> Inbox {
        // What comes back from a read fits, since that takes no frame larger than a record.
        let own = own.max(received.len());
        // Zeroed memory of this size comes untouched from the operating system: pages cost nothing until they are used.
        let mut bytes = vec![0; own].into_boxed_slice();
        bytes[..received.len()].copy_from_slice(received);
        Inbox { bytes, start: 0, end: received.len(), own, limit: own, large_since: None }
    }

    pub(super) fn pending(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Marks the oldest `count` pending bytes as done.
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end, self.limit, self.large_since) = (0, 0, self.own, None);
        }
    }

    /// Bytes of the frame that comes next, if it needs more room than there is: then nothing more is received until
    /// [`Inbox::begin_large`].
    pub(super) fn wants(&self) -> Option<usize> {
        frame_size(self.pending()).filter(|size| *size > self.limit)
    }

    /// Bytes granted from the batches' memory.
    pub(super) fn granted(&self) -> usize {
        if self.bytes.len() > self.own { self.bytes.len() } else { 0 }
    }

    /// The next frame takes `size` bytes, which have been granted if there were less.
    pub(super) fn begin_large(&mut self, size: usize) {
        let pending = self.start..self.end;
        if size > self.bytes.len() {
            let mut larger = vec![0; size].into_boxed_slice();
            larger[..pending.len()].copy_from_slice(&self.bytes[pending.clone()]);
            self.bytes = larger;
        } else {
            self.bytes.copy_within(pending.clone(), 0);
        }
        (self.start, self.end, self.limit, self.large_since) = (0, pending.len(), size, Some(Instant::now()));
    }

    /// Gives back what was granted, unless a large frame is being received or waits to be taken. Returns how much that was.
    pub(super) fn give_back(&mut self) -> usize {
        let granted = self.granted();
        if granted == 0 || self.large_since.is_some() {
            return 0;
        }
        *self = Inbox::new(self.own, self.pending());
        granted
    }

    /// For how long a large frame has been on its way without being complete.
    pub(super) fn half_sent_for(&self) -> Option<Duration> {
        self.large_since.filter(|_| self.end < self.limit).map(|since| since.elapsed())
    }

    /// For how long a large frame that is complete has been here without being taken.
    pub(super) fn untaken_for(&self) -> Option<Duration> {
        self.large_since.filter(|_| self.end == self.limit).map(|since| since.elapsed())
    }

    /// The first bytes of the room have been filled.
    pub(super) fn add(&mut self, count: usize) {
        self.end += count;
    }

    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.limit - self.end < READ_SIZE && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let until = self.limit.min(self.end + READ_SIZE);
        &mut self.bytes[self.end..until]
    }
}

impl Outbox {
    /// True while another append may be taken: its ack, like those already owed, must find room.
    pub(super) fn may_append(&self) -> bool {
        let inflight = self.owed[AnswerKind::Append as usize];
        inflight < INFLIGHT_MAX && self.waiting() + (inflight as usize + 1) * ACK_FRAME_SIZE <= OUTBOX_SIZE
    }

    /// True while another answer may be queued.
    pub(super) fn may_answer(&self) -> bool {
        self.waiting() < OUTBOX_SIZE
    }

    /// True while another status request may go to control.
    pub(super) fn may_ask_status(&self) -> bool {
        self.owed[AnswerKind::Status as usize] < STATUS_REQUESTS_MAX
    }

    /// True while another request for a position may be taken.
    pub(super) fn may_ask_position(&self) -> bool {
        self.owed[AnswerKind::Position as usize] < POSITION_REQUESTS_MAX
    }

    /// True while another get may be taken.
    pub(super) fn may_get(&self) -> bool {
        self.owed[AnswerKind::Get as usize] < GETS_OWED_MAX
    }

    /// True when nothing is owed: every append acknowledged, every barrier passed, every status request answered.
    pub(super) fn is_settled(&self) -> bool {
        self.owed == [0; ANSWER_KINDS]
    }

    /// True while an append is not acknowledged.
    pub(super) fn has_appends(&self) -> bool {
        self.owed[AnswerKind::Append as usize] > 0
    }

    /// Bytes that wait for the socket, or the ring, to take them.
    pub(super) fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// For how long the client has taken none of the bytes that wait for it.
    pub(super) fn unread_for(&self) -> Option<Duration> {
        self.unread_since.map(|since| since.elapsed())
    }

    pub(super) fn answer(&mut self, request: u64, response: &Response<'_>) {
        if self.sent > 0 && self.bytes.len() + ACK_FRAME_SIZE > self.bytes.capacity() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        response.encode(request, &mut self.bytes);
    }

    /// Tells the client who this sidecar is now.
    pub(super) fn announce_role(&mut self, role: Role, epoch: u64, last: u64, primary: &str) {
        let role = role.in_version(self.version);
        self.answer(0, &Response::Role { role, epoch, last, primary });
    }

    pub(super) fn refuse(&mut self, request: u64, code: ErrorCode, fatal: bool, retry_after_ms: u32, message: &str) {
        self.answer(request, &Response::Error { code, fatal, retry_after_ms, message });
        self.closing |= fatal;
    }

    /// A request was taken whose answer comes later, by [`Outbox::settle`].
    pub(super) fn owe(&mut self, answer: AnswerKind) {
        self.owed[answer as usize] += 1;
    }

    /// Gives an answer that was owed.
    pub(super) fn settle(&mut self, answer: AnswerKind, request: u64, response: &Response<'_>) {
        self.owed[answer as usize] -= 1;
        self.answer(request, response);
    }
}
