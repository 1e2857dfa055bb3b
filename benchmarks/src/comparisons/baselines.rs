//! `baselines`: the same sidecars and backups with one-sided writes and with two-sided messages.

use std::path::Path;

use anyhow::{Context, Result};

use crate::costs::{self, Appends};
use crate::ours::{Ours, Shape};
use crate::results::{Contestant, Figures, Metric};
use crate::run::Run;
use crate::workload::{Store, VALUE_SIZE};

use super::recovery;

pub(crate) const ABOUT: &str = "One-sided replication beside two-sided, after figures 6, 7, 9 and 12 of the Tailwind paper. \
    All contestants are one program, with 3 backups each; only the fabric differs. `rpc` answers each message from a worker \
    thread, as RAMCloud does, one at a time for each backup or *pipelined*; `ring` writes to a log of 4 MiB at the backup, which \
    a thread there polls, and counts that as done, as HydraDB does. Over `tcp` backups always copy: `Tailwind tcp` is a pipelined \
    RPC without the hand-over to a worker. *Write-only* are appends of 130 B (a key of 30 B and a value of 100 B), by clients of \
    the sidecar, each of which sends the next once the last is answered. *50/50* and *95/5* are reads and writes of the \
    example store beside the sidecar, by clients of the store, with 100,000 keys by Zipf 0.99. Its \
    group keeps a table, and the store answers reads from its copy of that; until 27 November 2026 it kept its keys in a log. \
    CPU is that of the sidecar and its backups, until they have come to rest; the store's and the clients' is not \
    in it.";

const TAILWIND: &str = "Tailwind shm";
const RPC: &str = "rpc shm";
const RPC_PIPELINED: &str = "rpc pipelined shm";
const RING: &str = "ring shm";
const TAILWIND_TCP: &str = "Tailwind tcp";

/// A contestant, and its fabric.
struct Entry {
    name: &'static str,
    fabric: &'static str,
    shared_memory: bool,
    quick: bool,
}

const ENTRIES: &[Entry] = &[
    Entry { name: TAILWIND, fabric: "shm", shared_memory: true, quick: true },
    Entry { name: RPC, fabric: "rpc-shm", shared_memory: true, quick: true },
    Entry { name: RPC_PIPELINED, fabric: "rpc-pipelined-shm", shared_memory: true, quick: false },
    Entry { name: RING, fabric: "ring-shm", shared_memory: true, quick: true },
    Entry { name: TAILWIND_TCP, fabric: "tcp", shared_memory: false, quick: false },
    Entry { name: "rpc tcp", fabric: "rpc-tcp", shared_memory: false, quick: false },
    Entry { name: "rpc pipelined tcp", fabric: "rpc-pipelined-tcp", shared_memory: false, quick: false },
];

/// Those over shared memory, which the comparison `neighbours` has too: name and fabric.
pub(super) fn over_shared_memory(quick: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    let chosen = ENTRIES.iter().filter(move |entry| entry.shared_memory && (entry.quick || !quick));
    chosen.map(|entry| (entry.name, entry.fabric))
}

/// Key and value.
const SIZE: usize = 30 + VALUE_SIZE;
/// Buffers of a backup: with so many groups at a time, no more than a closed loop needs.
const BUFFERS: usize = 8;
const CLIENTS: &[usize] = &[1, 2, 4, 8, 16, 30];
const CLIENTS_QUICK: &[usize] = &[1, 30];
/// Numbers of clients of the store.
const STORE_CLIENTS: &[usize] = &[1, 8, 30];
const STORE_CLIENTS_QUICK: &[usize] = &[30];
/// Group of cases, for plots and tables.
pub(crate) const WRITES: &str = "write-only";
/// Name, and percent of reads.
const MIXES: &[(&str, u64)] = &[("50/50", 50), ("95/5", 95)];
/// Objects that are recovered, as in figure 12, and the GiB that three copies take.
const RECOVERED: &[(&str, u64, f64)] =
    &[("1 million objects", 1_000_000, 1.0), ("10 million objects", 10_000_000, 8.0)];

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let Some(program) = two_sided(run, "this comparison") else { return Ok(()) };
    let quick = run.options.quick;
    let entries: Vec<&Entry> = ENTRIES.iter().filter(|entry| entry.quick || !quick).collect();
    let clients = if quick { CLIENTS_QUICK } else { CLIENTS };
    let store_clients = if quick { STORE_CLIENTS_QUICK } else { STORE_CLIENTS };
    let (mut groups, mut stores) = (Vec::new(), Vec::new());
    for entry in &entries {
        let shape = Shape { buffers: BUFFERS, ..Shape::new(entry.fabric, 3) };
        let start = |run: &mut Run<'_>, shape: &Shape| {
            run.say(format!("starting {}", entry.name));
            Ours::start(entry.name, &program, &run.options.memory, shape)
        };
        let ours = start(run, &shape)?;
        run.enter(contestant(&ours, entry.fabric));
        groups.push(ours);
        if entry.shared_memory {
            let store = start(run, &Store::shape(shape))?;
            run.say(format!("filling the store of {}", entry.name));
            stores.push(Store::start(store).with_context(|| format!("the example store of {}", entry.name))?);
        }
    }
    let mut recovered = Vec::new();
    for (length, records, needed) in RECOVERED.iter().filter(|_| !quick) {
        match recovery::obstacle(*needed) {
            None => recovered.push((*length, *records)),
            Some(why) => run.absent(&format!("a log of {length}"), why),
        }
    }
    run.rounds(|run| {
        let time = run.time() / 2;
        for count in clients {
            for ours in &groups {
                run.say(format!("{}, {count} clients", ours.name));
                let appends = Appends { clients: *count, depth: 1, size: SIZE };
                let figures = costs::measure(ours, &appends, time)?;
                note(run, &ours.name, WRITES, *count, figures);
                ours.trim()?;
            }
        }
        for (mix, reads) in MIXES {
            for count in store_clients {
                for store in &stores {
                    let name = &store.ours.name;
                    run.say(format!("{name}, {mix}, {count} clients"));
                    let operations = Appends { clients: *count, depth: 1, size: VALUE_SIZE };
                    let seed = std::cell::Cell::new(0);
                    let connect = || store.connection(*reads, seed.replace(seed.get() + 1));
                    let figures = costs::measure_on(&store.ours, connect, &operations, time)?;
                    note(run, name, mix, *count, figures);
                }
            }
        }
        recovered.iter().try_for_each(|(length, records)| recover(run, &program, length, *records))
    })
}

