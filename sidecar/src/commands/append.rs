//! `append`: the records of a file or of standard input, pipelined.
//!
//! One loop takes input apart ([`framing`](super::framing)), keeps the pipe full (`send_window`) and takes acks; it sleeps
//! only where both the input and the sidecar are silent. With `--reconnect` a lost primary is an episode: see
//! `Appender::catch_up`, which follows "After a failover" in `docs/append-socket.md`.

mod report;
mod send_window;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use clap::builder::FalseyValueParser;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tailwind_client::{Ack, Error, Limits, Lsn, Ticket};
use tailwind_protocol::layout::readable_size;
use tailwind_runtime::ensure_usage;

use super::framing::{InputFraming, Splitter};
use super::interruption::{INTERRUPTED, Interruption};
use super::notice::{Notice, why_appends_wait};
use super::target::{Primary, Target, is_passing};
use super::{counted, tell};
use crate::options::number;
use report::{LsnPrinter, Progress, aftermath, spoken, summary};
use send_window::{Bundle, MatchedPrefix, SendWindow};

/// How often the socket is looked at while input is waited for: a large record may have gone only in part, and whether
/// the socket has room again cannot be asked.
const PUMP_EVERY: Duration = Duration::from_millis(10);
/// How often a silent primary is checked for a successor, with `--reconnect`.
const SUCCESSOR_EVERY: Duration = Duration::from_millis(250);
/// The error when the log holds records of another client.
const NOT_ALONE: &str = "another client appends to this log, and --reconnect works only with a single writer";

const EXAMPLES: &str = "\
Examples:
  Append each line of a file, waiting for the sidecar if need be:
    tailwind-sidecar append --wait --file orders.txt
  Append one record, and have it on disk at every member:
    echo hello | tailwind-sidecar append --sync
  Resume after 1000 lines, through failovers:
    tailwind-sidecar append --file orders.txt --skip 1000 --reconnect

Exit codes: 0 if every record is acknowledged; 1 if not: standard error says how far it came and how to \
resume; 2 if the command line is invalid";

/// Append records from a file or from standard input.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct AppendOptions {
    /// Input file; standard input if not given, or `-`
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Framing of the records in the input: lines for text, length for any bytes
    #[arg(long, env = "TAILWIND_FRAMING", value_enum, default_value_t = InputFraming::Lines)]
    framing: InputFraming,
    /// Append batches of this many records: all or none of a batch survive a failure. For records that depend on each
    /// other; single records are as fast. The last batch may be smaller
    #[arg(long, value_name = "N", value_parser = number::<usize>(1, u64::MAX))]
    batch: Option<usize>,
    /// Skip the first records of the input: to resume where an earlier run stopped. The input must have at least as many
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = number::<u64>(0, u64::MAX))]
    skip: u64,
    /// Print each record's LSN to standard output once it is acknowledged
    #[arg(long)]
    print_lsn: bool,
    /// Finally, wait until everything is on disk at every member
    #[arg(long)]
    sync: bool,
    /// When the primary is lost, wait for one (as --wait does) and resume, without loss or duplicates. Only for a single
    /// writer: records in flight are found by comparing them with the end of the log
    #[arg(long, env = "TAILWIND_RECONNECT", value_parser = FalseyValueParser::new())]
    reconnect: bool,
    /// Which sidecar.
    #[command(flatten)]
    target: Target,
}

