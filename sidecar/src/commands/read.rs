//! `read` and `tail`: acknowledged records to standard output.
//!
//! What was once read never disappears in a later failover. Both end without an error when their output is closed, and with one
//! when they are interrupted.

use std::fmt;
use std::io::{self, BufWriter, StdoutLock};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tailwind_client::blocking::Client;
use tailwind_client::{self as client, Error, Event, History, Lsn, Welcome};
use tailwind_runtime::ensure_usage;

use super::counted;
use super::framing::{OutputFraming, RecordWriter};
use super::interruption::{Interruption, interrupted};
use super::target::{Target, WAIT_ANYWHERE};
use crate::options::number;

/// Bytes gathered before they are written, unless there is nothing to gather for.
const OUTPUT_SIZE: usize = 64 << 10;
/// How often a tail or follow without news checks whether its output still has a reader.
pub(super) const LOOK_UP_EVERY: Duration = Duration::from_millis(500);
/// The context of a failed write.
pub(super) const WRITE: &str = "write to standard output";

/// Where records go.
pub(super) type Output = RecordWriter<BufWriter<StdoutLock<'static>>>;

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the first record that can still be read.
    First,
    /// At this record, as a reader that has those before it from this history, if it is known.
    Lsn(History, Lsn),
    /// After the last acknowledged record.
    End,
}

impl Start {
    fn resolve(self, welcome: &Welcome) -> client::Start {
        match self {
            Start::First => welcome.first.max(Lsn(1)).into(),
            Start::Lsn(history, lsn) => (history, lsn).into(),
            Start::End => welcome.last.next().into(),
        }
    }

    /// The same at a sidecar of any role, whose welcome may not know the log's end.
    pub(super) fn resolve_anywhere(self, client: &mut Client) -> Result<client::Start, Error> {
        match self {
            Start::End => Ok(client.position()?.last.next().into()),
            Start::First => Ok(Lsn(0).into()),
            Start::Lsn(history, lsn) => Ok((history, lsn).into()),
        }
    }
}

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Start, String> {
        let (history, lsn) = match text.split_once('/') {
            Some((history, lsn)) => (history.parse()?, lsn),
            None => (History::UNKNOWN, text),
        };
        match (text, lsn.parse()) {
            ("first", _) => Ok(Start::First),
            ("end", _) => Ok(Start::End),
            (_, Ok(lsn @ 1..)) => Ok(Start::Lsn(history, Lsn(lsn))),
            _ => Err("must be an LSN (1 or more), first or end".to_owned()),
        }
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Start::First => f.write_str("first"),
            Start::Lsn(History::UNKNOWN, lsn) => lsn.fmt(f),
            Start::Lsn(history, lsn) => write!(f, "{history}/{lsn}"),
            Start::End => f.write_str("end"),
        }
    }
}

/// Output format.
#[derive(Args, Clone, Debug)]
pub struct OutputOptions {
    /// Framing of the records: lines for text without newlines, length for any bytes, hex for inspection
    #[arg(long, env = "TAILWIND_FRAMING", value_enum, default_value_t = OutputFraming::Lines)]
    framing: OutputFraming,
    /// Write each record's LSN and a tab before it: to know where to resume. Not with --framing length
    #[arg(long)]
    print_lsn: bool,
}

impl OutputOptions {
    pub(super) fn writer(&self) -> anyhow::Result<Output> {
        ensure_usage!(
            !self.print_lsn || self.framing != OutputFraming::Length,
            "--print-lsn goes with --framing lines or hex: between lengths there is no room for it"
        );
        let out = BufWriter::with_capacity(OUTPUT_SIZE, io::stdout().lock());
        Ok(RecordWriter::new(out, self.framing, self.print_lsn))
    }
}

const READ_EXAMPLES: &str = "\
Examples:
  The whole log, a record a line:
    tailwind-sidecar read
  Ten records from LSN 4711 on, with their LSNs:
    tailwind-sidecar read --from 4711 --limit 10 --print-lsn

