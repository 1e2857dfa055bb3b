//! `trim`, `barrier` and `sync`: one question to the primary, one answer.

use std::io::{self, Write};

use anyhow::Context;
use clap::Args;
use tailwind_client::Lsn;

use super::target::Target;

/// Trim records that are no longer needed.
#[derive(Args, Clone, Debug)]
pub struct TrimOptions {
    /// First record to keep: the one after a snapshot. Only whole segments are trimmed, so earlier records may stay
    #[arg(long, value_name = "LSN", value_parser = clap::value_parser!(u64).range(1..))]
    below: u64,
    /// Which sidecar.
    #[command(flatten)]
    target: Target,
}

/// Prove that the sidecar is primary at this moment.
#[derive(Args, Clone, Debug)]
pub struct BarrierOptions {
    /// Which sidecar.
    #[command(flatten)]
    target: Target,
}

/// Bring everything that was appended so far to the disk of every member.
#[derive(Args, Clone, Debug)]
pub struct SyncOptions {
    /// Which sidecar.
    #[command(flatten)]
    target: Target,
}

/// Trims and says where the log begins now.
pub fn trim(options: &TrimOptions) -> anyhow::Result<()> {
    let mut client = options.target.connect()?.client;
    let below = Lsn(options.below);
    let first = client.trim(below).with_context(|| format!("trim below LSN {below}"))?;
    let kept = if first < below { "; earlier records stay until their segment is trimmed" } else { "" };
    writeln!(io::stdout().lock(), "the log begins at LSN {first}{kept}").context("write to standard output")
}

/// Passes a barrier and says what it proves.
pub fn barrier(options: &BarrierOptions) -> anyhow::Result<()> {
    let mut client = options.target.connect()?.client;
    let passed = client.barrier().context("pass a barrier")?;
    writeln!(io::stdout().lock(), "primary in epoch {}, last acknowledged LSN {}", passed.epoch, passed.last)
        .context("write to standard output")
}

/// Syncs and says how far.
pub fn sync(options: &SyncOptions) -> anyhow::Result<()> {
    let mut client = options.target.connect()?.client;
    let last = client.sync().context("sync")?;
    writeln!(io::stdout().lock(), "on disk at every member up to LSN {last}").context("write to standard output")
}
