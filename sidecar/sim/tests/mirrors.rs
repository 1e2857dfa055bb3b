//! Tables whose index is mirrored: no rule is broken, and everything happens in them.

use tailwind_protocol::config::Kind;
use tailwind_sim::plan::Fixed;
use tailwind_sim::runner::play;
use tailwind_sim::tally::Tally;

/// Seeds that are played.
const SEEDS: u64 = 40;

#[test]
fn mirrors_and_getters_break_no_rule_and_are_no_idle_ones() {
    let mut sum = Tally::default();
    for seed in 0..SEEDS {
        let fixed = Fixed { kind: Some(Kind::Table), mirrors: Some(true), ..Fixed::default() };
        let played = play(seed, false, fixed);
        sum.add(&played.end.unwrap_or_else(|broken| panic!("seed {seed}: {broken}")));
    }
    let Tally { rounds, reopened, visits, got, got_absent, handed_over, got_records, got_fetched, .. } = sum;
    for count in [rounds, visits, got, got_absent, got_records] {
        assert!(count > 300, "too little has happened:\n{sum}");
    }
    assert!(reopened > 0 && handed_over > 10 && got_fetched > 30, "too little has happened:\n{sum}");
}
