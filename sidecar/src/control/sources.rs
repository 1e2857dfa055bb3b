//! Who gives closed segments: members, or whoever else still has them. Every byte is checked here, whoever brings it.
//!
//! Used by [`reads`](super::reads), by [`roles`](super::roles) for copies that a promotion or a primary makes, and for a table: by
//! [`warm`](super::warm), [`rebuild`](super::rebuild), [`clean`](super::clean), [`gets`](super::gets) and
//! [`getting`](super::getting).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tailwind_protocol::config::Configuration;
use tailwind_protocol::ids::MemberId;
use tailwind_protocol::layout::{Closure, RecordHeader, SegmentIdentity};
use tailwind_protocol::rpc::FetchRequest;
use tailwind_protocol::scan::PiecewiseScanner;
use tailwind_protocol::table::get::Wanted;
use tokio::task::JoinSet;

use super::roles::member::{BULK_TIMEOUT, MemberLink};
use super::{Context, random_below};
use crate::rpc::BackupClient;

/// So long nothing of a segment may come before the next backup is asked for it as well. The first goes on: it may have many
/// readers to serve.
const NEXT_AFTER: Duration = Duration::from_millis(300);

/// A segment on its way, in a task of its own; given up when this is dropped.
#[derive(Debug)]
pub struct Fetch<T>(JoinSet<Result<T, String>>);

impl<T: Send + 'static> Fetch<T> {
    /// Begins it.
    pub fn begin(fetch: impl Future<Output = Result<T, String>> + Send + 'static) -> Fetch<T> {
        Fetch(JoinSet::from_iter([fetch]))
    }

    /// What it was made into.
    pub async fn done(mut self) -> Result<T, String> {
        let done = self.0.join_next().await.expect("there is one task");
        done.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Takes a segment as it comes.
pub trait Intake: Send {
    /// What it is made into.
    type Taken: Send;

    /// The bytes that follow.
    fn take(&mut self, piece: &[u8]);

    /// All bytes have come: what they were made into, or `None` if they are not what was asked for.
    fn finish(self) -> Option<Self::Taken>;
}

/// Who is asked first: members, which should have every closed segment.
pub struct Sources {
    members: Vec<(MemberId, BackupClient)>,
}

impl Sources {
    /// The members of these links.
    pub fn new<'a>(links: impl IntoIterator<Item = &'a MemberLink>) -> Sources {
        let client = |link: &MemberLink| (link.member().id.clone(), link.client().clone());
        Sources { members: links.into_iter().map(client).collect() }
    }

    /// The members of this configuration.
    pub fn of(context: &Context, config: &Configuration) -> Sources {
        let members = config.members.iter();
        Sources {
            members: members
                .map(|member| (member.id.clone(), context.backup(&member.id, Some(&member.control))))
                .collect(),
        }
    }

    /// A closed segment's bytes: see [`Sources::fetch_into`].
    pub async fn fetch(&self, context: &Context, identity: SegmentIdentity, closure: Closure) -> Result<Bytes, String> {
        self.fetch_into(context, identity, closure, || Image::new(identity, closure)).await
    }

    /// Fetches a closed segment from the first member whose copy is sound, beginning with any of them at random, or else from
    /// any other backup: a closure that is known vouches for every byte. One that is silent does not keep the others waiting.
    /// Each is given a new intake. The error says what each of them answered.
    pub async fn fetch_into<I: Intake>(
        &self,
        context: &Context,
        identity: SegmentIdentity,
        closure: Closure,
        intake: impl Fn() -> I,
    ) -> Result<I::Taken, String> {
        let request = FetchRequest { group: context.group.clone(), identity, closure, check: false, range: None };
        self.fetch_bytes(context, &request, intake).await
    }

    /// The value in a record of a closed segment, of which no more than the record is moved.
    pub async fn fetch_value(
        &self,
        context: &Context,
        identity: SegmentIdentity,
        closure: Closure,
        wanted: &Wanted,
    ) -> Result<Vec<u8>, String> {
        let range = Some(wanted.bytes());
        let request = FetchRequest { group: context.group.clone(), identity, closure, check: false, range };
        self.fetch_bytes(context, &request, || Record { wanted: *wanted, bytes: Vec::new() }).await
    }

    /// These bytes of a closed segment, which should be a record, or the header of one.
    pub async fn fetch_record(
        &self,
        context: &Context,
        identity: SegmentIdentity,
        closure: Closure,
        bytes: Range<u32>,
    ) -> Result<Vec<u8>, String> {
        let size = bytes.len();
        let request =
            FetchRequest { group: context.group.clone(), identity, closure, check: false, range: Some(bytes) };
        self.fetch_bytes(context, &request, || RecordBytes { size, bytes: Vec::new() }).await
    }

    async fn fetch_bytes<I: Intake>(
        &self,
        context: &Context,
        request: &FetchRequest,
        intake: impl Fn() -> I,
    ) -> Result<I::Taken, String> {
        // Not in turn: a log of as many segments as there are members would be read from the same copies every time.
        let mut members = self.members.clone();
        let first = random_below(members.len().max(1) as u64) as usize;
        members.rotate_left(first);
        let is_member = |id: &MemberId| self.members.iter().any(|(member, _)| member == id);
        let others = context.desired().backups.into_iter().filter(|(id, _)| !is_member(id));
        let mut sources = members.into_iter().chain(others.map(|(id, _)| {
            let client = context.backup(&id, None);
            (id, client)
        }));

        let segment = request.identity.segment;
        let pieces = AtomicU64::new(0);
        let fetch = async |(id, client)| {
            let fetched = fetch_from(context, &id, &client, request, &intake, &pieces).await;
            (id, fetched)
        };
        let (mut fetches, mut answers, mut heard) = (FuturesUnordered::new(), Vec::new(), 0);
        fetches.extend(sources.next().map(&fetch));
        while !fetches.is_empty() {
            match tokio::time::timeout(NEXT_AFTER, fetches.next()).await {
                Ok(Some((id, Ok(taken)))) => {
                    if !is_member(&id) {
                        let why = answers.join("; ");
                        tracing::info!(backup = %id, %segment, %why, "fetched from outside the set");
                    }
                    return Ok(taken);
                }
                Ok(Some((_, Err(answer)))) => {
                    answers.push(answer);
                    fetches.extend(sources.next().map(&fetch));
                }
                Ok(None) => {}
                Err(_) => {
                    let before = std::mem::replace(&mut heard, pieces.load(Ordering::Relaxed));
                    if heard == before {
                        fetches.extend(sources.next().map(&fetch));
                    }
                }
            }
        }
        let answers = if answers.is_empty() { "no backup is known".to_owned() } else { answers.join("; ") };
        Err(format!("segment {segment} cannot be fetched: {answers}"))
    }
}

