//! One connection to a sidecar, without I/O: requests become bytes to send, received bytes become answers.
//!
//! Both clients hold one `Session` and do three things around it: `transmit`, `receive`, and wait for the socket. Calls that
//! take an answer return `None` while it has not come; calling again after more bytes is all that waiting means, so a call
//! that ends early (a time-out, a dropped future) loses nothing. The order within one call: [`Session::finish_read`], make the
//! request, take its answer.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tailwind_protocol::history::History;
use tailwind_protocol::ids::{Epoch, Lsn};
use tailwind_protocol::socket::{
    self, BEHIND_UNKNOWN, ErrorCode, HELLO_HOLD, HELLO_RING, READ_ANYWHERE, Request, Response, Role, VERSION,
    VERSION_FOLLOW, VERSION_HISTORY, VERSION_MIN, VERSION_TABLE, decode_response, encode_batch,
};
use tailwind_protocol::table::request::Mismatch;

use crate::apply::Apply;
use crate::buffer::{Inbox, Outbox};
use crate::get::Got;
use crate::ring::Ring;
use crate::types::{Ack, Limits, PassedBarrier, Position, RoleInfo, Start, Ticket, Welcome, known};
use crate::{Error, OUTSTANDING_APPENDS_MAX};

/// Bytes that `submit` gathers before it offers them to the socket: one system call for hundreds of small records.
pub(crate) const SEND_AT: usize = 64 << 10;
/// The hello's request number; every later request takes the next one.
const HELLO_REQUEST: u64 = 1;

/// One connection's state.
pub(crate) struct Session {
    /// For the socket; with a ring, what that has no room for.
    outbox: Outbox,
    inbox: Inbox,
    ring: Option<Ring>,
    /// The ring's file, which comes with the welcome.
    file: Option<OwnedFd>,
    /// The record that was reserved last is in the ring; otherwise it is in `apart`.
    reserved_in_ring: bool,
    apart: Vec<u8>,
    /// What the hello was answered with; nothing is allowed before.
    welcome: Welcome,
    role_info: RoleInfo,
    /// A role frame has come that `take_role` has not returned yet.
    role_changed: bool,
    next_request: u64,
    /// Appends without an answer, in order.
    in_flight: VecDeque<Ticket>,
    /// Answers that have not been taken, in order of their tickets. Boxed errors keep a success at 24 bytes.
    answers: VecDeque<(Ticket, Result<Lsn, Box<Error>>)>,
    /// The one request that a caller waits for, other than appends and reads, and its answer.
    requested: u64,
    reply: Option<Result<Reply, Error>>,
    read: Option<Read>,
    /// The history of what the last read has handed out.
    history: History,
    /// Sending has failed. What the sidecar sent last may still be readable, so this is not yet the end.
    send_failed: bool,
    end: Option<End>,
}

/// Answers of which there is at most one at a time.
pub(crate) enum Reply {
    Welcome,
    Passed(PassedBarrier),
    Synced(Lsn),
    Trimmed(Lsn),
    Status(String),
    Position(Position),
    Value(Got),
}

impl Reply {
    pub(crate) fn welcome(self) -> Result<(), Error> {
        if let Reply::Welcome = self { Ok(()) } else { Err(mismatched()) }
    }

    pub(crate) fn passed(self) -> Result<PassedBarrier, Error> {
        if let Reply::Passed(passed) = self { Ok(passed) } else { Err(mismatched()) }
    }

    pub(crate) fn synced(self) -> Result<Lsn, Error> {
        if let Reply::Synced(last) = self { Ok(last) } else { Err(mismatched()) }
    }

    pub(crate) fn trimmed(self) -> Result<Lsn, Error> {
        if let Reply::Trimmed(first) = self { Ok(first) } else { Err(mismatched()) }
    }

    pub(crate) fn status(self) -> Result<String, Error> {
        if let Reply::Status(json) = self { Ok(json) } else { Err(mismatched()) }
    }

    pub(crate) fn position(self) -> Result<Position, Error> {
        if let Reply::Position(position) = self { Ok(position) } else { Err(mismatched()) }
    }

