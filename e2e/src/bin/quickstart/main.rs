//! The main job, shown: writes continue while the processes that carry them are killed, and afterwards everything is read back
//! and compared.
//!
//! Started by the `quickstart` script, which builds first. [`log`]: a client of the log itself. [`redis`]: an unmodified Redis.
//! On a terminal the group is drawn while that happens, as `tailwind-sidecar top` draws it; elsewhere lines say what happens. The
//! report at the end is the same.
#![allow(clippy::print_stdout, reason = "a program that reports to people")]

mod log;
mod redis;
mod show;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use tailwind_e2e::processes::{group::Setup, process::program};

/// Kill what carries a log, or a Redis, in the midst of writes, and lose nothing.
#[derive(Parser)]
#[command(name = "quickstart", max_term_width = 100)]
pub(crate) struct Options {
    /// What writes: a client of the log, or an unmodified Redis
    #[arg(long, value_enum, default_value_t, overrides_with = "app")]
    app: App,
    /// File whose lines are appended, one record each, again and again up to --records
    #[arg(long, default_value = "/var/lib/dpkg/status", overrides_with = "file")]
    file: PathBuf,
    /// Records at least, the file is repeated as often as needed; writes, with --app redis
    #[arg(long, default_value_t = 1_000_000, overrides_with = "records")]
    records: u64,
    /// How bytes reach the backups: shm (memory of this host), tcp or verbs (RDMA)
    #[arg(long, default_value = "shm", value_parser = ["shm", "tcp", "verbs"])]
    fabric: String,
    /// Copies of each record; one more backup is started as a spare
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    backups: u8,
    /// The sidecar program; found beside this one if not given
    #[arg(long)]
    program: Option<PathBuf>,
    /// How long a process may be silent until it counts as dead, in milliseconds: as the sidecars' own default when not given,
    /// a second with --app redis. Emulated machines are slow and want seconds
    #[arg(long)]
    silence_ms: Option<u64>,
    /// Say in lines what happens, also on a terminal that could show the group
    #[arg(long)]
    plain: bool,
    /// Folder in memory for the backups' buffers
    #[arg(long, default_value = "/dev/shm")]
    memory: PathBuf,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum App {
    #[default]
    Log,
    Redis,
}

impl Options {
    /// A group with a spare.
    fn setup(&self, silence_ms: Option<u64>) -> Result<Setup> {
        let mut setup = Setup::new(self.program.clone().map_or_else(program, Ok)?, &self.fabric);
        setup.copies = self.backups.into();
        setup.backups = setup.copies + 1;
        setup.segment_size = "8MiB".to_owned();
        setup.buffers = 8;
        setup.memory.clone_from(&self.memory);
        if let Some(silence) = silence_ms {
            let timeouts = [("--heartbeat-silence-ms", silence), ("--fence-wait-ms", silence / 2)];
            setup.sidecar_options = timeouts.map(|(flag, value)| (flag, value.to_string())).to_vec();
        }
        Ok(setup)
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    match options.app {
        App::Log => log::run(options),
        App::Redis => redis::run(&options),
    }
}
