//! What `append` prints: a bar while it runs on a terminal, a line when it is done, and after a failure all that a user needs
//! to resume.

use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write as _};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use tailwind_client::Lsn;

use super::super::{counted, tell};
use super::send_window::{Acked, SendWindow};

/// How often the bar moves.
const MOVE_EVERY: Duration = Duration::from_millis(100);

/// The bar. Draws on standard error, and only if that is a terminal.
pub(super) struct Progress {
    bar: ProgressBar,
    started: Instant,
    moved: Instant,
}

impl Progress {
    /// `input_size` is known for files. A bar would tear up what goes to the same terminal: then there is `none`.
    pub(super) fn new(input_size: Option<u64>, none: bool) -> Progress {
        let (bar, look) = match input_size {
            _ if none => (ProgressBar::hidden(), "{msg}"),
            Some(size) => (ProgressBar::new(size), "{bar:30} {bytes}/{total_bytes}, {eta} to go; {msg}"),
            None => (ProgressBar::new_spinner(), "{spinner} {bytes}; {msg}"),
        };
        // The looks are constants, so that nothing can be wrong with them at run time.
        bar.set_style(ProgressStyle::with_template(look).unwrap_or_else(|_| ProgressStyle::default_spinner()));
        let now = Instant::now();
        Progress { bar, started: now, moved: now }
    }

    /// Moves the bar, if it is time to: `taken` bytes of the input have been read.
    pub(super) fn show(&mut self, taken: u64, acked: &Acked) {
        if self.bar.is_hidden() || self.moved.elapsed() < MOVE_EVERY {
            return;
        }
        self.moved = Instant::now();
        self.bar.set_position(taken);
        self.bar.set_message(format!("{} acknowledged", counted(acked.records, "record")));
    }

    /// Says why nothing moves.
    pub(super) fn pause(&mut self, why: &str) {
        self.bar.set_message(why.to_owned());
        self.bar.tick();
    }

    /// The same from another thread.
    pub(super) fn sayer(&self) -> impl Fn(&str) + Send + 'static {
        let bar = self.bar.clone();
        move |line| if bar.is_hidden() { tell(line) } else { bar.println(line) }
    }

    /// Tells something that is to be kept.
    pub(super) fn say(&self, line: &str) {
        if self.bar.is_hidden() { tell(line) } else { self.bar.println(line) }
    }

    /// Takes the bar away and says how long it all took.
    pub(super) fn finish(&self) -> Duration {
        self.bar.finish_and_clear();
        self.started.elapsed()
    }
}

/// Prints LSNs to standard output, one per line, until the output is closed.
pub(super) struct LsnPrinter {
    out: Option<BufWriter<StdoutLock<'static>>>,
    /// Why not all of them could be written.
    failed: Option<io::Error>,
}

impl LsnPrinter {
    pub(super) fn new(wanted: bool) -> LsnPrinter {
        LsnPrinter { out: wanted.then(|| BufWriter::new(io::stdout().lock())), failed: None }
    }

    /// True when it would write over the bar.
    pub(super) fn shares_the_terminal(&self) -> bool {
        self.out.is_some() && io::stdout().is_terminal()
    }

    pub(super) fn print(&mut self, (first, last): (Lsn, Lsn)) {
        self.with(|out| (first.0..=last.0).try_for_each(|lsn| writeln!(out, "{lsn}")));
    }

    pub(super) fn flush(&mut self) {
        self.with(BufWriter::flush);
    }

    /// Whether all of them are written that anybody wanted to read.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.flush();
        self.failed.take().map_or(Ok(()), Err)
    }

    /// An error stops the printing and nothing else: records matter more than their numbers. A pipe that is closed at the other
    /// end is none.
    fn with(&mut self, print: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<()>) {
        if let Some(Err(error)) = self.out.as_mut().map(print) {
            self.out = None;
            self.failed = Some(error).filter(|error| error.kind() != io::ErrorKind::BrokenPipe);
        }
    }
}