    pub(crate) fn value(self) -> Result<Got, Error> {
        if let Reply::Value(got) = self { Ok(got) } else { Err(mismatched()) }
    }
}

fn mismatched() -> Error {
    Error::Protocol { what: "an answer that does not fit its request".to_owned() }
}

/// The end of a connection: the error for the first caller that runs into it, and its text for all later ones.
struct End {
    why: String,
    error: Option<Error>,
}

/// A read, tail or follow that the sidecar has not ended yet.
struct Read {
    request: u64,
    /// It is a follow.
    follows: bool,
    /// LSN of the next record to hand out; 0 if a follow begins with the first that there is, and it is not known yet.
    next: Lsn,
    /// Its records are to be dropped.
    stopping: bool,
    found: Found,
}

impl Read {
    /// This record comes next.
    fn expect(&mut self, lsn: Lsn) -> Result<(), String> {
        if self.next == Lsn(0) {
            self.next = lsn;
        }
        if self.next == lsn { Ok(()) } else { Err(format!("record {lsn} where record {} is next", self.next)) }
    }
}

/// What of a read stands at the front of the inbox, to be taken before anything behind it is decoded.
enum Found {
    Nothing,
    /// A `Records` frame of `size` bytes: `left` records, the next of them `at` bytes into the unread inbox.
    Records {
        left: u32,
        at: usize,
        size: usize,
    },
    /// To be handed out as it is; the read continues.
    News(ReadItem),
    /// The last frame of the read.
    Ended(Result<ReadItem, Error>),
}

/// Where bytes come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Socket,
    Ring,
}

/// What a read has to hand out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadItem {
    /// A record: `take_record` hands it out.
    Record,
    CaughtUp(Lsn),
    /// Comes in a follow only.
    Lag {
        acked: Lsn,
        behind: Option<Duration>,
        stale: bool,
    },
    /// The end of a follow.
    Turn {
        epoch: Epoch,
        next: Lsn,
    },
    Ended,
}

impl Session {
    /// A session whose hello is in the outbox; its answer is a [`Reply::Welcome`].
    pub(crate) fn new(hold: bool, ring: bool) -> Session {
        let welcome = Welcome {
            version: VERSION,
            role: Role::Standby,
            ring: false,
            table: false,
            limits: Limits::default(),
            epoch: Epoch(0),
            first: Lsn(0),
            last: Lsn(0),
            primary: None,
        };
        let mut session = Session {
            outbox: Outbox::default(),
            inbox: Inbox::new(),
            ring: None,
            file: None,
            reserved_in_ring: false,
            apart: Vec::new(),
            role_info: welcome.role_info(),
            welcome,
            role_changed: false,
            next_request: HELLO_REQUEST,
            in_flight: VecDeque::new(),
            answers: VecDeque::new(),
            requested: 0,
            reply: None,
            read: None,
            history: History::UNKNOWN,
            send_failed: false,
            end: None,
        };
        let flags = if hold { HELLO_HOLD } else { 0 } | if ring { HELLO_RING } else { 0 };
        session.ask(&Request::Hello { version_min: VERSION_MIN, version_max: VERSION, flags });
        session
    }

    /// A file has come with bytes from the socket: the welcome's, if it comes in time.
    pub(crate) fn keep_file(&mut self, file: Option<OwnedFd>) {
        self.file = file.or(self.file.take());
    }

    /// True while the welcome has not come, with which a file may come.
    pub(crate) fn expects_file(&self) -> bool {
        self.ring.is_none() && self.next_request == HELLO_REQUEST + 1
    }

    /// Begins to use the ring that the welcome has announced. An error means that this process cannot, while the sidecar counts
    /// on it: the connection is useless.
    pub(crate) fn open_ring(&mut self) -> io::Result<()> {
        if self.welcome.ring {
            let file = self.file.take().ok_or_else(|| io::Error::other("no file came with the welcome"))?;
            self.ring = Some(Ring::open(file)?);
        }
        Ok(())
    }

    /// What the sidecar answered to the hello.
    pub(crate) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The sidecar's role, by its last frame that named it.
    pub(crate) fn role_info(&self) -> &RoleInfo {
        &self.role_info
    }

