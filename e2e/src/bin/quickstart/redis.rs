//! An unmodified Redis under `tailwind-exec` beside each sidecar: clients write all the while, and everything around the Redis
//! that serves is killed, one thing after the other. Then every counter and key is compared with what was answered.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Signal, kill_process};
use tailwind_e2e::processes::client_writes::{ClientWrites, Difference};
use tailwind_e2e::processes::exec::Ended;
use tailwind_e2e::processes::exec_faults::{Service, wait_until_whole};
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::redis::{Alone, Servers, info};
use tailwind_e2e::processes::resp::{RespClient, RespValue};
use tailwind_e2e::processes::writers::{Writers, compare, connect, write_alone};
use tailwind_e2e::workload::Random;
use tailwind_report::rows::Tone;

use crate::Options;
use crate::show::{Show, progress_bar, quantiles, row};

/// Clients that write at once, and the writes that each has in flight.
const CLIENTS: usize = 50;
const DEPTH: u64 = 20;
/// One write in so many is made alone, for the latency that a waiting client sees.
const ALONE_IN: u64 = 100;
/// Turns in which Redis with and without the log make these, so that both find the machine equally busy.
const TURNS: u64 = 20;
/// The part of the primary's files that a standby must have before something is killed: it lacks only what is on its way.
const CAUGHT_UP_PERCENT: u64 = 95;
/// How long a process may be silent until it counts as dead, if not said otherwise: a Redis that loads its file takes a core of
/// its own. The end of a process is noticed at once all the same.
const SILENCE_MS: u64 = 1000;
/// How long nobody may serve.
const OUTAGE_MAX: Duration = Duration::from_secs(60);
/// Between two attempts to write: of little weight for a Redis that loads its file.
const PAUSE: Duration = Duration::from_millis(5);
/// Every run has the same writes.
const SEED: u64 = 1;

/// The processes that are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Sidecar,
    Backup,
    Redis,
    Supervisor,
    SwitchOver,
}

const FAULTS: [Fault; 5] = [Fault::Sidecar, Fault::Backup, Fault::Redis, Fault::Supervisor, Fault::SwitchOver];

