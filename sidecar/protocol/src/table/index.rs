//! The primary's index: for each key where its last record is, in two views.
//!
//! Driven by the append path, for each request that changes the table: *judge* and [stage](Index::stage), *append* the batch,
//! then [`Staged::appended`](super::staged::Staged::appended); and [`Index::acked`] with each acknowledgement. The cleaner's moves take the same way
//! ([`Index::stage_moves`]). [`fold`](super::fold) builds one from a log.
//!
//! - The *appended view* has everything that was appended. Conditions are judged by it: requests follow one another without
//!   waiting for acknowledgements. It is the append path's own.
//! - The [*acknowledged view*](AckedView) has what is acknowledged, and is what a mirror shows.
//!
//! A key stays in one entry for as long as either view has it. All memory is there from the start, 56 bytes for an entry and so
//! 93 for a key: nothing here allocates after construction.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::{Lsn, Position, SegmentId};
use crate::planted::{self, Bug};

use super::acked::{AckedView, EntryId, LineId};
use super::entry::{Entry, Present, Word};
use super::hash::{BUCKET_ENTRIES, Buckets, HashKey, KeyHash};
use super::place::{Place, Window};
use super::record::{Key, Revision};
use super::request::Revisions;
use super::staged::Change;

/// Unit of [`Appended::size`]: records take multiples of it.
const SIZE_UNIT: u64 = 8;
/// Changes that may wait for their acknowledgement: as many appends as may wait, each with one record, less one, so that the
/// number of those of one entry fits 16 bits.
pub const CHANGES_MAX: usize = u16::MAX as usize;

/// What an index is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Its buckets.
    pub buckets: Buckets,
    /// Keys at which the table takes no others.
    pub keys_max: u32,
    /// Bytes of live records at which it takes nothing that adds to them; see
    /// [`Bounds::live_bytes_max`](super::bounds::Bounds::live_bytes_max).
    pub live_bytes_max: u64,
}

/// Why a table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Full {
    /// Both buckets of a new key are.
    Buckets,
    /// It has as many keys as it may.
    Keys,
    /// Its live records have as many bytes as they may.
    Memory,
}

/// Both buckets of a key are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoEntry {
    /// Until a delete that was appended is acknowledged.
    ForNow,
    /// Until one of their keys is deleted.
    AtAll,
}

/// The appended view of an entry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Appended {
    /// Of the key's hash; the other half is in the acknowledged view.
    h0: u64,
    /// `None`: the key is absent.
    revision: Option<Revision>,
    /// Where its last record is, if it is present.
    place: Option<Place>,
    /// Bytes of that record in the log, in units of [`SIZE_UNIT`].
    size: u16,
    /// Its changes that wait for their acknowledgement.
    unacked: u16,
}

const _: () = assert!(size_of::<Appended>() == 24);
const _: () =
    assert!(super::record::KEYED_SIZE_MAX + crate::layout::RECORD_HEADER_SIZE < SIZE_UNIT as usize * u16::MAX as usize);

/// A key's last record, acknowledged or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latest {
    /// The key's revision.
    pub revision: Revision,
    /// Where the record is.
    pub place: Place,
}

/// The index.
#[derive(Debug)]
pub struct Index {
    pub(super) limits: Limits,
    window: Window,
    view: Arc<AckedView>,
    appended: Box<[Appended]>,
    /// What was appended and is not acknowledged, in the order of LSNs.
    pub(super) changes: VecDeque<Change>,
    /// What waits for its append: see [`Staged`](super::staged::Staged).
    pub(super) staged: Vec<super::staged::Planned>,
    keys: u32,
    live_bytes: u64,
}

impl Index {
    /// An empty index, with all the memory that it will ever have.
    pub fn new(key: HashKey, limits: Limits, window: Window) -> Index {
        let entries = limits.buckets.entries() as usize;
        Index {
            limits,
            window,
            view: Arc::new(AckedView::new(key, limits.buckets)),
            appended: vec![Appended::default(); entries].into(),
            changes: VecDeque::with_capacity(CHANGES_MAX),
            staged: Vec::with_capacity(super::staged::STAGED_MAX),
            keys: 0,
            live_bytes: 0,
        }
    }

    /// What is acknowledged, for a thread that copies it.
    pub fn acked_view(&self) -> &Arc<AckedView> {
        &self.view
    }

    /// What it is made for.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How its places count.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Keys that are present, by the appended view.
    pub fn keys(&self) -> u32 {
        self.keys
    }

