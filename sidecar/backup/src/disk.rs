//! The flush folder: one file for each segment, whole or not at all.
//!
//! Listed at the start by [`start`](crate::start()), written by the [`flusher`](crate::flusher), read by fetches.
//! `segment-N.closed` holds the bytes up to the closure and a footer. `segment-N.open` holds what was on its way when it
//! was written; the scan finds where it ends. Files that are not ours, or not understood, get another name (`….aside`,
//! `….of-log-…`), and so does what no longer belongs to the log (`quarantined-…`): nothing of them is ever written over or
//! deleted here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use tailwind_protocol::backup::Promise;
use tailwind_protocol::ids::{LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Closure, FOOTER_SIZE, Footer, SEGMENT_OVERHEAD, Sealed, SegmentIdentity, SegmentSize};
use tailwind_protocol::scan::{self, Scanner};
use tracing::warn;

use crate::files::{File, Folder, free_name, is_full};
use crate::quarantine::QuarantineName;

/// Where the promise is kept.
pub const PROMISE: &str = "promise";

/// How names of files end that were not understood.
const ASIDE: &str = "aside";

/// The segments in a folder.
#[derive(Debug)]
pub struct Disk {
    folder: Box<dyn Folder>,
    /// Why the last write of a segment failed, until one succeeds.
    trouble: Mutex<Option<String>>,
}

/// What the folder holds of one log.
#[derive(Debug, Default)]
pub struct Listing {
    /// Closed segments. Their footers were read, their bytes were not.
    pub closed: Vec<(SegmentIdentity, Closure)>,
    /// Open segments without a closed sibling.
    pub open: Vec<SegmentIdentity>,
    /// Segments of which a file has the name of an open one's and is not understood, or not of this log. It is still in its
    /// place: what its absence would hide must be remembered before it goes.
    pub not_understood: Vec<SegmentId>,
    /// Files that had a segment's name and are damaged, or not of this log: these, and those that were moved aside.
    pub unexpected: u64,
}

/// The result of rewriting a closed segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rewritten {
    Done,
    /// Its bytes are not what is owed.
    Unsound,
    /// Its bytes are, and the disk is full.
    NoRoom,
}

/// The system's words without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Why a closed segment could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// No such file: it may have been deleted just now.
    Missing,
    /// Its bytes are not what they were.
    Corrupt,
    /// The disk said no.
    Io(io::Error),
}

/// Some files were not deleted, or it is not certain that they will stay deleted.
#[derive(Debug)]
pub struct NotDeleted {
    /// The segments whose files may still be there.
    pub segments: BTreeSet<SegmentId>,
    /// What the disk said last.
    pub error: io::Error,
}

impl Disk {
    /// The segments in this folder.
    pub fn new(folder: Box<dyn Folder>) -> Disk {
        Disk { folder, trouble: Mutex::default() }
    }

