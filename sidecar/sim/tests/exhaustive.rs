//! The exhaustive model, run to its end; and environments that are wrong on purpose, which it must notice.

use tailwind_sim::model::{self, Outcome, Progress, SCENARIOS, Scenario, Wrong};

#[expect(clippy::print_stdout, reason = "the number of states is what a reader of the test wants to see")]
fn print(progress: &Progress<'_>) {
    if let Progress::Ended(outcome) = progress {
        println!("{outcome}");
    }
}

fn named(name: &str) -> Scenario {
    Scenario::named(name).expect("a scenario of the model")
}

fn explore(scenario: Scenario) -> Outcome {
    model::run(&[scenario], |progress| print(&progress)).remove(0)
}

#[test]
fn every_state_is_safe_and_recovers() {
    let outcomes = model::run(SCENARIOS, |progress| print(&progress));
    let found = outcomes.iter().filter(|outcome| outcome.counterexample.is_some()).count();
    assert_eq!(found, 0, "a counterexample is printed above");
    assert!(outcomes.iter().all(|outcome| outcome.exhausted), "a scenario is too large for the model's bound");
    assert_eq!(outcomes.len(), SCENARIOS.len());
}

/// The model finds out that the environment is wrong, by this rule, and ends with the line that shows it.
fn bites(scenario: Scenario, wrong: Wrong, rule: &str) {
    let outcome = explore(scenario.with(wrong));
    let counterexample = outcome.counterexample.expect("the model notices a wrong environment");
    assert!(counterexample.rule.contains(rule), "{counterexample}");
    assert!(!counterexample.lines.is_empty());
}

#[test]
fn detects_a_fence_without_revocation() {
    bites(named("zombie"), Wrong::FenceWithoutRevoke, "S4");
}

#[test]
fn detects_a_forgotten_promise() {
    let scenario = Scenario { rival: true, ..named("backup restarts") };
    bites(scenario, Wrong::PromiseForgotten, "S5");
}

#[test]
fn detects_acks_by_one_member() {
    bites(named("plain"), Wrong::OneCompletionForAll, "S8");
}

#[test]
fn detects_completions_before_the_bytes() {
    bites(named("plain"), Wrong::CompletionBeforeLanding, "S8");
}

#[test]
fn detects_swaps_without_comparison() {
    bites(named("zombie"), Wrong::SwapWithoutCompare, "S");
}

#[test]
fn detects_a_scan_without_checksums() {
    bites(named("crash"), Wrong::ScanWithoutChecksums, "S3");
}

#[test]
fn detects_boards_before_acks() {
    bites(named("followed, crash"), Wrong::BoardBeforeAck, "S3: a follower hands out");
}

#[test]
fn detects_unreported_memory_loss() {
    bites(named("memory lost"), Wrong::MemoryLossUnnoticed, "S8");
}
