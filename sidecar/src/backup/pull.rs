//! Copies closed segments from other backups into this one, because a primary asks for it.
//!
//! Called by [`routes`](super::routes). What to try next is decided by [`Pull`]; the [`actor`](super::actor) lends the buffer
//! and closes it, as for an image that a primary writes. Here the bytes are moved: read one-sidedly in large pieces if the
//! source has them in memory, or else fetched. See "Pull" in `docs/protocol.md`.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tailwind_fabric::{ChannelAnswer, Offer, ReadChannel, ReadError, ReadGrant, Readable, Reader, ReaderId};
use tailwind_protocol::backup::Request;
use tailwind_protocol::ids::{GroupName, MemberId};
use tailwind_protocol::pull::{CopyError, Input, Output, Pull, Way};
use tailwind_protocol::rpc::{
    FetchRequest, OpenRequest, PullRequest, PullSource, ReadConnectReply, ReadConnectRequest, Refusal, ShareReply,
    ShareRequest, path,
};
use tokio::sync::{OnceCell, Semaphore};
use tracing::{debug, info};

use super::actor::{ActorReply, Handle, PullPart};
use super::memory::Filling;
use super::status::About;
use crate::access::Access;
use crate::rpc::{BackupClient, CallError};

/// Pulls at a time: two images of a newcomer and one repair, which is what a primary has under way.
const PULLS_MAX: usize = 3;
/// Bytes of one read: large, since a segment is whole.
const PIECE: u32 = 1 << 20;
/// Reads on their way: one lands while another one is copied. Memory of a pull: so many pieces.
const PIECES: u32 = 2;
/// How long a source may take to answer, a read to complete, and a fetch to continue. A healthy source needs milliseconds, and
/// another source may be healthy.
const SOURCE_SILENCE: Duration = Duration::from_secs(1);
/// How long a source that was silent is not asked again: a newcomer pulls many segments, one after the other, and each would
/// cost another silence.
const AVOIDED: Duration = Duration::from_secs(10);
/// How long nothing may come of a fetch: as for the primary's own.
const FETCH_SILENCE_MAX: Duration = Duration::from_secs(5);
/// Pause between two looks at reads on their way.
const POLL_PAUSE: Duration = Duration::from_micros(50);
/// How long a caller should wait while as many pulls as there may be are under way.
const RETRY_AFTER_MS: u32 = 20;

/// What was pulled since the process started.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Pulled {
    pub(super) segments: u64,
    pub(super) bytes: u64,
    /// How many of these were read one-sidedly.
    pub(super) memory_bytes: u64,
    /// Pulls that no source could serve.
    pub(super) failed: u64,
}

/// Makes the fabric's reading half.
type MakeReader = Arc<dyn Fn() -> anyhow::Result<Arc<dyn Reader>> + Send + Sync>;

/// Pulls, a few at a time.
pub(super) struct Puller {
    group: GroupName,
    member: MemberId,
    access: Access,
    /// This process, as a reader of other backups.
    id: ReaderId,
    make_reader: MakeReader,
    /// Made at the first pull: most backups never need it, and over `verbs` it opens the device once more.
    reader: OnceCell<Arc<dyn Reader>>,
    silences: Silences,
    places: Semaphore,
    segments: AtomicU64,
    bytes: AtomicU64,
    memory_bytes: AtomicU64,
    failed: AtomicU64,
}

impl Puller {
    pub(super) fn new(
        about: &About,
        access: Access,
        make_reader: impl Fn() -> anyhow::Result<Arc<dyn Reader>> + Send + Sync + 'static,
    ) -> anyhow::Result<Puller> {
        Ok(Puller {
            group: about.group.clone(),
            member: about.member.clone(),
            access,
            id: ReaderId(getrandom::u64()?),
            make_reader: Arc::new(make_reader),
            reader: OnceCell::new(),
            silences: Silences::default(),
            places: Semaphore::new(PULLS_MAX),
            segments: AtomicU64::default(),
            bytes: AtomicU64::default(),
            memory_bytes: AtomicU64::default(),
            failed: AtomicU64::default(),
        })
    }

    /// What was pulled so far.
    pub(super) fn so_far(&self) -> Pulled {
        let [segments, bytes, memory_bytes, failed] =
            [&self.segments, &self.bytes, &self.memory_bytes, &self.failed].map(|count| count.load(Ordering::Relaxed));
        Pulled { segments, bytes, memory_bytes, failed }
    }

