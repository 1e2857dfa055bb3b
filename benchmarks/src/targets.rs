//! What the product wants to reach, and whether this run shows it. Nothing fails by it: a machine may be busy.

use std::collections::BTreeMap;

use crate::peers;
use crate::results::{Comparison, Metric, Results};
use crate::run::cell;
use crate::statistics::{Summary, ratios};

/// Comparison, contestant, case and metric.
type Place = (&'static str, &'static str, &'static str, Metric);

/// Where a target's figure comes from.
enum Figure {
    /// A ratio, by comparison and name.
    Ratio(&'static str, &'static str),
    /// A figure itself: comparison, contestant, case, metric.
    Value(&'static str, &'static str, &'static str, Metric),
    /// One figure divided by another, each by comparison, contestant, case and metric. Contestants of two comparisons do not take
    /// turns: for what differs by far more than this machine does from one minute to the next.
    Across(Place, Place),
    /// Ours divided by the best peer's, by contestant, case and metric of the comparison `peers`.
    BestPeer(&'static str, &'static str, Metric),
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
const SHM_3: &str = "Tailwind shm, 3 backups";
const TCP_3: &str = "Tailwind tcp, 3 backups";
const ALONE: &str = "1 client";
const PIPELINED: &str = "1 client, 2048 in flight";
const PIPELINED_100: &str = "pipelined, 100 B";

/// Three backups each, and medians over the rounds.
const TARGETS: &[Target] = &[
    Target {
        text: "`shm`, one client, 128 B, socket: at most 1.3 × the blocking ping-pong",
        figure: Figure::Ratio("floors", "Tailwind shm / ping-pong, Unix socket, blocking"),
        bound: Bound::AtMost(1.3),
    },
    Target {
        text: "`shm`, one client, ring, both sides spinning: at most 1 µs",
        figure: Figure::Value("floors", "Tailwind shm by ring, spin", "one at a time, 128 B", Metric::P50),
        bound: Bound::AtMost(1.0),
    },
    Target {
        text: "`shm`, one client, 128 B, ring, both sides spinning: at most 0.02 × Redis with WAIT 2",
        figure: Figure::Across(
            ("floors", "Tailwind shm by ring, spin", "one at a time, 128 B", Metric::P50),
            ("peers", "Redis", ALONE, Metric::P50),
        ),
        bound: Bound::AtMost(0.02),
    },
    Target {
        text: "`shm`, 100 B pipelined, socket: at least 4 million records/s",
        figure: Figure::Value("cpu", SHM, PIPELINED_100, Metric::Rate),
        bound: Bound::AtLeast(4e6),
    },
    Target {
        text: "`shm`, 100 B pipelined, ring, one client: at least 8 million records/s",
        figure: Figure::Value("cpu", "Tailwind shm by ring", PIPELINED_100, Metric::Rate),
        bound: Bound::AtLeast(8e6),
    },
    Target {
        text: "`shm`, 128 B pipelined, one client: at least 3 × the best peer's rate",
        figure: Figure::BestPeer(SHM_3, PIPELINED, Metric::Rate),
        bound: Bound::AtLeast(3.0),
    },
    Target {
        text: "`shm`, open loop at 70 % of its rate: p99 at most 10 × p50",
        figure: Figure::Ratio("peers", "Tailwind shm, 3 backups: p99 / p50, open loop, 70 %"),
        bound: Bound::AtMost(10.0),
    },
    Target {
        text: "`shm`, 100 B pipelined, unthrottled: p99 at most 10 × p50",
        figure: Figure::Ratio("cpu", "Tailwind shm: p99 / p50"),
        bound: Bound::AtMost(10.0),
    },
    Target {
        text: "`tcp`, one client, 128 B: at most 0.333 × the best peer's median",
        figure: Figure::BestPeer(TCP_3, ALONE, Metric::P50),
        bound: Bound::AtMost(1.0 / 3.0),
    },
    Target {
        text: "`tcp`, 128 B pipelined, one client: at least 2 × the best peer's rate",
        figure: Figure::BestPeer(TCP_3, PIPELINED, Metric::Rate),
        bound: Bound::AtLeast(2.0),
    },
    Target {
        text: "`tcp`, 100 B pipelined, kernel time of the sidecar per record: at most 0.5 × the build beside",
        figure: Figure::Ratio(
            "cpu",
            "this build / the other: Tailwind tcp, pipelined, 100 B, sidecar, kernel, ns/record",
        ),
        bound: Bound::AtMost(0.5),
    },
    Target {
        text: "`shm`, CPU of one backup, everything included: at most 0.9 ns per byte of log",
        figure: Figure::Value("cpu", SHM, PIPELINED_100, Metric::BackupPerByte),
        bound: Bound::AtMost(0.9),
    },
    Target {
        text: "`shm`, CPU of one backup per byte of log: at most 0.25 × the build beside",
        figure: Figure::Ratio(
            "cpu",
            "this build / the other: Tailwind shm, pipelined, 100 B, one backup, ns/byte of log",
        ),
        bound: Bound::AtMost(0.25),
    },
    Target {
        text: "`shm`, 10 million records of 100 B: whole log read at most 1,000 ms after the kill",
        figure: Figure::Value("recovery", SHM, "log: 10 million records", Metric::WholeLog),
        bound: Bound::AtMost(1000.0),
    },
    Target {
        text: "`shm`, log of 1 GiB: first ack at most 150 ms after the kill",
        figure: Figure::Value("recovery", SHM, "log: 1 GiB", Metric::FirstAck),
        bound: Bound::AtMost(150.0),
    },
    Target {
        text: "`shm`, writes by 30 clients: at least 1.7 × the throughput of `rpc`",
        figure: Figure::Ratio("baselines", "Tailwind shm / rpc shm: write-only: 30 clients, records/s"),
        bound: Bound::AtLeast(1.7),
    },
    Target {
        text: "`shm`, writes by 30 clients: at most 0.5 × the median of `rpc`",
        figure: Figure::Ratio("baselines", "Tailwind shm / rpc shm: write-only: 30 clients, p50, µs"),
        bound: Bound::AtMost(0.5),
    },
    Target {
        text: "`shm`, writes by 30 clients: at most 0.333 × the p99 of `rpc`",
        figure: Figure::Ratio("baselines", "Tailwind shm / rpc shm: write-only: 30 clients, p99, µs"),
        bound: Bound::AtMost(1.0 / 3.0),
    },
    Target {
        text: "`shm`, writes by 30 clients: at most 0.333 × the CPU of `rpc`, sidecar and backups",
        figure: Figure::Ratio(
            "baselines",
            "Tailwind shm / rpc shm: write-only: 30 clients, sidecar and backups, ns/record",
        ),
        bound: Bound::AtMost(1.0 / 3.0),
    },
    Target {
        text: "`shm`, 4 followers: appends at least 0.95 × the rate without",
        figure: Figure::Ratio("followers", "Tailwind shm: records/s: 4 follow / nobody"),
        bound: Bound::AtLeast(0.95),
    },
    Target {
        text: "`shm`, 4 followers: the backups' CPU at most 1.1 × that without",
        figure: Figure::Ratio("followers", "Tailwind shm: all backups, ns/record: 4 follow / nobody"),
        bound: Bound::AtMost(1.1),
    },
    Target {
        text: "`shm`, lag of a follower: at most 300 µs",
        figure: Figure::Value("followers", SHM, "lag of a follower", Metric::P50),
        bound: Bound::AtMost(300.0),
    },
    Target {
        text: "`shm`, 10 million records: first ack of a warm standby's app at most 1.5 × the group's own failover",
        figure: Figure::Ratio("followers", "takeover, 10 million records: warm standby / group alone"),
        bound: Bound::AtMost(1.5),
    },
    Target {
        text: "`shm`, 10 million keys: first write at a warm standby's store at most 1.5 × the group's own failover",
        figure: Figure::Ratio("followers", "takeover, 10 million keys: warm standby / group alone"),
        bound: Bound::AtMost(1.5),
    },
    Target {
        text: "`shm`, an empty backup in a killed member's place: its segments copied at 0.6 × memcpy at least",
        figure: Figure::Ratio("joining", "Tailwind shm: copied / memcpy"),
        bound: Bound::AtLeast(0.6),
    },
    Target {
        text: "`shm`, the same: the sidecar's CPU for each byte at most 0.1 × that of the build beside",
        figure: Figure::Ratio("joining", "this build / the other: Tailwind shm, at rest, sidecar, ns/byte of log"),
        bound: Bound::AtMost(0.1),
    },
    Target {
        text: "`shm`, full load: in the set at most 2,000 ms after its last segment was copied",
        figure: Figure::Value("joining", SHM, "under load", Metric::JoinedAfterCopy),
        bound: Bound::AtMost(2000.0),
    },
    Target {
        text: "`shm`, full load: appends paused for it at most 5 ms",
        figure: Figure::Value("joining", SHM, "under load", Metric::JoinPause),
        bound: Bound::AtMost(5.0),
    },
    Target {
        text: "`shm`, 8 noisy neighbours on the backups' processor: p99 grows at most 1.2 ×",
        figure: Figure::Ratio("neighbours", "Tailwind shm, p99, µs: 8 neighbours / none"),
        bound: Bound::AtMost(1.2),
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
    let comparison = |name: &str| results.comparisons.iter().find(|c| c.name == name);
    match figure {
        Figure::Ratio(name, ratio) => {
            let comparison = comparison(name)?;
            let ratio = comparison.ratios.iter().find(|r| r.name == *ratio)?;
            Summary::of(ratios(comparison, ratio))
        }
        Figure::Value(name, contestant, case, metric) => {
            Summary::of(comparison(name)?.figures(&cell(contestant, case, *metric)).into_values())
        }
        Figure::Across(of, to) => {
            let figures = |(name, contestant, case, metric): &Place| {
                Some(comparison(name)?.figures(&cell(contestant, case, *metric)))
            };
            Summary::of(quotients(&figures(of)?, &figures(to)?))
        }
        Figure::BestPeer(ours, case, metric) => best_peer(comparison("peers")?, ours, case, *metric),
    }
}

/// In each round divided by the peer that was best in that round.
fn best_peer(comparison: &Comparison, ours: &str, case: &str, metric: Metric) -> Option<Summary> {
    let better = if metric == Metric::Rate { f64::max } else { f64::min };
    let mut best: BTreeMap<u32, f64> = BTreeMap::new();
    for (peer, _) in peers::ALL {
        for (round, figure) in comparison.figures(&cell(peer, case, metric)) {
            best.entry(round).and_modify(|best| *best = better(*best, figure)).or_insert(figure);
        }
    }
    Summary::of(quotients(&comparison.figures(&cell(ours, case, metric)), &best))
}

/// Of each round that has both.
fn quotients<'a>(of: &'a BTreeMap<u32, f64>, to: &'a BTreeMap<u32, f64>) -> impl Iterator<Item = f64> + 'a {
    of.iter().filter_map(|(round, figure)| Some(figure / to.get(round).filter(|to| **to > 0.0)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Sample;

    #[test]
    fn the_best_peer_is_that_of_the_round() {
        let sample = |contestant: &str, round, metric, value| Sample {
            contestant: contestant.to_owned(),
            case: ALONE.to_owned(),
            at: None,
            round,
            figures: [(metric, value)].into(),
            distribution: Vec::new(),
        };
        let mut samples = Vec::new();
        for (contestant, first, second) in [(TCP_3, 60.0, 60.0), ("Redis", 120.0, 300.0), ("etcd", 600.0, 150.0)] {
            for metric in [Metric::P50, Metric::Rate] {
                samples.extend([sample(contestant, 1, metric, first), sample(contestant, 2, metric, second)]);
            }
        }
        let comparison = Comparison { samples, ..Comparison::default() };
        let latency = best_peer(&comparison, TCP_3, ALONE, Metric::P50).unwrap();
        assert_eq!((latency.min, latency.max), (0.4, 0.5));
        let rate = best_peer(&comparison, TCP_3, ALONE, Metric::Rate).unwrap();
        assert_eq!((rate.min, rate.max), (0.1, 0.2));
        assert_eq!(best_peer(&comparison, TCP_3, "no such case", Metric::P50), None);
    }
}
