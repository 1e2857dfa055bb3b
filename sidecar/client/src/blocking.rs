//! The blocking client: the standard library's Unix socket, no runtime.
//!
//! Called by apps; calls `session` for everything but waiting. The socket stays in blocking mode and each call says whether
//! it may sleep. The one rule against deadlock lives in `Client::exchange`: while bytes wait to be sent it never sleeps on
//! one direction alone, because a sidecar whose acks are not read stops reading.

mod table;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    shutdown, socket_with,
};
use tailwind_protocol::history::History;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::socket::{READ_ANYWHERE, READ_TAIL, Request};

use crate::session::{ReadItem, Reply, SEND_AT, Session};
use crate::types::{Ack, Event, FollowEvent, Options, PassedBarrier, Position, RoleInfo, Start, Ticket, Welcome};
use crate::{Error, Reserved, Result};

pub use table::{LocalTable, Table};

/// Looks at the ring between two looks at the clock: both cost some 25 ns.
const SPINS_PER_CLOCK: u32 = 16;

/// The system lets a connection wait for room in the listener's queue, without end if nobody accepts.
fn connect_within(path: &Path, timeout: Option<Duration>) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // To the system, zero would mean no timeout.
    let timeout = timeout.map(|timeout| timeout.max(Duration::from_millis(1)));
    set_socket_timeout(&socket, Timeout::Send, timeout)?;
    let address = SocketAddrUnix::new(path)?;
    despite_signals(timeout, || connect(&socket, &address))?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(UnixStream::from(socket))
}

/// Repeats a call that waits for at most the timeout while signals interrupt it, though not for longer than the timeout again:
/// the system begins each wait from the start.
fn despite_signals<T>(
    timeout: Option<Duration>,
    mut wait: impl FnMut() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    let mut interrupted = None;
    loop {
        match wait() {
            Err(Errno::INTR) => {
                let since = interrupted.get_or_insert_with(Instant::now);
                if timeout.is_some_and(|timeout| since.elapsed() >= timeout) {
                    return Err(Errno::AGAIN);
                }
            }
            waited => return waited,
        }
    }
}

/// One connection to a sidecar.
pub struct Client {
    stream: UnixStream,
    session: Session,
    timeout: Option<Duration>,
    spin: Duration,
}

impl Client {
    /// Connects with the default options. Fails with what the sidecar answered to the hello, or [`Error::Connect`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Client> {
        Client::connect_with(path, &Options::default())
    }

    /// Connects.
    pub fn connect_with(path: impl AsRef<Path>, options: &Options) -> Result<Client> {
        let path = path.as_ref();
        let mut client = Client::greet(path, options)?;
        if client.session.open_ring().is_err() {
            // If this process cannot map it for any reason, the socket alone will do.
            client = Client::greet(path, &Options { socket_only: true, ..options.clone() })?;
        }
        Ok(client)
    }

    fn greet(path: &Path, options: &Options) -> Result<Client> {
        let failed = |source| Error::Connect { path: path.to_owned(), source };
        let stream = connect_within(path, options.timeout).map_err(failed)?;
        let session = Session::new(options.hold, !options.socket_only);
        // On a single core a spinning client keeps the sidecar from working.
        let spin =
            if available_parallelism().is_ok_and(|cores| cores.get() > 1) { options.spin } else { Duration::ZERO };
        let mut client = Client { stream, session, timeout: None, spin };
        client.set_timeout(options.timeout).map_err(failed)?;
        client.wait(Session::take_reply)?.welcome()?;
        Ok(client)
    }

    /// Changes [`Options::timeout`].
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // To the system, zero would mean no timeout.
        self.timeout = timeout.map(|t| t.max(Duration::from_millis(1)));
        self.stream.set_read_timeout(self.timeout)
    }

    /// The sidecar's answer to the hello.
    pub fn welcome(&self) -> &Welcome {
        self.session.welcome()
    }

    /// The sidecar's role: by the welcome, or by the last role frame that came with an answer to any call since.
    pub fn role_info(&self) -> &RoleInfo {
        self.session.role_info()
    }

    /// Waits for a change of role that no earlier call of this function has returned.
    /// An app that answers its own clients from memory keeps a connection in this call, to learn at once that it must not.
    pub fn next_role(&mut self) -> Result<RoleInfo> {
        self.finish_read()?;
        self.wait(|session| Ok(session.take_role()))
    }
}