impl Fault {
    fn announcement(self) -> &'static str {
        match self {
            Fault::Sidecar => "killing the primary's sidecar (SIGKILL)",
            Fault::Backup => "killing a backup (SIGKILL)",
            Fault::Redis => "killing Redis (SIGKILL)",
            Fault::Supervisor => "killing tailwind-exec (SIGKILL)",
            Fault::SwitchOver => "switching over (SHUTDOWN, then SIGTERM to the sidecar)",
        }
    }

    fn row(self) -> &'static str {
        match self {
            Fault::Sidecar => "sidecar killed, to the next answer",
            Fault::Backup => "backup killed, to the next answer",
            Fault::Redis => "Redis killed, to the next answer",
            Fault::Supervisor => "tailwind-exec killed, the same",
            Fault::SwitchOver => "orderly switch-over, the same",
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.fabric != "verbs", "--app redis runs over shm and tcp: the virtual machine with RDMA has no Redis");
    let setup = options.setup(options.silence_ms.or(Some(SILENCE_MS)))?;
    let copies = setup.copies;
    println!("starting a Redis beside each of 2 sidecars, {copies} backups and 1 spare over {}", options.fabric);
    let started = Instant::now();
    let group = Group::start(setup)?;
    group.wait_for_full_set()?;
    let servers = Servers::start(&group)?;
    let mut demo = Demo { group, servers };
    let mut redis = demo.servers.wait_until_serves(demo.group.wait_for_primary()?)?;
    let version = info(&mut redis, "server", "redis_version")?;
    let alone_count = options.records.div_ceil(ALONE_IN).next_multiple_of(TURNS);
    let many = options.records;
    let part = many / (FAULTS.len() as u64 + 1);
    let show = Show::begin(&demo.group, options.plain, "write", alone_count + many);

    // One client, and the same beside it without a log.
    let alone = Alone::start(&demo.group)?;
    let mut reference = connect(alone.port).context("connect to the Redis that is alone")?;
    let (mut sent, mut reference_sent) = (ClientWrites::new(CLIENTS), ClientWrites::new(CLIENTS));
    let mut random = Random(SEED);
    let (mut latencies, mut reference_latencies) = (Vec::new(), Vec::new());
    for turn in 1..=TURNS {
        let count = alone_count / TURNS;
        latencies.extend(write_alone(&mut redis, &mut sent, &mut random, count)?);
        reference_latencies.extend(write_alone(&mut reference, &mut reference_sent, &mut random, count)?);
        show.progress(turn * count);
    }

    // Many clients: first without a log, then with it, and nothing is killed yet.
    let mut reference = Writers::start(&[alone.port], CLIENTS, DEPTH, SEED);
    let mut writers = Writers::start(demo.servers.ports(), CLIENTS, DEPTH, SEED);
    let (mut busy, mut reference_busy) = (Duration::ZERO, Duration::ZERO);
    for turn in 1..=TURNS {
        let goal = part * turn / TURNS;
        reference_busy += write_until(&mut reference, goal)?;
        busy += write_until(&mut writers, goal)?;
        show.progress(alone_count + goal);
    }
    reference.finish()?;
    drop(alone);

    let mut outages = Vec::new();
    for (number, fault) in (1..).zip(FAULTS) {
        let (primary, mut redis) = demo.wait_until_ready()?;
        let last = number == FAULTS.len() as u64;
        writers.allow(if last { many } else { (number + 1) * part });
        writers.wait_until(number * part + part / 2, |answered| show.progress(alone_count + answered))?;
        let answered = alone_count + writers.answered();
        show.tell(Tone::Passing, format!("{} after write {answered}", fault.announcement()));
        let (outage, server) = demo.strike(fault, primary, &mut redis)?;
        let text = if fault == Fault::Backup {
            format!("{outage:.1?}")
        } else {
            let (loading, mib) = (demo.servers.loading(server)?, demo.bytes(server) >> 20);
            format!("{outage:.1?}, {loading:.1?} of them while it loaded {mib} MiB")
        };
        let who = if server == primary { "it" } else { "the other Redis" };
        show.tell(Tone::Well, format!("{who} answers after {text}"));
        outages.push((fault, text));
    }
    writers.wait_until(many, |answered| show.progress(alone_count + answered))?;
    let took = started.elapsed();
    let mut clients = writers.finish()?;
    clients.push(sent);
    show.end();

    let progress = progress_bar(alone_count + many, "read back");
    let mut redis = demo.servers.wait_until_serves(demo.group.wait_for_primary()?)?;
    let found = compare(&mut redis, &clients, |read| progress.set_position(read))?;
    progress.finish_and_clear();

    let Difference { increments, sets, lost, repeated, open, carried_out } = found;
    println!("\nreport (Redis {version}, {}, {copies} copies)", options.fabric);
    row("writes answered", format!("{} ({increments} INCR, {sets} SET)", increments + sets));
    row("answered writes lost", lost);
    row("writes repeated", repeated);
    row("not answered when Redis died", format!("{open} ({carried_out} of them carried out)"));
    for (fault, text) in outages {
        row(fault.row(), text);
    }
    let rate = |busy: Duration| format!("{:.0} writes/s", part as f64 / busy.as_secs_f64());
    latencies.sort_unstable();
    reference_latencies.sort_unstable();
    row("latency of one client", quantiles(&latencies));
    row("latency, Redis without the log", quantiles(&reference_latencies));
    row(&format!("rate of {CLIENTS} clients, {DEPTH} in flight"), rate(busy));
    row("rate, Redis without the log", rate(reference_busy));
    row("whole run", format!("{took:.1?}"));
    ensure!(lost == 0 && repeated == 0, "Redis does not hold what it has answered: {found:?}");
    ensure!(increments + sets == alone_count + many, "not all writes were answered: {found:?}");
    Ok(())
}