    /// Bytes that live records take in the log, by the appended view.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The last change that waits for its acknowledgement.
    pub fn unacked(&self) -> Option<Lsn> {
        self.changes.back().map(|change| change.lsn)
    }

    /// A key's last record, by the appended view; `None`: it is absent. For the source of a copy.
    pub fn latest(&self, key: Key<'_>) -> Option<Latest> {
        let appended = self.at(self.find(self.hash(key))?);
        Some(Latest { revision: appended.revision?, place: appended.place? })
    }

    /// What is acknowledged of a key; `None`: it is absent.
    pub fn acknowledged(&self, key: Key<'_>) -> Option<Present> {
        self.acknowledged_of(self.hash(key))
    }

    /// The same of the key with this hash. For a get, which need not keep its key.
    pub fn acknowledged_of(&self, hash: KeyHash) -> Option<Present> {
        self.shown(self.find(hash)?)?.present
    }

    /// Everything up to this record is acknowledged, and becomes visible. `changed` is told which lines have changed, some more
    /// than once.
    pub fn acked(&mut self, acked: Lsn, mut changed: impl FnMut(LineId)) {
        while let Some(change) = self.changes.pop_front_if(|change| change.lsn <= acked) {
            self.show(&change);
            changed(change.entry.line());
        }
    }

    /// The oldest change, which is acknowledged now, becomes visible.
    fn show(&mut self, change: &Change) {
        let entry = change.entry;
        let appended = &mut self.appended[entry.0 as usize];
        appended.unacked -= 1;
        let is_last = appended.unacked == 0;
        let Some(shown) = self.shown(entry) else { unreachable!("an entry with changes is taken") };
        let present = change.to.map(|to| {
            let word = shown.present.map_or_else(|| Word::first(to.place), |was| was.word.publish(to.place));
            Present { word, revision: to.revision, length: to.length }
        });
        if present.is_none() && is_last {
            self.free(entry);
        } else {
            // After a delete with more to come the entry is kept for the key, which is absent until then.
            self.view.store(entry, Some(&Entry { present, ..shown }));
        }
    }

    /// What stands for the key here.
    pub fn hash(&self, key: Key<'_>) -> KeyHash {
        self.view.hash_key().hash(key)
    }

    /// The entry of a key that either view has.
    pub(super) fn find(&self, hash: KeyHash) -> Option<EntryId> {
        let fingerprint = Some(hash.fingerprint());
        let mut candidates = self.limits.buckets.of(hash).into_iter().flat_map(entries_of);
        candidates.find(|entry| self.at(*entry).h0 == hash.h0 && self.view.has(*entry, fingerprint))
    }

    /// Takes an entry for a key that has none, in the emptier of its buckets; it never moves to the other.
    pub(super) fn reserve(&mut self, hash: KeyHash) -> Result<EntryId, NoEntry> {
        let buckets = self.limits.buckets.of(hash);
        let free = |bucket| entries_of(bucket).filter(|entry| self.is_free(*entry)).count();
        let bucket = if free(buckets[0]) >= free(buckets[1]) { buckets[0] } else { buckets[1] };
        let Some(entry) = entries_of(bucket).find(|entry| self.is_free(*entry)) else {
            let leaves = |entry| self.at(entry).revision.is_none() && self.at(entry).unacked > 0;
            let any_leaves = buckets.into_iter().flat_map(entries_of).any(leaves);
            return Err(if any_leaves { NoEntry::ForNow } else { NoEntry::AtAll });
        };
        self.appended[entry.0 as usize] = Appended { h0: hash.h0, ..Appended::default() };
        self.view.store(entry, Some(&Entry { fingerprint: hash.fingerprint(), present: None }));
        Ok(entry)
    }

    /// Gives an entry back that was reserved for what is not appended after all, unless something else needs it.
    pub(super) fn release(&mut self, entry: EntryId) {
        let appended = self.at(entry);
        if appended.revision.is_none() && appended.unacked == 0 {
            self.free(entry);
        }
    }

    fn free(&mut self, entry: EntryId) {
        self.appended[entry.0 as usize] = Appended::default();
        self.view.store(entry, None);
    }

    /// The appended view takes a change, and the queue of what is to be acknowledged as well.
    pub(super) fn append(&mut self, change: Change) {
        assert!(self.changes.len() < CHANGES_MAX, "room is made sure of before the append");
        assert!(self.unacked().is_none_or(|last| last < change.lsn), "changes come in the order of LSNs");
        self.change_appended(change);
        self.appended[change.entry.0 as usize].unacked += 1;
        self.changes.push_back(change);
        if planted::has(Bug::IndexBeforeAck) {
            self.acked(change.lsn, |_| {});
        }
    }