Exit codes: 0 if everything has been written, or the output is closed; 1 if not: standard error says how far it \
came and how to resume; 2 if the command line is invalid";

/// Write the log's acknowledged records to standard output.
#[derive(Args, Clone, Debug)]
#[command(after_help = READ_EXAMPLES, mut_arg("wait", |wait| wait.help(WAIT_ANYWHERE)))]
pub struct ReadOptions {
    /// First record to read: an LSN (HISTORY/LSN to continue after what was written before), `first` (the first that has not been trimmed) or `end`
    #[arg(long, default_value_t = Start::First, value_name = "LSN")]
    from: Start,
    /// Maximum number of records; 0 for all current records
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = number::<u64>(0, u64::MAX))]
    limit: u64,
    /// Read at a sidecar of any role: the first that answers, if several sockets are given. Off the primary, the records that
    /// were acknowledged last may be missing
    #[arg(long)]
    anywhere: bool,
    /// Output format.
    #[command(flatten)]
    looks: OutputOptions,
    /// Which sidecar.
    #[command(flatten)]
    target: Target,
}

/// Write records to standard output as they are acknowledged.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  Every new record, into a file, from the start of the sidecar on:\n    \
                  tailwind-sidecar tail --wait --from first > records.txt\n\n\
                  Exit codes: 0 if the output is closed; 1 if something failed, or SIGINT or SIGTERM has ended it: standard \
                  error says how far it came and how to resume; 2 if the command line is invalid")]
pub struct TailOptions {
    /// First record to read: an LSN (HISTORY/LSN to continue after what was written before), `first` (the first that has not been trimmed) or `end` (the next one to come)
    #[arg(long, default_value_t = Start::End, value_name = "LSN")]
    from: Start,
    /// Output format.
    #[command(flatten)]
    looks: OutputOptions,
    /// Which sidecar.
    #[command(flatten)]
    target: Target,
}

/// Reads what there is now.
pub fn read(options: &ReadOptions) -> anyhow::Result<()> {
    let mut out = options.looks.writer()?;
    let interruption = Interruption::listen("read", nothing_written(options.from))?;
    let mut client = if options.anywhere { options.target.connect_to_any()? } else { options.target.connect()?.client };
    let mut next = match options.anywhere {
        true => options.from.resolve_anywhere(&mut client)?,
        false => options.from.resolve(client.welcome()),
    };
    interruption.connected(&client)?;
    let mut copy = || -> anyhow::Result<()> {
        let mut records = match options.anywhere {
            true => client.read_anywhere(next, options.limit)?,
            false => client.read(next, options.limit)?,
        };
        while let Some((lsn, payload)) = records.next_record()? {
            out.write(lsn, payload).context(WRITE)?;
            next = (records.history(), lsn.next()).into();
        }
        Ok(())
    };
    let copied = copy();
    finish(copied, &mut out, next, &interruption)
}

/// Reads until it is stopped.
pub fn tail(options: &TailOptions) -> anyhow::Result<()> {
    let mut out = options.looks.writer()?;
    let interruption = Interruption::listen("tail", nothing_written(options.from))?;
    let mut client = options.target.connect()?.client;
    let mut next = options.from.resolve(client.welcome());
    client.set_timeout(Some(LOOK_UP_EVERY)).context("set the socket's time-out")?;
    interruption.connected(&client)?;
    let copied = copy_tail(&mut client, &mut next, &mut out);
    finish(copied, &mut out, next, &interruption)
}

