//! A budget of seeds: the kept ones first, then from 0 on.
//!
//! A few in every run of the tests. `scripts/mutants.sh` asks for more: to it this is the last judge of a mutant, when the
//! tests of the protocol crate have found nothing.

use std::time::Duration;

use tailwind_sim::plan::Fixed;
use tailwind_sim::runner::{Wanted, kept, play, play_many};

/// Seeds from 0 on, where `TAILWIND_SIM_SEEDS` does not say how many: a few seconds.
const SEEDS: u64 = 30;

#[test]
fn budget_seeds_break_no_rule() {
    for kept in include_str!("../seeds.txt").lines().filter_map(kept) {
        let (seed, fixed) = kept.expect("a line begins with a seed");
        let played = play(seed, false, fixed);
        assert!(played.end.is_ok(), "seed {seed}: {:?}", played.end);
    }
    let count = match std::env::var("TAILWIND_SIM_SEEDS") {
        Ok(count) => count.parse().expect("TAILWIND_SIM_SEEDS is a number"),
        Err(_) => SEEDS,
    };
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let outcome = play_many(
        &Wanted { first: 0, count, time: Duration::MAX, jobs, broken_max: 1, fixed: Fixed::default() },
        |_| {},
    );
    assert!(outcome.broken.is_empty(), "{:?}", outcome.broken);
}
