//! The command line.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Parser;

use crate::gate;

/// Measure Tailwind beside the limits of this machine, beside what else one would take, and beside an earlier commit.
///
/// The contestants of a comparison take turns in every round, and ratios are made within a round. Writes docs/benchmarks.md, a
/// page to read, and the data that it is drawn from to docs/benchmarks/.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench", max_term_width = 100)]
pub(crate) struct Options {
    /// Run this comparison only; repeat for several. --list names them
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Name the comparisons and stop
    #[arg(long)]
    pub(crate) list: bool,
    /// Compare with an earlier commit only, and fail if a figure became worse beyond noise: the exit code is 1, or 2 if there is no
    /// answer. Takes about 6 minutes, and as long as a build the first time
    #[arg(long, conflicts_with_all = ["only", "list", "quick", "resume", "render"])]
    pub(crate) gate: bool,
    /// The earlier commit [default: the one that benchmarks/baseline names]
    #[arg(long, value_name = "COMMIT", conflicts_with_all = ["only", "list", "quick"])]
    pub(crate) against: Option<String>,
    /// Rounds of each comparison [default: 5; with --quick 1; with --gate 13, at least 9]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: Option<u32>,
    /// One round, short measurements, the smaller sizes, no comparison with an earlier commit: less than 3 minutes. Writes to
    /// target/bench, unless --output says otherwise
    #[arg(long)]
    pub(crate) quick: bool,
    /// How long each measurement takes, in percent of the usual time [default: 100; with --quick 10]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) effort: Option<u32>,
    /// Resume a run that was interrupted, on the same machine and with the same options: measure only the comparisons that are not
    /// in its data
    #[arg(long, conflicts_with_all = ["list", "render"])]
    pub(crate) resume: bool,
    /// Folder for benchmarks.md, and the data and plots in a folder beside it [default: target/bench; but what a whole run has
    /// measured goes to docs]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,
    /// Put what is measured into the pages in docs, or in the folder of --output, in place of the comparisons of these names. The
    /// pages say how each of them was measured
    #[arg(long, requires = "only", conflicts_with_all = ["list", "quick", "resume", "render"])]
    pub(crate) update: bool,
    /// Measure nothing: draw the pages in docs, or in the folder of --output, from the data beside them
    #[arg(long, conflicts_with_all = ["only", "list", "rounds", "quick", "effort", "against"])]
    pub(crate) render: bool,
    /// The sidecar program; found beside this one if not given
    #[arg(long, value_name = "PROGRAM", overrides_with = "program")]
    pub(crate) program: Option<PathBuf>,
    /// The same program with the feature `baselines` of tailwind-fabric, for the comparisons baselines, neighbours, tables
    /// and written
    #[arg(long, value_name = "PROGRAM", overrides_with = "two_sided")]
    pub(crate) two_sided: Option<PathBuf>,
    /// The commit that is measured
    #[arg(long, hide = true, value_name = "COMMIT", default_value = "", overrides_with = "revision")]
    pub(crate) revision: String,
    /// Folder with the programs of the earlier commit
    #[arg(long, hide = true, value_name = "FOLDER", overrides_with = "earlier")]
    pub(crate) earlier: Option<PathBuf>,
    /// Hash and subject of the earlier commit
    #[arg(long, hide = true, value_name = "COMMIT", overrides_with = "earlier_commit")]
    pub(crate) earlier_commit: Option<String>,
    /// Folder in memory for the backups' buffers and what peers keep in memory
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm", overrides_with = "memory")]
    pub(crate) memory: PathBuf,
    /// One side of the comparison with an earlier commit, which starts itself
    #[arg(long, hide = true)]
    pub(crate) probe: bool,
    /// The other side of a ping-pong over this socket. For the comparison `floors`, which starts itself
    #[arg(long, hide = true, value_name = "SOCKET")]
    pub(crate) echo: Option<PathBuf>,
    /// Nothing but using a processor. For the comparison `neighbours`, which starts itself
    #[arg(long, hide = true)]
    pub(crate) neighbour: bool,
    /// Poll instead of sleeping; with --echo
    #[arg(long, hide = true)]
    pub(crate) spin: bool,
}

