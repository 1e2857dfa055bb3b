//! The append path: one thread that owns the clients, the log's open end and the data channels.
//!
//! Started by [`run`](crate::run); talks to [`control`](crate::control) by [`Command`]s (in), the machine's outputs and [`ClientRequest`]s (out). One
//! [`AppendLoop::turn`] looks at everything once without blocking; [`AppendLoop::run`] spins for a bounded time while there is work
//! and sleeps on `epoll(7)` otherwise. Per record it makes no system call but the sockets' reads and writes, takes no
//! lock and allocates nothing.
//!
//! Files, in the order in which a record meets them: `slots` (who is connected), [`connection`] (bytes of one client) and
//! `batch_memory` (where large ones find room), `ring` (what takes the socket's place), `requests` and `applies` (what they mean),
//! `leading` (the [primary's log](tailwind_primary): placing, posting, acknowledging), `answers` (whom the acks are for). Beside
//! them: `gets` and `getting` (what is read of a table), `moves` (what its cleaner has moved), `role` (primary or not), `description` (the status), `fabric` (the
//! channels), `latency` and `stall` (for the metrics and the report), `messages`, `options`, `sleep`.

mod answers;
mod applies;
mod batch_memory;
pub mod connection;
mod description;
mod fabric;
mod gets;
mod getting;
mod latency;
mod leading;
mod messages;
mod moves;
mod options;
mod requests;
mod ring;
mod role;
mod sleep;
mod slots;
mod stall;

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use tailwind_primary::Moment;
use tailwind_protocol::config::{MEMBERS_MAX, Time};
use tailwind_protocol::primary::Output;
use tailwind_protocol::socket::{Response, Role};

use crate::logging::Repeats;
use batch_memory::BatchMemory;
use connection::{AnswerKind, ClientConnection};
pub use description::{Description, LeadingDescription, MemberDescription, TableDescription};
use getting::Getting;
pub use getting::{Brought, GetterRequest, LANDING, MirrorMemory, Wish};
pub use messages::{
    COMMANDS_MAX, ClientId, ClientRequest, Command, ControlReceivers, ControlSenders, Counters, FromTerm, ReadKind,
    ReadRequest, Start, control_channels,
};
pub use moves::{MoveBatch, Offered};
pub use options::{Allowed, Options};
pub(crate) use requests::{beyond_the_end, trimmed};
use role::RoleState;
use sleep::Sleeper;
pub use sleep::Waker;
pub use slots::CONNECTIONS_MAX;
use slots::ClientSlots;

/// How often the protocol core gets the time.
const TICK: Duration = Duration::from_millis(5);
/// How often a path that does not lead turns all the same. Gets name the time that they wait for; only a listener that could not
/// accept, after `ACCEPT_PAUSE`, does not.
const IDLE_TICK: Duration = Duration::from_millis(50);
/// Commands of control that are carried out in one turn.
const COMMANDS_AT_ONCE: usize = 64;
/// How often idle connections are looked at while a few busy ones keep the loop turning.
const LOOK_AROUND_TURNS: u32 = 32;

/// The append path.
pub struct AppendLoop {
    options: Options,
    me: String,
    state: RoleState,
    epoch: u64,
    /// How often it has lost the role of primary.
    losses: u64,
    primary_name: String,
    /// Of a table: reads it while this sidecar is not primary.
    getting: Option<Box<Getting>>,
    clients: ClientSlots,
    batch_memory: BatchMemory,
    listener: UnixListener,
    /// When new clients are looked for again, after one could not be accepted.
    accept_at: Option<Instant>,
    /// Why, as it was logged.
    accept_errors: Repeats<String>,
    commands: Receiver<Command>,
    control: ControlSenders,
    counters: Arc<Counters>,
    sleeper: Sleeper,
    /// Room for what a sleep brings.
    ready: Vec<sleep::Token>,
    /// The last turn has left requests that it could have answered.
    has_more: bool,
    started: Instant,
    ticked: Instant,
    /// When the last turn began.
    turned: Instant,
    ended: bool,
}

