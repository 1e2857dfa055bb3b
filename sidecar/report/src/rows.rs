//! A report as the rows of a table: who takes part in the group, what each does, and how far behind it is.
//!
//! Shown by `tailwind-sidecar status` and on the screen of `top`.

use crate::ROLE_READER;
use crate::sidecar::{FollowReport, MemberReport, MemberState, SidecarReport, Takeover};
use crate::verdict::{ago, counted, span};

/// One that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// `member`, `newcomer`, `backup`, `standby` or `reader`.
    pub part: &'static str,
    /// What it does, in words.
    pub state: String,
    /// How far behind it is; empty where that is not known.
    pub behind: String,
    /// Where it is; empty where that is not known.
    pub address: String,
    /// Whether that is as it should be.
    pub tone: Tone,
}

/// Whether something is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// It is.
    Well,
    /// It is about to be, or says nothing of the log's safety.
    Passing,
    /// It is not.
    Ill,
}

/// The members and other backups, then the standbys, then the readers.
pub fn rows(report: &SidecarReport) -> Vec<Row> {
    let members = report.members.iter().map(|member| Row {
        name: member.name.clone(),
        part: part(member),
        state: state(member, report),
        behind: member.behind_bytes.filter(|_| member.state != MemberState::Lost).map_or_else(String::new, bytes),
        address: member.address.clone().unwrap_or_default(),
        tone: match member.state {
            MemberState::InSet if member.why.is_some() || member.damaged > 0 => Tone::Ill,
            MemberState::InSet => Tone::Well,
            MemberState::CatchingUp | MemberState::Spare => Tone::Passing,
            MemberState::Lost | MemberState::Unreachable => Tone::Ill,
        },
    });
    let standbys = report.standbys.iter().map(|standby| {
        let app = if standby.app { "" } else { "; no app is connected to it" };
        let ready = standby.takeover.as_ref().map(|takeover| takeover.ready);
        Row {
            name: standby.name.clone(),
            part: "standby",
            state: match standby.silent {
                true => format!("silent: last heard {}", ago(standby.heard_ms_ago)),
                false => format!("{}{app}", could(standby.takeover.as_ref())),
            },
            behind: lag(standby.follow.as_ref()),
            address: String::new(),
            tone: match (standby.silent, ready) {
                (false, Some(true)) => Tone::Well,
                (false, None) => Tone::Passing,
                (true, _) | (false, Some(false)) => Tone::Ill,
            },
        }
    });
    let readers = report.readers.iter().map(|reader| Row {
        name: reader.name.clone(),
        part: "reader",
        state: match (reader.silent, &reader.follow) {
            (true, _) => format!("silent: last heard {}", ago(reader.heard_ms_ago)),
            (false, None) => "no client reads there".to_owned(),
            (false, Some(follow)) => followed(follow),
        },
        behind: lag(reader.follow.as_ref()),
        address: String::new(),
        tone: match (reader.silent, &reader.follow) {
            (false, Some(follow)) if !follow.stale => Tone::Well,
            (false, None) => Tone::Passing,
            _ => Tone::Ill,
        },
    });
    members.chain(standbys).chain(readers).collect()
}

fn part(member: &MemberReport) -> &'static str {
    match (member.in_set, member.state) {
        (true, _) => "member",
        (false, MemberState::CatchingUp) => "newcomer",
        (false, _) => "backup",
    }
}

fn state(member: &MemberReport, report: &SidecarReport) -> String {
    let why = member.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    let since = member.since_ms;
    match member.state {
        MemberState::InSet if member.why.is_some() => format!("lends no buffer{why}"),
        MemberState::InSet if member.damaged > 0 => {
            format!("in the set; {}", counted(member.damaged, "corrupt segment"))
        }
        MemberState::InSet => "in the set".to_owned(),
        MemberState::CatchingUp => match (member.segments_missing, &report.segments) {
            (Some(0) | None, _) => format!("catching up with the open end{why}"),
            (Some(missing), Some(segments)) => {
                let held = segments.closed.saturating_sub(missing);
                format!("catching up: {held} of {} segments{why}", segments.closed)
            }
            (Some(missing), None) => format!("catching up: {} to copy{why}", counted(missing, "segment")),
        },
        MemberState::Lost => format!("lost {}{why}", since.map_or_else(String::new, ago)),
        MemberState::Unreachable => {
            format!("unreachable{}{why}", since.map_or_else(String::new, |ms| format!(" for {}", span(ms))))
        }
        MemberState::Spare if report.role == ROLE_READER => "not asked".to_owned(),
        MemberState::Spare => format!("spare{why}"),
    }
}

fn could(takeover: Option<&Takeover>) -> String {
    match takeover {
        None => "has not asked the members yet".to_owned(),
        Some(Takeover { ready: true, .. }) => "ready to take over".to_owned(),
        Some(Takeover { why_not, .. }) => {
            format!("could not take over{}", why_not.as_ref().map_or_else(String::new, |why| format!(": {why}")))
        }
    }
}

/// How far a follow is, in words.
pub fn followed(follow: &FollowReport) -> String {
    let from = match follow.from.as_str() {
        "" => "looking for a backup to read from".to_owned(),
        from => format!("reading from {from}"),
    };
    let lag = match follow.lag_ms {
        Some(lag) => format!("{lag} ms behind at most"),
        None => "how far behind is not known".to_owned(),
    };
    let stale = if follow.stale { ": stale" } else { "" };
    format!("at LSN {}, {from}, {lag}{stale}", follow.lsn)
}

fn lag(follow: Option<&FollowReport>) -> String {
    follow.and_then(|follow| follow.lag_ms).map_or_else(String::new, |ms| format!("{ms} ms"))
}

/// `812 B`, `14.3 MiB`.
pub fn bytes(bytes: u64) -> String {
    let mut amount = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        match unit {
            "B" if bytes < 1024 => return format!("{bytes} B"),
            "B" => {}
            unit if amount < 1024.0 => return format!("{amount:.1} {unit}"),
            _ => {}
        }
        amount /= 1024.0;
    }
    format!("{amount:.1} PiB")
}

/// `1,234,567`.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let grouped = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group).into_owned());
    grouped.collect::<Vec<_>>().join(",")
}

/// `64 µs`, `12 ms`, `3 s`.
pub fn micros(us: u64) -> String {
    match us {
        0..10_000 => format!("{us} µs"),
        _ => span(us / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_segment_is_no_plural() {
        let report = SidecarReport::default();
        let member = MemberReport { damaged: 1, ..MemberReport::default() };
        assert_eq!(state(&member, &report), "in the set; 1 corrupt segment");
        let filling = MemberState::CatchingUp;
        let newcomer = |missing| MemberReport { state: filling, segments_missing: Some(missing), ..Default::default() };
        assert_eq!(state(&newcomer(1), &report), "catching up: 1 segment to copy");
        assert_eq!(state(&newcomer(2), &report), "catching up: 2 segments to copy");
    }

    #[test]
    fn amounts_are_readable() {
        let found = [0, 1023, 1024, 1536, 15_000_000, 1 << 40, u64::MAX].map(bytes);
        assert_eq!(found, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "14.3 MiB", "1.0 TiB", "16384.0 PiB"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([16, 9999, 32_768, 3_000_000].map(micros), ["16 µs", "9999 µs", "32 ms", "3 s"]);
    }
}
