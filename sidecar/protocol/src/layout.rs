//! The bytes of the log, defined once: segment header, record header, checksum entry, file footer.
//!
//! Written by [`segment`](crate::segment), read by [`scan`](crate::scan); the same bytes lie in the primary's memory, in
//! the backups' buffers and in flushed files. Follows ATC'18 section 3.1, hardened as `docs/protocol.md`, "Log bytes",
//! explains. All integers are little-endian and every entry starts at a multiple of [`ALIGNMENT`].
//!
//! ```text
//! segment header (64)  checksum (8)  { record header (32)  payload, padded to 8 } × n  checksum (8)  ...  zeros
//! ```
//! n is 0 in a *mark*: a checksum entry that only records how far the log was acknowledged when it was written.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use crate::planted::{self, Bug};

/// Every entry starts at a multiple of this, so that one 8-byte store writes a checksum entry.
pub const ALIGNMENT: usize = 8;
/// Bytes of a [segment header](SegmentIdentity::header).
pub const SEGMENT_HEADER_SIZE: usize = 64;
/// Bytes of a [`RecordHeader`].
pub const RECORD_HEADER_SIZE: usize = 32;
/// Bytes of a checksum entry.
pub const CHECKSUM_SIZE: usize = 8;
/// Bytes of a [`Footer`].
pub const FOOTER_SIZE: usize = 48;
/// What every segment spends before its first record.
pub const SEGMENT_OVERHEAD: usize = SEGMENT_HEADER_SIZE + CHECKSUM_SIZE;
/// Bytes of the two marks that follow the last acknowledged append once the log is idle. Two, so that either proves the
/// other: whichever entry rots, a valid one stands behind it.
pub const MARKS_SIZE: usize = 2 * CHECKSUM_SIZE;
/// Fewest bytes that a record takes: an empty one.
pub const RECORD_SIZE_MIN: usize = RECORD_HEADER_SIZE;

const _: () = assert!(SEGMENT_HEADER_SIZE.is_multiple_of(ALIGNMENT) && RECORD_HEADER_SIZE.is_multiple_of(ALIGNMENT));
const _: () = assert!(CHECKSUM_SIZE == ALIGNMENT && FOOTER_SIZE.is_multiple_of(ALIGNMENT));

/// First bytes of a segment header; the last one is the format's version. The first one doubles as the entry's type.
pub const SEGMENT_MAGIC: [u8; 8] = *b"TWSEGMT2";
/// First bytes of a file's footer.
pub const FOOTER_MAGIC: [u8; 8] = *b"FWSEGMT1";

/// Type byte of memory that was never written.
pub const TYPE_UNWRITTEN: u8 = 0;
/// Type byte of a record header.
pub const TYPE_RECORD: u8 = b'R';
/// Type byte of a checksum entry.
pub const TYPE_CHECKSUM: u8 = b'C';
/// Last byte, in address order, of a checksum entry: never zero, so an entry whose end has not landed is not an entry.
pub const END_MARK: u8 = 0xE7;

/// Largest first LSN of a segment. Half of all numbers lie beyond it, a segment holds 2 million records at most: counting
/// on from a forged header cannot overflow.
pub const FIRST_LSN_MAX: Lsn = Lsn(u64::MAX / 2);

/// Largest number of a segment: far more than fit anywhere, and counting on from it cannot overflow.
pub const SEGMENT_MAX: SegmentId = SegmentId(u64::MAX / 2);

/// Size of a segment in bytes: a power of two between 64 KiB and 64 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct SegmentSize(u32);

/// An invalid segment size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("segment size {0}: must be a power of two between 64 KiB and 64 MiB")]
pub struct BadSegmentSize(String);

impl SegmentSize {
    /// Smallest: below it headers and unused ends outweigh records.
    pub const MIN: SegmentSize = SegmentSize(64 << 10);
    /// Largest: above it scanning r open buffers costs more than a failover may take.
    pub const MAX: SegmentSize = SegmentSize(64 << 20);
    /// The paper's 8 MiB.
    pub const DEFAULT: SegmentSize = SegmentSize(8 << 20);

