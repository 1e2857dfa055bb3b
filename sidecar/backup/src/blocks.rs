//! A small value in two blocks of a file, so that writing it needs no space and no single fault loses it.
//!
//! Used by [`promise`](crate::promise) and [`flushed`](crate::flushed), which say what the value is.
//!
//! # Bytes
//! Two blocks of 4 KiB:
//! ```text
//! magic (8)  format version (4)  length of the JSON (4)  sequence (8)  JSON  zeros  CRC-32 of all before (4)
//! ```
//! All integers are little-endian. The sound block with the higher sequence holds the newer value.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files::File;

/// A block: what disks and file systems write in one piece.
pub(crate) const BLOCK_SIZE: usize = 4096;
const HEAD_SIZE: usize = 24;
const CRC_SIZE: usize = 4;

/// Which values these are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) magic: [u8; 8],
    pub(crate) version: u32,
}

/// What a block holds.
#[derive(Debug)]
pub(crate) enum Block<T> {
    Sound(u64, T),
    Newer(u32),
    Damaged(String),
}

impl Kind {
    /// Writes a value into one of the two blocks, and brings it to disk.
    pub(crate) fn write(self, file: &dyn File, index: u64, sequence: u64, value: &impl Serialize) -> io::Result<()> {
        file.write_all_at(index * BLOCK_SIZE as u64, &self.to_block(sequence, value)).and_then(|()| file.sync())
    }

    /// Reads one of the two blocks.
    pub(crate) fn read<T: DeserializeOwned>(self, file: &dyn File, index: u64) -> io::Result<Block<T>> {
        let mut block = [0; BLOCK_SIZE];
        match file.read_exact_at(index * BLOCK_SIZE as u64, &mut block) {
            Ok(()) => Ok(self.parse(&block)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Block::Damaged("cut off".to_owned())),
            Err(error) => Err(error),
        }
    }

    /// The bytes of a block. The value's JSON must fit; see [`fits`].
    pub(crate) fn to_block(self, sequence: u64, value: &impl Serialize) -> [u8; BLOCK_SIZE] {
        let json = serde_json::to_vec(value).expect("plain data");
        assert!(json.len() <= BLOCK_SIZE - HEAD_SIZE - CRC_SIZE, "a value fits into its block");
        let mut block = [0; BLOCK_SIZE];
        block[..8].copy_from_slice(&self.magic);
        block[8..12].copy_from_slice(&self.version.to_le_bytes());
        block[12..16].copy_from_slice(&(json.len() as u32).to_le_bytes());
        block[16..24].copy_from_slice(&sequence.to_le_bytes());
        block[HEAD_SIZE..HEAD_SIZE + json.len()].copy_from_slice(&json);
        let crc = crc32fast::hash(&block[..BLOCK_SIZE - CRC_SIZE]);
        block[BLOCK_SIZE - CRC_SIZE..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    fn parse<T: DeserializeOwned>(self, block: &[u8; BLOCK_SIZE]) -> Block<T> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| block[at + i]));
        if block[..8] != self.magic {
            return Block::Damaged("it does not begin like one".to_owned());
        }
        if crc32fast::hash(&block[..BLOCK_SIZE - CRC_SIZE]) != u32_at(BLOCK_SIZE - CRC_SIZE) {
            return Block::Damaged("checksum does not match".to_owned());
        }
        if u32_at(8) > self.version {
            return Block::Newer(u32_at(8));
        }
        let sequence = u64::from_le_bytes(std::array::from_fn(|i| block[16 + i]));
        let length = u32_at(12) as usize;
        let json = block[HEAD_SIZE..BLOCK_SIZE - CRC_SIZE].get(..length);
        match json.map(serde_json::from_slice) {
            Some(Ok(value)) => Block::Sound(sequence, value),
            Some(Err(error)) => Block::Damaged(format!("not understood: {error}")),
            None => Block::Damaged("length out of bounds".to_owned()),
        }
    }
}

/// True when a value fits into a block.
pub(crate) fn fits(value: &impl Serialize) -> bool {
    serde_json::to_vec(value).is_ok_and(|json| json.len() <= BLOCK_SIZE - HEAD_SIZE - CRC_SIZE)
}
