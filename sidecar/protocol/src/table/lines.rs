//! A set of lines: what a round of a mirror has still to write, and what the next one will.
//!
//! Owned by [`Mirrors`](super::mirror::Mirrors). Bits in words of 64, as in [`ChangedLines`](super::changed::ChangedLines) but of one
//! thread: to add a line, or to take one out, touches at most four words, also of the largest table.

use super::acked::LineId;
use super::changed::{FAN, level_sizes};

/// The set. Its memory is there from the start: an eighth of a byte for each line, and a little more.
#[derive(Clone, Debug)]
pub(super) struct LineSet {
    lines: u32,
    levels: Vec<Box<[u64]>>,
}

impl LineSet {
    /// None of so many lines.
    pub(super) fn new(lines: u32) -> LineSet {
        LineSet { lines, levels: level_sizes(lines, FAN).map(|words| vec![0; words].into()).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.levels.last().is_none_or(|top| top[0] == 0)
    }

    pub(super) fn insert(&mut self, line: LineId) {
        self.insert_word(line.0 as usize / FAN, 1 << (line.0 as usize % FAN));
    }

    /// Adds the lines of a word, given as [`ChangedLines::take`](super::changed::ChangedLines::take) does.
    pub(super) fn insert_word(&mut self, at: usize, bits: u64) {
        let (mut at, mut bits) = (at, bits);
        for level in &mut self.levels {
            let was = level[at];
            level[at] = was | bits;
            if was != 0 {
                return;
            }
            (at, bits) = (at / FAN, 1 << (at % FAN));
        }
    }

    /// Adds all lines.
    pub(super) fn fill(&mut self) {
        let mut bits = self.lines as usize;
        for level in &mut self.levels {
            let (whole, rest) = (bits / FAN, bits % FAN);
            level[..whole].fill(u64::MAX);
            if rest > 0 {
                level[whole] = (1 << rest) - 1;
            }
            bits = level.len();
        }
    }

    /// Takes all lines out.
    pub(super) fn clear(&mut self) {
        self.levels.iter_mut().for_each(|level| level.fill(0));
    }

    /// Takes the first line out.
    pub(super) fn pop(&mut self) -> Option<LineId> {
        if self.is_empty() {
            return None;
        }
        let mut line = 0;
        for level in self.levels.iter().rev() {
            line = line * FAN + level[line].trailing_zeros() as usize;
        }
        let mut at = line;
        for level in &mut self.levels {
            let bit = 1 << (at % FAN);
            at /= FAN;
            level[at] &= !bit;
            if level[at] != 0 {
                break;
            }
        }
        Some(LineId(line as u32))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn drained(set: &mut LineSet) -> Vec<u32> {
        std::iter::from_fn(|| set.pop().map(|line| line.0)).collect()
    }

    #[test]
    fn a_filled_set_has_each_line_once() {
        for lines in [1, 63, 64, 65, 4096, 4097, 10_000] {
            let mut set = LineSet::new(lines);
            set.fill();
            assert!(drained(&mut set).into_iter().eq(0..lines) && set.is_empty(), "{lines} lines");
            set.fill();
            set.clear();
            assert_eq!(set.pop(), None);
        }
    }

    proptest! {
        #[test]
        fn a_set_is_as_a_tree_would_be(steps in prop::collection::vec((0..3_u8, 0..5000_u32, any::<u64>()), 0..200)) {
            let (mut set, mut tree) = (LineSet::new(5000 + 64), BTreeSet::new());
            for (step, line, bits) in steps {
                match step {
                    0 => { set.insert(LineId(line)); tree.insert(line); }
                    1 if bits != 0 => {
                        set.insert_word(line as usize / FAN, bits);
                        tree.extend((0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| line / 64 * 64 + bit));
                    }
                    _ => prop_assert_eq!(set.pop().map(|line| line.0), tree.pop_first()),
                }
                prop_assert_eq!(set.is_empty(), tree.is_empty());
            }
            prop_assert!(drained(&mut set).into_iter().eq(tree));
        }
    }
}
