//! The thread that takes connections and lets in those that show a secret.
//!
//! Started and stopped by [`receiver`](super::receiver); hands whoever knows a secret to [`registry`](super::registry).
//! One thread for all strangers, so that they cost a socket and forty bytes each and no more. A stranger gets no
//! answer, only a closed connection, as soon as its first wrong byte is seen; who says nothing is sent away after two
//! seconds, or earlier when others want its place.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::registry::Registry;
use super::wire::{HELLO_SIZE, may_be_hello, parse_hello};

/// Within this time of connecting the whole hello must be here. It needs one packet, sent at once.
const HELLO_TIME: Duration = Duration::from_secs(2);
/// Strangers at a time. One more and the one that has waited longest must go: a sender says its hello at once, so that
/// even under a flood it is through before its turn comes.
const VISITORS_MAX: usize = 64;
/// How long no connections are taken after one could not be, as when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The thread, seen from outside. Dropping it closes the port.
#[derive(Debug)]
pub(super) struct Acceptor {
    address: SocketAddr,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

struct Handshakes {
    listener: TcpListener,
    bell: Arc<OwnedFd>,
    registry: Arc<Registry>,
    /// Longest here first.
    pending: Vec<PendingConnection>,
    accept_after: Option<Instant>,
}

/// Somebody who has not yet shown a secret.
struct PendingConnection {
    stream: TcpStream,
    hello: [u8; HELLO_SIZE],
    filled: usize,
    until: Instant,
}

/// What became of a pending.
enum Verdict {
    /// The hello is not all here.
    Waits,
    /// Gone, wrong, or too late.
    Out,
    /// The hello is all here.
    Knocks,
}

impl Acceptor {
    /// Listens on `address`.
    pub(super) fn open(address: SocketAddr, registry: Arc<Registry>) -> io::Result<Acceptor> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let handshakes =
            Handshakes { listener, bell: Arc::clone(&bell), registry, pending: Vec::new(), accept_after: None };
        let thread = thread::Builder::new().name("fabric-tcp-acceptor".into()).spawn(move || handshakes.run())?;
        Ok(Acceptor { address, bell, thread: Some(thread) })
    }

    /// Where it listens; the port is the real one even if any was asked for.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// False when the thread has ended, which it never does by itself unless something is broken.
    pub(super) fn is_open(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // An eventfd takes eight bytes, unless its counter is full: then it is readable already.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Handshakes {
    fn run(mut self) {
        while self.turn(Instant::now()).is_ok_and(|more| more) {}
    }

    /// Waits for something to happen and deals with it; false when the bell has rung.
    fn turn(&mut self, now: Instant) -> io::Result<bool> {
        self.accept_after = self.accept_after.filter(|after| now < *after);
        let (rung, ready) = self.wait(now)?;
        if rung {
            return Ok(false);
        }
        let now = Instant::now();
        // From the back, so that removing one does not move those still to be looked at.
        for place in (0..self.pending.len()).rev() {
            match self.pending[place].look(ready[place], now) {
                Verdict::Waits => {}
                Verdict::Out => drop(self.pending.remove(place)),
                Verdict::Knocks => self.let_in(place, now),
            }
        }
        self.welcome(now);
        Ok(true)
    }

    /// Sleeps until the bell rings, someone connects, says something, or must go. Who is readable, by place.
    fn wait(&self, now: Instant) -> io::Result<(bool, Vec<bool>)> {
        let deadlines = self.pending.iter().map(|pending| pending.until).chain(self.accept_after);
        let timeout = deadlines.min().map(|deadline| timespec(deadline.saturating_duration_since(now)));
        let accepting = if self.accept_after.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut watched = Vec::with_capacity(2 + self.pending.len());
        watched.push(PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN));
        watched.push(PollFd::from_borrowed_fd(self.listener.as_fd(), accepting));
        watched.extend(self.pending.iter().map(|pending| PollFd::new(&pending.stream, PollFlags::IN)));
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        Ok((ready(&watched[0]), watched[2..].iter().map(ready).collect()))
    }

    fn welcome(&mut self, now: Instant) {
        while self.accept_after.is_none() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.pending.len() == VISITORS_MAX {
                        self.pending.remove(0);
                    }
                    self.pending.push(PendingConnection {
                        stream,
                        hello: [0; HELLO_SIZE],
                        filled: 0,
                        until: now + HELLO_TIME,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(_) => self.accept_after = Some(now + ACCEPT_PAUSE),
            }
        }
    }

    fn let_in(&mut self, place: usize, now: Instant) {
        let PendingConnection { stream, hello, .. } = self.pending.remove(place);
        let Some(secret) = parse_hello(&hello) else { return };
        // If the socket or a thread cannot be had, the sender sees a closed connection and asks for another.
        if stream.set_nonblocking(false).is_ok() && super::tune(&stream).is_ok() {
            let _ = self.registry.admit(&secret, stream, now);
        }
    }
}

impl PendingConnection {
    fn look(&mut self, readable: bool, now: Instant) -> Verdict {
        if readable {
            // Never more than the hello: what follows it is for the connection_reader.
            match self.stream.read(&mut self.hello[self.filled..]) {
                Ok(0) => return Verdict::Out,
                Ok(count) => self.filled += count,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => return Verdict::Out,
            }
        }
        if self.filled == HELLO_SIZE {
            Verdict::Knocks
        } else if now >= self.until || !may_be_hello(&self.hello[..self.filled]) {
            Verdict::Out
        } else {
            Verdict::Waits
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}
