//! What a sidecar tells of itself: the JSON of `/status` and of the socket's status request, and the Prometheus text.
//!
//! Asked by the HTTP endpoint and by [`control`](super).

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use tailwind_crds::readiness::{Waiting, WaitsFor};
use tokio::sync::oneshot;

use super::Context;
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
        path: describe(context).await,
    };
    serde_json::to_string(&status).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

/// Prometheus text format, version 0.0.4.
pub async fn metrics(context: &Context) -> String {
    let path = describe(context).await;
    let (closed_segments, memory_bytes) = context.log.sizes();
    let shared = &context.shared;
    let count = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    let is = |role: &str| u64::from(path.as_ref().is_some_and(|path| path.role == role));
    let members = |standing: &str| {
        path.as_ref().map_or(0, |path| path.members.iter().filter(|member| member.standing == standing).count() as u64)
    };
    let of_path = |number: fn(&Description) -> u64| path.as_ref().map_or(0, number);
    let store_is_older = context.waits.told().is_some_and(|waiting| waiting.what == WaitsFor::NewerConfigStore);
    let damaged = path.as_ref().map_or(0, |path| path.members.iter().map(|member| member.damaged as u64).sum());
    let numbers: [(&str, &str, &str, u64); 17] = [
        ("primary", "gauge", "1 when this sidecar is primary.", is("primary")),
        ("standby", "gauge", "1 when this sidecar is a standby.", is("standby")),
        ("epoch", "gauge", "Epoch as far as this sidecar knows.", of_path(|path| path.epoch)),
        ("members_version", "gauge", "Version of the member set.", of_path(|path| path.version)),
        ("members_in_set", "gauge", "Members that acks need.", members("in set")),
        ("members_catching_up", "gauge", "Newcomers being re-replicated.", members("catching up")),
        ("damaged_segments", "gauge", "Closed copies at members that are gone or corrupt.", damaged),
        ("appends_total", "counter", "Appends taken: records or batches.", count(&shared.appends)),
        ("records_total", "counter", "Records taken.", count(&shared.records)),
        ("log_bytes_total", "counter", "Bytes of log written, headers included.", count(&shared.bytes)),
        ("acked_lsn", "gauge", "LSN of the last acknowledged record.", count(&shared.acked)),
        ("first_lsn", "gauge", "First record that can be read.", count(&shared.first)),
        ("refused_total", "counter", "Requests and connections refused.", count(&shared.refused)),
        ("store_is_older", "gauge", "1 while the config store is older than the log.", store_is_older.into()),
        ("clients", "gauge", "Clients connected.", count(&shared.clients)),
        ("closed_segments", "gauge", "Closed segments of the log.", closed_segments as u64),
        ("memory_bytes", "gauge", "Memory of open segments.", memory_bytes as u64),
    ];
    let labels = format!("{{group=\"{}\",sidecar=\"{}\"}}", context.group, context.me.id);
    let mut text = String::new();
    for (name, kind, help, value) in numbers {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "# HELP tailwind_{name} {help}\n# TYPE tailwind_{name} {kind}\ntailwind_{name}{labels} {value}\n"
        );
    }
    text
}
