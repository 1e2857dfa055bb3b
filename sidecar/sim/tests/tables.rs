//! Groups that keep a table: no rule is broken, and everything happens in them.

use tailwind_protocol::config::Kind;
use tailwind_sim::plan::Fixed;
use tailwind_sim::runner::play;
use tailwind_sim::tally::Tally;

/// Seeds that are played.
const SEEDS: u64 = 60;

#[test]
fn tables_break_no_rule_and_are_no_idle_ones() {
    let mut sum = Tally::default();
    for seed in 0..SEEDS {
        let played = play(seed, false, Fixed { kind: Some(Kind::Table), ..Fixed::default() });
        sum.add(&played.end.unwrap_or_else(|broken| panic!("seed {seed}: {broken}")));
    }
    let Tally { applied, mismatches_told, full, waits, folded, warm, judged, moved, cleaned, .. } = sum;
    let Tally { gets, records_fetched, copies_fetched, .. } = sum;
    for count in [applied, mismatches_told, full, waits, judged, gets, records_fetched] {
        assert!(count > 1000, "too little has happened:\n{sum}");
    }
    for count in [folded, warm, moved, cleaned, copies_fetched] {
        assert!(count > 30, "too little has happened:\n{sum}");
    }
}

#[test]
fn a_third_of_the_seeds_are_tables() {
    let is_table = |seed: &u64| play(*seed, true, Fixed::default()).story.contains(" a table: ");
    let tables = (0..SEEDS).filter(is_table).count();
    assert!((10..=30).contains(&tables), "{tables} of {SEEDS}");
}
