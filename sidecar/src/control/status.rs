//! What a sidecar tells of itself: the JSON of `/status` and of the socket's status request, the metrics, and the report for
//! the operator.
//!
//! Asked by the HTTP endpoint and by [`control`](super).

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;
use tailwind_report::Positions;
use tailwind_report::readiness::{AppendsWait, AppendsWaitFor, Readiness, Waiting, WaitsFor};
use tailwind_report::report::{FollowReport, Report, SidecarReport};
use tailwind_report::{ROLE_PRIMARY, ROLE_READER};
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
    waiting: Option<Waiting>,
    /// What appends wait for.
    #[serde(skip_serializing_if = "Option::is_none")]
    appends_wait: Option<AppendsWait>,
    /// Members that lend no buffer for appends: once the open segment is full, appends wait for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refusals: Vec<MemberRefusal>,
    /// Clients that read what members hold.
    followers: usize,
    /// How far the one of them is that is furthest behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    follow: Option<FollowReport>,
    #[serde(flatten)]
    path: Option<Description>,
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
    let path = describe(context).await;
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
        waiting: context.waits.told(),
        appends_wait: path.as_ref().and_then(|path| appends_wait(context, path)),
        refusals: context.refusals.told(),
        followers: context.follows.count(),
        follow: context.follows.report(Instant::now()),
        path,
    };
    serde_json::to_string(&status).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

/// What `/readyz` answers; `None` if the append path hangs.
pub async fn readiness(context: &Context) -> Option<Readiness> {
    let path = describe(context).await?;
    let appends_wait = appends_wait(context, &path);
    Some(Readiness { role: path.role, waiting: context.waits.told(), appends_wait })
}

/// What the operator reads; `None` if the append path hangs.
pub async fn report(context: &Context) -> Option<Report<SidecarReport>> {
    let path = describe(context).await?;
    let appends_wait = appends_wait(context, &path);
    let is_primary = path.role == ROLE_PRIMARY;
    let report = SidecarReport {
        epoch: path.epoch,
        waiting: context.waits.told(),
        positions: is_primary.then_some(Positions { first: path.first, acked: path.acked }),
        connected: is_primary.then(|| u8::try_from(path.connected).unwrap_or(u8::MAX)),
        appends_wait,
        follow: context.follows.report(Instant::now()),
        role: path.role,
    };
    Some(Report::new(context.group.as_str(), context.me.id.as_str(), report))
}

/// What appends wait for, in words.
fn appends_wait(context: &Context, path: &Description) -> Option<AppendsWait> {
    let what = path.appends_wait?;
    let refusals = context.refusals.told().into_iter().map(|refusal| format!("{}: {}", refusal.member, refusal.why));
    let lost = path.members.iter().filter(|member| member.state == "lost").map(|member| member.name.as_str());
    let (refusals, lost) = (refusals.collect::<Vec<_>>().join("; "), lost.collect::<Vec<_>>().join(", "));
    let why = match what {
        AppendsWaitFor::Room if refusals.is_empty() => "members have not lent the next segment yet".to_owned(),
        AppendsWaitFor::Room => refusals,
        AppendsWaitFor::Members if lost.is_empty() => "a member does not confirm what is written to it".to_owned(),
        AppendsWaitFor::Members => lost_members(&lost, path, context.desired().min_in_sync),
        AppendsWaitFor::Disk => "a member's disk has not taken what is in its memory".to_owned(),
    };
    Some(AppendsWait { what, why })
}

/// Whom appends wait for, and what ends the wait.
fn lost_members(lost: &str, path: &Description, needed: u8) -> String {
    let of_set = path.members.iter().filter(|member| matches!(member.state, "in set" | "lost")).count();
    let left = path.members.iter().filter(|member| member.state == "in set").count();
    if left >= usize::from(needed) {
        return format!("{lost} is lost, and leaves the set once the config store has taken that");
    }
    format!(
        "{left} of {of_set} members are left, {needed} needed (min-in-sync); lost: {lost}. Bring them back, or start other \
         backups that this sidecar knows: they take the place of what is lost"
    )
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
    let help = "Bytes of closed segments that this sidecar has copied to members, because these could not pull them.";
    now.counter("tailwind_image_bytes_total", help, count(&shared.image_bytes));
    now.gauge("tailwind_acked_lsn", "LSN of the last acknowledged record.", count(&shared.acked));
    now.gauge("tailwind_first_lsn", "First record that can be read.", count(&shared.first));
    now.counter("tailwind_refused_total", "Requests and connections refused.", count(&shared.refused));
    now.gauge("tailwind_store_is_older", "1 while the config store is older than the log.", store_is_older.into());
    let waits = path.as_ref().is_some_and(|path| path.appends_wait.is_some());
    now.gauge("tailwind_appends_wait", "1 while appends have waited for a second or longer.", waits.into());
    now.gauge("tailwind_members_connected", "Members of the set that are written to.", of_path(|p| p.connected as u64));
    let times = &shared.append_times;
    now.histogram("tailwind_append_seconds", "Time from the receipt of an append to its ack.", times);
    let times = &shared.replication_times;
    now.histogram("tailwind_replication_seconds", "Time from posting to the last member's completion.", times);
    let help = "Time that appends have paused so that a newcomer could join under load.";
    now.histogram("tailwind_join_pause_seconds", help, &shared.join_pauses);
    let times = &context.times;
    let help = "Time from the moment at which this standby missed its primary until it was primary itself.";
    now.histogram("tailwind_failover_seconds", help, &times.failover);
    now.histogram("tailwind_promotion_claim_seconds", "Time until a promotion had claimed its epoch.", &times.claim);
    let help = "Time from the claim until the log was put together from fenced members.";
    now.histogram("tailwind_promotion_fence_seconds", help, &times.fence);
    let help = "Time from there until every member held the log.";
    now.histogram("tailwind_promotion_repair_seconds", help, &times.repair);
    now.gauge("tailwind_reader", "1 when this sidecar only reads.", is(ROLE_READER));
    let follows = &context.follows;
    now.gauge("tailwind_followers", "Clients that read the log from backups.", follows.count() as u64);
    let help = "Records that clients have been sent from backups.";
    now.counter("tailwind_followed_records_total", help, follows.records());
    if let Some(lag) = follows.lag(Instant::now()) {
        let help = "How old the view of the log is at most that clients are sent from backups.";
        now.seconds("tailwind_follow_lag_seconds", help, lag);
    }
    now.gauge("tailwind_clients", "Clients connected.", *shared.clients.borrow());
    now.gauge("tailwind_rings", "Clients that append through shared memory.", count(&shared.rings));
    now.gauge("tailwind_closed_segments", "Closed segments of the log.", closed_segments as u64);
    now.gauge("tailwind_memory_bytes", "Memory of open segments.", memory_bytes as u64);
    context.access.measure(&mut now);
    now
}
