//! Whether a figure became worse beyond noise: the rule, which is pure.
//!
//! A pair gives a factor: how many times worse the later build was. If nothing has changed, the logarithms of the factors lie
//! evenly around zero, regardless of the noise. So they are judged by their ranks (Wilcoxon's signed-rank test, exact), and the
//! estimate is the median of the means of all pairs of them (Hodges and Lehmann), which one wild pair does not move.
//!
//! A figure is *worse* if the estimate is [`NOTICED`] or more, and the lower end of its interval is above 1. The interval leaves
//! a chance of [`DOUBT`] at each end: with fifteen figures that did not change, three gates of a hundred have one whose interval
//! lies above 1, and of these only those fail in which it also looks ten percent worse.

/// The factor from which on the gate fails.
pub(crate) const NOTICED: f64 = 1.10;
/// The chance that the truth lies below the interval, and that it lies above.
pub(crate) const DOUBT: f64 = 0.002;
/// With fewer pairs no outcome is rarer than [`DOUBT`]: 2^-9 = 0.00195.
pub(crate) const PAIRS_MIN: u32 = 9;

/// How many times worse a figure is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Judged {
    pub(crate) factor: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Worse,
    Better,
    /// The interval excludes what is worth a failure.
    NoWorse,
    /// The interval is too wide to exclude that.
    Unclear,
}

impl Judged {
    /// The estimate from the factor of each pair; `None` without any.
    pub(crate) fn of(factors: impl IntoIterator<Item = f64>) -> Option<Judged> {
        let logarithms: Vec<f64> = factors.into_iter().filter(|factor| *factor > 0.0).map(f64::ln).collect();
        let means = means_of_pairs(&logarithms);
        let middle = means.len() / 2;
        let factor = match means.len() {
            0 => return None,
            odd if odd % 2 == 1 => means[middle],
            _ => f64::midpoint(means[middle - 1], means[middle]),
        }
        .exp();
        let (low, high) = match cut(logarithms.len()) {
            0 => (0.0, f64::INFINITY),
            cut => (means[cut - 1].exp(), means[means.len() - cut].exp()),
        };
        let verdict = if factor >= NOTICED && low > 1.0 {
            Verdict::Worse
        } else if factor <= 1.0 / NOTICED && high < 1.0 {
            Verdict::Better
        } else if high < NOTICED {
            Verdict::NoWorse
        } else {
            Verdict::Unclear
        };
        Some(Judged { factor, low, high, verdict })
    }
}

/// The mean of each value with itself and with each later one, from the least to the greatest.
fn means_of_pairs(values: &[f64]) -> Vec<f64> {
    let with_later =
        values.iter().enumerate().flat_map(|(n, a)| values[n..].iter().map(move |b| f64::midpoint(*a, *b)));
    let mut means: Vec<f64> = with_later.collect();
    means.sort_by(f64::total_cmp);
    means
}

/// How many of the means may be cut off at either end: the most for which the sum of the ranks of the negative of `count` values
/// is less with a chance of at most [`DOUBT`].
fn cut(count: usize) -> usize {
    let sums = count * (count + 1) / 2;
    let mut chance = vec![0.0; sums + 1];
    chance[0] = 1.0;
    for rank in 1..=count {
        for sum in (0..=sums).rev() {
            let without = chance[sum];
            let with = if sum >= rank { chance[sum - rank] } else { 0.0 };
            chance[sum] = f64::midpoint(without, with);
        }
    }
    let below = chance.iter().scan(0.0, |total, chance| {
        *total += chance;
        Some(*total)
    });
    below.take_while(|total| *total <= DOUBT).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random, the same in each run (splitmix64).
    struct Random(u64);

    impl Random {
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// A measurement of 1 with noise of this size; one of twenty is a stall of five times that.
        fn measurement(&mut self, noise: f64) -> f64 {
            let normal: f64 = (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0;
            let stall = if self.uniform() < 0.05 { 5.0 * noise } else { 0.0 };
            (noise * normal + stall).exp()
        }

        fn judged(&mut self, pairs: usize, noise: f64, slower: f64) -> Verdict {
            let factors: Vec<f64> =
                (0..pairs).map(|_| slower * self.measurement(noise) / self.measurement(noise)).collect();
            Judged::of(factors).unwrap().verdict
        }
    }

    /// How many of a thousand are judged worse.
    fn worse(pairs: usize, noise: f64, slower: f64) -> usize {
        let mut random = Random(7);
        (0..1000).filter(|_| random.judged(pairs, noise, slower) == Verdict::Worse).count()
    }

    #[test]
    fn the_same_build_does_not_fail() {
        for noise in [0.01, 0.05, 0.1, 0.3] {
            let failed = worse(13, noise, 1.0);
            assert!(failed <= 3, "noise {noise}: {failed} of 1000");
        }
    }

    #[test]
    fn a_fifth_slower_fails_through_noise() {
        for (noise, least) in [(0.02, 1000), (0.05, 900), (0.1, 300)] {
            let failed = worse(13, noise, 1.2);
            assert!(failed >= least, "noise {noise}: {failed} of 1000");
        }
        assert!(worse(13, 0.1, 1.86) >= 990, "the append over TCP that became twice as slow");
    }

    #[test]
    fn what_is_not_worth_a_failure_does_not_fail() {
        assert_eq!(worse(13, 0.01, 1.05), 0);
    }

    #[test]
    fn few_pairs_decide_nothing() {
        for pairs in 1..PAIRS_MIN {
            assert_eq!(cut(pairs as usize), 0);
            assert_eq!(Judged::of(vec![3.0; pairs as usize]).unwrap().verdict, Verdict::Unclear);
        }
        assert_eq!(Judged::of(vec![3.0; PAIRS_MIN as usize]).unwrap().verdict, Verdict::Worse);
        assert_eq!(Judged::of([]), None);
    }

    /// Of 10 values, sums of ranks up to 1 have a chance of 2/1024, and up to 2 of 3/1024.
    #[test]
    fn the_interval_is_exact() {
        assert_eq!((cut(9), cut(10), cut(13), cut(20)), (1, 2, 7, 31));
    }

    #[test]
    fn verdicts_go_both_ways() {
        let verdict = |factor: f64, spread: f64| {
            let factors = (0..13).map(|n| factor * (spread * (f64::from(n) - 6.0) / 6.0).exp());
            Judged::of(factors).unwrap().verdict
        };
        assert_eq!(verdict(1.5, 0.2), Verdict::Worse);
        assert_eq!(verdict(0.6, 0.2), Verdict::Better);
        assert_eq!(verdict(1.0, 0.05), Verdict::NoWorse);
        assert_eq!(verdict(0.8, 0.4), Verdict::NoWorse, "whether it is better does not matter");
        assert_eq!(verdict(1.08, 0.3), Verdict::Unclear);
    }
}
