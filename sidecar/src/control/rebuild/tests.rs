//! A rebuild whose members give no segment for a while, and one that ends.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tailwind_protocol::config::{Kind, PrimaryRef};
use tailwind_protocol::ids::{Claim, Generation, LogId, Lsn, Version};
use tailwind_protocol::scan::scan;
use tailwind_protocol::segment::SegmentWriter;
use tailwind_protocol::table::record::{Key, KeyedRecord, Value};
use tailwind_protocol::table::request::Revisions;
use tailwind_protocol::table::warm::Warm;
use tokio::sync::Notify;

use super::*;

/// Segments of the log, and keys in each of them.
const SEGMENTS: u64 = 9;
const KEYS: u64 = 10;

fn name(number: u64) -> Vec<u8> {
    format!("key/{number}").into_bytes()
}

/// Puts ten keys, of which the next segment puts five again.
fn segment(number: u64) -> ((SegmentIdentity, Closure), Bytes) {
    let identity = SegmentIdentity {
        log: LogId(1),
        segment: SegmentId(number),
        epoch: Epoch(1),
        generation: Generation(number),
        size: SegmentSize::MIN,
    };
    let mut bytes = vec![0; SegmentSize::MIN.bytes() as usize];
    let first = (number - 1) * KEYS + 1;
    let (mut writer, end) = SegmentWriter::open(identity, Lsn(first), &mut bytes);
    let names: Vec<Vec<u8>> = (0..KEYS).map(|nth| name((number - 1) * KEYS / 2 + nth)).collect();
    let put = |name| KeyedRecord::Put { key: Key::new(name).unwrap(), value: Value::new(b"v").unwrap(), more: false };
    writer.append(&mut bytes[end as usize..], names.iter().map(|name| put(name)));
    let closure = scan(&bytes, &identity).closure;
    bytes.truncate(closure.end.0 as usize);
    ((identity, closure), bytes.into())
}

/// Members that give what is not held back, at once.
#[derive(Default)]
struct Fake {
    waits: Waits,
    work: TableWork,
    held_back: Mutex<BTreeSet<SegmentId>>,
    given: Mutex<BTreeSet<SegmentId>>,
    /// How often something was asked for that was held back.
    refused: AtomicUsize,
    /// Fetches that have no end, and how many of them there are.
    hangs: bool,
    under_way: Arc<AtomicUsize>,
    begun: Notify,
}

struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Surroundings for Fake {
    async fn fetch(&self, identity: SegmentIdentity, _: Closure) -> Result<Bytes, String> {
        if self.hangs {
            self.under_way.fetch_add(1, Ordering::Relaxed);
            let _under_way = UnderWay(Arc::clone(&self.under_way));
            self.begun.notify_one();
            return std::future::pending().await;
        }
        if self.held_back.lock().unwrap().contains(&identity.segment) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(format!("segment {} cannot be fetched: b0: not now", identity.segment));
        }
        self.given.lock().unwrap().insert(identity.segment);
        Ok(segment(identity.segment.0).1)
    }

    fn waits(&self) -> &Waits {
        &self.waits
    }

    fn work(&self) -> &TableWork {
        &self.work
    }
}

fn rebuild_from(fake: &Arc<Fake>) -> Rebuild<Fake> {
    let options = crate::options::TableOptions { table: Some(1 << 20), table_keys: Some(1000) };
    Rebuild {
        surroundings: Arc::clone(fake),
        size: options.size(SegmentSize::MIN).unwrap().unwrap(),
        segment_size: SegmentSize::MIN,
        log: (1..=SEGMENTS).map(|number| segment(number).0).collect(),
        warming: None,
    }
}

fn config(epoch: u64) -> Configuration {
    Configuration {
        log: LogId(1),
        kind: Kind::Table,
        epoch: Epoch(epoch),
        claim: Claim(epoch),
        earlier: Vec::new(),
        won: Epoch(epoch),
        cuts: Vec::new(),
        version: Version(epoch),
        primary: PrimaryRef { id: "a".parse().unwrap(), control: "127.0.0.1:9".to_owned() },
        members: Vec::new(),
    }
}

/// Begins a rebuild in epoch 1: it ends with the fence, or with what the watch shows.
fn begin(
    fake: &Arc<Fake>,
    fenced: impl Future<Output = ()> + Send + 'static,
) -> (watch::Sender<Option<Configuration>>, tokio::task::JoinHandle<Result<Rebuilt, Ended>>) {
    let (shown, configuration) = watch::channel(Some(config(1)));
    let rebuild = rebuild_from(fake);
    (shown, tokio::spawn(async move { rebuild.unless(configuration, Epoch(1), fenced).await }))
}

