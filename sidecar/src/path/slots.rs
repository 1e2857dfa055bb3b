//! The connected clients: slots, how they are assigned and freed.
//!
//! Part of [`AppendLoop`]. An ordinary slot is held until the connection ends, also while a read has the connection. When all
//! are held, a few more admit status requests, so that an administrator can find out why clients cannot connect.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tailwind_protocol::ids::Position;
use tailwind_protocol::socket::{ErrorCode, Role};

use super::AppendLoop;
use super::connection::{ClientConnection, DetachedConnection, Outbox, ReadOnlyReason};
use super::messages::ClientId;
use super::role::RoleState;

/// Clients at once. Each has an inbox, which holds the largest record, and an outbox: 64 × 1.5 MiB = 96 MiB at most.
pub const CONNECTIONS_MAX: usize = 64;
/// More slots, for status requests only.
const STATUS_SLOTS: usize = 4;
/// All slots: the ordinary ones come first.
pub(super) const SLOTS: usize = CONNECTIONS_MAX + STATUS_SLOTS;
/// A connection without a hello is closed after so long, so that it does not hold a slot.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection in a slot for status requests is closed after so long, whatever it does.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that may wait to be accepted: more than there are slots. Whoever finds no room waits in `connect`.
const BACKLOG: i32 = 128;
/// Connections accepted in one turn: some 20 µs each, as long as a turn takes. Whoever connects and closes in a loop must not
/// keep the path from its turns, by which heartbeats go.
const ACCEPTED_MAX: usize = 16;
/// Pause after a connection could not be accepted, as for want of file descriptors: the listener stays ready, and would end
/// every sleep at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// As many as can be waiting at one time.
const WAITING_MAX: usize = BACKLOG as usize + 1;
/// When it may be worth connecting again.
const CONNECT_RETRY_MS: u32 = 1000;

/// True for a slot in which only the status may be asked for.
pub(super) fn is_for_status(slot: usize) -> bool {
    slot >= CONNECTIONS_MAX
}

/// The answer to a client that wants more than such a slot gives.
pub(super) fn refuse_slot(outbox: &mut Outbox, request: u64) {
    let message = format!("{CONNECTIONS_MAX} clients are already connected; only status requests are accepted now");
    outbox.refuse(request, ErrorCode::Busy, true, CONNECT_RETRY_MS, &message);
}

/// The clients, by slot.
pub(super) struct ClientSlots {
    slots: Vec<Option<ClientConnection>>,
    /// Beyond the last one that is held: every turn looks at all before it.
    end: usize,
    /// The slot whose client is out of it, while its requests are processed.
    taken: Option<usize>,
    /// Connections that are with a read: each keeps its claim to a slot.
    with_reads: usize,
    last_id: u64,
}

impl ClientSlots {
    pub(super) fn new() -> ClientSlots {
        ClientSlots { slots: (0..SLOTS).map(|_| None).collect(), end: 0, taken: None, with_reads: 0, last_id: 0 }
    }

    /// Connections, also those with a read.
    pub(super) fn count(&self) -> usize {
        self.slots.iter().flatten().count() + self.with_reads
    }

    /// All held slots are in here.
    pub(super) fn held(&self) -> Range<usize> {
        0..self.end
    }

    fn hold(&mut self, slot: usize, client: ClientConnection) {
        self.slots[slot] = Some(client);
        self.end = self.end.max(slot + 1);
    }

    /// Frees a slot, if it is held.
    fn free(&mut self, slot: usize) -> Option<ClientConnection> {
        let client = self.slots[slot].take();
        self.end = self.slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        client
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ClientConnection> {
        self.slots.iter_mut().flatten()
    }

    pub(super) fn in_slot(&mut self, slot: usize) -> Option<&mut ClientConnection> {
        self.slots[slot].as_mut()
    }

    /// The client in this slot, if it still is that one.
    pub(super) fn get(&mut self, slot: u32, id: ClientId) -> Option<&mut ClientConnection> {
        self.slots[slot as usize].as_mut().filter(|client| client.id == id)
    }

    pub(super) fn by_id(&mut self, id: ClientId) -> Option<&mut ClientConnection> {
        self.iter_mut().find(|client| client.id == id)
    }

    /// Takes a client out of its slot, which stays reserved. [`ClientSlots::put_back`] or
    /// [`ClientSlots::give_to_reader`] must follow.
    pub(super) fn take(&mut self, slot: usize) -> Option<ClientConnection> {
        let client = self.slots[slot].take()?;
        self.taken = Some(slot);
        Some(client)
    }

    pub(super) fn put_back(&mut self, slot: usize, client: ClientConnection) {
        self.taken = None;
        self.hold(slot, client);
    }

    /// The client that was taken out is with a read from now on.
    pub(super) fn give_to_reader(&mut self) {
        self.taken = None;
        self.with_reads += 1;
    }

    /// A free slot. As many others stay free as there are connections with a read, which claim them.
    fn free_slot(&self) -> Option<usize> {
        let free = |slot: &usize| self.slots[*slot].is_none() && self.taken != Some(*slot);
        (0..CONNECTIONS_MAX).filter(free).nth(self.with_reads)
    }

    /// A free slot for status requests, or else the one with the oldest connection that waits for no report.
    fn status_slot(&self) -> Option<usize> {
        let age = |slot: &usize| match &self.slots[*slot] {
            None => Some(0),
            Some(client) => client.outbox.is_settled().then_some(client.id.0),
        };
        (CONNECTIONS_MAX..SLOTS).filter(|slot| age(slot).is_some()).min_by_key(age)
    }
}

impl AppendLoop {
    /// Bounds how many connections wait.
    pub(super) fn bound_backlog(listener: &UnixListener) -> io::Result<()> {
        Ok(rustix::net::listen(listener, BACKLOG)?)
    }

