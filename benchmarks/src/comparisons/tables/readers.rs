//! Puts while nobody gets keys at a standby, and while four clients do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use tailwind_client::blocking::Table;
use tailwind_e2e::processes::group::Process;

use super::clients::Puts;
use super::{Keys, SMALL, mirrors};
use crate::affinity::{keep_on, keep_this_thread_on, processors};
use crate::comparisons::baselines::with_sums;
use crate::comparisons::followers::Apart;
use crate::costs::{self, Appends};
use crate::keys::{self, Random, Zipf, key};
use crate::load::Measured;
use crate::ours::Ours;
use crate::run::Run;
use crate::statistics::histogram;

pub(crate) const READ: &str = "Tailwind shm, read at a standby";
pub(crate) const NOBODY_GETS: &str = "puts, pipelined, nobody gets";
pub(crate) const FOUR_GET: &str = "puts, pipelined, 4 get";
/// The gets themselves.
const GETS: &str = "gets beside these puts";
const GETTERS: u64 = 4;
const DEPTH: usize = 2048;

/// A group whose standby, with those that get there, has a processor of its own: what is compared is what gets take from the
/// primary and the backups, not from a machine that they share.
pub(super) struct Contest {
    ours: Ours,
    apart: Option<Apart>,
    processors: Vec<usize>,
    keys: u64,
    zipf: Arc<Zipf>,
}

impl Contest {
    /// `None` where the standby answers no get.
    pub(super) fn start(run: &mut Run<'_>, keys: &Keys) -> Result<Option<Contest>> {
        run.say(format!("starting {READ}"));
        let processors = processors()?;
        let apart = Apart::of(&processors);
        if apart.is_none() {
            run.absent("a processor for the standby alone", "there is only one");
        }
        let shape = keys.shape("shm", 2, true, true);
        let ours = Ours::start(READ, &run.program, &run.options.memory, &shape)?;
        if let Err(error) = mirrors::answer(&ours) {
            run.absent(READ, format!("{error:#}"));
            return Ok(None);
        }
        run.enter(ours.contestant());
        if let Some(apart) = &apart {
            [ours.sidecar()?].into_iter().chain(ours.backups()?).try_for_each(|pid| keep_on(pid, &apart.others))?;
            keep_on(ours.group.pid(Process::Sidecar(1))?, &[apart.standby])?;
        }
        Ok(Some(Contest { ours, apart, processors, keys: keys.count, zipf: Arc::clone(&keys.zipf) }))
    }

    pub(super) fn round(&self, run: &mut Run<'_>) -> Result<()> {
        keys::fill(&self.ours, self.keys, SMALL.value())?;
        mirrors::wait_for(&self.ours, 0)?;
        if let Some(apart) = &self.apart {
            keep_this_thread_on(&apart.others)?;
        }
        let measured = [(NOBODY_GETS, 0), (FOUR_GET, GETTERS)]
            .into_iter()
            .try_for_each(|(case, getters)| self.measure(run, case, getters).with_context(|| case));
        // What is started from here on may use all again.
        keep_this_thread_on(&self.processors)?;
        measured
    }

    fn measure(&self, run: &mut Run<'_>, case: &str, getters: u64) -> Result<()> {
        run.say(case);
        let stop = Arc::new(AtomicBool::new(false));
        let start = |seed| self.getter(seed, Arc::clone(&stop));
        let getting: Vec<_> = (1..=getters).map(start).collect::<Result<_>>()?;
        let load = Appends { clients: 1, depth: DEPTH, size: SMALL.bytes };
        let began = Instant::now();
        let figures = costs::measure_on(&self.ours, || Puts::connect(&self.ours, &self.zipf, 1), &load, run.time() * 2);
        stop.store(true, Ordering::Relaxed);
        let elapsed = began.elapsed();
        let mut latency = histogram();
        for getter in getting {
            latency.add(getter.join().map_err(|_| anyhow!("a getter panicked"))??)?;
        }
        run.note(READ, case, None, with_sums(figures?));
        if getters > 0 {
            let gets = Measured { records: latency.len(), latency, elapsed, due: 0 };
            run.note(READ, GETS, None, gets.figures());
        }
        Ok(())
    }

    /// Gets one key after the other until it shall stop.
    fn getter(&self, seed: u64, stop: Arc<AtomicBool>) -> Result<JoinHandle<Result<Histogram<u64>>>> {
        let client = self.ours.group.observer().client(1, false).context("connect to the standby")?;
        let mut table = Table::over(client)?;
        let (zipf, mut random) = (Arc::clone(&self.zipf), Random::new(seed));
        let processor = self.apart.as_ref().map(|apart| apart.standby);
        Ok(std::thread::spawn(move || {
            processor.map_or(Ok(()), |processor| keep_this_thread_on(&[processor]))?;
            let mut latency = histogram();
            while !stop.load(Ordering::Relaxed) {
                let key = key(zipf.key(random.share()));
                let began = Instant::now();
                table.get(key.as_bytes())?.context("a key is missing")?;
                latency.saturating_record(began.elapsed().as_nanos() as u64);
            }
            Ok(latency)
        }))
    }
}
