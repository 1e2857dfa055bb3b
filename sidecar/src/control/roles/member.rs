//! One backup as a sidecar sees it within one epoch: the control RPCs, the data channels, the bulk copy of images.
//!
//! Used by [`promote`](super::promote), [`lead`](super::lead) and [`sources`](crate::control::sources).

pub(in crate::control) mod mirror;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tailwind_fabric::{
    Channel, ChannelAnswer, ChannelError, FabricError, Grant, Offer, RemoteBuffer, Sender, SharedBuffer,
};
use tailwind_protocol::board;
use tailwind_protocol::config::{Configuration, Durability, MemberRef};
use tailwind_protocol::ids::{Epoch, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Closure, SEGMENT_MAX, SegmentIdentity};
use tailwind_protocol::pull;
use tailwind_protocol::rpc::{
    Caller, CloseRequest, ConnectReply, ConnectRequest, CopyReport, DROP_MAX, DamageReply, DropRequest, Empty, Failure,
    FenceRequest, FlushReply, FlushRequest, Inventory, InventoryRequest, OpenReply, OpenRequest, PullRequest,
    PullSource, Purpose, Refusal, SyncPoint, SyncRequest, TrimRequest, path,
};
use tokio::sync::Mutex;

use crate::control::Context;
use crate::control::status::refusals::Refusals;
use crate::rpc::{BackupClient, CallError, FenceError};

/// Bytes of one write of a bulk copy: large, since an image is whole, but not so large that appends wait behind it.
const BULK_WRITE: u32 = 1 << 20;
/// How long a bulk write may go without any completion, and a fetch without any bytes.
pub(in crate::control) const BULK_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause that a backup's "retry later" makes; it says some 100 ms.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(1);
/// Shortest pause, even if the backup asks for none: requests without one would keep a processor of each side busy.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(5);
/// How long a sync may take: the flush of an open segment's part behind those of a few closed segments. A disk that takes longer
/// is broken, and its member counts as lost.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a survey waits for one backup.
const SURVEY_TIMEOUT: Duration = Duration::from_millis(500);

/// What came of asking a backup to copy a segment by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// It has it.
    Done,
    /// It could not, or does not know how; the reason is for people.
    NotThisWay(String),
}

/// A backup within one epoch.
pub struct MemberLink {
    member: MemberRef,
    caller: Caller,
    fence: FenceRequest,
    client: BackupClient,
    sender: Arc<dyn Sender>,
    durability: Durability,
    timeout: Duration,
    /// How long it may take to pull a segment. Then that is copied there by this sidecar.
    pull_timeout: Duration,
    refusals: Refusals,
    /// It does not know the request: a backup of an earlier build.
    cannot_pull: AtomicBool,
    /// It has lent its board.
    has_board: AtomicBool,
    /// Channels of mirrors that have been opened.
    mirror_channels: AtomicU32,
    /// Images go over a channel of their own, so that appends never wait behind them.
    bulk: Mutex<Option<Box<dyn Channel>>>,
}

impl MemberLink {
    /// A link under the epoch of `config`. Nothing is sent yet.
    pub fn new(context: &Context, config: &Configuration, member: MemberRef) -> MemberLink {
        MemberLink {
            client: context.backup(&member.id, Some(&member.control)),
            fence: FenceRequest::of(context.group.clone(), config, &member.id),
            member,
            caller: Caller { group: context.group.clone(), log: config.log, epoch: config.epoch },
            sender: Arc::clone(&context.sender),
            durability: context.rules.durability,
            timeout: context.rules.rpc_timeout,
            pull_timeout: Duration::from_millis(pull::patience_ms(context.rules.open_timeout.as_millis() as u64)),
            refusals: context.refusals.clone(),
            cannot_pull: AtomicBool::new(false),
            has_board: AtomicBool::new(false),
            mirror_channels: AtomicU32::new(0),
            bulk: Mutex::new(None),
        }
    }

    /// The backup.
    pub fn member(&self) -> &MemberRef {
        &self.member
    }

    /// How it is asked.
    pub fn client(&self) -> &BackupClient {
        &self.client
    }

    /// The epoch.
    pub fn epoch(&self) -> Epoch {
        self.caller.epoch
    }

    /// Stops every older epoch; what the backup holds, which is of epoch `newest` at most.
    pub async fn fence(&self, newest: Epoch) -> Result<Inventory, Failure> {
        let fenced = self.client.fence(&self.fence, newest, self.timeout).await;
        let inventory = fenced.map_err(|error| match error {
            FenceError::Call(CallError::Refused(refusal)) => refusal.into(),
            FenceError::Call(error) => Failure::Unreachable(self.client.at_address(&error)),
            FenceError::Unbelievable(why) => Failure::from(why),
        })?;
        if inventory.member != self.member.id {
            let why = format!("{}: backup {} answers there", self.client.whom(), inventory.member);
            return Err(Failure::Unreachable(why));
        }
        Ok(inventory)
    }

