//! What happened between two rounds of reports.
//!
//! Called by the [`model`](crate::model). Pure. A round that knows less than the one before, because nobody leads, says nothing of
//! what it does not know.

use tailwind_report::report::Report;
use tailwind_report::rows::Tone;
use tailwind_report::sidecar::{MemberReport, MemberState, SidecarReport};
use tailwind_report::verdict::{VerdictState, trouble};

use crate::model::Round;

/// Something that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// In words.
    pub text: String,
    /// Whether that is good.
    pub tone: Tone,
}

/// What changed, in the order in which one would report it: who answers, who leads, then the members, standbys and readers.
pub fn changes(before: &Round, after: &Round) -> Vec<Change> {
    let mut found = Found(Vec::new());
    answers(before, after, &mut found);
    leaders(before, after, &mut found);
    if let (Some(old), Some(new)) = (before.best(), after.leader()) {
        members(old, new, &mut found);
        standbys(&old.content, &new.content, &mut found);
        readers(&old.content, &new.content, &mut found);
        waits(&old.content, &new.content, &mut found);
    }
    found.0
}

struct Found(Vec<Change>);

impl Found {
    fn tell(&mut self, tone: Tone, text: impl Into<String>) {
        self.0.push(Change { text: text.into(), tone });
    }
}

/// A sidecar's name, if it has ever said it.
fn name<'a>(label: &'a str, rounds: [&'a Round; 2]) -> &'a str {
    let named = rounds.into_iter().flat_map(|round| &round.answers).filter(|(known, _)| known == label);
    named.filter_map(|(_, answer)| Some(answer.as_ref().ok()?.name.as_str())).next().unwrap_or(label)
}

fn answers(before: &Round, after: &Round, found: &mut Found) {
    for (label, answer) in &after.answers {
        let known = before.answers.iter().find(|(known, _)| known == label).map(|(_, answer)| answer);
        let name = name(label, [before, after]);
        match (known, answer) {
            (Some(Ok(_)), Err(why)) => found.tell(Tone::Ill, format!("{name} does not answer: {why}")),
            (Some(Err(_)), Ok(report)) => found.tell(Tone::Well, format!("{} answers", report.name)),
            _ => {}
        }
    }
}

fn leaders(before: &Round, after: &Round, found: &mut Found) {
    let leads = |round: &Round| round.leader().map(|report| (report.name.clone(), report.content.epoch));
    match (leads(before), leads(after)) {
        (Some((name, epoch)), None) => found.tell(Tone::Ill, format!("{name} no longer leads (epoch {epoch})")),
        (old, Some((name, epoch))) if old.as_ref() != Some(&(name.clone(), epoch)) => {
            let took = after.leader().and_then(|report| report.content.failover_ms);
            let took = took.map_or_else(String::new, |ms| format!(", {ms} ms after it missed the primary"));
            found.tell(Tone::Well, format!("{name} is primary in epoch {epoch}{took}"));
        }
        _ => {}
    }
}

fn members(old: &Report<SidecarReport>, new: &Report<SidecarReport>, found: &mut Found) {
    // A sidecar that has just started knows nobody.
    if old.content.members.is_empty() {
        return;
    }
    // What one primary calls lost is news to the next, or was lost with the one before.
    let other = old.name != new.name;
    for member in &new.content.members {
        let known = old.content.members.iter().find(|known| known.name == member.name);
        let was = known.map(|known| (known.in_set, known.state));
        if was == Some((member.in_set, member.state)) {
            continue;
        }
        member_changed(member, was, other, found);
    }
    for known in old.content.members.iter().filter(|known| known.in_set) {
        if new.content.members.iter().all(|member| member.name != known.name) {
            found.tell(Tone::Ill, format!("{} left the set", known.name));
        }
    }
}

fn member_changed(member: &MemberReport, was: Option<(bool, MemberState)>, other: bool, found: &mut Found) {
    let MemberReport { name, state, in_set, .. } = member;
    match (state, was) {
        (MemberState::InSet, Some((true, MemberState::Unreachable | MemberState::Lost))) => {
            found.tell(Tone::Well, format!("{name} answers again"));
        }
        (MemberState::InSet, _) => found.tell(Tone::Well, format!("{name} joined the set")),
        (MemberState::CatchingUp, _) => found.tell(Tone::Passing, trouble(member, true)),
        // Swapped out: it is lost still.
        (MemberState::Lost, Some((_, MemberState::Lost))) if !in_set => {
            found.tell(Tone::Passing, format!("{name} left the set: appends continue without it"));
        }
        (MemberState::Lost | MemberState::Unreachable, Some((true, _))) if other => {
            found.tell(Tone::Ill, format!("{name} left the set: {}", trouble(member, false)));
        }
        (MemberState::Lost | MemberState::Unreachable, _) => found.tell(Tone::Ill, trouble(member, false)),
        (MemberState::Spare, Some((true, _))) => found.tell(Tone::Passing, format!("{name} left the set, and answers")),
        (MemberState::Spare, Some((_, MemberState::Lost | MemberState::Unreachable))) => {
            found.tell(Tone::Well, format!("{name} answers again: it is a spare"));
        }
        (MemberState::Spare, _) => found.tell(Tone::Passing, format!("{name} is a spare")),
    }
}

fn standbys(old: &SidecarReport, new: &SidecarReport, found: &mut Found) {
    for standby in &new.standbys {
        let ready = |takeover: &Option<_>| {
            takeover.as_ref().is_some_and(|takeover: &tailwind_report::sidecar::Takeover| takeover.ready)
        };
        let known = old.standbys.iter().find(|known| known.name == standby.name);
        let was = known.filter(|known| !known.silent).map(|known| ready(&known.takeover));
        let name = &standby.name;
        match (was, standby.silent, ready(&standby.takeover)) {
            (Some(_), true, _) => found.tell(Tone::Ill, format!("standby {name} is silent")),
            (None | Some(false), false, true) => {
                found.tell(Tone::Well, format!("standby {name} is ready to take over"))
            }
            (Some(true), false, false) => {
                let why = standby.takeover.as_ref().and_then(|takeover| takeover.why_not.as_deref());
                let why = why.unwrap_or("it has not asked the members yet");
                found.tell(Tone::Ill, format!("standby {name} could not take over: {why}"));
            }
            _ => {}
        }
    }
}

fn readers(old: &SidecarReport, new: &SidecarReport, found: &mut Found) {
    for reader in &new.readers {
        let known = old.readers.iter().find(|known| known.name == reader.name);
        match (known.map(|known| known.silent), reader.silent) {
            (None | Some(true), false) => found.tell(Tone::Passing, format!("reader {} is there", reader.name)),
            (Some(false), true) => found.tell(Tone::Passing, format!("reader {} is silent", reader.name)),
            _ => {}
        }
    }
}

fn waits(old: &SidecarReport, new: &SidecarReport, found: &mut Found) {
    let waits = |report: &SidecarReport| report.verdict.state == VerdictState::Waiting;
    match (waits(old) && old.is_primary(), waits(new)) {
        (false, true) => found.tell(Tone::Ill, new.verdict.text.clone()),
        (true, false) => found.tell(Tone::Well, "appends continue"),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
