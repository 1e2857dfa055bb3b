//! `tailwind-exec`: runs an unmodified program whose files are replicated.

use std::io::{self, Write};
use std::path::Path;
use std::process::{self, ExitCode};
use std::time::Duration;

use clap::CommandFactory;
use clap::error::ErrorKind;
use tailwind_exec::command_line::{Command, CommandLine, DoctorOptions, RunOptions};
use tailwind_exec::doctor::{self, Finding};
use tailwind_exec::dry_run;
use tailwind_exec::life::{self, Options};
use tailwind_exec::volume::Bounds;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let CommandLine { command, run } = CommandLine::read();
    let filter = EnvFilter::try_from_env("TAILWIND_LOG").unwrap_or_else(|_| {
        // What `doctor` follows is of no interest unless it fails.
        EnvFilter::new(if command.is_some() { "warn" } else { "info" })
    });
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_target(false).init();
    let result = match (command, run) {
        (Some(Command::Doctor(options)), _) => examine(&options),
        (Some(Command::DoctorChild { directory }), _) => doctor::work(&directory).map(|()| 0).map_err(Into::into),
        (None, Some(arguments)) => run_program(arguments),
        (None, None) => CommandLine::command().error(ErrorKind::MissingRequiredArgument, "no program to run").exit(),
    };
    match result {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_program(arguments: RunOptions) -> anyhow::Result<i32> {
    let options = Options {
        socket: arguments.socket,
        directory: arguments.dir,
        bounds: Bounds {
            bytes: arguments.bytes_max,
            files: arguments.files_max,
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

/// Prints what was found.
fn examine(options: &DoctorOptions) -> anyhow::Result<i32> {
    let child = |directory: &Path| {
        let mut command = process::Command::new("/proc/self/exe");
        command.arg("doctor-child").arg(directory);
        command
    };
    let findings = doctor::examine(&options.dir, options.files_max, child);
    for finding in &findings {
        writeln!(io::stdout(), "{finding}")?;
    }
    Ok(if findings.iter().all(Finding::is_good) { 0 } else { 1 })
}
