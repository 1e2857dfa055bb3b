//! The flush folder: one file for each segment, whole or not at all.
//!
//! Listed at the start by [`wake`](super::wake), written by the [`flusher`](super::flusher), read by
//! [`routes`](super::routes). `segment-N.closed` holds the bytes up to the closure and a footer. `segment-N.open` holds
//! what was on its way when it was written; the scan finds where it ends. Files that are not ours are left alone.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tailwind_protocol::backup::Promise;
use tailwind_protocol::ids::{LogId, SegmentId};
use tailwind_protocol::layout::{
    Closure, FOOTER_SIZE, Footer, SEGMENT_HEADER_SIZE, Sealed, SegmentIdentity, SegmentSize,
};
use tailwind_protocol::scan;
use tracing::warn;

/// Most bytes and time spent on measuring how fast the folder takes data in.
const MEASURE_SIZE_MAX: usize = 32 << 20;
const MEASURE_TIME: Duration = Duration::from_millis(300);
const MEASURE_PIECE: usize = 4 << 20;

/// The folder, locked against other daemons for as long as this lives.
#[derive(Debug)]
pub(super) struct Disk {
    dir: PathBuf,
    _lock: File,
}

/// What the folder holds of one log.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Closed segments. Their footers were read, their bytes were not.
    pub(super) closed: Vec<(SegmentIdentity, Closure)>,
    /// Open segments without a closed sibling.
    pub(super) open: Vec<SegmentIdentity>,
    /// Segment files that are damaged or not of this log; left alone.
    pub(super) strange: u64,
}

/// Why a closed segment could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// No such file: it may have been deleted just now.
    Missing,
    /// Its bytes are not what they were.
    Corrupt,
    /// The disk said no.
    Io(io::Error),
}

