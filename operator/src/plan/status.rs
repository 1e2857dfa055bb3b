//! What people and sidecars read: phase, backups with their addresses, how many members are wanted.
//!
//! Called by [`plan`](super). Nothing in here counts or tells time, but for the moments at which conditions changed: a status
//! that differed at every look would be written at every look.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::runtime::events::EventType;
use tailwind_crds::readiness::WaitsFor;
use tailwind_crds::{BackupState, BackupStatus, LogStatus, Phase, ReplicaGroupStatus, Switchover};

use super::Notice;
use super::backup_pod::{BackupPod, Health};
use super::backups::Decision;
use super::candidate::candidate;
use super::conditions::{self, count, damage, quarantined, trouble};
use super::primary::Primary;
use crate::observed::Observed;

/// What status is made from.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Everything.
    pub observed: &'a Observed,
    /// The backup pods.
    pub backups: &'a [BackupPod],
    /// The primary.
    pub primary: &'a Primary,
}

impl View<'_> {
    /// The log.
    pub fn log(&self) -> Option<&LogStatus> {
        self.observed.group.status.as_ref().and_then(|status| status.log.as_ref())
    }

    /// Members whose pods work.
    pub fn holders(&self) -> usize {
        self.backups.iter().filter(|backup| backup.member && backup.is_alive()).count()
    }
}

/// What the sidecars were told before.
pub fn wanted_before(view: &View<'_>) -> u8 {
    let status = view.observed.group.status.as_ref();
    status.and_then(|status| status.members_wanted).unwrap_or(view.observed.group.spec.backups)
}

/// The whole status, without the log.
pub fn status(
    view: &View<'_>,
    decision: &Decision,
    switchover: Option<Switchover>,
    foreign: &[String],
) -> ReplicaGroupStatus {
    let group = &view.observed.group;
    let (phase, reason) = phase(view);
    ReplicaGroupStatus {
        observed_generation: group.metadata.generation,
        phase: Some(phase),
        phase_reason: Some(reason.clone()),
        conditions: conditions::all(view, decision, phase, &reason, foreign),
        transport: Some(group.spec.transport()),
        members_wanted: Some(decision.members_wanted),
        members: view.log().map(|log| u8::try_from(log.members.len()).unwrap_or(u8::MAX)),
        backups: view.backups.iter().map(|backup| backup_status(view, decision, backup)).collect(),
        switchover: if group.spec.paused { asked_before(view) } else { switchover },
        positions: view.observed.positions.or_else(|| group.status.as_ref()?.positions),
        log: None,
    }
}

/// The status of a group whose spec cannot be followed: all is left as it is, but for the message, and for where backups are:
/// a sidecar finds them by that, whatever is wrong with the spec.
pub fn invalid(view: &View<'_>, problems: &[String]) -> ReplicaGroupStatus {
    let group = &view.observed.group;
    let text = problems.join(". ");
    let mut before = group.status.clone().unwrap_or_default();
    for backup in &mut before.backups {
        let pod = view.backups.iter().find(|pod| pod.name == backup.name);
        let control = pod.and_then(|pod| pod.control.clone());
        backup.control = control.or_else(|| backup.control.take());
    }
    ReplicaGroupStatus {
        observed_generation: group.metadata.generation,
        phase: Some(Phase::Invalid),
        phase_reason: Some(text.clone()),
        conditions: conditions::invalid(view, &text),
        log: None,
        ..before
    }
}

fn asked_before(view: &View<'_>) -> Option<Switchover> {
    view.observed.group.status.as_ref()?.switchover.clone()
}

fn backup_status(view: &View<'_>, decision: &Decision, backup: &BackupPod) -> BackupStatus {
    let told_to_go = decision.removals.iter().any(|removal| removal.name == backup.name);
    let (state, message) = match &backup.health {
        Health::Failed { why, .. } => (BackupState::Lost, Some(why.clone())),
        Health::Ending => (BackupState::Leaving, None),
        _ if told_to_go || backup.member && backup.leave.is_some() => (BackupState::Leaving, None),
        _ if backup.member => (BackupState::Member, None),
        _ if backup.ready => (BackupState::Spare, None),
        _ => (BackupState::Pending, None),
    };
    let message = message.or_else(|| trouble(view, backup).map(|(_, text)| text));
    let message = message.or_else(|| damage(view, backup));
    BackupStatus {
        name: backup.name.clone(),
        control: backup.control.clone(),
        node: backup.node.clone(),
        state,
        message,
        quarantined: quarantined(view, backup),
    }
}

