//! What appends cost in CPU time: a closed loop between two looks at proc(5).
//!
//! Used by the comparisons `cpu`, `scale`, `baselines`, `neighbours` and `tables`.

use std::time::Duration;

use anyhow::Result;
use tailwind_e2e::processes::process::resident_memory;

use crate::cpu::{settle, used};
use crate::load::{Connection, Measured, closed_loop};
use crate::ours::Ours;
use crate::results::{Figures, Metric};

/// The load that is put on.
pub(crate) struct Appends {
    pub(crate) clients: usize,
    pub(crate) depth: usize,
    pub(crate) size: usize,
}

/// Everything counts that the processes do until they have come to rest.
pub(crate) fn measure(ours: &Ours, appends: &Appends, time: Duration) -> Result<Figures> {
    measure_on(ours, || ours.connection(), appends, time)
}

/// The same by these connections, which need not lead to the sidecar itself.
pub(crate) fn measure_on(
    ours: &Ours,
    connect: impl Fn() -> Result<Box<dyn Connection>>,
    appends: &Appends,
    time: Duration,
) -> Result<Figures> {
    around(ours, appends.size, || {
        let mut connections = (0..appends.clients).map(|_| connect()).collect::<Result<Vec<_>>>()?;
        closed_loop(&mut connections, appends.depth, &vec![7; appends.size], time)
    })
}

/// The same around any load of records of this size.
pub(crate) fn around(ours: &Ours, size: usize, load: impl FnOnce() -> Result<Measured>) -> Result<Figures> {
    let (sidecar, backups) = (ours.sidecar()?, ours.backups()?);
    let all: Vec<u32> = [sidecar].iter().chain(&backups).copied().collect();
    settle(&all)?;
    let before = (used(&[sidecar])?, used(&backups)?);
    let measured = load()?;
    settle(&all)?;
    let (of_sidecar, of_backups) = (used(&[sidecar])? - before.0, used(&backups)? - before.1);
    let records = measured.records as f64;
    let bytes = records * ours.record_cost(size)? as f64 * backups.len() as f64;
    let mut figures = measured.figures();
    figures.extend([
        (Metric::SidecarUser, of_sidecar.user / records),
        (Metric::SidecarKernel, of_sidecar.kernel / records),
        (Metric::BackupsUser, of_backups.user / records),
        (Metric::BackupsKernel, of_backups.kernel / records),
        (Metric::BackupPerByte, (of_backups.user + of_backups.kernel) / bytes),
    ]);
    let memory = |pid: u32| resident_memory(pid).map(|bytes| bytes as f64 / f64::from(1 << 20));
    figures.extend(memory(sidecar).map(|mib| (Metric::SidecarMemory, mib)));
    figures.extend(backups.first().and_then(|pid| memory(*pid)).map(|mib| (Metric::BackupMemory, mib)));
    Ok(figures)
}
