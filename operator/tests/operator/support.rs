//! A group and its surroundings in a few words, for examples in YAML.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::{
    ANNOTATION_ATTEMPT, ANNOTATION_INJECTED, ANNOTATION_TEMPLATE, GATE_CAUGHT_UP, LABEL_GROUP, LABEL_READS, LABEL_ROLE,
    ROLE_READER,
};
use tailwind_operator::objects::claim::claim;
use tailwind_operator::objects::pod::{Creation, backup};
use tailwind_operator::objects::{Kind, Owned};
use tailwind_operator::observed::{Authority, CertificateFacts, Certificates, Leaf, NodeFacts, Observed};
use tailwind_operator::options::Settings;
use tailwind_operator::plan::{Action, plan};
use tailwind_operator::platform::Platform;
use tailwind_operator::quantity::milli;
use tailwind_operator::server_version::ServerVersion;
use tailwind_report::readiness::{AppendsWait, Waiting};
use tailwind_report::report::BackupReport;
use tailwind_report::sidecar::{FollowReport, MemberReport, SidecarReport, Takeover};
use tailwind_report::table::TableReport;

pub(crate) const UID: &str = "00000000-0000-0000-0000-000000000001";
const NOW: &str = "2026-06-01T12:00:00Z";
const LOG_ID: &str = "0123456789abcdef0123456789abcdef";
/// The identity of every member.
const BOOT: &str = "00";

/// The first document of an example.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Example {
    #[serde(default = "target")]
    server: ServerVersion,
    #[serde(default)]
    platform: Platform,
    #[serde(default)]
    metadata: Value,
    #[serde(default)]
    spec: Value,
    /// What the operator has written before; nothing if not given.
    #[serde(default)]
    status: Value,
    log: Option<Log>,
    #[serde(default)]
    rollout: RolloutIs,
    #[serde(default)]
    backups: Vec<Backup>,
    /// Ready pods of others that have the label of its backups.
    #[serde(default)]
    strangers: usize,
    #[serde(default)]
    app: Vec<AppPod>,
    #[serde(default)]
    readers: Vec<ReaderPod>,
    #[serde(default)]
    nodes: Vec<Node>,
    #[serde(default)]
    certificates: CertificatesAre,
    /// There are no random bytes for names of pods.
    #[serde(default)]
    nameless: bool,
    /// There are no objects yet; an earlier reconcile has made them if not given.
    #[serde(default)]
    bare: bool,
    /// The reconcile has also written the status that is due now.
    #[serde(default)]
    settled: bool,
    /// Claims of members.
    #[serde(default)]
    claims: Vec<Claim>,
    /// Objects beside those: services, roles and the like.
    #[serde(default)]
    objects: Vec<Value>,
    /// Show what is made in full.
    #[serde(default)]
    pub(crate) show_objects: bool,
    #[serde(default)]
    obstacles: BTreeMap<String, String>,
    /// What backups report, if not that all is well.
    #[serde(default)]
    reports: BTreeMap<String, ReportIs>,
    /// What the sidecars in the app's pods report, if not that all is well.
    #[serde(default)]
    sidecars: BTreeMap<String, SidecarIs>,
}