/// Appending.
impl Client {
    /// Appends one record and waits until every current backup has it.
    pub fn append(&mut self, payload: &[u8]) -> Result<Lsn> {
        let ticket = self.submit(payload)?;
        self.wait_for(ticket)
    }

    /// Appends several records, of which all or none survive, and waits; the LSN is the last one's.
    pub fn append_batch<B: AsRef<[u8]>>(&mut self, records: &[B]) -> Result<Lsn> {
        let ticket = self.submit_batch(records)?;
        self.wait_for(ticket)
    }

    /// Takes one record without waiting for its ack. Small records gather here until some KiB have come together or a call
    /// waits; [`pump`](Client::pump) sends them at once. An error means that this record was not taken.
    pub fn submit(&mut self, payload: &[u8]) -> Result<Ticket> {
        self.make_room()?;
        self.session.submit(payload)
    }

    /// Takes a batch without waiting for its ack, as [`submit`](Client::submit) does.
    pub fn submit_batch<B: AsRef<[u8]>>(&mut self, records: &[B]) -> Result<Ticket> {
        self.make_room()?;
        self.session.submit_batch(records)
    }

    /// Room for a record of this length that is made where it is sent from, without a copy if the client has a ring.
    pub fn reserve(&mut self, length: usize) -> Result<Reserved<'_>> {
        self.make_room()?;
        self.session.reserve(length)?;
        Ok(Reserved { session: &mut self.session, length })
    }

    /// Waits for the answer to one append. Answers to others are kept for `wait`, `next_ack` or `flush`.
    pub fn wait_for(&mut self, ticket: Ticket) -> Result<Lsn> {
        self.wait(|session| session.take_answer(ticket)).map_err(|error| error.of_append(ticket))
    }

    /// Waits for the oldest answer that has not been taken; `None` if nothing is in flight.
    pub fn next_ack(&mut self) -> Result<Option<Ack>> {
        self.wait(|session| Ok(session.take_ack()))
    }

    /// The oldest answer that has been received and not been taken, without a system call. Submitting receives answers on
    /// the side, `pump` on demand; with a ring this looks for them itself.
    pub fn try_next_ack(&mut self) -> Option<Ack> {
        if let Some(Some(ack)) = self.session.take_ack() {
            return Some(ack);
        }
        self.session.receive_from_ring();
        self.session.take_ack().flatten()
    }

    /// Waits until nothing is in flight, and takes all answers. The LSN is the last one acknowledged, if there was anything
    /// to wait for. Stops at the first append that failed; call again for the rest.
    pub fn flush(&mut self) -> Result<Option<Lsn>> {
        let mut last = None;
        while let Some(ack) = self.next_ack()? {
            last = Some(ack.outcome?);
        }
        Ok(last)
    }

    /// Hands what `submit` has gathered to the socket and takes in what the sidecar has sent, as far as either goes without
    /// waiting. Then see [`try_next_ack`](Client::try_next_ack) and [`role_info`](Client::role_info).
    pub fn pump(&mut self) -> Result<()> {
        self.session.check()?;
        self.transmit();
        self.receive(RecvFlags::DONTWAIT);
        // The caller may sleep on the socket now. The sidecar may wait for the room of the answers that were taken.
        while !self.session.may_sleep() {
            self.transmit();
            self.session.receive_from_ring();
        }
        self.transmit();
        Ok(())
    }

    /// Hands what `submit` has gathered to the sidecar, as far as that goes without waiting, and takes nothing in. For a caller
    /// that now looks for answers with [`try_next_ack`](Client::try_next_ack) for a while: until its next
    /// [`pump`](Client::pump) the sidecar need not wake it.
    pub fn hand_over(&mut self) -> Result<()> {
        self.session.check()?;
        self.session.awake();
        self.transmit();
        Ok(())
    }

    /// Appends that are submitted and not answered.
    pub fn in_flight(&self) -> usize {
        self.session.in_flight()
    }
}