    /// A change of a log that is read back: all of it is acknowledged.
    pub(super) fn fold(&mut self, change: Change) {
        assert!(self.changes.is_empty(), "a log is folded before anything is appended");
        self.change_appended(change);
        self.appended[change.entry.0 as usize].unacked = 1;
        self.show(&change);
    }

    /// Removes the keys whose last record is in a segment before `first`, as if these had not been folded. The newest one that was
    /// folded is `last`, and the oldest less than a window before it.
    pub(super) fn forget_before(&mut self, first: SegmentId, last: SegmentId) {
        assert!(self.changes.is_empty(), "a log is folded before anything is appended");
        for entry in (0..self.limits.buckets.entries()).map(EntryId) {
            let Some(place) = self.at(entry).place else { continue };
            if self.window.position_up_to(place, last).is_none_or(|at| at.segment < first) {
                self.change_appended(Change { lsn: Lsn(0), entry, to: None });
                self.free(entry);
            }
        }
    }

    fn change_appended(&mut self, change: Change) {
        let appended = &mut self.appended[change.entry.0 as usize];
        let was = (appended.revision.is_some(), appended.size);
        appended.revision = change.to.map(|to| to.revision);
        appended.place = change.to.map(|to| to.place);
        appended.size = change.to.map_or(0, |to| units(to.size_in_log()));
        let is = (appended.revision.is_some(), appended.size);
        self.keys = self.keys + u32::from(is.0) - u32::from(was.0);
        self.live_bytes = self.live_bytes + bytes(is.1) - bytes(was.1);
    }

    /// Revision, and bytes in the log, of what an entry's key has.
    pub(super) fn now(&self, entry: EntryId) -> (Option<Revision>, u64) {
        let appended = self.at(entry);
        (appended.revision, bytes(appended.size))
    }

    /// True if the key's last record is at this place.
    pub(super) fn is_latest(&self, entry: EntryId, place: Place) -> bool {
        self.at(entry).place == Some(place)
    }

    pub(super) fn place(&self, at: Position) -> Place {
        self.window.place(at).expect("a record begins where one was placed")
    }

    fn at(&self, entry: EntryId) -> &Appended {
        &self.appended[entry.0 as usize]
    }

    fn is_free(&self, entry: EntryId) -> bool {
        self.view.has(entry, None)
    }

    fn shown(&self, entry: EntryId) -> Option<Entry> {
        self.view.entry(entry).expect("what one thread writes and reads verifies")
    }

    /// Asserts that both views agree, as they must once everything is acknowledged, and that what is counted is there.
    pub fn check(&self, end: SegmentId) {
        assert!(self.changes.is_empty(), "everything is acknowledged");
        let (mut keys, mut live) = (0, 0);
        for number in 0..self.limits.buckets.entries() {
            let (entry, appended) = (EntryId(number), self.at(EntryId(number)));
            let shown = self.shown(entry).and_then(|shown| shown.present);
            let seen = shown.map(|shown| (shown.revision, shown.word.new_place()));
            assert_eq!(seen, appended.revision.map(|revision| (revision, appended.place)), "entry {number}");
            assert_eq!(shown.is_none(), self.is_free(entry), "an entry is kept for a key");
            if let Some(shown) = shown {
                let size = crate::layout::record_size(shown.length as usize) as u64;
                assert_eq!(size, bytes(appended.size), "entry {number}");
                let at = appended.place.and_then(|place| self.window.position(place, end));
                assert!(at.is_some_and(|at| at.segment <= end), "entry {number} names no record");
                (keys, live) = (keys + 1, live + size);
            }
        }
        assert_eq!((keys, live), (self.keys, self.live_bytes));
    }
}

impl Revisions for Index {
    fn revision(&self, key: Key<'_>) -> Option<Revision> {
        self.latest(key).map(|latest| latest.revision)
    }
}

fn entries_of(bucket: u32) -> impl Iterator<Item = EntryId> {
    (bucket * BUCKET_ENTRIES..(bucket + 1) * BUCKET_ENTRIES).map(EntryId)
}

fn units(bytes: u64) -> u16 {
    (bytes / SIZE_UNIT) as u16
}

fn bytes(units: u16) -> u64 {
    u64::from(units) * SIZE_UNIT
}
