//! Whether outdated backups of a group are replaced now: an upgrade of the operator makes all backups of all groups outdated
//! at once, and each group that moves its backups copies its whole log.
//!
//! Called by [`plan`](super), around [`backups`]. That a group has begun stands in its status, which is written before the first
//! pod is touched: so the next leader knows it. How many may have begun is for [`rollout_turns`](crate::rollout_turns) to know.

use tailwind_crds::UpdateStrategy;

use super::answer::{Answer, Degraded, Progressing};
use super::backups::{self, BackupPlan};
use super::conditions::find;
use super::group_state::GroupState;
use super::removal::Replacement;

/// How far the replacement of outdated backups is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rollout {
    /// There is nothing to replace, or nothing that the operator could replace now.
    #[default]
    Idle,
    /// There is, and it is not the group's turn.
    Queued,
    /// It is the group's turn; the next plan begins.
    Begins,
    /// Backups are being replaced, until all are current.
    Underway,
    /// The same, and it gets nowhere: others need not wait for it. The replacement under way resumes as soon as it can; before
    /// the next backup is replaced, the group waits for its turn again.
    Stalled,
}

impl Rollout {
    pub(crate) fn is_begun(self) -> bool {
        matches!(self, Rollout::Begins | Rollout::Underway | Rollout::Stalled)
    }

    /// Whether it counts among those that are being updated at a time.
    pub(crate) fn takes_place(self) -> bool {
        self.is_begun() && self != Rollout::Stalled
    }
}

pub(crate) fn decide(state: &GroupState<'_>) -> BackupPlan {
    let mut plan = backups::decide(state);
    let strategy = state.observed.group.spec.update_strategy;
    // A pod whose node is to be emptied moves anyway, if it can. A group that hibernates is updated when it wakes up; but first each
    // backup needs a claim.
    let is_asleep = state.observed.group.spec.hibernate && state.alive().all(|backup| backup.uses_claim);
    if strategy == UpdateStrategy::OnDelete || is_asleep || !state.outdated().any(|backup| !backup.leaves_node()) {
        return plan;
    }
    if state.updating {
        let is_stalled = is_stalled(state, &plan);
        if is_stalled || !has_stalled(state) || !plan.replacement.as_ref().is_some_and(Replacement::is_next) {
            plan.rollout = if is_stalled { Rollout::Stalled } else { Rollout::Underway };
            return plan;
        }
        plan = backups::decide(&state.if_not_updating());
    }
    // A group that could not move a backup now would keep the others waiting, perhaps indefinitely.
    let replacement = backups::decide(&state.if_updating()).replacement;
    if let Some(blocked) = replacement.filter(Replacement::is_blocked) {
        plan.replacement.get_or_insert(blocked);
        return plan;
    }
    plan.rollout = if state.observed.may_update { Rollout::Begins } else { Rollout::Queued };
    plan
}

/// Whether what it waits for may never come: a successor that is refused, fails again, or does not join the set, or a deletion
/// that is refused. The member that leaves stays all that time.
fn is_stalled(state: &GroupState<'_>, plan: &BackupPlan) -> bool {
    let is_blocked = plan.replacement.as_ref().is_some_and(Replacement::is_blocked);
    let is_refused = said(state, Degraded::CONDITION) == Some("ApiRefused");
    let fails = plan.retry_at.is_some() || plan.creations.iter().any(|successor| successor.attempt > 0);
    let mut successors = state.alive().filter(|backup| !backup.member);
    is_blocked
        || is_refused && !(plan.creations.is_empty() && plan.removals.is_empty())
        || fails
        || successors.any(|successor| successor.attempt > 0 || successor.is_late(state.observed.now, None))
}

/// Whether it had given its place back when its status was written.
fn has_stalled(state: &GroupState<'_>) -> bool {
    said(state, Progressing::CONDITION) == Some("Stalled")
}

/// The reason of a condition, as it was before.
fn said<'a>(state: &GroupState<'a>, condition: &str) -> Option<&'a str> {
    Some(find(state.before()?, condition)?.reason.as_str())
}
