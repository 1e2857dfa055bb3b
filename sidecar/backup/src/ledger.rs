//! The ledger: which closed segments this backup owes, so that a file that is gone is missed.
//!
//! Read at the start by [`start`](crate::start()), written by the [`daemon`](crate::daemon) before a close is answered and
//! before a file goes. The high-water mark of what must be here (S12).
//!
//! # Bytes
//! A header and then entries, 128 bytes each, four to a sector, so that none is ever torn. All integers are little-endian.
//! ```text
//! header: "TWLEDGER" (8)  format version (4)  zeros  CRC-32 of all before (4)
//! entry:  `O` owed or `S` settled (1)  zeros to 8  sequence (8)  log (16)  segment (8)  epoch (8)  generation (8)  size (4)
//!         end (4)  chain (4)  zeros to 72  first LSN (8)  last LSN (8)  zeros  CRC-32 of all before (4)
//! ```
//! Entries are added behind the last one, into space that was allocated before, and each sector is brought to disk before the
//! next is begun. Zeros are the end. The last entry may be unsound: a failed write that was never reported. Any other
//! that is not sound has rotted: what it said is unknown, and that is reported. So are entries that are gone from the end, an older
//! ledger put back among them: the [notes of flushes](crate::flushed) say how many there were. When the file has grown to many
//! times what is owed it is written anew, under another name first. A disk that is too full for that does not stop it: it goes on
//! in the space that it has.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tracing::warn;

use crate::files::{File, Folder, is_full};

/// Its name in the flush folder.
pub const LEDGER: &str = "ledger";
const TEMPORARY: &str = "ledger.tmp";
const MAGIC: [u8; 8] = *b"TWLEDGER";
const VERSION: u32 = 1;
const ENTRY_SIZE: usize = 128;
/// Entries of a sector of 512 bytes.
const SECTOR_ENTRIES: u64 = 4;
/// Entries that the file grows by: 64 KiB.
const GROWTH: u64 = 512;
/// With fewer than so many left it grows. A disk that is full meanwhile does not use them up: what is owed needs a buffer that
/// could not be flushed, and a trim, which makes room, settles half as many at a time
/// (`TRIMMED_AT_ONCE` of the protocol).
const SPARE: u64 = 256;
/// Written anew when there are so many entries for each that is owed, and so many more.
const REWRITE_FACTOR: u64 = 4;
const REWRITE_MIN: u64 = 4096;
/// A change of more entries than this is written with the whole file, if there is room: one sync instead of many.
const BATCH_MAX: usize = 16;

/// How many entries a ledger has been given in its life, all of them on disk: what the next one's sequence will be. Shared with
/// who notes it.
#[derive(Clone, Debug, Default)]
pub struct Entries(Arc<AtomicU64>);

impl Entries {
    /// So many.
    pub fn new(count: u64) -> Entries {
        Entries(Arc::new(AtomicU64::new(count)))
    }

    /// How many.
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
    owed: BTreeMap<SegmentId, (SegmentIdentity, Closure)>,
    /// The next entry.
    next: u64,
    /// All that are on disk; also the next one's sequence.
    entries: Entries,
    /// Entries that there is space for.
    room: u64,
    /// An entry was not sound: the file is to be written anew.
    damaged: bool,
    /// There was no room to write it anew: said once.
    cramped: bool,
}

/// What a ledger says.
#[derive(Debug, Default)]
pub struct LedgerContents {
    /// Closed segments that are owed.
    pub owed: Vec<(SegmentIdentity, Closure)>,
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
    Owed(u64, SegmentIdentity, Closure),
    Settled(u64, SegmentId),
    Unwritten,
    Rotten,
}

