//! What the longest log takes of a backup's memory: no more than its container has for it (`tailwind_report::memory`), while it
//! starts, and when it lists, trims and closes segments.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::io;
use std::path::{Path, PathBuf};

use allocation_counter::{AllocationInfo, measure};
use tailwind_backup::files::{File, Folder, OsFolder};
use tailwind_backup::{
    BackupConfig, Buffers, Daemon, FileName, Flushed, Flusher, Ledger, Lender, Mapped, MemberState, Memory,
    OutputResult, PromiseFile, Revocation, TableError, start,
};
use tailwind_protocol::backup::{Input, Limits, Promise, Reply, Request, RequestId, Slot};
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{BootId, Claim, Epoch, Generation, LogId, Lsn, SegmentId};
use tailwind_protocol::layout::{Closure, FOOTER_SIZE, Footer, SEGMENT_OVERHEAD, Sealed, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::{
    Caller, FenceRequest, INVENTORY_FOR_IMAGES, INVENTORY_MAX, INVENTORY_PAGE_MAX, TrimRequest,
};
use tailwind_protocol::segment::SegmentWriter;
use tailwind_report::memory::{SEGMENT_BYTES, SEGMENTS_MAX, beside_pool, segments};

/// As long as a log can be: what is kept for images counts too.
const SEGMENTS: u64 = INVENTORY_MAX as u64;
const BUFFERS: u32 = 4;
/// One record in each segment.
const RECORD: &[u8] = b"a record";

fn identity(segment: u64) -> SegmentIdentity {
    let (segment, generation) = (SegmentId(segment), Generation(segment));
    SegmentIdentity { log: LogId(1), segment, epoch: Epoch(1), generation, size: SegmentSize::MIN }
}

/// The file of a closed segment, and how it ends.
fn segment(identity: SegmentIdentity) -> (Vec<u8>, Closure) {
    let mut bytes = vec![0; SEGMENT_OVERHEAD + 256];
    let (mut writer, mut end) = SegmentWriter::open(identity, Lsn(identity.segment.0), &mut bytes);
    end += writer.append(&mut bytes[end as usize..], [RECORD].into_iter());
    bytes.truncate(end as usize);
    let closure = writer.closure();
    bytes.extend_from_slice(&Footer { sealed: Sealed::Closed, closure }.to_bytes());
    assert_eq!(bytes.len(), closure.end.0 as usize + FOOTER_SIZE);
    (bytes, closure)
}

/// A file that is never brought to disk: half a million entries would take minutes.
#[derive(Debug)]
struct Unsynced(Box<dyn File>);

impl File for Unsynced {
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(at, out)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_at(at, bytes)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.0.allocate(length)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A flush folder in which all of the closed segments have files, which are made when they are read.
#[derive(Debug)]
struct LongLog(OsFolder);

#[derive(Debug)]
struct ClosedFile(Vec<u8>);

impl File for ClosedFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<usize> {
        let behind = &self.0[(at as usize).min(self.0.len())..];
        let count = behind.len().min(out.len());
        out[..count].copy_from_slice(&behind[..count]);
        Ok(count)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Folder for LongLog {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let name = |segment| FileName { segment: SegmentId(segment), sealed: Sealed::Closed, temporary: false };
        let mut names = self.0.names()?;
        // One by one, as from a real folder, of which nobody knows how many it has.
        (1..=SEGMENTS).for_each(|segment| names.push(name(segment).to_string()));
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        match FileName::parse(name) {
            Some(FileName { segment: id, sealed: Sealed::Closed, temporary: false }) => {
                Ok(Box::new(ClosedFile(segment(identity(id.0)).0)))
            }
            _ => self.0.open(name),
        }
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        Ok(Box::new(Unsynced(self.0.create(name)?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        if FileName::parse(name).is_some() { Ok(()) } else { self.0.remove(name) }
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// A pool in which nothing is lent.
#[derive(Debug)]
struct Pool;

#[derive(Debug, Default)]
struct Table(std::cell::RefCell<Vec<u8>>);

impl Mapped for Table {
    fn length(&self) -> u64 {
        self.0.borrow().len() as u64
    }

    fn grow(&mut self, length: u64) -> io::Result<()> {
        let length = self.length().max(length) as usize;
        self.0.borrow_mut().resize(length, 0);
        Ok(())
    }

    fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        out.copy_from_slice(&self.0.borrow()[at as usize..][..out.len()]);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.0.borrow_mut()[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn store(&self, at: u64, word: u64) {
        self.write(at, &word.to_le_bytes());
    }
}

impl Memory for Pool {
    fn table(&mut self) -> Result<Box<dyn Mapped>, TableError> {
        Ok(Box::new(Table::default()))
    }

    fn clear(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn open(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn has(&self, _: Slot) -> bool {
        false
    }

    fn load(&mut self, _: Slot, _: &[u8]) -> anyhow::Result<()> {
        Ok(())
    }
}

impl Buffers for Pool {
    fn read(&self, _: Slot, _: u32, out: &mut [u8]) -> io::Result<()> {
        out.fill(0);
        Ok(())
    }
}

impl Lender for Pool {
    fn lend(&mut self, _: Epoch, _: Slot) -> Result<(), String> {
        Ok(())
    }

    fn end_lending(&mut self, _: Slot) {}

    fn retain(&mut self, _: Slot) {}

    fn load(&mut self, _: Slot, _: &[u8]) -> Result<(), String> {
        Err("nothing is loaded".to_owned())
    }

    fn revoke_below(&mut self, _: Epoch) -> anyhow::Result<Revocation> {
        Ok(Revocation::Done)
    }

    fn release(&mut self, _: Slot) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Puts what a backup of the longest log has written beside its segments into a folder. The ledger is almost as long as it can
/// become before it is rewritten: it has four entries for each segment.
fn prepare(folder: &Path) {
    let folder = LongLog(OsFolder::open(folder).unwrap());
    let promise = Promise {
        log: Some(LogId(1)),
        epoch: Epoch(1),
        claim: Some(Claim(1)),
        durability: Durability::Flushed,
        ..Promise::default()
    };
    let (group, member) = ("g".parse().unwrap(), "m1".parse().unwrap());
    let state = MemberState { group, member, boot: BootId(1), promise, complete: true };
    PromiseFile::create(&folder, &state).unwrap();
    let (mut flushed, ..) = Flushed::open(&folder, false).unwrap();
    let (mut ledger, _) = Ledger::open(&folder, false, flushed.entries(), flushed.newest()).unwrap();
    let owed: Vec<_> = (1..=SEGMENTS).map(|id| (identity(id), segment(identity(id)).1)).collect();
    ledger.owe(&folder, &owed).unwrap();
    // In small parts, since a large change would be written with the whole file.
    for part in owed.chunks(16).chain(owed[..owed.len() / 2].chunks(16)) {
        let segments: Vec<_> = part.iter().map(|(identity, _)| identity.segment).collect();
        ledger.settle(&folder, &segments).unwrap();
        ledger.owe(&folder, part).unwrap();
    }
    assert!(folder.open("ledger").unwrap().length().unwrap() > 4 * SEGMENTS * 128);
    flushed.write().unwrap();
}

/// A backup's process, without its threads.
struct Process {
    daemon: Daemon,
    flusher: Flusher,
    requests: u64,
}

impl Process {
    fn start(folder: &Path) -> Process {
        let home = BackupConfig {
            group: "g".parse().unwrap(),
            member: "m1".parse().unwrap(),
            pool: PathBuf::from("pool"),
            buffers: BUFFERS,
            segment_size: SegmentSize::MIN,
            kernel: "a boot".to_owned(),
        };
        let folder = Box::new(LongLog(OsFolder::open(folder).unwrap()));
        let started = start(&home, folder, &mut Pool, BootId(2)).unwrap();
        let slot_size = SegmentSize::MIN.bytes();
        let limits = Limits {
            slots: BUFFERS,
            slot_size,
            unflushed_bytes_max: u64::MAX,
            flush_bytes_max: None,
            residents: 0,
            copies_max: INVENTORY_MAX,
        };
        let (daemon, flusher) = Daemon::new(started, limits);
        let mut process = Process { daemon, flusher, requests: 0 };
        process.work();
        process
    }

    fn work(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        loop {
            match self.daemon.carry_out(&mut Pool).unwrap() {
                Some(OutputResult::Flush(job)) => self.flusher.queue(job),
                Some(OutputResult::Reply(_, reply)) => replies.push(reply),
                Some(OutputResult::Out) => {}
                Some(other) => panic!("{other:?}"),
                None if self.flusher.due().is_some() => {
                    self.flusher.work(&Pool).into_iter().for_each(|input| self.daemon.tell(input));
                }
                None => return replies,
            }
        }
    }

    fn ask(&mut self, request: Request) -> Reply {
        self.requests += 1;
        self.daemon.tell(Input::Request(RequestId(self.requests), request));
        self.work().pop().expect("an answer")
    }
}

fn caller() -> Caller {
    Caller { group: "g".parse().unwrap(), log: LogId(1), epoch: Epoch(2) }
}

/// Bytes at the most for each segment, and those that stay.
fn for_each(counted: &AllocationInfo) -> (u64, i64) {
    (counted.bytes_max / SEGMENTS, counted.bytes_current / SEGMENTS as i64)
}

#[test]
fn the_longest_log_fits_into_a_backups_memory() {
    assert_eq!(SEGMENTS, SEGMENTS_MAX, "the container has memory for as many segments as a backup takes");
    for segment_size in [SegmentSize::MIN, SegmentSize::MAX].map(|size| u64::from(size.bytes())) {
        let beside = beside_pool(SEGMENTS_MAX, segment_size);
        assert_eq!(segments(beside, segment_size), SEGMENTS_MAX);
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("flush");
    prepare(&folder);

    let mut process = None;
    let starting = measure(|| process = Some(Process::start(&folder)));
    let mut process = process.unwrap();
    let counts = process.daemon.machine().counts();
    assert_eq!((counts.closed, counts.corrupt, counts.doubtful), (SEGMENTS, 0, 0), "{counts:?}");

    let listing = measure(|| {
        let (caller, claim, earlier) = (caller(), Claim(2), vec![Claim(1)]);
        let fence = FenceRequest { caller, claim, earlier, won: Epoch(0), joined: None, after: None };
        let Reply::Inventory(page) = process.ask(Request::Fence(fence)) else { panic!("an inventory") };
        assert!(page.more && page.copies.len() == INVENTORY_PAGE_MAX);
        serde_json::to_vec(&page).unwrap();
    });
    // Many at a time: the ledger is rewritten, with all that is left.
    let trimming = measure(|| {
        let below = Lsn(INVENTORY_FOR_IMAGES as u64);
        assert_eq!(process.ask(Request::Trim(TrimRequest { caller: caller(), below })), Reply::Done);
    });

    println!("bytes for each of {SEGMENTS} segments, at the most and afterwards:");
    for (what, counted) in [("start", &starting), ("page of the inventory", &listing), ("trim", &trimming)] {
        println!("  {what}: {:?}", for_each(counted));
    }
    let held = u64::try_from(starting.bytes_current).unwrap();
    let most = starting.bytes_max.max(held + listing.bytes_max).max(held + trimming.bytes_max);
    assert!(most <= SEGMENTS_MAX * SEGMENT_BYTES, "{most} bytes, {} for each segment", most / SEGMENTS);
    // A constant must not be far too large, since every backup pays for it.
    assert!(most * 10 >= SEGMENTS_MAX * SEGMENT_BYTES * 8, "{most} bytes, {} for each segment", most / SEGMENTS);
}
