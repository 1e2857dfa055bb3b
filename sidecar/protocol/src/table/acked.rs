//! The acknowledged view: every entry of the primary's index, as it is acknowledged, in memory that another thread may copy at any time.
//!
//! Written by the append path's [`Index`](super::index::Index) alone, with each acknowledgement. A mirror's thread copies lines
//! of it to the members. Atomic words and no lock: the writer never waits, and what is copied in the middle of a change does not
//! verify ([`entry`](super::entry)), and is copied again because the change marks its line.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::planted::{self, Bug};

use super::entry::{ENTRY_SIZE, Entry, EntryBytes, Unsound, reseal};
use super::hash::{Buckets, Fingerprint, HashKey};

/// Words of an entry.
const WORDS: usize = ENTRY_SIZE / 8;
/// Entries of a line.
pub const LINE_ENTRIES: u32 = 2;
/// Bytes of a line: what is copied at once.
pub const LINE_SIZE: usize = LINE_ENTRIES as usize * ENTRY_SIZE;

/// An entry's number in its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub u32);

/// A line's number in its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineId(pub u32);

impl EntryId {
    /// The line that it is in.
    pub fn line(self) -> LineId {
        LineId(self.0 / LINE_ENTRIES)
    }
}

/// The entries of an index.
#[derive(Debug)]
pub struct AckedView {
    key: HashKey,
    seed: u32,
    buckets: Buckets,
    words: Box<[AtomicU64]>,
}

impl AckedView {
    /// An empty view, with all the memory that it will ever have.
    pub fn new(key: HashKey, buckets: Buckets) -> AckedView {
        let words = (0..buckets.entries() as usize * WORDS).map(|_| AtomicU64::new(0)).collect();
        AckedView { key, seed: key.seed(), buckets, words }
    }

    /// Under which its keys are hashed.
    pub fn hash_key(&self) -> &HashKey {
        &self.key
    }

    /// Its buckets.
    pub fn buckets(&self) -> Buckets {
        self.buckets
    }

    /// Number of its lines.
    pub fn lines(&self) -> u32 {
        self.buckets.entries() / LINE_ENTRIES
    }

    /// A line's bytes. Of an entry that is being changed some may be old, and then it does not verify.
    pub fn line(&self, line: LineId) -> [u8; LINE_SIZE] {
        self.line_while(line, || {})
    }

    /// The same for a model, in which something happens before each word is copied.
    pub fn line_while(&self, line: LineId, mut happens: impl FnMut()) -> [u8; LINE_SIZE] {
        let mut out = [0; LINE_SIZE];
        let first = (line.0 * LINE_ENTRIES) as usize * WORDS;
        for (bytes, word) in out.chunks_exact_mut(8).zip(&self.words[first..]) {
            happens();
            bytes.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
        }
        if planted::has(Bug::CrcMadeWhenPosted) {
            for entry in out.as_chunks_mut().0 {
                reseal(entry, self.seed);
            }
        }
        out
    }

    /// An entry's bytes; see [`AckedView::line`].
    pub fn bytes(&self, entry: EntryId) -> EntryBytes {
        let mut out = [0; ENTRY_SIZE];
        for (bytes, word) in out.chunks_exact_mut(8).zip(self.words(entry)) {
            bytes.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
        }
        out
    }

    /// An entry as it is; `None`: there is none. At the thread that writes it always verifies.
    pub fn entry(&self, entry: EntryId) -> Result<Option<Entry>, Unsound> {
        Entry::decode(&self.bytes(entry), self.seed)
    }

    /// The fingerprint alone; 0: there is no entry.
    pub(super) fn has(&self, entry: EntryId, fingerprint: Option<Fingerprint>) -> bool {
        // Only this thread writes: nothing is ordered by it.
        self.words(entry)[0].load(Ordering::Relaxed) == fingerprint.map_or(0, |fingerprint| fingerprint.0.get())
    }

    /// Changes an entry. The word with the CRC comes last: who copies in order finds the change whole, or one that does not verify.
    pub(super) fn store(&self, entry: EntryId, new: Option<&Entry>) {
        let bytes = new.map_or([0; ENTRY_SIZE], |new| new.encode(self.seed));
        for (word, bytes) in self.words(entry).iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_le_bytes(std::array::from_fn(|at| bytes[at])), Ordering::Release);
        }
    }

    fn words(&self, entry: EntryId) -> &[AtomicU64] {
        let at = entry.0 as usize * WORDS;
        &self.words[at..at + WORDS]
    }
}
