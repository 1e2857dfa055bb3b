//! Messages of the control RPC that backups answer, and one that primaries do: JSON bodies over HTTP, mutual TLS between pods.
//!
//! Sent by the sidecar, answered by the backup daemon. Grants and offers of the fabric are opaque here (`serde` values of
//! the fabric crate), so the messages are generic over them. Paths and bodies are listed in `docs/protocol.md`.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::config::{Configuration, Durability, MEMBERS_MAX};
use crate::ids::{BootId, Claim, EPOCH_MAX, Epoch, GroupName, LogId, Lsn, MemberId, Offset, SegmentId, SidecarId};
use crate::layout::{Closure, SegmentIdentity};
use crate::planted::{self, Bug};

/// Paths of the control RPC, version 1.
pub mod path {
    /// [`FenceRequest`](super::FenceRequest) → [`Inventory`](super::Inventory).
    pub const FENCE: &str = "/v1/fence";
    /// [`InventoryRequest`](super::InventoryRequest) → [`Inventory`](super::Inventory); changes nothing.
    pub const INVENTORY: &str = "/v1/inventory";
    /// [`Empty`](super::Empty) → [`DamageReply`](super::DamageReply); changes nothing.
    pub const DAMAGE: &str = "/v1/damage";
    /// [`ConnectRequest`](super::ConnectRequest) → [`ConnectReply`](super::ConnectReply).
    pub const CONNECT: &str = "/v1/connect";
    /// [`OpenRequest`](super::OpenRequest) → [`OpenReply`](super::OpenReply).
    pub const OPEN: &str = "/v1/open";
    /// [`MirrorRequest`](super::MirrorRequest) → [`MirrorReply`](super::MirrorReply).
    pub const MIRROR: &str = "/v1/mirror";
    /// [`CloseRequest`](super::CloseRequest) → [`Empty`](super::Empty).
    pub const CLOSE: &str = "/v1/close";
    /// [`FlushRequest`](super::FlushRequest) → [`FlushReply`](super::FlushReply).
    pub const FLUSH: &str = "/v1/flush";
    /// [`SyncRequest`](super::SyncRequest) → [`Empty`](super::Empty).
    pub const SYNC: &str = "/v1/sync";
    /// [`FetchRequest`](super::FetchRequest) → bytes of a closed segment.
    pub const FETCH: &str = "/v1/fetch";
    /// [`PullRequest`](super::PullRequest) → [`Empty`](super::Empty).
    pub const PULL: &str = "/v1/pull";
    /// [`TrimRequest`](super::TrimRequest) → [`Empty`](super::Empty).
    pub const TRIM: &str = "/v1/trim";
    /// [`DropRequest`](super::DropRequest) → [`Empty`](super::Empty).
    pub const DROP: &str = "/v1/drop";
    /// [`ReadConnectRequest`](super::ReadConnectRequest) → [`ReadConnectReply`](super::ReadConnectReply).
    pub const READ_CONNECT: &str = "/v1/read-connect";
    /// [`ShareRequest`](super::ShareRequest) → [`ShareReply`](super::ShareReply).
    pub const SHARE: &str = "/v1/share";
    /// [`PositionRequest`](super::PositionRequest) → [`PositionReply`](super::PositionReply); asked of the primary's sidecar.
    pub const POSITION: &str = "/v1/position";
    /// [`TermRequest`](super::TermRequest) → an endless stream of [heartbeats](super::HEARTBEAT), for as long as that term lasts;
    /// asked of the primary's sidecar.
    pub const TERM: &str = "/v1/term";
    /// GET: an endless stream of [heartbeats](super::HEARTBEAT) of a backup, one every heartbeat interval.
    pub const HEARTBEATS: &str = "/v1/heartbeats";
}

/// A heartbeat.
pub const HEARTBEAT: &[u8; 1] = b"\n";
/// A heartbeat of a backup that has shared its board with readers. One comes at once when that begins, and a plain one when it is
/// over.
pub const HEARTBEAT_FOLLOWED: &[u8; 1] = b"+";

