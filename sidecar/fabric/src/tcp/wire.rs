//! The bytes of the data protocol. All integers are little-endian.
//!
//! ```text
//! sender → receiver   hello     magic "TWDATA1\n" · version u16 · secret 32 hexadecimal digits
//! receiver → sender   ready     the acknowledgement of no writes
//! sender → receiver   frame     key u64 · offset u32 · length u32 · sequence u32 · check u32 · `length` bytes
//! receiver → sender   ack       writes in memory so far, u64
//!
//! reader → receiver   hello     magic "TWREAD1\n" · version u16 · secret 32 hexadecimal digits
//! receiver → reader   ready     as above
//! reader → receiver   request   key u64 · offset u32 · length u32 · sequence u32 · check u32
//! receiver → reader   answer    sequence u32 · length u32 · `length` bytes
//! ```
//!
//! Frames follow one another; an acknowledgement speaks for all frames up to its number. Requests are answered one after
//! the other; none is for no bytes. An error, on either side, and the end of a share end the connection without a message.

use std::ops::Range;

use crate::buffer::SharedBuffer;
use crate::contract::POSTED_BYTES_MAX;
use crate::secret::SECRET_SIZE;

/// What a connection is for, which its first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Writes into lent slots.
    Writing,
    /// Reads of shared slots.
    Reading,
}

impl Side {
    const ALL: [Side; 2] = [Side::Writing, Side::Reading];

    fn magic(self) -> [u8; 8] {
        match self {
            Side::Writing => *b"TWDATA1\n",
            Side::Reading => *b"TWREAD1\n",
        }
    }
}

/// Raised with every change of these bytes. Both ends must run the same one.
const VERSION: u16 = 1;

/// Bytes of a hello.
pub(super) const HELLO_SIZE: usize = 8 + 2 + SECRET_SIZE;
/// Bytes of a frame's header.
pub(crate) const HEADER_SIZE: usize = 24;
/// Bytes of an acknowledgement.
pub(crate) const ACK_SIZE: usize = 8;

/// Bytes before those of an answer to a read.
pub(super) const ANSWER_SIZE: usize = 8;
/// What a receiver sends first.
pub(crate) const READY: [u8; ACK_SIZE] = [0; ACK_SIZE];

/// What a connection begins with.
pub(super) fn hello(side: Side, secret: &[u8; SECRET_SIZE]) -> [u8; HELLO_SIZE] {
    let mut bytes = [0; HELLO_SIZE];
    bytes[..8].copy_from_slice(&side.magic());
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10..].copy_from_slice(secret);
    bytes
}

/// The side and the secret in a hello; `None` if this is no hello of this version.
pub(super) fn parse_hello(bytes: &[u8; HELLO_SIZE]) -> Option<(Side, [u8; SECRET_SIZE])> {
    let secret = bytes[10..].try_into().ok()?;
    let side = Side::ALL.into_iter().find(|side| *bytes == hello(*side, &secret))?;
    Some((side, secret))
}

/// Whether the first bytes of a hello are those that some hello starts with.
pub(super) fn may_be_hello(bytes: &[u8]) -> bool {
    let may_be = |side: Side| bytes.iter().zip(&side.magic()).all(|(theirs, ours)| theirs == ours);
    Side::ALL.into_iter().any(may_be)
}

/// The header before the bytes of a read.
pub(super) fn answer(sequence: u32, length: u32) -> [u8; ANSWER_SIZE] {
    (u64::from(sequence) | u64::from(length) << 32).to_le_bytes()
}

/// One write, as its header announces it; or the request for one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The key of the lending or the share.
    pub(crate) key: u64,
    /// Where in the slot the bytes go, or are.
    pub(crate) offset: u32,
    /// How many bytes follow, or are wanted.
    pub(crate) length: u32,
    /// The low half of the write's number on this connection, from 1: a lost frame boundary shows at once. Of a read the
    /// number, from 1 to 2³² − 1 and over again.
    pub(crate) sequence: u32,
}

/// What follows a header.
#[derive(Debug)]
pub(crate) enum Payload {
    /// Published bytes.
    Shared(SharedBuffer, Range<u32>),
    /// The first so many bytes.
    Copied([u8; POSTED_BYTES_MAX], usize),
}

impl Payload {
    /// At most [`POSTED_BYTES_MAX`] bytes.
    pub(crate) fn copy(bytes: &[u8]) -> Payload {
        let mut copied = [0; POSTED_BYTES_MAX];
        copied[..bytes.len()].copy_from_slice(bytes);
        Payload::Copied(copied, bytes.len())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Payload::Shared(local, range) => &local.published()[range.start as usize..range.end as usize],
            Payload::Copied(bytes, length) => &bytes[..*length],
        }
    }
}

impl Header {
    /// As it goes over the wire.
    pub(crate) fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.offset.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[20..].copy_from_slice(&self.check().to_le_bytes());
        bytes
    }

    /// `None` if the check does not fit.
    pub(crate) fn decode(bytes: &[u8; HEADER_SIZE]) -> Option<Header> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let key = u64::from(word(0)) | u64::from(word(4)) << 32;
        let header = Header { key, offset: word(8), length: word(12), sequence: word(16) };
        (header.check() == word(20)).then_some(header)
    }

    /// Differs after any change of one bit. Payload has its own CRC, in the log's format; TCP has its checksum below.
    fn check(&self) -> u32 {
        !(self.key as u32 ^ (self.key >> 32) as u32 ^ self.offset ^ self.length ^ self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_hello() {
        let secret = *b"0123456789abcdef0123456789abcdef";
        let bytes = hello(Side::Writing, &secret);
        assert_eq!(&bytes, b"TWDATA1\n\x01\x000123456789abcdef0123456789abcdef");
        assert_eq!(parse_hello(&bytes), Some((Side::Writing, secret)));
        let bytes = hello(Side::Reading, &secret);
        assert_eq!(&bytes, b"TWREAD1\n\x01\x000123456789abcdef0123456789abcdef");
        assert_eq!(parse_hello(&bytes), Some((Side::Reading, secret)));
    }

    #[test]
    fn another_magic_or_version_is_refused() {
        for index in 0..10 {
            let mut bytes = hello(Side::Writing, &[b'0'; SECRET_SIZE]);
            bytes[index] ^= 4;
            assert_eq!(parse_hello(&bytes), None);
            assert_eq!(may_be_hello(&bytes), index >= 8, "the version is checked once the hello is complete");
        }
        assert!(may_be_hello(b"") && may_be_hello(b"TWD") && may_be_hello(b"TWRE") && !may_be_hello(b"TWDE"));
    }

    #[test]
    fn golden_header() {
        let header = Header { key: 0x0807060504030201, offset: 0x10, length: 0x2000, sequence: 3 };
        let bytes = header.encode();
        assert_eq!(bytes[..20], [1, 2, 3, 4, 5, 6, 7, 8, 0x10, 0, 0, 0, 0, 0x20, 0, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[20..], [!0x17, !0x24, !0x04, !0x0c]);
        assert_eq!(Header::decode(&bytes), Some(header));
    }

    #[test]
    fn golden_answer() {
        assert_eq!(answer(0x04030201, 0x10), [1, 2, 3, 4, 0x10, 0, 0, 0]);
    }

    #[test]
    fn a_flipped_bit_is_detected() {
        let bytes = Header { key: 7, offset: 8, length: 9, sequence: 10 }.encode();
        for bit in 0..8 * HEADER_SIZE {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&flipped), None, "bit {bit}");
        }
    }
}
