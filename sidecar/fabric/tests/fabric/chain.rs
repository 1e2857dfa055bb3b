//! Chains of several members: what the contract suite, whose worlds have one receiver, cannot show.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::suite::{Random, SLOT_SIZE, SLOTS, eventually, folder, pattern};
use tailwind_fabric::baselines::{Carrier, ChainReceiver, ChainSender, chain_tcp_receiver};
use tailwind_fabric::{Channel, ChannelError, Pool, Receiver, RemoteBuffer, Sender, SharedBuffer, SlotId, Writer};
use tempfile::TempDir;

struct Member {
    receiver: Box<dyn Receiver>,
    pool: Arc<Pool>,
    _dir: TempDir,
}

struct Group {
    members: Vec<Member>,
    sender: ChainSender,
}

impl Group {
    fn new(carrier: Carrier, members: usize) -> Group {
        let member = |_| {
            let dir = folder();
            let pool = Pool::open(dir.path().join("pool"), SLOTS, SLOT_SIZE).unwrap();
            let receiver: Box<dyn Receiver> = match carrier {
                Carrier::Shm => Box::new(ChainReceiver::new(Arc::clone(&pool)).unwrap()),
                Carrier::Tcp => {
                    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                    Box::new(chain_tcp_receiver(Arc::clone(&pool), listener).unwrap())
                }
            };
            Member { receiver, pool, _dir: dir }
        };
        Group { members: (0..members).map(member).collect(), sender: ChainSender::new(carrier) }
    }

    fn channel(&mut self, member: usize, writer: u64) -> Box<dyn Channel> {
        let opening = self.sender.begin().unwrap();
        let answer = self.members[member].receiver.accept(Writer(writer), &opening.offer()).unwrap();
        opening.connect(&answer, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap()
    }

    /// A channel to each member in turn, and its slot 0.
    fn chain(&mut self, writer: u64) -> Vec<(Box<dyn Channel>, RemoteBuffer)> {
        (0..self.members.len()).map(|member| (self.channel(member, writer), self.lend(member, writer))).collect()
    }

    fn lend(&mut self, member: usize, writer: u64) -> RemoteBuffer {
        let grant = self.members[member].receiver.lend(Writer(writer), SlotId(0)).unwrap();
        self.sender.attach(&grant).unwrap()
    }

    fn local(&self, bytes: &[u8]) -> SharedBuffer {
        let (mut writer, reader) = self.sender.allocate(bytes.len() as u32).unwrap();
        writer.tail_mut().copy_from_slice(bytes);
        writer.publish(bytes.len() as u32);
        reader
    }

    fn contents(&self, member: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; SLOT_SIZE as usize];
        self.members[member].pool.read(SlotId(0), 0, &mut bytes).unwrap();
        bytes
    }
}

/// Polls all channels in turn until each has reported so many completions.
fn complete(channels: &mut [(Box<dyn Channel>, RemoteBuffer)], count: u32) {
    let mut reported = vec![0; channels.len()];
    eventually("all writes complete", || {
        for ((channel, _), reported) in channels.iter_mut().zip(&mut reported) {
            *reported += channel.poll().unwrap();
        }
        reported.iter().all(|reported| *reported >= count)
    });
    assert_eq!(reported, vec![count; channels.len()]);
}

fn is_over(channel: &mut dyn Channel) -> bool {
    matches!(channel.poll(), Err(ChannelError::Revoked | ChannelError::Disconnected))
}

fn every_member_has_what_has_completed(carrier: Carrier) {
    for members in 1..=5 {
        let mut group = Group::new(carrier, members);
        let mut chain = group.chain(1);
        let (local, expected) = (group.local(&pattern(0)), pattern(0));
        for (channel, remote) in &mut chain {
            channel.post(remote, &local, 0..SLOT_SIZE - 64).unwrap();
        }
        for (channel, remote) in &mut chain {
            channel.post_bytes(remote, SLOT_SIZE - 64, &expected[SLOT_SIZE as usize - 64..]).unwrap();
        }
        complete(&mut chain, 2);
        assert!((0..members).all(|member| group.contents(member) == expected), "{members} members");
    }
}

