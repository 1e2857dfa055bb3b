//! Gets of a table at its primary: what they see, what they wait for, and when they are given up.

use tailwind_primary::{Answer, FETCHES_MAX, Gets, Getter, PATIENCE, Proof};
use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::layout::record_size;
use tailwind_protocol::table::get::{Found, Get, Wanted};

use super::group::Group;
use super::table::{delete, group, key, put};

/// What gets are told, and what they have fetched.
#[derive(Debug, Default)]
struct Told {
    answers: Vec<(u32, Lsn, String)>,
    wanted: Vec<(u64, Wanted)>,
    is_busy: bool,
}

impl Getter<u32> for Told {
    fn answer(&mut self, get: u32, as_of: Lsn, answer: Answer<'_>) {
        let told = match answer {
            Answer::Value(revision, value) => format!("{revision} {}", value.escape_ascii()),
            Answer::Absent => "absent".to_owned(),
            Answer::Unavailable(why) => why.to_owned(),
        };
        self.answers.push((get, as_of, told));
    }

    fn fetch(&mut self, number: u64, wanted: Wanted) -> bool {
        self.wanted.extend((!self.is_busy).then_some((number, wanted)));
        !self.is_busy
    }
}

fn what(group: &Group, name: &str) -> Get {
    let hash = group.log.table().unwrap().index().hash(key(name));
    Get { hash, least: Lsn(0), fresh: false, no_value: false }
}

fn looked(group: &Group, name: &str) -> String {
    group.log.look(what(group, name).hash, false, |found| match found {
        Found::Absent => "absent".to_owned(),
        Found::Here(revision, value) => format!("{revision} {}", value.escape_ascii()),
        Found::There(wanted) => format!("{} at {}", wanted.revision, wanted.at.segment),
    })
}

/// A table whose first segment, which has `a`, is closed and no more in the primary's memory.
pub(super) fn with_a_closed_segment() -> Group {
    let mut group = group(2);
    group.apply(1, &[put("a", b"old", None), put("b", b"", None)]).unwrap();
    for name in 2..40 {
        while group.put(name, "filler").is_err() {
            group.settle();
        }
        group.settle();
    }
    group
}

/// The bytes of a record, as a member has them.
pub(super) fn bytes(group: &Group, wanted: &Wanted) -> Vec<u8> {
    let (_, _, memory) = group.lent.iter().find(|(_, lent, _)| *lent == wanted.at.segment).unwrap();
    let range = wanted.bytes();
    memory.0.borrow()[range.start as usize..range.end as usize].to_vec()
}

#[test]
fn a_get_sees_what_is_acknowledged() {
    let mut group = group(2);
    assert_eq!(looked(&group, "a"), "absent");
    group.apply(1, &[put("a", b"one", None)]).unwrap();
    group.turn();
    assert_eq!(looked(&group, "a"), "absent", "no member has it");
    group.settle();
    assert_eq!(looked(&group, "a"), "1 one");
    group.apply(2, &[put("a", b"two", None)]).unwrap();
    assert_eq!(looked(&group, "a"), "1 one");
    group.settle();
    assert_eq!(looked(&group, "a"), "2 two");
    group.apply(3, &[delete("a")]).unwrap();
    group.settle();
    assert_eq!(looked(&group, "a"), "absent");
}

#[test]
fn a_closed_segment_is_not_looked_into_here() {
    let group = with_a_closed_segment();
    assert_eq!((looked(&group, "a"), looked(&group, "b")), ("1 at 1".to_owned(), "2 at 1".to_owned()));
    let is_here = |found: Found<'_>| matches!(found, Found::Here(revision, b"") if revision.lsn() == Lsn(1));
    assert!(group.log.look(what(&group, "a").hash, true, is_here), "the revision is in the index");
}

