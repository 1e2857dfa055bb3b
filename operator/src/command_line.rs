//! The command line of `tailwind-operator`: its commands, with the options of each.
//!
//! Parsed by `main`. Its reference, `docs/reference/commands.md`, is made from it.

use clap::{Parser, Subcommand};
use tailwind_runtime::logging::LogOptions;

use crate::commands::InjectOptions;
use crate::options::RunOptions;

/// Manages ReplicaGroups: backup pods, certificates, sidecars, status.
#[derive(Parser)]
#[command(name = "tailwind-operator", version, max_term_width = 100)]
pub struct CommandLine {
    /// What it logs.
    #[command(flatten)]
    pub log: LogOptions,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Run the operator
    Run(Box<RunOptions>),
    /// Print the CustomResourceDefinition of ReplicaGroup, for kubectl create
    Crd,
    /// Print the permissions that the operator needs, each with its reason
    Permissions,
    /// Print pods, or workloads that contain pods, with the sidecar that the webhook would add
    Inject(InjectOptions),
}
