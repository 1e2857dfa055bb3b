//! The `tailwind-operator` program: reads the command line and calls the command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tailwind_operator::commands;
use tailwind_operator::options::RunOptions;
use tailwind_runtime::logging::LogOptions;
use tailwind_runtime::process;
use tracing::Span;

/// Keeps ReplicaGroups as they are asked to be: backup pods, certificates, sidecars, status.
#[derive(Parser)]
#[command(name = "tailwind-operator", version, about, max_term_width = 100)]
struct CommandLine {
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Be the operator
    Run(Box<RunOptions>),
    /// Print the definition of ReplicaGroup, for kubectl create
    Crd,
    /// Print what the operator needs to be allowed to do, with the reasons
    Permissions,
    /// Print pods, or workloads with pods in them, with the sidecar that the webhook would give them
    Inject(commands::InjectOptions),
}

fn main() -> ExitCode {
    let CommandLine { log, command } = CommandLine::parse();
    let result = match command {
        Command::Run(options) => return process::run(&log, Span::none, tailwind_operator::run::run(*options)),
        Command::Crd => commands::crd(),
        Command::Permissions => commands::permissions(),
        Command::Inject(options) => commands::inject(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            commands::complain(&error);
            ExitCode::FAILURE
        }
    }
}