    /// Carries one pull out. If the caller goes away, it ends: what was copied is not closed, and counts for nothing.
    pub(super) async fn pull(&self, actor: &Handle, request: PullRequest) -> Result<(), Refusal> {
        let Ok(_place) = self.places.try_acquire() else {
            let why = format!("{PULLS_MAX} segments are being pulled by backup {} already", self.member);
            return Err(Refusal::RetryLater { after_ms: RETRY_AFTER_MS, why });
        };
        let is_here = actor.admit_pull(request.clone()).await?;
        let (mut pull, mut next) = Pull::start(request.clone(), is_here);
        // Ended when the caller goes away: the thread that fills the buffer stops.
        let mut filling: Option<EndedOnDrop> = None;
        let mut from = None;
        loop {
            next = match next {
                Output::Open(open) => {
                    let opened = self.open(actor, open).await;
                    pull.step(Input::Opened(opened.map(|opened| filling = Some(EndedOnDrop(opened)))))
                }
                Output::Copy(source, way) => {
                    let Some(EndedOnDrop(filling)) = &filling else { unreachable!("it has been opened") };
                    let copied = self.copy(&request, &source, way, filling).await;
                    let (member, segment) = (&source.member, request.identity.segment);
                    if let Err(why) = &copied {
                        debug!(source = %member, %segment, ?way, %why, "not pulled this way");
                    }
                    from = Some((source, way));
                    pull.step(Input::Copied(copied))
                }
                Output::Close(close) => {
                    let closed = match filling.take() {
                        Some(filled) => {
                            let part = PullPart::Filled(filled.0.clone());
                            actor.ask_for_pull(Request::Close(close), part).await
                        }
                        None => actor.ask(Request::Close(close), None).await,
                    };
                    pull.step(Input::Closed(closed.map(|_| ())))
                }
                Output::End(result) => {
                    if let (Err(_), Some(EndedOnDrop(filling))) = (&result, &filling) {
                        actor.give_up(filling.clone()).await;
                    }
                    self.count(&request, from.as_ref(), &result);
                    return result;
                }
            }
        }
    }

    fn count(&self, request: &PullRequest, from: Option<&(PullSource, Way)>, result: &Result<(), Refusal>) {
        match (result, from) {
            (Ok(()), Some((source, way))) => {
                let (segment, bytes) = (request.identity.segment, u64::from(request.closure.end.0));
                self.segments.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                if *way == Way::Memory {
                    self.memory_bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                info!(%segment, source = %source.member, ?way, bytes, "pulled");
            }
            (Ok(()), None) | (Err(_), None) => {}
            (Err(why), Some(_)) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                info!(segment = %request.identity.segment, %why, "not pulled");
            }
        }
    }

    async fn open(&self, actor: &Handle, request: OpenRequest) -> Result<Filling, Refusal> {
        match actor.ask_for_pull(Request::Open(request), PullPart::Fill).await? {
            ActorReply::Filling(filling) => Ok(filling),
            other => Err(Refusal::Failed { why: format!("internal error: a buffer was opened with {other:?}") }),
        }
    }

    /// Copies the bytes of a source into the buffer, all of them or an error.
    async fn copy(
        &self,
        request: &PullRequest,
        source: &PullSource,
        way: Way,
        filling: &Filling,
    ) -> Result<(), CopyError> {
        self.silences.check(&source.member, way)?;
        let addresses = source.control.clone();
        let client = BackupClient::of_member(source.member.clone(), &self.access, move || addresses.clone());
        let copied = match way {
            Way::Memory => self.read(request, &client, filling).await,
            Way::Fetch => self.fetch(request, &client, false, filling).await,
            Way::CheckedFetch => self.fetch(request, &client, true, filling).await,
        };
        copied.map_err(|trouble| self.silences.note(&source.member, trouble))
    }

    async fn fetch(
        &self,
        request: &PullRequest,
        client: &BackupClient,
        check: bool,
        filling: &Filling,
    ) -> Result<(), Trouble> {
        let PullRequest { identity, closure, .. } = *request;
        let fetch = FetchRequest { group: self.group.clone(), identity, closure, check, range: None };
        let at = AtomicU32::new(0);
        let mut fetched = pin!(client.fetch(&fetch, FETCH_SILENCE_MAX, |piece| {
            // No more bytes come than the closure says, and it has been compared with the buffer's size.
            let from = at.fetch_add(piece.len() as u32, Ordering::Relaxed);
            // Once the filling is over, it stays so.
            let _ = filling.write(from, piece);
        }));
        loop {
            let before = at.load(Ordering::Relaxed);
            match tokio::time::timeout(SOURCE_SILENCE, &mut fetched).await {
                // What has begun to come shows that it is not silent.
                Ok(Err(error)) if at.load(Ordering::Relaxed) > 0 => return Err(Trouble::Failed(error.to_string())),
                Ok(ended) => break ended?,
                Err(_) if at.load(Ordering::Relaxed) > before => {}
                // It may take long to check its copy, or wait for its turn to.
                Err(_) if check => return Err(Trouble::Failed(format!("not checked within {SOURCE_SILENCE:?}"))),
                Err(_) => return Err(Trouble::Silent(format!("no byte within {SOURCE_SILENCE:?}"))),
            }
        }
        if filling.is_over() { Err(over()) } else { Ok(()) }
    }

