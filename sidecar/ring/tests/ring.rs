//! Both ends of a ring: what goes in comes out, and no value that the other process may write does harm.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tailwind_ring::{
    ANSWERS_SIZE, ClientEnd, FILE_SIZE, REQUESTS_SIZE, SidecarEnd, Sizes, create, create_sized, open, open_sized,
    receive, send,
};

/// Where the words of `docs/append-ring.md` lie: tail and head of the requests, then of the answers.
const POSITIONS: [u64; 4] = [128, 256, 640, 768];

/// Both ends, and the file, for tests that scribble on it.
fn pair() -> (SidecarEnd, ClientEnd, File) {
    let (file, sidecar) = create().unwrap();
    let scribbled = File::from(file.try_clone().unwrap());
    (sidecar, open(file).unwrap(), scribbled)
}

#[test]
fn the_layout_is_the_documented_one() {
    let (mut sidecar, mut client, file) = pair();
    client.requests.write(b"request").unwrap();
    client.requests.publish();
    sidecar.answers.write(b"answer").unwrap();
    sidecar.answers.publish();
    let mut taken = [0; 3];
    sidecar.requests.read(&mut taken).unwrap();
    sidecar.requests.release();
    client.answers.read(&mut taken[..2]).unwrap();
    client.answers.release();
    assert!(client.answers.pending().is_ok_and(|count| count == 4) && client.answers.may_sleep());
    assert!(sidecar.requests.pending().is_ok_and(|count| count == 4) && sidecar.requests.may_sleep());
    assert!(client.requests.room().is_ok() && client.requests.may_sleep());
    assert!(sidecar.answers.room().is_ok() && sidecar.answers.may_sleep());
    let bytes = |offset, count| {
        let mut bytes = vec![0; count];
        file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    };
    let word = |offset| u64::from_le_bytes(bytes(offset, 8).try_into().unwrap());
    assert_eq!(bytes(0, 16), b"TWRINGS1\0\0\x04\0\0\0\x01\0");
    assert_eq!([128, 256, 384, 512, 640, 768, 896, 1024].map(word), [7, 3, 1, 1, 6, 2, 1, 1]);
    assert_eq!((bytes(65_536, 8), bytes(65_536 + 262_144, 7)), (b"request\0".to_vec(), b"answer\0".to_vec()));
    assert_eq!(file.metadata().unwrap().len(), 393_216);
    assert_eq!(FILE_SIZE, 393_216);
}

#[test]
fn nobody_can_change_the_size() {
    let (_, _, file) = pair();
    for size in [0, FILE_SIZE as u64 - 1, FILE_SIZE as u64 + 1] {
        assert!(file.set_len(size).is_err(), "the file was made {size} bytes long");
    }
}

#[test]
fn other_files_are_refused() {
    let (_, _, file) = pair();
    file.write_all_at(b"TWRINGS2", 0).unwrap();
    assert!(open(file.into()).unwrap_err().to_string().contains("no rings of this version"));
    let short = File::open("/dev/null").unwrap();
    assert!(open(short.into()).unwrap_err().to_string().contains("another size"));
}

#[test]
fn the_file_passes_through_a_socket() {
    let (one, other) = UnixStream::pair().unwrap();
    let (file, mut sidecar) = create().unwrap();
    assert_eq!(send(&one, b"welcome", file.as_fd()).unwrap(), 7);
    let mut room = [0; 100];
    let (size, passed) = receive(&other, &mut room, rustix::net::RecvFlags::empty()).unwrap();
    assert_eq!(&room[..size], b"welcome");
    let mut client = open(passed.unwrap()).unwrap();
    client.requests.write(b"hello").unwrap();
    assert_eq!(sidecar.requests.pending(), Ok(0), "not before it is published");
    client.requests.publish();
    assert_eq!(sidecar.requests.pending(), Ok(5));
}

#[test]
fn who_sleeps_is_woken_once() {
    let (mut sidecar, mut client, _) = pair();
    client.requests.write(b"x").unwrap();
    assert!(!client.requests.publish(), "nobody sleeps");
    assert!(!sidecar.requests.may_sleep(), "there is something to take");
    assert_eq!(sidecar.requests.pending(), Ok(1));
    assert!(sidecar.requests.may_sleep());
    client.requests.write(b"y").unwrap();
    assert!(client.requests.publish());
    client.requests.write(b"z").unwrap();
    assert!(!client.requests.publish(), "it has been woken");
    // The same for room.
    while client.requests.write(&[7; 1000]).unwrap() > 0 {}
    client.requests.publish();
    assert!(client.requests.may_sleep());
    sidecar.requests.pending().unwrap();
    sidecar.requests.take(1);
    assert!(sidecar.requests.release() && !sidecar.requests.release());
}

#[test]
fn rings_may_have_other_sizes() {
    let sizes = Sizes { requests: 4 << 20, answers: 64 << 10 };
    let (file, mut sidecar) = create_sized(sizes).unwrap();
    assert!(open(file.try_clone().unwrap()).is_err(), "of another size");
    let mut client = open_sized(file, sizes).unwrap();
    for round in 0..3_u8 {
        assert_eq!(client.requests.write(&vec![round; 5 << 20]), Ok(4 << 20));
        client.requests.publish();
        let mut taken = vec![0xee; 3 << 20];
        for part in [3 << 20, 1 << 20] {
            assert_eq!(sidecar.requests.read(&mut taken[..part]), Ok(part));
            assert!(taken[..part].iter().all(|byte| *byte == round));
        }
        sidecar.requests.release();
        assert_eq!(sidecar.answers.write(&[round; 100_000]), Ok(64 << 10));
        sidecar.answers.publish();
        assert_eq!(client.answers.read(&mut taken), Ok(64 << 10));
        client.answers.release();
    }
}

