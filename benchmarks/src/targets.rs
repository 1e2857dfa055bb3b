//! What the product wants to reach, and in how many rounds it did. Nothing fails by it: a machine may be busy.

use std::collections::BTreeMap;

use crate::comparisons::tables::{
    AT_PRIMARY, AT_STANDBY, COLD, FOUR_GET, GETS_CLEANED, GETS_IDLE, LOG, LOOKUPS, NOBODY_GETS, ONE_PUT, PUTS_CLEANED,
    PUTS_IDLE, READ, RING, RPC, RPC_AT_PRIMARY, TAILWIND, WARM,
};
use crate::comparisons::{BLOCKING, FOUR_FOLLOW, LONE, NOBODY_FOLLOWS, exec};
use crate::peers;
use crate::results::{Metric, Results};
use crate::statistics::{Summary, quotients};

/// Comparison, contestant, case and metric.
pub(crate) type Place = (&'static str, &'static str, &'static str, Metric);

/// Where a target's figure comes from.
enum Figure {
    /// A figure itself.
    Value(Place),
    /// One figure divided by another of the same round. Contestants of two comparisons do not take turns: that is for what differs
    /// by far more than a machine does from one minute to the next.
    Quotient(Place, Place),
    /// A quotient divided by another one of the same round.
    Ratio([Place; 2], [Place; 2]),
    /// Ours divided by that of the peer that was best in the round: contestant, case and metric of the comparison `peers`.
    BestPeer(&'static str, &'static str, Metric),
}

/// The bound that each round is held to.
#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn is_kept(self, value: f64) -> bool {
        match self {
            Bound::AtMost(bound) => value <= bound,
            Bound::AtLeast(bound) => value >= bound,
        }
    }
}

struct Target {
    text: &'static str,
    figure: Figure,
    bound: Bound,
}

/// One line of the table.
pub(crate) struct Verdict {
    pub(crate) text: &'static str,
    /// The comparison that it looks at.
    pub(crate) comparison: &'static str,
    /// Rounds that reached it, of the rounds that have a figure.
    pub(crate) reached: usize,
    pub(crate) rounds: usize,
    pub(crate) figure: Option<Summary>,
}

impl Verdict {
    /// A target is reached if the worst round reaches it.
    pub(crate) fn is_reached(&self) -> bool {
        self.rounds > 0 && self.reached == self.rounds
    }
}

pub(crate) const SHM: &str = "Tailwind shm";
const RING_SPIN: Place = ("floors", "Tailwind shm by ring, spin", LONE, Metric::P50);
const SHM_3: &str = "Tailwind shm, 3 backups";
const TCP_3: &str = "Tailwind tcp, 3 backups";
const ALONE: &str = "1 client";
const PIPELINED: &str = "1 client, 2048 in flight";
const PIPELINED_100: &str = "pipelined, 100 B";
const CLIENTS_30: &str = "write-only: 30 clients";

/// The median of one client's SETs.
const fn exec_p50(contestant: &'static str) -> Place {
    ("exec", contestant, exec::ONE_CLIENT, Metric::P50)
}

