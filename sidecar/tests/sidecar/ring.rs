//! The append ring at the sidecar: the same answers as through the socket, and clients that die, scribble or lie.
//!
//! The path is turned by hand, as in `append_socket.rs`.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::loop_harness::{Client, LoopHarness, ack};
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::scan::{ScanReport, StopReason};
use tailwind_protocol::socket::{
    HELLO_HOLD, HELLO_RING, Request, VERSION, WAKE_SIDECAR_FRAME, append_header, encode_batch,
};
use tailwind_sidecar::path::{ClientRequest, Command, Options, ReadRequest};

const READ: Request<'_> = Request::Read { from: 1, limit: 0, flags: 0, history: 0 };
/// Where the tail of the requests and the head of the answers lie in the ring's file.
const REQUESTS_TAIL: u64 = 128;
const ANSWERS_HEAD: u64 = 768;

fn append(payload: &[u8]) -> Request<'_> {
    Request::Append { payload }
}

/// Sends bytes that may be more than the ring holds.
fn feed(harness: &mut LoopHarness, client: &mut Client, mut bytes: &[u8]) {
    harness.until("room in the ring", |_| {
        let ring = client.ring.as_mut().unwrap();
        bytes = &bytes[ring.requests.write(bytes).unwrap()..];
        ring.requests.publish();
        bytes.is_empty().then_some(())
    });
}

/// Every backup's copy is whole up to its end; the last record there.
fn last_record(harness: &LoopHarness) -> Lsn {
    let reports = harness.scan();
    let ended = |report: &ScanReport| report.stop.why == StopReason::Unwritten;
    assert!(reports.iter().all(ended), "{reports:?}");
    assert!(reports.iter().all(|report| report.closure == reports[0].closure), "{reports:?}");
    reports[0].closure.last
}

#[test]
fn requests_of_every_kind_are_answered_in_order() {
    let mut harness = LoopHarness::new();
    let mut client = harness.ring_client();
    assert_eq!(harness.counters.rings.load(Ordering::Relaxed), 1);
    client.send(&[append(b"one"), append(b""), append(&[7; 100_000]), Request::Barrier]);
    for lsn in 1..=3 {
        assert_eq!(harness.hear(&mut client), ack(lsn));
    }
    assert_eq!(harness.hear(&mut client), "BarrierPassed { epoch: 1, last: 3 }");
    // A record and a batch that are larger than the ring pass in pieces.
    let large = vec![9; 1 << 20];
    feed(&mut harness, &mut client, &[&append_header(9, large.len())[..], &large].concat());
    assert_eq!(harness.hear(&mut client), ack(4));
    let mut batch = Vec::new();
    encode_batch(10, [large.as_slice(); 3].into_iter(), &mut batch);
    feed(&mut harness, &mut client, &batch);
    assert_eq!(harness.hear(&mut client), ack(7));
    let refused = [&append_header(11, large.len() + 1)[..], &large, b"!"].concat();
    feed(&mut harness, &mut client, &refused);
    let answer = harness.hear(&mut client);
    assert!(answer.starts_with("Error { code: TooLarge, fatal: false"), "{answer}");
    client.send(&[append(b"eight"), Request::Trim { below: 9 }]);
    let mut answers = [harness.hear(&mut client), harness.hear(&mut client)];
    answers.sort();
    assert!(answers[0] == ack(8) && answers[1].contains("BeyondEnd") || answers[1].contains("Trimmed"), "{answers:?}");
    // The role is told through the ring as well.
    harness.stand_by(2);
    assert!(harness.hear(&mut client).starts_with("Role { role: Standby, epoch: 2"));
    client.send(&[append(b"no")]);
    assert!(harness.hear(&mut client).contains("NotPrimary"));
    drop(client);
    harness.until("the end of the ring", |harness| (harness.counters.rings.load(Ordering::Relaxed) == 0).then_some(()));
}

#[test]
fn bytes_may_come_one_by_one() {
    let mut harness = LoopHarness::new();
    let mut client = harness.ring_client();
    for byte in [&append_header(2, 3)[..], b"one", &append_header(3, 0)].concat() {
        client.send_bytes(&[byte]);
        harness.settle();
    }
    assert_eq!((harness.hear(&mut client), harness.hear(&mut client)), (ack(1), ack(2)));
}

/// The reader answers through the socket; what follows the read in the ring waits for its end.
#[test]
fn a_read_takes_the_connection_and_gives_it_back() {
    let mut harness = LoopHarness::new();
    let mut client = harness.ring_client();
    client.send(&[append(b"one"), READ, append(b"two")]);
    let ClientRequest::Read(detached, ReadRequest { request, .. }) =
        harness.until("the read", LoopHarness::handed_over)
    else {
        unreachable!()
    };
    assert!(detached.received.is_empty() && detached.unsent.is_empty(), "all answers are in the ring");
    assert_eq!(request, 3);
    assert_eq!(client.heard(), Some(ack(1)));
    harness.settle();
    assert_eq!(client.heard(), None);
    harness.command(Command::Adopt(detached));
    assert_eq!(harness.hear(&mut client), ack(2));
}

