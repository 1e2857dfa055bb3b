//! The `tailwind-sidecar` program: reads the command line and calls the command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tailwind_sidecar::commands::PeopleCommand;
use tailwind_sidecar::logging::{LogOptions, explain};
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
    /// Be a sidecar: primary, or a standby that takes over when the primary dies
    Run(Box<RunOptions>),
    /// Be a backup: lend memory to a group's primary
    Backup(Box<backup::BackupOptions>),
    #[command(flatten)]
    People(PeopleCommand),
}

fn main() -> ExitCode {
    let CommandLine { log, command } = CommandLine::parse();
    let result = match command {
        // For people, who are told what went wrong without a log.
        Command::People(command) => return command.run(),
        Command::Run(options) => start(&log).and_then(|runtime| runtime.block_on(run::run(*options))),
        Command::Backup(options) => start(&log).and_then(|runtime| runtime.block_on(backup::run(*options))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", explain(&error));
            ExitCode::FAILURE
        }
    }
}

fn start(log: &LogOptions) -> anyhow::Result<tokio::runtime::Runtime> {
    log.start()?;
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
