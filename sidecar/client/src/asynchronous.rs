//! The asynchronous client, on `tokio`. The same functions as [`blocking`](crate::blocking), where they are described.
//!
//! Called by apps; calls `session` for everything but waiting. Every future here may be dropped early: state changes only
//! between waits, so nothing received is lost. An append whose future was dropped is in flight, its answer to be taken with
//! `next_ack` or `flush`, or was never taken, if there was no room for it yet: `submit` tells which. That makes `next_ack`,
//! `next_role` and `next_event` fit for `select!`.
//!
//! ```no_run
//! use tailwind_client::asynchronous::Client;
//!
//! # async fn example() -> Result<(), tailwind_client::Error> {
//! let mut client = Client::connect("/run/tailwind/default.sock").await?;
//! let lsn = client.append(b"one").await?;
//! println!("record {lsn} is replicated");
//! # Ok(())
//! # }
//! ```

mod table;

use std::path::Path;
use std::time::Duration;

use rustix::net::{RecvFlags, Shutdown, shutdown};
use tailwind_protocol::history::History;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::socket::{READ_ANYWHERE, READ_TAIL, Request};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::session::{ReadItem, Reply, SEND_AT, Session};
use crate::types::{Ack, Event, FollowEvent, Options, PassedBarrier, Position, RoleInfo, Start, Ticket, Welcome};
use crate::{Error, Reserved, Result};

pub use table::{LocalTable, Table};

/// One connection to a sidecar.
pub struct Client {
    stream: UnixStream,
    session: Session,
    timeout: Option<Duration>,
}

impl Client {
    /// Connects with the default options.
    pub async fn connect(path: impl AsRef<Path>) -> Result<Client> {
        Client::connect_with(path, &Options::default()).await
    }

    /// Connects.
    pub async fn connect_with(path: impl AsRef<Path>, options: &Options) -> Result<Client> {
        let path = path.as_ref();
        let mut client = Client::greet(path, options).await?;
        if client.session.open_ring().is_err() {
            // If this process cannot map it for any reason, the socket alone will do.
            client = Client::greet(path, &Options { socket_only: true, ..options.clone() }).await?;
        }
        Ok(client)
    }

    async fn greet(path: &Path, options: &Options) -> Result<Client> {
        let failed = |source| Error::Connect { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).await.map_err(failed)?;
        let session = Session::new(options.hold, !options.socket_only);
        let mut client = Client { stream, session, timeout: options.timeout };
        client.wait(Session::take_reply).await?.welcome()?;
        Ok(client)
    }

    /// Changes [`Options::timeout`].
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// The sidecar's answer to the hello.
    pub fn welcome(&self) -> &Welcome {
        self.session.welcome()
    }

    /// The sidecar's role, by its last frame that named it.
    pub fn role_info(&self) -> &RoleInfo {
        self.session.role_info()
    }

    /// Waits for a change of role that no earlier call has returned.
    pub async fn next_role(&mut self) -> Result<RoleInfo> {
        self.finish_read().await?;
        self.wait(|session| Ok(session.take_role())).await
    }
}

/// Appending.
impl Client {
    /// Appends one record and waits until every current backup has it.
    pub async fn append(&mut self, payload: &[u8]) -> Result<Lsn> {
        let ticket = self.submit(payload).await?;
        self.wait_for(ticket).await
    }

    /// Appends several records, of which all or none survive, and waits; the LSN is the last one's.
    pub async fn append_batch<B: AsRef<[u8]>>(&mut self, records: &[B]) -> Result<Lsn> {
        let ticket = self.submit_batch(records).await?;
        self.wait_for(ticket).await
    }

    /// Takes one record without waiting for its ack. An error means that this record was not taken.
    pub async fn submit(&mut self, payload: &[u8]) -> Result<Ticket> {
        self.make_room().await?;
        self.session.submit(payload)
    }

    /// Takes a batch without waiting for its ack.
    pub async fn submit_batch<B: AsRef<[u8]>>(&mut self, records: &[B]) -> Result<Ticket> {
        self.make_room().await?;
        self.session.submit_batch(records)
    }

