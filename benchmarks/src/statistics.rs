//! Median, least and greatest of a figure over the rounds; ratios, round by round; what a histogram of latencies says.
//!
//! Called by [`load`](crate::load) and [`report`](crate::report); pure.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::results::{Figures, Metric};

/// A figure over all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// `None` of nothing. The median of an even number is the mean of the middle two.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Some(Summary { median, min, max })
    }
}

/// One figure divided by another, in each round that has both. A round that divides by nothing has none.
pub(crate) fn quotients(of: &BTreeMap<u32, f64>, to: &BTreeMap<u32, f64>) -> BTreeMap<u32, f64> {
    let both = of.iter().filter_map(|(round, of)| Some((*round, of, to.get(round)?)));
    both.filter(|(_, _, to)| **to > 0.0).map(|(round, of, to)| (round, of / to)).collect()
}

/// Latencies from 1 ns to 100 s, with three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("valid bounds")
}

/// Percentiles in microseconds.
pub(crate) fn percentiles(latency: &Histogram<u64>) -> Figures {
    if latency.is_empty() {
        return Figures::new();
    }
    let shares = [(Metric::P50, 0.5), (Metric::P90, 0.9), (Metric::P99, 0.99), (Metric::P999, 0.999)];
    shares.into_iter().map(|(metric, share)| (metric, microseconds(latency.value_at_quantile(share)))).collect()
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([3.0]), Some(Summary { median: 3.0, min: 3.0, max: 3.0 }));
        assert_eq!(Summary::of([9.0, 1.0, 2.0]), Some(Summary { median: 2.0, min: 1.0, max: 9.0 }));
        assert_eq!(Summary::of([4.0, 1.0, 2.0, 9.0]), Some(Summary { median: 3.0, min: 1.0, max: 9.0 }));
    }

    #[test]
    fn ratios_are_made_within_a_round() {
        let of = [(1, 10.0), (2, 4.0), (3, 7.0), (4, 7.0)].into();
        let to = [(1, 5.0), (2, 4.0), (4, 0.0)].into();
        assert_eq!(quotients(&of, &to), [(1, 2.0), (2, 1.0)].into(), "rounds 3 and 4 have nothing to divide by");
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let mut latency = histogram();
        assert!(percentiles(&latency).is_empty());
        for value in 1..=1000 {
            latency.record(value * 1000).unwrap();
        }
        let found = percentiles(&latency);
        for (metric, wanted) in
            [(Metric::P50, 500.0), (Metric::P90, 900.0), (Metric::P99, 990.0), (Metric::P999, 999.0)]
        {
            assert!((found[&metric] - wanted).abs() <= wanted / 500.0, "{metric:?}: {}", found[&metric]);
        }
    }
}
