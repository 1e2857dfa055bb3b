//! `followers`: what it costs that standbys and readers follow the log, how far behind they are, and what a warm standby saves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use tailwind_client::blocking::{Client, Table};
use tailwind_client::{Error, FollowEvent, Lsn};
use tailwind_e2e::processes::group::Process;
use tailwind_e2e::processes::observer::Observer;

use super::recovery::{Length, fill, obstacle, records_of};
use crate::affinity::{keep_on, keep_this_thread_on, processors};
use crate::costs::{self, Appends};
use crate::cpu::settle;
use crate::keys;
use crate::ours::{Ours, Shape};
use crate::results::Metric;
use crate::run::Run;
use crate::statistics::{histogram, percentiles};
use crate::workload::Store;

pub(crate) const ABOUT: &str = "Clients follow the log at a standby, which reads it from one backup at a time; 3 backups. First \
    the cost: one client appends 100 B pipelined with 2048 in flight at the primary, while nobody or 4 clients follow. The \
    standby and its clients have one processor to themselves, in either case, and everything else has the others: what is \
    compared is what following takes from the primary and the backups, not from a machine that they share. Then the lag: a thousand records a second are appended, each with the time at which \
    it is submitted, and the time counts until the follower has it. Then the takeover: the primary is killed (SIGKILL) with a \
    log of the given size, and the time counts until the first ack of an app at the standby: one that needs nothing of the log \
    (*group alone*), one that has followed (*warm*), and one that reads the log first (*cold*). With keys, the app is the example store, \
    whose group keeps a table (until 27 November 2026 a log), and a cold one is a process that is started when the primary \
    dies. The standby learns of the death by the closed connection.";

const SIZE: usize = 100;
const DEPTH: usize = 2048;
const FOLLOWERS: usize = 4;
/// Records a second while the lag is measured.
const LAG_RATE: f64 = 1000.0;
pub(crate) const NOBODY: &str = "pipelined, nobody follows";
pub(crate) const FOUR: &str = "pipelined, 4 follow";
const LAG: &str = "lag of a follower";
/// The longest log of a takeover, which takes so many GiB.
const TAKEOVERS: &[(&str, Length, f64)] =
    &[("1 million records", Length::Records(1_000_000), 1.0), ("10 million records", Length::Records(10_000_000), 8.0)];
/// The same with the example store: the first is for --quick.
const STORE_TAKEOVERS: &[(&str, u64, f64)] =
    &[("100 thousand keys", 100_000, 1.0), ("1 million keys", 1_000_000, 2.0), ("10 million keys", 10_000_000, 12.0)];
/// How long a follower may take to see what has been appended.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an app at the standby does until it appends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum App {
    Alone,
    Warm,
    Cold,
}

impl App {
    const ALL: [App; 3] = [App::Alone, App::Warm, App::Cold];

    fn name(self) -> &'static str {
        match self {
            App::Alone => "group alone",
            App::Warm => "warm standby",
            App::Cold => "cold standby",
        }
    }
}

/// Processors of the standby with its clients, and of the rest.
pub(super) struct Apart {
    pub(super) standby: usize,
    pub(super) others: Vec<usize>,
}