    /// Room for a record of this length that is made where it is sent from, without a copy if the client has a ring.
    pub async fn reserve(&mut self, length: usize) -> Result<Reserved<'_>> {
        self.make_room().await?;
        self.session.reserve(length)?;
        Ok(Reserved { session: &mut self.session, length })
    }

    /// Waits for the answer to one append. Answers to others are kept.
    pub async fn wait_for(&mut self, ticket: Ticket) -> Result<Lsn> {
        self.wait(|session| session.take_answer(ticket)).await.map_err(|error| error.of_append(ticket))
    }

    /// Waits for the oldest answer that has not been taken; `None` if nothing is in flight.
    pub async fn next_ack(&mut self) -> Result<Option<Ack>> {
        self.wait(|session| Ok(session.take_ack())).await
    }

    /// The oldest answer that has been received and not been taken, without waiting.
    pub fn try_next_ack(&mut self) -> Option<Ack> {
        if let Some(Some(ack)) = self.session.take_ack() {
            return Some(ack);
        }
        self.session.receive_from_ring();
        self.session.take_ack().flatten()
    }

    /// Waits until nothing is in flight, and takes all answers, up to the first append that failed.
    pub async fn flush(&mut self) -> Result<Option<Lsn>> {
        let mut last = None;
        while let Some(ack) = self.next_ack().await? {
            last = Some(ack.outcome?);
        }
        Ok(last)
    }

    /// Hands what `submit` has gathered to the socket and takes in what the sidecar has sent, as far as either goes without
    /// waiting. Then see [`try_next_ack`](Client::try_next_ack) and [`role_info`](Client::role_info).
    pub fn pump(&mut self) -> Result<()> {
        self.session.check()?;
        self.transmit();
        self.receive();
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
    pub async fn read(&mut self, start: impl Into<Start>, limit: u64) -> Result<Records<'_>> {
        let start = start.into();
        self.finish_read().await?;
        self.session.start_read(start, limit, 0);
        Ok(Records { reading: Reading { client: self } })
    }

    /// The same in any role of the sidecar: off the primary, what was acknowledged last may be missing.
    pub async fn read_anywhere(&mut self, start: impl Into<Start>, limit: u64) -> Result<Records<'_>> {
        let start = start.into();
        self.session.check_follow("a read anywhere")?;
        self.finish_read().await?;
        self.session.start_read(start, limit, READ_ANYWHERE);
        Ok(Records { reading: Reading { client: self } })
    }

    /// Reads acknowledged records from `start` on, and then new ones as they are acknowledged.
    pub async fn tail(&mut self, start: impl Into<Start>) -> Result<Tail<'_>> {
        let start = start.into();
        self.finish_read().await?;
        self.session.start_read(start, 0, READ_TAIL);
        Ok(Tail { reading: Reading { client: self }, next: start.from.max(Lsn(1)) })
    }

    /// Follows the log from `start` on, or with 0 from the first record that can be read, in any role of the sidecar, until it is
    /// primary and every record has been seen.
    pub async fn follow(&mut self, start: impl Into<Start>) -> Result<Follow<'_>> {
        let start = start.into();
        self.session.check_follow("a follow")?;
        self.finish_read().await?;
        self.session.start_follow(start);
        Ok(Follow { reading: Reading { client: self }, next: start.from })
    }

    /// A position of the primary's log that was taken after the call began, asked through any sidecar of the group.
    pub async fn position(&mut self) -> Result<Position> {
        self.session.check_follow("a position")?;
        self.ask(&Request::Position).await?.position()
    }

    /// Returns once it is proved that this sidecar was still primary after the call began.
    pub async fn barrier(&mut self) -> Result<PassedBarrier> {
        self.ask(&Request::Barrier).await?.passed()
    }

    /// Returns once everything that was appended before the call is on disk at every member, in any durability of the group;
    /// the last record of which that is true. Takes a sync of the slowest disk, so the timeout should leave room for it.
    pub async fn sync(&mut self) -> Result<Lsn> {
        self.ask(&Request::Sync).await?.synced()
    }

    /// Deletes records below `below`, in whole segments; returns the first that can still be read.
    pub async fn trim(&mut self, below: Lsn) -> Result<Lsn> {
        self.ask(&Request::Trim { below: below.0 }).await?.trimmed()
    }

    /// The sidecar's report, a JSON document.
    pub async fn status(&mut self) -> Result<String> {
        self.ask(&Request::Status).await?.status()
    }

    async fn ask(&mut self, request: &Request<'_>) -> Result<Reply> {
        self.finish_read().await?;
        self.session.check()?;
        self.session.ask(request);
        self.wait(Session::take_reply).await
    }
}

/// Waiting.
impl Client {
    /// Exchanges bytes until `take` finds what it wants.
    async fn wait<T>(&mut self, mut take: impl FnMut(&mut Session) -> Result<Option<T>>) -> Result<T> {
        loop {
            if let Some(taken) = take(&mut self.session)? {
                return Ok(taken);
            }
            self.exchange().await?;
        }
    }