/// The last line of a run that went well.
pub(super) fn summary(acked: &Acked, took: Duration) -> String {
    let Some((first, last)) = acked.lsns else { return "0 records: the input has none".to_owned() };
    let seconds = took.as_secs_f64().max(1e-9);
    let rate = HumanCount((acked.records as f64 / seconds) as u64);
    let bandwidth = HumanBytes((acked.payload_size as f64 / seconds) as u64);
    let took = match took.as_secs() {
        0 => format!("{:.1} ms", 1000.0 * seconds),
        1..60 => format!("{seconds:.2} s"),
        _ => HumanDuration(took).to_string(),
    };
    let (records, size) = (counted(acked.records, "record"), HumanBytes(acked.payload_size));
    format!("{records}, {size}, LSN {first} to {last}, in {took}: {rate} records/s, {bandwidth}/s")
}

/// A time as people say it: `10 s`, `250 ms`.
pub(super) fn spoken(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{} s", time.as_secs()),
        _ => format!("{} ms", time.as_millis()),
    }
}

/// Where a run that failed has got to, and how to resume. `began`: the LSN that was next when it submitted its first record.
pub(super) fn aftermath<T: PartialEq>(window: &SendWindow<T>, noun: &str, skipped: u64, began: Lsn) -> String {
    let acked = window.acked();
    let mut text = match acked.lsns {
        Some((first, last)) => {
            let (records, through) = (counted(acked.records, "record"), acked.through);
            format!("acknowledged: {records}, LSN {first} to {last}, up to {noun} {through} of the input")
        }
        None => "acknowledged: nothing".to_owned(),
    };
    let through = acked.through.max(skipped);
    // Writing to a string cannot fail.
    let _ = match window.unanswered() {
        None => write!(text, "\nnothing is in flight; resume with --skip {through}"),
        Some((records, last)) => {
            let were = if records == 1 { "was" } else { "were" };
            let records = counted(records as u64, "record");
            let from = acked.lsns.map_or(began, |(_, last)| last.next());
            let base = if through == 0 { String::new() } else { format!("{through} + ") };
            write!(
                text,
                "\n{records} {were} sent but not acknowledged, up to {noun} {last} of the input, and may be in the log. Count the \
                 records from LSN {from} on (read --from {from}), then resume with --skip {base}COUNT"
            )
        }
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_reports_count_and_rate() {
        let acked = Acked {
            records: 1_000_000,
            payload_size: 128 << 20,
            lsns: Some((Lsn(1), Lsn(1_000_000))),
            through: 1_000_000,
        };
        assert_eq!(
            summary(&acked, Duration::from_secs(2)),
            "1,000,000 records, 128.00 MiB, LSN 1 to 1000000, in 2.00 s: 500,000 records/s, 64.00 MiB/s"
        );
        assert_eq!(summary(&Acked::default(), Duration::from_secs(2)), "0 records: the input has none");
    }

    #[test]
    fn the_failure_report_says_what_is_acked_and_how_to_resume() {
        let mut window = SendWindow::new();
        let told = aftermath(&window, "line", 5, Lsn(40));
        assert_eq!(told, "acknowledged: nothing\nnothing is in flight; resume with --skip 5");
        for place in 6..=8 {
            let mut bundle = window.blank();
            bundle.push(b"record", place);
            window.push(bundle);
            window.mark_sent(place);
        }
        assert_eq!(
            aftermath(&window, "line", 5, Lsn(41)),
            "acknowledged: nothing\n\
             3 records were sent but not acknowledged, up to line 8 of the input, and may be in the log. Count the records from \
             LSN 41 on (read --from 41), then resume with --skip 5 + COUNT"
        );
        window.acknowledge(&6, Lsn(41));
        assert_eq!(
            aftermath(&window, "line", 5, Lsn(41)),
            "acknowledged: 1 record, LSN 41 to 41, up to line 6 of the input\n\
             2 records were sent but not acknowledged, up to line 8 of the input, and may be in the log. Count the records from \
             LSN 42 on (read --from 42), then resume with --skip 6 + COUNT"
        );
    }

    #[test]
    fn times_are_told_in_the_largest_unit_that_fits() {
        assert_eq!(spoken(Duration::from_secs(10)), "10 s");
        assert_eq!(spoken(Duration::from_millis(250)), "250 ms");
        assert_eq!(spoken(Duration::from_millis(1500)), "1500 ms");
    }
}
