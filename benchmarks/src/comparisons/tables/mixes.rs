//! The mixes of YCSB: gets at the primary, over one-sided and over two-sided replication, and reads of local tables.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};

use super::clients::{AtPrimary, AtStandby, View};
use super::{Keys, LARGE, SMALL, Size, case, mirrors};
use crate::comparisons::baselines::{contestant, with_sums};
use crate::costs;
use crate::keys::{self, Zipf};
use crate::mix::{KeyClient, Mix, drive};
use crate::ours::Ours;
use crate::results::Figures;
use crate::run::Run;

pub(crate) const AT_PRIMARY: &str = "Tailwind shm, gets at the primary";
pub(crate) const AT_STANDBY: &str = "Tailwind shm, gets at a standby";
pub(crate) const RPC_AT_PRIMARY: &str = "rpc shm, gets at the primary";

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
    Entry { name: "Tailwind tcp, gets at the primary", fabric: "tcp", two_sided: false, reads: Reads::Primary },
    Entry { name: "Tailwind tcp, gets at a standby", fabric: "tcp", two_sided: false, reads: Reads::Standby },
];

/// Name, and percent of reads.
const MIXES: &[(&str, u64)] = &[("update-only", 0), ("A", 50), ("B", 95), ("C", 100)];
/// Those of --quick.
const MIXES_QUICK: &[(&str, u64)] = &[("A", 50), ("C", 100)];
const CLIENTS: &[usize] = &[1, 30];
const CLIENTS_QUICK: &[usize] = &[30];

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
        let sizes: &[Size] = if quick { &[SMALL] } else { &[SMALL, LARGE] };
        let (mixes, clients) = if quick { (MIXES_QUICK, CLIENTS_QUICK) } else { (MIXES, CLIENTS) };
        for size in sizes {
            for (entry, ours) in &self.groups {
                run.say(format!("filling the table of {}", ours.name));
                keys::fill(ours, self.keys, size.value())?;
                if entry.reads == Reads::Standby {
                    mirrors::wait_for(ours, 0)?;
                }
            }
            for (mix, reads) in mixes {
                for clients in clients {
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
    let figures = costs::around(ours, size.bytes, || Ok(drive(connected, mix, run.time() / 2)?.all))?;
    view.map_or(Ok(()), |mut view| view.end())?;
    Ok(figures)
}
