//! The command line.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Parser;

/// Measure Tailwind beside the limits of this machine and beside what else one would take.
///
/// The contestants of a comparison take turns in every round, and ratios are made within a round. Writes tables and plots
/// to docs/benchmarks.md and docs/benchmarks/.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench", max_term_width = 100)]
pub(crate) struct Options {
    /// Run this comparison only; repeat for several. --list names them
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Name the comparisons and stop
    #[arg(long)]
    pub(crate) list: bool,
    /// Rounds of each comparison [default: 5; with --quick 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: Option<u32>,
    /// One round, short measurements, the smaller sizes: less than 3 minutes. Writes to target/bench, unless --output says
    /// otherwise
    #[arg(long)]
    pub(crate) quick: bool,
    /// How long each measurement takes, in percent of the usual time [default: 100; with --quick 10]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) effort: Option<u32>,
    /// Go on with a run that was interrupted, on the same machine and with the same options: measure only the comparisons that
    /// its raw results lack
    #[arg(long, conflicts_with_all = ["list", "report_from"])]
    pub(crate) resume: bool,
    /// Another build of tailwind-sidecar that takes turns with this one in floors, peers, cpu and joining: judges a change in
    /// one run
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) beside: Option<PathBuf>,
    /// Folder for benchmarks.md, the plots and the raw results [default: target/bench; but a whole run writes its report to
    /// docs]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,
    /// Measure nothing: write the report from the raw results of an earlier run
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "list", "rounds", "quick", "effort", "beside"])]
    pub(crate) report_from: Option<PathBuf>,
    /// The sidecar program; found beside this one if not given
    #[arg(long, value_name = "PROGRAM", overrides_with = "program")]
    pub(crate) program: Option<PathBuf>,
    /// The same program with the cargo feature `baselines`, for the comparisons baselines, chain and neighbours
    #[arg(long, value_name = "PROGRAM", overrides_with = "two_sided")]
    pub(crate) two_sided: Option<PathBuf>,
    /// Folder in memory for the backups' buffers and what peers keep in memory
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm", overrides_with = "memory")]
    pub(crate) memory: PathBuf,
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

    pub(crate) fn effort(&self) -> u32 {
        self.effort.unwrap_or(if self.quick { 10 } else { 100 })
    }

    /// A run that is not whole is no replacement for the committed report.
    pub(crate) fn output(&self, whole: bool) -> PathBuf {
        self.output.clone().unwrap_or_else(|| if whole { "docs" } else { "target/bench" }.into())
    }

    /// Raw results lie beside the report, except that none are committed.
    pub(crate) fn raw(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| "target/bench".into()).join("results.json")
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
    fn only_a_whole_run_replaces_the_committed_report() {
        assert_eq!(parse(&[]).output(true), PathBuf::from("docs"));
        assert_eq!(parse(&["--quick"]).output(false), PathBuf::from("target/bench"));
        assert_eq!(parse(&[]).raw(), PathBuf::from("target/bench/results.json"));
        let told = parse(&["--quick", "--output", "here"]);
        assert_eq!((told.output(false), told.raw()), ("here".into(), "here/results.json".into()));
    }

    #[test]
    fn what_the_script_gives_can_be_given_again() {
        let given = parse(&["--memory", "/a", "--program", "b", "--memory", "/c", "--program", "d"]);
        assert_eq!((given.memory, given.program), ("/c".into(), Some("d".into())));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for bad in
            [&["--rounds", "0"][..], &["--rounds", "many"], &["--effort", "0"], &["--report-from", "f", "--quick"]]
        {
            assert!(Options::try_parse_from(["bench"].iter().chain(bad)).is_err(), "{bad:?}");
        }
    }
}