impl Disk {
    /// Opens the folder, which is made if need be, and makes sure that it can be written.
    pub(super) fn open(dir: &Path) -> anyhow::Result<Disk> {
        let shown = dir.display();
        DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(|| {
            format!("create flush folder {shown}: give --flush-dir a folder that this user may create or write")
        })?;
        let unwritable =
            || format!("write to flush folder {shown}: give --flush-dir a folder that this user may write");
        let lock = private().create(true).open(dir.join("lock")).with_context(unwritable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "flush folder {shown} is in use by another backup daemon: stop that first, or give this one a --flush-dir \
                 of its own"
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("lock flush folder {shown}"));
            }
        }
        fsync_folder(dir).with_context(unwritable)?;
        Ok(Disk { dir: dir.to_owned(), _lock: lock })
    }

    /// Where the promise is kept.
    pub(super) fn promise_path(&self) -> PathBuf {
        self.dir.join("promise")
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    /// Bytes a second, measured with a short write that is brought to disk piece by piece.
    pub(super) fn measure_bandwidth(&self) -> anyhow::Result<u64> {
        let path = self.dir.join("bandwidth.tmp");
        let measured = self.measure(&path).with_context(|| format!("measure the bandwidth of {}", self.dir.display()));
        let _ = fs::remove_file(&path);
        measured
    }

    fn measure(&self, path: &Path) -> io::Result<u64> {
        let piece: Vec<u8> = (0..MEASURE_PIECE).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        let mut file = private().create(true).truncate(true).open(path)?;
        let start = Instant::now();
        let mut written = 0;
        while written < MEASURE_SIZE_MAX && (written == 0 || start.elapsed() < MEASURE_TIME) {
            file.write_all(&piece)?;
            file.sync_data()?;
            written += piece.len();
        }
        Ok((written as f64 / start.elapsed().as_secs_f64().max(1e-9)) as u64)
    }

    /// True when there are segments in the folder, whoever they belong to.
    pub(super) fn holds_segments(&self) -> io::Result<bool> {
        for entry in fs::read_dir(&self.dir)? {
            if entry?.file_name().to_str().and_then(Name::parse).is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lists what belongs to the promised log, and tidies what a crash left half made.
    pub(super) fn list(&self, promise: &Promise) -> io::Result<Listing> {
        let mut listing = Listing::default();
        let mut open = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| Name::parse(name.to_str()?)) else { continue };
            if name.temporary {
                fs::remove_file(&path)?;
                continue;
            }
            match (examine(&path, name.segment, promise), name.sealed) {
                (Ok((identity, Some(closure))), Sealed::Closed) => listing.closed.push((identity, closure)),
                (Ok(_), Sealed::Closed) => {
                    listing.strange += 1;
                    warn!(path = %path.display(), "segment file has no sound footer: left alone");
                }
                (Ok((identity, _)), Sealed::Open) => open.push(identity),
                (Err(why), _) => {
                    listing.strange += 1;
                    warn!(path = %path.display(), why, "strange segment file: left alone");
                }
            }
        }
        for identity in open {
            // A crash between the closed file's appearance and the open one's removal.
            match listing.closed.iter().any(|(closed, _)| closed.segment == identity.segment) {
                true => fs::remove_file(self.file(identity.segment, Sealed::Open))?,
                false => listing.open.push(identity),
            }
        }
        Ok(listing)
    }

    /// Writes a closed segment and removes its open sibling. `bytes` end where the closure ends.
    pub(super) fn write_closed(&self, identity: &SegmentIdentity, closure: &Closure, bytes: &[u8]) -> io::Result<()> {
        self.write(identity, Sealed::Closed, closure, bytes)?;
        if remove_if_present(&self.file(identity.segment, Sealed::Open))? {
            fsync(&self.dir)?;
        }
        Ok(())
    }

    /// Writes an open segment as far as it goes.
    pub(super) fn write_open(&self, identity: &SegmentIdentity, closure: &Closure, bytes: &[u8]) -> io::Result<()> {
        self.write(identity, Sealed::Open, closure, bytes)
    }

    fn write(&self, identity: &SegmentIdentity, sealed: Sealed, closure: &Closure, bytes: &[u8]) -> io::Result<()> {
        self.publish(identity, sealed, |file| {
            // A full disk says so here, before megabytes are written in vain. Not every file system can.
            match fallocate(file, FallocateFlags::empty(), 0, (bytes.len() + FOOTER_SIZE) as u64) {
                Err(errno) if errno != Errno::OPNOTSUPP => return Err(errno.into()),
                _ => {}
            }
            file.write_all_at(bytes, 0)?;
            file.write_all_at(&Footer { sealed, closure: *closure }.to_bytes(), bytes.len() as u64)
        })?;
        Ok(())
    }

    /// Starts the file of an open segment that grows while the segment does.
    pub(super) fn start_open(&self, identity: &SegmentIdentity, bytes: &[u8]) -> io::Result<File> {
        self.publish(identity, Sealed::Open, |file| file.write_all_at(bytes, 0))
    }

    /// Write, fsync, rename, fsync of the folder: at every moment the name stands for a whole file, or for none.
    fn publish(
        &self,
        identity: &SegmentIdentity,
        sealed: Sealed,
        fill: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<File> {
        let path = self.file(identity.segment, sealed);
        let temporary = path.with_added_extension("tmp");
        let file = private().create(true).truncate(true).open(&temporary)?;
        if let Err(error) = fill(&file).and_then(|()| file.sync_all()) {
            // A half-made file would hold the space that the next attempt needs.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        self.set_aside_foreign(&path, identity.log)?;
        fs::rename(&temporary, &path)?;
        fsync(&self.dir)?;
        Ok(file)
    }

    /// A file of another log in our way belongs to somebody: it gets another name.
    fn set_aside_foreign(&self, path: &Path, log: LogId) -> io::Result<()> {
        match read_header(path) {
            Ok(Some(found)) if found.log != log => {
                let aside = path.with_added_extension(format!("of-log-{}", found.log));
                warn!(path = %path.display(), aside = %aside.display(), "file of another log: renamed");
                fs::rename(path, aside)
            }
            _ => Ok(()),
        }
    }

    /// True when this very segment is on disk as a whole.
    pub(super) fn is_closed(&self, identity: &SegmentIdentity) -> bool {
        let found = read_header(&self.file(identity.segment, Sealed::Closed));
        matches!(found, Ok(Some(found)) if found == *identity)
    }

    /// Reads a closed segment and checks every byte.
    pub(super) fn read_closed(&self, identity: &SegmentIdentity, closure: &Closure) -> Result<Vec<u8>, ReadError> {
        let path = self.file(identity.segment, Sealed::Closed);
        let mut file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ReadError::Missing,
            _ => ReadError::Io(error),
        })?;
        let mut bytes = vec![0; closure.end.0 as usize];
        match file.read_exact(&mut bytes) {
            Ok(()) if scan::verify(&bytes, identity, closure) => Ok(bytes),
            Ok(()) => Err(ReadError::Corrupt),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ReadError::Corrupt),
            Err(error) => Err(ReadError::Io(error)),
        }
    }

    /// Reads an open segment: everything that may be part of it. What is valid of it is for the scan to find.
    pub(super) fn read_open(&self, identity: &SegmentIdentity) -> io::Result<Vec<u8>> {
        let file = File::open(self.file(identity.segment, Sealed::Open))?;
        let size = u64::from(SegmentSize::bytes(identity.size));
        let length = file.metadata()?.len();
        let end = match read_footer(&file, length)? {
            Some(footer) => u64::from(footer.closure.end.0),
            None => length.min(size),
        };
        let mut bytes = vec![0; end as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Deletes a segment's files, if they are of this log.
    pub(super) fn delete(&self, segment: SegmentId, log: LogId) -> io::Result<()> {
        let mut deleted = false;
        for sealed in [Sealed::Closed, Sealed::Open] {
            let path = self.file(segment, sealed);
            let ours = matches!(read_header(&path), Ok(Some(found)) if found.log == log && found.segment == segment);
            deleted |= ours && remove_if_present(&path)?;
        }
        if deleted { fsync(&self.dir) } else { Ok(()) }
    }

    /// Deletes the file of an open segment.
    pub(super) fn delete_open(&self, segment: SegmentId) -> io::Result<()> {
        remove_if_present(&self.file(segment, Sealed::Open))?;
        fsync(&self.dir)
    }

    fn file(&self, segment: SegmentId, sealed: Sealed) -> PathBuf {
        self.dir.join(Name { segment, sealed, temporary: false }.to_string())
    }
}

/// The name of a segment's file.
struct Name {
    segment: SegmentId,
    sealed: Sealed,
    temporary: bool,
}

impl Name {
    fn parse(text: &str) -> Option<Name> {
        let (stem, temporary) = match text.strip_suffix(".tmp") {
            Some(stem) => (stem, true),
            None => (text, false),
        };
        let (number, kind) = stem.strip_prefix("segment-")?.split_once('.')?;
        let sealed = match kind {
            "closed" => Sealed::Closed,
            "open" => Sealed::Open,
            _ => return None,
        };
        let name = Name { segment: SegmentId(number.parse().ok()?), sealed, temporary };
        (name.to_string() == text).then_some(name)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.sealed {
            Sealed::Closed => "closed",
            Sealed::Open => "open",
        };
        let temporary = if self.temporary { ".tmp" } else { "" };
        write!(f, "segment-{:016}.{kind}{temporary}", self.segment.0)
    }
}

/// Looks at both ends of a segment file. The closure is there when a sound footer of a closed segment is.
fn examine(path: &Path, segment: SegmentId, promise: &Promise) -> Result<(SegmentIdentity, Option<Closure>), String> {
    let io_error = |error: io::Error| error.to_string();
    let identity = read_header(path).map_err(io_error)?.ok_or("it does not begin like a segment")?;
    if identity.segment != segment {
        return Err(format!("it holds segment {}", identity.segment));
    }
    if Some(identity.log) != promise.log {
        return Err(format!("it belongs to log {}", identity.log));
    }
    if identity.epoch > promise.epoch {
        return Err(format!("it is of epoch {}, this backup has promised {} only", identity.epoch, promise.epoch));
    }
    let file = File::open(path).map_err(io_error)?;
    let length = file.metadata().map_err(io_error)?.len();
    let footer = read_footer(&file, length).map_err(io_error)?;
    let closed =
        footer.filter(|footer| footer.sealed == Sealed::Closed && footer.closure.end.0 <= identity.size.bytes());
    Ok((identity, closed.map(|footer| footer.closure)))
}

/// The identity in a file's first bytes. `None`: they are no segment header.
fn read_header(path: &Path) -> io::Result<Option<SegmentIdentity>> {
    let mut header = [0; SEGMENT_HEADER_SIZE];
    match File::open(path)?.read_exact(&mut header) {
        Ok(()) => Ok(SegmentIdentity::from_header(&header).map(|(identity, _)| identity)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// The footer, if the file ends with one that fits its length.
fn read_footer(file: &File, length: u64) -> io::Result<Option<Footer>> {
    let Some(at) = length.checked_sub(FOOTER_SIZE as u64) else { return Ok(None) };
    let mut footer = [0; FOOTER_SIZE];
    file.read_exact_at(&mut footer, at)?;
    Ok(Footer::from_bytes(&footer).filter(|footer| u64::from(footer.closure.end.0) == at))
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

fn remove_if_present(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn fsync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Brings a change of names in the folder of `path` to disk.
pub(super) fn fsync_folder(path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => fsync(parent),
        None => fsync(Path::new(".")),
    }
}

#[cfg(test)]
mod tests;