    /// Why segments cannot be written at the moment, with the folder: for sidecars that wait for a buffer.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A segment has been written, or could not be.
    pub(crate) fn note(&self, result: &io::Result<()>) {
        let trouble = result.as_ref().err().map(|error| format!("{}: {}", self.path().display(), plain(error)));
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// The folder.
    pub fn folder(&self) -> &dyn Folder {
        &*self.folder
    }

    /// Where it is, for people.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// True when there are segments in the folder, no matter which log they belong to.
    pub fn holds_segments(&self) -> io::Result<bool> {
        Ok(self.folder.names()?.iter().any(|name| FileName::parse(name).is_some()))
    }

    /// Lists what belongs to the promised log, and tidies what a crash left half made. Of `owed` segments a file whose footer
    /// has rotted is still known by its bytes. A file that is not understood is moved aside, now or by
    /// [`Disk::move_aside`]: nothing is ever written over it.
    pub fn list(&self, promise: &Promise, owed: &[(SegmentIdentity, Closure)]) -> io::Result<Listing> {
        let mut listing = Listing::default();
        let mut open = Vec::new();
        let owed: BTreeMap<SegmentId, &(SegmentIdentity, Closure)> =
            owed.iter().map(|owed| (owed.0.segment, owed)).collect();
        for text in self.folder.names()? {
            let Some(name) = FileName::parse(&text) else { continue };
            let path = self.path().join(&text);
            if name.temporary {
                if let Err(error) = self.folder.remove(&text) {
                    listing.unexpected += 1;
                    warn!(path = %path.display(), %error, "partial segment file cannot be removed: left in place");
                }
                continue;
            }
            let why = match (self.examine(&text, name.segment, promise)?, name.sealed) {
                (Ok((identity, Some(closure))), Sealed::Closed) => {
                    listing.closed.push((identity, closure));
                    continue;
                }
                (Ok((identity, _)), Sealed::Open) => {
                    open.push(identity);
                    continue;
                }
                (Ok(_), Sealed::Closed) => match owed.get(&name.segment) {
                    Some((identity, closure)) if self.write_anew(identity, closure)? != Rewritten::Unsound => {
                        listing.closed.push((*identity, *closure));
                        continue;
                    }
                    _ => "it has no sound footer".to_owned(),
                },
                (Err(why), _) => why,
            };
            listing.unexpected += 1;
            if name.sealed == Sealed::Open {
                warn!(path = %path.display(), why, "unexpected segment file");
                listing.not_understood.push(name.segment);
                continue;
            }
            let aside = self.set_aside(&text, &format!("{text}.{ASIDE}"))?;
            warn!(path = %path.display(), why, aside, "unexpected segment file: moved aside");
        }
        for identity in open {
            let name = name(identity.segment, Sealed::Open);
            match listing.closed.iter().find(|(closed, _)| closed.segment == identity.segment) {
                // A crash between the closed file's appearance and the open one's removal; or the folder could not be synced,
                // and a loss of power would take the name: rewritten, it lasts.
                Some((closed, closure)) if *closed == identity => {
                    if self.write_anew(closed, closure)? == Rewritten::NoRoom {
                        // Its name at least.
                        self.folder.sync()?;
                    }
                }
                Some((closed, _)) if closed.epoch > identity.epoch => {
                    self.set_aside(&name, &quarantined(&identity, Sealed::Open))?;
                }
                _ => listing.open.push(identity),
            }
        }
        Ok(listing)
    }

    /// Moves the file that has the name of this open segment aside.
    pub fn move_aside(&self, segment: SegmentId) -> io::Result<()> {
        let name = name(segment, Sealed::Open);
        match self.set_aside(&name, &format!("{name}.{ASIDE}")) {
            Ok(aside) => warn!(path = %self.path().join(name).display(), aside, "unexpected segment file: moved aside"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Rewrites the file of a closed segment, if its bytes are whole. On a full disk the file stays as it is: its bytes are
    /// what is owed, and the next start tries again.
    fn write_anew(&self, identity: &SegmentIdentity, closure: &Closure) -> io::Result<Rewritten> {
        let bytes = match self.read_closed(identity, closure) {
            Ok(bytes) => bytes,
            Err(ReadError::Io(error)) => return Err(error),
            Err(ReadError::Missing | ReadError::Corrupt) => return Ok(Rewritten::Unsound),
        };
        match self.write_closed(identity, closure, &bytes) {
            Ok(()) => Ok(Rewritten::Done),
            Err(error) if is_full(&error) => {
                let (folder, segment) = (self.path().display(), identity.segment);
                warn!(%folder, %segment, %error, "no room to rewrite a segment file: it stays as it is until the next start");
                Ok(Rewritten::NoRoom)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives a file another name, which nothing has yet, and returns it.
    fn set_aside(&self, name: &str, wanted: &str) -> io::Result<String> {
        let free = free_name(&*self.folder, wanted)?;
        self.folder.rename(name, &free)?;
        self.folder.sync()?;
        Ok(free)
    }

    /// Moves a segment's files into quarantine, where they stay until an administrator removes them: even what is not part of
    /// the log may be the last copy of its records. Returns their new names.
    pub fn quarantine(&self, segment: SegmentId, log: LogId) -> io::Result<Vec<String>> {
        let mut moved = Vec::new();
        for sealed in [Sealed::Closed, Sealed::Open] {
            let name = name(segment, sealed);
            match self.read_header(&name) {
                Ok(Some(identity)) if identity.log == log => {
                    moved.push(self.set_aside(&name, &quarantined(&identity, sealed))?);
                }
                Ok(_) => moved.push(self.set_aside(&name, &format!("{name}.{ASIDE}"))?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Writes bytes that end where the closure ends into quarantine. Returns the file's name.
    pub fn write_quarantine(&self, identity: &SegmentIdentity, closure: &Closure, bytes: &[u8]) -> io::Result<String> {
        let temporary = "quarantine.tmp";
        let file = self.folder.create(temporary)?;
        let footer = Footer { sealed: Sealed::Open, closure: *closure }.to_bytes();
        let written = file.write_all_at(0, bytes).and_then(|()| file.write_all_at(bytes.len() as u64, &footer));
        if let Err(error) = written.and_then(|()| file.sync()) {
            let _ = self.folder.remove(temporary);
            return Err(error);
        }
        self.set_aside(temporary, &quarantined(identity, Sealed::Open))
    }

    /// Writes a closed segment and removes its open sibling. `bytes` end where the closure ends.
    pub fn write_closed(&self, identity: &SegmentIdentity, closure: &Closure, bytes: &[u8]) -> io::Result<()> {
        self.write(identity, Sealed::Closed, closure, bytes)?;
        if self.folder.remove_if_present(&name(identity.segment, Sealed::Open))? {
            self.folder.sync()?;
        }
        Ok(())
    }

    /// Writes an open segment as far as it goes.
    pub fn write_open(&self, identity: &SegmentIdentity, closure: &Closure, bytes: &[u8]) -> io::Result<()> {
        self.write(identity, Sealed::Open, closure, bytes)
    }

    fn write(&self, identity: &SegmentIdentity, sealed: Sealed, closure: &Closure, bytes: &[u8]) -> io::Result<()> {
        self.publish(identity, sealed, closure.last, |file| {
            // A full disk says so here, before megabytes are written in vain. Not every file system can.
            match file.allocate((bytes.len() + FOOTER_SIZE) as u64) {
                Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
                _ => {}
            }
            file.write_first(bytes)?;
            file.write_all_at(bytes.len() as u64, &Footer { sealed, closure: *closure }.to_bytes())
        })?;
        Ok(())
    }

    /// Starts the file of an open segment that grows while the segment does.
    pub fn start_open(&self, identity: &SegmentIdentity, bytes: &[u8]) -> io::Result<Box<dyn File>> {
        self.publish(identity, Sealed::Open, Lsn(0), |file| file.write_all_at(0, bytes))
    }

    /// Write, sync, rename, sync of the folder: at every moment the name stands for a whole file, or for none.
    fn publish(
        &self,
        identity: &SegmentIdentity,
        sealed: Sealed,
        last: Lsn,
        fill: impl FnOnce(&dyn File) -> io::Result<()>,
    ) -> io::Result<Box<dyn File>> {
        let name = FileName { segment: identity.segment, sealed, temporary: false };
        let temporary = FileName { temporary: true, ..name }.to_string();
        let name = name.to_string();
        let file = self.folder.create(&temporary)?;
        if let Err(error) = fill(&*file).and_then(|()| file.sync()) {
            // A half-made file would hold the space that the next attempt needs.
            let _ = self.folder.remove(&temporary);
            return Err(error);
        }
        self.keep_what_is_there(&name, identity, last)?;
        self.folder.rename(&temporary, &name)?;
        self.folder.sync()?;
        Ok(file)
    }

    /// Nothing is written over but a file of the same opening that holds no more.
    fn keep_what_is_there(&self, name: &str, identity: &SegmentIdentity, last: Lsn) -> io::Result<()> {
        let file = match self.folder.open(name) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) => None,
        };
        let found = file.as_ref().and_then(|file| read_header(&**file).ok().flatten());
        let closure = || file.as_ref().and_then(|file| read_footer(&**file, file.length().ok()?).ok().flatten());
        let aside = match found {
            Some(found) if found == *identity && closure().is_none_or(|footer| footer.closure.last <= last) => {
                return Ok(());
            }
            Some(found) if found.log != identity.log => format!("{name}.of-log-{}", found.log),
            Some(found) => quarantined(&found, if name.ends_with("open") { Sealed::Open } else { Sealed::Closed }),
            None => format!("{name}.{ASIDE}"),
        };
        let aside = self.set_aside(name, &aside)?;
        warn!(path = %self.path().join(name).display(), aside, "another file has this name: moved aside");
        Ok(())
    }

    /// True when this very segment is on disk as a whole.
    pub fn is_closed(&self, identity: &SegmentIdentity) -> bool {
        let found = self.read_header(&name(identity.segment, Sealed::Closed));
        matches!(found, Ok(Some(found)) if found == *identity)
    }

    /// Reads a closed segment and checks every byte.
    pub fn read_closed(&self, identity: &SegmentIdentity, closure: &Closure) -> Result<Vec<u8>, ReadError> {
        let file = self.open_closed(identity.segment)?;
        let mut bytes = vec![0; closure.end.0 as usize];
        match file.read_exact_at(0, &mut bytes) {
            Ok(()) if scan::verify(&bytes, identity, closure) => Ok(bytes),
            Ok(()) => Err(ReadError::Corrupt),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ReadError::Corrupt),
            Err(error) => Err(ReadError::Io(error)),
        }
    }

    /// The file of a closed segment, which is read as a whole.
    pub fn open_closed(&self, segment: SegmentId) -> Result<Box<dyn File>, ReadError> {
        let file = self.find_closed(segment)?;
        file.will_be_read();
        Ok(file)
    }

    /// The same, of which nothing need be read.
    pub(crate) fn find_closed(&self, segment: SegmentId) -> Result<Box<dyn File>, ReadError> {
        self.folder.open(&name(segment, Sealed::Closed)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ReadError::Missing,
            _ => ReadError::Io(error),
        })
    }

    /// True when a closed segment's file ends with the footer that says so.
    pub fn has_footer(&self, segment: SegmentId, closure: &Closure) -> Result<bool, ReadError> {
        let file = self.find_closed(segment)?;
        let footer = file.length().and_then(|length| read_footer(&*file, length)).map_err(ReadError::Io)?;
        Ok(footer == Some(Footer { sealed: Sealed::Closed, closure: *closure }))
    }

    /// Has the next read of a closed segment come from the disk.
    pub fn forget_cached(&self, segment: SegmentId) {
        if let Ok(file) = self.folder.open(&name(segment, Sealed::Closed)) {
            file.forget_cached();
        }
    }

    /// Reads an open segment: everything that may be part of it. What is valid of it is for the scan to find.
    pub fn read_open(&self, identity: &SegmentIdentity) -> io::Result<Vec<u8>> {
        let file = self.folder.open(&name(identity.segment, Sealed::Open))?;
        let size = u64::from(SegmentSize::bytes(identity.size));
        let length = file.length()?;
        let end = match read_footer(&*file, length)? {
            Some(footer) => u64::from(footer.closure.end.0),
            None => length.min(size),
        };
        let mut bytes = vec![0; end as usize];
        file.read_exact_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Up to where the file of an open segment is sound; 0 if there is none.
    pub fn open_end(&self, identity: &SegmentIdentity) -> io::Result<Offset> {
        match self.read_open(identity) {
            Ok(bytes) => Ok(scan::scan(&bytes, identity).closure.end),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Offset(0)),
            Err(error) => Err(error),
        }
    }

    /// Deletes the files of segments, if they are of this log, and brings that to disk with one sync. Where one cannot be
    /// deleted, or read, the others go all the same.
    pub fn delete(&self, segments: &[SegmentId], log: LogId) -> Result<(), NotDeleted> {
        let (mut deleted, mut left, mut result) = (false, BTreeSet::new(), Ok(()));
        let files = |segment: &SegmentId| [(*segment, Sealed::Closed), (*segment, Sealed::Open)];
        for (segment, sealed) in segments.iter().flat_map(files) {
            let name = name(segment, sealed);
            let removed = match self.read_header(&name) {
                Ok(Some(found)) if found.log == log && found.segment == segment => self.folder.remove_if_present(&name),
                Ok(_) => continue,
                Err(error) if is_no_file_of_ours(&error) || error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => Err(error),
            };
            match removed {
                Ok(removed) => deleted |= removed,
                Err(error) => {
                    left.insert(segment);
                    result = Err(error);
                }
            }
        }
        // After a sync that failed they are gone from the folder, and what comes back by a loss of power is found at a start.
        let synced = if deleted { self.folder.sync() } else { Ok(()) };
        synced.and(result).map_err(|error| NotDeleted { segments: left, error })
    }

    /// Deletes the file of an open segment.
    pub fn delete_open(&self, segment: SegmentId) -> io::Result<()> {
        self.folder.remove_if_present(&name(segment, Sealed::Open))?;
        self.folder.sync()
    }

    /// Looks at both ends of a segment file. The closure is there when a sound footer of a closed segment is. A read that
    /// fails says nothing about the file, so nothing may be concluded from it: it is an error.
    fn examine(
        &self,
        name: &str,
        segment: SegmentId,
        promise: &Promise,
    ) -> io::Result<Result<(SegmentIdentity, Option<Closure>), String>> {
        let file = match self.folder.open(name) {
            Ok(file) => file,
            Err(error) if is_no_file_of_ours(&error) => return Ok(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        let Some(identity) = read_header(&*file)? else {
            return Ok(Err("it does not begin like a segment".to_owned()));
        };
        if identity.segment != segment {
            return Ok(Err(format!("it holds segment {}", identity.segment)));
        }
        if Some(identity.log) != promise.log {
            return Ok(Err(format!("it belongs to log {}", identity.log)));
        }
        let footer = read_footer(&*file, file.length()?)?;
        let closed = footer.filter(|footer| footer.sealed == Sealed::Closed && footer.closure.fits(identity.size));
        Ok(Ok((identity, closed.map(|footer| footer.closure))))
    }

    /// The identity in a file's first bytes. `None`: they are no segment header.
    fn read_header(&self, name: &str) -> io::Result<Option<SegmentIdentity>> {
        read_header(&*self.folder.open(name)?)
    }
}

/// The name of a segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileName {
    /// The segment in it.
    pub segment: SegmentId,
    /// How it came to its end.
    pub sealed: Sealed,
    /// It is being made.
    pub temporary: bool,
}

impl FileName {
    /// Reads a name; `None`: it is not of ours.
    pub fn parse(text: &str) -> Option<FileName> {
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
        let name = FileName { segment: SegmentId(number.parse().ok()?), sealed, temporary };
        (name.to_string() == text).then_some(name)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.sealed {
            Sealed::Closed => "closed",
            Sealed::Open => "open",
        };
        let temporary = if self.temporary { ".tmp" } else { "" };
        write!(f, "segment-{:016}.{kind}{temporary}", self.segment.0)
    }
}

/// The name of a segment in quarantine.
fn quarantined(identity: &SegmentIdentity, sealed: Sealed) -> String {
    QuarantineName::new(identity, sealed).to_string()
}

fn name(segment: SegmentId, sealed: Sealed) -> String {
    FileName { segment, sealed, temporary: false }.to_string()
}

/// No error of the system: what is there is no regular file of this user. A link is not followed.
fn is_no_file_of_ours(error: &io::Error) -> bool {
    error.raw_os_error().is_none_or(|errno| errno == Errno::LOOP.raw_os_error())
}

fn read_header(file: &dyn File) -> io::Result<Option<SegmentIdentity>> {
    let mut begin = [0; SEGMENT_OVERHEAD];
    match file.read_exact_at(0, &mut begin) {
        // Where a bit of an identity has flipped it is another one: only the entry behind it vouches for it.
        Ok(()) => {
            let header = begin.first_chunk().and_then(SegmentIdentity::from_header);
            Ok(header.map(|(identity, _)| identity).filter(|identity| Scanner::new(&begin, identity).is_ok()))
        }
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// The footer, if the file ends with one that fits its length.
fn read_footer(file: &dyn File, length: u64) -> io::Result<Option<Footer>> {
    let Some(at) = length.checked_sub(FOOTER_SIZE as u64) else { return Ok(None) };
    let mut footer = [0; FOOTER_SIZE];
    file.read_exact_at(at, &mut footer)?;
    Ok(Footer::from_bytes(&footer).filter(|footer| u64::from(footer.closure.end.0) == at))
}

#[cfg(test)]
mod tests;
