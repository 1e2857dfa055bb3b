//! Promise 3: when a revocation returns, nothing of a revoked writer lands or completes any more, and what has
//! completed is there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tailwind_fabric::{Channel, ChannelError, FabricError, RemoteBuffer, SharedBuffer, SlotId, Writer};

use super::{Fabric, Random, SLOT_SIZE, World, complete, eventually, failure, pattern};

pub(crate) fn completed_writes_are_there_afterwards(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remotes) = (world.channel(1), [world.lend(1, 0), world.lend(1, 1)]);
    let local = world.local(&pattern(0));
    channel.post(&remotes[0], &local, 0..SLOT_SIZE).unwrap();
    channel.post(&remotes[1], &local, 5..500).unwrap();
    complete(&mut *channel, 2);
    world.receiver.revoke_below(Writer(2)).unwrap();
    assert!(world.contents(0) == pattern(0));
    assert!(world.contents(1)[5..500] == pattern(0)[5..500]);
    failure(&mut *channel, &remotes[0], &local);
}

pub(crate) fn an_empty_write_fails_afterwards(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote) = (world.channel(1), world.lend(1, 0));
    let local = world.local(b"");
    channel.post(&remote, &local, 0..0).unwrap();
    complete(&mut *channel, 1);
    world.receiver.revoke_below(Writer(2)).unwrap();
    let posted = channel.post(&remote, &local, 0..0);
    let failure = failure(&mut *channel, &remote, &local);
    assert!(matches!(failure, ChannelError::Revoked | ChannelError::Disconnected));
    assert!(posted.is_ok() || posted == Err(failure));
}

pub(crate) fn a_revoked_writer_gets_nothing_more_and_others_go_on(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote) = (world.channel(7), world.lend(7, 0));
    let (mut old, stale) = (world.channel(6), world.lend(6, 1));
    let local = world.local(&pattern(0));
    // Twice, and then with a smaller number: that takes nothing back.
    for below in [7, 7, 3] {
        world.receiver.revoke_below(Writer(below)).unwrap();
        let is_revoked = |error| matches!(error, FabricError::Revoked(Writer(6)));
        assert!(is_revoked(world.receiver.accept(Writer(6), &world.sender.begin().unwrap().offer()).unwrap_err()));
        assert!(is_revoked(world.receiver.lend(Writer(6), SlotId(2)).unwrap_err()));
        channel.post(&remote, &local, 0..100).unwrap();
        complete(&mut *channel, 1);
    }
    failure(&mut *old, &stale, &local);
    world.channel(7);
}

pub(crate) fn an_ended_lending_is_revoked_too(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote) = (world.channel(1), world.lend(1, 0));
    let local = world.local(&pattern(0));
    channel.post(&remote, &local, 0..100).unwrap();
    complete(&mut *channel, 1);
    world.receiver.end_lending(SlotId(0));
    world.receiver.revoke_below(Writer(2)).unwrap();
    let before = world.contents(0);
    assert!(before[..100] == pattern(0)[..100]);
    let _ = channel.post(&remote, &local, 0..SLOT_SIZE);
    failure(&mut *channel, &remote, &local);
    assert!(world.contents(0) == before);
}

/// Bytes of the slot that a zombie writes over and over: it is always in the middle of something.
const REGION: u32 = 64 * 1024;
/// Laps until their bytes repeat.
const LAPS: usize = 250;
/// No zombie has more laps than these on their way: 1024 writes of 4 KiB.
const LAPS_AHEAD: usize = 64;

/// What the `lap`-th lap writes, everywhere. Lap 0 is the slot as it was lent. Single bytes cannot be torn, so that
/// each byte of the slot tells by itself which lap it is from.
fn lap_byte(lap: usize) -> u8 {
    if lap == 0 { 0 } else { ((lap - 1) % LAPS) as u8 + 1 }
}

