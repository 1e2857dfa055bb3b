//! The app where a test has no socket at hand, such as in a virtual machine: appends numbered records and reports in a
//! file which are acknowledged; or reads the log back and compares.
//!
//! Started by [`fleet`](tailwind_e2e::fleet), which reads the reports.
#![allow(clippy::print_stdout, reason = "a program that reports to its caller")]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tailwind_client::blocking::Client;
use tailwind_client::{Error, Lsn};
use tailwind_e2e::checker::compare;
use tailwind_e2e::workload::{Chapters, Input, Numbered};

/// Appends numbered records, or compares a log with them.
#[derive(Parser)]
#[command(name = "appender", max_term_width = 100)]
enum Command {
    /// Append from the end of the log on, until the file REPORT.stop appears or the sidecar is primary no more
    Append {
        /// The sidecar's; if it is not primary, waits until it is
        #[arg(long)]
        socket: PathBuf,
        /// What the records are made from
        #[arg(long)]
        seed: u64,
        /// Longest record
        #[arg(long)]
        length_max: u64,
        /// Appends in flight
        #[arg(long, default_value_t = 64)]
        window: u64,
        /// The file for lines such as `acked 7`, each written after it has come true
        #[arg(long)]
        report: PathBuf,
    },
    /// Read the log and print what differs
    Check {
        /// The primary's
        #[arg(long)]
        socket: PathBuf,
        /// From which record on the log is made from which seed; repeat for each app that has appended
        #[arg(long = "chapter", value_name = "FIRST:SEED")]
        chapters: Vec<Chapter>,
        /// Longest record
        #[arg(long)]
        length_max: u64,
        /// Last record of the log
        #[arg(long)]
        acked: u64,
    },
}

#[derive(Clone)]
struct Chapter {
    first: u64,
    seed: u64,
}

impl FromStr for Chapter {
    type Err = String;

    fn from_str(text: &str) -> Result<Chapter, String> {
        let parse = |number: &str| number.parse().map_err(|_| format!("`{number}` is not a number"));
        let (first, seed) = text.split_once(':').ok_or("must be FIRST:SEED")?;
        Ok(Chapter { first: parse(first)?, seed: parse(seed)? })
    }
}

/// How long the sidecar may take to become primary, and to read the log.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the file that ends the app is looked for.
const LOOK: Duration = Duration::from_millis(50);

fn main() -> Result<()> {
    match Command::parse() {
        Command::Append { socket, seed, length_max, window, report } => {
            append(&socket, &Numbered { seed, length_max }, window, &report)
        }
        Command::Check { socket, chapters, length_max, acked } => {
            let mut input = Chapters::default();
            chapters
                .iter()
                .for_each(|Chapter { first, seed }| input.begin(*first, Numbered { seed: *seed, length_max }));
            let found = compare(&mut connect(&socket)?, &input, acked, |_| {})?;
            println!("read {} lost {} duplicated {}", found.read, found.lost, found.duplicated);
            Ok(())
        }
    }
}

fn connect(socket: &Path) -> Result<Client> {
    let options = tailwind_client::Options { hold: true, timeout: Some(PATIENCE), ..Default::default() };
    Ok(Client::connect_with(socket, &options)?)
}

fn append(socket: &Path, input: &impl Input, window: u64, report: &Path) -> Result<()> {
    let mut file = File::create(report).context("create the report")?;
    let mut say = |line: String| writeln!(file, "{line}").context("write the report");
    let stop = report.with_extension("stop");
    let mut client = connect(socket)?;
    // Nobody else appends, and what is in the log is acknowledged: this is its end.
    let passed = client.barrier()?;
    let (mut acked, mut submitted) = (passed.last.0, passed.last.0);
    say(format!("begin {} {}", acked + 1, passed.epoch))?;
    client.set_timeout(Some(LOOK)).context("set a timeout")?;
    let (mut stopping, mut lost, mut looked) = (false, None, Instant::now());
    loop {
        if looked.elapsed() > LOOK {
            (stopping, looked) = (stop.exists(), Instant::now());
        }
        let going_on = !stopping && lost.is_none();
        let outcome = (|| {
            while going_on && submitted - acked < window {
                client.submit(&input.record(submitted + 1))?;
                submitted += 1;
            }
            client.next_ack()
        })();
        let before = acked;
        let mut ack = match outcome {
            Err(Error::TimedOut { .. }) => continue,
            Err(error) => return say(format!("lost {error}")),
            Ok(None) if going_on => continue,
            Ok(None) => return say(lost.unwrap_or_else(|| format!("done {acked}"))),
            Ok(ack) => ack,
        };
        while let Some(answer) = ack {
            match answer.outcome {
                // After a refusal as well: it would be a broken promise, and is to be seen.
                Ok(lsn) => {
                    ensure!(lsn == Lsn(acked + 1), "record {} was acknowledged as LSN {lsn}", acked + 1);
                    acked += 1;
                }
                Err(error) => lost = Some(format!("lost {error}")),
            }
            ack = client.try_next_ack();
        }
        if acked > before {
            say(format!("acked {acked}"))?;
        }
    }
}