impl Apart {
    /// `None` with one processor.
    pub(super) fn of(processors: &[usize]) -> Option<Apart> {
        let (standby, others) = processors.split_last().filter(|(_, others)| !others.is_empty())?;
        Some(Apart { standby: *standby, others: others.to_vec() })
    }
}

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let mut all = Vec::new();
    let processors = processors()?;
    let apart = Apart::of(&processors);
    if apart.is_none() {
        run.absent("a processor for the standby alone", "there is only one");
    }
    for (name, fabric) in [("Tailwind shm", "shm"), ("Tailwind tcp", "tcp")] {
        let ours = run.ours(name, &Shape { sidecars: 2, ..Shape::new(fabric, 3) })?;
        if let Some(apart) = &apart {
            [ours.sidecar()?].into_iter().chain(ours.backups()?).try_for_each(|pid| keep_on(pid, &apart.others))?;
            keep_on(ours.group.pid(Process::Sidecar(1))?, &[apart.standby])?;
        }
        all.push(ours);
    }
    let takeovers: &[_] = if run.options.quick { &TAKEOVERS[..1] } else { TAKEOVERS };
    let mut lengths = Vec::new();
    for (name, length, needed) in takeovers {
        match obstacle(*needed) {
            Some(why) => run.absent(&format!("a takeover with {name}"), why),
            None => lengths.push((takeover(name), *length)),
        }
    }
    let store_takeovers: &[_] = if run.options.quick { &STORE_TAKEOVERS[..1] } else { &STORE_TAKEOVERS[1..] };
    let mut stores = Vec::new();
    for (name, keys, needed) in store_takeovers {
        match obstacle(*needed) {
            Some(why) => run.absent(&format!("a takeover with {name}"), why),
            None => stores.push((takeover(name), *keys)),
        }
    }
    run.rounds(|run| {
        if let Some(apart) = &apart {
            keep_this_thread_on(&apart.others)?;
        }
        let measured = all.iter().try_for_each(|ours| cost_and_lag(run, ours, apart.as_ref()));
        // What is started from here on may use all again.
        keep_this_thread_on(&processors)?;
        measured?;
        for (case, length) in &lengths {
            for app in App::ALL {
                take_over(run, case, *length, app).with_context(|| format!("{case}, {}", app.name()))?;
            }
        }
        for (case, keys) in &stores {
            for app in App::ALL {
                take_over_store(run, case, *keys, app).with_context(|| format!("{case}, {}", app.name()))?;
            }
        }
        Ok(())
    })
}

/// The case of a length.
fn takeover(length: &str) -> String {
    format!("takeover, {length}")
}

fn cost_and_lag(run: &mut Run<'_>, ours: &Ours, apart: Option<&Apart>) -> Result<()> {
    for (case, followers) in [(NOBODY, 0), (FOUR, FOLLOWERS)] {
        pipelined(run, ours, apart, case, followers).with_context(|| format!("{}, {case}", ours.name))?;
    }
    lag(run, ours, apart).with_context(|| format!("{}, {LAG}", ours.name))
}

fn pipelined(run: &mut Run<'_>, ours: &Ours, apart: Option<&Apart>, case: &str, followers: usize) -> Result<()> {
    run.say(format!("{}, {case}", ours.name));
    let observer = ours.group.observer();
    let next = ours.client(Duration::ZERO)?.barrier()?.last.next();
    let following: Vec<Following> =
        (0..followers).map(|_| Following::start(observer, apart, next, |_| {})).collect::<Result<_>>()?;
    let appends = Appends { clients: 1, depth: DEPTH, size: SIZE };
    let mut figures = costs::measure(ours, &appends, run.time() * 2)?;
    let both = [Metric::BackupsUser, Metric::BackupsKernel].map(|metric| figures.get(&metric).copied().unwrap_or(0.0));
    figures.insert(Metric::BackupsCpu, both.iter().sum());
    let last = ours.client(Duration::ZERO)?.barrier()?.last;
    following.into_iter().try_for_each(|one| one.end_at(last))?;
    run.note(&ours.name, case, None, figures);
    ours.trim()
}

fn lag(run: &mut Run<'_>, ours: &Ours, apart: Option<&Apart>) -> Result<()> {
    run.say(format!("{}, {LAG}", ours.name));
    let began = Instant::now();
    let next = ours.client(Duration::ZERO)?.barrier()?.last.next();
    let lags = Arc::new(std::sync::Mutex::new(histogram()));
    let seen = Arc::clone(&lags);
    let following = Following::start(ours.group.observer(), apart, next, move |payload| {
        let (now, submitted) = (began.elapsed(), payload.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)));
        if let Ok(mut lags) = seen.lock() {
            lags.saturating_record((now.as_nanos() as u64).saturating_sub(submitted));
        }
    })?;
    let mut client = ours.client(Duration::ZERO)?;
    let mut last = Lsn(0);
    for number in 0..(LAG_RATE * run.time().as_secs_f64()) as u32 {
        let due = Duration::from_secs_f64(f64::from(number) / LAG_RATE);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        let mut payload = [7; SIZE];
        payload[..8].copy_from_slice(&(began.elapsed().as_nanos() as u64).to_le_bytes());
        last = client.append(&payload)?;
    }
    following.end_at(last)?;
    let lags: Histogram<u64> = lags.lock().map_err(|_| anyhow::anyhow!("the follower panicked"))?.clone();
    run.note(&ours.name, LAG, None, percentiles(&lags));
    ours.trim()
}

