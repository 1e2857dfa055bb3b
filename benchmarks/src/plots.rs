//! The plots: which there are of a comparison, and how they are drawn.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::results::{Comparison, Metric, Sample};
use crate::statistics::Summary;

/// A plot: lines over two axes, of which each may be logarithmic.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

/// An axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) title: &'static str,
    pub(crate) scale: Scale,
}

/// How an axis runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    FromZero,
    Logarithmic,
    /// A share of answers from 0 to 1, where each step is a tenth of what is left: 90 %, 99 %, 99.9 %.
    Nines,
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
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

impl Scale {
    /// Where a value lies on a linear axis; `None` if it has no place.
    fn place(self, value: f64) -> Option<f64> {
        match self {
            Scale::FromZero => Some(value),
            Scale::Logarithmic => (value > 0.0).then(|| value.log10()),
            Scale::Nines => (value < 1.0).then(|| -(1.0 - value).log10()),
        }
    }

    /// What to write at a place.
    fn label(self, place: f64) -> String {
        match self {
            Scale::FromZero => short(place),
            Scale::Logarithmic => short(10f64.powf(place)),
            Scale::Nines => {
                let percent = 100.0 * (1.0 - 10f64.powf(-place));
                let digits = (place - 2.0).clamp(0.0, 6.0).ceil() as usize;
                format!("{percent:.digits$} %")
            }
        }
    }
}

/// A number in few characters: 20k, 1.5M.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        big if big >= 1e9 => (value / 1e9, "G"),
        big if big >= 1e6 => (value / 1e6, "M"),
        big if big >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = if scaled != 0.0 && scaled.abs() < 0.1 { 3 } else { 1 };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// The plots of a comparison.
pub(crate) fn plots(comparison: &Comparison) -> Vec<Plot> {
    let mut plots = distributions(comparison);
    match comparison.name.as_str() {
        "peers" => plots.extend([Metric::P50, Metric::P99].map(|metric| throughput(comparison, metric))),
        "cpu" => plots.push(processor_time(comparison)),
        "scale" => plots.extend(costs(comparison)),
        "recovery" => plots.push(recovery(comparison)),
        _ => {}
    }
    plots.retain(|plot| plot.lines.iter().any(|line| !line.points.is_empty()));
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
        x: Axis { title: "records/s", scale: Scale::Logarithmic },
        y: Axis { title: metric.title(), scale: Scale::Logarithmic },
        lines: comparison.contestants.iter().map(|contestant| line(&contestant.name)).collect(),
    }
}

/// The four parts of each contestant's time, from the sidecar's to the backups', added up.
fn processor_time(comparison: &Comparison) -> Plot {
    let parts = [Metric::SidecarUser, Metric::SidecarKernel, Metric::BackupsUser, Metric::BackupsKernel];
    let line = |name: &str| {
        let mut sum = 0.0;
        let mut points = vec![(0.0, 0.0)];
        for (number, part) in parts.into_iter().enumerate() {
            let found = comparison.samples.iter().filter(|s| s.contestant == name);
            sum += Summary::of(found.filter_map(|s| s.figures.get(&part).copied())).map_or(0.0, |s| s.median);
            points.push((number as f64 + 1.0, sum));
        }
        Line { name: name.to_owned(), points }
    };
    Plot {
        title: format!("{}: CPU per record, added up", comparison.name),
        x: Axis {
            title: "1 sidecar, user; 2 sidecar, kernel; 3 backups, user; 4 backups, kernel",
            scale: Scale::FromZero,
        },
        y: Axis { title: "ns/record", scale: Scale::FromZero },
        lines: comparison.contestants.iter().map(|contestant| line(&contestant.name)).collect(),
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
        let axis_of = |title, scale| Axis { title, scale };
        Plot {
            title: format!("{}: cost by {axis}", comparison.name),
            x: axis_of(title, Scale::Logarithmic),
            y: axis_of("ns/record", Scale::Logarithmic),
            lines,
        }
    };
    axes.map(plot).into()
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
        x: Axis { title: "log, MiB", scale: Scale::Logarithmic },
        y: Axis { title: "ms", scale: Scale::Logarithmic },
        lines: lines.collect(),
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
        x: Axis { title: "latency, µs", scale: Scale::Logarithmic },
        y: Axis { title: "share of answers", scale: Scale::Nines },
        lines: typical_rounds(comparison, case),
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

/// The plot as SVG.
pub(crate) fn draw(plot: &Plot) -> Result<String> {
    let mut svg = String::new();
    draw_on(plot, &SVGBackend::with_string(&mut svg, (960, 540)).into_drawing_area())
        .map_err(|error| anyhow!("{error}"))?;
    svg.push('\n');
    Ok(svg)
}

fn draw_on(
    plot: &Plot,
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let place = |&(x, y): &(f64, f64)| Some((plot.x.scale.place(x)?, plot.y.scale.place(y)?));
    let lines: Vec<(&str, Vec<(f64, f64)>)> =
        plot.lines.iter().map(|line| (line.name.as_str(), line.points.iter().filter_map(place).collect())).collect();
    let points = || lines.iter().flat_map(|(_, points)| points);
    let (x, y) = (span(plot.x.scale, points().map(|p| p.0)), span(plot.y.scale, points().map(|p| p.1)));
    let mut chart = ChartBuilder::on(area)
        .caption(&plot.title, ("sans-serif", 22))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(75)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(plot.x.title)
        .y_desc(plot.y.title)
        .x_label_formatter(&|place| plot.x.scale.label(*place))
        .y_label_formatter(&|place| plot.y.scale.label(*place))
        .draw()?;
    for (index, (name, points)) in lines.into_iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let few = points.len() <= 20;
        let line = chart.draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?;
        line.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        if few {
            chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, color.filled())))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}

/// The part of the axis that is shown: never empty.
fn span(scale: Scale, places: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let found = Summary::of(places).unwrap_or(Summary { median: 0.0, min: 0.0, max: 1.0 });
    let low = if scale == Scale::Logarithmic { found.min } else { 0.0 };
    let room = ((found.max - low) * 0.05).max(1e-9);
    let high = if found.max > low { found.max + room } else { low + 1.0 };
    (if scale == Scale::Logarithmic { low - room } else { low })..high
}
