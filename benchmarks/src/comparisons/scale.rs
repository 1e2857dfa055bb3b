//! `scale`: how the cost of a record changes with its size, with backups, clients and depth.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::costs::{self, Appends};
use crate::ours::{Ours, Shape};
use crate::run::Run;

pub(crate) const ABOUT: &str = "One thing at a time is changed; the others stay at 100 B, 3 backups on `shm`, 1 client and \
    2048 in flight (fewer where they would be more than 4 MiB). Memory is what is resident without what processes share, \
    after the load: the buffers of a backup are in a RAM file system and count for nobody.";

const SIZE: usize = 100;
const BACKUPS: usize = 3;
const DEPTH: usize = 2048;
/// Bytes in flight.
const FLIGHT: usize = 4 << 20;
const NAME: &str = "Tailwind shm";

/// Values of one axis, and those that --quick leaves.
struct Axis {
    name: &'static str,
    values: &'static [usize],
    quick: &'static [usize],
}

const SIZES: Axis = Axis {
    name: "record size",
    values: &[16, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
    quick: &[16, 1 << 10, 64 << 10, 1 << 20],
};
const COPIES: Axis = Axis { name: "backups", values: &[1, 2, 3, 4, 5, 6, 7], quick: &[1, 3, 7] };
const CLIENTS: Axis = Axis { name: "clients", values: &[1, 2, 4, 8, 16, 32, 64], quick: &[1, 8, 64] };
const DEPTHS: Axis = Axis { name: "depth", values: &[1, 4, 16, 64, 256, 1024, 4096, 16_384], quick: &[1, 64, 4096] };

impl Axis {
    fn values(&self, quick: bool) -> &'static [usize] {
        if quick { self.quick } else { self.values }
    }
}

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let quick = run.options.quick;
    let mut groups = BTreeMap::new();
    for copies in COPIES.values(quick) {
        run.say(format!("starting {copies} backups"));
        groups.insert(*copies, Ours::start(NAME, &run.program, &run.options.memory, &Shape::new("shm", *copies))?);
    }
    let usual = &groups[&BACKUPS];
    run.enter(usual.contestant());
    run.rounds(|run| {
        for size in SIZES.values(quick) {
            note(run, usual, &SIZES, *size, &Appends { clients: 1, depth: (FLIGHT / size).min(DEPTH), size: *size })?;
        }
        for (copies, group) in &groups {
            note(run, group, &COPIES, *copies, &Appends { clients: 1, depth: DEPTH, size: SIZE })?;
        }
        for clients in CLIENTS.values(quick) {
            let depth = (DEPTH / clients).max(1);
            note(run, usual, &CLIENTS, *clients, &Appends { clients: *clients, depth, size: SIZE })?;
        }
        for depth in DEPTHS.values(quick) {
            note(run, usual, &DEPTHS, *depth, &Appends { clients: 1, depth: *depth, size: SIZE })?;
        }
        Ok(())
    })
}

fn note(run: &mut Run<'_>, ours: &Ours, axis: &Axis, value: usize, appends: &Appends) -> Result<()> {
    let case = format!("{}: {value}", axis.name);
    run.say(&case);
    let figures = costs::measure(ours, appends, run.time() / 2)?;
    run.note(&ours.name, &case, Some(value as f64), figures);
    ours.trim()
}
