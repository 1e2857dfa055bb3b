//! Median, least and greatest of a figure over the rounds; ratios, round by round; what a histogram of latencies says.
//!
//! Called by [`load`](crate::load) and [`report`](crate::report); pure.

use hdrhistogram::Histogram;

use crate::results::{Comparison, Distribution, Figures, Metric, Ratio};

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

/// The ratio in each round that has both figures. A round that divides by nothing has none.
pub(crate) fn ratios(comparison: &Comparison, ratio: &Ratio) -> Vec<f64> {
    let to = comparison.figures(&ratio.to);
    let of = comparison.figures(&ratio.of);
    let both = of.iter().filter_map(|(round, of)| Some((of, to.get(round)?)));
    both.filter(|(_, to)| **to > 0.0).map(|(of, to)| of / to).collect()
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

/// Points of the cumulative distribution, dense where a logarithmic plot of the tail needs them.
pub(crate) fn distribution(latency: &Histogram<u64>) -> Distribution {
    if latency.is_empty() {
        return Vec::new();
    }
    let body = (0..50).map(|n| f64::from(n) / 50.0);
    // 0.98 … 0.9999…: twenty points for each tenfold rarer.
    let tail = (34..=80).map(|n| 1.0 - 10f64.powf(-f64::from(n) / 20.0));
    body.chain(tail).map(|share| (microseconds(latency.value_at_quantile(share)), share)).collect()
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Cell, Sample};

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([3.0]), Some(Summary { median: 3.0, min: 3.0, max: 3.0 }));
        assert_eq!(Summary::of([9.0, 1.0, 2.0]), Some(Summary { median: 2.0, min: 1.0, max: 9.0 }));
        assert_eq!(Summary::of([4.0, 1.0, 2.0, 9.0]), Some(Summary { median: 3.0, min: 1.0, max: 9.0 }));
    }

    #[test]
    fn ratios_are_made_within_a_round() {
        let sample = |contestant: &str, round, value| Sample {
            contestant: contestant.to_owned(),
            case: "case".to_owned(),
            at: None,
            round,
            figures: [(Metric::P50, value)].into(),
            distribution: Vec::new(),
        };
        let samples = vec![
            sample("a", 1, 10.0),
            sample("b", 1, 5.0),
            sample("b", 2, 4.0),
            sample("a", 2, 4.0),
            sample("a", 3, 7.0),
            sample("a", 4, 7.0),
            sample("b", 4, 0.0),
        ];
        let comparison = Comparison { samples, ..Comparison::default() };
        let cell = |name: &str| Cell { contestant: name.to_owned(), case: "case".to_owned(), metric: Metric::P50 };
        let ratio = |of, to| Ratio { name: String::new(), of: cell(of), to: cell(to) };
        assert_eq!(ratios(&comparison, &ratio("a", "b")), [2.0, 1.0], "rounds 3 and 4 have nothing to divide by");
        assert_eq!(ratios(&comparison, &ratio("a", "c")), [0.0; 0]);
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let mut latency = histogram();
        assert!(percentiles(&latency).is_empty() && distribution(&latency).is_empty());
        for value in 1..=1000 {
            latency.record(value * 1000).unwrap();
        }
        let found = percentiles(&latency);
        for (metric, wanted) in
            [(Metric::P50, 500.0), (Metric::P90, 900.0), (Metric::P99, 990.0), (Metric::P999, 999.0)]
        {
            assert!((found[&metric] - wanted).abs() <= wanted / 500.0, "{metric:?}: {}", found[&metric]);
        }
        let points = distribution(&latency);
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 < b.1), "{points:?}");
    }
}
