//! The contract suite: every promise of `contract.rs`, for any fabric.
//!
//! A fabric joins by implementing [`Harness`] and one line of `contract_suite!` in `contract.rs`. This file holds
//! what the tests share; the promises themselves are in the files beside it.

pub(crate) mod lending;
pub(crate) mod lookups;
pub(crate) mod reading;
pub(crate) mod revocation;
pub(crate) mod writing;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tailwind_fabric::{
    Channel, ChannelError, Parts, Pool, ReadChannel, ReadGrant, Readable, Reader, ReaderId, Receiver, RemoteBuffer,
    SIDE_SLOT_SIZE, Sender, SharedBuffer, Sharer, SlotId, Writer,
};
use tempfile::TempDir;

/// Slots of each pool.
pub(crate) const SLOTS: u32 = 4;
/// Four times what the tcp receiver takes from its socket at once.
pub(crate) const SLOT_SIZE: u32 = 1 << 20;
/// Side slots behind the first one. Larger than the slots.
pub(crate) const PARTS: Parts = Parts { count: 2, size: 2 << 20 };
/// Within this time everything that must happen has happened, on the slowest machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// What the suite needs to know of a fabric.
pub(crate) trait Harness {
    /// Completed writes can be read after a revocation, of whomever, and not before: all that promise 2 demands.
    const BARRIER_BEFORE_READS: bool = false;
    /// A receiver over this pool.
    fn receiver(pool: Arc<Pool>) -> Box<dyn Receiver>;
    /// A sender that reaches it.
    fn sender() -> Box<dyn Sender>;
    /// A reader that reaches it, where there is one.
    fn reader() -> Option<Box<dyn Reader>> {
        None
    }
}

/// A harness as a value: what is generic would be compiled once for each fabric, with every promise.
pub(crate) struct Fabric {
    receiver: fn(Arc<Pool>) -> Box<dyn Receiver>,
    sender: fn() -> Box<dyn Sender>,
    reader: fn() -> Option<Box<dyn Reader>>,
    barrier_before_reads: bool,
}

impl Fabric {
    pub(crate) fn of<H: Harness>() -> Fabric {
        Fabric {
            receiver: H::receiver,
            sender: H::sender,
            reader: H::reader,
            barrier_before_reads: H::BARRIER_BEFORE_READS,
        }
    }
}

/// One receiver with its pool, one sender and one reader.
pub(crate) struct World {
    pub(crate) dir: TempDir,
    pub(crate) pool: Arc<Pool>,
    pub(crate) receiver: Box<dyn Receiver>,
    pub(crate) sender: Box<dyn Sender>,
    reader: Option<Box<dyn Reader>>,
    barrier_before_reads: bool,
}

impl World {
    pub(crate) fn new(fabric: &Fabric) -> World {
        let dir = folder();
        let pool = Pool::open_with(dir.path().join("pool"), SLOTS, SLOT_SIZE, PARTS).unwrap();
        let (receiver, barrier_before_reads) = ((fabric.receiver)(Arc::clone(&pool)), fabric.barrier_before_reads);
        World { dir, receiver, sender: (fabric.sender)(), reader: (fabric.reader)(), pool, barrier_before_reads }
    }

    /// The backup daemon dies and starts again over the same memory; sender and reader live on.
    pub(crate) fn restart(self, fabric: &Fabric) -> World {
        let World { dir, pool, receiver, sender, reader, barrier_before_reads } = self;
        drop(receiver);
        drop(pool);
        let pool = Pool::open_with(dir.path().join("pool"), SLOTS, SLOT_SIZE, PARTS).unwrap();
        World { dir, receiver: (fabric.receiver)(Arc::clone(&pool)), sender, reader, pool, barrier_before_reads }
    }

    pub(crate) fn reader(&self) -> &dyn Reader {
        self.reader.as_deref().expect("this fabric can be read from")
    }

