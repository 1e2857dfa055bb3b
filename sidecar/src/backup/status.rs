//! What a backup reports about itself: a JSON page for people, metrics for Prometheus, a report for the operator.
//!
//! Called by [`routes`](super::routes).

use std::time::Duration;

use serde::Serialize;
use tailwind_backup::DaemonCounters;
use tailwind_protocol::backup::{Counts, Promise};
use tailwind_protocol::ids::{BootId, GroupName, MemberId};
use tailwind_protocol::rpc::INVENTORY_FOR_IMAGES;
use tailwind_report::readiness::Unready;
use tailwind_report::report::{BackupReport, FolderUse, Report};
use tailwind_runtime::metrics::Snapshot;
use tokio::sync::watch;

use crate::tls::{self, CertificateState};

use super::actor::ActorStatus;
use super::flush_bound::{BoundedBy, FlushBound};
use super::heartbeats::Heartbeats;
use super::memory_bound::MemoryBound;
use super::pull::Pulled;
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
    /// Of a mirror's memory.
    pub(super) mirror_parts: u32,
    pub(super) mirror_part_bytes: u32,
    pub(super) unflushed_bytes_max: u64,
    pub(super) flush_bytes_per_second: u64,
    /// Most that the flush folder may hold.
    pub(super) flush_bound: FlushBound,
    /// Most segments that it may hold.
    pub(super) memory_bound: MemoryBound,
    /// Files that were moved aside at the start.
    pub(super) unexpected_files: u64,
    /// What keeps it from lending, found at the start; it is alive and not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) obstacle: Option<Unready>,
    #[serde(skip)]
    pub(super) heartbeats: Heartbeats,
}

#[derive(Serialize)]
struct Status<'a> {
    role: &'static str,
    #[serde(flatten)]
    about: &'a About,
    #[serde(flatten)]
    report: &'a ActorStatus,
    scrub: &'a Scrubbed,
    pulled: &'a Pulled,
    /// Absent while the disk does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine: Option<&'a Quarantined>,
}

/// The status page.
pub(super) fn page<'a>(
    about: &'a About,
    report: &'a ActorStatus,
    scrub: &'a Scrubbed,
    pulled: &'a Pulled,
    quarantine: Option<&'a Quarantined>,
) -> impl Serialize + use<'a> {
    Status { role: "backup", about, report, scrub, pulled, quarantine }
}

/// The report for the operator.
pub(super) fn report(about: &About, status: &ActorStatus, quarantine: Option<&Quarantined>) -> Report<BackupReport> {
    let Counts { lent, recovered, closed, corrupt, damaged, doubtful, flush_bytes, .. } = status.counts;
    let quarantined = quarantine.map(|found| found.files);
    let folder = Some(FolderUse { bytes: flush_bytes, max: about.flush_bound.bytes });
    let report = BackupReport {
        boot: about.boot.to_string(),
        log: status.promise.log.map(|log| log.to_string()),
        epoch: status.promise.epoch.0,
        copies: lent + recovered + closed,
        damaged: corrupt + damaged + doubtful,
        quarantined,
        folder,
    };
    Report::new(about.group.as_str(), about.member.as_str(), report)
}