/// Members that catch up are posted other ranges than the rest; lines of boards differ.
fn members_may_be_posted_different_writes(carrier: Carrier) {
    let mut group = Group::new(carrier, 3);
    let mut chain = group.chain(1);
    let local = group.local(&pattern(0));
    let mut random = Random::new();
    let mut expected = vec![vec![0; SLOT_SIZE as usize]; 3];
    let (mut posted, mut completed) = ([0; 3], [0; 3]);
    eventually("all writes complete", || {
        for (member, (channel, remote)) in chain.iter_mut().enumerate() {
            // Now and then the same as at the others, and now and then one is slower.
            while posted[member] < 3000 && random.below(4) > 0 {
                let at = if posted[member] % 3 == 0 { posted[member] } else { random.below(9000) };
                let result = if at % 2 == 0 {
                    channel.post(remote, &local, at..at + 50)
                } else {
                    channel.post_bytes(remote, at, &[at as u8 | 1; 50])
                };
                match result {
                    Ok(()) => {}
                    Err(ChannelError::QueueFull) => break,
                    Err(error) => panic!("{error}"),
                }
                posted[member] += 1;
                let place = &mut expected[member][at as usize..at as usize + 50];
                if at % 2 == 0 {
                    place.copy_from_slice(&pattern(0)[at as usize..at as usize + 50]);
                } else {
                    place.fill(at as u8 | 1);
                }
            }
            completed[member] += channel.poll().unwrap();
        }
        completed == [3000; 3]
    });
    assert!((0..3).all(|member| group.contents(member) == expected[member]));
}

/// While the chain is in use.
fn a_chain_grows_under_load(carrier: Carrier) {
    let mut group = Group::new(carrier, 3);
    let (local, first) = (group.local(&pattern(0)), vec![(group.channel(0, 1), group.lend(0, 1))]);
    let enough = Arc::new(AtomicBool::new(false));
    let busy = thread::spawn({
        let (enough, local, mut first) = (Arc::clone(&enough), local.clone(), first);
        move || {
            let mut posted = 0_u32;
            while !enough.load(Ordering::Acquire) {
                let at = posted % 1000 * 100;
                let (channel, remote) = &mut first[0];
                channel.post(remote, &local, at..at + 100).unwrap();
                complete(&mut first, 1);
                posted += 1;
            }
            first.remove(0)
        }
    });
    let mut chain = vec![(group.channel(1, 1), group.lend(1, 1)), (group.channel(2, 1), group.lend(2, 1))];
    enough.store(true, Ordering::Release);
    chain.insert(0, busy.join().unwrap());
    for (channel, remote) in &mut chain {
        channel.post(remote, &local, 0..SLOT_SIZE).unwrap();
    }
    complete(&mut chain, 1);
    assert!((0..3).all(|member| group.contents(member) == pattern(0)));
}

/// One fenced member is enough: nothing completes anywhere, although the others have revoked nobody.
fn a_fence_at_any_member_breaks_the_chain(carrier: Carrier) {
    for fenced in 0..3 {
        let mut group = Group::new(carrier, 3);
        let mut chain = group.chain(1);
        let local = group.local(&pattern(0));
        for (channel, remote) in &mut chain {
            channel.post(remote, &local, 0..100).unwrap();
        }
        complete(&mut chain, 1);
        group.members[fenced].receiver.revoke_below(Writer(2)).unwrap();
        for (channel, remote) in &mut chain {
            let _ = channel.post(remote, &local, 100..200);
        }
        eventually("all channels end", || {
            chain.iter_mut().all(|(channel, _)| match channel.poll() {
                Ok(completed) => {
                    assert_eq!(completed, 0, "member {fenced} is fenced");
                    false
                }
                Err(error) => matches!(error, ChannelError::Revoked | ChannelError::Disconnected),
            })
        });
        assert!(group.contents(fenced)[..100] == pattern(0)[..100]);
        assert!(group.contents(fenced)[100..].iter().all(|byte| *byte == 0));

        // The next writer makes a chain of its own.
        group.members.iter_mut().for_each(|member| member.receiver.revoke_below(Writer(2)).unwrap());
        let mut next = group.chain(2);
        for (channel, remote) in &mut next {
            channel.post(remote, &local, 0..SLOT_SIZE).unwrap();
        }
        complete(&mut next, 1);
        assert!((0..3).all(|member| group.contents(member) == pattern(0)));
    }
}

