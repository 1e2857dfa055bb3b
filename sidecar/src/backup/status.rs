//! What a backup tells about itself: a JSON page for people, Prometheus text for machines.
//!
//! Called by [`routes`](super::routes).

use std::fmt::Write;

use serde::Serialize;
use tailwind_crds::readiness::Unready;
use tailwind_protocol::ids::{BootId, GroupName, MemberId};

use super::actor::Report;
use super::quarantine::Quarantined;
use super::scrub::Scrubbed;

/// What does not change while the process lives.
#[derive(Clone, Debug, Serialize)]
pub(super) struct About {
    pub(super) group: GroupName,
    pub(super) member: MemberId,
    pub(super) boot: BootId,
    /// Where sidecars reach it.
    pub(super) control: String,
    pub(super) fabric: String,
    pub(super) tls: bool,
    pub(super) buffers: u32,
    pub(super) buffer_bytes: u32,
    pub(super) unflushed_bytes_max: u64,
    pub(super) flush_bytes_per_second: u64,
    /// Files that were moved aside at the start.
    pub(super) strange_files: u64,
    /// What keeps it from lending, found at the start; it is alive and not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) obstacle: Option<Unready>,
}

#[derive(Serialize)]
struct Page<'a> {
    role: &'static str,
    #[serde(flatten)]
    about: &'a About,
    #[serde(flatten)]
    report: &'a Report,
    scrub: &'a Scrubbed,
    /// Absent while the disk does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine: Option<&'a Quarantined>,
}

/// The status page.
pub(super) fn page<'a>(
    about: &'a About,
    report: &'a Report,
    scrub: &'a Scrubbed,
    quarantine: Option<&'a Quarantined>,
) -> impl Serialize + use<'a> {
    Page { role: "backup", about, report, scrub, quarantine }
}

/// Metrics in the Prometheus text format, version 0.0.4. What is in quarantine is left out while the disk does not tell: 0
/// would be another answer.
pub(super) fn metrics(about: &About, report: &Report, scrub: &Scrubbed, quarantine: Option<&Quarantined>) -> String {
    let About { group, member, boot, fabric, .. } = about;
    let (counts, tallies) = (&report.counts, &report.tallies);
    let mut text = Text { labels: format!("group=\"{group}\",member=\"{member}\""), out: String::new() };
    text.info("tailwind_backup_info", "Who this is.", &format!("boot=\"{boot}\",fabric=\"{fabric}\""));
    text.gauge("tailwind_backup_promised_epoch", "No older epoch can change anything here.", report.promise.epoch.0);
    text.gauge("tailwind_backup_trimmed_lsn", "Records below are no longer needed.", report.promise.trimmed.0);
    text.gauge("tailwind_backup_segments_lent", "Buffers lent now.", counts.lent);
    text.gauge("tailwind_backup_segments_recovered", "Open segments left by an older epoch.", counts.recovered);
    text.gauge("tailwind_backup_segments_closed", "Closed segments.", counts.closed);
    text.gauge("tailwind_backup_segments_corrupt", "Closed segments that are gone or corrupt.", counts.corrupt);
    text.gauge("tailwind_backup_segments_damaged", "Open segments that lack acknowledged records.", counts.damaged);
    text.gauge("tailwind_backup_doubtful", "1 when something is missing that cannot be named.", counts.doubtful);
    if let Some(Quarantined { files, bytes, .. }) = quarantine {
        text.gauge("tailwind_backup_quarantined", "Files in quarantine.", *files);
        text.gauge("tailwind_backup_quarantined_bytes", "Bytes of the files in quarantine.", *bytes);
    }
    text.gauge("tailwind_backup_segments_on_disk", "Segments on disk.", counts.on_disk);
    text.gauge("tailwind_backup_strange_files", "Segment files moved aside at the start.", about.strange_files);
    text.gauge("tailwind_backup_buffers", "Buffers in the pool.", about.buffers.into());
    text.gauge("tailwind_backup_unflushed_bytes", "Bytes lent, or closed and not on disk.", counts.unflushed_bytes);
    text.gauge("tailwind_backup_unflushed_bytes_max", "Most of them that may be lent.", about.unflushed_bytes_max);
    text.gauge("tailwind_backup_flush_bytes_per_second", "Flush bandwidth.", about.flush_bytes_per_second);
    text.counter("tailwind_backup_fences_total", "Fences carried out.", tallies.fences);
    text.counter("tailwind_backup_opens_total", "Buffers lent.", tallies.opens);
    text.counter("tailwind_backup_opens_refused_total", "Requests for a buffer refused.", tallies.opens_refused);
    text.counter("tailwind_backup_flush_failures_total", "Flushes that failed.", tallies.flush_failures);
    text.gauge("tailwind_backup_scrub_rate_bytes_per_second", "Bytes read in a second at most.", scrub.rate);
    text.counter("tailwind_backup_scrubbed_bytes_total", "Bytes of closed segments read and found sound.", scrub.bytes);
    text.counter("tailwind_backup_scrub_passes_total", "Times that every closed segment was read.", scrub.passes);
    text.counter("tailwind_backup_scrub_corrupt_total", "Closed segments found corrupt by reading.", scrub.corrupt);
    let ended = scrub.last_pass.map_or(0, |pass| pass.ended);
    text.gauge("tailwind_backup_scrub_last_pass_timestamp_seconds", "When the last pass ended.", ended);
    text.out
}

struct Text {
    labels: String,
    out: String,
}

impl Text {
    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.sample(name, help, "gauge", "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.sample(name, help, "counter", "", value);
    }

    fn info(&mut self, name: &str, help: &str, labels: &str) {
        self.sample(name, help, "gauge", &format!(",{labels}"), 1);
    }

    fn sample(&mut self, name: &str, help: &str, kind: &str, more: &str, value: u64) {
        let labels = &self.labels;
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{{labels}{more}}} {value}");
    }
}