/// What the producer counts as delivered, the consumer finds after it has closed the ring.
#[test]
fn nothing_delivered_is_lost_when_a_ring_is_closed() {
    for _ in 0..200 {
        let (mut sidecar, mut client, _) = pair();
        let producer = std::thread::spawn(move || {
            let mut delivered = 0;
            while client.requests.write(b"12345678").unwrap() == 8 {
                client.requests.publish();
                if !client.requests.is_open() {
                    break;
                }
                delivered += 8;
            }
            delivered
        });
        while sidecar.requests.pending().unwrap() < 80 {}
        sidecar.requests.close();
        let found = sidecar.requests.pending().unwrap();
        let delivered = producer.join().unwrap();
        // The last of the eighty may have found the ring closed.
        assert!((72..=found).contains(&delivered), "{delivered} bytes were delivered, {found} found");
    }
}

proptest! {
    /// Any bytes, written and taken in any pieces, are those of a queue.
    #[test]
    fn a_ring_is_a_queue(steps in proptest::collection::vec((any::<bool>(), 0..120_000_usize), 1..60)) {
        let (mut sidecar, mut client, _) = pair();
        let (mut model, mut next) = (VecDeque::<u8>::new(), 0_u8);
        for (step, (write, size)) in steps.into_iter().enumerate() {
            if write {
                let bytes: Vec<u8> = (0..size).map(|_| { next = next.wrapping_mul(31).wrapping_add(7); next }).collect();
                let room = client.requests.room().unwrap();
                prop_assert_eq!(room, REQUESTS_SIZE - model.len());
                let in_place = step % 2 == 0 && size <= room;
                let written = if in_place {
                    client.requests.reserve(size).unwrap().unwrap().copy_from_slice(&bytes);
                    client.requests.commit(size);
                    size
                } else {
                    client.requests.write(&bytes).unwrap()
                };
                prop_assert_eq!(written, size.min(room));
                client.requests.publish();
                model.extend(&bytes[..written]);
            } else {
                let mut taken = vec![0; size];
                let count = sidecar.requests.read(&mut taken).unwrap();
                prop_assert_eq!(count, size.min(model.len()));
                prop_assert!(model.drain(..count).eq(taken[..count].iter().copied()));
                sidecar.requests.release();
            }
        }
    }

    /// Every value that the other side's position may have is either possible or refused.
    #[test]
    fn impossible_positions_are_refused(sent in 0..ANSWERS_SIZE as u64, taken in 0..ANSWERS_SIZE as u64, near: bool, value: u64) {
        let (mut sidecar, mut client, file) = pair();
        let taken = taken.min(sent);
        client.requests.write(&vec![1; sent as usize]).unwrap();
        sidecar.answers.write(&vec![1; sent as usize]).unwrap();
        client.requests.publish();
        sidecar.answers.publish();
        let mut room = vec![0; taken as usize];
        sidecar.requests.read(&mut room).unwrap();
        sidecar.requests.release();
        client.answers.read(&mut room).unwrap();
        client.answers.release();
        sidecar.answers.room().unwrap();
        let value = if near { sent.wrapping_add(value % 600_000).wrapping_sub(300_000) } else { value };
        for word in POSITIONS {
            file.write_all_at(&value.to_le_bytes(), word).unwrap();
        }
        let possible = |highest: u64| (sent..=highest).contains(&value);
        let pending = sidecar.requests.pending();
        prop_assert_eq!(pending.is_ok(), possible(taken + REQUESTS_SIZE as u64), "{:?}", pending);
        prop_assert!(pending.is_err() || pending == Ok((value - taken) as usize));
        prop_assert_eq!(client.answers.pending().is_ok(), possible(taken + ANSWERS_SIZE as u64));
        let room = sidecar.answers.room();
        prop_assert_eq!(room.is_ok(), (taken..=sent).contains(&value), "{:?}", room);
        prop_assert!(room.is_err() || room == Ok(ANSWERS_SIZE - (sent - value) as usize));
    }
}

/// Another process writes anything anywhere while the sidecar takes requests and answers.
#[test]
fn scribbling_threads_do_no_harm() {
    let (mut sidecar, mut client, file) = pair();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for seed in 1..=2_u64 {
            let (file, done) = (file.try_clone().unwrap(), &done);
            threads.spawn(move || {
                let mut state = seed;
                while !done.load(Ordering::Relaxed) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (pick, value) = (state >> 60, state >> 33);
                    // Small positions are believed now and then; others never are.
                    let value = if pick % 2 == 0 { value % (2 * REQUESTS_SIZE as u64) } else { value << 33 | value };
                    let offset = if pick < 12 { 128 * (1 + pick % 8) } else { state % (FILE_SIZE as u64 - 8) };
                    file.write_all_at(&value.to_le_bytes(), offset).unwrap();
                }
            });
        }
        let (mut taken, mut refused) = (0, 0);
        let mut room = vec![0; 4096];
        // However late the scribblers are: until both has happened.
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut turns = 0;
        while turns < 200_000 || (taken == 0 || refused == 0) && Instant::now() < deadline {
            turns += 1;
            client.requests.write(&[7; 100]).unwrap_or_default();
            client.requests.publish();
            match sidecar.requests.read(&mut room) {
                Ok(count) => taken += count,
                Err(_) => refused += 1,
            }
            sidecar.requests.release();
            sidecar.requests.may_sleep();
            sidecar.answers.write(&[1; 24]).unwrap_or_default();
            sidecar.answers.publish();
            assert!(client.answers.read(&mut room).unwrap_or_default() <= room.len());
        }
        done.store(true, Ordering::Relaxed);
        assert!(taken > 0 && refused > 0, "{taken} bytes were taken, {refused} positions refused");
    });
}