/// Whether readers look at the board of the backup whose heartbeats these are: the last of them says so.
pub fn is_followed(heartbeats: &[u8]) -> bool {
    heartbeats.ends_with(HEARTBEAT_FOLLOWED)
}

/// The caller's group, log and epoch. Part of every request that changes something.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    /// The group; a backup serves one.
    pub group: GroupName,
    /// The log; a backup binds itself to the first that fences it.
    pub log: LogId,
    /// The caller's epoch.
    pub epoch: Epoch,
}

/// Stop every older epoch, then report what is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FenceRequest {
    /// The caller; `caller.epoch` is the new epoch.
    pub caller: Caller,
    /// The claim of that epoch: a backup promises it to one claim only.
    pub claim: Claim,
    /// The claims of the epochs before, the latest first, as the config store has them. A backup that has promised one of
    /// those epochs to another claim knows by it that the store has gone back.
    #[serde(default)]
    pub earlier: Vec<Claim>,
    /// The last epoch that had a primary, as the config store has it. Sidecars of earlier builds do not know it.
    #[serde(default)]
    pub won: Epoch,
    /// The identity with which this backup is in the set, if it is. Then it had promised that epoch, and knows by it that its folder
    /// has been put back if it finds an older promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<BootId>,
    /// Report the copies after this segment, or all if there is none. The first page's request does the fencing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<SegmentId>,
}

/// Report what is held, and change nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InventoryRequest {
    /// Report the copies after this segment, or all if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<SegmentId>,
}

impl FenceRequest {
    /// The fence of a configuration's epoch for this backup, with the first page of what is there.
    pub fn of(group: GroupName, config: &Configuration, backup: &MemberId) -> FenceRequest {
        let caller = Caller { group, log: config.log, epoch: config.epoch };
        let joined = config.member(backup).map(|member| member.boot);
        FenceRequest {
            caller,
            claim: config.claim,
            earlier: config.earlier.clone(),
            won: config.won,
            joined,
            after: None,
        }
    }
}

/// Prepare for one data channel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectRequest<Offer> {
    /// The caller.
    pub caller: Caller,
    /// The fabric's offer.
    pub offer: Offer,
    /// Lend this epoch's board too. Backups of earlier builds do not know of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub board: bool,
}

/// The channel's other end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectReply<Answer, Grant> {
    /// The identity of the backup's memory: another one than at the fence means that it restarted without it in between,
    /// and is no longer the member that was fenced.
    pub boot: BootId,
    /// The fabric's answer.
    pub answer: Answer,
    /// The grant of the board, if one was asked for and there is memory for it. The same for each channel of an epoch. If
    /// there is none, it may come with a later [`OpenReply`].
    #[serde(default = "no_grant", skip_serializing_if = "Option::is_none")]
    pub board: Option<Grant>,
}

fn no_grant<Grant>() -> Option<Grant> {
    None
}

fn no_grants<Grant>() -> Vec<Grant> {
    Vec::new()
}

/// Prepare for one read channel. Readers belong to no epoch, and change nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadConnectRequest<Offer> {
    /// The group.
    pub group: GroupName,
    /// The log that is to be read.
    pub log: LogId,
    /// One incarnation of the reader: a random number. A backup forgets a reader that has asked for nothing for
    /// [`READER_SILENCE_MS`].
    pub reader: u64,
    /// The fabric's offer.
    pub offer: Offer,
}

/// How long a backup remembers a reader that asks for nothing, milliseconds. Its channels end then: a reader that has no other
/// question asks for the board's share again from time to time.
pub const READER_SILENCE_MS: u64 = 30_000;

/// The read channel's other end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadConnectReply<Answer> {
    /// The identity of the backup's memory.
    pub boot: BootId,
    /// The fabric's answer.
    pub answer: Answer,
}