    /// Opens the data channel of appends; and the board, if the backup lends one.
    pub async fn connect(&self) -> Result<(Box<dyn Channel>, Option<RemoteBuffer>), Failure> {
        let (channel, board) = self.open_channel(true).await?;
        Ok((channel, self.attach_board(board).await?))
    }

    /// Readers can do without one member's board, and appends without any.
    async fn attach_board(&self, board: Option<Grant>) -> Result<Option<RemoteBuffer>, Failure> {
        let Some(grant) = board else { return Ok(None) };
        let attached = self.attach(grant, board::BOARD_SIZE).await?;
        self.has_board.store(attached.is_ok(), Ordering::Relaxed);
        Ok(attached.inspect_err(|why| tracing::warn!(member = %self.member.id, %why, "no board")).ok())
    }

    /// Makes a lent slot writable, if it has as many bytes as will be written. A shorter one would end this process at the first
    /// write behind its end.
    async fn attach(&self, grant: Grant, size: u32) -> Result<Result<RemoteBuffer, FabricError>, Failure> {
        let sender = Arc::clone(&self.sender);
        let attach = move || grant.check_length(size).and_then(|()| sender.attach(&grant));
        tokio::task::spawn_blocking(attach).await.map_err(unreachable)
    }

    /// Opens one data channel.
    async fn open_channel(&self, board: bool) -> Result<(Box<dyn Channel>, Option<Grant>), Failure> {
        let sender = Arc::clone(&self.sender);
        let begun = tokio::task::spawn_blocking(move || sender.begin()).await;
        let opening = begun.map_err(unreachable)?.map_err(unreachable)?;
        let request = ConnectRequest { caller: self.caller(), offer: opening.offer(), board };
        let reply: ConnectReply<ChannelAnswer, Grant> =
            self.call::<ConnectRequest<Offer>, _>(path::CONNECT, &request).await?;
        if reply.boot != self.member.boot {
            let why = format!("backup {} has restarted without the memory that it was fenced with", self.member.id);
            return Err(Failure::Unreachable(why));
        }
        if let ChannelAnswer::Verbs { in_order, .. } = &reply.answer {
            tracing::info!(member = %self.member.id, in_order, "RDMA: order of placement at the backup");
        }
        // The call has just connected.
        let peer = self.client.peer_ip().ok_or_else(|| unreachable("its address is not known"))?;
        let connected = tokio::task::spawn_blocking(move || opening.connect(&reply.answer, peer)).await;
        Ok((connected.map_err(unreachable)?.map_err(unreachable)?, reply.board))
    }

    /// Has the backup lend a buffer for appends, and its board if there was no memory for it before.
    pub async fn open(&self, identity: SegmentIdentity) -> Result<(RemoteBuffer, Option<RemoteBuffer>), Failure> {
        let OpenReply { grant, board } = self.ask_to_open(identity, Purpose::Append).await?;
        let board = board.filter(|_| !self.has_board.load(Ordering::Relaxed));
        let remote = self.attach(grant, identity.size.bytes()).await?.map_err(unreachable)?;
        Ok((remote, self.attach_board(board).await?))
    }

    /// Keeps asking while it says "retry later".
    async fn ask_to_open(&self, identity: SegmentIdentity, purpose: Purpose) -> Result<OpenReply<Grant>, Failure> {
        let request = OpenRequest { caller: self.caller(), identity, purpose, durability: self.durability };
        // Opens for appends of one member go one at a time.
        let question = (purpose == Purpose::Append).then(|| self.refusals.ask(&self.member.id));
        let tell = |why: &str| question.iter().for_each(|question| question.refused(why));
        self.call_patiently(path::OPEN, &request, tell).await
    }

    /// Tells where a segment ends; under durability `flushed` it is on the backup's disk then.
    pub async fn close(&self, identity: SegmentIdentity, closure: Closure) -> Result<(), Failure> {
        let request = CloseRequest { caller: self.caller(), identity, closure };
        self.call_patiently::<_, Empty>(path::CLOSE, &request, |_| {}).await.map(|_| ())
    }

    /// Has it forget these copies.
    pub async fn drop_copies(&self, copies: Vec<CopyReport>) -> Result<(), Failure> {
        for copies in copies.chunks(DROP_MAX) {
            self.tell(path::DROP, &DropRequest { caller: self.caller(), copies: copies.to_vec() }).await?;
        }
        Ok(())
    }

