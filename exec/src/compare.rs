//! Reads what may differ of a file, and finds what does.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::pread;

use crate::blocks::{BLOCK, Blocks, Seed};
use crate::ranges::Ranges;

/// Bytes that are read at a time.
const CHUNK: usize = 256 * BLOCK;

/// How a comparison ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compared {
    /// The blocks say what the file has.
    Whole,
    /// The file has been cut while it was read: it ends no later than here. Compare again.
    Shorter(u64),
}

/// A file is compared with what the log has of it.
pub struct Comparison {
    seed: Seed,
    buffer: Vec<u8>,
}

impl Comparison {
    /// With a seed of its own, which is that of all blocks that it compares.
    pub fn new() -> Result<Comparison, getrandom::Error> {
        Ok(Comparison { seed: Seed::random()?, buffer: Vec::new() })
    }

    /// The bytes that `compare` would read.
    pub fn ranges(blocks: &Blocks, doubts: &Ranges, length: u64) -> Ranges {
        let mut ranges = doubts.blocks(BLOCK as u64, length);
        if length > blocks.length() {
            ranges.add((blocks.length() / BLOCK as u64 * BLOCK as u64, length));
        }
        ranges
    }

    /// Compares the bytes of `file` that may differ, and all beyond what the log has, up to `length`, with its blocks. Calls
    /// `changed` with each run of bytes that the log does not have, in ascending order. `length` is no less than the blocks'.
    pub fn compare(
        &mut self,
        file: BorrowedFd<'_>,
        blocks: &mut Blocks,
        doubts: &Ranges,
        length: u64,
        mut changed: impl FnMut(u64, &[u8]),
    ) -> io::Result<Compared> {
        for (start, end) in Comparison::ranges(blocks, doubts, length).iter() {
            let end = end.min(length);
            let mut at = start;
            while at < end {
                let size = CHUNK.min((end - at) as usize);
                if self.buffer.len() < size {
                    self.buffer.resize(size, 0);
                }
                let read = read_full(file, &mut self.buffer[..size], at)?;
                if read < size {
                    return Ok(Compared::Shorter(at + read as u64));
                }
                for (from, count) in blocks.update(self.seed, at, &self.buffer[..size]) {
                    changed(at + from as u64, &self.buffer[from..from + count]);
                }
                at += size as u64;
            }
        }
        Ok(Compared::Whole)
    }
}

fn read_full(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match rustix::io::retry_on_intr(|| pread(file, &mut buffer[read..], offset + read as u64))? {
            0 => break,
            count => read += count,
        }
    }
    Ok(read)
}
