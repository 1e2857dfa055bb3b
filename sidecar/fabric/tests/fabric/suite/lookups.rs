//! Lookups, where a fabric has them: promises 8 to 10 for two reads and a third one that depends on them, in one message.
#![cfg_attr(not(feature = "baselines"), allow(dead_code, reason = "only those have lookups"))]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tailwind_fabric::reading::{LEAD_SIZE, Lead, READS_MAX};
use tailwind_fabric::{LookUp, ReadChannel, ReadError, Readable, ReaderId, SlotId, Writer};

use super::reading::{fill, settle, wake_up};
use super::{Fabric, SLOT_SIZE, World, complete, eventually, pattern, promptly};

/// What the third read's slot is called.
const NAME: u64 = 300;
/// Bytes of a place: two reads of 32 bytes, a lead, and what it names.
const PLACE: u32 = 2 * 32 + LEAD_SIZE + LED;
const LED: u32 = 100;

/// Leads to as many bytes as the question says, from where the first byte says.
fn follow(question: &[u8], found: &[u8]) -> Option<Lead> {
    assert_eq!(found.len(), 64, "both reads");
    let [length] = question.try_into().ok()?;
    let begin = u32::from(found[0]);
    Some(Lead { name: NAME, bytes: begin..begin + u32::from(length) })
}

fn look_up(
    channel: &mut dyn ReadChannel,
    slots: &[Readable; 2],
    length: u8,
    place: Range<u32>,
) -> Result<bool, ReadError> {
    let reads = [(&slots[0], 10..42), (&slots[1], SLOT_SIZE - 32..SLOT_SIZE)];
    channel.look_up(&LookUp { reads, question: &[length] }, place)
}

/// What has landed: both reads, and what they have led to.
fn landed(channel: &dyn ReadChannel, at: u32) -> (Vec<u8>, Option<Vec<u8>>) {
    let led_at = at + 64 + LEAD_SIZE;
    let lead = Lead::from_bytes(channel.landed(at + 64..led_at).first_chunk().unwrap());
    let led = lead.map(|lead| channel.landed(led_at..led_at + lead.bytes.len() as u32).to_vec());
    (channel.landed(at..at + 64).to_vec(), led)
}

/// Three slots with bytes, of which two are read and the third is led to.
fn shared(world: &mut World) -> [Readable; 2] {
    (0..3).for_each(|slot| fill(world, 1, slot, &pattern(slot as u8)));
    let slots = [world.share(0), world.share(1)];
    world.share(2);
    world.sharer().answer_lookups(SlotId(2), NAME, follow);
    slots
}

fn both() -> Vec<u8> {
    [&pattern(0)[10..42], &pattern(1)[SLOT_SIZE as usize - 32..]].concat()
}

fn led(length: usize) -> Vec<u8> {
    let begin = usize::from(both()[0]);
    pattern(2)[begin..begin + length].to_vec()
}

pub(crate) fn a_lookup_brings_what_its_reads_lead_to(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (slots, mut channel) = (shared(&mut world), world.read_channel(7, 10 + PLACE));
    for length in [LED as u8, 1, 77] {
        assert_eq!(look_up(&mut *channel, &slots, length, 10..10 + PLACE), Ok(true));
        settle(&mut *channel, 1);
        assert_eq!(landed(&*channel, 10), (both(), Some(led(length.into()))));
    }
    assert_eq!(channel.landed(0..10), [0; 10]);
    // No bytes, no room for them, a slot that nothing is called, and one that is not shared.
    let nothing = |world: &mut World, channel: &mut dyn ReadChannel, length| {
        assert_eq!(look_up(channel, &slots, length, 0..PLACE), Ok(true));
        settle(channel, 1);
        assert_eq!(landed(channel, 0), (both(), None));
        world.share(2);
    };
    nothing(&mut world, &mut *channel, 0);
    nothing(&mut world, &mut *channel, LED as u8 + 1);
    world.sharer().end_share(SlotId(2));
    nothing(&mut world, &mut *channel, 5);
    nothing(&mut world, &mut *channel, 5);
    world.sharer().answer_lookups(SlotId(3), NAME, follow);
    nothing(&mut world, &mut *channel, 5);
    world.sharer().answer_lookups(SlotId(2), NAME, follow);
    assert_eq!(look_up(&mut *channel, &slots, 5, 0..PLACE), Ok(true));
    settle(&mut *channel, 1);
    assert_eq!(landed(&*channel, 0), (both(), Some(led(5))));
}

