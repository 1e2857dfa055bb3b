//! One visit of a follow to a member: what it is asked by its control RPC, and what is read of its memory.
//!
//! Used by [`follow`](super::follow): each output of the machine that concerns a member becomes a call of [`MemberVisit`], and
//! [`MemberVisit::next`] gives what comes of them. Nothing that a member says is believed before it is checked here or by the
//! machine: an answer that does not fit is an error, and the machine goes elsewhere.

use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwind_fabric::{ChannelAnswer, Offer, ReadChannel, ReadGrant, Readable, Reader, ReaderId};
use tailwind_protocol::board;
use tailwind_protocol::config::MemberRef;
use tailwind_protocol::follower::{NeededCopies, Visit};
use tailwind_protocol::ids::{LogId, Lsn, SegmentId};
use tailwind_protocol::inventory::{PAGES_MAX, check_page};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::rpc::{
    CopyReport, Inventory, InventoryRequest, READER_SILENCE_MS, ReadConnectReply, ReadConnectRequest, ShareReply,
    ShareRequest, SharedSegment, path,
};
use tailwind_protocol::socket::RecordsFrames;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;

use super::alarm;
use crate::control::Context;
use crate::control::sources::Fetch;
use crate::rpc::BackupClient;
use crate::thread::result;

/// Most bytes of a read: long enough that what a read costs beside its bytes does not count.
pub(super) const LANDING: u32 = 256 << 10;
/// A member hears from a reader at least so often, or forgets it.
const SIGN_OF_LIFE: Duration = Duration::from_millis(READER_SILENCE_MS / 3);

const _: () = assert!(board::LINES.end <= LANDING);

/// A visit that is under way. What it has asked and posted ends with it.
pub(super) struct MemberVisit {
    pub(super) number: Visit,
    member: VisitedMember,
    /// Once it is connected.
    pub(super) memory: Option<MemberMemory>,
    posted: Option<PostedRead>,
    calls: JoinSet<Answer>,
    /// When the member was asked last.
    asked: Instant,
}

/// The read that is on its way.
struct PostedRead {
    what: ReadOf,
    at: Instant,
    /// Its bytes; or why it could not be posted.
    posted: Result<u32, String>,
}

#[derive(Clone, Copy)]
enum ReadOf {
    Board,
    Segment,
}

/// What comes of what was asked and posted.
pub(super) enum Answer {
    Connected(Result<MemberMemory, String>),
    /// When the look was posted, and how many bytes have [landed](MemberVisit::landed).
    Looked(Instant, u32),
    Surveyed(Result<Vec<CopyReport>, String>),
    Shared(Result<Option<SharedCopy>, String>),
    /// How many bytes have landed.
    Read(u32),
    Fetched(Result<RecordsFrames, String>),
    /// The read channel is over, or will be.
    Broken(String),
    KnowsReader,
}

impl MemberVisit {
    /// Begins to connect to a member of this log.
    pub(super) fn begin(
        context: &Arc<Context>,
        number: Visit,
        log: LogId,
        member: MemberRef,
        reader: ReaderId,
    ) -> MemberVisit {
        let client = context.backup(&member.id, Some(&member.control));
        let member = VisitedMember { context: Arc::clone(context), client, member, log, reader };
        let (calls, asked) = (JoinSet::new(), Instant::now());
        let mut visit = MemberVisit { number, member, memory: None, posted: None, calls, asked };
        visit.ask(|member| async move { Answer::Connected(member.connect().await) });
        visit
    }

    /// Posts a read of the board.
    pub(super) fn look(&mut self) {
        self.post(ReadOf::Board, board::LINES);
    }

    /// Asks what it holds, if this record comes next.
    pub(super) fn survey(&mut self, next: Lsn) {
        self.ask(move |member| async move { Answer::Surveyed(member.survey(next).await) });
    }

    /// Has a segment shared.
    pub(super) fn share(&mut self, segment: SegmentId) {
        self.ask(move |member| async move { Answer::Shared(member.share_segment(segment).await) });
    }

    /// Posts a read of the segment that was shared last.
    pub(super) fn read(&mut self, range: Range<u32>) {
        self.post(ReadOf::Segment, range);
    }

    /// Waits for records that are fetched.
    pub(super) fn fetch(&mut self, fetch: Fetch<RecordsFrames>) {
        self.calls.spawn(async move { Answer::Fetched(fetch.done().await) });
    }

    /// There is nothing to fetch.
    pub(super) fn fail_to_fetch(&mut self, why: String) {
        self.calls.spawn(async move { Answer::Fetched(Err(why)) });
    }

