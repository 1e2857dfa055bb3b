//! Gets and copies of a table at the append path, turn by turn: answered at once, or when what they need has come.

use std::sync::atomic::Ordering;

use crate::loop_harness::{Client, LoopHarness, ack};
use crate::tables::{apply, mismatch, put, table};
use tailwind_protocol::ids::{Epoch, Lsn};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::socket::{GET_FRESH, GET_NO_VALUE, Request, Response};
use tailwind_protocol::table::get::Wanted;
use tailwind_protocol::table::record::{Key, Revision};
use tailwind_protocol::table::request::{Operation, Written};
use tailwind_sidecar::path::{ClientRequest, Command};

/// Gets of one connection that may be unanswered.
const UNANSWERED_MAX: usize = 32;

fn get(client: &mut Client, key: &str, least: u64, flags: u16) {
    client.send(&[Request::Get { key: Key::new(key.as_bytes()).unwrap(), least, flags }]);
}

fn value(revision: u64, as_of: u64, value: &[u8]) -> String {
    format!("{:?}", Response::Value { revision: Revision::of(Lsn(revision)), as_of, value, older: false, stale: false })
}

fn copy<'a>(key: &'a str, source: &'a str) -> Operation<'a> {
    let [key, source] = [key, source].map(|key| Key::new(key.as_bytes()).unwrap());
    Operation::Write { key, written: Written::CopyOf(source), only_if: None }
}

/// A table whose first segment, which has `a`, is closed.
fn with_a_closed_segment() -> (LoopHarness, Client, u64) {
    let mut harness = LoopHarness::of_table(SegmentSize::MIN, 1000);
    let mut client = harness.client();
    apply(&mut client, &[put("a", b"old")]);
    assert_eq!(harness.hear(&mut client), ack(1));
    let mut last = 1;
    for _ in 0..40 {
        apply(&mut client, &[put("filler", &[7; 3000])]);
        let heard = harness.until("the ack", |harness| {
            harness.carry_out();
            client.heard()
        });
        last += 1;
        assert_eq!(heard, ack(last));
    }
    (harness, client, last)
}

/// The record that a get wants of control, under its number.
fn wanted(harness: &mut LoopHarness) -> (u64, Wanted) {
    harness.until("a record that is wanted", |harness| match harness.from_path.requests.try_recv() {
        Ok(ClientRequest::Record(Epoch(1), number, wanted)) => Some((number, *wanted)),
        other => other.map(|other| panic!("{other:?}")).ok(),
    })
}

fn sources(harness: &mut LoopHarness) -> (u64, Vec<Wanted>) {
    harness.until("sources that are wanted", |harness| match harness.from_path.requests.try_recv() {
        Ok(ClientRequest::Sources(Epoch(1), number, wanted)) => Some((number, wanted)),
        other => other.map(|other| panic!("{other:?}")).ok(),
    })
}

#[test]
fn a_get_shows_what_is_acknowledged() {
    let mut harness = table();
    let (mut client, mut other) = (harness.client(), harness.client());
    get(&mut client, "a", 0, 0);
    assert_eq!(harness.hear(&mut client), value(0, 0, b""));
    harness.shut.store(true, Ordering::Relaxed);
    apply(&mut client, &[put("a", b"one"), put("b", b"")]);
    get(&mut client, "a", 0, 0);
    assert_eq!(harness.hear(&mut client), value(0, 0, b""), "its own put is not acknowledged");
    get(&mut client, "a", 2, 0);
    get(&mut other, "a", 0, GET_FRESH);
    get(&mut other, "b", 0, GET_FRESH | GET_NO_VALUE);
    harness.settle();
    assert_eq!((client.heard(), other.heard()), (None, None));
    harness.shut.store(false, Ordering::Relaxed);
    assert_eq!((harness.hear(&mut client), harness.hear(&mut client)), (ack(2), value(1, 2, b"one")));
    assert_eq!((harness.hear(&mut other), harness.hear(&mut other)), (value(1, 2, b"one"), value(2, 2, b"")));
    // Nothing is in flight now, and still a member has to confirm that this is the primary.
    harness.shut.store(true, Ordering::Relaxed);
    get(&mut other, "a", 0, GET_FRESH);
    get(&mut client, "a", 1, GET_NO_VALUE);
    assert_eq!(harness.hear(&mut client), value(1, 2, b""));
    assert_eq!(other.heard(), None);
    harness.shut.store(false, Ordering::Relaxed);
    assert_eq!(harness.hear(&mut other), value(1, 2, b"one"));
    let counted = [&harness.counters.gets_found, &harness.counters.gets_absent];
    assert_eq!(counted.map(|count| count.load(Ordering::Relaxed)), [5, 2]);
}

