//! Requests of a table: what is well-formed, which conditions hold, and which records follow, against a model that carries
//! operations out one by one on a map.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::table::record::{Key, KeyedRecord, Revision, Value};
use tailwind_protocol::table::request::{
    Apply, BadApply, Expected, Mismatch, OPERATIONS_MAX, Operation, Revisions, TooLarge, Written,
};

/// Revisions by key.
struct State(BTreeMap<Vec<u8>, u64>);

impl Revisions for State {
    fn revision(&self, key: Key<'_>) -> Option<Revision> {
        self.0.get(key.as_bytes()).and_then(|revision| Revision::of(Lsn(*revision)))
    }
}

fn state<const N: usize>(keys: [(&str, u64); N]) -> State {
    State(keys.into_iter().map(|(key, revision)| (key.as_bytes().to_vec(), revision)).collect())
}

fn key(text: &str) -> Key<'_> {
    Key::new(text.as_bytes()).unwrap()
}

fn put<'a>(of: &'a str, value: &'a str) -> Operation<'a> {
    Operation::Write { key: key(of), written: Written::Value(Value::new(value.as_bytes()).unwrap()), only_if: None }
}

fn put_if<'a>(of: &'a str, expected: Expected) -> Operation<'a> {
    Operation::Write { key: key(of), written: Written::Value(Value::new(b"v").unwrap()), only_if: Some(expected) }
}

fn delete(of: &str) -> Operation<'_> {
    Operation::Write { key: key(of), written: Written::Nothing, only_if: None }
}

fn copy<'a>(of: &'a str, source: &'a str) -> Operation<'a> {
    Operation::Write { key: key(of), written: Written::CopyOf(key(source)), only_if: None }
}

fn require(of: &str, expected: Expected) -> Operation<'_> {
    Operation::Require { key: key(of), expected }
}

fn at(revision: u64) -> Expected {
    Expected::At(Revision::of(Lsn(revision)).unwrap())
}

#[test]
fn a_request_writes_each_key_once_and_at_least_one() {
    assert_eq!(Apply::new(&[]), Err(BadApply::Operations(0)));
    assert_eq!(Apply::new(&[require("a", at(1))]), Err(BadApply::NothingWritten));
    assert_eq!(Apply::new(&[put("a", ""), put("b", ""), copy("a", "b")]), Err(BadApply::WrittenTwice(0, 2)));
    let both = [require("a", at(1)), require("a", at(1)), put("a", ""), copy("b", "a"), delete("c")];
    assert_eq!(Apply::new(&both).unwrap().write_count(), 3);
}

#[test]
fn a_request_has_at_most_256_operations() {
    let names: Vec<String> = (0..=OPERATIONS_MAX).map(|number| format!("key {number}")).collect();
    let puts: Vec<Operation<'_>> = names.iter().map(|name| put(name, "")).collect();
    assert_eq!(Apply::new(&puts), Err(BadApply::Operations(257)));
    assert_eq!(Apply::new(&puts[1..]).unwrap().write_count(), 256);
    let mut twice = puts[1..].to_vec();
    twice[255] = twice[17];
    assert_eq!(Apply::new(&twice), Err(BadApply::WrittenTwice(17, 255)));
}

