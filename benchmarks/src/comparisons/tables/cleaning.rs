//! Gets and puts while nothing is cleaned, and while the oldest segments are.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tailwind_e2e::processes::group::Process;

use super::clients::{AtPrimary, Puts};
use super::{LARGE, TAILWIND};
use crate::keys::{self, Zipf};
use crate::load::closed_loop;
use crate::mix::{KeyClient, Mix, drive};
use crate::ours::{Ours, Shape, TableShape};
use crate::results::Figures;
use crate::run::Run;

/// Cases: what is looked at, and when.
pub(crate) const GETS_IDLE: &str = "gets of mix A, nothing to clean";
pub(crate) const PUTS_IDLE: &str = "puts of mix A, nothing to clean";
pub(crate) const GETS_CLEANED: &str = "gets of mix A, while it is cleaned";
pub(crate) const PUTS_CLEANED: &str = "puts of mix A, while it is cleaned";

const CLIENTS: usize = 8;
const KEYS: u64 = 100_000;
const KEYS_QUICK: u64 = 20_000;
/// Bytes of the table's log. It is cleaned long before it has filled that: once it has four times what is live.
const MEMORY: u64 = 1 << 30;
/// Puts in flight while the log grows, and for how long at a time.
const DEPTH: usize = 512;
const STEP: Duration = Duration::from_millis(200);
/// Times that it may take to have something cleaned.
const STEPS_MAX: usize = 500;

pub(super) fn round(run: &mut Run<'_>) -> Result<()> {
    let count = if run.options.quick { KEYS_QUICK } else { KEYS };
    let zipf = Arc::new(Zipf::new(count));
    run.say("cleaning: starting");
    let table = TableShape { size: MEMORY, keys: count, resident: true, mirror: false };
    let shape = Shape { table: Some(table), ..Shape::new("shm", 3) };
    let ours = Ours::start(TAILWIND, &run.program, &run.options.memory, &shape)?;
    keys::fill(&ours, count, LARGE.value())?;
    run.say("nothing to clean");
    let before = mix_a(run, &ours, &zipf)?;
    match cleaned(&ours)? {
        0 => before
            .into_iter()
            .zip([GETS_IDLE, PUTS_IDLE])
            .for_each(|(figures, case)| run.note(TAILWIND, case, None, figures)),
        segments => run.absent(
            "a time without cleaning",
            format!("in round {}, {segments} segments had been cleaned at its end", run.round()),
        ),
    }
    run.say("filling until it is cleaned");
    let mut connection = [Puts::connect(&ours, &zipf, 1)?];
    for step in 0.. {
        ensure!(step < STEPS_MAX, "nothing is cleaned");
        if cleaned(&ours)? > 0 {
            break;
        }
        closed_loop(&mut connection, DEPTH, &vec![7; LARGE.bytes], STEP)?;
    }
    let began = cleaned(&ours)?;
    run.say("while it is cleaned");
    let during = mix_a(run, &ours, &zipf)?;
    match cleaned(&ours)? - began {
        0 => run.absent("a time with cleaning", format!("in round {}, no segment was cleaned in it", run.round())),
        _ => during
            .into_iter()
            .zip([GETS_CLEANED, PUTS_CLEANED])
            .for_each(|(figures, case)| run.note(TAILWIND, case, None, figures)),
    }
    Ok(())
}

/// Figures of gets, and of puts.
fn mix_a(run: &Run<'_>, ours: &Ours, zipf: &Arc<Zipf>) -> Result<[Figures; 2]> {
    let mix = Mix { reads: 50, value_size: LARGE.value(), zipf: Arc::clone(zipf) };
    let connect = |_| -> Result<Box<dyn KeyClient>> { Ok(Box::new(AtPrimary::connect(ours)?)) };
    let driven = drive((0..CLIENTS).map(connect).collect::<Result<_>>()?, &mix, run.time())?;
    Ok([driven.reads, driven.writes].map(|measured| measured.figures()))
}

/// Segments that have been cleaned.
pub(super) fn cleaned(ours: &Ours) -> Result<u64> {
    let name = "tailwind_table_cleaned_segments_total";
    ours.group.metric(Process::Sidecar(0), name).with_context(|| format!("{name} of the primary"))
}