impl Ledger {
    /// Opens the ledger in this folder. `expected`: there must be one, because this backup has promised something; where there
    /// is none, or none that can be read, an empty one is made and the doubt is reported. `entries`: as many as have been noted; from
    /// here on the ledger keeps count.
    pub fn open(folder: &dyn Folder, expected: bool, entries: Entries) -> io::Result<(Ledger, LedgerContents)> {
        let mut contents = LedgerContents::default();
        match folder.open(LEDGER) {
            Ok(file) => match Ledger::read(file, entries.clone(), &mut contents)? {
                Some(ledger) => return Ok((ledger, contents)),
                None => {
                    let aside = format!("{LEDGER}.unreadable");
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
        let ledger = Ledger::create(folder, &BTreeMap::new(), entries)?;
        Ok((ledger, contents))
    }

    /// Forgets everything that was owed: this backup has a new identity.
    pub fn clear(&mut self, folder: &dyn Folder) -> io::Result<()> {
        let owed = std::mem::take(&mut self.owed);
        if self.rewrite(folder)? {
            return Ok(());
        }
        self.append(owed.into_values().map(|(identity, closure)| (b'S', identity, closure)))
    }

    /// These are owed from now on.
    pub fn owe(&mut self, folder: &dyn Folder, segments: &[(SegmentIdentity, Closure)]) -> io::Result<()> {
        let news = |(identity, closure): &&(SegmentIdentity, Closure)| {
            self.owed.get(&identity.segment) != Some(&(*identity, *closure))
        };
        let news: Vec<_> = segments.iter().filter(news).copied().collect();
        self.owed.extend(news.iter().map(|owed| (owed.0.segment, *owed)));
        let entries = news.iter().map(|(identity, closure)| (b'O', *identity, *closure));
        self.add(folder, entries.collect())
    }

    /// Nothing is owed of these any longer.
    pub fn settle(&mut self, folder: &dyn Folder, segments: &[SegmentId]) -> io::Result<()> {
        let gone: Vec<_> = segments.iter().filter_map(|segment| self.owed.remove(segment)).collect();
        self.add(folder, gone.into_iter().map(|(identity, closure)| (b'S', identity, closure)).collect())
    }

    /// Once a doubt is remembered elsewhere, what raised it here can go. On a full disk it stays, and raises it again.
    pub fn mend(&mut self, folder: &dyn Folder) -> io::Result<()> {
        if self.damaged {
            self.rewrite(folder)?;
        }
        Ok(())
    }

    fn add(&mut self, folder: &dyn Folder, entries: Vec<(u8, SegmentIdentity, Closure)>) -> io::Result<()> {
        let many = self.next > REWRITE_MIN + REWRITE_FACTOR * self.owed.len() as u64;
        if entries.is_empty() {
            return Ok(());
        }
        if (many || self.damaged || entries.len() > BATCH_MAX) && self.rewrite(folder)? {
            return Ok(());
        }
        self.append(entries.into_iter())
    }

    fn append(&mut self, entries: impl Iterator<Item = (u8, SegmentIdentity, Closure)>) -> io::Result<()> {
        let mut sequence = self.entries.count();
        for (kind, identity, closure) in entries {
            let bytes = to_entry(kind, sequence, &identity, &closure);
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

    /// Writes the file anew, whole or not at all. False where the disk is full: then the file that is there goes on.
    fn rewrite(&mut self, folder: &dyn Folder) -> io::Result<bool> {
        match Ledger::create(folder, &self.owed, self.entries.clone()) {
            Ok(ledger) => {
                let owed = std::mem::take(&mut self.owed);
                *self = Ledger { owed, ..ledger };
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

    /// A new file with what is owed, whole or not at all. The ledger itself is told afterwards.
    fn create(
        folder: &dyn Folder,
        owed: &BTreeMap<SegmentId, (SegmentIdentity, Closure)>,
        entries: Entries,
    ) -> Result<Ledger, CreateError> {
        let sequence = entries.count();
        let next = 1 + owed.len() as u64;
        let room = next + GROWTH;
        let mut bytes = header().to_vec();
        for (nth, (identity, closure)) in owed.values().enumerate() {
            bytes.extend_from_slice(&to_entry(b'O', sequence + nth as u64, identity, closure));
        }
        let file = Ledger::fill(folder, room, &bytes).map_err(|error| {
            // Half of it would hold the space that others need.
            let _ = folder.remove(TEMPORARY);
            if is_full(&error) { CreateError::Full(error) } else { CreateError::Io(error) }
        })?;
        folder.rename(TEMPORARY, LEDGER)?;
        folder.sync()?;
        entries.set(sequence + owed.len() as u64);
        Ok(Ledger { file, owed: BTreeMap::new(), next, entries, room, damaged: false, cramped: false })
    }

    fn fill(folder: &dyn Folder, room: u64, bytes: &[u8]) -> io::Result<Box<dyn File>> {
        let file = folder.create(TEMPORARY)?;
        match file.allocate(room * ENTRY_SIZE as u64) {
            Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
            _ => {}
        }
        file.write_all_at(0, bytes)?;
        file.sync()?;
        Ok(file)
    }

    /// `None`: this is no ledger, or one of a newer version.
    fn read(file: Box<dyn File>, entries: Entries, contents: &mut LedgerContents) -> io::Result<Option<Ledger>> {
        let length = usize::try_from(file.length()?).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        file.read_exact_at(0, &mut bytes)?;
        if bytes.get(..ENTRY_SIZE) != Some(header().as_slice()) {
            return Ok(None);
        }
        let (noted, owed) = (entries.count(), BTreeMap::new());
        let mut ledger = Ledger { file, owed, next: 1, entries, room: 0, damaged: false, cramped: false };
        // An unsound entry counts as rotten once there is another one behind it.
        let (mut rotten, mut unsound) = (0, 0);
        let (mut expected, mut count) = (None, 0);
        for (nth, entry) in bytes.chunks_exact(ENTRY_SIZE).enumerate().skip(1) {
            let sequence = match from_entry(entry) {
                LedgerEntry::Unwritten => continue,
                LedgerEntry::Rotten => {
                    unsound += 1;
                    expected = expected.map(|expected| expected + 1);
                    continue;
                }
                LedgerEntry::Owed(sequence, identity, closure) => {
                    ledger.owed.insert(identity.segment, (identity, closure));
                    sequence
                }
                LedgerEntry::Settled(sequence, segment) => {
                    ledger.owed.remove(&segment);
                    sequence
                }
            };
            // Entries that were zeroed or restored from an older copy.
            rotten += std::mem::take(&mut unsound);
            rotten += usize::from(expected.is_some_and(|expected: u64| expected != sequence));
            expected = Some(sequence + 1);
            (ledger.next, count) = (nth as u64 + 1, sequence + 1);
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
        let sector = SECTOR_ENTRIES as usize * ENTRY_SIZE;
        let from = (ledger.next - 1) as usize / SECTOR_ENTRIES as usize * sector;
        ledger.file.write_all_at(from as u64, &bytes[from..length.min(from + sector)])?;
        ledger.file.sync()?;
        ledger.entries.set(count + lost);
        ledger.room = (length / ENTRY_SIZE) as u64;
        contents.owed = ledger.owed.values().copied().collect();
        Ok(Some(ledger))
    }
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

fn to_entry(kind: u8, sequence: u64, identity: &SegmentIdentity, closure: &Closure) -> [u8; ENTRY_SIZE] {
    let mut bytes = [0; ENTRY_SIZE];
    bytes[0] = kind;
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
    let sound = to_entry(bytes[0], u64_at(8), &identity, &closure) == bytes && closure.fits(size);
    match bytes[0] {
        b'O' if sound => LedgerEntry::Owed(u64_at(8), identity, closure),
        b'S' if sound => LedgerEntry::Settled(u64_at(8), identity.segment),
        _ => LedgerEntry::Rotten,
    }
}

#[cfg(test)]
mod tests;