    async fn read(&self, request: &PullRequest, client: &BackupClient, filling: &Filling) -> Result<(), Trouble> {
        let reader = self.reader().await.map_err(Trouble::Failed)?;
        let (channel, readable) = self.share(request, client, reader).await?;
        let (end, filling) = (request.closure.end.0, filling.clone());
        blocking(move || read_all(channel, &readable, end, &filling)).await.map_err(Trouble::Failed)?
    }

    /// Other pulls wait while one opens the device, which may take long.
    async fn reader(&self) -> Result<Arc<dyn Reader>, String> {
        let make = || {
            let make = Arc::clone(&self.make_reader);
            async move { blocking(move || make().map_err(|error| format!("{error:#}"))).await? }
        };
        self.reader.get_or_try_init(make).await.map(Arc::clone)
    }

    /// A read channel, and the memory that has the segment.
    async fn share(
        &self,
        request: &PullRequest,
        client: &BackupClient,
        reader: Arc<dyn Reader>,
    ) -> Result<(Box<dyn ReadChannel>, Readable), Trouble> {
        let (group, log, segment) = (self.group.clone(), request.caller.log, request.identity.segment);
        let begun = Arc::clone(&reader);
        let opening = blocking(move || begun.begin(PIECES * PIECE)).await.and_then(worded).map_err(Trouble::Failed)?;
        let connect = ReadConnectRequest { group: group.clone(), log, reader: self.id.0, offer: opening.offer() };
        let reply: ReadConnectReply<ChannelAnswer> =
            ask::<ReadConnectRequest<Offer>, _>(client, path::READ_CONNECT, &connect).await?;
        // The call has just connected.
        let peer = client.peer_ip().ok_or_else(|| Trouble::Failed("its address is not known".to_owned()))?;
        let connected = blocking(move || opening.connect(&reply.answer, peer)).await.and_then(worded);
        let channel = connected.map_err(Trouble::NoChannel)?;
        let share =
            ShareRequest { group, log, reader: self.id.0, board: false, mirror: false, segments: vec![segment] };
        let shared: ShareReply<ReadGrant> = ask(client, path::SHARE, &share).await?;
        let wanted = shared
            .segments
            .into_iter()
            .find(|shared| (shared.identity, shared.closure) == (request.identity, Some(request.closure)));
        let missing = || Trouble::Failed("it does not have the segment in memory, closed as wanted".to_owned());
        let grant = wanted.ok_or_else(missing)?.grant;
        let readable = blocking(move || reader.attach(&grant)).await.and_then(worded).map_err(Trouble::Failed)?;
        if readable.len() < request.closure.end.0 {
            let why = format!("it shares {} bytes, and the segment has {}", readable.len(), request.closure.end);
            return Err(Trouble::Failed(why));
        }
        Ok((channel, readable))
    }
}

/// A [`Filling`] that ends when this is dropped.
struct EndedOnDrop(Filling);

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What is wrong with a source.
#[derive(Debug)]
enum Trouble {
    /// It does not answer.
    Silent(String),
    /// It answers, and its data channel does not connect or no longer reads.
    NoChannel(String),
    /// It cannot give this segment in this way.
    Failed(String),
}

impl From<CallError> for Trouble {
    fn from(error: CallError) -> Trouble {
        match error {
            CallError::Refused(refusal) => Trouble::Failed(refusal.to_string()),
            CallError::Unreachable(_) | CallError::OtherNames(_) => Trouble::Silent(error.to_string()),
        }
    }
}

/// Sources that were silent a moment ago, all in all or by their data channel alone.
#[derive(Debug, Default)]
struct Silences(Mutex<BTreeMap<(MemberId, Part), Instant>>);

/// The part of a source that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Whole,
    Channel,
}