pub(crate) fn lookups_and_reads_complete_in_their_order(fabric: &Fabric) {
    const ROUNDS: u32 = 500;
    let mut world = World::new(fabric);
    let (slots, mut channel) = (shared(&mut world), world.read_channel(7, (READS_MAX as u32 + 1) * PLACE));
    let place = |nth: u32| nth % READS_MAX as u32 * PLACE;
    let (mut posted, mut completed) = (0, 0);
    eventually("all complete", || {
        while posted < ROUNDS && posted - completed < READS_MAX as u32 {
            let at = place(posted);
            if posted % 3 == 0 {
                channel.read(&slots[0], posted..posted + PLACE, at).unwrap();
            } else {
                assert_eq!(look_up(&mut *channel, &slots, (posted % 100) as u8, at..at + PLACE), Ok(true));
            }
            posted += 1;
        }
        if posted - completed == READS_MAX as u32 {
            let elsewhere = READS_MAX as u32 * PLACE;
            let one_more = look_up(&mut *channel, &slots, 1, elsewhere..elsewhere + PLACE);
            assert_eq!(one_more, Err(ReadError::QueueFull));
            assert_eq!(channel.read(&slots[0], 0..1, elsewhere), Err(ReadError::QueueFull));
        }
        for _ in 0..channel.poll().unwrap() {
            let at = place(completed);
            if completed % 3 == 0 {
                let read = completed as usize..(completed + PLACE) as usize;
                assert!(channel.landed(at..at + PLACE) == &pattern(0)[read]);
            } else {
                let length = completed as usize % 100;
                assert_eq!(landed(&*channel, at), (both(), (length > 0).then(|| led(length))), "{completed}");
            }
            completed += 1;
        }
        completed == ROUNDS
    });
    assert_eq!(channel.poll(), Ok(0));
}

/// Promise 8: what had completed before is seen, by all three reads.
pub(crate) fn a_lookup_sees_what_has_completed(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut writing, remote) = (world.channel(1), [world.lend(1, 0), world.lend(1, 1), world.lend(1, 2)]);
    let slots = [world.share(0), world.share(1)];
    world.share(2);
    world.sharer().answer_lookups(SlotId(2), NAME, follow);
    let mut channel = world.read_channel(7, PLACE);
    for lap in 1..200_u8 {
        let local = world.local(&vec![lap; SLOT_SIZE as usize]);
        remote.iter().for_each(|slot| writing.post(slot, &local, 0..SLOT_SIZE).unwrap());
        complete(&mut *writing, 3);
        look_up(&mut *channel, &slots, LED as u8, 0..PLACE).unwrap();
        settle(&mut *channel, 1);
        assert_eq!(landed(&*channel, 0), (vec![lap; 64], Some(vec![lap; LED as usize])));
    }
}

pub(crate) fn a_lookup_of_what_is_over_ends_its_channel(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let ends: [&dyn Fn(&mut World); 4] = [
        &|world| drop(world.lend(1, 1)),
        &|world| world.sharer().end_share(SlotId(1)),
        &|world| {
            world.receiver.end_lending(SlotId(1));
            world.receiver.release(SlotId(1)).unwrap();
        },
        &|world| world.sharer().dismiss(ReaderId(7)),
    ];
    for end in ends {
        let (slots, mut channel) = (shared(&mut world), world.read_channel(7, PLACE));
        look_up(&mut *channel, &slots, 1, 0..PLACE).unwrap();
        settle(&mut *channel, 1);
        end(&mut world);
        let mut result = look_up(&mut *channel, &slots, 1, 0..PLACE).map(|_| 0);
        eventually("it fails", || {
            result = result.and_then(|_| channel.poll());
            result != Ok(0)
        });
        let failure = result.unwrap_err();
        assert!(matches!(failure, ReadError::Ended | ReadError::Disconnected), "{failure}");
        assert_eq!(look_up(&mut *channel, &slots, 1, 0..PLACE), Err(failure));
        assert_eq!(channel.read(&slots[0], 0..1, 0), Err(failure));
    }
}

