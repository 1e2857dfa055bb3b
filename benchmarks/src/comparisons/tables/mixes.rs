//! The mixes of YCSB: gets at the primary, over one-sided and over two-sided replication; gets at a standby, one-sided and by
//! lookups; and reads of local tables.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::clients::{AtPrimary, AtStandby, View};
use super::{Keys, LARGE, SMALL, Size, case, mirrors};
use crate::comparisons::baselines::{contestant, with_sums};
use crate::costs;
use crate::cpu::used_by_threads;
use crate::keys::{self, Zipf};
use crate::mix::{KeyClient, Mix, drive};
use crate::ours::Ours;
use crate::results::{Figures, Metric};
use crate::run::Run;

pub(crate) const AT_PRIMARY: &str = "Tailwind shm, gets at the primary";
pub(crate) const AT_STANDBY: &str = "Tailwind shm, gets at a standby";
pub(crate) const RPC_AT_PRIMARY: &str = "rpc shm, gets at the primary";
pub(crate) const LOOKUPS: &str = "rpc shm, lookups at a standby";

/// A contestant, its fabric, and where it reads.
struct Entry {
    name: &'static str,
    fabric: &'static str,
    two_sided: bool,
    reads: Reads,
}

/// Where gets or reads go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Primary,
    Standby,
    LocalTable,
}

const ENTRIES: &[Entry] = &[
    Entry { name: AT_PRIMARY, fabric: "shm", two_sided: false, reads: Reads::Primary },
    Entry { name: AT_STANDBY, fabric: "shm", two_sided: false, reads: Reads::Standby },
    Entry { name: "Tailwind shm, local table", fabric: "shm", two_sided: false, reads: Reads::LocalTable },
    Entry { name: RPC_AT_PRIMARY, fabric: "rpc-shm", two_sided: true, reads: Reads::Primary },
    Entry { name: LOOKUPS, fabric: "rpc-shm", two_sided: true, reads: Reads::Standby },
    Entry { name: "Tailwind tcp, gets at the primary", fabric: "tcp", two_sided: false, reads: Reads::Primary },
    Entry { name: "Tailwind tcp, gets at a standby", fabric: "tcp", two_sided: false, reads: Reads::Standby },
];

/// Name, and percent of reads.
const MIXES: &[(&str, u64)] = &[("update-only", 0), ("A", 50), ("B", 95), ("C", 100)];
/// Those with the larger values, and of --quick.
const MIXES_FEW: &[(&str, u64)] = &[("A", 50), ("C", 100)];
const CLIENTS: &[usize] = &[1, 30];
const CLIENTS_FEW: &[usize] = &[30];

/// The groups, which take turns. A group that is read in both ways is one.
pub(super) struct Contest {
    groups: Vec<(&'static Entry, Ours)>,
    keys: u64,
    zipf: Arc<Zipf>,
}

impl Contest {
    /// Starts them. Without a program that knows the enemies these are left out.
    pub(super) fn start(run: &mut Run<'_>, two_sided: Option<&Path>, keys: &Keys) -> Result<Contest> {
        let mut groups = Vec::new();
        for entry in ENTRIES {
            let program = if entry.two_sided { two_sided } else { Some(run.program.as_path()) };
            let Some(program) = program.map(Path::to_owned) else { continue };
            run.say(format!("starting {}", entry.name));
            let sidecars = if entry.reads == Reads::Primary { 1 } else { 2 };
            let shape = keys.shape(entry.fabric, sidecars, true, entry.reads == Reads::Standby);
            let ours = Ours::start(entry.name, &program, &run.options.memory, &shape)?;
            if entry.reads == Reads::Standby
                && let Err(error) = mirrors::answer(&ours)
            {
                run.absent(entry.name, format!("{error:#}"));
                continue;
            }
            run.enter(contestant(&ours, entry.fabric));
            groups.push((entry, ours));
        }
        Ok(Contest { groups, keys: keys.count, zipf: Arc::clone(&keys.zipf) })
    }

    pub(super) fn round(&self, run: &mut Run<'_>) -> Result<()> {
        let quick = run.options.quick;
        let few = (MIXES_FEW, CLIENTS_FEW);
        let sizes: &[_] = if quick { &[(SMALL, few)] } else { &[(SMALL, (MIXES, CLIENTS)), (LARGE, few)] };
        for (size, (mixes, clients)) in sizes {
            for (entry, ours) in &self.groups {
                run.say(format!("filling the table of {}", ours.name));
                keys::fill(ours, self.keys, size.value())?;
                if entry.reads == Reads::Standby {
                    mirrors::wait_for(ours, 0)?;
                }
            }
            for (mix, reads) in *mixes {
                for clients in *clients {
                    for (entry, ours) in &self.groups {
                        let case = case(mix, *size, *clients);
                        run.say(format!("{}, {case}", ours.name));
                        let mix = Mix { reads: *reads, value_size: size.value(), zipf: Arc::clone(&self.zipf) };
                        let figures = measure(run, entry, ours, &mix, *clients, *size);
                        let figures = figures.with_context(|| format!("{}, {case}", ours.name))?;
                        run.note(&ours.name, &case, Some(*clients as f64), with_sums(figures));
                    }
                }
            }
        }
        Ok(())
    }
}

fn measure(run: &Run<'_>, entry: &Entry, ours: &Ours, mix: &Mix, clients: usize, size: Size) -> Result<Figures> {
    let view = (entry.reads == Reads::LocalTable).then(|| View::start(ours)).transpose()?;
    let connect = |_| -> Result<Box<dyn KeyClient>> {
        Ok(match &view {
            Some(view) => Box::new(view.client(ours)?),
            None if entry.reads == Reads::Standby => Box::new(AtStandby::connect(ours)?),
            None => Box::new(AtPrimary::connect(ours)?),
        })
    };
    let connected: Vec<_> = (0..clients).map(connect).collect::<Result<_>>()?;
    let mut beyond_rest = None;
    let mut figures = costs::around(ours, size.bytes, || {
        let backups = if entry.reads == Reads::Standby { ours.backups()? } else { Vec::new() };
        let rest = if backups.is_empty() { None } else { BeyondRest::begin(&backups, run.time() / 8) };
        let measured = drive(connected, mix, run.time() / 4)?.all;
        beyond_rest = rest.and_then(|rest| rest.end(&backups)).map(|used| used / measured.records as f64);
        Ok(measured)
    })?;
    figures.extend(beyond_rest.map(|used| (Metric::BackupsBeyondRest, used)));
    view.map_or(Ok(()), |mut view| view.end())?;
    Ok(figures)
}

/// CPU time of processes beyond what they take at rest: heartbeats, and a mirror that is written again in turn, are no part of a
/// get.
struct BeyondRest {
    /// Share of a processor at rest.
    rest: f64,
    used: f64,
    since: Instant,
}

impl BeyondRest {
    /// Looks at them while they rest, for so long.
    fn begin(pids: &[u32], time: Duration) -> Option<BeyondRest> {
        let (before, began) = (used_by_threads(pids)?, Instant::now());
        std::thread::sleep(time);
        let (used, since) = (used_by_threads(pids)?, Instant::now());
        Some(BeyondRest { rest: (used - before) / (since - began).as_nanos() as f64, used, since })
    }

    /// Nanoseconds since.
    fn end(self, pids: &[u32]) -> Option<f64> {
        let used = used_by_threads(pids)? - self.used;
        Some((used - self.rest * self.since.elapsed().as_nanos() as f64).max(0.0))
    }
}