    /// Waits for the end of a read that was dropped early.
    async fn finish_read(&mut self) -> Result<()> {
        self.wait(|session| Ok(session.finish_read())).await
    }

    /// Bounds what `submit` gathers. Never waits for an ack.
    async fn make_room(&mut self) -> Result<()> {
        self.finish_read().await?;
        if self.session.is_due() {
            self.transmit();
        }
        if self.session.gathered() < SEND_AT {
            return Ok(());
        }
        loop {
            self.session.check()?;
            self.transmit();
            self.receive();
            if self.session.gathered() == 0 {
                return Ok(());
            }
            if self.session.may_sleep() {
                self.ready().await?;
            }
            self.session.awake();
        }
    }

    /// Sends what waits to be sent and sleeps until the sidecar has taken or sent something: in both directions while bytes
    /// wait to be sent, because a sidecar whose acks are not read stops reading.
    async fn exchange(&mut self) -> Result<()> {
        self.session.check()?;
        self.transmit();
        if self.session.receive_from_ring() {
            return Ok(());
        }
        if self.session.may_sleep() {
            self.ready().await?;
            self.receive();
        }
        self.session.awake();
        Ok(())
    }

    async fn ready(&self) -> Result<()> {
        let out = self.session.waits_for_socket();
        let interest = if out { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        // Errors show when the socket is read.
        let ready = async { self.stream.ready(interest).await.map_or((), |_| ()) };
        match self.timeout {
            None => ready.await,
            Some(after) => {
                tokio::time::timeout(after, ready).await.map_err(|_| Error::TimedOut { after, in_flight: None })?
            }
        }
        Ok(())
    }

    fn transmit(&mut self) {
        let stream = &self.stream;
        self.session.transmit(|bytes| stream.try_write(bytes));
        if self.session.has_failed_to_send() {
            // As in the blocking client.
            let _ = shutdown(stream, Shutdown::Write);
        }
    }

    fn receive(&mut self) {
        let stream = &self.stream;
        if self.session.expects_file() {
            let mut file = None;
            self.session.receive(|room| {
                stream.try_io(Interest::READABLE, || {
                    let (size, passed) = tailwind_ring::receive(stream, room, RecvFlags::DONTWAIT)?;
                    file = passed;
                    Ok(size)
                })
            });
            self.session.keep_file(file);
        } else {
            self.session.receive(|room| stream.try_read(room));
        }
    }
}

/// A read, tail or follow that borrows its client.
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

/// A read. Dropped early, it leaves the client usable: the rest is stopped, and dropped as it comes in.
pub struct Records<'c> {
    reading: Reading<'c>,
}

impl Records<'_> {
    /// The history of what has been handed out: a further read continues with it and the next LSN.
    pub fn history(&self) -> History {
        self.reading.client.session.history()
    }

    /// The next record, lent until the next call; `None` at the end of the read.
    pub async fn next_record(&mut self) -> Result<Option<(Lsn, &[u8])>> {
        match self.reading.client.wait(Session::next_item).await? {
            ReadItem::Record => Ok(Some(self.reading.client.session.take_record())),
            _ => Ok(None),
        }
    }
}

/// A tail. Dropped, it leaves the client usable, as [`Records`] does.
pub struct Tail<'c> {
    reading: Reading<'c>,
    next: Lsn,
}

impl Tail<'_> {
    /// Waits for what comes next; `None` if the sidecar has ended the tail.
    pub async fn next_event(&mut self) -> Result<Option<Event<'_>>> {
        match self.reading.client.wait(Session::next_item).await? {
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
    pub async fn stop(self) -> Result<Lsn> {
        let next = self.next;
        self.reading.client.session.stop_read();
        self.reading.client.finish_read().await?;
        Ok(next)
    }
}

/// A follow. Dropped, it leaves the client usable, as [`Records`] does.
pub struct Follow<'c> {
    reading: Reading<'c>,
    next: Lsn,
}

impl Follow<'_> {
    /// Waits for what comes next. After a [`FollowEvent::Turn`], `None`: drop the follow, and append.
    pub async fn next_event(&mut self) -> Result<Option<FollowEvent<'_>>> {
        match self.reading.client.wait(Session::next_item).await? {
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
    pub async fn stop(self) -> Result<Lsn> {
        let next = self.next;
        self.reading.client.session.stop_read();
        self.reading.client.finish_read().await?;
        Ok(next)
    }
}
