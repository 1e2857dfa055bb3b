//! Who is connected: places, how they are given and taken away.
//!
//! Part of [`Path`]. An ordinary place is held until the connection ends, also while the reader has the connection. When all
//! are held, a few more let people ask for the status: whoever wants to know why nobody gets in must get in.

use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tailwind_protocol::ids::Position;
use tailwind_protocol::socket::{ErrorCode, Response, Role};

use super::connection::{Broken, Connection, DetachedConnection, Outbox};
use super::{Client, ClientId, Path};

/// Clients at once. Each has an inbox, which holds the largest record, and an outbox: 64 × 1.5 MiB = 96 MiB at most.
pub const CONNECTIONS_MAX: usize = 64;
/// More places, for status requests only.
const STATUS_PLACES: usize = 4;
/// All places: the ordinary ones come first.
pub(super) const PLACES: usize = CONNECTIONS_MAX + STATUS_PLACES;
/// A connection that has not said hello by then is closed, so that strangers cannot use the places up.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// A connection in a place for status requests is closed after so long, whatever it does.
const STATUS_PATIENCE: Duration = Duration::from_secs(5);
/// When it may be worth trying again for a place.
const PLACE_RETRY_MS: u32 = 1000;

/// True for a place in which only the status may be asked for.
pub(super) fn is_for_status(place: usize) -> bool {
    place >= CONNECTIONS_MAX
}

/// What a client hears that wants more than such a place gives.
pub(super) fn refuse_place(outbox: &mut Outbox, request: u64) {
    let message = format!("{CONNECTIONS_MAX} clients are connected already; only the status can be asked for now");
    outbox.refuse(request, ErrorCode::Busy, true, PLACE_RETRY_MS, &message);
}

