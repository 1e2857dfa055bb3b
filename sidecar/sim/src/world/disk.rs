//! A backup's volume: what is on it, what of that would outlive the power, and how it fails.
//!
//! Owned by [`Host`](super::host::Host). Files appear whole by a rename, as the daemon's flusher makes them; only the
//! files of open segments grow in place, so that they are what a crash can tear.

use std::collections::BTreeMap;

use tailwind_protocol::backup::Promise;
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::SegmentId;
use tailwind_protocol::layout::{Closure, SegmentIdentity};

use crate::random::Random;

/// What a disk writes at once.
const SECTOR: usize = 512;

/// A closed segment's file.
#[derive(Clone, Debug)]
pub(crate) struct ClosedFile {
    pub(crate) identity: SegmentIdentity,
    pub(crate) closure: Closure,
    /// Up to the closure's end; the footer is known to be sound, or the file would not be listed.
    pub(crate) bytes: Vec<u8>,
}

/// An open segment's file.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    pub(crate) identity: SegmentIdentity,
    pub(crate) bytes: Vec<u8>,
    /// Bytes that an fsync has confirmed.
    pub(crate) synced: usize,
}

/// The volume.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) promise: Promise,
    /// The mark that everything was on disk when the process ended.
    pub(crate) complete: bool,
    pub(crate) closed: BTreeMap<SegmentId, ClosedFile>,
    pub(crate) open: BTreeMap<SegmentId, OpenFile>,
    /// What this backup owes.
    pub(crate) owed: BTreeMap<SegmentId, (SegmentIdentity, Closure)>,
    pub(crate) full: bool,
    pub(crate) slow: bool,
}

impl Disk {
    /// True when the disk alone proves that nothing acknowledged is missing: the identity may outlive the memory.
    pub(crate) fn proves_everything(&self) -> bool {
        self.complete || self.promise.durability == Durability::Flushed
    }

    pub(crate) fn put_closed(&mut self, file: ClosedFile) {
        self.open.remove(&file.identity.segment);
        self.closed.insert(file.identity.segment, file);
    }

    /// Writes an open segment's first bytes to the file, over what no fsync has confirmed. What an fsync has confirmed stays:
    /// a late request may ask for less.
    pub(crate) fn write_open(&mut self, identity: SegmentIdentity, bytes: &[u8]) -> &mut OpenFile {
        let fresh = || OpenFile { identity, bytes: Vec::new(), synced: 0 };
        let file = self.open.entry(identity.segment).or_insert_with(fresh);
        if file.identity != identity {
            *file = fresh();
        }
        if bytes.len() > file.synced {
            file.bytes.truncate(file.synced);
            file.bytes.extend_from_slice(&bytes[file.synced..]);
        }
        file
    }

    pub(crate) fn delete(&mut self, segment: SegmentId) {
        self.closed.remove(&segment);
        self.open.remove(&segment);
    }

    /// The power goes: of what no fsync has confirmed some sectors are there, some are zero, and the end may be missing.
    /// Returns true if anything was lost.
    pub(crate) fn lose_power(&mut self, random: &mut Random) -> bool {
        let mut torn = false;
        for file in self.open.values_mut().filter(|file| file.bytes.len() > file.synced) {
            torn = true;
            let kept = random.within(file.synced as u64, file.bytes.len() as u64) as usize;
            file.bytes.truncate(kept);
            let unsafe_from = file.synced;
            for sector in file.bytes[unsafe_from..].chunks_mut(SECTOR) {
                if random.one_in(3) {
                    sector.fill(0);
                }
            }
        }
        torn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwind_protocol::ids::{Epoch, Generation, LogId};
    use tailwind_protocol::layout::SegmentSize;

    #[test]
    fn power_takes_only_what_no_fsync_has_confirmed() {
        let identity = SegmentIdentity {
            log: LogId(1),
            segment: SegmentId(1),
            epoch: Epoch(1),
            generation: Generation(1),
            size: SegmentSize::MIN,
        };
        for seed in 0..100 {
            let mut disk = Disk::default();
            disk.write_open(identity, &[7; 1000]).synced = 1000;
            disk.write_open(identity, &[7; 5000]);
            disk.write_open(identity, &[7; 10]);
            assert_eq!(disk.open[&SegmentId(1)].bytes.len(), 5000);
            assert!(disk.lose_power(&mut Random::new(seed)));
            assert_eq!(disk.open[&SegmentId(1)].bytes[..1000], [7; 1000]);
        }
    }
}
