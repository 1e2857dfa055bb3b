//! What the judge of mirrors and getters notices.

use super::*;
use crate::check::table::{Does, Operation};
use crate::check::tests::{closed, identity};
use tailwind_protocol::recovery::Reference;

const FIRST: u32 = 72;
const HASH_KEY: HashKey = HashKey([5; 16]);
const ONE: Epoch = Epoch(1);

fn bytes(text: &str) -> Rc<[u8]> {
    Rc::from(text.as_bytes())
}

fn put(value: &str) -> Operation {
    Operation { key: bytes("key/0"), does: Does::Put(bytes(value)), only_if: None }
}

/// A key was put three times; two of these are acknowledged, the second one at 400 ms.
fn three_puts() -> Checks {
    let mut checks = Checks::default();
    checks.table_won(ONE, &Reference::default());
    checks.table_mirrored(ONE, HASH_KEY, Buckets::MIN, 2);
    for (lsn, value) in [(1, "a"), (2, "b"), (3, "c")] {
        checks.table_applied(identity(1, 1), Lsn(lsn), FIRST + 64 * lsn as u32, &[put(value)]);
    }
    for (now, lsn) in [(100_000, 1), (400_000, 2)] {
        checks.table_acked(ONE, Lsn(lsn));
        checks.acked_by(now, Lsn(lsn));
    }
    checks
}

/// The entry that a mirror has of the key after this record.
fn entry(lsn: u64) -> Vec<u8> {
    let fingerprint = HASH_KEY.hash(Key::new(b"key/0").expect("a key")).fingerprint().0.get();
    // The first segment, and the tag.
    let place = 8192 + (FIRST as u64 + 64 * lsn) / 8;
    let mut entry = [fingerprint, 1 << 63 | place << 32, lsn].map(u64::to_le_bytes).concat();
    entry.extend(22_u32.to_le_bytes());
    let crc = crc32fast::hash(&[&HASH_KEY.0[..], &entry].concat());
    entry.extend(crc.to_le_bytes());
    entry
}

fn asked(least: u64) -> AskedElsewhere {
    AskedElsewhere { key: bytes("key/0"), connection: 1, least: Lsn(least), since: None, older: false, no_value: false }
}

fn told(as_of: u64, revision: u64, value: &str) -> ToldElsewhere {
    ToldElsewhere::Now { as_of: Lsn(as_of), stale: true, shown: Some((revision, bytes(value))) }
}

const ABSENT: ToldElsewhere = ToldElsewhere::Now { as_of: Lsn(2), stale: true, shown: None };

fn tell(checks: &mut Checks, told: &ToldElsewhere) {
    checks.table_told(1_000_000, ONE, &asked(0), told, false);
}

#[test]
fn what_is_right_passes() {
    let mut checks = three_puts();
    checks.mirror_shows(ONE, &[entry(1), entry(2), vec![0; 32]].concat(), "it");
    checks.mirror_has(ONE, Lsn(1), &bytes("key/0"), &entry(2), "it");
    checks.mirror_has(ONE, Lsn(1), &bytes("key/0"), &entry(1), "it");
    assert_eq!(checks.mirror_differs(ONE, &[vec![0; 32], entry(2)].concat()), None);
    tell(&mut checks, &told(1, 1, "a"));
    tell(&mut checks, &told(1, 2, "b"));
    tell(&mut checks, &ToldElsewhere::Now { as_of: Lsn(2), stale: false, shown: Some((2, bytes("b"))) });
    checks.table_told(1_000_000, ONE, &asked(0), &ABSENT, true);
    checks.table_told(0, ONE, &AskedElsewhere { older: true, ..asked(0) }, &ToldElsewhere::Older(bytes("a")), false);
    checks.mirror_changes(0, ONE, &entry(1));
    checks.mirrors_name((500_000, 1000), ONE, &BTreeSet::from([SegmentId(1)]), &[]);
}

#[test]
fn a_mirror_that_is_not_the_fold_is_noticed() {
    let checks = three_puts();
    assert!(checks.mirror_differs(ONE, &entry(1)).is_some());
    assert!(checks.mirror_differs(ONE, &[0; 64]).is_some());
    assert!(checks.mirror_differs(ONE, &[7; 32]).is_some());
}

#[test]
#[should_panic(expected = "S21 is broken: it shows key key/0 at revision 3")]
fn a_mirror_that_shows_what_is_unacknowledged_is_noticed() {
    three_puts().mirror_shows(ONE, &entry(3), "it");
}

#[test]
#[should_panic(expected = "S21 is broken: it shows key/0 at revision 1 and has published 2")]
fn a_mirror_that_lacks_what_is_published_is_noticed() {
    three_puts().mirror_has(ONE, Lsn(2), &bytes("key/0"), &entry(1), "it");
}

