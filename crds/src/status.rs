//! The observed state. The sidecars write `log`, by compare-and-swap; the operator writes everything else.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tailwind_report::Positions;

/// The observed state. Fields are optional because they have two writers.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaGroupStatus {
    /// Generation of the spec that the rest of the status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where the group stands, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_reason: Option<String>,
    /// Ready, Progressing, Degraded, FailoverSafe, QuarantineEmpty, LogFits, TableHasRoom, Fenced, Paused, Placeable,
    /// BackupsCurrent, SidecarsCurrent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
    /// How bytes reach backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Copies that the primary recruits up to: spec.backups, and one more while a backup moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members_wanted: Option<u8>,
    /// Copies that acknowledgements need, and have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<u8>,
    /// Every backup pod, with the address that sidecars reach it at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub backups: Vec<BackupStatus>,
    /// Pods with the label replication.tailwind.dev/reads: how far each follows the log. The first 32 by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["pod".to_owned()]))]
    pub readers: Vec<ReaderStatus>,
    /// How many such pods there are, with those that readers leaves out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reader_count: Option<u32>,
    /// True while backups of an older spec or image are being replaced: the group is one of the --max-concurrent-rollouts that
    /// the operator updates at a time, unless it gets nowhere, until all of its backups are current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updating: Option<bool>,
    /// A change of primary that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switchover: Option<Switchover>,
    /// How far the log was when the operator last wrote it down: once a minute while it moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<Positions>,
    /// How full the table was when the operator last wrote it down: once a minute while it changes. Absent if the group keeps a log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableStatus>,
    /// The primary and the members. Written by the sidecars alone, by compare-and-swap: an edit by hand can lose
    /// records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogStatus>,
}

/// Where a group stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// The spec breaks a rule; nothing is done before it is mended.
    Invalid,
    /// Backups are being made, or cannot be placed.
    Pending,
    /// Backups are there; no app pod has become primary yet.
    WaitingForApp,
    /// A primary, and every copy that is wanted.
    Ready,
    /// A primary, and fewer copies than wanted: appends continue. Or the primary's node is not heard, and its state is not known.
    Degraded,
    /// Fewer copies than minInSync, or no primary where there was one: appends wait.
    Unavailable,
    /// Fenced by the spec.
    Fenced,
    /// Left alone by the operator.
    Paused,
    /// Without pods, as the spec asks: its members' claims keep the log.
    Hibernated,
    /// Being deleted.
    Deleting,
}

/// How bytes reach backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Transport {
    /// One-sided RDMA writes.
    Rdma,
    /// Any network.
    Tcp,
}

/// A backup pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupStatus {
    /// The pod, and the member in the log.
    pub name: String,
    /// `host:port` of its control RPC; absent while the pod has no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
    /// Its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What it does.
    pub state: BackupState,
    /// More about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Copies that it keeps in quarantine until an administrator releases them; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<u64>,
}

/// A pod that reads the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReaderStatus {
    /// The pod.
    pub pod: String,
    /// The backup that it reads from; absent while it reads from none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// LSN of the last record that it had read when the operator last wrote that down: once a minute while it moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lsn: Option<u64>,
    /// Milliseconds that it is behind the primary at most, rounded up to 100, 200, 500, 1000 and so on; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<u64>,
    /// Its view may be old: nothing tells it how far the primary is, or it does not say what it has read.
    pub stale: bool,
    /// Why nothing is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What a backup pod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackupState {
    /// Not on a node yet, or starting.
    Pending,
    /// Runs and is in no set: a primary may take it.
    Spare,
    /// In the set: holds the whole log.
    Member,
    /// In the set, and about to be replaced.
    Leaving,
    /// Cannot be reached or has failed.
    Lost,
}

/// A table, as the primary's sidecar reports it. What it may have is by the size that this sidecar was started with: of a size that
/// has grown in the spec since, its pod knows once it is recreated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TableStatus {
    /// Keys that it has.
    pub keys: u64,
    /// Keys that it may have.
    pub keys_max: u64,
    /// Bytes that the last records of its keys take in the log.
    pub live_bytes: u64,
    /// Bytes that they may take: above, the table is full.
    pub live_bytes_max: u64,
    /// Bytes of the log's segments.
    pub log_bytes: u64,
    /// Bytes that these may have: the table's memory, in whole segments.
    pub memory_bytes: u64,
    /// Members whose mirror of the index is live: gets at other sidecars than the primary's are answered from these. Absent if the
    /// primary tells of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirrors: Option<u32>,
}

/// A change of primary that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Switchover {
    /// The app pod that shall become primary.
    pub to: String,
    /// It does so if this is still the epoch.
    pub from_epoch: u64,
}

/// The primary and the members: (epoch, version) grows with every change and names the content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogStatus {
    /// The log: 128 random bits in hexadecimal, drawn when the group was first started.
    pub id: String,
    /// What the group keeps in it, since it was first started; absent if it is a log.
    #[serde(default, skip_serializing_if = "LogKind::is_log")]
    pub kind: LogKind,
    /// Raised at every change of primary.
    pub epoch: u64,
    /// 64 random bits in hexadecimal, drawn for the claim of this epoch.
    pub claim: String,
    /// The claims of the epochs before, the latest first: by them members notice when this status was restored from an older
    /// copy.
    #[serde(default)]
    pub earlier_claims: Vec<String>,
    /// The last epoch that had a primary; 0 before there was any. spec.recoverFromDisk names it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub won_epoch: u64,
    /// Where an administrator's order has ended the log, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<LogCut>,
    /// Raised at every change of the member set.
    pub version: u64,
    /// The app pod that may append.
    pub primary: LogPrimary,
    /// The set: an acknowledgement needs every one of them.
    pub members: Vec<LogMember>,
}

/// What a group keeps in its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LogKind {
    /// Records that the app trims.
    #[default]
    Log,
    /// The last value of each key.
    Table,
}

impl LogKind {
    /// Whether the app trims it.
    pub fn is_log(&self) -> bool {
        *self == LogKind::Log
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl LogStatus {
    /// Whether this pod is in the set.
    pub fn has_member(&self, pod: &str) -> bool {
        self.members.iter().any(|member| member.name == pod)
    }
}

/// A recovery that may have ended the log before its last acknowledged record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogCut {
    /// The epoch that began with it.
    pub epoch: u64,
    /// The last record that was kept.
    pub last: u64,
    /// The LSN of spec.acceptLossUpTo: that order holds once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered: Option<u64>,
}

/// A primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogPrimary {
    /// Its pod.
    pub name: String,
    /// `host:port` where standbys listen to its heartbeats.
    pub control: String,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogMember {
    /// Its pod.
    pub name: String,
    /// Identity of its memory when it joined, in hexadecimal: with another one it no longer holds what it held.
    pub boot: String,
    /// `host:port` of its control RPC.
    pub control: String,
}
