//! The ledger: which closed segments this backup owes, and which open ones have files, so that a file that is gone is missed.
//!
//! Read at the start by [`start`](crate::start()), written by the [`daemon`](crate::daemon) before a close or the first flush of
//! an open segment is answered and before a file goes. The high-water mark of what must be here (S12).
//!
//! # Bytes
//! A header and then entries, 128 bytes each, four to a sector, so that none is ever torn. All integers are little-endian.
//! ```text
//! header: "TWLEDGER" (8)  format version (4)  zeros  CRC-32 of all before (4)
//! entry:  `O` owed, `F` open and with a file, or `S` settled (1)  zeros to 8  sequence (8)  log (16)  segment (8)  epoch (8)
//!         generation (8)  size (4)  end (4)  chain (4)  zeros to 72  first LSN (8)  last LSN (8)  sequence of the notes (8)
//!         zeros  CRC-32 of all before (4)
//! ```
//! For an open segment only the end is known: at least up to there its file is sound.
//!
//! Entries are added behind the last one, into space that was allocated before, and each sector is brought to disk before the
//! next is begun. Zeros are the end. The last entry may be unsound: a failed write that was never reported. Any other
//! that is not sound has rotted: what it said is unknown, and that is reported. So are entries that are gone from the end, an older
//! ledger put back among them: the [notes of flushes](crate::flushed) say how many there were. Each entry records in its turn
//! which notes were on disk when it was written, so older notes are reported too. When the file has grown to many times what is
//! kept in it, it is rewritten, under another name first. If nothing is left to keep, the new file has one settled entry, of no
//! segment, which carries the count on. A disk that is too full for that does not stop it: it continues in the space that it has.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::planted::{self, Bug};
use tracing::warn;

use crate::files::{File, Folder, free_name, is_full};
use crate::flushed::{Newest, Open};

/// Its name in the flush folder.
pub const LEDGER: &str = "ledger";
const TEMPORARY: &str = "ledger.tmp";
const MAGIC: [u8; 8] = *b"TWLEDGER";
const VERSION: u32 = 2;
const ENTRY_SIZE: usize = 128;
/// Entries of a sector of 512 bytes.
const SECTOR_ENTRIES: u64 = 4;
/// Entries that the file grows by: 64 KiB.
const GROWTH: u64 = 512;
/// With fewer than so many left it grows. While the disk is full, they are not used up: what is owed needs a buffer that
/// could not be flushed, and a trim, which makes room, settles half as many at a time
/// (`TRIMMED_AT_ONCE` of the protocol).
const SPARE: u64 = 256;
/// Rewritten when there are so many entries for each that counts, and so many more.
const REWRITE_FACTOR: u64 = 4;
const REWRITE_MIN: u64 = 4096;
/// Bytes of the file in memory at a time, when all of it is read or written: it may have 67 MB.
const PIECE: usize = 512 * ENTRY_SIZE;
/// A change of more entries than this is written with the whole file, if there is room: one sync instead of many.
const BATCH_MAX: usize = 16;

/// How many entries a ledger has been given in its life, all of them on disk: what the next one's sequence will be. Shared with
/// the code that notes it.
#[derive(Clone, Debug, Default)]
pub struct Entries(Arc<AtomicU64>);

impl Entries {
    /// A counter of so many entries.
    pub fn new(count: u64) -> Entries {
        Entries(Arc::new(AtomicU64::new(count)))
    }

    /// How many entries there are.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, count: u64) {
        self.0.store(count, Ordering::Release);
    }
}

/// The open ledger.
#[derive(Debug)]
pub struct Ledger {
    file: Box<dyn File>,
    kept: Segments,
    /// The next entry.
    next: u64,
    /// All that are on disk; also the next one's sequence.
    entries: Entries,
    /// How new the notes of flushes are.
    notes: Newest,
    /// Entries that there is space for.
    room: u64,
    /// An entry was not sound: the file is to be rewritten.
    damaged: bool,
    /// There was no room to rewrite it: said once.
    cramped: bool,
}

/// What must be here of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// It is closed, and owed.
    Owed(Closure),
    /// It is open, and its file is sound at least up to here.
    Open(Offset),
}

