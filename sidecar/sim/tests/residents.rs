//! Backups with residents: no rule is broken, and everything happens to them.

use tailwind_sim::plan::Fixed;
use tailwind_sim::runner::play;
use tailwind_sim::tally::{Fault, Tally};

/// Seeds that are played.
const SEEDS: u64 = 60;

#[test]
fn residents_break_no_rule_and_are_no_idle_ones() {
    let mut sum = Tally::default();
    for seed in 0..SEEDS {
        let played = play(seed, false, Fixed { residents: Some(true), ..Fixed::default() });
        sum.add(&played.end.unwrap_or_else(|broken| panic!("seed {seed}: {broken}")));
    }
    assert!(sum.loads > 20 && sum.from_residents > 200 && sum.residents_corrupt > 0, "too little has happened:\n{sum}");
    for fault in [Fault::ResidentRots, Fault::ResidentLost, Fault::LoadRefused] {
        assert!(sum.faults.contains_key(&fault), "{fault}: never\n{sum}");
    }
}