impl Path {
    /// Lets new clients in.
    pub(super) fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    // A socket that blocks would stop the path for everybody.
                    if let Err(error) = stream.set_nonblocking(true) {
                        tracing::warn!(%error, "make a client's socket non-blocking");
                        continue;
                    }
                    self.admit(Connection::new(DetachedConnection::fresh(stream), self.options.segment_size));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "accept a client");
                    return;
                }
            }
        }
    }

    /// Gives a new connection a place if its user may have one.
    fn admit(&mut self, mut connection: Connection) {
        if let Err(why) = self.check_user(&connection) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            connection.outbox.refuse(0, ErrorCode::NotAllowed, true, 0, &why);
            // It hears of it if its socket takes it at once.
            let _ = connection.send();
            return;
        }
        match self.ordinary_place().or_else(|| self.status_place()) {
            Some(place) => self.seat(place, connection),
            None => {
                self.shared.refused.fetch_add(1, Ordering::Relaxed);
                refuse_place(&mut connection.outbox, 0);
                let _ = connection.send();
            }
        }
    }

    /// A connection comes back from the reader: it has never lost its place.
    pub(super) fn take_back(&mut self, detached: DetachedConnection) {
        self.on_left();
        let epoch = detached.epoch;
        let mut connection = Connection::new(detached, self.options.segment_size);
        // What a dead client has left unread must not be taken after a read that was asked since.
        if !matches!(hung_up(std::iter::once((0, &connection))), Ok(none) if none.is_empty()) {
            return;
        }
        connection.outbox.greeted = true;
        let leads = self.role() == Role::Primary;
        if !leads || epoch != self.epoch {
            // It was with the reader when the others were told.
            connection.outbox.broken.get_or_insert(Broken::RoleLost);
            let (role, epoch, last) = (self.role(), self.epoch, self.shared.acked.load(Ordering::Relaxed));
            connection.outbox.answer(0, &Response::Role { role, epoch, last, primary: &self.primary_name });
        }
        let place = self.ordinary_place().expect("a connection keeps its claim to a place while it reads");
        self.seat(place, connection);
    }

    /// A connection that the reader had has ended, or is about to be seated again.
    pub(super) fn on_left(&mut self) {
        self.reading -= 1;
        self.shared.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// A free place. As many others stay free as there are connections with the reader, which claim them.
    fn ordinary_place(&self) -> Option<usize> {
        let free = |place: &usize| self.clients[*place].is_none() && self.serving != Some(*place);
        (0..CONNECTIONS_MAX).filter(free).nth(self.reading)
    }

    /// A free place for a status request. If there is none, the oldest connection there that waits for no report goes.
    fn status_place(&mut self) -> Option<usize> {
        let places = || CONNECTIONS_MAX..PLACES;
        if let Some(free) = places().find(|place| self.clients[*place].is_none()) {
            return Some(free);
        }
        let idle =
            |place: &usize| self.clients[*place].as_ref().is_some_and(|client| client.connection.outbox.is_settled());
        let oldest =
            places().filter(idle).min_by_key(|place| self.clients[*place].as_ref().map(|client| client.id.0))?;
        if let Some(client) = &mut self.clients[oldest] {
            refuse_place(&mut client.connection.outbox, 0);
            let _ = client.connection.send();
        }
        self.close(oldest);
        Some(oldest)
    }

    fn seat(&mut self, place: usize, connection: Connection) {
        if let Err(error) = self.sleeper.watch_client(connection.fd(), place) {
            tracing::warn!(%error, "watch a client");
            return;
        }
        let id = ClientId(self.next_client);
        self.next_client += 1;
        self.shared.clients.fetch_add(1, Ordering::Relaxed);
        self.clients[place] = Some(Client { id, connection, busy: true, silent_turns: 0 });
    }

    fn check_user(&self, connection: &Connection) -> Result<(), String> {
        // Not rustix: an app in another container has no process number here, which the kernel says by a 0, and rustix takes
        // that for an error.
        let peer = getsockopt(&connection.fd(), PeerCredentials);
        let uid = peer.map_err(|error| format!("your user cannot be told: {error}"))?.uid();
        let allowed = self.options.allowed.admits(uid);
        if allowed { Ok(()) } else { Err(format!("user {uid} is not on the allow-list (--allow-uid)")) }
    }

    /// Ends every connection whose client has closed it or died, with all that it sent and that was not taken. Where the
    /// last append of such a connection ends that was taken; `None` if it cannot be told who is dead.
    pub(super) fn end_the_dead(&mut self) -> Option<Position> {
        // Also those that have not been let in.
        self.accept();
        let seated = self.clients.iter().enumerate();
        let seated = seated.filter_map(|(place, client)| Some((place, &client.as_ref()?.connection)));
        // A poll that fails is tried again in the next turn.
        for place in hung_up(seated).ok()? {
            self.close(place);
        }
        Some(self.left_behind)
    }

    /// Ends a connection. Its appends that were taken stay on their way.
    pub(super) fn close(&mut self, place: usize) {
        if let Some(client) = self.clients[place].take() {
            self.sleeper.forget(client.connection.fd());
            self.barriers.retain(|barrier| barrier.client != client.id);
            self.batch_memory.leave(client.id, &client.connection.inbox);
            self.shared.clients.fetch_sub(1, Ordering::Relaxed);
            if let (1.., Some(last)) = (client.connection.outbox.inflight, self.pending.back()) {
                // Perhaps another client's, and so a little later than needed.
                self.left_behind = last.end;
            }
        }
    }

    pub(super) fn client(&mut self, place: usize, id: ClientId) -> Option<&mut Client> {
        self.clients[place].as_mut().filter(|client| client.id == id)
    }

    /// Ends connections that keep others from what they need.
    pub(super) fn dismiss_the_slow(&mut self) {
        let patience = self.options.client_patience;
        for place in 0..PLACES {
            let Some(client) = &mut self.clients[place] else { continue };
            let Connection { inbox, outbox, since, .. } = &mut client.connection;
            let age = since.elapsed();
            let silent = !outbox.greeted && outbox.held.is_none() && age > HELLO_PATIENCE;
            let half_sent = self.batch_memory.is_short() && inbox.half_sent_for() > Some(patience);
            if half_sent {
                tracing::warn!(
                    ?patience,
                    "a batch was half sent for too long while others waited for its memory: disconnected"
                );
                let message = format!(
                    "a batch was half sent for {patience:?}, and others wait for the memory it takes: nothing of it was \
                     appended; connect again"
                );
                outbox.refuse(0, ErrorCode::Busy, true, PLACE_RETRY_MS, &message);
                let _ = client.connection.send();
            }
            if silent || half_sent || (is_for_status(place) && age > STATUS_PATIENCE) {
                self.close(place);
            }
        }
    }
}

/// Places of these connections whose clients send nothing any more: they closed their end, or died.
fn hung_up<'a>(connections: impl Iterator<Item = (usize, &'a Connection)>) -> rustix::io::Result<Vec<usize>> {
    let (places, mut fds): (Vec<usize>, Vec<PollFd<'_>>) = connections
        .map(|(place, connection)| (place, PollFd::from_borrowed_fd(connection.fd(), PollFlags::RDHUP)))
        .unzip();
    retry_on_intr(|| poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })))?;
    Ok(places.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(place, _)| place).collect())
}