#[test]
fn the_first_condition_that_does_not_hold_is_named() {
    let before = state([("a", 7), ("b", 9)]);
    let judged = |operations: &[Operation<'_>]| Apply::new(operations).unwrap().judge(&before);
    let now = |revision| Revision::of(Lsn(revision));
    assert_eq!(judged(&[put("a", ""), delete("x")]), Ok(()));
    assert_eq!(judged(&[put_if("a", at(7)), put_if("x", Expected::Absent), require("b", at(9))]), Ok(()));
    assert_eq!(judged(&[put_if("a", at(8))]), Err(Mismatch { operation: 0, now: now(7) }));
    assert_eq!(judged(&[put("a", ""), put_if("b", Expected::Absent)]), Err(Mismatch { operation: 1, now: now(9) }));
    assert_eq!(judged(&[put("a", ""), require("x", at(1))]), Err(Mismatch { operation: 1, now: None }));
    assert_eq!(
        judged(&[put("c", ""), require("b", at(1)), require("a", at(1))]),
        Err(Mismatch { operation: 1, now: now(9) })
    );
}

#[test]
fn conditions_see_the_state_before_the_request() {
    let before = state([("a", 7), ("b", 9)]);
    let judged = |operations: &[Operation<'_>]| Apply::new(operations).unwrap().judge(&before);
    assert_eq!(judged(&[put("a", ""), require("a", at(7))]), Ok(()));
    assert_eq!(judged(&[delete("a"), require("a", Expected::Absent)]).unwrap_err().operation, 1);
    assert_eq!(judged(&[copy("a", "b"), copy("b", "a")]), Ok(()), "two keys are exchanged");
    assert_eq!(judged(&[put("x", ""), copy("a", "x")]).unwrap_err(), Mismatch { operation: 1, now: None });
}

#[test]
fn a_copy_needs_its_source() {
    let before = state([("a", 7)]);
    let judged = |operation| Apply::new(&[operation]).unwrap().judge(&before);
    let if_absent = |of, source| {
        let only_if = Some(Expected::Absent);
        Operation::Write { key: key(of), written: Written::CopyOf(key(source)), only_if }
    };
    assert_eq!(judged(if_absent("x", "a")), Ok(()));
    assert_eq!(judged(if_absent("x", "y")), Err(Mismatch { operation: 0, now: None }));
    assert_eq!(judged(if_absent("a", "y")), Err(Mismatch { operation: 0, now: Revision::of(Lsn(7)) }));
}

#[test]
fn writes_become_one_batch_of_records() {
    let operations = [require("r", at(1)), put("a", "1"), copy("b", "s"), require("r", at(1)), delete("c")];
    let apply = Apply::new(&operations).unwrap();
    let copied = Value::new(b"copied").unwrap();
    let records: Vec<KeyedRecord<'_>> = apply.writes().map(|write| write.record(|_| copied)).collect();
    assert_eq!(
        records,
        [
            KeyedRecord::Put { key: key("a"), value: Value::new(b"1").unwrap(), more: true },
            KeyedRecord::Put { key: key("b"), value: copied, more: true },
            KeyedRecord::Delete { key: key("c"), more: false },
        ]
    );
    assert_eq!(apply.writes().map(|write| write.operation).collect::<Vec<_>>(), [1, 2, 4]);
    let revisions: Vec<_> = (0..4).map(|write| Revision::number(apply.revision(write, Lsn(50)))).collect();
    assert_eq!(revisions, [48, 49, 50, 0]);
    let sizes = records.iter().map(KeyedRecord::size_in_log).sum::<usize>() + 8;
    assert_eq!(apply.size(SegmentSize::MIN, |_| 6), Ok(sizes));
}

#[test]
fn what_no_segment_takes_is_too_large() {
    let size = SegmentSize::MIN;
    let (fits, over) = ("v".repeat(4064 - 17), "v".repeat(4064 - 16));
    let sized = |operations: &[Operation<'_>]| Apply::new(operations).unwrap().size(size, |_| fits.len() + 1);
    assert_eq!(sized(&[put("a", &fits)]), Ok(4096 + 8));
    let record = |operation| Err(TooLarge::Record { operation, size: 4065, most: 4064 });
    assert_eq!(sized(&[put("a", &fits), put("b", &over)]), record(1));
    assert_eq!(sized(&[copy("a", "b")]), record(0));
    let puts = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| put(name, &fits));
    assert_eq!(sized(&puts[1..]), Ok(7 * 4096 + 8));
    assert_eq!(sized(&puts), Err(TooLarge::Request { size: 8 * 4096 + 8, most: 32 << 10 }));
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn any_operation() -> impl Strategy<Value = Operation<'static>> {
    let expected = || (0..3_u64).prop_map(Expected::from_number);
    let name = || prop::sample::select(&NAMES[..]);
    let only_if = || prop::option::of(expected());
    prop_oneof![
        (name(), only_if()).prop_map(|(of, only_if)| {
            Operation::Write { key: key(of), written: Written::Value(Value::new(of.as_bytes()).unwrap()), only_if }
        }),
        (name(), only_if()).prop_map(|(of, only_if)| Operation::Write {
            key: key(of),
            written: Written::Nothing,
            only_if
        }),
        (name(), name(), only_if()).prop_map(|(of, source, only_if)| Operation::Write {
            key: key(of),
            written: Written::CopyOf(key(source)),
            only_if
        }),
        (name(), expected()).prop_map(|(of, expected)| require(of, expected)),
    ]
}

proptest! {
    /// The rules again, in as many words.
    #[test]
    fn requests_are_judged_as_the_rules_say(
        operations in vec(any_operation(), 1..8),
        before in prop::collection::btree_map(prop::sample::select(&NAMES[..]), 1..3_u64, 0..5),
    ) {
        let before = State(before.into_iter().map(|(key, revision)| (key.as_bytes().to_vec(), revision)).collect());
        let has = |key: Key<'_>| before.0.get(key.as_bytes()).copied().unwrap_or(0);
        let written: Vec<_> =
            operations.iter().filter(|o| !matches!(o, Operation::Require { .. })).map(Operation::key).collect();
        let twice = (1..written.len()).any(|at| written[..at].contains(&written[at]));
        let apply = Apply::new(&operations);
        prop_assert_eq!(apply.is_ok(), !written.is_empty() && !twice);
        let Ok(apply) = apply else { return Ok(()) };

        let fails = |operation: &Operation<'_>| {
            let key_is = has(operation.key());
            let expects = operation.condition().map(|expected| match expected {
                Expected::Absent => 0,
                Expected::At(revision) => revision.lsn().0,
            });
            if expects.is_some_and(|expects| expects != key_is) {
                return Some(key_is);
            }
            matches!(operation, Operation::Write { written: Written::CopyOf(source), .. } if has(*source) == 0).then_some(0)
        };
        let first = operations.iter().enumerate().find_map(|(at, operation)| Some((at as u16, fails(operation)?)));
        let judged = apply.judge(&before).err().map(|found| (found.operation, Revision::number(found.now)));
        prop_assert_eq!(judged, first);

        let writes: Vec<_> = apply.writes().collect();
        prop_assert_eq!(writes.iter().map(|write| write.key).collect::<Vec<_>>(), written);
        for (at, write) in writes.iter().enumerate() {
            prop_assert_eq!(write.more, at + 1 < writes.len());
            let deletes = matches!(operations[usize::from(write.operation)], Operation::Write { written: Written::Nothing, .. });
            prop_assert_eq!(deletes, write.written == Written::Nothing);
            let revision = apply.revision(at as u16, Lsn(100)).unwrap();
            prop_assert_eq!(revision.lsn().0, 100 - writes.len() as u64 + at as u64 + 1);
        }
    }
}
