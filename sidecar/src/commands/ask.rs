//! `trim`, `barrier` and `sync`: one question to the primary, one answer.

use std::cmp::Ordering;
use std::io::{self, Write};

use anyhow::Context;
use clap::Args;
use tailwind_client::Lsn;

use super::notice::Notice;
use super::target::Target;
use crate::options::number;

/// Trim records that are no longer needed.
#[derive(Args, Clone, Debug)]
pub struct TrimOptions {
    /// First record to keep: the one after a snapshot. Only whole segments are trimmed, so earlier records may stay
    #[arg(long, value_name = "LSN", value_parser = number::<u64>(1, u64::MAX))]
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
    let mut primary = options.target.connect()?;
    let below = Lsn(options.below);
    let _notice = Notice::of_answer("trim", primary.socket().to_owned());
    let first = primary.client.trim(below).with_context(|| format!("trim below LSN {below}"))?;
    writeln!(io::stdout().lock(), "{}", trimmed(first, below)).context("write to standard output")
}

/// Where the log begins after a trim, and what the trim has left.
fn trimmed(first: Lsn, below: Lsn) -> String {
    let last = below.prev();
    let kept = match last.cmp(&first) {
        Ordering::Less => return format!("the log begins at LSN {first}"),
        Ordering::Equal => format!("LSN {last} stays"),
        Ordering::Greater => format!("LSN {first} to {last} stay"),
    };
    format!(
        "the log begins at LSN {first}; {kept}: a segment goes as a whole, once it is closed, all of it is below the trim, and a \
         later one is closed as well. Trim again then"
    )
}

/// Passes a barrier and says what it proves.
pub fn barrier(options: &BarrierOptions) -> anyhow::Result<()> {
    let mut primary = options.target.connect()?;
    let _notice = Notice::of_answer("barrier", primary.socket().to_owned());
    let passed = primary.client.barrier().context("pass a barrier")?;
    writeln!(io::stdout().lock(), "primary in epoch {}, last acknowledged LSN {}", passed.epoch, passed.last)
        .context("write to standard output")
}

/// Syncs and says how far.
pub fn sync(options: &SyncOptions) -> anyhow::Result<()> {
    let mut primary = options.target.connect()?;
    let _notice = Notice::of_answer("sync", primary.socket().to_owned());
    let last = primary.client.sync().context("sync")?;
    writeln!(io::stdout().lock(), "on disk at every member up to LSN {last}").context("write to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trim_says_what_stays_and_until_when() {
        assert_eq!(trimmed(Lsn(7), Lsn(7)), "the log begins at LSN 7");
        assert_eq!(trimmed(Lsn(9), Lsn(7)), "the log begins at LSN 9", "it was trimmed further before");
        let kept = trimmed(Lsn(1), Lsn(7));
        assert!(kept.starts_with("the log begins at LSN 1; LSN 1 to 6 stay: a segment goes as a whole"), "{kept}");
        assert!(kept.ends_with("Trim again then"), "{kept}");
        assert!(trimmed(Lsn(6), Lsn(7)).contains("; LSN 6 stays: "));
    }
}
