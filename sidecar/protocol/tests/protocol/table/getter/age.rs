//! How old a view is said to be.

use super::*;

/// A get whose buckets are empty at this visit: whether the absence is told as stale.
fn is_stale(fixture: &mut Fixture, visit: Visit) -> bool {
    let mut told = None;
    let out = fixture.get(1, 0);
    assert!(is_reading(&out, visit, G1), "{out:?}");
    fixture.getter.step(fixture.now, Input::Buckets(visit, G1, &[0; 512]), &mut Vec::new(), |_, answer| {
        let Answer::Absent { stale, .. } = answer else { panic!("{answer:?}") };
        told = Some(stale);
    });
    told.expect("an answer")
}

/// A getter that has looked so often that it knows how old the view is.
fn looked_often(published: u64) -> Fixture {
    let mut fixture = Fixture::visiting(published);
    fixture.last = published;
    (0..5).for_each(|_| drop(fixture.next_look(V1, published)));
    fixture
}

#[test]
fn a_view_of_a_moment_ago_is_not_stale() {
    assert!(is_stale(&mut Fixture::visiting(0), V1), "nobody knows how old it is");
    assert!(!is_stale(&mut looked_often(0), V1));
}

#[test]
fn a_mirror_behind_the_one_before_is_stale() {
    let mut fixture = looked_often(1);
    fixture.step(Input::Broken(V1, "cut"));
    fixture.now += Duration::from_millis(25);
    let out = fixture.step(Input::Tick);
    fixture.arrive(&out, 0);
    assert!(is_stale(&mut fixture, V2), "record 1 was acknowledged long ago");
}
