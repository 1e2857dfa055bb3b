//! How far open segments have been flushed at least: what a file must still hold when the process comes back. What was
//! acknowledged of a segment that was damaged when the process ended counts like what was flushed.
//!
//! Kept by the [`flusher`](crate::flusher), read at the start by [`start`](crate::start()). A flush is noted here before it is
//! answered, so an open file that loses at rest what was reported to a caller is missed. It is noted too how many entries the
//! [`ledger`](crate::ledger) has had, so that one which has lost its end is missed. The ledger in its turn records how new the
//! notes were, so that older notes are. See "Evidence" in `docs/protocol.md`.
//!
//! # Bytes
//! Two [blocks](crate::blocks) of magic `TWFLUSHD`, written in turn: the older of them is all that a crash can tear.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tailwind_protocol::ids::{Offset, SegmentId};
use tailwind_protocol::layout::SegmentIdentity;

use crate::blocks::{BLOCK_SIZE, Block, Kind, fits};
use crate::files::{File, Folder, free_name};
use crate::ledger::Entries;

/// Its name in the flush folder.
pub const FLUSHED: &str = "flushed";
const TEMPORARY: &str = "flushed.tmp";
const KIND: Kind = Kind { magic: *b"TWFLUSHD", version: 2 };

/// Open segments, and how far each is on disk at least.
pub type Open = Vec<(SegmentIdentity, Offset)>;

/// What the file says.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Notes {
    /// Entries that the ledger has had.
    ledger: u64,
    open: Open,
}

/// How new the notes are: the sequence of the newest on disk, and the newest that the ledger knows of. Shared with the ledger.
#[derive(Clone, Debug, Default)]
pub struct Newest(Arc<Sequences>);

#[derive(Debug, Default)]
struct Sequences {
    on_disk: AtomicU64,
    recorded: AtomicU64,
}

impl Newest {
    /// Notes of this sequence are on disk.
    pub fn new(sequence: u64) -> Newest {
        Newest(Arc::new(Sequences { on_disk: AtomicU64::new(sequence), recorded: AtomicU64::new(0) }))
    }

    /// What a new entry of the ledger records.
    pub fn sequence(&self) -> u64 {
        self.on_disk().max(self.0.recorded.load(Ordering::Acquire))
    }

    /// The ledger has an entry that records notes of this sequence.
    pub fn recorded(&self, sequence: u64) {
        self.0.recorded.fetch_max(sequence, Ordering::AcqRel);
    }

    /// True when the ledger knows of newer notes than there are.
    pub fn is_behind(&self) -> bool {
        self.on_disk() < self.sequence()
    }

    /// The doubt about older notes is remembered elsewhere: those that are here count from now on, and are rewritten.
    pub fn catch_up(&self) {
        self.advance(self.sequence());
    }

    fn on_disk(&self) -> u64 {
        self.0.on_disk.load(Ordering::Acquire)
    }

    /// Another thread may have advanced it further since.
    fn advance(&self, sequence: u64) {
        self.0.on_disk.fetch_max(sequence, Ordering::AcqRel);
    }
}

/// The notes, and the file that holds them.
#[derive(Debug)]
pub struct Flushed {
    file: Box<dyn File>,
    /// The block with the newest notes, and their sequence.
    block: u64,
    sequence: u64,
    newest: Newest,
    notes: BTreeMap<SegmentId, (SegmentIdentity, Offset)>,
    /// The segments that the file may have notes of. After a write that failed, those of the notes before and after it.
    named: BTreeSet<SegmentId>,
    /// The file says less of them, or it is not known whether what it says is on disk.
    dirty: bool,
    /// Entries that the ledger has had, and how many the file says.
    entries: Entries,
    noted: u64,
}

