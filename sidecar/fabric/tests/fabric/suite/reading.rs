//! Promises 8 to 10: what a completed read is worth, that reading hurts nobody, and that it is only reading.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tailwind_fabric::reading::{READ_CHANNELS_MAX, READERS_MAX, READS_MAX};
use tailwind_fabric::{
    ChannelError, FabricError, FabricKind, Grant, Offer, ReadChannel, ReadError, ReadGrant, Readable, ReaderId, SlotId,
    Writer,
};

use super::{DEADLINE, Fabric, PARTS, SLOT_SIZE, World, complete, eventually, failure, pattern, promptly};

/// Reads a range of a slot to the start of the landing.
fn fetch(channel: &mut dyn ReadChannel, from: &Readable, at: Range<u32>) -> Result<Vec<u8>, ReadError> {
    channel.read(from, at.clone(), 0)?;
    let mut result = Ok(0);
    eventually("the read completes", || {
        result = channel.poll();
        result != Ok(0)
    });
    assert_eq!(result?, 1, "each read completes once");
    Ok(channel.landed(0..at.end - at.start).to_vec())
}

/// Reads of what is not shared any more fail, for good.
fn is_over(channel: &mut dyn ReadChannel, from: &Readable) {
    let first = fetch(channel, from, 0..1).expect_err("a read through a share that has ended");
    assert!(matches!(first, ReadError::Ended | ReadError::Disconnected));
    assert_eq!((channel.poll(), channel.read(from, 0..1, 0)), (Err(first), Err(first)));
}

/// A slot with these bytes, lent to `writer`.
pub(super) fn fill(world: &mut World, writer: u64, slot: u32, bytes: &[u8]) {
    let (mut channel, remote) = (world.channel(writer), world.lend(writer, slot));
    channel.post(&remote, &world.local(bytes), 0..bytes.len() as u32).unwrap();
    complete(&mut *channel, 1);
}

pub(crate) fn completed_writes_are_read(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut writing, remote) = (world.channel(1), world.lend(1, 2));
    let (shared, mut reading) = (world.share(2), world.read_channel(7, SLOT_SIZE));
    assert_eq!(shared.len(), SLOT_SIZE);
    assert!(fetch(&mut *reading, &shared, 0..SLOT_SIZE).unwrap().iter().all(|byte| *byte == 0), "lent");
    let local = world.local(&pattern(0));
    for end in [1, 4096, 70_000, SLOT_SIZE] {
        writing.post(&remote, &local, 0..end).unwrap();
        complete(&mut *writing, 1);
        let found = fetch(&mut *reading, &shared, 0..SLOT_SIZE).unwrap();
        assert!(found[..end as usize] == pattern(0)[..end as usize], "up to {end}");
        assert!(found[end as usize..].iter().all(|byte| *byte == 0), "beyond {end}");
        assert_eq!(fetch(&mut *reading, &shared, end - 1..end).unwrap(), pattern(0)[end as usize - 1..end as usize]);
    }
    world.receiver.end_lending(SlotId(2));
    assert!(fetch(&mut *reading, &shared, 3..SLOT_SIZE).unwrap() == pattern(0)[3..], "the lending has ended");
    assert_eq!(world.read_grant(2), world.read_grant(2), "while it lasts, there is one share");
}

pub(crate) fn a_read_lands_at_its_place_and_nowhere_else(fabric: &Fabric) {
    let mut world = World::new(fabric);
    fill(&mut world, 1, 0, &pattern(0));
    fill(&mut world, 1, 1, &pattern(77));
    let (shared, mut reading) = ([world.share(0), world.share(1)], world.read_channel(7, 1000));
    reading.read(&shared[0], 500..600, 100).unwrap();
    reading.read(&shared[1], SLOT_SIZE - 10..SLOT_SIZE, 990).unwrap();
    settle(&mut *reading, 2);
    let mut expected = vec![0; 1000];
    expected[100..200].copy_from_slice(&pattern(0)[500..600]);
    expected[990..].copy_from_slice(&pattern(77)[SLOT_SIZE as usize - 10..]);
    assert_eq!(reading.landed(0..1000), expected);
    assert!(reading.landed(5..5).is_empty());
}

