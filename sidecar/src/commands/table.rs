//! `table`: keys of a group that keeps a table, changed at the primary, and read at any sidecar.
//!
//! The table is in the log, and nowhere else as a whole: to read it is to follow the log from its first record on. One key can be
//! asked for, which any sidecar answers where backups keep mirrors, and the primary everywhere.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use tailwind_client::blocking::{Client, LocalTable, Table};
use tailwind_client::{Apply, Change, Entry, Error, Get, Lsn, Revision, Role};
use tailwind_protocol::table::record::VALUE_SIZE_MAX;

use super::notice::Notice;
use super::read::{LOOK_UP_EVERY, WRITE, is_abandoned};
use super::target::{FIRST_OF_SOCKETS, Target, WAIT_FOR_ANY};
use super::{counted, tell};
use crate::options::number;

/// Put, copy, get, delete, list or watch keys of a group that keeps a table.
#[derive(Args, Clone, Debug)]
pub struct TableOptions {
    #[command(subcommand)]
    command: TableCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum TableCommand {
    /// Give a key a value, and print its revision
    Put(PutOptions),
    /// Give a key the value that another key has, and print its revision. The value does not pass through this command
    Copy(CopyOptions),
    /// Write the value of a key, and a newline, to standard output
    Get(GetOptions),
    /// Delete a key, which may be absent already, and print the LSN of the record that does
    Delete(DeleteOptions),
    /// List keys: a line for each with its revision, itself and its value, separated by tabs
    List(ListOptions),
    /// List keys, and then the changes as they are acknowledged, without end. A key that is deleted has the revision `-`
    Watch(ListOptions),
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  Take a lease that nobody has:\n    tailwind-sidecar table put lease \"$HOSTNAME\" --if-absent"
)]
struct PutOptions {
    /// The key: 1 to 1,024 bytes
    #[arg(value_name = "KEY")]
    key: OsString,
    /// The value: up to 65,536 bytes [default: what standard input has]
    #[arg(value_name = "VALUE")]
    value: Option<OsString>,
    #[command(flatten)]
    condition: Condition,
    #[command(flatten)]
    target: Target,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  Keep what a key has now under another one:\n    tailwind-sidecar table copy config/before config"
)]
struct CopyOptions {
    /// The key that gets the value
    #[arg(value_name = "KEY")]
    key: OsString,
    /// The key that has it
    #[arg(value_name = "SOURCE")]
    source: OsString,
    #[command(flatten)]
    condition: Condition,
    #[command(flatten)]
    target: Target,
}

/// What a key must have before it is changed.
#[derive(Args, Clone, Debug)]
struct Condition {
    /// Only if the key has this revision
    #[arg(long, value_name = "REVISION", value_parser = number::<u64>(1, u64::MAX))]
    if_revision: Option<u64>,
    /// Only if the key is absent
    #[arg(long, conflicts_with = "if_revision")]
    if_absent: bool,
}

impl Condition {
    /// The revision that is asked for, if any; the inner `None` is an absent key.
    fn revision(&self) -> Option<Option<Revision>> {
        match self.if_revision {
            Some(revision) => Some(Revision::of(Lsn(revision))),
            None => self.if_absent.then_some(None),
        }
    }
}

#[derive(Args, Clone, Debug)]
struct DeleteOptions {
    /// The key
    #[arg(value_name = "KEY")]
    key: OsString,
    /// Only if the key has this revision
    #[arg(long, value_name = "REVISION", value_parser = number::<u64>(1, u64::MAX))]
    if_revision: Option<u64>,
    #[command(flatten)]
    target: Target,
}

/// What a get says beside its options.
const READS_KEY: &str = "The first sidecar that answers is asked, in any role. It shows everything that was \
                         acknowledged before. If it is not the primary, it needs a backup with a mirror, and the \
                         primary to say how far the log is. Without them this reads the log of the table as a \
                         whole, and what was acknowledged last may be missing.";

/// What a list says beside its options.
const READS_ALL: &str = "This reads the log of the table as a whole, at the first sidecar that answers, in any role. Off the \
                         primary, what was acknowledged last may be missing.";

