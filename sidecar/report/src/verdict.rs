//! Am I safe? One word and one line, from what a sidecar knows.
//!
//! Called by sidecars for their [report](crate::sidecar). Pure: the same report has the same verdict everywhere.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::readiness::AppendsWaitFor;
use crate::sidecar::{MemberReport, MemberState, SidecarReport, StandbyReport};
use crate::table::CleanerState;
use crate::{ROLE_PRIMARY, ROLE_READER, ROLE_STANDBY};

/// Most backups that a line names; the table has the others.
const NAMED_MAX: usize = 3;

/// Whether the log is safe, as far as one sidecar knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    /// In one word.
    pub state: VerdictState,
    /// Why, in one line without that word.
    pub text: String,
}

/// A verdict in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VerdictState {
    /// At a primary: as many copies as wanted, and a standby that could take over. At a standby: it could. At a reader: what it
    /// shows is current.
    Ok,
    /// The log can be appended to (at a standby or a reader: as far as it knows), and something is missing.
    Degraded,
    /// Appends wait, or there is no primary. At a reader: it may not read, or knows no primary.
    #[default]
    Waiting,
}

impl VerdictState {
    /// As it is printed.
    pub fn as_str(self) -> &'static str {
        match self {
            VerdictState::Ok => "OK",
            VerdictState::Degraded => "DEGRADED",
            VerdictState::Waiting => "WAITING",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.state.as_str(), self.text)
    }
}

/// What a report means, apart from the verdict that it has already.
pub fn verdict(report: &SidecarReport) -> Verdict {
    let (state, text) = match report.role.as_str() {
        ROLE_PRIMARY => of_primary(report),
        ROLE_STANDBY => of_standby(report),
        ROLE_READER => of_reader(report),
        _ => (VerdictState::Waiting, of_candidate(report)),
    };
    Verdict { state, text: text.replace(['\n', '\r'], " ") }
}

fn of_primary(report: &SidecarReport) -> (VerdictState, String) {
    let (copies, wanted, needed) = (report.copies(), usize::from(report.members_wanted), report.needed());
    let is_short = copies < needed;
    if let Some(wait) = report.appends_wait.as_ref().filter(|wait| wait.what != AppendsWaitFor::Members || !is_short) {
        return (VerdictState::Waiting, format!("appends wait: {}", wait.why));
    }
    let missing = why_copies_are_missing(report, true);
    let because = missing.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
    // Also while nobody appends.
    if is_short {
        let text = format!(
            "appends wait: {copies} of {needed} copies that they need{because}. Bring back what is lost, or start another backup \
             that this sidecar knows"
        );
        return (VerdictState::Waiting, text);
    }
    let (has_standby, standby) = standby(&report.standbys);
    let damaged = report.members.iter().filter(|member| member.damaged > 0);
    let damaged: Vec<String> = damaged.map(damage).collect();
    let uncleaned = report.table.as_ref().and_then(|table| table.cleaner);
    let uncleaned = uncleaned.filter(|cleaner| cleaner.state == CleanerState::NotCleaned);
    let uncleaned = uncleaned.map(|cleaner| format!("its table is {cleaner}"));
    let state = match copies >= wanted && has_standby && damaged.is_empty() && uncleaned.is_none() {
        true => VerdictState::Ok,
        false => VerdictState::Degraded,
    };
    let copies = format!("{copies} of {wanted} {}{because}", if wanted == 1 { "copy" } else { "copies" });
    (
        state,
        [copies].into_iter().chain(listed(&damaged)).chain(uncleaned).chain([standby]).collect::<Vec<_>>().join(", "),
    )
}

fn damage(member: &MemberReport) -> String {
    let are = if member.damaged == 1 { "is" } else { "are" };
    format!(
        "{} is being sent {} again that {are} gone or corrupt there",
        member.name,
        counted(member.damaged, "segment")
    )
}

/// Whether one could take over, and what to say of all.
fn standby(standbys: &[StandbyReport]) -> (bool, String) {
    let heard = || standbys.iter().filter(|standby| !standby.silent);
    let takeover = |standby: &StandbyReport| standby.takeover.clone().unwrap_or_default();
    match (heard().filter(|standby| takeover(standby).ready).count(), heard().next(), standbys.first()) {
        (1, ..) => (true, "standby ready".to_owned()),
        (ready @ 2.., ..) => (true, format!("{ready} standbys ready")),
        (0, Some(standby), _) => {
            let why = takeover(standby).why_not.unwrap_or_else(|| "it has not asked the members yet".to_owned());
            (false, format!("standby {} could not take over: {why}", standby.name))
        }
        (0, None, Some(gone)) => {
            (false, format!("no standby ({} was last heard {})", gone.name, ago(gone.heard_ms_ago)))
        }
        (0, None, None) => (false, "no standby".to_owned()),
    }
}