/// Where the group stands, and why.
fn phase(view: &View<'_>) -> (Phase, String) {
    let group = &view.observed.group;
    let spec = &group.spec;
    let (wanted, floor) = (usize::from(spec.backups), usize::from(spec.min_in_sync().max(1)));
    if group.metadata.deletion_timestamp.is_some() {
        let text = match view.observed.app.len() {
            n @ 1.. if super::has_finalizer(view.observed) => {
                format!(
                    "waits until no pod of the app belongs to it (spec.deletion: AfterApp): remove {}",
                    count(n, "pod")
                )
            }
            _ => "everything that belongs to it is being removed".to_owned(),
        };
        return (Phase::Deleting, text);
    }
    if spec.paused {
        return (Phase::Paused, "spec.paused is true: nothing is changed until it is false".to_owned());
    }
    if spec.fenced {
        return (Phase::Fenced, "spec.fenced is true: nobody may append until it is false".to_owned());
    }
    let candidate = candidate(view);
    let Some(log) = view.log() else {
        if let Some(candidate) = candidate.filter(|candidate| candidate.waiting.what == WaitsFor::ForgottenLog) {
            return (Phase::Unavailable, candidate.sentence());
        }
        let ready = view.backups.iter().filter(|backup| backup.is_alive() && backup.ready).count();
        if ready < wanted {
            return (Phase::Pending, format!("{ready} of {wanted} backups are ready"));
        }
        let (label, name) = (tailwind_crds::names::LABEL_GROUP, group.name_any());
        return (
            Phase::WaitingForApp,
            match (view.observed.app.len(), candidate) {
                (_, Some(candidate)) => candidate.sentence(),
                (0, None) => format!("no pod has the label {label}: {name}; give it to the pods of the app"),
                (n, None) => format!("{} of the app there, and none has become primary yet", count(n, "pod")),
            },
        );
    };
    let holders = view.holders();
    if let Some(candidate) = candidate {
        return (Phase::Unavailable, candidate.sentence());
    }
    if let Primary::Gone(name) = view.primary {
        return (Phase::Unavailable, format!("primary {name} is gone, and no standby has taken over yet"));
    }
    if holders < floor {
        return (
            Phase::Unavailable,
            format!("{holders} of minInSync {floor} copies: appends wait for backups to come back or catch up"),
        );
    }
    let members = log.members.len();
    if members < wanted || holders < wanted {
        return (
            Phase::Degraded,
            format!("{holders} of {wanted} copies: appends go on, a backup is catching up or missing"),
        );
    }
    (Phase::Ready, format!("{} is primary, with {}", log.primary.name, count(members, "copy")))
}

/// Events for what has changed in the status itself.
pub fn notices(observed: &Observed, status: &ReplicaGroupStatus) -> Vec<Notice> {
    let before = observed.group.status.clone().unwrap_or_default();
    let mut notices = Vec::new();
    let text = status.phase_reason.clone().unwrap_or_default();
    if let Some(phase) = status.phase.filter(|phase| before.phase != Some(*phase)) {
        let (kind, reason) = match phase {
            Phase::Invalid => (EventType::Warning, "Invalid"),
            Phase::Pending => (EventType::Normal, "Pending"),
            Phase::WaitingForApp => (EventType::Normal, "WaitingForApp"),
            Phase::Ready => (EventType::Normal, "Ready"),
            Phase::Degraded => (EventType::Warning, "Degraded"),
            Phase::Unavailable => (EventType::Warning, "Unavailable"),
            Phase::Fenced => (EventType::Normal, "Fenced"),
            Phase::Paused => (EventType::Normal, "Paused"),
            Phase::Deleting => (EventType::Normal, "Deleting"),
        };
        notices.push(Notice { kind, reason, note: text });
    }
    let find = |status: &ReplicaGroupStatus, kind: &str| {
        status.conditions.iter().find(|condition| condition.type_ == kind).cloned()
    };
    if let Some(now) = find(status, conditions::PLACEABLE).filter(|now| now.status == "False") {
        let was = find(&before, conditions::PLACEABLE).is_some_and(|was| was.status == "False");
        if !was {
            notices.push(Notice { kind: EventType::Warning, reason: "NotPlaceable", note: now.message });
        }
    }
    notices
}

/// Puts what could not be done where people look for it.
pub fn with_failures(status: &mut ReplicaGroupStatus, observed: &Observed, failures: &BTreeSet<String>) {
    if !failures.is_empty() {
        let text = failures.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
        conditions::replace(status, observed, conditions::DEGRADED, "True", "ApiRefused", &text);
    }
}
