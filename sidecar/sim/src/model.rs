//! The exhaustive model: every order of events of a small group, over the machines that production runs.
//!
//! One log, two sidecars, two backups, two epochs, two records. Called by the test `tests/exhaustive.rs` and by
//! `tailwind-sim exhaust`; carried out by Stateright. Each [`Scenario`] is exhaustive within its budget of faults.
//!
//! Files, in the order in which a reader needs them: [`scenario`], [`state`], [`act`] (what may happen), [`step`] with
//! [`candidate`], [`lead`], [`fabric`] and [`host`] (what then happens), [`judge`] (what must hold), [`tidy`], [`reduce`] and
//! [`part`] (what makes it small), [`explore`].

mod act;
mod candidate;
mod explore;
mod fabric;
mod follow;
mod host;
mod judge;
mod lead;
mod names;
mod part;
mod reduce;
mod scenario;
mod state;
mod step;
mod tidy;
mod trusting;
mod words;

use std::fmt;
use std::time::Duration;

pub use scenario::{Budget, SCENARIOS, Scenario, Wrong};

/// Most transitions of a scenario: two minutes, and some 10 GiB. A scenario that reaches it is too large.
pub const TRANSITIONS_MAX: usize = 5_000_000;

/// What a run of the model found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The scenario's name.
    pub scenario: &'static str,
    /// Different states.
    pub states: usize,
    /// Transitions between them.
    pub transitions: usize,
    /// Events of the longest way to a state.
    pub depth: usize,
    /// States in which nothing happens any more and all is well.
    pub complete: usize,
    /// States in which nothing happens any more because the next claim would be beyond the bound of epochs.
    pub at_bound: usize,
    /// Every state within the scenario's budget was seen; otherwise the run ended at [`TRANSITIONS_MAX`], or at a
    /// counterexample.
    pub exhausted: bool,
    /// How long it took.
    pub took: Duration,
    /// The shortest way to a broken rule, or to a state that does not end well.
    pub counterexample: Option<Counterexample>,
}

/// A way to something that must not be, in the trace format of the simulator.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// What is wrong at its end.
    pub rule: String,
    /// `<who> <what>`, one line for each thing that happens.
    pub lines: Vec<String>,
}

/// How far a run of several scenarios is.
#[derive(Clone, Debug)]
pub enum Progress<'a> {
    /// This scenario begins.
    Begun(&'a Scenario),
    /// This one has ended.
    Ended(&'a Outcome),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { scenario, states, transitions, depth, complete, at_bound, .. } = self;
        let seconds = self.took.as_secs_f64();
        write!(f, "{scenario}: {states} states, {transitions} transitions, depth {depth}, ")?;
        write!(f, "ends {complete} complete and {at_bound} at the bound of epochs, {seconds:.1} s")?;
        if !self.exhausted && self.counterexample.is_none() {
            write!(f, ", NOT EXHAUSTED: it is larger than {TRANSITIONS_MAX} transitions")?;
        }
        match &self.counterexample {
            Some(counterexample) => write!(f, "\n{counterexample}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        write!(f, "broken: {}", self.rule)
    }
}

/// Runs the scenarios one after the other. Ends with the first that has a counterexample.
pub fn run(scenarios: &[Scenario], mut report: impl FnMut(Progress<'_>)) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for scenario in scenarios {
        report(Progress::Begun(scenario));
        let outcome = explore::Model::new(*scenario).explore();
        report(Progress::Ended(&outcome));
        let failed = outcome.counterexample.is_some();
        outcomes.push(outcome);
        if failed {
            break;
        }
    }
    outcomes
}
