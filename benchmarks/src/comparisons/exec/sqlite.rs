//! SQLite's own shell, which is given statements by a pipe.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tailwind_e2e::processes::exec::Containers;
use tailwind_e2e::processes::process::installed;
use tailwind_e2e::wait::poll;

use super::{beside, follow};
use crate::ours::Ours;
use crate::peers::Processes;

/// How it keeps its journal.
pub(super) const MODE: &str = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL";
/// Rows that tell how many to measure with.
const TRIAL: u64 = 30;
/// At most so many rows in one measurement.
const ROWS_MAX: u64 = 200_000;
/// How long one measurement may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Seconds since 1970, in milliseconds.
const NOW: &str = "SELECT (julianday('now') - 2440587.5) * 86400.0;";

/// A shell with one table.
pub(super) struct Shell {
    statements: File,
    out: PathBuf,
    rows: u64,
    _runs_in: RunsIn,
}

enum RunsIn {
    Folder { _processes: Processes },
    Group { _containers: Containers, _ours: Box<Ours> },
}

pub(super) fn version() -> Result<String> {
    let shell = installed("sqlite3", "sqlite3")?;
    Ok(crate::peers::version(&shell, "--version").split(' ').next().unwrap_or_default().to_owned())
}

impl Shell {
    /// With its database in a folder.
    pub(super) fn alone(folder: &Path) -> Result<Shell> {
        let mut processes = Processes::new(folder, "sqlite-")?;
        let (pipe, out) = (processes.path("statements"), processes.path("out"));
        let statements = make_pipe(&pipe)?;
        let [shell, options @ ..] = command(&pipe)?;
        let mut command = Command::new(shell);
        command.args(options).arg(processes.path("database"));
        processes.start("sqlite", command)?;
        Shell::begin(statements, out, RunsIn::Folder { _processes: processes })
    }

    /// Under `tailwind-exec` beside the group's sidecar.
    pub(super) fn under(ours: Ours) -> Result<Shell> {
        let (pipe, out) = (beside(&ours, "statements"), beside(&ours, "sqlite-out"));
        let statements = make_pipe(&pipe)?;
        let command = command(&pipe)?;
        let containers = follow("sqlite", &ours, |directory| {
            command.iter().cloned().chain([directory.join("database").into()]).collect()
        })?;
        Shell::begin(statements, out, RunsIn::Group { _containers: containers, _ours: Box::new(ours) })
    }

    fn begin(statements: File, out: PathBuf, runs_in: RunsIn) -> Result<Shell> {
        let mut shell = Shell { statements, out, rows: 0, _runs_in: runs_in };
        let answer =
            shell.ask(&format!("{MODE};\nCREATE TABLE rows(id INTEGER PRIMARY KEY, body TEXT);\nSELECT 1;\n"))?;
        ensure!(answer == ["wal", "1"], "SQLite answered {answer:?}");
        Ok(shell)
    }

    /// Commits rows for about so long; how many in a second.
    pub(super) fn commit_for(&mut self, time: Duration) -> Result<f64> {
        let rate = self.commit(TRIAL)?;
        self.commit(((rate * time.as_secs_f64()) as u64).clamp(TRIAL, ROWS_MAX))
    }

    fn commit(&mut self, rows: u64) -> Result<f64> {
        let insert = format!("INSERT INTO rows(body) VALUES('{}');\n", "x".repeat(super::SIZE));
        let text = format!("{NOW}\n{}{NOW}\nSELECT count(*) FROM rows;\n", insert.repeat(rows as usize));
        let answer = self.ask(&text)?;
        self.rows += rows;
        let numbers = answer.iter().map(|line| line.parse::<f64>()).collect::<Result<Vec<_>, _>>();
        let Ok([began, ended, count]) = <[f64; 3]>::try_from(numbers.unwrap_or_default()) else {
            anyhow::bail!("SQLite answered {answer:?}");
        };
        ensure!(count == self.rows as f64, "{count} rows are there, and {} were committed", self.rows);
        // The clock has milliseconds.
        Ok(rows as f64 / (ended - began).max(0.001))
    }

    /// What statements answer, by lines.
    fn ask(&mut self, statements: &str) -> Result<Vec<String>> {
        let done = self.out.with_extension("done");
        for file in [&self.out, &done] {
            let _ = fs::remove_file(file);
        }
        // A file is complete when the next one is there.
        let text = format!(".output {}\n{statements}.output {}\n.output\n", self.out.display(), done.display());
        self.statements.write_all(text.as_bytes()).context("hand statements to SQLite")?;
        let complete = || done.exists().then(|| fs::read_to_string(&self.out));
        let text = poll(PATIENCE, Duration::from_millis(5), complete).context("SQLite does not answer")??;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

/// The shell and its options; the database follows.
fn command(pipe: &Path) -> Result<[OsString; 5]> {
    let read = format!(".read {}", pipe.display());
    Ok([installed("sqlite3", "sqlite3")?.into(), "-batch".into(), "-bail".into(), "-cmd".into(), read.into()])
}

/// A pipe with a name, which stays open: the shell never comes to its end.
fn make_pipe(path: &Path) -> Result<File> {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).context("make a pipe")?;
    File::options().read(true).write(true).open(path).context("open the pipe")
}
