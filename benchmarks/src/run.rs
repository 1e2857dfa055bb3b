//! One run: the comparisons that were chosen, one after the other, and what each of them needs from the outside.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::comparisons::Definition;
use crate::machine;
use crate::options::Options;
use crate::ours::{Ours, Shape};
use crate::results::{Absent, Comparison, Contestant, Figures, Sample};

/// How long one measurement takes at full effort.
const MEASUREMENT: Duration = Duration::from_secs(2);

/// What a comparison gets, and where it leaves its figures.
pub(crate) struct Run<'a> {
    pub(crate) options: &'a Options,
    pub(crate) program: PathBuf,
    progress: &'a ProgressBar,
    comparison: Comparison,
    round: u32,
}

/// Runs one comparison.
pub(crate) fn run(
    definition: &Definition,
    program: PathBuf,
    options: &Options,
    progress: &ProgressBar,
) -> Result<Comparison> {
    progress.set_message(format!("{}: starting", definition.name));
    let comparison =
        Comparison { name: definition.name.to_owned(), busy_before: machine::busy(), ..Comparison::default() };
    let mut run = Run { options, program, progress, comparison, round: 0 };
    (definition.run)(&mut run).with_context(|| format!("comparison {}", definition.name))?;
    Ok(run.comparison)
}

/// A bar over all rounds of all comparisons; it shows on terminals only.
pub(crate) fn progress(rounds: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("[{elapsed}, {eta} left] {bar:20} {pos}/{len} rounds  {wide_msg}");
    ProgressBar::new(rounds).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

impl Run<'_> {
    /// Rounds of this run, each noted as it begins.
    pub(crate) fn rounds(&mut self, mut measure: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        for round in 1..=self.options.rounds() {
            self.round = round;
            self.comparison.load.push(machine::load());
            measure(self).with_context(|| format!("round {round}"))?;
            self.progress.inc(1);
        }
        Ok(())
    }

    /// How long a measurement shall take that usually takes two seconds.
    pub(crate) fn time(&self) -> Duration {
        MEASUREMENT * self.options.effort() / 100
    }

    /// The round that is under way.
    pub(crate) fn round(&self) -> u32 {
        self.round
    }

    /// Says what is going on.
    pub(crate) fn say(&self, what: impl Display) {
        let (name, round, rounds) = (&self.comparison.name, self.round, self.options.rounds());
        self.progress.set_message(format!("{name}, round {round} of {rounds}: {what}"));
    }

    /// A contestant takes part.
    pub(crate) fn enter(&mut self, contestant: Contestant) {
        self.comparison.contestants.push(contestant);
    }

    /// A contestant cannot take part.
    pub(crate) fn absent(&mut self, name: &str, why: impl Display) {
        self.comparison.absent.push(Absent { name: name.to_owned(), why: why.to_string() });
    }

    /// Our group.
    pub(crate) fn ours(&mut self, name: &str, shape: &Shape) -> Result<Ours> {
        let ours = Ours::start(name, &self.program, &self.options.memory, shape)?;
        self.enter(ours.contestant());
        Ok(ours)
    }

    /// Notes what a contestant did in this round, and where the case stands on the axis of its plot.
    pub(crate) fn note(&mut self, contestant: &str, case: &str, at: Option<f64>, figures: Figures) {
        let (contestant, case) = (contestant.to_owned(), case.to_owned());
        self.comparison.samples.push(Sample { contestant, case, at, round: self.round, figures });
    }
}
