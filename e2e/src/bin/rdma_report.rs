//! What RDMA costs on this machine, measured in one run: our writes and reads beside perftest's, and the CPU time of a backup.
//!
//! `scripts/rdma.sh --report` runs it in a virtual machine with soft-RoCE. Ratios mean something there, times do not.
#![allow(clippy::print_stdout, reason = "a program that reports to people")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde_json::Value;
use tailwind_e2e::processes::{
    app::App,
    group::{Group, Process, Setup},
    process::{precise_cpu_time, program},
};
use tailwind_e2e::wait::poll;
use tailwind_e2e::workload::Input;

/// Turns of each of the two that are compared, one after the other.
const TURNS: usize = 5;
/// Writes that perftest times in one turn.
const WRITES: usize = 10_000;
/// Bytes of a read: a backup that copies a segment asks for as many.
const READ_SIZE: usize = 1 << 20;
/// Reads that perftest times in one turn.
const READS: usize = 200;
/// Bytes that the preflight reads: its default.
const DOCTOR_SLOT: u32 = 8 << 20;
/// Records that an empty backup copies: some 20 segments of 8 MiB.
const IMAGE_RECORDS: u64 = 1_000_000;
/// Columns of perftest: `#bytes #iterations peak[MiB/sec] average[MiB/sec] MsgRate[Mpps]`.
const AVERAGE: usize = 3;
const MESSAGE_RATE: usize = 4;
/// Pause between two looks, and how long there is something to look for.
const PAUSE: Duration = Duration::from_millis(20);
const DEADLINE: Duration = Duration::from_secs(120);
/// Records in flight.
const WINDOW: u64 = 2048;
/// Bytes of a record.
const RECORD: usize = 128;

/// Our writes and reads beside perftest's, and the CPU time of a backup.
#[derive(Parser)]
struct Options {
    /// Records appended while the backup's CPU time is counted
    #[arg(long, default_value_t = 1_000_000)]
    appends: u64,
    /// The RDMA device, for perftest
    #[arg(long, default_value = "rxe0")]
    device: String,
    /// The device's address, for perftest
    #[arg(long, default_value = "10.0.0.1")]
    address: String,
    /// The sidecar program; found beside this one if not given
    #[arg(long)]
    program: Option<PathBuf>,
}

fn main() -> Result<()> {
    let Options { appends, device, address, program: given } = Options::parse();
    let sidecar = given.map_or_else(program, Ok)?;
    let perftest = Perftest { device, address };
    writes(&sidecar, &perftest)?;
    reads(&sidecar, &perftest)?;
    cpu_time(sidecar, appends)
}

/// Writes of one record, one at a time.
fn writes(sidecar: &Path, perftest: &Perftest) -> Result<()> {
    println!("one write of {RECORD} bytes in flight, each completed; microseconds");
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for turn in 1..=TURNS {
        theirs.push(perftest.write()?);
        ours.push(measured(sidecar, "write")? / 1e3);
        println!("  turn {turn}: perftest {:.2}, ours {:.2}", theirs[turn - 1], ours[turn - 1]);
    }
    let (theirs, ours) = (median(theirs), median(ours));
    println!("  medians: perftest {theirs:.2}, ours {ours:.2}, ratio {:.2} (at most 1.25 wanted)", ours / theirs);
    Ok(())
}

/// Reads of large pieces, as fast as they go, and what a backup makes of them that copies a log.
fn reads(sidecar: &Path, perftest: &Perftest) -> Result<()> {
    println!("reads of {READ_SIZE} bytes, two in flight, and a backup that copies {IMAGE_RECORDS} records; GB/s");
    let (mut theirs, mut ours, mut images) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 1..=TURNS {
        theirs.push(perftest.read()?);
        ours.push(f64::from(DOCTOR_SLOT) / measured(sidecar, "read")?);
        images.push(image(sidecar)?);
        let (theirs, ours, images) = (theirs[turn - 1], ours[turn - 1], images[turn - 1]);
        println!("  turn {turn}: perftest {theirs:.3}, ours {ours:.3}, copied {images:.3}");
    }
    let (theirs, ours, images) = (median(theirs), median(ours), median(images));
    println!("  medians: perftest {theirs:.3}, ours {ours:.3}, ratio {:.2}", ours / theirs);
    println!("    copied {images:.3}, ratio {:.2} (at least 0.6 wanted)", images / theirs);
    Ok(())
}

