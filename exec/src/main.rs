//! `tailwind-exec`: runs an unmodified program whose files are replicated.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{self, ExitCode};
use std::time::Duration;

use anyhow::Context;
use clap::CommandFactory;
use clap::error::ErrorKind;
use tailwind_exec::command_line::{Command, CommandLine, DoctorOptions, RunOptions};
use tailwind_exec::doctor::{self, Finding};
use tailwind_exec::dry_run;
use tailwind_exec::life::{self, Options};
use tailwind_exec::logging;
use tailwind_exec::readiness;
use tailwind_exec::volume::Bounds;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let CommandLine { command, run } = CommandLine::read();
    let filter = EnvFilter::try_from_env("TAILWIND_LOG").unwrap_or_else(|_| {
        // What `doctor` follows is of no interest unless it fails.
        EnvFilter::new(if command.is_some() { "warn" } else { "info" })
    });
    logging::start(filter);
    let result = match (command, run) {
        (Some(Command::Doctor(options)), _) => examine(&options),
        (Some(Command::Ready(options)), _) => readiness::probe(&options.dir, &options.command).map(|()| 0),
        (Some(Command::CopyTo { folder }), _) => copy_to(&folder).map(|()| 0),
        (Some(Command::DoctorChild { directory }), _) => doctor::work(&directory).map(|()| 0).map_err(Into::into),
        (None, Some(arguments)) => run_program(arguments),
        (None, None) => CommandLine::command().error(ErrorKind::MissingRequiredArgument, "no program to run").exit(),
    };
    let code = match result {
        Ok(code) => u8::try_from(code).unwrap_or(1),
        Err(error) => {
            tracing::error!("{error:#}");
            1
        }
    };
    logging::finish();
    ExitCode::from(code)
}

fn run_program(arguments: RunOptions) -> anyhow::Result<i32> {
    let options = Options {
        socket: arguments.socket,
        directory: arguments.dir,
        bounds: Bounds {
            bytes: arguments.bytes_max,
            files: arguments.files_max as usize,
            scan: arguments.scan_max,
            record: 0,
            trim: arguments.trim_after,
        },
        import: arguments.import,
        outside: arguments.outside,
        remove_at_start: arguments.remove_at_start,
        without_pid_1: arguments.without_pid_1,
        on_loss: arguments.on_loss,
        lease: arguments.lease.map(Duration::from_millis),
        program: arguments.program,
    };
    if arguments.dry_run { dry_run::run(&options) } else { life::run(&options) }
}

fn copy_to(folder: &Path) -> anyhow::Result<()> {
    let (new, program) = (folder.join(".tailwind-exec.new"), folder.join("tailwind-exec"));
    fs::copy("/proc/self/exe", &new).with_context(|| format!("write {}", new.display()))?;
    // At once, and also while the one that is there runs.
    fs::rename(&new, &program).with_context(|| format!("write {}", program.display()))
}

/// Prints what was found.
fn examine(options: &DoctorOptions) -> anyhow::Result<i32> {
    let child = |directory: &Path| {
        let mut command = process::Command::new("/proc/self/exe");
        command.arg("doctor-child").arg(directory);
        command
    };
    let findings = doctor::examine(&options.dir, options.files_max as usize, child);
    for finding in &findings {
        writeln!(io::stdout(), "{finding}")?;
    }
    Ok(if findings.iter().all(Finding::is_good) { 0 } else { 1 })
}
