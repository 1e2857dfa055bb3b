//! `neighbours`: how the tail of latencies grows when others use the backups' processors.

use std::hint::black_box;
use std::process::{Child, Command};

use anyhow::{Context, Result};

use crate::affinity::{keep_on, keep_this_thread_on, processors};
use crate::costs::{self, Appends};
use crate::ours::{Ours, Shape};
use crate::run::Run;

use super::baselines::{contestant, over_shared_memory, two_sided, with_sums};

pub(crate) const ABOUT: &str = "Noisy neighbours, after section 2.2 and figure 2 of the HyperLoop paper: all backups share one \
    processor with processes that do nothing but use it, and the sidecar and its client have the other processors to \
    themselves. One client appends 128 B, the next record once the last is answered; 3 backups. The contestants are those \
    of `baselines`. What one-sided writes leave to the backups' processors is the control RPC: lending, closing and \
    flushing of segments.";

const SIZE: usize = 128;
const BUFFERS: usize = 8;
/// Spinning processes.
const NEIGHBOURS: &[usize] = &[0, 1, 2, 4, 8];
const NEIGHBOURS_QUICK: &[usize] = &[0, 8];

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let Some(program) = two_sided(run, "this comparison") else { return Ok(()) };
    let all = processors()?;
    let Some((noisy, quiet)) = all.split_last().filter(|(_, quiet)| !quiet.is_empty()) else {
        run.absent("this comparison", "it needs two processors, one of them for the backups");
        return Ok(());
    };
    let counts = if run.options.quick { NEIGHBOURS_QUICK } else { NEIGHBOURS };
    let mut groups = Vec::new();
    for (name, fabric) in over_shared_memory(run.options.quick) {
        run.say(format!("starting {name}"));
        let shape = Shape { buffers: BUFFERS, ..Shape::new(fabric, 3) };
        let ours = Ours::start(name, &program, &run.options.memory, &shape)?;
        keep_on(ours.sidecar()?, quiet)?;
        ours.backups()?.into_iter().try_for_each(|backup| keep_on(backup, &[*noisy]))?;
        run.enter(contestant(&ours, fabric));
        groups.push(ours);
    }
    keep_this_thread_on(quiet)?;
    let measured = run.rounds(|run| {
        for count in counts {
            let _neighbours = (0..*count).map(|_| Neighbour::start(*noisy)).collect::<Result<Vec<_>>>()?;
            for ours in &groups {
                run.say(format!("{}, {count} neighbours", ours.name));
                let appends = Appends { clients: 1, depth: 1, size: SIZE };
                let figures = costs::measure(ours, &appends, run.time())?;
                run.note(&ours.name, &case(*count), Some(*count as f64), with_sums(figures));
                ours.trim()?;
            }
        }
        Ok(())
    });
    keep_this_thread_on(&all)?;
    measured
}

fn case(count: usize) -> String {
    format!("neighbours: {count}")
}

/// A process that uses a processor. Ends when dropped.
struct Neighbour(Child);

impl Neighbour {
    fn start(processor: usize) -> Result<Neighbour> {
        let mut command = Command::new(std::env::current_exe()?);
        let child = Neighbour(command.arg("--neighbour").spawn().context("start a neighbour")?);
        keep_on(child.0.id(), &[processor])?;
        Ok(child)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a neighbour does.
pub(crate) fn spin() -> ! {
    let mut count = 0_u64;
    loop {
        count = black_box(count.wrapping_add(1));
    }
}