/// Most segments in one [`ShareRequest`]: a reader asks for those that it reads next.
pub const SHARES_MAX: usize = 16;

/// Share memory with a reader that has a read channel. May be repeated: while a share lasts, its grant stays the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShareRequest {
    /// The group.
    pub group: GroupName,
    /// The log.
    pub log: LogId,
    /// The reader.
    pub reader: u64,
    /// Share the board, if one is lent.
    pub board: bool,
    /// Share all parts of the mirror that are lent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mirror: bool,
    /// Share these segments, as far as they are in memory; at most [`SHARES_MAX`].
    pub segments: Vec<SegmentId>,
}

/// What is shared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShareReply<Grant> {
    /// The epoch that the backup has promised. A board of an older epoch is never shared.
    pub promised: Epoch,
    /// The board; `None` if it was not asked for, or none is lent.
    #[serde(default = "no_grant", skip_serializing_if = "Option::is_none")]
    pub board: Option<Grant>,
    /// The parts of the mirror, in their order, up to the first that is not lent; empty if they were not asked for.
    #[serde(default = "no_grants", skip_serializing_if = "Vec::is_empty")]
    pub mirror: Vec<Grant>,
    /// Parts that the backup has for a mirror, lent or not; `None` if it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror_parts: Option<u32>,
    /// The segments that are in memory. The others are on disk, to be fetched, or not here.
    pub segments: Vec<SharedSegment<Grant>>,
}

/// One shared segment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SharedSegment<Grant> {
    /// Which opening of the segment it is.
    pub identity: SegmentIdentity,
    /// Where it ends, if it is closed here.
    pub closure: Option<Closure>,
    /// The fabric's grant.
    pub grant: Grant,
}

/// Show that this term continues. The address of a sidecar that has died may belong to any other process of the group now, so
/// the request names the term, and only the sidecar that leads it, or is about to, answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TermRequest {
    /// The group.
    pub group: GroupName,
    /// The leader of the term, by the config store.
    pub primary: SidecarId,
    /// The term.
    #[serde(flatten)]
    pub term: TermId,
}

/// Names a term: no two have the same epoch and claim, also where the config store has gone back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TermId {
    /// The log that is led.
    pub log: LogId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The claim of that epoch.
    pub claim: Claim,
}

impl TermId {
    /// The term that this content of the config store names.
    pub fn of(config: &Configuration) -> TermId {
        TermId { log: config.log, epoch: config.epoch, claim: config.claim }
    }
}

impl TermRequest {
    /// The question whether the primary of this configuration leads it.
    pub fn of(group: GroupName, config: &Configuration) -> TermRequest {
        TermRequest { group, primary: config.primary.id.clone(), term: TermId::of(config) }
    }

    /// Whether the sidecar `me` of that group may answer, which leads `term` or is recovering its log.
    pub fn is_for(&self, me: &SidecarId, term: Option<TermId>) -> bool {
        planted::has(Bug::BeatsInEveryRole) || self.primary == *me && term == Some(self.term)
    }
}

/// Tell how far the log is. Only the primary can: it proves first that it still is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PositionRequest {
    /// The group.
    pub group: GroupName,
    /// The log, if the caller knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogId>,
}

/// A position of the log, taken after the request had come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PositionReply {
    /// The epoch of the primary.
    pub epoch: Epoch,
    /// The last acknowledged record: everything that was acknowledged before the request is at or before it.
    pub last: Lsn,
}

/// What a buffer is lent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// The primary appends to it; it counts from the first byte on.
    Append,
    /// A closed image is copied into it; it counts only once closed, and then replaces an older copy of the segment.
    Install,
}

/// Lend a buffer for a segment. A repeated request returns the same lending.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpenRequest {
    /// The caller.
    pub caller: Caller,
    /// The segment; its own epoch may be older than the caller's when an image is installed.
    pub identity: SegmentIdentity,
    /// What the buffer is for.
    pub purpose: Purpose,
    /// What the group's acks promise; a backup keeps its identity over a loss of memory only under `Flushed`.
    pub durability: Durability,
}

