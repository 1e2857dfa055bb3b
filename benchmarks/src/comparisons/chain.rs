//! `chain`: the primary writes to each backup itself, or the backups write on to one another.

use std::path::Path;

use anyhow::Result;

use crate::costs::{self, Appends};
use crate::ours::{Ours, Shape};
use crate::results::Metric;
use crate::run::Run;
use crate::uplink::Uplink;

use super::baselines::{two_sided, with_sums};

pub(crate) const ABOUT: &str = "Star or chain. Tailwind's primary writes to each of 3 backups itself (a star). In the chain it \
    writes to the first backup only; an agent there, a thread, writes on to the second, and so on, and the tail's answer \
    counts for all. All contestants are one program, and only the fabric differs. Over shared memory the hops of the chain are \
    messages, which each member copies in and out again. A chain spares the primary's link: so both are measured with a link of \
    1 Gbit/s between the primary and all backups too (a network namespace with a token bucket; the backups' own links are not \
    limited, which favours the chain). A chain in the product would be justified if appends of 1 MiB gained 1.8 × or more there. \
    One client; pipelined are 2048 records of 128 B or 16 of 1 MiB. CPU counts until the processes have come to rest.";

const COPIES: usize = 3;
/// Buffers of a backup: segments of 1 MiB records fill quickly.
const BUFFERS: usize = 32;
const RATE: &str = "1gbit";

/// A star and a chain over the same carrier.
struct Pair {
    star: &'static str,
    chain: &'static str,
    fabrics: [&'static str; 2],
    capped: bool,
}

const PAIRS: &[Pair] = &[
    Pair { star: "star shm", chain: "chain shm", fabrics: ["shm", "chain-shm"], capped: false },
    Pair { star: "star tcp", chain: "chain tcp", fabrics: ["tcp", "chain-tcp"], capped: false },
    Pair { star: "star tcp, 1 Gbit/s", chain: "chain tcp, 1 Gbit/s", fabrics: ["tcp", "chain-tcp"], capped: true },
];

/// Name, bytes of a record, and records in flight.
const CASES: &[(&str, usize, usize)] = &[
    ("128 B: one at a time", 128, 1),
    ("128 B: pipelined", 128, 2048),
    ("1 MiB: one at a time", 1 << 20, 1),
    ("1 MiB: pipelined", 1 << 20, 16),
];

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let Some(program) = two_sided(run) else { return Ok(()) };
    let uplink = match Uplink::open(RATE) {
        Ok(uplink) => Some(uplink),
        Err(why) => {
            run.absent("a link of 1 Gbit/s", format!("{why:#}"));
            None
        }
    };
    let mut groups = Vec::new();
    for pair in PAIRS {
        let behind = uplink.as_ref().filter(|_| pair.capped);
        if pair.capped && behind.is_none() {
            continue;
        }
        for (name, fabric) in [pair.star, pair.chain].into_iter().zip(pair.fabrics) {
            groups.push((start(run, &program, behind, name, fabric)?, behind));
        }
    }
    run.rounds(|run| {
        for (case, size, depth) in CASES {
            for (ours, behind) in &groups {
                run.say(format!("{}, {case}", ours.name));
                measure(run, ours, *behind, case, &Appends { clients: 1, depth: *depth, size: *size })?;
            }
        }
        Ok(())
    })
}

fn start(run: &mut Run<'_>, program: &Path, behind: Option<&Uplink>, name: &str, fabric: &'static str) -> Result<Ours> {
    run.say(format!("starting {name}"));
    let shape = Shape { buffers: BUFFERS, ..Shape::new(fabric, COPIES) };
    let ours = Ours::start_behind(behind, name, program, &run.options.memory, &shape)?;
    run.enter(ours.contestant());
    Ok(ours)
}

fn measure(run: &mut Run<'_>, ours: &Ours, behind: Option<&Uplink>, case: &str, appends: &Appends) -> Result<()> {
    let look = || Ok::<_, anyhow::Error>((ours.last()?.0, behind.map(Uplink::carried).transpose()?));
    let (first, before) = look()?;
    let figures = costs::measure(ours, appends, run.time() / 2)?;
    let (last, after) = look()?;
    let mut figures = with_sums(figures);
    if let (Some(before), Some(after)) = (before, after) {
        let bytes = (last - first) as f64 * appends.size as f64;
        figures.insert(Metric::Sent, (after - before) / bytes);
    }
    run.note(&ours.name, case, None, figures);
    ours.trim()
}
