//! The index: both views of each key through requests, acknowledgements and moves; and its bounds.

use tailwind_protocol::ids::{Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::table::acked::{LINE_SIZE, LineId};
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::index::{CHANGES_MAX, Full, Index, Limits};
use tailwind_protocol::table::moves::Candidate;
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::record::{Key, KeyedRecord, Revision, Value};
use tailwind_protocol::table::request::{Apply, Expected, Mismatch, Operation, Revisions, Written};
use tailwind_protocol::table::staged::{Refused, Source};

const LIMITS: Limits = Limits { buckets: Buckets::MIN, keys_max: 12, live_bytes_max: 4000 };

fn index_with(limits: Limits) -> Index {
    Index::new(HashKey([7; 16]), limits, Window::new(SegmentSize::MIN))
}

fn key(text: &str) -> Key<'_> {
    Key::new(text.as_bytes()).unwrap()
}

fn put<'a>(of: &'a str, value: &'a str) -> Operation<'a> {
    Operation::Write { key: key(of), written: Written::Value(Value::new(value.as_bytes()).unwrap()), only_if: None }
}

fn delete(of: &str) -> Operation<'_> {
    Operation::Write { key: key(of), written: Written::Nothing, only_if: None }
}

/// An index, and the log that it is of, as far as LSNs and offsets go.
struct Table {
    index: Index,
    next: Lsn,
    offset: u32,
}

impl Table {
    fn new(limits: Limits) -> Table {
        Table { index: index_with(limits), next: Lsn(1), offset: 72 }
    }

