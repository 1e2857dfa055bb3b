//! Ranges of a file, half-open and in bytes, that may differ from what the log has.

/// Ranges that are kept apart. Beyond that neighbours become one, with what lies between them: 64 KiB for each file.
const RANGES_MAX: usize = 4096;

/// Disjoint ranges in ascending order, none of them empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// The whole of a file, however long.
    pub const WHOLE: (u64, u64) = (0, u64::MAX);

    /// Nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds `start..end`, which may be empty.
    pub fn add(&mut self, (mut start, mut end): (u64, u64)) {
        if start >= end {
            return;
        }
        // Those that touch the new one become part of it.
        let first = self.0.partition_point(|&(_, e)| e < start);
        let last = self.0.partition_point(|&(s, _)| s <= end);
        if first < last {
            start = start.min(self.0[first].0);
            end = end.max(self.0[last - 1].1);
        }
        self.0.splice(first..last, [(start, end)]);
        if self.0.len() > RANGES_MAX {
            self.0 = self.0.chunks(2).map(|pair| (pair[0].0, pair[pair.len() - 1].1)).collect();
        }
    }

    /// The ranges as far as they lie below `end`, widened to whole blocks of `block` bytes.
    pub fn blocks(&self, block: u64, end: u64) -> Ranges {
        let mut blocks = Ranges::default();
        for &(s, e) in self.0.iter().filter(|&&(s, _)| s < end) {
            let e = e.min(end);
            blocks.add((s / block * block, e.div_ceil(block) * block));
        }
        blocks
    }

    /// Each range.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// Bytes in all of them.
    pub fn size(&self) -> u64 {
        self.0.iter().map(|(s, e)| e - s).sum()
    }
}

impl Extend<(u64, u64)> for Ranges {
    fn extend<I: IntoIterator<Item = (u64, u64)>>(&mut self, ranges: I) {
        ranges.into_iter().for_each(|range| self.add(range));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn many_become_few_and_lose_nothing() {
        let mut ranges = Ranges::default();
        let added = (0..100_000).map(|at| (at * 7919 % 100_000 * 10, at * 7919 % 100_000 * 10 + 5));
        ranges.extend(added.clone());
        assert!(ranges.0.len() <= RANGES_MAX);
        assert!(added.into_iter().all(|(s, e)| ranges.iter().any(|(start, end)| start <= s && e <= end)));
    }

    proptest! {
        #[test]
        fn has_exactly_what_was_added(added in prop::collection::vec((0u64..60, 0u64..20), 0..12)) {
            let mut ranges = Ranges::default();
            ranges.extend(added.iter().map(|&(s, n)| (s, s + n)));
            for at in 0..100 {
                let wanted = added.iter().any(|&(s, n)| (s..s + n).contains(&at));
                prop_assert_eq!(ranges.iter().any(|(s, e)| (s..e).contains(&at)), wanted, "{}", at);
            }
            prop_assert!(ranges.0.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?}", ranges);
            prop_assert!(ranges.iter().all(|(s, e)| s < e));
            let blocks = ranges.blocks(8, 50);
            for at in 0..100 {
                let block = at / 8 * 8..at / 8 * 8 + 8;
                let wanted = ranges.iter().any(|(s, e)| s < block.end.min(50) && e.min(50) > block.start);
                prop_assert_eq!(blocks.iter().any(|(s, e)| (s..e).contains(&at)), wanted, "{}", at);
            }
        }
    }
}
