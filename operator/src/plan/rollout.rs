//! Whether outdated backups of a group are replaced now: an upgrade of the operator makes all backups of all groups outdated
//! at once, and each group that moves its backups copies its whole log.
//!
//! Called by [`plan`](super), around [`backups`]. That a group has begun stands in its status, which is written before the first
//! pod is touched: so the next leader knows it. How many may have begun is for [`rollouts`](crate::rollouts) to know.

use tailwind_crds::UpdateStrategy;

use super::backups::{self, BackupPlan};
use super::group_state::GroupState;

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
}

impl Rollout {
    pub(crate) fn is_begun(self) -> bool {
        matches!(self, Rollout::Begins | Rollout::Underway)
    }
}

pub(crate) fn decide(state: &GroupState<'_>) -> BackupPlan {
    let mut plan = backups::decide(state);
    let strategy = state.observed.group.spec.update_strategy;
    // A pod whose node is to be emptied moves anyway, if it can.
    if strategy == UpdateStrategy::OnDelete || !state.outdated().any(|backup| !backup.leaves_node()) {
        return plan;
    }
    if state.updating {
        plan.rollout = Rollout::Underway;
        return plan;
    }
    // A group that could not move a backup now would keep the others waiting, perhaps for ever.
    let replacement = backups::decide(&state.if_updating()).replacement;
    if let Some(blocked) = replacement.filter(backups::Replacement::is_blocked) {
        plan.replacement.get_or_insert(blocked);
        return plan;
    }
    plan.rollout = if state.observed.may_update { Rollout::Begins } else { Rollout::Queued };
    plan
}
