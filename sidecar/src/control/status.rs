//! What a sidecar tells of itself and its group: the report, what `/readyz` answers, and the metrics.
//!
//! Asked by the HTTP endpoint and by [`control`](super), mostly at [`report`]: both get the same one. What the
//! path and the roles know is put together here with what the files of this room know:
//!
//! - [`waits`]: what keeps this sidecar from becoming primary; [`times`]: how long failovers have taken;
//! - [`refusals`]: which members lend no buffer; [`contacts`]: which backups are lost, or do not answer;
//! - [`peers`]: the group's other sidecars; [`rates`]: how fast records are appended;
//! - [`table`]: what is done for the group's table; [`mirrors`]: the mirrors of its index;
//! - [`measured`]: what the metrics are read from.

pub mod contacts;
mod measured;
pub mod mirrors;
pub mod peers;
pub mod rates;
pub mod refusals;
pub mod table;
pub mod times;
pub mod waits;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tailwind_protocol::config::Configuration;
use tailwind_protocol::ids::{Lsn, MemberId};
use tailwind_report::readiness::{AppendsWait, AppendsWaitFor, Readiness, WaitsFor};
use tailwind_report::report::Report;
use tailwind_report::sidecar::{
    ClientsReport, Ladder, MemberReport, MemberState, PrimaryReport, ROWS_MAX, SegmentsReport, SidecarReport,
};
use tailwind_report::verdict::{trouble, verdict};
use tailwind_report::{Positions, ROLE_PRIMARY, ROLE_READER, ROLE_STANDBY};
use tailwind_runtime::metrics::Snapshot;
use tokio::sync::oneshot;

use super::Context;
use crate::path::{Command, Description, LeadingDescription, MemberDescription, TableDescription};
use crate::tls;
use contacts::Contact;
use measured::Measured;
pub use measured::example_metrics;

/// How long the append path may take to describe itself before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks the append path; `None` if it hangs.
pub async fn describe(context: &Context) -> Option<Description> {
    let (reply, answer) = oneshot::channel();
    context.path.send(Command::Describe(reply));
    tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()
}

/// The report as one JSON object, for a client of the append socket: once the append path, which has to send it, can.
pub async fn json(context: &Context) -> String {
    loop {
        if let Some(report) = report(context).await {
            return serde_json::to_string(&report).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
        }
    }
}

/// What `/readyz` answers; `None` if the append path hangs.
pub async fn readiness(context: &Context) -> Option<Readiness> {
    let path = describe(context).await?;
    let appends_wait = appends_wait(context, &path, &members(context, &path, None));
    Some(Readiness { role: path.role, waiting: context.waits.told_while(context.may_read()), appends_wait })
}

/// What this sidecar reports; `None` if the append path hangs.
pub async fn report(context: &Context) -> Option<Report<SidecarReport>> {
    let path = describe(context).await?;
    let desired = context.desired();
    let config = context.configuration.borrow().clone();
    let members = members(context, &path, config.as_ref());
    let mut report = SidecarReport {
        epoch: path.epoch,
        log: config.as_ref().map(|config| config.log.to_string()),
        set_version: config.as_ref().map(|config| config.version.0),
        primary: primary(context, &path, config.as_ref()),
        durability: context.rules.durability.to_string(),
        fabric: context.sender.kind().to_string(),
        segment_bytes: context.rules.segment_size.bytes().into(),
        members_wanted: desired.members,
        min_in_sync: desired.min_in_sync,
        fenced: desired.fenced,
        appends_wait: appends_wait(context, &path, &members),
        members,
        clients: ClientsReport {
            connected: path.clients as u64,
            rings: path.rings,
            followers: context.follows.count() as u64,
            syncing: path.syncs as u64,
        },
        waiting: context.waits.told_while(context.may_read()),
        takeover: peers::could_take_over(context).filter(|_| path.role == ROLE_STANDBY),
        follow: context.follows.report(Instant::now()),
        table: context.rules.table.as_ref().map(|size| {
            let kept = path.leading.as_ref().and_then(|leading| leading.table.as_ref());
            context.table.report(size, context.rules.segment_size, kept, Lsn(path.acked))
        }),
        failover_ms: context.times.last_failover_ms(),
        role: path.role.clone(),
        ..SidecarReport::default()
    };
    lead(context, &path, &mut report);
    report.verdict = verdict(&report);
    Some(Report::new(context.group.as_str(), context.me.id.as_str(), report))
}

