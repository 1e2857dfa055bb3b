//! Members whose boards show a table's mirror, written by the test with the encoders of the product; and control's part for a
//! getter that reads them.

#![allow(unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tailwind_fabric::baselines::BaselineChoice;
use tailwind_fabric::shm::{ShmReader, ShmReceiver};
use tailwind_fabric::tcp::{TcpReader, TcpReceiver};
use tailwind_fabric::{
    LookUp, Pool, ReadChannel, ReadError, ReadGrant, Readable, Reader, ReaderId, Receiver, SlotId, Writer,
};
use tailwind_protocol::board::mirror::{LINES_WITH_MIRROR, MIRROR_AT, MirrorLine, PartSize};
use tailwind_protocol::board::{self, BoardIdentity, Progress};
use tailwind_protocol::config::{Configuration, Kind};
use tailwind_protocol::follower::Visit;
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, Position, SegmentId, Version};
use tailwind_protocol::layout::{RecordHeader, SegmentSize};
use tailwind_protocol::segment::Payload;
use tailwind_protocol::table::acked::{LINE_SIZE, LineId};
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::index::{Index, Limits};
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::record::{Key, KeyedRecord, Value};
use tailwind_protocol::table::request::{Apply, Operation, Written};
use tailwind_sidecar::lookup;
use tailwind_sidecar::path::{Brought, ClientRequest, Command, GetterRequest, LANDING, MirrorMemory, Wish};
use tokio::sync::mpsc;

use crate::loop_harness::LoopHarness;
use crate::loop_harness::configuration::{BACKUPS, configuration};

pub const SIZE: SegmentSize = SegmentSize::MIN;
const BUCKETS: Buckets = Buckets::MIN;
const HASH_KEY: HashKey = HashKey([7; 16]);
/// Where a member has its mirror, and the only segment of the log.
const PART: SlotId = SlotId(0);
const SEGMENT: SlotId = SlotId(1);

/// How the members are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Shm,
    Tcp,
    /// With lookups, which no build that ships has.
    Messages(BaselineChoice),
}

impl Over {
    /// All that there are in this build.
    pub fn all() -> impl Iterator<Item = Over> {
        let with_lookups = BaselineChoice::ALL.iter().filter(|choice| choice.name() == "rpc-shm");
        [Over::Shm, Over::Tcp].into_iter().chain(with_lookups.copied().map(Over::Messages))
    }
}

/// What a getter has asked of its members.
#[derive(Debug, Default)]
pub struct Asked {
    pub lookups: AtomicU32,
    /// Apart from those of boards.
    pub reads: AtomicU32,
}

struct Member {
    pool: Arc<Pool>,
    /// `None`: it is dead.
    receiver: Option<Box<dyn Receiver>>,
    _folder: tempfile::TempDir,
}

/// The members, the table whose mirror they have, and what the getter has asked for.
pub struct MirroredMembers {
    over: Over,
    members: Vec<Member>,
    index: Index,
    last: u64,
    begin: u32,
    beat: u64,
    pub epoch: u64,
    pub published: u64,
    /// Whether the members have memory for a mirror.
    pub have_mirrors: bool,
    /// The segment in which the log ends, as boards show it. All records are in the first one.
    pub end: u64,
    /// Whether the segment is in their memory.
    pub has_memory: bool,
    /// The segment's bytes.
    bytes: Vec<u8>,
    visits: Vec<(Visit, usize, mpsc::Receiver<Wish>)>,
    /// Members that were visited, in their order.
    pub visited: Vec<usize>,
    /// Questions that wait for an answer.
    pub asked: Vec<u64>,
    /// What they are answered with, if they are.
    pub position: Option<u64>,
    pub fetches: usize,
    pub reading: Arc<Asked>,
}

impl MirroredMembers {
    pub fn new(over: Over) -> MirroredMembers {
        let limits = Limits { buckets: BUCKETS, keys_max: 10, live_bytes_max: 1 << 30 };
        let index = Index::new(HASH_KEY, limits, Window::new(SIZE));
        let members = (0..BACKUPS).map(|_| Member::new(over)).collect();
        let bytes = vec![0; SIZE.bytes() as usize];
        MirroredMembers {
            over,
            members,
            index,
            last: 0,
            begin: 72,
            beat: 0,
            epoch: 2,
            published: 0,
            have_mirrors: true,
            end: 1,
            has_memory: true,
            bytes,
            visits: Vec::new(),
            visited: Vec::new(),
            asked: Vec::new(),
            position: None,
            fetches: 0,
            reading: Arc::default(),
        }
    }

