//! One seed decides everything: a generator whose numbers never change from one version of the simulator to the next.

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014). Not a library's: kept
/// seeds must mean the same for ever, and libraries promise that for their numbers only within one version.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
    still: bool,
}

impl Random {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Random {
        // Seeds that people type are small: spread them, so that neighbours have nothing in common.
        let mut random = Random { state: seed ^ 0x5851_f42d_4c95_7f2d, still: false };
        Random { state: random.next(), still: false }
    }

    /// Chance without surprises, for scripts: everything takes the least time, and what may happen does not.
    pub(crate) fn still() -> Random {
        Random { still: true, ..Random::new(0) }
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "not an iterator: it never ends")]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if self.still { 0 } else { self.next() % bound }
    }

    /// A number of this range, both ends included.
    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        !self.still && self.below(times) == 0
    }

    /// True so many times of a thousand.
    pub fn per_mille(&mut self, chance: u64) -> bool {
        !self.still && self.below(1000) < chance
    }

    /// One of these, which must not be empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// One of these, if there are any.
    pub fn pick_one<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { Some(self.pick(from)) }
    }

    /// A generator of its own for one part of the world, so that more questions there change nothing elsewhere.
    #[must_use]
    pub fn split(&mut self) -> Random {
        Random { state: self.next(), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_stable() {
        let mut random = Random::new(1);
        let numbers: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(numbers, GOLDEN);
    }

    const GOLDEN: [u64; 3] = [11_015_502_686_040_571_573, 9_427_156_995_714_173_915, 16_202_009_364_453_053_533];
}
