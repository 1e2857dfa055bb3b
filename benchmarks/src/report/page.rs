//! `benchmarks.md`: what people read. What became slower comes first, then the targets, then a plot for each question.

use super::format::{cell_text, line, range, wrap};
use super::gate;
use super::sections::{self, Section};
use crate::gate::Gate;
use crate::machine::Machine;
use crate::results::{About, Results};
use crate::targets::{Verdict, verdicts};

pub(super) fn text(results: Option<&Results>, gate: Option<&Gate>, sections: &[Section]) -> String {
    let mut out = String::new();
    line!(out, "<!-- Drawn by `./bench --render` from the data in the folder benchmarks. Do not edit. -->");
    line!(out, "# Benchmarks\n\n{}\n", gate::headline(gate));
    if let Some(results) = results {
        targets(&mut out, &verdicts(results));
        for section in sections {
            line!(out, "## {}\n\n{}\n", section.heading, wrap(&section.says));
            line!(out, "![{}](benchmarks/{}.svg)\n", section.plot.title, section.plot.name);
            if let Some(table) = &section.table {
                line!(out, "{table}");
            }
        }
        sections::others(&mut out, results);
    }
    if let Some(gate) = gate {
        gate::table(&mut out, gate);
    }
    if let Some(results) = results {
        about(&mut out, results);
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn targets(out: &mut String, verdicts: &[Verdict]) {
    let reached = verdicts.iter().filter(|verdict| verdict.is_reached()).count();
    let measured = verdicts.iter().filter(|verdict| verdict.rounds > 0).count();
    let head = format!(
        "What the product wants to reach. {reached} of {measured} targets were reached in every round. Figures are medians over \
         the rounds, with the least and the greatest in brackets; there are 3 backups where nothing else is said."
    );
    line!(out, "## Targets\n\n{}\n\n| target | rounds that reached it | figure |\n|---|---|---|", wrap(&head));
    for verdict in verdicts {
        let rounds = match verdict {
            Verdict { rounds: 0, comparison, .. } => format!("not measured (`{comparison}`)"),
            Verdict { reached: 0, .. } => "**none**".to_owned(),
            verdict if verdict.is_reached() => "all".to_owned(),
            Verdict { reached, rounds, .. } => format!("**{reached} of {rounds}**"),
        };
        let figure = verdict.figure.as_ref().map(range).unwrap_or_default();
        line!(out, "| {} | {rounds} | {figure} |", verdict.text);
    }
    line!(out);
}

fn about(out: &mut String, results: &Results) {
    let (about, machine) = (&results.about, &results.about.machine);
    let head = format!(
        "The contestants of a comparison take turns in each of {} rounds, and ratios are made within a round. Across machines, \
         compare ratios only. Bands in the plots go from the least to the greatest round. [The data](benchmarks/README.md) have \
         each round's figures, and say how each comparison is made.",
        about.rounds
    );
    line!(out, "## How it was measured\n\n{}\n\n| | |\n|---|---|", wrap(&head));
    line!(out, "| command | `{}` |", cell_text(&about.command));
    if !about.revision.is_empty() {
        line!(out, "| commit | {} |", cell_text(&about.revision));
    }
    line!(out, "| date | {} |", about.date);
    line!(out, "| duration of each measurement | {} % of the usual |", about.effort);
    line!(out, "| machine | {} |", cell_text(&machine_text(machine)));
    for comparison in &results.comparisons {
        if let Some(apart) = &comparison.apart {
            line!(out, "| `{}`, apart | {} |", comparison.name, cell_text(&how(apart, machine)));
        }
    }
}

/// How a comparison was measured that was not measured with the rest.
fn how(apart: &About, machine: &Machine) -> String {
    let mut text = format!("{}, `{}`", apart.date, apart.command);
    if !apart.revision.is_empty() {
        text.push_str(&format!(", commit {}", apart.revision));
    }
    if apart.machine != *machine {
        text.push_str(&format!(", on another machine: {}", machine_text(&apart.machine)));
    }
    text
}

fn machine_text(machine: &Machine) -> String {
    let Machine { processor, processors, memory_gib, kernel, system } = machine;
    format!("{processor}, {processors} cores, {memory_gib:.1} GiB, Linux {kernel}, {system}")
}