    /// What the config store shows.
    pub fn configuration(&self) -> Configuration {
        Configuration { kind: Kind::Table, won: Epoch(self.epoch), ..configuration(self.epoch) }
    }

    pub fn tell_configuration(&self, harness: &LoopHarness) {
        harness.command(Command::Getter(Brought::Config(Box::new(self.configuration()))));
    }

    /// The key gets this value, and all members have it, published.
    pub fn put(&mut self, key: &str, value: &[u8]) {
        self.put_unpublished(key, value);
        self.published = self.last;
    }

    /// The same, and no mirror says so yet.
    pub fn put_unpublished(&mut self, key: &str, value: &[u8]) {
        let (key, value) = (Key::new(key.as_bytes()).unwrap(), Value::new(value).unwrap());
        let operations = [Operation::Write { key, written: Written::Value(value), only_if: None }];
        let staged = self.index.stage(&Apply::new(&operations).unwrap(), |_| None).unwrap();
        self.last += 1;
        staged.appended(Lsn(self.last), Position::new(SegmentId(1), Offset(self.begin)));
        self.index.acked(Lsn(self.last), |_| {});
        let record = KeyedRecord::Put { key, value, more: false };
        let mut payload = vec![0; record.payload_size()];
        record.copy_to(&mut payload);
        let (length, payload_crc) = (payload.len() as u32, crc32fast::hash(&payload));
        let header = RecordHeader { length, payload_crc, lsn: Lsn(self.last), epoch: Epoch(1) };
        let bytes = [&header.to_bytes()[..], &payload].concat();
        self.bytes[self.begin as usize..self.begin as usize + bytes.len()].copy_from_slice(&bytes);
        self.begin += bytes.len().next_multiple_of(8) as u32;
        for member in &self.members {
            member.pool.write(SEGMENT, 0, &self.bytes);
            for line in 0..self.index.acked_view().lines() {
                let bytes = self.index.acked_view().line(LineId(line));
                member.pool.write(PART, line * LINE_SIZE as u32, &bytes);
            }
        }
    }

    /// All entries of this member's mirror are torn.
    pub fn tear(&self, member: usize) {
        for entry in 0..BUCKETS.entries() {
            let mut word = [0; 8];
            self.members[member].pool.read(PART, entry * 32, &mut word).unwrap();
            if word != [0; 8] {
                self.members[member].pool.write(PART, entry * 32 + 16, &[0xff; 8]);
            }
        }
    }

    /// The member's process dies.
    pub fn kill(&mut self, harness: &LoopHarness, member: usize) {
        self.members[member].receiver = None;
        let broken = |visit: &Visit| Command::Getter(Brought::Broken(*visit, "it is dead".to_owned()));
        let visits = self.visits.iter().filter(|(_, of, _)| *of == member);
        visits.for_each(|(visit, ..)| harness.command(broken(visit)));
    }

    /// What control and the primary do between two turns: boards go on, and what the getter asks is done.
    pub fn serve(&mut self, harness: &mut LoopHarness) {
        self.write_boards();
        while let Ok(request) = harness.from_path.requests.try_recv() {
            let ClientRequest::Getter(request) = request else { panic!("{request:?}") };
            match request {
                GetterRequest::Visit(visit, LogId(1), member, wishes) => {
                    let nth = member.boot.0 as usize;
                    self.visited.push(nth);
                    let connected = self.connect(nth).map(Box::new);
                    harness.command(Command::Getter(Brought::Connected(visit, connected)));
                    self.visits.push((visit, nth, wishes));
                }
                GetterRequest::Ask(question) => self.asked.push(question),
                GetterRequest::Close(memory) => drop(memory),
                GetterRequest::Visit(..) => panic!("{request:?}"),
            }
        }
        if let Some(position) = self.position {
            for question in self.asked.drain(..) {
                harness.command(Command::Getter(Brought::Told(question, Ok(Lsn(position)))));
            }
        }
        for (visit, nth, wishes) in &mut self.visits {
            while let Ok(wish) = wishes.try_recv() {
                let brought = match wish {
                    Wish::Share(segments) => {
                        let there = segments.contains(&SegmentId(1)) && self.has_memory;
                        let shared = there.then(|| (SegmentId(1), self.members[*nth].share(self.over, SEGMENT)));
                        Brought::Shared(*visit, segments, Ok(shared.into_iter().collect()))
                    }
                    Wish::Fetch(get, SegmentId(1), bytes) => {
                        self.fetches += 1;
                        let bytes = self.bytes[bytes.start as usize..bytes.end as usize].to_vec();
                        Brought::Fetched(*visit, get, Ok(bytes))
                    }
                    Wish::Fetch(get, ..) => Brought::Fetched(*visit, get, Err("there is none".to_owned())),
                };
                harness.command(Command::Getter(brought));
            }
        }
        self.visits.retain(|(_, _, wishes)| !wishes.is_closed());
    }

