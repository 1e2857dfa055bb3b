//! One member, as a reader asks it by its control RPC: for a read channel, for what it holds, and for shares of its memory.
//!
//! Used by the [`visit`](super::visit) of a follow and by the [getter's](crate::control::getting). Nothing that a member says is
//! believed before it is checked here or by the machine: an answer that does not fit is an error, and the machine goes elsewhere.

use std::net::IpAddr;
use std::sync::Arc;

use tailwind_fabric::{ChannelAnswer, Offer, ReadChannel, ReadGrant, Readable, Reader, ReaderId};
use tailwind_protocol::config::MemberRef;
use tailwind_protocol::follower::NeededCopies;
use tailwind_protocol::ids::{LogId, Lsn, SegmentId};
use tailwind_protocol::inventory::{PAGES_MAX, check_page};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::rpc::{
    CopyReport, CopyState, Inventory, InventoryRequest, ReadConnectReply, ReadConnectRequest, ShareReply, ShareRequest,
    SharedSegment, path,
};

use crate::control::Context;
use crate::rpc::BackupClient;

/// A member, as it is asked by one reader.
#[derive(Clone)]
pub(in crate::control) struct VisitedMember {
    context: Arc<Context>,
    client: BackupClient,
    member: MemberRef,
    log: LogId,
    reader: ReaderId,
}

/// A segment that is shared with a follow.
pub(super) struct SharedCopy {
    /// Which opening of the segment it is.
    pub(super) identity: SegmentIdentity,
    /// Where it ends, if it is closed there.
    pub(super) closure: Option<Closure>,
    pub(super) memory: Readable,
}

impl VisitedMember {
    /// This member of this log, for this reader.
    pub(in crate::control) fn new(
        context: &Arc<Context>,
        log: LogId,
        member: MemberRef,
        reader: ReaderId,
    ) -> VisitedMember {
        let client = context.backup(&member.id, Some(&member.control));
        VisitedMember { context: Arc::clone(context), client, member, log, reader }
    }

    /// Opens a read channel with so many bytes for what lands.
    pub(in crate::control) async fn open(&self, landing: u32) -> Result<Box<dyn ReadChannel>, String> {
        let fabric = Arc::clone(&self.context.reader);
        let opening = blocking(move || fabric.begin(landing)).await?;
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
        blocking(move || opening.connect(&reply.answer, peer)).await
    }

    /// What a follow needs to know of what it holds, if this record comes next.
    pub(super) async fn survey(self, next: Lsn) -> Result<Vec<CopyReport>, String> {
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

    /// Has the board shared, of which so many bytes are read.
    pub(super) async fn share_board(&self, size: u32) -> Result<Readable, String> {
        let board = self.share(true, false, Vec::new()).await?.board.ok_or("it has no board")?;
        attach(&self.context.reader, board, size).await
    }

    /// Has the board shared, of which so many bytes are read, and the parts of the mirror; `None` if it was given no memory for one.
    pub(in crate::control) async fn share_mirror(
        &self,
        board: u32,
    ) -> Result<Option<(Readable, Vec<Readable>)>, String> {
        let shared = self.share(true, true, Vec::new()).await?;
        if shared.mirror_parts == Some(0) {
            return Ok(None);
        }
        if shared.mirror.is_empty() {
            return Err("it has no mirror".to_owned());
        }
        let fabric = &self.context.reader;
        let board = attach(fabric, shared.board.ok_or("it has no board")?, board).await?;
        let mut parts = Vec::with_capacity(shared.mirror.len());
        for part in shared.mirror {
            parts.push(attach(fabric, part, 0).await?);
        }
        Ok(Some((board, parts)))
    }

    /// Has segments shared, as far as they are in its memory.
    pub(in crate::control) async fn share_segments(
        &self,
        segments: Vec<SegmentId>,
    ) -> Result<Vec<(SegmentId, Readable)>, String> {
        let shared = self.share(false, false, segments.clone()).await?.segments;
        let mut readable = Vec::with_capacity(shared.len());
        for SharedSegment { identity, grant, .. } in shared {
            if !segments.contains(&identity.segment) || readable.len() == segments.len() {
                return Err(format!("it shares segment {}, which it was not asked for", identity.segment));
            }
            readable.push((identity.segment, attach(&self.context.reader, grant, identity.size.bytes()).await?));
        }
        Ok(readable)
    }

    /// What a segment that is closed is, and where it ends.
    pub(in crate::control) async fn find(&self, segment: SegmentId) -> Result<(SegmentIdentity, Closure), String> {
        let after = segment.0.checked_sub(1).map(SegmentId);
        let page: Inventory = self.call(path::INVENTORY, &InventoryRequest { after }).await?;
        check_page(&page).map_err(|why| why.to_string())?;
        if page.log != Some(self.log) {
            return Err("it has another log, or none".to_owned());
        }
        let copy = page.copies.iter().find(|copy| copy.identity.segment == segment && copy.state == CopyState::Closed);
        let copy = copy.ok_or_else(|| format!("it has no closed copy of segment {segment}"))?;
        Ok((copy.identity, copy.closure))
    }

    /// Lets it know that there still is a reader. If that fails it has forgotten this one, and will end its channel.
    pub(in crate::control) async fn keep_knowing(&self) -> Result<(), String> {
        self.share(true, false, Vec::new()).await.map(drop)
    }

    /// Has a segment shared; `None` if it is not in its memory.
    pub(super) async fn share_segment(self, segment: SegmentId) -> Result<Option<SharedCopy>, String> {
        let mut shared = self.share(false, false, vec![segment]).await?.segments;
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

    async fn share(
        &self,
        board: bool,
        mirror: bool,
        segments: Vec<SegmentId>,
    ) -> Result<ShareReply<ReadGrant>, String> {
        let (group, log, reader) = (self.context.group.clone(), self.log, self.reader.0);
        self.call(path::SHARE, &ShareRequest { group, log, reader, board, mirror, segments }).await
    }

    async fn call<Req, Rep>(&self, path: &str, request: &Req) -> Result<Rep, String>
    where
        Req: serde::Serialize + Sync,
        Rep: serde::de::DeserializeOwned,
    {
        self.client.call(path, request, self.context.rules.rpc_timeout).await.map_err(|error| error.to_string())
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
