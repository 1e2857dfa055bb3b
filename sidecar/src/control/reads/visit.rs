//! One visit of a follower to a member: the calls to its control RPC, and the reads of its memory.
//!
//! Used by [`follow`](super::follow), which carries out with it what the machine wants. Nothing that a member says is believed
//! before it is checked here or by the machine: an answer that does not fit is an error, and the machine goes elsewhere.

use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tailwind_fabric::{ChannelAnswer, Offer, ReadChannel, ReadGrant, Readable, Reader, ReaderId};
use tailwind_protocol::board;
use tailwind_protocol::config::MemberRef;
use tailwind_protocol::follower::NeededCopies;
use tailwind_protocol::ids::{LogId, Lsn, SegmentId};
use tailwind_protocol::inventory::{PAGES_MAX, check_page};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::rpc::{
    CopyReport, Inventory, InventoryRequest, READER_SILENCE_MS, ReadConnectReply, ReadConnectRequest, ShareReply,
    ShareRequest, SharedSegment, path,
};
use tokio::io::unix::AsyncFd;

use super::readiness;
use crate::control::Context;
use crate::rpc::BackupClient;

/// Most bytes of a read: long enough that what a read costs beside its bytes does not count.
pub(super) const LANDING: u32 = 256 << 10;
/// A member hears from a reader at least so often, or forgets it.
pub(super) const SIGN_OF_LIFE: Duration = Duration::from_millis(READER_SILENCE_MS / 3);

const _: () = assert!(board::LINES.end <= LANDING);

/// A member, as it is asked by one follower.
#[derive(Clone)]
pub(super) struct VisitedMember {
    context: Arc<Context>,
    client: BackupClient,
    member: MemberRef,
    log: LogId,
    reader: ReaderId,
}

/// Where a follower reads.
#[derive(Debug)]
pub(super) struct ReadEnd {
    channel: Box<dyn ReadChannel>,
    /// Of the channel, where completions are not immediate.
    readiness: Option<AsyncFd<OwnedFd>>,
    board: Readable,
    segment: Option<Readable>,
    /// Bytes of the read that is on its way.
    length: u32,
    /// Why it could not be posted.
    failure: Option<String>,
}

/// A segment that is shared with a follower.
#[derive(Debug)]
pub(super) struct SharedCopy {
    /// Which opening of the segment it is.
    pub identity: SegmentIdentity,
    /// Where it ends, if it is closed there.
    pub closure: Option<Closure>,
    memory: Readable,
}

impl VisitedMember {
    /// A member of this log. Nothing is sent yet.
    pub(super) fn new(context: &Arc<Context>, log: LogId, member: MemberRef, reader: ReaderId) -> VisitedMember {
        let client = context.backup(&member.id, Some(&member.control));
        VisitedMember { context: Arc::clone(context), client, member, log, reader }
    }

    /// Opens a read channel, and has the board shared.
    pub(super) async fn connect(self) -> Result<ReadEnd, String> {
        let fabric = Arc::clone(&self.context.reader);
        let opening = blocking(move || fabric.begin(LANDING)).await?;
        let request = ReadConnectRequest {
            group: self.context.group.clone(),
            log: self.log,
            reader: self.reader.0,
            offer: opening.offer(),
        };
        let reply: ReadConnectReply<ChannelAnswer> =
            self.ask::<ReadConnectRequest<Offer>, _>(path::READ_CONNECT, &request).await?;
        if reply.boot != self.member.boot {
            return Err("it has restarted without the memory that made it a member".to_owned());
        }
        // The call has just connected.
        let peer: IpAddr = self.client.peer_ip().ok_or("its address is not known")?;
        let channel = blocking(move || opening.connect(&reply.answer, peer)).await?;
        let board = self.share(true, Vec::new()).await?.board.ok_or("it has no board")?;
        let board = attach(&self.context.reader, board, board::LINES.end).await?;
        let readiness = match channel.readiness() {
            None => None,
            Some(fd) => {
                let watched = fd.try_clone_to_owned().and_then(readiness::watch);
                Some(watched.map_err(|error| format!("watch the read channel: {error}"))?)
            }
        };
        Ok(ReadEnd { channel, readiness, board, segment: None, length: 0, failure: None })
    }

    /// What a follower needs to know of what it holds, if this record comes next.
    pub(super) async fn survey(self, next: Lsn) -> Result<Vec<CopyReport>, String> {
        let mut needed = NeededCopies::default();
        let mut after: Option<SegmentId> = None;
        for _ in 0..PAGES_MAX {
            let page: Inventory = self.ask(path::INVENTORY, &InventoryRequest { after }).await?;
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
    pub(super) async fn share_segment(self, segment: SegmentId) -> Result<Option<SharedCopy>, String> {
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

    /// Lets it know that there still is a reader.
    pub(super) async fn give_sign_of_life(self) -> Result<(), String> {
        self.share(true, Vec::new()).await.map(|_| ())
    }

    async fn share(&self, board: bool, segments: Vec<SegmentId>) -> Result<ShareReply<ReadGrant>, String> {
        let (group, log, reader) = (self.context.group.clone(), self.log, self.reader.0);
        self.ask(path::SHARE, &ShareRequest { group, log, reader, board, segments }).await
    }

    async fn ask<Req, Rep>(&self, path: &str, request: &Req) -> Result<Rep, String>
    where
        Req: serde::Serialize + Sync,
        Rep: serde::de::DeserializeOwned,
    {
        self.client.call(path, request, self.context.rules.rpc_timeout).await.map_err(|error| error.to_string())
    }
}

impl ReadEnd {
    /// Posts a read of the board. Whether it can be read shows when it completes.
    pub(super) fn look(&mut self) {
        self.length = board::LINES.end - board::LINES.start;
        let posted = self.channel.read(&self.board, board::LINES, 0);
        self.failure = posted.err().map(|error| error.to_string());
    }

    /// What is read from now on.
    pub(super) fn set_segment(&mut self, copy: SharedCopy) {
        self.segment = Some(copy.memory);
    }

    /// Posts a read of the segment that was set last. The same holds.
    pub(super) fn read(&mut self, range: Range<u32>) {
        self.failure = self.try_read(range).err();
    }

    fn try_read(&mut self, range: Range<u32>) -> Result<(), String> {
        let segment = self.segment.as_ref().ok_or("no segment is shared")?;
        let length = range.end.saturating_sub(range.start);
        if length == 0 || length > LANDING || range.end > segment.len() {
            return Err(format!("bytes {} to {} cannot be read", range.start, range.end));
        }
        self.length = length;
        self.channel.read(segment, range, 0).map_err(|error| error.to_string())
    }

    /// Returns once the read that is on its way has completed. Loses nothing if it is not waited for to the end.
    pub(super) async fn completed(&mut self) -> Result<(), String> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
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

    /// The bytes of the read that has completed.
    pub(super) fn landed(&self) -> &[u8] {
        self.channel.landed(0..self.length)
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
