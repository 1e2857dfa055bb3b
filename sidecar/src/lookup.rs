//! Lookups: what a standby asks of a backup that answers in place of being read from, and where that leads there.
//!
//! Only fabrics that `./bench` compares with have them (`docs/decisions/0040-two-sided-baselines.md`). The append path's
//! [getter](crate::path) asks, for the buckets of a key; a [backup](crate::backup) gives [`follow`] to its fabric. Nothing is believed
//! of either: the getter checks every byte.

use std::num::NonZeroU64;

use tailwind_fabric::reading::{Lead, QUESTION_MAX};
use tailwind_protocol::board::mirror::MirrorLine;
use tailwind_protocol::board::{BoardIdentity, Progress};
use tailwind_protocol::ids::{Offset, SegmentId};
use tailwind_protocol::layout::{RECORD_HEADER_SIZE, SegmentSize};
use tailwind_protocol::table::entry::{ENTRY_SIZE, Entry};
use tailwind_protocol::table::hash::{Fingerprint, HashKey};
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::record::Key;

/// Bytes of a question: fingerprint `u64`, last segment `u64`, seed `u32`, bytes of a segment `u32`.
const QUESTION_SIZE: usize = 24;
const _: () = assert!(QUESTION_SIZE <= QUESTION_MAX);

/// What questions to one member have in common.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    hash_key: HashKey,
    /// Where the log ends.
    end: SegmentId,
    segment_size: SegmentSize,
}

impl Asker {
    /// As the member's board says it.
    pub fn new(identity: &BoardIdentity, progress: &Progress, mirror: &MirrorLine) -> Asker {
        Asker { hash_key: mirror.hash_key, end: progress.end.segment, segment_size: identity.segment_size }
    }

    /// Asks for the newest record of this key.
    pub fn question(&self, key: Key<'_>) -> [u8; QUESTION_SIZE] {
        let fingerprint = self.hash_key.hash(key).fingerprint();
        let mut out = [0; QUESTION_SIZE];
        out[..8].copy_from_slice(&fingerprint.0.get().to_le_bytes());
        out[8..16].copy_from_slice(&self.end.0.to_le_bytes());
        out[16..20].copy_from_slice(&self.hash_key.seed().to_le_bytes());
        out[20..].copy_from_slice(&self.segment_size.bytes().to_le_bytes());
        out
    }
}

/// Where the record is that the newest entry of the question's key names, if these buckets have one. Slots have the names of their
/// segments.
pub fn follow(question: &[u8], buckets: &[u8]) -> Option<Lead> {
    let question: &[u8; QUESTION_SIZE] = question.try_into().ok()?;
    let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| question[at + i]));
    let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| question[at + i]));
    let fingerprint = Fingerprint(NonZeroU64::new(u64_at(0))?);
    let window = Window::new(SegmentSize::new(u32_at(20).into()).ok()?);
    let entries = buckets.as_chunks::<ENTRY_SIZE>().0.iter();
    let entries = entries.filter_map(|bytes| Entry::decode(bytes, u32_at(16)).ok().flatten());
    let of_key = entries.filter(|entry| entry.fingerprint == fingerprint);
    let newest = of_key.filter_map(|entry| entry.present).max_by_key(|present| present.revision)?;
    let at = window.position(newest.word.new_place()?, SegmentId(u64_at(8)))?;
    let Offset(begin) = at.offset;
    let end = begin.checked_add(RECORD_HEADER_SIZE as u32)?.checked_add(newest.length)?;
    (end <= window.segment_size().bytes()).then_some(Lead { name: at.segment.0, bytes: begin..end })
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::{Lsn, Position};
    use tailwind_protocol::table::entry::{Present, Word};
    use tailwind_protocol::table::record::Revision;

    use super::*;

    const ASKER: Asker = Asker { hash_key: HashKey([7; 16]), end: SegmentId(5), segment_size: SegmentSize::MIN };

    fn key(key: &str) -> Key<'_> {
        Key::new(key.as_bytes()).unwrap()
    }

    fn entry(of: &str, segment: u64, revision: u64) -> [u8; ENTRY_SIZE] {
        let place = Window::new(ASKER.segment_size).place(Position::new(SegmentId(segment), Offset(4096))).unwrap();
        let revision = Revision::of(Lsn(revision)).unwrap();
        let present = Some(Present { word: Word::first(place), revision, length: 100 });
        let fingerprint = ASKER.hash_key.hash(key(of)).fingerprint();
        Entry { fingerprint, present }.encode(ASKER.hash_key.seed())
    }

    fn record(name: u64) -> Option<Lead> {
        Some(Lead { name, bytes: 4096..4096 + RECORD_HEADER_SIZE as u32 + 100 })
    }

    #[test]
    fn a_question_leads_to_the_newest_record_of_its_key() {
        let buckets = [entry("b", 5, 9), entry("a", 3, 2), [0; ENTRY_SIZE], entry("a", 4, 7)].concat();
        assert_eq!(follow(&ASKER.question(key("a")), &buckets), record(4));
        assert_eq!(follow(&ASKER.question(key("b")), &buckets), record(5));
        assert_eq!(follow(&ASKER.question(key("c")), &buckets), None);
        let other = Asker { hash_key: HashKey([8; 16]), ..ASKER };
        assert_eq!(follow(&other.question(key("a")), &buckets), None, "of another index");
    }

    #[test]
    fn what_is_no_question_leads_nowhere() {
        let (buckets, question) = (entry("a", 3, 2), ASKER.question(key("a")));
        assert_eq!(follow(&question, &buckets), record(3));
        assert_eq!((follow(&question[..23], &buckets), follow(&[0; 24], &buckets)), (None, None));
        let mut torn = buckets;
        torn[20] ^= 1;
        assert_eq!(follow(&question, &torn), None);
        let mut small = question;
        small[20..].copy_from_slice(&4096_u32.to_le_bytes());
        assert_eq!(follow(&small, &buckets), None);
    }
}