    /// Checks a size in bytes.
    pub fn new(bytes: u64) -> Result<SegmentSize, BadSegmentSize> {
        match u32::try_from(bytes) {
            Ok(size) if size.is_power_of_two() && (Self::MIN.0..=Self::MAX.0).contains(&size) => Ok(SegmentSize(size)),
            _ => Err(BadSegmentSize(readable_size(bytes))),
        }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }

    /// Largest record: a quarter of the segment bounds what a roll-over wastes; 1 MiB bounds how long one holds up others.
    pub fn record_size_max(self) -> u32 {
        (self.0 / 4).min(1 << 20)
    }

    /// Largest batch, as laid out in the log, checksum included.
    pub fn append_size_max(self) -> u32 {
        self.0 / 2
    }
}

impl TryFrom<u32> for SegmentSize {
    type Error = BadSegmentSize;
    fn try_from(bytes: u32) -> Result<Self, BadSegmentSize> {
        SegmentSize::new(u64::from(bytes))
    }
}

impl From<SegmentSize> for u32 {
    fn from(size: SegmentSize) -> u32 {
        size.0
    }
}

impl std::fmt::Display for SegmentSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&readable_size(u64::from(self.0)))
    }
}

/// `8388608` → `8 MiB`; sizes that are no whole KiB stay bytes.
pub fn readable_size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(shift, _)| bytes >> shift > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes} bytes"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

/// What a segment is, known when its buffers are lent: everything that seeds its checksum chain, and its size. Equal on
/// every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SegmentIdentity {
    /// The log it belongs to.
    pub log: LogId,
    /// Its place in the log.
    pub segment: SegmentId,
    /// The epoch of the primary that opened it; no other epoch's records are in it.
    pub epoch: Epoch,
    /// Drawn at each opening.
    pub generation: Generation,
    /// Bytes of the buffer.
    pub size: SegmentSize,
}

/// Which records a segment holds, where its valid bytes end, and the proof: the chain over every header up to there.
/// Its default is the closure of a buffer in which not even the segment header is valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Closure {
    /// LSN of the first record, there or still to come; from the segment header, which is written when the segment
    /// before is full, after the buffers have been lent.
    pub first: Lsn,
    /// LSN of the last record; the one before `first` when there is none.
    pub last: Lsn,
    /// End of the last accepted append.
    pub end: Offset,
    /// Value of the checksum chain there.
    pub chain: Chain,
}

impl Closure {
    /// Number of records. Defined for any values, because it is called on closures from the wire before they are checked.
    pub fn records(&self) -> u64 {
        if self.end == Offset(0) { 0 } else { self.last.0.saturating_add(1).saturating_sub(self.first.0) }
    }

    /// True when a segment of this size can have this closure, judged by its numbers alone. Checked for closures from the
    /// network or a file before anything is computed with them.
    pub fn fits(&self, size: SegmentSize) -> bool {
        let end = self.end.0 as usize;
        let placed = end >= SEGMENT_OVERHEAD && end <= size.bytes() as usize && end.is_multiple_of(ALIGNMENT);
        let numbered = (Lsn(1)..=FIRST_LSN_MAX).contains(&self.first);
        // Not by `records`, which counts on from a last record that may be any number.
        let records = self.last.0.checked_sub(self.first.prev().0);
        let room = || ((end - SEGMENT_OVERHEAD) / RECORD_SIZE_MIN) as u64;
        placed && numbered && records.is_some_and(|records| records <= room())
    }
}

/// How far before a checksum entry the acknowledged log ended when the entry was written, rounded up, so that it never
/// claims too much. Stands in every checksum entry, at no cost in bytes: what was acknowledged and is no longer valid is
/// damaged, as long as one valid entry stands behind it. See "Evidence" in `docs/protocol.md`.
///
/// Up to 256 KiB it counts in units of 8 bytes; with the highest bit set, in units of 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lag(pub u16);

impl Lag {
    /// More is in flight than a lag can express, which is 16 MiB: nothing is claimed.
    pub const UNKNOWN: Lag = Lag(u16::MAX);
    const COARSE: u16 = 0x8000;
    const FINE_UNIT: u32 = 8;
    const COARSE_UNIT: u32 = 512;