/// Reading and the rest.
impl Client {
    /// Reads acknowledged records from `start` on, at most `limit` (0: all that there are now).
    pub fn read(&mut self, start: impl Into<Start>, limit: u64) -> Result<Records<'_>> {
        let start = start.into();
        self.finish_read()?;
        self.session.start_read(start, limit, 0);
        Ok(Records { reading: Reading { client: self }, failed: false })
    }

    /// The same in any role of the sidecar: off the primary it ends at the last record of which this sidecar knows that it is
    /// acknowledged, so that later ones may be missing. Needs a sidecar that can follow, as `follow` does.
    pub fn read_anywhere(&mut self, start: impl Into<Start>, limit: u64) -> Result<Records<'_>> {
        let start = start.into();
        self.session.check_follow("a read anywhere")?;
        self.finish_read()?;
        self.session.start_read(start, limit, READ_ANYWHERE);
        Ok(Records { reading: Reading { client: self }, failed: false })
    }

    /// Reads acknowledged records from `start` on, and then new ones as they are acknowledged.
    pub fn tail(&mut self, start: impl Into<Start>) -> Result<Tail<'_>> {
        let start = start.into();
        self.finish_read()?;
        self.session.start_read(start, 0, READ_TAIL);
        Ok(Tail { reading: Reading { client: self }, next: start.from.max(Lsn(1)) })
    }

    /// Follows the log from `start` on, or with 0 from the first record that can be read, in any role of the sidecar, until it is
    /// primary and every record has been seen. Fails
    /// with [`Error::Refused`] and [`ErrorCode::UnsupportedVersion`](crate::ErrorCode::UnsupportedVersion) at a sidecar of an
    /// earlier release.
    pub fn follow(&mut self, start: impl Into<Start>) -> Result<Follow<'_>> {
        let start = start.into();
        self.session.check_follow("a follow")?;
        self.finish_read()?;
        self.session.start_follow(start);
        Ok(Follow { reading: Reading { client: self }, next: start.from })
    }

    /// A position of the primary's log that was taken after the call began, asked through any sidecar of the group. Needs a
    /// sidecar that can follow, and a connection that does not.
    pub fn position(&mut self) -> Result<Position> {
        self.session.check_follow("a position")?;
        self.ask(&Request::Position)?.position()
    }

    /// Returns once it is proved that this sidecar was still primary after the call began.
    pub fn barrier(&mut self) -> Result<PassedBarrier> {
        self.ask(&Request::Barrier)?.passed()
    }

    /// Returns once everything that was appended before the call is on disk at every member, in any durability of the group;
    /// the last record of which that is true. Takes a sync of the slowest disk, so the timeout should leave room for it.
    pub fn sync(&mut self) -> Result<Lsn> {
        self.ask(&Request::Sync)?.synced()
    }

    /// Deletes records below `below`, in whole segments; returns the first that can still be read.
    pub fn trim(&mut self, below: Lsn) -> Result<Lsn> {
        self.ask(&Request::Trim { below: below.0 })?.trimmed()
    }

    /// The sidecar's report, a JSON document.
    pub fn status(&mut self) -> Result<String> {
        self.ask(&Request::Status)?.status()
    }

    fn ask(&mut self, request: &Request<'_>) -> Result<Reply> {
        self.finish_read()?;
        self.session.check()?;
        self.session.ask(request);
        self.wait(Session::take_reply)
    }
}

/// Waiting.
impl Client {
    /// Exchanges bytes until `take` finds what it wants.
    fn wait<T>(&mut self, mut take: impl FnMut(&mut Session) -> Result<Option<T>>) -> Result<T> {
        loop {
            if let Some(taken) = take(&mut self.session)? {
                return Ok(taken);
            }
            self.exchange()?;
        }
    }

    /// Waits for the end of a read that was dropped early.
    fn finish_read(&mut self) -> Result<()> {
        self.wait(|session| Ok(session.finish_read()))
    }

    /// Bounds what `submit` gathers. Never waits for an ack, which may need more appends than there are yet; but reads those
    /// that have come, so that the sidecar seldom finds its way blocked.
    fn make_room(&mut self) -> Result<()> {
        self.finish_read()?;
        if self.session.is_due() {
            self.transmit();
        }
        if self.session.gathered() < SEND_AT {
            return Ok(());
        }
        loop {
            self.session.check()?;
            self.transmit();
            self.look();
            if self.session.gathered() == 0 {
                return Ok(());
            }
            if self.session.may_sleep() {
                self.poll_both_ways()?;
                self.receive(RecvFlags::DONTWAIT);
            }
            self.session.awake();
        }
    }

