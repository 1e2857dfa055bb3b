//! A TCP connection to a peer, for any protocol: gathers requests, sends and receives without waiting unless told to, counts
//! answers.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::load::Connection;

/// How a peer is asked and how it answers.
pub(crate) trait Protocol {
    /// Takes one record; may leave the request to [`seal`](Protocol::seal).
    fn encode(&mut self, payload: &[u8], out: &mut Vec<u8>);
    /// What must follow the records taken since the last call before they are answered.
    fn seal(&mut self, _out: &mut Vec<u8>) {}
    /// Groups of records that were sealed and are not answered.
    fn groups(&self) -> usize {
        0
    }
    /// Reads one answer from the front: how many bytes it has, and how many records it answers. `None` if it is not
    /// complete. May answer itself.
    fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Option<(usize, usize)>>;
}

/// A connection with a protocol.
pub(crate) struct Wire<P> {
    stream: TcpStream,
    protocol: P,
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    /// Bytes of `input` in use.
    received: usize,
    unsealed: bool,
}

/// Sealed groups in flight: one that is being answered, and one so that the peer need not wait for the next. Records that
/// arrive in the meantime share a third: the busier the peer, the larger its groups.
const GROUPS_MAX: usize = 2;
/// More than any one answer.
const INPUT: usize = 1 << 20;

impl<P: Protocol> Wire<P> {
    pub(crate) fn new(stream: TcpStream, protocol: P) -> Result<Wire<P>> {
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        let input = vec![0; INPUT];
        Ok(Wire { stream, protocol, out: Vec::new(), sent: 0, input, received: 0, unsealed: false })
    }

    /// Seals and sends, as far as that goes without waiting.
    fn transmit(&mut self) -> Result<()> {
        if self.unsealed && self.protocol.groups() < GROUPS_MAX {
            self.unsealed = false;
            self.protocol.seal(&mut self.out);
        }
        while self.sent < self.out.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::io::retry_on_intr(|| send(&self.stream, &self.out[self.sent..], flags)) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(io::Error::from(error)).context("send"),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// True if something was received.
    fn receive(&mut self, flags: RecvFlags) -> Result<bool> {
        let room = &mut self.input[self.received..];
        match rustix::io::retry_on_intr(|| recv(&self.stream, &mut *room, flags)) {
            Ok((0, _)) => bail!("the peer closed the connection"),
            Ok((count, _)) => {
                self.received += count;
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(io::Error::from(error)).context("receive"),
        }
    }

    fn count(&mut self) -> Result<usize> {
        let (mut at, mut answers) = (0, 0);
        while let Some((size, count)) = self.protocol.decode(&self.input[at..self.received], &mut self.out)? {
            at += size;
            answers += count;
        }
        self.input.copy_within(at..self.received, 0);
        self.received -= at;
        if self.received == self.input.len() {
            bail!("an answer of more than {INPUT} bytes");
        }
        Ok(answers)
    }
}

impl<P: Protocol> Connection for Wire<P> {
    fn submit(&mut self, payload: &[u8]) -> Result<()> {
        self.protocol.encode(payload, &mut self.out);
        self.unsealed = true;
        Ok(())
    }

    fn answers(&mut self, wait: bool) -> Result<usize> {
        loop {
            self.transmit()?;
            // Asleep in the receiving call it would never send the rest.
            let sleep = wait && !self.unsent();
            if self.receive(if sleep { RecvFlags::empty() } else { RecvFlags::DONTWAIT })? {
                let answers = self.count()?;
                self.transmit()?;
                if answers > 0 || !wait {
                    return Ok(answers);
                }
            } else if wait {
                let mut fds = [PollFd::new(&self.stream, PollFlags::IN | PollFlags::OUT)];
                rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
            } else {
                return Ok(0);
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn unsent(&self) -> bool {
        self.sent < self.out.len()
    }
}

/// Length of the first line, with its end, if it is complete.
pub(crate) fn line(input: &[u8]) -> Option<usize> {
    input.windows(2).position(|pair| pair == b"\r\n").map(|at| at + 2)
}

/// What a peer said that was not expected, short enough for a message.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).trim().to_owned()
}