    fn apply(&mut self, operations: &[Operation<'_>]) -> Result<Lsn, Refused> {
        let apply = Apply::new(operations).unwrap();
        let staged = self.index.stage(&apply, |_| None)?;
        let size = staged.append_size() as u32;
        staged.appended(self.next, Position::new(SegmentId(1), Offset(self.offset)));
        self.next = self.next.plus(u64::from(apply.write_count()));
        self.offset += size;
        Ok(self.next.prev())
    }

    fn ack(&mut self, lsn: Lsn) -> Vec<LineId> {
        let mut lines = Vec::new();
        self.index.acked(lsn, |line| lines.push(line));
        lines
    }

    /// Revisions of a key: appended, acknowledged.
    fn seen(&self, of: &str) -> (u64, u64) {
        let acked = self.index.acknowledged(key(of)).map(|present| present.revision);
        (Revision::number(self.index.revision(key(of))), Revision::number(acked))
    }
}

#[test]
fn a_put_is_judged_at_once_and_shown_when_acknowledged() {
    let mut table = Table::new(LIMITS);
    assert_eq!(table.apply(&[put("a", "1")]), Ok(Lsn(1)));
    assert_eq!(table.seen("a"), (1, 0));
    assert_eq!(table.apply(&[put("a", "2"), put("b", "")]), Ok(Lsn(3)));
    assert_eq!(table.seen("a"), (2, 0));
    let lines = table.ack(Lsn(1));
    assert_eq!((table.seen("a"), table.seen("b"), lines.len()), ((2, 1), (3, 0), 1));
    table.ack(Lsn(3));
    assert_eq!((table.seen("a"), table.seen("b")), ((2, 2), (3, 3)));
    table.index.check(SegmentId(1));
}

#[test]
fn an_entry_keeps_the_place_before() {
    let mut table = Table::new(LIMITS);
    let end = SegmentId(1);
    for value in ["1", "2", "3"] {
        table.apply(&[put("a", value)]).unwrap();
    }
    table.ack(Lsn(3));
    let present = table.index.acknowledged(key("a")).unwrap();
    let offset = |place| table.index.window().position(place, end).unwrap().offset.0;
    // Each append has a record of 56 bytes and its checksum entry.
    assert_eq!(present.word.new_place().map(offset), Some(72 + 2 * 64));
    assert_eq!(present.word.old_place().map(offset), Some(72 + 64));
    assert_eq!(present.length, 18);
}

#[test]
fn a_deleted_key_is_shown_until_the_delete_is_acknowledged() {
    let mut table = Table::new(LIMITS);
    table.apply(&[put("a", "1")]).unwrap();
    table.apply(&[delete("a")]).unwrap();
    assert_eq!((table.seen("a"), table.index.keys(), table.index.live_bytes()), ((0, 0), 0, 0));
    table.ack(Lsn(1));
    assert_eq!(table.seen("a"), (0, 1));
    let lines = table.ack(Lsn(2));
    assert_eq!(table.index.acked_view().line(lines[0]), [0; LINE_SIZE], "the entry is free");
    table.index.check(SegmentId(1));
}

#[test]
fn a_key_that_is_put_again_keeps_its_entry() {
    let mut table = Table::new(LIMITS);
    for operation in [put("a", "1"), delete("a"), put("a", "2")] {
        table.apply(&[operation]).unwrap();
    }
    let first = table.ack(Lsn(1));
    assert_eq!((table.seen("a"), table.ack(Lsn(2)) == first), ((3, 1), true));
    assert_eq!(table.seen("a"), (3, 0));
    let line = table.index.acked_view().line(first[0]);
    assert_ne!(line, [0; LINE_SIZE], "absent, and being written");
    assert_eq!(table.ack(Lsn(3)), first);
    assert_eq!(table.seen("a"), (3, 3));
    let present = table.index.acknowledged(key("a")).unwrap();
    assert_eq!(present.word.old_place(), None, "what was deleted is not the old value");
}

#[test]
fn a_delete_of_an_absent_key_changes_nothing() {
    let mut table = Table::new(LIMITS);
    assert_eq!(table.apply(&[delete("a"), put("b", "")]), Ok(Lsn(2)));
    assert_eq!(table.ack(Lsn(2)).len(), 1);
    assert_eq!((table.seen("a"), table.seen("b")), ((0, 0), (2, 2)));
    table.index.check(SegmentId(1));
}

#[test]
fn conditions_see_what_is_not_acknowledged() {
    let mut table = Table::new(LIMITS);
    table.apply(&[put("a", "1")]).unwrap();
    let only_if = |revision| Some(Expected::from_number(revision));
    let put_if = |revision| Operation::Write {
        key: key("a"),
        written: Written::Value(Value::new(b"").unwrap()),
        only_if: only_if(revision),
    };
    let mismatch = Mismatch { operation: 0, now: Revision::of(Lsn(1)) };
    assert_eq!(table.apply(&[put_if(0)]), Err(Refused::Mismatch(mismatch)));
    assert_eq!(table.apply(&[put_if(1)]), Ok(Lsn(2)));
    assert_eq!(table.seen("a"), (2, 0));
}

#[test]
fn what_was_reserved_for_a_refused_request_is_given_back() {
    let mut table = Table::new(Limits { keys_max: 1, ..LIMITS });
    assert_eq!(table.apply(&[put("a", ""), put("b", "")]), Err(Refused::Full(Full::Keys)));
    let operations = [put("a", ""), delete("b")];
    let apply = Apply::new(&operations).unwrap();
    drop(table.index.stage(&apply, |_| None).unwrap());
    for line in 0..table.index.acked_view().lines() {
        assert_eq!(table.index.acked_view().line(LineId(line)), [0; LINE_SIZE]);
    }
    table.index.check(SegmentId(1));
    assert_eq!(table.apply(&operations), Ok(Lsn(2)), "there was no room in the segment, and now there is");
}

#[test]
fn a_full_table_takes_deletes_and_exchanges() {
    let mut table = Table::new(Limits { keys_max: 2, ..LIMITS });
    table.apply(&[put("a", ""), put("b", "")]).unwrap();
    assert_eq!(table.apply(&[put("c", "")]), Err(Refused::Full(Full::Keys)));
    assert!(table.apply(&[put("a", "new value")]).is_ok());
    assert!(table.apply(&[put("c", ""), delete("b")]).is_ok(), "not more than before");
    assert!(table.apply(&[delete("a")]).is_ok());
    assert!(table.apply(&[put("d", "")]).is_ok());
    assert_eq!(table.index.keys(), 2);
}

#[test]
fn full_memory_takes_what_does_not_add() {
    let mut table = Table::new(Limits { live_bytes_max: 200, ..LIMITS });
    let large = "v".repeat(100);
    assert_eq!(table.apply(&[put("a", &large)]), Ok(Lsn(1)));
    assert_eq!(table.index.live_bytes(), 152);
    assert_eq!(table.apply(&[put("b", "")]), Err(Refused::Full(Full::Memory)));
    assert!(table.apply(&[put("a", &large[1..])]).is_ok());
    assert!(table.apply(&[put("a", &"v".repeat(160))]).is_err());
    assert!(table.apply(&[put("a", "")]).is_ok());
    assert!(table.apply(&[put("b", "")]).is_ok());
    assert_eq!(table.index.live_bytes(), 2 * 56);
}

#[test]
fn full_buckets_wait_for_deletes_or_refuse() {
    let names: Vec<String> = (0..17).map(|number| format!("key {number}")).collect();
    let mut table = Table::new(Limits { keys_max: 100, ..LIMITS });
    for name in &names[..16] {
        table.apply(&[put(name, "")]).unwrap();
    }
    assert_eq!(table.apply(&[put(&names[16], "")]), Err(Refused::Full(Full::Buckets)));
    let last = table.apply(&[delete(&names[3])]).unwrap();
    assert_eq!(table.apply(&[put(&names[16], "")]), Err(Refused::Wait));
    table.ack(last);
    assert!(table.apply(&[put(&names[16], "")]).is_ok());
    table.ack(Lsn(100));
    table.index.check(SegmentId(1));
}

#[test]
fn requests_wait_when_too_many_changes_do() {
    let mut table = Table::new(LIMITS);
    for lsn in 1..=CHANGES_MAX as u64 {
        let operations = [put("a", "")];
        let staged = table.index.stage(&Apply::new(&operations).unwrap(), |_| None);
        staged.unwrap().appended(Lsn(lsn), Position::new(SegmentId(1), Offset(72)));
    }
    table.next = Lsn(CHANGES_MAX as u64 + 1);
    assert_eq!(table.apply(&[put("b", "")]), Err(Refused::Wait));
    table.ack(Lsn(2));
    assert_eq!(table.apply(&[put("b", ""), put("c", ""), put("d", "")]), Err(Refused::Wait));
    assert!(table.apply(&[put("b", ""), put("c", "")]).is_ok());
    table.ack(Lsn(u64::MAX));
    assert_eq!(table.index.unacked(), None);
    table.index.check(SegmentId(1));
}

#[test]
fn a_copy_takes_the_value_that_its_source_has() {
    let mut table = Table::new(LIMITS);
    table.apply(&[put("a", "value")]).unwrap();
    let operations = [Operation::Write { key: key("b"), written: Written::CopyOf(key("a")), only_if: None }];
    let apply = Apply::new(&operations).unwrap();
    let at = Position::new(SegmentId(1), Offset(4096));
    let source = |revision| Revision::of(Lsn(revision)).map(|revision| Source { revision, length: 5 });
    assert_eq!(table.index.stage(&apply, |_| None).unwrap_err(), Refused::Source(0), "not at hand");
    assert_eq!(table.index.stage(&apply, |_| source(9)).unwrap_err(), Refused::Source(0), "another value");
    table.index.stage(&apply, |_| source(1)).unwrap().appended(Lsn(2), at);
    table.ack(Lsn(2));
    let present = table.index.acknowledged(key("b")).unwrap();
    assert_eq!((table.seen("b"), present.length), ((2, 2), 22));
}

fn candidate(of: &str, lsn: u64, offset: u32) -> Candidate<'_> {
    let at = Position::new(SegmentId(1), Offset(offset));
    Candidate { at, lsn: Lsn(lsn), key: key(of), value: Value::new(b"").unwrap() }
}