#[derive(Args, Clone, Debug)]
#[command(
    after_help = READS_KEY,
    mut_arg("socket", |socket| socket.help(FIRST_OF_SOCKETS)),
    mut_arg("wait", |wait| wait.help(WAIT_FOR_ANY))
)]
struct GetOptions {
    /// The key
    #[arg(value_name = "KEY")]
    key: OsString,
    /// If no backup has a sound copy of the newest value, show the one before, and say so
    #[arg(long)]
    older: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = READS_ALL,
    mut_arg("socket", |socket| socket.help(FIRST_OF_SOCKETS)),
    mut_arg("wait", |wait| wait.help(WAIT_FOR_ANY))
)]
struct ListOptions {
    /// Only the keys that begin with this
    #[arg(value_name = "PREFIX")]
    prefix: Option<OsString>,
    #[command(flatten)]
    target: Target,
}

impl ListOptions {
    fn prefix(&self) -> &[u8] {
        self.prefix.as_deref().map_or(&[], OsStr::as_bytes)
    }
}

/// Runs the command.
pub fn run(options: &TableOptions) -> anyhow::Result<()> {
    match &options.command {
        TableCommand::Put(options) => put(options),
        TableCommand::Copy(options) => copy(options),
        TableCommand::Get(options) => get(options),
        TableCommand::Delete(options) => delete(options),
        TableCommand::List(options) => list(options),
        TableCommand::Watch(options) => watch(options),
    }
}

fn put(options: &PutOptions) -> anyhow::Result<()> {
    let value = match &options.value {
        Some(value) => value.as_bytes().to_vec(),
        None => value_from(io::stdin().lock())?,
    };
    let key = options.key.as_bytes();
    let apply = match options.condition.revision() {
        Some(revision) => Apply::new().put_if(key, &value, revision),
        None => Apply::new().put(key, &value),
    };
    change("put", &options.key, "it", &apply, &options.target)
}

fn copy(options: &CopyOptions) -> anyhow::Result<()> {
    let (key, source) = (options.key.as_bytes(), options.source.as_bytes());
    let apply = match options.condition.revision() {
        Some(revision) => Apply::new().copy_if(key, source, revision),
        None => Apply::new().copy(key, source),
    };
    let source = options.source.display();
    // One number stands for the key that is absent and for the source.
    let absent = if options.condition.if_revision.is_some() { format!("it or {source}") } else { source.to_string() };
    change(&format!("copy {source} to"), &options.key, &absent, &apply, &options.target)
}

/// All of an input, if it may be a value.
fn value_from(input: impl Read) -> anyhow::Result<Vec<u8>> {
    let mut value = Vec::new();
    input.take(VALUE_SIZE_MAX as u64 + 1).read_to_end(&mut value).context("read the value from standard input")?;
    ensure!(value.len() <= VALUE_SIZE_MAX, "standard input has more than the {VALUE_SIZE_MAX} bytes of a value");
    Ok(value)
}

fn delete(options: &DeleteOptions) -> anyhow::Result<()> {
    let key = options.key.as_bytes();
    let apply = match options.if_revision {
        Some(revision) => Apply::new().delete_if(key, Revision::of(Lsn(revision))),
        None => Apply::new().delete(key),
    };
    change("delete", &options.key, "it", &apply, &options.target)
}

/// Carries out a request with one operation, and prints the LSN of its record, which is the revision that the key has then.
/// `absent`: what does not exist where that is why nothing was done.
fn change(what: &str, key: &OsStr, absent: &str, apply: &Apply, target: &Target) -> anyhow::Result<()> {
    let primary = target.connect()?;
    let _notice = Notice::of_answer("table", primary.socket().to_owned());
    let mut table = Table::over(primary.client)?;
    let applied = table.apply(apply).map_err(|error| match error {
        Error::Mismatch { revision: Some(revision), .. } => anyhow!("it has revision {revision}: nothing was done"),
        Error::Mismatch { revision: None, .. } => anyhow!("{absent} is absent: nothing was done"),
        error => error.into(),
    });
    let last = applied.with_context(|| format!("{what} {}", key.display()))?.last;
    writeln!(io::stdout().lock(), "{last}").context(WRITE)
}

fn get(options: &GetOptions) -> anyhow::Result<()> {
    let key = options.key.as_bytes();
    let Some(value) = value(options, key)? else { bail!("get {}: it is absent", options.key.display()) };
    let mut out = io::stdout().lock();
    out.write_all(&value).and_then(|()| out.write_all(b"\n")).context(WRITE)
}

