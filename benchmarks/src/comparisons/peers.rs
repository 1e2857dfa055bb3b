//! `peers`: the same appends by what one would take instead.

use anyhow::Result;

use crate::load::{Connection, closed_loop};
use crate::ours::{Ours, Shape};
use crate::results::Metric;
use crate::run::Run;

pub(crate) const ABOUT: &str = "Appends of 128 B, each answered once the copies that the contestant claims exist.";

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
    Case { name: "8 clients, 256 in flight each", clients: 8, depth: 256 },
];

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let mut ours = Vec::new();
    for (fabric, copies) in [("shm", 3), ("shm", 2), ("tcp", 3), ("tcp", 2)] {
        let name = format!("Tailwind {fabric}, {copies} backups");
        ours.extend(run.ours(&name, &Shape::new(fabric, copies))?);
        for case in CASES {
            run.ratio_beside(&name, case.name, Metric::P50);
            run.ratio_beside(&name, case.name, Metric::Rate);
        }
    }
    run.rounds(|run| {
        for case in CASES {
            for ours in &ours {
                run.say(format!("{}, {}", ours.name, case.name));
                measure(run, ours, case)?;
                ours.trim()?;
            }
        }
        Ok(())
    })
}

fn measure(run: &mut Run<'_>, ours: &Ours, case: &Case) -> Result<()> {
    let mut connections: Vec<Box<dyn Connection>> =
        (0..case.clients).map(|_| ours.connection()).collect::<Result<_>>()?;
    let measured = closed_loop(&mut connections, case.depth, &[7; SIZE], run.time())?;
    run.note(&ours.name, case.name, &measured);
    Ok(())
}