/// Three backups each.
const TARGETS: &[Target] = &[
    Target {
        text: "`shm`, one client, 128 B, socket: at most 1.3 × the blocking ping-pong",
        figure: Figure::Quotient(("floors", SHM, LONE, Metric::P50), ("floors", BLOCKING, LONE, Metric::P50)),
        bound: Bound::AtMost(1.3),
    },
    Target {
        text: "`shm`, one client, ring, both sides spinning: at most 1 µs",
        figure: Figure::Value(RING_SPIN),
        bound: Bound::AtMost(1.0),
    },
    Target {
        text: "`shm`, one client, 128 B, ring, both sides spinning: at most 0.02 × Redis with WAIT 2",
        figure: Figure::Quotient(RING_SPIN, ("peers", "Redis", ALONE, Metric::P50)),
        bound: Bound::AtMost(0.02),
    },
    Target {
        text: "`shm`, 100 B pipelined, socket: at least 4 million records/s",
        figure: Figure::Value(("cpu", SHM, PIPELINED_100, Metric::Rate)),
        bound: Bound::AtLeast(4e6),
    },
    Target {
        text: "`shm`, 100 B pipelined, ring, one client: at least 8 million records/s",
        figure: Figure::Value(("cpu", "Tailwind shm by ring", PIPELINED_100, Metric::Rate)),
        bound: Bound::AtLeast(8e6),
    },
    Target {
        text: "`shm`, 128 B pipelined, one client: at least 3 × the best peer's rate",
        figure: Figure::BestPeer(SHM_3, PIPELINED, Metric::Rate),
        bound: Bound::AtLeast(3.0),
    },
    Target {
        text: "`shm`, open loop at 70 % of its rate: p99 at most 10 × p50",
        figure: Figure::Quotient(
            ("peers", SHM_3, "open loop, 70 %", Metric::P99),
            ("peers", SHM_3, "open loop, 70 %", Metric::P50),
        ),
        bound: Bound::AtMost(10.0),
    },
    Target {
        text: "`shm`, 100 B pipelined, unthrottled: p99 at most 10 × p50",
        figure: Figure::Quotient(("cpu", SHM, PIPELINED_100, Metric::P99), ("cpu", SHM, PIPELINED_100, Metric::P50)),
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
        text: "`shm`, CPU of one backup, everything included: at most 0.9 ns per byte of log",
        figure: Figure::Value(("cpu", SHM, PIPELINED_100, Metric::BackupPerByte)),
        bound: Bound::AtMost(0.9),
    },
    Target {
        text: "`shm`, 10 million records of 100 B: whole log read at most 1,000 ms after the kill",
        figure: Figure::Value(("recovery", SHM, "log: 10 million records", Metric::WholeLog)),
        bound: Bound::AtMost(1000.0),
    },
    Target {
        text: "`shm`, log of 1 GiB: first ack at most 150 ms after the kill",
        figure: Figure::Value(("recovery", SHM, "log: 1 GiB", Metric::FirstAck)),
        bound: Bound::AtMost(150.0),
    },
    Target {
        text: "`shm`, writes by 30 clients: at least 1.7 × the throughput of `rpc`",
        figure: Figure::Quotient(
            ("baselines", SHM, CLIENTS_30, Metric::Rate),
            ("baselines", "rpc shm", CLIENTS_30, Metric::Rate),
        ),
        bound: Bound::AtLeast(1.7),
    },
    Target {
        text: "`shm`, writes by 30 clients: at most 0.5 × the median of `rpc`",
        figure: Figure::Quotient(
            ("baselines", SHM, CLIENTS_30, Metric::P50),
            ("baselines", "rpc shm", CLIENTS_30, Metric::P50),
        ),
        bound: Bound::AtMost(0.5),
    },
    Target {
        text: "`shm`, writes by 30 clients: at most 0.333 × the p99 of `rpc`",
        figure: Figure::Quotient(
            ("baselines", SHM, CLIENTS_30, Metric::P99),
            ("baselines", "rpc shm", CLIENTS_30, Metric::P99),
        ),
        bound: Bound::AtMost(1.0 / 3.0),
    },
    Target {
        text: "`shm`, writes by 30 clients: at most 0.333 × the CPU of `rpc`, sidecar and backups",
        figure: Figure::Quotient(
            ("baselines", SHM, CLIENTS_30, Metric::Cpu),
            ("baselines", "rpc shm", CLIENTS_30, Metric::Cpu),
        ),
        bound: Bound::AtMost(1.0 / 3.0),
    },
    Target {
        text: "`shm`, 4 followers: appends at least 0.95 × the rate without",
        figure: Figure::Quotient(
            ("followers", SHM, FOUR_FOLLOW, Metric::Rate),
            ("followers", SHM, NOBODY_FOLLOWS, Metric::Rate),
        ),
        bound: Bound::AtLeast(0.95),
    },
    Target {
        text: "`shm`, 4 followers: the backups' CPU at most 1.1 × that without",
        figure: Figure::Quotient(
            ("followers", SHM, FOUR_FOLLOW, Metric::BackupsCpu),
            ("followers", SHM, NOBODY_FOLLOWS, Metric::BackupsCpu),
        ),
        bound: Bound::AtMost(1.1),
    },
    Target {
        text: "`shm`, lag of a follower: at most 300 µs",
        figure: Figure::Value(("followers", SHM, "lag of a follower", Metric::P50)),
        bound: Bound::AtMost(300.0),
    },
    Target {
        text: "`shm`, 10 million records: first ack of a warm standby's app at most 1.5 × the group's own failover",
        figure: Figure::Quotient(
            ("followers", "warm standby", "takeover, 10 million records", Metric::FirstAck),
            ("followers", "group alone", "takeover, 10 million records", Metric::FirstAck),
        ),
        bound: Bound::AtMost(1.5),
    },
    Target {
        text: "`shm`, 10 million keys: first write at a warm standby's store at most 1.5 × the group's own failover",
        figure: Figure::Quotient(
            ("followers", "warm standby", "takeover, 10 million keys", Metric::FirstAck),
            ("followers", "group alone", "takeover, 10 million keys", Metric::FirstAck),
        ),
        bound: Bound::AtMost(1.5),
    },
    Target {
        text: "`shm`, an empty backup in a killed member's place: its segments copied at 0.6 × memcpy at least",
        figure: Figure::Quotient(
            ("joining", SHM, "at rest", Metric::CopyRate),
            ("joining", "memcpy of the log", "at rest", Metric::CopyRate),
        ),
        bound: Bound::AtLeast(0.6),
    },
    Target {
        text: "`shm`, full load: in the set at most 2,000 ms after its last segment was copied",
        figure: Figure::Value(("joining", SHM, "under load", Metric::JoinedAfterCopy)),
        bound: Bound::AtMost(2000.0),
    },
    Target {
        text: "`shm`, full load: appends paused for it at most 5 ms",
        figure: Figure::Value(("joining", SHM, "under load", Metric::JoinPause)),
        bound: Bound::AtMost(5.0),
    },
    Target {
        text: "`shm`, 8 noisy neighbours on the backups' processor: p99 grows at most 1.2 ×",
        figure: Figure::Quotient(
            ("neighbours", SHM, "neighbours: 8", Metric::P99),
            ("neighbours", SHM, "neighbours: 0", Metric::P99),
        ),
        bound: Bound::AtMost(1.2),
    },
    Target {
        text: "`tailwind-exec` over `shm`, Redis, one client: at most 0.7 × Redis with WAIT 2",
        figure: Figure::Quotient(exec_p50(exec::SHM), exec_p50(exec::WAIT)),
        bound: Bound::AtMost(0.7),
    },
    Target {
        text: "`tailwind-exec` over `shm`, Redis, one client: at most 1.8 × Redis alone in memory",
        figure: Figure::Quotient(exec_p50(exec::SHM), exec_p50(exec::MEMORY)),
        bound: Bound::AtMost(1.8),
    },
    Target {
        text: "`tailwind-exec` over `shm`, Redis, one client: at most 0.033 × Redis alone on a disk",
        figure: Figure::Quotient(exec_p50(exec::SHM), exec_p50(exec::DISK)),
        bound: Bound::AtMost(1.0 / 30.0),
    },
    Target {
        text: "`tailwind-exec` over `shm`, Redis, 50 clients: at least 0.9 × the rate of Redis alone in memory",
        figure: Figure::Quotient(
            ("exec", exec::SHM, exec::MANY_CLIENTS, Metric::Rate),
            ("exec", exec::MEMORY, exec::MANY_CLIENTS, Metric::Rate),
        ),
        bound: Bound::AtLeast(0.9),
    },
    Target {
        text: "`tailwind-exec` over `shm`, file of 100 MiB: the other Redis answers at most 1,000 ms after the kill",
        figure: Figure::Value(("exec", exec::SHM, exec::TAKEOVER, Metric::FirstAck)),
        bound: Bound::AtMost(1000.0),
    },
    Target {
        text: "`tailwind-exec` over `shm`, SQLite: at least 20 × the commits of SQLite alone on a disk",
        figure: Figure::Quotient(
            ("exec", exec::SHM, exec::COMMITS, Metric::Rate),
            ("exec", exec::DISK, exec::COMMITS, Metric::Rate),
        ),
        bound: Bound::AtLeast(20.0),
    },
    Target {
        text: "`shm`, puts by 30 clients: at least 0.6 × the rate of plain appends",
        figure: Figure::Quotient(
            of_tables(TAILWIND, PUTS_30, Metric::Rate),
            of_tables(TAILWIND, APPENDS_30, Metric::Rate),
        ),
        bound: Bound::AtLeast(0.6),
    },
    Target {
        text: "`shm`, puts by 30 clients: as far ahead of `rpc` as plain appends, 0.9 × at least",
        figure: ahead(RPC),
        bound: Bound::AtLeast(0.9),
    },
    Target {
        text: "`shm`, puts by 30 clients: as far ahead of `ring` as plain appends, 0.9 × at least",
        figure: ahead(RING),
        bound: Bound::AtLeast(0.9),
    },
    Target {
        text: "`shm`, puts by 30 clients: p99.9 at most that of `rpc`",
        figure: Figure::Quotient(of_tables(TAILWIND, PUTS_30, Metric::P999), of_tables(RPC, PUTS_30, Metric::P999)),
        bound: Bound::AtMost(1.0),
    },
    Target {
        text: "`shm`, puts of 1 KiB, one client: at most 0.6 × the bytes that `ring` writes at a member",
        figure: Figure::Quotient(
            ("written", TAILWIND, PUTS_OF_1_KIB, Metric::Written),
            ("written", RING, PUTS_OF_1_KIB, Metric::Written),
        ),
        bound: Bound::AtMost(0.6),
    },
    Target {
        text: "`shm`, update-only, one client: at most the median of `rpc`",
        figure: Figure::Quotient(
            of_tables(AT_PRIMARY, UPDATES, Metric::P50),
            of_tables(RPC_AT_PRIMARY, UPDATES, Metric::P50),
        ),
        bound: Bound::AtMost(1.0),
    },
    Target {
        text: "`shm`, mix C at a standby, one client: at most 0.7 × the median of lookups",
        figure: beside_lookups(GETS, Metric::P50),
        bound: Bound::AtMost(0.7),
    },
    Target {
        // Half of them are gets, so a median would be that of either.
        text: "`shm`, mix A at a standby, one client: at most 0.75 × the time with lookups and `rpc`, so 1.333 × the rate",
        figure: beside_lookups("A, 130 B: 1 client", Metric::Rate),
        bound: Bound::AtLeast(1.0 / 0.75),
    },
    Target {
        text: "`shm`, mix C at a standby, 30 clients: at least 1.5 × the rate of lookups",
        figure: beside_lookups(GETS_30, Metric::Rate),
        bound: Bound::AtLeast(1.5),
    },
    Target {
        text: "`shm`, mix C at a standby, 30 clients: backups' CPU beyond rest at most 0.02 × that of lookups",
        figure: beside_lookups(GETS_30, Metric::BackupsBeyondRest),
        bound: Bound::AtMost(0.02),
    },
    Target {
        text: "`shm`, one put: at most 0.2 × etcd's median",
        figure: Figure::Quotient(of_tables(TAILWIND, ONE_PUT, Metric::P50), of_tables("etcd", ONE_PUT, Metric::P50)),
        bound: Bound::AtMost(0.2),
    },
    Target {
        text: "`shm`, one put: at most 0.2 × the median of Redis with WAIT 2",
        figure: Figure::Quotient(of_tables(TAILWIND, ONE_PUT, Metric::P50), of_tables("Redis", ONE_PUT, Metric::P50)),
        bound: Bound::AtMost(0.2),
    },
    Target {
        text: "`shm`, mix A: p99 of gets at most 1.2 × while the log is cleaned",
        figure: Figure::Quotient(
            of_tables(TAILWIND, GETS_CLEANED, Metric::P99),
            of_tables(TAILWIND, GETS_IDLE, Metric::P99),
        ),
        bound: Bound::AtMost(1.2),
    },
    Target {
        text: "`shm`, mix A: p99 of puts at most 1.5 × while the log is cleaned",
        figure: Figure::Quotient(
            of_tables(TAILWIND, PUTS_CLEANED, Metric::P99),
            of_tables(TAILWIND, PUTS_IDLE, Metric::P99),
        ),
        bound: Bound::AtMost(1.5),
    },
    Target {
        text: "`shm`, 4 clients get at a standby: puts at least 0.95 × the rate without",
        figure: Figure::Quotient(of_tables(READ, FOUR_GET, Metric::Rate), of_tables(READ, NOBODY_GETS, Metric::Rate)),
        bound: Bound::AtLeast(0.95),
    },
    Target {
        text: "`shm`, 2 million keys: mirrors live at most 1,000 ms after the first put of a new primary",
        figure: Figure::Value(of_tables(WARM, "takeover, 2 million keys", Metric::MirrorsLive)),
        bound: Bound::AtMost(1000.0),
    },
    Target {
        text: "`shm`, 10 million keys: first put with a warm index at most 1.5 × the failover of a log",
        figure: Figure::Quotient(
            of_tables(WARM, TAKEN_OVER, Metric::FirstAck),
            of_tables(LOG, TAKEN_OVER, Metric::FirstAck),
        ),
        bound: Bound::AtMost(1.5),
    },
    Target {
        text: "`shm`, 10 million keys: first put with a cold index at most 1.5 × reading such a log",
        figure: Figure::Quotient(
            of_tables(COLD, TAKEN_OVER, Metric::FirstAck),
            of_tables(LOG, TAKEN_OVER, Metric::WholeLog),
        ),
        bound: Bound::AtMost(1.5),
    },
];

