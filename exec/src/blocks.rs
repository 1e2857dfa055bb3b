//! A hash of each block of a file, as the log has it: it tells whether bytes that may differ really do.
//!
//! 64 bits with a seed that no program knows, so a changed block is taken for an unchanged one once in 2⁶⁴ comparisons, and
//! nobody can craft one.

use twox_hash::XxHash3_64;

/// Bytes of a block: a page of most programs that write at offsets, and of the kernel.
pub const BLOCK: usize = 4096;

/// Stands for the hash of a block that the log does not have as it is in the file. One block of 2⁶⁴ has it by chance, and counts
/// as logged.
const UNKNOWN: u64 = 0;

/// A block of a hole.
static ZEROS: [u8; BLOCK] = [0; BLOCK];

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
pub type Run = (u64, u64);

impl Blocks {
    /// Bytes of the file, as the log has it.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The log has the file cut. A block that is cut through loses its hash: its bytes are compared again, and are different.
    pub fn cut(&mut self, length: u64) {
        assert!(length <= self.length, "a file is cut to more than it has");
        self.length = length;
        self.hashes.truncate(length.div_ceil(BLOCK as u64) as usize);
        self.fresh.truncate(self.hashes.len());
        if !length.is_multiple_of(BLOCK as u64)
            && let Some(last) = self.hashes.last_mut()
        {
            *last = UNKNOWN;
        }
    }

    /// A state begins, under which each file is zeros: the log has no other block since.
    pub fn begin_generation(&mut self, seed: Seed) {
        let zeros = seed.hash(&ZEROS);
        for (fresh, hash) in self.fresh.iter_mut().zip(&self.hashes) {
            *fresh = *hash == zeros;
        }
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
            self.hashes[index] = UNKNOWN;
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
        let mut runs = Runs::default();
        let mut at = start;
        for block in bytes.chunks(BLOCK) {
            let size = block.len() as u64;
            if let Some(from) = self.take(at, size, seed.hash(block), |had| seed.hash(&block[..had])) {
                runs.add((at - start + from, size - from));
            }
            at += size;
        }
        runs.0
    }

    /// The same with `count` zeros that nobody has to read.
    pub fn update_zeros(&mut self, seed: Seed, start: u64, count: u64) -> Vec<Run> {
        assert!(
            start.is_multiple_of(BLOCK as u64) && start <= self.length,
            "zeros do not begin with a block of the file"
        );
        let whole = seed.hash(&ZEROS);
        let mut runs = Runs::default();
        let mut at = 0;
        while at < count {
            let size = (count - at).min(BLOCK as u64);
            let hash = if size == BLOCK as u64 { whole } else { seed.hash(&ZEROS[..size as usize]) };
            if let Some(from) = self.take(start + at, size, hash, |had| seed.hash(&ZEROS[..had])) {
                runs.add((at + from, size - from));
            }
            at += size;
        }
        runs.0
    }

    /// Takes one block, of which `prefix` is the hash of so many bytes. Returns where it begins to differ, if it does.
    fn take(&mut self, offset: u64, size: u64, hash: u64, prefix: impl FnOnce(usize) -> u64) -> Option<u64> {
        let index = (offset / BLOCK as u64) as usize;
        // What the log has of this block.
        let had = self.length.saturating_sub(offset).min(BLOCK as u64);
        let differs = if had == 0 || had > size {
            Some(0)
        } else if had == size {
            (self.hashes[index] != hash).then_some(0)
        } else {
            Some(if self.hashes[index] == prefix(had as usize) { had } else { 0 })
        };
        if index < self.hashes.len() {
            self.hashes[index] = hash;
            self.fresh[index] |= differs == Some(0);
        } else {
            self.hashes.push(hash);
            self.fresh.push(true);
        }
        self.length = self.length.max(offset + size);
        differs
    }
}

/// Runs in ascending order, joined where they touch.
#[derive(Default)]
struct Runs(Vec<Run>);

impl Runs {
    fn add(&mut self, (from, count): Run) {
        match self.0.last_mut() {
            Some((begin, size)) if *begin + *size == from => *size += count,
            _ => self.0.push((from, count)),
        }
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
                    let (at, size) = (at as usize, size as usize);
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
        assert_eq!(blocks.update(seed, 0, &[1; BLOCK + 10]), [(130, BLOCK as u64 + 10 - 130)]);
        assert_eq!(blocks.update(seed, BLOCK as u64, &[1; 20]), [(10, 10)]);
    }

    proptest! {
        /// Zeros that nobody reads are zeros.
        #[test]
        fn zeros_of_a_hole_are_those_of_a_file(before in content(), grown in 0..4 * BLOCK, from in 0usize..6) {
            let seed = Seed(3);
            let mut read = Blocks::default();
            read.update(seed, 0, &before);
            let from = (from * BLOCK).min(before.len() / BLOCK * BLOCK);
            let zeros = vec![0; before.len() - from + grown];
            let mut hole = read.clone();
            prop_assert_eq!(hole.update_zeros(seed, from as u64, zeros.len() as u64), read.update(seed, from as u64, &zeros));
            prop_assert_eq!((&hole.hashes, &hole.fresh, hole.length), (&read.hashes, &read.fresh, read.length));
        }
    }

    #[test]
    fn what_was_forgotten_twice_is_logged() {
        let seed = Seed(1);
        let mut blocks = Blocks::default();
        blocks.update(seed, 0, &[1; BLOCK]);
        for _ in 0..2 {
            blocks.begin_generation(seed);
            assert_eq!(blocks.forget_old(0, 1).ranges.len(), 1);
        }
        assert_eq!(blocks.update(seed, 0, &[1; BLOCK]), [(0, BLOCK as u64)]);
    }

    #[test]
    fn a_state_has_the_blocks_of_zeros() {
        let seed = Seed(1);
        let mut blocks = Blocks::default();
        blocks.update(seed, 0, &[1; BLOCK]);
        blocks.update_zeros(seed, BLOCK as u64, 2 * BLOCK as u64 + 10);
        blocks.begin_generation(seed);
        let old = blocks.forget_old(0, 10);
        assert_eq!(
            old.ranges,
            [(0, BLOCK as u64), (3 * BLOCK as u64, 4 * BLOCK as u64)],
            "and not the whole ones of zeros"
        );
    }
}
