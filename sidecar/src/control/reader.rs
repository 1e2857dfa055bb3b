//! Serves one read: replays acknowledged records from an LSN on and, if asked, goes on with new ones.
//!
//! Started by [`control`](super) when the append path hands a connection over; gives it back when the read has ended.
//! Closed segments are fetched and checked side by side, ahead of the one that is being sent, and sent in order. Memory per
//! reader: the records of [`AHEAD`] + 1 segments; readers at once: [`READERS_MAX`]. A client that takes no byte for too long
//! gives its place up: what it reads, others may be waiting for.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::scan::{PiecewiseScanner, Record, Scanner, Stop};
use tailwind_protocol::socket::{ErrorCode, RecordsFrames, Request, Response, decode_request};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::log::Location;
use super::sources::Intake;
use super::{Context, PathHandle};
use crate::path::connection::DetachedConnection;
use crate::path::{Command, trimmed};

/// Reads at once.
pub const READERS_MAX: usize = 16;
/// Closed segments fetched ahead of the one being sent, from different members.
const AHEAD: usize = 2;
/// A tail looks up at least so often, to notice that this sidecar is no longer primary.
const TAIL_LOOKS_UP: Duration = Duration::from_millis(20);
/// Bytes sent between two looks at what the client says: some of the frames of [`RecordsFrames`].
const PIECE_SIZE: usize = 256 << 10;
/// When it may be worth trying again for a place, or for a segment that nobody could give.
const RETRY_MS: u32 = 1000;

/// What a client wants to read.
pub struct Wanted {
    /// The request's number.
    pub request: u64,
    /// First record.
    pub from: u64,
    /// Most records; 0 for no limit.
    pub limit: u64,
    /// Go on after the end.
    pub tail: bool,
}

/// Why a read ended.
enum End {
    /// At the end of the log or at the limit.
    Done,
    /// The client said stop.
    Stopped,
    /// Something is in the way; the connection goes on.
    Refused(ErrorCode, String),
    /// The client is gone.
    Gone,
    /// The client has taken no byte for so long.
    Stuck(Duration),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Gone
    }
}

static READERS: AtomicUsize = AtomicUsize::new(0);

/// Counts a reader for as long as it lives.
struct Place;

impl Place {
    fn take() -> Option<Place> {
        let taken = READERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < READERS_MAX).then_some(n + 1));
        taken.ok().map(|_| Place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        READERS.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Tells the append path that a connection has ended, unless it gets it back.
struct Claim<'a>(Option<&'a PathHandle>);

impl Claim<'_> {
    fn give_back(mut self, detached: DetachedConnection) {
        if let Some(path) = self.0.take() {
            path.send(Command::Adopt(detached));
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            path.send(Command::Left);
        }
    }
}

/// Serves a read and gives the connection back to the append path.
pub async fn serve(context: Arc<Context>, detached: DetachedConnection, wanted: Wanted) {
    let claim = Claim(Some(&context.path));
    let place = Place::take();
    let DetachedConnection { stream, ring, received, unsent, read_only, epoch } = detached;
    let Ok(stream) = UnixStream::from_std(stream) else { return };
    let mut reader = Reader {
        term: context.log.term(),
        context: &context,
        stream,
        received,
        request_max: context.rules.segment_size.record_size_max() as usize,
        request: wanted.request,
        next: Lsn(wanted.from),
        until: Lsn(if wanted.limit == 0 { u64::MAX } else { wanted.from.saturating_add(wanted.limit) }),
        spare: Spare::default(),
        frame: Vec::new(),
        ahead: VecDeque::new(),
        read_so_far: None,
    };
    let end = match (&place, reader.write(&unsent).await) {
        (_, Err(end)) => end,
        (None, Ok(())) => {
            let message = format!("{READERS_MAX} reads are running already: try again when one has ended");
            End::Refused(ErrorCode::Busy, message)
        }
        (Some(_), Ok(())) => reader.read(wanted.tail).await,
    };
    let answered = reader.finish(end).await;
    let Reader { stream, received, .. } = reader;
    if let (true, Ok(stream)) = (answered, stream.into_std()) {
        claim.give_back(DetachedConnection { stream, ring, received, unsent: Vec::new(), read_only, epoch });
    }
}

