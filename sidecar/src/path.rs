//! The append path: one thread that owns the clients, the log's open end and the data channels.
//!
//! Started by [`run`](crate::run); talks to [`control`](crate::control) by [`Command`]s (in) and [`Event`]s (out). One
//! [`Path::turn`] looks at everything once without blocking; [`Path::run`] spins for a bounded time while there is work
//! and sleeps on `epoll(7)` otherwise. Per record it makes no system call but the sockets' reads and writes, takes no
//! lock and allocates nothing.
//!
//! Files, in the order in which a record meets them: `places` (who is connected), [`connection`] (bytes of one client) and
//! `batch_memory` (where large ones find room), `requests` (what they mean), [`replicator`] (placing and posting), and back
//! here for the acks.

mod batch_memory;
pub mod connection;
mod description;
mod places;
pub mod replicator;
mod requests;
mod sleep;

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use tailwind_fabric::{AppendBuffer, Channel, RemoteBuffer, SharedBuffer};
use tailwind_protocol::config::{MEMBERS_MAX, Time};
use tailwind_protocol::ids::{Epoch, Position, SegmentId};
use tailwind_protocol::layout::{SegmentIdentity, SegmentSize};
use tailwind_protocol::primary::{Input, Output, Post, Primary, Seat};
use tailwind_protocol::socket::{ErrorCode, FRAME_HEADER_SIZE, Response, Role};
use tokio::sync::{mpsc, oneshot};

use batch_memory::BatchMemory;
use connection::{Broken, Connection, DetachedConnection, Received};
pub use description::{Description, Ladder, MemberDescription};
pub use places::CONNECTIONS_MAX;
use places::PLACES;
use replicator::Replicator;
pub(crate) use requests::trimmed;
use sleep::Sleeper;
pub use sleep::Waker;

/// Appends that wait for their ack, over all connections: 64 Ki × 48 bytes = 3 MiB, set aside at the start.
const PENDING_MAX: usize = 64 << 10;
/// What a client is told about each append that was in flight when this sidecar lost its role.
const LOST_ROLE: &str = "this sidecar lost its role before every backup had confirmed: the append may or may not be in \
                         the log; connect again and read from your last acknowledged LSN on to find out";
/// How often the protocol core hears of time passing.
const TICK: Duration = Duration::from_millis(5);
/// A connection is read from directly for so many turns after it fell silent; then `epoll` has to tell. An app that waits
/// for each ack comes back within a few turns.
const SILENT_TURNS: u32 = 64;
/// How often idle connections are looked at while a few busy ones keep the loop turning.
const LOOK_AROUND_TURNS: u32 = 32;

/// Users that may connect to the socket, told by `SO_PEERCRED`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Root and the user of this process.
    Own,
    /// These.
    Listed(Vec<u32>),
    /// Whoever reaches the socket: for pods, whose containers share nothing with others.
    Anybody,
}

impl Allowed {
    /// Whether this user may connect.
    pub fn admits(&self, uid: u32) -> bool {
        match self {
            Allowed::Own => uid == 0 || uid == rustix::process::geteuid().as_raw(),
            Allowed::Listed(listed) => listed.contains(&uid),
            Allowed::Anybody => true,
        }
    }
}

/// How the path is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Users that may connect.
    pub allowed: Allowed,
    /// Size of segments, which bounds records and batches.
    pub segment_size: SegmentSize,
    /// Bytes of batches that are being received, over all connections; at least [`Options::batch_memory_min`].
    pub batch_memory: usize,
    /// How long a client may leave a large batch half sent while others wait for memory.
    pub client_patience: Duration,
    /// How long to look for work before going to sleep.
    pub spin: Duration,
}

impl Options {
    /// What the largest batch needs: no less will do, or it would wait for ever.
    pub fn batch_memory_min(segment_size: SegmentSize) -> usize {
        requests::frame_body_max(segment_size) + FRAME_HEADER_SIZE
    }
}

