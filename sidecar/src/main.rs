//! The `tailwind-sidecar` program: reads the command line and calls the command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tailwind_runtime::logging::LogOptions;
use tailwind_runtime::process;
use tailwind_sidecar::commands::PeopleCommand;
use tailwind_sidecar::options::RunOptions;
use tailwind_sidecar::{backup, run};

/// A replicated log at memory speed for any stateful app.
#[derive(Parser)]
#[command(name = "tailwind-sidecar", version, about, max_term_width = 100)]
struct CommandLine {
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a sidecar: primary, or a standby that takes over when the primary dies
    Run(Box<RunOptions>),
    /// Run a backup: lend memory to a group's primary
    Backup(Box<backup::BackupOptions>),
    #[command(flatten)]
    People(PeopleCommand),
}

fn main() -> ExitCode {
    let CommandLine { log, command } = CommandLine::parse();
    match command {
        // For people: the command says what went wrong, without a log.
        Command::People(command) => command.run(),
        Command::Run(options) => process::run(&log, run::run(*options)),
        Command::Backup(options) => process::run(&log, backup::run(*options)),
    }
}
