//! The `tailwind-operator` program: reads the command line and calls the command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tailwind_operator::commands;
use tailwind_operator::logging::LogOptions;
use tailwind_operator::options::RunOptions;

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
    let mut runs = false;
    let result = match command {
        Command::Run(options) => log.start().and_then(|()| {
            runs = true;
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(tailwind_operator::run::run(*options))
        }),
        Command::Crd => commands::crd(),
        Command::Permissions => commands::permissions(),
        Command::Inject(options) => commands::inject(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever collects its log finds its end there.
        Err(error) if runs => {
            tracing::error!("ending: {error:#}");
            ExitCode::FAILURE
        }
        Err(error) => {
            commands::complain(&error);
            ExitCode::FAILURE
        }
    }
}
