//! `./bench --gate`: this build beside a named commit, in pairs of measurements that follow one another, and what became worse
//! beyond noise.
//!
//! [`run()`] has two [`probe`]s measure the [`cases`] in turns, one for each build, and [`decision`] judges the pairs. The result is
//! kept beside the other data; [`report`](crate::report) shows it in the first lines of the page.

mod cases;
mod decision;
mod probe;
mod run;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::data;
use crate::results::{About, Comparison, Metric};
use crate::statistics::{Summary, quotients};

pub(crate) use decision::{DOUBT, Judged, NOTICED, PAIRS_MIN, Verdict};
pub(crate) use probe::serve;
pub(crate) use run::{Today, run};

pub(crate) const ABOUT: &str = "This build (*after*) beside a named commit (*before*). In each round both start groups of 3 backups, \
    each case is measured by both, one right after the other, and who comes first alternates. *One append* is a client that \
    waits for each answer (128 B), and sleeps or polls meanwhile; *pipelined* is one client with 2048 records of 100 B in \
    flight; *64 clients* wait for each answer (128 B); *failover* is the time from the kill of the primary to the first ack at the \
    standby, default time-outs.";

/// Raised when older files can no longer be read.
const FORMAT: u32 = 1;
const HEAD: &str = "gate.json";
pub(crate) const TABLE: &str = "gate.tsv";
/// The two contestants.
const BEFORE: &str = "before";
const AFTER: &str = "after";

/// A commit of the repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Commit {
    pub(crate) hash: String,
    pub(crate) subject: String,
}

impl Commit {
    /// `HASH SUBJECT`.
    pub(crate) fn parse(text: &str) -> Result<Commit> {
        let (hash, subject) = text.split_once(' ').unwrap_or((text, ""));
        ensure!(hash.len() >= 7 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "`{hash}` is not a commit");
        Ok(Commit { hash: hash.to_owned(), subject: subject.to_owned() })
    }

    pub(crate) fn short(&self) -> &str {
        &self.hash[..7]
    }
}

/// A build of the named commit: its programs, as far as it has them.
#[derive(Clone, Debug)]
pub(crate) struct Earlier {
    pub(crate) commit: Commit,
    pub(crate) folder: PathBuf,
}

/// The program that puts the load on the named commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Driver {
    /// Its own `./bench`, with its own client library.
    Own,
    /// This build's, as that of the commit cannot be asked: what the client library costs is the same on both sides.
    Todays,
}

/// What a comparison with a named commit has shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gate {
    format: u32,
    pub(crate) about: About,
    pub(crate) against: Commit,
    pub(crate) driver: Driver,
    /// Why there is no comparison, if there is none.
    pub(crate) impossible: Option<String>,
    pub(crate) comparison: Comparison,
}

/// A figure of a case, before and after.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) metric: Metric,
    pub(crate) before: Summary,
    pub(crate) after: Summary,
    pub(crate) judged: Judged,
}

/// What the gate does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    NoWorse,
    Worse,
    /// The commit cannot be measured, or half of the figures or more are lost in noise.
    None,
}

impl Gate {
    pub(crate) fn new(about: About, against: Commit) -> Gate {
        let comparison = Comparison { name: "gate".to_owned(), ..Comparison::default() };
        Gate { format: FORMAT, about, against, driver: Driver::Own, impossible: None, comparison }
    }

