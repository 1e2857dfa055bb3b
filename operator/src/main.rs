//! The `tailwind-operator` program: reads the command line and calls the command.

use std::process::ExitCode;

use clap::Parser;
use tailwind_operator::command_line::{Command, CommandLine};
use tailwind_operator::commands;
use tailwind_runtime::process;
use tracing::Span;

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