/// A client that follows at the standby.
struct Following {
    stop: Arc<AtomicBool>,
    seen: Arc<AtomicU64>,
    thread: JoinHandle<Result<Lsn>>,
}

impl Following {
    /// From this record on; shows each payload. It has caught up when this returns.
    fn start(
        observer: &Observer,
        apart: Option<&Apart>,
        from: Lsn,
        mut show: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<Following> {
        let mut client = observer.client(1, false).context("connect to the standby")?;
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&seen);
        let (stopping, (ready, is_ready)) = (Arc::clone(&stop), channel());
        let processor = apart.map(|apart| apart.standby);
        let thread = std::thread::spawn(move || {
            processor.map_or(Ok(()), |processor| keep_this_thread_on(&[processor]))?;
            client.set_timeout(Some(Duration::from_millis(100)))?;
            let mut follow = client.follow(from)?;
            let mut last = from.prev();
            loop {
                match follow.next_event() {
                    Ok(Some(FollowEvent::Record(lsn, payload))) => {
                        show(payload);
                        last = lsn;
                        told.store(lsn.0, Ordering::Release);
                    }
                    // Nobody may wait for it any more.
                    Ok(Some(FollowEvent::CaughtUp { .. })) => drop(ready.send(())),
                    Ok(Some(FollowEvent::Lag { .. })) | Err(Error::TimedOut { .. }) => {}
                    Ok(Some(FollowEvent::Turn { .. }) | None) => bail!("the standby has become primary"),
                    Err(error) => return Err(error.into()),
                }
                if stopping.load(Ordering::Relaxed) {
                    return Ok(last);
                }
            }
        });
        is_ready.recv_timeout(PATIENCE).context("a follower does not catch up")?;
        Ok(Following { stop, seen, thread })
    }

    /// Ends once it has seen this record.
    fn end_at(self, last: Lsn) -> Result<()> {
        let began = Instant::now();
        while self.seen.load(Ordering::Acquire) < last.0 && !self.thread.is_finished() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.thread.join().map_err(|_| anyhow::anyhow!("a follower panicked"))??;
        ensure!(seen >= last, "a follower has seen record {seen}, and not {last} within {PATIENCE:?}");
        Ok(())
    }
}

/// A group whose standby is about to take over.
fn start_pair(run: &Run<'_>, app: App, shape: &Shape) -> Result<Ours> {
    Ours::start(app.name(), &run.program, &run.options.memory, shape)
}

/// The closed connection tells the standby of the kill. With the default time-outs a busy machine could fail over earlier.
fn pair() -> Shape {
    Shape { sidecars: 2, ..Shape::new("shm", 3) }
}

