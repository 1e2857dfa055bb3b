//! `joining`: how fast an empty backup takes a killed member's place, and what that costs the primary and the app.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use tailwind_client::blocking::Client;
use tailwind_e2e::processes::group::{Group, Process};

use super::recovery::{Length, fill, obstacle, records_of};
use crate::cpu::{settle, used};
use crate::ours::{Ours, Shape};
use crate::results::{Figures, Metric};
use crate::run::Run;

pub(crate) const ABOUT: &str = "A member is killed (SIGKILL) and a backup of its name is started with nothing in memory or on \
    disk; 3 backups, and no spare one. *At rest* nobody appends: the time counts from the start of the new process until it is \
    in the set, so noticing the loss and two swaps are in it, and the rate is that of the log's bytes in this time. They come \
    from the disks of the members and go to that of the newcomer. *Under load* one client appends 100 B with 2048 in flight all \
    the while, for 3 s before the member is killed; the log is as long when that begins. The last segment that is copied is the \
    last that the newcomer counts as pulled. Acks may come late because all backups write to one disk, because the set changes, \
    or because appends pause so that the newcomer can join. So the gaps before the kill stand beside those that begin once the \
    killed member has left the set, and the pauses are counted by the sidecar itself. `memcpy` copies as many bytes once, from \
    memory to memory, by one processor.";

const SIZE: usize = 100;
const DEPTH: usize = 2048;
/// Bytes of log, and what it takes in GiB.
const LENGTH: (Length, f64) = (Length::Mebibytes(1 << 10), 6.0);
const QUICK: (Length, f64) = (Length::Mebibytes(128), 2.0);
const REST: &str = "at rest";
const LOAD: &str = "under load";
const COPY: &str = "memcpy of the log";
/// The member that is killed.
const REPLACED: usize = 2;
/// How long appends continue before a member is killed under load.
const BEFORE: Duration = Duration::from_secs(3);
/// How often processes are asked how far they are: answers cost them time, which is measured.
const ASK_AGAIN: Duration = Duration::from_millis(50);
const JOINS_WITHIN: Duration = Duration::from_secs(120);
const MIB: f64 = (1 << 20) as f64;

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let (length, needed) = if run.options.quick { QUICK } else { LENGTH };
    if let Some(why) = obstacle(needed) {
        run.absent("the log of 1 GiB", why);
        return Ok(());
    }
    let mut entered = false;
    run.rounds(|run| {
        for fabric in ["shm", "tcp"] {
            let name = format!("Tailwind {fabric}");
            let shape = Shape { default_timeouts: true, ..Shape::new(fabric, 3) };
            for case in [REST, LOAD] {
                run.say(format!("{name}, {case}"));
                let mut ours = Ours::start(&name, &run.program, &run.options.memory, &shape)?;
                if !entered && case == REST {
                    run.enter(ours.contestant());
                }
                let measure = if case == REST { at_rest } else { under_load };
                measure(run, &mut ours, length).with_context(|| format!("{name}, {case}"))?;
            }
        }
        entered = true;
        Ok(())
    })
}

fn at_rest(run: &mut Run<'_>, ours: &mut Ours, length: Length) -> Result<()> {
    let bytes = write_log(ours, length)?;
    let sidecar = [ours.sidecar()?];
    let before = used(&sidecar)?;
    let started = Instant::now();
    ours.group.replace_backup(REPLACED)?;
    wait_until_it_joins(&ours.group)?;
    let taken = started.elapsed();
    let spent = used(&sidecar)? - before;
    let figures = [
        (Metric::Joined, milliseconds(taken)),
        (Metric::CopyRate, bytes as f64 / MIB / taken.as_secs_f64()),
        (Metric::SidecarPerByte, (spent.user + spent.kernel) / bytes as f64),
    ];
    run.note(&ours.name, REST, None, figures.into());
    let figures = [(Metric::CopyRate, bytes as f64 / MIB / memcpy(bytes as usize).as_secs_f64())];
    run.note(COPY, REST, None, figures.into());
    Ok(())
}

