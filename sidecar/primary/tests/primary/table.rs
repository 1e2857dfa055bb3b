//! Requests, moves and mismatches of a log that keeps a table.

use tailwind_primary::{Given, Moved, Proof, Table, Unapplied};
use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::primary::{Input, Output};
use tailwind_protocol::scan::{Record, Scanner};
use tailwind_protocol::table::bounds::{Bounds, SEGMENTS_MIN};
use tailwind_protocol::table::fold::positioned;
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::index::{Full, Index, Limits};
use tailwind_protocol::table::moves::{Candidate, MOVES_MAX};
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::record::{Key, KeyedRecord, Revision, Value};
use tailwind_protocol::table::request::{Apply, Expected, Mismatch, Operation, TooLarge, Written};

use super::group::{Group, Heard, SIZE};

/// Bytes of a value of which a segment holds seventeen.
const VALUE: usize = 3700;

fn bounds() -> Bounds {
    Bounds::new(SIZE, SEGMENTS_MIN).unwrap()
}

fn table(keys_max: u32) -> Box<Table> {
    let limits = Limits { buckets: Buckets::for_keys(100), keys_max, live_bytes_max: bounds().live_bytes_max() };
    Box::new(Table::new(Index::new(HashKey([7; 16]), limits, Window::new(SIZE)), bounds()))
}

pub(super) fn group(members: usize) -> Group {
    let mut group = Group::new(members, u32::MAX);
    group.log.keep_table(table(100));
    group
}

pub(super) fn key(name: &str) -> Key<'_> {
    Key::new(name.as_bytes()).unwrap()
}

pub(super) fn put<'a>(name: &'a str, value: &'a [u8], only_if: Option<Expected>) -> Operation<'a> {
    Operation::Write { key: key(name), written: Written::Value(Value::new(value).unwrap()), only_if }
}

pub(super) fn delete(name: &str) -> Operation<'_> {
    Operation::Write { key: key(name), written: Written::Nothing, only_if: None }
}