    /// The lag of an entry at `at`, where everything before `acked`, which is at most `at`, is acknowledged.
    pub fn between(acked: Offset, at: Offset) -> Lag {
        let bytes = at.0 - acked.0;
        let fine = bytes.div_ceil(Self::FINE_UNIT);
        if fine < u32::from(Self::COARSE) {
            return Lag(fine as u16);
        }
        let coarse = bytes.div_ceil(Self::COARSE_UNIT);
        if coarse < u32::from(Self::COARSE - 1) { Lag(Self::COARSE | coarse as u16) } else { Self::UNKNOWN }
    }

    /// Everything before this offset was acknowledged when the entry at `at` was written.
    pub fn acked(self, at: Offset) -> Offset {
        let bytes = match self {
            Self::UNKNOWN => return Offset(0),
            Lag(fine) if fine < Self::COARSE => u32::from(fine) * Self::FINE_UNIT,
            Lag(coarse) => u32::from(coarse & !Self::COARSE) * Self::COARSE_UNIT,
        };
        Offset(at.0.saturating_sub(bytes))
    }
}

/// CRC-32 (IEEE) over the segment header, all record headers and the lags of all checksum entries so far. Each record header
/// carries the CRC of its payload, so the chain vouches for the payloads too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Chain(pub u32);

/// What each byte does to the register of CRC-32, IEEE 802.3, reflected.
const CRC_STEPS: [u32; 256] = {
    let mut steps = [0; 256];
    let mut byte = 0;
    while byte < steps.len() {
        let (mut register, mut bit) = (byte as u32, 0);
        while bit < 8 {
            register = if register & 1 == 1 { (register >> 1) ^ 0xEDB8_8320 } else { register >> 1 };
            bit += 1;
        }
        steps[byte] = register;
        byte += 1;
    }
    steps
};

impl Chain {
    /// The chain after `header`.
    #[must_use]
    pub fn extend(self, header: &[u8]) -> Chain {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(chained(header));
        Chain(hasher.finalize())
    }

    /// The same for one byte: two steps by a table cost a tenth of a call for a slice, and each append makes them.
    fn extend_by_byte(self, byte: u8) -> Chain {
        let register = !self.0;
        Chain(!(CRC_STEPS[usize::from(register as u8 ^ byte)] ^ (register >> 8)))
    }

    /// Ends an append: the chain after its checksum entry, and the entry itself: type, chain, lag, end mark; one aligned
    /// 8-byte word.
    #[must_use]
    pub fn seal(self, lag: Lag) -> (Chain, [u8; CHECKSUM_SIZE]) {
        let [e, f] = lag.0.to_le_bytes();
        let chain = self.extend_by_byte(e).extend_by_byte(f);
        let [a, b, c, d] = chain.0.to_le_bytes();
        (chain, [TYPE_CHECKSUM, a, b, c, d, e, f, END_MARK])
    }

    /// What a word that looks like a checksum entry says: the chain and the lag. `None`: it does not look like one.
    pub fn from_entry(entry: &[u8; CHECKSUM_SIZE]) -> Option<(Chain, Lag)> {
        let [TYPE_CHECKSUM, a, b, c, d, e, f, END_MARK] = *entry else { return None };
        Some((Chain(u32::from_le_bytes([a, b, c, d])), Lag(u16::from_le_bytes([e, f]))))
    }
}

/// The part of a header that the chain covers: all of it, but for [`Bug::UnseededChain`].
fn chained(header: &[u8]) -> &[u8] {
    /// Type, flags, length and its complement.
    const SHAPE_SIZE: usize = 12;
    match header.len() {
        _ if !planted::has(Bug::UnseededChain) => header,
        RECORD_HEADER_SIZE => &header[..SHAPE_SIZE],
        _ => &[],
    }
}

impl SegmentIdentity {
    /// The segment header, for a segment whose first record is `first`.
    pub fn header(&self, first: Lsn) -> [u8; SEGMENT_HEADER_SIZE] {
        let mut out = [0; SEGMENT_HEADER_SIZE];
        out[0..8].copy_from_slice(&SEGMENT_MAGIC);
        out[8..24].copy_from_slice(&self.log.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.segment.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.epoch.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.generation.0.to_le_bytes());
        out[48..56].copy_from_slice(&first.0.to_le_bytes());
        out[56..60].copy_from_slice(&self.size.0.to_le_bytes());
        out
    }

