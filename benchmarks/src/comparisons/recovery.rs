//! `recovery`: how long a group is without a primary, and how long its app waits for the log, as the log grows.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tailwind_client::Lsn;

use crate::cpu::settle;
use crate::machine;
use crate::ours::{Ours, Shape};
use crate::results::{Figures, Metric};
use crate::run::Run;

pub(crate) const ABOUT: &str = "The primary is killed (SIGKILL) once the log has the given size and the processes have come to \
    rest. A standby runs, and an app waits at it for the welcome; it appends one record, and after its ack reads the \
    whole log. Both times count from the kill. Records have 100 B; 3 backups, default time-outs. Segments that were \
    flushed are read from the backups' files.";

const SIZE: usize = 100;
/// Records in flight while the log is filled.
const BATCH: usize = 512;

/// How large a log is.
#[derive(Clone, Copy)]
pub(crate) enum Length {
    Mebibytes(u64),
    Records(u64),
}

/// With what it takes, in GiB: three copies, which the page cache should hold while they are written and read.
const LENGTHS: &[(&str, Length, f64)] = &[
    ("64 MiB", Length::Mebibytes(64), 0.0),
    ("256 MiB", Length::Mebibytes(256), 2.0),
    ("1 GiB", Length::Mebibytes(1 << 10), 6.0),
    (TEN_MILLION, Length::Records(10_000_000), 8.0),
    ("10 GiB", Length::Mebibytes(10 << 10), 40.0),
];
const TEN_MILLION: &str = "10 million records";
/// With --quick, so many of them.
const QUICK: usize = 2;

/// The case of a length.
pub(crate) fn case(length: &str) -> String {
    format!("log: {length}")
}

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let mut lengths = Vec::new();
    for (name, length, needed) in LENGTHS.iter().take(if run.options.quick { QUICK } else { LENGTHS.len() }) {
        match obstacle(*needed) {
            None => lengths.push((*name, *length)),
            Some(why) => run.absent(&format!("a log of {name}"), why),
        }
    }
    let mut entered = false;
    run.rounds(|run| {
        for (name, length) in &lengths {
            for fabric in ["shm", "tcp"] {
                run.say(format!("{fabric}, {name}"));
                let contestant = format!("Tailwind {fabric}");
                let shape = Shape { sidecars: 2, default_timeouts: true, ..Shape::new(fabric, 3) };
                let mut ours = Ours::start(&contestant, &run.program, &run.options.memory, &shape)?;
                if !entered {
                    run.enter(ours.contestant());
                }
                measure(run, &mut ours, &case(name), *length).with_context(|| format!("{contestant}, {name}"))?;
            }
            entered = true;
        }
        Ok(())
    })
}

/// Why a log that takes so many GiB, copies included, cannot be measured here.
pub(super) fn obstacle(needed: f64) -> Option<String> {
    let (memory, disk) = (machine::memory_available_gib(), machine::free_gib(&std::env::temp_dir()));
    let why = || format!("needs {needed} GiB of memory and of disk, and there are {memory:.0} and {disk:.0} GiB");
    (memory < needed || disk < needed).then(why)
}

/// Fills the log, kills the primary, and notes what its app sees.
pub(super) fn measure(run: &mut Run<'_>, ours: &mut Ours, case: &str, length: Length) -> Result<()> {
    let log = (records_of(ours, SIZE, length)? * ours.record_cost(SIZE)? as u64) as f64 / f64::from(1 << 20);
    let figures = fail_over(ours, length)?;
    run.note(&ours.name, case, Some(log), figures);
    Ok(())
}

/// The same, without a note of it.
pub(crate) fn fail_over(ours: &mut Ours, length: Length) -> Result<Figures> {
    let records = records_of(ours, SIZE, length)?;
    fail_over_with(ours, SIZE, records)
}

/// The same with so many records of this size.
pub(super) fn fail_over_with(ours: &mut Ours, size: usize, records: u64) -> Result<Figures> {
    fill(ours, size, records)?;
    let pids: Vec<u32> = ours.backups()?;
    settle(&pids)?;
    let observer = ours.group.observer().clone();
    let app = std::thread::spawn(move || {
        let mut client = observer.client(1, true)?;
        client.append(&vec![9; size])?;
        let first_ack = Instant::now();
        let mut read = client.read(Lsn(1), 0)?;
        let mut found = 0;
        while let Some((_, payload)) = read.next_record()? {
            ensure!(payload.len() == size, "a record of {} bytes in the log", payload.len());
            found += 1;
        }
        Ok((first_ack, Instant::now(), found))
    });
    // The app shall be waiting when the primary dies, as apps of standbys do.
    std::thread::sleep(Duration::from_millis(300));
    let killed = Instant::now();
    ours.group.kill_sidecar(0)?;
    let app = app.join().map_err(|_| anyhow::anyhow!("the reading app panicked"))?;
    let (first_ack, whole_log, found) = app.context("the app at the standby")?;
    ensure!(found == records + 1, "{found} records were read, and {} acknowledged", records + 1);
    let mebibytes = (records * size as u64) as f64 / f64::from(1 << 20);
    let milliseconds = |until: Instant| (until - killed).as_secs_f64() * 1000.0;
    let figures = [
        (Metric::FirstAck, milliseconds(first_ack)),
        (Metric::WholeLog, milliseconds(whole_log)),
        (Metric::ReadRate, mebibytes / (whole_log - first_ack).as_secs_f64()),
    ];
    Ok(figures.into())
}

/// How many records of this size make a log of this length.
pub(super) fn records_of(ours: &Ours, size: usize, length: Length) -> Result<u64> {
    Ok(match length {
        Length::Mebibytes(mebibytes) => (mebibytes << 20) / ours.record_cost(size)? as u64,
        Length::Records(records) => records,
    })
}

/// Appends so many records of this size.
pub(super) fn fill(ours: &Ours, size: usize, records: u64) -> Result<()> {
    let mut client = ours.client(Duration::ZERO)?;
    let mut left = records;
    while left > 0 {
        let count = left.min(BATCH as u64);
        client.submit_batch(&vec![vec![7; size]; count as usize])?;
        while let Some(ack) = client.try_next_ack() {
            ack.outcome?;
        }
        left -= count;
    }
    client.flush()?;
    Ok(())
}