    /// The history of what the last read has handed out.
    pub(crate) fn history(&self) -> History {
        self.history
    }

    /// Appends without an answer.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

/// Requests.
impl Session {
    /// Takes one record. An error means that it was not taken.
    pub(crate) fn submit(&mut self, payload: &[u8]) -> Result<Ticket, Error> {
        self.check_submit()?;
        check_size("record", payload.len(), self.welcome.limits.record_size_max)?;
        let ticket = self.next_ticket();
        match self.ring.as_mut().and_then(|ring| ring.reserve(&mut self.outbox, payload.len())) {
            Some(room) => {
                room.copy_from_slice(payload);
                self.commit(ticket, payload.len());
            }
            None => Request::Append { payload }.encode(ticket.0, self.outbox.tail()),
        }
        Ok(ticket)
    }

    /// Finds room for one record, which [`Session::reserved_mut`] lends and [`Session::submit_reserved`] takes.
    pub(crate) fn reserve(&mut self, length: usize) -> Result<(), Error> {
        self.check_submit()?;
        check_size("record", length, self.welcome.limits.record_size_max)?;
        let ring = self.ring.as_mut();
        self.reserved_in_ring = ring.and_then(|ring| ring.reserve(&mut self.outbox, length)).is_some();
        if !self.reserved_in_ring {
            self.apart.resize(length, 0);
        }
        Ok(())
    }

    pub(crate) fn reserved_mut(&mut self, length: usize) -> &mut [u8] {
        match &mut self.ring {
            Some(ring) if self.reserved_in_ring => ring.reserved(length),
            _ => &mut self.apart,
        }
    }

    pub(crate) fn submit_reserved(&mut self, length: usize) -> Ticket {
        let ticket = self.next_ticket();
        if self.reserved_in_ring {
            self.commit(ticket, length);
        } else {
            Request::Append { payload: &self.apart }.encode(ticket.0, self.outbox.tail());
        }
        ticket
    }

    fn commit(&mut self, ticket: Ticket, length: usize) {
        self.ring.as_mut().expect("room was found in it").commit(ticket.0, length);
    }

    /// Takes a batch. An error means that none of it was taken.
    pub(crate) fn submit_batch<B: AsRef<[u8]>>(&mut self, records: &[B]) -> Result<Ticket, Error> {
        self.check_submit()?;
        if records.is_empty() {
            return Err(Error::Misuse("a batch without a record: submit at least one"));
        }
        if records.len() > self.welcome.limits.batch_records_max as usize {
            let (count, max) = (records.len(), self.welcome.limits.batch_records_max);
            return Err(Error::TooLarge { message: format!("batch of {count} records: the limit is {max}") });
        }
        let limits = self.welcome.limits;
        let lengths = || records.iter().map(|record| record.as_ref().len());
        lengths().try_for_each(|length| check_size("record", length, limits.record_size_max))?;
        let size = limits.batch_size(lengths());
        if size > limits.batch_size_max as usize {
            let message = format!("batch takes {size} bytes of log: the limit is {}; split it", limits.batch_size_max);
            return Err(Error::TooLarge { message });
        }
        let ticket = self.next_ticket();
        encode_batch(ticket.0, records.iter().map(AsRef::as_ref), self.outbox.tail());
        Ok(ticket)
    }

    /// Takes a request to a table. An error means that it was not taken.
    pub(crate) fn submit_apply(&mut self, apply: &Apply) -> Result<Ticket, Error> {
        self.check_submit()?;
        let operations = apply.checked()?;
        // A larger frame would end the connection.
        check_size("apply", 8 + operations.as_bytes().len(), self.welcome.limits.batch_size_max)?;
        let ticket = self.next_ticket();
        Request::Apply(operations).encode(ticket.0, self.outbox.tail());
        Ok(ticket)
    }

    /// Asks for the one reply that `take_reply` waits for. An earlier reply is dropped.
    pub(crate) fn ask(&mut self, request: &Request<'_>) {
        self.requested = self.number();
        self.reply = None;
        request.encode(self.requested, self.outbox.tail());
    }