/// The lending.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenReply<Grant> {
    /// The fabric's grant.
    pub grant: Grant,
    /// For appends: the board, as in [`ConnectReply`].
    #[serde(default = "no_grant", skip_serializing_if = "Option::is_none")]
    pub board: Option<Grant>,
}

/// Lend a part of the memory for a table's mirror, all zero, to the promised epoch. A repeated request returns the same lending.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MirrorRequest {
    /// The caller.
    pub caller: Caller,
    /// Which part, from 0 on.
    pub part: u32,
    /// Which lending of this part in this epoch. One with a higher number ends the one before, and its memory is zero again: what the
    /// caller has posted under that, by a channel that it has lost, must not land any more. A request for a lower number, which
    /// has come late, is refused.
    #[serde(default, skip_serializing_if = "is_first")]
    pub lending: u32,
}

fn is_first(lending: &u32) -> bool {
    *lending == 0
}

/// Parts that a backup has at most.
pub const PARTS_MAX: u32 = 128;

/// The part that is lent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorReply<Grant> {
    /// Parts that the backup has. A caller that needs more keeps no mirror there.
    pub parts: u32,
    /// Bytes of each.
    pub part_size: u32,
    /// The fabric's grant of this one; `None` if there are not so many, or no memory for it just now.
    pub grant: Option<Grant>,
}

/// The segment ends here; nothing more will be written to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CloseRequest {
    /// The caller.
    pub caller: Caller,
    /// The segment.
    pub identity: SegmentIdentity,
    /// Where it ends.
    pub closure: Closure,
}

/// Bring an open segment's appends that end at or before `end` to disk (durability `Flushed`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FlushRequest {
    /// The caller.
    pub caller: Caller,
    /// The segment.
    pub identity: SegmentIdentity,
    /// Flush everything before this offset.
    pub end: Offset,
}

/// How far a segment is on disk, which may be less than requested: only whole valid appends are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushReply {
    /// End of the last whole valid append on disk.
    pub end: Offset,
}

/// A part of an open segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpenPart {
    /// The segment.
    pub identity: SegmentIdentity,
    /// Everything before this offset, at which an append ends.
    pub end: Offset,
}

/// The log up to a record: whole segments, and perhaps a part of the one after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SyncPoint {
    /// Every segment before this one.
    pub before: SegmentId,
    /// And this much of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenPart>,
    /// The last record of all this.
    pub last: Lsn,
}

/// Bring the log up to a point to disk, in any durability, and remember it through the loss of all memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SyncRequest {
    /// The caller.
    pub caller: Caller,
    /// The point.
    pub point: SyncPoint,
}

/// How far a backup has promised to hold the log on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Synced {
    /// The epoch of the primary that asked for it.
    pub epoch: Epoch,
    /// The last record, of that primary's log.
    pub last: Lsn,
}

/// Most former identities that a backup remembers: one for each loss of its memory since a primary has last filled it or taken
/// it over.
pub const FORMER_MAX: usize = 8;

/// Send a closed segment's bytes, from 0 to its closure's end; or a part of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FetchRequest {
    /// The group.
    pub group: GroupName,
    /// The segment.
    pub identity: SegmentIdentity,
    /// Where it ends.
    pub closure: Closure,
    /// The backup looks at the bytes first, and remembers that its copy is corrupt. Otherwise it sends what is there, for a
    /// caller that checks the bytes anyway, and asks again with this if something is wrong.
    #[serde(default = "checked")]
    pub check: bool,
    /// Only these bytes, at least one, and none behind the closure's end. What is checked is all of the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<Range<u32>>,
}