#[test]
fn a_large_value_comes_through_a_ring_too() {
    let mut harness = table();
    let (mut client, mut ringed) = (harness.client(), harness.ring_client());
    let large = vec![b'v'; 60_000];
    apply(&mut client, &[put("a", &large)]);
    assert_eq!(harness.hear(&mut client), ack(1));
    for _ in 0..10 {
        get(&mut ringed, "a", 0, 0);
        assert_eq!(harness.hear(&mut ringed), value(1, 1, &large));
    }
    (0..10).for_each(|_| get(&mut ringed, "a", 0, GET_FRESH));
    for _ in 0..10 {
        assert_eq!(harness.hear(&mut ringed), value(1, 1, &large));
    }
}

#[test]
fn a_fresh_get_sees_what_a_dead_client_has_sent() {
    let mut harness = table();
    let (mut dead, mut client) = (harness.client(), harness.client());
    harness.settle();
    harness.shut.store(true, Ordering::Relaxed);
    apply(&mut dead, &[put("a", b"last words")]);
    harness.settle();
    drop(dead);
    get(&mut client, "a", 0, GET_FRESH);
    get(&mut client, "a", 0, 0);
    assert_eq!(harness.hear(&mut client), value(0, 0, b""));
    harness.shut.store(false, Ordering::Relaxed);
    assert_eq!(harness.hear(&mut client), value(1, 1, b"last words"));
}

#[test]
fn gets_that_wait_end_with_the_role() {
    let mut log = LoopHarness::new();
    let mut client = log.client();
    get(&mut client, "a", 0, 0);
    assert!(log.hear(&mut client).starts_with("Error { code: WrongKind, fatal: false"));
    let mut harness = table();
    let mut client = harness.client();
    get(&mut client, "a", 9, 0);
    harness.settle();
    harness.stand_by(2);
    let answer = harness.hear(&mut client);
    assert!(answer.starts_with("Error { code: NotPrimary, fatal: false"), "{answer}");
    assert!(harness.hear(&mut client).starts_with("Role { role: Standby"));
    // On the same connection, another waits for a mirror, or for the role.
    get(&mut client, "a", 0, 0);
    harness.settle();
    assert_eq!(client.heard(), None);
    let mut other = harness.client();
    harness.lead(3);
    assert!(harness.hear(&mut other).starts_with("Role { role: Primary"));
    get(&mut other, "a", 0, 0);
    assert_eq!(harness.hear(&mut other), value(0, 0, b""));
    let mut heard = [harness.hear(&mut client), harness.hear(&mut client)];
    heard.sort();
    assert!(heard[0].starts_with("Role { role: Primary"), "{heard:?}");
    assert_eq!(heard[1], value(0, 0, b""));
}

#[test]
fn gets_that_wait_do_not_hold_up_appends() {
    let mut harness = table();
    let (mut client, mut other) = (harness.client(), harness.client());
    (0..UNANSWERED_MAX).for_each(|_| get(&mut client, "a", 1, 0));
    apply(&mut client, &[put("a", b"one")]);
    assert_eq!(harness.hear(&mut client), ack(1));
    for _ in 0..UNANSWERED_MAX {
        assert_eq!(harness.hear(&mut client), value(1, 1, b"one"));
    }
    // One more is not taken, nor what is behind it; others are served.
    (0..=UNANSWERED_MAX).for_each(|_| get(&mut client, "a", 2, 0));
    apply(&mut client, &[put("b", b"")]);
    harness.settle();
    assert_eq!(client.heard(), None);
    apply(&mut other, &[put("a", b"two")]);
    assert_eq!(harness.hear(&mut other), ack(2));
    for _ in 0..=UNANSWERED_MAX {
        let answer = harness.hear(&mut client);
        assert!(answer == value(2, 2, b"two") || answer == value(2, 3, b"two"), "{answer}");
    }
    assert_eq!(harness.hear(&mut client), ack(3));
}