const PUTS_30: &str = "puts, 130 B: 30 clients";
const APPENDS_30: &str = "appends, 130 B: 30 clients";
const PUTS_OF_1_KIB: &str = "puts, 1 KiB: 1 client";
const UPDATES: &str = "update-only, 130 B: 1 client";
const GETS: &str = "C, 130 B: 1 client";
const GETS_30: &str = "C, 130 B: 30 clients";
const TAKEN_OVER: &str = "takeover, 10 million keys";

/// A figure of the comparison `tables`.
const fn of_tables(contestant: &'static str, case: &'static str, metric: Metric) -> Place {
    ("tables", contestant, case, metric)
}

/// One-sided gets beside lookups.
const fn beside_lookups(case: &'static str, metric: Metric) -> Figure {
    Figure::Quotient(of_tables(AT_STANDBY, case, metric), of_tables(LOOKUPS, case, metric))
}

/// How far puts are ahead of an enemy's, divided by how far plain appends are.
const fn ahead(of: &'static str) -> Figure {
    Figure::Ratio(
        [of_tables(TAILWIND, PUTS_30, Metric::Rate), of_tables(of, PUTS_30, Metric::Rate)],
        [of_tables(TAILWIND, APPENDS_30, Metric::Rate), of_tables(of, APPENDS_30, Metric::Rate)],
    )
}

