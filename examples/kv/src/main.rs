//! The `tailwind-kv` program: reads the command line and runs.

use std::process::ExitCode;

use clap::Parser;
use tailwind_example_kv::options::Options;
use tailwind_example_kv::run;
use tailwind_runtime::process;
use tracing::Span;

fn main() -> ExitCode {
    let Options { serve, log } = Options::parse();
    process::run(&log, Span::none, run::run(serve))
}
