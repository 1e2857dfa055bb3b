//! A snapshot of the store that is written while the store changes, and how it is put together again.
//!
//! The snapshot is of one moment: that of its first record in the log. It is written in pieces between other writes, and
//! before one of these changes a key that has not been written yet, the old entry is put aside. So no moment stands still for
//! longer than a piece takes, and memory holds at most one more copy of what changes in that time.
//!
//! Its bytes are a run of entries, cut anywhere into chunks: `u32` length of the key, `u32` length of the value, `u64`
//! deadline or 0, key, value.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::{Buf, Bytes, BytesMut};

use super::{Entry, Place, Store, place};

/// Bytes of an entry before its key.
const ENTRY_HEAD_SIZE: usize = 16;

/// A snapshot that is being written.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// The last key that was written, or skipped because it is newer than the snapshot.
    done: Option<Place>,
    /// What other keys held when the snapshot began, if they have changed since. `None`: there was no such key.
    kept: BTreeMap<Place, Option<Entry>>,
    /// Bytes of entries that no chunk has taken yet.
    bytes: BytesMut,
    entries: u64,
}

impl Snapshot {
    /// An entry is about to change.
    pub(super) fn keep(&mut self, place: &Place, old: Option<Entry>) {
        if self.done.as_ref().is_none_or(|done| place > done) && !self.kept.contains_key(place) {
            self.kept.insert(place.clone(), old);
        }
    }

    /// Writes the next entry; false if there is none.
    fn write_next(&mut self, entries: &BTreeMap<Place, Entry>) -> bool {
        loop {
            let after = self.done.as_ref().map_or(Bound::Unbounded, |done| Bound::Excluded(done.clone()));
            let present = entries.range((after, Bound::Unbounded)).next();
            let kept = self.kept.first_key_value();
            let (place, entry) = match (present, kept) {
                (None, None) => return false,
                // What was put aside counts, where there are both.
                (Some((place, entry)), kept) if kept.is_none_or(|(kept, _)| place < kept) => {
                    (place.clone(), Some(entry.clone()))
                }
                _ => self.kept.pop_first().expect("one of the two is there"),
            };
            self.done = Some(place.clone());
            if let Some(entry) = entry {
                write_entry(&mut self.bytes, &place.1, &entry);
                self.entries += 1;
                return true;
            }
        }
    }
}

fn write_entry(out: &mut BytesMut, key: &Bytes, entry: &Entry) {
    let length = |bytes: &Bytes| u32::try_from(bytes.len()).expect("limits are far below 4 GiB").to_le_bytes();
    out.extend_from_slice(&length(key));
    out.extend_from_slice(&length(&entry.value));
    out.extend_from_slice(&entry.deadline.unwrap_or(0).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(&entry.value);
}

impl Store {
    /// Begins a snapshot of what there is now.
    pub fn begin_snapshot(&mut self) {
        self.snapshot = Some(Snapshot::default());
    }

    /// The next chunk of the snapshot that has begun, of at most `size` bytes; `None` when all have been taken.
    pub fn next_chunk(&mut self, size: usize) -> Option<Bytes> {
        let snapshot = self.snapshot.as_mut()?;
        while snapshot.bytes.len() < size && snapshot.write_next(&self.entries) {}
        let size = size.min(snapshot.bytes.len());
        (size > 0).then(|| snapshot.bytes.split_to(size).freeze())
    }

    /// Ends the snapshot; how many keys it has.
    pub fn end_snapshot(&mut self) -> u64 {
        self.snapshot.take().map_or(0, |snapshot| snapshot.entries)
    }
}

/// A snapshot that is being read.
#[derive(Debug, Default)]
pub struct Gather {
    store: Store,
    bytes: BytesMut,
    entries: u64,
}

impl Gather {
    /// Takes the next chunk.
    pub fn take(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        while let Some((key, entry)) = self.next_entry() {
            self.store.put(place(&key), entry);
            self.entries += 1;
        }
    }

    fn next_entry(&mut self) -> Option<(Bytes, Entry)> {
        let mut head = self.bytes.get(..ENTRY_HEAD_SIZE)?;
        let (key, value) = (head.get_u32_le() as usize, head.get_u32_le() as usize);
        let deadline = Some(head.get_u64_le()).filter(|deadline| *deadline != 0);
        let size = ENTRY_HEAD_SIZE + key + value;
        let body = self.bytes.get(ENTRY_HEAD_SIZE..size)?;
        let value = Bytes::copy_from_slice(&body[key..]);
        let key = Bytes::copy_from_slice(&body[..key]);
        self.bytes.advance(size);
        Some((key, Entry { value, deadline }))
    }

    /// The store, if the snapshot is whole.
    pub fn finish(self, entries: u64) -> Option<Store> {
        (self.bytes.is_empty() && self.entries == entries).then_some(self.store)
    }
}
