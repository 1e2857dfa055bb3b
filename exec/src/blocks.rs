//! A hash of each block of a file, as the log has it: what tells whether bytes that may differ do.
//!
//! 64 bits with a seed that no program knows, so a block that differs is taken for one that does not once in 2⁶⁴ comparisons, and
//! nobody can make one.

use twox_hash::XxHash3_64;

/// Bytes of a block: a page of most programs that write at offsets, and of the kernel.
pub const BLOCK: usize = 4096;

/// The seed of a process.
#[derive(Clone, Copy, Debug)]
pub struct Seed(u64);

impl Seed {
    /// A new one.
    pub fn random() -> Result<Seed, getrandom::Error> {
        Ok(Seed(getrandom::u64()?))
    }

    fn hash(self, bytes: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.0, bytes)
    }
}

/// The hashes of one file's blocks. The last one may be shorter than the others.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    hashes: Vec<u64>,
    /// Whether the log has a block since its last state.
    fresh: Vec<bool>,
    length: u64,
}

/// Blocks that are logged again.
#[derive(Clone, Default, Debug)]
pub struct Old {
    /// Their bytes, a range for each.
    pub ranges: Vec<(u64, u64)>,
    /// The next one, if there are more.
    pub next: Option<usize>,
}

/// Bytes that the log does not have: where they begin, counted from the first byte that was compared, and how many.
pub type Run = (usize, usize);

impl Blocks {
    /// Bytes of the file, as the log has it.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The log has the file cut. A block that is cut through loses its hash: its bytes are compared anew, and are different.
    pub fn cut(&mut self, length: u64) {
        assert!(length <= self.length, "a file is cut to more than it has");
        self.length = length;
        self.hashes.truncate(length.div_ceil(BLOCK as u64) as usize);
        self.fresh.truncate(self.hashes.len());
        if !length.is_multiple_of(BLOCK as u64)
            && let Some(last) = self.hashes.last_mut()
        {
            // Any value will do that the bytes do not have, and nobody knows theirs.
            *last = !*last;
        }
    }

    /// A state begins: the log has no block since.
    pub fn begin_generation(&mut self) {
        self.fresh.fill(false);
    }

    /// Makes the log forget up to `count` blocks, from `block` on, that it has not had since its last state: they will differ,
    /// and be logged.
    pub fn forget_old(&mut self, block: usize, count: usize) -> Old {
        let mut old = Old::default();
        for index in block..self.hashes.len() {
            if self.fresh[index] {
                continue;
            }
            if old.ranges.len() == count {
                old.next = Some(index);
                break;
            }
            // Any value will do that the bytes do not have.
            self.hashes[index] = !self.hashes[index];
            let start = index as u64 * BLOCK as u64;
            old.ranges.push((start, start + BLOCK as u64));
        }
        old
    }

    /// Compares `bytes`, which stand at `start` in the file, with what the log has, and takes them for what it has from now on.
    /// `start` is at a block's begin, no further than the log's end, and the bytes end with a block or with the file. Returns
    /// what differs, in ascending order: whole blocks, but of a block that has only grown what it has grown by.
    pub fn update(&mut self, seed: Seed, start: u64, bytes: &[u8]) -> Vec<Run> {
        assert!(
            start.is_multiple_of(BLOCK as u64) && start <= self.length,
            "bytes do not begin with a block of the file"
        );
        let mut runs: Vec<Run> = Vec::new();
        let end = start + bytes.len() as u64;
        let mut at = 0;
        for block in bytes.chunks(BLOCK) {
            let offset = start + at as u64;
            let index = (offset / BLOCK as u64) as usize;
            let hash = seed.hash(block);
            // What the log has of this block.
            let had = self.length.saturating_sub(offset).min(BLOCK as u64) as usize;
            let differs = if had == 0 || had > block.len() {
                Some(0)
            } else if had == block.len() {
                (self.hashes[index] != hash).then_some(0)
            } else {
                Some(if self.hashes[index] == seed.hash(&block[..had]) { had } else { 0 })
            };
            if index < self.hashes.len() {
                self.hashes[index] = hash;
                self.fresh[index] |= differs == Some(0);
            } else {
                self.hashes.push(hash);
                self.fresh.push(true);
            }
            if let Some(from) = differs {
                match runs.last_mut() {
                    Some((begin, size)) if *begin + *size == at + from => *size += block.len() - from,
                    _ => runs.push((at + from, block.len() - from)),
                }
            }
            at += block.len();
        }
        self.length = self.length.max(end);
        runs
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes that are mostly zero, so that some blocks stay as they are.
    fn content() -> impl Strategy<Value = Vec<u8>> {
        (0usize..5 * BLOCK, prop::collection::vec((0usize..5 * BLOCK, 1u8..4), 0..4)).prop_map(|(length, marks)| {
            let mut bytes = vec![0; length];
            for (at, value) in marks {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            bytes
        })
    }

    proptest! {
        /// A copy that takes the runs, and nothing else, is equal to the file after each comparison.
        #[test]
        fn runs_make_a_copy_equal(states in prop::collection::vec(content(), 1..8)) {
            let seed = Seed(7);
            let mut blocks = Blocks::default();
            let mut copy: Vec<u8> = Vec::new();
            for state in states {
                let before = copy.clone();
                if (state.len() as u64) < blocks.length() {
                    blocks.cut(state.len() as u64);
                    copy.truncate(state.len());
                }
                copy.resize(state.len(), 0);
                for (at, size) in blocks.update(seed, 0, &state) {
                    copy[at..at + size].copy_from_slice(&state[at..at + size]);
                    let at = at / BLOCK * BLOCK;
                    let block = at..(at + BLOCK).min(state.len());
                    prop_assert!(
                        state.len() < before.len() || before.get(block.clone()) != Some(&state[block]),
                        "a block that is the same is not written"
                    );
                }
                prop_assert_eq!(&copy, &state);
                prop_assert_eq!(blocks.length(), state.len() as u64);
            }
        }
    }

    #[test]
    fn appended_bytes_alone_are_new() {
        let seed = Seed(1);
        let mut blocks = Blocks::default();
        assert_eq!(blocks.update(seed, 0, &[1; 100]), [(0, 100)]);
        assert_eq!(blocks.update(seed, 0, &[1; 130]), [(100, 30)]);
        assert_eq!(blocks.update(seed, 0, &[1; 130]), []);
        assert_eq!(blocks.update(seed, 0, &[1; BLOCK + 10]), [(130, BLOCK + 10 - 130)]);
        assert_eq!(blocks.update(seed, BLOCK as u64, &[1; 20]), [(10, 10)]);
    }
}