/// GB/s at which an empty backup copies the closed segments of a log from the other members, verifies and flushes them.
fn image(sidecar: &Path) -> Result<f64> {
    let mut setup = Setup::new(sidecar.to_owned(), "verbs");
    (setup.backups, setup.copies, setup.sidecars, setup.buffers) = (3, 3, 1, 8);
    (setup.segment_size, setup.sidecar_options) = ("8MiB".to_owned(), patient());
    let mut group = Group::start(setup)?;
    group.wait_for_full_set()?;
    App::new(&Same, WINDOW).append_until(&group, IMAGE_RECORDS, |_| {})?;
    group.replace_backup(2)?;
    let pulled = |group: &Group| group.metric::<u64>(Process::Backup(2), "tailwind_backup_pulled_bytes_total");
    let began = poll(DEADLINE, PAUSE, || pulled(&group).filter(|bytes| *bytes > 0));
    let (first, since) = (began.context("the empty backup copies nothing")?, Instant::now());
    let joined = poll(DEADLINE, PAUSE, || (group.members().len() == 3).then(Instant::now));
    let (ended, last) = (joined.context("the empty backup does not join")?, pulled(&group));
    let copied = last.unwrap_or_default().saturating_sub(first);
    ensure!(copied > IMAGE_RECORDS * RECORD as u64 / 2, "most of the log was copied before anybody looked: {copied}");
    Ok(copied as f64 / ended.duration_since(since).as_secs_f64() / 1e9)
}

/// CPU time of a backup while an app appends.
fn cpu_time(sidecar: PathBuf, appends: u64) -> Result<()> {
    let mut setup = Setup::new(sidecar, "verbs");
    (setup.backups, setup.copies, setup.sidecars) = (1, 1, 1);
    (setup.segment_size, setup.buffers) = ("64MiB".to_owned(), 8);
    setup.sidecar_options = patient();
    let group = Group::start(setup)?;
    group.wait_for_full_set()?;
    let backup = group.pid(Process::Backup(0)).context("the backup runs")?;
    let cpu = || precise_cpu_time(backup).context("read the backup's CPU time");

    // Once the second segment has been lent, ahead of need.
    settle(&cpu)?;
    let (idle_before, idle) = (cpu()?, Duration::from_secs(5));
    std::thread::sleep(idle);
    let idle_share = (cpu()? - idle_before).as_secs_f64() / idle.as_secs_f64();

    // A segment of 64 MiB holds some 370,000 of these, so that the first part meets no lending, close or flush.
    let mut app = App::new(&Same, WINDOW);
    app.append_until(&group, 1, |_| {})?;
    let within = 250_000.min(appends);
    let (before, started) = (cpu()?, Instant::now());
    app.append_until(&group, within, |_| {})?;
    let (cpu_within, within_took) = (cpu()? - before, started.elapsed());
    app.append_until(&group, appends, |_| {})?;
    let (all, took) = (cpu()? - before, started.elapsed());
    let million = cpu_within.as_secs_f64() * 1e3 * 1e6 / within as f64;
    println!("CPU time of the backup process, from /proc/PID/task/*/schedstat");
    println!("  idle: {:.2} % of one core (heartbeats)", 100.0 * idle_share);
    println!("  {within} appends of {RECORD} bytes within one segment, {within_took:.1?}: {cpu_within:.1?}");
    println!("    {million:.1} ms for a million appends, heartbeats included (at most 20 wanted)");
    println!(
        "  {appends} appends, {took:.1?}: {all:.1?}, with lending (zeroing), closing (CRC) and flushing of segments"
    );
    Ok(())
}