/// Fetches from one backup. Its bytes are looked at here; if they are not sound it looks at them too, so that it knows, unless
/// they were only on their way from memory to disk. Counts the pieces that come. The error says what it
/// answered, for people.
async fn fetch_from<I: Intake>(
    context: &Context,
    backup: &MemberId,
    client: &BackupClient,
    request: &FetchRequest,
    intake: impl Fn() -> I,
    pieces: &AtomicU64,
) -> Result<I::Taken, String> {
    for check in [false, true] {
        let mut taking = intake();
        let request = FetchRequest { check, ..request.clone() };
        let take = |piece: &[u8]| {
            pieces.fetch_add(1, Ordering::Relaxed);
            taking.take(piece);
        };
        let fetched = client.fetch(&request, context.rules.rpc_timeout.max(BULK_TIMEOUT), take);
        fetched.await.map_err(|error| format!("{backup}: {error}"))?;
        if let Some(taken) = taking.finish() {
            return Ok(taken);
        }
    }
    tracing::warn!(%backup, segment = %request.identity.segment, "corrupt copy");
    Err(format!("{backup}: its copy is corrupt"))
}

/// One record.
struct Record {
    wanted: Wanted,
    bytes: Vec<u8>,
}

impl Intake for Record {
    /// The value in it.
    type Taken = Vec<u8>;

    fn take(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    fn finish(self) -> Option<Vec<u8>> {
        self.wanted.value(&self.bytes).map(|value| value.as_bytes().to_vec())
    }
}

/// A record as it is, or its header alone.
struct RecordBytes {
    size: usize,
    bytes: Vec<u8>,
}

impl Intake for RecordBytes {
    type Taken = Vec<u8>;

    fn take(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    /// What a reader makes of it is checked there; this tells a corrupt copy from a sound one.
    fn finish(self) -> Option<Vec<u8>> {
        let (header, payload) = self.bytes.split_first_chunk()?;
        let header = RecordHeader::from_bytes(header)?;
        let is_whole = self.bytes.len() == self.size;
        let is_sound = payload.is_empty() || crc32fast::hash(payload) == header.payload_crc;
        (is_whole && is_sound).then_some(self.bytes)
    }
}

/// A segment as it is.
struct Image {
    scanner: PiecewiseScanner,
    closure: Closure,
    bytes: Vec<u8>,
}

impl Image {
    fn new(identity: SegmentIdentity, closure: Closure) -> Image {
        let bytes = Vec::with_capacity(closure.end.0 as usize);
        Image { scanner: PiecewiseScanner::new(identity), closure, bytes }
    }
}

impl Intake for Image {
    type Taken = Bytes;

    fn take(&mut self, piece: &[u8]) {
        self.scanner.push(piece, |_| {});
        self.bytes.extend_from_slice(piece);
    }

    fn finish(self) -> Option<Bytes> {
        (self.scanner.finish(|_| {}) == self.closure).then(|| self.bytes.into())
    }
}
