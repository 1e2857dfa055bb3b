//! The sender's end of what carries messages in one direction and answers in the other: shared memory or TCP.
//!
//! Used by [`channel`](super::channel). No link allocates, blocks or locks.

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};
use std::{fmt, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use tailwind_ring::{BadPosition, ClientEnd, Consumer, Producer};

use crate::error::ChannelError;

/// A stream of bytes in both directions.
pub(super) trait Link: fmt::Debug + Send {
    /// Takes as many of these bytes as there is room for, the first part first.
    fn send(&mut self, parts: [&[u8]; 2]) -> Result<usize, ChannelError>;
    /// Moves bytes that have arrived to `room`; 0 when there are none.
    fn receive(&mut self, room: &mut [u8]) -> Result<usize, ChannelError>;
    /// An error if the other end has ended the link. What was sent before is not delivered then, as far as its sender can know.
    fn check(&mut self) -> Result<(), ChannelError>;
    /// Readable when something has arrived, or when there is room for what had none, after [`Link::arm`].
    fn readiness(&self) -> BorrowedFd<'_>;
    /// Before sleeping on the readiness; true when there is something already. `full`: room is waited for too.
    fn arm(&mut self, full: bool) -> bool;
}

/// A connection that comes before the deadline, and the time that was left; none if the peer that connected is gone again. The
/// listener does not block.
pub(super) fn next_connection(
    listener: &UnixListener,
    deadline: Instant,
) -> io::Result<Option<(UnixStream, Duration)>> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let wait = Timespec::try_from(left).map_err(io::Error::other)?;
    rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&wait)))?;
    match listener.accept() {
        Ok((socket, _)) => Ok(Some((socket, left))),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Calls of [`Link::check`] between two looks at the socket, each of which is a system call: it tells of a receiver that was
/// killed, which cannot mark its memory.
const CHECKS_PER_LOOK: u32 = 1024;

/// Memory that both processes map, and a socket that wakes either.
#[derive(Debug)]
pub(super) struct ShmLink {
    outgoing: Producer,
    incoming: Consumer,
    socket: UnixStream,
    /// It may have been woken through the socket.
    armed: bool,
    checks: u32,
}

impl ShmLink {
    /// The sender's end, over a non-blocking socket.
    pub(super) fn new(end: ClientEnd, socket: UnixStream) -> ShmLink {
        let ClientEnd { requests: outgoing, answers: incoming } = end;
        ShmLink { outgoing, incoming, socket, armed: false, checks: 0 }
    }

    /// Takes what has come through the socket, and notices its end.
    fn look(&mut self) -> Result<(), ChannelError> {
        let mut bytes = [0; 64];
        loop {
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(ChannelError::Disconnected),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(ChannelError::Disconnected),
            }
        }
    }
}

impl Link for ShmLink {
    fn send(&mut self, parts: [&[u8]; 2]) -> Result<usize, ChannelError> {
        let whole = parts[0].len() + parts[1].len();
        let mut sent = 0;
        if whole <= self.outgoing.size()
            && let Some(room) = self.outgoing.reserve(whole).map_err(protocol)?
        {
            room[..parts[0].len()].copy_from_slice(parts[0]);
            room[parts[0].len()..].copy_from_slice(parts[1]);
            self.outgoing.commit(whole);
            sent = whole;
        } else {
            for part in parts {
                let count = self.outgoing.write(part).map_err(protocol)?;
                sent += count;
                if count < part.len() {
                    break;
                }
            }
        }
        if self.outgoing.publish() {
            wake(&self.socket);
        }
        Ok(sent)
    }

    fn receive(&mut self, room: &mut [u8]) -> Result<usize, ChannelError> {
        let count = self.incoming.read(room).map_err(protocol)?;
        if self.incoming.release() {
            wake(&self.socket);
        }
        Ok(count)
    }

    fn check(&mut self) -> Result<(), ChannelError> {
        self.checks += 1;
        if self.armed || self.checks == CHECKS_PER_LOOK {
            self.checks = 0;
            if std::mem::take(&mut self.armed) {
                self.outgoing.awake();
                self.incoming.awake();
            }
            self.look()?;
        }
        if self.outgoing.is_open() { Ok(()) } else { Err(ChannelError::Revoked) }
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn arm(&mut self, full: bool) -> bool {
        self.armed = true;
        let nothing_arrived = self.incoming.may_sleep();
        let no_room = !full || self.outgoing.may_sleep();
        !(nothing_arrived && no_room && self.outgoing.is_open())
    }
}

fn protocol(_: BadPosition) -> ChannelError {
    ChannelError::Protocol
}

/// Ends the sleep of the other side. If the socket is full it has been woken often enough.
pub(super) fn wake(socket: &UnixStream) {
    let _ = send(socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// A connection.
#[derive(Debug)]
pub(super) struct TcpLink(
    /// Non-blocking.
    pub(super) TcpStream,
);

impl Link for TcpLink {
    fn send(&mut self, parts: [&[u8]; 2]) -> Result<usize, ChannelError> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let slices = parts.map(std::io::IoSlice::new);
        loop {
            match sendmsg(&self.0, &slices, &mut SendAncillaryBuffer::default(), flags) {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(_) => return Err(ChannelError::Disconnected),
            }
        }
    }

    fn receive(&mut self, room: &mut [u8]) -> Result<usize, ChannelError> {
        loop {
            match recv(&self.0, &mut *room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(ChannelError::Disconnected),
                Ok((count, _)) => return Ok(count),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(_) => return Err(ChannelError::Disconnected),
            }
        }
    }

    fn check(&mut self) -> Result<(), ChannelError> {
        Ok(())
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// A socket stays readable until it is read. What finds no room follows an answer, or the next tick.
    fn arm(&mut self, _full: bool) -> bool {
        false
    }
}
