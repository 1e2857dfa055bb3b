//! What a sidecar says of its group's table.
//!
//! Part of the [report of a sidecar](crate::sidecar).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A table, as its sidecar knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TableReport {
    /// Keys that it has; absent unless the sidecar is primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<u64>,
    /// Keys that it may have, by this sidecar's options.
    pub keys_max: u64,
    /// Bytes that the last records of its keys take in the log; absent unless the sidecar is primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_bytes: Option<u64>,
    /// Bytes that they may take: above, the table is full.
    pub live_bytes_max: u64,
    /// Bytes of the log's segments; absent unless the sidecar is primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<u64>,
    /// Bytes that these may have: the table's memory, by this sidecar's options.
    pub memory_bytes: u64,
    /// What keeps the log short; absent unless the sidecar is primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleaner: Option<CleanerReport>,
    /// How far the index is that a primary needs; absent unless the sidecar is recovering the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<RebuildReport>,
    /// The record up to which a standby has folded the log for an index of its own, so that it need not be read at a failover; absent
    /// in other roles, and while it has folded nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<u64>,
    /// The mirrors of its index in members' memory, one for each member of the set; empty unless the sidecar is primary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<MirrorReport>,
}

/// A mirror of a table's index, which getters read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MirrorReport {
    /// The member in whose memory it is.
    pub member: String,
    /// How it is.
    pub state: MirrorState,
    /// It shows every change up to this record; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<u64>,
    /// Acknowledged records behind that one; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<u64>,
    /// Why there is none, or why a lost one has not returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How a mirror is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MirrorState {
    /// The member has none.
    #[default]
    None,
    /// The index is written to it for the first time; nobody reads it yet.
    Filling,
    /// Getters may read it.
    Live,
    /// Its channel has failed. It is filled again once the member has lent other memory.
    Lost,
}

/// The cleaner of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CleanerReport {
    /// What it does.
    pub state: CleanerState,
    /// The segment that it does it to; absent if it is idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<u64>,
}

/// What a cleaner does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CleanerState {
    /// The log is short enough.
    #[default]
    Idle,
    /// It fetches the oldest segment from a member.
    Fetching,
    /// The oldest segment's live records are appended again.
    Moving,
    /// The oldest segment has a record that is not keyed, so nothing is cleaned: the log grows until it is full.
    NotCleaned,
}

/// The index in the making.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RebuildReport {
    /// Segments of the log that have been read.
    pub folded: u64,
    /// Segments of the log.
    pub segments: u64,
}

impl fmt::Display for MirrorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            MirrorState::None => "none",
            MirrorState::Filling => "filling",
            MirrorState::Live => "live",
            MirrorState::Lost => "lost",
        };
        write!(f, "{} {state}", self.member)?;
        if let Some(behind) = self.behind.filter(|behind| *behind > 0) {
            write!(f, ", {} behind", crate::rows::count(behind))?;
        }
        if let Some(why) = &self.why {
            write!(f, " ({why})")?;
        }
        Ok(())
    }
}

impl fmt::Display for CleanerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segment = self.segment.unwrap_or(0);
        match self.state {
            CleanerState::Idle => f.write_str("nothing to clean"),
            CleanerState::Fetching => write!(f, "fetching segment {segment}"),
            CleanerState::Moving => write!(f, "cleaning segment {segment}"),
            CleanerState::NotCleaned => write!(f, "NOT CLEANED: segment {segment} has a record that is not keyed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_of_a_table_is_pinned() {
        let cleaner = Some(CleanerReport { state: CleanerState::NotCleaned, segment: Some(7) });
        let of_primary = TableReport {
            keys: Some(3),
            keys_max: 1000,
            live_bytes: Some(240),
            live_bytes_max: 400,
            log_bytes: Some(500),
            memory_bytes: 1000,
            cleaner,
            rebuild: None,
            warm: None,
            mirrors: Vec::new(),
        };
        let none = TableReport { keys: None, live_bytes: None, log_bytes: None, cleaner: None, ..of_primary.clone() };
        let live = MirrorReport {
            member: "b0".to_owned(),
            state: MirrorState::Live,
            published: Some(7),
            behind: Some(2),
            why: None,
        };
        let absent =
            MirrorReport { member: "b1".to_owned(), why: Some("no memory".to_owned()), ..MirrorReport::default() };
        let rebuild = Some(RebuildReport { folded: 2, segments: 16 });
        for (report, json) in [
            (
                of_primary,
                r#"{"keys":3,"keys_max":1000,"live_bytes":240,"live_bytes_max":400,"log_bytes":500,"memory_bytes":1000,"cleaner":{"state":"not-cleaned","segment":7}}"#,
            ),
            (none.clone(), r#"{"keys_max":1000,"live_bytes_max":400,"memory_bytes":1000}"#),
            (
                TableReport { rebuild, ..none.clone() },
                r#"{"keys_max":1000,"live_bytes_max":400,"memory_bytes":1000,"rebuild":{"folded":2,"segments":16}}"#,
            ),
            (
                TableReport { warm: Some(41), ..none.clone() },
                r#"{"keys_max":1000,"live_bytes_max":400,"memory_bytes":1000,"warm":41}"#,
            ),
            (
                TableReport { mirrors: vec![live, absent], ..none },
                r#"{"keys_max":1000,"live_bytes_max":400,"memory_bytes":1000,"mirrors":[{"member":"b0","state":"live","published":7,"behind":2},{"member":"b1","state":"none","why":"no memory"}]}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&report).unwrap(), json);
            assert_eq!(serde_json::from_str::<TableReport>(json).unwrap(), report);
        }
    }

    #[test]
    fn a_mirror_is_described_in_words() {
        let say = |state, behind, why: Option<&str>| {
            MirrorReport { member: "b0".to_owned(), state, published: None, behind, why: why.map(str::to_owned) }
                .to_string()
        };
        assert_eq!(say(MirrorState::Live, Some(0), None), "b0 live");
        assert_eq!(say(MirrorState::Filling, Some(12_345), None), "b0 filling, 12,345 behind");
        assert_eq!(say(MirrorState::None, None, Some("it lends 0 parts of 7")), "b0 none (it lends 0 parts of 7)");
        assert_eq!(say(MirrorState::Lost, Some(1), Some("no room")), "b0 lost, 1 behind (no room)");
    }

    #[test]
    fn what_a_cleaner_does_is_said_in_words() {
        let say = |state, segment| CleanerReport { state, segment }.to_string();
        assert_eq!(say(CleanerState::Idle, None), "nothing to clean");
        assert_eq!(say(CleanerState::Fetching, Some(3)), "fetching segment 3");
        assert_eq!(say(CleanerState::Moving, Some(3)), "cleaning segment 3");
        let stopped = say(CleanerState::NotCleaned, Some(3));
        assert_eq!(stopped, "NOT CLEANED: segment 3 has a record that is not keyed");
    }
}