    /// Records below are no longer needed.
    pub async fn trim(&self, below: Lsn) -> Result<(), Failure> {
        self.tell(path::TRIM, &TrimRequest { caller: self.caller(), below }).await
    }

    /// Brings a segment to its disk up to `end`; how far it is there, which may be less.
    pub async fn flush(&self, identity: SegmentIdentity, end: Offset) -> Result<Offset, Failure> {
        let request = FlushRequest { caller: self.caller(), identity, end };
        self.call::<_, FlushReply>(path::FLUSH, &request).await.map(|reply| reply.end)
    }

    /// Brings the log up to a point to its disk, and has it remember that; keeps asking while it says "retry later".
    pub async fn sync(&self, point: SyncPoint) -> Result<(), Failure> {
        let request = SyncRequest { caller: self.caller(), point };
        self.ask_patiently::<_, Empty>(path::SYNC, &request, SYNC_TIMEOUT, |_| {}).await.map(|_| ()).map_err(failure)
    }

    /// The closed copies that are gone or corrupt there.
    pub async fn damage(&self) -> Result<Vec<CopyReport>, Failure> {
        self.call::<_, DamageReply>(path::DAMAGE, &Empty {}).await.map(|reply| reply.corrupt)
    }

    /// Returns when the backup is gone, with the reason. Each heartbeat says whether readers look at its board.
    pub async fn watch(&self, silence_max: Duration, on_heartbeat: impl FnMut(bool) + Send) -> String {
        self.client.watch_heartbeats(silence_max, on_heartbeat).await
    }

    /// Has the backup copy a closed segment by itself from one of these, and close it; keeps asking while it says "retry later".
    pub async fn pull(
        &self,
        identity: SegmentIdentity,
        closure: Closure,
        sources: Vec<PullSource>,
    ) -> Result<Pulled, Failure> {
        if self.cannot_pull.load(Ordering::Relaxed) {
            return Ok(Pulled::NotThisWay("it is of an earlier build".to_owned()));
        }
        let request = PullRequest { caller: self.caller(), identity, closure, durability: self.durability, sources };
        match self.ask_patiently::<_, Empty>(path::PULL, &request, self.pull_timeout, |_| {}).await {
            Ok(Empty {}) => Ok(Pulled::Done),
            Err(CallError::Refused(Refusal::BadRequest { why })) => {
                self.cannot_pull.store(true, Ordering::Relaxed);
                Ok(Pulled::NotThisWay(why))
            }
            Err(CallError::Refused(
                refusal @ (Refusal::NoSuchCopy { .. } | Refusal::Corrupt { .. } | Refusal::Failed { .. }),
            )) => Ok(Pulled::NotThisWay(refusal.to_string())),
            // It may be busy with it. If it is gone, the next request shows that.
            Err(CallError::Unreachable(why)) => Ok(Pulled::NotThisWay(why)),
            Err(refused) => Err(failure(refused)),
        }
    }

    /// Copies a closed image into a buffer of the backup, with large one-sided writes, and closes it there.
    pub async fn install(&self, identity: SegmentIdentity, closure: Closure, image: &Bytes) -> Result<(), Failure> {
        let mut bulk = self.bulk.lock().await;
        let mut channel = match bulk.take() {
            Some(channel) => channel,
            None => self.open_channel(false).await?.0,
        };
        let OpenReply { grant, .. } = self.ask_to_open(identity, Purpose::Install).await?;
        let remote = self.attach(grant, identity.size.bytes()).await?.map_err(unreachable)?;
        let (sender, image) = (Arc::clone(&self.sender), image.clone());
        let copied = tokio::task::spawn_blocking(move || {
            let (mut local, shared) = sender.allocate(image.len() as u32).map_err(|error| error.to_string())?;
            local.tail_mut()[..image.len()].copy_from_slice(&image);
            local.publish(image.len() as u32);
            copy(&mut *channel, &remote, &shared).map_err(|error| error.to_string())?;
            Ok::<_, String>(channel)
        });
        *bulk = Some(copied.await.map_err(unreachable)?.map_err(Failure::Unreachable)?);
        drop(bulk);
        self.close(identity, closure).await
    }

    fn caller(&self) -> Caller {
        self.caller.clone()
    }

    /// Asks again while the backup says "retry later", and passes on why.
    async fn call_patiently<Req: Serialize + Sync, Rep: DeserializeOwned>(
        &self,
        path: &str,
        request: &Req,
        on_refused: impl Fn(&str),
    ) -> Result<Rep, Failure> {
        self.ask_patiently(path, request, self.timeout, on_refused).await.map_err(failure)
    }