/// As the suite has it for one receiver: a writer that is always in the middle of something.
fn a_fence_is_a_barrier_for_a_busy_chain(carrier: Carrier) {
    const ROUNDS: u64 = 30;
    const WRITES: u32 = 8000;
    let mut random = Random::new();
    let mut group = Group::new(carrier, 3);
    for round in 1..=ROUNDS {
        let local = group.local(&pattern(round as u8));
        let (mut chain, step) = (group.chain(round), random.below(100) + 8);
        let completed = Arc::new(AtomicU64::new(0));
        let busy = thread::spawn({
            let completed = Arc::clone(&completed);
            move || {
                let (mut posted, mut reported, mut over) = ([0; 3], [0; 3], [false; 3]);
                eventually("the writer is told", || {
                    for (member, (channel, remote)) in chain.iter_mut().enumerate() {
                        if posted[member] < WRITES
                            && channel.post(remote, &local, posted[member] * step..(posted[member] + 1) * step).is_ok()
                        {
                            posted[member] += 1;
                        }
                        match channel.poll() {
                            Ok(count) => reported[member] += count,
                            Err(_) => over[member] = true,
                        }
                    }
                    let everywhere = reported.into_iter().min().unwrap();
                    completed.store(u64::from(everywhere), Ordering::Release);
                    over == [true; 3]
                });
                reported
            }
        });
        let enough = u64::from(random.below(1000));
        eventually("the writer gets going", || completed.load(Ordering::Acquire) >= enough);
        let fenced = random.below(3) as usize;
        group.members[fenced].receiver.revoke_below(Writer(round + 1)).unwrap();
        let at_once = group.contents(fenced);
        let reported = busy.join().unwrap();
        assert!(group.contents(fenced) == at_once, "round {round}: nothing lands afterwards");
        for (member, reported) in reported.into_iter().enumerate() {
            let completed = (reported * step) as usize;
            let found = group.contents(member);
            assert!(found[..completed] == pattern(round as u8)[..completed], "round {round}: member {member}");
        }
    }
}

/// A chain without one of its members is no chain.
fn a_dropped_channel_ends_the_others(carrier: Carrier) {
    let mut group = Group::new(carrier, 3);
    let mut chain = group.chain(1);
    let dropped = chain.remove(1);
    drop(dropped);
    assert!(chain.iter_mut().all(|(channel, _)| is_over(&mut **channel)));
}

/// A member that dies takes the chain with it.
fn a_member_that_goes_ends_the_chain(carrier: Carrier) {
    for gone in 0..3 {
        let mut group = Group::new(carrier, 3);
        let mut chain = group.chain(1);
        drop(group.members.remove(gone));
        eventually("all channels end", || chain.iter_mut().all(|(channel, _)| is_over(&mut **channel)));
    }
}

/// A second channel to a member, as for bulk copies, is of a chain of its own.
fn a_member_is_in_a_chain_once(carrier: Carrier) {
    let mut group = Group::new(carrier, 2);
    let mut chain = group.chain(1);
    let mut bulk = [(group.channel(0, 1), chain[0].1.clone())];
    let local = group.local(&pattern(0));
    let (channel, remote) = &mut bulk[0];
    channel.post(remote, &local, 0..SLOT_SIZE).unwrap();
    complete(&mut bulk, 1);
    assert!(group.contents(0) == pattern(0) && group.contents(1).iter().all(|byte| *byte == 0));
    drop(bulk);
    for (channel, remote) in &mut chain {
        channel.post(remote, &local, 0..SLOT_SIZE).unwrap();
    }
    complete(&mut chain, 1);
    assert!(group.contents(1) == pattern(0));
}

macro_rules! chains {
    ($($test:ident)*) => {
        mod shm {
            use super::*;
            $(#[test]
            fn $test() {
                super::$test(Carrier::Shm);
            })*
        }
        mod tcp {
            use super::*;
            $(#[test]
            fn $test() {
                super::$test(Carrier::Tcp);
            })*
        }
    };
}

chains!(
    every_member_has_what_has_completed
    members_may_be_posted_different_writes
    a_chain_grows_under_load
    a_fence_at_any_member_breaks_the_chain
    a_fence_is_a_barrier_for_a_busy_chain
    a_dropped_channel_ends_the_others
    a_member_that_goes_ends_the_chain
    a_member_is_in_a_chain_once
);