/// The program that knows the baselines, or a line in the report that says what is missing without.
pub(super) fn two_sided(run: &mut Run<'_>, without: &str) -> Option<std::path::PathBuf> {
    let program = run.options.two_sided.clone();
    if program.is_none() {
        run.absent(without, "--two-sided names no program with the feature `baselines`; ./bench builds one");
    }
    program
}

/// Its entry in the report.
pub(super) fn contestant(ours: &Ours, fabric: &str) -> Contestant {
    let contestant = ours.contestant();
    let claim = match fabric {
        "ring-shm" => "in the logs of all 3 backups, to be copied".to_owned(),
        _ => contestant.claim,
    };
    Contestant { claim, ..contestant }
}

fn case(group: &str, clients: usize) -> String {
    format!("{group}: {clients} {}", if clients == 1 { "client" } else { "clients" })
}

fn note(run: &mut Run<'_>, name: &str, group: &str, clients: usize, figures: Figures) {
    run.note(name, &case(group, clients), Some(clients as f64), with_sums(figures));
}

/// The CPU figures that are compared.
pub(crate) fn with_sums(mut figures: Figures) -> Figures {
    let sum = |parts: &[Metric]| parts.iter().filter_map(|metric| figures.get(metric)).sum::<f64>();
    let backups = sum(&[Metric::BackupsUser, Metric::BackupsKernel]);
    let all = backups + sum(&[Metric::SidecarUser, Metric::SidecarKernel]);
    let processors = all * sum(&[Metric::Rate]) / 1e9;
    figures.extend([(Metric::BackupsCpu, backups), (Metric::Cpu, all), (Metric::Processors, processors)]);
    // Meant for one load at a time.
    for metric in [Metric::BackupPerByte, Metric::SidecarMemory, Metric::BackupMemory] {
        figures.remove(&metric);
    }
    figures
}

/// Figure 12: the primary's process dies, and its standby puts the log together from what the backups hold.
fn recover(run: &mut Run<'_>, program: &Path, length: &str, records: u64) -> Result<()> {
    for (name, fabric) in over_shared_memory(false) {
        run.say(format!("{name}, {length}"));
        // A standby that is told by the closed connection, and no time-outs: the machine is busy with all the other groups.
        let shape = Shape { sidecars: 2, ..Shape::new(fabric, 3) };
        let mut ours = Ours::start(name, program, &run.options.memory, &shape)?;
        recovery::measure(run, &mut ours, &recovery::case(length), recovery::Length::Records(records))
            .with_context(|| format!("{name}, {length}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_of_sidecar_and_backups() {
        let figures = [
            (Metric::SidecarUser, 100.0),
            (Metric::SidecarKernel, 50.0),
            (Metric::BackupsUser, 30.0),
            (Metric::BackupsKernel, 20.0),
            (Metric::Rate, 1e7),
            (Metric::BackupMemory, 3.0),
        ];
        let summed = with_sums(figures.into());
        assert_eq!(
            (summed[&Metric::BackupsCpu], summed[&Metric::Cpu], summed[&Metric::Processors]),
            (50.0, 200.0, 2.0)
        );
        assert!(!summed.contains_key(&Metric::BackupMemory));
    }
}