    fn connect(&mut self, nth: usize) -> Result<MirrorMemory, String> {
        let over = self.over;
        let member = &mut self.members[nth];
        let receiver = member.receiver.as_mut().filter(|_| self.have_mirrors).ok_or("it has no mirror")?;
        let opening = reader(over).begin(LANDING).unwrap();
        let sharer = receiver.sharer().unwrap();
        let answer = sharer.admit(ReaderId(1), &opening.offer()).unwrap().complete().unwrap();
        let channel = opening.connect(&answer, Ipv4Addr::LOCALHOST.into()).unwrap();
        let channel = Box::new(Counted { channel, asked: Arc::clone(&self.reading) });
        let board = member.share(over, member.pool.side_slot());
        Ok(MirrorMemory { channel, board, parts: vec![member.share(over, PART)] })
    }

    fn write_boards(&mut self) {
        self.beat += 1;
        let identity =
            BoardIdentity { log: LogId(1), epoch: Epoch(self.epoch), generation: Generation(1), segment_size: SIZE };
        let end = Position::new(SegmentId(self.end), Offset(self.begin));
        let acked = Lsn(self.last.max(self.published));
        let progress = Progress { beat: self.beat, acked, end, first: Lsn(1), version: Version(1) };
        let line = MirrorLine {
            published: Lsn(self.published),
            hash_key: HASH_KEY,
            buckets: BUCKETS,
            part_size: PartSize::new(SIZE.bytes()).unwrap(),
            live: true,
        };
        for member in &self.members {
            let side = member.pool.side_slot();
            member.pool.write(side, board::IDENTITY_AT, &identity.encode());
            member.pool.write(side, board::PROGRESS_AT, &progress.encode(&identity));
            member.pool.write(side, MIRROR_AT, &line.encode(&identity));
        }
    }
}

impl Member {
    fn new(over: Over) -> Member {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let pool = Pool::open(folder.path().join("pool"), 2, SIZE.bytes()).unwrap();
        let mut receiver: Box<dyn Receiver> = match over {
            Over::Shm => Box::new(ShmReceiver::new(Arc::clone(&pool)).unwrap()),
            Over::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                Box::new(TcpReceiver::new(Arc::clone(&pool), listener).unwrap())
            }
            Over::Messages(choice) => choice.receiver(Arc::clone(&pool), None).unwrap(),
        };
        for slot in [PART, SEGMENT, pool.side_slot()] {
            receiver.lend(Writer(1), slot).unwrap();
        }
        Member { pool, receiver: Some(receiver), _folder: folder }
    }

    fn share(&mut self, over: Over, slot: SlotId) -> Readable {
        let sharer = self.receiver.as_mut().unwrap().sharer().unwrap();
        let grant: ReadGrant = sharer.share(slot).unwrap().unwrap();
        if slot == SEGMENT {
            sharer.answer_lookups(slot, 1, lookup::follow);
        }
        reader(over).attach(&grant).unwrap()
    }
}

fn reader(over: Over) -> Arc<dyn Reader> {
    match over {
        Over::Shm => Arc::new(ShmReader),
        Over::Tcp => Arc::new(TcpReader),
        Over::Messages(choice) => choice.reader(),
    }
}

/// A channel whose reads are counted.
#[derive(Debug)]
struct Counted {
    channel: Box<dyn ReadChannel>,
    asked: Arc<Asked>,
}

impl ReadChannel for Counted {
    fn read(&mut self, from: &Readable, at: Range<u32>, place: u32) -> Result<(), ReadError> {
        self.asked.reads.fetch_add(u32::from(at != LINES_WITH_MIRROR), Ordering::Relaxed);
        self.channel.read(from, at, place)
    }

    fn look_up(&mut self, lookup: &LookUp<'_>, place: Range<u32>) -> Result<bool, ReadError> {
        let posted = self.channel.look_up(lookup, place)?;
        self.asked.lookups.fetch_add(u32::from(posted), Ordering::Relaxed);
        Ok(posted)
    }

    fn poll(&mut self) -> Result<u32, ReadError> {
        self.channel.poll()
    }

    fn landed(&self, range: Range<u32>) -> &[u8] {
        self.channel.landed(range)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.channel.readiness()
    }

    fn arm(&mut self) -> bool {
        self.channel.arm()
    }
}
