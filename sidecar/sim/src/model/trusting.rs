//! A scan that believes what it reads: for the environment that is wrong in this way, and for nothing else.
//!
//! Called by [`host`](super::host).

use tailwind_protocol::ids::{Lsn, Offset};
use tailwind_protocol::layout::{
    CHECKSUM_SIZE, Chain, Closure, RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE, SEGMENT_OVERHEAD, SegmentIdentity,
    TYPE_RECORD, record_size,
};

/// Where the log ends if every header with a record's type is taken for a record with its checksum.
pub(super) fn scan(bytes: &[u8], identity: &SegmentIdentity) -> Closure {
    let header = bytes.first_chunk::<SEGMENT_HEADER_SIZE>().and_then(SegmentIdentity::from_header);
    let Some((_, first)) = header.filter(|(found, _)| found == identity) else { return Closure::default() };
    let mut chain = Chain::default().extend(&bytes[..SEGMENT_HEADER_SIZE]);
    let (mut at, mut next) = (SEGMENT_OVERHEAD, first);
    while bytes.get(at) == Some(&TYPE_RECORD) && at + RECORD_HEADER_SIZE <= bytes.len() {
        let length = u32::from_le_bytes([bytes[at + 4], bytes[at + 5], bytes[at + 6], bytes[at + 7]]);
        chain = chain.extend(&bytes[at..at + RECORD_HEADER_SIZE]);
        at += record_size(length as usize) + CHECKSUM_SIZE;
        next = Lsn(next.0 + 1);
    }
    Closure { first, last: next.prev(), end: Offset(at as u32), chain }
}
