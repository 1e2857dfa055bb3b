//! The thread that accepts connections and admits those that present a secret.
//!
//! Started and stopped by [`receiver`](super::receiver); passes connections with a valid secret to
//! [`registry`](super::registry), which has them served, and those of readers to
//! [`shares`](super::reading::shares). One thread for all
//! that have not presented one yet, so that each costs a socket and forty bytes and no more. Without a valid hello there is
//! no answer, only a closed connection: at the first wrong byte, after two seconds, or earlier when others need the room.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::reading::shares::Shares;
use super::registry::{Registry, Serve};
use super::wire::{HELLO_SIZE, Side, may_be_hello, parse_hello};

/// The whole hello must arrive within this time of connecting. It fits into one packet, which is sent at once.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Handshakes at a time. One more and the oldest is dropped: a sender sends its hello at once, so that even under a flood
/// it is done before it becomes the oldest.
const HANDSHAKES_MAX: usize = 64;
/// Connections that are accepted before those that wait are looked at again.
const ACCEPTED_AT_ONCE: usize = 16;
/// Pause after a connection could not be accepted, or after the thread could not wait for one, as when the process is out of
/// file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The thread, seen from outside. Dropping it closes the port.
#[derive(Debug)]
pub(super) struct Acceptor {
    address: SocketAddr,
    pub(super) stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

struct Handshakes {
    listener: TcpListener,
    stop: Arc<OwnedFd>,
    registry: Arc<Registry>,
    serve: Serve,
    shares: Arc<Shares>,
    /// Oldest first.
    pending: Vec<PendingConnection>,
    accept_after: Option<Instant>,
}

/// A connection that has not presented its secret yet.
struct PendingConnection {
    stream: TcpStream,
    hello: [u8; HELLO_SIZE],
    filled: usize,
    deadline: Instant,
}

/// How far a handshake is.
enum HandshakeStatus {
    /// The hello has not arrived in full.
    Waiting,
    /// Closed by the peer, wrong, or too late.
    Failed,
    /// The hello is complete.
    Complete,
}

impl Acceptor {
    /// Starts its thread.
    pub(super) fn open(
        listener: TcpListener,
        registry: Arc<Registry>,
        serve: Serve,
        shares: Arc<Shares>,
    ) -> io::Result<Acceptor> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (pending, accept_after) = (Vec::new(), None);
        let handshakes =
            Handshakes { listener, stop: Arc::clone(&stop), registry, serve, shares, pending, accept_after };
        let thread = thread::Builder::new().name("fabric-tcp-acceptor".into()).spawn(move || handshakes.run())?;
        Ok(Acceptor { address, stop, thread: Some(thread) })
    }

    /// Where it listens; the actual port, even if it was bound to port 0.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// False when the thread has ended by itself, which it does only by a panic.
    pub(super) fn is_open(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // An eventfd takes eight bytes, unless its counter is full: then it is readable already.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Handshakes {
    fn run(mut self) {
        while self.turn(Instant::now()) {}
    }

    /// Waits for something to happen and handles it; false when the thread must stop.
    fn turn(&mut self, now: Instant) -> bool {
        self.accept_after = self.accept_after.filter(|after| now < *after);
        let (stopped, ready) = self.wait(now);
        if stopped {
            return false;
        }
        let now = Instant::now();
        // From the back, so that removing one does not move those still to be handled.
        for index in (0..self.pending.len()).rev() {
            match self.pending[index].advance(ready[index], now) {
                HandshakeStatus::Waiting => {}
                HandshakeStatus::Failed => drop(self.pending.remove(index)),
                HandshakeStatus::Complete => self.authenticate(index, now),
            }
        }
        self.accept(now);
        true
    }

    /// Sleeps until the thread must stop, or a connection arrives, sends something or is too late. Which are readable, by
    /// index.
    fn wait(&self, now: Instant) -> (bool, Vec<bool>) {
        let deadlines = self.pending.iter().map(|pending| pending.deadline).chain(self.accept_after);
        let timeout = deadlines.min().map(|deadline| timespec(deadline.saturating_duration_since(now)));
        let accepting = if self.accept_after.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut watched = Vec::with_capacity(2 + self.pending.len());
        watched.push(PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN));
        watched.push(PollFd::from_borrowed_fd(self.listener.as_fd(), accepting));
        watched.extend(self.pending.iter().map(|pending| PollFd::new(&pending.stream, PollFlags::IN)));
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => {
                thread::sleep(ACCEPT_PAUSE);
                // Nothing has said which are ready. None of them blocks.
                let stopped = rustix::io::read(&*self.stop, &mut [0; 8]).is_ok();
                return (stopped, vec![true; self.pending.len()]);
            }
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        (ready(&watched[0]), watched[2..].iter().map(ready).collect())
    }