/// Appends everything.
pub fn run(options: &AppendOptions) -> anyhow::Result<()> {
    let nothing = aftermath(&SendWindow::<Ticket>::new(), options.framing.noun(), options.skip, Lsn(1));
    let interruption = Interruption::listen("append", nothing)?;
    let (input, input_size) = open(options.file.as_deref())?;
    let primary = if options.reconnect { options.target.wait_for_primary()? } else { options.target.connect()? };
    ensure!(!primary.client.welcome().table, "this group keeps a table and no plain records; use `table put`");
    let limits = primary.client.welcome().limits;
    let batch = options.batch.unwrap_or(1);
    ensure_usage!(
        batch <= limits.batch_records_max as usize,
        "--batch {batch}: the sidecar takes at most {} records together",
        limits.batch_records_max
    );
    let lsns = LsnPrinter::new(options.print_lsn);
    let progress = Progress::new(input_size, lsns.shares_the_terminal());
    interruption.connected(&primary.client)?;
    let flow = Arc::new(Flow::default());
    let notice = Notice::begin(flow.watch(primary.socket().to_owned()), progress.sayer());
    let mut appender = Appender {
        options,
        primary,
        input,
        splitter: Splitter::new(options.framing, limits.record_size_max as usize),
        place: 0,
        taken: 0,
        batch,
        limits,
        bundle: Bundle::default(),
        bundle_size: 0,
        window: SendWindow::new(),
        log_end: None,
        began: None,
        heard: Instant::now(),
        flow,
        interruption,
        notice,
        progress,
        lsns,
    };
    let result = appender.run();
    let failure = result.err().map(|error| appender.give_up(&error));
    let printed = appender.lsns.finish();
    let took = appender.progress.finish();
    match failure {
        Some(failure) => Err(failure),
        None => {
            let summary = summary(appender.window.acked(), took);
            if options.sync {
                let client = &mut appender.primary.client;
                // The slowest disk answers, and not only the primary.
                client.set_timeout(Some(options.target.timeout())).context("set the socket's time-out")?;
                let _notice = Notice::of_answer("append --sync", appender.primary.socket().to_owned());
                if let Err(error) = appender.primary.client.sync() {
                    let why = match appender.interruption.has_come() {
                        true => INTERRUPTED.to_owned(),
                        false => tailwind_runtime::logging::explain(&error.into()),
                    };
                    bail!("sync: {why}\nacknowledged, and not known to be on disk: {summary}");
                }
            }
            tell(summary);
            printed.context("all records are acknowledged, and not all of their LSNs could be written")
        }
    }
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

/// What the input has to give.
enum GatherResult {
    Bundle,
    NeedsInput,
    Ended,
}

struct Appender<'a> {
    options: &'a AppendOptions,
    primary: Primary,
    input: File,
    splitter: Splitter,
    /// Records taken from the input, those left out included, and the bytes of their payloads.
    place: u64,
    taken: u64,
    /// Records to a bundle.
    batch: usize,
    limits: Limits,
    /// Being filled, and the bytes of log that its records take so far.
    bundle: Bundle,
    bundle_size: usize,
    window: SendWindow<Ticket>,
    /// With `--reconnect`, where the log ends as far as is known: our last acknowledged record, or what was there before.
    log_end: Option<Lsn>,
    /// When the sidecar last gave a sign of life, or was last asked for one.
    heard: Instant,
    flow: Arc<Flow>,
    interruption: Interruption,
    /// Says why acks do not come.
    notice: Notice,
    progress: Progress,
    lsns: LsnPrinter,
    /// The end of the log when the first record was submitted, as far as it was known.
    began: Option<Lsn>,
}

/// How the append flows, for the thread that says why it does not.
#[derive(Default)]
struct Flow {
    /// Records are in flight.
    waits: AtomicBool,
    /// Acks so far.
    acks: AtomicU64,
    /// Where the primary is now.
    socket: Mutex<PathBuf>,
}

