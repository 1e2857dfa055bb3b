//! `scan`: what files and whole folders of the log hold, told from their bytes alone.
//!
//! [`examine`](mod@examine) finds out about one file and [`folder`] about many, without I/O; this file reads and prints.
//! Needs no process of the group, and harms none: a buffer that is being written is read as it is at the moment.

pub mod examine;
pub mod folder;

use std::fmt;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use indicatif::{HumanBytes, HumanCount};
use rustix::fs::OFlags;
use tailwind_backup::disk::PROMISE;
use tailwind_backup::flushed::FLUSHED;
use tailwind_backup::ledger::LEDGER;
use tailwind_backup::quarantine;
use tailwind_backup::table::TABLE;
use tailwind_protocol::layout::{Footer, readable_size};
use tailwind_runtime::ensure_usage;
use tailwind_runtime::logging::explain;

use super::framing::{OutputFraming, RecordWriter};
use super::{Output, counted, tell};
use examine::{Content, SegmentFileName, SegmentReport, State, examine};
use folder::Folder;

/// Largest file read: the largest segment, 64 MiB, and behind it a footer, or a flag page that on hugetlbfs takes 2 MiB.
const FILE_SIZE_MAX: u64 = (64 + 2) << 20;
/// Bytes of a payload shown in the list of records.
const SHOWN_SIZE: usize = 32;

/// Show what a backup's buffers and segment files hold; needs no running process of the group.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  A backup's flush folder:\n    tailwind-sidecar scan /var/lib/tailwind/orders/b0\n  \
                  The records of one segment:\n    tailwind-sidecar scan --records segment-0000000000000007.closed\n\n\
                  Exit codes: 0 if all is sound; 1 if a file or folder is damaged, has a gap or cannot be scanned; \
                  2 if the command line is invalid"
)]
pub struct ScanOptions {
    /// Buffers of a pool (slot-NNNN.buf), files of a flush folder (segment-N.closed, segment-N.open), or a whole flush
    /// folder: a line for each file, then gaps and a summary
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// List the records as well: LSN, offset, length, CRC-32 and first bytes
    #[arg(long)]
    records: bool,
    /// Write the records' payloads to standard output, and the report to standard error; append accepts framing length
    #[arg(long, value_enum, value_name = "FRAMING", conflicts_with = "records")]
    payloads: Option<OutputFraming>,
}

/// Scans each file and folder. An error, once all have been scanned, if one of them could not be, or is damaged.
pub fn run(options: &ScanOptions) -> anyhow::Result<()> {
    // Before anything is written.
    for path in options.paths.iter().filter(|_| options.payloads.is_some()) {
        ensure_usage!(
            !path.is_dir(),
            "{}: --payloads takes files, because a folder may hold several copies of a segment",
            path.display()
        );
    }
    let mut bad = 0;
    for (place, path) in options.paths.iter().enumerate() {
        let gap = if place > 0 { "\n" } else { "" };
        let scanned = if path.is_dir() { scan_folder(options, path, gap) } else { scan(options, path, gap) };
        match scanned {
            Ok(true) => {}
            Ok(false) => bad += 1,
            Err(error) => {
                bad += 1;
                tell(format_args!("scan: {}: {}", path.display(), explain(&error)));
            }
        }
    }
    if bad > 0 {
        bail!("{bad} of {} could not be scanned or are damaged", options.paths.len());
    }
    Ok(())
}

/// Scans one file. False: it is damaged.
fn scan(options: &ScanOptions, path: &Path, gap: &str) -> anyhow::Result<bool> {
    let bytes = read(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let content = examine(&name, &bytes)?;
    let mut out = BufWriter::new(Output::lock());
    let write_failed = "write to standard output";
    match options.payloads {
        None => writeln!(out, "{gap}{}: {content}", path.display()).context(write_failed)?,
        Some(_) => tell(format_args!("{gap}{}: {content}", path.display())),
    }
    let Content::Segment(report) = &content else { return Ok(true) };
    if let Some(framing) = options.payloads {
        let mut writer = RecordWriter::new(&mut out, framing, false);
        report.records().try_for_each(|record| writer.write(record.lsn, record.payload)).context(write_failed)?;
    }
    if options.records && report.count() > 0 {
        list(&mut out, report).context(write_failed)?;
    }
    out.flush().context(write_failed)?;
    Ok(!matches!(report.sound(), State::Damaged(_)))
}

/// Scans all files of a folder, by name. False: something is damaged or missing.
fn scan_folder(options: &ScanOptions, path: &Path, gap: &str) -> anyhow::Result<bool> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(path).context("list the folder")? {
        paths.push(entry.context("list the folder")?.path());
    }
    paths.sort_unstable();
    let mut out = BufWriter::new(Output::lock());
    let write_failed = "write to standard output";
    writeln!(out, "{gap}{}:", path.display()).context(write_failed)?;
    let mut folder = Folder::default();
    for path in paths {
        scan_member(&mut folder, &path, options.records, &mut out).context(write_failed)?;
    }
    let verdict = folder.verdict();
    if let Some(verdict) = &verdict {
        writeln!(out, "\n{verdict}").context(write_failed)?;
    }
    out.flush().context(write_failed)?;
    Ok(verdict.context("the folder holds neither segment files nor buffers")?.is_sound())
}

