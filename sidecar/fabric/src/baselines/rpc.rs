//! `rpc`: one thread receives a channel's messages and hands each to a worker, which copies it into the slot and answers.
//!
//! As in RAMCloud, whose dispatch thread polls the network card and whose workers do the work: each message costs a hand-over
//! between two processors and a copy. [`serve`] is called in the dispatch thread, by [`receiver`](super::receiver) over shared
//! memory and by [`tcp`](crate::tcp)'s registry over TCP.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;

use tailwind_ring::{Consumer, Producer};

use crate::message::Writer;
use crate::tcp::registry::Registry;
use crate::tcp::wire::HEADER_SIZE;

use super::channel::PIPELINE;
use super::frames::{Frame, Frames};
use super::link::wake;
use super::spin_until;

/// Bytes received at a time.
const BUFFER_SIZE: usize = 256 * 1024;
/// Messages between the two threads. An honest sender has no more on their way.
const HANDED_MAX: usize = PIPELINE as usize;

/// A message as it has arrived: its frame's `left` counts what has not.
struct Message {
    frame: Frame,
    bytes: Vec<u8>,
}

/// Serves a channel until either side ends it. `end` makes reads and writes of both threads end.
pub(super) fn serve(
    registry: &Registry,
    writer: Writer,
    requests: impl Read,
    answers: impl Write + Send,
    end: impl Fn() + Sync,
) {
    let (hand, messages) = sync_channel(HANDED_MAX);
    let (give_back, spares) = sync_channel(HANDED_MAX + 1);
    thread::scope(|scope| {
        let worker = || {
            // Every failure has the same result: the end of the connection.
            let _ = work(&messages, &give_back, answers);
            drop(messages);
            end();
        };
        let worker = thread::Builder::new().name("baseline-worker".into()).spawn_scoped(scope, worker);
        if worker.is_ok() {
            let _ = dispatch(Frames::new(writer), registry, requests, &hand, &spares);
        }
        drop(hand);
        end();
    });
}

/// The same over TCP: see [`tcp_receiver`](super::tcp_receiver).
pub(super) fn serve_tcp(registry: &Registry, writer: Writer, stream: &TcpStream) {
    let ready = { stream }.write_all(&0_u64.to_le_bytes());
    let end = || drop(stream.shutdown(Shutdown::Both));
    match ready {
        Ok(()) => serve(registry, writer, stream, stream, end),
        Err(_) => end(),
    }
}

/// Receives messages, whole, and hands them over.
fn dispatch(
    mut frames: Frames,
    registry: &Registry,
    mut requests: impl Read,
    hand: &SyncSender<Message>,
    spares: &Receiver<Vec<u8>>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_SIZE];
    let (mut filled, mut open) = (0, None::<Message>);
    loop {
        match requests.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        let mut taken = 0;
        loop {
            let mut message = match open.take() {
                Some(message) => message,
                None => {
                    let Some(header) = buffer[taken..filled].first_chunk::<HEADER_SIZE>() else { break };
                    let frame = frames.begin(registry, header).ok_or(io::ErrorKind::InvalidData)?;
                    taken += HEADER_SIZE;
                    Message { frame, bytes: spares.try_recv().unwrap_or_default() }
                }
            };
            let count = (message.frame.left as usize).min(filled - taken);
            message.bytes.extend_from_slice(&buffer[taken..taken + count]);
            message.frame.left -= count as u32;
            taken += count;
            if message.frame.left > 0 {
                open = Some(message);
                break;
            }
            hand.send(message).map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        // What is left is a part of a header.
        buffer.copy_within(taken..filled, 0);
        filled -= taken;
    }
}

/// Copies messages into their slots and answers how many there were. Of messages that have come together the last one is
/// answered: an answer speaks for all before it.
fn work(messages: &Receiver<Message>, give_back: &SyncSender<Vec<u8>>, mut answers: impl Write) -> io::Result<()> {
    let (mut applied, mut next) = (0_u64, None);
    while let Some(message) = next.take().or_else(|| receive(messages)) {
        let Message { frame, mut bytes } = message;
        // Also when it is empty: an answer proves that the lending is not over.
        if !frame.lending.write(frame.offset, &bytes) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        applied += 1;
        bytes.clear();
        // Where there are enough of them it goes.
        drop(give_back.try_send(bytes));
        next = messages.try_recv().ok();
        if next.is_none() {
            answers.write_all(&applied.to_le_bytes())?;
        }
    }
    Ok(())
}

/// The next message, after spinning or sleeping; `None` at the end.
fn receive(messages: &Receiver<Message>) -> Option<Message> {
    let mut found = Err(TryRecvError::Empty);
    spin_until(|| {
        found = messages.try_recv();
        !matches!(found, Err(TryRecvError::Empty))
    });
    found.or_else(|_| messages.recv()).ok()
}

/// Messages that arrive through shared memory.
#[derive(Debug)]
pub(super) struct RequestReader<'a> {
    pub(super) requests: Consumer,
    pub(super) socket: &'a UnixStream,
}

impl Read for RequestReader<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        loop {
            let mut count = Ok(0);
            spin_until(|| {
                count = self.requests.read(room);
                count != Ok(0)
            });
            let count = count.map_err(invalid)?;
            if count > 0 {
                if self.requests.release() {
                    wake(self.socket);
                }
                return Ok(count);
            }
            if self.requests.may_sleep() && { self.socket }.read(&mut [0; 64])? == 0 {
                return Ok(0);
            }
            self.requests.awake();
        }
    }
}

impl Drop for RequestReader<'_> {
    fn drop(&mut self) {
        // The sender need not wait for its next look at the socket to learn of the end.
        self.requests.close();
        wake(self.socket);
    }
}

/// Answers that leave through shared memory.
#[derive(Debug)]
pub(super) struct AnswerWriter<'a> {
    pub(super) answers: Producer,
    pub(super) socket: &'a UnixStream,
}

impl Write for AnswerWriter<'_> {
    /// Never waits for room, which a frozen sender would not give: an honest one has room for all that it waits for.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let count = self.answers.write(bytes).map_err(invalid)?;
        if self.answers.publish() {
            wake(self.socket);
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
