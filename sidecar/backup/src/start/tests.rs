//! A backup of durability `flushed` loses its memory, and its folder is not what it was: even then, it does not say that less
//! was there.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tailwind_protocol::backup::{Input, Limits, Reply, Request, RequestId};
use tailwind_protocol::ids::{Claim, Epoch, Generation, LogId, Lsn};
use tailwind_protocol::layout::SEGMENT_HEADER_SIZE;
use tailwind_protocol::rpc::{
    Caller, CloseRequest, DropRequest, FORMER_MAX, FenceRequest, FlushRequest, INVENTORY_MAX, Inventory, OpenRequest,
};
use tailwind_protocol::segment::SegmentWriter;

mod residents;

use super::*;
use crate::daemon::{Daemon, OutputResult};
use crate::files::OsFolder;
use crate::flushed::FLUSHED;
use crate::flusher::Flusher;
use crate::ledger::LEDGER;
use crate::memory::{Buffers, Lender, Mapped, Revocation};
use crate::table::TableError;

const SIZE: usize = 64 << 10;
const BUFFERS: u32 = 4;

/// The pool, in this process.
#[derive(Debug, Default)]
struct Pool {
    slots: Mutex<[Option<Vec<u8>>; BUFFERS as usize]>,
    table: Arc<Mutex<Vec<u8>>>,
    /// There is no room for bytes.
    full: bool,
}

