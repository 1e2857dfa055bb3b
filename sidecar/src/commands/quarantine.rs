//! `quarantine`: what lies in quarantine in a backup's flush folder, and how an administrator releases it.
//!
//! Needs no process of the group and harms none, so it works beside a backup that runs: that one never opens these files.
//! What a file holds [`examine`] says, as for [`scan`].

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use clap::{Args, Subcommand};
use indicatif::HumanBytes;
use tailwind_backup::{QuarantineName, quarantine};
use tailwind_protocol::ids::{GroupName, MemberId};
use tailwind_runtime::logging::explain;

use super::scan::examine::{Content, SegmentFileName, SegmentReport, State, examine};
use super::scan::{self, folder::describe};
use super::{counted, print, tell};
use crate::backup::options::default_flush_dir;
use crate::options::own_name;
use crate::rpc::printable;

/// List or release copies that a backup has quarantined because they are not part of the log.
#[derive(Args, Clone, Debug)]
pub struct QuarantineOptions {
    #[command(subcommand)]
    command: QuarantineCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum QuarantineCommand {
    /// List the files in quarantine, and those that the backup moved aside because it did not understand them: a line for each
    /// with its name, whether it is sound, its size, segment, epoch and records
    List(ListOptions),
    /// Delete files from quarantine. Nothing else deletes them, and they cannot be restored
    Release(ReleaseOptions),
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit codes: 0 if every file could be read; 1 if not, or there is no such folder; 2 if the command \
                        line is invalid"
)]
struct ListOptions {
    /// The backup's flush folder, instead of --flush-dir, or --group and --name
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    folder: FolderOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit codes: 0 if all of them are deleted; 1 if not (if a name is none of these files, nothing is \
                        deleted); 2 if the command line is invalid"
)]
struct ReleaseOptions {
    #[command(flatten)]
    folder: FolderOptions,
    /// Files to delete, by the names that `list` prints
    #[arg(value_name = "NAME", required_unless_present = "all")]
    names: Vec<String>,
    /// Delete every file in quarantine. Files that the backup moved aside stay; delete those by name
    #[arg(long, conflicts_with = "names")]
    all: bool,
}

/// Which backup's folder; told as `backup` is told, so that in a backup's container nothing need be said.
#[derive(Args, Clone, Debug)]
struct FolderOptions {
    /// The backup's flush folder [default: /var/lib/tailwind/GROUP/NAME]
    #[arg(long, env = "TAILWIND_FLUSH_DIR", value_name = "DIR")]
    flush_dir: Option<PathBuf>,
    /// The backup's group, if --flush-dir is not given
    #[arg(long, env = "TAILWIND_GROUP", default_value = "default")]
    group: GroupName,
    /// The backup's name, if --flush-dir is not given [default: the host's name]
    #[arg(long, env = "TAILWIND_NAME")]
    name: Option<MemberId>,
}

impl FolderOptions {
    fn path(&self) -> anyhow::Result<PathBuf> {
        match &self.flush_dir {
            Some(folder) => Ok(folder.clone()),
            None => Ok(default_flush_dir(&self.group, &own_name(self.name.clone())?)),
        }
    }
}

/// Does what the sub-command says.
pub fn run(options: &QuarantineOptions) -> anyhow::Result<()> {
    match &options.command {
        QuarantineCommand::List(ListOptions { dir, folder }) => {
            let folder = dir.clone().map_or_else(|| folder.path(), Ok)?;
            let (found, aside) = (find(&folder)?, find_aside(&folder)?);
            let Listed { mut lines, mut unread } = list(&folder, &found);
            let other = list(&folder, &aside);
            lines.extend(other.lines);
            unread += other.unread;
            print(&lines)?;
            tell(format_args!("{}: {} in quarantine, {} moved aside", folder.display(), sum(&found), sum(&aside)));
            ensure!(unread == 0, "{unread} of {} could not be read", counted(lines.len() as u64, "file"));
            Ok(())
        }
        QuarantineCommand::Release(ReleaseOptions { folder, names, all }) => {
            let folder = folder.path()?;
            let found = find(&folder)?;
            let chosen = if *all {
                found
            } else {
                let known = found.into_iter().chain(find_aside(&folder)?).collect();
                choose(&folder, &known, names)?
            };
            let Released { gone, result } = release(&folder, &chosen);
            // Report what is gone, even if the rest failed.
            let lines: Vec<String> =
                gone.iter().map(|(name, size)| format!("released {name}, {}", counted(*size, "byte"))).collect();
            print(&lines)?;
            tell(format_args!("{}: {} released", folder.display(), sum(&gone)));
            result
        }
    }
}