/// What only a primary knows.
fn lead(context: &Context, path: &Description, report: &mut SidecarReport) {
    let Some(leading) = &path.leading else { return };
    let [flushed, acked, completed, posted, appended] = [
        leading.positions.flushed,
        leading.positions.acked,
        leading.positions.completed,
        leading.positions.posted,
        leading.positions.appended,
    ]
    .map(|position| position.to_string());
    let (closed, open, memory) = context.log.sizes();
    // What the term has written itself is newer than what the store's watch has shown.
    report.log = context.log.term().map(|term| term.log.to_string()).or(report.log.take());
    report.set_version = Some(leading.version);
    report.connected = Some(u8::try_from(leading.connected).unwrap_or(u8::MAX));
    (report.standbys, report.readers) = context.peers.told();
    report.standbys.truncate(ROWS_MAX);
    report.readers.truncate(ROWS_MAX);
    report.positions = Some(Positions { first: path.first, acked: path.acked });
    report.synced = Some(leading.synced);
    report.ladder = Some(Ladder { flushed, acked, completed, posted, appended });
    report.segments = Some(SegmentsReport { closed: closed as u64, open: open as u64, memory_bytes: memory as u64 });
    report.appends = Some(context.rates.report(&context.shared, path.pending as u64));
}

fn primary(context: &Context, path: &Description, config: Option<&Configuration>) -> Option<PrimaryReport> {
    let name = Some(path.primary.clone()).filter(|name| !name.is_empty())?;
    if path.role == ROLE_PRIMARY {
        return Some(PrimaryReport { name, address: Some(context.me.control.clone()), heard_ms_ago: None });
    }
    let known = config.map(|config| &config.primary).filter(|primary| primary.id.as_str() == name);
    let heard_ms_ago = known.and_then(|primary| context.peers.heard_ms_ago(primary));
    Some(PrimaryReport { name, address: known.map(|primary| primary.control.clone()), heard_ms_ago })
}

