//! What sidecars and backups answer at `/readyz`, apart from the code. A sidecar: its role, and what it or its appends wait
//! for. A backup: `ok`, or why it is not ready.
//!
//! Written by sidecars and backups. The operator reads it of backups; of sidecars it reads the same words in their
//! [report](crate::report).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A sidecar's answer: a line for the role, and one for each thing that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// `primary`, `standby`, `recovering` or `reader`.
    pub role: String,
    /// What keeps it from becoming primary, or a reader from being read from.
    pub waiting: Option<Waiting>,
    /// What appends wait for.
    pub appends_wait: Option<AppendsWait>,
}

/// What a sidecar that should be primary waits for, or a reader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Waiting {
    /// In one word.
    #[serde(rename = "for")]
    pub what: WaitsFor,
    /// In the sidecar's own words, on one line.
    pub why: String,
}

/// What appends wait for at a primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AppendsWait {
    /// In one word.
    #[serde(rename = "for")]
    pub what: AppendsWaitFor,
    /// In the sidecar's own words, on one line.
    pub why: String,
}

/// What an append can wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AppendsWaitFor {
    /// Buffers of the next segment, which members do not lend: their flush folders are full, or their disks are slow.
    #[default]
    Room,
    /// The cleaner of a table: the log is as long as its memory.
    Cleaner,
    /// Members of the set that do not confirm what is written to them.
    Members,
    /// The members' disks, under durability `Flushed`.
    Disk,
}

impl AppendsWaitFor {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            AppendsWaitFor::Room => "room",
            AppendsWaitFor::Cleaner => "cleaner",
            AppendsWaitFor::Members => "members",
            AppendsWaitFor::Disk => "disk",
        }
    }
}

impl fmt::Display for AppendsWaitFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a candidate or a reader waits for, ordered from what resolves itself to what most needs an administrator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WaitsFor {
    /// An answer of the config store.
    #[default]
    ConfigStore,
    /// Permission to read, which the group does not give (`spec.reads: Disabled`). Only a reader waits for it.
    Reads,
    /// Empty backups, to begin a new group with.
    Backups,
    /// Members of the last set that answer.
    Members,
    /// Options that fit the group: it keeps a log and this sidecar was started for a table, or the other way round.
    OtherKind,
    /// Members that can tell where the log ends, or sound copies of what it needs.
    Evidence,
    /// Any content of the config store: it is empty, and a backup holds a log.
    ForgottenLog,
    /// Newer content of the config store: the members know of more.
    NewerConfigStore,
}

impl WaitsFor {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            WaitsFor::ConfigStore => "config-store",
            WaitsFor::Reads => "reads",
            WaitsFor::Backups => "backups",
            WaitsFor::Members => "members",
            WaitsFor::OtherKind => "other-kind",
            WaitsFor::Evidence => "evidence",
            WaitsFor::ForgottenLog => "forgotten-log",
            WaitsFor::NewerConfigStore => "newer-config-store",
        }
    }
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one_line = |why: &str| why.replace(['\n', '\r'], " ");
        writeln!(f, "{}", self.role)?;
        if let Some(Waiting { what, why }) = &self.waiting {
            writeln!(f, "waits for {what}: {}", one_line(why))?;
        }
        if let Some(AppendsWait { what, why }) = &self.appends_wait {
            writeln!(f, "appends wait for {what}: {}", one_line(why))?;
        }
        Ok(())
    }
}

/// Why a backup is not ready: `REASON: text`, on one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unready {
    /// In one word.
    pub reason: UnreadyReason,
    /// In the backup's own words.
    pub why: String,
}

/// What keeps a backup from lending memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnreadyReason {
    /// Its container has no RDMA device that it may open.
    DeviceMissing,
    /// It may pin less memory than one buffer has (`RLIMIT_MEMLOCK`).
    MemlockTooLow,
    /// Its fabric has failed: the device or its port.
    FabricFailed,
    /// The file system of its pool is full, or its flush folder may hold less than a log needs.
    NoRoom,
    /// Its own threads do not answer.
    Unresponsive,
    /// Another version's word.
    Other,
}

impl UnreadyReason {
    /// All that are written.
    pub const ALL: [UnreadyReason; 5] = [
        UnreadyReason::DeviceMissing,
        UnreadyReason::MemlockTooLow,
        UnreadyReason::FabricFailed,
        UnreadyReason::NoRoom,
        UnreadyReason::Unresponsive,
    ];

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            UnreadyReason::DeviceMissing => "device-missing",
            UnreadyReason::MemlockTooLow => "memlock-too-low",
            UnreadyReason::FabricFailed => "fabric-failed",
            UnreadyReason::NoRoom => "no-room",
            UnreadyReason::Unresponsive => "unresponsive",
            UnreadyReason::Other => "other",
        }
    }
}

impl fmt::Display for Unready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.reason.as_str(), self.why.replace(['\n', '\r'], " "))
    }
}

impl FromStr for Unready {
    type Err = std::convert::Infallible;

    /// Takes anything: without a word that is known, all of it is the text.
    fn from_str(text: &str) -> Result<Unready, Self::Err> {
        let text = text.trim();
        let known = text.split_once(": ").and_then(|(word, why)| {
            let reason = UnreadyReason::ALL.into_iter().find(|reason| reason.as_str() == word)?;
            Some(Unready { reason, why: why.to_owned() })
        });
        Ok(known.unwrap_or_else(|| Unready { reason: UnreadyReason::Other, why: text.to_owned() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unready_reasons_round_trip() {
        for reason in UnreadyReason::ALL {
            let unready = Unready { reason, why: "at most 64 KiB: raise it".to_owned() };
            assert_eq!(unready.to_string().parse(), Ok(unready));
        }
        for text in ["no space left", "rain: it is wet", ""] {
            let other = Unready { reason: UnreadyReason::Other, why: text.to_owned() };
            assert_eq!(format!("{text}\n").parse(), Ok(other));
        }
    }

    #[test]
    fn each_wait_has_its_line() {
        let waiting = Some(Waiting { what: WaitsFor::Members, why: "two\nlines".to_owned() });
        let standby = Readiness { role: "standby".to_owned(), waiting, appends_wait: None };
        assert_eq!(standby.to_string(), "standby\nwaits for members: two lines\n");
        let appends_wait = Some(AppendsWait { what: AppendsWaitFor::Room, why: "b0: full".to_owned() });
        let primary = Readiness { role: "primary".to_owned(), waiting: None, appends_wait };
        assert_eq!(primary.to_string(), "primary\nappends wait for room: b0: full\n");
    }

    #[test]
    fn the_words_are_those_of_the_report() {
        use WaitsFor::{Backups, ConfigStore, Evidence, ForgottenLog, Members, NewerConfigStore, OtherKind, Reads};
        for what in [ConfigStore, Reads, Backups, Members, OtherKind, Evidence, ForgottenLog, NewerConfigStore] {
            assert_eq!(serde_json::to_value(what).unwrap(), what.as_str());
        }
        for what in [AppendsWaitFor::Room, AppendsWaitFor::Cleaner, AppendsWaitFor::Members, AppendsWaitFor::Disk] {
            assert_eq!(serde_json::to_value(what).unwrap(), what.as_str());
        }
    }
}
