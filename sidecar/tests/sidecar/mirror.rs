//! The mirrors' thread alone, over real fabrics: the test is the append path, control, and the members.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tailwind_fabric::shm::{ShmReceiver, ShmSender};
use tailwind_fabric::tcp::{TcpReceiver, TcpSender};
use tailwind_fabric::{Channel, ChannelError, Pool, Receiver, RemoteBuffer, Sender, SharedBuffer, SlotId, Writer};
use tailwind_protocol::board::mirror::{MIRROR_AT, MirrorLine, PartSize};
use tailwind_protocol::board::{BoardIdentity, LINE_SIZE};
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::table::acked::LineId;
use tailwind_protocol::table::changed::ChangedLines;
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::index::{Index, Limits};
use tailwind_protocol::table::mirror::{MirrorId, State};
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::record::{Key, Value};
use tailwind_protocol::table::request::{Apply, Operation, Written};
use tailwind_sidecar::mirror::{FromThread, MirrorMemory, MirroredIndex, Mirroring, Report, start};
use tailwind_sidecar::path::Counters;

const WRITER: Writer = Writer(7);
const BUCKETS: u32 = 300;
/// Fewer than the index takes together: it lies in two.
const PART: u32 = 64 << 10;
const PARTS: u32 = 2;
/// By now everything that must happen has happened, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
enum Fabric {
    Shm,
    Tcp,
}

const FABRICS: [Fabric; 2] = [Fabric::Shm, Fabric::Tcp];

/// What a test does to a channel.
#[derive(Clone, Debug, Default)]
struct Gate {
    /// Completions wait.
    shut: Arc<AtomicBool>,
    /// The connection breaks.
    broken: Arc<AtomicBool>,
    /// Bytes that were posted.
    posted: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Gated {
    channel: Option<Box<dyn Channel>>,
    gate: Gate,
}

impl Gated {
    fn open(&mut self) -> Result<&mut dyn Channel, ChannelError> {
        if self.gate.broken.load(Ordering::Relaxed) {
            self.channel = None;
        }
        self.channel.as_deref_mut().map_or(Err(ChannelError::Disconnected), |channel| Ok(channel as _))
    }
}

impl Channel for Gated {
    fn post(&mut self, remote: &RemoteBuffer, local: &SharedBuffer, range: Range<u32>) -> Result<(), ChannelError> {
        self.open()?.post(remote, local, range)
    }

    fn post_bytes(&mut self, remote: &RemoteBuffer, at: u32, bytes: &[u8]) -> Result<(), ChannelError> {
        self.open()?.post_bytes(remote, at, bytes)?;
        self.gate.posted.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn push(&mut self) {
        if let Ok(channel) = self.open() {
            channel.push();
        }
    }

    fn poll(&mut self) -> Result<u32, ChannelError> {
        let shut = self.gate.shut.load(Ordering::Relaxed);
        let channel = self.open()?;
        if shut { Ok(0) } else { channel.poll() }
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self) -> bool {
        false
    }
}

/// A backup's memory, and what the primary has of it.
struct Member {
    pool: Arc<Pool>,
    receiver: Box<dyn Receiver>,
    sender: Box<dyn Sender>,
    board: Option<RemoteBuffer>,
    gate: Gate,
    _folder: tempfile::TempDir,
}

impl Member {
    fn new(fabric: Fabric) -> Member {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let pool = Pool::open(folder.path(), PARTS, PART).unwrap();
        let (receiver, sender): (Box<dyn Receiver>, Box<dyn Sender>) = match fabric {
            Fabric::Shm => (Box::new(ShmReceiver::new(Arc::clone(&pool)).unwrap()), Box::new(ShmSender::default())),
            Fabric::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                let receiver = TcpReceiver::new(Arc::clone(&pool), listener).unwrap();
                (Box::new(receiver), Box::new(TcpSender::default()))
            }
        };
        Member { pool, receiver, sender, board: None, gate: Gate::default(), _folder: folder }
    }

    /// Opens a channel and lends everything, as for the first time.
    fn lend(&mut self) -> MirrorMemory {
        self.gate = Gate::default();
        let opening = self.sender.begin().unwrap();
        let answer = self.receiver.accept(WRITER, &opening.offer()).unwrap().complete().unwrap();
        let channel = Some(opening.connect(&answer, Ipv4Addr::LOCALHOST.into()).unwrap());
        let mut lend = |slot| self.sender.attach(&self.receiver.lend(WRITER, slot).unwrap()).unwrap();
        let board = self.board.take().unwrap_or_else(|| lend(self.pool.side_slot()));
        let parts = (0..PARTS).map(|part| lend(SlotId(part))).collect();
        self.board = Some(board.clone());
        MirrorMemory { channel: Box::new(Gated { channel, gate: self.gate.clone() }), board, parts }
    }

