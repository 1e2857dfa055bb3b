//! What the append path measures of itself: how many members it writes to, what appends wait for, and how long they take.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::bench::{Bench, ack};
use tailwind_protocol::ids::Epoch;
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::primary::{Input, Output, Seat};
use tailwind_protocol::socket::Request;
use tailwind_report::readiness::AppendsWaitFor;
use tailwind_sidecar::path::{Command, Description, Options};

/// A wait is told after a second.
const PATIENCE: Duration = Duration::from_secs(20);

fn describe(bench: &mut Bench) -> Description {
    let (reply, mut answer) = tokio::sync::oneshot::channel();
    bench.command(Command::Describe(reply));
    bench.path.turn().unwrap();
    answer.try_recv().unwrap()
}

/// Turns until appends wait, or do not.
fn wait_until(bench: &mut Bench, what: Option<AppendsWaitFor>) {
    let deadline = Instant::now() + PATIENCE;
    while describe(bench).leading.and_then(|leading| leading.appends_wait) != what {
        assert!(Instant::now() < deadline, "{what:?} is not told");
        bench.path.sleep(Duration::from_millis(1)).unwrap();
    }
}

#[test]
fn appends_that_nobody_confirms_wait_for_members() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    bench.shut.store(true, Ordering::Relaxed);
    client.send(&[Request::Append { payload: b"waits" }]);
    bench.settle();
    assert_eq!(describe(&mut bench).leading.and_then(|leading| leading.appends_wait), None, "it has only just begun");
    wait_until(&mut bench, Some(AppendsWaitFor::Members));
    bench.shut.store(false, Ordering::Relaxed);
    assert_eq!(bench.hear(&mut client), ack(1));
    wait_until(&mut bench, None);
}

#[test]
fn appends_without_a_next_segment_wait_for_room() {
    // The bench opens the segments of the start and none after them.
    let mut bench = Bench::with(Options { segment_size: SegmentSize::MIN, ..Bench::options() });
    let mut client = bench.client();
    for _ in 0..64 {
        client.send(&[Request::Append { payload: &[7; 4096] }]);
        bench.settle();
    }
    wait_until(&mut bench, Some(AppendsWaitFor::Room));
    bench.follow(2);
    assert_eq!(describe(&mut bench).leading.and_then(|leading| leading.appends_wait), None, "the role is lost");
}

#[test]
fn barriers_that_nobody_confirms_wait_for_members() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    bench.shut.store(true, Ordering::Relaxed);
    client.send(&[Request::Barrier]);
    wait_until(&mut bench, Some(AppendsWaitFor::Members));
    bench.shut.store(false, Ordering::Relaxed);
    assert_eq!(bench.hear(&mut client), "BarrierPassed { epoch: 1, last: 0 }");
    wait_until(&mut bench, None);
}

#[test]
fn a_barrier_in_a_full_group_waits_for_room() {
    let mut bench = Bench::new();
    bench.follow(2);
    bench.lead_without_room(3);
    let mut client = bench.client();
    client.send(&[Request::Barrier]);
    wait_until(&mut bench, Some(AppendsWaitFor::Room));
}

#[test]
fn members_are_counted_while_they_are_connected() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    assert_eq!(describe(&mut bench).leading.unwrap().connected, 3);
    let lost = Seat { index: 1, tenancy: 2 };
    bench.command(Command::Input(Epoch(1), Input::Lost(lost)));
    bench.path.turn().unwrap();
    assert_eq!(describe(&mut bench).leading.unwrap().connected, 2);
    let swapped = std::iter::from_fn(|| bench.wanted());
    assert!(swapped.into_iter().any(|output| matches!(output, Output::Swap(_))), "the set is to be changed");
    client.send(&[Request::Append { payload: b"waits" }]);
    bench.settle();
    wait_until(&mut bench, Some(AppendsWaitFor::Members));
    bench.follow(2);
    assert!(describe(&mut bench).leading.is_none(), "a standby writes to nobody");
}

#[test]
fn every_append_is_timed_once() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let append = || [const { Request::Append { payload: b"timed" } }; 50];
    bench.shut.store(true, Ordering::Relaxed);
    for _ in 0..20 {
        client.send(&append());
        bench.settle();
    }
    let counts = |bench: &Bench| {
        [&bench.counters.append_times, &bench.counters.replication_times].map(|times| times.snapshot().count())
    };
    assert_eq!(counts(&bench), [0, 0], "nothing has been confirmed");
    bench.shut.store(false, Ordering::Relaxed);
    bench.until("the last ack", |bench| (bench.counters.acked.load(Ordering::Relaxed) == 1000).then_some(()));
    assert_eq!(counts(&bench)[0], 1000);
    assert!((1..=21).contains(&counts(&bench)[1]), "one time for each turn that has posted");
}

#[test]
fn appends_pause_for_a_newcomer_and_go_on() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    // What is acknowledged before the newcomer comes keeps it from joining at once.
    client.send(&[Request::Append { payload: b"load" }]);
    assert_eq!(bench.hear(&mut client), ack(1));
    bench.spare_shut.store(true, Ordering::Relaxed);
    bench.recruit();
    let pauses = |bench: &Bench| bench.counters.join_pauses.snapshot().count();
    let (mut sent, deadline) = (1, Instant::now() + PATIENCE);
    // The newcomer completes nothing while the app appends: a pause ends in vain, and so does the next one.
    while pauses(&bench) < 2 {
        assert!(Instant::now() < deadline, "no pause");
        client.send(&[Request::Append { payload: b"load" }]);
        sent += 1;
        bench.settle();
        while client.heard().is_some() {}
    }
    bench.until("all acks", |bench| (bench.counters.acked.load(Ordering::Relaxed) == sent).then_some(()));
    bench.spare_shut.store(false, Ordering::Relaxed);
    let joins = |bench: &mut Bench| {
        let output = bench.wanted()?;
        matches!(output, Output::Swap(swap) if swap.proposed.members.len() == 4).then_some(())
    };
    bench.until("a larger set", joins);
}
