//! The plots that there are of a comparison; [`draw()`] makes pictures of them.

mod draw;

use std::collections::BTreeMap;

pub(crate) use draw::draw;

use crate::comparisons::WRITES;
use crate::report::group_of;
use crate::results::{Comparison, Metric, Sample};
use crate::statistics::Summary;

/// A plot, and its title.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) content: Content,
}

/// What a plot shows.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Lines over two axes.
    Lines { x: Axis, y: Axis, lines: Vec<Line> },
    /// A bar for each row, made of parts.
    Bars { x: &'static str, parts: Vec<&'static str>, rows: Vec<(String, Vec<f64>)> },
}

/// An axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) title: &'static str,
    pub(crate) scale: Scale,
}

/// How an axis runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    Logarithmic,
    /// A share of answers from 0 to 1, where each step is a tenth of what is left: 90 %, 99 %, 99.9 %.
    Nines,
}

/// A line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Plot {
    /// Its title in lower case with dashes.
    pub(crate) fn file_name(&self) -> String {
        let dashed: String =
            self.title.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
        let words: Vec<&str> = dashed.split('-').filter(|word| !word.is_empty()).collect();
        format!("{}.svg", words.join("-"))
    }
}

/// The plots of a comparison.
pub(crate) fn plots(comparison: &Comparison) -> Vec<Plot> {
    let mut plots = distributions(comparison);
    match comparison.name.as_str() {
        "peers" => plots.extend([Metric::P50, Metric::P99].map(|metric| throughput(comparison, metric))),
        "cpu" => plots.push(processor_time(comparison)),
        "scale" => plots.extend(costs(comparison)),
        "recovery" => plots.push(recovery(comparison)),
        "baselines" => {
            plots.extend(paper(comparison));
            plots.push(recovery(comparison));
        }
        "neighbours" => plots.push(by_case(
            comparison,
            "p99 with noisy neighbours",
            "neighbours",
            (Axis { title: "neighbours and one", scale: Scale::Logarithmic }, |sample| Some(sample.at? + 1.0)),
            (Metric::P99.axis(), |sample| sample.figures.get(&Metric::P99).copied()),
        )),
        _ => {}
    }
    plots.retain(|plot| match &plot.content {
        Content::Lines { lines, .. } => lines.iter().any(|line| !line.points.is_empty()),
        Content::Bars { rows, .. } => !rows.is_empty(),
    });
    plots
}

/// Open loop: what an answer takes at the rate that was answered.
fn throughput(comparison: &Comparison, metric: Metric) -> Plot {
    let open = |sample: &&Sample| sample.at.is_some();
    let line = |name: &str| Line {
        name: name.to_owned(),
        points: medians(comparison.samples.iter().filter(open).filter(|s| s.contestant == name), |sample| {
            Some((*sample.figures.get(&Metric::Rate)?, *sample.figures.get(&metric)?))
        }),
    };
    Plot {
        title: format!("{}: throughput and latency, {}", comparison.name, metric.title().trim_end_matches(", µs")),
        content: Content::Lines {
            x: Axis { title: "records/s", scale: Scale::Logarithmic },
            y: Axis { title: metric.title(), scale: Scale::Logarithmic },
            lines: comparison.contestants.iter().map(|contestant| line(&contestant.name)).collect(),
        },
    }
}

/// A bar for each contestant, of the four parts of its time.
fn processor_time(comparison: &Comparison) -> Plot {
    let parts = [
        ("sidecar, user", Metric::SidecarUser),
        ("sidecar, kernel", Metric::SidecarKernel),
        ("all backups, user", Metric::BackupsUser),
        ("all backups, kernel", Metric::BackupsKernel),
    ];
    let median = |name: &str, metric: Metric| {
        let of_contestant = comparison.samples.iter().filter(|s| s.contestant == name);
        Summary::of(of_contestant.filter_map(|s| s.figures.get(&metric).copied())).map_or(0.0, |s| s.median)
    };
    let row = |name: &str| (name.to_owned(), parts.iter().map(|(_, metric)| median(name, *metric)).collect());
    Plot {
        title: format!("{}: CPU per record", comparison.name),
        content: Content::Bars {
            x: "ns/record",
            parts: parts.map(|(name, _)| name).into(),
            rows: comparison.contestants.iter().map(|contestant| row(&contestant.name)).collect(),
        },
    }
}