    /// Sends what waits to be sent and sleeps until the sidecar has taken or sent something.
    fn exchange(&mut self) -> Result<()> {
        self.session.check()?;
        self.transmit();
        if self.session.receive_from_ring() {
            return Ok(());
        }
        if self.session.waits_for_socket() {
            self.poll_both_ways()?;
            self.receive(RecvFlags::DONTWAIT);
            return Ok(());
        }
        if self.spin() {
            return Ok(());
        }
        let came = !self.session.may_sleep() || self.receive(RecvFlags::empty());
        self.session.awake();
        if came { Ok(()) } else { Err(self.timed_out()) }
    }

    fn spin(&mut self) -> bool {
        if self.spin.is_zero() {
            return false;
        }
        let deadline = Instant::now() + self.spin;
        loop {
            // The clock costs more than a look at the ring.
            for _ in 0..if self.session.has_ring() { SPINS_PER_CLOCK } else { 1 } {
                if self.look() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= deadline {
                return false;
            }
        }
    }

    /// Takes what has come, without waiting.
    fn look(&mut self) -> bool {
        if self.session.has_ring() { self.session.receive_from_ring() } else { self.receive(RecvFlags::DONTWAIT) }
    }

    /// Sleeps until the sidecar has sent something or, if bytes wait for the socket, has taken something.
    fn poll_both_ways(&self) -> Result<()> {
        let timeout = self.timeout.and_then(|t| Timespec::try_from(t).ok());
        let out = if self.session.waits_for_socket() { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN | out)];
        match despite_signals(self.timeout, || poll(&mut fds, timeout.as_ref())) {
            Ok(0) | Err(Errno::AGAIN) => Err(self.timed_out()),
            // Other errors show when the socket is read.
            _ => Ok(()),
        }
    }

    fn transmit(&mut self) {
        let stream = &self.stream;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        self.session.transmit(|bytes| Ok(rustix::io::retry_on_intr(|| send(stream, bytes, flags))?));
        if self.session.has_failed_to_send() {
            // A request without its end will have no answer: the sidecar ends the connection.
            let _ = shutdown(stream, Shutdown::Write);
        }
    }

    fn receive(&mut self, flags: RecvFlags) -> bool {
        let stream = &self.stream;
        let timeout = self.timeout;
        if self.session.expects_file() {
            let mut file = None;
            let came = self.session.receive(|room| {
                let (size, passed) = despite_signals(timeout, || tailwind_ring::receive(stream, room, flags))?;
                file = passed;
                Ok(size)
            });
            self.session.keep_file(file);
            return came;
        }
        self.session
            .receive(|room| Ok(despite_signals(timeout, || recv(stream, &mut *room, flags).map(|(size, _)| size))?))
    }

    fn timed_out(&self) -> Error {
        Error::TimedOut { after: self.timeout.unwrap_or_default(), in_flight: None }
    }
}

/// For an app that waits in its own poll loop: call [`pump`](Client::pump) before each wait. Readable then means that `pump`
/// finds an answer, a role frame or the end.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A read, tail or follow that borrows its client. Dropped early it is stopped, and the client's next call waits until the
/// sidecar has confirmed that.
struct Reading<'c> {
    client: &'c mut Client,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.client.session.stop_read();
        // The sidecar has only so many places for reads.
        self.client.transmit();
    }
}

/// A read: as an iterator it copies each record, [`next_record`](Records::next_record) lends it.
///
/// Dropped early, it leaves the client usable: the rest is stopped, and dropped as it comes in.
pub struct Records<'c> {
    reading: Reading<'c>,
    failed: bool,
}

impl Records<'_> {
    /// The history of what has been handed out: a further read continues with it and the next LSN.
    pub fn history(&self) -> History {
        self.reading.client.session.history()
    }

    /// The next record, lent until the next call; `None` at the end of the read.
    pub fn next_record(&mut self) -> Result<Option<(Lsn, &[u8])>> {
        match self.reading.client.wait(Session::next_item)? {
            ReadItem::Record => Ok(Some(self.reading.client.session.take_record())),
            // Only a tail catches up; a read that says so has nothing more to give.
            _ => Ok(None),
        }
    }
}