/// Scans what lies in a folder, and writes its line; with `records` those of a segment as well.
fn scan_member(folder: &mut Folder, path: &Path, records: bool, out: &mut impl Write) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_buffer = name.starts_with("slot-") && name.ends_with(".buf");
    let is_quarantined = name.starts_with(quarantine::PREFIX);
    if SegmentFileName::parse(&name).is_none() && !is_buffer && !is_quarantined {
        let what = match own_file(&name) {
            Some(what) => what,
            None if path.is_dir() => "a folder: scan it by itself",
            None => "neither a segment file nor a buffer, and no other file of a backup",
        };
        return writeln!(out, "  {}", folder.add_other(&name, what));
    }
    if name.ends_with(".tmp") {
        return writeln!(out, "  {}", folder.add_other(&name, "on its way to the disk, or left half made by a crash"));
    }
    let bytes = match read(path) {
        Ok(bytes) => bytes,
        Err(why) => return writeln!(out, "  {}", folder.add_bad(&name, &explain(&why))),
    };
    match examine(&name, &bytes) {
        Err(why) => writeln!(out, "  {}", folder.add_bad(&name, &why.to_string())),
        Ok(content) => {
            writeln!(out, "  {}", folder.add(&name, &content))?;
            match &content {
                Content::Segment(report) if records => list(out, report).and_then(|()| writeln!(out)),
                _ => Ok(()),
            }
        }
    }
}

/// What a file of a backup is that holds no segment. A scan does not judge it: the backup does, when it starts.
fn own_file(name: &str) -> Option<&'static str> {
    Some(match name.trim_end_matches(".tmp") {
        PROMISE => "what the backup has promised: name, log, epoch, trims",
        LEDGER => "the ledger of the segments that the backup owes, and of the open ones that have a file",
        FLUSHED => "notes of how far open segments are on this disk",
        TABLE => "the table of what each buffer is lent for",
        "lock" => "held by the backup that uses this folder",
        other if other.ends_with(".unreadable") => "a ledger or notes that could not be read: set aside by the backup",
        _ => return None,
    })
}

/// The bytes of a regular file. Nothing else is opened: opening a FIFO waits for a writer, and a device may have side effects.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    check_kind(path.metadata().context("find the file")?.file_type())?;
    // It may be another one by now: looked at again, and never waited for.
    let nonblock = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path).context("open the file")?;
    let metadata = file.metadata().context("read the file's metadata")?;
    check_kind(metadata.file_type())?;
    let size = metadata.len();
    ensure!(
        size <= FILE_SIZE_MAX,
        "{} is more than any buffer or segment file has: not one of them",
        readable_size(size)
    );
    let mut bytes = Vec::with_capacity(size as usize);
    File::take(file, FILE_SIZE_MAX).read_to_end(&mut bytes).context("read the file")?;
    Ok(bytes)
}

fn check_kind(found: FileType) -> anyhow::Result<()> {
    let what = match found {
        _ if found.is_file() => return Ok(()),
        _ if found.is_dir() => "a folder",
        _ if found.is_fifo() => "a FIFO",
        _ if found.is_socket() => "a socket",
        _ => "a device",
    };
    bail!("{what}, not a regular file: give slot-NNNN.buf, segment-N.closed, segment-N.open or their folder")
}

fn list(out: &mut impl Write, report: &SegmentReport<'_>) -> io::Result<()> {
    writeln!(out, "\n{:>12}  {:>9}  {:>8}  CRC       PAYLOAD", "LSN", "OFFSET", "LENGTH")?;
    for record in report.records() {
        let (lsn, offset, length, crc) = (record.lsn.0, record.offset.0, record.payload.len(), record.crc);
        let shown = record.payload[..length.min(SHOWN_SIZE)].escape_ascii();
        let more = if length > SHOWN_SIZE { "…" } else { "" };
        writeln!(out, "{lsn:>12}  {offset:>9}  {length:>8}  {crc:08x}  {shown}{more}")?;
    }
    Ok(())
}