/// Whether outdated backups may be replaced.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
enum RolloutIs {
    /// An earlier plan has begun with that, if there are any.
    #[default]
    Begun,
    /// Not begun, and the group may.
    Allowed,
    /// Not begun, and as many other groups as allowed are being updated.
    Refused,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Log {
    #[serde(default = "one")]
    epoch: u64,
    /// The last epoch that had a primary.
    #[serde(default, rename = "wonEpoch")]
    won_epoch: u64,
    primary: String,
    /// Where others reach it, if not at its pod's usual address.
    control: Option<String>,
    members: Vec<String>,
    /// What the group was started with, if not with what the spec says.
    kind: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Backup {
    name: String,
    node: Option<String>,
    #[serde(default)]
    is: Is,
    reason: Option<String>,
    message: Option<String>,
    /// Made from an older template.
    #[serde(default)]
    old: bool,
    /// Made when its group had no claims, so older as well.
    #[serde(default)]
    unclaimed: bool,
    #[serde(default = "hour")]
    age_minutes: i64,
    attempt: Option<u32>,
    /// Since when its container runs, if it does.
    #[serde(default = "minute")]
    running_minutes: i64,
    /// Its container waits, with a reason.
    waiting: Option<String>,
    /// Why the scheduler has found no node for it, since it was made.
    unschedulable: Option<String>,
    /// A node that the scheduler has chosen, and others are still to leave.
    nominated: Option<String>,
    shape: Option<String>,
    /// The last lines of its container before it ended.
    words: Option<String>,
    /// Another address than the log knows.
    ip: Option<String>,
    /// Its gate says the contrary of what the log does: it has just joined the set, or left it.
    #[serde(default)]
    gate_lags: bool,
    /// Why its gate says so.
    gate_reason: Option<String>,
    /// So long ago it should have ended.
    #[serde(default)]
    ending_minutes: i64,
}

/// The claim of a member's flush volume.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Claim {
    of: String,
    /// Nothing has been written to it.
    #[serde(default)]
    unbound: bool,
    /// Its volume was deleted.
    #[serde(default)]
    lost: bool,
    /// It was deleted by a user.
    #[serde(default)]
    deleted: bool,
    #[serde(default)]
    attempt: u32,
    /// Long before any pod if not given.
    age_minutes: Option<i64>,
    /// It is deleted with the group, even if the spec now says otherwise.
    #[serde(default)]
    owned: bool,
    /// It outlives the group, even if the spec now says otherwise.
    #[serde(default)]
    unowned: bool,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
enum Is {
    #[default]
    Ready,
    Starting,
    Pending,
    Failed,
    Ending,
}

/// What a backup reports: the report, the reason why it cannot be read, or nothing.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ReportIs {
    Read(BackupReport),
    Unreadable(String),
    NotAsked,
}

/// What a sidecar reports: what differs from a report that all is well, the reason why it cannot be read, or nothing.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum SidecarIs {
    Read(Box<SidecarDiffers>),
    Unreadable(String),
    NotAsked,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SidecarDiffers {
    role: Option<String>,
    epoch: Option<u64>,
    waiting: Option<Waiting>,
    connected: Option<u8>,
    appends_wait: Option<AppendsWait>,
    /// Whether it could take over; it has not asked the members if not given.
    takeover: Option<Takeover>,
    /// The table that it was started for; one as the spec says, half full, if not given.
    table: Option<TableIs>,
    /// Backups that are in no set, as a primary reports them.
    #[serde(default)]
    missing: Vec<MemberReport>,
}

/// The table that a sidecar reports.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum TableIs {
    /// It was started for a log.
    None,
    /// This one.
    #[serde(untagged)]
    Reported(TableReport),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AppPod {
    name: String,
    #[serde(default)]
    is: Is,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    account: Option<String>,
    #[serde(default)]
    sidecar: Option<String>,
    /// Another pod than the one of its name that the log knows.
    #[serde(default)]
    fresh: bool,
    /// Another address than the usual one.
    ip: Option<String>,
    /// Why the kubelet does not start its app's container, while its sidecar runs.
    waiting: Option<String>,
    node: Option<String>,
}

/// A pod that reads the log. Its sidecar is heard unless the pod does not run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReaderPod {
    name: String,
    /// Makes so many pods, with a number after the name.
    count: Option<usize>,
    #[serde(default)]
    is: Is,
    account: Option<String>,
    sidecar: Option<String>,
    /// Nobody follows through its socket if not given.
    follow: Option<FollowReport>,
    /// The role that its sidecar reports, if it is no reader.
    role: Option<String>,
    /// The table that it was started for; one as the spec says if not given.
    table: Option<TableIs>,
    /// Why its report cannot be read.
    unreadable: Option<String>,
    /// The operator has not asked it yet.
    #[serde(default)]
    unasked: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Node {
    name: String,
    zone: Option<String>,
    #[serde(default)]
    cordoned: bool,
    /// How long it has been cordoned and tainted as it is.
    marked_seconds: Option<i64>,
    not_ready_seconds: Option<i64>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    taints: Vec<Taint>,
    #[serde(default)]
    has: BTreeMap<String, String>,
    #[serde(default)]
    used: BTreeMap<String, String>,
    /// Its own ports that pods use.
    #[serde(default)]
    host_ports: BTreeSet<u16>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum CertificatesAre {
    #[default]
    Well,
    None,
    /// By hand.
    #[serde(untagged)]
    These(Box<These>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct These {
    authority: Dates,
    previous: Option<Dates>,
    sidecar: LeafIs,
    backup: LeafIs,
    /// As the backups' if not given.
    #[serde(default)]
    reader: ReaderLeafIs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ReaderLeafIs {
    #[default]
    LikeBackup,
    None,
    /// By hand.
    #[serde(untagged)]
    This(LeafIs),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Dates {
    name: String,
    from: Timestamp,
    to: Timestamp,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeafIs {
    by: String,
    trusts: Vec<String>,
    from: Timestamp,
    to: Timestamp,
    written: Timestamp,
}

fn target() -> ServerVersion {
    "1.34".parse().unwrap()
}

fn one() -> u64 {
    1
}

fn minute() -> i64 {
    1
}

fn hour() -> i64 {
    60
}

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// A stable address for a name.
fn ip(name: &str) -> String {
    let sum = name.bytes().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    format!("10.0.{}.{}", sum / 200 % 200 + 1, sum % 200 + 1)
}

/// The claim as the operator makes it, and as the API server then stores it.
fn claim_of(given: &Claim, observed: &Observed) -> Owned {
    let mut claim = claim(&observed.group, observed.server, &full(&given.of)).expect("spec.flushVolume.claim");
    let metadata = &mut claim.object.metadata;
    metadata.uid = Some(format!("{}-claim", given.of));
    metadata.deletion_timestamp = given.deleted.then(|| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    metadata.creation_timestamp = given.age_minutes.map(|minutes| {
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now() - SignedDuration::from_mins(minutes))
    });
    if given.owned {
        let owner = json!({"apiVersion": "v1", "kind": "ReplicaGroup", "name": "orders", "uid": UID});
        metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
    }
    if given.unowned {
        metadata.owner_references = None;
    }
    if given.attempt > 0 {
        claim.object.annotations_mut().insert(ANNOTATION_ATTEMPT.to_owned(), given.attempt.to_string());
    }
    if !given.unbound {
        claim.object.data["spec"]["volumeName"] = json!(format!("volume-{}", given.of));
    }
    if given.lost {
        claim.object.data["status"] = json!({"phase": "Lost"});
    }
    claim
}

fn full(name: &str) -> String {
    format!("orders-backup-{name}")
}

impl Example {
    /// Everything that a plan is made from.
    pub(crate) fn observed(&self) -> Observed {
        let group = self.group();
        let settings = Settings {
            sidecar_image: "example.com/tailwind-sidecar:1.0".to_owned(),
            platform: self.platform,
            ..Settings::default()
        };
        let mut readers: Vec<(Pod, &ReaderPod)> = self.readers.iter().flat_map(reader_pods).collect();
        readers.sort_by_key(|(pod, _)| pod.metadata.name.clone());
        let mut observed = Observed {
            now: now(),
            server: self.server,
            backups: self.backups.iter().map(|given| self.backup(given, &group, &settings)).collect(),
            strangers: self.strangers,
            app: self.app.iter().map(app_pod).collect(),
            reader_sidecars: readers
                .iter()
                .filter_map(|(pod, given)| Some((pod.metadata.name.clone()?, self.reader_report(given)?)))
                .collect(),
            readers: readers.into_iter().map(|(pod, _)| pod).collect(),
            nodes: self.nodes.iter().map(node).collect(),
            certificates: certificates(&self.certificates),
            objects: Vec::new(),
            names: (1..10).filter(|_| !self.nameless).map(|n| format!("new0{n}")).collect(),
            positions: None,
            obstacles: self
                .obstacles
                .iter()
                .filter_map(|(name, text)| Some((full(name), text.parse().ok()?)))
                .collect(),
            reports: self.backups.iter().filter_map(|given| Some((full(&given.name), self.report(given)?))).collect(),
            may_update: self.rollout == RolloutIs::Allowed,
            sidecars: self
                .app
                .iter()
                .filter_map(|given| Some((given.name.clone(), self.sidecar_report(given)?)))
                .collect(),
            settings,
            group,
        };
        for object in &self.objects {
            observed.objects.push(owned(object));
        }
        let claims = self.claims.iter().map(|given| claim_of(given, &observed));
        let claims = claims.collect::<Vec<_>>();
        observed.objects.extend(claims);
        let before = plan(&observed);
        if self.settled {
            let log = observed.group.status.as_ref().and_then(|status| status.log.clone());
            observed.group.status = Some(tailwind_crds::ReplicaGroupStatus { log, ..before.status });
        }
        let made = before.actions.into_iter().filter_map(|action| match action {
            Action::Apply(object) if !self.bare => Some(*object),
            _ => None,
        });
        observed.objects.extend(made);
        observed
    }

    fn report(&self, backup: &Backup) -> Option<Result<BackupReport, String>> {
        // As it is by itself: a member holds the log, and what is in no set holds nothing.
        let own = |report: &BackupReport| match &self.log {
            Some(log) if log.members.contains(&backup.name) => BackupReport {
                boot: BOOT.to_owned(),
                log: Some(LOG_ID.to_owned()),
                epoch: log.epoch,
                copies: 3,
                ..report.clone()
            },
            _ => report.clone(),
        };
        match self.reports.get(&backup.name) {
            // Only ready backups and members are asked.
            None if backup.is != Is::Ready
                && !self.log.as_ref().is_some_and(|log| log.members.contains(&backup.name)) =>
            {
                None
            }
            None => Some(Ok(own(&BackupReport { quarantined: Some(0), ..BackupReport::default() }))),
            Some(ReportIs::NotAsked) => None,
            Some(ReportIs::Unreadable(why)) => Some(Err(why.clone())),
            Some(ReportIs::Read(report)) if report.boot.is_empty() => Some(Ok(own(report))),
            Some(ReportIs::Read(report)) => Some(Ok(report.clone())),
        }
    }

    /// By itself a sidecar is heard unless its pod has ended or its node is silent. The named primary writes to all members that
    /// work; everybody else stands by.
    fn sidecar_report(&self, given: &AppPod) -> Option<Result<SidecarReport, String>> {
        let (is, epoch) = (self.sidecars.get(&given.name), self.log.as_ref().map_or(0, |log| log.epoch));
        let silent = |name: &Option<String>, seconds_max: i64| {
            let mut nodes = self.nodes.iter().filter(|node| Some(&node.name) == name.as_ref());
            nodes.any(|node| node.not_ready_seconds.is_some_and(|seconds| seconds > seconds_max))
        };
        let works = |backup: &&Backup| {
            let is_there =
                backup.node.is_none() || self.nodes.iter().any(|node| Some(&node.name) == backup.node.as_ref());
            is_there && matches!(backup.is, Is::Ready | Is::Starting) && !silent(&backup.node, 60)
        };
        let differs = match is {
            Some(SidecarIs::NotAsked) => return None,
            Some(SidecarIs::Unreadable(why)) => return Some(Err(why.clone())),
            None if given.is == Is::Failed => return None,
            None if silent(&given.node, 0) => {
                return Some(Err("no answer within 2 s; its last answer came at 2026-06-01T11:59:10Z".to_owned()));
            }
            None => None,
            Some(SidecarIs::Read(differs)) => Some(differs.as_ref()),
        };
        let named = self.log.as_ref().filter(|log| log.primary == given.name && !given.fresh);
        let role = differs.and_then(|differs| differs.role.clone());
        let role = role.unwrap_or_else(|| if named.is_some() { "primary" } else { "standby" }.to_owned());
        let members = named.filter(|_| role == "primary").map(|log| {
            let in_set = self.backups.iter().filter(|backup| log.members.contains(&backup.name));
            u8::try_from(in_set.filter(works).count()).unwrap()
        });
        let missing = differs.map(|differs| differs.missing.clone()).unwrap_or_default();
        let table = self.table_report(differs.and_then(|differs| differs.table.as_ref()), role == "primary");
        Some(Ok(SidecarReport {
            role,
            epoch: differs.and_then(|differs| differs.epoch).unwrap_or(epoch),
            waiting: differs.and_then(|differs| differs.waiting.clone()),
            connected: differs.and_then(|differs| differs.connected).or(members),
            appends_wait: differs.and_then(|differs| differs.appends_wait.clone()),
            takeover: differs.and_then(|differs| differs.takeover.clone()),
            members_wanted: if missing.is_empty() { 0 } else { 3 },
            members: missing,
            table,
            ..SidecarReport::default()
        }))
    }

    fn reader_report(&self, given: &ReaderPod) -> Option<Result<SidecarReport, String>> {
        if given.is == Is::Pending || given.unasked {
            return None;
        }
        let epoch = self.log.as_ref().map_or(0, |log| log.epoch);
        let role = given.role.clone().unwrap_or_else(|| ROLE_READER.to_owned());
        let table = self.table_report(given.table.as_ref(), false);
        let report = SidecarReport { role, epoch, follow: given.follow.clone(), table, ..SidecarReport::default() };
        Some(given.unreadable.clone().map_or(Ok(report), Err))
    }

    /// By itself a sidecar was started for what the spec says, and a primary's table is half full.
    fn table_report(&self, is: Option<&TableIs>, leads: bool) -> Option<TableReport> {
        match is {
            Some(TableIs::Reported(table)) => return Some(table.clone()),
            Some(TableIs::None) => return None,
            None => {}
        }
        let table = self.group().spec.table?;
        let (memory_bytes, keys_max) = (table.memory_bytes(), u64::from(table.keys_max()));
        let live_bytes_max = memory_bytes / 2;
        Some(TableReport {
            keys: leads.then_some(keys_max / 2),
            keys_max,
            live_bytes: leads.then_some(live_bytes_max / 2),
            live_bytes_max,
            log_bytes: leads.then_some(memory_bytes / 2),
            memory_bytes,
            ..TableReport::default()
        })
    }

    fn group(&self) -> ReplicaGroup {
        let mut metadata = json!({"name": "orders", "namespace": "shop", "uid": UID, "generation": 3});
        for (key, value) in self.metadata.as_object().into_iter().flatten() {
            metadata[key] = value.clone();
        }
        let mut status = if self.status.is_null() { json!({}) } else { self.status.clone() };
        if self.rollout == RolloutIs::Begun && self.backups.iter().any(|backup| backup.old) {
            status["updating"] = json!(true);
        }
        if let Some(log) = &self.log {
            status["log"] = json!({
                "id": LOG_ID,
                "wonEpoch": log.won_epoch,
                "claim": "0123456789abcdef",
                "epoch": log.epoch,
                "version": 1,
                "primary": {"name": log.primary, "control": log.control.clone().unwrap_or_else(|| format!("{}:7410", ip(&log.primary)))},
                "members": log.members.iter().map(|name| json!({
                    "name": full(name),
                    "boot": BOOT,
                    "control": format!("{}:7420", ip(&full(name))),
                })).collect::<Value>(),
            });
            let kind = log.kind.as_deref().unwrap_or(if self.spec["table"].is_null() { "Log" } else { "Table" });
            if kind != "Log" {
                status["log"]["kind"] = json!(kind);
            }
        }
        let spec = if self.spec.is_null() { json!({}) } else { self.spec.clone() };
        serde_json::from_value(json!({
            "apiVersion": "replication.tailwind.dev/v1alpha1",
            "kind": "ReplicaGroup",
            "metadata": metadata,
            "spec": spec,
            "status": status,
        }))
        .unwrap()
    }

    fn backup(&self, given: &Backup, group: &ReplicaGroup, settings: &Settings) -> Pod {
        let name = full(&given.name);
        let mut then = group.clone();
        if given.unclaimed {
            then.spec.flush_volume = None;
        }
        let pod = backup(&then, settings, &Creation { name: name.clone(), avoid: vec![], attempt: 0 });
        let mut pod = serde_json::to_value(pod).unwrap();
        let ago = |seconds: i64| (now() - SignedDuration::from_secs(seconds)).to_string();
        let metadata = &mut pod["metadata"];
        metadata["uid"] = json!(format!("uid-of-{name}"));
        metadata["creationTimestamp"] = json!(ago(given.age_minutes * 60));
        if given.old {
            metadata["annotations"][ANNOTATION_TEMPLATE] = json!("older");
        }
        if let Some(attempt) = given.attempt {
            metadata["annotations"][ANNOTATION_ATTEMPT] = json!(attempt.to_string());
        }
        if let Some(shape) = &given.shape {
            metadata["annotations"][tailwind_crds::names::ANNOTATION_SHAPE] = json!(shape);
        }
        if given.is == Is::Ending {
            metadata["deletionTimestamp"] = json!(ago(5 + 60 * given.ending_minutes));
        }
        if let Some(node) = &given.node {
            pod["spec"]["nodeName"] = json!(node);
        }
        let member = self.log.as_ref().is_some_and(|log| log.members.contains(&given.name));
        let ready = matches!(given.is, Is::Ready | Is::Ending);
        let phase = match given.is {
            Is::Failed => "Failed",
            Is::Pending => "Pending",
            _ => "Running",
        };
        let state = match &given.waiting {
            Some(reason) => json!({"waiting": {"reason": reason, "message": given.message}}),
            None => json!({"running": {"startedAt": ago(given.running_minutes * 60)}}),
        };
        let truth = |yes: bool| if yes { "True" } else { "False" };
        pod["status"] = json!({
            "phase": phase,
            "reason": given.reason,
            "message": given.message,
            "conditions": [
                {"type": "ContainersReady", "status": truth(ready)},
                {"type": GATE_CAUGHT_UP, "status": truth(member != given.gate_lags), "reason": given.gate_reason},
                {"type": "Ready", "status": truth(ready && member != given.gate_lags)},
            ],
        });
        if let Some(why) = &given.unschedulable {
            let since = &pod["metadata"]["creationTimestamp"];
            let said = json!({
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
                "lastTransitionTime": since,
            });
            pod["status"]["conditions"].as_array_mut().unwrap().push(said);
            pod["status"]["nominatedNodeName"] = json!(given.nominated);
        }
        let last = given.words.as_ref().map(|words| json!({"terminated": {"exitCode": 1, "message": words}}));
        if given.is != Is::Pending && given.is != Is::Failed {
            pod["status"]["podIP"] = json!(given.ip.clone().unwrap_or_else(|| ip(&name)));
            pod["status"]["containerStatuses"] = json!([{
                "name": "backup", "ready": ready, "restartCount": 0, "image": "", "imageID": "", "state": state,
                "lastState": last,
            }]);
        }
        serde_json::from_value(pod).unwrap()
    }
}

fn app_pod(given: &AppPod) -> Pod {
    let containers = match given.sidecar.as_deref() {
        Some("none") => json!([{"name": "app"}]),
        _ => json!([{"name": "app"}, {"name": tailwind_crds::names::SIDECAR_CONTAINER}]),
    };
    let mut pod = json!({
        "metadata": {"name": given.name, "namespace": "shop", "labels": {LABEL_GROUP: "orders"}, "annotations": {}},
        "spec": {"containers": containers, "serviceAccountName": given.account.as_deref().unwrap_or("default")},
        "status": {"phase": if given.is == Is::Failed { "Failed" } else { "Running" }, "podIP": given.ip.clone().unwrap_or_else(|| if given.fresh { "10.9.9.9".to_owned() } else { ip(&given.name) })},
    });
    let ready = given.is == Is::Ready && given.waiting.is_none();
    pod["status"]["conditions"] = json!([{"type": "Ready", "status": if ready { "True" } else { "False" }}]);
    let running = json!({"running": {}});
    let waiting = given.waiting.as_ref().map(|reason| json!({"waiting": {"reason": reason}}));
    let app = waiting.unwrap_or_else(|| running.clone());
    let container = |name: &str, state: &Value| json!({"name": name, "ready": true, "restartCount": 0, "image": "", "imageID": "", "state": state});
    let sidecar = container(tailwind_crds::names::SIDECAR_CONTAINER, &running);
    pod["status"]["containerStatuses"] = json!([container("app", &app), sidecar]);
    if let Some(node) = &given.node {
        pod["spec"]["nodeName"] = json!(node);
    }
    if let Some(role) = &given.role {
        pod["metadata"]["labels"][LABEL_ROLE] = json!(role);
    }
    if let Some(image) = given.sidecar.as_ref().filter(|image| *image != "none") {
        pod["metadata"]["annotations"][ANNOTATION_INJECTED] = json!(image);
    }
    if given.is == Is::Ending {
        pod["metadata"]["deletionTimestamp"] = json!(NOW);
    }
    serde_json::from_value(pod).unwrap()
}

fn reader_pods(given: &ReaderPod) -> Vec<(Pod, &ReaderPod)> {
    let names = match given.count {
        None => vec![given.name.clone()],
        Some(count) => (0..count).map(|number| format!("{}-{number}", given.name)).collect(),
    };
    let made = names.into_iter().map(|name| {
        let app = AppPod {
            name,
            is: match given.is {
                Is::Failed => Is::Failed,
                _ => Is::Ready,
            },
            role: None,
            account: given.account.clone(),
            sidecar: given.sidecar.clone(),
            fresh: false,
            ip: None,
            waiting: None,
            node: None,
        };
        let mut pod = app_pod(&app);
        pod.metadata.labels = Some(BTreeMap::from([(LABEL_READS.to_owned(), "orders".to_owned())]));
        if given.is == Is::Pending {
            pod.status.as_mut().unwrap().phase = Some("Pending".to_owned());
        }
        (pod, given)
    });
    made.collect()
}

fn node(given: &Node) -> NodeFacts {
    let mut allocatable: BTreeMap<String, Quantity> = [("cpu", "8"), ("memory", "32Gi"), ("pods", "110")]
        .into_iter()
        .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
        .collect();
    allocatable.extend(given.has.iter().map(|(name, amount)| (name.clone(), Quantity(amount.clone()))));
    let used = given.used.iter().map(|(name, amount)| (name.clone(), milli(&Quantity(amount.clone()))));
    let mut labels = given.labels.clone();
    if let Some(zone) = &given.zone {
        labels.insert("topology.kubernetes.io/zone".to_owned(), zone.clone());
    }
    NodeFacts {
        name: given.name.clone(),
        labels,
        taints: given.taints.clone(),
        unschedulable: given.cordoned,
        marked_since: given.marked_seconds.map(|seconds| now() - SignedDuration::from_secs(seconds)),
        not_ready_since: given.not_ready_seconds.map(|seconds| now() - SignedDuration::from_secs(seconds)),
        allocatable,
        requested: used.collect(),
        host_ports: given.host_ports.clone(),
    }
}

fn certificates(are: &CertificatesAre) -> Certificates {
    let facts = |name: &str, from: Timestamp, to: Timestamp| CertificateFacts {
        fingerprint: name.to_owned(),
        not_before: from,
        not_after: to,
    };
    let days = |days: i64| SignedDuration::from_hours(24 * days);
    match are {
        CertificatesAre::None => Certificates::default(),
        CertificatesAre::Well => {
            let leaf = || Leaf {
                certificate: Some(facts("leaf", now() - days(10), now() + days(80))),
                issuer: Some("first".to_owned()),
                bundle: vec!["first".to_owned()],
                written: Some(now() - days(10)),
            };
            Certificates {
                authority: Some(Authority {
                    current: facts("first", now() - days(10), now() + days(1000)),
                    previous: None,
                }),
                sidecar: Some(leaf()),
                backup: Some(leaf()),
                reader: Some(leaf()),
                not_owned: Vec::new(),
            }
        }
        CertificatesAre::These(these) => {
            let These { authority, previous, sidecar, backup, reader } = these.as_ref();
            let leaf = |leaf: &LeafIs| Leaf {
                certificate: Some(facts("leaf", leaf.from, leaf.to)),
                issuer: Some(leaf.by.clone()),
                bundle: leaf.trusts.clone(),
                written: Some(leaf.written),
            };
            let dated = |dates: &Dates| facts(&dates.name, dates.from, dates.to);
            Certificates {
                authority: Some(Authority { current: dated(authority), previous: previous.as_ref().map(dated) }),
                sidecar: Some(leaf(sidecar)),
                backup: Some(leaf(backup)),
                reader: match reader {
                    ReaderLeafIs::LikeBackup => Some(leaf(backup)),
                    ReaderLeafIs::None => None,
                    ReaderLeafIs::This(reader) => Some(leaf(reader)),
                },
                not_owned: Vec::new(),
            }
        }
    }
}

/// An object of one of the kinds that a group owns.
fn owned(object: &Value) -> Owned {
    let kind = Kind::ALL.into_iter().find(|kind| object["kind"] == kind.as_str()).expect("a kind that a group owns");
    Owned { kind, object: serde_json::from_value(object.clone()).unwrap() }
}
