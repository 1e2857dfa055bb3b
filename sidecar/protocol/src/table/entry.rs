//! An entry of an index, as it stands in a mirror: 32 bytes that say where one key's last acknowledged record is.
//!
//! Written by the primary's [`AckedView`](super::acked::AckedView), read by getters out of members' memory. An entry that was read while
//! it was written does not verify, nor does one of another index: its CRC begins with the hash key.
//!
//! ```text
//!  0..8   fingerprint; zero: no entry, and then all 32 bytes are
//!  8..16  Erda's word: bit 63 new tag, 62..32 place A, 31 zero, 30..0 place B
//! 16..24  revision
//! 24..28  payload length of the record at the new place
//! 28..32  CRC-32 of the hash key, then of 0..28
//! ```
//! A fingerprint with zeros in 8..28 is a key that is absent: it is being written for the first time, or again after a delete.

use std::num::NonZeroU64;

use crate::ids::Lsn;
use crate::planted::{self, Bug};

use super::hash::Fingerprint;
use super::place::Place;
use super::record::{KEYED_HEADER_SIZE, KEYED_SIZE_MAX, Revision};

/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 32;
/// An entry's bytes.
pub type EntryBytes = [u8; ENTRY_SIZE];
/// Where an entry's CRC is.
const CRC_AT: usize = ENTRY_SIZE - 4;

const TAG: u64 = 1 << 63;
const A_SHIFT: u32 = 32;
const PLACE_MASK: u64 = 0x7fff_ffff;
const RESERVED: u64 = 1 << 31;

/// Two places of a key's records in 8 bytes: of the newest and of the one before (Erda 3.2.3). With the tag, A is the new one
/// and B the old one, without it the other way round. Each publication flips the tag and writes the other half, so the place
/// that was new becomes the old one without being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word(u64);

impl Word {
    /// The word of a key whose first record is at `place`.
    pub fn first(place: Place) -> Word {
        Word(TAG | half(place) << A_SHIFT)
    }

    /// A word as it was read. `None`: it names no new place, or has bits of another format.
    pub fn from_bits(bits: u64) -> Option<Word> {
        let word = Word(bits);
        (bits & RESERVED == 0 && word.place_new_bits() != 0).then_some(word)
    }

    /// Its bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The word after a publication of this place.
    #[must_use]
    pub fn publish(self, place: Place) -> Word {
        let (flipped, shift) = if self.0 & TAG == 0 { (self.0 | TAG, A_SHIFT) } else { (self.0 & !TAG, 0) };
        Word(flipped & !(PLACE_MASK << shift) | half(place) << shift)
    }

    /// Where the key's last record is.
    pub fn new_place(self) -> Option<Place> {
        Place::from_bits(self.place_new_bits())
    }

    /// Where its record before that was; it may be trimmed since.
    pub fn old_place(self) -> Option<Place> {
        Place::from_bits(if self.0 & TAG == 0 { self.a() } else { self.b() })
    }

    fn place_new_bits(self) -> u32 {
        if self.0 & TAG == 0 { self.b() } else { self.a() }
    }

    fn a(self) -> u32 {
        (self.0 >> A_SHIFT & PLACE_MASK) as u32
    }

    fn b(self) -> u32 {
        (self.0 & PLACE_MASK) as u32
    }
}

fn half(place: Place) -> u64 {
    u64::from(Place::bits(Some(place)))
}

/// What an entry says of a key that is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Present {
    /// Where its records are.
    pub word: Word,
    /// Its revision.
    pub revision: Revision,
    /// Bytes of the payload of its last record.
    pub length: u32,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Of the key's hash.
    pub fingerprint: Fingerprint,
    /// `None`: the key is absent, as far as everything that is acknowledged goes.
    pub present: Option<Present>,
}

/// Bytes that are no entry, whole and of this index: torn, rotten or foreign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an entry of the index does not verify")]
pub struct Unsound;

impl Entry {
    /// The entry in these bytes, under the [seed](super::hash::HashKey::seed) of the index; `None`: there is none.
    pub fn decode(bytes: &EntryBytes, seed: u32) -> Result<Option<Entry>, Unsound> {
        if *bytes == [0; ENTRY_SIZE] {
            return Ok(None);
        }
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if u32_at(CRC_AT) != crc(bytes, seed) && !planted::has(Bug::EntryWithoutCrc) {
            return Err(Unsound);
        }
        let fingerprint = Fingerprint(NonZeroU64::new(u64_at(0)).ok_or(Unsound)?);
        let (word, revision, length) = (u64_at(8), u64_at(16), u32_at(24));
        if (word, revision, length) == (0, 0, 0) {
            return Ok(Some(Entry { fingerprint, present: None }));
        }
        let possible = (KEYED_HEADER_SIZE + 1..=KEYED_SIZE_MAX).contains(&(length as usize));
        let (Some(word), Some(revision), true) = (Word::from_bits(word), Revision::of(Lsn(revision)), possible) else {
            return Err(Unsound);
        };
        Ok(Some(Entry { fingerprint, present: Some(Present { word, revision, length }) }))
    }

    /// Its bytes.
    pub fn encode(&self, seed: u32) -> EntryBytes {
        let mut out = [0; ENTRY_SIZE];
        out[..8].copy_from_slice(&self.fingerprint.0.get().to_le_bytes());
        if let Some(present) = self.present {
            out[8..16].copy_from_slice(&present.word.bits().to_le_bytes());
            out[16..24].copy_from_slice(&Revision::number(Some(present.revision)).to_le_bytes());
            out[24..28].copy_from_slice(&present.length.to_le_bytes());
        }
        let crc = crc(&out, seed);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }
}

/// Gives any bytes but zeros a right CRC, for [`Bug::CrcMadeWhenPosted`].
pub(super) fn reseal(bytes: &mut EntryBytes, seed: u32) {
    if *bytes != [0; ENTRY_SIZE] {
        let crc = crc(bytes, seed);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    }
}

fn crc(bytes: &EntryBytes, seed: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    hasher.update(&bytes[..CRC_AT]);
    hasher.finalize()
}
