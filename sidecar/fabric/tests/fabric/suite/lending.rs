//! Promises 4, 5 and 7: what a grant is good for, that lent memory is zero, and that a restart is a barrier.

use std::os::unix::fs::MetadataExt;

use tailwind_fabric::{FabricError, FabricKind, Offer, RemoteBuffer, SlotId, Writer};

use super::{Fabric, PARTS, SLOT_SIZE, SLOTS, World, complete, failure, pattern};

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Fills a slot as `writer` does, to the last byte.
fn fill(world: &mut World, writer: u64, slot: u32) -> RemoteBuffer {
    let (mut channel, remote) = (world.channel(writer), world.lend(writer, slot));
    let local = world.local(&pattern(writer as u8));
    channel.post(&remote, &local, 0..SLOT_SIZE).unwrap();
    complete(&mut *channel, 1);
    assert!(world.contents(slot) == pattern(writer as u8));
    remote
}

pub(crate) fn lent_memory_is_zero(fabric: &Fabric) {
    let mut world = World::new(fabric);
    for writer in 1..4 {
        fill(&mut world, writer, 1);
        world.lend(writer, 1);
        assert!(is_zero(&world.contents(1)), "lent again to the same writer");
        fill(&mut world, writer, 1);
        world.receiver.end_lending(SlotId(1));
        world.lend(writer, 1);
        assert!(is_zero(&world.contents(1)), "after its end");
        fill(&mut world, writer, 1);
        world.receiver.revoke_below(Writer(writer + 1)).unwrap();
        world.lend(writer + 1, 1);
        assert!(is_zero(&world.contents(1)), "after a revocation");
        fill(&mut world, writer + 1, 1);
        world.receiver.end_lending(SlotId(1));
        world.receiver.release(SlotId(1)).unwrap();
        assert!(is_zero(&world.contents(1)), "after its release");
        world.lend(writer + 1, 1);
        assert!(is_zero(&world.contents(1)), "after its release, lent");
    }
}

pub(crate) fn an_earlier_lending_reaches_no_byte_of_a_later_one(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let mut channel = world.channel(1);
    let local = world.local(&pattern(0));
    let old = world.lend(1, 0);
    channel.post(&old, &local, 0..100).unwrap();
    complete(&mut *channel, 1);
    let new = world.lend(1, 0);
    let _ = channel.post(&old, &local, 0..SLOT_SIZE);
    failure(&mut *channel, &old, &local);
    assert!(is_zero(&world.contents(0)));
    let mut channel = world.channel(1);
    channel.post(&new, &local, 0..SLOT_SIZE).unwrap();
    complete(&mut *channel, 1);
}

/// Memory may be kept for the same writer's next lending. It must look like new, and be out of reach for what was.
pub(crate) fn released_memory_is_lent_anew(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let full = world.local(&pattern(9));
    for round in 0..4 {
        let old = fill(&mut world, 1, 2);
        world.receiver.end_lending(SlotId(2));
        world.receiver.release(SlotId(2)).unwrap();
        assert!(is_zero(&world.contents(2)) && !world.pool.has(SlotId(2)), "released");
        let mut late = world.channel(1);
        failure(&mut *late, &old, &full);

        let new = world.lend(1, 2);
        assert!(is_zero(&world.contents(2)), "lent again");
        let mut late = world.channel(1);
        let _ = late.post(&old, &full, 0..SLOT_SIZE);
        failure(&mut *late, &old, &full);
        assert!(is_zero(&world.contents(2)), "written through the old grant");
        let mut channel = world.channel(1);
        channel.post(&new, &full, 1..SLOT_SIZE - round).unwrap();
        complete(&mut *channel, 1);
        world.receiver.end_lending(SlotId(2));
        assert!(world.contents(2)[1..(SLOT_SIZE - round) as usize] == pattern(9)[1..(SLOT_SIZE - round) as usize]);
        // The next round lends it once more, this time without a release.
    }
}