impl AppendLoop {
    /// Sets the path up. `listener` is the append socket, non-blocking; `me` is this sidecar's name.
    pub fn new(
        options: Options,
        me: String,
        listener: UnixListener,
        commands: Receiver<Command>,
        control: ControlSenders,
        counters: Arc<Counters>,
        waker: &Waker,
    ) -> io::Result<AppendLoop> {
        AppendLoop::bound_backlog(&listener)?;
        let sleeper = Sleeper::new(waker, &listener)?;
        let now = Instant::now();
        let turn = getrandom::u32().map_err(io::Error::other)? as usize;
        Ok(AppendLoop {
            getting: options.table.then(|| Box::new(Getting::new(turn))),
            batch_memory: BatchMemory::new(options.batch_memory),
            options,
            me,
            state: RoleState::Waiting { role: Role::Standby },
            epoch: 0,
            losses: 0,
            primary_name: String::new(),
            clients: ClientSlots::new(),
            listener,
            accept_at: None,
            accept_errors: Repeats::default(),
            commands,
            control,
            counters,
            sleeper,
            ready: Vec::with_capacity(sleep::EVENTS),
            has_more: false,
            started: now,
            ticked: now,
            turned: now,
            ended: false,
        })
    }

    /// Turns until control commands the end, or is gone.
    pub fn run(mut self) -> io::Result<()> {
        let mut idle_since = Instant::now();
        let mut turns = 0_u32;
        while !self.ended {
            // Of a turn that has posted, the end: a good part of the time that it may spin would have passed by then. Of the others
            // the beginning will do: reading the clock is a good part of an idle turn.
            if self.turn()? {
                idle_since = Instant::now();
            }
            turns = turns.wrapping_add(1);
            let is_idle = self.turned.duration_since(idle_since) >= self.options.spin;
            if is_idle && !self.arm() {
                self.sleep(self.longest_sleep())?;
            } else if turns.is_multiple_of(LOOK_AROUND_TURNS) {
                // Also where a ring says that something has come, and it is nothing that a turn can take.
                self.sleep(Duration::ZERO)?;
            }
            if is_idle {
                self.clients.iter_mut().for_each(ClientConnection::awake);
            }
        }
        Ok(())
    }

    /// Looks at everything once. Returns true if there was anything to do.
    pub fn turn(&mut self) -> io::Result<bool> {
        let began = Instant::now();
        self.turned = began;
        self.has_more = false;
        let elapsed = began.duration_since(self.started);
        let now = Time(elapsed.as_millis() as u64);
        let mut progress = self.process_commands(now);
        for slot in self.clients.held() {
            progress |= self.serve(slot);
        }
        self.ask_for_gets();
        let mut acked = None;
        if let RoleState::Leading(leading) = &mut self.state {
            let ticks = began.duration_since(self.ticked) >= TICK;
            if ticks {
                self.ticked = began;
            }
            let turned = leading.turn(began, Moment { now, elapsed, ticks }, &mut self.clients, &self.counters);
            progress |= turned.progress;
            acked = turned.acked;
        }
        if acked.is_some() && self.counters.tailing.load(Ordering::Relaxed) > 0 {
            self.counters.news.notify_waiters();
        }
        self.turn_gets(now);
        progress |= self.turn_getting(elapsed);
        self.report();
        self.send();
        if let (Some((_, end)), RoleState::Leading(leading)) = (acked, &mut self.state) {
            leading.measure_appends(end, &self.counters.append_times);
        }
        self.counters.turns.fetch_add(1, Ordering::Relaxed);
        Ok(progress)
    }

    /// Waits for a socket, a channel, a command or the next tick; accepts new clients.
    pub fn sleep(&mut self, longest: Duration) -> io::Result<()> {
        self.accept_again();
        let mut ready = std::mem::take(&mut self.ready);
        self.sleeper.sleep(longest, &mut ready)?;
        for token in ready.drain(..) {
            match token {
                sleep::Token::Listener => self.accept(),
                sleep::Token::Client(slot) => {
                    if let Some(client) = self.clients.in_slot(slot) {
                        client.wake();
                    }
                }
                sleep::Token::Other => {}
            }
        }
        self.ready = ready;
        self.close_slow();
        Ok(())
    }

    fn now(&self) -> Time {
        Time(self.started.elapsed().as_millis() as u64)
    }

    /// Has the data channels and the clients' rings wake the path. True if there is something already.
    fn arm(&mut self) -> bool {
        if !self.clients.iter_mut().all(ClientConnection::may_sleep) {
            return true;
        }
        match &mut self.state {
            RoleState::Leading(leading) => leading.log.arm(),
            RoleState::Waiting { .. } => self.getting.as_mut().is_some_and(|getting| getting.arm()),
        }
    }

    /// Until the next tick, or until readers are to be told something; not at all while requests are left.
    fn longest_sleep(&self) -> Duration {
        match &self.state {
            _ if self.has_more => Duration::ZERO,
            RoleState::Leading(leading) => {
                leading.log.publish_due().map_or(TICK, |due| due.saturating_sub(self.started.elapsed()).min(TICK))
            }
            RoleState::Waiting { .. } => {
                let due = self.getting.as_ref().and_then(|getting| getting.wake_at());
                due.map_or(IDLE_TICK, |due| due.saturating_sub(self.started.elapsed()).min(TICK))
            }
        }
    }

