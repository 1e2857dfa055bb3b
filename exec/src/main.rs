//! `tailwind-exec`: runs an unmodified program whose files are replicated.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tailwind_exec::dry_run;
use tailwind_exec::life::{self, Options};
use tailwind_exec::supervisor::OnLoss;
use tailwind_exec::volume::Bounds;
use tracing_subscriber::EnvFilter;

/// Barriers come six times as often: below 60 ms a busy host would lose leases for nothing. Up to an hour.
const LEASE_MS: std::ops::RangeInclusive<u64> = 60..=3_600_000;

const EXAMPLE: &str = "\
Example: a Redis that loses no acknowledged write, beside each of two or more sidecars of one group

  tailwind-exec --socket /run/tailwind/append.sock --dir /vol/data -- \\
    redis-server --dir /vol/data --appendonly yes --appendfsync always --save ''

One of them runs Redis; each other one keeps its directory the same, and starts Redis when its sidecar becomes primary.

Exit codes: that of the program, 128 + N if signal N ended it; 75 if the role was lost (start it again); 1 if it could not
start; 2 for wrong arguments.";

/// Runs a program as it is, and replicates the files of one directory: each fsync returns only when every backup has what was
/// written.
#[derive(Parser)]
#[command(version, after_help = EXAMPLE)]
struct Arguments {
    /// The sidecar's append socket
    #[arg(long, value_name = "PATH", default_value = "/run/tailwind/append.sock")]
    socket: PathBuf,
    /// The directory that is replicated: a folder inside of a volume of its own (an emptyDir). It is filled from the log
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
    /// Most bytes in the directory; a sync beyond it fails with ENOSPC
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30)]
    bytes_max: u64,
    /// Most files, directories and links; a descriptor is held for each
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    files_max: usize,
    /// Most bytes that one sync may have to compare; beyond it the file's syncs fail
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    scan_max: u64,
    /// Bytes of log at which it is trimmed, if they are more than twice those of the files
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    trim_after: u64,
    /// Take the files that are in the directory into a log that is still empty
    #[arg(long)]
    import: bool,
    /// Let syncs of files below this path, outside of --dir, go to the kernel: they are not replicated
    #[arg(long, value_name = "PATH")]
    outside: Vec<PathBuf>,
    /// Remove this file of --dir before the program starts, such as a stale postmaster.pid
    #[arg(long, value_name = "NAME")]
    remove_at_start: Vec<PathBuf>,
    /// Start although another process is PID 1 of the container. If tailwind-exec is killed then, processes of the program in
    /// sessions of their own live on, and answer reads from their memory
    #[arg(long)]
    without_pid_1: bool,
    /// What the program gets when the role is lost
    #[arg(long, env = "TAILWIND_ON_LOSS", value_enum, default_value_t)]
    on_loss: OnLoss,
    /// Kill the program so many milliseconds after the last proof that this sidecar was primary: then no read is answered from
    /// outdated memory. A new primary starts its program 1.2 times as long after its turn. The same value on all hosts
    #[arg(long, env = "TAILWIND_LEASE", value_name = "MS", value_parser = clap::value_parser!(u64).range(LEASE_MS))]
    lease: Option<u64>,
    /// Try whether the program fits: without a log and a sidecar each sync is confirmed at once, nothing is replicated, and at
    /// the end a report says what was refused or failed, and what following it has cost. Use a copy of its data
    #[arg(long)]
    dry_run: bool,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("TAILWIND_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
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
    let result = if arguments.dry_run { dry_run::run(&options) } else { life::run(&options) };
    match result {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