impl Kept {
    fn closure(self) -> Closure {
        match self {
            Kept::Owed(closure) => closure,
            Kept::Open(end) => Closure { end, ..Closure::default() },
        }
    }

    fn letter(self) -> u8 {
        match self {
            Kept::Owed(_) => b'O',
            Kept::Open(_) => b'F',
        }
    }
}

/// The newest word on each segment.
type Segments = BTreeMap<SegmentId, (SegmentIdentity, Kept)>;

/// What a ledger says.
#[derive(Debug, Default)]
pub struct LedgerContents {
    /// Closed segments that are owed.
    pub owed: Vec<(SegmentIdentity, Closure)>,
    /// Open segments that have files, and how far each is on disk at least.
    pub open: Open,
    /// It knows of newer notes of flushes than those that are there.
    pub notes_are_older: bool,
    /// What it cannot say.
    pub doubts: Vec<String>,
}

/// Why there is no new file.
enum CreateError {
    /// The disk is full, and the old file is what it was.
    Full(io::Error),
    /// Anything else. Which of the two files there is need not be known.
    Io(io::Error),
}

impl From<io::Error> for CreateError {
    fn from(error: io::Error) -> CreateError {
        CreateError::Io(error)
    }
}

impl From<CreateError> for io::Error {
    fn from(error: CreateError) -> io::Error {
        match error {
            CreateError::Full(error) | CreateError::Io(error) => error,
        }
    }
}

enum LedgerEntry {
    Sound(Sound),
    Unwritten,
    Rotten,
}

struct Sound {
    sequence: u64,
    /// The sequence of the notes of flushes.
    notes: u64,
    identity: SegmentIdentity,
    /// `None`: nothing of it must be here any longer.
    kept: Option<Kept>,
}