impl Flushed {
    /// Opens the notes in this folder, making them if need be. `expected`: there must be some file. Returns what is noted, and
    /// what cannot be told.
    pub fn open(folder: &dyn Folder, expected: bool) -> io::Result<(Flushed, Open, Vec<String>)> {
        let mut doubts = Vec::new();
        match folder.open(FLUSHED) {
            Ok(file) => {
                let blocks = [KIND.read::<Notes>(&*file, 0)?, KIND.read(&*file, 1)?];
                let sound = (0..).zip(blocks).filter_map(|(nth, block)| match block {
                    Block::Sound(sequence, notes) => Some((sequence, nth, notes)),
                    Block::Newer(_) | Block::Damaged(_) => None,
                });
                if let Some((sequence, block, found)) = sound.max_by_key(|(sequence, ..)| *sequence) {
                    let Notes { ledger: noted, open } = found;
                    let notes: BTreeMap<_, _> = open.iter().map(|note| (note.0.segment, *note)).collect();
                    let named = notes.keys().copied().collect();
                    let (newest, entries) = (Newest::new(sequence), Entries::new(noted));
                    // The process before may have died of a sync that failed: then what was read here is perhaps not on disk, and
                    // no later sync would bring it there (`fsync(2)`). The first write brings it to the other block.
                    let dirty = true;
                    let flushed = Flushed { file, block, sequence, newest, notes, named, dirty, entries, noted };
                    return Ok((flushed, open, doubts));
                }
                let aside = free_name(folder, &format!("{FLUSHED}.unreadable"))?;
                folder.rename(FLUSHED, &aside)?;
                doubts.push(format!("the notes of what was flushed cannot be read: moved to {aside}"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if expected {
                    doubts.push("the notes of what was flushed are gone".to_owned());
                }
            }
            Err(error) => return Err(error),
        }
        Ok((Flushed::create(folder)?, Vec::new(), doubts))
    }

    fn create(folder: &dyn Folder) -> io::Result<Flushed> {
        let file = folder.create(TEMPORARY)?;
        match file.allocate(2 * BLOCK_SIZE as u64) {
            Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
            _ => {}
        }
        KIND.write(&*file, 0, 0, &Notes::default())?;
        KIND.write(&*file, 1, 1, &Notes::default())?;
        folder.rename(TEMPORARY, FLUSHED)?;
        folder.sync()?;
        let (notes, named, entries) = (BTreeMap::new(), BTreeSet::new(), Entries::default());
        let (block, sequence, newest) = (1, 1, Newest::new(1));
        Ok(Flushed { file, block, sequence, newest, notes, named, dirty: false, entries, noted: 0 })
    }

    /// Where the ledger keeps count: as many entries as are noted, to begin with.
    pub fn entries(&self) -> Entries {
        self.entries.clone()
    }

    /// How new the notes are.
    pub fn newest(&self) -> Newest {
        self.newest.clone()
    }

    /// This open segment is on disk up to here; 0: it is open here, and nothing of it has arrived.
    pub fn note(&mut self, identity: &SegmentIdentity, end: Offset) {
        let note = (*identity, end);
        self.dirty |= self.notes.insert(identity.segment, note) != Some(note);
    }

    /// Notes it, unless more is noted of this very segment.
    pub fn raise(&mut self, identity: &SegmentIdentity, end: Offset) {
        let noted = self.notes.get(&identity.segment).filter(|(known, _)| known == identity);
        self.note(identity, noted.map_or(end, |(_, noted)| end.max(*noted)));
    }

    /// True when there is a note of this very segment.
    pub fn knows(&self, identity: &SegmentIdentity) -> bool {
        self.notes.get(&identity.segment).is_some_and(|(known, _)| known == identity)
    }

    /// True when the file may have a note of this segment: without its open file the next start would miss it.
    pub fn may_name(&self, segment: SegmentId) -> bool {
        self.named.contains(&segment)
    }

    /// This segment's open file is no longer needed.
    pub fn forget(&mut self, segment: SegmentId) {
        self.dirty |= self.notes.remove(&segment).is_some();
    }

    /// Forgets everything: this backup has a new identity.
    pub fn clear(&mut self) {
        self.dirty |= !std::mem::take(&mut self.notes).is_empty();
    }

    /// True while the file says less than is known, as far as anybody knows.
    pub fn is_dirty(&self) -> bool {
        self.dirty || self.entries.count() != self.noted || self.newest.sequence() != self.sequence
    }

    /// True for notes that are older than the ledger knows, until the doubt about them is on disk.
    pub fn is_behind(&self) -> bool {
        self.newest.is_behind()
    }

    /// Brings the notes to disk. Notes that are older than the ledger knows stay as they are until the doubt is on disk: newer
    /// ones in their place would hide them from the next start.
    pub fn write(&mut self) -> io::Result<()> {
        if !self.is_dirty() || self.is_behind() {
            return Ok(());
        }
        let mut notes = Notes { ledger: self.entries.count(), open: self.notes.values().copied().collect() };
        // Open segments are few; should there be more than fit, the oldest are closed and not yet told of.
        while !fits(&notes) {
            notes.open.remove(0);
        }
        let (block, sequence) = (1 - self.block, self.newest.sequence() + 1);
        let named = notes.open.iter().map(|(identity, _)| identity.segment);
        self.named.extend(named.clone());
        KIND.write(&*self.file, block, sequence, &notes)?;
        self.named = named.collect();
        (self.block, self.sequence, self.dirty, self.noted) = (block, sequence, false, notes.ledger);
        self.newest.advance(sequence);
        Ok(())
    }
}