/// What a key has, by a fresh get, or else from the log.
fn value(options: &GetOptions, key: &[u8]) -> anyhow::Result<Option<Arc<[u8]>>> {
    let client = options.target.connect_to_any()?;
    let is_primary = client.role_info().role == Role::Primary;
    match Table::over(client)?.get_with(key, &Get { fresh: true, older: options.older, ..Get::default() }) {
        Ok(got) => {
            if got.older.is_some() {
                tell("no backup has a sound copy of the newest value: this is the one before");
            }
            if got.stale {
                tell("the view is stale");
            }
            Ok(got.older.or(got.entry.map(|entry| entry.value)))
        }
        // It has lost the role since, or was none that could say.
        Err(Error::NotPrimary { .. }) => value_in_log(options, key),
        Err(Error::Retry { .. }) if !is_primary => value_in_log(options, key),
        Err(error) => Err(error).context("get the key"),
    }
}

fn value_in_log(options: &GetOptions, key: &[u8]) -> anyhow::Result<Option<Arc<[u8]>>> {
    let table = whole(options.target.connect_to_any()?, key)?;
    Ok(table.get(key).map(|entry| Arc::clone(&entry.value)))
}

fn list(options: &ListOptions) -> anyhow::Result<()> {
    let table = whole(options.target.connect_to_any()?, options.prefix())?;
    let mut out = BufWriter::new(io::stdout().lock());
    table.range(b"").try_for_each(|(key, entry)| write_entry(&mut out, key, entry))?;
    out.flush().context(WRITE)
}

/// The table, once it has caught up.
fn whole(client: Client, prefix: &[u8]) -> anyhow::Result<LocalTable> {
    let mut table = LocalTable::over(client, prefix)?;
    loop {
        match table.next_change().context("read the table")? {
            Some(Change::CaughtUp { .. } | Change::Turn { .. }) => return Ok(table),
            Some(Change::Put { .. } | Change::Deleted { .. } | Change::Lag { .. }) => {}
            None => bail!("read the table: the sidecar has ended the follow"),
        }
    }
}

fn watch(options: &ListOptions) -> anyhow::Result<()> {
    let mut client = options.target.connect_to_any()?;
    client.set_timeout(Some(LOOK_UP_EVERY)).context("set the socket's time-out")?;
    let mut table = LocalTable::over(client, options.prefix())?;
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut has_caught_up, mut was_stale) = (false, false);
    loop {
        match table.next_change() {
            Ok(Some(Change::Put { key, entry })) => {
                write_entry(&mut out, &key, &entry)?;
                continue;
            }
            Ok(Some(Change::Deleted { key })) => {
                writeln!(out, "-\t{}", key.escape_ascii()).context(WRITE)?;
                continue;
            }
            Ok(Some(Change::CaughtUp { .. })) => {
                if !std::mem::replace(&mut has_caught_up, true) {
                    out.flush().context(WRITE)?;
                    tell(format_args!("caught up: {}", counted(table.len() as u64, "key")));
                }
            }
            Ok(Some(Change::Lag { stale, .. })) => {
                if std::mem::replace(&mut was_stale, stale) != stale {
                    tell(if stale { "the view is stale" } else { "the view is fresh again" });
                }
            }
            Ok(Some(Change::Turn { epoch, .. })) => {
                out.flush().context(WRITE)?;
                tell(format_args!("turn: this sidecar is primary in epoch {epoch}"));
            }
            Ok(None) | Err(Error::TimedOut { .. }) => {}
            Err(error) => return Err(anyhow::Error::new(error).context("watch the table")),
        }
        // Nothing more for now: readers must not wait for the buffer to fill.
        out.flush().context(WRITE)?;
        if is_abandoned() {
            return Ok(());
        }
    }
}

fn write_entry(out: &mut impl Write, key: &[u8], entry: &Entry) -> anyhow::Result<()> {
    writeln!(out, "{}\t{}\t{}", entry.revision, key.escape_ascii(), entry.value.escape_ascii()).context(WRITE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_from_standard_input_is_bounded() {
        let most = vec![7; 65_536];
        assert_eq!(value_from(&most[..]).unwrap(), most);
        let error = value_from(&vec![7; 65_537][..]).unwrap_err().to_string();
        assert_eq!(error, "standard input has more than the 65536 bytes of a value");
    }
}
