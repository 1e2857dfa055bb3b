//! Promises 1, 2 and 6: where bytes land, what a completion means, and that a failure is final.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tailwind_fabric::{Channel, ChannelError, POSTED_BYTES_MAX, Writer};

use super::{DEADLINE, Fabric, SLOT_SIZE, World, complete, eventually, failure, pattern, step_by_step};

pub(crate) fn bytes_land_at_the_same_offsets(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote, bytes) = (world.channel(1), world.lend(1, 2), pattern(0));
    let local = world.local(&bytes);
    let ranges = [SLOT_SIZE - 7..SLOT_SIZE, 0..1, 4090..4100, 100..200];
    for range in &ranges {
        channel.post(&remote, &local, range.clone()).unwrap();
    }
    complete(&mut *channel, ranges.len() as u32);
    let mut expected = vec![0; SLOT_SIZE as usize];
    for range in ranges {
        let range = range.start as usize..range.end as usize;
        expected[range.clone()].copy_from_slice(&bytes[range]);
    }
    assert!(world.contents(2) == expected);
    assert!(world.contents(1) == vec![0; SLOT_SIZE as usize], "the neighbour is untouched");
}

pub(crate) fn a_whole_slot_is_one_write(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote, bytes) = (world.channel(1), world.lend(1, 0), pattern(0));
    let local = world.local(&bytes);
    channel.post(&remote, &local, 0..SLOT_SIZE).unwrap();
    complete(&mut *channel, 1);
    assert!(world.contents(0) == bytes);
}

/// More bytes than any socket takes, so that writes are cut in pieces everywhere.
pub(crate) fn many_large_writes_may_be_on_their_way(fabric: &Fabric) {
    const WRITES: u32 = 40;
    let mut world = World::new(fabric);
    let (mut channel, remote, bytes) = (world.channel(1), world.lend(1, 0), pattern(0));
    let local = world.local(&bytes);
    for start in 0..WRITES {
        channel.post(&remote, &local, start..SLOT_SIZE - start).unwrap();
    }
    complete(&mut *channel, WRITES);
    assert!(world.contents(0) == bytes);
}

pub(crate) fn writes_to_several_slots_share_a_channel(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let mut channel = world.channel(1);
    let remotes = [world.lend(1, 0), world.lend(1, 1)];
    let local = world.local(&pattern(0));
    for at in 0..100 {
        channel.post(&remotes[at as usize % 2], &local, at * 10..at * 10 + 10).unwrap();
    }
    complete(&mut *channel, 100);
    let (even, odd) = (world.contents(0), world.contents(1));
    assert!((0..1000).all(|at| (even[at] == 0) == (at / 10 % 2 == 1) && (odd[at] == 0) == (at / 10 % 2 == 0)));
}

pub(crate) fn every_write_completes_once_and_a_full_queue_moves_on(fabric: &Fabric) {
    // Several times the deepest queue.
    const WRITES: u32 = 4_000;
    let mut world = World::new(fabric);
    let (mut channel, remote, bytes) = (world.channel(1), world.lend(1, 0), pattern(0));
    let local = world.local(&bytes);
    // Never polled until the queue is full, if this fabric has one.
    let (mut posted, mut completed) = (0, 0);
    step_by_step("all writes complete", u64::from(WRITES), || {
        while posted < WRITES {
            let at = posted * 40;
            match channel.post(&remote, &local, at..at + 40) {
                Ok(()) => posted += 1,
                Err(ChannelError::QueueFull) => break,
                Err(error) => panic!("{error}"),
            }
        }
        completed += channel.poll().unwrap();
        assert!(completed <= posted);
        u64::from(completed)
    });
    assert_eq!((completed, channel.poll()), (WRITES, Ok(0)));
    assert!(world.contents(0)[..WRITES as usize * 40] == bytes[..WRITES as usize * 40]);
}

/// A primary that loses a member and takes it back, again and again, is one writer with ever new channels.
pub(crate) fn a_writer_reconnects_as_often_as_it_likes(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (remote, bytes) = (world.lend(1, 0), pattern(0));
    let local = world.local(&bytes);
    for at in 0..100 {
        let mut channel = world.channel(1);
        channel.post(&remote, &local, at..at + 1).unwrap();
        complete(&mut *channel, 1);
    }
    assert!(world.contents(0)[..100] == bytes[..100]);
}

pub(crate) fn an_empty_write_completes_and_writes_nothing(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote) = (world.channel(1), world.lend(1, 0));
    let local = world.local(&pattern(0));
    channel.post(&remote, &local, 0..0).unwrap();
    channel.post(&remote, &local, SLOT_SIZE..SLOT_SIZE).unwrap();
    complete(&mut *channel, 2);
    assert!(world.contents(0).iter().all(|byte| *byte == 0));
}

