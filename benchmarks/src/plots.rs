//! The plots of the page: five lines at most, and each system has one colour wherever it appears. [`draw()`] makes pictures.
//!
//! Called by the sections of [`report`](crate::report). Points are medians over the rounds; the band around a line goes from the
//! least to the greatest.

mod draw;

use std::collections::BTreeMap;

pub(crate) use draw::draw;

use crate::comparisons::{WRITES, exec};
use crate::results::{Comparison, Metric, Results, Sample};
use crate::statistics::Summary;

/// More lines than that nobody can tell apart.
pub(crate) const LINES_MAX: usize = 5;

/// A picture with axes.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// Its file, without the ending.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) title: &'static str,
    pub(crate) scale: Scale,
}

/// How an axis runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    Logarithmic,
    /// Names at 0, 1, 2, …
    Named(&'static [&'static str]),
}

/// The line of a system, with its name at the end.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) system: System,
    /// What of the system it shows, if the plot has several lines of it.
    pub(crate) part: Option<(&'static str, Stroke)>,
    pub(crate) points: Vec<Point>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: Summary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stroke {
    Solid,
    Dashed,
    Dotted,
}

/// What is compared. What is told apart by less has the same colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::EnumIter)]
pub(crate) enum System {
    Shm,
    Tcp,
    Redis,
    Etcd,
    Nats,
    Rpc,
    RpcPipelined,
    PolledRing,
    AloneInMemory,
    AloneOnDisk,
}

impl System {
    pub(crate) fn name(self) -> &'static str {
        match self {
            System::Shm => "Tailwind shm",
            System::Tcp => "Tailwind tcp",
            System::Redis => "Redis",
            System::Etcd => "etcd",
            System::Nats => "NATS JetStream",
            System::Rpc => "RPC",
            System::RpcPipelined => "RPC, pipelined",
            System::PolledRing => "polled ring",
            System::AloneInMemory => "alone in memory",
            System::AloneOnDisk => "alone on a disk",
        }
    }

    /// Dark enough for text on white.
    pub(crate) fn color(self) -> &'static str {
        match self {
            System::Shm => "#c8410b",
            System::Tcp => "#0b62a8",
            System::Redis => "#00795c",
            System::Etcd => "#9c3f92",
            System::Nats => "#56616a",
            System::Rpc => "#7a4a12",
            System::RpcPipelined => "#6a4fc0",
            System::PolledRing => "#1b7f8c",
            System::AloneInMemory => "#8a6d00",
            System::AloneOnDisk => "#333d4a",
        }
    }
}

/// Ours with three copies and the peers, as the comparison `peers` names them.
const PEERS: [(System, &str); 5] = [
    (System::Shm, "Tailwind shm, 3 backups"),
    (System::Tcp, "Tailwind tcp, 3 backups"),
    (System::Redis, "Redis"),
    (System::Etcd, "etcd"),
    (System::Nats, "NATS JetStream"),
];
/// One-sided and two-sided replication over shared memory, as `baselines` and `neighbours` name it.
const SIDES: [(System, &str); 4] = [
    (System::Shm, "Tailwind shm"),
    (System::Rpc, "rpc shm"),
    (System::RpcPipelined, "rpc pipelined shm"),
    (System::PolledRing, "ring shm"),
];
const SHARES: [(&str, Metric); 4] =
    [("p50", Metric::P50), ("p90", Metric::P90), ("p99", Metric::P99), ("p99.9", Metric::P999)];
const SHARE_NAMES: &[&str] = &[SHARES[0].0, SHARES[1].0, SHARES[2].0, SHARES[3].0];

/// The percentiles of a case.
fn shares(comparison: &Comparison, contestant: &str, case: &str) -> Vec<Point> {
    let point = |(index, (_, metric)): (usize, (&str, Metric))| {
        let figures = comparison.figures(contestant, case, metric);
        Some(Point { x: index as f64, y: Summary::of(figures.into_values())? })
    };
    SHARES.into_iter().enumerate().filter_map(point).collect()
}

/// Percentiles of one client that waits for each answer.
pub(crate) fn one_client(results: &Results) -> Option<Plot> {
    let comparison = results.comparison("peers")?;
    plot(Plot {
        name: "latency-of-one-client",
        title: "One append at a time, 128 B",
        x: Axis { title: "share of appends that took no longer", scale: Scale::Named(SHARE_NAMES) },
        y: logarithmic("latency, µs"),
        lines: PEERS
            .map(|(system, name)| Line { system, part: None, points: shares(comparison, name, "1 client") })
            .into(),
    })
}

