//! The command line of `tailwind-exec`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::image;
use crate::supervisor::OnLoss;

/// The default of `--files-max`.
const FILES_MAX: u32 = 20_000;
/// More than that no state of a volume could tell of.
const FILES: std::ops::RangeInclusive<i64> = 1..=image::FILES_MAX as i64;
/// Barriers come six times as often: below 60 ms a busy host would lose leases for nothing. Up to an hour.
const LEASE_MS: std::ops::RangeInclusive<u64> = 60..=3_600_000;

const EXAMPLE: &str = "\
Example: a Redis that loses no acknowledged write, beside each of two or more sidecars of one group
  tailwind-exec --socket /run/tailwind/default.sock --dir /vol/data -- \\
    redis-server --dir /vol/data --appendonly yes --appendfsync always \\
      --no-appendfsync-on-rewrite no --save ''

Whether this host will do, and then whether the program fits: tailwind-exec doctor --dir /vol/data; --dry-run

One of them runs Redis; each other one keeps its directory the same, and starts Redis when its sidecar becomes primary.

Exit codes: that of the program, 128 + N if signal N ended it; 74 if it has ended with 0 and not all of its files are in the log;
75 if the role was lost (start it again; the first process of a container follows the log again by itself); 1 if it could not
start; 2 for wrong arguments.";

/// Runs a program as it is, and replicates the files of one directory: each fsync returns only when every backup has what was
/// written.
#[derive(Parser)]
#[command(name = "tailwind-exec", version, after_help = EXAMPLE, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct CommandLine {
    /// Anything but to run a program.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// To run a program.
    #[command(flatten)]
    pub run: Option<RunOptions>,
}

impl CommandLine {
    /// Reads the command line of this process; ends the process if it is wrong.
    ///
    /// A variable of the run options counts as an argument, and would make the required ones required for a command, too.
    pub fn read() -> CommandLine {
        let matches = CommandLine::command().get_matches();
        let read = match matches.subcommand() {
            Some(_) => {
                Command::from_arg_matches(&matches).map(|command| CommandLine { command: Some(command), run: None })
            }
            None => RunOptions::from_arg_matches(&matches).map(|run| CommandLine { command: None, run: Some(run) }),
        };
        read.unwrap_or_else(|error| error.format(&mut CommandLine::command()).exit())
    }
}

/// Commands beside that of running a program.
#[derive(Subcommand)]
pub enum Command {
    /// Check whether a program can be followed here, with advice if not
    Doctor(DoctorOptions),
    /// Tell a probe of the container whether it is ready: a standby whose directory is as the log has it, or a running program
    Ready(ReadyOptions),
    /// Copy this program into a folder, for a container of another image
    CopyTo {
        /// The folder, such as that of a volume which both containers have
        folder: PathBuf,
    },
    /// What `doctor` follows.
    #[command(hide = true)]
    DoctorChild {
        /// Its directory.
        directory: PathBuf,
    },
}

/// Options of `doctor`.
#[derive(Args)]
#[command(after_help = "Exit codes: 0 if everything will do; 1 if not; 2 for wrong arguments.")]
pub struct DoctorOptions {
    /// The directory that will be replicated; it need not exist, and is not touched
    #[arg(long, env = "TAILWIND_DIR", value_name = "PATH")]
    pub dir: PathBuf,
    /// Most files, directories and links
    #[arg(long, env = "TAILWIND_FILES_MAX", value_name = "COUNT", default_value_t = FILES_MAX, value_parser = clap::value_parser!(u32).range(FILES))]
    pub files_max: u32,
}

/// Options of `ready`.
#[derive(Args)]
#[command(after_help = "Exit codes: 0 if it is ready, or that of the command; 1 if not; 2 for wrong arguments.")]
pub struct ReadyOptions {
    /// The directory that is replicated
    #[arg(long, env = "TAILWIND_DIR", value_name = "PATH")]
    pub dir: PathBuf,
    /// What answers for a program that runs, such as redis-cli -e ping. Not given: it is ready
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Options for running a program.
#[derive(Args)]
pub struct RunOptions {
    /// The sidecar's append socket
    #[arg(long, env = "TAILWIND_SOCKET", value_name = "PATH", default_value = "/run/tailwind/default.sock")]
    pub socket: PathBuf,
    /// The directory that is replicated: a folder inside of a volume of its own (an emptyDir). It is filled from the log
    #[arg(long, env = "TAILWIND_DIR", value_name = "PATH")]
    pub dir: PathBuf,
    /// Most bytes in the directory; a sync beyond it fails with ENOSPC
    #[arg(long, env = "TAILWIND_BYTES_MAX", value_name = "BYTES", default_value_t = 4 << 30)]
    pub bytes_max: u64,
    /// Most files, directories and links; a descriptor is held for each
    #[arg(long, env = "TAILWIND_FILES_MAX", value_name = "COUNT", default_value_t = FILES_MAX, value_parser = clap::value_parser!(u32).range(FILES))]
    pub files_max: u32,
    /// Most bytes of a file that one sync may have to compare; beyond it the file's syncs fail
    #[arg(long, env = "TAILWIND_SCAN_MAX", value_name = "BYTES", default_value_t = 1 << 30)]
    pub scan_max: u64,
    /// Bytes of log at which it is trimmed, if they are more than twice those of the files
    #[arg(long, env = "TAILWIND_TRIM_AFTER", value_name = "BYTES", default_value_t = 64 << 20)]
    pub trim_after: u64,
    /// Take the files that are in the directory into a log that is still empty. Without it they are refused, not removed
    #[arg(long)]
    pub import: bool,
    /// Let syncs of files below this path, outside of --dir, go to the kernel: they are not replicated
    #[arg(long, value_name = "PATH")]
    pub outside: Vec<PathBuf>,
    /// Remove this file of --dir before the program starts, such as a stale postmaster.pid
    #[arg(long, value_name = "NAME")]
    pub remove_at_start: Vec<PathBuf>,
    /// Start although another process is PID 1 of the container. If tailwind-exec is killed then, processes of the program in
    /// sessions of their own live on, and answer reads from their memory; it does not start again before they have ended
    #[arg(long, env = "TAILWIND_WITHOUT_PID_1")]
    pub without_pid_1: bool,
    /// What the program gets when the role is lost
    #[arg(long, env = "TAILWIND_ON_LOSS", value_enum, default_value_t)]
    pub on_loss: OnLoss,
    /// Kill the program so many milliseconds after the last proof that this sidecar was primary: then no read is answered from
    /// outdated memory. A new primary starts its program 1.2 times as long after its turn. The same value on all hosts
    #[arg(long, env = "TAILWIND_LEASE", value_name = "MS", value_parser = clap::value_parser!(u64).range(LEASE_MS))]
    pub lease: Option<u64>,
    /// Try whether the program fits: without a log and a sidecar each sync is confirmed at once, nothing is replicated, and at
    /// the end a report says what was refused or failed, and what following it has cost. Use a copy of its data
    #[arg(long)]
    pub dry_run: bool,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}
