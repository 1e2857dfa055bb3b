//! What a sidecar says of its group: one type and one JSON, at `/report`, at `/status` and at the append socket.
//!
//! Made by sidecars; shown by `tailwind-sidecar status` and `top`, and the operator derives the status of the ReplicaGroup from it.
//! It says what the sidecar knows. A primary knows its members, and the standbys and readers that have reported to it; a
//! standby knows the set, and which members answer. What it does not know is absent: nobody may take that for zero.

use serde::{Deserialize, Serialize};

use crate::readiness::{AppendsWait, Waiting};
use crate::table::TableReport;
use crate::verdict::Verdict;
use crate::{Positions, ROLE_PRIMARY};

/// Rows of each kind in a report at most: the set and its newcomers come first, then the others by name.
pub const ROWS_MAX: usize = 32;

/// What a sidecar says of its group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SidecarReport {
    /// Whether the log is safe, as far as this sidecar knows.
    pub verdict: Verdict,
    /// `primary`, `standby`, `recovering` or `reader`.
    pub role: String,
    /// The epoch of that role; 0 before the sidecar knows any.
    pub epoch: u64,
    /// The log's id: 128 random bits in hexadecimal. Absent before the config store has been read, or has a log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// Version of the member set: raised at every change of it. Absent as `log` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_version: Option<u64>,
    /// The primary; absent while none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<PrimaryReport>,
    /// What an ack promises: `memory`, `battery` or `flushed`.
    pub durability: String,
    /// What carries the bytes to the backups: `shm`, `tcp` or `verbs`.
    pub fabric: String,
    /// Size of the segments that this sidecar opens, in bytes.
    pub segment_bytes: u64,
    /// Members that the set should have.
    pub members_wanted: u8,
    /// Members that the set must have for appends to be acknowledged.
    pub min_in_sync: u8,
    /// Nobody may append, because the group's owner has said so.
    pub fenced: bool,
    /// The members of the set, and every other backup that this sidecar knows: also those that are missing.
    pub members: Vec<MemberReport>,
    /// Members of the set that it writes to now; absent unless the sidecar is primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<u8>,
    /// Standbys that have told this primary of themselves; empty elsewhere.
    pub standbys: Vec<StandbyReport>,
    /// Sidecars that only read and have told this primary of themselves; empty elsewhere.
    pub readers: Vec<ReaderReport>,
    /// How far the log is; absent unless the sidecar is primary. A primary that is recovering the log does not know yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<Positions>,
    /// LSN up to which the log is on disk at every member, as far as clients have asked for it; absent unless primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synced: Option<u64>,
    /// Where the log's open end is; absent unless primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ladder: Option<Ladder>,
    /// The log's segments; absent unless primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments: Option<SegmentsReport>,
    /// What is appended, how fast, and how long it takes; absent unless primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub appends: Option<AppendsReport>,
    /// The table that the group keeps; absent if it keeps a log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableReport>,
    /// The clients that are connected to this sidecar's append socket.
    pub clients: ClientsReport,
    /// What keeps it from becoming primary, if it should be, or a reader from being read from; after a second of waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// What appends wait for, after they have waited for a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub appends_wait: Option<AppendsWait>,
    /// Whether it could take over; absent unless it is a standby that has asked the members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<Takeover>,
    /// How far it follows the log that another one writes, by the client that is furthest behind; absent while nobody asks it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<FollowReport>,
    /// How long its last failover took, from the moment at which it missed the primary until it was primary itself, in
    /// milliseconds; absent unless it has taken over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failover_ms: Option<u64>,
}

/// The primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrimaryReport {
    /// Its name.
    pub name: String,
    /// `host:port` of its control endpoint. Left out at `/report`, which anybody may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Milliseconds since this sidecar has heard it: its last heartbeat, or for a reader, its last answer. Absent at the primary
    /// itself, and before it has been heard at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ms_ago: Option<u64>,
}

