//! The index as a fold of the log: of a whole log, and of the same log cleaned at any moments. The model is a map, and it writes
//! the records' bytes by hand.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use tailwind_protocol::ids::{Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::scan::Record;
use tailwind_protocol::table::fold::{Fold, FoldError, Folded, Unkeyed};
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::index::{Index, Limits};
use tailwind_protocol::table::place::{Place, Window};
use tailwind_protocol::table::record::{Key, Revision};
use tailwind_protocol::table::request::Revisions;

/// The bytes of a keyed record.
fn bytes(kind: u8, revision: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
    let length = (key.len() as u16).to_le_bytes();
    [b"TWK1", &[kind, 0][..], &length, &revision.to_le_bytes(), key, value].concat()
}

fn put(key: &[u8], value: &[u8]) -> Vec<u8> {
    bytes(1, 0, key, value)
}

fn delete(key: &[u8]) -> Vec<u8> {
    bytes(2, 0, key, b"")
}

/// Ten records to a segment.
fn at(lsn: u64) -> Position {
    Position::new(SegmentId(lsn / 10 + 1), Offset(72 + lsn as u32 % 10 * 640))
}

fn empty(buckets: Buckets) -> Fold {
    let limits = Limits { buckets, keys_max: 1, live_bytes_max: 0 };
    Fold::new(Index::new(HashKey([3; 16]), limits, Window::new(SegmentSize::MIN)))
}

/// Folds the records from this one on.
fn fold(log: &[Vec<u8>], from: usize) -> Folded {
    let mut fold = empty(Buckets::for_keys(100));
    for (number, payload) in log.iter().enumerate().skip(from) {
        let lsn = Lsn(number as u64 + 1);
        assert_eq!(fold.record(at(lsn.0), Record { lsn, payload }), Ok(()));
    }
    fold.finish()
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key::new(bytes).unwrap()
}

/// Revision, place and payload length of a key, in both views.
fn seen(index: &Index, of: &[u8]) -> Option<(u64, Option<Place>, u32)> {
    let present = index.acknowledged(key(of));
    assert_eq!(index.revision(key(of)), present.map(|present| present.revision));
    present.map(|present| (present.revision.lsn().0, present.word.new_place(), present.length))
}

#[test]
fn the_last_record_of_a_key_counts() {
    let log = [put(b"a", b"1"), put(b"b", b"22"), put(b"a", b"333"), delete(b"b"), put(b"c", b""), delete(b"x")];
    let folded = fold(&log, 0);
    let window = Window::new(SegmentSize::MIN);
    assert_eq!(seen(&folded.index, b"a"), Some((3, window.place(at(3)), 20)));
    assert_eq!(seen(&folded.index, b"b"), None);
    assert_eq!(seen(&folded.index, b"c"), Some((5, window.place(at(5)), 17)));
    assert_eq!((folded.index.keys(), folded.index.live_bytes()), (2, 2 * 56));
    assert_eq!((folded.last, folded.unkeyed), (Some(Lsn(6)), None));
    folded.index.check(at(6).segment);
}

#[test]
fn a_move_keeps_its_revision() {
    let log = [put(b"a", b"1"), put(b"b", b"2"), bytes(1, 1, b"a", b"1"), delete(b"b")];
    for from in 0..3 {
        let folded = fold(&log, from);
        assert_eq!(seen(&folded.index, b"a").map(|seen| seen.0), Some(1));
        assert_eq!(folded.index.keys(), 1);
    }
}

#[test]
fn records_that_are_not_keyed_are_reported() {
    let log = [put(b"a", b"1"), b"plain".to_vec(), delete(b"a"), bytes(3, 0, b"a", b""), put(b"b", b"2")];
    let folded = fold(&log, 0);
    let unkeyed = Unkeyed { first: Lsn(2), segment: at(2).segment, records: 2 };
    assert_eq!((folded.unkeyed, folded.last), (Some(unkeyed), Some(Lsn(5))));
    assert_eq!((seen(&folded.index, b"a"), folded.index.keys()), (None, 1));
}

#[test]
fn a_gap_is_refused() {
    let mut fold = empty(Buckets::MIN);
    let payload = &put(b"a", b"")[..];
    assert_eq!(fold.record(at(7), Record { lsn: Lsn(7), payload }), Ok(()), "the log was trimmed");
    let gap = |found| Err(FoldError::Gap { found, expected: Lsn(8) });
    for found in [Lsn(7), Lsn(9)] {
        assert_eq!(fold.record(at(found.0), Record { lsn: found, payload }), gap(found));
    }
    assert_eq!(fold.record(at(8), Record { lsn: Lsn(8), payload }), Ok(()));
    assert_eq!(fold.finish().last, Some(Lsn(8)));
}

#[test]
fn too_few_buckets_are_reported() {
    let mut fold = empty(Buckets::MIN);
    let mut last = Ok(());
    let mut lsn = Lsn(0);
    while last.is_ok() {
        lsn = lsn.next();
        last = fold.record(at(lsn.0), Record { lsn, payload: &put(&lsn.0.to_le_bytes(), b"") });
    }
    assert_eq!((last, lsn), (Err(FoldError::NoRoom(Lsn(17))), Lsn(17)));
}

#[test]
fn an_empty_log_has_an_empty_index() {
    let folded = fold(&[], 0);
    assert_eq!((folded.last, folded.index.keys()), (None, 0));
    folded.index.check(SegmentId(1));
}

/// What happens to a log.
#[derive(Clone, Debug)]
enum Step {
    Put(u8, Vec<u8>),
    Delete(u8),
    /// The oldest so many records are cleaned: the live ones are appended again, and all of them are trimmed.
    Clean(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..6_u8;
    prop_oneof![
        6 => (key(), vec(any::<u8>(), 0..30)).prop_map(|(key, value)| Step::Put(key, value)),
        2 => key().prop_map(Step::Delete),
        1 => (0..20_usize).prop_map(Step::Clean),
    ]
}

proptest! {
    #[test]
    fn a_cleaned_log_has_the_index_of_the_whole_one(steps in vec(step(), 0..120)) {
        let mut log: Vec<Vec<u8>> = Vec::new();
        // Of each key: value, revision, and its last record.
        let mut model: BTreeMap<u8, (Vec<u8>, u64, usize)> = BTreeMap::new();
        let mut first = 0;
        for step in steps {
            match step {
                Step::Put(key, value) => {
                    log.push(put(&[key], &value));
                    model.insert(key, (value, log.len() as u64, log.len()));
                }
                Step::Delete(key) => {
                    log.push(delete(&[key]));
                    model.remove(&key);
                }
                Step::Clean(records) => {
                    let end = (first + records).min(log.len());
                    for (key, (value, revision, last)) in &mut model {
                        if (first + 1..=end).contains(last) {
                            log.push(bytes(1, *revision, &[*key], value));
                            *last = log.len();
                        }
                    }
                    first = end;
                }
            }
        }
        let window = Window::new(SegmentSize::MIN);
        for from in [0, first] {
            let folded = fold(&log, from);
            prop_assert_eq!(folded.index.keys() as usize, model.len());
            for name in 0..6 {
                let expected = model.get(&name).map(|(value, revision, last)| {
                    (*revision, window.place(at(*last as u64)), 17 + value.len() as u32)
                });
                prop_assert_eq!(seen(&folded.index, &[name]), expected);
            }
            folded.index.check(at(log.len() as u64).segment);
        }
        let none = Revision::of(Lsn(0));
        prop_assert_eq!(fold(&log, log.len()).index.revision(key(b"a")), none);
    }
}
