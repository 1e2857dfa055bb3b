//! A seed has one story; and seeds of a kind that is seldom drawn.

use tailwind_sim::plan::Fixed;
use tailwind_sim::runner::{Wanted, kept, play, play_lying, play_many};
use tailwind_sim::world::Lie;

#[test]
fn same_seed_gives_same_story() {
    for seed in 0..40 {
        let (first, second) = (play(seed, true, Fixed::default()), play(seed, true, Fixed::default()));
        assert!(first.story.lines().count() > 20, "seed {seed} tells something");
        for (nth, (a, b)) in first.story.lines().zip(second.story.lines()).enumerate() {
            assert_eq!(a, b, "seed {seed}, line {nth}");
        }
        assert_eq!((&first.story, &first.end), (&second.story, &second.end), "seed {seed}");
    }
}

#[test]
fn a_kept_line_plays_the_seed_that_it_was_made_of() {
    for seed in 0..24 {
        let played = play(seed, false, Fixed::default());
        let (again, fixed) = kept(&format!("{} S1: why", played.kept_as)).unwrap().unwrap();
        assert_eq!((again, play(again, false, fixed).end), (seed, played.end), "{}", played.kept_as);
    }
}

#[test]
fn tracing_changes_nothing() {
    for seed in 0..20 {
        assert_eq!(play(seed, true, Fixed::default()).end, play(seed, false, Fixed::default()).end, "seed {seed}");
    }
}

#[test]
fn different_seeds_differ() {
    assert_ne!(play(1, true, Fixed::default()).story, play(2, true, Fixed::default()).story);
}

#[test]
fn totals_are_sums_over_seeds() {
    let wanted = Wanted {
        first: 0,
        count: 12,
        time: std::time::Duration::MAX,
        jobs: 2,
        broken_max: 20,
        fixed: Fixed::default(),
    };
    let together = play_many(&wanted, |_| {});
    let mut alone = tailwind_sim::tally::Tally::default();
    (0..12).filter_map(|seed| play(seed, false, Fixed::default()).end.ok()).for_each(|tally| alone.add(&tally));
    assert_eq!(together.tally, alone);
}

/// One seed of twelve has a liar among three members.
#[test]
fn one_liar_of_three_breaks_no_rule() {
    for seed in 0..24 {
        assert_eq!(play_lying(seed, Lie::LaterEpoch).end.err(), None, "seed {seed}");
    }
}