/// A backup, as this sidecar knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemberReport {
    /// Its name.
    pub name: String,
    /// `host:port` of its control RPC. Left out at `/report`, which anybody may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What it does.
    pub state: MemberState,
    /// Acks need it: it is in the set that the config store names. While it is also lost, appends wait for it.
    pub in_set: bool,
    /// Milliseconds since it was lost, or has not answered. Absent in other states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Why it is lost or does not answer, why the primary does not take it, or why it lends no buffer. In words, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Where it is in the log, as `segment:offset`: it holds everything before. Absent unless the primary writes to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<String>,
    /// Bytes of the log that it lacks, about: closed segments are counted as full. Absent as `completed` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind_bytes: Option<u64>,
    /// Closed segments that a newcomer still has to copy. Absent in other states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments_missing: Option<u64>,
    /// Closed segments whose copies there are gone or corrupt, and are being repaired. 0 where this sidecar is not primary.
    pub damaged: u64,
}

/// What a backup does, as its primary or a standby sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// In the set, and not known to fail. The primary writes to it; a standby has heard it, or has not asked it yet.
    #[default]
    InSet,
    /// The primary is filling it; then it becomes a member.
    CatchingUp,
    /// It was a member or a newcomer of this primary, has failed, and is not back.
    Lost,
    /// It answers, and has no part: the primary may take it when a member is missing. Or nobody has asked it yet.
    Spare,
    /// It does not answer, or answers as another one than it should be.
    Unreachable,
}

/// A standby that has told the primary of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StandbyReport {
    /// Its name.
    pub name: String,
    /// Whether it could take over, as it said when it was heard last. Absent while it does not know itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<Takeover>,
    /// An app is connected to it. Without one it lets other standbys go first for a while.
    pub app: bool,
    /// It has not been heard for too long: it is gone, or cannot reach this primary.
    pub silent: bool,
    /// Milliseconds since it was heard.
    pub heard_ms_ago: u64,
    /// How far it follows the log; absent while its app does not ask it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<FollowReport>,
}

/// Whether a standby could take over now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Takeover {
    /// It could: enough members answer.
    pub ready: bool,
    /// What is in the way, in words; absent if it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// A sidecar that only reads, and has told the primary of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReaderReport {
    /// Its name.
    pub name: String,
    /// It has not been heard for too long: it is gone, or cannot reach this primary.
    pub silent: bool,
    /// Milliseconds since it was heard.
    pub heard_ms_ago: u64,
    /// How far it follows the log; absent while none of its clients reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<FollowReport>,
}

/// How far a standby or a reader follows the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FollowReport {
    /// The member that it reads from; empty while it looks for one.
    pub from: String,
    /// LSN of the last record that it has read.
    pub lsn: u64,
    /// Milliseconds that what it has read is behind the primary at most; absent while that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<u64>,
    /// Nothing has told it lately how far the primary is.
    pub stale: bool,
}

/// Positions in the log, each as `segment:offset`, each at most the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ladder {
    /// On disk at every member under durability `flushed`; otherwise the end of the last segment that is closed everywhere.
    pub flushed: String,
    /// Acknowledged.
    pub acked: String,
    /// In memory at every member.
    pub completed: String,
    /// Handed to the fabric for every member.
    pub posted: String,
    /// In the primary's own memory.
    pub appended: String,
}

/// The segments of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SegmentsReport {
    /// Closed at every member.
    pub closed: u64,
    /// In the primary's memory: being written, opened in advance, or being closed.
    pub open: u64,
    /// Memory of the open ones, in bytes.
    pub memory_bytes: u64,
}

/// What is appended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AppendsReport {
    /// Records that this process has taken since it started.
    pub records: u64,
    /// Bytes of log that it has written since it started, headers included.
    pub bytes: u64,
    /// Appends that wait for their ack now.
    pub pending: u64,
    /// Records in a second, over the last `window_ms`.
    pub records_per_second: f64,
    /// Bytes of log in a second, over the same time.
    pub bytes_per_second: f64,
    /// The time that the rates and the quantiles are of, in milliseconds: a few seconds, or less just after the start.
    pub window_ms: u64,
    /// Half of the appends of that time were acknowledged within so many microseconds: a power of two, the bound of a histogram's
    /// bucket. Absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<u64>,
    /// The same for 99 of 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<u64>,
    /// The same for 999 of 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p999_us: Option<u64>,
}