impl FetchRequest {
    /// The bytes that it asks for.
    pub fn bytes(&self) -> Range<u32> {
        self.range.clone().unwrap_or(0..self.closure.end.0)
    }
}

fn checked() -> bool {
    true
}

/// Most sources in one [`PullRequest`]: the other members of the set.
pub const SOURCES_MAX: usize = MEMBERS_MAX;
/// Most addresses of one source: where the desired state has it, and where the config store does.
pub const SOURCE_ADDRESSES_MAX: usize = 4;

/// Copy a closed segment yourself from one of these backups, and close it: an open, a copy and a close in one request. It may
/// be repeated: what is here already is not copied again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PullRequest {
    /// The caller.
    pub caller: Caller,
    /// The segment; its own epoch may be older than the caller's.
    pub identity: SegmentIdentity,
    /// Where it ends.
    pub closure: Closure,
    /// As in [`OpenRequest`].
    pub durability: Durability,
    /// The backups to copy from, in this order; at most [`SOURCES_MAX`].
    pub sources: Vec<PullSource>,
}

/// A backup to copy from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PullSource {
    /// Its name: another backup at one of the addresses is passed over.
    pub member: MemberId,
    /// Where its control RPC may be (`host:port`), the likeliest first; at most [`SOURCE_ADDRESSES_MAX`].
    pub control: Vec<String>,
}

/// Closed segments that end below this LSN may be forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TrimRequest {
    /// The caller.
    pub caller: Caller,
    /// First record that must stay.
    pub below: Lsn,
}

/// Most copies that one drop names: some 300 bytes each, within the bound of a control request's body.
pub const DROP_MAX: usize = 1000;

/// Forget these copies, as the inventory listed them: they are not part of the recovered log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DropRequest {
    /// The caller.
    pub caller: Caller,
    /// The copies; at most [`DROP_MAX`].
    pub copies: Vec<CopyReport>,
}

/// An empty body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// State of a segment's copy at a backup, as the inventory reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyState {
    /// Never closed; the closure is what the scan found.
    Open,
    /// Closed.
    Closed,
    /// Closed, but its bytes are missing or no longer match: not a source.
    Corrupt,
    /// Never closed, and its valid bytes end before what was acknowledged, so they do not show where the log ends.
    Damaged,
}

/// One segment's copy at a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CopyReport {
    /// The segment.
    pub identity: SegmentIdentity,
    /// Its state.
    pub state: CopyState,
    /// Where its valid bytes end; of a corrupt copy, where they ended when it was closed.
    pub closure: Closure,
    /// For a copy that was never closed: everything before this offset was acknowledged, by the evidence in its bytes and by
    /// what was flushed of it.
    pub acked: Offset,
}

impl CopyReport {
    /// Whether it was never closed.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, CopyState::Open | CopyState::Damaged)
    }
}

/// Most copies in an inventory, and so at a backup: 131 072, which are 1 TiB of segments of 8 MiB. A sidecar holds the inventories
/// of all members at once, with [`COPY_SIZE`] bytes for each copy: 10 MiB for a member, 80 MiB for eight.
pub const INVENTORY_MAX: usize = 1 << 17;
/// This many of these are for images only: a member whose copies must be replaced by others can hold some more while that
/// lasts.
pub const INVENTORY_FOR_IMAGES: usize = 1 << 12;
/// Most buffers of a backup: 4096 of 64 MiB are 256 GiB, more than one backup's flush can answer for. So it has no more copies
/// that are open.
pub const BUFFERS_MAX: u32 = 1 << 12;
/// Most copies on one page of an inventory: 4096 × [`COPY_JSON_SIZE_MAX`] = 1.6 MiB, less than half of what a sidecar reads.
pub const INVENTORY_PAGE_MAX: usize = 1 << 12;
/// Bytes of a [`CopyReport`] in memory.
pub const COPY_SIZE: usize = size_of::<CopyReport>();
const _: () = assert!(COPY_SIZE <= 80 && INVENTORY_MAX.is_multiple_of(INVENTORY_PAGE_MAX));
/// Most bytes of a [`CopyReport`] and the comma behind it as JSON: every number with all its digits.
pub const COPY_JSON_SIZE_MAX: usize = 416;
/// Most pieces of damage that an inventory describes in words.
pub const DAMAGE_DESCRIPTIONS_MAX: usize = 32;
/// Most bytes of each of them.
pub const DAMAGE_LENGTH_MAX: usize = 1024;

