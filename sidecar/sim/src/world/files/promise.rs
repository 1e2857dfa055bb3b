//! Reads a promise file's block as `docs/protocol.md` lays it out, without the code that writes it.

use tailwind_backup::MemberState;

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;

/// Its sequence number and what it says; `None`: it is damaged.
pub(super) fn read(block: &[u8]) -> Option<(u64, MemberState)> {
    let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| block[at + i]));
    let sound = block[..8] == *b"TWPROMIS" && crc32fast::hash(&block[..BLOCK - 4]) == number(BLOCK - 4);
    let json = block[24..].get(..number(12) as usize).filter(|_| sound)?;
    let sequence = u64::from(number(16)) | u64::from(number(20)) << 32;
    Some((sequence, serde_json::from_slice(json).ok()?))
}