    async fn ask_patiently<Req: Serialize + Sync, Rep: DeserializeOwned>(
        &self,
        path: &str,
        request: &Req,
        timeout: Duration,
        on_refused: impl Fn(&str),
    ) -> Result<Rep, CallError> {
        loop {
            match self.client.call(path, request, timeout).await {
                Err(CallError::Refused(Refusal::RetryLater { after_ms, why })) => {
                    tracing::debug!(member = %self.member.id, path, %why, "will retry");
                    on_refused(&why);
                    tokio::time::sleep(retry_pause(after_ms)).await;
                }
                reply => return reply,
            }
        }
    }

    async fn tell<Req: Serialize + Sync>(&self, path: &str, request: &Req) -> Result<(), Failure> {
        self.call::<Req, Empty>(path, request).await.map(|_| ())
    }

    async fn call<Req: Serialize + Sync, Rep: DeserializeOwned>(
        &self,
        path: &str,
        request: &Req,
    ) -> Result<Rep, Failure> {
        self.client.call(path, request, self.timeout).await.map_err(failure)
    }
}

/// The pause for which a backup asks, within bounds.
fn retry_pause(after_ms: u32) -> Duration {
    Duration::from_millis(after_ms.into()).clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)
}

/// Posts a whole buffer and waits until it has completed.
fn copy(channel: &mut dyn Channel, remote: &RemoteBuffer, local: &SharedBuffer) -> Result<(), ChannelError> {
    let (mut posted, mut in_flight) = (0, 0);
    let mut progress = Instant::now();
    while posted < local.len() || in_flight > 0 {
        if posted < local.len() {
            let end = local.len().min(posted + BULK_WRITE);
            match channel.post(remote, local, posted..end) {
                Ok(()) => (posted, in_flight) = (end, in_flight + 1),
                Err(ChannelError::QueueFull) => {}
                Err(error) => return Err(error),
            }
        }
        match channel.poll()? {
            0 if progress.elapsed() > BULK_TIMEOUT => return Err(ChannelError::Disconnected),
            0 => std::thread::sleep(Duration::from_micros(100)),
            count => (in_flight, progress) = (in_flight - count, Instant::now()),
        }
    }
    Ok(())
}

/// A backup that has answered a survey.
pub(super) struct Surveyed {
    /// Who and where it is.
    pub member: MemberRef,
    /// What it is bound to, and the page that was asked for of what it holds.
    pub inventory: Inventory,
    /// Why it could not take what this sidecar writes, with its name.
    pub misfit: Option<String>,
}

/// Asks every known backup who it is, and what it holds behind this segment, as much as a page has; or nothing of that. Side by
/// side: each with its answer, or with what came back instead, in the order of the list.
pub(super) async fn survey(context: &Context, after: Option<SegmentId>) -> Vec<Result<Surveyed, String>> {
    let known = context.desired().backups;
    // What it is bound to stands on every page, and nothing is behind the last segment.
    let request = InventoryRequest { after: Some(after.unwrap_or(SEGMENT_MAX)) };
    let asked = known.iter().map(|(id, control)| async move {
        let client = context.backup(id, None);
        let nothing = |why: &str| Err(format!("{id} {control}: {why}"));
        let answer: Result<Inventory, CallError> = client.call(path::INVENTORY, &request, SURVEY_TIMEOUT).await;
        let inventory = match answer {
            Ok(inventory) if inventory.member == *id => inventory,
            Ok(inventory) => return nothing(&format!("the backup there is named {}", inventory.member)),
            Err(error) => return nothing(&client.what_came_back(&error)),
        };
        let member = MemberRef { id: id.clone(), boot: inventory.boot, control: control.clone() };
        Ok(Surveyed { member, inventory, misfit: context.misfit(&client) })
    });
    futures_util::future::join_all(asked).await
}

fn failure(error: CallError) -> Failure {
    match error {
        CallError::Refused(refusal) => refusal.into(),
        other => Failure::Unreachable(other.to_string()),
    }
}

fn unreachable(error: impl std::fmt::Display) -> Failure {
    Failure::Unreachable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_cannot_ask_for_a_busy_loop_or_a_long_wait() {
        for (after_ms, pause) in [(0, 5), (4, 5), (10, 10), (1000, 1000), (1001, 1000), (u32::MAX, 1000)] {
            assert_eq!(retry_pause(after_ms), Duration::from_millis(pause), "{after_ms} ms");
        }
    }
}
