//! `peers`: the same appends by what one would take instead.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::load::{Connection, Measured, closed_loop, open_loop};
use crate::ours::{Ours, Shape};
use crate::peers::{self, Peer};
use crate::run::Run;

pub(crate) const ABOUT: &str = "Appends of 128 B, each answered once the copies exist that the table claims, all processes \
    on this machine. One thread drives all connections of a contestant, and the same code drives every contestant; \
    ours are driven through the client library. All contestants run all the time, idle while it is not their turn. \
    First in a closed loop: each client sends the next record once an earlier one is answered. Then in an open loop: \
    8 clients send at fixed times, in percent of the rate that the contestant itself reached in the first round with 8 \
    clients and 256 records in flight each, and a latency counts from the time at which its record was due.";

const SIZE: usize = 128;

/// Connections, and records in flight on each.
struct Case {
    name: &'static str,
    clients: usize,
    depth: usize,
}

const CASES: &[Case] = &[
    Case { name: "1 client", clients: 1, depth: 1 },
    Case { name: "8 clients", clients: 8, depth: 1 },
    Case { name: "64 clients", clients: 64, depth: 1 },
    Case { name: "1 client, 2048 in flight", clients: 1, depth: 2048 },
    CAPACITY,
];
const CAPACITY: Case = Case { name: "8 clients, 256 in flight each", clients: 8, depth: 256 };
/// Offered in the open loop, in percent.
const OFFERED: &[u32] = &[10, 30, 50, 70, 90];
const OFFERED_QUICK: &[u32] = &[30, 70];

/// A contestant.
enum Contender {
    Ours(Box<Ours>),
    Peer { name: &'static str, peer: Box<dyn Peer> },
}

impl Contender {
    fn name(&self) -> &str {
        match self {
            Contender::Ours(ours) => &ours.name,
            Contender::Peer { name, .. } => name,
        }
    }

    fn connections(&self, count: usize) -> Result<Vec<Box<dyn Connection>>> {
        let one = || match self {
            Contender::Ours(ours) => ours.connection(),
            Contender::Peer { peer, .. } => peer.connection(),
        };
        (0..count).map(|_| one()).collect()
    }

    fn rest(&self) -> Result<()> {
        match self {
            Contender::Ours(ours) => ours.trim(),
            Contender::Peer { peer, .. } => peer.rest(),
        }
    }
}

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let mut contenders = Vec::new();
    let copies: &[usize] = if run.options.quick { &[3] } else { &[3, 2] };
    let socket =
        ["shm", "tcp"].into_iter().flat_map(|fabric| copies.iter().map(move |copies| Shape::new(fabric, *copies)));
    let ours: Vec<Shape> = socket.chain([Shape::new("shm", 3).by_ring()]).collect();
    let name = |shape: &Shape| {
        let way = if shape.ring { " by ring" } else { "" };
        format!("Tailwind {}{way}, {} backups", shape.fabric, shape.copies)
    };
    for shape in &ours {
        contenders.push(Contender::Ours(Box::new(run.ours(&name(shape), shape)?)));
    }
    for (peer, start) in peers::ALL {
        run.say(format!("starting {peer}"));
        match start(&run.options.memory) {
            Ok(started) => {
                run.enter(started.contestant());
                contenders.push(Contender::Peer { name: peer, peer: started });
            }
            Err(error) => run.absent(peer, format!("{error:#}")),
        }
    }
    let mut capacity: BTreeMap<String, f64> = BTreeMap::new();
    run.rounds(|run| {
        for case in CASES {
            each(run, &mut contenders, case.name, |run, contender| {
                let mut connections = contender.connections(case.clients)?;
                let measured = closed_loop(&mut connections, case.depth, &[7; SIZE], run.time())?;
                if case.name == CAPACITY.name {
                    capacity.entry(contender.name().to_owned()).or_insert_with(|| measured.rate());
                }
                Ok((measured, (case.depth == 1).then_some(case.clients as f64)))
            })?;
        }
        for percent in if run.options.quick { OFFERED_QUICK } else { OFFERED } {
            each(run, &mut contenders, &open_case(*percent), |run, contender| {
                let rate = capacity.get(contender.name()).copied().unwrap_or_default() * f64::from(*percent) / 100.0;
                let mut connections = contender.connections(CAPACITY.clients)?;
                let measured = open_loop(&mut connections, rate.max(1.0), &[7; SIZE], run.time())?;
                Ok((measured, Some(rate)))
            })?;
        }
        Ok(())
    })
}

fn open_case(percent: u32) -> String {
    format!("open loop, {percent} %")
}

/// One case by everybody. A peer that fails is out from here on, and the report says why; we may not fail.
fn each(
    run: &mut Run<'_>,
    contenders: &mut Vec<Contender>,
    case: &str,
    mut measure: impl FnMut(&Run<'_>, &Contender) -> Result<(Measured, Option<f64>)>,
) -> Result<()> {
    let mut index = 0;
    while let Some(contender) = contenders.get(index) {
        run.say(format!("{}, {case}", contender.name()));
        let measured = measure(run, contender).and_then(|measured| contender.rest().map(|()| measured));
        match (measured, contender) {
            (Ok((measured, at)), _) => {
                run.note(contender.name(), case, at, measured.figures());
                index += 1;
            }
            (Err(error), Contender::Ours(_)) => return Err(error.context(format!("{}, {case}", contender.name()))),
            (Err(error), Contender::Peer { name, .. }) => {
                run.absent(name, format!("it failed at {case}, and was left out from then on: {error:#}"));
                contenders.remove(index);
            }
        }
    }
    Ok(())
}