    fn accept(&mut self, now: Instant) {
        if self.accept_after.is_some() {
            return;
        }
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.pending.len() == HANDSHAKES_MAX {
                        self.drop_oldest(now);
                    }
                    self.pending.push(PendingConnection {
                        stream,
                        hello: [0; HELLO_SIZE],
                        filled: 0,
                        deadline: now + HELLO_TIMEOUT,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(_) => return self.accept_after = Some(now + ACCEPT_PAUSE),
            }
        }
    }

    /// Its hello may have arrived since it was last looked at.
    fn drop_oldest(&mut self, now: Instant) {
        match self.pending[0].advance(true, now) {
            HandshakeStatus::Complete => self.authenticate(0, now),
            HandshakeStatus::Waiting | HandshakeStatus::Failed => drop(self.pending.remove(0)),
        }
    }

    fn authenticate(&mut self, index: usize, now: Instant) {
        let PendingConnection { stream, hello, .. } = self.pending.remove(index);
        let Some((side, secret)) = parse_hello(&hello) else { return };
        // If this fails for want of a thread, the sender sees a closed connection and asks for another.
        if stream.set_nonblocking(false).is_ok() && super::tune(&stream).is_ok() {
            let _ = match side {
                Side::Writing => self.registry.admit(&secret, stream, now, self.serve),
                Side::Reading => self.shares.admit(&secret, stream, now),
            };
        }
    }
}

impl PendingConnection {
    fn advance(&mut self, readable: bool, now: Instant) -> HandshakeStatus {
        if readable {
            // Never more than the hello: what follows it is for the connection reader.
            match self.stream.read(&mut self.hello[self.filled..]) {
                Ok(0) => return HandshakeStatus::Failed,
                Ok(count) => self.filled += count,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => return HandshakeStatus::Failed,
            }
        }
        if self.filled == HELLO_SIZE {
            HandshakeStatus::Complete
        } else if now >= self.deadline || !may_be_hello(&self.hello[..self.filled]) {
            HandshakeStatus::Failed
        } else {
            HandshakeStatus::Waiting
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Ipv4Addr;

    use super::super::wire::{READY, hello};
    use super::*;
    use crate::message::Writer;
    use crate::secret::Secret;

    /// They need no secret, and all of them have connected before the thread looks.
    #[test]
    fn a_burst_of_silent_peers_drops_no_hello() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (registry, secret) = (Arc::new(Registry::new(1, Duration::ZERO)), Secret::random().unwrap());
        registry.expect(Writer(1), secret.clone(), Instant::now());
        let mut writer = connect();
        writer.write_all(&hello(Side::Writing, &secret.digits().unwrap())).unwrap();
        let _silent: Vec<TcpStream> = (0..HANDSHAKES_MAX).map(|_| connect()).collect();
        let serve: Serve = |_, _, mut stream| stream.write_all(&READY).unwrap();
        let _acceptor = Acceptor::open(listener, registry, serve, Arc::new(Shares::new())).unwrap();
        writer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = [1; READY.len()];
        writer.read_exact(&mut answer).unwrap();
        assert_eq!(answer, READY);
    }
}