/// The same of a Redis under `tailwind-exec`, and of one without.
pub(crate) fn unmodified(results: &Results) -> Option<Plot> {
    let comparison = results.comparison("exec")?;
    let ways = [
        (System::Shm, exec::SHM, None),
        (System::Tcp, exec::TCP, None),
        (System::Redis, exec::WAIT, Some(("WAIT 2", Stroke::Solid))),
        (System::AloneInMemory, exec::MEMORY, None),
        (System::AloneOnDisk, exec::DISK, None),
    ];
    plot(Plot {
        name: "unmodified-redis",
        title: "One SET at a time, 128 B, appendfsync always",
        x: Axis { title: "share of SETs that took no longer", scale: Scale::Named(SHARE_NAMES) },
        y: logarithmic("latency, µs"),
        lines: ways
            .map(|(system, name, part)| Line { system, part, points: shares(comparison, name, exec::ONE_CLIENT) })
            .into(),
    })
}

pub(crate) fn by_clients(results: &Results) -> Option<Plot> {
    let comparison = results.comparison("peers")?;
    plot(Plot {
        name: "throughput-by-clients",
        title: "Clients that wait for each answer, 128 B",
        x: logarithmic("clients"),
        y: logarithmic("records/s"),
        lines: lines(comparison, &PEERS, |s| s.case.ends_with("client") || s.case.ends_with("clients"), at, rate),
    })
}

/// Open loop: what an answer takes at the rate that is offered.
pub(crate) fn by_rate(results: &Results) -> Option<Plot> {
    let comparison = results.comparison("peers")?;
    plot(Plot {
        name: "p99-by-rate",
        title: "Offered 10 to 90 % of what each can take, 128 B",
        x: logarithmic("records/s"),
        y: logarithmic("p99, µs"),
        lines: lines(comparison, &PEERS, |s| s.case.starts_with("open loop"), rate, p99),
    })
}

pub(crate) fn two_sided(results: &Results) -> Option<Plot> {
    let comparison = results.comparison("baselines")?;
    plot(Plot {
        name: "two-sided-replication",
        title: "One-sided writes and messages that backups answer, 130 B",
        x: logarithmic("clients"),
        y: logarithmic("records/s"),
        lines: lines(comparison, &SIDES, |s| group_of(&s.case).0 == WRITES, at, rate),
    })
}

pub(crate) fn neighbours(results: &Results) -> Option<Plot> {
    let comparison = results.comparison("neighbours")?;
    plot(Plot {
        name: "noisy-neighbours",
        title: "Busy processes on the backups' processor, 128 B",
        x: Axis { title: "busy processes", scale: Scale::Named(&["0", "1", "2", "4", "8"]) },
        y: logarithmic("p99, µs"),
        lines: lines(comparison, &SIDES, |_| true, |s| Some(if s.at? > 0.0 { s.at?.log2() + 1.0 } else { 0.0 }), p99),
    })
}

/// First ack, and the whole log read, as the log grows.
pub(crate) fn failover(results: &Results) -> Option<Plot> {
    let comparison = results.comparison("recovery")?;
    let parts = [("first ack", Stroke::Solid, Metric::FirstAck), ("whole log read", Stroke::Dashed, Metric::WholeLog)];
    let line = |(system, contestant): (System, &'static str)| {
        parts.map(|(part, stroke, metric)| Line {
            system,
            part: Some((part, stroke)),
            points: points(comparison, contestant, |_| true, at, |sample| sample.figures.get(&metric).copied()),
        })
    };
    plot(Plot {
        name: "failover",
        title: "After the primary was killed",
        x: logarithmic("log, MiB"),
        y: logarithmic("ms"),
        lines: [(System::Shm, "Tailwind shm"), (System::Tcp, "Tailwind tcp")].into_iter().flat_map(line).collect(),
    })
}

/// What a record costs, by its size.
pub(crate) fn cost(results: &Results) -> Option<Plot> {
    let comparison = results.comparison("scale")?;
    let line = |part: &'static str, stroke: Stroke, y: fn(&Sample) -> Option<f64>| Line {
        system: System::Shm,
        part: Some((part, stroke)),
        points: points(comparison, "Tailwind shm", |s| group_of(&s.case).0 == "record size", at, y),
    };
    plot(Plot {
        name: "cost-by-record-size",
        title: "One client, pipelined over shared memory",
        x: logarithmic("record size, bytes"),
        y: logarithmic("ns/record"),
        lines: vec![
            line("time", Stroke::Solid, |s| Some(1e9 / rate(s)?)),
            line("CPU of the sidecar", Stroke::Dashed, |s| sum(s, [Metric::SidecarUser, Metric::SidecarKernel])),
            line("CPU of all backups", Stroke::Dotted, |s| sum(s, [Metric::BackupsUser, Metric::BackupsKernel])),
        ],
    })
}