/// Lets clients write until so many writes are answered; how long that took.
fn write_until(writers: &mut Writers, goal: u64) -> Result<Duration> {
    let began = Instant::now();
    writers.allow(goal);
    writers.wait_until(goal, |_| {})?;
    Ok(began.elapsed())
}

/// What is being killed.
struct Demo {
    group: Group,
    servers: Servers,
}

impl Demo {
    /// Waits until every copy is there and the standby can take over; the primary, and a connection to its Redis.
    fn wait_until_ready(&self) -> Result<(usize, RespClient)> {
        let (primary, redis) = wait_until_whole(&self.group, &self.servers)?;
        let caught_up = || {
            let wanted = self.bytes(primary) * CAUGHT_UP_PERCENT / 100;
            (self.bytes(1 - primary) >= wanted).then_some(())
        };
        self.servers.containers.wait("the standby's files", caught_up)?;
        Ok((primary, redis))
    }

    /// Ends something, and starts it again once a write was answered; how long that took, and whose Redis it was.
    fn strike(&mut self, fault: Fault, primary: usize, redis: &mut RespClient) -> Result<(Duration, usize)> {
        let began = Instant::now();
        match fault {
            Fault::Sidecar => {
                self.group.kill_sidecar(primary)?;
                let outage = self.wait_for_answer(began)?;
                self.group.start_sidecar(primary)?;
                return Ok(outage);
            }
            Fault::Backup => {
                let members = self.group.members();
                let victim = members.first().and_then(|name| self.group.backup_named(name));
                let victim = victim.context("a member to kill")?;
                let began = Instant::now();
                self.group.kill_backup(victim)?;
                let reply = redis.ask(&["SET", "served", "yes"])?;
                ensure!(matches!(reply, RespValue::Simple(_)), "a write is answered {reply:?}");
                return Ok((began.elapsed(), primary));
            }
            Fault::Redis => {
                kill_process(self.servers.containers.program(primary)?, Signal::KILL)?;
            }
            Fault::Supervisor => self.servers.containers.signal(primary, Signal::KILL)?,
            Fault::SwitchOver => {
                let ends = self.servers.containers.ends(primary);
                // Its reply is the end of the connection.
                if let Ok(reply) = redis.ask(&["SHUTDOWN"]) {
                    bail!("SHUTDOWN is answered {reply:?}");
                }
                let ended = self.servers.containers.wait_for_end(primary, ends)?;
                ensure!(ended == Ended::Code(0), "after SHUTDOWN it has {ended:?}");
                self.group.signal(Process::Sidecar(primary), Signal::TERM)?;
                self.group.wait_for_end(Process::Sidecar(primary))?;
                let outage = self.wait_for_answer(began)?;
                self.group.start_sidecar(primary)?;
                return Ok(outage);
            }
        }
        self.wait_for_answer(began)
    }

    /// Writes until any Redis answers that.
    fn wait_for_answer(&self, began: Instant) -> Result<(Duration, usize)> {
        while began.elapsed() < OUTAGE_MAX {
            for (index, port) in self.servers.ports().iter().enumerate() {
                let reply = connect(*port).map(|mut redis| redis.ask(&["SET", "served", "yes"]));
                if let Some(Ok(RespValue::Simple(_))) = reply {
                    return Ok((began.elapsed(), index));
                }
            }
            std::thread::sleep(PAUSE);
        }
        bail!(
            "for {OUTAGE_MAX:?} no Redis has answered\n{}{}",
            self.servers.containers.last_lines(),
            self.servers.last_lines()
        )
    }

    /// Bytes in the files of one Redis.
    fn bytes(&self, index: usize) -> u64 {
        bytes_in(self.servers.containers.directory(index))
    }
}

/// The size of all files in a folder. Some may vanish during the count.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_in(&entry.path()),
        found => found.map_or(0, |found| found.len()),
    });
    sizes.sum()
}