/// Of sizes of their own, and forgotten by the next process.
pub(crate) fn side_slots_are_lent_like_the_others(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let neighbour = fill(&mut world, 1, SLOTS - 1);
    let mut writers = 1..;
    for (side, size) in world.side_slots() {
        for writer in writers.by_ref().take(3) {
            assert!(is_zero(&world.contents_of_size(side.0, size)) && !world.pool.has(side));
            let (mut channel, remote) = (world.channel(writer), world.lend(writer, side.0));
            channel.post_bytes(&remote, size - 3, &[7; 3]).unwrap();
            channel.push();
            complete(&mut *channel, 1);
            assert_eq!(world.contents_of_size(side.0, size)[size as usize - 4..], [0, 7, 7, 7]);
            world.receiver.revoke_below(Writer(writer + 1)).unwrap();
            let local = world.local(&[9; 8]);
            failure(&mut *channel, &remote, &local);
            assert_eq!(world.contents_of_size(side.0, size)[size as usize - 4..], [0, 7, 7, 7]);
            world.receiver.release(side).unwrap();
        }
    }
    drop(neighbour);
    assert!(world.contents(SLOTS - 1) == pattern(1));
    assert_eq!(world.pool.part(PARTS.count), None, "there is no further one");

    let sides = world.side_slots();
    let mut lent: Vec<_> = sides.iter().map(|(side, _)| (world.channel(20), world.lend(20, side.0))).collect();
    let local = world.local(&[9; 8]);
    let mut world = world.restart(fabric);
    for ((channel, stale), (side, size)) in lent.iter_mut().zip(sides) {
        assert!(!world.pool.has(side) && !world.pool.path(side).exists(), "what it says is of an earlier life");
        let _ = channel.post(stale, &local, 0..8);
        failure(&mut **channel, stale, &local);
        world.lend(21, side.0);
        assert!(is_zero(&world.contents_of_size(side.0, size)));
    }
}

