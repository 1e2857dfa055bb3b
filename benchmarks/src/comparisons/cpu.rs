//! `cpu`: what a record costs the processors, sidecar and backups separately, user and kernel separately.

use anyhow::Result;

use crate::costs::{self, Appends};
use crate::ours::{Ours, Shape};
use crate::run::Run;

pub(crate) const ABOUT: &str = "CPU time per record of 100 B, pipelined by one client with 2048 in flight, 3 backups. It \
    counts everything until the processes have come to rest: lending, zeroing, CRC, closing and flushing too. The kernel \
    counts in ticks of 10 ms.";

/// Payload bytes of a record.
const SIZE: usize = 100;
const DEPTH: usize = 2048;
const CASE: &str = "pipelined, 100 B";

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let ours = [
        ("Tailwind shm", Shape::new("shm", 3)),
        ("Tailwind shm by ring", Shape::new("shm", 3).by_ring()),
        ("Tailwind tcp", Shape::new("tcp", 3)),
    ];
    let all = ours.iter().map(|(name, shape)| run.ours(name, shape)).collect::<Result<Vec<_>>>()?;
    run.rounds(|run| all.iter().try_for_each(|ours| measure(run, ours)))
}

fn measure(run: &mut Run<'_>, ours: &Ours) -> Result<()> {
    run.say(&ours.name);
    let appends = Appends { clients: 1, depth: DEPTH, size: SIZE };
    let figures = costs::measure(ours, &appends, run.time() * 2)?;
    run.note(&ours.name, CASE, None, figures);
    ours.trim()
}