/// Polls until so many reads have completed.
pub(super) fn settle(channel: &mut dyn ReadChannel, count: u32) {
    let mut completed = 0;
    eventually("reads complete", || {
        completed += channel.poll().unwrap();
        completed == count
    });
}

pub(crate) fn every_read_completes_once_and_a_full_queue_moves_on(fabric: &Fabric) {
    // Soft-RoCE takes some 6 ms for each once more are posted than it has on the wire.
    const READS: u32 = 300;
    const SIZE: u32 = 3000;
    let mut world = World::new(fabric);
    fill(&mut world, 1, 0, &pattern(0));
    let (shared, mut reading) = (world.share(0), world.read_channel(7, READS_MAX as u32 * SIZE));
    let place = |read: u32| read % READS_MAX as u32 * SIZE;
    let (mut posted, mut completed) = (0, 0);
    eventually("all reads complete", || {
        while posted < READS {
            if posted - completed == READS_MAX as u32 {
                // One more, elsewhere, would be too many.
                break;
            }
            reading.read(&shared, posted * SIZE..(posted + 1) * SIZE, place(posted)).unwrap();
            posted += 1;
        }
        for _ in 0..reading.poll().unwrap() {
            let at = (completed * SIZE) as usize;
            let landed = reading.landed(place(completed)..place(completed) + SIZE);
            assert!(landed == &pattern(0)[at..at + SIZE as usize], "read {completed}");
            completed += 1;
        }
        completed == READS
    });
    assert_eq!(reading.poll(), Ok(0));
}

/// What the `lap`-th lap of a writer leaves everywhere. Single bytes cannot be torn.
fn lap_byte(lap: u64) -> u8 {
    (lap % 250) as u8
}

/// Promise 8 beside a writer that is always in the middle of something.
pub(crate) fn a_read_beside_a_writer_is_never_older_than_its_posting(fabric: &Fabric) {
    const REGION: u32 = 32 * 1024;
    let mut world = World::new(fabric);
    let (mut writing, remote) = (world.channel(1), world.lend(1, 0));
    let laps: Vec<_> = (0..250).map(|lap| world.local(&[lap; REGION as usize])).collect();
    let (shared, mut reading) = (world.share(0), world.read_channel(7, REGION));
    let (begun, completed, enough) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for lap in 1.. {
                begun.store(lap, Ordering::Release);
                writing.post(&remote, &laps[lap_byte(lap) as usize], 0..REGION).unwrap();
                complete(&mut *writing, 1);
                completed.store(lap, Ordering::Release);
                if enough.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        let mut reads = 0;
        eventually("the writer and the reader go many laps", || {
            let before = completed.load(Ordering::Acquire);
            let found = fetch(&mut *reading, &shared, 0..REGION).unwrap();
            let after = begun.load(Ordering::Acquire);
            // Beyond 250 laps within one read any byte is possible.
            let possible = |byte: u8| after - before >= 250 || (before..=after).any(|lap| lap_byte(lap) == byte);
            assert!(found.iter().all(|byte| possible(*byte)), "between lap {before} and {after}");
            reads += 1;
            reads > 300 && after > 300
        });
        enough.store(true, Ordering::Release);
    });
}