/// They may be large, and a failover waits for a revocation.
pub(crate) fn side_slots_end_without_a_copy(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let sides = world.side_slots();
    let mut lent: Vec<_> = sides.iter().map(|(side, _)| (world.channel(1), world.lend(1, side.0))).collect();
    for (channel, remote) in &mut lent {
        channel.post_bytes(remote, 100, &[7; 10]).unwrap();
        channel.push();
        complete(&mut **channel, 1);
    }
    let inodes = |world: &World| sides.iter().map(|(side, _)| inode(world, side.0)).collect::<Vec<_>>();
    let before = inodes(&world);
    for _ in 0..2 {
        world.receiver.revoke_below(Writer(2)).unwrap();
        assert_eq!(inodes(&world), before, "the same memory");
    }
    let local = world.local(&[9; 8]);
    for ((channel, stale), (side, size)) in lent.iter_mut().zip(sides.clone()) {
        failure(&mut **channel, stale, &local);
        assert_eq!(world.contents_of_size(side.0, size)[99..111], [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
        // Its next user is alone with what he gets, whether it was released before or not.
        let mut late = world.channel(2);
        let new = world.lend(2, side.0);
        let _ = late.post(stale, &local, 0..8);
        failure(&mut *late, stale, &local);
        assert!(is_zero(&world.contents_of_size(side.0, size)));
        let mut channel = world.channel(2);
        channel.post(&new, &local, 0..8).unwrap();
        complete(&mut *channel, 1);
    }
    // Who is not revoked keeps what he has.
    world.receiver.revoke_below(Writer(2)).unwrap();
    for (side, size) in sides {
        assert_eq!(world.contents_of_size(side.0, size)[..9], [9, 9, 9, 9, 9, 9, 9, 9, 0]);
    }
}

/// What a revoked writer once wrote to is lent to its successor, which must be alone with it.
pub(crate) fn kept_memory_is_out_of_reach_for_a_revoked_writer(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let full = world.local(&pattern(9));
    let mut channel = world.channel(1);
    let old = fill(&mut world, 1, 0);
    world.receiver.end_lending(SlotId(0));
    world.receiver.release(SlotId(0)).unwrap();
    world.receiver.revoke_below(Writer(2)).unwrap();
    let new = fill(&mut world, 2, 0);
    let _ = channel.post(&old, &full, 0..SLOT_SIZE);
    failure(&mut *channel, &old, &full);
    assert!(world.contents(0) == pattern(2));
    world.receiver.end_lending(SlotId(0));
    world.receiver.release(SlotId(0)).unwrap();

    let mut world = world.restart(fabric);
    assert!(is_zero(&world.contents(0)) && !world.pool.has(SlotId(0)), "given up before the restart");
    world.lend(3, 0);
    assert!(is_zero(&world.contents(0)));
    let mut channel = world.channel(3);
    let _ = channel.post(&new, &full, 0..SLOT_SIZE);
    failure(&mut *channel, &new, &full);
    assert!(is_zero(&world.contents(0)));
}

pub(crate) fn a_grant_that_was_kept_back_opens_nothing_later(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let local = world.local(&pattern(0));
    let try_late = |world: &mut World, writer, spoil: &dyn Fn(&mut World)| {
        let mut channel = world.channel(writer);
        let grant = world.receiver.lend(Writer(writer), SlotId(0)).unwrap();
        spoil(world);
        // Refused at once or at the first write, as the fabric likes.
        if let Ok(remote) = world.sender.attach(&grant) {
            let _ = channel.post(&remote, &local, 0..SLOT_SIZE);
            failure(&mut *channel, &remote, &local);
        }
        assert!(is_zero(&world.contents(0)));
    };
    try_late(&mut world, 1, &|world| drop(world.lend(1, 0)));
    try_late(&mut world, 1, &|world| world.receiver.revoke_below(Writer(2)).unwrap());
    try_late(&mut world, 2, &|world| world.receiver.end_lending(SlotId(0)));
    try_late(&mut world, 2, &|world| {
        world.receiver.end_lending(SlotId(0));
        world.receiver.release(SlotId(0)).unwrap();
    });
}

pub(crate) fn an_ended_lending_completes_no_write_and_keeps_its_bytes(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (mut channel, remote) = (world.channel(1), world.lend(1, 3));
    let local = world.local(&pattern(1));
    channel.post(&remote, &local, 0..SLOT_SIZE).unwrap();
    complete(&mut *channel, 1);
    world.receiver.end_lending(SlotId(3));
    world.receiver.end_lending(SlotId(3));
    failure(&mut *channel, &remote, &local);
    assert!(world.contents(3) == pattern(1));
}

/// What is only a cache stays where it is when its writer is revoked: no fence waits for a copy of it.
pub(crate) fn a_retained_slot_outlasts_its_writer(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let full = world.local(&pattern(9));
    let mut channel = world.channel(1);
    let old = fill(&mut world, 1, 0);
    world.receiver.end_lending(SlotId(0));
    world.receiver.retain(SlotId(0));
    let before = inode(&world, 0);
    world.receiver.revoke_below(Writer(2)).unwrap();
    assert!(world.contents(0) == pattern(1) && inode(&world, 0) == before, "the same memory");
    // Its next user is alone with what he gets.
    world.receiver.release(SlotId(0)).unwrap();
    assert!(is_zero(&world.contents(0)));
    let new = fill(&mut world, 2, 0);
    let _ = channel.post(&old, &full, 0..SLOT_SIZE);
    failure(&mut *channel, &old, &full);
    assert!(world.contents(0) == pattern(2));
    drop(new);
}

/// The device and inode of a slot's memory.
fn inode(world: &World, slot: u32) -> (u64, u64) {
    let found = std::fs::metadata(world.pool.path(SlotId(slot))).unwrap();
    (found.dev(), found.ino())
}

pub(crate) fn a_held_slot_is_nobodys_to_write(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let full = world.local(&pattern(9));
    for released in [false, true] {
        let mut channel = world.channel(1);
        let old = fill(&mut world, 1, 0);
        if released {
            world.receiver.end_lending(SlotId(0));
            world.receiver.release(SlotId(0)).unwrap();
        }
        world.receiver.hold(SlotId(0)).unwrap();
        assert!(world.pool.has(SlotId(0)) && is_zero(&world.contents(0)));
        world.pool.write(SlotId(0), 0, &pattern(3));
        let _ = channel.post(&old, &full, 0..SLOT_SIZE);
        failure(&mut *channel, &old, &full);
        assert!(world.contents(0) == pattern(3), "released before: {released}");
    }
    world.receiver.revoke_below(Writer(2)).unwrap();
    assert!(world.contents(0) == pattern(3), "there is nobody to revoke");
    world.lend(2, 0);
    assert!(is_zero(&world.contents(0)));
}

pub(crate) fn the_other_fabric_is_refused(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let (offer, answer, grant) = match world.receiver.kind() {
        kind if kind != FabricKind::Tcp => (
            Offer::Tcp,
            r#"{"fabric":"tcp","address":"127.0.0.1:1","secret":"0123456789abcdef0123456789abcdef"}"#,
            r#"{"fabric":"tcp","key":1,"length":4096}"#,
        ),
        _ => (Offer::Shm, r#"{"fabric":"shm"}"#, r#"{"fabric":"shm","path":"/dev/null","key":1,"length":4096}"#),
    };
    let mismatch = |error| assert!(matches!(error, FabricError::Mismatch { .. }), "{error}");
    mismatch(world.receiver.accept(Writer(1), &offer).unwrap_err());
    mismatch(world.sender.attach(&serde_json::from_str(grant).unwrap()).unwrap_err());
    let peer = "127.0.0.1".parse().unwrap();
    mismatch(world.sender.begin().unwrap().connect(&serde_json::from_str(answer).unwrap(), peer).unwrap_err());
}

pub(crate) fn messages_survive_the_control_rpc(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let opening = world.sender.begin().unwrap();
    let offer = serde_json::to_string(&opening.offer()).unwrap();
    let answer = world.receiver.accept(Writer(1), &serde_json::from_str(&offer).unwrap()).unwrap().complete().unwrap();
    let answer = serde_json::to_string(&answer).unwrap();
    let grant = serde_json::to_string(&world.receiver.lend(Writer(1), SlotId(0)).unwrap()).unwrap();
    let peer = "127.0.0.1".parse().unwrap();
    let mut channel = opening.connect(&serde_json::from_str(&answer).unwrap(), peer).unwrap();
    let remote = world.sender.attach(&serde_json::from_str(&grant).unwrap()).unwrap();
    channel.post(&remote, &world.local(b"bytes"), 0..5).unwrap();
    complete(&mut *channel, 1);
    assert_eq!(&world.contents(0)[..6], b"bytes\0");
}

pub(crate) fn a_restart_keeps_bytes_and_is_a_barrier(fabric: &Fabric) {
    let mut world = World::new(fabric);
    let mut channels = [world.channel(1), world.channel(1), world.channel(2), world.channel(5)];
    let (revoked, ended) = (fill(&mut world, 1, 0), fill(&mut world, 1, 1));
    world.receiver.end_lending(SlotId(1));
    let live = fill(&mut world, 2, 2);
    world.receiver.revoke_below(Writer(2)).unwrap();
    let unused = world.lend(5, 3);

    let mut world = world.restart(fabric);
    let kept = |world: &mut World| {
        assert!(world.contents(0) == pattern(1), "revoked");
        assert!(world.contents(1) == pattern(1), "ended");
        assert!(world.contents(2) == pattern(2), "live when the daemon died");
        assert!(is_zero(&world.contents(3)), "lent, never written");
    };
    kept(&mut world);
    let local = world.local(&pattern(77));
    for (channel, stale) in channels.iter_mut().zip([revoked, ended, live, unused]) {
        let _ = channel.post(&stale, &local, 0..SLOT_SIZE);
        failure(&mut **channel, &stale, &local);
    }
    kept(&mut world);
    kept(&mut world.restart(fabric));
}