    /// Each figure that both have.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let row = |(case, metric): (&str, Metric)| {
            let of = |contestant| self.comparison.figures(contestant, case, metric);
            let (before, after) = (of(BEFORE), of(AFTER));
            let worse = if metric.more_is_better() { quotients(&before, &after) } else { quotients(&after, &before) };
            Some(Row {
                case: case.to_owned(),
                metric,
                before: Summary::of(before.into_values())?,
                after: Summary::of(after.into_values())?,
                judged: Judged::of(worse.into_values())?,
            })
        };
        cases::figures().filter_map(row).collect()
    }

    /// Figures that became worse beyond noise.
    pub(crate) fn regressions(&self) -> Vec<Row> {
        self.rows().into_iter().filter(|row| row.judged.verdict == Verdict::Worse).collect()
    }

    /// Figures that vary too much to exclude that they became worse, and of how many.
    pub(crate) fn unclear(&self) -> (usize, usize) {
        let rows = self.rows();
        (rows.iter().filter(|row| row.judged.verdict == Verdict::Unclear).count(), rows.len())
    }

    /// The overall answer.
    pub(crate) fn answer(&self) -> Answer {
        let (unclear, all) = self.unclear();
        match self {
            Gate { impossible: Some(_), .. } => Answer::None,
            gate if !gate.regressions().is_empty() => Answer::Worse,
            _ if 2 * unclear >= all => Answer::None,
            _ => Answer::NoWorse,
        }
    }

    /// True if nothing was shortened.
    pub(crate) fn is_whole(&self) -> bool {
        self.about.rounds >= ROUNDS && self.about.effort >= 100
    }

    pub(crate) fn save(&self, folder: &Path) -> Result<()> {
        data::make_folder(folder)?;
        let head = serde_json::to_string_pretty(self).context("write the comparison as JSON")?;
        data::write(&folder.join(HEAD), &(head + "\n"))?;
        data::write(&folder.join(TABLE), &data::table(&self.comparison))
    }

    /// Reads what [`save`](Gate::save) has written; `None` if there is nothing.
    pub(crate) fn load(folder: &Path) -> Result<Option<Gate>> {
        let (head, table) = (folder.join(HEAD), folder.join(TABLE));
        if !head.exists() {
            return Ok(None);
        }
        let mut gate: Gate = serde_json::from_str(&data::read(&head)?)
            .with_context(|| format!("{} does not describe a run of ./bench --gate", head.display()))?;
        ensure!(
            gate.format == FORMAT,
            "{} has format {}, and this program reads format {FORMAT}: run ./bench --gate again",
            head.display(),
            gate.format
        );
        gate.comparison.samples =
            data::samples(&data::read(&table)?).with_context(|| format!("understand {}", table.display()))?;
        Ok(Some(gate))
    }
}

/// Pairs of each figure, unless another number is asked for: enough for two that point the wrong way.
pub(crate) const ROUNDS: u32 = 13;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;

    #[test]
    fn a_comparison_survives_being_saved() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Gate::load(folder.path()).unwrap(), None, "nothing is there");
        let gate = example::gate();
        gate.save(folder.path()).unwrap();
        assert_eq!(Gate::load(folder.path()).unwrap(), Some(gate));
    }

    #[test]
    fn what_takes_longer_and_what_does_less_are_worse() {
        let rows = example::gate().regressions();
        let found: Vec<_> = rows.iter().map(|row| (row.case.as_str(), row.metric)).collect();
        assert_eq!(found, [("tcp, one append, client polls", Metric::P50), ("tcp, 64 clients", Metric::Rate)]);
        assert!(rows.iter().all(|row| row.judged.factor > NOTICED));
    }

    #[test]
    fn a_gate_that_saw_little_gives_no_answer() {
        let mut gate = example::gate();
        assert_eq!(gate.answer(), Answer::Worse);
        gate.comparison.samples.retain(|sample| sample.case.starts_with("shm"));
        assert_eq!((gate.unclear(), gate.answer()), ((1, 3), Answer::NoWorse));
        gate.comparison.samples.retain(|sample| sample.case != "shm, pipelined");
        assert_eq!((gate.unclear(), gate.answer()), ((1, 2), Answer::None));
        gate.comparison.samples.clear();
        assert_eq!(gate.answer(), Answer::None);
        assert_eq!(Gate { impossible: Some("why".to_owned()), ..example::gate() }.answer(), Answer::None);
    }

    #[test]
    fn commits_are_named_by_hash_and_subject() {
        let commit = Commit::parse("0123456789abcdef a subject").unwrap();
        assert_eq!((commit.short(), commit.subject.as_str()), ("0123456", "a subject"));
        assert!(Commit::parse("main").is_err());
    }
}
