//! The receiver's half of reading: what is shared, and a thread for each channel that answers lookups.
//!
//! Used by [`receiver`](super::receiver). Ordinary reads are those of [`shm`](crate::shm), without this process. An answering
//! thread takes bytes as one of [`tcp`](crate::tcp) does, only through a share and under its lock, so that the proof is the
//! one there. It never waits for a reader: an answer has room, or the channel ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use tailwind_ring::SidecarEnd;

use crate::message::{ReaderId, SlotId};
use crate::reading::{Follow, LEAD_SIZE, READ_CHANNELS_MAX, READS_MAX};
use crate::secret::Secret;
use crate::tcp::reading::shares::SharedSlot;

use super::lookup::{HEAD_SIZE, REQUEST_SIZE, Request, SIZES, head};
use super::meeting;
use super::rpc::{AnswerWriter, RequestReader};

/// What is shared.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    keys: HashMap<u64, (SlotId, Arc<SharedSlot>)>,
    /// By what lookups call them.
    names: HashMap<u64, (SlotId, Arc<SharedSlot>)>,
    follow: Option<Follow>,
}

impl Shares {
    /// Shares a slot's memory under this key, unless it is shared already.
    pub(super) fn share(
        &self,
        slot: SlotId,
        key: u64,
        length: u32,
        file: impl FnOnce() -> io::Result<File>,
    ) -> io::Result<()> {
        if let Entry::Vacant(vacant) = lock(&self.0).keys.entry(key) {
            vacant.insert((slot, Arc::new(SharedSlot::new(slot, key, length, file()?))));
        }
        Ok(())
    }

    /// Gives a slot that is shared a name.
    pub(super) fn name(&self, slot: SlotId, name: u64, follow: Follow) {
        let mut tables = lock(&self.0);
        tables.follow = Some(follow);
        if let Some(share) = tables.keys.values().find(|(of, _)| *of == slot).cloned() {
            tables.names.insert(name, share);
        }
    }

    /// Ends the share of a slot, if there is one: no byte of it is taken any more.
    pub(super) fn end(&self, slot: SlotId) {
        let mut tables = lock(&self.0);
        tables.names.retain(|_, (of, _)| *of != slot);
        let ended: Vec<_> = tables.keys.extract_if(|_, (of, _)| *of == slot).collect();
        drop(tables);
        ended.iter().for_each(|(_, (_, share))| share.end());
    }

    /// Puts the answer into `out`. False: a share is over.
    fn answer(&self, request: &Request, out: &mut Vec<u8>) -> bool {
        out.clear();
        out.resize(HEAD_SIZE, 0);
        let (shares, follow) = {
            let tables = lock(&self.0);
            let share = |(key, _): &_| tables.keys.get(key).map(|(_, share)| Arc::clone(share));
            (request.reads.each_ref().map(share), tables.follow)
        };
        for (share, (_, at)) in shares.iter().zip(&request.reads) {
            if !share.as_ref().is_some_and(|share| append(share, at.start, at.end - at.start, out)) {
                out.clear();
                out.extend(head(0, true));
                return false;
            }
        }
        let lead = follow.and_then(|follow| follow(request.question(), &out[HEAD_SIZE..]));
        let at = out.len();
        out.resize(at + LEAD_SIZE as usize, 0);
        if let Some(lead) = lead {
            let length = lead.bytes.end.saturating_sub(lead.bytes.start);
            let fits = request.least() + u64::from(length) <= u64::from(request.room);
            let share = lock(&self.0).names.get(&lead.name).map(|(_, share)| Arc::clone(share));
            if fits && share.is_some_and(|share| append(&share, lead.bytes.start, length, out)) {
                out[at..at + LEAD_SIZE as usize].copy_from_slice(&lead.to_bytes());
            }
        }
        let length = out.len() - HEAD_SIZE;
        out[..HEAD_SIZE].copy_from_slice(&head(length, false));
        true
    }
}

/// Appends bytes of a share to `out`, if it has them and has not ended.
fn append(share: &SharedSlot, offset: u32, length: u32, out: &mut Vec<u8>) -> bool {
    let at = out.len();
    if !share.holds(offset, length) {
        return false;
    }
    out.resize(at + length as usize, 0);
    let taken = share.read(offset, &mut out[at..]);
    if !taken {
        out.truncate(at);
    }
    taken
}

/// The read channels.
#[derive(Debug, Default)]
pub(super) struct ReadConnections {
    /// Oldest first.
    open: Vec<ReadConnection>,
}

#[derive(Debug)]
struct ReadConnection {
    reader: ReaderId,
    socket: Arc<UnixStream>,
    thread: JoinHandle<()>,
}

impl ReadConnections {
    /// Passes new memory to the reader that waits at `name`, and starts to answer it. Its oldest channel ends if it has too many.
    pub(super) fn connect(
        &mut self,
        shares: &Arc<Shares>,
        reader: ReaderId,
        name: &str,
        secret: &Secret,
    ) -> io::Result<()> {
        self.open.retain(|open| !open.thread.is_finished());
        let mut own = self.open.iter().filter(|open| open.reader == reader).count();
        self.stop(|of| {
            let is_over = of == reader && own >= READ_CHANNELS_MAX;
            own -= usize::from(is_over);
            is_over
        });
        let (socket, end) = meeting::pass(name, secret, SIZES)?;
        let socket = Arc::new(socket);
        let (shares, stream) = (Arc::clone(shares), Arc::clone(&socket));
        let thread = thread::Builder::new().name("baseline-lookup".into()).spawn(move || {
            // Every failure has the same result: the end of the connection.
            let _ = serve(&shares, end, &stream);
            drop(stream.shutdown(Shutdown::Both));
        })?;
        self.open.push(ReadConnection { reader, socket, thread });
        Ok(())
    }

    /// Ends the channels of these readers. When it returns nothing of them runs any more; no thread waits for a reader.
    pub(super) fn stop(&mut self, mut is_over: impl FnMut(ReaderId) -> bool) {
        let over: Vec<ReadConnection> = self.open.extract_if(.., |open| is_over(open.reader)).collect();
        for connection in &over {
            // Wakes a thread that waits for a request. Fails only if the reader has closed it already.
            let _ = connection.socket.shutdown(Shutdown::Both);
        }
        for connection in over {
            // One that had panicked has ended too, and had nothing but bytes to give away.
            let _ = connection.thread.join();
        }
    }
}

/// Answers one request after the other until either side ends the channel.
fn serve(shares: &Shares, end: SidecarEnd, socket: &UnixStream) -> io::Result<()> {
    let SidecarEnd { requests, answers } = end;
    let (mut requests, mut answers) = (RequestReader { requests, socket }, AnswerWriter { answers, socket });
    let (mut buffer, mut filled) = (vec![0; READS_MAX * REQUEST_SIZE], 0);
    let mut answer = Vec::new();
    loop {
        match requests.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        let (whole, rest) = buffer[..filled].as_chunks::<REQUEST_SIZE>();
        let left = rest.len();
        for request in whole {
            let request = Request::decode(request).ok_or(ErrorKind::InvalidData)?;
            let taken = shares.answer(&request, &mut answer);
            answers.write_all(&answer)?;
            if !taken {
                return Err(ErrorKind::PermissionDenied.into());
            }
        }
        buffer.copy_within(filled - left..filled, 0);
        filled = left;
    }
}

/// A thread that panicked with the lock held has left no table in between two states: each change is one statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
