//! Whether a table's index is mirrored, who reads the mirrors, and what befalls them.

use crate::random::Random;
use crate::tally::Fault;

/// Tells these random numbers from all others of a seed.
const MIRRORS: u64 = 0x6d69_7272_6f72;

/// Mirrors of a table, and getters that read them.
#[derive(Clone, Debug)]
pub struct MirrorPlan {
    /// Parts of 4 KiB that each backup has for a mirror.
    pub parts: u32,
    /// This backup has none.
    pub without: Option<usize>,
    /// All values have one size: another segment may have another record of the same size in the same place.
    pub one_size: bool,
    /// Pieces in which getters' reads take their bytes.
    pub grain: u32,
    /// Faults that strike beside the others.
    pub(crate) faults: Vec<Fault>,
}

impl MirrorPlan {
    /// In half of the tables. Drawn apart, so that the others play as they did before there were any.
    pub(crate) fn draw(seed: u64, is_table: bool, wanted: Option<bool>) -> Option<MirrorPlan> {
        let mut random = Random::new(seed ^ MIRRORS);
        let has_mirrors = random.one_in(2);
        if !is_table || !wanted.unwrap_or(has_mirrors) {
            return None;
        }
        let faults = [
            Fault::MirrorCut,
            Fault::MirrorRots,
            Fault::MirrorEntryLost,
            Fault::ShareEnds,
            Fault::ReadIsFalse,
            Fault::ShareIsFalse,
        ];
        Some(MirrorPlan {
            parts: 64,
            without: random.one_in(4).then(|| random.below(3) as usize),
            one_size: random.one_in(3),
            grain: *random.pick(&[1, 8, 64]),
            faults: faults.into_iter().filter(|_| random.one_in(2)).collect(),
        })
    }
}
