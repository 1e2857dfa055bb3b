//! `cpu`: what a record costs the processors, sidecar and backups separately, user and kernel separately.

use std::time::Instant;

use anyhow::Result;

use crate::cpu::{settle, used};
use crate::load::closed_loop;
use crate::ours::{Ours, Shape};
use crate::results::Metric;
use crate::run::Run;

pub(crate) const ABOUT: &str = "CPU time per record of 100 B, pipelined by one client with 2048 in flight, 3 backups. It \
    counts everything until the processes have come to rest: lending, zeroing, CRC, closing and flushing too. The kernel \
    counts in ticks of 10 ms.";

/// Payload bytes of a record.
const SIZE: usize = 100;
const DEPTH: usize = 2048;
const CASE: &str = "pipelined, 100 B";

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let mut all = Vec::new();
    for fabric in ["shm", "tcp"] {
        let name = format!("Tailwind {fabric}");
        all.extend(run.ours(&name, &Shape::new(fabric, 3))?);
        for metric in [Metric::SidecarUser, Metric::SidecarKernel, Metric::BackupsUser, Metric::BackupsKernel] {
            run.ratio_beside(&name, CASE, metric);
        }
        run.ratio_beside(&name, CASE, Metric::BackupPerByte);
        run.ratio_beside(&name, CASE, Metric::Rate);
    }
    run.rounds(|run| all.iter().try_for_each(|ours| measure(run, ours)))
}

fn measure(run: &mut Run<'_>, ours: &Ours) -> Result<()> {
    run.say(&ours.name);
    let (sidecar, backups) = ([ours.sidecar()?], ours.backups()?);
    let all: Vec<u32> = sidecar.iter().chain(&backups).copied().collect();
    settle(&all)?;
    let before = (used(&sidecar)?, used(&backups)?);
    let mut connection = [ours.connection()?];
    let cost = ours.record_cost(SIZE)?;
    let started = Instant::now();
    let measured = closed_loop(&mut connection, DEPTH, &[7; SIZE], run.time() * 2)?;
    let elapsed = started.elapsed();
    drop(connection);
    settle(&all)?;
    let (s, b) = (used(&sidecar)? - before.0, used(&backups)? - before.1);
    let records = measured.records as f64;
    let bytes = records * cost as f64 * backups.len() as f64;
    let mut figures = measured.figures();
    figures.insert(Metric::Rate, records / elapsed.as_secs_f64());
    figures.extend([
        (Metric::SidecarUser, s.user / records),
        (Metric::SidecarKernel, s.kernel / records),
        (Metric::BackupsUser, b.user / records),
        (Metric::BackupsKernel, b.kernel / records),
        (Metric::BackupPerByte, (b.user + b.kernel) / bytes),
    ]);
    run.note_all(&ours.name, CASE, None, figures, measured.distribution());
    ours.trim()
}
