//! The `tailwind-sidecar` program: reads the command line and calls the command.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tailwind_runtime::exit::{Exit, UsageError};
use tailwind_runtime::process;
use tailwind_sidecar::command_line::{Command, CommandLine};
use tailwind_sidecar::options::{RunOptions, own_name};
use tailwind_sidecar::{backup, run};
use tracing::error_span;

fn main() -> ExitCode {
    let CommandLine { command } = CommandLine::parse();
    // Spans of the level error stay with every filter.
    match command {
        // For people: the command says what went wrong, without a log.
        Command::People(command) => command.run(),
        Command::Run(options) => {
            let (log, group) = (options.log.clone(), options.group().clone());
            let sidecar = match own_name(options.name.clone()) {
                Ok(name) => name,
                Err(error) => return refuse(&error),
            };
            let options = RunOptions { name: Some(sidecar.clone()), ..*options };
            process::run(&log, || error_span!("sidecar", %group, %sidecar), run::run(options))
        }
        Command::Backup(options) => {
            let (log, group) = (options.log.clone(), options.group.clone());
            let member = match own_name(options.name.clone()) {
                Ok(name) => name,
                Err(error) => return refuse(&error),
            };
            let options = backup::BackupOptions { name: Some(member.clone()), ..*options };
            process::run(&log, || error_span!("backup", %group, %member), backup::run(options))
        }
    }
}

/// There is no log yet.
fn refuse(error: &UsageError) -> ExitCode {
    // If standard error is closed, nobody can be told.
    let _ = writeln!(io::stderr(), "error: {error}");
    Exit::Usage.into()
}