    /// Receives from a busy client and processes its requests. Returns true if there was anything to do.
    fn serve(&mut self, slot: usize) -> bool {
        let Some(client) = self.clients.in_slot(slot) else { return false };
        if !client.is_busy() {
            return false;
        }
        let closed = !client.receive();
        let before = Some(client.progress());
        self.process_requests(slot);
        let after = self.clients.in_slot(slot).map(|client| client.progress());
        if closed {
            // What it sent before it went has been taken as far as there was room; the rest is dropped.
            self.close(slot);
        }
        before != after || closed
    }

    /// Sends what waits for the clients.
    fn send(&mut self) {
        for slot in self.clients.held() {
            let Some(client) = self.clients.in_slot(slot) else { continue };
            if !client.send() {
                self.close(slot);
            } else if client.outbox.closing {
                // It stays until it has read why, which may be never.
                self.batch_memory.stop_waiting(client.id);
            }
        }
    }

    /// Passes on what the machine wants done.
    fn report(&mut self) {
        let RoleState::Leading(leading) = &mut self.state else { return };
        if leading.has_nothing_to_report() {
            return;
        }
        let mut over = false;
        // What finds no room now stays with the log until a later turn.
        for (seat, why) in leading.failures(self.control.outputs.capacity()) {
            drop(self.control.outputs.try_send(FromTerm::ChannelFailed(seat, why)));
        }
        for output in leading.outputs(self.control.outputs.capacity()) {
            over |= matches!(output, Output::StepDown(_));
            // Control is gone only when the process ends.
            drop(self.control.outputs.try_send(FromTerm::Do(output)));
        }
        if over {
            self.wait(Role::Recovering, self.epoch, String::new());
        }
    }

    /// Carries out what control commands: some of it, lest a member that causes commands without end stop the heartbeats.
    fn process_commands(&mut self, now: Time) -> bool {
        for nth in 0..COMMANDS_AT_ONCE {
            match self.commands.try_recv() {
                Ok(command) => self.on_command(command, now),
                Err(error) => {
                    self.ended |= error == TryRecvError::Disconnected;
                    return nth > 0;
                }
            }
        }
        true
    }

    fn on_command(&mut self, command: Command, now: Time) {
        match command {
            Command::Wait { role, epoch, primary } => self.wait(role, epoch, primary),
            Command::Lead(primary, last, table) => self.lead(*primary, last, table),
            Command::Adopt(detached) => self.take_back(detached),
            Command::Left(client) => {
                self.on_left();
                self.forget_gets_of(client);
            }
            Command::Getter(brought) => self.on_brought(brought),
            Command::Answer(id, request, json) => {
                if let Some(client) = self.clients.by_id(id) {
                    client.outbox.settle(AnswerKind::Status, request, &Response::StatusReport { json: &json });
                }
            }
            Command::TakePosition(reply) => self.take_position(reply),
            Command::AnswerPosition(id, request, position) => self.answer_position(id, request, position),
            // The receiver may have given up waiting.
            Command::Describe(reply) => drop(reply.send(self.describe())),
            Command::End => self.end(),
            Command::Move(epoch, batch, reply) => self.on_move(epoch, batch, reply),
            Command::Record(epoch, number, value) => self.on_record(epoch, number, value, now),
            Command::Sources(epoch, number, values) => self.on_sources(epoch, number, values, now),
            Command::SyncTable(epoch) => self.sync_table(epoch),
            Command::TrimTable(epoch, below) => self.trim_table(epoch, below, now),
            Command::NoteChanges(epoch, changed, bell, reply) => self.note_changes(epoch, changed, bell, reply),
            Command::Input(epoch, input) => self.state.in_term(epoch, |log| log.step(now, input)),
            Command::Prepared(identity, fresh, shared) => {
                self.state.in_term(identity.epoch, |log| log.prepared(identity, fresh, shared, now));
            }
            Command::Connected(epoch, seat, channel, board) => self.state.in_term(epoch, |log| {
                if let Some(fd) = channel.readiness() {
                    self.sleeper.watch_channel(fd, channel.waits_for_room());
                }
                log.connected(seat, channel, board, now);
            }),
            Command::BoardLent(epoch, seat, board) => {
                self.state.in_term(epoch, |log| log.board_lent(seat, board));
            }
            Command::Opened(epoch, seat, segment, remote) => {
                self.state.in_term(epoch, |log| log.opened(seat, segment, remote, now));
            }
        }
    }
}

const _: () = assert!(MEMBERS_MAX <= u8::MAX as usize, "a seat's index is one byte");
