//! What sidecars and backups answer at `/readyz`, apart from the code. A sidecar: its role, and what it waits for if it
//! should be primary and cannot be. A backup: `ok`, or why it is not ready.
//!
//! Written by sidecars and backups, read by the operator, which has no certificate of the group and so cannot ask for
//! `/status`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Begins the line that tells what a sidecar waits for.
const WAITS_FOR: &str = "waits for ";

/// A sidecar's answer: a line for the role, and one for what it waits for, if anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// `primary`, `standby` or `recovering`; from other versions anything else.
    pub role: String,
    /// What keeps it from becoming primary.
    pub waiting: Option<Waiting>,
}

/// What a sidecar that should be primary waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// In one word.
    pub what: WaitsFor,
    /// In the sidecar's own words, on one line.
    pub why: String,
}

/// What for, from what mends itself to what needs a person most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitsFor {
    /// An answer of the config store.
    #[default]
    ConfigStore,
    /// Empty backups, to begin a new group with.
    Backups,
    /// Members of the last set that answer.
    Members,
    /// Members that can tell where the log ends, or sound copies of what it needs.
    Evidence,
    /// Any content of the config store: it is empty, and a backup holds a log.
    ForgottenLog,
    /// Newer content of the config store: the members know of more.
    NewerConfigStore,
}

impl WaitsFor {
    /// All of them.
    pub const ALL: [WaitsFor; 6] = [
        WaitsFor::ConfigStore,
        WaitsFor::Backups,
        WaitsFor::Members,
        WaitsFor::Evidence,
        WaitsFor::ForgottenLog,
        WaitsFor::NewerConfigStore,
    ];

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            WaitsFor::ConfigStore => "config-store",
            WaitsFor::Backups => "backups",
            WaitsFor::Members => "members",
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
        writeln!(f, "{}", self.role)?;
        match &self.waiting {
            None => Ok(()),
            Some(Waiting { what, why }) => writeln!(f, "{WAITS_FOR}{what}: {}", why.replace(['\n', '\r'], " ")),
        }
    }
}

impl FromStr for Readiness {
    type Err = std::convert::Infallible;

    /// Takes anything: what is not understood, such as another version's words, is not there.
    fn from_str(text: &str) -> Result<Readiness, Self::Err> {
        let mut lines = text.lines();
        let role = lines.next().unwrap_or_default().trim().to_owned();
        let waiting = lines.find_map(|line| {
            let (word, why) = line.strip_prefix(WAITS_FOR)?.split_once(": ")?;
            let what = WaitsFor::ALL.into_iter().find(|what| what.as_str() == word)?;
            Some(Waiting { what, why: why.trim().to_owned() })
        });
        Ok(Readiness { role, waiting })
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
    /// Its own threads do not answer.
    Unresponsive,
    /// Another version's word.
    Other,
}

impl UnreadyReason {
    /// All that are written.
    pub const ALL: [UnreadyReason; 4] = [
        UnreadyReason::DeviceMissing,
        UnreadyReason::MemlockTooLow,
        UnreadyReason::FabricFailed,
        UnreadyReason::Unresponsive,
    ];

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            UnreadyReason::DeviceMissing => "device-missing",
            UnreadyReason::MemlockTooLow => "memlock-too-low",
            UnreadyReason::FabricFailed => "fabric-failed",
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
    fn waits_round_trip() {
        for what in WaitsFor::ALL {
            let waiting = Some(Waiting { what, why: "1 of 2: b (refused)".to_owned() });
            let readiness = Readiness { role: "recovering".to_owned(), waiting };
            assert_eq!(readiness.to_string().parse(), Ok(readiness));
        }
        let waiting = Some(Waiting { what: WaitsFor::Members, why: "two\nlines".to_owned() });
        let text = Readiness { role: "standby".to_owned(), waiting }.to_string();
        assert_eq!(text, "standby\nwaits for members: two lines\n");
    }

    #[test]
    fn unknown_words_are_ignored() {
        let role = |text: &str| text.parse::<Readiness>().map(|read| (read.role, read.waiting.is_some()));
        for (text, found) in [
            ("primary\n", "primary"),
            ("", ""),
            ("the append path hangs\n", "the append path hangs"),
            ("recovering\nwaits for rain: it is dry\n", "recovering"),
            ("recovering\nwaits for members\n", "recovering"),
        ] {
            assert_eq!(role(text), Ok((found.to_owned(), false)));
        }
    }
}
