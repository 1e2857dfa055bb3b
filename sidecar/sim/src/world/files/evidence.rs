//! Reads the ledger and the notes of flushes as `docs/protocol.md` lays them out, without the code that writes them.

/// Bytes of a block of the notes.
const BLOCK: usize = 4096;
/// Bytes of an entry of the ledger.
const ENTRY: usize = 128;

/// The sequence of the newest notes that are sound.
pub(super) fn newest(notes: &[u8]) -> u64 {
    let sound = notes.chunks_exact(BLOCK).filter(|block| is_sealed(block) && block[..8] == *b"TWFLUSHD");
    sound.map(|block| number(block, 16)).max().unwrap_or_default()
}

/// The newest notes that an entry of the ledger was written beside.
pub(super) fn recorded(ledger: &[u8]) -> u64 {
    let sound = ledger.chunks_exact(ENTRY).skip(1).filter(|entry| is_sealed(entry) && b"OFS".contains(&entry[0]));
    sound.map(|entry| number(entry, 88)).max().unwrap_or_default()
}

/// True when the last four bytes are the CRC of all before.
fn is_sealed(bytes: &[u8]) -> bool {
    let (before, crc) = bytes.split_at(bytes.len() - 4);
    crc32fast::hash(before).to_le_bytes() == *crc
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}