/// Names and sizes, in the order of names, which is that of segments.
type Files = BTreeMap<String, u64>;

fn find(folder: &Path) -> anyhow::Result<Files> {
    let context = || format!("list flush folder {}", folder.display());
    let files = quarantine::files(folder).with_context(context)?;
    files.map(|file| file.map(|file| (file.name.to_string(), file.bytes)).with_context(context)).collect()
}

/// Files with the name of a segment's file and something behind it: a backup has moved them aside because it did not understand
/// them, or somebody has made a copy. It never looks at them again.
fn find_aside(folder: &Path) -> anyhow::Result<Files> {
    let context = || format!("list flush folder {}", folder.display());
    let mut found = Files::new();
    for entry in fs::read_dir(folder).with_context(context)? {
        let entry = entry.with_context(context)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_aside = SegmentFileName::parse(&name).is_some_and(|named| !named.is_in_place) && !name.ends_with(".tmp");
        match entry.metadata() {
            Ok(metadata) if is_aside && metadata.is_file() => _ = found.insert(name, metadata.len()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(anyhow!(error).context(context())),
        }
    }
    Ok(found)
}

/// `2 files, 1.00 MiB`.
fn sum(files: &Files) -> String {
    if files.is_empty() {
        return "nothing".to_owned();
    }
    format!("{}, {}", counted(files.len() as u64, "file"), HumanBytes(files.values().sum()))
}

struct Listed {
    lines: Vec<String>,
    /// Files that could not be read.
    unread: usize,
}

fn list(folder: &Path, files: &Files) -> Listed {
    let mut listed = Listed { lines: Vec::new(), unread: 0 };
    for (name, size) in files {
        let path = folder.join(name);
        let (state, what) = match scan::read(&path) {
            Ok(bytes) => judge(name, &bytes),
            // Released in the meantime.
            Err(_) if !path.exists() => continue,
            Err(error) => {
                listed.unread += 1;
                ("UNREAD", explain(&error))
            }
        };
        listed.lines.push(format!("{}  {state:<8} {}, {what}", printable(name), counted(*size, "byte")));
    }
    listed
}

/// A word for the file, and what it holds.
fn judge(name: &str, bytes: &[u8]) -> (&'static str, String) {
    match examine(name, bytes) {
        Err(why) => ("DAMAGED", why.to_string()),
        Ok(Content::Unwritten) => ("DAMAGED", "nothing but zeros".to_owned()),
        Ok(Content::Segment(report)) => judge_segment(name, &report),
    }
}

fn judge_segment(name: &str, report: &SegmentReport<'_>) -> (&'static str, String) {
    let shown = describe(report);
    let named = QuarantineName::parse(name).map(|name| (name.segment, name.epoch, name.generation));
    let identity = &report.identity;
    match report.sound() {
        State::Damaged(why) => ("DAMAGED", format!("{why}; {shown}")),
        _ if QuarantineName::parse(name).is_none() => ("aside", shown),
        _ if named != Some((identity.segment, identity.epoch, identity.generation)) => {
            ("DAMAGED", format!("the file name and the header disagree on segment, epoch or generation; {shown}"))
        }
        // A footer that agrees vouches for the end, also where the segment was open.
        State::Open if report.footer.is_none() => ("open", shown),
        State::Closed | State::Open => ("sound", shown),
    }
}

/// The files of these names. An error if one of them is none of the files that may be released.
fn choose(folder: &Path, found: &Files, names: &[String]) -> anyhow::Result<Files> {
    let unknown: Vec<_> =
        names.iter().filter(|name| !found.contains_key(*name)).map(|name| format!("`{name}`")).collect();
    ensure!(
        unknown.is_empty(),
        "not in quarantine in {}: {}. Nothing was released: give names as `tailwind-sidecar quarantine list` prints them, \
         without a folder",
        folder.display(),
        unknown.join(", ")
    );
    Ok(names.iter().filter_map(|name| found.get_key_value(name)).map(|(name, size)| (name.clone(), *size)).collect())
}

struct Released {
    gone: Files,
    result: anyhow::Result<()>,
}

/// Deletes these files, up to the first that cannot be, and brings the folder to disk.
fn release(folder: &Path, files: &Files) -> Released {
    let mut gone = Files::new();
    let mut result = Ok(());
    for (name, size) in files {
        match fs::remove_file(folder.join(name)) {
            Ok(()) => _ = gone.insert(name.clone(), *size),
            // Deleted by another process in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                result = Err(anyhow!(error).context(format!("delete {}", folder.join(name).display())));
                break;
            }
        }
    }
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    let result = result.and(synced.with_context(|| format!("fsync {}", folder.display())));
    Released { gone, result }
}

#[cfg(test)]
mod tests;
