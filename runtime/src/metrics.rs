//! Metrics in the OpenMetrics text format, as `/metrics` serves them.
//!
//! Each scrape makes a [`Snapshot`]: of counters that the program keeps, and of numbers that live elsewhere.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Metric, Registry};

use crate::histogram::Histogram;

/// See <https://prometheus.io/docs/specs/om/open_metrics_spec/#overall-structure>.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The response to one scrape.
#[derive(Debug)]
pub struct Snapshot(Registry);

impl Snapshot {
    /// Without metrics yet. Each one will have these labels.
    pub fn new<'a>(labels: impl IntoIterator<Item = (&'static str, &'a str)>) -> Snapshot {
        let owned = |(name, value): (&'static str, &str)| (Cow::Borrowed(name), Cow::Owned(value.to_owned()));
        Snapshot(Registry::with_labels(labels.into_iter().map(owned)))
    }

    /// Adds a gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.register(name, help, ConstGauge::new(value));
    }

    /// Adds a gauge for each value of a label.
    pub fn gauges(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl IntoIterator<Item = (String, u64)>,
    ) {
        let family: Family<_, Gauge> = Family::default();
        for (of, value) in values {
            family.get_or_create(&vec![(label, of)]).set(value.cast_signed());
        }
        self.register(name, help, family);
    }

    /// A span of time that goes up and down, in seconds.
    pub fn seconds(&mut self, name: &str, help: &str, value: Duration) {
        self.register(name, help, ConstGauge::new(value.as_secs_f64()));
    }

    /// Adds a counter. Its name ends in `_total`.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.register(name, help, ConstCounter::new(value));
    }

    /// Adds a counter for each value of a label. Its name ends in `_total`.
    pub fn counters<const N: usize>(&mut self, name: &str, help: &str, label: &'static str, counts: [(&str, u64); N]) {
        let family: Family<_, Counter> = Family::default();
        for (value, count) in counts {
            family.get_or_create(&vec![(label, value.to_owned())]).inc_by(count);
        }
        self.register(name, help, family);
    }

    /// Adds a histogram, as it is now. Its name ends in `_seconds`.
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.register(name, help, histogram.snapshot());
    }

    /// Adds a gauge of 1 whose labels carry the information.
    pub fn info<const N: usize>(&mut self, name: &str, help: &str, labels: [(&'static str, String); N]) {
        let family: Family<_, Gauge> = Family::default();
        family.get_or_create(&Vec::from(labels)).set(1);
        self.register(name, help, family);
    }

    /// Adds any metric, by the name that its samples have.
    pub fn register(&mut self, name: &str, help: &str, metric: impl Metric) {
        // The encoder adds both again.
        let (name, help) = (name.strip_suffix("_total").unwrap_or(name), help.strip_suffix('.').unwrap_or(help));
        self.0.register(name, help, metric);
    }

    /// Adds what Prometheus expects of every process, as far as it can be read here: the memory in use.
    /// See <https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>.
    pub fn process(&mut self) {
        if let Some(bytes) = resident_bytes() {
            self.gauge("process_resident_memory_bytes", "Resident memory size in bytes.", bytes);
        }
    }

    /// The metrics as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.0);
        text
    }
}

impl IntoResponse for Snapshot {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, CONTENT_TYPE)], self.text()).into_response()
    }
}

/// See proc_pid_statm(5): the second number, in pages.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(u64::try_from(rustix::param::page_size()).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_grows_with_what_is_used() {
        let before = resident_bytes().unwrap();
        let used = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = resident_bytes().unwrap();
        assert!(after >= before + (32 << 20), "{before} bytes, then {after} with {} more", used.len());
    }

    #[test]
    fn a_snapshot_is_openmetrics_text() {
        let mut snapshot = Snapshot::new([("group", "db"), ("member", "b\"0")]);
        snapshot.info("tailwind_info", "Version.", [("version", "1".to_owned())]);
        snapshot.gauge("tailwind_epoch", "Epoch.", 3);
        snapshot.counter("tailwind_fences_total", "Fences.", u64::MAX);
        let expected = r#"# HELP tailwind_info Version.
# TYPE tailwind_info gauge
tailwind_info{group="db",member="b\"0",version="1"} 1
# HELP tailwind_epoch Epoch.
# TYPE tailwind_epoch gauge
tailwind_epoch{group="db",member="b\"0"} 3
# HELP tailwind_fences Fences.
# TYPE tailwind_fences counter
tailwind_fences_total{group="db",member="b\"0"} 18446744073709551615
# EOF
"#;
        assert_eq!(snapshot.text(), expected);
    }
}