/// Lines of a board: small, changed at once after the posting, at any place, between other writes.
pub(crate) fn bytes_are_copied_at_the_call(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote, other) = (world.channel(1), world.lend(1, 0), world.lend(1, 1));
    let local = world.local(&pattern(0));
    let mut expected = vec![0; SLOT_SIZE as usize];
    let (mut posted, mut completed) = (0, 0);
    step_by_step("all are written", 4000, || {
        let mut bytes = [0; POSTED_BYTES_MAX];
        while posted < 3000 {
            let (length, at) = ((posted * 7 % 65) as usize, posted * 13 % 5000);
            bytes[..length].fill(posted as u8 | 1);
            match channel.post_bytes(&remote, at, &bytes[..length]) {
                Ok(()) => expected[at as usize..at as usize + length].copy_from_slice(&bytes[..length]),
                Err(ChannelError::QueueFull) => break,
                Err(error) => panic!("{error}"),
            }
            bytes.fill(0xee);
            posted += 1;
            // One that finds no room is left out.
            if posted % 3 == 0 && channel.post(&other, &local, posted..posted + 500).is_err() {
                completed += 1;
            }
        }
        channel.push();
        completed += u64::from(channel.poll().unwrap());
        completed
    });
    assert!(world.contents(0) == expected);
    channel.post_bytes(&remote, SLOT_SIZE - 64, &[7; 64]).unwrap();
    channel.post_bytes(&remote, SLOT_SIZE, &[]).unwrap();
    channel.push();
    complete(&mut *channel, 2);
    assert_eq!(world.contents(0)[SLOT_SIZE as usize - 65..], [vec![0], vec![7; 64]].concat());

    world.receiver.revoke_below(Writer(2)).unwrap();
    let before = world.contents(0);
    let mut failed = false;
    eventually("it fails as any write does", || {
        failed |= channel.post_bytes(&remote, 0, &[9; 64]).is_err_and(|error| error != ChannelError::QueueFull);
        channel.push();
        failed |= channel.poll().is_err();
        failed
    });
    assert!(world.contents(0) == before);
}

pub(crate) fn copied_bytes_lie_within_the_slot(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote) = (world.channel(1), world.lend(1, 0));
    let _ = channel.post_bytes(&remote, SLOT_SIZE - 1, &[1, 2]);
}

/// As the append path sleeps: with everything polled it arms the channel, and then only the file descriptor wakes it.
pub(crate) fn a_sleeper_is_woken(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote) = (world.channel(1), world.lend(1, 0));
    let local = world.local(&pattern(0));
    for _ in 0..200 {
        channel.post(&remote, &local, 0..100).unwrap();
        assert_eq!(wake_up(&mut *channel), Ok(1));
        channel.post_bytes(&remote, 7, &[1; 64]).unwrap();
        channel.push();
        assert!(!channel.lingers());
        assert_eq!(arm_and_sleep(&mut *channel), Ok(1), "nobody polls before it sleeps");
        assert_eq!(channel.poll(), Ok(0));
    }
    // A failure wakes it too.
    world.receiver.revoke_below(Writer(2)).unwrap();
    let failure = channel.post(&remote, &local, 0..100).err().unwrap_or_else(|| wake_up(&mut *channel).unwrap_err());
    assert!(matches!(failure, ChannelError::Revoked | ChannelError::Disconnected));
}

/// Polls and sleeps until there is something to report.
fn wake_up(channel: &mut dyn Channel) -> Result<u32, ChannelError> {
    match channel.poll() {
        Ok(0) => arm_and_sleep(channel),
        reported => reported,
    }
}

/// Sleeps until there is something to report.
fn arm_and_sleep(channel: &mut dyn Channel) -> Result<u32, ChannelError> {
    loop {
        if channel.arm() {
            match channel.poll() {
                Ok(0) => continue,
                reported => return reported,
            }
        }
        let fd = channel.readiness().expect("what is not complete at once can be waited for");
        let mut waiting = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let longest = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(poll(&mut waiting, Some(&longest)), Ok(1), "within {DEADLINE:?} it is woken");
        match channel.poll() {
            Ok(0) => {}
            reported => return reported,
        }
    }
}

pub(crate) fn only_published_bytes_can_be_posted(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote) = (world.channel(1), world.lend(1, 0));
    let (mut writer, local) = world.sender.allocate(100).unwrap();
    writer.publish(50);
    let _ = channel.post(&remote, &local, 40..51);
}

pub(crate) fn only_bytes_within_the_slot_can_be_posted(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote) = (world.channel(1), world.lend(1, 0));
    let local = world.local(&vec![1; SLOT_SIZE as usize + 1]);
    let _ = channel.post(&remote, &local, SLOT_SIZE - 1..SLOT_SIZE + 1);
}

pub(crate) fn a_failure_is_final(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, ended, good) = (world.channel(1), world.lend(1, 0), world.lend(1, 1));
    let local = world.local(&pattern(0));
    world.receiver.end_lending(tailwind_fabric::SlotId(0));
    let first = failure(&mut *channel, &ended, &local);
    for _ in 0..3 {
        assert_eq!(channel.post(&good, &local, 0..8), Err(first));
        assert_eq!(channel.poll(), Err(first));
    }
    assert!(world.contents(1).iter().all(|byte| *byte == 0), "not even a write to a good lending");
    let mut another = world.channel(1);
    another.post(&good, &local, 0..8).unwrap();
    complete(&mut *another, 1);
}

pub(crate) fn posting_and_polling_allocate_nothing(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote) = (world.channel(1), world.lend(1, 0));
    let local = world.local(&pattern(0));
    let (mut completed, mut copied) = (0, 0);
    let counted = allocation_counter::measure(|| {
        let mut posted = 0;
        while completed < 3_000 + copied || posted < 3_000 {
            while posted < 3_000 && channel.post(&remote, &local, posted..posted + 100).is_ok() {
                posted += 1;
                if channel.post_bytes(&remote, posted, &[1; 64]).is_err() {
                    break;
                }
                copied += 1;
            }
            channel.push();
            completed += channel.poll().unwrap();
        }
    });
    assert_eq!((completed, counted.count_total), (3_000 + copied, 0));
}