/// All that ends a share: nothing is read through its grant, whether it was attached before or is attached only now.
pub(crate) fn a_share_ends_with_its_memory(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let ends: [&dyn Fn(&mut World); 5] = [
        &|world| drop(world.lend(1, 0)),
        &|world| world.sharer().end_share(SlotId(0)),
        &|world| world.receiver.release(SlotId(0)).unwrap(),
        &|world| {
            world.receiver.end_lending(SlotId(0));
            world.receiver.release(SlotId(0)).unwrap();
            fill(world, 1, 0, &pattern(3));
        },
        &|world| {
            world.receiver.revoke_below(Writer(2)).unwrap();
            world.receiver.release(SlotId(0)).unwrap();
            fill(world, 2, 0, &pattern(3));
        },
    ];
    for end in ends {
        fill(&mut world, 1, 0, &pattern(9));
        let (grant, mut attached) = (world.read_grant(0), world.read_channel(7, 100));
        let shared = world.reader().attach(&grant).unwrap();
        assert!(fetch(&mut *attached, &shared, 0..10).unwrap() == pattern(9)[..10]);
        end(&mut world);
        is_over(&mut *attached, &shared);
        // Refused at once or at the first read, as the fabric likes.
        let mut late = world.read_channel(8, 100);
        if let Ok(shared) = world.reader().attach(&grant) {
            is_over(&mut *late, &shared);
        }
        if world.pool.has(SlotId(0)) {
            let (again, mut reading) = (world.share(0), world.read_channel(7, 100));
            assert!(fetch(&mut *reading, &again, 0..10).unwrap() == world.contents(0)[..10], "shared again");
        }
    }
}

/// Promise 10 in the hard case: the slot's memory is lent again in place, while a reader is at it.
pub(crate) fn no_byte_of_a_later_lending_is_read(fabric: &Fabric) {
    const ROUNDS: u8 = 40;
    const SIZE: u32 = 256 * 1024;
    let mut world = World::new(fabric);
    for round in 1..=ROUNDS {
        fill(&mut world, 1, 0, &vec![round; SIZE as usize]);
        let (shared, mut reading) = (world.share(0), world.read_channel(7, SIZE));
        let reads = Arc::new(AtomicU64::new(0));
        let reader = thread::spawn({
            let reads = Arc::clone(&reads);
            move || {
                while let Ok(found) = fetch(&mut *reading, &shared, 0..SIZE) {
                    let stray = found.iter().position(|byte| *byte != round);
                    assert_eq!(stray, None, "round {round}: a completed read is of the share");
                    reads.fetch_add(1, Ordering::Release);
                }
            }
        });
        let enough = u64::from(round % 4);
        eventually("the reader gets going", || reads.load(Ordering::Acquire) > enough);
        world.receiver.end_lending(SlotId(0));
        world.receiver.release(SlotId(0)).unwrap();
        fill(&mut world, 1, 0, &vec![0xff; SIZE as usize]);
        reader.join().unwrap();
    }
}

/// A revocation may end a share. It must not make a read wrong, and what it has frozen can be shared again.
pub(crate) fn a_revocation_leaves_nothing_wrong_to_read(fabric: &Fabric) {
    const SIZE: u32 = 64 * 1024;
    let mut world = World::new(fabric);
    for writer in 1..20 {
        fill(&mut world, writer, 0, &pattern(writer as u8)[..SIZE as usize]);
        let (shared, mut reading) = (world.share(0), world.read_channel(7, SIZE));
        let reader = thread::spawn(move || {
            for _ in 0..50 {
                let Ok(found) = fetch(&mut *reading, &shared, 0..SIZE) else { return };
                assert!(found == pattern(writer as u8)[..SIZE as usize]);
            }
        });
        world.receiver.revoke_below(Writer(writer + 1)).unwrap();
        let (shared, mut again) = (world.share(0), world.read_channel(8, SIZE));
        assert!(fetch(&mut *again, &shared, 0..SIZE).unwrap() == pattern(writer as u8)[..SIZE as usize]);
        reader.join().unwrap();
    }
}