    pub(crate) fn channel(&mut self, writer: u64) -> Box<dyn Channel> {
        let opening = self.sender.begin().unwrap();
        let answer = self.receiver.accept(Writer(writer), &opening.offer()).unwrap().complete().unwrap();
        opening.connect(&answer, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap()
    }

    pub(crate) fn lend(&mut self, writer: u64, slot: u32) -> RemoteBuffer {
        let grant = self.receiver.lend(Writer(writer), SlotId(slot)).unwrap();
        self.sender.attach(&grant).unwrap()
    }

    pub(crate) fn sharer(&mut self) -> &mut dyn Sharer {
        self.receiver.sharer().expect("the fabric has a read side")
    }

    pub(crate) fn read_channel(&mut self, reader: u64, landing: u32) -> Box<dyn ReadChannel> {
        let opening = self.reader().begin(landing).unwrap();
        let answer = self.sharer().admit(ReaderId(reader), &opening.offer()).unwrap().complete().unwrap();
        opening.connect(&answer, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap()
    }

    pub(crate) fn read_grant(&mut self, slot: u32) -> ReadGrant {
        self.sharer().share(SlotId(slot)).unwrap().expect("the slot has memory")
    }

    pub(crate) fn share(&mut self, slot: u32) -> Readable {
        let grant = self.read_grant(slot);
        self.reader().attach(&grant).unwrap()
    }

    /// A local buffer with these bytes, all published.
    pub(crate) fn local(&self, bytes: &[u8]) -> SharedBuffer {
        let (mut writer, reader) = self.sender.allocate(bytes.len() as u32).unwrap();
        writer.tail_mut().copy_from_slice(bytes);
        writer.publish(bytes.len() as u32);
        reader
    }

    /// The side slots, and how large each is.
    pub(crate) fn side_slots(&self) -> Vec<(SlotId, u32)> {
        let parts = (0..PARTS.count).map(|nth| (self.pool.part(nth).unwrap(), PARTS.size));
        std::iter::once((self.pool.side_slot(), SIDE_SLOT_SIZE)).chain(parts).collect()
    }

    pub(crate) fn contents(&mut self, slot: u32) -> Vec<u8> {
        self.contents_of_size(slot, SLOT_SIZE)
    }

    pub(crate) fn contents_of_size(&mut self, slot: u32, size: u32) -> Vec<u8> {
        if self.barrier_before_reads {
            // Revokes nobody.
            self.receiver.revoke_below(Writer(0)).unwrap();
        }
        let mut bytes = vec![0xee; size as usize];
        self.pool.read(SlotId(slot), 0, &mut bytes).unwrap();
        bytes
    }
}

/// A new folder in memory, where there is one; in `TAILWIND_TEST_MEMORY`, if that says where.
pub(crate) fn folder() -> TempDir {
    if let Some(memory) = std::env::var_os("TAILWIND_TEST_MEMORY") {
        return tempfile::tempdir_in(memory).unwrap();
    }
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// A slot's worth of bytes none of which is zero.
pub(crate) fn pattern(seed: u8) -> Vec<u8> {
    // 251 is prime, so that a shift by any power of two shows.
    let tile: Vec<u8> = (0..251).map(|at| at ^ seed | 1).collect();
    let mut bytes = tile.repeat(SLOT_SIZE as usize / tile.len() + 1);
    bytes.truncate(SLOT_SIZE as usize);
    bytes
}

/// Polls until `count` further writes have completed.
pub(crate) fn complete(channel: &mut dyn Channel, count: u32) {
    let mut completed = 0;
    step_by_step("writes complete", u64::from(count), || {
        completed += channel.poll().unwrap();
        u64::from(completed)
    });
    assert_eq!(completed, count, "each write completes once");
}

/// Writes a byte over and over until the channel fails. Not an empty write, which proves nothing of a lending.
pub(crate) fn failure(channel: &mut dyn Channel, remote: &RemoteBuffer, local: &SharedBuffer) -> ChannelError {
    let mut failure = None;
    let byte = 0..local.len().min(1);
    eventually("the channel fails", || {
        // A full queue is no failure, and only polling finds out what the receiver makes of it.
        let posted = channel.post(remote, local, byte.clone()).err().filter(|error| *error != ChannelError::QueueFull);
        failure = posted.or(channel.poll().err());
        failure.is_some()
    });
    failure.unwrap()
}

/// Asks again and again until it is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < deadline, "within {DEADLINE:?}: {what}");
        std::thread::yield_now();
    }
}

/// Asks until this many are done, with a deadline for each step: on a busy machine a thousand round trips between threads
/// take as long as they take.
pub(crate) fn step_by_step(what: &str, enough: u64, mut done: impl FnMut() -> u64) {
    let mut before = done();
    while before < enough {
        eventually(what, || {
            let now = done();
            now > std::mem::replace(&mut before, now)
        });
    }
}

/// Fails instead of hanging when something that must not wait for a peer does.
pub(crate) fn promptly<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (done, wait) = mpsc::channel();
        let working = scope.spawn(move || {
            let result = work();
            let _ = done.send(());
            result
        });
        if wait.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("the call waits for a peer");
            std::process::abort()
        }
        working.join().unwrap()
    })
}

/// Small, fast, and the same for the same seed (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    /// From `TAILWIND_SEED`, or from the clock; printed either way, so that a failure can be repeated.
    pub(crate) fn new() -> Random {
        let clock = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = std::env::var("TAILWIND_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(clock);
        println!("TAILWIND_SEED={seed}");
        Random(seed | 1)
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % u64::from(bound)) as u32
    }
}
