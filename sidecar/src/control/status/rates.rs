//! How fast records are appended now, and how long that takes: the counters of the append path, compared with what they were a
//! few seconds ago.
//!
//! Sampled by [`control::run`](crate::control::run), told by [`status`](super).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tailwind_report::sidecar::AppendsReport;
use tailwind_runtime::histogram::HistogramSnapshot;
use tokio::time::Instant;

use crate::path::Counters;

/// Between two samples.
const INTERVAL: Duration = Duration::from_millis(500);
/// Samples that are kept: rates are of the last 3 s, so that people see them change and can still read them.
const SAMPLES: usize = 6;

/// What the counters were.
#[derive(Debug, Default)]
pub struct Rates(Mutex<VecDeque<Sample>>);

#[derive(Debug)]
struct Sample {
    at: Instant,
    records: u64,
    bytes: u64,
    times: HistogramSnapshot,
}

impl Sample {
    fn take(counters: &Counters) -> Sample {
        Sample {
            at: Instant::now(),
            records: counters.records.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            times: counters.append_times.snapshot(),
        }
    }
}

impl Rates {
    /// Takes samples for as long as the process lives.
    pub async fn watch(&self, counters: &Counters) -> Infallible {
        let mut ticks = tokio::time::interval(INTERVAL);
        loop {
            ticks.tick().await;
            self.sample(counters);
        }
    }

    fn sample(&self, counters: &Counters) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(Sample::take(counters));
    }

    /// What is appended now. `pending`: appends that wait for their ack.
    pub fn report(&self, counters: &Counters, pending: u64) -> AppendsReport {
        let now = Sample::take(counters);
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let report = AppendsReport { records: now.records, bytes: now.bytes, pending, ..AppendsReport::default() };
        let Some(before) = samples.front() else { return report };
        let window = now.at.duration_since(before.at);
        let times = now.times.since(&before.times);
        let us = |share| times.quantile(share).map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let per_second = |now: u64, before: u64| match window.is_zero() {
            true => 0.0,
            false => (now.saturating_sub(before) as f64 / window.as_secs_f64() * 10.0).round() / 10.0,
        };
        AppendsReport {
            records_per_second: per_second(now.records, before.records),
            bytes_per_second: per_second(now.bytes, before.bytes),
            window_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX),
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            ..report
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rates_are_of_the_last_few_seconds() {
        let (rates, counters) = (Rates::default(), Counters::default());
        let append = |records: u64| {
            counters.records.fetch_add(records, Ordering::Relaxed);
            counters.bytes.fetch_add(records * 100, Ordering::Relaxed);
            counters.append_times.observe(Duration::from_micros(30), records);
        };
        assert_eq!(rates.report(&counters, 0), AppendsReport::default());
        append(500_000);
        for _ in 0..20 {
            rates.sample(&counters);
            tokio::time::advance(INTERVAL).await;
            append(1000);
        }
        let report = rates.report(&counters, 7);
        assert_eq!((report.records, report.bytes, report.pending), (520_000, 52_000_000, 7));
        assert_eq!((report.window_ms, report.records_per_second, report.bytes_per_second), (3000, 2000.0, 200_000.0));
        assert_eq!((report.p50_us, report.p99_us, report.p999_us), (Some(32), Some(32), Some(32)));
        for _ in 0..SAMPLES {
            rates.sample(&counters);
            tokio::time::advance(INTERVAL).await;
        }
        let idle = rates.report(&counters, 0);
        assert_eq!((idle.records_per_second, idle.p50_us), (0.0, None), "nothing is told of what is long ago");
    }
}
