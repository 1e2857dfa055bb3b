//! What the append path measures of itself: how many members it writes to, what appends wait for, and how long they take.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::loop_harness::{LoopHarness, ack};
use tailwind_protocol::ids::Epoch;
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::primary::{Input, Output, Seat};
use tailwind_protocol::socket::Request;
use tailwind_report::readiness::AppendsWaitFor;
use tailwind_sidecar::path::{Command, Description, Options};

/// A wait is told after a second.
const PATIENCE: Duration = Duration::from_secs(20);

fn describe(harness: &mut LoopHarness) -> Description {
    let (reply, mut answer) = tokio::sync::oneshot::channel();
    harness.command(Command::Describe(reply));
    harness.path.turn().unwrap();
    answer.try_recv().unwrap()
}

/// Turns until appends wait, or do not.
fn wait_until(harness: &mut LoopHarness, what: Option<AppendsWaitFor>) {
    let deadline = Instant::now() + PATIENCE;
    while describe(harness).leading.and_then(|leading| leading.appends_wait) != what {
        assert!(Instant::now() < deadline, "{what:?} is not told");
        harness.path.sleep(Duration::from_millis(1)).unwrap();
    }
}

#[test]
fn appends_that_nobody_confirms_wait_for_members() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    harness.shut.store(true, Ordering::Relaxed);
    client.send(&[Request::Append { payload: b"waits" }]);
    harness.settle();
    assert_eq!(describe(&mut harness).leading.and_then(|leading| leading.appends_wait), None, "it has only just begun");
    wait_until(&mut harness, Some(AppendsWaitFor::Members));
    harness.shut.store(false, Ordering::Relaxed);
    assert_eq!(harness.hear(&mut client), ack(1));
    wait_until(&mut harness, None);
}

#[test]
fn appends_without_a_next_segment_wait_for_room() {
    // The harness opens the segments of the start and none after them.
    let mut harness = LoopHarness::with(Options { segment_size: SegmentSize::MIN, ..LoopHarness::options() });
    let mut client = harness.client();
    for _ in 0..64 {
        client.send(&[Request::Append { payload: &[7; 4096] }]);
        harness.settle();
    }
    wait_until(&mut harness, Some(AppendsWaitFor::Room));
    harness.stand_by(2);
    assert_eq!(describe(&mut harness).leading.and_then(|leading| leading.appends_wait), None, "the role is lost");
}

#[test]
fn barriers_that_nobody_confirms_wait_for_members() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    harness.shut.store(true, Ordering::Relaxed);
    client.send(&[Request::Barrier]);
    wait_until(&mut harness, Some(AppendsWaitFor::Members));
    harness.shut.store(false, Ordering::Relaxed);
    assert_eq!(harness.hear(&mut client), "BarrierPassed { epoch: 1, last: 0 }");
    wait_until(&mut harness, None);
}

#[test]
fn a_barrier_in_a_full_group_waits_for_room() {
    let mut harness = LoopHarness::new();
    harness.stand_by(2);
    harness.lead_without_room(3);
    let mut client = harness.client();
    client.send(&[Request::Barrier]);
    wait_until(&mut harness, Some(AppendsWaitFor::Room));
}

#[test]
fn members_are_counted_while_they_are_connected() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    assert_eq!(describe(&mut harness).leading.unwrap().connected, 3);
    let lost = Seat { index: 1, tenancy: 2 };
    harness.command(Command::Input(Epoch(1), Input::Lost(lost)));
    harness.path.turn().unwrap();
    assert_eq!(describe(&mut harness).leading.unwrap().connected, 2);
    let swapped = std::iter::from_fn(|| harness.wanted());
    assert!(swapped.into_iter().any(|output| matches!(output, Output::Swap(_))), "the set is to be changed");
    client.send(&[Request::Append { payload: b"waits" }]);
    harness.settle();
    wait_until(&mut harness, Some(AppendsWaitFor::Members));
    harness.stand_by(2);
    assert!(describe(&mut harness).leading.is_none(), "a standby writes to nobody");
}

#[test]
fn every_append_is_timed_once() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    let append = || [const { Request::Append { payload: b"timed" } }; 50];
    harness.shut.store(true, Ordering::Relaxed);
    for _ in 0..20 {
        client.send(&append());
        harness.settle();
    }
    let counts = |harness: &LoopHarness| {
        [&harness.counters.append_times, &harness.counters.replication_times].map(|times| times.snapshot().count())
    };
    assert_eq!(counts(&harness), [0, 0], "nothing has been confirmed");
    harness.shut.store(false, Ordering::Relaxed);
    harness.until("the last ack", |harness| (harness.counters.acked.load(Ordering::Relaxed) == 1000).then_some(()));
    assert_eq!(counts(&harness)[0], 1000);
    assert!((1..=21).contains(&counts(&harness)[1]), "one time for each turn that has posted");
}

#[test]
fn appends_pause_for_a_newcomer_and_go_on() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    // What is acknowledged before the newcomer comes keeps it from joining at once.
    client.send(&[Request::Append { payload: b"load" }]);
    assert_eq!(harness.hear(&mut client), ack(1));
    harness.spare_shut.store(true, Ordering::Relaxed);
    harness.recruit();
    let pauses = |harness: &LoopHarness| harness.counters.join_pauses.snapshot().count();
    let (mut sent, deadline) = (1, Instant::now() + PATIENCE);
    // The newcomer completes nothing while the app appends: a pause ends in vain, and so does the next one.
    while pauses(&harness) < 2 {
        assert!(Instant::now() < deadline, "no pause");
        client.send(&[Request::Append { payload: b"load" }]);
        sent += 1;
        harness.settle();
        while client.heard().is_some() {}
    }
    harness.until("all acks", |harness| (harness.counters.acked.load(Ordering::Relaxed) == sent).then_some(()));
    harness.spare_shut.store(false, Ordering::Relaxed);
    let joins = |harness: &mut LoopHarness| {
        let output = harness.wanted()?;
        matches!(output, Output::Swap(swap) if swap.proposed.members.len() == 4).then_some(())
    };
    harness.until("a larger set", joins);
}