pub(crate) fn a_restart_ends_shares(fabric: &Fabric) {
    let mut world = World::new(fabric);
    fill(&mut world, 1, 0, &pattern(1));
    fill(&mut world, 1, 1, &pattern(1));
    world.receiver.revoke_below(Writer(2)).unwrap();
    // Shares of memory that no writer has had since it was frozen, and of memory that is lent.
    fill(&mut world, 2, 1, &pattern(1));
    let grants = [world.read_grant(0), world.read_grant(1)];
    let shared = [world.share(0), world.share(1)];
    let mut channels = [world.read_channel(7, 100), world.read_channel(7, 100)];
    let mut world = world.restart(fabric);
    for (channel, shared) in channels.iter_mut().zip(&shared) {
        is_over(&mut **channel, shared);
    }
    for (slot, grant) in grants.iter().enumerate() {
        if let Ok(shared) = world.reader().attach(grant) {
            is_over(&mut *world.read_channel(7, 100), &shared);
        }
        let (shared, mut again) = (world.share(slot as u32), world.read_channel(7, 100));
        assert!(fetch(&mut *again, &shared, 0..100).unwrap() == pattern(1)[..100]);
    }
}

/// Promise 9: readers that have stopped with all their reads on the way.
pub(crate) fn frozen_readers_delay_nobody(fabric: &Fabric) {
    const READERS: u64 = 16;
    const SIZE: u32 = 64 * 1024;
    let mut world = World::new(fabric);
    fill(&mut world, 1, 0, &pattern(0));
    let (mut zombie, stale) = (world.channel(1), world.lend(1, 1));
    let shared = world.share(0);
    let mut frozen: Vec<_> = (0..READERS).map(|reader| world.read_channel(reader, READS_MAX as u32 * SIZE)).collect();
    for channel in &mut frozen {
        for read in 0..READS_MAX as u32 {
            let _ = channel.read(&shared, read * 100..read * 100 + SIZE, read * SIZE);
        }
    }
    let local = world.local(&pattern(5));
    promptly(|| {
        world.receiver.revoke_below(Writer(2)).unwrap();
        failure(&mut *zombie, &stale, &local);
        assert!(world.contents(0) == pattern(0));
        world.sharer().share(SlotId(1)).unwrap();
        world.sharer().end_share(SlotId(1));
        world.receiver.release(SlotId(0)).unwrap();
        fill(&mut world, 2, 0, &pattern(2));
        (0..READERS / 2).for_each(|reader| world.sharer().dismiss(ReaderId(reader)));
        world.receiver.revoke_below(Writer(3)).unwrap();
    });
    assert!(world.contents(0) == pattern(2));
    wake(frozen, SIZE, &pattern(0));
    // The readers of the other half were not dismissed, and they take all the room that is left.
    promptly(|| drop(world.receiver));
}

/// Nothing that is in them outlasts its writer's right, and nothing is copied.
pub(crate) fn shares_of_side_slots_end_at_a_revocation(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let sides: Vec<u32> = world.side_slots().into_iter().map(|(side, _)| side.0).collect();
    let (later, earlier) = sides.split_last().unwrap();
    fill(&mut world, 2, *later, &pattern(2)[..100]);
    let (kept, mut keeps) = (world.share(*later), world.read_channel(7, 100));
    let mut ended = Vec::new();
    for side in earlier {
        fill(&mut world, 1, *side, &pattern(1)[..100]);
        let (grant, mut channel) = (world.read_grant(*side), world.read_channel(8, 100));
        let shared = world.reader().attach(&grant).unwrap();
        assert!(fetch(&mut *channel, &shared, 0..100).unwrap() == pattern(1)[..100]);
        ended.push((grant, shared, channel));
    }
    world.receiver.revoke_below(Writer(2)).unwrap();
    for (side, (grant, shared, channel)) in earlier.iter().zip(&mut ended) {
        is_over(&mut **channel, shared);
        let mut late = world.read_channel(8, 100);
        if let Ok(shared) = world.reader().attach(grant) {
            is_over(&mut *late, &shared);
        }
        assert_eq!(world.sharer().share(SlotId(*side)).unwrap(), None, "its lending is over");
        world.lend(2, *side);
        let (again, mut reading) = (world.share(*side), world.read_channel(8, 100));
        assert_eq!(fetch(&mut *reading, &again, 0..100).unwrap(), [0; 100]);
    }
    assert!(fetch(&mut *keeps, &kept, 0..100).unwrap() == pattern(2)[..100], "its writer is not revoked");
    let mut world = world.restart(fabric);
    is_over(&mut *keeps, &kept);
    assert_eq!(world.sharer().share(SlotId(*later)).unwrap(), None);
}

