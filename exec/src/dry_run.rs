//! `--dry-run`: runs a program as it would be followed, without a log, and says what does not fit.
//!
//! Its calls are stopped and refused as ever; each sync is answered once the capture is made. Nothing is replicated.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use tracing::{info, warn};

use crate::descriptors;
use crate::ground;
use crate::image::Image;
use crate::life::{Options, remove_at_start};
use crate::no_log;
use crate::program::{Exit, Program, Signals};
use crate::record::Record;
use crate::supervisor::{Outside, Supervisor};
use crate::tally::{Compared, Tally};
use crate::trap::Refused;
use crate::volume::Bounds;

/// Runs the program to its end and reports on standard error. The exit code is the program's.
pub fn run(options: &Options) -> Result<i32> {
    let signals = Signals::catch().context("catch signals")?;
    let mut obstacles: Vec<String> = descriptors::raise(options.bounds.files).iter().map(ToString::to_string).collect();
    let directory = &options.directory;
    fs::create_dir_all(directory).with_context(|| format!("make the directory {}", directory.display()))?;
    let directory = directory.canonicalize().with_context(|| format!("find {}", directory.display()))?;
    let parent = directory.parent().context("--dir is the root of the file system: give a folder of its own")?;
    obstacles.extend(ground::check_mount(&directory, parent).err().map(|error| error.to_string()));
    obstacles.extend(ground::check_file_system(&directory).err().map(|error| error.to_string()));
    for name in &options.remove_at_start {
        remove_at_start(&directory, name)?;
    }

    let logged = RefCell::new(Logged::default());
    let (mut volume, log) = no_log::follow(&directory, options.bounds, |record| logged.borrow_mut().take(record))?;
    // What was there before the program is not its doing.
    volume.take_compared();
    let before = logged.borrow().bytes;
    let [program, arguments @ ..] = &options.program[..] else { bail!("no program to run") };
    let mut command = Command::new(program);
    command.args(arguments);
    let mut program =
        Program::start_counted(command, signals).with_context(|| format!("start {}", program.display()))?;
    info!("dry run: nothing is replicated");
    let began = Instant::now();
    let outside = Outside { allowed: options.outside.clone() };
    let mut supervisor = Supervisor::new(&mut program, volume, log, outside, 0);
    let exit = supervisor.run();
    let (took, (tally, compared)) = (began.elapsed(), supervisor.into_tally());
    let refused = program.refused();
    program.kill().context("kill what the program has left")?;
    let exit = exit?;
    let logged = logged.into_inner();
    let report = Report {
        program: options.program[0].display().to_string(),
        exit,
        took,
        before,
        bytes: logged.bytes - before,
        files: logged.image.nodes().count(),
        size: logged.image.size(),
        bounds: options.bounds,
        compared,
        tally,
        refused,
        obstacles,
    };
    // If standard error is closed, nobody can be told.
    let _ = write!(io::stderr(), "{report}");
    Ok(exit.code())
}

/// What would have gone to the log.
#[derive(Default)]
struct Logged {
    bytes: u64,
    image: Image,
}

impl Logged {
    fn take(&mut self, record: &[u8]) {
        self.bytes += record.len() as u64;
        let folded = Record::decode(record).map_err(anyhow::Error::from).and_then(|record| {
            self.image.fold(&record)?;
            Ok(())
        });
        if let Err(error) = folded {
            warn!(%error, "a record that no standby could take");
        }
    }
}

/// What a dry run has found.
struct Report {
    program: String,
    exit: Exit,
    took: Duration,
    /// Bytes of the log for what was in the directory before.
    before: u64,
    /// Bytes of the log that the program would have brought about.
    bytes: u64,
    files: usize,
    size: u64,
    bounds: Bounds,
    compared: Compared,
    tally: Tally,
    refused: BTreeMap<Refused, u64>,
    /// Why the directory could not be replicated as it is.
    obstacles: Vec<String>,
}

/// The conclusion of the dry run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Fits,
    /// It was refused what it may not be able to do without.
    Perhaps,
    /// It has synced nothing.
    NoSync,
    /// Syncs have failed, or the directory will not do.
    No,
}