struct Reader<'a> {
    context: &'a Arc<Context>,
    /// The log's term when the read began.
    term: u64,
    stream: UnixStream,
    received: Vec<u8>,
    /// Largest request that may come during a read, so that what is received fits a connection's inbox; a stop has no body.
    request_max: usize,
    request: u64,
    /// The record to send next.
    next: Lsn,
    /// The record before which it ends.
    until: Lsn,
    spare: Spare,
    frame: Vec<u8>,
    ahead: VecDeque<(SegmentId, JoinHandle<Result<RecordsFrames, String>>)>,
    /// How far the open segment has been read, so that a tail does not read it from the start each time.
    read_so_far: Option<(SegmentId, Closure)>,
}

impl Reader<'_> {
    async fn read(&mut self, tail: bool) -> End {
        match self.read_until_end(tail).await {
            Ok(()) => End::Done,
            Err(end) => end,
        }
    }

    async fn read_until_end(&mut self, tail: bool) -> Result<(), End> {
        let mut caught_up = false;
        self.listen().await?;
        loop {
            let acked = Lsn(self.context.shared.acked.load(Ordering::Acquire));
            if self.next >= self.until || (self.next > acked && !tail) {
                return Ok(());
            }
            if self.next > acked {
                if !caught_up {
                    caught_up = true;
                    self.send(&Response::End { next: self.next.0, tailing: true }).await?;
                }
                self.wait_for_news(acked).await?;
                continue;
            }
            self.check_term()?;
            match self.context.log.locate(self.next) {
                Some(Location::Open(identity, memory)) => self.send_open(memory.published(), &identity, acked).await?,
                Some(Location::Closed(identity, closure)) => {
                    let frames = self.fetch(identity, closure, acked).await?;
                    self.send_frames(frames).await?;
                }
                None => {
                    self.check_term()?;
                    let first = self.context.shared.first.load(Ordering::Acquire);
                    if self.next.0 < first {
                        return Err(End::Refused(ErrorCode::Trimmed, trimmed(self.next, first)));
                    }
                    // Between two openings: the next look finds it.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }

    fn check_term(&self) -> Result<(), End> {
        if self.context.log.lasts(self.term) {
            return Ok(());
        }
        Err(End::Refused(ErrorCode::NotPrimary, "this sidecar is no longer primary".to_owned()))
    }

    /// Sends records of an open segment, from the next wanted one to the last acknowledged one.
    async fn send_open(&mut self, bytes: &[u8], identity: &SegmentIdentity, acked: Lsn) -> Result<(), End> {
        let mut scanner = match self.read_so_far.take_if(|(segment, _)| *segment == identity.segment) {
            Some((_, closure)) => Scanner::resume(bytes, identity, closure),
            None => Scanner::new(bytes, identity).map_err(|stop| unreadable(identity, stop))?,
        };
        let wanted = self.next..self.until.min(acked.next());
        let mut frames = self.spare.take(self.request);
        let before = self.next;
        'segment: while let Ok(append) = scanner.next_append() {
            for record in append.records() {
                if record.lsn >= wanted.end {
                    break 'segment;
                }
                put(record, &wanted, &mut frames);
            }
            self.read_so_far = Some((identity.segment, scanner.closure()));
        }
        self.send_frames(frames).await?;
        if self.next == before {
            // The segment does not hold what it should; its neighbours in the list may have changed meanwhile.
            self.check_term()?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// The wanted records of a closed segment; the ones after it are on their way from other members meanwhile. What was not
    /// acknowledged when it was sent for is missing.
    async fn fetch(&mut self, identity: SegmentIdentity, closure: Closure, acked: Lsn) -> Result<RecordsFrames, End> {
        let until = self.until.min(acked.next());
        let mut wanted = vec![(identity, closure)];
        let following = self.context.log.following(identity.segment, AHEAD);
        wanted.extend(following.into_iter().filter(|(_, closure)| closure.first < until));
        self.ahead.retain(|(segment, _)| wanted.iter().any(|(identity, _)| identity.segment == *segment));
        for (identity, closure) in wanted {
            if self.ahead.iter().any(|(segment, _)| *segment == identity.segment) {
                continue;
            }
            let Some(sources) = self.context.log.sources() else { break };
            let (context, request, records) = (Arc::clone(self.context), self.request, self.next..until);
            let spare = self.spare.clone();
            let fetch = tokio::spawn(async move {
                let packer = || Packer::new(identity, closure, records.clone(), spare.take(request));
                sources.fetch_into(&context, identity, closure, packer).await
            });
            self.ahead.push_back((identity.segment, fetch));
        }
        let unavailable = |why: String| End::Refused(ErrorCode::Unavailable, why);
        let Some((_, fetch)) = self.ahead.pop_front() else {
            self.check_term()?;
            return Err(unavailable(format!("segment {}: no member to read from", identity.segment)));
        };
        let fetched = fetch.await.map_err(|error| unavailable(error.to_string()))?;
        match fetched {
            Ok(frames) => Ok(frames),
            Err(why) => {
                self.check_term()?;
                Err(unavailable(why))
            }
        }
    }

    /// Sends frames, and looks now and then whether the client has said anything.
    async fn send_frames(&mut self, mut frames: RecordsFrames) -> Result<(), End> {
        for (piece, next) in frames.pieces(PIECE_SIZE) {
            self.write(piece).await?;
            self.next = Lsn(next);
            self.listen().await?;
        }
        self.spare.keep(frames);
        Ok(())
    }

    async fn send(&mut self, response: &Response<'_>) -> Result<(), End> {
        self.say(self.request, response).await
    }

    async fn say(&mut self, request: u64, response: &Response<'_>) -> Result<(), End> {
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        response.encode(request, &mut frame);
        let written = self.write(&frame).await;
        self.frame = frame;
        written
    }

    /// Writes everything, as long as the client goes on taking some of it.
    async fn write(&mut self, mut bytes: &[u8]) -> Result<(), End> {
        let patience = self.context.rules.client_timeout;
        while !bytes.is_empty() {
            let ready = tokio::time::timeout(patience, self.stream.writable()).await;
            ready.map_err(|_| End::Stuck(patience))??;
            match self.stream.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes what the client has sent meanwhile: a stop, or something that has to wait.
    async fn listen(&mut self) -> Result<(), End> {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.try_read(&mut bytes) {
                Ok(0) => return Err(End::Gone),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
            if self.received.len() > self.request_max {
                break;
            }
        }
        loop {
            let (request, size, stop, wake) = match decode_request(&self.received, self.request_max) {
                Ok(None) => return Ok(()),
                Ok(Some(decoded)) => {
                    let (stop, wake) = (decoded.frame == Request::Stop, decoded.frame == Request::Wake);
                    (decoded.request, decoded.size, stop, wake)
                }
                Err(error) => return Err(End::Refused(ErrorCode::BadFrame, error.to_string())),
            };
            self.received.drain(..size);
            if stop && request == self.request {
                return Err(End::Stopped);
            }
            // The stop of an earlier read, whose end has crossed it, or a wake-up for the append path.
            if stop || wake {
                continue;
            }
            let message = "a read runs on this connection: stop it first, or use another connection";
            let refusal = Response::Error { code: ErrorCode::Reading, fatal: false, retry_after_ms: 0, message };
            self.say(request, &refusal).await?;
        }
    }

    /// Waits until there is a record to send, the client says something, or it is time to look up.
    async fn wait_for_news(&mut self, acked: Lsn) -> Result<(), End> {
        self.context.shared.tailing.fetch_add(1, Ordering::AcqRel);
        let news = self.context.shared.news.notified();
        let arrived = self.context.shared.acked.load(Ordering::Acquire) > acked.0;
        if !arrived {
            tokio::select! {
                () = news => {}
                _ = self.stream.readable() => {}
                () = tokio::time::sleep(TAIL_LOOKS_UP) => {}
            }
        }
        self.context.shared.tailing.fetch_sub(1, Ordering::AcqRel);
        self.check_term()?;
        self.listen().await
    }

    /// Says how the read ended. False if the connection is not to go on.
    async fn finish(&mut self, end: End) -> bool {
        self.ahead.iter().for_each(|(_, fetch)| fetch.abort());
        let next = self.next.0;
        let sent = match end {
            End::Gone => return false,
            End::Stuck(patience) => Err(End::Stuck(patience)),
            End::Done | End::Stopped => self.send(&Response::End { next, tailing: false }).await,
            End::Refused(code, message) => {
                let fatal = code == ErrorCode::BadFrame;
                let passes = matches!(code, ErrorCode::Busy | ErrorCode::Unavailable);
                let retry_after_ms = if passes { RETRY_MS } else { 0 };
                let sent = self.send(&Response::Error { code, fatal, retry_after_ms, message: &message }).await;
                sent.and(if fatal { Err(End::Gone) } else { Ok(()) })
            }
        };
        if let Err(End::Stuck(patience)) = &sent {
            let peer = getsockopt(&self.stream.as_fd(), PeerCredentials);
            let (uid, pid) = peer.map_or((None, None), |peer| (Some(peer.uid()), Some(peer.pid())));
            tracing::warn!(uid, pid, next = %self.next, ?patience, "disconnected a reader that read nothing for too long");
        }
        sent.is_ok()
    }
}

/// Frames that have been sent: their memory is filled again.
#[derive(Clone, Default)]
struct Spare(Arc<Mutex<Vec<RecordsFrames>>>);

impl Spare {
    fn take(&self, request: u64) -> RecordsFrames {
        self.lock().pop().unwrap_or_else(|| RecordsFrames::new(request))
    }

    fn keep(&self, mut frames: RecordsFrames) {
        frames.clear();
        self.lock().push(frames);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RecordsFrames>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes frames of the wanted records of a closed segment.
struct Packer {
    scanner: PiecewiseScanner,
    closure: Closure,
    wanted: Range<Lsn>,
    frames: RecordsFrames,
}

impl Packer {
    fn new(identity: SegmentIdentity, closure: Closure, wanted: Range<Lsn>, frames: RecordsFrames) -> Packer {
        Packer { scanner: PiecewiseScanner::new(identity), closure, wanted, frames }
    }
}

impl Intake for Packer {
    type Taken = RecordsFrames;

    fn take(&mut self, piece: &[u8]) {
        let Packer { scanner, wanted, frames, .. } = self;
        scanner.push(piece, |record| put(record, wanted, frames));
    }

    fn finish(mut self) -> Option<RecordsFrames> {
        let closure = self.scanner.finish(|record| put(record, &self.wanted, &mut self.frames));
        (closure == self.closure).then_some(self.frames)
    }
}

fn put(record: Record<'_>, wanted: &Range<Lsn>, frames: &mut RecordsFrames) {
    if wanted.contains(&record.lsn) {
        frames.put(record.lsn.0, record.payload);
    }
}

fn unreadable(identity: &SegmentIdentity, stop: Stop) -> End {
    let message = format!("segment {} cannot be read at {}: {}", identity.segment, stop.at.0, stop.why);
    End::Refused(ErrorCode::Unavailable, message)
}
