//! What the judge of tables notices.

use super::*;
use crate::check::tests::{closed, identity};

const FIRST: u32 = 72;

fn bytes(text: &str) -> Rc<[u8]> {
    Rc::from(text.as_bytes())
}

fn put(key: &str, value: &str, only_if: Option<u64>) -> Operation {
    Operation { key: bytes(key), does: Does::Put(bytes(value)), only_if }
}

fn delete(key: &str) -> Operation {
    Operation { key: bytes(key), does: Does::Delete, only_if: None }
}

/// The payload of a put, or of a move.
fn keyed(key: &str, value: &str, revision: u64) -> Rc<[u8]> {
    let mut bytes = [&b"TWK1\x01\0"[..], &(key.len() as u16).to_le_bytes(), &revision.to_le_bytes()].concat();
    bytes.extend(key.bytes().chain(value.bytes()));
    Rc::from(bytes)
}

/// Epoch 1 has put a and b in one request, and has deleted b in the next; the first one is acknowledged.
fn three_records() -> Checks {
    let mut checks = Checks::default();
    checks.table_won(Epoch(1), &Reference::default());
    checks.table_applied(identity(1, 1), Lsn(1), FIRST, &[put("a", "x", None), put("b", "y", Some(0))]);
    checks.table_applied(identity(1, 1), Lsn(3), FIRST + 120, &[delete("b")]);
    checks.table_acked(Epoch(1), Lsn(2));
    checks
}

fn log_of(segments: &[(u64, u64, u64, u64)]) -> Reference {
    let segments = segments.iter();
    let segments = segments.map(|(segment, epoch, first, last)| closed(identity(*segment, *epoch), *first, *last));
    Reference { segments: segments.collect(), ..Reference::default() }
}

#[test]
fn what_follows_from_the_requests_is_right() {
    let mut checks = three_records();
    checks.table_judged(Epoch(1), &[put("b", "z", Some(0))], None);
    checks.table_judged(Epoch(1), &[put("c", "z", None), put("a", "z", Some(7))], Some((1, 1)));
    checks.table_mismatched(Epoch(1), &[put("b", "z", Some(7))], (0, 2), Lsn(0));
    checks.table_shows(Epoch(1), Lsn(2), &bytes("b"), None, Some((2, SegmentId(1), FIRST + 56)));
    checks.table_shows(Epoch(1), Lsn(2), &bytes("a"), Some(1), Some((1, SegmentId(1), FIRST)));
    checks.table_won(Epoch(2), &log_of(&[(1, 1, 1, 3)]));
    assert_eq!(checks.table_row(b"a"), Some((bytes("x"), 1)));
    assert_eq!(checks.table_row(b"b"), None);
}

#[test]
#[should_panic(expected = "Table is broken: epoch 1 judges None, and Some((0, 0)) is right")]
fn a_wrong_judgement_is_noticed() {
    three_records().table_judged(Epoch(1), &[put("b", "z", Some(2))], None);
}

#[test]
#[should_panic(expected = "Table is broken: epoch 1 tells (0, 0), which no state is that was acknowledged")]
fn a_mismatch_of_what_is_not_acknowledged_is_noticed() {
    three_records().table_mismatched(Epoch(1), &[put("b", "z", Some(7))], (0, 0), Lsn(2));
}

#[test]
#[should_panic(expected = "Table is broken: epoch 1 tells (0, 2), which no state is that was acknowledged")]
fn a_mismatch_of_before_the_request_is_noticed() {
    let mut checks = three_records();
    checks.table_acked(Epoch(1), Lsn(3));
    checks.table_mismatched(Epoch(1), &[put("b", "z", Some(7))], (0, 2), Lsn(3));
}

#[test]
#[should_panic(expected = "Table is broken: epoch 1 shows b as None, and Some(2) is acknowledged up to 2")]
fn an_index_that_shows_an_unacknowledged_delete_is_noticed() {
    three_records().table_shows(Epoch(1), Lsn(2), &bytes("b"), None, None);
}

#[test]
#[should_panic(
    expected = "Table is broken: epoch 1 shows a as Some((1, SegmentId(1), 128)), and Some(1) is acknowledged"
)]
fn an_index_that_names_another_record_is_noticed() {
    three_records().table_shows(Epoch(1), Lsn(2), &bytes("a"), Some(1), Some((1, SegmentId(1), FIRST + 56)));
}

#[test]
#[should_panic(expected = "Table is broken: epoch 1 has appended b at Some(2), and None is right")]
fn an_index_that_judges_by_what_was_deleted_is_noticed() {
    three_records().table_shows(Epoch(1), Lsn(2), &bytes("b"), Some(2), Some((2, SegmentId(1), FIRST + 56)));
}

#[test]
#[should_panic(expected = "S18 is broken: in the recovered log a is absent, and was acknowledged at 1")]
fn a_log_without_a_live_record_is_noticed() {
    three_records().table_won(Epoch(2), &log_of(&[(1, 1, 3, 3)]));
}

