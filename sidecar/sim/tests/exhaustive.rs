//! The exhaustive model, run to its end; and environments that are wrong on purpose, which it must notice.

use tailwind_sim::model::{self, Progress, SCENARIOS};

#[test]
#[expect(clippy::print_stdout, reason = "the number of states is what a reader of the test wants to see")]
fn every_state_keeps_the_rules_and_ends_well() {
    let only = std::env::var("ONLY").ok();
    let picked: Vec<_> = SCENARIOS
        .iter()
        .filter(|s| only.as_ref().is_none_or(|only| only.split(',').any(|o| o == s.name)))
        .copied()
        .collect();
    let outcomes = model::run(&picked, |progress| {
        if let Progress::Ended(outcome) = progress {
            println!("{outcome}");
        }
    });
    let found = outcomes.iter().filter(|outcome| outcome.counterexample.is_some()).count();
    assert_eq!(found, 0, "a counterexample is printed above");
}