#[derive(Debug)]
struct TableFile(Arc<Mutex<Vec<u8>>>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mapped for TableFile {
    fn length(&self) -> u64 {
        locked(&self.0).len() as u64
    }

    fn grow(&mut self, length: u64) -> io::Result<()> {
        let length = self.length().max(length) as usize;
        locked(&self.0).resize(length, 0);
        Ok(())
    }

    fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        out.copy_from_slice(&locked(&self.0)[at as usize..][..out.len()]);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        locked(&self.0)[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn store(&self, at: u64, word: u64) {
        self.write(at, &word.to_le_bytes());
    }
}

impl Memory for Pool {
    fn table(&mut self) -> Result<Box<dyn Mapped>, TableError> {
        Ok(Box::new(TableFile(Arc::clone(&self.table))))
    }

    fn clear(&mut self) -> anyhow::Result<()> {
        *locked(&self.slots) = Default::default();
        Ok(())
    }

    fn open(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn has(&self, slot: Slot) -> bool {
        locked(&self.slots)[slot.0 as usize].is_some()
    }

    fn load(&mut self, slot: Slot, bytes: &[u8]) -> anyhow::Result<()> {
        ensure!(!self.full, "no room");
        let mut memory = bytes.to_vec();
        memory.resize(SIZE, 0);
        locked(&self.slots)[slot.0 as usize] = Some(memory);
        Ok(())
    }
}

impl Buffers for Pool {
    fn read(&self, slot: Slot, offset: u32, out: &mut [u8]) -> io::Result<()> {
        match &locked(&self.slots)[slot.0 as usize] {
            Some(memory) => out.copy_from_slice(&memory[offset as usize..][..out.len()]),
            None => out.fill(0),
        }
        Ok(())
    }
}

impl Lender for Pool {
    fn lend(&mut self, _: Epoch, slot: Slot) -> Result<(), String> {
        locked(&self.slots)[slot.0 as usize] = Some(vec![0; SIZE]);
        Ok(())
    }

    fn end_lending(&mut self, _: Slot) {}

    fn retain(&mut self, _: Slot) {}

    fn load(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), String> {
        let mut memory = vec![0; SIZE];
        memory[..bytes.len()].copy_from_slice(bytes);
        locked(&self.slots)[slot.0 as usize] = Some(memory);
        Ok(())
    }

    fn revoke_below(&mut self, _: Epoch) -> anyhow::Result<Revocation> {
        Ok(Revocation::Done)
    }

    fn release(&mut self, slot: Slot) -> anyhow::Result<()> {
        locked(&self.slots)[slot.0 as usize] = None;
        Ok(())
    }
}

/// A backup's process.
struct Process {
    daemon: Daemon,
    flusher: Flusher,
    pool: Pool,
    requests: u64,
    epoch: u64,
}

fn home(kernel: &str) -> BackupConfig {
    BackupConfig {
        group: "g".parse().unwrap(),
        member: "m1".parse().unwrap(),
        pool: PathBuf::from("pool"),
        buffers: BUFFERS,
        segment_size: SegmentSize::MIN,
        kernel: kernel.to_owned(),
    }
}

impl Process {
    /// Starts on this folder and this memory, and does what is due then.
    fn start(folder: &Path, pool: Pool, kernel: &str) -> Process {
        Process::start_with(folder, pool, kernel, BUFFERS)
    }

    /// The same, with so many buffers.
    fn start_with(folder: &Path, pool: Pool, kernel: &str, buffers: u32) -> Process {
        Process::start_resident(folder, pool, kernel, buffers, 0)
    }

    /// The same, with so many residents.
    fn start_resident(folder: &Path, mut pool: Pool, kernel: &str, buffers: u32, residents: u32) -> Process {
        let open = Box::new(OsFolder::open(folder).unwrap());
        let home = BackupConfig { buffers, ..home(kernel) };
        let started = start(&home, open, &mut pool, BootId(1)).unwrap();
        let slot_size = SegmentSize::MIN.bytes();
        let limits = Limits {
            slots: buffers,
            slot_size,
            unflushed_bytes_max: u64::MAX,
            flush_bytes_max: None,
            residents,
            copies_max: INVENTORY_MAX,
        };
        let (daemon, flusher) = Daemon::new(started, limits);
        let mut process = Process { daemon, flusher, pool, requests: 0, epoch: 0 };
        process.work();
        process
    }

    /// After a loss of power.
    fn start_anew(folder: &Path) -> Process {
        Process::start(folder, Pool::default(), "another boot")
    }

    /// Carries out everything that is due; the replies.
    fn work(&mut self) -> Vec<(RequestId, Reply)> {
        let mut replies = Vec::new();
        loop {
            match self.daemon.carry_out(&mut self.pool).unwrap() {
                Some(OutputResult::Flush(job)) => self.flusher.queue(job),
                Some(OutputResult::Reply(id, reply)) => replies.push((id, reply)),
                Some(OutputResult::Out) => {}
                Some(other) => panic!("{other:?}"),
                None if self.flusher.due().is_some() => {
                    let inputs = self.flusher.work(&self.pool);
                    inputs.into_iter().for_each(|input| self.daemon.tell(input));
                }
                None => return replies,
            }
        }
    }

    fn ask(&mut self, request: Request) -> Reply {
        self.requests += 1;
        let id = RequestId(self.requests);
        self.daemon.tell(Input::Request(id, request));
        let replies = self.work();
        replies.into_iter().find(|(of, _)| *of == id).expect("an answer").1
    }

    fn caller(&self) -> Caller {
        Caller { group: "g".parse().unwrap(), log: LogId(1), epoch: Epoch(self.epoch) }
    }

    fn fence(&mut self, epoch: u64) -> Inventory {
        self.epoch = epoch;
        let earlier = (1..epoch).rev().map(Claim).collect();
        let request = FenceRequest {
            caller: self.caller(),
            claim: Claim(epoch),
            earlier,
            won: Epoch(0),
            joined: None,
            after: None,
        };
        match self.ask(Request::Fence(request)) {
            Reply::Inventory(inventory) => inventory,
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self, segment: u64) -> SegmentIdentity {
        let identity = identity(segment, self.epoch);
        let (caller, purpose, durability) = (self.caller(), Purpose::Append, Durability::Flushed);
        match self.ask(Request::Open(OpenRequest { caller, identity, purpose, durability })) {
            Reply::Opened(_) => identity,
            other => panic!("{other:?}"),
        }
    }

    /// The primary's bytes of a segment with so many records arrive, and are flushed.
    fn flush(&mut self, identity: SegmentIdentity, records: u64) {
        let (bytes, _) = segment(identity, records);
        let slot = (0..BUFFERS).map(Slot).find(|slot| self.daemon.segment_in(*slot) == Some(identity.segment));
        let slot = slot.expect("it is lent");
        if let Some(memory) = &mut locked(&self.pool.slots)[slot.0 as usize] {
            memory[..bytes.len()].copy_from_slice(&bytes);
        }
        let request = FlushRequest { caller: self.caller(), identity, end: Offset(bytes.len() as u32) };
        assert_eq!(self.ask(Request::Flush(request)), Reply::Flushed(Offset(bytes.len() as u32)));
    }

    fn close(&mut self, identity: SegmentIdentity, records: u64) {
        let request = CloseRequest { caller: self.caller(), identity, closure: segment(identity, records).1 };
        assert_eq!(self.ask(Request::Close(request)), Reply::Done);
        self.flusher.rest();
    }

    /// It is killed, a while after the last thing that it did. Its memory stays.
    fn end(mut self) -> Pool {
        self.flusher.rest();
        self.pool
    }

    fn damage(&self) -> Vec<String> {
        self.daemon.machine().damage()
    }

    fn is_witness(&self) -> bool {
        self.daemon.machine().is_witness()
    }
}

fn identity(segment: u64, epoch: u64) -> SegmentIdentity {
    let (segment, epoch) = (SegmentId(segment), Epoch(epoch));
    SegmentIdentity { log: LogId(1), segment, epoch, generation: Generation(segment.0), size: SegmentSize::MIN }
}

/// The bytes of a segment with so many records; each has a hundred.
fn segment(identity: SegmentIdentity, records: u64) -> (Vec<u8>, Closure) {
    let mut bytes = vec![0; SIZE];
    let first = Lsn((identity.segment.0 - 1) * 100 + 1);
    let (mut writer, mut end) = SegmentWriter::open(identity, first, &mut bytes);
    for _ in 0..records {
        end += writer.append(&mut bytes[end as usize..], [b"a record".as_slice()].into_iter());
    }
    bytes.truncate(end as usize);
    (bytes, writer.closure())
}

/// Copies of what was in the folder at some time.
#[derive(Clone)]
struct Copies {
    notes: Vec<u8>,
    ledger: Vec<u8>,
    open: Option<Vec<u8>>,
}

struct Fixture {
    dir: tempfile::TempDir,
    /// While the first segment was open.
    early: Copies,
    /// When it was closed, and nothing of the second had come.
    between: Copies,
    /// When the second had one record.
    late: Copies,
}

const OPEN: &str = "segment-0000000000000002.open";

impl Fixture {
    /// A folder with a closed segment and an open one of 50 records, after a loss of power.
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("flush");
        let mut process = Process::start(&folder, Pool::default(), "a boot");
        let copy = || Copies {
            notes: fs::read(folder.join(FLUSHED)).unwrap(),
            ledger: fs::read(folder.join(LEDGER)).unwrap(),
            open: fs::read(folder.join(OPEN)).ok(),
        };
        process.fence(1);
        let (first, second) = (process.open(1), process.open(2));
        process.flush(first, 10);
        let early = copy();
        process.flush(first, 100);
        process.close(first, 100);
        let between = copy();
        process.flush(second, 1);
        let late = copy();
        process.flush(second, 50);
        drop(process);
        Fixture { dir, early, between, late }
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("flush")
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.folder().join(name), bytes).unwrap();
    }

    /// Acks no longer wait for its disk.
    fn ack_from_memory(&self) {
        let folder = OsFolder::open(&self.folder()).unwrap();
        let (mut promises, member_state) = PromiseFile::open(&folder).unwrap().unwrap();
        let promise = Promise { durability: Durability::Memory, ..member_state.promise };
        promises.write(&MemberState { promise, ..member_state }).unwrap();
    }

    fn lose(&self, name: &str) {
        fs::remove_file(self.folder().join(name)).unwrap();
    }

    fn flip(&self, name: &str, at: usize) {
        let mut bytes = fs::read(self.folder().join(name)).unwrap();
        bytes[at] ^= 1;
        self.put(name, &bytes);
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[test]
fn an_unharmed_folder_raises_no_doubt() {
    let fixture = Fixture::new();
    for epoch in 2..5 {
        let mut process = Process::start_anew(&fixture.folder());
        let inventory = process.fence(epoch);
        assert!(inventory.witness, "{:?}", inventory.damage);
        let ends: Vec<_> = inventory.copies.iter().map(|copy| copy.closure.last).collect();
        assert_eq!(ends, [Lsn(100), Lsn(150)]);
    }
}

type Damage = (&'static str, fn(&Fixture));

/// Each takes the second segment, or a part of it, out of what the files show.
const DAMAGES: [Damage; 13] = [
    ("the open file is gone", |fixture| fixture.lose(OPEN)),
    ("the notes are gone, and the open file", |fixture| {
        fixture.lose(FLUSHED);
        fixture.lose(OPEN);
    }),
    ("the notes are gone, the ledger, and the open file", |fixture| {
        fixture.lose(FLUSHED);
        fixture.lose(LEDGER);
        fixture.lose(OPEN);
    }),
    ("early notes, and the open file is gone", |fixture| {
        fixture.put(FLUSHED, &fixture.early.notes);
        fixture.lose(OPEN);
    }),
    ("notes from before its first flush, and the open file is gone", |fixture| {
        fixture.put(FLUSHED, &fixture.between.notes);
        fixture.lose(OPEN);
    }),
    ("notes from its first flush, and the open file is gone", |fixture| {
        fixture.put(FLUSHED, &fixture.late.notes);
        fixture.lose(OPEN);
    }),
    ("early notes, and the open file is an older one", |fixture| {
        fixture.put(FLUSHED, &fixture.early.notes);
        fixture.put(OPEN, fixture.late.open.as_ref().unwrap());
    }),
    ("the open file is an older one", |fixture| fixture.put(OPEN, fixture.late.open.as_ref().unwrap())),
    ("the open file's header has rotted", |fixture| fixture.flip(OPEN, 20)),
    ("early notes, and the open file's header has rotted", |fixture| {
        fixture.put(FLUSHED, &fixture.early.notes);
        fixture.flip(OPEN, 20);
    }),
    ("notes and ledger from before its first flush, and the open file's header has rotted", |fixture| {
        fixture.put(FLUSHED, &fixture.between.notes);
        fixture.put(LEDGER, &fixture.between.ledger);
        fixture.flip(OPEN, 20);
    }),
    ("the open file is another log's", |fixture| {
        let other = SegmentIdentity { log: LogId(2), ..identity(2, 1) };
        fixture.put(FLUSHED, &fixture.between.notes);
        fixture.put(LEDGER, &fixture.between.ledger);
        fixture.put(OPEN, &segment(other, 3).0);
    }),
    ("the ledger is an early one, and the open file is gone", |fixture| {
        fixture.put(LEDGER, &fixture.early.ledger);
        fixture.lose(OPEN);
    }),
];

#[test]
fn damage_is_never_absence() {
    for (what, strike) in DAMAGES {
        let fixture = Fixture::new();
        strike(&fixture);
        for nth in 1..3 {
            let process = Process::start_anew(&fixture.folder());
            assert!(!process.is_witness(), "{what}, start {nth}: {:?}", process.damage());
            // It writes its notes, and forgets nothing by that.
            process.end();
        }
    }
}

/// The appending primary has seen the doubt, so it ends: it does not come back with the next start.
#[test]
fn a_doubt_ends_with_the_next_append() {
    for (what, strike) in DAMAGES {
        let fixture = Fixture::new();
        strike(&fixture);
        let mut process = Process::start_anew(&fixture.folder());
        let copies = process.fence(2).copies;
        // The group has the log from other members up to here, and continues with another segment.
        let caller = process.caller();
        let rest: Vec<_> = copies.into_iter().filter(|copy| copy.identity.segment > SegmentId(1)).collect();
        assert_eq!(process.ask(Request::Drop(DropRequest { caller, copies: rest })), Reply::Done);
        let third = process.open(3);
        process.flush(third, 5);
        assert!(process.is_witness(), "{what}: {:?}", process.damage());
        process.end();
        let process = Process::start_anew(&fixture.folder());
        assert!(process.is_witness(), "{what}, later: {:?}", process.damage());
    }
}

/// A process that dies before the doubt is on disk has hidden nothing from the next one.
#[test]
fn a_start_that_dies_hides_no_damage() {
    for (what, strike) in DAMAGES {
        let fixture = Fixture::new();
        strike(&fixture);
        for nth in 1..4 {
            let folder = Box::new(OsFolder::open(&fixture.folder()).unwrap());
            let started = start(&home("another boot"), folder, &mut Pool::default(), BootId(1)).unwrap();
            let Found { promise, doubts, flushed, not_understood, .. } = &started.found;
            let evidence =
                promise.doubt.is_some() || !doubts.is_empty() || !not_understood.is_empty() || !flushed.is_empty();
            assert!(evidence, "{what}, start {nth}");
        }
        assert!(!Process::start_anew(&fixture.folder()).is_witness(), "{what}");
    }
}

/// What is closed, or in memory, does not need the file of an open segment.
#[test]
fn a_needless_open_file_that_cannot_be_read_is_no_doubt() {
    let fixture = Fixture::new();
    let needless = "segment-0000000000000001.open";
    fixture.put(needless, b"nothing of ours");
    let process = Process::start_anew(&fixture.folder());
    assert!(process.is_witness(), "{:?}", process.damage());
    let aside = format!("{needless}.aside");
    assert!(fixture.names().contains(&aside) && !fixture.names().contains(&needless.to_owned()));
    // The process ends, and the memory is still there.
    let pool = process.end();
    fixture.flip(OPEN, 20);
    let mut process = Process::start(&fixture.folder(), pool, "another boot");
    assert!(process.is_witness(), "{:?}", process.damage());
    assert!(fixture.names().contains(&format!("{OPEN}.aside")));
    assert_eq!(process.fence(2).copies.last().map(|copy| copy.closure.last), Some(Lsn(150)));
}

/// What it was used for is unknown, so it is a doubt; and the doubt ends like any other.
#[test]
fn an_unreadable_row_beyond_the_buffers_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("flush");
    let mut process = Process::start(&folder, Pool::default(), "a boot");
    process.fence(1);
    let first = process.open(1);
    process.flush(first, 10);
    let pool = process.end();
    {
        // The table ends with the row of the fourth buffer.
        let mut table = locked(&pool.table);
        let last = table.len() - 2048;
        table[last..].fill(0);
    }
    // It takes no buffer from the segment that needs the only one.
    let process = Process::start_with(&folder, pool, "a boot", 1);
    assert!(!process.is_witness());
    let mut process = Process::start_with(&folder, process.end(), "a boot", 2);
    assert!(!process.is_witness());
    let copies = process.fence(2).copies;
    let caller = process.caller();
    assert_eq!(process.ask(Request::Drop(DropRequest { caller, copies })), Reply::Done);
    let second = process.open(2);
    process.flush(second, 5);
    assert!(process.is_witness(), "{:?}", process.damage());
    let process = Process::start_with(&folder, process.end(), "a boot", 2);
    assert!(process.is_witness(), "{:?}", process.damage());
}

/// It owes nothing of what it held under another identity.
#[test]
fn a_new_identity_has_no_doubts() {
    let fixture = Fixture::new();
    fixture.ack_from_memory();
    fixture.put(FLUSHED, &fixture.early.notes);
    fixture.flip(OPEN, 20);
    let process = Process::start_anew(&fixture.folder());
    assert!(process.is_witness(), "{:?}", process.damage());
    assert!(fixture.names().contains(&format!("{OPEN}.aside")), "{:?}", fixture.names());
    process.end();
    let (flushed, ends, doubts) = Flushed::open(&OsFolder::open(&fixture.folder()).unwrap(), true).unwrap();
    assert_eq!((ends, doubts), (vec![], vec![]));
    let folder = OsFolder::open(&fixture.folder()).unwrap();
    let contents = Ledger::open(&folder, true, flushed.entries(), flushed.newest()).unwrap().1;
    assert!(!contents.notes_are_older && contents.open.is_empty() && contents.doubts.is_empty(), "{contents:?}");
}

/// By it an administrator has the log recovered from this disk.
#[test]
fn starts_that_fail_keep_the_former_identity() {
    for full in [false, true] {
        let fixture = Fixture::new();
        fixture.ack_from_memory();
        let start = |buffers: u32, full: bool, fresh: u128| {
            let folder = Box::new(OsFolder::open(&fixture.folder()).unwrap());
            let home = BackupConfig { buffers, ..home("another boot") };
            start(&home, folder, &mut Pool { full, ..Pool::default() }, BootId(fresh))
        };
        for fresh in 2..3 + FORMER_MAX as u128 {
            let error = format!("{:#}", start(if full { BUFFERS } else { 0 }, full, fresh).unwrap_err());
            assert!(error.contains(if full { "no room" } else { "--buffers is 0" }), "{error}");
        }
        let started = start(BUFFERS, false, 20).unwrap();
        assert_eq!((started.member_state.boot, &started.found.promise.former[..]), (BootId(20), &[BootId(1)][..]));
    }
}

const _: () = assert!(SEGMENT_HEADER_SIZE > 20, "the byte that rots is of the header");
