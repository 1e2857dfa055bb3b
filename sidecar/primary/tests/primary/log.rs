//! Appends, questions and syncs.

use std::rc::Rc;
use std::time::Duration;

use tailwind_primary::Proof;
use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::primary::{Input, Output, Seat};
use tailwind_protocol::scan::Scanner;

use super::group::{Group, Memory, OPEN_TIMEOUT_MS, SIZE};

#[test]
fn an_append_is_acknowledged_when_every_member_has_all_of_it() {
    let mut group = Group::new(2, 64);
    assert!(group.append(7, &[1; 200]));
    // Four writes carry it, of 64 bytes each at most.
    assert!(group.turn().acks.is_empty());
    assert!(group.links.iter().all(|(_, link)| link.posted() >= 4));
    group.complete(0);
    assert!(group.turn().acks.is_empty(), "one member has it");
    group.complete(1);
    assert_eq!(group.turn().acks, [(7, Lsn(1))]);
    for (_, _, memory) in group.lent.iter().filter(|(_, segment, _)| *segment == SegmentId(1)) {
        let mut bytes = memory.0.borrow().clone();
        bytes.resize(SIZE.bytes() as usize, 0);
        let identity = group.log.primary().active().unwrap();
        let mut scanner = Scanner::new(&bytes, &identity).unwrap();
        let append = scanner.next_append().unwrap();
        assert!(append.records().all(|record| record.payload == [1; 200]));
    }
}

#[test]
fn the_bytes_posted_to_each_member_are_told() {
    let mut group = Group::new(2, 64);
    assert!(group.append(7, &[1; 200]));
    let heard = group.turn();
    let posted: u64 = group.links.iter().map(|(_, link)| link.bytes()).sum();
    assert!(posted > 400, "{posted} bytes of two copies");
    assert_eq!((heard.log_bytes, heard.board_bytes), (posted, 0));
    group.complete(0);
    group.complete(1);
    assert_eq!(group.turn().log_bytes, 0, "nothing more was posted");
    // A channel that fails has taken nothing.
    group.links[1].1.0.borrow_mut().fails = true;
    assert!(group.append(8, &[1; 200]));
    let heard = group.turn();
    assert_eq!(heard.log_bytes, group.links[0].1.bytes());
}

#[test]
fn the_bytes_posted_to_boards_are_told() {
    let mut group = Group::new(2, u32::MAX);
    for (seat, _) in group.links.clone() {
        group.log.board_lent(seat, Memory(Rc::default()));
        group.log.step(Time(0), Input::Followed(seat, true));
    }
    assert!(group.append(1, b"record"));
    assert_eq!(group.turn().board_bytes, 0, "nothing is acknowledged yet");
    group.complete(0);
    group.complete(1);
    let heard = group.turn_at(Duration::from_secs(1));
    let posted: u64 = group.links.iter().map(|(_, link)| link.bytes()).sum();
    assert!(posted > 0, "somebody looks at the boards");
    assert_eq!((heard.log_bytes, heard.board_bytes), (0, posted));
}

#[test]
fn acks_come_in_the_order_of_the_appends() {
    let mut group = Group::new(1, u32::MAX);
    assert!((1..=5).all(|name| group.append(name, b"record")));
    group.turn();
    group.complete(0);
    let names: Vec<u32> = group.turn().acks.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [1, 2, 3, 4, 5]);
    assert_eq!(group.log.acked().0, Lsn(5));
}

#[test]
fn a_channel_gets_no_more_writes_than_it_wants() {
    let mut group = Group::new(1, u32::MAX);
    group.links[0].1.0.borrow_mut().depth = Some(1);
    for name in 1..=3 {
        assert!(group.append(name, b"record"));
        group.turn();
    }
    assert_eq!(group.links[0].1.posted(), 1);
    group.complete(0);
    // What waited goes out as one.
    group.turn();
    group.turn();
    assert_eq!(group.links[0].1.posted(), 1);
    group.complete(0);
    assert_eq!(group.turn().acks.last(), Some(&(3, Lsn(3))));
}

#[test]
fn a_question_is_proved_by_writes_that_were_posted_after_it() {
    let mut group = Group::new(2, u32::MAX);
    assert!(group.append(1, b"record"));
    group.turn();
    group.log.ask("who");
    // The write was posted before the question: at both members an empty one follows.
    group.complete(0);
    group.complete(1);
    let heard = group.turn();
    assert_eq!((heard.acks.len(), heard.proofs.len()), (1, 0));
    group.complete(0);
    assert!(group.turn().proofs.is_empty(), "one member has proved it");
    group.complete(1);
    assert_eq!(group.turn().proofs, [("who", Proof::Last(Lsn(1)))]);
}

