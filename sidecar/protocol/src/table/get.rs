//! The record that a get or a copy needs: where it is, and whether bytes that were brought are it.
//!
//! Named by the primary's log (`tailwind_primary`) from the index. Where the record is in a closed segment, its bytes come from a
//! member and are not checked there: who brings them asks [`Wanted::value`] before anything is made of them.

use std::ops::Range;

use crate::ids::{Lsn, Position};
use crate::layout::{RECORD_HEADER_SIZE, RecordHeader};
use crate::planted::{self, Bug};

use super::hash::{HashKey, KeyHash};
use super::record::{KEYED_HEADER_SIZE, KEYED_SIZE_MAX, Key, KeyedRecord, Revision, Value};

/// Most bytes of one record that is wanted: its header, and its payload.
pub const WANTED_SIZE_MAX: usize = RECORD_HEADER_SIZE + KEYED_SIZE_MAX;

/// The last acknowledged record of a key, by the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Where it begins.
    pub at: Position,
    /// Bytes of its payload.
    pub length: u32,
    /// The key's revision.
    pub revision: Revision,
    /// The key, as the index knows it.
    pub hash: KeyHash,
    /// Under which the index hashes keys.
    pub hash_key: HashKey,
}

impl Wanted {
    /// Its bytes in its segment: header and payload.
    pub fn bytes(&self) -> Range<u32> {
        let begin = self.at.offset.0;
        begin..begin + RECORD_HEADER_SIZE as u32 + self.length
    }

    /// Bytes of its value, if this is its key.
    pub fn value_size(&self, key: Key<'_>) -> usize {
        (self.length as usize).saturating_sub(KEYED_HEADER_SIZE + key.as_bytes().len())
    }

    /// The value in these bytes, if they are this record: by type and length, by the payload's CRC, by key and revision.
    pub fn value<'b>(&self, bytes: &'b [u8]) -> Option<Value<'b>> {
        if planted::has(Bug::RecordUnchecked) {
            return self.unchecked(bytes);
        }
        let (header, payload) = bytes.split_first_chunk::<RECORD_HEADER_SIZE>()?;
        let header = RecordHeader::from_bytes(header)?;
        if header.length != self.length || payload.len() != self.length as usize {
            return None;
        }
        if crc32fast::hash(payload) != header.payload_crc {
            return None;
        }
        let record = KeyedRecord::decode(payload, header.lsn).ok()?;
        let fits = record.revision(header.lsn) == Some(self.revision) && self.hash_key.hash(record.key()) == self.hash;
        if fits { record.value() } else { None }
    }

    fn unchecked<'b>(&self, bytes: &'b [u8]) -> Option<Value<'b>> {
        let payload = bytes.get(RECORD_HEADER_SIZE..)?;
        let (header, rest) = payload.split_first_chunk::<KEYED_HEADER_SIZE>()?;
        let key = usize::from(u16::from_le_bytes([header[6], header[7]]));
        Value::new(rest.get(key..)?).ok()
    }
}

/// What the primary's log looks up for a get, and has at once or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// The key is absent.
    Absent,
    /// It has this revision and value; the value is empty if none was asked for.
    Here(Revision, &'a [u8]),
    /// It is present, and its record has to be fetched.
    There(Wanted),
}

/// A get, as it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    /// The key.
    pub hash: KeyHash,
    /// The state after this record, or later.
    pub least: Lsn,
    /// Everything that was acknowledged to anybody before the request.
    pub fresh: bool,
    /// Only whether the key is there, and its revision.
    pub no_value: bool,
}