#[tokio::test(start_paused = true)]
async fn a_segment_that_nobody_gives_is_waited_for() {
    let fake = Arc::new(Fake::default());
    fake.held_back.lock().unwrap().extend([SegmentId(3), SegmentId(7)]);
    let (_shown, rebuild) = begin(&fake, std::future::pending());
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!rebuild.is_finished());
    assert_eq!(fake.work.get(), Work::Folding { folded: 2, segments: SEGMENTS as usize });
    let told = fake.waits.told().expect("it says that it waits");
    let why = "the table's index needs a segment that no member gives: segment 3 cannot be fetched: b0: not now";
    assert_eq!((told.what, &*told.why), (WaitsFor::Evidence, why));
    assert!((30..33).contains(&fake.refused.load(Ordering::Relaxed)), "asked again each second");

    // The next one that is missing is waited for in the same way.
    fake.held_back.lock().unwrap().remove(&SegmentId(3));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(fake.work.get(), Work::Folding { folded: 6, segments: SEGMENTS as usize });
    assert!(fake.waits.told().expect("it says that it waits").why.contains("segment 7"));

    fake.held_back.lock().unwrap().clear();
    let rebuilt = rebuild.await.unwrap().expect("nothing has ended it");
    assert_eq!((fake.waits.told(), fake.work.get()), (None, Work::Nothing));
    let index = rebuilt.table.index();
    for number in 0..KEYS / 2 * (SEGMENTS + 1) {
        let revision = index.revision(Key::new(&name(number)).unwrap()).map(|revision| revision.lsn().0);
        // The last segment that puts it.
        let segment = (number / (KEYS / 2)).min(SEGMENTS - 1);
        assert_eq!(revision, Some(segment * KEYS + number - segment * KEYS / 2 + 1), "key/{number}");
    }
    assert_eq!(u64::from(index.keys()), KEYS / 2 * (SEGMENTS + 1));
}

#[tokio::test(start_paused = true)]
async fn a_newer_epoch_ends_a_rebuild_and_its_fetches() {
    let fake = Arc::new(Fake { hangs: true, ..Fake::default() });
    let (shown, rebuild) = begin(&fake, std::future::pending());
    fake.begun.notified().await;
    while fake.under_way.load(Ordering::Relaxed) < FETCHES {
        tokio::task::yield_now().await;
    }
    // The same epoch with another set: it goes on.
    shown.send(Some(Configuration { version: Version(9), ..config(1) })).unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!rebuild.is_finished());
    assert_eq!(fake.under_way.load(Ordering::Relaxed), FETCHES);

    shown.send(Some(config(3))).unwrap();
    assert_eq!(rebuild.await.unwrap().err(), Some(Ended::Superseded(Epoch(3))));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.under_way.load(Ordering::Relaxed), 0, "nothing is fetched any more");
    assert_eq!(fake.work.get(), Work::Nothing);
}

/// Also while it waits: then nothing is said of the wait any more.
#[tokio::test(start_paused = true)]
async fn a_fence_ends_a_rebuild_that_waits() {
    let fake = Arc::new(Fake::default());
    fake.held_back.lock().unwrap().insert(SegmentId(1));
    let fence = Arc::new(Notify::new());
    let fenced = Arc::clone(&fence);
    let (_shown, rebuild) = begin(&fake, async move { fenced.notified().await });
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(fake.waits.told().is_some());
    fence.notify_one();
    assert_eq!(rebuild.await.unwrap().err(), Some(Ended::Fenced));
    let refused = fake.refused.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(fake.refused.load(Ordering::Relaxed), refused, "nothing is asked for any more");
    assert_eq!((fake.waits.told(), fake.work.get()), (None, Work::Nothing));
}

/// The log may have more keys than this sidecar's option says.
#[tokio::test]
async fn an_index_without_room_is_begun_again() {
    let fake = Arc::new(Fake::default());
    let mut rebuild = rebuild_from(&fake);
    rebuild.size.keys = 1;
    let (_shown, configuration) = watch::channel(None);
    let rebuilt = rebuild.unless(configuration, Epoch(1), std::future::pending()).await.unwrap();
    assert_eq!(u64::from(rebuilt.table.index().keys()), KEYS / 2 * (SEGMENTS + 1));
}

/// What a standby makes of the first segments.
fn warm(segments: u64) -> Warm {
    let limits = Limits { buckets: Buckets::for_keys(1000), keys_max: 1000, live_bytes_max: 1 << 20 };
    let mut warm = Warm::new(Index::new(HashKey([7; 16]), limits, Window::new(SegmentSize::MIN)));
    for number in 1..=segments {
        let (named, bytes) = segment(number);
        warm = warm.take(named, |fold| fold.segment(&named.0, &bytes)).unwrap();
    }
    warm
}

async fn given_to(mut rebuild: Rebuild<Fake>, warm: Warm) -> Vec<u64> {
    let fake = Arc::clone(&rebuild.surroundings);
    rebuild.warming = Some(Warming::done(warm));
    let (_shown, configuration) = watch::channel(None);
    let rebuilt = rebuild.unless(configuration, Epoch(1), std::future::pending()).await.unwrap();
    assert_eq!(u64::from(rebuilt.table.index().keys()), KEYS / 2 * (SEGMENTS + 1));
    let given = fake.given.lock().unwrap();
    given.iter().map(|segment| segment.0).collect()
}

#[tokio::test]
async fn what_a_standby_has_folded_is_not_fetched_again() {
    for folded in 0..=SEGMENTS {
        let rebuild = rebuild_from(&Arc::new(Fake::default()));
        assert_eq!(given_to(rebuild, warm(folded)).await, Vec::from_iter(folded + 1..=SEGMENTS));
    }
}

/// The last segment that it has folded ends elsewhere in the recovered log.
#[tokio::test]
async fn what_is_not_in_the_log_is_not_believed() {
    let mut rebuild = rebuild_from(&Arc::new(Fake::default()));
    let warm = warm(4);
    rebuild.log[3].1.chain.0 ^= 1;
    assert_eq!(given_to(rebuild, warm).await, Vec::from_iter(1..=SEGMENTS));
}
