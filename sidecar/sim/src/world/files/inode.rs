//! One file: its bytes, and what of them the disk has.

use std::collections::BTreeMap;
use std::ops::Range;

use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::{Footer, Sealed, SegmentIdentity};

use crate::random::Random;

/// What a disk writes at once.
const SECTOR: usize = 512;

/// What stands under a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    File,
    /// Opening it would wait for ever.
    Fifo,
}

/// A file as processes see it, and over which sectors the disk may think otherwise.
#[derive(Debug, Default)]
pub(crate) struct Inode {
    kind: Kind,
    bytes: Vec<u8>,
    /// Bytes that the disk knows of.
    durable_length: usize,
    /// Sectors that were written since they were brought to disk.
    dirty: BTreeMap<usize, Dirty>,
}

#[derive(Debug)]
struct Dirty {
    /// What the disk has of it; less than a sector, or nothing, where the file was shorter.
    durable: Vec<u8>,
    /// A sync that failed has forgotten that it must be written.
    dropped: bool,
}

impl Inode {
    /// A file that the disk has with these bytes.
    pub(crate) fn of(bytes: Vec<u8>) -> Inode {
        Inode { durable_length: bytes.len(), bytes, ..Inode::default() }
    }

    /// Something that is no file.
    pub(crate) fn special(kind: Kind) -> Inode {
        Inode { kind, ..Inode::default() }
    }

    pub(super) fn is_file(&self) -> bool {
        self.kind == Kind::File
    }

    /// The bytes as processes see them.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The closed segment that it begins and ends like, and its last record.
    pub(crate) fn closed(&self) -> Option<(SegmentIdentity, Lsn)> {
        let footer = self.bytes().last_chunk().and_then(Footer::from_bytes)?;
        let identity = self.identity().filter(|_| footer.sealed == Sealed::Closed)?;
        Some((identity, footer.closure.last))
    }

    /// The segment that it begins like.
    pub(crate) fn identity(&self) -> Option<SegmentIdentity> {
        SegmentIdentity::from_header(self.bytes.first_chunk()?).map(|(identity, _)| identity)
    }

    /// The bytes that a loss of power leaves for certain: those of this range, if it leaves them all.
    pub(crate) fn on_disk(&self, range: Range<usize>) -> Option<&[u8]> {
        let bytes = self.bytes.get(range.clone()).filter(|_| range.end <= self.durable_length)?;
        let first = range.start / SECTOR;
        let same = |(sector, dirty): (&usize, &Dirty)| {
            let at = sector * SECTOR;
            let here = range.start.max(at)..range.end.min(at + SECTOR);
            here.is_empty() || dirty.durable.get(here.start - at..here.end - at) == Some(&self.bytes[here])
        };
        self.dirty.range(first..range.end.div_ceil(SECTOR).max(first)).all(same).then_some(bytes)
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = at + bytes.len();
        for sector in at / SECTOR..end.div_ceil(SECTOR) {
            let durable = || {
                let known = self.bytes.len().min(self.durable_length);
                let from = (sector * SECTOR).min(known);
                self.bytes[from..known.min((sector + 1) * SECTOR)].to_vec()
            };
            let dirty = self.dirty.entry(sector).or_insert_with(|| Dirty { durable: durable(), dropped: false });
            dirty.dropped = false;
        }
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(bytes);
    }

    pub(super) fn allocate(&mut self, length: usize) {
        if self.bytes.len() < length {
            self.bytes.resize(length, 0);
        }
    }

    pub(super) fn sync(&mut self) {
        self.dirty.retain(|_, dirty| dirty.dropped);
        self.durable_length = self.bytes.len();
    }

    pub(super) fn fail_to_sync(&mut self) {
        self.dirty.values_mut().for_each(|dirty| dirty.dropped = true);
    }

    /// A bit flips, on disk and in what is kept of it in memory.
    pub(crate) fn flip(&mut self, at: usize, bit: u8) {
        self.bytes[at] ^= 1 << bit;
        let here = self.dirty.get_mut(&(at / SECTOR)).and_then(|dirty| dirty.durable.get_mut(at % SECTOR));
        here.into_iter().for_each(|byte| *byte ^= 1 << bit);
    }

    /// Of what no sync has confirmed some sectors are there, some are as they were, and the end may be missing. Without
    /// `torn` all of it is there. Returns true if anything was lost.
    pub(super) fn lose_power(&mut self, torn: Option<&mut Random>) -> bool {
        let dirty = std::mem::take(&mut self.dirty);
        let Some(random) = torn else {
            self.durable_length = self.bytes.len();
            return false;
        };
        let (least, most) = (self.durable_length.min(self.bytes.len()), self.bytes.len());
        let kept = random.within(least as u64, most as u64) as usize;
        let mut lost = kept < most;
        for (sector, dirty) in dirty {
            if dirty.dropped || random.one_in(3) {
                let here = &mut self.bytes[sector * SECTOR..];
                let here_length = here.len().min(SECTOR);
                let here = &mut here[..here_length];
                here.fill(0);
                let known = dirty.durable.len().min(here.len());
                here[..known].copy_from_slice(&dirty.durable[..known]);
                lost = true;
            }
        }
        self.bytes.truncate(kept);
        self.durable_length = kept;
        lost
    }
}