impl Options {
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 5 })
    }

    /// Pairs of the comparison with an earlier commit.
    pub(crate) fn pairs(&self) -> Result<u32> {
        let pairs = self.rounds.filter(|_| self.gate).unwrap_or(gate::ROUNDS);
        let least = gate::PAIRS_MIN;
        ensure!(pairs >= least, "--rounds {pairs}: with --gate at least {least}, as fewer pairs can decide nothing");
        Ok(pairs)
    }

    pub(crate) fn effort(&self) -> u32 {
        self.effort.unwrap_or(if self.quick { 10 } else { 100 })
    }

    /// Whether to compare with an earlier commit: that is part of a whole run.
    pub(crate) fn compares_with_earlier(&self) -> bool {
        self.gate || (self.only.is_empty() && !self.quick)
    }

    /// What is not whole is no replacement for what is committed.
    pub(crate) fn output(&self, whole: bool) -> PathBuf {
        self.output.clone().unwrap_or_else(|| if whole { "docs" } else { "target/bench" }.into())
    }

    /// Where a run keeps its data until it is complete.
    pub(crate) fn raw(&self) -> PathBuf {
        self.output(false).join("benchmarks")
    }
}

/// Which of these to run, in their own order.
pub(crate) fn choose<'a>(names: &[&'a str], only: &[String]) -> Result<Vec<&'a str>> {
    for name in only {
        ensure!(names.contains(&name.as_str()), "no comparison is called `{name}`: there are {}", names.join(", "));
    }
    Ok(names.iter().filter(|name| only.is_empty() || only.iter().any(|only| only == *name)).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Options {
        Options::try_parse_from(["bench"].iter().chain(arguments)).unwrap()
    }

    #[test]
    fn unknown_comparisons_are_refused_with_all_names() {
        let names = ["floors", "cpu", "peers"];
        let only = |list: &[&str]| choose(&names, &list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(only(&[]).unwrap(), names);
        assert_eq!(only(&["peers", "floors", "peers"]).unwrap(), ["floors", "peers"]);
        let error = only(&["floor"]).unwrap_err().to_string();
        assert_eq!(error, "no comparison is called `floor`: there are floors, cpu, peers");
    }

    #[test]
    fn only_a_whole_run_replaces_the_committed_page() {
        assert_eq!(parse(&[]).output(true), PathBuf::from("docs"));
        assert_eq!(parse(&["--quick"]).output(false), PathBuf::from("target/bench"));
        assert_eq!(parse(&[]).raw(), PathBuf::from("target/bench/benchmarks"));
        let told = parse(&["--quick", "--output", "here"]);
        assert_eq!((told.output(false), told.raw()), ("here".into(), "here/benchmarks".into()));
    }

    #[test]
    fn a_whole_run_compares_with_an_earlier_commit() {
        assert!(parse(&[]).compares_with_earlier() && parse(&["--gate"]).compares_with_earlier());
        assert!(!parse(&["--quick"]).compares_with_earlier() && !parse(&["--only", "cpu"]).compares_with_earlier());
        assert_eq!(parse(&["--rounds", "5"]).pairs().unwrap(), gate::ROUNDS, "these are the rounds of the comparisons");
        assert_eq!(parse(&["--gate", "--rounds", "9"]).pairs().unwrap(), 9);
        let error = parse(&["--gate", "--rounds", "8"]).pairs().unwrap_err().to_string();
        assert_eq!(error, "--rounds 8: with --gate at least 9, as fewer pairs can decide nothing");
    }

    #[test]
    fn what_the_script_gives_can_be_given_again() {
        let given = parse(&["--memory", "/a", "--program", "b", "--memory", "/c", "--program", "d"]);
        assert_eq!((given.memory, given.program), ("/c".into(), Some("d".into())));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for bad in [&["--rounds", "0"][..], &["--rounds", "many"], &["--effort", "0"], &["--render", "--quick"]] {
            assert!(Options::try_parse_from(["bench"].iter().chain(bad)).is_err(), "{bad:?}");
        }
    }
}
