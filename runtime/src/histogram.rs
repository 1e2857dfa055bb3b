//! A histogram of times that a thread counts into without a lock or an allocation, and that a scrape encodes.
//!
//! Counted by append paths and promotions, which run on for as long as the process; registered by
//! [`metrics`](crate::metrics).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Buckets end at 1 µs, 2 µs, 4 µs and so on: the last one at 2^23 µs = 8.4 s. What took longer is counted above it.
const BUCKETS: usize = 24;

/// Times, by buckets that double.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS + 1],
    sum_ns: AtomicU64,
}

/// What a [`Histogram`] held at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    counts: [u64; BUCKETS + 1],
    sum_ns: u64,
}

impl Histogram {
    /// Counts so many things that have taken this long.
    pub fn observe(&self, time: Duration, things: u64) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let us = ns.div_ceil(1000).clamp(1, 1 << BUCKETS);
        let bucket = us.next_power_of_two().trailing_zeros() as usize;
        self.counts[bucket].fetch_add(things, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns.saturating_mul(things), Ordering::Relaxed);
    }

    /// What it holds now. Counts that arrive during the call may be in it without their time.
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            counts: std::array::from_fn(|bucket| self.counts[bucket].load(Ordering::Relaxed)),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

impl HistogramSnapshot {
    /// How many things were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What has been counted since an earlier moment.
    #[must_use]
    pub fn since(&self, earlier: &HistogramSnapshot) -> HistogramSnapshot {
        HistogramSnapshot {
            counts: std::array::from_fn(|bucket| self.counts[bucket].saturating_sub(earlier.counts[bucket])),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
        }
    }

    /// A time that this share of the things took at most: the end of a bucket. `None` if nothing was counted. What took longer
    /// than the last bucket is told as twice its end.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(Duration::from_micros(1 << bucket))
    }
}

impl EncodeMetric for HistogramSnapshot {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let bound = |bucket: usize| if bucket < BUCKETS { (1_u64 << bucket) as f64 / 1e6 } else { f64::INFINITY };
        let buckets: [(f64, u64); BUCKETS + 1] = std::array::from_fn(|bucket| (bound(bucket), self.counts[bucket]));
        encoder.encode_histogram::<NoLabelSet>(self.sum_ns as f64 / 1e9, self.count(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Snapshot;

    #[test]
    fn times_are_in_the_first_bucket_that_holds_them() {
        let histogram = Histogram::default();
        let us = Duration::from_micros;
        for (time, things) in [
            (Duration::ZERO, 1),
            (us(1), 2),
            (Duration::from_nanos(1001), 4),
            (us(4), 8),
            (us(1 << 23), 16),
            (us((1 << 23) + 1), 32),
            (Duration::MAX, 64),
        ] {
            histogram.observe(time, things);
        }
        let counts = histogram.snapshot().counts;
        let mut expected = [0; BUCKETS + 1];
        (expected[0], expected[1], expected[2], expected[23], expected[24]) = (3, 4, 8, 16, 96);
        assert_eq!(counts, expected);
    }

    #[test]
    fn quantiles_are_the_ends_of_buckets() {
        let histogram = Histogram::default();
        assert_eq!(histogram.snapshot().quantile(0.5), None);
        let us = Duration::from_micros;
        histogram.observe(us(3), 98);
        let before = histogram.snapshot();
        histogram.observe(us(100), 1);
        histogram.observe(us(5000), 1);
        let all = histogram.snapshot();
        let quantiles = |of: &HistogramSnapshot| [0.0, 0.5, 0.98, 0.99, 1.0].map(|share| of.quantile(share).unwrap());
        assert_eq!(quantiles(&all), [us(4), us(4), us(4), us(128), us(8192)]);
        assert_eq!(quantiles(&all.since(&before)), [us(128), us(128), us(8192), us(8192), us(8192)]);
        assert_eq!(all.since(&all).quantile(0.5), None);
    }

    #[test]
    fn a_scrape_shows_cumulative_buckets() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_micros(2), 3);
        histogram.observe(Duration::from_secs(20), 1);
        let mut snapshot = Snapshot::new([("group", "db")]);
        snapshot.histogram("tailwind_append_seconds", "Time.", &histogram);
        let text = snapshot.text();
        for line in [
            "# TYPE tailwind_append_seconds histogram",
            "tailwind_append_seconds_sum{group=\"db\"} 20.000006",
            "tailwind_append_seconds_count{group=\"db\"} 4",
            "tailwind_append_seconds_bucket{group=\"db\",le=\"0.000001\"} 0",
            "tailwind_append_seconds_bucket{group=\"db\",le=\"0.000002\"} 3",
            "tailwind_append_seconds_bucket{group=\"db\",le=\"8.388608\"} 3",
            "tailwind_append_seconds_bucket{group=\"db\",le=\"+Inf\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
    }
}