#[test]
fn only_what_is_live_is_moved() {
    let mut table = Table::new(LIMITS);
    // Records of 56 bytes at 72, 136, 200 and 264.
    for operation in [put("a", ""), put("b", ""), put("a", ""), delete("b")] {
        table.apply(&[operation]).unwrap();
    }
    let live = table.index.live_bytes();
    let candidates = [candidate("a", 1, 72), candidate("b", 2, 136), candidate("a", 3, 200), candidate("c", 9, 400)];
    let staged = table.index.stage_moves(candidates.into_iter(), 1000);
    assert_eq!((staged.judged(), staged.moved(), staged.size()), (4, 1, 56));
    let (key, value, revision) = (key("a"), Value::new(b"").unwrap(), Revision::of(Lsn(3)).unwrap());
    let records: Vec<_> = staged.records(candidates.into_iter()).collect();
    assert_eq!(records, [KeyedRecord::Move { key, value, revision }]);
    staged.appended(Lsn(5), Position::new(SegmentId(9), Offset(72)));
    assert_eq!(table.index.stage_moves(candidates.into_iter(), 1000).moved(), 0, "it is elsewhere now");
    table.ack(Lsn(5));
    assert_eq!((table.seen("a"), table.seen("b")), ((3, 3), (0, 0)));
    assert_eq!(table.index.live_bytes(), live);
    table.index.check(SegmentId(9));
}

#[test]
fn moves_take_as_much_as_there_is_room_for() {
    let mut table = Table::new(LIMITS);
    for of in ["a", "b", "c"] {
        table.apply(&[put(of, "")]).unwrap();
    }
    table.apply(&[put("a", "")]).unwrap();
    let candidates = [candidate("b", 2, 136), candidate("a", 1, 72), candidate("c", 3, 200)];
    let judged = |table: &mut Table, room| {
        let staged = table.index.stage_moves(candidates.into_iter(), room);
        (staged.judged(), staged.moved(), staged.size())
    };
    assert_eq!(judged(&mut table, 55), (0, 0, 0));
    assert_eq!(judged(&mut table, 111), (2, 1, 56), "what is not live needs none");
    assert_eq!(judged(&mut table, 112), (3, 2, 112));
}
