//! What the product wants to reach, and whether this run shows it. Nothing fails by it: a machine may be busy.

use crate::comparisons::TEN_MILLION;
use crate::results::{Comparison, Metric, Results};
use crate::run::cell;
use crate::statistics::{Summary, ratios};

/// Where a target's figure comes from.
enum Figure {
    /// A ratio, by comparison and name.
    Ratio(&'static str, &'static str),
    /// A figure itself: comparison, contestant, case, metric.
    Value(&'static str, &'static str, &'static str, Metric),
    /// By another program, or not yet.
    Elsewhere,
}

/// The bound that the median is held to.
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

struct Target {
    text: &'static str,
    figure: Figure,
    bound: Bound,
}

/// One line of the table.
pub(crate) struct Verdict {
    pub(crate) text: &'static str,
    pub(crate) verdict: &'static str,
    pub(crate) figure: Option<Summary>,
}

const SHM: &str = "Tailwind shm";
const TARGETS: &[Target] = &[
    Target {
        text: "one client, 128 B, `shm`, 3 backups: median at most 1.3 × the blocking ping-pong",
        figure: Figure::Ratio("floors", "Tailwind shm / ping-pong, Unix socket, blocking"),
        bound: Bound::AtMost(1.3),
    },
    Target {
        text: "CPU of one backup, everything included: at most 0.9 ns per byte of log",
        figure: Figure::Value("cpu", SHM, "pipelined, 100 B", Metric::BackupPerByte),
        bound: Bound::AtMost(0.9),
    },
    Target {
        text: "pipelined 100 B through the socket: at least 4 million records/s",
        figure: Figure::Value("cpu", SHM, "pipelined, 100 B", Metric::Rate),
        bound: Bound::AtLeast(4e6),
    },
    Target {
        text: "10 million records of 100 B, kill of the primary to the whole log read, `shm`: at most 1000 ms",
        figure: Figure::Value("recovery", SHM, TEN_MILLION, Metric::WholeLog),
        bound: Bound::AtMost(1000.0),
    },
    Target {
        text: "1 GiB of log, kill of the primary to the first ack, `shm`: at most 150 ms",
        figure: Figure::Value("recovery", SHM, "1 GiB", Metric::FirstAck),
        bound: Bound::AtMost(150.0),
    },
    Target {
        text: "through the shared-memory ring, both sides spinning: median at most 1 µs",
        figure: Figure::Elsewhere,
        bound: Bound::AtMost(1.0),
    },
];

/// Each target with what this run says of it.
pub(crate) fn verdicts(results: &Results) -> Vec<Verdict> {
    TARGETS.iter().map(|target| judge(target, results)).collect()
}

fn judge(target: &Target, results: &Results) -> Verdict {
    let figure = find(&target.figure, results);
    let verdict = match (&figure, &target.bound) {
        (None, _) => "not measured",
        (Some(found), Bound::AtMost(bound)) if found.median <= *bound => "reached",
        (Some(found), Bound::AtLeast(bound)) if found.median >= *bound => "reached",
        _ => "**not reached**",
    };
    Verdict { text: target.text, verdict, figure }
}

fn find(figure: &Figure, results: &Results) -> Option<Summary> {
    let comparison = |name: &str| -> Option<&Comparison> { results.comparisons.iter().find(|c| c.name == name) };
    match figure {
        Figure::Ratio(name, ratio) => {
            let comparison = comparison(name)?;
            let ratio = comparison.ratios.iter().find(|r| r.name == *ratio)?;
            Summary::of(ratios(comparison, ratio))
        }
        Figure::Value(name, contestant, case, metric) => {
            Summary::of(comparison(name)?.figures(&cell(contestant, case, *metric)).into_values())
        }
        Figure::Elsewhere => None,
    }
}