/// The members, and every other backup that is known.
fn members(context: &Context, path: &Description, config: Option<&Configuration>) -> Vec<MemberReport> {
    let refusals = context.refusals.told();
    let refusal =
        |id: &MemberId| refusals.iter().find(|refusal| refusal.member == *id).map(|refusal| refusal.why.clone());
    let size = context.rules.segment_size.bytes().into();
    let seats = path.leading.iter().flat_map(|leading| &leading.members);
    let seated = seats.map(|seat| {
        let (id, contact) = (&seat.member.id, context.contacts.of(&seat.member.id));
        let report = MemberReport { why: refusal(id), ..of_seat(seat, size) };
        (
            id.clone(),
            if seat.lost { MemberReport { state: MemberState::Lost, ..missing(report, contact) } } else { report },
        )
    });
    let mut rows: Vec<(MemberId, MemberReport)> = seated.collect();
    // At a primary every member of the set has a seat.
    let set = config.filter(|_| path.leading.is_none()).into_iter().flat_map(|config| &config.members);
    for member in set {
        let report = MemberReport { in_set: true, ..named(&member.id, &member.control) };
        rows.push((member.id.clone(), without_seat(report, context.contacts.of(&member.id))));
    }
    let desired = context.desired();
    let mut others: Vec<_> =
        desired.backups.iter().filter(|(id, _)| rows.iter().all(|(known, _)| known != id)).collect();
    others.sort_unstable();
    for (id, control) in others {
        rows.push((id.clone(), without_seat(named(id, control), context.contacts.of(id))));
    }
    for (id, row) in &mut rows {
        // Where it is now, if the group says so, and not where it was when it joined.
        if let Some((_, control)) = desired.backups.iter().find(|(known, _)| known == id) {
            row.address = Some(control.clone());
        }
    }
    rows.truncate(ROWS_MAX);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn named(id: &MemberId, control: &str) -> MemberReport {
    MemberReport { name: id.to_string(), address: Some(control.to_owned()), ..MemberReport::default() }
}

/// A member or a newcomer of this primary.
fn of_seat(seat: &MemberDescription, segment_bytes: u64) -> MemberReport {
    let missing = seat.missing.map(|missing| missing as u64);
    MemberReport {
        state: if missing.is_some() { MemberState::CatchingUp } else { MemberState::InSet },
        in_set: missing.is_none(),
        completed: Some(seat.completed.to_string()),
        behind_bytes: Some(seat.behind.saturating_add(missing.unwrap_or(0).saturating_mul(segment_bytes))),
        segments_missing: missing,
        damaged: seat.damaged as u64,
        ..named(&seat.member.id, &seat.member.control)
    }
}

/// A backup that this sidecar does not write to.
fn without_seat(report: MemberReport, contact: Contact) -> MemberReport {
    let state = match (&contact.lost, &contact.answer) {
        (Some(_), _) => MemberState::Lost,
        (None, Some((_, Err(_)))) => MemberState::Unreachable,
        _ if report.in_set => MemberState::InSet,
        _ => return MemberReport { state: MemberState::Spare, why: contact.refused, ..report },
    };
    MemberReport { state, ..missing(report, contact) }
}

/// Since when it has been missing, and why, if it is: what it does now says more than how it was lost.
fn missing(report: MemberReport, contact: Contact) -> MemberReport {
    let answer = contact.answer.and_then(|(since, answer)| Some((since, answer.err()?)));
    let (since, why) = match (contact.lost, answer) {
        (Some((since, _)), Some((_, why))) => (since, why),
        (Some((since, why)), None) | (None, Some((since, why))) => (since, why),
        (None, None) => return report,
    };
    let since_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
    MemberReport { since_ms: Some(since_ms), why: Some(why), ..report }
}

/// What appends wait for, in words that stay the same for as long as the reason does.
fn appends_wait(context: &Context, path: &Description, members: &[MemberReport]) -> Option<AppendsWait> {
    let leading = path.leading.as_ref()?;
    let what = leading.appends_wait?;
    let refusals = context.refusals.told().into_iter().map(|refusal| format!("{}: {}", refusal.member, refusal.why));
    let lost = members.iter().filter(|member| member.in_set && member.state == MemberState::Lost);
    let lost: Vec<String> = lost.map(|member| trouble(member, false)).collect();
    let refusals = refusals.collect::<Vec<_>>().join("; ");
    let why = match what {
        AppendsWaitFor::Room if refusals.is_empty() => "members have not lent the next segment yet".to_owned(),
        AppendsWaitFor::Room => refusals,
        AppendsWaitFor::Cleaner => {
            "the log takes as much as the table's memory: requests wait until its cleaner has trimmed".to_owned()
        }
        AppendsWaitFor::Members if lost.is_empty() => unconfirmed(leading),
        AppendsWaitFor::Members => lost_members(&lost.join("; "), members, context.desired().min_in_sync),
        AppendsWaitFor::Disk => "a member's disk has not taken what is in its memory".to_owned(),
    };
    Some(AppendsWait { what, why })
}

/// Who has not confirmed what no append is acknowledged without.
fn unconfirmed(leading: &LeadingDescription) -> String {
    let holds_up = |member: &&MemberDescription| {
        member.missing.is_none() && member.behind > 0 && member.completed <= leading.positions.acked
    };
    let names: Vec<String> =
        leading.members.iter().filter(holds_up).map(|member| member.member.id.to_string()).collect();
    match &names[..] {
        [] => "a member does not confirm what is written to it".to_owned(),
        [name] => format!("{name} does not confirm what is written to it"),
        _ => format!("{} do not confirm what is written to them", names.join(", ")),
    }
}

/// Whom appends wait for, and what ends the wait.
fn lost_members(lost: &str, members: &[MemberReport], needed: u8) -> String {
    let of_set = members.iter().filter(|member| member.in_set);
    let left = of_set.clone().filter(|member| member.state == MemberState::InSet).count();
    if left >= usize::from(needed) {
        return format!("{lost}; it leaves the set once the config store has taken that");
    }
    format!(
        "{left} of {} members are left, {needed} needed (min-in-sync): {lost}. Bring them back, or start other backups that this \
         sidecar knows: they take the place of what is lost",
        of_set.count()
    )
}

/// What `/metrics` serves.
pub async fn metrics(context: &Context) -> Snapshot {
    snapshot(&Measured::of(context), describe(context).await)
}

/// Every metric. `path` is missing if the append path hangs.
fn snapshot(context: &Measured<'_>, path: Option<Description>) -> Snapshot {
    let (closed_segments, _, memory_bytes) = context.log.sizes();
    let shared = &context.shared;
    let count = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    let is = |role: &str| u64::from(path.as_ref().is_some_and(|path| path.role == role));
    let leading = path.as_ref().and_then(|path| path.leading.as_ref());
    let seats = |such: fn(&MemberDescription) -> bool| {
        leading.map_or(0, |leading| leading.members.iter().filter(|member| !member.lost && such(member)).count() as u64)
    };
    let of_path = |number: fn(&Description) -> u64| path.as_ref().map_or(0, number);
    let store_is_older = context.waits.told().is_some_and(|waiting| waiting.what == WaitsFor::NewerConfigStore);
    let corrupt = leading.map_or(0, |leading| leading.members.iter().map(|member| member.damaged as u64).sum());
    let mut now = Snapshot::new([("group", context.group.as_str()), ("sidecar", context.me.id.as_str())]);
    now.gauge("tailwind_primary", "1 when this sidecar is primary.", is(ROLE_PRIMARY));
    now.gauge("tailwind_standby", "1 when this sidecar is a standby.", is(ROLE_STANDBY));
    now.gauge("tailwind_epoch", "Epoch as far as this sidecar knows.", of_path(|path| path.epoch));
    now.gauge("tailwind_members_version", "Version of the member set.", leading.map_or(0, |leading| leading.version));
    now.gauge("tailwind_members_in_set", "Members that acks need.", seats(|member| member.missing.is_none()));
    now.gauge(
        "tailwind_members_catching_up",
        "Newcomers being re-replicated.",
        seats(|member| member.missing.is_some()),
    );
    now.gauge("tailwind_corrupt_segments", "Closed copies at members that are gone or corrupt.", corrupt);
    now.counter("tailwind_appends_total", "Appends taken: records or batches.", count(&shared.appends));
    now.counter("tailwind_records_total", "Records taken.", count(&shared.records));
    now.counter("tailwind_log_bytes_total", "Bytes of log written, headers included.", count(&shared.bytes));
    let posted = [
        ("log", &shared.posted_log_bytes),
        ("board", &shared.posted_board_bytes),
        ("mirror", &shared.posted_mirror_bytes),
    ];
    let help = "Bytes that this primary has posted to members, those for each member counted, by what they are of.";
    now.counters("tailwind_posted_bytes_total", help, "what", posted.map(|(what, bytes)| (what, count(bytes))));
    let help = "Bytes of closed segments that this sidecar has copied to members, because these could not pull them.";
    now.counter("tailwind_image_bytes_total", help, count(&shared.image_bytes));
    now.gauge("tailwind_acked_lsn", "LSN of the last acknowledged record.", count(&shared.acked));
    now.gauge("tailwind_first_lsn", "First record that can be read.", count(&shared.first));
    now.counter("tailwind_refused_total", "Requests and connections refused.", count(&shared.refused));
    now.gauge("tailwind_store_is_older", "1 while the config store is older than the log.", store_is_older.into());
    let waits = leading.is_some_and(|leading| leading.appends_wait.is_some());
    now.gauge("tailwind_appends_wait", "1 while appends have waited for a second or longer.", waits.into());
    now.gauge(
        "tailwind_members_connected",
        "Members of the set that are written to.",
        leading.map_or(0, |leading| leading.connected as u64),
    );
    let times = &shared.append_times;
    now.histogram("tailwind_append_seconds", "Time from the receipt of an append to its ack.", times);
    let times = &shared.replication_times;
    now.histogram("tailwind_replication_seconds", "Time from posting to the last member's completion.", times);
    let help = "Time from the taking of a get of a table's key, off the primary, to its answer.";
    now.histogram("tailwind_table_get_seconds", help, &shared.get_times);
    let help = "Time that appends have paused so that a newcomer could join under load.";
    now.histogram("tailwind_join_pause_seconds", help, &shared.join_pauses);
    let times = &context.times;
    let help = "Time from the moment at which this standby missed its primary until it was primary itself.";
    now.histogram("tailwind_failover_seconds", help, &times.failover);
    now.histogram("tailwind_promotion_claim_seconds", "Time until a promotion had claimed its epoch.", &times.claim);
    let help = "Time from the claim until the log was put together from fenced members.";
    now.histogram("tailwind_promotion_fence_seconds", help, &times.fence);
    let help = "Time from then until every member held the log.";
    now.histogram("tailwind_promotion_repair_seconds", help, &times.repair);
    now.gauge("tailwind_reader", "1 when this sidecar only reads.", is(ROLE_READER));
    let follows = &context.follows;
    now.gauge("tailwind_followers", "Clients that read the log from backups.", follows.count() as u64);
    let help = "Records that clients have been sent from backups.";
    now.counter("tailwind_followed_records_total", help, follows.records());
    if let Some(lag) = follows.lag(Instant::now()) {
        let help = "Largest age of the log that clients are sent from backups; absent without such clients.";
        now.seconds("tailwind_follow_lag_seconds", help, lag);
    }
    now.gauge("tailwind_clients", "Clients connected.", *shared.clients.borrow());
    now.gauge("tailwind_rings", "Clients that append through shared memory.", count(&shared.rings));
    now.gauge("tailwind_closed_segments", "Closed segments of the log.", closed_segments as u64);
    now.gauge("tailwind_memory_bytes", "Memory of open segments.", memory_bytes as u64);
    let table = leading.and_then(|leading| leading.table);
    let of_table = |number: fn(&TableDescription) -> u64| table.as_ref().map_or(0, number);
    now.gauge("tailwind_table_keys", "Keys of the table that this primary keeps.", of_table(|table| table.keys.into()));
    let help = "Bytes that the last records of a table's keys take in the log.";
    now.gauge("tailwind_table_live_bytes", help, of_table(|table| table.live_bytes));
    let log_bytes = of_table(|table| table.log_segments.into()) * context.segment_bytes;
    now.gauge("tailwind_table_log_bytes", "Bytes of the segments of a table's log.", log_bytes);
    let gets = [
        ("value", &shared.gets_found),
        ("older", &shared.gets_older),
        ("absent", &shared.gets_absent),
        ("unavailable", &shared.gets_unavailable),
    ];
    let help = "Gets of a table's keys that were answered, by what with.";
    now.counters("tailwind_table_gets_total", help, "result", gets.map(|(result, gets)| (result, count(gets))));
    let help = "Segments of a table's log that were emptied of live records and trimmed.";
    now.counter("tailwind_table_cleaned_segments_total", help, count(&shared.cleaned_segments));
    let help = "Bytes of log with live records that were appended again, so that their segments could be trimmed.";
    now.counter("tailwind_table_moved_bytes_total", help, count(&shared.moved_bytes));
    let acked = Lsn(path.as_ref().map_or(0, |path| path.acked));
    let behind = context.mirrors.report(acked).into_iter().filter_map(|mirror| Some((mirror.member, mirror.behind?)));
    let help = "Acknowledged records that a member's mirror of a table's index does not show yet.";
    now.gauges("tailwind_table_mirror_behind_records", help, "member", behind);
    tls::measure(context.certificate, &mut now);
    now
}
