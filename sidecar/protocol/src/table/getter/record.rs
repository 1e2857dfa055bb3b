//! What is read for one get: which entries are of its key, which bytes are the record, and whether they are.

use std::ops::Range;
use std::time::Duration;

use crate::ids::{Offset, Position, SegmentId};
use crate::layout::{RECORD_HEADER_SIZE, RecordHeader};
use crate::planted::{self, Bug};
use crate::table::entry::{ENTRY_SIZE, Entry, Present};
use crate::table::hash::Fingerprint;
use crate::table::place::Window;
use crate::table::record::{KEYED_SIZE_MAX, Key, KeyedRecord, Revision, Value};

/// Entries with the fingerprint of a key, of both its buckets. More than one if another key has the same, or if the key was deleted
/// and put again, and not both lines have been written yet.
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    /// Ascending by revision: the last one is read first.
    present: Vec<Present>,
    /// An entry does not verify: it may be the key's.
    pub(super) any_unsound: bool,
}

impl Candidates {
    pub(super) fn of(buckets: &[u8], fingerprint: Fingerprint, seed: u32) -> Candidates {
        let mut candidates = Candidates { present: Vec::new(), any_unsound: false };
        for bytes in buckets.as_chunks::<ENTRY_SIZE>().0 {
            match Entry::decode(bytes, seed) {
                Ok(Some(entry)) if entry.fingerprint == fingerprint => candidates.present.extend(entry.present),
                Ok(_) => {}
                Err(_) => candidates.any_unsound = true,
            }
        }
        candidates.present.sort_by_key(|present| present.revision);
        candidates
    }

    pub(super) fn next(&mut self) -> Option<Present> {
        self.present.pop()
    }
}

/// Which record of an entry is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The new one.
    New,
    /// The header of the one before, whose length no entry says.
    HeaderBefore,
    /// The one before.
    Before(u32),
}

/// A record that is being read.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    /// Since when its entry was read, and as of which record.
    pub(super) posted: Duration,
    pub(super) as_of: crate::ids::Lsn,
    pub(super) present: Present,
    pub(super) candidates: Candidates,
    what: What,
}

/// What bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checked<'a> {
    /// The key's record.
    Value(Revision, Value<'a>),
    /// A header, of a record with so long a payload.
    Header(u32),
    /// Another key's record, which has the same fingerprint.
    OtherKey,
    /// Not what was to be read: torn, rotten, or of what was there before or after.
    Unsound,
}

impl Reading {
    pub(super) fn new(posted: Duration, as_of: crate::ids::Lsn, present: Present, candidates: Candidates) -> Reading {
        Reading { posted, as_of, present, candidates, what: What::New }
    }

    /// After this record could not be read: the one before, if there is one.
    pub(super) fn before(&self) -> Option<Reading> {
        let there_is_one = self.is_new() && self.present.word.old_place().is_some();
        there_is_one.then(|| Reading { what: What::HeaderBefore, ..self.clone() })
    }

    /// The same with the length that its header says.
    pub(super) fn with_length(&self, length: u32) -> Reading {
        Reading { what: What::Before(length), ..self.clone() }
    }

    pub(super) fn is_new(&self) -> bool {
        self.what == What::New
    }

    /// Where its bytes are, in a log that ends in or near this segment. `None`: there can be no such record.
    pub(super) fn place(&self, window: Window, end: SegmentId) -> Option<(SegmentId, Range<u32>)> {
        let word = self.present.word;
        let place = if self.is_new() { word.new_place() } else { word.old_place() };
        let Position { segment, offset: Offset(begin) } = window.position(place?, end)?;
        let payload = match self.what {
            What::New => self.present.length,
            What::HeaderBefore => 0,
            What::Before(length) => length,
        };
        let end = begin + RECORD_HEADER_SIZE as u32 + payload;
        (end <= window.segment_size().bytes()).then_some((segment, begin..end))
    }

    /// Whether these bytes are the record: by type and length, by the payload's CRC, by revision and key. Key and revision prove
    /// that it is this one, no matter what else has been in this memory. Of the record before, whose revision no entry
    /// has, only the key does: there it counts that a completed read is of its share.
    pub(super) fn check<'a>(&self, bytes: &'a [u8], key: Key<'_>) -> Checked<'a> {
        self.try_check(bytes, key).unwrap_or(Checked::Unsound)
    }

    fn try_check<'a>(&self, bytes: &'a [u8], key: Key<'_>) -> Option<Checked<'a>> {
        let (header, payload) = bytes.split_first_chunk()?;
        let header = RecordHeader::from_bytes(header)?;
        let length = match self.what {
            What::New => self.present.length,
            What::HeaderBefore => {
                let possible = header.length as usize <= KEYED_SIZE_MAX;
                return possible.then_some(Checked::Header(header.length));
            }
            What::Before(length) => length,
        };
        if header.length != length || payload.len() != length as usize {
            return None;
        }
        if crc32fast::hash(payload) != header.payload_crc {
            return None;
        }
        let record = KeyedRecord::decode(payload, header.lsn).ok()?;
        let revision = record.revision(header.lsn)?;
        let expected = self.present.revision;
        let fits = if self.is_new() { revision == expected } else { revision <= expected };
        if !fits && !planted::has(Bug::RevisionUnchecked) {
            return None;
        }
        if record.key() != key && !planted::has(Bug::KeyUnchecked) {
            return Some(Checked::OtherKey);
        }
        let revision = if self.is_new() { expected } else { revision };
        Some(Checked::Value(revision, record.value()?))
    }
}