/// Everything a backup holds, or one page of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Inventory {
    /// Its name.
    pub member: MemberId,
    /// Its memory's identity.
    pub boot: BootId,
    /// The log it is bound to; none before its first fence.
    pub log: Option<LogId>,
    /// The epoch it has promised: no older one can change anything any more.
    pub promised: Epoch,
    /// Records below are no longer needed.
    pub trimmed: Lsn,
    /// What this backup should hold and does not, or doubts, in words. Empty when everything is present and sound.
    #[serde(deserialize_with = "at_most::<_, _, DAMAGE_DESCRIPTIONS_MAX>")]
    pub damage: Vec<String>,
    /// True when it can tell where its log ends: if it has lost anything, it can name it.
    pub witness: bool,
    /// How far it has promised to hold the log on its disk, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synced: Option<Synced>,
    /// Identities that it had before it lost its memory, the latest last: what is on its disk was written under them. At most
    /// [`FORMER_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "at_most::<_, _, FORMER_MAX>")]
    pub former: Vec<BootId>,
    /// Its copies by ascending segment, at most [`INVENTORY_PAGE_MAX`] on a page. Copies lent under the promised epoch are not
    /// listed: they are being written.
    #[serde(deserialize_with = "at_most::<_, _, INVENTORY_PAGE_MAX>")]
    pub copies: Vec<CopyReport>,
    /// There are more, behind the last of these.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// Reads a list that is no longer than `MAX`: of short text a liar can make many times as many bytes in memory.
fn at_most<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct AtMost<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for AtMost<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MAX}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut taken = Vec::new();
            while let Some(one) = list.next_element()? {
                if taken.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                taken.push(one);
            }
            Ok(taken)
        }
    }

    deserializer.deserialize_seq(AtMost::<T, MAX>(PhantomData))
}

/// Most corrupt copies in one [`DamageReply`]: with about 300 bytes each, a third of a MiB. The others are reported once these
/// are repaired.
pub const DAMAGE_REPORTS_MAX: usize = 1000;

/// The corrupt copies at a backup, for the primary to repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DamageReply {
    /// Oldest segment first, at most [`DAMAGE_REPORTS_MAX`].
    pub corrupt: Vec<CopyReport>,
}

