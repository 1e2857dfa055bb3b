//! What people and sidecars read: phase, backups with their addresses, how many members are wanted.
//!
//! Called by [`plan`](super). Nothing in here counts or tells time, but for the moments at which conditions changed: a status
//! that differed at every look would be written at every look.

use std::collections::BTreeSet;

use tailwind_crds::{BackupState, BackupStatus, Phase, ReplicaGroupStatus, Switchover};

use super::action::Notice;
use super::answer::{Answer, Degraded, Placeable};
use super::backup_pod::{BackupPod, Health};
use super::backups::BackupPlan;
use super::conditions;
use super::group_state::GroupState;
use super::phase::phase;
use super::readers;
use super::table;
use super::trouble::{NoReport, damage, quarantined, trouble};
use super::validity::Problem;
use crate::observed::Observed;

/// The whole status, without the log.
pub(crate) fn status(
    state: &GroupState<'_>,
    plan: &BackupPlan,
    switchover: Option<Switchover>,
    not_owned: &[String],
) -> ReplicaGroupStatus {
    let (group, before) = (&state.observed.group, state.before());
    let (phase, reason) = phase(state);
    ReplicaGroupStatus {
        observed_generation: group.metadata.generation,
        phase: Some(phase),
        phase_reason: Some(reason.to_string()),
        conditions: conditions::all(state, plan, (phase, &reason), not_owned),
        transport: Some(group.spec.transport()),
        members_wanted: Some(plan.members_wanted),
        members: state.observed.log().map(|_| u8::try_from(state.copies()).unwrap_or(u8::MAX)),
        backups: state.backups.iter().map(|backup| backup_status(state, plan, backup)).collect(),
        readers: readers::readers(state.observed),
        reader_count: readers::count(state.observed),
        updating: plan.rollout.is_begun().then_some(true),
        switchover: if group.spec.paused { before.and_then(|before| before.switchover.clone()) } else { switchover },
        table: table::status(state),
        positions: state.observed.positions.or_else(|| before?.positions),
        log: None,
    }
}

/// The status of a group whose spec cannot be followed. Only the message and the backups' addresses are updated: sidecars find
/// the backups by them, even while the spec is wrong.
pub(crate) fn invalid(state: &GroupState<'_>, problems: &[Problem]) -> ReplicaGroupStatus {
    let text = problems.iter().map(Problem::to_string).collect::<Vec<_>>().join(". ");
    let mut before = state.before().cloned().unwrap_or_default();
    for backup in &mut before.backups {
        let pod = state.backups.iter().find(|pod| pod.name == backup.name);
        let control = pod.and_then(|pod| pod.control.clone());
        backup.control = control.or_else(|| backup.control.take());
    }
    ReplicaGroupStatus {
        observed_generation: state.observed.group.metadata.generation,
        phase: Some(Phase::Invalid),
        conditions: conditions::invalid(state, &text),
        phase_reason: Some(text),
        log: None,
        // Others need not wait for a group that nobody updates.
        updating: None,
        readers: readers::readers(state.observed),
        reader_count: readers::count(state.observed),
        ..before
    }
}

fn backup_status(state: &GroupState<'_>, plan: &BackupPlan, backup: &BackupPod) -> BackupStatus {
    let is_removed = plan.removals.iter().any(|removal| removal.name == backup.name);
    let (does, message) = match &backup.health {
        Health::Failed { failure, .. } => (BackupState::Lost, Some(failure.to_string())),
        Health::Ending => (BackupState::Leaving, None),
        _ if is_removed || backup.member && backup.leave.is_some() => (BackupState::Leaving, None),
        _ if backup.member => (BackupState::Member, None),
        _ if backup.ready => (BackupState::Spare, None),
        _ => (BackupState::Pending, None),
    };
    let message = message.or_else(|| trouble(state, backup).map(|trouble| trouble.to_string()));
    BackupStatus {
        name: backup.name.clone(),
        control: backup.control.clone(),
        node: backup.node.clone(),
        state: does,
        message: message.or_else(|| match damage(state, backup) {
            Ok(damage) => damage.map(|damage| damage.to_string()),
            Err(NoReport::NotAsked) => None,
            Err(why) => Some(format!("damage unknown: {why}")),
        }),
        quarantined: quarantined(state, backup).ok().flatten(),
    }
}

/// Events for what has changed in the status itself.
pub(crate) fn notices(observed: &Observed, status: &ReplicaGroupStatus) -> Vec<Notice> {
    let before = observed.group.status.clone().unwrap_or_default();
    let mut notices = Vec::new();
    if let Some(phase) = status.phase.filter(|phase| before.phase != Some(*phase)) {
        notices.push(Notice::Phase(phase, status.phase_reason.clone().unwrap_or_default()));
    }
    let unplaceable = |status| conditions::find(status, Placeable::CONDITION).filter(|now| now.status == "False");
    if let (Some(now), None) = (unplaceable(status), unplaceable(&before)) {
        notices.push(Notice::NotPlaceable(now.message.clone()));
    }
    notices
}

/// Puts what could not be done where people look for it.
pub(crate) fn with_failures(status: &mut ReplicaGroupStatus, observed: &Observed, failures: &BTreeSet<String>) {
    if failures.is_empty() {
        return;
    }
    let text = failures.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
    conditions::replace(status, observed, &Degraded::ApiRefused(text));
}