    fn line(&self, line: LineId) -> [u8; LINE_SIZE] {
        let (part, at) = part_size().line_at(line);
        let mut bytes = [0; LINE_SIZE];
        self.pool.read(SlotId(part), at, &mut bytes).unwrap();
        bytes
    }

    /// What the board says of the mirror.
    fn told(&self) -> Option<MirrorLine> {
        let mut line = [0; LINE_SIZE];
        self.pool.read(self.pool.side_slot(), MIRROR_AT, &mut line).unwrap();
        MirrorLine::decode(&line, &board()).ok()?
    }
}

fn part_size() -> PartSize {
    PartSize::new(PART).unwrap()
}

fn board() -> BoardIdentity {
    BoardIdentity { log: LogId(1), epoch: Epoch(WRITER.0), generation: Generation(3), segment_size: SegmentSize::MIN }
}

/// A primary's index, and the thread that mirrors it.
struct Primary {
    index: Index,
    changed: Arc<ChangedLines>,
    last: u64,
    present: Vec<bool>,
    random: u64,
    mirroring: Option<Mirroring>,
    from: FromThread,
    counters: Arc<Counters>,
    mirrors: u64,
}

impl Primary {
    fn new() -> Primary {
        let buckets = Buckets::from_number(BUCKETS).unwrap();
        let limits = Limits { buckets, keys_max: 5000, live_bytes_max: 1 << 30 };
        let index = Index::new(HashKey([7; 16]), limits, Window::new(SegmentSize::MIN));
        let view = Arc::clone(index.acked_view());
        let changed = Arc::new(ChangedLines::new(view.lines(), Lsn(0)));
        let mirrored = MirroredIndex { view, changed: Arc::clone(&changed), part_size: part_size(), board: board() };
        let counters = Arc::<Counters>::default();
        let (mirroring, from) = start(mirrored, &counters).unwrap();
        let present = vec![false; 1000];
        Primary { index, changed, last: 0, present, random: 1, mirroring: Some(mirroring), from, counters, mirrors: 0 }
    }

    fn mirroring(&self) -> &Mirroring {
        self.mirroring.as_ref().unwrap()
    }

    fn lent(&mut self, memory: MirrorMemory) -> MirrorId {
        self.mirrors += 1;
        self.mirroring().lent(MirrorId(self.mirrors), memory);
        MirrorId(self.mirrors)
    }

    /// Puts or deletes some keys, each acknowledged at once.
    fn change(&mut self, changes: u32) {
        for _ in 0..changes {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (self.random >> 33) as usize % self.present.len();
            let deletes = self.present[number] && self.random >> 60 < 6;
            self.present[number] = !deletes;
            let name = number.to_string();
            let written = if deletes { Written::Nothing } else { Written::Value(Value::new(b"").unwrap()) };
            let operations = [Operation::Write { key: Key::new(name.as_bytes()).unwrap(), written, only_if: None }];
            let staged = self.index.stage(&Apply::new(&operations).unwrap(), |_| None).unwrap();
            self.last += 1;
            let at = Position::new(SegmentId(1 + self.last / 800), Offset(72 * (1 + self.last % 800) as u32));
            staged.appended(Lsn(self.last), at);
            self.index.acked(Lsn(self.last), |line| self.changed.set(line));
            self.changed.acked(Lsn(self.last));
            self.mirroring().bell().ring();
        }
    }

    fn is_at(&self, member: &Member) -> bool {
        let view = self.index.acked_view();
        (0..view.lines()).map(LineId).all(|line| member.line(line) == view.line(line))
    }

    /// All is published, everywhere.
    fn published(&self) {
        until("everything is published", || self.mirroring().shown().published() == Some(Lsn(self.last)));
    }