impl Ledger {
    /// Opens the ledger in this folder. `expected`: there must be one, because this backup has promised something; where there
    /// is none, or none that can be read, an empty one is made and the doubt is reported. `entries`: as many as have been noted; from
    /// here on the ledger keeps count. `notes`: how new those notes are.
    pub fn open(
        folder: &dyn Folder,
        expected: bool,
        entries: Entries,
        notes: Newest,
    ) -> io::Result<(Ledger, LedgerContents)> {
        let mut contents = LedgerContents::default();
        match folder.open(LEDGER) {
            Ok(file) => match Ledger::read(file, entries.clone(), notes.clone(), &mut contents)? {
                Some(ledger) => return Ok((ledger, contents)),
                None => {
                    let aside = free_name(folder, &format!("{LEDGER}.unreadable"))?;
                    folder.rename(LEDGER, &aside)?;
                    contents.doubts.push(format!("the ledger of what is owed cannot be read: moved to {aside}"));
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if expected {
                    contents.doubts.push("the ledger of what is owed is gone".to_owned());
                }
            }
            Err(error) => return Err(error),
        }
        // The header alone: if entries are noted, it keeps raising the doubt until that is persisted, and is rewritten then.
        let mut ledger = Ledger::create(folder, std::iter::empty(), entries, notes)?;
        ledger.damaged = ledger.entries.count() > 0;
        Ok((ledger, contents))
    }

    /// Forgets everything: this backup has a new identity, and the notes are void too.
    pub fn clear(&mut self, folder: &dyn Folder) -> io::Result<()> {
        let kept = std::mem::take(&mut self.kept);
        if !self.rewrite(folder)? {
            self.append(settled(kept.into_values()).into_iter())?;
        }
        self.notes.catch_up();
        Ok(())
    }

    /// These are owed from now on.
    pub fn owe(&mut self, folder: &dyn Folder, segments: &[(SegmentIdentity, Closure)]) -> io::Result<()> {
        let owed = segments.iter().map(|(identity, closure)| (*identity, Kept::Owed(*closure)));
        self.keep(folder, owed)
    }

    /// This open segment has a file, which is sound at least up to here. What is owed of it already says more.
    pub fn record_open(&mut self, folder: &dyn Folder, identity: &SegmentIdentity, end: Offset) -> io::Result<()> {
        match self.kept.get(&identity.segment) {
            Some((_, Kept::Owed(_))) => Ok(()),
            Some((known, Kept::Open(_))) if known == identity => Ok(()),
            _ => self.keep(folder, [(*identity, Kept::Open(end))].into_iter()),
        }
    }

    /// Nothing of these must be here any longer.
    pub fn settle(&mut self, folder: &dyn Folder, segments: &[SegmentId]) -> io::Result<()> {
        let gone = segments.iter().filter_map(|segment| self.kept.remove(segment));
        let entries = settled(gone);
        self.add(folder, entries)
    }

    /// Once a doubt is remembered elsewhere, what raised it here can go. On a full disk it stays, and raises it again.
    pub fn mend(&mut self, folder: &dyn Folder) -> io::Result<()> {
        self.notes.catch_up();
        if self.damaged {
            self.rewrite(folder)?;
        }
        Ok(())
    }

    fn keep(&mut self, folder: &dyn Folder, segments: impl Iterator<Item = (SegmentIdentity, Kept)>) -> io::Result<()> {
        let news: Vec<_> = segments.filter(|new| self.kept.get(&new.0.segment) != Some(new)).collect();
        self.kept.extend(news.iter().map(|new| (new.0.segment, *new)));
        let entries = news.iter().map(|(identity, kept)| (kept.letter(), *identity, kept.closure()));
        self.add(folder, entries.collect())
    }

    fn add(&mut self, folder: &dyn Folder, entries: Vec<Entry>) -> io::Result<()> {
        let many = self.next > REWRITE_MIN + REWRITE_FACTOR * self.kept.len() as u64;
        if entries.is_empty() {
            return Ok(());
        }
        if (many || self.damaged || entries.len() > BATCH_MAX) && self.rewrite(folder)? {
            return Ok(());
        }
        self.append(entries.into_iter())
    }

    fn append(&mut self, entries: impl Iterator<Item = Entry>) -> io::Result<()> {
        let (mut sequence, notes) = (self.entries.count(), self.notes.sequence());
        for (letter, identity, closure) in entries {
            let bytes = to_entry(letter, sequence, notes, &identity, &closure);
            self.file.write_all_at(self.next * ENTRY_SIZE as u64, &bytes)?;
            (self.next, sequence) = (self.next + 1, sequence + 1);
            if self.next.is_multiple_of(SECTOR_ENTRIES) {
                self.file.sync()?;
            }
        }
        self.file.sync()?;
        self.entries.set(sequence);
        if self.room < self.next + SPARE && self.file.allocate((self.next + GROWTH) * ENTRY_SIZE as u64).is_ok() {
            self.room = self.next + GROWTH;
        }
        Ok(())
    }

    /// Rewrites the file, whole or not at all. False if the disk is full: then the present file stays in use.
    fn rewrite(&mut self, folder: &dyn Folder) -> io::Result<bool> {
        let (entries, notes) = (self.entries.clone(), self.notes.clone());
        let created = if self.kept.is_empty() && entries.count() > 0 {
            // Without it the file would look as if all that are noted were gone.
            Ledger::create(folder, [nothing_kept()].into_iter(), entries, notes)
        } else {
            let kept = self.kept.values().map(|(identity, kept)| (kept.letter(), *identity, kept.closure()));
            Ledger::create(folder, kept, entries, notes)
        };
        match created {
            Ok(ledger) => {
                let kept = std::mem::take(&mut self.kept);
                *self = Ledger { kept, ..ledger };
                Ok(true)
            }
            Err(CreateError::Full(error)) => {
                if !std::mem::replace(&mut self.cramped, true) {
                    let folder = folder.path().display();
                    warn!(%folder, %error, "no room to rewrite the ledger: it grows in the space that it has. Free space on this disk");
                }
                Ok(false)
            }
            Err(CreateError::Io(error)) => Err(error),
        }
    }

    /// A new file with what counts, whole or not at all. The ledger itself is told afterwards.
    fn create(
        folder: &dyn Folder,
        kept: impl ExactSizeIterator<Item = Entry>,
        entries: Entries,
        notes: Newest,
    ) -> Result<Ledger, CreateError> {
        let sequence = entries.count();
        let count = kept.len() as u64;
        let next = 1 + count;
        let room = next + GROWTH;
        let all = (sequence..).zip(kept).map(|(sequence, (letter, identity, closure))| {
            to_entry(letter, sequence, notes.sequence(), &identity, &closure)
        });
        let file = Ledger::fill(folder, room, [header()].into_iter().chain(all)).map_err(|error| {
            // Half of it would hold the space that others need.
            let _ = folder.remove(TEMPORARY);
            if is_full(&error) { CreateError::Full(error) } else { CreateError::Io(error) }
        })?;
        folder.rename(TEMPORARY, LEDGER)?;
        folder.sync()?;
        entries.set(sequence + count);
        Ok(Ledger { file, kept: BTreeMap::new(), next, entries, notes, room, damaged: false, cramped: false })
    }

    fn fill(
        folder: &dyn Folder,
        room: u64,
        mut entries: impl Iterator<Item = [u8; ENTRY_SIZE]>,
    ) -> io::Result<Box<dyn File>> {
        let file = folder.create(TEMPORARY)?;
        match file.allocate(room * ENTRY_SIZE as u64) {
            Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
            _ => {}
        }
        let (mut at, mut piece) = (0, Vec::with_capacity(PIECE));
        loop {
            piece.clear();
            piece.extend(entries.by_ref().take(PIECE / ENTRY_SIZE).flatten());
            if piece.is_empty() {
                break;
            }
            file.write_all_at(at, &piece)?;
            at += piece.len() as u64;
        }
        file.sync()?;
        Ok(file)
    }

    /// `None`: this is no ledger, or one of a newer version.
    fn read(
        file: Box<dyn File>,
        entries: Entries,
        notes: Newest,
        contents: &mut LedgerContents,
    ) -> io::Result<Option<Ledger>> {
        let length = file.length()?;
        let mut piece = vec![0; PIECE.min(usize::try_from(length).unwrap_or(PIECE))];
        file.read_exact_at(0, &mut piece)?;
        if piece.get(..ENTRY_SIZE) != Some(header().as_slice()) {
            return Ok(None);
        }
        let (noted, kept) = (entries.count(), BTreeMap::new());
        let mut ledger = Ledger { file, kept, next: 1, entries, notes, room: 0, damaged: false, cramped: false };
        // An unsound entry counts as rotten once there is another one behind it.
        let (mut rotten, mut unsound) = (0, 0);
        let (mut expected, mut count) = (None, 0);
        for nth in 1..length / ENTRY_SIZE as u64 {
            let at = nth * ENTRY_SIZE as u64;
            let place = (at % PIECE as u64) as usize;
            if place == 0 {
                piece.truncate(usize::try_from(length - at).unwrap_or(PIECE));
                ledger.file.read_exact_at(at, &mut piece)?;
            }
            let Sound { sequence, notes, identity, kept } = match from_entry(&piece[place..place + ENTRY_SIZE]) {
                LedgerEntry::Unwritten => continue,
                LedgerEntry::Rotten => {
                    unsound += 1;
                    expected = expected.map(|expected| expected + 1);
                    continue;
                }
                LedgerEntry::Sound(sound) => sound,
            };
            match kept {
                Some(kept) => drop(ledger.kept.insert(identity.segment, (identity, kept))),
                None => drop(ledger.kept.remove(&identity.segment)),
            }
            if !planted::has(Bug::OldNotesBelieved) {
                ledger.notes.recorded(notes);
            }
            // Entries that were zeroed or restored from an older copy.
            rotten += std::mem::take(&mut unsound);
            rotten += usize::from(expected.is_some_and(|expected: u64| expected != sequence));
            expected = Some(sequence + 1);
            (ledger.next, count) = (nth + 1, sequence + 1);
        }
        // One write at a time can have failed, and none that was noted.
        let lost = noted.saturating_sub(count);
        let bad = rotten as u64 + lost.max(unsound.saturating_sub(1) as u64);
        if bad > 0 {
            ledger.damaged = true;
            contents.doubts.push(format!("{bad} entries of the ledger of what is owed are gone or cannot be read"));
        }
        // The process before may have died of a sync that failed: then the last sector is here and perhaps not on disk, and no
        // later sync would bring it there (`fsync(2)`).
        let size = SECTOR_ENTRIES * ENTRY_SIZE as u64;
        let from = (ledger.next - 1) / SECTOR_ENTRIES * size;
        let mut sector = vec![0; size.min(length - from) as usize];
        ledger.file.read_exact_at(from, &mut sector)?;
        ledger.file.write_all_at(from, &sector)?;
        ledger.file.sync()?;
        ledger.entries.set(count + lost);
        ledger.room = length / ENTRY_SIZE as u64;
        for (identity, kept) in ledger.kept.values() {
            match kept {
                Kept::Owed(closure) => contents.owed.push((*identity, *closure)),
                Kept::Open(end) => contents.open.push((*identity, *end)),
            }
        }
        contents.notes_are_older = ledger.notes.is_behind();
        Ok(Some(ledger))
    }
}

/// A letter, the segment, and what is known of its end.
type Entry = (u8, SegmentIdentity, Closure);

fn settled(gone: impl Iterator<Item = (SegmentIdentity, Kept)>) -> Vec<Entry> {
    gone.map(|(identity, kept)| (b'S', identity, kept.closure())).collect()
}

/// An entry that settles nothing.
fn nothing_kept() -> Entry {
    let (log, segment, epoch, generation) = (LogId(0), SegmentId(0), Epoch(0), Generation(0));
    let identity = SegmentIdentity { log, segment, epoch, generation, size: SegmentSize::MIN };
    (b'S', identity, Closure::default())
}

fn sealed(mut entry: [u8; ENTRY_SIZE]) -> [u8; ENTRY_SIZE] {
    let crc = crc32fast::hash(&entry[..ENTRY_SIZE - 4]);
    entry[ENTRY_SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
    entry
}

fn header() -> [u8; ENTRY_SIZE] {
    let mut bytes = [0; ENTRY_SIZE];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    sealed(bytes)
}

fn to_entry(letter: u8, sequence: u64, notes: u64, identity: &SegmentIdentity, closure: &Closure) -> [u8; ENTRY_SIZE] {
    let mut bytes = [0; ENTRY_SIZE];
    bytes[0] = letter;
    bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
    bytes[16..32].copy_from_slice(&identity.log.0.to_le_bytes());
    bytes[32..40].copy_from_slice(&identity.segment.0.to_le_bytes());
    bytes[40..48].copy_from_slice(&identity.epoch.0.to_le_bytes());
    bytes[48..56].copy_from_slice(&identity.generation.0.to_le_bytes());
    bytes[56..60].copy_from_slice(&identity.size.bytes().to_le_bytes());
    bytes[60..64].copy_from_slice(&closure.end.0.to_le_bytes());
    bytes[64..68].copy_from_slice(&closure.chain.0.to_le_bytes());
    bytes[72..80].copy_from_slice(&closure.first.0.to_le_bytes());
    bytes[80..88].copy_from_slice(&closure.last.0.to_le_bytes());
    bytes[88..96].copy_from_slice(&notes.to_le_bytes());
    sealed(bytes)
}

fn from_entry(bytes: &[u8]) -> LedgerEntry {
    if bytes.iter().all(|byte| *byte == 0) {
        return LedgerEntry::Unwritten;
    }
    let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let Ok(size) = SegmentSize::new(u64::from(u32_at(56))) else { return LedgerEntry::Rotten };
    let identity = SegmentIdentity {
        log: LogId(u128::from_le_bytes(std::array::from_fn(|i| bytes[16 + i]))),
        segment: SegmentId(u64_at(32)),
        epoch: Epoch(u64_at(40)),
        generation: Generation(u64_at(48)),
        size,
    };
    let closure =
        Closure { first: Lsn(u64_at(72)), last: Lsn(u64_at(80)), end: Offset(u32_at(60)), chain: Chain(u32_at(64)) };
    let (sequence, notes) = (u64_at(8), u64_at(88));
    if to_entry(bytes[0], sequence, notes, &identity, &closure) != bytes {
        return LedgerEntry::Rotten;
    }
    let open = Kept::Open(closure.end);
    let is_open = open.closure() == closure && closure.end.0 <= size.bytes();
    let kept = match bytes[0] {
        b'O' if closure.fits(size) => Some(Kept::Owed(closure)),
        b'F' if is_open => Some(open),
        b'S' if is_open || closure.fits(size) => None,
        _ => return LedgerEntry::Rotten,
    };
    LedgerEntry::Sound(Sound { sequence, notes, identity, kept })
}

#[cfg(test)]
mod tests;