impl fmt::Display for Content<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Unwritten => f.write_str("a buffer without a byte in it: not lent, or nothing has arrived yet"),
            Content::Segment(report) => report.fmt(f),
        }
    }
}

impl fmt::Display for SegmentReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (identity, closure) = (&self.identity, &self.closure);
        writeln!(f, "{}", self.kind)?;
        writeln!(f, "  log       {}", identity.log)?;
        let (segment, epoch, generation) = (identity.segment, identity.epoch, identity.generation.0);
        writeln!(f, "  segment   {segment}, epoch {epoch}, generation {generation:016x}, {}", identity.size)?;
        match self.count() {
            0 => writeln!(f, "  records   none; the first is to be LSN {}", self.first)?,
            count => {
                let (appends, size) = (counted(self.appends, "append"), HumanBytes(self.payload_size));
                let (first, last) = (closure.first, closure.last);
                writeln!(f, "  records   {} in {appends}, LSN {first} to {last}", HumanCount(count))?;
                writeln!(f, "  payload   {size} ({})", counted(self.payload_size, "byte"))?;
            }
        }
        let (end, size, chain) = (closure.end, self.log.len(), closure.chain.0);
        writeln!(f, "  valid     {end} of {size} bytes, chain {chain:08x}")?;
        writeln!(f, "  stopped   at offset {}: {}", self.stop.at, self.why_stopped())?;
        match &self.tail {
            None => writeln!(f, "  tail      nothing behind the valid bytes")?,
            Some(tail) => {
                let bytes = counted(tail.bytes, "non-zero byte");
                let (first, last) = (tail.first, tail.last);
                writeln!(f, "  tail      {bytes} that the scan does not accept, from offset {first} to {last}")?;
            }
        }
        match self.footer {
            None => writeln!(f, "  footer    none")?,
            Some(footer) if footer.closure == *closure => {
                writeln!(f, "  footer    {}; agrees with the scan", self.footer_kind())?
            }
            Some(Footer { closure: claimed, .. }) => {
                let (first, last, end, chain) = (claimed.first, claimed.last, claimed.end, claimed.chain.0);
                write!(f, "  footer    {}; disagrees with the scan: ", self.footer_kind())?;
                writeln!(f, "it claims LSN {first} to {last}, {end} bytes, chain {chain:08x}")?;
            }
        }
        write!(f, "  verdict   {}", self.sound())
    }
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, SegmentId};
    use tailwind_protocol::layout::{Sealed, SegmentIdentity, SegmentSize};
    use tailwind_protocol::segment::SegmentWriter;

    use super::*;

    fn segment(records: &[&[u8]]) -> Vec<u8> {
        let (log, epoch, size) = (LogId(7), Epoch(3), SegmentSize::MIN);
        let identity = SegmentIdentity { log, segment: SegmentId(1), epoch, generation: Generation(1), size };
        let mut bytes = vec![0; size.bytes() as usize];
        let (mut writer, mut end) = SegmentWriter::open(identity, Lsn(1), &mut bytes);
        for record in records {
            end += writer.append(&mut bytes[end as usize..], [*record].into_iter());
        }
        bytes.truncate(end as usize);
        bytes.extend_from_slice(&Footer { sealed: Sealed::Closed, closure: writer.closure() }.to_bytes());
        bytes
    }

    fn scanned(files: &[(&str, Vec<u8>)], records: bool) -> String {
        let dir = tempfile::tempdir().unwrap();
        let (mut folder, mut out) = (Folder::default(), Vec::new());
        for (name, bytes) in files {
            fs::write(dir.path().join(name), bytes).unwrap();
            scan_member(&mut folder, &dir.path().join(name), records, &mut out).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_backups_own_files_are_known() {
        let names = [PROMISE, LEDGER, FLUSHED, "lock", TABLE, "ledger.tmp", "ledger.unreadable"];
        let text = scanned(&names.map(|name| (name, b"of ours".to_vec())), false);
        assert!(!text.contains("neither"), "{text}");
        assert!(text.contains("the ledger of the segments"), "{text}");
        let text = scanned(&[("notes.txt", b"of somebody else".to_vec())], false);
        assert!(text.contains("neither a segment file nor a buffer"), "{text}");
    }

    #[test]
    fn records_of_a_folder_are_listed_by_file() {
        let name = "segment-0000000000000001.closed";
        let files = [(PROMISE, b"of ours".to_vec()), (name, segment(&[b"first", b"second"]))];
        let text = scanned(&files, true);
        let (before, after) = text.split_once(name).unwrap();
        assert!(!before.contains("first") && after.contains("first") && after.contains("second"), "{text}");
        assert!(!scanned(&files, false).contains("second"));
    }
}