/// For each axis: how long a record takes, and how much CPU time.
fn costs(comparison: &Comparison) -> Vec<Plot> {
    let axes = [
        ("record size", "record size, bytes"),
        ("backups", "backups"),
        ("clients", "clients"),
        ("depth", "records in flight"),
    ];
    let sum = |sample: &Sample, parts: [Metric; 2]| -> Option<f64> {
        parts.iter().map(|m| sample.figures.get(m).copied()).sum()
    };
    let plot = |(axis, title): (&'static str, &'static str)| {
        let of_axis = || comparison.samples.iter().filter(move |s| s.case.split(": ").next() == Some(axis));
        let line = |name: &str, y: &dyn Fn(&Sample) -> Option<f64>| Line {
            name: name.to_owned(),
            points: medians(of_axis(), |sample| Some((sample.at?, y(sample)?))),
        };
        let lines = vec![
            line("time between two records", &|sample| sample.figures.get(&Metric::Rate).map(|rate| 1e9 / rate)),
            line("CPU of the sidecar", &|sample| sum(sample, [Metric::SidecarUser, Metric::SidecarKernel])),
            line("CPU of all backups", &|sample| sum(sample, [Metric::BackupsUser, Metric::BackupsKernel])),
        ];
        Plot {
            title: format!("{}: cost by {axis}", comparison.name),
            content: Content::Lines {
                x: Axis { title, scale: Scale::Logarithmic },
                y: Axis { title: "ns/record", scale: Scale::Logarithmic },
                lines,
            },
        }
    };
    axes.map(plot).into()
}

/// The figures of the Tailwind paper, for each workload: throughput by clients (6), latency (7) and processors (9) by
/// throughput. Its latencies and processors are those of writes alone.
fn paper(comparison: &Comparison) -> Vec<Plot> {
    let rate = |sample: &Sample| sample.figures.get(&Metric::Rate).copied();
    let clients = Axis { title: "clients", scale: Scale::Logarithmic };
    let mut groups: Vec<&str> = Vec::new();
    for group in comparison.samples.iter().filter(|sample| sample.at.is_some()).map(|sample| group_of(&sample.case).0) {
        if group != "log" && !groups.contains(&group) {
            groups.push(group);
        }
    }
    let mut plots: Vec<Plot> = groups
        .into_iter()
        .map(|group| {
            let title = format!("throughput by clients, {group}");
            by_case(comparison, &title, group, (clients, |sample| sample.at), (Metric::Rate.axis(), rate))
        })
        .collect();
    let by_throughput = |title: &str, metric: Metric| {
        let y = move |sample: &Sample| sample.figures.get(&metric).copied();
        by_case(comparison, title, WRITES, (Metric::Rate.axis(), rate), (metric.axis(), y))
    };
    plots.extend([
        by_throughput("median latency by throughput, write-only", Metric::P50),
        by_throughput("p99 by throughput, write-only", Metric::P99),
        by_throughput("processors by throughput, write-only", Metric::Processors),
    ]);
    plots
}

/// A line for each contestant through the cases of a group.
fn by_case(
    comparison: &Comparison,
    title: &str,
    group: &str,
    (x, of_x): (Axis, impl Fn(&Sample) -> Option<f64>),
    (y, of_y): (Axis, impl Fn(&Sample) -> Option<f64>),
) -> Plot {
    let line = |name: &str| Line {
        name: name.to_owned(),
        points: medians(
            comparison.samples.iter().filter(|s| s.contestant == name && group_of(&s.case).0 == group),
            |sample| Some((of_x(sample)?, of_y(sample)?)),
        ),
    };
    Plot {
        title: format!("{}: {title}", comparison.name),
        content: Content::Lines {
            x,
            y,
            lines: comparison.contestants.iter().map(|contestant| line(&contestant.name)).collect(),
        },
    }
}