/// Readers that were frozen find the beginning of what they asked for, reads of so many bytes at every hundredth, or nothing; and
/// none of it is the next writer's.
fn wake(frozen: Vec<Box<dyn ReadChannel>>, size: u32, written: &[u8]) {
    for mut channel in frozen {
        let mut completed = 0;
        eventually("it knows", || match channel.poll() {
            Ok(count) => {
                completed += count;
                completed == READS_MAX as u32
            }
            Err(_) => true,
        });
        for read in 0..completed {
            let landed = channel.landed(read * size..(read + 1) * size);
            assert!(landed == &written[read as usize * 100..][..size as usize]);
        }
    }
}

/// Promise 9 for what is shared with many, and ended at a fence.
pub(crate) fn frozen_readers_of_parts_delay_no_fence(fabric: &Fabric) {
    const READERS: u64 = 16;
    const SIZE: u32 = 64 * 1024;
    let mut world = World::new(fabric);
    let parts: Vec<u32> = (0..PARTS.count).map(|nth| world.pool.part(nth).unwrap().0).collect();
    parts.iter().for_each(|part| fill(&mut world, 1, *part, &pattern(1)));
    let shared: Vec<_> = parts.iter().map(|part| world.share(*part)).collect();
    let mut frozen: Vec<_> = (0..READERS).map(|reader| world.read_channel(reader, READS_MAX as u32 * SIZE)).collect();
    for channel in &mut frozen {
        for read in 0..READS_MAX as u32 {
            let _ = channel.read(&shared[(read % PARTS.count) as usize], read * 100..read * 100 + SIZE, read * SIZE);
        }
    }
    promptly(|| {
        world.receiver.revoke_below(Writer(2)).unwrap();
        for part in &parts {
            assert_eq!(world.sharer().share(SlotId(*part)).unwrap(), None);
            world.receiver.release(SlotId(*part)).unwrap();
            fill(&mut world, 2, *part, &pattern(2));
        }
    });
    wake(frozen, SIZE, &pattern(1));
    promptly(|| drop(world.receiver));
}

pub(crate) fn a_read_grant_writes_nothing(fabric: &Fabric) {
    let mut world = World::new(fabric);
    fill(&mut world, 1, 0, &pattern(1));
    let grant = serde_json::to_string(&world.read_grant(0)).unwrap();
    let forged: Grant = serde_json::from_str(&grant).unwrap();
    let mut channel = world.channel(1);
    if let Ok(remote) = world.sender.attach(&forged) {
        let local = world.local(&pattern(66));
        let _ = channel.post(&remote, &local, 0..SLOT_SIZE);
        assert!(matches!(failure(&mut *channel, &remote, &local), ChannelError::Revoked | ChannelError::Disconnected));
    }
    assert!(world.contents(0) == pattern(1));
}

pub(crate) fn a_write_grant_reads_nothing(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let grant = serde_json::to_string(&world.receiver.lend(Writer(1), SlotId(0)).unwrap()).unwrap();
    let forged: ReadGrant = serde_json::from_str(&grant).unwrap();
    for shared in [false, true] {
        if shared {
            world.share(0);
        }
        let mut channel = world.read_channel(7, 100);
        if let Ok(readable) = world.reader().attach(&forged) {
            is_over(&mut *channel, &readable);
        }
    }
}

