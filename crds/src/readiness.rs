//! What a sidecar answers at `/readyz`, apart from the code: its role, and what it waits for if it should be primary and
//! cannot be.
//!
//! Written by sidecars, read by the operator, which has no certificate of the group and so cannot ask for `/status`.

use std::fmt;
use std::str::FromStr;

/// Begins the line that tells what a sidecar waits for.
const WAITS_FOR: &str = "waits for ";

/// The answer: a line for the role, and one for what it waits for, if anything.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitsFor {
    /// An answer of the config store.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
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
    fn other_versions_words_are_left_out() {
        let role = |text: &str| text.parse::<Readiness>().map(|told| (told.role, told.waiting.is_some()));
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
