//! The `tailwind-kv` program: reads the command line and runs.

use std::process::ExitCode;

use clap::Parser;
use tailwind_example_kv::options::Options;
use tailwind_example_kv::run;

fn main() -> ExitCode {
    match start(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(options: Options) -> anyhow::Result<()> {
    options.log.start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run::run(options.serve))
}