#[test]
fn a_sync_is_answered_when_it_is_on_disk_and_proved() {
    let mut group = Group::new(1, u32::MAX);
    assert!(group.append(1, b"record"));
    group.log.sync("disk");
    group.turn();
    group.complete(0);
    group.turn();
    let asked = group.carry_out();
    let Some(Output::Sync(seat, _)) = asked.into_iter().find(|output| matches!(output, Output::Sync(..))) else {
        panic!("nobody is asked to sync");
    };
    assert_eq!(group.log.syncs(), 1);
    group.log.step(Time(0), Input::Synced(seat, Lsn(1)));
    assert!(group.turn().proofs.is_empty(), "it is on disk, and this may not be the primary any more");
    group.complete(0);
    assert_eq!(group.turn().proofs, [("disk", Proof::Synced(Lsn(1)))]);
    assert_eq!(group.log.syncs(), 0);
}

/// A flipped bit in a member's memory may be in its way; once the segment is closed it is repaired.
#[test]
fn a_sync_that_takes_too_long_closes_its_segment() {
    let mut group = Group::new(1, u32::MAX);
    assert!(group.append(1, b"record"));
    group.log.sync("disk");
    let late = Time(15 * OPEN_TIMEOUT_MS);
    let settle = |group: &mut Group, now: Time| {
        for _ in 0..3 {
            group.tick(now);
            group.complete(0);
        }
        let closes = |output: &Output| matches!(output, Output::Close(..));
        (group.log.primary().active().unwrap().segment, group.carry_out().iter().any(closes))
    };
    assert_eq!(settle(&mut group, Time(0)), (SegmentId(1), false));
    assert_eq!(settle(&mut group, Time(late.0 - 1)), (SegmentId(1), false));
    assert_eq!(settle(&mut group, late), (SegmentId(2), true));
    // The next one is in nobody's way.
    assert_eq!(settle(&mut group, Time(10 * late.0)), (SegmentId(2), false));
    assert!(group.append(2, b"record"));
    assert_eq!(settle(&mut group, Time(20 * late.0)), (SegmentId(2), false));
}

#[test]
fn a_post_that_fails_loses_the_member() {
    let mut group = Group::new(2, u32::MAX);
    group.links[1].1.0.borrow_mut().fails = true;
    assert!(group.append(1, b"record"));
    group.turn();
    assert_eq!(group.log.failures, [(group.links[1].0, "no")]);
    assert_eq!(group.log.members_connected(), 1);
    group.complete(0);
    assert!(group.turn().acks.is_empty(), "the lost member is in the set still");
}

#[test]
fn a_late_lending_for_a_former_seat_is_ignored() {
    let mut group = Group::new(1, u32::MAX);
    let (seat, segment, _) = group.lent[0].clone();
    let stranger = Seat { tenancy: seat.tenancy + 1, ..seat };
    let elsewhere = Memory(Rc::default());
    group.log.opened(stranger, segment, elsewhere.clone(), Time(0));
    assert!(group.append(1, b"record"));
    group.turn();
    group.complete(0);
    assert_eq!(group.turn().acks.len(), 1);
    assert!(elsewhere.0.borrow().is_empty());
}

#[test]
fn a_full_segment_waits_for_the_next_buffer() {
    let mut group = Group::new(1, u32::MAX);
    group.stingy = true;
    let payload = vec![2; 20_000];
    let taken = (1..100).take_while(|name| group.append(*name, &payload)).count();
    let bytes = SIZE.bytes() as usize;
    assert!((2..=2 * bytes / payload.len()).contains(&taken), "{taken}");
    group.turn();
    group.complete(0);
    assert_eq!(group.turn().acks.len(), taken);
    assert!(!group.append(99, &payload), "no buffer has been lent");
}

#[test]
fn what_waits_at_the_end_is_handed_back() {
    let mut group = Group::new(1, u32::MAX);
    assert!(group.append(1, b"record"));
    group.log.ask("who");
    group.log.sync("disk");
    group.log.retain_questions(|question| *question != "who");
    let (appends, questions) = group.log.end();
    assert_eq!(appends.collect::<Vec<_>>(), [1]);
    assert_eq!(questions.collect::<Vec<_>>(), ["disk"]);
}