/// The clients that are connected to the append socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClientsReport {
    /// Connections, with the one that asks for this status.
    pub connected: u64,
    /// How many of these append through shared memory.
    pub rings: u64,
    /// Clients that read what members hold.
    pub followers: u64,
    /// Clients that wait for a sync.
    pub syncing: u64,
}

impl SidecarReport {
    /// Whether the sidecar is primary.
    pub fn is_primary(&self) -> bool {
        self.role == ROLE_PRIMARY
    }

    /// The same report for anybody: without the addresses of members and of the primary.
    #[must_use]
    pub fn without_addresses(mut self) -> SidecarReport {
        self.members.iter_mut().for_each(|member| member.address = None);
        self.primary.iter_mut().for_each(|primary| primary.address = None);
        self
    }

    /// Members that hold the log and are not known to fail.
    pub fn copies(&self) -> usize {
        self.members.iter().filter(|member| member.in_set && member.state == MemberState::InSet).count()
    }

    /// Members that the set must have for acks: as the group says, but not more than the set has.
    pub fn needed(&self) -> usize {
        let in_set = self.members.iter().filter(|member| member.in_set).count();
        usize::from(self.min_in_sync.max(1)).min(in_set)
    }
}

impl MemberState {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            MemberState::InSet => "in the set",
            MemberState::CatchingUp => "catching up",
            MemberState::Lost => "lost",
            MemberState::Spare => "spare",
            MemberState::Unreachable => "unreachable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readiness::{AppendsWaitFor, WaitsFor};
    use crate::report::{Report, read};

    fn check(report: SidecarReport, page: &str) {
        let page: String = page.lines().map(str::trim_start).collect();
        assert_eq!(serde_json::to_string(&Report::new("orders", "db-0", report.clone())).unwrap(), page);
        assert_eq!(read(page.as_bytes(), "orders", "db-0"), Ok(report));
    }

