//! One visit of a follow to a member: what it is asked by its control RPC, and what is read of its memory.
//!
//! Used by [`follow`](super::follow): each output of the machine that concerns a member becomes a call of [`MemberVisit`], and
//! [`MemberVisit::next`] gives what comes of them.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwind_fabric::{ReadChannel, Readable, ReaderId};
use tailwind_protocol::board;
use tailwind_protocol::config::MemberRef;
use tailwind_protocol::follower::Visit;
use tailwind_protocol::ids::{LogId, Lsn, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::rpc::{CopyReport, READER_SILENCE_MS};
use tailwind_protocol::socket::RecordsFrames;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;

use super::alarm;
use super::member::{SharedCopy, VisitedMember};
use crate::control::Context;
use crate::control::sources::Fetch;
use crate::thread::result;

/// Most bytes of a read: long enough that what a read costs beside its bytes does not count.
pub(super) const LANDING: u32 = 256 << 10;
/// A member hears from a reader at least so often, or forgets it.
pub(in crate::control) const SIGN_OF_LIFE: Duration = Duration::from_millis(READER_SILENCE_MS / 3);

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
        let member = VisitedMember::new(context, log, member, reader);
        let (calls, asked) = (JoinSet::new(), Instant::now());
        let mut visit = MemberVisit { number, member, memory: None, posted: None, calls, asked };
        visit.ask(|member| async move { Answer::Connected(MemberMemory::connect(member).await) });
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
            self.ask(|member| async move {
                member.keep_knowing().await.map_or_else(Answer::Broken, |()| Answer::KnowsReader)
            });
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
    /// Opens a read channel to a member, and has its board shared.
    async fn connect(member: VisitedMember) -> Result<MemberMemory, String> {
        let channel = member.open(LANDING).await?;
        let board = member.share_board(board::LINES.end).await?;
        let readiness = channel.readiness().map(|fd| fd.try_clone_to_owned().and_then(alarm::watch)).transpose();
        let readiness = readiness.map_err(|error| format!("watch the read channel: {error}"))?;
        Ok(MemberMemory { channel, readiness, board, segment: None })
    }

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