#[test]
fn a_value_of_a_closed_segment_is_fetched() {
    let (mut harness, mut client, last) = with_a_closed_segment();
    get(&mut client, "a", 0, 0);
    get(&mut client, "filler", 0, GET_NO_VALUE);
    assert_eq!(harness.hear(&mut client), value(last, last, b""), "it does not wait for the one before");
    let (number, wanted) = wanted(&mut harness);
    assert_eq!((wanted.revision.lsn(), wanted.length), (Lsn(1), 16 + 1 + 3));
    // What comes for another term is not for this one.
    harness.command(Command::Record(Epoch(2), number, Ok(b"other".to_vec())));
    harness.settle();
    assert_eq!(client.heard(), None);
    harness.command(Command::Record(Epoch(1), number, Ok(b"old".to_vec())));
    assert_eq!(harness.hear(&mut client), value(1, last, b"old"));
    // Its client is gone when the next one comes, and the one after that is answered all the same.
    let mut gone = harness.client();
    get(&mut gone, "a", 0, 0);
    let (number, _) = self::wanted(&mut harness);
    drop(gone);
    harness.settle();
    harness.command(Command::Record(Epoch(1), number, Ok(b"old".to_vec())));
    get(&mut client, "a", 0, 0);
    let (number, _) = self::wanted(&mut harness);
    apply(&mut client, &[put("a", b"new")]);
    assert_eq!(harness.hear(&mut client), ack(last + 1));
    harness.command(Command::Record(Epoch(1), number, Ok(b"old".to_vec())));
    assert_eq!(harness.hear(&mut client), value(last + 1, last + 1, b"new"), "what is there now");
}

#[test]
fn a_copy_waits_for_its_source_and_holds_up_its_client() {
    let (mut harness, mut client, last) = with_a_closed_segment();
    apply(&mut client, &[copy("b", "a"), copy("c", "a")]);
    apply(&mut client, &[put("d", b"")]);
    let (number, wanted) = sources(&mut harness);
    assert_eq!(wanted.len(), 1, "each source is fetched once");
    let mut other = harness.client();
    apply(&mut other, &[put("e", b"")]);
    assert_eq!(harness.hear(&mut other), ack(last + 1));
    assert_eq!(client.heard(), None);
    harness.command(Command::Sources(Epoch(1), number, Ok(vec![b"old".to_vec()])));
    assert_eq!((harness.hear(&mut client), harness.hear(&mut client)), (ack(last + 3), ack(last + 4)));
    get(&mut client, "c", 0, 0);
    assert_eq!(harness.hear(&mut client), value(last + 3, last + 4, b"old"));
    // In memory now, and so at once.
    apply(&mut client, &[copy("f", "c")]);
    assert_eq!(harness.hear(&mut client), ack(last + 5));
    apply(&mut client, &[put("g", b""), copy("f", "never")]);
    assert_eq!(harness.hear(&mut client), mismatch(1, 0));
}

#[test]
fn a_copy_of_a_client_that_is_gone_leaves_nothing() {
    let (mut harness, mut client, last) = with_a_closed_segment();
    let mut gone = harness.client();
    apply(&mut gone, &[copy("b", "a")]);
    let (number, _) = sources(&mut harness);
    drop(gone);
    harness.settle();
    harness.command(Command::Sources(Epoch(1), number, Ok(vec![b"old".to_vec()])));
    harness.settle();
    get(&mut client, "b", 0, GET_FRESH);
    assert_eq!(harness.hear(&mut client), value(0, last, b""));
    // Another begins from the start, and its source changes before it comes.
    apply(&mut client, &[copy("b", "a")]);
    let (number, _) = sources(&mut harness);
    let mut other = harness.client();
    apply(&mut other, &[put("a", b"new")]);
    assert_eq!(harness.hear(&mut other), ack(last + 1));
    harness.command(Command::Sources(Epoch(1), number, Ok(vec![b"old".to_vec()])));
    assert_eq!(harness.hear(&mut client), ack(last + 2));
    get(&mut client, "b", 0, 0);
    assert_eq!(harness.hear(&mut client), value(last + 2, last + 2, b"new"));
}
