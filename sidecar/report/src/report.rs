//! What backups and sidecars report to the operator: one JSON object at [`PATH`], on the port of their probes.
//!
//! Written by backups and sidecars, read by the operator. A report that cannot be read is an error with its reason, never an
//! empty report: nobody may take damage that was not reported for no damage.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::readiness::{AppendsWait, Waiting};
use crate::{Positions, ROLE_PRIMARY};

/// Where the report is served.
pub const PATH: &str = "/report";
/// What the fields mean. A new field keeps the version, since readers skip fields that they do not know. A field that is
/// removed or changes its meaning raises it.
pub const VERSION: u32 = 1;

/// A report, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report<T> {
    version: u32,
    group: String,
    name: String,
    #[serde(flatten)]
    content: T,
}

/// What a backup reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupReport {
    /// Segments that it should hold and does not, and one more if something is missing that it cannot name.
    pub damaged: u64,
    /// Files in quarantine; absent while the disk cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<u64>,
    /// How full its flush folder is; absent without a bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<FolderUse>,
}

/// How full a flush folder is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderUse {
    /// Bytes in it, with what is lent or not yet on disk.
    pub bytes: u64,
    /// Most that it may hold. At this bound appends wait.
    pub max: u64,
}

/// What a sidecar reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SidecarReport {
    /// `primary`, `standby`, `recovering` or `reader`.
    pub role: String,
    /// The epoch of that role; 0 before the sidecar knows any.
    pub epoch: u64,
    /// What keeps it from becoming primary, if it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// How far the log is; absent unless the sidecar is primary. A primary that is recovering the log does not know yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<Positions>,
    /// Members of the set that it writes to now; absent unless the sidecar is primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<u8>,
    /// What appends wait for, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub appends_wait: Option<AppendsWait>,
    /// How far it follows the log that another one writes; absent while nobody asks it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<FollowReport>,
}

/// How far a standby or a reader follows the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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

impl SidecarReport {
    /// Whether the sidecar is primary.
    pub fn is_primary(&self) -> bool {
        self.role == ROLE_PRIMARY
    }
}

impl<T> Report<T> {
    /// A report of this member or sidecar.
    pub fn new(group: &str, name: &str, content: T) -> Report<T> {
        Report { version: VERSION, group: group.to_owned(), name: name.to_owned(), content }
    }
}

/// The content of a report, if it is from this member or sidecar; otherwise why it cannot be used.
///
/// # Errors
/// One sentence without a full stop, for people.
pub fn read<T: DeserializeOwned>(page: &[u8], group: &str, name: &str) -> Result<T, String> {
    /// The one field that every version has.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let malformed = |error: serde_json::Error| format!("the report is malformed: {error}");
    let Versioned { version } = serde_json::from_slice(page).map_err(malformed)?;
    if version != VERSION {
        return Err(format!(
            "the report has version {version}, and the operator reads version {VERSION}: run both from the same release"
        ));
    }
    let report: Report<T> = serde_json::from_slice(page).map_err(malformed)?;
    if (report.group.as_str(), report.name.as_str()) != (group, name) {
        return Err(format!("the report is from {} of group {}", report.name, report.group));
    }
    Ok(report.content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ROLE_READER;
    use crate::readiness::{AppendsWaitFor, WaitsFor};

    const BACKUP: &str = r#"{"version":1,"group":"orders","name":"b","damaged":2,"quarantined":1}"#;

    fn backup(page: &str) -> Result<BackupReport, String> {
        read(page.as_bytes(), "orders", "b")
    }

    #[test]
    fn the_format_is_pinned() {
        fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug + Clone>(content: T, page: &str) {
            assert_eq!(serde_json::to_string(&Report::new("orders", "b", content.clone())).unwrap(), page);
            assert_eq!(read(page.as_bytes(), "orders", "b"), Ok(content));
        }
        check(BackupReport { damaged: 2, quarantined: Some(1), folder: None }, BACKUP);
        let unknown = r#"{"version":1,"group":"orders","name":"b","damaged":0}"#;
        check(BackupReport { damaged: 0, quarantined: None, folder: None }, unknown);
        let folder = r#"{"version":1,"group":"orders","name":"b","damaged":0,"folder":{"bytes":5,"max":9}}"#;
        check(BackupReport { folder: Some(FolderUse { bytes: 5, max: 9 }), ..BackupReport::default() }, folder);
        let waits = SidecarReport {
            role: "recovering".to_owned(),
            epoch: 2,
            waiting: Some(Waiting { what: WaitsFor::NewerConfigStore, why: "epoch 9".to_owned() }),
            ..SidecarReport::default()
        };
        let page = r#"{"version":1,"group":"orders","name":"b","role":"recovering","epoch":2,"#;
        check(waits, &format!(r#"{page}"waiting":{{"for":"newer-config-store","why":"epoch 9"}}}}"#));
        let leads = SidecarReport {
            role: "primary".to_owned(),
            epoch: 3,
            positions: Some(Positions { first: 3, acked: 42 }),
            connected: Some(2),
            appends_wait: Some(AppendsWait { what: AppendsWaitFor::Room, why: "full".to_owned() }),
            ..SidecarReport::default()
        };
        let page = r#"{"version":1,"group":"orders","name":"b","role":"primary","epoch":3,"#;
        let page = format!(r#"{page}"positions":{{"first":3,"acked":42}},"connected":2,"#);
        check(leads, &format!(r#"{page}"appends_wait":{{"for":"room","why":"full"}}}}"#));
        let page = r#"{"version":1,"group":"orders","name":"b","role":"reader","epoch":3,"follow":"#;
        let reads = |follow: FollowReport| SidecarReport {
            role: ROLE_READER.to_owned(),
            epoch: 3,
            follow: Some(follow),
            ..SidecarReport::default()
        };
        let follow = FollowReport { from: "m1".to_owned(), lsn: 42, lag_ms: Some(25), stale: false };
        check(reads(follow), &format!(r#"{page}{{"from":"m1","lsn":42,"lagMs":25,"stale":false}}}}"#));
        let follow = FollowReport { lsn: 42, stale: true, ..FollowReport::default() };
        check(reads(follow), &format!(r#"{page}{{"from":"","lsn":42,"stale":true}}}}"#));
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let newer = BACKUP.replace('}', r#","scrubbed":{"bytes":7}}"#);
        assert_eq!(backup(&newer), Ok(BackupReport { damaged: 2, quarantined: Some(1), folder: None }));
    }

    #[test]
    fn a_report_that_cannot_be_used_says_why() {
        let other = |from: &str, to: &str| BACKUP.replace(from, to);
        for (page, why) in [
            (String::new(), "the report is malformed: EOF"),
            (BACKUP[..30].to_owned(), "the report is malformed: EOF"),
            ("# HELP tailwind_backup_doubtful\n".to_owned(), "the report is malformed: expected value"),
            (other(r#""version":1,"#, ""), "the report is malformed: missing field `version`"),
            (other(r#""damaged":2,"#, ""), "the report is malformed: missing field `damaged`"),
            (other(":2", ":-2"), "the report is malformed: invalid value"),
            (r#"{"version":2}"#.to_owned(), "the report has version 2, and the operator reads version 1"),
            (other(":1,", ":0,"), "the report has version 0, and the operator reads version 1"),
            (other("orders", "other"), "the report is from b of group other"),
            (other(r#""b""#, r#""c""#), "the report is from c of group orders"),
        ] {
            let refused = backup(&page).unwrap_err();
            assert!(refused.starts_with(why), "{page}: {refused}");
        }
    }
}