/// Which backups would have to come back, or join, for the set to be as large as it should be; `None` while it is. `times`: also
/// for how long. Without them, the same trouble has the same words.
pub fn why_copies_are_missing(report: &SidecarReport, times: bool) -> Option<String> {
    let wanted = usize::from(report.members_wanted);
    if report.copies() >= wanted.max(report.needed()) {
        return None;
    }
    let others = report.members.iter().filter(|member| member.state != MemberState::InSet);
    let mut others: Vec<&MemberReport> = others.collect();
    others.sort_by_key(|member| match member.state {
        MemberState::Lost => 0,
        MemberState::CatchingUp => 1,
        MemberState::Unreachable => 2,
        MemberState::Spare | MemberState::InSet => 3,
    });
    let named: Vec<String> = others.iter().map(|member| trouble(member, times)).collect();
    let named = listed(&named).unwrap_or_else(|| "no other backup is known".to_owned());
    Some(named)
}

/// What keeps this backup from being a copy.
pub fn trouble(member: &MemberReport, times: bool) -> String {
    let MemberReport { name, state, since_ms, why, segments_missing, .. } = member;
    let since = since_ms.filter(|_| times);
    let why = why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    match state {
        MemberState::Lost => {
            format!("{name} lost{}{why}", since.map_or_else(String::new, |ms| format!(" {}", ago(ms))))
        }
        MemberState::Unreachable => {
            format!("{name} unreachable{}{why}", since.map_or_else(String::new, |ms| format!(" for {}", span(ms))))
        }
        MemberState::CatchingUp => match segments_missing.filter(|missing| times && *missing > 0) {
            Some(missing) => format!("{name} catching up, {} to copy{why}", counted(missing, "segment")),
            None => format!("{name} catching up{why}"),
        },
        MemberState::Spare | MemberState::InSet => format!("{name} not taken yet{why}"),
    }
}

/// The first few of them, and how many more there are.
fn listed(all: &[String]) -> Option<String> {
    let (named, others) = all.split_at(all.len().min(NAMED_MAX));
    let more = (!others.is_empty()).then(|| format!("{} more", others.len()));
    let text = named.iter().cloned().chain(more).collect::<Vec<_>>().join("; ");
    (!text.is_empty()).then_some(text)
}

fn of_standby(report: &SidecarReport) -> (VerdictState, String) {
    if report.fenced {
        let text = "the group is fenced: nobody may append until that is lifted (spec.fenced)".to_owned();
        return (VerdictState::Waiting, text);
    }
    let Some(primary) = report.primary.as_ref().map(|primary| &primary.name) else {
        let why = report.waiting.as_ref().map_or("no primary is known yet", |waiting| waiting.why.as_str());
        return (VerdictState::Waiting, why.to_owned());
    };
    if let Some(waiting) = &report.waiting {
        return (VerdictState::Waiting, format!("cannot take over from {primary}: {}", waiting.why));
    }
    match &report.takeover {
        Some(takeover) if takeover.ready => (VerdictState::Ok, format!("standby of {primary}, could take over")),
        Some(takeover) => {
            let why = takeover.why_not.as_deref().unwrap_or("it does not say why");
            (VerdictState::Degraded, format!("standby of {primary}, could not take over: {why}"))
        }
        None => (VerdictState::Degraded, format!("standby of {primary}, has not asked the members yet")),
    }
}

fn of_candidate(report: &SidecarReport) -> String {
    match &report.waiting {
        Some(waiting) => format!("no primary: {}", waiting.why),
        None => "no primary: this sidecar is taking over".to_owned(),
    }
}

fn of_reader(report: &SidecarReport) -> (VerdictState, String) {
    if let Some(waiting) = &report.waiting {
        return (VerdictState::Waiting, waiting.why.clone());
    }
    let Some(primary) = report.primary.as_ref().map(|primary| &primary.name) else {
        return (VerdictState::Waiting, "no primary is known yet".to_owned());
    };
    let of = format!("reader of {primary}'s log");
    match &report.follow {
        None => (VerdictState::Ok, format!("{of}; no client reads here")),
        Some(follow) => match (follow.stale, follow.lag_ms) {
            (false, Some(lag)) => (VerdictState::Ok, format!("{of}, {lag} ms behind at most")),
            (_, Some(lag)) => (VerdictState::Degraded, format!("{of}, stale: {} behind at most", span(lag))),
            (_, None) => (VerdictState::Degraded, format!("{of}, stale: how far behind is not known")),
        },
    }
}

/// `1 segment`, `2 segments`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

/// `12 s ago`.
pub fn ago(ms: u64) -> String {
    match ms {
        0..1000 => "just now".to_owned(),
        _ => format!("{} ago", span(ms)),
    }
}

/// `12 s`, `3 min`, `2 h`, `4 d`.
pub fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests;
