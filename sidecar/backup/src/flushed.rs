//! How far open segments have been flushed at least: what a file must still hold when the process comes back.
//!
//! Kept by the [`flusher`](crate::flusher), read at the start by [`start`](crate::start()). A flush is noted here before it is
//! answered, so an open file that loses at rest what anybody was told of is missed. It is noted too how many entries the
//! [`ledger`](crate::ledger) has had, so that one which has lost its end is missed. See "Evidence" in `docs/protocol.md`.
//!
//! # Bytes
//! Two [blocks](crate::blocks) of magic `TWFLUSHD`, written in turn: the older of them is all that a crash can tear.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use tailwind_protocol::ids::{Offset, SegmentId};
use tailwind_protocol::layout::SegmentIdentity;

use crate::blocks::{BLOCK_SIZE, Block, Kind, fits};
use crate::files::{File, Folder};
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

/// The notes, and the file that holds them.
#[derive(Debug)]
pub struct Flushed {
    file: Box<dyn File>,
    sequence: u64,
    notes: BTreeMap<SegmentId, (SegmentIdentity, Offset)>,
    /// The file says less of them.
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
                let sound = blocks.into_iter().filter_map(|block| match block {
                    Block::Sound(sequence, notes) => Some((sequence, notes)),
                    Block::Newer(_) | Block::Damaged(_) => None,
                });
                if let Some((sequence, Notes { ledger: noted, open })) = sound.max_by_key(|(sequence, _)| *sequence) {
                    let notes = open.iter().map(|note| (note.0.segment, *note)).collect();
                    let entries = Entries::new(noted);
                    return Ok((Flushed { file, sequence, notes, dirty: false, entries, noted }, open, doubts));
                }
                let aside = format!("{FLUSHED}.unreadable");
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
        let (notes, entries) = (BTreeMap::new(), Entries::default());
        Ok(Flushed { file, sequence: 1, notes, dirty: false, entries, noted: 0 })
    }

    /// Where the ledger keeps count: as many entries as are noted, to begin with.
    pub fn entries(&self) -> Entries {
        self.entries.clone()
    }

    /// This open segment is on disk up to here; 0: it is open here, and nothing of it has arrived.
    pub fn note(&mut self, identity: &SegmentIdentity, end: Offset) {
        let note = (*identity, end);
        self.dirty |= self.notes.insert(identity.segment, note) != Some(note);
    }

    /// True when there is a note of this very segment.
    pub fn knows(&self, identity: &SegmentIdentity) -> bool {
        self.notes.get(&identity.segment).is_some_and(|(known, _)| known == identity)
    }

    /// This segment's open file is no longer needed.
    pub fn forget(&mut self, segment: SegmentId) {
        self.dirty |= self.notes.remove(&segment).is_some();
    }

    /// Forgets everything: this backup has a new identity.
    pub fn clear(&mut self) {
        self.dirty |= !std::mem::take(&mut self.notes).is_empty();
    }

    /// True while the file says less than is known.
    pub fn is_dirty(&self) -> bool {
        self.dirty || self.entries.count() != self.noted
    }

    /// Brings the notes to disk.
    pub fn write(&mut self) -> io::Result<()> {
        if !self.is_dirty() {
            return Ok(());
        }
        let mut notes = Notes { ledger: self.entries.count(), open: self.notes.values().copied().collect() };
        // Open segments are few; should there be more than fit, the oldest are closed and not yet told of.
        while !fits(&notes) {
            notes.open.remove(0);
        }
        let sequence = self.sequence + 1;
        KIND.write(&*self.file, sequence % 2, sequence, &notes)?;
        (self.sequence, self.dirty, self.noted) = (sequence, false, notes.ledger);
        Ok(())
    }
}