/// Copies a tail from `next` on until it fails, or until nobody reads the output any more. `next` moves on with it.
pub(super) fn copy_tail(client: &mut Client, next: &mut client::Start, out: &mut Output) -> anyhow::Result<()> {
    let mut tail = client.tail(*next)?;
    loop {
        match tail.next_event() {
            Ok(Some(Event::Record(lsn, payload))) => {
                out.write(lsn, payload).context(WRITE)?;
                *next = (tail.history(), lsn.next()).into();
            }
            // Nothing more for now: readers must not wait for the buffer to fill.
            Ok(Some(Event::CaughtUp { .. })) => out.flush().context(WRITE)?,
            Ok(None) => bail!("the sidecar has ended the tail"),
            Err(Error::TimedOut { .. }) => {
                out.flush().context(WRITE)?;
                if is_abandoned() {
                    return Ok(());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// True when standard output is a pipe whose reader has gone.
pub(super) fn is_abandoned() -> bool {
    let out = io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
        && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Ends a copy of records, after which `next` would come. What came before a failure is as true as ever.
pub(super) fn finish(
    copied: anyhow::Result<()>,
    out: &mut Output,
    next: client::Start,
    interruption: &Interruption,
) -> anyhow::Result<()> {
    out.flush().context(WRITE)?;
    match copied {
        Err(_) if interruption.has_come() => Err(interrupted(&reached(out.written(), next))),
        copied => copied.with_context(|| go_on(out.written(), next)),
    }
}

/// How far a command has come that was interrupted, and how to resume.
fn reached(written: u64, next: client::Start) -> String {
    match written {
        0 if next.from == Lsn(0) => nothing_written(Start::First),
        0 => nothing_written(Start::Lsn(next.history, next.from)),
        _ => go_on(written, next),
    }
}

/// The same before the first record.
pub(super) fn nothing_written(from: Start) -> String {
    format!("written: nothing; resume with --from {from}")
}

/// What a user needs to know after a failure.
fn go_on(written: u64, client::Start { from, history }: client::Start) -> String {
    match written {
        0 if from == Lsn(0) => "no record was read from the first one on".to_owned(),
        0 => format!("no record was read from LSN {from} on"),
        count => {
            let (records, next) = (counted(count, "record"), Start::Lsn(history, from));
            format!("written: {records}, up to LSN {}; resume with --from {next}", from.prev())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_starts_at_an_lsn_or_at_either_end() {
        assert_eq!("first".parse(), Ok(Start::First));
        assert_eq!("end".parse(), Ok(Start::End));
        assert_eq!("17".parse(), Ok(Start::Lsn(History::UNKNOWN, Lsn(17))));
        let resumed: Start = "1f2e3d4c00000001/17".parse().unwrap();
        assert_eq!(resumed, Start::Lsn(History(0x1f2e_3d4c_0000_0001), Lsn(17)));
        assert_eq!(resumed.to_string(), "1f2e3d4c00000001/17");
        for bad in ["0", "-1", "", "last", "1.5", "1/17", "1f2e3d4c00000001/0", "1f2e3d4c00000001/end", "/1"] {
            assert!(bad.parse::<Start>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_failed_read_reports_where_to_resume() {
        assert_eq!(go_on(0, Lsn(0).into()), "no record was read from the first one on");
        assert_eq!(go_on(0, Lsn(5).into()), "no record was read from LSN 5 on");
        assert_eq!(go_on(3, Lsn(8).into()), "written: 3 records, up to LSN 7; resume with --from 8");
        let resume = "written: 3 records, up to LSN 7; resume with --from 00000000000000ff/8";
        assert_eq!(go_on(3, (History(255), Lsn(8)).into()), resume);
    }

    #[test]
    fn an_interrupted_read_reports_where_to_resume() {
        assert_eq!(reached(0, Lsn(0).into()), "written: nothing; resume with --from first");
        assert_eq!(reached(0, Lsn(5).into()), "written: nothing; resume with --from 5");
        let resume = "written: nothing; resume with --from 00000000000000ff/5";
        assert_eq!(reached(0, (History(255), Lsn(5)).into()), resume);
        assert_eq!(reached(3, Lsn(8).into()), "written: 3 records, up to LSN 7; resume with --from 8");
        assert_eq!(nothing_written(Start::End), "written: nothing; resume with --from end");
    }
}