/// Ends after an error, unless it is a time-out: a read continues after that.
impl Iterator for Records<'_> {
    type Item = Result<(Lsn, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let record = self.next_record().map(|record| record.map(|(lsn, payload)| (lsn, payload.to_vec())));
        self.failed = matches!(&record, Err(error) if !matches!(error, Error::TimedOut { .. }));
        record.transpose()
    }
}

/// A tail. Dropped, it leaves the client usable, as [`Records`] does.
pub struct Tail<'c> {
    reading: Reading<'c>,
    next: Lsn,
}

impl Tail<'_> {
    /// Waits for what comes next; `None` if the sidecar has ended the tail. A time-out leaves the tail as it was.
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>> {
        match self.reading.client.wait(Session::next_item)? {
            ReadItem::Record => {
                let (lsn, payload) = self.reading.client.session.take_record();
                self.next = lsn.next();
                Ok(Some(Event::Record(lsn, payload)))
            }
            ReadItem::CaughtUp(next) => Ok(Some(Event::CaughtUp { next })),
            // The session lets only a follow have lags and a turn.
            ReadItem::Lag { .. } | ReadItem::Turn { .. } | ReadItem::Ended => Ok(None),
        }
    }

    /// The history of what has been handed out: a further read continues with it and [`next_lsn`](Tail::next_lsn).
    pub fn history(&self) -> History {
        self.reading.client.session.history()
    }

    /// The record that a further read would continue with.
    pub fn next_lsn(&self) -> Lsn {
        self.next
    }

    /// Stops the tail, waits until the sidecar has confirmed it, and returns [`next_lsn`](Tail::next_lsn).
    pub fn stop(self) -> Result<Lsn> {
        let next = self.next;
        self.reading.client.session.stop_read();
        self.reading.client.finish_read()?;
        Ok(next)
    }
}

/// A follow. Dropped, it leaves the client usable, as [`Records`] does.
pub struct Follow<'c> {
    reading: Reading<'c>,
    next: Lsn,
}

impl Follow<'_> {
    /// Waits for what comes next. After a [`FollowEvent::Turn`], `None`: drop the follow, and append. A time-out leaves the
    /// follow as it was.
    pub fn next_event(&mut self) -> Result<Option<FollowEvent<'_>>> {
        match self.reading.client.wait(Session::next_item)? {
            ReadItem::Record => {
                let (lsn, payload) = self.reading.client.session.take_record();
                self.next = lsn.next();
                Ok(Some(FollowEvent::Record(lsn, payload)))
            }
            ReadItem::CaughtUp(next) => {
                self.next = next;
                Ok(Some(FollowEvent::CaughtUp { next }))
            }
            ReadItem::Lag { acked, behind, stale } => Ok(Some(FollowEvent::Lag { acked, behind, stale })),
            ReadItem::Turn { epoch, next } => {
                self.next = next;
                Ok(Some(FollowEvent::Turn { epoch, next }))
            }
            ReadItem::Ended => Ok(None),
        }
    }

    /// The history of what has been handed out: a further follow continues with it and [`next_lsn`](Follow::next_lsn).
    pub fn history(&self) -> History {
        self.reading.client.session.history()
    }

    /// The record that a further follow would continue with.
    pub fn next_lsn(&self) -> Lsn {
        self.next
    }

    /// Stops the follow, waits until the sidecar has confirmed it, and returns [`next_lsn`](Follow::next_lsn).
    pub fn stop(self) -> Result<Lsn> {
        let next = self.next;
        self.reading.client.session.stop_read();
        self.reading.client.finish_read()?;
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_signals_interrupt_ends() {
        let timeout = Some(Duration::from_millis(20));
        let interrupted = || -> rustix::io::Result<()> { Err(Errno::INTR) };
        assert_eq!(despite_signals(timeout, interrupted), Err(Errno::AGAIN));
        let mut left = 3;
        let answered = || {
            left -= 1;
            if left > 0 { Err(Errno::INTR) } else { Ok(left) }
        };
        assert_eq!(despite_signals(None, answered), Ok(0));
    }
}