    #[test]
    fn the_format_of_a_primary_is_pinned() {
        let text = |text: &str| text.to_owned();
        let follow = FollowReport { from: text("b0"), lsn: 41, lag_ms: Some(25), stale: false };
        let report = SidecarReport {
            role: text("primary"),
            epoch: 3,
            log: Some(text("00ab")),
            set_version: Some(7),
            primary: Some(PrimaryReport { name: text("db-0"), address: Some(text("h:1")), heard_ms_ago: None }),
            durability: text("memory"),
            fabric: text("shm"),
            segment_bytes: 8 << 20,
            members_wanted: 3,
            min_in_sync: 2,
            members: vec![
                MemberReport {
                    name: text("b0"),
                    address: Some(text("h:2")),
                    in_set: true,
                    completed: Some(text("2:8")),
                    behind_bytes: Some(0),
                    ..MemberReport::default()
                },
                MemberReport {
                    name: text("b1"),
                    state: MemberState::Lost,
                    since_ms: Some(12_000),
                    why: Some(text("connection refused")),
                    ..MemberReport::default()
                },
                MemberReport {
                    name: text("b2"),
                    state: MemberState::CatchingUp,
                    segments_missing: Some(4),
                    ..MemberReport::default()
                },
            ],
            connected: Some(1),
            standbys: vec![StandbyReport {
                name: text("db-1"),
                takeover: Some(Takeover { ready: true, why_not: None }),
                app: true,
                silent: false,
                heard_ms_ago: 300,
                follow: Some(follow.clone()),
            }],
            readers: vec![ReaderReport { name: text("feed"), silent: true, heard_ms_ago: 9000, follow: Some(follow) }],
            positions: Some(Positions { first: 3, acked: 42 }),
            synced: Some(40),
            ladder: Some(Ladder {
                flushed: text("1:0"),
                acked: text("2:8"),
                completed: text("2:8"),
                posted: text("2:9"),
                appended: text("2:9"),
            }),
            segments: Some(SegmentsReport { closed: 1, open: 2, memory_bytes: 16 << 20 }),
            appends: Some(AppendsReport {
                records: 42,
                bytes: 4200,
                pending: 1,
                records_per_second: 10.5,
                bytes_per_second: 1050.0,
                window_ms: 3000,
                p50_us: Some(16),
                p99_us: Some(64),
                p999_us: None,
            }),
            clients: ClientsReport { connected: 2, rings: 1, followers: 0, syncing: 1 },
            appends_wait: Some(AppendsWait { what: AppendsWaitFor::Room, why: text("full") }),
            failover_ms: Some(41),
            ..SidecarReport::default()
        };
        check(
            report,
            r#"{"version":1,"group":"orders","name":"db-0","verdict":{"state":"waiting","text":""},"role":"primary","epoch":3,
            "log":"00ab","set_version":7,"primary":{"name":"db-0","address":"h:1"},"durability":"memory","fabric":"shm",
            "segment_bytes":8388608,"members_wanted":3,"min_in_sync":2,"fenced":false,"members":[{"name":"b0","address":"h:2",
            "state":"in-set","in_set":true,"completed":"2:8","behind_bytes":0,"damaged":0},{"name":"b1","state":"lost",
            "in_set":false,"since_ms":12000,"why":"connection refused","damaged":0},{"name":"b2","state":"catching-up",
            "in_set":false,"segments_missing":4,"damaged":0}],"connected":1,"standbys":[{"name":"db-1","takeover":
            {"ready":true},"app":true,"silent":false,"heard_ms_ago":300,"follow":{"from":"b0","lsn":41,"lag_ms":25,
            "stale":false}}],"readers":[{"name":"feed","silent":true,"heard_ms_ago":9000,"follow":{"from":"b0","lsn":41,
            "lag_ms":25,"stale":false}}],"positions":{"first":3,"acked":42},"synced":40,"ladder":{"flushed":"1:0",
            "acked":"2:8","completed":"2:8","posted":"2:9","appended":"2:9"},"segments":{"closed":1,"open":2,
            "memory_bytes":16777216},"appends":{"records":42,"bytes":4200,"pending":1,"records_per_second":10.5,
            "bytes_per_second":1050.0,"window_ms":3000,"p50_us":16,"p99_us":64},"clients":{"connected":2,"rings":1,
            "followers":0,"syncing":1},"appends_wait":{"for":"room","why":"full"},"failover_ms":41}"#,
        );
    }

    #[test]
    fn the_format_of_others_is_pinned() {
        let page = |role: &str, rest: &str| {
            let head = r#"{"version":1,"group":"orders","name":"db-0","verdict":{"state":"waiting","text":""},"role":"#;
            let shape =
                r#""durability":"","fabric":"","segment_bytes":0,"members_wanted":0,"min_in_sync":0,"fenced":false,"#;
            let nobody = r#""members":[],"standbys":[],"readers":[],"clients":{"connected":0,"rings":0,"followers":0,"syncing":0}"#;
            format!(r#"{head}"{role}","epoch":2,{shape}{nobody},{rest}}}"#)
        };
        let is = |role: &str| SidecarReport { role: role.to_owned(), epoch: 2, ..SidecarReport::default() };
        let waiting = Some(Waiting { what: WaitsFor::NewerConfigStore, why: "epoch 9".to_owned() });
        let rest = r#""waiting":{"for":"newer-config-store","why":"epoch 9"}"#;
        check(SidecarReport { waiting, ..is("recovering") }, &page("recovering", rest));
        let takeover = Some(Takeover { ready: false, why_not: Some("fenced".to_owned()) });
        let rest = r#""takeover":{"ready":false,"why_not":"fenced"}"#;
        check(SidecarReport { takeover, ..is("standby") }, &page("standby", rest));
        let follow = Some(FollowReport { lsn: 42, stale: true, ..FollowReport::default() });
        let rest = r#""follow":{"from":"","lsn":42,"stale":true}"#;
        check(SidecarReport { follow, ..is("reader") }, &page("reader", rest));
    }

    #[test]
    fn anybody_is_told_no_addresses() {
        let report = SidecarReport {
            primary: Some(PrimaryReport { address: Some("h:1".to_owned()), ..PrimaryReport::default() }),
            members: vec![MemberReport { address: Some("h:2".to_owned()), ..MemberReport::default() }],
            ..SidecarReport::default()
        };
        let page = serde_json::to_string(&report.without_addresses()).unwrap();
        assert!(!page.contains("h:"), "{page}");
    }
}
