//! Records that apps append, made from a seed; and the random numbers that they are made from.

/// The records that an app appends, by their number from 1.
pub trait Input {
    /// Record `number`.
    fn record(&self, number: u64) -> Vec<u8>;
}

/// Numbered records of varied lengths, made from a seed.
#[derive(Clone, Copy, Debug)]
pub struct Numbered {
    /// The seed.
    pub seed: u64,
    /// Longest record.
    pub length_max: u64,
}

impl Input for Numbered {
    fn record(&self, number: u64) -> Vec<u8> {
        let mut random = Random(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let length = random.below(self.length_max + 1);
        let mut record: Vec<u8> =
            number.to_le_bytes().into_iter().chain((0..length).map(|_| random.next() as u8)).collect();
        // Now and then an empty record: it is a record like any other.
        if random.below(64) == 0 {
            record.clear();
        }
        record
    }
}

/// What a log holds when one app after the other has continued it: each input with the number of its first record.
#[derive(Clone, Debug, Default)]
pub struct InputSequence(pub Vec<(u64, Numbered)>);

impl Input for InputSequence {
    fn record(&self, number: u64) -> Vec<u8> {
        let input = self.0.iter().rev().find(|(first, _)| *first <= number);
        input.map(|(_, input)| input.record(number)).unwrap_or_default()
    }
}

/// SplitMix64: small, seeded, the same everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "an endless sequence needs no Option")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// The value below which `share` of the sorted values lie.
pub fn percentile(sorted: &[u64], share: f64) -> u64 {
    let at = ((sorted.len() as f64 - 1.0) * share).round();
    sorted.get(at as usize).copied().unwrap_or_default()
}