/// What control tells the path.
pub enum Command {
    /// This sidecar is not primary now.
    Wait {
        /// Standby or recovering.
        role: Role,
        /// The epoch as far as known.
        epoch: u64,
        /// Who is primary, if known.
        primary: String,
    },
    /// This sidecar is primary from now on; everything up to `last` is acknowledged.
    Lead(Box<Primary>, u64),
    /// Feed the machine of this epoch. What comes late, from a term that is over, is not for the next one: there the same
    /// seat is somebody else's, and another swap may be under way.
    Input(Epoch, Input),
    /// Local memory for a segment, of whose epoch's term it is.
    Prepared(SegmentIdentity, AppendBuffer, SharedBuffer),
    /// A member's data channel, in the term of this epoch.
    Connected(Epoch, Seat, Box<dyn Channel>),
    /// A member's buffer for a segment, in the term of this epoch.
    Opened(Epoch, Seat, SegmentId, RemoteBuffer),
    /// A connection comes back from the reader.
    Adopt(DetachedConnection),
    /// A connection that the reader had has ended.
    Left,
    /// Queue these bytes for a client that asked for the status.
    Answer(ClientId, u64, String),
    /// Describe yourself.
    Describe(oneshot::Sender<Description>),
    /// End: tell the clients and stop.
    End,
}

/// What the path tells control.
#[derive(Debug)]
pub enum Event {
    /// The machine wants this done.
    Output(Output),
    /// A client wants to read: the connection is the reader's now.
    Read {
        /// The connection.
        detached: DetachedConnection,
        /// The request's number.
        request: u64,
        /// First record wanted.
        from: u64,
        /// Most records wanted; 0 for no limit.
        limit: u64,
        /// Go on after the end.
        tail: bool,
    },
    /// A client asked for the status.
    Status(ClientId, u64),
}

/// Names a connection; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId(u64);

/// Numbers that others read while the path runs.
#[derive(Debug, Default)]
pub struct Shared {
    /// LSN of the last acknowledged record.
    pub acked: AtomicU64,
    /// First record that can be read.
    pub first: AtomicU64,
    /// Grows with every turn: a path that hangs is noticed by it.
    pub turns: AtomicU64,
    /// Records appended by clients.
    pub records: AtomicU64,
    /// Appends (records or batches) taken.
    pub appends: AtomicU64,
    /// Payload bytes taken.
    pub bytes: AtomicU64,
    /// Clients connected now.
    pub clients: AtomicU64,
    /// Frames refused.
    pub refused: AtomicU64,
    /// Readers that wait for new records, and their wake-up.
    pub tailing: AtomicU64,
    /// Woken once per turn in which records were acknowledged, if anybody waits.
    pub news: tokio::sync::Notify,
}

/// Who this sidecar is for its clients.
enum Part {
    Waiting { role: Role },
    Leading(Box<Replicator>),
}

impl Part {
    /// The replicator, in the term of this epoch.
    fn leading(&mut self, epoch: Epoch) -> Option<&mut Replicator> {
        match self {
            Part::Leading(replicator) if replicator.primary().config().epoch == epoch => Some(replicator),
            _ => None,
        }
    }
}

/// An append that waits for its ack.
struct Pending {
    end: Position,
    lsn: u64,
    client: ClientId,
    place: u32,
    request: u64,
}

struct PendingBarrier {
    after: Post,
    client: ClientId,
    request: u64,
}

struct Client {
    id: ClientId,
    connection: Connection,
    /// Looked at in every turn: it had something to say lately, or its frames wait for room.
    busy: bool,
    /// Turns in which it had nothing to say.
    silent_turns: u32,
}

/// The append path.
pub struct Path {
    options: Options,
    part: Part,
    epoch: u64,
    primary_name: String,
    me: String,
    /// One entry for each place, see `places`.
    clients: Vec<Option<Client>>,
    /// The place whose client is out of it, while its frames are worked on.
    serving: Option<usize>,
    /// Connections that are with the reader: each keeps its claim to a place.
    reading: usize,
    next_client: u64,
    batch_memory: BatchMemory,
    pending: VecDeque<Pending>,
    /// Where the last append ends that was in flight when its connection did. See "After a failover" in
    /// `docs/append-socket.md`: a later read waits until everything up to here is acknowledged.
    left_behind: Position,
    barriers: Vec<PendingBarrier>,
    listener: UnixListener,
    commands: Receiver<Command>,
    events: mpsc::UnboundedSender<Event>,
    shared: Arc<Shared>,
    sleeper: Sleeper,
    /// Room for what a sleep brings.
    ready: Vec<sleep::Token>,
    started: Instant,
    ticked: Instant,
    ended: bool,
}