/// Each target with what these results say of it.
pub(crate) fn verdicts(results: &Results) -> Vec<Verdict> {
    let judge = |target: &Target| {
        let figures = target.figure.find(results).unwrap_or_default();
        Verdict {
            text: target.text,
            comparison: target.figure.comparison(),
            reached: figures.values().filter(|figure| target.bound.is_kept(**figure)).count(),
            rounds: figures.len(),
            figure: Summary::of(figures.into_values()),
        }
    };
    TARGETS.iter().map(judge).collect()
}

impl Figure {
    /// The comparison that it is of; the first of two.
    fn comparison(&self) -> &'static str {
        match self {
            Figure::Value(place) | Figure::Quotient(place, _) | Figure::Ratio([place, _], _) => place.0,
            Figure::BestPeer(..) => "peers",
        }
    }

    /// The figure of each round.
    fn find(&self, results: &Results) -> Option<BTreeMap<u32, f64>> {
        let figures = |(comparison, contestant, case, metric): &Place| {
            Some(results.comparison(comparison)?.figures(contestant, case, *metric))
        };
        match self {
            Figure::Value(place) => figures(place),
            Figure::Quotient(of, to) => Some(quotients(&figures(of)?, &figures(to)?)),
            Figure::Ratio(of, to) => {
                let quotient = |[of, to]: &[Place; 2]| Some(quotients(&figures(of)?, &figures(to)?));
                Some(quotients(&quotient(of)?, &quotient(to)?))
            }
            Figure::BestPeer(ours, case, metric) => {
                let best = best_peer(results, case, *metric)?;
                Some(quotients(&figures(&("peers", ours, case, *metric))?, &best))
            }
        }
    }
}