impl Metric {
    fn axis(self) -> Axis {
        Axis { title: self.title(), scale: Scale::Logarithmic }
    }
}

fn recovery(comparison: &Comparison) -> Plot {
    let line = |name: &str, what: &str, metric: Metric| Line {
        name: format!("{name}: {what}"),
        points: medians(comparison.samples.iter().filter(|s| s.contestant == name), |sample| {
            Some((sample.at?, *sample.figures.get(&metric)?))
        }),
    };
    let lines = comparison.contestants.iter().flat_map(|contestant| {
        [("first ack", Metric::FirstAck), ("whole log", Metric::WholeLog)]
            .map(|(what, metric)| line(&contestant.name, what, metric))
    });
    Plot {
        title: format!("{}: time after the kill", comparison.name),
        content: Content::Lines {
            x: Axis { title: "log, MiB", scale: Scale::Logarithmic },
            y: Axis { title: "ms", scale: Scale::Logarithmic },
            lines: lines.collect(),
        },
    }
}

/// One point for each case, the median of both coordinates over the rounds, from left to right.
fn medians<'a>(
    samples: impl Iterator<Item = &'a Sample>,
    point: impl Fn(&Sample) -> Option<(f64, f64)>,
) -> Vec<(f64, f64)> {
    let mut cases: BTreeMap<&str, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for sample in samples {
        if let Some((x, y)) = point(sample) {
            let case = cases.entry(&sample.case).or_default();
            case.0.push(x);
            case.1.push(y);
        }
    }
    let median = |values: Vec<f64>| Summary::of(values).map(|summary| summary.median);
    let mut points: Vec<(f64, f64)> = cases.into_values().filter_map(|(x, y)| Some((median(x)?, median(y)?))).collect();
    points.sort_by(|a, b| f64::total_cmp(&a.0, &b.0));
    points
}

/// For each case: which share of answers came within which time. Of the rounds, the one whose median is the median.
fn distributions(comparison: &Comparison) -> Vec<Plot> {
    let mut cases: Vec<&str> = Vec::new();
    for sample in comparison.samples.iter().filter(|sample| !sample.distribution.is_empty()) {
        if !cases.contains(&sample.case.as_str()) {
            cases.push(&sample.case);
        }
    }
    let of_case = |case: &str| Plot {
        title: format!("{}: latency, {case}", comparison.name),
        content: Content::Lines {
            x: Axis { title: "latency, µs", scale: Scale::Logarithmic },
            y: Axis { title: "share of answers", scale: Scale::Nines },
            lines: typical_rounds(comparison, case),
        },
    };
    cases.into_iter().map(of_case).collect()
}

fn typical_rounds(comparison: &Comparison, case: &str) -> Vec<Line> {
    let mut by_contestant: BTreeMap<usize, Vec<&Sample>> = BTreeMap::new();
    let mut names: Vec<&str> = Vec::new();
    for sample in comparison.samples.iter().filter(|s| s.case == case && !s.distribution.is_empty()) {
        let index = names.iter().position(|name| *name == sample.contestant).unwrap_or_else(|| {
            names.push(&sample.contestant);
            names.len() - 1
        });
        by_contestant.entry(index).or_default().push(sample);
    }
    let line = |(index, mut samples): (usize, Vec<&Sample>)| {
        samples.sort_by(|a, b| f64::total_cmp(&a.figures[&Metric::P50], &b.figures[&Metric::P50]));
        Line { name: names[index].to_owned(), points: samples[samples.len() / 2].distribution.clone() }
    };
    by_contestant.into_iter().map(line).collect()
}