impl Path {
    /// Sets the path up. `listener` is the append socket, non-blocking; `me` is this sidecar's name.
    pub fn new(
        options: Options,
        me: String,
        listener: UnixListener,
        commands: Receiver<Command>,
        events: mpsc::UnboundedSender<Event>,
        shared: Arc<Shared>,
        waker: &Waker,
    ) -> io::Result<Path> {
        let sleeper = Sleeper::new(waker, &listener)?;
        let now = Instant::now();
        let batch_memory = options.batch_memory;
        Ok(Path {
            options,
            part: Part::Waiting { role: Role::Standby },
            epoch: 0,
            primary_name: String::new(),
            me,
            clients: (0..PLACES).map(|_| None).collect(),
            serving: None,
            reading: 0,
            next_client: 1,
            batch_memory: BatchMemory::new(batch_memory),
            pending: VecDeque::with_capacity(PENDING_MAX),
            left_behind: Position::default(),
            barriers: Vec::with_capacity(CONNECTIONS_MAX),
            listener,
            commands,
            events,
            shared,
            sleeper,
            ready: Vec::with_capacity(sleep::EVENTS),
            started: now,
            ticked: now,
            ended: false,
        })
    }

    /// Turns until told to end, or until control is gone.
    pub fn run(mut self) -> io::Result<()> {
        let mut idle_since = Instant::now();
        let mut turns = 0_u32;
        while !self.ended {
            if self.turn()? {
                idle_since = Instant::now();
            }
            turns = turns.wrapping_add(1);
            if idle_since.elapsed() >= self.options.spin && !self.arm() {
                self.sleep(TICK)?;
            } else if turns.is_multiple_of(LOOK_AROUND_TURNS) {
                self.sleep(Duration::ZERO)?;
            }
        }
        Ok(())
    }

    /// Has the data channels ring when something completes. True if something has completed already.
    fn arm(&mut self) -> bool {
        match &mut self.part {
            Part::Leading(replicator) => replicator.arm(),
            Part::Waiting { .. } => false,
        }
    }

    /// Looks at everything once. Returns true if there was anything to do.
    pub fn turn(&mut self) -> io::Result<bool> {
        let now = self.now();
        let mut progress = self.process_commands(now);
        for place in 0..self.clients.len() {
            progress |= self.serve(place);
        }
        if let Part::Leading(replicator) = &mut self.part {
            replicator.post(now);
            progress |= replicator.poll(now);
            replicator.turn();
            if self.ticked.elapsed() >= TICK {
                self.ticked = Instant::now();
                replicator.tick(now);
            }
        }
        self.acknowledge();
        self.pass_barriers(now);
        self.report();
        self.send();
        self.shared.turns.fetch_add(1, Ordering::Relaxed);
        Ok(progress)
    }

    fn now(&self) -> Time {
        Time(self.started.elapsed().as_millis() as u64)
    }

