//! Who gives closed segments: members, or whoever else still has them. Every byte is checked here, whoever brings it.
//!
//! Used by [`ahead`](super::ahead) for reads and follows, and for copies that are made by [`promote`](super::promote) and
//! [`seat`](super::seat).

use bytes::Bytes;
use tailwind_protocol::config::Configuration;
use tailwind_protocol::ids::MemberId;
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::rpc::FetchRequest;
use tailwind_protocol::scan::PiecewiseScanner;

use super::member::{BULK_TIMEOUT, MemberLink};
use super::{Context, random_below};
use crate::rpc::BackupClient;

/// Takes a segment as it comes.
pub trait Intake: Send {
    /// What it is made into.
    type Taken: Send;

    /// The bytes that follow.
    fn take(&mut self, piece: &[u8]);

    /// All bytes have come: what they were made into, or `None` if they are not what the closure says.
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
    /// any other backup: a closure that is known vouches for every byte. Each is given a new intake. The error says what each
    /// of them answered.
    pub async fn fetch_into<I: Intake>(
        &self,
        context: &Context,
        identity: SegmentIdentity,
        closure: Closure,
        intake: impl Fn() -> I,
    ) -> Result<I::Taken, String> {
        let request = FetchRequest { group: context.group.clone(), identity, closure, check: false };
        // Not in turn: a log of as many segments as there are members would be read from the same copies every time.
        let first = random_below(self.members.len().max(1) as u64) as usize;
        let mut answers = Vec::new();
        for nth in 0..self.members.len() {
            let (id, client) = &self.members[(first + nth) % self.members.len()];
            match fetch_from(context, id, client, &request, &intake).await {
                Ok(taken) => return Ok(taken),
                Err(answer) => answers.push(answer),
            }
        }
        let asked = |id: &MemberId| self.members.iter().any(|(member, _)| member == id);
        for (id, _) in context.desired().backups.iter().filter(|(id, _)| !asked(id)) {
            match fetch_from(context, id, &context.backup(id, None), &request, &intake).await {
                Ok(taken) => {
                    let (segment, why) = (identity.segment, answers.join("; "));
                    tracing::info!(backup = %id, %segment, %why, "fetched from outside the set");
                    return Ok(taken);
                }
                Err(answer) => answers.push(answer),
            }
        }
        let answers = if answers.is_empty() { "no backup is known".to_owned() } else { answers.join("; ") };
        Err(format!("segment {} cannot be fetched: {answers}", identity.segment))
    }
}

/// Fetches from one backup. Its bytes are looked at here; if they are not sound it looks at them too, so that it knows, unless
/// they were only on their way from memory to disk. The error says what it answered, for people.
async fn fetch_from<I: Intake>(
    context: &Context,
    backup: &MemberId,
    client: &BackupClient,
    request: &FetchRequest,
    intake: impl Fn() -> I,
) -> Result<I::Taken, String> {
    for check in [false, true] {
        let mut taking = intake();
        let request = FetchRequest { check, ..request.clone() };
        let fetched = client.fetch(&request, context.rules.rpc_timeout.max(BULK_TIMEOUT), |piece| taking.take(piece));
        fetched.await.map_err(|error| format!("{backup}: {error}"))?;
        if let Some(taken) = taking.finish() {
            return Ok(taken);
        }
    }
    tracing::warn!(%backup, segment = %request.identity.segment, "corrupt copy");
    Err(format!("{backup}: its copy is corrupt"))
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
