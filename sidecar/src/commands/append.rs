//! `append`: the records of a file or of standard input, pipelined.
//!
//! One loop takes input apart ([`framing`](super::framing)), keeps the pipe full ([`flight`]) and takes acks; it sleeps
//! only where both the input and the sidecar are silent. With `--reconnect` a lost primary is an episode: see
//! `Appender::recover`, which follows "After a failover" in `docs/append-socket.md`.

mod flight;
mod report;

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use clap::builder::FalseyValueParser;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tailwind_client::blocking::Client;
use tailwind_client::{Ack, Error, Lsn, Ticket};
use tailwind_protocol::segment::append_size;

use super::framing::{InputFraming, Splitter};
use super::status::Report;
use super::target::{Target, is_passing};
use super::tell;
use flight::{Bundle, Flight, Found};
use report::{LsnPrinter, Progress, aftermath, summary};

/// How often the socket is looked at while input is waited for: a large record may have gone only in part, and whether
/// the socket has room again cannot be asked.
const PUMP_EVERY: Duration = Duration::from_millis(10);
/// How often a silent primary is checked for a successor, with `--reconnect`.
const SUCCESSOR_EVERY: Duration = Duration::from_millis(250);
/// How often a sidecar is asked whether it is done with what an earlier connection left.
const SETTLED_EVERY: Duration = Duration::from_millis(5);

/// Append records from a file or from standard input.
#[derive(Args, Clone, Debug)]
pub struct AppendOptions {
    /// Where the records come from; standard input if not given, or `-`
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How records stand in the input: lines suits text, length anything
    #[arg(long, env = "TAILWIND_FRAMING", value_enum, default_value_t = InputFraming::Lines)]
    framing: InputFraming,
    /// Append so many records together: all or none of them survive a failure. For records that make no sense without each
    /// other; plain records are as fast. The last batch may be smaller
    #[arg(long, value_name = "N")]
    batch: Option<NonZeroUsize>,
    /// Leave out the first records of the input: to go on where an earlier run has stopped
    #[arg(long, default_value_t = 0, value_name = "N")]
    skip: u64,
    /// Print each record's LSN to standard output once it is acknowledged
    #[arg(long)]
    print_lsn: bool,
    /// When the primary is lost, wait for one (as --wait does) and go on, without loss or duplicates. Only if nobody else
    /// appends to this log meanwhile: what was in flight is found by comparing it with the end of the log
    #[arg(long, env = "TAILWIND_RECONNECT", value_parser = FalseyValueParser::new())]
    reconnect: bool,
    /// Which sidecar.
    #[command(flatten)]
    target: Target,
}

/// Appends everything.
pub fn run(options: &AppendOptions) -> anyhow::Result<()> {
    let (input, input_size) = open(options.file.as_deref())?;
    let client = if options.reconnect { options.target.wait_for_primary()? } else { options.target.connect()? };
    let lsns = LsnPrinter::new(options.print_lsn);
    let limits = client.welcome().limits;
    let mut appender = Appender {
        options,
        client,
        input,
        splitter: Splitter::new(options.framing, limits.record_size_max as usize),
        bundle: Bundle::default(),
        flight: Flight::new(),
        log_end: None,
        heard: Instant::now(),
        taken: 0,
        progress: Progress::new(input_size, lsns.shares_the_terminal()),
        lsns,
    };
    let result = appender.run();
    if result.is_err() {
        appender.drain();
    }
    appender.lsns.flush();
    let took = appender.progress.finish();
    let Err(error) = result else {
        tell(summary(appender.flight.acked(), took));
        return Ok(());
    };
    let stopped = format!("{error:#}");
    Err(anyhow!("{stopped}\n{}", aftermath(&appender.flight, options.framing.noun(), options.skip)))
}

/// The input, and its size if that is known.
fn open(path: Option<&Path>) -> anyhow::Result<(File, Option<u64>)> {
    let Some(path) = path.filter(|path| *path != Path::new("-")) else {
        let input = io::stdin().as_fd().try_clone_to_owned().context("open standard input")?;
        return Ok((input.into(), None));
    };
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let metadata = file.metadata().with_context(|| format!("read the size of {}", path.display()))?;
    ensure!(!metadata.is_dir(), "{} is a folder: give a file", path.display());
    Ok((file, metadata.is_file().then_some(metadata.len())))
}

/// What the input has given.
enum Gathered {
    Bundle,
    NeedsInput,
    Ended,
}

struct Appender<'a> {
    options: &'a AppendOptions,
    client: Client,
    input: File,
    splitter: Splitter,
    /// Being filled.
    bundle: Bundle,
    flight: Flight<Ticket>,
    /// With `--reconnect`: the last record of the log that is known to be ours, or to have been there before.
    log_end: Option<Lsn>,
    /// When the sidecar last gave a sign of life.
    heard: Instant,
    /// Bytes of payload taken from the input.
    taken: u64,
    progress: Progress,
    lsns: LsnPrinter,
}

impl Appender<'_> {
    fn run(&mut self) -> anyhow::Result<()> {
        if self.options.reconnect {
            self.catch_up_until_it_holds()?;
        }
        loop {
            self.take_acks()?;
            self.progress.show(self.taken, self.flight.acked());
            if self.flight.next_to_send().is_some() {
                self.submit()?;
            } else if self.flight.is_full() {
                self.wait_for_ack()?;
            } else {
                match self.gather()? {
                    Gathered::Bundle => {}
                    Gathered::NeedsInput => self.wait_for_input()?,
                    Gathered::Ended if self.flight.is_empty() => return Ok(()),
                    Gathered::Ended => self.wait_for_ack()?,
                }
            }
        }
    }

    /// Fills a bundle and hands it to the flight when it is full, or when it is the last one.
    fn gather(&mut self) -> anyhow::Result<Gathered> {
        let wanted = self.options.batch.map_or(1, NonZeroUsize::get);
        while self.bundle.records().len() < wanted {
            let Some(record) = self.splitter.next_record()? else {
                match (self.splitter.has_ended(), self.bundle.records()) {
                    (false, _) => return Ok(Gathered::NeedsInput),
                    (true, []) => return Ok(Gathered::Ended),
                    (true, _) => break,
                }
            };
            let record_size = record.len();
            self.taken += record_size as u64;
            // Its place is one too low while the splitter lends the record: it counts it already.
            self.bundle_push(record_size);
        }
        self.check_batch()?;
        let blank = self.flight.blank();
        self.flight.push(std::mem::replace(&mut self.bundle, blank));
        Ok(Gathered::Bundle)
    }
}