pub(crate) fn readers_and_their_channels_are_bounded(fabric: &Fabric) {
    let mut world = World::new(fabric);
    fill(&mut world, 1, 0, &pattern(1));
    let offer = || world.reader().begin(100).unwrap();
    let openings: Vec<_> = (0..=READERS_MAX).map(|_| offer()).collect();
    let sharer = world.receiver.sharer().unwrap();
    let mut admit = |reader: usize| sharer.admit(ReaderId(reader as u64), &openings[reader].offer());
    (0..READERS_MAX).for_each(|reader| drop(admit(reader).unwrap().complete().unwrap()));
    assert!(matches!(admit(READERS_MAX).unwrap_err(), FabricError::TooManyReaders));
    drop(admit(0).expect("one that is known"));
    sharer.dismiss(ReaderId(3));
    drop(sharer.admit(ReaderId(READERS_MAX as u64), &openings[READERS_MAX].offer()).expect("there is room again"));

    // A reader that loses its channels and comes back, again and again.
    let shared = world.share(0);
    let mut channels = Vec::new();
    for at in 0..50 {
        let mut channel = world.read_channel(0, 100);
        assert!(fetch(&mut *channel, &shared, at..at + 10).unwrap() == pattern(1)[at as usize..at as usize + 10]);
        channels.push(channel);
    }
    for living in channels.iter_mut().rev().take(READ_CHANNELS_MAX) {
        fetch(&mut **living, &shared, 0..1).unwrap();
    }
    if world.receiver.kind() != FabricKind::Shm {
        is_over(&mut *channels[0], &shared);
    }
}

pub(crate) fn a_dismissed_reader_is_cut_off(fabric: &Fabric) {
    let mut world = World::new(fabric);
    fill(&mut world, 1, 0, &pattern(1));
    let shared = world.share(0);
    let (mut gone, mut other) = (world.read_channel(1, 10), world.read_channel(2, 10));
    world.sharer().dismiss(ReaderId(1));
    if world.receiver.kind() != FabricKind::Shm {
        is_over(&mut *gone, &shared);
    }
    assert!(fetch(&mut *other, &shared, 0..10).unwrap() == pattern(1)[..10]);
    let mut again = world.read_channel(1, 10);
    assert!(fetch(&mut *again, &shared, 0..10).unwrap() == pattern(1)[..10]);
}

pub(crate) fn a_slot_without_memory_cannot_be_shared(fabric: &Fabric) {
    let mut world = World::new(fabric);
    assert_eq!(world.sharer().share(SlotId(3)).unwrap(), None);
    world.sharer().end_share(SlotId(3));
    fill(&mut world, 1, 3, &pattern(1));
    world.receiver.end_lending(SlotId(3));
    world.receiver.release(SlotId(3)).unwrap();
    assert_eq!(world.sharer().share(SlotId(3)).unwrap(), None, "what is kept for the next lending");
}

