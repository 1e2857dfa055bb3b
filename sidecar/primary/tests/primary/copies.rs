//! Requests to a table that take over values: from memory, from what was fetched, and in one order with all others.

use tailwind_primary::{COPIES_MAX, Copies, Given, PATIENCE, Unapplied};
use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::table::get::{Found, Wanted};
use tailwind_protocol::table::record::KeyedRecord;
use tailwind_protocol::table::request::{Apply, Expected, Operation, TooLarge, Written};

use super::gets::{bytes, with_a_closed_segment};
use super::group::Group;
use super::table::{delete, group, key, mismatch, put};

fn copy<'a>(name: &'a str, source: &'a str) -> Operation<'a> {
    Operation::Write { key: key(name), written: Written::CopyOf(key(source)), only_if: None }
}

/// What each key has, by the records of a member's copies.
fn value(group: &Group, name: &str) -> Option<Vec<u8>> {
    let hash = group.log.table().unwrap().index().hash(key(name));
    group.log.look(hash, false, |found| match found {
        Found::Absent => None,
        Found::Here(_, value) => Some(value.to_vec()),
        Found::There(wanted) => Some(wanted.value(&bytes(group, &wanted)).unwrap().as_bytes().to_vec()),
    })
}

/// The values that a request needs and that are not in memory.
fn fetch(group: &Group, operations: &[Operation<'_>]) -> Given {
    let wanted = group.log.sources(&Apply::new(operations).unwrap(), &Given::default());
    Given::new(wanted.into_iter().map(|wanted| (wanted, bytes_of(group, &wanted))))
}

fn bytes_of(group: &Group, wanted: &Wanted) -> Vec<u8> {
    wanted.value(&bytes(group, wanted)).unwrap().as_bytes().to_vec()
}

#[test]
fn a_copy_takes_what_was_appended_before_it() {
    let mut group = group(2);
    group.apply(1, &[put("a", b"one", None)]).unwrap();
    // Nothing of it is acknowledged yet.
    assert_eq!(group.apply(2, &[copy("b", "a"), put("a", b"two", None)]), Ok(Lsn(3)));
    assert_eq!(group.apply(3, &[copy("a", "b"), copy("b", "a"), copy("c", "a")]), Ok(Lsn(6)));
    group.settle();
    let values = ["a", "b", "c"].map(|name| value(&group, name).unwrap());
    assert_eq!(values, [b"one".to_vec(), b"two".to_vec(), b"two".to_vec()], "two keys are exchanged");
    let records = group.records(SegmentId(1));
    let (_, lsn, payload) = &records[3];
    let record = KeyedRecord::decode(payload, *lsn).unwrap();
    assert_eq!((record.key(), record.value().unwrap().as_bytes(), *lsn), (key("a"), &b"one"[..], Lsn(4)));
}

#[test]
fn a_copy_of_nothing_is_a_mismatch() {
    let mut group = group(2);
    assert_eq!(group.apply(1, &[put("b", b"", None), copy("c", "a")]), Err(mismatch(1, 0)));
    assert_eq!(group.apply(1, &[put("a", b"1", None)]), Ok(Lsn(1)));
    let wrong =
        Operation::Write { key: key("c"), written: Written::CopyOf(key("a")), only_if: Some(Expected::from_number(9)) };
    assert_eq!(group.apply(1, &[wrong]), Err(mismatch(0, 0)), "the condition is about the key itself");
    assert_eq!(group.apply(1, &[delete("a"), copy("c", "a")]), Ok(Lsn(3)), "the state before the request decides");
}

#[test]
fn a_copy_from_a_closed_segment_needs_its_value() {
    let mut group = with_a_closed_segment();
    let request = [copy("c", "a"), copy("d", "a"), copy("e", "b"), copy("f", "filler")];
    assert_eq!(group.apply(50, &request), Err(Unapplied::Sources));
    assert_eq!(group.revision_of("c"), None, "nothing of it is done");
    let given = fetch(&group, &request);
    let last = group.apply_given(50, &request, &given).unwrap();
    group.settle();
    assert_eq!(["c", "d", "e"].map(|name| value(&group, name).unwrap()), [b"old".to_vec(), b"old".to_vec(), vec![]]);
    assert_eq!(value(&group, "f"), value(&group, "filler"));
    assert_eq!(group.revision_of("c"), Some(Lsn(last.0 - 3)));
    // The source has another value by now: what was fetched is of no more use, and what is in memory is taken.
    group.apply(51, &[put("a", b"new", None)]).unwrap();
    group.apply_given(52, &[copy("c", "a")], &given).unwrap();
    group.settle();
    assert_eq!(value(&group, "c").unwrap(), b"new");
    // A move does not change it.
    assert_eq!(group.apply(53, &[copy("c", "b")]), Err(Unapplied::Sources));
    group.clean(SegmentId(1)).unwrap();
    group.apply_given(54, &[copy("c", "b")], &given).unwrap();
}

#[test]
fn copies_that_fit_no_segment_are_refused_unfetched() {
    let mut group = group(2);
    let large = vec![7; 3900];
    group.apply(1, &[put("large", &large, None)]).unwrap();
    for name in 2..40 {
        while group.put(name, "filler").is_err() {
            group.settle();
        }
        group.settle();
    }
    let names: Vec<String> = (0..9).map(|number| format!("copy/{number}")).collect();
    let request: Vec<Operation<'_>> = names.iter().map(|name| copy(name, "large")).collect();
    assert!(matches!(group.apply(50, &request), Err(Unapplied::TooLarge(TooLarge::Request { .. }))));
    assert_eq!(group.apply(50, &request[..8]), Err(Unapplied::Sources));
}

#[test]
fn what_a_copy_needs_is_fetched_once_and_given_up_in_the_end() {
    let group = with_a_closed_segment();
    let operations = [copy("c", "a")];
    let request = Apply::new(&operations).unwrap();
    let wanted = || group.log.sources(&request, &Given::default());
    let mut copies = Copies::new();
    assert!(!copies.waits(7, Time(0)) && copies.take(7).is_none());
    let mut numbers = Vec::new();
    let mut fetch = |number, wanted: &[_]| {
        assert_eq!(wanted.len(), 1);
        numbers.push(number);
        true
    };
    copies.want(7, None, wanted(), Time(0), &mut fetch).unwrap();
    assert!(copies.waits(7, Time(9)) && !copies.waits(8, Time(9)));
    copies.fetched(1, Err("b0: it is corrupt".to_owned()), Time(10));
    assert!(copies.waits(7, Time(109)) && !copies.waits(7, Time(110)), "after a pause");
    let taken = copies.take(7);
    copies.want(7, taken, wanted(), Time(110), &mut fetch).unwrap();
    copies.fetched(1, Ok(vec![b"late".to_vec()]), Time(110));
    assert!(copies.waits(7, Time(110)), "an earlier fetch is none of its");
    copies.fetched(2, Err("b1: it is corrupt".to_owned()), Time(120));
    let taken = copies.take(7);
    let why = copies.want(7, taken, wanted(), Time(PATIENCE), |_, _| true).unwrap_err();
    assert_eq!(why, "the value of a source could not be read within 5 s: b1: it is corrupt");
    assert!(copies.take(7).is_none(), "nothing is left of it");
    assert_eq!(numbers, [1, 2]);
    // Only so many at a time; and one that has no client leaves nothing.
    let fetched = |copies: &mut Copies<usize>, request| {
        let mut fetched = false;
        copies
            .want(request, None, wanted(), Time(0), |_, _| {
                fetched = true;
                true
            })
            .unwrap();
        fetched
    };
    assert!((0..COPIES_MAX).all(|request| fetched(&mut copies, request)));
    assert!(!fetched(&mut copies, COPIES_MAX));
    copies.retain(|request| *request != 3);
    assert!(fetched(&mut copies, COPIES_MAX));
}