impl Silences {
    /// An error if asking the source in this way would most likely cost another silence.
    fn check(&self, source: &MemberId, way: Way) -> Result<(), CopyError> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lasts = |part| known.get(&(source.clone(), part)).is_some_and(|since| since.elapsed() < AVOIDED);
        if lasts(Part::Whole) {
            return Err(CopyError::Silent("it did not answer a moment ago".to_owned()));
        }
        if way == Way::Memory && lasts(Part::Channel) {
            return Err(CopyError::Failed("its data channel did not answer a moment ago".to_owned()));
        }
        Ok(())
    }

    /// Remembers a silence; what the machine is to know of the trouble.
    fn note(&self, source: &MemberId, trouble: Trouble) -> CopyError {
        let (part, error) = match trouble {
            Trouble::Silent(why) => (Part::Whole, CopyError::Silent(why)),
            Trouble::NoChannel(why) => (Part::Channel, CopyError::Failed(why)),
            Trouble::Failed(why) => return CopyError::Failed(why),
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, since| since.elapsed() < AVOIDED);
        known.insert((source.clone(), part), Instant::now());
        error
    }
}

/// Reads the bytes from 0 to `end`, several pieces at a time, into the buffer.
fn read_all(mut channel: Box<dyn ReadChannel>, from: &Readable, end: u32, filling: &Filling) -> Result<(), Trouble> {
    let piece = |nth: u32| nth * PIECE..end.min((nth + 1) * PIECE);
    let place = |nth: u32| nth % PIECES * PIECE;
    let pieces = end.div_ceil(PIECE);
    let (mut posted, mut completed, mut written) = (0, 0, 0);
    let mut progress = Instant::now();
    while written < pieces {
        while posted < pieces && posted < written + PIECES {
            match channel.read(from, piece(posted), place(posted)) {
                Ok(()) => posted += 1,
                Err(ReadError::QueueFull) => break,
                Err(error) => return Err(Trouble::Failed(error.to_string())),
            }
        }
        match channel.poll().map_err(|error| Trouble::Failed(error.to_string()))? {
            0 if written < completed => {}
            0 if progress.elapsed() > SOURCE_SILENCE => {
                return Err(Trouble::NoChannel(format!("no read within {SOURCE_SILENCE:?}")));
            }
            0 if filling.is_over() => return Err(over()),
            0 => std::thread::sleep(POLL_PAUSE),
            count => (completed, progress) = (completed + count, Instant::now()),
        }
        // One at a time: its place is free for the next read before the others are copied.
        if written < completed {
            let (bytes, at) = (piece(written), place(written));
            filling.write(bytes.start, channel.landed(at..at + bytes.len() as u32)).map_err(|_| over())?;
            written += 1;
        }
    }
    Ok(())
}

fn over() -> Trouble {
    Trouble::Failed("the lending is over".to_owned())
}

async fn ask<Req, Rep>(client: &BackupClient, path: &str, request: &Req) -> Result<Rep, CallError>
where
    Req: Serialize + Sync,
    Rep: serde::de::DeserializeOwned,
{
    client.call(path, request, SOURCE_SILENCE).await
}

async fn blocking<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(job).await.map_err(|error| error.to_string())
}

/// A result with its error in words.
fn worded<T>(result: Result<T, impl std::fmt::Display>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_source_is_not_asked_again_at_once() {
        let silences = Silences::default();
        let [one, two] = ["m1", "m2"].map(|name| name.parse::<MemberId>().expect("a name"));
        assert_eq!(silences.note(&one, Trouble::Failed("on disk".into())), CopyError::Failed("on disk".into()));
        assert_eq!(silences.check(&one, Way::Memory), Ok(()));
        assert_eq!(silences.note(&one, Trouble::Silent("mute".into())), CopyError::Silent("mute".into()));
        for way in [Way::Memory, Way::Fetch, Way::CheckedFetch] {
            assert!(matches!(silences.check(&one, way), Err(CopyError::Silent(_))), "{way:?}");
            assert_eq!(silences.check(&two, way), Ok(()), "{way:?}");
        }
    }

    /// Its port may be blocked, and the one of control not.
    #[test]
    fn a_source_without_a_data_channel_is_fetched_from() {
        let silences = Silences::default();
        let one = "m1".parse::<MemberId>().expect("a name");
        assert_eq!(silences.note(&one, Trouble::NoChannel("cut".into())), CopyError::Failed("cut".into()));
        assert!(matches!(silences.check(&one, Way::Memory), Err(CopyError::Failed(_))));
        assert_eq!(silences.check(&one, Way::Fetch), Ok(()));
    }
}
