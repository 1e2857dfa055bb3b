//! The sections of the page: a question each, with one plot and a sentence that is made of the figures.

use super::format::{line, number, range, wrap};
use crate::comparisons::{BLOCKING, FOUR_FOLLOW, LONE, NOBODY_FOLLOWS, exec};
use crate::peers;
use crate::plots::{self, Plot};
use crate::results::{Comparison, Metric, Results};
use crate::statistics::{Summary, quotients};
use crate::targets::SHM;

/// A question.
pub(super) struct Section {
    pub(super) heading: &'static str,
    pub(super) says: String,
    pub(super) plot: Plot,
    pub(super) table: Option<String>,
}

const SHM_3: &str = "Tailwind shm, 3 backups";
const TCP_3: &str = "Tailwind tcp, 3 backups";
const RING_3: &str = "Tailwind shm by ring, 3 backups";

/// The sections that these results can fill.
pub(super) fn all(results: &Results) -> Vec<Section> {
    let section = |heading, plot: Option<Plot>, says: Option<String>, table| {
        Some(Section { heading, says: says.unwrap_or_default(), plot: plot?, table })
    };
    let found = [
        section("One append", plots::one_client(results), one_client(results), peers_table(results)),
        section("Many clients", plots::by_clients(results), many_clients(results), None),
        section("Latency under load", plots::by_rate(results), under_load(results), None),
        section("One-sided and two-sided", plots::two_sided(results), two_sided(results), None),
        section("Busy backups", plots::neighbours(results), neighbours(results), None),
        section("Failover", plots::failover(results), failover(results), None),
        section("What a record costs", plots::cost(results), cost(results), None),
        section("Unmodified programs", plots::unmodified(results), unmodified(results), unmodified_table(results)),
    ];
    found.into_iter().flatten().collect()
}

/// The figures that have no plot.
pub(super) fn others(out: &mut String, results: &Results) {
    let found: Vec<String> = [followers(results), takeover(results), joining(results)]
        .into_iter()
        .flatten()
        .map(|text| format!("- {}", wrap(&text).replace('\n', "\n  ")))
        .collect();
    if !found.is_empty() {
        line!(out, "## Also measured\n\n{}\n", found.join("\n"));
    }
}

/// One figure of a comparison over the rounds.
struct Place<'a>(&'a str, &'a str, &'a str, Metric);

fn summary(results: &Results, Place(comparison, contestant, case, metric): &Place<'_>) -> Option<Summary> {
    Summary::of(results.comparison(comparison)?.figures(contestant, case, *metric).into_values())
}

fn median(results: &Results, place: Place<'_>) -> Option<f64> {
    Some(summary(results, &place)?.median)
}

/// The median of one figure divided by another, round by round.
fn ratio(results: &Results, of: Place<'_>, to: Place<'_>) -> Option<f64> {
    let figures = |Place(comparison, contestant, case, metric): Place<'_>| {
        Some(results.comparison(comparison)?.figures(contestant, case, metric))
    };
    Some(Summary::of(quotients(&figures(of)?, &figures(to)?).into_values())?.median)
}

/// The peer that does best, and its median.
fn best_peer(results: &Results, case: &str, metric: Metric) -> Option<(&'static str, f64)> {
    let found = peers::ALL.iter().filter_map(|(peer, _)| {
        let figure = median(results, Place("peers", peer, case, metric))?;
        Some((*peer, figure))
    });
    if metric.more_is_better() {
        found.max_by(|a, b| f64::total_cmp(&a.1, &b.1))
    } else {
        found.min_by(|a, b| f64::total_cmp(&a.1, &b.1))
    }
}

/// Microseconds in the unit that suits them.
fn time(microseconds: f64) -> String {
    if microseconds < 1000.0 {
        format!("{} µs", number(microseconds))
    } else {
        format!("{} ms", number(microseconds / 1000.0))
    }
}

fn one_client(results: &Results) -> Option<String> {
    let peers = |name| median(results, Place("peers", name, "1 client", Metric::P50));
    let floor = |name| median(results, Place("floors", name, LONE, Metric::P50));
    let (best, theirs) = best_peer(results, "1 client", Metric::P50)?;
    let mut says = format!(
        "One client waits for each answer before it sends the next record. At the median Tailwind takes {} over shared memory and \
         {} over TCP; the fastest of the others, {best}, takes {}.",
        time(peers(SHM_3)?),
        time(peers(TCP_3)?),
        time(theirs)
    );
    if let (Some(bare), Some(ring)) = (floor(BLOCKING), floor("Tailwind shm by ring, spin")) {
        let more = format!(
            " A bare ping-pong over a Unix socket takes {} here, and a client that polls the ring {}.",
            time(bare),
            time(ring)
        );
        says.push_str(&more);
    }
    Some(says)
}