/// The heart of it. A writer runs as fast as it can; somewhere in the middle it is revoked; it tries on.
pub(crate) fn a_revocation_is_a_barrier_for_a_busy_writer(fabric: &Fabric) {
    const ROUNDS: u64 = 100;
    let mut random = Random::new();
    let mut world = World::new(fabric);
    let laps: Vec<SharedBuffer> = (1..=LAPS).map(|lap| world.local(&[lap_byte(lap); REGION as usize])).collect();
    let laps = Arc::new(laps);
    let mut at_once = vec![0; REGION as usize];
    for round in 1..=ROUNDS {
        let step = random.below(4096) + 8;
        let zombie = Zombie::start(&mut world, round, Arc::clone(&laps), step);
        let enough = u64::from(random.below(1000) * step);
        eventually("the writer gets going", || zombie.completed.load(Ordering::Acquire) >= enough);

        // The first look is as quick as can be, so that a byte that comes a moment too late is caught.
        world.receiver.revoke_below(Writer(round + 1)).unwrap();
        world.pool.read(SlotId(0), 0, &mut at_once).unwrap();
        let first = world.contents(0);
        let completed = zombie.stop();
        let second = world.contents(0);

        assert!(first[..REGION as usize] == at_once && first == second, "round {round}: nothing lands afterwards");
        assert!(completed >= enough);
        let (full_laps, rest) = ((completed / u64::from(REGION)) as usize, (completed % u64::from(REGION)) as usize);
        for (at, found) in first[..REGION as usize].iter().enumerate() {
            let lap = full_laps + usize::from(at < rest);
            let or_later = (lap..=lap + LAPS_AHEAD).any(|lap| lap_byte(lap) == *found);
            assert!(or_later, "round {round}, byte {at}: lap {lap} completed but {found} is there");
        }
        assert!(first[REGION as usize..].iter().all(|byte| *byte == 0), "round {round}: nothing elsewhere");
    }
}

/// A writer in its own thread that continues after it has been told to stop, as zombies do.
struct Zombie {
    /// Bytes, of all laps, whose writes have completed.
    completed: Arc<AtomicU64>,
    enough: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Zombie {
    fn start(world: &mut World, writer: u64, laps: Arc<Vec<SharedBuffer>>, step: u32) -> Zombie {
        let (channel, remote) = (world.channel(writer), world.lend(writer, 0));
        let (completed, enough) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let (completed, enough) = (Arc::clone(&completed), Arc::clone(&enough));
            move || stagger(channel, &remote, &laps, step, &completed, &enough)
        });
        Zombie { completed, enough, thread }
    }

    /// Lets it try a little longer, until it knows that it is dead; returns how many bytes had completed.
    fn stop(self) -> u64 {
        self.enough.store(true, Ordering::Release);
        self.thread.join().unwrap();
        self.completed.load(Ordering::Acquire)
    }
}

fn stagger(
    mut channel: Box<dyn Channel>,
    remote: &RemoteBuffer,
    laps: &[SharedBuffer],
    step: u32,
    completed: &AtomicU64,
    enough: &AtomicBool,
) {
    let mut posted = 0;
    let mut ends = VecDeque::new();
    let mut alive = true;
    eventually("the zombie is told", || {
        let (lap, start) = ((posted / u64::from(REGION)) as usize, (posted % u64::from(REGION)) as u32);
        let end = (start + step).min(REGION);
        match channel.post(remote, &laps[lap % LAPS], start..end) {
            Ok(()) => {
                posted += u64::from(end - start);
                ends.push_back(posted);
            }
            Err(ChannelError::QueueFull) => {}
            // It does not give up: on to the next lap.
            Err(_) => posted += u64::from(REGION),
        }
        match channel.poll() {
            Ok(count) => {
                assert!(alive, "a failure is final");
                if let Some(end) = ends.drain(..count as usize).next_back() {
                    completed.store(end, Ordering::Release);
                }
            }
            Err(_) => alive = false,
        }
        !alive && enough.load(Ordering::Acquire)
    });
}
