//! Results as files, beside the page that is drawn of them: `run.json` says when, where and by whom, and `NAME.tsv` has the
//! figures of a comparison, a line for each contestant, case and round.
//!
//! Written after each comparison, read by a run that continues an earlier one and by [`report`](crate::report). Tables open in
//! any spreadsheet, and what differs between two runs is seen line by line.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use strum::IntoEnumIterator;

use crate::gate;
use crate::results::{About, Comparison, Figures, Metric, Results, Sample};

/// Raised when older files can no longer be read.
const FORMAT: u32 = 2;
const RUN: &str = "run.json";
/// The first columns of a table; a column for each metric follows.
const KEYS: [&str; 4] = ["case", "contestant", "at", "round"];

/// `run.json`.
#[derive(Serialize, Deserialize)]
struct Run {
    format: u32,
    about: About,
    comparisons: Vec<Comparison>,
}

impl Results {
    /// Writes the files into a folder; those of an earlier run go.
    pub(crate) fn save(&self, folder: &Path) -> Result<()> {
        make_folder(folder)?;
        remove(folder, "tsv", |name| name != gate::TABLE)?;
        for comparison in &self.comparisons {
            write(&folder.join(format!("{}.tsv", comparison.name)), &table(comparison))?;
        }
        let run = Run { format: FORMAT, about: self.about.clone(), comparisons: self.comparisons.clone() };
        let text = serde_json::to_string_pretty(&run).context("write the results as JSON")?;
        write(&folder.join(RUN), &(text + "\n"))
    }

    /// Reads what [`save`](Results::save) has written; `None` if there is nothing.
    pub(crate) fn load(folder: &Path) -> Result<Option<Results>> {
        let path = folder.join(RUN);
        if !path.exists() {
            return Ok(None);
        }
        let run: Run = serde_json::from_str(&read(&path)?)
            .with_context(|| format!("{} does not describe a run of ./bench", path.display()))?;
        ensure!(
            run.format == FORMAT,
            "{} has format {}, and this program reads format {FORMAT}: run ./bench again",
            path.display(),
            run.format
        );
        let mut comparisons = run.comparisons;
        for comparison in &mut comparisons {
            let path = folder.join(format!("{}.tsv", comparison.name));
            comparison.samples = samples(&read(&path)?).with_context(|| format!("understand {}", path.display()))?;
        }
        Ok(Some(Results { about: run.about, comparisons }))
    }
}

pub(crate) fn table(comparison: &Comparison) -> String {
    let samples = &comparison.samples;
    let metrics: Vec<Metric> = Metric::iter().filter(|m| samples.iter().any(|s| s.figures.contains_key(m))).collect();
    let mut out = KEYS.into_iter().chain(metrics.iter().map(|metric| metric.title())).collect::<Vec<_>>().join("\t");
    out.push('\n');
    for Sample { contestant, case, at, round, figures } in samples {
        let _ = write!(out, "{case}\t{contestant}\t{}\t{round}", at.map(digits).unwrap_or_default());
        for metric in &metrics {
            let _ = write!(out, "\t{}", figures.get(metric).copied().map(digits).unwrap_or_default());
        }
        out.push('\n');
    }
    out
}

pub(crate) fn samples(text: &str) -> Result<Vec<Sample>> {
    let mut lines = text.lines();
    let heads: Vec<&str> = lines.next().unwrap_or_default().split('\t').collect();
    ensure!(heads.starts_with(&KEYS), "the first columns are not {}", KEYS.join(", "));
    let metric = |title: &&str| {
        Metric::iter().find(|metric| metric.title() == *title).with_context(|| format!("column `{title}` is unknown"))
    };
    let metrics: Vec<Metric> = heads[KEYS.len()..].iter().map(metric).collect::<Result<_>>()?;
    lines.map(|line| sample(line, &metrics).with_context(|| format!("line `{line}`"))).collect()
}

fn sample(line: &str, metrics: &[Metric]) -> Result<Sample> {
    let cells: Vec<&str> = line.split('\t').collect();
    ensure!(cells.len() == KEYS.len() + metrics.len(), "has {} cells", cells.len());
    let number = |cell: &str| cell.parse::<f64>().with_context(|| format!("`{cell}` is not a number"));
    let mut figures = Figures::new();
    for (metric, cell) in metrics.iter().zip(&cells[KEYS.len()..]).filter(|(_, cell)| !cell.is_empty()) {
        figures.insert(*metric, number(cell)?);
    }
    Ok(Sample {
        case: cells[0].to_owned(),
        contestant: cells[1].to_owned(),
        at: if cells[2].is_empty() { None } else { Some(number(cells[2])?) },
        round: cells[3].parse().with_context(|| format!("`{}` is not a round", cells[3]))?,
        figures,
    })
}

/// The digits that a measurement is worth: five significant ones.
pub(crate) fn digits(value: f64) -> String {
    let decimals = if value == 0.0 { 0 } else { (4 - value.abs().log10().floor() as i32).clamp(0, 12) as usize };
    let text = format!("{value:.decimals$}");
    if decimals > 0 { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make the folder {}", folder.display()))
}

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Removes files of a kind: what an earlier run had and this one does not would stay forever.
pub(crate) fn remove(folder: &Path, extension: &str, chosen: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?.flatten() {
        let is_chosen = entry.file_name().to_str().is_some_and(&chosen);
        if is_chosen && entry.path().extension() == Some(extension.as_ref()) {
            fs::remove_file(entry.path()).with_context(|| format!("remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;

    #[test]
    fn results_survive_being_saved() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Results::load(folder.path()).unwrap(), None, "nothing is there");
        example::results().save(folder.path()).unwrap();
        assert_eq!(Results::load(folder.path()).unwrap(), Some(example::results()));
    }

    #[test]
    fn tables_of_an_earlier_run_go() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("old.tsv"), "").unwrap();
        fs::write(folder.path().join("notes.md"), "").unwrap();
        fs::write(folder.path().join(gate::TABLE), "").unwrap();
        example::results().save(folder.path()).unwrap();
        assert!(!folder.path().join("old.tsv").exists());
        assert!(folder.path().join("notes.md").exists() && folder.path().join(gate::TABLE).exists());
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let error = |file: &str, from: &str, to: &str| {
            example::results().save(folder.path()).unwrap();
            let path = folder.path().join(file);
            fs::write(&path, fs::read_to_string(&path).unwrap().replacen(from, to, 1)).unwrap();
            format!("{:#}", Results::load(folder.path()).unwrap_err())
        };
        let newer = error(RUN, &format!("\"format\": {FORMAT}"), "\"format\": 99");
        assert!(newer.contains("has format 99") && newer.contains("run ./bench again"), "{newer}");
        assert!(error(RUN, "{", "").contains("does not describe a run of ./bench"));
        assert!(error("peers.tsv", "records/s", "records").contains("column `records` is unknown"));
        assert!(error("peers.tsv", "\t1\t", "\tone\t").contains("is not a"));
        assert!(error("peers.tsv", "\t1\t", "\t").contains("cells"));
    }

    #[test]
    fn figures_have_five_digits() {
        for (value, text) in
            [(0.0, "0"), (0.000_123_456_7, "0.00012346"), (1.5, "1.5"), (13.74567, "13.746"), (2_261_155.4, "2261155")]
        {
            assert_eq!(digits(value), text);
        }
    }
}
