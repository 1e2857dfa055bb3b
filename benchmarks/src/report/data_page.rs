//! `benchmarks/README.md`: of each table, how it was measured and which contestants took part.

use super::format::{cell_text, line, wrap};
use crate::comparisons;
use crate::gate::Gate;
use crate::results::{Comparison, Results};

const ABOUT: &str = "[The page of results](../benchmarks.md) is drawn from these tables. A line has the figures of one contestant \
    in one case and one round; `at` is the place of the case on the axis of a plot. Contestants of one round took turns: make \
    ratios within a round. An empty cell was not measured. `run.json` says when, where and by which command it was measured.";

pub(super) fn text(results: Option<&Results>, gate: Option<&Gate>) -> String {
    let mut out = String::new();
    line!(out, "<!-- Drawn by `./bench --render` from the data in this folder. Do not edit. -->");
    line!(out, "# Benchmark data\n\n{}\n", wrap(ABOUT));
    for comparison in results.iter().flat_map(|results| &results.comparisons) {
        let about = comparisons::find(&comparison.name).map(|definition| definition.about);
        section(&mut out, comparison, about.unwrap_or_default());
    }
    if let Some(results) = results {
        not_measured(&mut out, results);
    }
    if let Some(gate) = gate.filter(|gate| gate.impossible.is_none()) {
        section(&mut out, &gate.comparison, crate::gate::ABOUT);
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// The comparisons that there are, and that this run has no figures of.
fn not_measured(out: &mut String, results: &Results) {
    let missing: Vec<&str> =
        comparisons::ALL.iter().map(|c| c.name).filter(|name| results.comparison(name).is_none()).collect();
    if !missing.is_empty() {
        line!(out, "{}\n", wrap(&format!("**Not measured in this run**: {}.", missing.join(", "))));
    }
}

fn section(out: &mut String, comparison: &Comparison, about: &str) {
    let name = &comparison.name;
    line!(out, "## {name}\n\n[{name}.tsv]({name}.tsv)\n\n{}\n", wrap(about));
    let load: Vec<String> = comparison.load.iter().map(|load| format!("{load:.1}")).collect();
    let busy = format!(
        "Just before it began, {:.0} % of the processors were in use by others. Load average at the beginning of each round: {}.",
        comparison.busy_before * 100.0,
        load.join(", ")
    );
    line!(out, "{}\n", wrap(&busy));
    for absent in &comparison.absent {
        let why = format!("**{} is missing**: {}.", absent.name, absent.why.trim_end_matches('.'));
        line!(out, "{}\n", wrap(&why));
    }
    let described: Vec<_> = comparison.contestants.iter().filter(|c| !c.configuration.is_empty()).collect();
    if described.is_empty() {
        return;
    }
    line!(out, "| contestant | version | an answer says that the record is | configuration |\n|---|---|---|---|");
    for contestant in described {
        let cells = [&contestant.name, &contestant.version, &contestant.claim, &contestant.configuration];
        line!(out, "| {} |", cells.map(|text| cell_text(text)).join(" | "));
    }
    line!(out);
}