#[test]
fn a_fetched_record_is_compared_with_the_index() {
    let group = with_a_closed_segment();
    let Some(wanted) = group.log.look(what(&group, "a").hash, false, |found| match found {
        Found::There(wanted) => Some(wanted),
        _ => None,
    }) else {
        panic!("it is closed");
    };
    let sound = bytes(&group, &wanted);
    assert_eq!((sound.len(), wanted.value(&sound).unwrap().as_bytes()), (32 + 16 + 1 + 3, &b"old"[..]));
    // The epoch in the header says nothing that a get needs.
    for bit in (0..sound.len() * 8).filter(|bit| !(24..32).contains(&(bit / 8))) {
        let mut rotten = sound.clone();
        rotten[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(wanted.value(&rotten), None, "bit {bit}");
    }
    (0..sound.len()).for_each(|length| assert_eq!(wanted.value(&sound[..length]), None));
    assert_eq!(wanted.value(&[&sound[..], &[0]].concat()), None);
    // Another record of the segment, and this one if the index meant another key or revision.
    let other = {
        let begin = wanted.at.offset.0 + record_size(wanted.length as usize) as u32;
        let (_, _, memory) = group.lent.iter().find(|(_, lent, _)| *lent == SegmentId(1)).unwrap();
        memory.0.borrow()[begin as usize..][..sound.len()].to_vec()
    };
    assert_eq!(wanted.value(&other), None);
    assert_eq!(Wanted { hash: what(&group, "b").hash, ..wanted }.value(&sound), None);
    let present = group.log.table().unwrap().index().acknowledged(key("b")).unwrap();
    assert_eq!(Wanted { revision: present.revision, ..wanted }.value(&sound), None);
}

#[test]
fn a_get_waits_for_the_record_that_it_names() {
    let mut group = group(2);
    let (mut gets, mut told) = (Gets::new(), Told::default());
    gets.take(7, Get { least: Lsn(1), ..what(&group, "a") }, Time(0));
    gets.take(8, Get { least: Lsn(2), ..what(&group, "a") }, Time(0));
    gets.turn(&group.log, Time(0), &mut told);
    assert!(told.answers.is_empty());
    group.apply(1, &[put("a", b"one", None)]).unwrap();
    group.settle();
    gets.turn(&group.log, Time(PATIENCE - 1), &mut told);
    assert_eq!(told.answers, [(7, Lsn(1), "1 one".to_owned())]);
    gets.turn(&group.log, Time(PATIENCE), &mut told);
    let why = "LSN 2 is not acknowledged within 5 s: LSN 1 is the last";
    assert_eq!((told.answers.len(), &told.answers[1]), (2, &(8, Lsn(1), why.to_owned())));
    assert!(gets.is_empty());
}

#[test]
fn a_fresh_get_waits_for_proof_and_for_what_was_appended() {
    let mut group = group(2);
    group.apply(1, &[put("a", b"one", None)]).unwrap();
    group.settle();
    group.apply(2, &[put("a", b"two", None)]).unwrap();
    let (mut gets, mut told) = (Gets::new(), Told::default());
    gets.take(7, Get { fresh: true, ..what(&group, "a") }, Time(0));
    gets.take(8, Get { fresh: true, ..what(&group, "a") }, Time(0));
    assert!(gets.want_proof());
    let question = gets.ask();
    assert!(!gets.want_proof(), "one question is asked for both");
    group.log.ask_behind("gets");
    gets.take(9, Get { fresh: true, ..what(&group, "a") }, Time(0));
    gets.turn(&group.log, Time(0), &mut told);
    assert!(told.answers.is_empty());
    assert_eq!(group.settle().proofs, [("gets", Proof::Behind(Lsn(2)))]);
    gets.proved(question);
    gets.turn(&group.log, Time(0), &mut told);
    assert_eq!(told.answers, [(7, Lsn(2), "2 two".to_owned()), (8, Lsn(2), "2 two".to_owned())]);
    assert!(gets.want_proof(), "the third came after the question");
    gets.turn(&group.log, Time(PATIENCE), &mut told);
    assert!(told.answers[2].2.contains("could not be proved"), "{told:?}");
}

#[test]
fn a_fetched_value_is_that_of_the_moment_of_the_answer() {
    let mut group = with_a_closed_segment();
    let (mut gets, mut told) = (Gets::new(), Told::default());
    for get in [7, 8, 9] {
        gets.take(get, what(&group, if get == 9 { "b" } else { "a" }), Time(0));
    }
    gets.turn(&group.log, Time(0), &mut told);
    let [(first, a), (second, _), (third, b)] = told.wanted[..] else { panic!("{told:?}") };
    let last = group.log.acked().0;
    let value = |wanted: &Wanted| wanted.value(&bytes(&group, wanted)).unwrap().as_bytes().to_vec();
    let (old, empty) = (value(&a), value(&b));
    gets.fetched(first, Ok(&old), &group.log, Time(0), &mut told);
    assert_eq!(told.answers, [(7, last, "1 old".to_owned())]);
    // Before the others come, one key has another value, and the other is absent.
    group.apply(50, &[put("a", b"new", None), delete("b")]).unwrap();
    group.settle();
    gets.fetched(second, Ok(&old), &group.log, Time(0), &mut told);
    gets.fetched(third, Ok(&empty), &group.log, Time(0), &mut told);
    assert_eq!(told.answers.len(), 1, "what came is not what is there now");
    gets.turn(&group.log, Time(0), &mut told);
    let now = Lsn(last.0 + 2);
    assert_eq!(told.answers[1..], [(8, now, format!("{} new", last.next())), (9, now, "absent".to_owned())]);
}

#[test]
fn a_record_that_was_moved_is_looked_up_again() {
    let mut group = with_a_closed_segment();
    let (mut gets, mut told) = (Gets::new(), Told::default());
    gets.take(7, what(&group, "a"), Time(0));
    gets.turn(&group.log, Time(0), &mut told);
    let (number, _) = told.wanted[0];
    assert_eq!(group.clean(SegmentId(1)).unwrap().moved, 2);
    group.settle();
    gets.fetched(number, Err("it is trimmed".to_owned()), &group.log, Time(0), &mut told);
    gets.turn(&group.log, Time(0), &mut told);
    assert_eq!(told.answers, [(7, group.log.acked().0, "1 old".to_owned())]);
}

#[test]
fn what_nobody_can_give_is_asked_for_again_and_given_up() {
    let group = with_a_closed_segment();
    let (mut gets, mut told) = (Gets::new(), Told::default());
    gets.take(7, what(&group, "a"), Time(0));
    for (round, now) in [0, 100, 200].into_iter().enumerate() {
        gets.turn(&group.log, Time(now), &mut told);
        gets.turn(&group.log, Time(now + 99), &mut told);
        assert_eq!(told.wanted.len(), round + 1, "with a pause");
        gets.fetched(told.wanted[round].0, Err("b0: it is corrupt".to_owned()), &group.log, Time(now), &mut told);
    }
    assert!(told.answers.is_empty());
    gets.turn(&group.log, Time(PATIENCE), &mut told);
    assert_eq!(told.answers[0].2, "the value could not be read within 5 s: b0: it is corrupt");
    // What comes of the last fetch is for nobody.
    gets.fetched(told.wanted[3].0, Ok(b"old"), &group.log, Time(PATIENCE), &mut told);
    assert_eq!(told.answers.len(), 1);
}

#[test]
fn fetches_are_bounded_and_closed_clients_forgotten() {
    let group = with_a_closed_segment();
    let (mut gets, mut told) = (Gets::new(), Told { is_busy: true, ..Told::default() });
    (0..FETCHES_MAX as u32 + 2).for_each(|get| gets.take(get, what(&group, "a"), Time(0)));
    gets.turn(&group.log, Time(0), &mut told);
    assert!(told.wanted.is_empty(), "they wait until somebody can fetch");
    told.is_busy = false;
    gets.turn(&group.log, Time(0), &mut told);
    assert_eq!(told.wanted.len(), FETCHES_MAX);
    gets.retain(|get| *get != 0);
    gets.fetched(told.wanted[0].0, Ok(b"old"), &group.log, Time(0), &mut told);
    assert!(told.answers.is_empty(), "its client is gone");
    gets.turn(&group.log, Time(0), &mut told);
    assert_eq!((told.wanted.len(), gets.len()), (FETCHES_MAX + 1, FETCHES_MAX + 1));
    assert_eq!(gets.end().count(), FETCHES_MAX + 1);
}