    /// Lets the member know that there still is a reader, if it is time for it.
    pub(super) fn give_sign_of_life(&mut self, now: Instant) {
        if self.sign_due().is_some_and(|due| due <= now) {
            self.ask(|member| async move { member.give_sign_of_life().await });
        }
    }

    /// When it is time for that.
    pub(super) fn sign_due(&self) -> Option<Instant> {
        self.memory.is_some().then(|| self.asked + SIGN_OF_LIFE)
    }

    /// When the read that is on its way was posted.
    pub(super) fn posted_at(&self) -> Option<Instant> {
        self.posted.as_ref().map(|posted| posted.at)
    }

    /// What comes next. Loses nothing if it is not waited for to the end.
    pub(super) async fn next(&mut self) -> Answer {
        tokio::select! {
            biased;
            completed = completed(&mut self.memory, &self.posted) => self.take_read(completed),
            Some(answer) = self.calls.join_next() => result(answer).await,
        }
    }

    /// This is read from now on: which opening of the segment it is, and where it ends if it is closed.
    pub(super) fn shared(&mut self, copy: SharedCopy) -> Option<(SegmentIdentity, Option<Closure>)> {
        self.memory.as_mut()?.segment = Some(copy.memory);
        Some((copy.identity, copy.closure))
    }

    /// The bytes of the read that has completed last.
    pub(super) fn landed(&self, length: u32) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| memory.channel.landed(0..length))
    }

    fn take_read(&mut self, completed: Result<(), String>) -> Answer {
        let PostedRead { what, at, posted } = self.posted.take().expect("it has completed");
        match (completed.and(posted), what) {
            (Err(why), _) => Answer::Broken(why),
            (Ok(length), ReadOf::Board) => Answer::Looked(at, length),
            (Ok(length), ReadOf::Segment) => Answer::Read(length),
        }
    }

    /// Whether the bytes can be read shows when the read completes.
    fn post(&mut self, what: ReadOf, range: Range<u32>) {
        if let Some(memory) = &mut self.memory {
            let at = Instant::now();
            self.posted = Some(PostedRead { what, at, posted: memory.read(what, range) });
        }
    }

    fn ask<F>(&mut self, call: impl FnOnce(VisitedMember) -> F)
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        self.asked = Instant::now();
        self.calls.spawn(call(self.member.clone()));
    }
}

/// A member, as it is asked by one follow.
#[derive(Clone)]
struct VisitedMember {
    context: Arc<Context>,
    client: BackupClient,
    member: MemberRef,
    log: LogId,
    reader: ReaderId,
}

/// A segment that is shared with a follow.
pub(super) struct SharedCopy {
    /// Which opening of the segment it is.
    identity: SegmentIdentity,
    /// Where it ends, if it is closed there.
    closure: Option<Closure>,
    memory: Readable,
}

impl VisitedMember {
    /// Opens a read channel, and has the board shared.
    async fn connect(self) -> Result<MemberMemory, String> {
        let fabric = Arc::clone(&self.context.reader);
        let opening = blocking(move || fabric.begin(LANDING)).await?;
        let request = ReadConnectRequest {
            group: self.context.group.clone(),
            log: self.log,
            reader: self.reader.0,
            offer: opening.offer(),
        };
        let reply: ReadConnectReply<ChannelAnswer> =
            self.call::<ReadConnectRequest<Offer>, _>(path::READ_CONNECT, &request).await?;
        if reply.boot != self.member.boot {
            return Err("it has restarted without the memory that made it a member".to_owned());
        }
        // The call has just connected.
        let peer: IpAddr = self.client.peer_ip().ok_or("its address is not known")?;
        let channel = blocking(move || opening.connect(&reply.answer, peer)).await?;
        let board = self.share(true, Vec::new()).await?.board.ok_or("it has no board")?;
        let board = attach(&self.context.reader, board, board::LINES.end).await?;
        let readiness = channel.readiness().map(|fd| fd.try_clone_to_owned().and_then(alarm::watch)).transpose();
        let readiness = readiness.map_err(|error| format!("watch the read channel: {error}"))?;
        Ok(MemberMemory { channel, readiness, board, segment: None })
    }

    /// What a follow needs to know of what it holds, if this record comes next.
    async fn survey(self, next: Lsn) -> Result<Vec<CopyReport>, String> {
        let mut needed = NeededCopies::default();
        let mut after: Option<SegmentId> = None;
        for _ in 0..PAGES_MAX {
            let page: Inventory = self.call(path::INVENTORY, &InventoryRequest { after }).await?;
            check_page(&page).map_err(|why| why.to_string())?;
            if page.member != self.member.id || page.boot != self.member.boot || page.log != Some(self.log) {
                return Err(format!("it answers as {}, boot {}, with another log or none", page.member, page.boot));
            }
            for copy in &page.copies {
                if after.is_some_and(|after| copy.identity.segment <= after) {
                    return Err(format!("its inventory is out of order at segment {}", copy.identity.segment));
                }
                after = Some(copy.identity.segment);
            }
            page.copies.iter().for_each(|copy| needed.take(copy, next));
            if !page.more || needed.is_full() {
                return Ok(needed.finish());
            }
            if page.copies.is_empty() {
                return Err("its inventory does not end".to_owned());
            }
        }
        Err(format!("its inventory has more than {PAGES_MAX} pages"))
    }