/// Cases `NAME: VALUE` are values of one axis.
pub(crate) fn group_of(case: &str) -> (&str, Option<&str>) {
    case.split_once(": ").map_or((case, None), |(group, value)| (group, Some(value)))
}

/// `None` if it has nothing to show.
fn plot(mut plot: Plot) -> Option<Plot> {
    plot.lines.retain(|line| !line.points.is_empty());
    assert!(plot.lines.len() <= LINES_MAX, "{} has {} lines", plot.name, plot.lines.len());
    (!plot.lines.is_empty()).then_some(plot)
}

fn logarithmic(title: &'static str) -> Axis {
    Axis { title, scale: Scale::Logarithmic }
}

fn at(sample: &Sample) -> Option<f64> {
    sample.at
}

fn rate(sample: &Sample) -> Option<f64> {
    sample.figures.get(&Metric::Rate).copied()
}

fn p99(sample: &Sample) -> Option<f64> {
    sample.figures.get(&Metric::P99).copied()
}

fn sum(sample: &Sample, parts: [Metric; 2]) -> Option<f64> {
    parts.iter().map(|metric| sample.figures.get(metric).copied()).sum()
}

fn lines(
    comparison: &Comparison,
    systems: &[(System, &str)],
    chosen: impl Fn(&Sample) -> bool,
    x: impl Fn(&Sample) -> Option<f64>,
    y: impl Fn(&Sample) -> Option<f64>,
) -> Vec<Line> {
    let line = |(system, contestant): &(System, &str)| Line {
        system: *system,
        part: None,
        points: points(comparison, contestant, &chosen, &x, &y),
    };
    systems.iter().map(line).collect()
}

/// One point for each case of a contestant, from left to right.
fn points(
    comparison: &Comparison,
    contestant: &str,
    chosen: impl Fn(&Sample) -> bool,
    x: impl Fn(&Sample) -> Option<f64>,
    y: impl Fn(&Sample) -> Option<f64>,
) -> Vec<Point> {
    let mut cases: BTreeMap<&str, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for sample in comparison.samples.iter().filter(|s| s.contestant == contestant && chosen(s)) {
        if let (Some(x), Some(y)) = (x(sample), y(sample)) {
            let case = cases.entry(&sample.case).or_default();
            case.0.push(x);
            case.1.push(y);
        }
    }
    let point = |(x, y)| Some(Point { x: Summary::of(x)?.median, y: Summary::of(y)? });
    let mut points: Vec<Point> = cases.into_values().filter_map(point).collect();
    points.sort_by(|a, b| f64::total_cmp(&a.x, &b.x));
    points
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator;

    use super::*;
    use crate::report::{committed, example};

    fn all(results: &Results) -> Vec<Plot> {
        [one_client, by_clients, by_rate, two_sided, neighbours, failover, cost]
            .into_iter()
            .filter_map(|plot| plot(results))
            .collect()
    }

    #[test]
    fn no_two_systems_share_a_colour_or_a_name() {
        let systems: Vec<System> = System::iter().collect();
        for of in [System::color, System::name] {
            let mut values: Vec<&str> = systems.iter().map(|system| of(*system)).collect();
            values.sort_unstable();
            values.dedup();
            assert_eq!(values.len(), systems.len());
        }
    }

    #[test]
    fn a_plot_has_five_lines_at_most_and_each_is_one_system_or_part() {
        let committed = Results::load(&committed().join("benchmarks")).unwrap().expect("committed data");
        let plots = all(&committed);
        assert_eq!(plots.len(), 7, "each finds its data");
        for plot in plots.iter().chain(&all(&example::results())) {
            assert!((1..=LINES_MAX).contains(&plot.lines.len()), "{}", plot.name);
            let mut lines: Vec<_> = plot.lines.iter().map(|line| (line.system, line.part.map(|part| part.0))).collect();
            lines.sort_unstable();
            lines.dedup();
            assert_eq!(lines.len(), plot.lines.len(), "{}", plot.name);
        }
    }

    #[test]
    fn points_are_medians_with_the_range_of_the_rounds() {
        let plot = by_clients(&example::results()).unwrap();
        let shm = &plot.lines[0];
        assert_eq!((shm.system, shm.points.len()), (System::Shm, 2));
        let Point { x, y } = shm.points[1];
        assert_eq!((x, y.min, y.max), (64.0, 100_000.0, 125_000.0));
    }
}