impl Group {
    pub(super) fn apply(&mut self, name: u32, operations: &[Operation<'_>]) -> Result<Lsn, Unapplied> {
        self.apply_given(name, operations, &Given::default())
    }

    pub(super) fn apply_given(
        &mut self,
        name: u32,
        operations: &[Operation<'_>],
        given: &Given,
    ) -> Result<Lsn, Unapplied> {
        self.log.apply(name, &Apply::new(operations).unwrap(), given).map(|applied| applied.placed.last)
    }

    pub(super) fn put(&mut self, name: u32, of: &str) -> Result<Lsn, Unapplied> {
        self.apply(name, &[put(of, &[name as u8; VALUE], None)])
    }

    /// All members complete what was posted, and do what the machine wants of them.
    pub(super) fn settle(&mut self) -> Heard {
        let mut all = Heard::default();
        for _ in 0..3 {
            let heard = self.turn();
            all.acks.extend(heard.acks);
            all.moves.extend(heard.moves);
            all.proofs.extend(heard.proofs);
            (0..self.links.len()).for_each(|member| self.complete(member));
            for output in self.carry_out() {
                let done = output.done(Offset(0)).filter(|_| !matches!(output, Output::Open(..)));
                done.into_iter().for_each(|done| self.log.step(Time(0), done));
            }
        }
        all
    }

    /// What the first member's copy of a segment has: each record, and where it begins.
    pub(super) fn records(&self, segment: SegmentId) -> Vec<(Position, Lsn, Vec<u8>)> {
        let (_, _, memory) = self.lent.iter().find(|(_, lent, _)| *lent == segment).unwrap();
        let mut bytes = memory.0.borrow().clone();
        bytes.resize(SIZE.bytes() as usize, 0);
        let identity: SegmentIdentity = self.identities[&segment];
        let mut scanner = Scanner::new(&bytes, &identity).unwrap();
        let mut found = Vec::new();
        loop {
            let start = scanner.closure().end;
            let Ok(append) = scanner.next_append() else { return found };
            let records = positioned(segment, start, &append);
            found.extend(records.map(|(at, record)| (at, record.lsn, record.payload.to_vec())));
        }
    }

    /// Has all records of a segment judged that may be live.
    pub(super) fn clean(&mut self, segment: SegmentId) -> Option<Moved> {
        let records = self.records(segment);
        let candidates =
            records.iter().filter_map(|(at, lsn, payload)| Candidate::of(*at, Record { lsn: *lsn, payload }));
        self.log.move_live(candidates.take(MOVES_MAX))
    }

    pub(super) fn revision_of(&self, name: &str) -> Option<Lsn> {
        self.log.table().unwrap().index().acknowledged(key(name)).map(|present| present.revision.lsn())
    }
}

pub(super) fn mismatch(operation: u16, now: u64) -> Unapplied {
    Unapplied::Mismatch(Mismatch { operation, now: Revision::of(Lsn(now)) })
}

#[test]
fn a_request_is_one_batch_that_shows_when_it_is_acknowledged() {
    let mut group = group(2);
    assert_eq!(group.apply(7, &[put("a", b"1", None), put("b", b"2", None), delete("c")]), Ok(Lsn(3)));
    group.turn();
    group.complete(0);
    assert!(group.turn().acks.is_empty());
    assert_eq!((group.revision_of("a"), group.revision_of("b")), (None, None), "one member has it");
    group.complete(1);
    assert_eq!(group.turn().acks, [(7, Lsn(3))]);
    assert_eq!((group.revision_of("a"), group.revision_of("b")), (Some(Lsn(1)), Some(Lsn(2))));
    let records = group.records(SegmentId(1));
    let keyed = records.iter().map(|(_, lsn, payload)| KeyedRecord::decode(payload, *lsn).unwrap());
    let more: Vec<bool> = keyed.map(|record| record.has_more()).collect();
    assert_eq!(more, [true, true, false]);
}

#[test]
fn a_condition_is_judged_by_what_was_appended() {
    let mut group = group(1);
    assert_eq!(group.apply(1, &[put("a", b"1", Some(Expected::Absent))]), Ok(Lsn(1)));
    assert_eq!(group.apply(2, &[put("a", b"2", Some(Expected::Absent))]), Err(mismatch(0, 1)));
    let first = Expected::At(Revision::of(Lsn(1)).unwrap());
    assert_eq!(group.apply(3, &[delete("b"), put("a", b"3", Some(first))]), Ok(Lsn(3)));
    assert_eq!(group.settle().acks, [(1, Lsn(1)), (3, Lsn(3))]);
    assert_eq!(group.revision_of("a"), Some(Lsn(3)));
}

#[test]
fn a_mismatch_waits_for_acks_and_for_a_barrier() {
    let mut group = group(2);
    assert_eq!(group.apply(1, &[put("a", b"1", None)]), Ok(Lsn(1)));
    group.turn();
    group.log.ask_behind("mismatch");
    group.turn();
    // The barrier's write is behind the append's at the first member.
    group.complete(0);
    assert!(group.turn().proofs.is_empty(), "one member has acknowledged");
    assert_eq!(group.log.behind(), 1);
    group.complete(1);
    let heard = group.turn();
    assert_eq!(heard.acks, [(1, Lsn(1))]);
    assert_eq!(heard.proofs, [("mismatch", Proof::Behind(Lsn(1)))]);
    assert_eq!((group.log.behind(), group.log.proved()), (0, 1));
}

#[test]
fn a_mismatch_with_nothing_before_it_waits_for_a_barrier() {
    let mut group = group(1);
    assert_eq!(group.apply(1, &[put("a", b"1", None)]), Ok(Lsn(1)));
    group.settle();
    group.log.ask_behind("mismatch");
    assert!(group.turn().proofs.is_empty());
    group.complete(0);
    assert_eq!(group.turn().proofs, [("mismatch", Proof::Behind(Lsn(1)))]);
}

#[test]
fn questions_behind_appends_are_bounded_and_forgotten() {
    let mut group = group(1);
    assert_eq!(group.apply(1, &[put("a", b"1", None)]), Ok(Lsn(1)));
    while group.log.may_ask_behind() {
        group.log.ask_behind("mismatch");
    }
    assert_eq!(group.log.behind(), 1024);
    group.log.retain_questions(|_| false);
    group.log.ask_behind("the last one");
    let (appends, questions) = group.log.end();
    assert_eq!((appends.collect::<Vec<_>>(), questions.collect::<Vec<_>>()), (vec![1], vec!["the last one"]));
}

#[test]
fn a_table_refuses_what_it_has_no_room_for() {
    let mut group = Group::new(1, u32::MAX);
    group.log.keep_table(table(1));
    assert_eq!(group.apply(1, &[put("a", b"1", None)]), Ok(Lsn(1)));
    assert_eq!(group.apply(2, &[put("b", b"1", None)]), Err(Unapplied::Full(Full::Keys)));
    assert_eq!(group.apply(3, &[put("a", b"2", None)]), Ok(Lsn(2)));
    let large = group.apply(4, &[put("a", &[0; 5000], None)]);
    assert!(matches!(large, Err(Unapplied::TooLarge(TooLarge::Record { operation: 0, size: 5017, .. }))), "{large:?}");
}

#[test]
fn live_records_are_moved_and_keep_their_revisions() {
    let mut group = group(1);
    for (name, of) in [(1, "old"), (2, "gone"), (3, "new")] {
        assert_eq!(group.put(name, of), Ok(Lsn(u64::from(name))));
    }
    assert_eq!(group.apply(4, &[delete("gone")]), Ok(Lsn(4)));
    assert_eq!(group.put(5, "new"), Ok(Lsn(5)));
    group.settle();
    // Live: record 1, and record 5, which is where its key's last one is.
    assert_eq!(group.clean(SegmentId(1)), Some(Moved { judged: 4, moved: 2, bytes: 7512, appended: Lsn(7) }));
    assert_eq!(
        group.clean(SegmentId(1)),
        Some(Moved { judged: 4, moved: 0, bytes: 0, appended: Lsn(7) }),
        "they are elsewhere"
    );
    let heard = group.settle();
    assert_eq!((heard.acks, heard.moves), (vec![], vec![Lsn(7)]), "no client waits for moves");
    assert_eq!(group.log.acked().0, Lsn(7));
    assert_eq!((group.revision_of("old"), group.revision_of("gone")), (Some(Lsn(1)), None));
    assert_eq!(group.revision_of("new"), Some(Lsn(5)));
    group.log.table().unwrap().index().check(SegmentId(1));
    let (_, lsn, payload) = group.records(SegmentId(1)).pop().unwrap();
    let revision = Revision::of(Lsn(5)).unwrap();
    let value = Value::new(&[5; VALUE]).unwrap();
    assert_eq!(KeyedRecord::decode(&payload, lsn), Ok(KeyedRecord::Move { key: key("new"), value, revision }));
}

#[test]
fn a_question_waits_for_moves_too() {
    let mut group = group(1);
    assert_eq!(group.put(1, "a"), Ok(Lsn(1)));
    group.settle();
    assert_eq!(group.clean(SegmentId(1)).unwrap().moved, 1);
    group.log.ask_behind("mismatch");
    assert_eq!(group.settle().proofs, [("mismatch", Proof::Behind(Lsn(2)))]);
    let (appends, _) = group.log.end();
    assert_eq!(appends.count(), 0);
}

#[test]
fn puts_wait_where_only_moves_may_be_placed() {
    let mut group = group(1);
    let most = bounds().segments() - bounds().reserve();
    // A third of the keys are never written again.
    let mut name = 0;
    let mut puts = |group: &mut Group| loop {
        name += 1;
        let of = if name < 20 { format!("key/{name}") } else { format!("key/{}", 20 + name % 3) };
        match group.put(name, &of) {
            Ok(_) => drop(group.settle()),
            Err(Unapplied::Later) => return,
            Err(other) => panic!("{other:?}"),
        }
    };
    puts(&mut group);
    assert!(group.log.table().unwrap().waits_for_trim());
    assert_eq!(group.log.primary().log_segments(), most);
    let moved = group.clean(SegmentId(1)).unwrap();
    assert!(moved.moved > 10 && moved.judged >= moved.moved as usize, "{moved:?}");
    assert_eq!(group.log.primary().log_segments(), most + 1);
    assert_eq!(group.put(255, "key/1"), Err(Unapplied::Later), "it would fit the segment that moves have begun");
    group.settle();
    let last = group.log.primary().closed()[0].1.last;
    group.log.step(Time(0), Input::Trim(last.next()));
    assert_eq!(group.log.primary().log_segments(), most);
    assert!(group.apply(255, &[put("key/1", b"small", None)]).is_ok());
    assert!(!group.log.table().unwrap().waits_for_trim());
}

#[test]
fn moves_need_a_buffer_too() {
    let mut group = group(1);
    group.stingy = true;
    let mut name = 0;
    while group.put(name + 1, &format!("key/{name}")).is_ok() {
        name += 1;
    }
    assert!(!group.log.table().unwrap().waits_for_trim(), "for a buffer");
    group.settle();
    let first = group.clean(SegmentId(1));
    // Two buffers were lent before, and the second one has no room for the first record again.
    assert_eq!(first, None);
    assert_eq!(group.log.acked().0, Lsn(u64::from(name)));
}