/// Waits for a second in which the process does next to nothing.
fn settle(cpu: &impl Fn() -> Result<Duration>) -> Result<()> {
    for _ in 0..60 {
        let before = cpu()?;
        std::thread::sleep(Duration::from_secs(1));
        if cpu()? - before < Duration::from_millis(100) {
            return Ok(());
        }
    }
    bail!("the backup does not come to rest")
}

/// Emulated processors are slow, and nothing fails here.
fn patient() -> Vec<(&'static str, String)> {
    let timeouts = [("--heartbeat-silence-ms", "10000"), ("--open-timeout-ms", "20000"), ("--rpc-timeout-ms", "20000")];
    timeouts.map(|(flag, value)| (flag, value.to_owned())).to_vec()
}

struct Same;

impl Input for Same {
    fn record(&self, number: u64) -> Vec<u8> {
        let mut record = vec![7; RECORD];
        record[..8].copy_from_slice(&number.to_le_bytes());
        record
    }
}

/// The device, and the address at which it reaches itself.
struct Perftest {
    device: String,
    address: String,
}

impl Perftest {
    /// Microseconds for each write with one in flight: the inverse of its message rate.
    fn write(&self) -> Result<f64> {
        let sizes = (RECORD, WRITES);
        Ok(1.0 / self.run("ib_write_bw", &["-t", "1", "-Q", "1"], sizes, MESSAGE_RATE)?)
    }

    /// GB/s of reads with two in flight.
    fn read(&self) -> Result<f64> {
        let mebibytes = self.run("ib_read_bw", &["-t", "2", "-Q", "1"], (READ_SIZE, READS), AVERAGE)?;
        Ok(mebibytes * f64::from(1 << 20) / 1e9)
    }

    /// One column of what it reports of so many messages of some bytes each.
    fn run(&self, program: &str, queue: &[&str], (size, count): (usize, usize), column: usize) -> Result<f64> {
        let (size, count) = (size.to_string(), count.to_string());
        let command = || {
            let mut command = Command::new(program);
            command.args(["-d", &self.device, "-x", "1", "-s", &size, "-n", &count]).args(queue);
            command.stdin(Stdio::null());
            command
        };
        let start = || format!("start {program} (perftest)");
        let serve = || command().stdout(Stdio::null()).spawn().with_context(start);
        let mut server = serve()?;
        let deadline = Instant::now() + DEADLINE;
        let client = loop {
            let output = command().arg(&self.address).output().with_context(start)?;
            // Until its server listens. One that met the port of the last one in use has ended.
            if output.status.success() || Instant::now() > deadline {
                break output;
            }
            if server.try_wait().with_context(start)?.is_some() {
                server = serve()?;
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        let _ = server.kill();
        server.wait().context("wait for perftest's server")?;
        let text = String::from_utf8_lossy(&client.stdout).into_owned();
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(&size));
        line.and_then(|line| line.split_whitespace().nth(column)).and_then(|value| value.parse().ok()).with_context(
            || format!("unexpected output of {program}: {text}{}", String::from_utf8_lossy(&client.stderr)),
        )
    }
}

/// Nanoseconds of what the preflight has measured.
fn measured(sidecar: &Path, check: &str) -> Result<f64> {
    let output = Command::new(sidecar).args(["doctor", "--json"]).output().context("run the preflight")?;
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).context("read the preflight's findings")?;
    let found = findings.iter().find(|finding| finding["check"] == check);
    let nanoseconds = found.and_then(|found| found["nanoseconds"].as_f64());
    nanoseconds.with_context(|| format!("the preflight has no time of a {check}: {findings:?}"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
