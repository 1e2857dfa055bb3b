//! What a sidecar tells of itself: the JSON of `/status` and of the socket's status request, the metrics, and the report for
//! the operator.
//!
//! Asked by the HTTP endpoint and by [`control`](super).

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use tailwind_crds::Positions;
use tailwind_crds::names::ROLE_PRIMARY;
use tailwind_crds::readiness::{Waiting, WaitsFor};
use tailwind_crds::report::{Report, SidecarReport};
use tailwind_runtime::metrics::Snapshot;
use tokio::sync::oneshot;

use super::Context;
use super::refusals::MemberRefusal;
use crate::path::{Command, Description};

/// How long the append path may take to describe itself before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Status<'a> {
    group: &'a str,
    sidecar: &'a str,
    fabric: String,
    durability: String,
    segment_size: u32,
    backups_wanted: u8,
    min_in_sync: u8,
    closed_segments: usize,
    memory_bytes: usize,
    /// What keeps it from becoming primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<Wait>,
    /// Members that lend no buffer for appends: once the open segment is full, appends wait for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refusals: Vec<MemberRefusal>,
    #[serde(flatten)]
    path: Option<Description>,
}

#[derive(Serialize)]
struct Wait {
    #[serde(rename = "for")]
    what: &'static str,
    why: String,
}

/// Asks the append path; `None` if it hangs.
pub async fn describe(context: &Context) -> Option<Description> {
    let (reply, answer) = oneshot::channel();
    context.path.send(Command::Describe(reply));
    tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()
}

/// The status as one JSON object.
pub async fn json(context: &Context) -> String {
    let (closed_segments, memory_bytes) = context.log.sizes();
    let desired = context.desired();
    let status = Status {
        group: context.group.as_str(),
        sidecar: context.me.id.as_str(),
        fabric: context.sender.kind().to_string(),
        durability: context.rules.durability.to_string(),
        segment_size: context.rules.segment_size.bytes(),
        backups_wanted: desired.members,
        min_in_sync: desired.min_in_sync,
        closed_segments,
        memory_bytes,
        waiting: context.waits.told().map(|Waiting { what, why }| Wait { what: what.as_str(), why }),
        refusals: context.refusals.told(),
        path: describe(context).await,
    };
    serde_json::to_string(&status).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

/// What the operator reads; `None` if the append path hangs.
pub async fn report(context: &Context) -> Option<Report<SidecarReport>> {
    let path = describe(context).await?;
    let is_primary = path.role == ROLE_PRIMARY;
    let positions = is_primary.then_some(Positions { first: path.first, acked: path.acked });
    Some(Report::new(context.group.as_str(), context.me.id.as_str(), SidecarReport { positions }))
}

/// What `/metrics` serves.
pub async fn metrics(context: &Context) -> Snapshot {
    let path = describe(context).await;
    let (closed_segments, memory_bytes) = context.log.sizes();
    let shared = &context.shared;
    let count = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    let is = |role: &str| u64::from(path.as_ref().is_some_and(|path| path.role == role));
    let members = |state: &str| {
        path.as_ref().map_or(0, |path| path.members.iter().filter(|member| member.state == state).count() as u64)
    };
    let of_path = |number: fn(&Description) -> u64| path.as_ref().map_or(0, number);
    let store_is_older = context.waits.told().is_some_and(|waiting| waiting.what == WaitsFor::NewerConfigStore);
    let damaged = path.as_ref().map_or(0, |path| path.members.iter().map(|member| member.damaged as u64).sum());
    let mut now = Snapshot::new([("group", context.group.as_str()), ("sidecar", context.me.id.as_str())]);
    now.gauge("tailwind_primary", "1 when this sidecar is primary.", is("primary"));
    now.gauge("tailwind_standby", "1 when this sidecar is a standby.", is("standby"));
    now.gauge("tailwind_epoch", "Epoch as far as this sidecar knows.", of_path(|path| path.epoch));
    now.gauge("tailwind_members_version", "Version of the member set.", of_path(|path| path.version));
    now.gauge("tailwind_members_in_set", "Members that acks need.", members("in set"));
    now.gauge("tailwind_members_catching_up", "Newcomers being re-replicated.", members("catching up"));
    now.gauge("tailwind_damaged_segments", "Closed copies at members that are gone or corrupt.", damaged);
    now.counter("tailwind_appends_total", "Appends taken: records or batches.", count(&shared.appends));
    now.counter("tailwind_records_total", "Records taken.", count(&shared.records));
    now.counter("tailwind_log_bytes_total", "Bytes of log written, headers included.", count(&shared.bytes));
    now.gauge("tailwind_acked_lsn", "LSN of the last acknowledged record.", count(&shared.acked));
    now.gauge("tailwind_first_lsn", "First record that can be read.", count(&shared.first));
    now.counter("tailwind_refused_total", "Requests and connections refused.", count(&shared.refused));
    now.gauge("tailwind_store_is_older", "1 while the config store is older than the log.", store_is_older.into());
    now.gauge("tailwind_clients", "Clients connected.", *shared.clients.borrow());
    now.gauge("tailwind_closed_segments", "Closed segments of the log.", closed_segments as u64);
    now.gauge("tailwind_memory_bytes", "Memory of open segments.", memory_bytes as u64);
    context.access.measure(&mut now);
    now
}