/// The metrics. What is in quarantine is left out while the disk does not say: 0 would be another answer.
pub(super) fn metrics(
    about: &About,
    report: &ActorStatus,
    scrub: &Scrubbed,
    pulled: &Pulled,
    quarantine: Option<&Quarantined>,
    certificate: Option<CertificateState>,
) -> Snapshot {
    let About { group, member, boot, fabric, .. } = about;
    let (counts, tallies) = (&report.counts, &report.tallies);
    let mut now = Snapshot::new([("group", group.as_str()), ("member", member.as_str())]);
    now.info(
        "tailwind_backup_info",
        "The label boot is the backup's identity: it changes when the backup has lost its memory.",
        [("boot", boot.to_string()), ("fabric", fabric.clone())],
    );
    tls::measure(certificate, &mut now);
    now.gauge(
        "tailwind_backup_promised_epoch",
        "Promised epoch: no older epoch can change anything here.",
        report.promise.epoch.0,
    );
    now.gauge("tailwind_backup_trimmed_lsn", "Records below this LSN are no longer needed.", report.promise.trimmed.0);
    now.gauge("tailwind_backup_segments_lent", "Buffers lent now.", counts.lent);
    now.gauge("tailwind_backup_segments_recovered", "Open segments left by an older epoch.", counts.recovered);
    now.gauge("tailwind_backup_segments_closed", "Closed segments.", counts.closed);
    now.gauge(
        "tailwind_backup_segments_max",
        "Most segments that may be lent, recovered or closed while appends continue; more are kept for repairs.",
        about.memory_bound.segments.saturating_sub(INVENTORY_FOR_IMAGES as u64),
    );
    now.gauge("tailwind_backup_segments_corrupt", "Closed segments that are gone or corrupt.", counts.corrupt);
    now.gauge("tailwind_backup_segments_damaged", "Open segments that lack acknowledged records.", counts.damaged);
    now.gauge("tailwind_backup_doubtful", "1 when something is missing that cannot be named.", counts.doubtful);
    if let Some(Quarantined { files, bytes, .. }) = quarantine {
        now.gauge("tailwind_backup_quarantined", "Files in quarantine; absent while the disk does not answer.", *files);
        now.gauge(
            "tailwind_backup_quarantined_bytes",
            "Bytes of these files; absent while the disk does not answer.",
            *bytes,
        );
    }
    now.gauge("tailwind_backup_segments_on_disk", "Segments on disk.", counts.on_disk);
    now.gauge(
        "tailwind_backup_resident_segments",
        "Of the segments on disk, those that have a buffer too, and are read from it.",
        counts.resident,
    );
    now.gauge("tailwind_backup_unexpected_files", "Segment files moved aside at the start.", about.unexpected_files);
    now.gauge("tailwind_backup_buffers", "Buffers in the pool.", about.buffers.into());
    now.gauge("tailwind_backup_mirror_parts", "Parts of memory for a table's mirror.", about.mirror_parts.into());
    now.gauge(
        "tailwind_backup_mirror_parts_lent",
        "Parts of that memory that are lent now.",
        report.mirror_parts_lent.into(),
    );
    if let Some(bytes) = report.written_bytes {
        let help = "Bytes written into this backup's memory by messages and by copies out of these.";
        now.counter("tailwind_backup_written_bytes_total", help, bytes);
    }
    now.gauge("tailwind_backup_unflushed_bytes", "Bytes lent, or closed and not on disk.", counts.unflushed_bytes);
    now.gauge(
        "tailwind_backup_unflushed_bytes_max",
        "Most bytes that may be lent, or closed and not on disk, at a time.",
        about.unflushed_bytes_max,
    );
    let holds = "Bytes in the flush folder, with what is lent or closed and not on disk.";
    now.gauge("tailwind_backup_flush_bytes", holds, counts.flush_bytes);
    now.gauge(
        "tailwind_backup_flush_bytes_max",
        "Most bytes that the flush folder may hold: at this bound appends wait.",
        about.flush_bound.bytes,
    );
    now.gauge(
        "tailwind_backup_flush_bytes_per_second",
        "Bandwidth of the flush folder, given or measured at the start.",
        about.flush_bytes_per_second,
    );
    now.counter("tailwind_backup_fences_total", "Fences carried out.", tallies.fences);
    now.counter("tailwind_backup_opens_total", "Buffers lent.", tallies.opens);
    now.counter("tailwind_backup_opens_refused_total", "Requests for a buffer refused.", tallies.opens_refused);
    now.counter("tailwind_backup_flush_failures_total", "Flushes that failed.", tallies.flush_failures);
    let loads = "Segments read from disk into a buffer, to be resident.";
    now.counter("tailwind_backup_resident_loads_total", loads, tallies.resident_loads);
    now.counter("tailwind_backup_pulled_segments_total", "Segments copied here from other backups.", pulled.segments);
    now.counter(
        "tailwind_backup_pulled_bytes_total",
        "Bytes of segments copied here from other backups.",
        pulled.bytes,
    );
    let from_memory = "Bytes of segments copied here that were read one-sidedly.";
    now.counter("tailwind_backup_pulled_memory_bytes_total", from_memory, pulled.memory_bytes);
    now.counter("tailwind_backup_pulls_failed_total", "Pulls that no source could serve.", pulled.failed);
    now.gauge(
        "tailwind_backup_scrub_rate_bytes_per_second",
        "Bytes that the scrub reads per second at most; 0 if it is off.",
        scrub.rate,
    );
    now.counter("tailwind_backup_scrubbed_bytes_total", "Bytes of closed segments read and found sound.", scrub.bytes);
    now.counter("tailwind_backup_scrub_passes_total", "Times that every closed segment was read.", scrub.passes);
    now.counter("tailwind_backup_scrub_corrupt_total", "Closed segments found corrupt by reading.", scrub.corrupt);
    let ended = scrub.last_pass.map_or(0, |pass| pass.ended);
    now.gauge(
        "tailwind_backup_scrub_last_pass_timestamp_seconds",
        "When the last pass of the scrub ended; 0 before the first has ended.",
        ended,
    );
    now
}

/// Every metric of a backup, with numbers that mean nothing: for the reference.
///
/// # Errors
/// None: the names in it are valid.
pub fn example() -> anyhow::Result<Snapshot> {
    let about = About {
        group: "orders".parse()?,
        member: "b0".parse()?,
        boot: BootId(0),
        control: String::new(),
        fabric: "shm".to_owned(),
        tls: true,
        buffers: 0,
        buffer_bytes: 0,
        mirror_parts: 0,
        mirror_part_bytes: 0,
        unflushed_bytes_max: 0,
        flush_bytes_per_second: 0,
        flush_bound: FlushBound { bytes: 0, from: BoundedBy::Disk },
        memory_bound: MemoryBound::UNLIMITED,
        unexpected_files: 0,
        obstacle: None,
        heartbeats: Heartbeats { interval: Duration::from_secs(1), followed: watch::channel(false).1 },
    };
    let status = ActorStatus {
        promise: Promise::default(),
        counts: Counts::default(),
        tallies: DaemonCounters::default(),
        mirror_parts_lent: 0,
        // Only in builds that do not ship.
        written_bytes: None,
        damage: Vec::new(),
        problem: None,
        no_room: None,
    };
    let quarantine = Quarantined::default();
    let certificate = CertificateState { reload_fails: false, expires: Some(0) };
    Ok(metrics(&about, &status, &Scrubbed::default(), &Pulled::default(), Some(&quarantine), Some(certificate)))
}