    /// Accepts new clients, a few: the next sleep finds the others.
    pub(super) fn accept(&mut self) {
        // A failure is dealt with.
        let _ = self.accept_up_to(ACCEPTED_MAX);
    }

    /// An error means that others may be waiting.
    fn accept_up_to(&mut self, most: usize) -> io::Result<()> {
        for _ in 0..most {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    // A blocking socket would stop the path for all clients.
                    if let Err(error) = stream.set_nonblocking(true) {
                        tracing::warn!(%error, "failed to make a client's socket non-blocking");
                        continue;
                    }
                    let client = self.connection(DetachedConnection::fresh(stream));
                    self.admit(client);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.pause_accepting(&error);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn pause_accepting(&mut self, error: &io::Error) {
        if self.accept_errors.is_due(error.to_string(), self.turned) {
            tracing::warn!(%error, "failed to accept a client: will retry");
        }
        self.sleeper.forget(self.listener.as_fd());
        self.accept_at = Some(self.turned + ACCEPT_PAUSE);
    }

    /// Has new clients wake the path again once the pause is over.
    pub(super) fn accept_again(&mut self) {
        let turned = self.turned;
        if self.accept_at.take_if(|at| turned >= *at).is_some()
            && let Err(error) = self.sleeper.watch_listener(&self.listener)
        {
            self.pause_accepting(&error);
        }
    }

    fn connection(&mut self, detached: DetachedConnection) -> ClientConnection {
        let id = detached.id.unwrap_or_else(|| {
            self.clients.last_id += 1;
            ClientId(self.clients.last_id)
        });
        ClientConnection::new(id, detached, self.options.segment_size)
    }

    /// Assigns a slot to a new connection if its user may have one.
    fn admit(&mut self, mut client: ClientConnection) {
        if let Err(why) = self.check_user(&client) {
            client.outbox.refuse(0, ErrorCode::NotAllowed, true, 0, &why);
        } else if let Some(slot) = self.clients.free_slot().or_else(|| self.make_status_slot()) {
            return self.assign(slot, client);
        } else {
            refuse_slot(&mut client.outbox, 0);
        }
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        // The answer is lost unless the socket takes it at once.
        let _ = client.send();
    }

    /// A connection comes back from a read: it has kept its claim to a slot.
    pub(super) fn take_back(&mut self, detached: DetachedConnection) {
        self.on_left();
        let known = detached.known;
        let mut client = self.connection(detached);
        // What a dead client has left unread must not be taken after a read that was requested since.
        if !matches!(hung_up(std::iter::once((0, &client))), Ok(none) if none.is_empty()) {
            return self.forget_gets_of(client.id);
        }
        client.outbox.greeted = true;
        let now = self.known_role();
        if (known.role, known.epoch) != (now.role, now.epoch) {
            // It was with a read when the change of role was announced.
            if known.role == Role::Primary || known.losses != now.losses {
                client.outbox.read_only.get_or_insert(ReadOnlyReason::RoleLost);
            }
            let (role, epoch, last) = (self.role(), self.epoch, self.counters.acked.load(Ordering::Relaxed));
            client.outbox.announce_role(role, epoch, last, &self.primary_name);
        }
        let slot = self.clients.free_slot().expect("a connection keeps its claim to a slot while it reads");
        self.assign(slot, client);
    }

    /// A connection that a read had has ended, or is about to get its slot again.
    pub(super) fn on_left(&mut self) {
        self.clients.with_reads -= 1;
        self.counters.clients.send_modify(|clients| *clients -= 1);
    }

    /// A slot for a status request, whose connection is closed if there is one.
    fn make_status_slot(&mut self) -> Option<usize> {
        let slot = self.clients.status_slot()?;
        if let Some(client) = self.clients.in_slot(slot) {
            refuse_slot(&mut client.outbox, 0);
            let _ = client.send();
        }
        self.close(slot);
        Some(slot)
    }

    fn assign(&mut self, slot: usize, client: ClientConnection) {
        if let Err(error) = self.sleeper.watch_client(client.fd(), slot) {
            tracing::warn!(%error, "failed to watch a client");
            return;
        }
        self.counters.clients.send_modify(|clients| *clients += 1);
        self.clients.hold(slot, client);
    }

    fn check_user(&self, client: &ClientConnection) -> Result<(), String> {
        // Not rustix: an app in another container has no process number here, which the kernel reports as 0, and rustix takes
        // that for an error.
        let peer = getsockopt(&client.fd(), PeerCredentials);
        let uid = peer.map_err(|error| format!("your user id cannot be determined: {error}"))?.uid();
        let allowed = self.options.allowed.admits(uid);
        if allowed { Ok(()) } else { Err(format!("user {uid} is not on the allow-list (--allow-uid)")) }
    }

    /// Closes every connection whose client has closed it or died, with everything that it sent and that was not taken.
    /// Where the last append that was taken from such a connection ends; `None` if the dead ones cannot be determined.
    pub(super) fn close_dead(&mut self) -> Option<Position> {
        // Also those that have not been accepted. Those that connect while this goes on do not count, and may be without end.
        self.accept_up_to(WAITING_MAX).ok()?;
        let clients = self.clients.slots.iter().enumerate();
        let clients = clients.filter_map(|(slot, client)| Some((slot, client.as_ref()?)));
        // A poll that fails is tried again in the next turn.
        for slot in hung_up(clients).ok()? {
            self.close(slot);
        }
        Some(match &self.state {
            RoleState::Leading(leading) => leading.left_behind,
            RoleState::Waiting { .. } => Position::default(),
        })
    }

    /// Closes a connection. Its appends that were taken are replicated all the same.
    pub(super) fn close(&mut self, slot: usize) {
        if let Some(client) = self.clients.free(slot) {
            self.sleeper.forget(client.fd());
            if let RoleState::Leading(leading) = &mut self.state {
                leading.on_close(&client);
            }
            self.forget_gets_of(client.id);
            self.batch_memory.leave(client.id, &client.inbox);
            self.counters.clients.send_modify(|clients| *clients -= 1);
        }
    }

    /// Closes connections that keep others from what they need.
    pub(super) fn close_slow(&mut self) {
        let timeout = self.options.client_timeout;
        for slot in self.clients.held() {
            let Some(client) = self.clients.in_slot(slot) else { continue };
            let age = client.since.elapsed();
            let silent = !client.outbox.greeted && client.outbox.held.is_none() && age > HELLO_TIMEOUT;
            let short = self.batch_memory.is_short();
            let half_sent = short && client.inbox.half_sent_for() > Some(timeout);
            // A batch is taken once there is room for its ack.
            let unread = short && client.inbox.untaken_for().min(client.outbox.unread_for()) > Some(timeout);
            // Nothing else would free the slot of a client that never reads why its connection ends.
            let deaf = client.outbox.closing && client.outbox.unread_for() > Some(timeout);
            if half_sent {
                tracing::warn!(
                    ?timeout,
                    "disconnected a client that left a batch half sent while others waited for its memory"
                );
                let message = format!(
                    "a batch was half sent for {timeout:?}, and others wait for the memory it takes: nothing of it was \
                     appended; connect again"
                );
                client.outbox.refuse(0, ErrorCode::Busy, true, CONNECT_RETRY_MS, &message);
                let _ = client.send();
            }
            if unread {
                tracing::warn!(
                    ?timeout,
                    "disconnected a client that read no answers while others waited for the memory of its batch"
                );
            }
            if deaf {
                tracing::warn!(?timeout, "disconnected a client that did not read why its connection ends");
            }
            if silent || half_sent || unread || deaf || (is_for_status(slot) && age > STATUS_TIMEOUT) {
                self.close(slot);
            }
        }
    }
}

/// Slots of these connections whose clients send nothing any more: they closed their end, or died.
fn hung_up<'a>(clients: impl Iterator<Item = (usize, &'a ClientConnection)>) -> rustix::io::Result<Vec<usize>> {
    let (slots, mut fds): (Vec<usize>, Vec<PollFd<'_>>) =
        clients.map(|(slot, client)| (slot, PollFd::from_borrowed_fd(client.fd(), PollFlags::RDHUP))).unzip();
    retry_on_intr(|| poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })))?;
    Ok(slots.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(slot, _)| slot).collect())
}