/// Promises 9 and 10: readers that have stopped in the middle of lookups, and memory that is lent again while one asks.
pub(crate) fn lookups_delay_no_fence_and_see_nothing_later(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let sides: Vec<u32> = world.side_slots().into_iter().map(|(side, _)| side.0).collect();
    sides.iter().for_each(|side| fill(&mut world, 1, *side, &[1; 4096]));
    fill(&mut world, 1, 2, &[1; 4096]);
    let parts = [world.share(sides[1]), world.share(sides[2])];
    world.share(2);
    world.sharer().answer_lookups(SlotId(2), NAME, follow);
    let ask = |channel: &mut dyn ReadChannel, at: u32| {
        let reads = [(&parts[0], 0..32), (&parts[1], 0..32)];
        channel.look_up(&LookUp { reads, question: &[LED as u8] }, at..at + PLACE)
    };
    let landing = READS_MAX as u32 * PLACE;
    let mut frozen: Vec<_> = (0..16).map(|reader| world.read_channel(reader, landing)).collect();
    for channel in &mut frozen {
        (0..READS_MAX as u32).for_each(|nth| assert_eq!(ask(&mut **channel, nth * PLACE), Ok(true)));
    }
    let (mut busy, enough) = (world.read_channel(99, landing), AtomicBool::new(false));
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut seen = 0;
            while ask(&mut *busy, 0).is_ok() {
                match eventual(&mut *busy) {
                    Ok(_) => assert_eq!(landed(&*busy, 0), (vec![1; 64], Some(vec![1; LED as usize]))),
                    Err(_) => break,
                }
                seen += 1;
                enough.store(true, Ordering::Release);
            }
            seen
        });
        eventually("it asks", || enough.load(Ordering::Acquire));
        promptly(|| {
            world.receiver.revoke_below(Writer(2)).unwrap();
            sides.iter().for_each(|side| fill(&mut world, 2, *side, &[2; 4096]));
        });
        assert!(asking.join().unwrap() > 0);
    });
    for mut channel in frozen {
        let completed = eventual(&mut *channel).unwrap_or(0);
        for nth in 0..completed {
            assert_eq!(landed(&*channel, nth * PLACE).0, [1; 64]);
        }
    }
    promptly(|| drop(world.receiver));
}

/// What is reported next.
fn eventual(channel: &mut dyn ReadChannel) -> Result<u32, ReadError> {
    let mut result = Ok(0);
    eventually("something is reported", || {
        result = channel.poll();
        result != Ok(0)
    });
    result
}

pub(crate) fn who_waits_for_a_lookup_is_woken(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (slots, mut channel) = (shared(&mut world), world.read_channel(7, PLACE));
    for _ in 0..500 {
        look_up(&mut *channel, &slots, 9, 0..PLACE).unwrap();
        assert_eq!(wake_up(&mut *channel), Ok(1));
        assert_eq!(channel.poll(), Ok(0));
    }
}

pub(crate) fn asking_allocates_nothing(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (slots, mut channel) = (shared(&mut world), world.read_channel(7, READS_MAX as u32 * PLACE));
    let mut completed = 0;
    let counted = allocation_counter::measure(|| {
        let mut posted = 0;
        while completed < 2000 {
            while posted < 2000 && posted - completed < READS_MAX as u32 {
                let at = posted % READS_MAX as u32 * PLACE;
                look_up(&mut *channel, &slots, 9, at..at + PLACE).unwrap();
                posted += 1;
            }
            completed += channel.poll().unwrap();
        }
    });
    assert_eq!((completed, counted.count_total), (2000, 0));
}

/// Where there are no lookups, nothing is posted.
pub(crate) fn other_fabrics_have_none(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (slots, mut channel) = (shared(&mut world), world.read_channel(7, PLACE));
    assert_eq!(look_up(&mut *channel, &slots, 1, 0..PLACE), Ok(false));
    assert_eq!(channel.poll(), Ok(0));
    assert_eq!(channel.landed(0..PLACE), [0; PLACE as usize]);
}