/// The stop overtakes the read that still waits in the ring for an ack; a stop of another read is not passed on.
#[test]
fn a_stop_reaches_its_read() {
    for (stopped, expected) in [(3, true), (2, false)] {
        let mut harness = LoopHarness::new();
        let mut client = harness.ring_client();
        harness.shut.store(true, Ordering::Relaxed);
        client.send(&[append(b"one"), READ]);
        harness.settle();
        let mut stop = Vec::new();
        Request::Stop.encode(stopped, &mut stop);
        client.stream.write_all(&WAKE_SIDECAR_FRAME).unwrap();
        client.stream.write_all(&stop).unwrap();
        harness.settle();
        harness.shut.store(false, Ordering::Relaxed);
        let read = harness.until("the read", LoopHarness::handed_over);
        let ClientRequest::Read(detached, _) = read else { unreachable!() };
        assert_eq!(detached.received == stop, expected, "{:?}", detached.received);
    }
}

#[test]
fn other_frames_beside_the_ring_end_the_connection() {
    let mut harness = LoopHarness::new();
    for request in [append(b"no"), append(b""), Request::Barrier, READ] {
        let mut client = harness.ring_client();
        let mut bytes = Vec::new();
        request.encode(2, &mut bytes);
        client.stream.write_all(&bytes).unwrap();
        let answer = harness.hear(&mut client);
        assert!(answer.starts_with("Error { code: BadFrame, fatal: true"), "{answer}");
        assert_eq!(harness.hear(&mut client), "Closed");
    }
    let mut next = harness.client();
    next.send(&[append(b"one")]);
    assert_eq!(harness.hear(&mut next), ack(1), "nothing of them was placed");
}

/// They would be taken from the socket's bytes and the ring's in turns.
#[test]
fn frames_behind_a_ring_hello_end_the_connection() {
    let hello = |flags| Request::Hello { version_min: VERSION, version_max: VERSION, flags };
    let mut harness = LoopHarness::new();
    let mut eager = harness.stranger();
    eager.send(&[hello(HELLO_RING), append(b"no"), append(b"nor this")]);
    let answer = harness.hear(&mut eager);
    assert!(answer.starts_with("Error { code: BadFrame, fatal: true"), "{answer}");
    // The same with a hello that is held, and a part of a frame.
    harness.stand_by(2);
    let mut held = harness.stranger();
    held.send(&[hello(HELLO_RING | HELLO_HOLD)]);
    held.send_bytes(&append_header(2, 0)[..5]);
    harness.settle();
    assert_eq!(held.heard(), None);
    harness.lead(3);
    let answer = harness.hear(&mut held);
    assert!(answer.starts_with("Error { code: BadFrame, fatal: true"), "{answer}");
    let mut next = harness.ring_client();
    next.send(&[append(b"one")]);
    assert_eq!(harness.hear(&mut next), ack(1), "nothing of them was placed");
}

#[test]
fn rings_are_given_only_where_they_may_be() {
    let hello = Request::Hello { version_min: VERSION, version_max: VERSION, flags: HELLO_RING };
    let mut harness = LoopHarness::with(Options { rings_max: 1, ..LoopHarness::options() });
    let first = harness.ring_client();
    let mut second = harness.stranger();
    second.send(std::slice::from_ref(&hello));
    assert!(harness.hear(&mut second).contains("ring: false"), "more rings than there may be");
    second.send(&[append(b"one")]);
    assert_eq!(harness.hear(&mut second), ack(1));
    drop(first);
    harness.settle();
    harness.ring_client();
    // A client that does not ask for a ring gets none.
    harness.client();
    let mut harness = LoopHarness::with(Options { rings_max: 0, ..LoopHarness::options() });
    let mut client = harness.stranger();
    client.send(&[hello]);
    assert!(harness.hear(&mut client).contains("ring: false"));
}

#[test]
fn a_client_that_dies_in_mid_record_leaves_nothing() {
    let mut harness = LoopHarness::new();
    let mut honest = harness.ring_client();
    for cut in [1, 15, 16, 17, 99] {
        let mut dying = harness.ring_client();
        let frame = [&append_header(2, 100)[..], &[7; 100]].concat();
        dying.send_bytes(&frame[..cut]);
        harness.settle();
        drop(dying);
        harness.settle();
    }
    honest.send(&[append(b"one")]);
    assert_eq!(harness.hear(&mut honest), ack(1));
    assert_eq!(last_record(&harness), Lsn(1));
}