impl Report {
    fn verdict(&self) -> Verdict {
        // There is another way for each call that is said not to exist.
        let missed = self.refused.keys().any(|refused| refused.errno() != Errno::NOSYS);
        match () {
            () if !self.tally.failures.is_empty() || !self.obstacles.is_empty() => Verdict::No,
            () if self.tally.syncs == 0 => Verdict::NoSync,
            () if missed => Verdict::Perhaps,
            () => Verdict::Fits,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { program, exit, took, before, bytes, files, size, bounds, compared, tally, refused, obstacles } =
            self;
        let ended = match exit {
            Exit::Code(code) => format!("exit code {code}"),
            Exit::Signal(signal) => format!("ended by signal {signal}"),
        };
        writeln!(f, "\nDry run of {program}: {ended} after {:.1} s", took.as_secs_f64())?;
        let failed: u64 = tally.failures.values().sum();
        writeln!(f, "  syncs     {} confirmed, {failed} failed", tally.syncs)?;
        writeln!(f, "  log       {} would have been appended, and {} at the start", Size(*bytes), Size(*before))?;
        writeln!(f, "  volume    {} of {} in {files} of {} files", Size(*size), Size(bounds.bytes), bounds.files)?;
        let (all, largest) = (Size(compared.bytes), Size(compared.largest));
        writeln!(f, "  compared  {all}, at most {largest} at once (of {})", Size(bounds.scan))?;
        if let (Some(median), Some(most)) = (tally.captures.quantile(0.5), tally.captures.quantile(0.99)) {
            writeln!(f, "  capture   p50 {median:.1?}, p99 {most:.1?}: the part of a sync before it is sent")?;
        }
        if !refused.is_empty() {
            writeln!(f, "\nRefused calls, as they would be with a log:")?;
        }
        for (call, count) in refused {
            let Refused { call: name, when, .. } = call;
            let when = if when.is_empty() { String::new() } else { format!(" ({when})") };
            let (error, advice) = consequence(call.errno());
            writeln!(f, "  {count} x {name}{when}: {error}; {advice}")?;
        }
        if !tally.failures.is_empty() {
            writeln!(f, "\nFailed syncs:")?;
        }
        for (why, count) in &tally.failures {
            writeln!(f, "  {count} x {why}")?;
        }
        if !obstacles.is_empty() {
            writeln!(f, "\nIn the way:")?;
        }
        for obstacle in obstacles {
            writeln!(f, "  {obstacle}")?;
        }
        let verdict = match self.verdict() {
            Verdict::Fits => "It fits.",
            Verdict::Perhaps => {
                "It fits if it has done its work in spite of the refused calls above: look at what it has said."
            }
            Verdict::NoSync => {
                "It has synced nothing, so nothing would survive a failover: look for its setting, such as `appendfsync always`."
            }
            Verdict::No if failed > 0 => {
                "It does not fit yet: a program whose syncs fail confirms nothing. Move those files into --dir, allow them with \
                 --outside, or raise the bound that is named."
            }
            Verdict::No => "The program fits, and the directory does not.",
        };
        writeln!(f, "\n{verdict}")
    }
}

/// An error's name, and what it means for the program.
fn consequence(errno: Errno) -> (&'static str, &'static str) {
    match errno {
        Errno::NOSYS => ("ENOSYS", "programs use other calls instead"),
        Errno::INVAL => ("EINVAL", "turn its synchronous or direct I/O off"),
        Errno::OPNOTSUPP => ("EOPNOTSUPP", "it has to do without"),
        Errno::PERM => ("EPERM", "it has to do without"),
        _ => ("an error", "it has to do without"),
    }
}

/// Bytes for people.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.into_iter().find(|(size, _)| self.0 >= *size) {
            Some((size, unit)) => write!(f, "{:.1} {unit}", self.0 as f64 / size as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            program: "redis-server".into(),
            exit: Exit::Code(0),
            took: Duration::from_millis(12_340),
            before: 0,
            bytes: 3 << 20,
            files: 7,
            size: 2 << 20,
            bounds: Bounds { bytes: 4 << 30, files: 20_000, scan: 1 << 30, record: 0, trim: 64 << 20 },
            compared: Compared { bytes: 5000, largest: 4096 },
            tally: Tally { syncs: 3, ..Tally::default() },
            refused: BTreeMap::new(),
            obstacles: Vec::new(),
        }
    }

    #[test]
    fn it_is_for_people() {
        let mut report = report();
        report.tally.captures.add(Duration::from_micros(16));
        let expected = "
Dry run of redis-server: exit code 0 after 12.3 s
  syncs     3 confirmed, 0 failed
  log       3.0 MiB would have been appended, and 0 B at the start
  volume    2.0 MiB of 4.0 GiB in 7 of 20000 files
  compared  4.9 KiB, at most 4.0 KiB at once (of 1.0 GiB)
  capture   p50 15.4µs, p99 15.4µs: the part of a sync before it is sent

It fits.
";
        assert_eq!(report.to_string(), expected);
    }

    #[test]
    fn the_verdict_is_the_worst_of_what_was_found() {
        let mut report = report();
        assert_eq!(report.verdict(), Verdict::Fits);
        report.tally.syncs = 0;
        assert_eq!(report.verdict(), Verdict::NoSync);
        report.tally.failed("/etc/x is not in the volume", 2);
        assert_eq!(report.verdict(), Verdict::No);
        let text = report.to_string();
        assert!(
            text.contains("2 x /etc/x is not in the volume") && text.contains("allow them with --outside"),
            "{text}"
        );
    }
}