/// All of them, in figures: more than a plot can show.
fn peers_table(results: &Results) -> Option<String> {
    let comparison = results.comparison("peers")?;
    let columns = [
        ("one client, p50, µs", "1 client", Metric::P50),
        ("p99, µs", "1 client", Metric::P99),
        ("64 clients, records/s", "64 clients", Metric::Rate),
        ("2048 in flight, records/s", "1 client, 2048 in flight", Metric::Rate),
    ];
    let peers = peers::ALL.iter().map(|(peer, _)| *peer);
    let names =
        [RING_3, SHM_3, TCP_3].into_iter().chain(peers).map(|name| (name, name.trim_end_matches(", 3 backups")));
    Some(table(comparison, &columns, names))
}

/// A line for each contestant with a figure: its name here, and on the page.
fn table<'a>(
    comparison: &Comparison,
    columns: &[(&str, &str, Metric)],
    contestants: impl Iterator<Item = (&'a str, &'a str)>,
) -> String {
    let mut out = String::new();
    let heads: Vec<&str> = columns.iter().map(|column| column.0).collect();
    line!(out, "| | {} |\n|---|{}", heads.join(" | "), "---|".repeat(columns.len()));
    for (contestant, shown) in contestants {
        let cell = |(_, case, metric): &(&str, &str, Metric)| {
            let summary = Summary::of(comparison.figures(contestant, case, *metric).into_values());
            summary.map(|summary| range(&summary)).unwrap_or_default()
        };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            line!(out, "| {shown} | {} |", cells.join(" | "));
        }
    }
    out
}

fn many_clients(results: &Results) -> Option<String> {
    let rate = |name| median(results, Place("peers", name, "64 clients", Metric::Rate));
    let (best, theirs) = best_peer(results, "64 clients", Metric::Rate)?;
    Some(format!(
        "Each client waits for its answer. With 64 of them Tailwind acknowledges {} records/s over shared memory and {} over TCP, \
         and {best} {}.",
        number(rate(SHM_3)?),
        number(rate(TCP_3)?),
        number(theirs)
    ))
}

fn under_load(results: &Results) -> Option<String> {
    let at = |name, metric| median(results, Place("peers", name, "open loop, 70 %", metric));
    Some(format!(
        "8 clients send at fixed times, whatever is answered, and a latency counts from the time at which a record was due. At 70 % \
         of its own capacity Tailwind has a p99 of {} over shared memory, at {} records/s, and of {} over TCP, at {} records/s. \
         The machine's processors carry clients, sidecars and backups together.",
        time(at(SHM_3, Metric::P99)?),
        number(at(SHM_3, Metric::Rate)?),
        time(at(TCP_3, Metric::P99)?),
        number(at(TCP_3, Metric::Rate)?)
    ))
}

fn two_sided(results: &Results) -> Option<String> {
    let case = "write-only: 30 clients";
    let place = |name, metric| Place("baselines", name, case, metric);
    let than = |metric| ratio(results, place(SHM, metric), place("rpc shm", metric));
    Some(format!(
        "All contestants are one program over shared memory, and only the fabric differs. With 30 clients one-sided writes reach \
         {} × the throughput of RPCs that a worker at the backup answers, with {} × their CPU. The *polled ring* acknowledges what \
         lies in a backup's queue and is still to be copied.",
        number(than(Metric::Rate)?),
        number(than(Metric::Cpu)?)
    ))
}

fn neighbours(results: &Results) -> Option<String> {
    let p99 = |name, case| median(results, Place("neighbours", name, case, Metric::P99));
    Some(format!(
        "All backups share one processor with processes that use all of it. With 8 of them the p99 of one-sided writes is {} ({} \
         without), and that of RPCs {} ({}).",
        time(p99(SHM, "neighbours: 8")?),
        time(p99(SHM, "neighbours: 0")?),
        time(p99("rpc shm", "neighbours: 8")?),
        time(p99("rpc shm", "neighbours: 0")?)
    ))
}