/// The figure of the peer that was best, in each round.
fn best_peer(results: &Results, case: &str, metric: Metric) -> Option<BTreeMap<u32, f64>> {
    let comparison = results.comparison("peers")?;
    let better = if metric.more_is_better() { f64::max } else { f64::min };
    let mut best: BTreeMap<u32, f64> = BTreeMap::new();
    for (peer, _) in peers::ALL {
        for (round, figure) in comparison.figures(peer, case, metric) {
            best.entry(round).and_modify(|best| *best = better(*best, figure)).or_insert(figure);
        }
    }
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;
    use crate::results::{Comparison, Sample};

    #[test]
    fn the_best_peer_is_that_of_the_round() {
        let sample = |contestant: &str, round, metric, value| Sample {
            contestant: contestant.to_owned(),
            case: ALONE.to_owned(),
            at: None,
            round,
            figures: [(metric, value)].into(),
        };
        let mut samples = Vec::new();
        for (contestant, first, second) in [(TCP_3, 60.0, 60.0), ("Redis", 120.0, 300.0), ("etcd", 600.0, 150.0)] {
            for metric in [Metric::P50, Metric::Rate] {
                samples.extend([sample(contestant, 1, metric, first), sample(contestant, 2, metric, second)]);
            }
        }
        let comparison = Comparison { name: "peers".to_owned(), samples, ..Comparison::default() };
        let results = Results { comparisons: vec![comparison], ..example::results() };
        let found = |case, metric| Figure::BestPeer(TCP_3, case, metric).find(&results).unwrap();
        assert_eq!(found(ALONE, Metric::P50), [(1, 0.5), (2, 0.4)].into());
        assert_eq!(found(ALONE, Metric::Rate), [(1, 0.1), (2, 0.2)].into());
        assert_eq!(found("no such case", Metric::P50), BTreeMap::new());
    }

    #[test]
    fn the_worst_round_decides() {
        let verdict = |values: &[f64], bound: Bound| {
            let reached = values.iter().filter(|value| bound.is_kept(**value)).count();
            Verdict { text: "", comparison: "", reached, rounds: values.len(), figure: None }.is_reached()
        };
        assert!(verdict(&[1.0, 2.0], Bound::AtMost(2.0)) && verdict(&[2.0, 3.0], Bound::AtLeast(2.0)));
        assert!(!verdict(&[1.0, 1.0, 2.1], Bound::AtMost(2.0)) && !verdict(&[], Bound::AtMost(2.0)));
    }

    /// A comparison that renames a case would leave its target without a figure.
    #[test]
    fn each_target_finds_its_figure_in_the_committed_data() {
        let results = Results::load(&crate::report::committed().join("benchmarks")).unwrap().expect("committed data");
        let verdicts = verdicts(&results);
        let missing = verdicts.iter().filter(|verdict| verdict.rounds == 0);
        assert_eq!(missing.map(|verdict| verdict.text).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn a_ratio_is_made_within_a_round() {
        let places: [Place; 4] = ["a", "b", "c", "d"].map(|contestant| ("tables", contestant, ALONE, Metric::Rate));
        let sample = |contestant: &str, round, rate| Sample {
            contestant: contestant.to_owned(),
            case: ALONE.to_owned(),
            at: None,
            round,
            figures: [(Metric::Rate, rate)].into(),
        };
        let mut samples = Vec::new();
        for (contestant, first, second) in [("a", 8.0, 6.0), ("b", 2.0, 3.0), ("c", 10.0, 4.0), ("d", 5.0, 1.0)] {
            samples.extend([sample(contestant, 1, first), sample(contestant, 2, second)]);
        }
        let comparison = Comparison { name: "tables".to_owned(), samples, ..Comparison::default() };
        let results = Results { comparisons: vec![comparison], ..example::results() };
        let [a, b, c, d] = places;
        let found = Figure::Ratio([a, b], [c, d]).find(&results).unwrap();
        assert_eq!(found, [(1, 2.0), (2, 0.5)].into());
    }
}