impl Flow {
    fn move_to(&self, primary: &Primary) {
        primary.socket().clone_into(&mut self.socket.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Asks the sidecar what appends wait for, if no ack has come since the last look.
    fn watch(self: &Arc<Flow>, socket: PathBuf) -> impl FnMut() -> Option<String> + Send + use<> {
        let flow = Arc::clone(self);
        *flow.socket.lock().unwrap_or_else(PoisonError::into_inner) = socket;
        let mut seen = u64::MAX;
        move || {
            let acks = flow.acks.load(Ordering::Relaxed);
            if std::mem::replace(&mut seen, acks) != acks || !flow.waits.load(Ordering::Relaxed) {
                return None;
            }
            let socket = flow.socket.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Some(format!("append: the primary waits: {}", why_appends_wait(&socket)?))
        }
    }
}

/// The ordinary way.
impl Appender<'_> {
    fn run(&mut self) -> anyhow::Result<()> {
        if self.options.reconnect {
            self.settle()?;
        }
        loop {
            self.take_acks()?;
            self.flow.waits.store(self.primary.client.in_flight() > 0, Ordering::Relaxed);
            self.progress.show(self.taken, self.window.acked());
            if self.window.next_to_send().is_some() {
                self.submit()?;
            } else if self.window.is_full() {
                self.wait_for_ack()?;
            } else {
                match self.gather()? {
                    GatherResult::Bundle => {}
                    GatherResult::NeedsInput => self.wait_for_input()?,
                    GatherResult::Ended if self.window.is_empty() => return self.check_skip(),
                    GatherResult::Ended => self.wait_for_ack()?,
                }
            }
        }
    }

    /// Fills a bundle and hands it to the send window when it is full, or the last one.
    fn gather(&mut self) -> anyhow::Result<GatherResult> {
        while self.bundle.records().len() < self.batch {
            let Some(record) = self.splitter.next_record()? else {
                match (self.splitter.has_ended(), self.bundle.records()) {
                    (false, _) => return Ok(GatherResult::NeedsInput),
                    (true, []) => return Ok(GatherResult::Ended),
                    (true, _) => break,
                }
            };
            self.place += 1;
            self.taken += record.len() as u64;
            if self.place <= self.options.skip {
                continue;
            }
            self.bundle.push(record, self.place);
            let of_batch = |lengths: &[usize]| self.limits.batch_size(lengths.iter().copied());
            self.bundle_size += of_batch(&[record.len()]) - of_batch(&[]);
            // A refusal by the sidecar would come too late: what follows is on its way by then.
            ensure!(
                of_batch(&[]) + self.bundle_size <= self.limits.batch_size_max as usize,
                "--batch {}: the batch around {} {} of the input takes more than {} of log; give a smaller number",
                self.batch,
                self.options.framing.noun(),
                self.place,
                readable_size(u64::from(self.limits.batch_size_max))
            );
        }
        self.bundle_size = 0;
        let blank = self.window.blank();
        self.window.push(std::mem::replace(&mut self.bundle, blank));
        Ok(GatherResult::Bundle)
    }

    /// An input that ends before what was to be skipped is another one than was meant.
    fn check_skip(&self) -> anyhow::Result<()> {
        let (skip, noun) = (self.options.skip, self.options.framing.noun());
        ensure!(self.place >= skip, "--skip {skip}: the input has only {}", counted(self.place, noun));
        Ok(())
    }

    fn submit(&mut self) -> anyhow::Result<()> {
        if self.primary.client.in_flight() == 0 {
            self.heard = Instant::now();
        }
        let client = &mut self.primary.client;
        self.began.get_or_insert(client.role_info().last);
        let submitted = match self.window.next_to_send().map(Bundle::records) {
            None => return Ok(()),
            Some([record]) => client.submit(record),
            Some(records) => client.submit_batch(records),
        };
        match submitted {
            Ok(ticket) => {
                self.window.mark_sent(ticket);
                Ok(())
            }
            Err(error) => self.on_trouble(error),
        }
    }

    fn take_acks(&mut self) -> anyhow::Result<()> {
        while let Some(ack) = self.primary.client.try_next_ack() {
            self.on_answer(ack)?;
        }
        Ok(())
    }

    fn wait_for_ack(&mut self) -> anyhow::Result<()> {
        self.lsns.flush();
        match self.primary.client.next_ack() {
            Ok(Some(ack)) => self.on_answer(ack),
            Ok(None) => bail!("internal error: all replies have arrived, but some records have no ack"),
            Err(error) => self.on_trouble(error),
        }
    }

    /// Sleeps until there is input or the sidecar has something to say.
    fn wait_for_input(&mut self) -> anyhow::Result<()> {
        if let Err(error) = self.primary.client.pump() {
            return self.on_trouble(error);
        }
        // What the pump has brought is not announced by the socket any more: it must not wait for the next input.
        self.take_acks()?;
        self.lsns.flush();
        if self.window.next_to_send().is_some() {
            return Ok(());
        }
        let client = &self.primary.client;
        let is_waiting = client.in_flight() > 0;
        let timeout = if is_waiting { Timespec::try_from(PUMP_EVERY).ok() } else { None };
        let mut fds = [PollFd::new(&self.input, PollFlags::IN), PollFd::new(client, PollFlags::IN)];
        retry_on_intr(|| poll(&mut fds, timeout.as_ref())).context("wait for input")?;
        if !fds[0].revents().is_empty() {
            self.splitter.fill(&mut self.input).context("read the input")?;
        } else if is_waiting && self.heard.elapsed() >= self.patience() {
            return self.on_trouble(Error::TimedOut { after: self.patience(), in_flight: None });
        }
        Ok(())
    }

    fn on_answer(&mut self, Ack { ticket, outcome }: Ack) -> anyhow::Result<()> {
        self.heard = Instant::now();
        self.flow.acks.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(last) => self.on_acked(&ticket, last),
            Err(error) => {
                self.on_refused(&ticket, &error);
                self.on_trouble(error)
            }
        }
    }

