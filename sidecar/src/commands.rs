//! The command line for people: append to a group's log, read it, ask about it, and look into its files.
//!
//! Called by `main`; calls the blocking client of [`tailwind_client`], no runtime. [`target`] finds the sidecar to talk to,
//! `notice` says what it waits for, `interruption` takes the signals that end a command, [`framing`] is how records look in files and
//! pipes; then one module for each command. Results go to standard output, everything else to standard error.

pub mod append;
pub mod ask;
pub mod completions;
pub mod doctor;
pub mod follow;
pub mod framing;
mod interruption;
mod notice;
pub mod quarantine;
pub mod read;
pub mod scan;
pub mod status;
pub mod table;
pub mod target;
#[cfg(feature = "top")]
pub mod top;

use std::io::{self, StdoutLock, Write};
use std::process::ExitCode;

use clap::Subcommand;
use indicatif::HumanCount;
use tailwind_runtime::exit::Exit;
use tailwind_runtime::logging::explain;

/// Commands for users of a log.
#[derive(Subcommand)]
pub enum PeopleCommand {
    /// Append records from a file or from standard input
    Append(append::AppendOptions),
    /// Write the log's acknowledged records to standard output
    Read(read::ReadOptions),
    /// Write records to standard output as they are acknowledged
    Tail(read::TailOptions),
    /// Write records to standard output as they are acknowledged, at a sidecar of any role, until it becomes primary
    Follow(follow::FollowOptions),
    /// Trim records that are no longer needed
    Trim(ask::TrimOptions),
    /// Prove that the sidecar is primary at this moment
    Barrier(ask::BarrierOptions),
    /// Bring everything that was appended so far to the disk of every member
    Sync(ask::SyncOptions),
    /// Put, get, delete, list or watch keys of a group that keeps a table
    Table(table::TableOptions),
    /// Show whether the log is safe, and the group as a sidecar knows it
    Status(status::StatusOptions),
    /// Watch a group on the whole terminal: members, log, rates, and what happens
    #[cfg(feature = "top")]
    Top(top::TopOptions),
    /// Check whether RDMA works on this host, with advice if it does not
    Doctor(doctor::DoctorOptions),
    /// Show what the files or folders of a backup hold; needs no running process of the group
    Scan(scan::ScanOptions),
    /// List or release copies that a backup has quarantined because they are not part of the log
    Quarantine(quarantine::QuarantineOptions),
    /// Print a script with which a shell completes commands, options and values
    Completions(completions::CompletionsOptions),
}

impl PeopleCommand {
    /// Runs the command; says on standard error what went wrong.
    pub fn run(&self) -> ExitCode {
        let done = |()| Exit::Success;
        let (name, result) = match self {
            PeopleCommand::Append(options) => ("append", append::run(options).map(done)),
            PeopleCommand::Read(options) => ("read", read::read(options).map(done)),
            PeopleCommand::Tail(options) => ("tail", read::tail(options).map(done)),
            PeopleCommand::Follow(options) => ("follow", follow::run(options).map(done)),
            PeopleCommand::Trim(options) => ("trim", ask::trim(options).map(done)),
            PeopleCommand::Barrier(options) => ("barrier", ask::barrier(options).map(done)),
            PeopleCommand::Sync(options) => ("sync", ask::sync(options).map(done)),
            PeopleCommand::Table(options) => ("table", table::run(options).map(done)),
            PeopleCommand::Status(options) => ("status", status::run(options)),
            #[cfg(feature = "top")]
            PeopleCommand::Top(options) => ("top", top::run(options).map(done)),
            PeopleCommand::Doctor(options) => ("doctor", doctor::run(options).map(done)),
            PeopleCommand::Scan(options) => ("scan", scan::run(options).map(done)),
            PeopleCommand::Quarantine(options) => ("quarantine", quarantine::run(options).map(done)),
            PeopleCommand::Completions(options) => ("completions", completions::run(options).map(done)),
        };
        match result {
            Ok(exit) => exit.into(),
            // The reader closed our output, as `head` does: not a failure.
            Err(error) if is_closed_pipe(&error) => Exit::Success.into(),
            Err(error) => {
                tell(format_args!("{name}: {}", explain(&error)));
                Exit::of(&error).into()
            }
        }
    }
}

/// `1 record`, `2,000 records`.
fn counted(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", HumanCount(count))
}

/// Standard output of a command that judges: its verdict stands, also if the reader goes away, as `head` does.
struct Output(StdoutLock<'static>);

impl Output {
    fn lock() -> Output {
        Output(io::stdout().lock())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(bytes.len()),
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            flushed => flushed,
        }
    }
}

/// Lines on standard output.
fn print(lines: &[String]) -> anyhow::Result<()> {
    let mut out = Output::lock();
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(out.flush()?)
}

/// One line on standard error. A failure to write it is ignored: no one is reading.
fn tell(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<io::Error>().map(io::Error::kind);
    error.chain().any(|cause| kind(cause) == Some(io::ErrorKind::BrokenPipe))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The long options of each command.
    fn options(command: &str) -> Vec<String> {
        let all = PeopleCommand::augment_subcommands(clap::Command::new("tailwind-sidecar"));
        let found = all.find_subcommand(command).unwrap_or_else(|| panic!("no command {command}"));
        found.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
    }

    #[test]
    fn only_commands_that_can_wait_have_wait() {
        for command in ["append", "read", "tail", "follow", "trim", "barrier", "sync"] {
            assert!(options(command).contains(&"wait".to_owned()), "{command}");
        }
        for command in ["status", "top", "doctor", "scan", "quarantine", "completions"] {
            assert!(!options(command).contains(&"wait".to_owned()), "{command}");
        }
    }

    #[test]
    fn wait_says_for_which_role() {
        let all = PeopleCommand::augment_subcommands(clap::Command::new("tailwind-sidecar"));
        let help = |command: &str| {
            let found = all.find_subcommand(command).unwrap();
            let wait = found.get_arguments().find(|arg| arg.get_id() == "wait").unwrap();
            wait.get_help().unwrap().to_string()
        };
        for command in ["append", "tail", "trim", "barrier", "sync"] {
            assert!(help(command).contains("is primary") && !help(command).contains("anywhere"), "{}", help(command));
        }
        assert!(help("read").contains("with --anywhere"), "{}", help("read"));
        assert!(!help("follow").contains("primary"), "{}", help("follow"));
    }
}