    /// Reads a segment header, for files of which nothing else is known. `None`: these bytes are not one.
    pub fn from_header(bytes: &[u8; SEGMENT_HEADER_SIZE]) -> Option<(SegmentIdentity, Lsn)> {
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let identity = SegmentIdentity {
            log: LogId(u128::from_le_bytes(std::array::from_fn(|i| bytes[8 + i]))),
            segment: SegmentId(u64_at(24)),
            epoch: Epoch(u64_at(32)),
            generation: Generation(u64_at(40)),
            size: SegmentSize::new(u64_at(56) & 0xffff_ffff).ok()?,
        };
        let first = Lsn(u64_at(48));
        let numbered = identity.segment >= SegmentId(1) && identity.epoch >= Epoch(1);
        let numbered = numbered && (Lsn(1)..=FIRST_LSN_MAX).contains(&first);
        (numbered && identity.header(first) == *bytes).then_some((identity, first))
    }
}

/// What stands before each payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the payload.
    pub length: u32,
    /// CRC-32 (IEEE) of the payload.
    pub payload_crc: u32,
    /// The record's number.
    pub lsn: Lsn,
    /// The epoch of the primary that wrote it.
    pub epoch: Epoch,
}

impl RecordHeader {
    /// The 32 bytes: type, flags (none yet: 0), two zero bytes, length, its complement, payload CRC, LSN, epoch.
    pub fn to_bytes(self) -> [u8; RECORD_HEADER_SIZE] {
        let mut out = [0; RECORD_HEADER_SIZE];
        out[0] = TYPE_RECORD;
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..12].copy_from_slice(&(!self.length).to_le_bytes());
        out[12..16].copy_from_slice(&self.payload_crc.to_le_bytes());
        out[16..24].copy_from_slice(&self.lsn.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.epoch.0.to_le_bytes());
        out
    }

    /// Reads a header, for a record of whose segment nothing else is at hand. `None`: these bytes are not one.
    pub fn from_bytes(bytes: &[u8; RECORD_HEADER_SIZE]) -> Option<RecordHeader> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (lsn, epoch) = (Lsn(u64_at(16)), Epoch(u64_at(24)));
        let header = RecordHeader { length: u32_at(4), payload_crc: u32_at(12), lsn, epoch };
        (header.to_bytes() == *bytes).then_some(header)
    }
}

/// Bytes that `length` payload bytes take, padded.
pub fn padded(length: usize) -> usize {
    length.next_multiple_of(ALIGNMENT)
}

/// Bytes that a record of `length` payload bytes takes, without the checksum entry of its append.
pub fn record_size(length: usize) -> usize {
    RECORD_HEADER_SIZE + padded(length)
}

/// Whether the segment in a file was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sealed {
    /// Closed by a primary: this is the whole segment.
    Closed,
    /// Still open when the backup shut down: valid up to the closure; other members may have more.
    Open,
}

/// Last bytes of a flushed file: where the segment ends and how it came to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// How the segment came to its end.
    pub sealed: Sealed,
    /// Where it ends; the file holds exactly these bytes before the footer.
    pub closure: Closure,
}

impl Footer {
    /// The 48 bytes: magic, kind, zeros, end, chain, first and last LSN, zeros, CRC-32 of all before.
    pub fn to_bytes(self) -> [u8; FOOTER_SIZE] {
        let mut out = [0; FOOTER_SIZE];
        out[0..8].copy_from_slice(&FOOTER_MAGIC);
        out[8] = match self.sealed {
            Sealed::Closed => b'C',
            Sealed::Open => b'O',
        };
        out[16..20].copy_from_slice(&self.closure.end.0.to_le_bytes());
        out[20..24].copy_from_slice(&self.closure.chain.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.closure.first.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.closure.last.0.to_le_bytes());
        let crc = crc32fast::hash(&out[..44]);
        out[44..48].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a footer. `None`: these bytes are not one.
    pub fn from_bytes(bytes: &[u8; FOOTER_SIZE]) -> Option<Footer> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let sealed = match bytes[8] {
            b'C' => Sealed::Closed,
            b'O' => Sealed::Open,
            _ => return None,
        };
        let closure = Closure {
            first: Lsn(u64_at(24)),
            last: Lsn(u64_at(32)),
            end: Offset(u32_at(16)),
            chain: Chain(u32_at(20)),
        };
        let footer = Footer { sealed, closure };
        (footer.to_bytes() == *bytes).then_some(footer)
    }
}