pub(crate) fn the_other_fabric_is_refused_to_readers(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (offer, answer, grant) = match world.receiver.kind() {
        FabricKind::Shm | FabricKind::Verbs => (
            Offer::Tcp,
            r#"{"fabric":"tcp","address":"127.0.0.1:1","secret":"0123456789abcdef0123456789abcdef"}"#,
            r#"{"fabric":"tcp","key":1,"length":4096}"#,
        ),
        _ => (Offer::Shm, r#"{"fabric":"shm"}"#, r#"{"fabric":"shm","path":"/dev/null","key":1,"length":4096}"#),
    };
    let mismatch = |error| assert!(matches!(error, FabricError::Mismatch { .. }), "{error}");
    mismatch(world.sharer().admit(ReaderId(1), &offer).unwrap_err());
    mismatch(world.reader().attach(&serde_json::from_str(grant).unwrap()).unwrap_err());
    let peer = IpAddr::from(Ipv4Addr::LOCALHOST);
    mismatch(world.reader().begin(1).unwrap().connect(&serde_json::from_str(answer).unwrap(), peer).unwrap_err());
}

pub(crate) fn read_messages_survive_the_control_rpc(fabric: &Fabric) {
    let mut world = World::new(fabric);
    fill(&mut world, 1, 0, &pattern(1));
    let opening = world.reader().begin(10).unwrap();
    let offer = serde_json::to_string(&opening.offer()).unwrap();
    let admission = world.sharer().admit(ReaderId(1), &serde_json::from_str(&offer).unwrap()).unwrap();
    let answer = admission.complete().unwrap();
    let answer = serde_json::to_string(&answer).unwrap();
    let grant = serde_json::to_string(&world.read_grant(0)).unwrap();
    let peer = IpAddr::from(Ipv4Addr::LOCALHOST);
    let mut channel = opening.connect(&serde_json::from_str(&answer).unwrap(), peer).unwrap();
    let shared = world.reader().attach(&serde_json::from_str(&grant).unwrap()).unwrap();
    assert!(fetch(&mut *channel, &shared, 0..10).unwrap() == pattern(1)[..10]);
}

pub(crate) fn a_waiting_reader_is_woken(fabric: &Fabric) {
    let mut world = World::new(fabric);
    fill(&mut world, 1, 0, &pattern(1));
    let (shared, mut channel) = (world.share(0), world.read_channel(7, 4096));
    for _ in 0..200 {
        channel.read(&shared, 0..4096, 0).unwrap();
        assert_eq!(wake_up(&mut *channel), Ok(1));
        assert_eq!(channel.poll(), Ok(0));
    }
    world.sharer().end_share(SlotId(0));
    let failure = channel.read(&shared, 0..1, 0).err().unwrap_or_else(|| wake_up(&mut *channel).unwrap_err());
    assert!(matches!(failure, ReadError::Ended | ReadError::Disconnected));
}

/// Polls and sleeps until there is something to report.
pub(super) fn wake_up(channel: &mut dyn ReadChannel) -> Result<u32, ReadError> {
    loop {
        match channel.poll() {
            Ok(0) => {}
            reported => return reported,
        }
        if channel.arm() {
            continue;
        }
        let fd = channel.readiness().expect("what is not complete at once can be waited for");
        let mut waiting = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let longest = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(poll(&mut waiting, Some(&longest)), Ok(1), "within {DEADLINE:?} it is woken");
    }
}

pub(crate) fn reading_allocates_nothing(fabric: &Fabric) {
    let mut world = World::new(fabric);
    fill(&mut world, 1, 0, &pattern(1));
    let (shared, mut channel) = (world.share(0), world.read_channel(7, READS_MAX as u32 * 100));
    let mut completed = 0;
    let counted = allocation_counter::measure(|| {
        let mut posted = 0;
        while completed < 5000 {
            while posted < 5000 && posted - completed < READS_MAX as u32 {
                channel.read(&shared, posted..posted + 100, posted % READS_MAX as u32 * 100).unwrap();
                posted += 1;
            }
            completed += channel.poll().unwrap();
        }
    });
    assert_eq!((completed, counted.count_total), (5000, 0));
}

pub(crate) fn only_bytes_within_the_slot_can_be_read(fabric: &Fabric) {
    let mut world = World::new(fabric);
    fill(&mut world, 1, 0, &pattern(1));
    let (shared, mut channel) = (world.share(0), world.read_channel(7, 100));
    let _ = channel.read(&shared, SLOT_SIZE - 1..SLOT_SIZE + 1, 0);
}

pub(crate) fn reads_land_within_the_landing_only(fabric: &Fabric) {
    let mut world = World::new(fabric);
    fill(&mut world, 1, 0, &pattern(1));
    let (shared, mut channel) = (world.share(0), world.read_channel(7, 100));
    let _ = channel.read(&shared, 0..10, 91);
}