/// Fills the log, kills the primary, and notes when the app at the standby has its first ack.
fn take_over(run: &mut Run<'_>, case: &str, length: Length, app: App) -> Result<()> {
    run.say(format!("{case}, {}", app.name()));
    let mut ours = start_pair(run, app, &pair())?;
    let records = records_of(&ours, SIZE, length)?;
    // One that follows does so from the beginning, and continues while the log grows. The others wait for their turn only.
    let (ready, is_ready) = channel();
    let standby = |ours: &Ours| {
        let (observer, ready) = (ours.group.observer().clone(), ready.clone());
        std::thread::spawn(move || append_at(&observer, app, records, &ready))
    };
    let early = (app == App::Warm).then(|| standby(&ours));
    fill(&ours, SIZE, records).context("fill the log")?;
    let standby = early.unwrap_or_else(|| standby(&ours));
    drop(ready);
    if app == App::Warm && is_ready.recv_timeout(PATIENCE).is_err() {
        // If it has ended, it says itself why.
        ensure!(standby.is_finished(), "the app at the standby has not seen {records} records within {PATIENCE:?}");
    }
    settle(&ours.backups()?)?;
    let killed = Instant::now();
    ours.group.kill_sidecar(0)?;
    let acked = standby.join().map_err(|_| anyhow::anyhow!("the app at the standby panicked"))?;
    note_takeover(run, case, app, killed, acked.context("the app at the standby")?);
    Ok(())
}

/// What an app at the standby does; when its first record was acknowledged.
fn append_at(observer: &Observer, app: App, records: u64, ready: &Sender<()>) -> Result<Instant> {
    let mut client = observer.client(1, app != App::Warm)?;
    match app {
        App::Alone => {}
        App::Warm => follow_to_the_turn(&mut client, records, ready)?,
        App::Cold => {
            let mut read = client.read(Lsn(1), 0)?;
            while read.next_record()?.is_some() {}
        }
    }
    client.append(&[9; SIZE])?;
    Ok(Instant::now())
}

/// What an app that needs nothing of a table does at a standby; when its first write was acknowledged.
fn put_at(observer: &Observer) -> Result<Instant> {
    let mut table = Table::over(observer.client(1, true)?)?;
    table.put(keys::key(0).as_bytes(), &[9; SIZE])?;
    Ok(Instant::now())
}

/// The same with the example store: beside the standby runs nothing, a server that follows, or one that is started when the
/// primary dies.
fn take_over_store(run: &mut Run<'_>, case: &str, keys: u64, app: App) -> Result<()> {
    run.say(format!("{case}, {}", app.name()));
    let group = start_pair(run, app, &Store::shape_of_keys(pair(), keys))?;
    let mut store = Store::start(group).context("the example store")?;
    if app != App::Warm {
        store.servers.kill(1)?;
    }
    settle(&store.ours.backups()?)?;
    let observer = store.ours.group.observer().clone();
    let alone = (app == App::Alone).then(|| std::thread::spawn(move || put_at(&observer)));
    // The app shall be waiting when the primary dies.
    std::thread::sleep(Duration::from_millis(300));
    let killed = Instant::now();
    store.ours.group.kill_sidecar(0)?;
    // Gigabytes, which take longer to free than a failover takes.
    store.servers.kill_at_once(0)?;
    let acked = match alone {
        Some(alone) => {
            let acked = alone.join().map_err(|_| anyhow::anyhow!("the app at the standby panicked"))?;
            acked.context("the app at the standby")?
        }
        None => {
            if app == App::Cold {
                store.servers.start_one(1)?;
            }
            store.first_write(1)?
        }
    };
    note_takeover(run, case, app, killed, acked);
    Ok(())
}

fn note_takeover(run: &mut Run<'_>, case: &str, app: App, killed: Instant, acked: Instant) {
    let figures = [(Metric::FirstAck, (acked - killed).as_secs_f64() * 1000.0)];
    run.note(app.name(), case, None, figures.into());
}

/// Returns at its turn; says when it has seen so many records.
fn follow_to_the_turn(client: &mut Client, records: u64, ready: &Sender<()>) -> Result<()> {
    let mut follow = client.follow(Lsn(1))?;
    loop {
        match follow.next_event() {
            Ok(Some(FollowEvent::Record(lsn, _))) if lsn.0 == records => ready.send(())?,
            Ok(Some(FollowEvent::Turn { .. })) => return Ok(()),
            Ok(Some(_)) | Err(Error::TimedOut { .. }) => {}
            Ok(None) => bail!("the standby has ended the follow"),
            Err(error) => return Err(error.into()),
        }
    }
}