/// What is in the ring of a dead client when a read is requested never lands: as through the socket.
#[test]
fn requests_of_a_dead_client_never_land_after_a_read() {
    let mut harness = LoopHarness::new();
    let mut returned = harness.ring_client();
    let mut dying = harness.ring_client();
    dying.send(&vec![append(b"late"); 1000]);
    drop(dying);
    returned.send(&[READ]);
    harness.until("the read", LoopHarness::handed_over);
    harness.settle();
    let mut next = harness.client();
    next.send(&[append(b"next")]);
    assert_eq!(harness.hear(&mut next), ack(1), "appends of the dead landed after the read");
}

#[test]
fn impossible_positions_end_the_connection() {
    let mut harness = LoopHarness::new();
    let mut honest = harness.ring_client();
    for (word, value) in
        [(REQUESTS_TAIL, u64::MAX), (REQUESTS_TAIL, 1 << 20), (ANSWERS_HEAD, 1), (ANSWERS_HEAD, u64::MAX)]
    {
        let (mut liar, file) = harness.ring_client_and_file();
        file.write_all_at(&value.to_le_bytes(), word).unwrap();
        if word == ANSWERS_HEAD {
            // The sidecar looks at it when it has something to say.
            liar.send(&[Request::Trim { below: 9 }]);
        }
        let answer = harness.hear(&mut liar);
        assert!(answer.starts_with("Error { code: BadFrame, fatal: true"), "{answer}");
        assert!(answer.contains(&format!("of the ring is {value}, and only")), "{answer}");
        assert_eq!(harness.hear(&mut liar), "Closed");
    }
    honest.send(&[append(b"one")]);
    assert_eq!(harness.hear(&mut honest), ack(1));
    assert_eq!(last_record(&harness), Lsn(1));
}

/// While a client takes no answers, its requests stay where they are. What it says of the ring is looked at all the same.
#[test]
fn an_impossible_position_is_seen_while_answers_wait() {
    let mut harness = LoopHarness::new();
    let (mut liar, file) = harness.ring_client_and_file();
    for _ in 0..100 {
        liar.send(&vec![Request::Trim { below: 0 }; 100]);
        harness.settle();
    }
    assert_eq!(harness.counters.rings.load(Ordering::Relaxed), 1);
    file.write_all_at(&u64::MAX.to_le_bytes(), REQUESTS_TAIL).unwrap();
    harness.until("the end of the ring", |harness| (harness.counters.rings.load(Ordering::Relaxed) == 0).then_some(()));
}

/// Two threads write arbitrary bytes to a client's ring, its control words included, while another client appends.
#[test]
fn a_scribbling_client_harms_nobody() {
    let mut harness = LoopHarness::with(Options { segment_size: SegmentSize::DEFAULT, ..LoopHarness::options() });
    let mut honest = harness.ring_client();
    let done = AtomicBool::new(false);
    let target: std::sync::Mutex<Option<File>> = std::sync::Mutex::new(None);
    std::thread::scope(|threads| {
        for seed in 1..=2 {
            let (done, target) = (&done, &target);
            threads.spawn(move || scribble(seed, done, target));
        }
        let (mut evil, mut given) = (None, 0);
        let (mut honest_acks, mut expelled) = (0, 0);
        while honest_acks < 2000 {
            let client = evil.get_or_insert_with(|| {
                let (client, file) = harness.ring_client_and_file();
                *target.lock().unwrap() = Some(file);
                given += 1;
                client
            });
            // It also appends as a good client does: payloads change while they are placed.
            let ring = client.ring.as_mut().unwrap();
            let frame = [&append_header(2, 1000)[..], &[7; 1000]].concat();
            ring.requests.write(&frame).unwrap_or_default();
            ring.requests.publish();
            honest.send(&[append(b"honest")]);
            let answer = harness.hear(&mut honest);
            assert!(answer.starts_with("Ack"), "{answer}");
            honest_acks += 1;
            if harness.counters.rings.load(Ordering::Relaxed) < 2 {
                evil = None;
                expelled += 1;
            }
            let taken = harness.counters.bytes.load(Ordering::Relaxed);
            if taken > 7 << 20 {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(given > 1 && expelled > 0, "{given} rings were given, {expelled} taken back");
    });
    harness.settle();
    let records = harness.counters.records.load(Ordering::Relaxed);
    assert_eq!(last_record(&harness), Lsn(records), "every record that was placed passes the scan");
}

fn scribble(seed: u64, done: &AtomicBool, target: &std::sync::Mutex<Option<File>>) {
    let mut state = seed;
    while !done.load(Ordering::Relaxed) {
        let Some(file) = target.lock().unwrap().as_ref().map(|file| file.try_clone().unwrap()) else { continue };
        for _ in 0..50 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = state >> 33;
            match state >> 61 {
                // A length, a kind or a payload, where the next frames may be.
                0..=5 => file.write_all_at(&(value % 3000).to_le_bytes(), 65_536 + value % 262_000).unwrap(),
                // A position that may be believed.
                6 => file.write_all_at(&(value % 300_000).to_le_bytes(), 128 * (1 + value % 8)).unwrap(),
                _ => file.write_all_at(&state.to_le_bytes(), state % 393_208).unwrap(),
            }
        }
    }
}
