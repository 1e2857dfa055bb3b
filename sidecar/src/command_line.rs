//! The command line of `tailwind-sidecar`: its commands, with the options of each.
//!
//! Parsed by `main`. Completions are made from it ([`commands::completions`](crate::commands::completions)), and so is its
//! reference, `docs/reference/commands.md`.

use clap::{Parser, Subcommand};

use crate::backup::BackupOptions;
use crate::commands::PeopleCommand;
use crate::options::RunOptions;

/// A replicated log at memory speed for any stateful app.
#[derive(Parser)]
#[command(name = "tailwind-sidecar", version, max_term_width = 100)]
pub struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Run a sidecar: primary, or a standby that takes over when the primary dies
    Run(Box<RunOptions>),
    /// Run a backup: lend memory to a group's primary
    Backup(Box<BackupOptions>),
    /// For people.
    #[command(flatten)]
    People(PeopleCommand),
}