#[test]
#[should_panic(expected = "S21 is broken: it has published 3, and 2 is acknowledged")]
fn what_is_published_and_not_acknowledged_is_noticed() {
    three_puts().mirror_has(ONE, Lsn(3), &bytes("key/0"), &entry(3), "it");
}

#[test]
#[should_panic(expected = "S19 is broken: epoch 1 trims segment 1, which a mirror names")]
fn a_trim_of_what_a_mirror_names_is_noticed() {
    three_puts().mirrors_name((900_000, 1000), ONE, &BTreeSet::from([SegmentId(1)]), &[(HostNo(0), entry(1))]);
}

#[test]
#[should_panic(expected = "S19 is broken: epoch 1 trims segment 1, which a mirror named 400 ms ago")]
fn a_trim_without_grace_is_noticed() {
    let mut checks = three_puts();
    checks.mirror_changes(500_000, ONE, &entry(1));
    checks.mirrors_name((900_000, 1000), ONE, &BTreeSet::from([SegmentId(1)]), &[]);
}

#[test]
#[should_panic(expected = "S19 is broken: a getter reads segment 1 at m1, and that is trimmed")]
fn a_read_of_what_is_trimmed_is_noticed() {
    let mut checks = three_puts();
    checks.mirrors_name((0, 1000), ONE, &BTreeSet::from([SegmentId(1)]), &[(HostNo(0), Vec::new())]);
    checks.record_is_read(HostNo(1), SegmentId(1), &"m2");
    checks.record_is_read(HostNo(0), SegmentId(1), &"m1");
}

#[test]
#[should_panic(expected = "S20 is broken: key/0 is shown as of 1, and 2 was shown or asked for, 2 is acknowledged")]
fn an_answer_before_what_was_shown_is_noticed() {
    let mut checks = three_puts();
    tell(&mut checks, &told(2, 2, "b"));
    tell(&mut checks, &told(1, 2, "b"));
}

#[test]
#[should_panic(expected = "S20 is broken: key/0 is shown as of 3, and 0 was shown or asked for, 2 is acknowledged")]
fn an_answer_as_of_what_is_unacknowledged_is_noticed() {
    tell(&mut three_puts(), &told(3, 3, "c"));
}

#[test]
#[should_panic(expected = "S20 is broken: key/0 is shown at 1 as of 2, which it is not from 2 on")]
fn an_answer_that_is_too_old_is_noticed() {
    tell(&mut three_puts(), &told(2, 1, "a"));
}

#[test]
#[should_panic(expected = "S20 is broken: key/0 is shown absent as of 2, which it is not from 2 on")]
fn an_absence_that_nothing_excuses_is_noticed() {
    tell(&mut three_puts(), &ABSENT);
}

#[test]
#[should_panic(expected = "S20 is broken: key/0 is shown at 1 as of 1, which it is not from 2 on")]
fn a_key_that_goes_back_is_noticed() {
    let mut checks = three_puts();
    tell(&mut checks, &told(1, 2, "b"));
    tell(&mut checks, &told(1, 1, "a"));
}

#[test]
#[should_panic(
    expected = "S20 is broken: key/0 is shown at 1 as of 1, which it was at 1, and 2 was acknowledged long before"
)]
fn an_old_view_that_is_not_called_stale_is_noticed() {
    tell(&mut three_puts(), &ToldElsewhere::Now { as_of: Lsn(1), stale: false, shown: Some((1, bytes("a"))) });
}

#[test]
#[should_panic(expected = "S20 is broken: key/0 is shown fresh as of 1, and 2 was acknowledged before")]
fn a_fresh_answer_that_is_not_is_noticed() {
    let asked = AskedElsewhere { since: Some(Lsn(2)), ..asked(0) };
    three_puts().table_told(1_000_000, ONE, &asked, &told(1, 1, "a"), false);
}

#[test]
#[should_panic(expected = "S20 is broken: key/0 is shown with an older value, which nobody asked for")]
fn an_older_value_that_nobody_asked_for_is_noticed() {
    tell(&mut three_puts(), &ToldElsewhere::Older(bytes("a")));
}

#[test]
#[should_panic(expected = "S20 is broken: key/0 is shown with an older value, which it has never been")]
fn an_older_value_that_never_was_is_noticed() {
    let asked = AskedElsewhere { older: true, ..asked(0) };
    three_puts().table_told(0, ONE, &asked, &ToldElsewhere::Older(bytes("c")), false);
}

#[test]
fn what_was_lost_with_an_excuse_is_right_until_it_is_known() {
    let mut checks = three_puts();
    let lost = Reference { segments: vec![closed(identity(1, 1), 1, 1)], ..Reference::default() };
    checks.table_won(Epoch(2), &lost);
    checks.table_told(1_000_000, ONE, &asked(0), &told(2, 2, "b"), false);
    checks.connection_ends(1);
    checks.table_told(1_000_000, Epoch(2), &asked(0), &told(1, 1, "a"), false);
}