    /// Starts a read. The caller has finished the one before.
    pub(crate) fn start_read(&mut self, start: Start, limit: u64, flags: u32) {
        // 0 asks for the first record that there is, where that may be unknown.
        let next = if flags & READ_ANYWHERE != 0 { start.from } else { start.from.max(Lsn(1)) };
        let history = self.begin_in(start.history);
        self.start(&Request::Read { from: next.0, limit, flags, history }, next, false);
    }

    /// Starts a follow, as `start_read`. The sidecar must know it.
    pub(crate) fn start_follow(&mut self, start: Start) {
        let history = self.begin_in(start.history);
        self.start(&Request::Follow { from: start.from.0, history }, start.from, true);
    }

    /// The history to name in a request: none to a sidecar that does not know them.
    fn begin_in(&mut self, history: History) -> u64 {
        self.history = history;
        if self.welcome.version < VERSION_HISTORY { History::UNKNOWN.0 } else { history.0 }
    }

    fn start(&mut self, request: &Request<'_>, next: Lsn, follows: bool) {
        assert!(self.read.is_none(), "a read was not finished before the next one");
        let number = self.number();
        request.encode(number, self.outbox.tail());
        self.read = Some(Read { request: number, follows, next, stopping: false, found: Found::Nothing });
    }

    /// Refuses what follows and readers need at a sidecar that does not know it.
    pub(crate) fn check_follow(&self, what: &str) -> Result<(), Error> {
        let version = self.welcome.version;
        if version >= VERSION_FOLLOW {
            return Ok(());
        }
        let message = format!(
            "{what} needs version {VERSION_FOLLOW} of the append socket, and this sidecar speaks version {version}: update it"
        );
        Err(Error::Refused { code: ErrorCode::UnsupportedVersion, message })
    }

    /// Refuses a table's requests at a sidecar whose group keeps none, or that knows none.
    pub(crate) fn check_table(&self) -> Result<(), Error> {
        let version = self.welcome.version;
        if version < VERSION_TABLE {
            let message = format!(
                "a table needs version {VERSION_TABLE} of the append socket, and this sidecar speaks version {version}: update it"
            );
            return Err(Error::Refused { code: ErrorCode::UnsupportedVersion, message });
        }
        if !self.welcome.table {
            let message = "this group keeps a log and no table: append and read records".to_owned();
            return Err(Error::WrongKind { message });
        }
        Ok(())
    }

    /// Ends the read that runs, if one does, and drops what still arrives. It is over once `finish_read` returns `Some`.
    pub(crate) fn stop_read(&mut self) {
        let Some(read) = self.read.as_mut().filter(|read| !read.stopping) else { return };
        match std::mem::replace(&mut read.found, Found::Nothing) {
            Found::Ended(_) => self.read = None,
            found => {
                if let Found::Records { size, .. } = found {
                    self.inbox.consume(size);
                }
                read.stopping = true;
                match &mut self.ring {
                    Some(ring) => ring.stop = Some(read.request),
                    None => Request::Stop.encode(read.request, self.outbox.tail()),
                }
            }
        }
        self.decode();
    }

    /// `Some` once no read runs: requests other than a stop are refused during one.
    pub(crate) fn finish_read(&mut self) -> Option<()> {
        // Dropping a read stops it; this is for one that was leaked.
        self.stop_read();
        self.read.is_none().then_some(())
    }

    fn check_submit(&mut self) -> Result<(), Error> {
        self.check()?;
        if self.in_flight.len() + self.answers.len() >= OUTSTANDING_APPENDS_MAX {
            return Err(Error::Misuse("too many answers wait to be taken: call next_ack, wait or flush"));
        }
        Ok(())
    }

    fn next_ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.number());
        self.in_flight.push_back(ticket);
        ticket
    }

    fn number(&mut self) -> u64 {
        let number = self.next_request;
        self.next_request += 1;
        number
    }
}