fn failover(results: &Results) -> Option<String> {
    let after = |name, case, metric| median(results, Place("recovery", name, case, metric));
    let (tcp, gib, ten) = ("Tailwind tcp", "log: 1 GiB", "log: 10 million records");
    Some(format!(
        "The primary is killed with SIGKILL while a standby's app waits for its turn. With a log of 1 GiB its first record is \
         acknowledged after {} ms over shared memory and {} ms over TCP; it has read 10 million records after {} ms.",
        number(after(SHM, gib, Metric::FirstAck)?),
        number(after(tcp, gib, Metric::FirstAck)?),
        number(after(SHM, ten, Metric::WholeLog)?)
    ))
}

fn cost(results: &Results) -> Option<String> {
    let cost = |metric| median(results, Place("scale", SHM, "record size: 64", metric));
    Some(format!(
        "With 2048 records of 64 B in flight, a record costs the sidecar {} ns of CPU and 3 backups {} ns together, which \
         includes closing and flushing segments. *Time* is that from one record to the next.",
        number(cost(Metric::SidecarUser)? + cost(Metric::SidecarKernel)?),
        number(cost(Metric::BackupsUser)? + cost(Metric::BackupsKernel)?)
    ))
}

fn unmodified(results: &Results) -> Option<String> {
    let p50 = |name| median(results, Place("exec", name, exec::ONE_CLIENT, Metric::P50));
    let takeover = median(results, Place("exec", exec::SHM, exec::TAKEOVER, Metric::FirstAck))?;
    let mut says = format!(
        "A Redis that nobody has changed, under `tailwind-exec`: each answer says that the write is in the memory of 3 backups. At \
         the median a SET takes {} over shared memory and {} over TCP, and {} with two replicas and `WAIT 2`, where a \
         failover can lose writes that only the master has.",
        time(p50(exec::SHM)?),
        time(p50(exec::TCP)?),
        time(p50(exec::WAIT)?)
    );
    if let (Some(memory), Some(disk)) = (p50(exec::MEMORY), p50(exec::DISK)) {
        let alone = format!(
            " The same Redis without any copy takes {} with its file in memory, and {} with it on this machine's disk.",
            time(memory),
            time(disk)
        );
        says.push_str(&alone);
    }
    says.push_str(&format!(
        " When the primary's pod is killed and the file has 100 MiB, the other Redis answers its first write after {} ms: most of \
         it is Redis reading its file.",
        number(takeover)
    ));
    Some(says)
}

fn unmodified_table(results: &Results) -> Option<String> {
    let comparison = results.comparison("exec")?;
    let columns = [
        ("Redis, one client, p50, µs", exec::ONE_CLIENT, Metric::P50),
        ("p99, µs", exec::ONE_CLIENT, Metric::P99),
        ("50 clients, writes/s", exec::MANY_CLIENTS, Metric::Rate),
        ("SQLite, commits/s", exec::COMMITS, Metric::Rate),
    ];
    let ways = [exec::SHM, exec::TCP, exec::WAIT, exec::MEMORY, exec::DISK];
    Some(table(comparison, &columns, ways.into_iter().map(|way| (way, way))))
}

fn followers(results: &Results) -> Option<String> {
    let than = |name, metric| {
        let place = |case| Place("followers", name, case, metric);
        ratio(results, place(FOUR_FOLLOW), place(NOBODY_FOLLOWS))
    };
    Some(format!(
        "[Followers](benchmarks/followers.tsv): while 4 clients follow, the pipelined rate is {} × that without over shared memory \
         and {} × over TCP. A record reaches a follower {} after it was submitted.",
        number(than(SHM, Metric::Rate)?),
        number(than("Tailwind tcp", Metric::Rate)?),
        time(median(results, Place("followers", SHM, "lag of a follower", Metric::P50))?)
    ))
}

fn takeover(results: &Results) -> Option<String> {
    let after =
        |name| median(results, Place("followers", name, "takeover, 10 million records", Metric::FirstAck)).map(number);
    Some(format!(
        "[Warm standbys](benchmarks/followers.tsv): with 10 million records, an app that has followed the log has its first ack \
         {} ms after the kill, and one that reads the log first {} ms after it.",
        after("warm standby")?,
        after("cold standby")?
    ))
}

fn joining(results: &Results) -> Option<String> {
    let at_rest = |metric| median(results, Place("joining", SHM, "at rest", metric)).map(number);
    Some(format!(
        "[A member replaced](benchmarks/joining.tsv): an empty backup copies 1 GiB of log at {} MiB/s, and is in the set after {} ms.",
        at_rest(Metric::CopyRate)?,
        at_rest(Metric::Joined)?
    ))
}
