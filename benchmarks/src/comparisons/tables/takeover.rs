//! How long a takeover takes with a complete index, without one, and in a group that keeps a log.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tailwind_client::blocking::Table;
use tailwind_e2e::processes::group::Process;

use super::{SMALL, mirrors};
use crate::comparisons::recovery::{fail_over_with, obstacle};
use crate::cpu::settle;
use crate::keys::{self, key};
use crate::ours::{Ours, Shape, TableShape};
use crate::results::Metric;
use crate::run::Run;

pub(crate) const WARM: &str = "warm index";
pub(crate) const COLD: &str = "cold index";
pub(crate) const LOG: &str = "log";

/// Name and number of keys, and the GiB that three copies take. The first is for --quick.
const LENGTHS: &[(&str, u64, f64)] =
    &[("100 thousand keys", 100_000, 1.0), ("2 million keys", 2_000_000, 4.0), ("10 million keys", 10_000_000, 14.0)];
/// Bytes of a table's log for each key: a record takes less than half.
const TABLE_PER_KEY: u64 = 512;
const TABLE_MIN: u64 = 128 << 20;
/// Bytes of a segment.
const SEGMENT_BYTES: usize = 8 << 20;
/// Bytes that a keyed record has beside key and value.
const KEYED_RECORD: usize = 16;
/// How long the standby's index may take to be complete.
const PATIENCE: Duration = Duration::from_secs(120);
/// It is complete once it has not grown for so long, beyond what the open segment may lack.
const STILL: Duration = Duration::from_millis(500);

/// A takeover that can be measured here.
pub(super) struct Length {
    case: String,
    keys: u64,
}

pub(super) fn lengths(run: &mut Run<'_>) -> Vec<Length> {
    let chosen = if run.options.quick { &LENGTHS[..1] } else { &LENGTHS[1..] };
    let mut found = Vec::new();
    for (name, keys, needed) in chosen {
        match obstacle(*needed) {
            Some(why) => run.absent(&format!("a takeover with {name}"), why),
            None => found.push(Length { case: format!("takeover, {name}"), keys: *keys }),
        }
    }
    found
}

pub(super) fn round(run: &mut Run<'_>, length: &Length) -> Result<()> {
    for (name, is_warm) in [(WARM, true), (COLD, false)] {
        take_over(run, length, name, is_warm).with_context(|| format!("{}, {name}", length.case))?;
    }
    run.say(format!("{}, {LOG}", length.case));
    let mut ours = Ours::start(LOG, &run.program, &run.options.memory, &pair())?;
    let figures = fail_over_with(&mut ours, SMALL.bytes + KEYED_RECORD, length.keys)?;
    run.note(LOG, &length.case, None, figures);
    Ok(())
}

/// The closed connection tells the standby of the kill. With the default time-outs a busy machine could fail over earlier.
fn pair() -> Shape {
    Shape { sidecars: 2, ..Shape::new("shm", 3) }
}

fn take_over(run: &mut Run<'_>, length: &Length, name: &str, is_warm: bool) -> Result<()> {
    run.say(format!("{}, {name}", length.case));
    let size = TABLE_MIN.max(length.keys * TABLE_PER_KEY).next_multiple_of(SEGMENT_BYTES as u64);
    let table = TableShape { size, keys: length.keys, resident: false, mirror: true };
    let mut ours = Ours::start(name, &run.program, &run.options.memory, &Shape { table: Some(table), ..pair() })?;
    keys::fill(&ours, length.keys, SMALL.value())?;
    let standby = [ours.group.pid(Process::Sidecar(1))?];
    let busy: Vec<u32> = ours.backups()?.into_iter().chain(standby).collect();
    if is_warm {
        wait_for_index(&ours, length.keys)?;
        settle(&busy)?;
    } else {
        settle(&busy)?;
        // One that has just started has folded little yet.
        ours.group.kill_sidecar(1)?;
        ours.group.start_sidecar(1)?;
        ours.group
            .wait("the standby to hear the primary", |group| !group.status(1)["primary"]["heard_ms_ago"].is_null())?;
    }
    let observer = ours.group.observer().clone();
    let app = std::thread::spawn(move || -> Result<Instant> {
        let mut table = Table::over(observer.client(1, true)?)?;
        table.put(key(0).as_bytes(), &vec![9; SMALL.value()])?;
        Ok(Instant::now())
    });
    // The app shall be waiting when the primary dies.
    std::thread::sleep(if is_warm { Duration::from_millis(300) } else { Duration::from_millis(20) });
    let killed = Instant::now();
    ours.group.kill_sidecar(0)?;
    let acked =
        app.join().map_err(|_| anyhow!("the app at the standby panicked"))?.context("the app at the standby")?;
    mirrors::wait_for(&ours, 1)?;
    let milliseconds = |until: Instant, from: Instant| (until - from).as_secs_f64() * 1000.0;
    let figures =
        [(Metric::FirstAck, milliseconds(acked, killed)), (Metric::MirrorsLive, milliseconds(Instant::now(), acked))];
    run.note(name, &length.case, None, figures.into());
    Ok(())
}

/// Waits until the standby has folded all closed segments, of which it names the last record. The open one is left to the winner.
fn wait_for_index(ours: &Ours, keys: u64) -> Result<()> {
    let open = (SEGMENT_BYTES / ours.record_cost(SMALL.bytes)?) as u64;
    let (began, mut folded, mut since) = (Instant::now(), 0, Instant::now());
    while began.elapsed() < PATIENCE {
        let now = ours.group.status(1)["table"]["warm"].as_u64().unwrap_or(0);
        if now > folded {
            (folded, since) = (now, Instant::now());
        }
        if folded + open >= keys && since.elapsed() > STILL {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(anyhow!("the standby has folded {folded} of {keys} records within {PATIENCE:?}"))
}
