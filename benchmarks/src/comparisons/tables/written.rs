//! `written`: bytes that a put has written into a member's memory, beside those of a two-sided enemy.
//!
//! Counts, not times: other work on the machine changes little in them.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use tailwind_e2e::processes::group::Process;

use super::cleaning::cleaned;
use super::clients::Puts;
use super::puts::{CLIENTS, PUTS};
use super::{Keys, LARGE, RING, TAILWIND, case, mirrors};
use crate::comparisons::baselines::{self, contestant};
use crate::cpu::settle;
use crate::keys;
use crate::load::closed_loop;
use crate::ours::Ours;
use crate::results::Metric;
use crate::run::Run;

pub(crate) const ABOUT: &str = "Bytes that a put of 1 KiB, key and value together, has written into the memory of one of 3 \
    backups, after section 5.6 of the Erda paper. Keys and clients are those of *puts* in the comparison `tables`. All keys are \
    there before, and nothing is cleaned. Counted is everything from one rest of the processes to the next. *Tailwind*: what its \
    primary writes one-sidedly (`tailwind_posted_bytes_total`), so records with their headers, lines of mirrors, and what boards \
    say of these. *ring*, the two-sided enemy of the comparison `baselines`: what its backups count, which are the messages in \
    their logs, and the records once more where a thread copies them to. Its backups keep no mirrors. \
    Not counted are, with *ring*, the buffer in which a message is looked at in between, and with both, the zeros with which \
    memory is lent, and what goes to disks.";

/// A contestant.
struct Entry {
    name: &'static str,
    fabric: &'static str,
    program: PathBuf,
    /// Whether its backups keep mirrors.
    mirror: bool,
    /// What it has written at all backups together.
    written: fn(&Ours) -> u64,
}

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let (keys, program) = (Keys::new(run.options.quick), run.program.clone());
    let two_sided = baselines::two_sided(run, RING);
    let tailwind = Entry { name: TAILWIND, fabric: "shm", program, mirror: true, written: posted };
    let ring = |program| Entry { name: RING, fabric: "ring-shm", program, mirror: false, written: arrived_and_copied };
    let entries: Vec<Entry> = [tailwind].into_iter().chain(two_sided.map(ring)).collect();
    run.rounds(|run| {
        entries.iter().try_for_each(|entry| measure(run, entry, &keys).with_context(|| entry.name.to_owned()))
    })
}

fn measure(run: &mut Run<'_>, entry: &Entry, keys: &Keys) -> Result<()> {
    let &Entry { name, fabric, mirror, .. } = entry;
    run.say(format!("starting {name}"));
    let shape = keys.shape(fabric, 1, false, mirror);
    let ours = Ours::start(name, &entry.program, &run.options.memory, &shape)?;
    if run.round() == 1 {
        run.enter(contestant(&ours, fabric));
    }
    keys::fill(&ours, keys.count, LARGE.value())?;
    if mirror {
        mirrors::wait_for(&ours, 0)?;
    }
    let mut before = at_rest(entry, &ours)?;
    for clients in CLIENTS {
        let case = case(PUTS, LARGE, *clients);
        run.say(format!("{name}, {case}"));
        let connect = |seed| Puts::connect(&ours, &keys.zipf, seed as u64);
        let mut connections = (1..=*clients).map(connect).collect::<Result<Vec<_>>>()?;
        let puts = closed_loop(&mut connections, 1, &vec![7; LARGE.bytes], run.time() / 4)?.records;
        let after = at_rest(entry, &ours)?;
        let figure = (after - before) / puts as f64;
        before = after;
        match cleaned(&ours)? {
            0 => run.note(name, &case, Some(*clients as f64), [(Metric::Written, figure)].into()),
            segments => {
                let why = format!("in round {}, {segments} segments had been cleaned at its end", run.round());
                run.absent(&format!("{name}, {case}"), why);
            }
        }
    }
    Ok(())
}

/// Bytes written at one backup so far, once everything has come to rest.
fn at_rest(entry: &Entry, ours: &Ours) -> Result<f64> {
    let all: Vec<u32> = [ours.sidecar()?].into_iter().chain(ours.backups()?).collect();
    settle(&all)?;
    let written = (entry.written)(ours);
    ensure!(written > 0, "it does not say what it has written");
    Ok(written as f64 / ours.group.backups() as f64)
}

fn posted(ours: &Ours) -> u64 {
    sum(ours, Process::Sidecar(0), "tailwind_posted_bytes_total")
}

fn arrived_and_copied(ours: &Ours) -> u64 {
    let backups = (0..ours.group.backups()).map(Process::Backup);
    backups.map(|backup| sum(ours, backup, "tailwind_backup_written_bytes_total")).sum()
}

fn sum(ours: &Ours, process: Process, name: &str) -> u64 {
    ours.group.samples(process, name).into_iter().map(|(_, bytes)| bytes).sum()
}