    fn report(&mut self) -> Report {
        let mut report = None;
        until("a report", || {
            report = self.from.reports.try_recv().ok();
            report.is_some()
        });
        report.unwrap()
    }
}

fn until(what: &str, mut met: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !met() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_mirror_becomes_as_the_index_and_stays_so() {
    for fabric in FABRICS {
        let (mut primary, mut member) = (Primary::new(), Member::new(fabric));
        primary.change(700);
        let memory = member.lend();
        let mirror = primary.lent(memory);
        primary.change(3000);
        primary.published();
        assert!(primary.is_at(&member));
        assert_eq!(primary.mirroring().shown().state(mirror), Some((State::Live, Lsn(primary.last))));
        until("the board says so", || {
            member.told().is_some_and(|told| told.live && told.published == Lsn(primary.last))
        });
        let counted = || primary.counters.posted_mirror_bytes.load(Ordering::Relaxed);
        until("every byte is counted", || counted() == member.gate.posted.load(Ordering::Relaxed));
        for _ in 0..20 {
            primary.change(3);
            primary.published();
            assert!(primary.is_at(&member));
        }
    }
}

#[test]
fn a_slow_member_holds_up_the_cleaner_and_no_mirror() {
    for fabric in FABRICS {
        let (mut primary, mut fast, mut slow) = (Primary::new(), Member::new(fabric), Member::new(fabric));
        assert_eq!(primary.mirroring().shown().published(), None);
        let (to_fast, to_slow) = (fast.lend(), slow.lend());
        slow.gate.shut.store(true, Ordering::Relaxed);
        let fast_one = primary.lent(to_fast);
        primary.lent(to_slow);
        for _ in 0..10 {
            primary.change(200);
            let live = Some((State::Live, Lsn(primary.last)));
            until("the fast one is live", || primary.mirroring().shown().state(fast_one) == live);
        }
        assert!(primary.is_at(&fast));
        assert_eq!(primary.mirroring().shown().published(), Some(Lsn(0)), "the slow one is being filled");
        assert!(slow.told().is_none_or(|told| !told.live));
        slow.gate.shut.store(false, Ordering::Relaxed);
        primary.published();
        assert!(primary.is_at(&slow));
    }
}

#[test]
fn a_mirror_whose_channel_dies_is_filled_in_other_memory() {
    for fabric in FABRICS {
        let (mut primary, mut member) = (Primary::new(), Member::new(fabric));
        let memory = member.lend();
        primary.lent(memory);
        primary.change(500);
        primary.published();
        // Mostly, the line that says so has completed by now.
        let report = loop {
            member.gate.broken.store(true, Ordering::Relaxed);
            let report = primary.report();
            assert_eq!((report.mirror.0, report.lost), (primary.mirrors, Some(ChannelError::Disconnected)));
            if !report.line_under_way {
                break report;
            }
            primary.mirroring().left(report.mirror);
            let memory = member.lend();
            primary.lent(memory);
            primary.published();
        };
        let lost = primary.mirroring().shown().state(report.mirror);
        assert!(matches!(lost, Some((State::Lost(_), _))), "{lost:?}");
        primary.change(500);
        let memory = member.lend();
        assert!(member.line(LineId(0)) == [0; LINE_SIZE], "other memory");
        primary.mirroring().left(report.mirror);
        let second = primary.lent(memory);
        primary.published();
        assert!(primary.is_at(&member));
        assert_eq!(primary.mirroring().shown().state(report.mirror), None);
        assert_eq!(primary.mirroring().shown().state(second), Some((State::Live, Lsn(primary.last))));
    }
}

#[test]
fn a_line_of_a_board_that_may_still_land_is_reported() {
    let (mut primary, mut member) = (Primary::new(), Member::new(Fabric::Tcp));
    let memory = member.lend();
    // The first thing that is posted is the board's line.
    member.gate.shut.store(true, Ordering::Relaxed);
    let mirror = primary.lent(memory);
    until("the line has landed", || member.told().is_some());
    member.gate.broken.store(true, Ordering::Relaxed);
    assert_eq!(primary.report(), Report { mirror, lost: Some(ChannelError::Disconnected), line_under_way: true });

    let memory = member.lend();
    member.gate.shut.store(true, Ordering::Relaxed);
    let mirror = primary.lent(memory);
    primary.mirroring().left(mirror);
    let report = primary.report();
    assert_eq!((report.mirror, report.lost), (mirror, None), "control hears when nothing is posted any more");
}

#[test]
fn what_rots_in_a_mirror_is_overwritten() {
    for fabric in FABRICS {
        let (mut primary, mut member) = (Primary::new(), Member::new(fabric));
        let memory = member.lend();
        primary.lent(memory);
        primary.change(500);
        primary.published();
        let mut line = member.line(LineId(BUCKETS * 4 - 1));
        line[9] ^= 0x40;
        let (part, at) = part_size().line_at(LineId(BUCKETS * 4 - 1));
        member.pool.write(SlotId(part), at, &line);
        assert!(!primary.is_at(&member));
        until("it is overwritten", || primary.is_at(&member));
    }
}

#[test]
fn a_term_ends_with_writes_under_way() {
    for fabric in FABRICS {
        let (mut primary, mut member) = (Primary::new(), Member::new(fabric));
        primary.change(500);
        let memory = member.lend();
        member.gate.shut.store(true, Ordering::Relaxed);
        primary.lent(memory);
        until("something is under way", || member.told().is_some());
        primary.mirroring = None;
        until("the thread ends", || primary.from.ended.try_recv() == Ok(()));
        assert_eq!(Arc::strong_count(&member.gate.shut), 1, "its channel is closed");
        assert_eq!(Arc::strong_count(primary.index.acked_view()), 1, "and the index is nobody else's");
    }
}
