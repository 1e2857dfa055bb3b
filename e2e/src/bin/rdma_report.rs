//! What RDMA costs on this machine, measured in one run: our writes beside perftest's, and the CPU time of a backup.
//!
//! `scripts/rdma.sh --report` runs it in a virtual machine with soft-RoCE. Ratios mean something there, times do not.
#![allow(clippy::print_stdout, reason = "a program that reports to people")]

use std::path::PathBuf;
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

use tailwind_e2e::workload::Input;

/// Turns of each of the two that are compared, one after the other.
const TURNS: usize = 5;
/// Writes that perftest times in one turn.
const WRITES: usize = 10_000;
/// Records in flight.
const WINDOW: u64 = 2048;
/// Bytes of a record.
const RECORD: usize = 128;

/// Our writes beside perftest's, and the CPU time of a backup.
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
    println!("one write of {RECORD} bytes in flight, each completed; microseconds");
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for turn in 1..=TURNS {
        theirs.push(perftest(&device, &address)?);
        ours.push(our_write(&sidecar)?);
        println!("  turn {turn}: perftest {:.2}, ours {:.2}", theirs[turn - 1], ours[turn - 1]);
    }
    let (theirs, ours) = (median(theirs), median(ours));
    println!("  medians: perftest {theirs:.2}, ours {ours:.2}, ratio {:.2} (at most 1.25 wanted)", ours / theirs);

    let mut setup = Setup::new(sidecar, "verbs");
    (setup.backups, setup.copies, setup.sidecars) = (1, 1, 1);
    (setup.segment_size, setup.buffers) = ("64MiB".to_owned(), 8);
    let timeouts = [("--heartbeat-silence-ms", "10000"), ("--open-timeout-ms", "20000"), ("--rpc-timeout-ms", "20000")];
    setup.sidecar_options = timeouts.map(|(flag, value)| (flag, value.to_owned())).to_vec();
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

struct Same;

impl Input for Same {
    fn record(&self, number: u64) -> Vec<u8> {
        let mut record = vec![7; RECORD];
        record[..8].copy_from_slice(&number.to_le_bytes());
        record
    }
}

/// Microseconds for each write with one in flight: the inverse of its message rate.
fn perftest(device: &str, address: &str) -> Result<f64> {
    let command = || {
        let mut command = Command::new("ib_write_bw");
        command.args([
            "-d",
            device,
            "-x",
            "1",
            "-t",
            "1",
            "-Q",
            "1",
            "-s",
            &RECORD.to_string(),
            "-n",
            &WRITES.to_string(),
        ]);
        command.stdin(Stdio::null());
        command
    };
    let mut server =
        command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start ib_write_bw (perftest)")?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let client = loop {
        let output = command().arg(address).output().context("run ib_write_bw")?;
        // Until its server listens.
        if output.status.success() || Instant::now() > deadline {
            break output;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    server.wait().context("wait for perftest's server")?;
    let text = String::from_utf8_lossy(&client.stdout).into_owned();
    // #bytes #iterations peak[MB/sec] average[MB/sec] MsgRate[Mpps]
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(&RECORD.to_string()));
    let rate: f64 = line
        .and_then(|line| line.split_whitespace().nth(4))
        .and_then(|rate| rate.parse().ok())
        .with_context(|| format!("unexpected output of perftest: {text}{}", String::from_utf8_lossy(&client.stderr)))?;
    Ok(1.0 / rate)
}

/// The median of our own, as the preflight measures it.
fn our_write(sidecar: &PathBuf) -> Result<f64> {
    let output = Command::new(sidecar).args(["doctor", "--json"]).output().context("run the preflight")?;
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).context("read the preflight's findings")?;
    let write = findings.iter().find(|finding| finding["check"] == "write");
    let nanoseconds = write.and_then(|write| write["nanoseconds"].as_f64());
    ensure!(nanoseconds.is_some(), "the preflight has not written: {findings:?}");
    Ok(nanoseconds.unwrap_or_default() / 1e3)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