fn check_size(what: &str, size: usize, max: u32) -> Result<(), Error> {
    if size <= max as usize {
        return Ok(());
    }
    Err(Error::TooLarge { message: format!("{what} of {size} bytes: the limit is {max}") })
}

/// Bytes.
impl Session {
    /// Bytes that `submit` has gathered and that neither the socket nor the ring has taken.
    pub(crate) fn gathered(&self) -> usize {
        self.outbox.unsent().len()
    }

    /// True while bytes wait for the socket to take them.
    pub(crate) fn waits_for_socket(&self) -> bool {
        !self.ring.as_ref().map_or(&self.outbox, |ring| &ring.aside).unsent().is_empty()
    }

    /// True when `submit` has written so much into the ring that it is time to `transmit`.
    pub(crate) fn is_due(&self) -> bool {
        self.ring.as_ref().is_some_and(Ring::is_due)
    }

    /// Moves what is to be sent into the ring, and offers what goes through the socket to `write`, which must not block.
    pub(crate) fn transmit(&mut self, write: impl FnOnce(&[u8]) -> io::Result<usize>) {
        if let Some(Err(error)) = self.ring.as_mut().map(|ring| ring.publish(&mut self.outbox)) {
            self.fail(Error::Protocol { what: error.to_string() });
        }
        let outbox = self.ring.as_mut().map_or(&mut self.outbox, |ring| &mut ring.aside);
        if self.send_failed {
            outbox.clear();
        }
        if outbox.unsent().is_empty() {
            return;
        }
        match write(outbox.unsent()) {
            Ok(size) => outbox.mark_sent(size),
            Err(error) if is_transient(&error) => {}
            Err(_) => {
                self.send_failed = true;
                outbox.clear();
            }
        }
    }

    /// Sending has failed: nothing will be sent any more.
    pub(crate) fn has_failed_to_send(&self) -> bool {
        self.send_failed
    }

    /// Lets `read` fill the inbox from the socket and decodes what came. False: nothing came.
    pub(crate) fn receive(&mut self, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> bool {
        let end = match read(self.inbox.room()) {
            Ok(0) => Some("the sidecar closed the connection".to_owned()),
            Ok(size) => {
                self.inbox.mark_received(size);
                None
            }
            Err(error) if is_transient(&error) => return self.receive_from_ring(),
            Err(error) => Some(error.to_string()),
        };
        // What went into the ring before comes before what came through the socket, and before the end.
        self.receive_from_ring();
        self.decode();
        if let Some(why) = end {
            self.fail(Error::Disconnected { why });
        }
        true
    }

    /// Takes what the ring holds and decodes it. False: nothing. No system call.
    pub(crate) fn receive_from_ring(&mut self) -> bool {
        let mut came = false;
        while let Some(ring) = self.ring.as_mut().filter(|_| self.end.is_none()) {
            match ring.receive() {
                Ok(true) => came = true,
                Ok(false) => return came,
                Err(error) => self.fail(Error::Protocol { what: error.to_string() }),
            }
            while self.end.is_none() && self.decode_next(Way::Ring) {}
        }
        came
    }

    /// Before the caller sleeps on the socket. True if it may: without a ring, or while the ring has nothing new. Once a
    /// connection is over, its ring is not looked at any more.
    pub(crate) fn may_sleep(&mut self) -> bool {
        self.end.is_some() || self.ring.as_mut().is_none_or(|ring| ring.may_sleep(&self.outbox))
    }

    /// The caller is awake again.
    pub(crate) fn awake(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.awake();
        }
    }