#[test]
fn a_moved_record_may_be_trimmed() {
    let mut checks = three_records();
    checks.table_moved(identity(2, 1), Lsn(4), FIRST, &[keyed("a", "x", 1)]);
    checks.table_acked(Epoch(1), Lsn(4));
    checks.table_trimmed(Epoch(1), [(Epoch(1), Lsn(4))].into_iter());
    checks.table_shows(Epoch(1), Lsn(4), &bytes("a"), Some(1), Some((1, SegmentId(2), FIRST)));
}

#[test]
#[should_panic(expected = "S18 is broken: in the trimmed log a is absent, and was acknowledged at 1")]
fn a_trim_before_a_move_is_acknowledged_is_noticed() {
    let mut checks = three_records();
    checks.table_acked(Epoch(1), Lsn(3));
    checks.table_moved(identity(2, 1), Lsn(4), FIRST, &[keyed("a", "x", 1)]);
    checks.table_trimmed(Epoch(1), [(Epoch(1), Lsn(4))].into_iter());
}

#[test]
#[should_panic(expected = "S18 is broken: in the recovered log a is at 4, and was acknowledged at 1")]
fn a_move_with_a_new_revision_is_noticed() {
    let mut checks = three_records();
    checks.table_moved(identity(2, 1), Lsn(4), FIRST, &[keyed("a", "x", 0)]);
    checks.table_won(Epoch(2), &log_of(&[(1, 1, 1, 3), (2, 1, 4, 4)]));
}

#[test]
#[should_panic(expected = "S18 is broken: in the recovered log b is at 2, and was acknowledged absent")]
fn a_move_of_what_was_deleted_is_noticed() {
    let mut checks = three_records();
    checks.table_moved(identity(2, 1), Lsn(4), FIRST, &[keyed("b", "y", 2)]);
    checks.table_won(Epoch(2), &log_of(&[(1, 1, 1, 3), (2, 1, 4, 4)]));
}

#[test]
fn an_epoch_that_is_over_may_place_something_else() {
    let mut checks = three_records();
    checks.table_won(Epoch(2), &log_of(&[(1, 1, 1, 3)]));
    checks.table_applied(identity(2, 1), Lsn(4), FIRST, &[put("a", "y", None)]);
    checks.table_applied(identity(2, 2), Lsn(4), FIRST, &[put("a", "z", None)]);
    checks.table_acked(Epoch(2), Lsn(4));
    checks.table_shows(Epoch(2), Lsn(4), &bytes("a"), Some(4), Some((4, SegmentId(2), FIRST)));
}

#[test]
fn gets_are_judged_by_what_is_acknowledged() {
    let checks = three_records();
    let got = |key: &str, as_of, least, shown: Option<(u64, &str)>, no_value| {
        let shown = shown.map(|(revision, value)| (revision, bytes(value)));
        let judge = || checks.table_got(Epoch(1), &bytes(key), (Lsn(as_of), Lsn(least)), shown.as_ref(), no_value);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(judge)).is_ok()
    };
    assert!(got("a", 2, 0, Some((1, "x")), false) && got("a", 2, 2, Some((1, "")), true));
    assert!(got("b", 2, 0, Some((2, "y")), false), "its delete is not acknowledged");
    assert!(got("c", 2, 0, None, false) && got("a", 0, 0, None, false));
    let wrong = [
        got("a", 2, 0, Some((1, "y")), false),
        got("a", 2, 0, Some((2, "x")), false),
        got("a", 2, 0, Some((1, "x")), true),
        got("a", 2, 0, None, false),
        got("b", 2, 0, None, false),
        got("c", 2, 0, Some((1, "x")), false),
        got("a", 3, 0, Some((1, "x")), false),
        got("a", 2, 3, Some((1, "x")), false),
    ];
    assert_eq!(wrong, [false; 8]);
    checks.table_got_fresh(Epoch(1), 0, Lsn(2), Lsn(2));
    let early = || checks.table_got_fresh(Epoch(1), 0, Lsn(2), Lsn(1));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(early)).is_err());
}

#[test]
fn a_copy_takes_the_state_before_the_request() {
    let mut checks = three_records();
    let copy = |key: &str, source: &str| Operation { key: bytes(key), does: Does::Copy(bytes(source)), only_if: None };
    let request = [put("a", "new", None), copy("c", "a")];
    assert_eq!(checks.table_expects(Epoch(1), &request), None);
    assert_eq!(checks.table_expects(Epoch(1), &[copy("c", "b")]), Some((0, 0)), "it is deleted");
    checks.table_applied(identity(1, 1), Lsn(4), FIRST + 200, &request);
    let state = checks.table_state(Epoch(1));
    assert_eq!((&*state[&bytes("c")].value, state[&bytes("c")].revision), (&b"x"[..], 5));
}