fn under_load(run: &mut Run<'_>, ours: &mut Ours, length: Length) -> Result<()> {
    write_log(ours, length)?;
    let load = Load::start(ours.client(Duration::ZERO)?);
    std::thread::sleep(BEFORE);
    let killed = Instant::now();
    ours.group.replace_backup(REPLACED)?;
    // Appends wait until the set is smaller: the gaps of interest begin after that.
    wait_for(&ours.group, "the killed member to leave the set", |members| members < 3)?;
    let noticed = Instant::now();
    let (mut pulled, mut last) = (0_u64, None);
    wait_for(&ours.group, "the newcomer to join under load", |members| {
        let now = ours.group.metric(Process::Backup(REPLACED), "tailwind_backup_pulled_segments_total").unwrap_or(0);
        if now != std::mem::replace(&mut pulled, now) {
            last = Some(Instant::now());
        }
        members == 3
    })?;
    let joined = Instant::now();
    let gaps = load.finish()?;
    let longest = |counts: &dyn Fn(&Gap) -> bool| {
        let lengths = gaps.iter().filter(|gap| counts(gap)).map(|gap| gap.length);
        milliseconds(lengths.max().unwrap_or_default())
    };
    let mut figures = Figures::from([
        (Metric::Joined, milliseconds(joined - killed)),
        (Metric::LongestGapBefore, longest(&|gap| gap.ended < killed)),
        (Metric::LongestGap, longest(&|gap| gap.ended - gap.length > noticed)),
    ]);
    figures.extend(last.map(|last| (Metric::JoinedAfterCopy, milliseconds(joined - last))));
    let paused = ours.group.metric(Process::Sidecar(0), "tailwind_join_pause_seconds_sum");
    figures.extend(paused.map(|seconds: f64| (Metric::JoinPause, seconds * 1000.0)));
    run.note(&ours.name, LOAD, None, figures);
    Ok(())
}

/// A log of this length, on the disks of all members; its bytes.
fn write_log(ours: &Ours, length: Length) -> Result<u64> {
    let records = records_of(ours, SIZE, length)?;
    fill(ours, SIZE, records)?;
    settle(&ours.backups()?)?;
    Ok(records * ours.record_cost(SIZE)? as u64)
}

/// The one that was killed may still be in the set when the wait begins.
fn wait_until_it_joins(group: &Group) -> Result<()> {
    wait_for(group, "the killed member to leave the set", |members| members < 3)?;
    wait_for(group, "the newcomer to join", |members| members == 3)
}

/// Waits for a number of members in the set.
fn wait_for(group: &Group, what: &str, mut met: impl FnMut(usize) -> bool) -> Result<()> {
    let started = Instant::now();
    while !met(group.members().len()) {
        ensure!(started.elapsed() < JOINS_WITHIN, "waited {JOINS_WITHIN:?} for {what}");
        std::thread::sleep(ASK_AGAIN);
    }
    Ok(())
}

fn memcpy(bytes: usize) -> Duration {
    let (from, mut to) = (vec![7_u8; bytes], vec![1_u8; bytes]);
    let started = Instant::now();
    to.copy_from_slice(std::hint::black_box(&from));
    std::hint::black_box(&to);
    started.elapsed()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Between two acks that came one after the other.
struct Gap {
    ended: Instant,
    length: Duration,
}

/// A client that appends as fast as it can.
struct Load {
    ended: Arc<AtomicBool>,
    client: JoinHandle<Result<Vec<Gap>>>,
}

impl Load {
    fn start(client: Client) -> Load {
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        Load { ended, client: std::thread::spawn(move || append(client, &until)) }
    }

    fn finish(self) -> Result<Vec<Gap>> {
        self.ended.store(true, Ordering::Release);
        self.client.join().map_err(|_| anyhow!("the appending client panicked"))?
    }
}

/// Gaps of a millisecond and more.
fn append(mut client: Client, until: &AtomicBool) -> Result<Vec<Gap>> {
    const COUNTS: Duration = Duration::from_millis(1);
    let (mut gaps, mut last, mut in_flight) = (Vec::new(), Instant::now(), 0);
    while !until.load(Ordering::Acquire) {
        while in_flight < DEPTH {
            client.submit(&[7; SIZE])?;
            in_flight += 1;
        }
        if let Some(ack) = client.next_ack()? {
            ack.outcome?;
            in_flight -= 1;
        }
        while let Some(ack) = client.try_next_ack() {
            ack.outcome?;
            in_flight -= 1;
        }
        let now = Instant::now();
        if now - last >= COUNTS {
            gaps.push(Gap { ended: now, length: now - last });
        }
        last = now;
    }
    client.flush()?;
    Ok(gaps)
}