    /// Has a segment shared; `None` if it is not in its memory.
    async fn share_segment(self, segment: SegmentId) -> Result<Option<SharedCopy>, String> {
        let mut shared = self.share(false, vec![segment]).await?.segments;
        let Some(SharedSegment { identity, closure, grant }) = shared.pop() else { return Ok(None) };
        if !shared.is_empty() || identity.segment != segment {
            return Err(format!("it was asked for segment {segment} alone, and shares another"));
        }
        if closure.is_some_and(|closure| !closure.fits(identity.size)) {
            return Err(format!("it shares segment {segment} with an end that no segment of {} has", identity.size));
        }
        let memory = attach(&self.context.reader, grant, identity.size.bytes()).await?;
        Ok(Some(SharedCopy { identity, closure, memory }))
    }

    /// If that fails it has forgotten this reader, and will end its channel.
    async fn give_sign_of_life(self) -> Answer {
        self.share(true, Vec::new()).await.map_or_else(Answer::Broken, |_| Answer::KnowsReader)
    }

    async fn share(&self, board: bool, segments: Vec<SegmentId>) -> Result<ShareReply<ReadGrant>, String> {
        let (group, log, reader) = (self.context.group.clone(), self.log, self.reader.0);
        self.call(path::SHARE, &ShareRequest { group, log, reader, board, mirror: false, segments }).await
    }

    async fn call<Req, Rep>(&self, path: &str, request: &Req) -> Result<Rep, String>
    where
        Req: serde::Serialize + Sync,
        Rep: serde::de::DeserializeOwned,
    {
        self.client.call(path, request, self.context.rules.rpc_timeout).await.map_err(|error| error.to_string())
    }
}

/// What of a member's memory is read, and the channel that reads it.
pub(super) struct MemberMemory {
    channel: Box<dyn ReadChannel>,
    /// Of the channel, where completions are not immediate.
    readiness: Option<AsyncFd<OwnedFd>>,
    board: Readable,
    /// That was shared last.
    segment: Option<Readable>,
}

impl MemberMemory {
    /// Posts a read; how many bytes it brings.
    fn read(&mut self, what: ReadOf, range: Range<u32>) -> Result<u32, String> {
        let readable = match what {
            ReadOf::Board => &self.board,
            ReadOf::Segment => self.segment.as_ref().ok_or("no segment is shared")?,
        };
        let length = range.end.saturating_sub(range.start);
        if length == 0 || length > LANDING || range.end > readable.len() {
            return Err(format!("bytes {} to {} cannot be read", range.start, range.end));
        }
        self.channel.read(readable, range, 0).map_err(|error| error.to_string())?;
        Ok(length)
    }

    /// Returns once the read that is on its way has completed. Loses nothing if it is not waited for to the end.
    async fn completed(&mut self) -> Result<(), String> {
        loop {
            if self.channel.poll().map_err(|error| error.to_string())? > 0 {
                return Ok(());
            }
            let Some(readiness) = &self.readiness else { return Err("the read did not complete".to_owned()) };
            if !self.channel.arm() {
                readiness.readable().await.map_err(|error| error.to_string())?.clear_ready();
            }
        }
    }
}

/// Returns when the read that was posted, if any, has completed, or could not be posted.
async fn completed(memory: &mut Option<MemberMemory>, posted: &Option<PostedRead>) -> Result<(), String> {
    match (memory, posted) {
        (Some(memory), Some(PostedRead { posted: Ok(_), .. })) => memory.completed().await,
        (Some(_), Some(_)) => Ok(()),
        _ => std::future::pending().await,
    }
}

/// Makes a share readable, if it has as many bytes as will be read.
async fn attach(fabric: &Arc<dyn Reader>, grant: ReadGrant, size: u32) -> Result<Readable, String> {
    let fabric = Arc::clone(fabric);
    let readable = blocking(move || fabric.attach(&grant)).await?;
    if readable.len() < size {
        return Err(format!("it shares {} bytes where there should be {size}", readable.len()));
    }
    Ok(readable)
}

async fn blocking<T, E>(job: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, String>
where
    T: Send + 'static,
    E: std::fmt::Display + Send + 'static,
{
    tokio::task::spawn_blocking(job).await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