    fn on_acked(&mut self, ticket: &Ticket, last: Lsn) -> anyhow::Result<()> {
        let Some(span) = self.window.acknowledge(ticket, last) else { return Ok(()) };
        self.lsns.print(span);
        if let Some(end) = &mut self.log_end {
            ensure!(end.next() == span.0, "LSN {} was acknowledged where {} was next: {NOT_ALONE}", span.0, end.next());
            *end = span.1;
        }
        Ok(())
    }

    /// Any other error than this leaves open whether the append is in the log.
    fn on_refused(&mut self, ticket: &Ticket, error: &Error) {
        if matches!(error, Error::NotPrimary { .. }) {
            self.window.refuse(ticket);
        }
    }

    /// How long the primary may be silent while records are in flight.
    fn patience(&self) -> Duration {
        if self.options.reconnect { SUCCESSOR_EVERY } else { self.options.target.timeout() }
    }
}

/// Trouble.
impl Appender<'_> {
    fn on_trouble(&mut self, error: Error) -> anyhow::Result<()> {
        ensure!(!self.interruption.has_come(), INTERRUPTED);
        if !self.options.reconnect || !is_passing(&error) {
            return Err(error.into());
        }
        if !matches!(error, Error::TimedOut { .. }) {
            self.progress.say(&format!("append: {error}; waiting for a primary"));
            self.drain()?;
            self.find_primary()?;
            return self.settle();
        }
        // Silence proves nothing, and what is in flight may still arrive: leave this primary only for a later one whose epoch
        // every backup knows, so that nothing of this one can land any more.
        match self.options.target.successor(&self.primary) {
            Some(successor) => {
                self.progress.say("append: the primary is silent and has a successor");
                self.primary = successor;
                self.interruption.connected(&self.primary.client)?;
                self.settle()
            }
            None => {
                self.heard = Instant::now();
                self.progress.pause("the primary is silent");
                Ok(())
            }
        }
    }

    /// Learns from the primary what became of the records in flight; from another one, as long as primaries are lost on
    /// the way.
    fn settle(&mut self) -> anyhow::Result<()> {
        while let Err(error) = self.catch_up() {
            ensure!(!self.interruption.has_come(), INTERRUPTED);
            if !error.downcast_ref().is_some_and(is_passing) {
                return Err(error);
            }
            self.find_primary()?;
        }
        self.heard = Instant::now();
        self.flow.move_to(&self.primary);
        let patience = self.patience();
        self.primary.client.set_timeout(Some(patience)).context("set the socket's time-out")
    }

    fn find_primary(&mut self) -> anyhow::Result<()> {
        self.interruption.looking(self.reached())?;
        self.primary = self.options.target.wait_for_primary()?;
        self.interruption.connected(&self.primary.client)
    }

    /// See "After a failover" in `docs/append-socket.md`. Why nothing is lost and nothing comes twice:
    /// 1. The log holds a prefix of what is in flight behind `log_end`, as no other client appends.
    /// 2. No append of an earlier connection lands behind the read: that connection has ended before, and the read is ordered
    ///    behind what it left.
    /// 3. The barrier proves that this sidecar was primary after that, so that its log is the log, and the read shows all
    ///    of it: hence the whole prefix, which is acknowledged by being read.
    fn catch_up(&mut self) -> anyhow::Result<()> {
        let client = &mut self.primary.client;
        let passed = client.barrier()?;
        let Some(end) = self.log_end else {
            // Nothing of ours can be there, but there may be records of a client that died here before us.
            let mut end = passed.last;
            let mut records = client.read(end.next(), 0)?;
            while let Some((lsn, _)) = records.next_record()? {
                end = lsn;
            }
            drop(records);
            self.log_end = Some(end);
            return Ok(());
        };
        ensure!(
            passed.last >= end,
            "LSN {end} was acknowledged, but the log of {} ends at {}",
            self.primary,
            passed.last
        );
        let mut found = MatchedPrefix::default();
        let mut records = client.read(end.next(), 0)?;
        while let Some((lsn, payload)) = records.next_record()? {
            self.window.compare(&mut found, lsn, payload).context(NOT_ALONE)?;
        }
        drop(records);
        let in_flight = counted(self.window.unanswered().map_or(0, |(records, _)| records as u64), "record");
        let span = self.window.resolve(&found).context(NOT_ALONE)?;
        let end = span.map_or(end, |(_, last)| last);
        ensure!(end >= passed.last, "the log ends at LSN {}, but the read ended at {end}", passed.last);
        self.log_end = Some(end);
        let held = span.map_or(0, |(first, last)| last.next().0 - first.0);
        self.progress.say(&format!("append: resuming after LSN {end}; the log holds {held} of {in_flight} in flight"));
        span.into_iter().for_each(|span| self.lsns.print(span));
        Ok(())
    }

    /// Takes the acks that still come on a connection that has failed.
    fn drain(&mut self) -> anyhow::Result<()> {
        while let Ok(Some(Ack { ticket, outcome })) = self.primary.client.next_ack() {
            match outcome {
                Ok(last) => self.on_acked(&ticket, last)?,
                Err(error) => self.on_refused(&ticket, &error),
            }
        }
        Ok(())
    }

    /// The error for the user: with all that is known of what was appended.
    fn give_up(&mut self, error: &anyhow::Error) -> anyhow::Error {
        let has_waited = matches!(error.downcast_ref(), Some(Error::TimedOut { .. }));
        if !has_waited {
            // A second error would add nothing: everything that is not acknowledged is reported so.
            let _ = self.drain();
        }
        let told = self.notice.told();
        let why = match told.strip_prefix("append: ").filter(|_| has_waited) {
            Some(why) => format!("timed out after {}: {why}", spoken(self.patience())),
            None => tailwind_runtime::logging::explain(error),
        };
        anyhow!("{why}\n{}", self.reached())
    }

    /// How far it has come, and how to resume.
    fn reached(&self) -> String {
        let began = self.log_end.or(self.began).unwrap_or(Lsn(0)).next();
        aftermath(&self.window, self.options.framing.noun(), self.options.skip, began)
    }
}