    /// Carries out what control says.
    fn process_commands(&mut self, now: Time) -> bool {
        let mut progress = false;
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.on_command(command, now),
                Err(TryRecvError::Empty) => return progress,
                Err(TryRecvError::Disconnected) => {
                    self.ended = true;
                    return progress;
                }
            }
            progress = true;
        }
    }

    fn on_command(&mut self, command: Command, now: Time) {
        match command {
            Command::Wait { role, epoch, primary } => self.wait(role, epoch, primary),
            Command::Lead(primary, last) => self.lead(*primary, last),
            Command::Adopt(detached) => self.take_back(detached),
            Command::Left => self.on_left(),
            Command::Answer(id, request, json) => self.on_answer(id, request, &json),
            // The receiver may have given up waiting.
            Command::Describe(reply) => drop(reply.send(self.describe())),
            Command::End => self.end(),
            Command::Input(epoch, input) => {
                if let Some(replicator) = self.part.leading(epoch) {
                    replicator.step(now, input);
                }
            }
            Command::Prepared(identity, fresh, shared) => {
                if let Some(replicator) = self.part.leading(identity.epoch) {
                    replicator.prepared(identity, fresh, shared);
                }
            }
            Command::Connected(epoch, seat, channel) => {
                if let Some(replicator) = self.part.leading(epoch) {
                    if let Some(fd) = channel.readiness() {
                        self.sleeper.watch_channel(fd);
                    }
                    replicator.connected(seat, channel);
                }
            }
            Command::Opened(epoch, seat, segment, remote) => {
                if let Some(replicator) = self.part.leading(epoch) {
                    replicator.opened(seat, segment, remote, now);
                }
            }
        }
    }

    /// This sidecar is not, or no longer, primary: whatever waits will not be acknowledged here any more.
    fn wait(&mut self, role: Role, epoch: u64, primary: String) {
        // Epochs only grow; 0 means that nothing new is known.
        let epoch = self.epoch.max(epoch);
        let news = (self.role(), self.epoch, &self.primary_name) != (role, epoch, &primary);
        if let Part::Leading(_) = std::mem::replace(&mut self.part, Part::Waiting { role }) {
            // Also those with nothing in flight: others may append meanwhile, and their apps do not know.
            for client in self.clients.iter_mut().flatten().filter(|client| client.connection.outbox.greeted) {
                client.connection.outbox.broken = Some(Broken::RoleLost);
                client.connection.outbox.read_after = None;
            }
            self.left_behind = Position::default();
        }
        self.epoch = epoch;
        self.primary_name = primary;
        self.fail_pending(LOST_ROLE);
        if news {
            self.tell_role();
        }
    }

    fn lead(&mut self, primary: Primary, last: u64) {
        self.epoch = primary.config().epoch.0;
        self.primary_name.clone_from(&self.me);
        self.shared.first.store(primary.first_readable().0, Ordering::Release);
        self.shared.acked.store(last, Ordering::Release);
        self.part = Part::Leading(Box::new(Replicator::new(primary)));
        self.tell_role();
        self.welcome_held();
    }

    /// Tells every client whose appends or barriers wait that nobody will answer them.
    fn fail_pending(&mut self, why: &str) {
        while let Some(pending) = self.pending.pop_front() {
            if let Some(client) = self.client(pending.place as usize, pending.client) {
                client.connection.outbox.inflight -= 1;
                client.connection.outbox.refuse(pending.request, ErrorCode::UnknownOutcome, false, 0, why);
            }
        }
        for barrier in std::mem::take(&mut self.barriers) {
            if let Some(client) = self.clients.iter_mut().flatten().find(|client| client.id == barrier.client) {
                client.connection.outbox.barriers -= 1;
                client.connection.outbox.refuse(barrier.request, ErrorCode::NotPrimary, false, 0, "no longer primary");
            }
        }
    }

    fn tell_role(&mut self) {
        let (role, epoch, last) = (self.role(), self.epoch, self.shared.acked.load(Ordering::Relaxed));
        for client in self.clients.iter_mut().flatten().filter(|client| client.connection.outbox.greeted) {
            let primary = &self.primary_name;
            client.connection.outbox.answer(0, &Response::Role { role, epoch, last, primary });
        }
    }

    fn role(&self) -> Role {
        match &self.part {
            Part::Leading(_) => Role::Primary,
            Part::Waiting { role } => *role,
        }
    }

    fn end(&mut self) {
        self.fail_pending("this sidecar is ending: the append may or may not be in the log");
        for client in self.clients.iter_mut().flatten() {
            client.connection.outbox.refuse(0, ErrorCode::ShuttingDown, true, 0, "this sidecar is ending");
        }
        self.send();
        self.ended = true;
    }

    /// Acknowledges, in order, everything that every needed member has.
    fn acknowledge(&mut self) {
        let Part::Leading(replicator) = &self.part else { return };
        let acked = replicator.acked();
        let mut last = 0;
        while let Some(pending) = self.pending.pop_front_if(|pending| pending.end <= acked) {
            last = pending.lsn;
            let client = self.clients[pending.place as usize].as_mut().filter(|client| client.id == pending.client);
            if let Some(client) = client {
                client.connection.outbox.inflight -= 1;
                client.connection.outbox.answer(pending.request, &Response::Ack { lsn: pending.lsn });
            }
        }
        if last > 0 {
            self.shared.acked.store(last, Ordering::Release);
            if self.shared.tailing.load(Ordering::Relaxed) > 0 {
                self.shared.news.notify_waiters();
            }
        }
    }

    fn pass_barriers(&mut self, now: Time) {
        let Part::Leading(replicator) = &mut self.part else { return };
        let Some(newest) = self.barriers.last() else { return };
        replicator.probe(newest.after, now);
        let last = self.shared.acked.load(Ordering::Relaxed);
        let (epoch, clients) = (self.epoch, &mut self.clients);
        self.barriers.retain(|barrier| {
            if !replicator.primary().passed(barrier.after) {
                return true;
            }
            if let Some(client) = clients.iter_mut().flatten().find(|client| client.id == barrier.client) {
                client.connection.outbox.barriers -= 1;
                client.connection.outbox.answer(barrier.request, &Response::BarrierPassed { epoch, last });
            }
            false
        });
    }

    /// Passes on what the machine wants done.
    fn report(&mut self) {
        let Part::Leading(replicator) = &mut self.part else { return };
        let mut over = false;
        for output in replicator.outputs.drain(..) {
            over |= matches!(output, Output::StepDown(_));
            // Control is gone only when the process ends.
            drop(self.events.send(Event::Output(output)));
        }
        if over {
            let epoch = self.epoch;
            self.wait(Role::Recovering, epoch, String::new());
        }
    }

    fn send(&mut self) {
        for place in 0..self.clients.len() {
            let Some(client) = &mut self.clients[place] else { continue };
            let connection = &mut client.connection;
            if !connection.outbox.wants_write() && !connection.outbox.closing {
                continue;
            }
            let done = connection.send().is_err() || (connection.outbox.closing && !connection.outbox.wants_write());
            if done {
                self.close(place);
            }
        }
    }

    fn on_answer(&mut self, id: ClientId, request: u64, json: &str) {
        if let Some(client) = self.clients.iter_mut().flatten().find(|client| client.id == id) {
            client.connection.outbox.questions -= 1;
            client.connection.outbox.answer(request, &Response::StatusReport { json });
        }
    }

    /// Waits for a socket, a channel, a command or the next tick; lets new clients in.
    pub fn sleep(&mut self, longest: Duration) -> io::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        self.sleeper.sleep(longest, &mut ready)?;
        for token in ready.drain(..) {
            match token {
                sleep::Token::Listener => self.accept(),
                sleep::Token::Client(place) => {
                    if let Some(client) = self.clients.get_mut(place).and_then(Option::as_mut) {
                        (client.busy, client.silent_turns) = (true, 0);
                    }
                }
                sleep::Token::Other => {}
            }
        }
        self.ready = ready;
        self.dismiss_the_slow();
        Ok(())
    }

    fn serve(&mut self, place: usize) -> bool {
        let Some(client) = self.clients[place].as_mut().filter(|client| client.busy) else { return false };
        let received = client.connection.receive();
        let closed = match received {
            Ok(Received::Bytes) => {
                client.silent_turns = 0;
                false
            }
            Ok(Received::Nothing) => {
                client.silent_turns += 1;
                client.busy = client.silent_turns < SILENT_TURNS || !client.connection.inbox.pending().is_empty();
                false
            }
            Ok(Received::Closed) | Err(_) => true,
        };
        let before = client.connection.inbox.pending().len();
        self.decode_frames(place);
        let after = self.clients[place].as_ref().map_or(0, |client| client.connection.inbox.pending().len());
        if closed {
            // What it sent before it went has been taken as far as there was room; nobody waits for the rest.
            self.close(place);
        }
        before != after || closed
    }
}

const _: () = assert!(MEMBERS_MAX <= u8::MAX as usize, "a seat's index is one byte");
