//! The comparison with a named commit: the first lines of the page, and the table.

use super::format::{line, number, range, wrap};
use crate::gate::{Answer, DOUBT, Driver, Gate, NOTICED, Row, Verdict};
use crate::results::Absent;

/// What became worse, in the first lines.
pub(crate) fn headline(gate: Option<&Gate>) -> String {
    let Some(gate) = gate else {
        return wrap(
            "**Not compared with an earlier commit yet.** `./bench --gate` measures this build beside the commit that \
             `benchmarks/baseline` names.",
        );
    };
    let commit = format!("commit `{}` ({})", gate.against.short(), gate.against.subject);
    if let Some(why) = &gate.impossible {
        return wrap(&format!("**Not compared with {commit}**, which cannot be measured: {}.", one_line(why)));
    }
    let (worse, (unclear, all)) = (gate.regressions(), gate.unclear());
    let mut rest = format!(
        "{all} figures were compared, in {} pairs of measurements each, on {}.",
        gate.about.rounds, gate.about.date
    );
    if unclear > 0 {
        let percent = (NOTICED - 1.0) * 100.0;
        let verb = if unclear == 1 { "varies" } else { "vary" };
        rest.push_str(&format!(" {unclear} of them {verb} too much to exclude a loss of {percent:.0} %."));
    }
    rest.push_str(" [All of them](#beside-the-earlier-commit).");
    if gate.answer() == Answer::None {
        return wrap(&format!("**The machine was too noisy to compare with {commit}.** {rest}"));
    }
    if worse.is_empty() {
        return wrap(&format!("**No figure is worse than at {commit} beyond noise.** {rest}"));
    }
    let verb = if worse.len() == 1 { "figure is" } else { "figures are" };
    let mut out = wrap(&format!("**{} {verb} worse than at {commit} beyond noise.** {rest}", worse.len()));
    out.push('\n');
    for row in &worse {
        let (before, after) = (number(row.before.median), number(row.after.median));
        let text = format!("- {}: {before} before, {after} now, {} worse", label(row), factor(row));
        out.push_str(&format!("\n{}", wrap(&text).replace('\n', "\n  ")));
    }
    out
}

pub(super) fn table(out: &mut String, gate: &Gate) {
    if gate.impossible.is_some() {
        return;
    }
    let mut how = format!(
        "Both builds measure each case one right after the other, {} times. The factor says how many times worse this build is than \
         {} ({}), with an interval that misses the truth in one of {:.0} cases. *Worse* is what is at least {} × worse, with \
         an interval above 1: then `./bench --gate` fails.",
        gate.about.rounds,
        gate.against.short(),
        gate.against.subject,
        0.5 / DOUBT,
        number(NOTICED)
    );
    if gate.driver == Driver::Todays {
        how.push_str(
            " The commit's own client cannot be asked, so both are driven by that of this build: what clients cost is not compared.",
        );
    }
    line!(out, "## Beside the earlier commit\n\n{}\n", wrap(&how));
    line!(out, "| figure | before | now | times worse | |\n|---|---|---|---|---|");
    for row in gate.rows() {
        let verdict = verdict(row.judged.verdict);
        let verdict = if row.judged.verdict == Verdict::Worse { format!("**{verdict}**") } else { verdict.to_owned() };
        line!(
            out,
            "| {} | {} | {} | {} | {verdict} |",
            label(&row),
            range(&row.before),
            range(&row.after),
            factor(&row)
        );
    }
    line!(out);
    if !gate.comparison.absent.is_empty() {
        line!(out, "{}\n", wrap(&format!("Missing: {}.", missing(&gate.comparison.absent))));
    }
}

/// What is missing, each reason once.
fn missing(absent: &[Absent]) -> String {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for Absent { name, why } in absent {
        let name = format!("*{name}*");
        match reasons.iter_mut().find(|(of, _)| of == why) {
            Some((_, names)) => names.push(name),
            None => reasons.push((why, vec![name])),
        }
    }
    let parts = reasons.into_iter().map(|(why, names)| format!("{} ({why})", names.join(", ")));
    parts.collect::<Vec<_>>().join("; ")
}

/// The same for a terminal.
pub(crate) fn rows(gate: &Gate) -> String {
    let line = |row: &Row| {
        let Row { before, after, .. } = row;
        let change = format!("{} -> {}", number(before.median), number(after.median));
        format!("{:<10}{:<22}{change:<26}{}\n", verdict(row.judged.verdict), factor(row), label(row))
    };
    let head = format!("{:<10}{:<22}{:<26}{}\n", "", "times worse", "before -> now", "figure");
    head + &gate.rows().iter().map(line).collect::<String>()
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Worse => "worse",
        Verdict::Better => "better",
        Verdict::NoWorse => "no worse",
        Verdict::Unclear => "unclear",
    }
}

fn label(row: &Row) -> String {
    format!("{}: {}", row.case, row.metric.title())
}

fn factor(row: &Row) -> String {
    let judged = &row.judged;
    format!("{} × ({}–{})", number(judged.factor), number(judged.low), number(judged.high))
}

fn one_line(text: &str) -> String {
    text.trim().trim_end_matches('.').replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_for_one_reason_stands_together() {
        let absent = |name: &str, why: &str| Absent { name: name.to_owned(), why: why.to_owned() };
        let all = [absent("ring, one", "too old"), absent("tcp", "no port"), absent("ring, two", "too old")];
        assert_eq!(missing(&all), "*ring, one*, *ring, two* (too old); *tcp* (no port)");
    }
}