    /// True if answers can be looked for without a system call.
    pub(crate) fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// The error of a connection that is over. Asked only by a caller whose answer has not come: what came before the end
    /// can still be taken.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        match &mut self.end {
            None => Ok(()),
            Some(End { why, error }) => Err(error.take().unwrap_or_else(|| Error::Disconnected { why: why.clone() })),
        }
    }

    fn fail(&mut self, error: Error) {
        if self.end.is_none() {
            let why = if let Error::Disconnected { why } = &error { why.clone() } else { error.to_string() };
            self.end = Some(End { why, error: Some(error) });
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Answers.
impl Session {
    /// The reply to the last `ask`.
    pub(crate) fn take_reply(&mut self) -> Result<Option<Reply>, Error> {
        self.reply.take().transpose()
    }

    /// The answer to one append.
    pub(crate) fn take_answer(&mut self, ticket: Ticket) -> Result<Option<Lsn>, Error> {
        let answer = match self.answers.binary_search_by_key(&ticket, |(answered, _)| *answered) {
            Ok(0) => self.answers.pop_front(),
            Ok(place) => self.answers.remove(place),
            Err(_) if self.in_flight.binary_search(&ticket).is_ok() => return Ok(None),
            Err(_) => {
                return Err(Error::Misuse("no answer for this ticket: it has been taken, or is of another client"));
            }
        };
        answer.map(|(_, outcome)| outcome.map_err(|error| *error)).transpose()
    }

    /// The answer that stands first; outer `None`: none has come, inner `None`: and none will.
    pub(crate) fn take_ack(&mut self) -> Option<Option<Ack>> {
        match self.answers.pop_front() {
            Some((ticket, outcome)) => Some(Some(Ack { ticket, outcome: outcome.map_err(|error| *error) })),
            None => self.in_flight.is_empty().then_some(None),
        }
    }

    /// The sidecar's role, if it has changed since the last call.
    pub(crate) fn take_role(&mut self) -> Option<RoleInfo> {
        std::mem::take(&mut self.role_changed).then(|| self.role_info.clone())
    }

    /// What the read hands out next. `Ended` once it has ended, and from then on.
    pub(crate) fn next_item(&mut self) -> Result<Option<ReadItem>, Error> {
        loop {
            let Some(read) = &mut self.read else { return Ok(Some(ReadItem::Ended)) };
            match std::mem::replace(&mut read.found, Found::Nothing) {
                Found::Nothing => return Ok(None),
                Found::Records { left: 0, size, .. } => self.inbox.consume(size),
                records @ Found::Records { .. } => {
                    read.found = records;
                    return Ok(Some(ReadItem::Record));
                }
                Found::News(item) => {
                    self.decode();
                    return Ok(Some(item));
                }
                Found::Ended(outcome) => {
                    self.read = None;
                    self.decode();
                    return outcome.map(Some);
                }
            }
            self.decode();
        }
    }

    /// The record that `next_item` has found.
    pub(crate) fn take_record(&mut self) -> (Lsn, &[u8]) {
        let Some(Read { next, found: Found::Records { left, at, .. }, .. }) = &mut self.read else {
            unreachable!("take_record without a record");
        };
        let unread = self.inbox.unread();
        let (length, rest) = unread[*at..].split_first_chunk::<4>().expect("batches are checked when decoded");
        let payload = &rest[..u32::from_le_bytes(*length) as usize];
        let lsn = *next;
        *left -= 1;
        *at += 4 + payload.len();
        *next = lsn.next();
        (lsn, payload)
    }
}

/// Frames.
impl Session {
    /// Decodes frames until one is incomplete, the read has something to be taken first, or the connection is over.
    fn decode(&mut self) {
        while self.end.is_none() && matches!(self.read, None | Some(Read { found: Found::Nothing, .. })) {
            if !self.decode_next(Way::Socket) {
                return;
            }
        }
    }

    /// Decodes one frame. False: it is incomplete, or the connection is over.
    fn decode_next(&mut self, way: Way) -> bool {
        match self.decode_one(way) {
            Ok(Some(size)) => self.inbox(way).consume(size),
            Ok(None) => return false,
            Err(what) => self.fail(Error::Protocol { what }),
        }
        true
    }

    fn inbox(&mut self, way: Way) -> &mut Inbox {
        match (way, &mut self.ring) {
            (Way::Ring, Some(ring)) => &mut ring.inbox,
            _ => &mut self.inbox,
        }
    }

    /// Decodes the frame at the front of the inbox and says how much of it to consume: 0 if the read keeps it.
    fn decode_one(&mut self, way: Way) -> Result<Option<usize>, String> {
        let inbox = match (way, &self.ring) {
            (Way::Ring, Some(ring)) => &ring.inbox,
            _ => &self.inbox,
        };
        let Some(decoded) = decode_response(inbox.unread()).map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let (request, size) = (decoded.request, decoded.size);
        let is_unsolicited =
            matches!(decoded.frame, Response::Role { .. } | Response::Wake | Response::Error { fatal: true, .. });
        if !is_unsolicited && !(HELLO_REQUEST..self.next_request).contains(&request) {
            return Err(format!("an answer to request {request}, which was never sent"));
        }
        match decoded.frame {
            Response::Ack { lsn } => {
                let ticket = Ticket(request);
                if self.in_flight.front() == Some(&ticket) {
                    self.in_flight.pop_front();
                } else if let (true, Ok(place)) = (self.welcome.table, self.in_flight.binary_search(&ticket)) {
                    // Requests in front of it whose conditions do not hold are answered later.
                    self.in_flight.remove(place);
                } else {
                    return Err(format!("an ack of request {request}, which is not the oldest append in flight"));
                }
                self.answer(ticket, Ok(Lsn(lsn)));
            }
            Response::Records { .. } if way == Way::Ring => return Err("records in the ring".to_owned()),
            Response::Records { first, records } => {
                let found = Found::Records { left: records.len(), at: size - records.as_bytes().len(), size };
                return self.on_records(request, Lsn(first), found, size).map(Some);
            }
            Response::End { next, tailing } => {
                let found = match tailing {
                    true => Found::News(ReadItem::CaughtUp(self.on_caught_up(request, Lsn(next))?)),
                    false => Found::Ended(Ok(ReadItem::Ended)),
                };
                self.on_found(request, found);
            }
            Response::Lag { acked, behind_ms, stale } => {
                let behind = (behind_ms != BEHIND_UNKNOWN).then(|| Duration::from_millis(u64::from(behind_ms)));
                self.check_follows(request, "a lag")?;
                self.on_found(request, Found::News(ReadItem::Lag { acked: Lsn(acked), behind, stale }));
            }
            Response::History { history } => {
                if self.read.as_ref().is_some_and(|read| read.request == request) {
                    self.history = History(history);
                }
            }
            Response::Turn { epoch, next } => self.on_turn(request, Epoch(epoch), Lsn(next))?,
            Response::Error { code, fatal, retry_after_ms, message } => {
                let error = Error::from_frame(code, retry_after_ms, message, self.role_info.primary.clone());
                self.on_error(request, fatal, error);
            }
            Response::Mismatch(Mismatch { operation, now: revision }) => {
                self.on_error(request, false, Error::Mismatch { operation, revision });
            }
            Response::Role { role, epoch, last, primary } => {
                self.role_info = RoleInfo { role, epoch: Epoch(epoch), last: Lsn(last), primary: known(primary) };
                self.role_changed = true;
            }
            Response::Wake => {}
            Response::Welcome(socket::Welcome { version, .. }) if !(VERSION_MIN..=VERSION).contains(&version) => {
                return Err(format!("a welcome in version {version}, which was not offered"));
            }
            Response::Welcome(welcome) => {
                self.welcome = Welcome::from(welcome);
                self.role_info = self.welcome.role_info();
                self.on_reply(request, Ok(Reply::Welcome));
            }
            Response::BarrierPassed { epoch, last } => {
                self.on_reply(request, Ok(Reply::Passed(PassedBarrier { epoch: Epoch(epoch), last: Lsn(last) })));
            }
            Response::Synced { lsn } => self.on_reply(request, Ok(Reply::Synced(Lsn(lsn)))),
            Response::Trimmed { first } => self.on_reply(request, Ok(Reply::Trimmed(Lsn(first)))),
            Response::StatusReport { json } => {
                let json = json.to_owned();
                self.on_reply(request, Ok(Reply::Status(json)));
            }
            Response::Position { epoch, last } => {
                self.on_reply(request, Ok(Reply::Position(Position { epoch: Epoch(epoch), last: Lsn(last) })));
            }
            Response::Value { revision, as_of, value, older, stale } => {
                let got = Got::new(revision, Lsn(as_of), value, older, stale);
                self.on_reply(request, Ok(Reply::Value(got)));
            }
        }
        Ok(Some(size))
    }

    /// Records of a stopped read are dropped; those of the running one stay in the inbox until they are handed out.
    fn on_records(&mut self, request: u64, first: Lsn, found: Found, size: usize) -> Result<usize, String> {
        let Some(read) = self.read.as_mut().filter(|read| read.request == request && !read.stopping) else {
            return Ok(size);
        };
        read.expect(first)?;
        read.found = found;
        Ok(0)
    }

    /// Everything has been handed out; the record to come.
    fn on_caught_up(&mut self, request: u64, next: Lsn) -> Result<Lsn, String> {
        match self.read.as_mut().filter(|read| read.request == request && !read.stopping) {
            Some(read) => read.expect(next).map(|()| next),
            None => Ok(next),
        }
    }

    /// What of a read is not records; of a stopped one only the end counts.
    fn on_found(&mut self, request: u64, found: Found) {
        let Some(read) = self.read.as_mut().filter(|read| read.request == request) else { return };
        match (read.stopping, found) {
            (false, found) => read.found = found,
            (true, Found::Ended(_)) => self.read = None,
            (true, _) => {}
        }
    }

    /// The turn is the end of a follow that has handed out every record before it: an app that missed one must not append.
    fn on_turn(&mut self, request: u64, epoch: Epoch, next: Lsn) -> Result<(), String> {
        self.check_follows(request, "a turn")?;
        if let Some(read) = self.read.as_mut().filter(|read| read.request == request && !read.stopping) {
            read.expect(next).map_err(|why| format!("a turn: {why}"))?;
        }
        // A role of this epoch or a later one that is known already is later than the turn: with a ring it may have overtaken it.
        if self.role_info.epoch < epoch {
            self.role_info = RoleInfo { role: Role::Primary, epoch, last: next.prev(), primary: None };
        }
        self.on_found(request, Found::Ended(Ok(ReadItem::Turn { epoch, next })));
        Ok(())
    }

    /// Fails if this is the request of a read that is no follow.
    fn check_follows(&self, request: u64, what: &str) -> Result<(), String> {
        match &self.read {
            Some(read) if read.request == request && !read.follows => {
                Err(format!("{what} in a read that is no follow"))
            }
            _ => Ok(()),
        }
    }

    /// An error goes to the caller that waits for that request. A fatal one ends the connection too: the callers of all
    /// other requests learn that, and only the hello's gets the error itself.
    fn on_error(&mut self, request: u64, fatal: bool, error: Error) {
        let disconnect = fatal.then(|| match &error {
            Error::Disconnected { why } => why.clone(),
            error => format!("the sidecar ended the connection: {error}"),
        });
        if let Ok(place) = self.in_flight.binary_search(&Ticket(request)) {
            self.in_flight.remove(place);
            self.answer(Ticket(request), Err(error));
        } else if self.read.as_ref().is_some_and(|read| read.request == request) {
            self.on_found(request, Found::Ended(Err(error)));
        } else if request == self.requested && self.reply.is_none() {
            self.on_reply(request, Err(error));
        } else if fatal && self.next_request == HELLO_REQUEST + 1 {
            self.fail(error);
        }
        // Beside the hello it is about the connection: what has become of the requests that have no answer, it does not say.
        if let Some(why) = disconnect {
            self.fail(Error::Disconnected { why });
        }
    }

    /// A reply to a request whose caller has stopped waiting is dropped.
    fn on_reply(&mut self, request: u64, reply: Result<Reply, Error>) {
        if request == self.requested {
            self.reply = Some(reply);
        }
    }

    /// Keeps `answers` in order of tickets: a refusal may overtake the acks of earlier appends.
    fn answer(&mut self, ticket: Ticket, outcome: Result<Lsn, Error>) {
        let place = match self.answers.back() {
            Some((last, _)) if *last > ticket => self.answers.partition_point(|(answered, _)| *answered < ticket),
            _ => self.answers.len(),
        };
        self.answers.insert(place, (ticket, outcome.map_err(Box::new)));
    }
}