/// Why a backup refused. Grouped by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refused", rename_all = "snake_case")]
pub enum Refusal {
    /// A newer epoch has fenced this backup: the caller's primaryship is over.
    #[error("fenced: this backup has promised epoch {promised}")]
    Fenced {
        /// The newer epoch.
        promised: Epoch,
    },
    /// The caller's epoch is newer than what this backup has promised: fence it first.
    #[error("not fenced: this backup has promised epoch {promised} only")]
    NotFenced {
        /// The older epoch.
        promised: Epoch,
    },
    /// The caller's epoch, or an earlier one, was promised to another claim: the config store has gone back.
    #[error(
        "epoch {promised} was promised to another claim here: the config store is older than the log \
         (docs/config-store.md)"
    )]
    ClaimedBefore {
        /// The epoch that was promised.
        promised: Epoch,
    },
    /// No buffer can be lent now.
    #[error("retry in {after_ms} ms: {why}")]
    RetryLater {
        /// How long to wait before trying again.
        after_ms: u32,
        /// What is short, and how much there is.
        why: String,
    },
    /// This backup belongs to another group or log.
    #[error("{why}")]
    WrongLog {
        /// Which one it belongs to and what to do.
        why: String,
    },
    /// The segment is not here, or not in the state that the request needs.
    #[error("segment {segment}: {why}")]
    NoSuchCopy {
        /// The segment.
        segment: SegmentId,
        /// What is there instead.
        why: String,
    },
    /// The bytes here do not match the closure.
    #[error("segment {segment}: the bytes here do not match the closure; copy it from another member")]
    Corrupt {
        /// The segment.
        segment: SegmentId,
    },
    /// This sidecar does not lead the term that the caller asks after.
    #[error("{why}")]
    OtherTerm {
        /// Which sidecar this is, and what it does instead.
        why: String,
    },
    /// The request was meant for another backup. Nothing has been done.
    #[error("this is backup {found}, not {wanted}")]
    OtherMember {
        /// The backup that answers.
        found: MemberId,
        /// The backup that the caller wants.
        wanted: MemberId,
    },
    /// The caller has not proven that it belongs to the group. The request has not been read.
    #[error("{why}")]
    Unauthorized {
        /// What is missing and where it is.
        why: String,
    },
    /// The caller belongs to the group, and its role may not ask for this.
    #[error("{why}")]
    Forbidden {
        /// What was asked for, and by which role.
        why: String,
    },
    /// The request makes no sense.
    #[error("bad request: {why}")]
    BadRequest {
        /// What is wrong.
        why: String,
    },
    /// Something failed on this backup's machine.
    #[error("{why}")]
    Failed {
        /// What failed, where, and what to do.
        why: String,
    },
}

impl Refusal {
    /// The same, and what it says in words passed through `edit`.
    pub fn map_words(mut self, edit: impl FnOnce(&str) -> String) -> Refusal {
        match &mut self {
            Refusal::RetryLater { why, .. }
            | Refusal::WrongLog { why }
            | Refusal::NoSuchCopy { why, .. }
            | Refusal::OtherTerm { why }
            | Refusal::Unauthorized { why }
            | Refusal::Forbidden { why }
            | Refusal::BadRequest { why }
            | Refusal::Failed { why } => *why = edit(why),
            Refusal::Fenced { .. }
            | Refusal::NotFenced { .. }
            | Refusal::ClaimedBefore { .. }
            | Refusal::Corrupt { .. }
            | Refusal::OtherMember { .. } => {}
        }
        self
    }

    /// The HTTP status that carries this refusal.
    pub fn http_status(&self) -> u16 {
        match self {
            Refusal::Fenced { .. } | Refusal::NotFenced { .. } | Refusal::ClaimedBefore { .. } => 409,
            Refusal::WrongLog { .. } | Refusal::OtherMember { .. } | Refusal::OtherTerm { .. } => 421,
            Refusal::Unauthorized { .. } => 401,
            Refusal::Forbidden { .. } => 403,
            Refusal::RetryLater { .. } => 503,
            Refusal::NoSuchCopy { .. } => 404,
            Refusal::Corrupt { .. } => 410,
            Refusal::BadRequest { .. } => 400,
            Refusal::Failed { .. } => 500,
        }
    }
}

/// How a call to a member failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// The member has promised a newer epoch.
    #[error("it has promised epoch {0}")]
    Superseded(Epoch),
    /// The member has promised this epoch to another claim: the config store has gone back.
    #[error("it has promised epoch {0} to another claim: the config store is older than the log")]
    ClaimedBefore(Epoch),
    /// It does not answer, or cannot do it; the reason is for people.
    #[error("{0}")]
    Unreachable(String),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        match refusal {
            // No epoch beyond the last can be promised, and counting on from it would overflow.
            Refusal::Fenced { promised } if promised <= EPOCH_MAX => Failure::Superseded(promised),
            Refusal::ClaimedBefore { promised } if promised <= EPOCH_MAX => Failure::ClaimedBefore(promised),
            other => Failure::Unreachable(other.to_string()),
        }
    }
}
