//! What backups and sidecars report: one JSON object at [`PATH`], on the port of their probes; a sidecar's also at its append
//! socket.
//!
//! Written by backups and sidecars, read by the operator and by people's commands. A report that cannot be read is an error with
//! its reason, never an empty report: nobody may take damage that was not reported for no damage. What a sidecar reports is in
//! [`sidecar`](crate::sidecar).

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Where the report is served.
pub const PATH: &str = "/report";
/// What the fields mean. A new field keeps the version, since readers skip fields that they do not know. A field that is
/// removed or changes its meaning raises it.
pub const VERSION: u32 = 1;

/// A report, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report<T> {
    /// What the fields mean: another number is another meaning.
    pub version: u32,
    /// The group.
    pub group: String,
    /// The name of the sidecar or backup that reports.
    pub name: String,
    /// What it reports.
    #[serde(flatten)]
    pub content: T,
}

/// What a backup reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackupReport {
    /// Its identity, in hexadecimal, as the config store has it: it changes when the backup has lost its memory.
    #[serde(default)]
    pub boot: String,
    /// The log that it belongs to, in hexadecimal; absent before it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// The last epoch that it has promised.
    #[serde(default)]
    pub epoch: u64,
    /// Segments of which it holds a copy, in memory or on disk.
    #[serde(default)]
    pub copies: u64,
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FolderUse {
    /// Bytes in it, with what is lent or not yet on disk.
    pub bytes: u64,
    /// Most that it may hold. At this bound appends wait.
    pub max: u64,
}

impl<T> Report<T> {
    /// The same report with another content.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Report<U> {
        let Report { version, group, name, content } = self;
        Report { version, group, name, content: change(content) }
    }

    /// A report of this member or sidecar.
    pub fn new(group: &str, name: &str, content: T) -> Report<T> {
        Report { version: VERSION, group: group.to_owned(), name: name.to_owned(), content }
    }
}

/// A report from any sender; otherwise why it cannot be used.
///
/// # Errors
/// One sentence without a full stop, for people.
pub fn parse<T: DeserializeOwned>(page: &[u8]) -> Result<Report<T>, String> {
    /// The one field that every version has.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let malformed = |error: serde_json::Error| format!("the report is malformed: {error}");
    let Versioned { version } = serde_json::from_slice(page).map_err(malformed)?;
    if version != VERSION {
        return Err(format!(
            "the report has version {version}, and this program reads version {VERSION}: run both from the same release"
        ));
    }
    serde_json::from_slice(page).map_err(malformed)
}

/// The content of a report, if it is from this member or sidecar; otherwise why it cannot be used.
///
/// # Errors
/// One sentence without a full stop, for people.
pub fn read<T: DeserializeOwned>(page: &[u8], group: &str, name: &str) -> Result<T, String> {
    let report = parse::<T>(page)?;
    if (report.group.as_str(), report.name.as_str()) != (group, name) {
        return Err(format!("the report is from {} of group {}", report.name, report.group));
    }
    Ok(report.content)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKUP: &str = r#"{"version":1,"group":"orders","name":"b","boot":"0a","log":"07","epoch":3,"copies":5,"damaged":2,"quarantined":1}"#;

    fn sound() -> BackupReport {
        BackupReport {
            boot: "0a".to_owned(),
            log: Some("07".to_owned()),
            epoch: 3,
            copies: 5,
            ..BackupReport::default()
        }
    }

    fn backup(page: &str) -> Result<BackupReport, String> {
        read(page.as_bytes(), "orders", "b")
    }

    #[test]
    fn the_format_is_pinned() {
        fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug + Clone>(content: T, page: &str) {
            assert_eq!(serde_json::to_string(&Report::new("orders", "b", content.clone())).unwrap(), page);
            assert_eq!(read(page.as_bytes(), "orders", "b"), Ok(content));
        }
        check(BackupReport { damaged: 2, quarantined: Some(1), ..sound() }, BACKUP);
        let unknown =
            r#"{"version":1,"group":"orders","name":"b","boot":"0a","log":"07","epoch":3,"copies":5,"damaged":0}"#;
        check(sound(), unknown);
        let fresh = r#"{"version":1,"group":"orders","name":"b","boot":"0a","epoch":0,"copies":0,"damaged":0,"folder":{"bytes":5,"max":9}}"#;
        let folder = Some(FolderUse { bytes: 5, max: 9 });
        check(BackupReport { boot: "0a".to_owned(), folder, ..BackupReport::default() }, fresh);
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let newer = BACKUP.replace('}', r#","scrubbed":{"bytes":7}}"#);
        assert_eq!(backup(&newer), Ok(BackupReport { damaged: 2, quarantined: Some(1), ..sound() }));
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
            (r#"{"version":2}"#.to_owned(), "the report has version 2, and this program reads version 1"),
            (other(":1,", ":0,"), "the report has version 0, and this program reads version 1"),
            (other("orders", "other"), "the report is from b of group other"),
            (other(r#""b""#, r#""c""#), "the report is from c of group orders"),
        ] {
            let refused = backup(&page).unwrap_err();
            assert!(refused.starts_with(why), "{page}: {refused}");
        }
    }
}
