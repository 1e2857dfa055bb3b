//! What becomes of members' disks when their pods go, and how a group hibernates on them. See
//! docs/decisions/0057-claims-of-members.md.
//!
//! Part of the [`Planner`] of [`backups`](super).

use tailwind_crds::WhenRemoved;

use super::{BackupPlan, Planner};
use crate::objects::claim::{ClaimEnd, MemberClaim};
use crate::objects::disruption::Exit;
use crate::objects::flush;
use crate::observed::Observed;
use crate::plan::backup_pod::{BackupPod, Health};
use crate::plan::licence::{Withheld, claim_licence, hibernation_licence};
use crate::plan::removal::{Removal, RemovalReason};
use crate::planted::{self, Bug};

/// Failures in a row after which a member gives up a claim of which nobody says what is on it.
const RETURNS_MAX: u32 = 4;

impl Planner<'_> {
    /// Whether the next pod of a failed one takes up its claim: after a first failure; and for some time where nobody reports what
    /// is on it, since otherwise each failure would leave a disk to people.
    pub(super) fn returns_to(&self, claim: &MemberClaim, backup: &BackupPod) -> bool {
        let most = if self.may_delete(claim, Some(backup)) { 1 } else { RETURNS_MAX };
        backup.attempt < most && !planted::has(Bug::ClaimGoesWithPod)
    }

    /// Whether it is known that no file in quarantine is on it.
    fn may_delete(&self, claim: &MemberClaim, backup: Option<&BackupPod>) -> bool {
        let report = self.observed.reports.get(&claim.member).and_then(|report| report.as_ref().ok());
        // Its only pod so far was never in a set, and had nothing to set aside.
        let is_first = |backup: &BackupPod| !claim.is_older_than(backup.created) && !backup.was_in_set();
        !claim.bound || report.is_some_and(|report| report.quarantined == Some(0)) || backup.is_some_and(is_first)
    }

    /// What becomes of a claim that its member leaves. Where nobody reports what is on it, there may be files in quarantine: then
    /// it is left to people.
    pub(super) fn end_of(&self, claim: &MemberClaim, backup: Option<&BackupPod>) -> ClaimEnd {
        if !self.may_delete(claim, backup) {
            return ClaimEnd::Retain;
        }
        let asked = flush::claim(&self.observed.group.spec);
        // If the group uses no claims any more, those that were to be retained have no owner.
        let by_owner = if claim.owned { WhenRemoved::Delete } else { WhenRemoved::Retain };
        match asked.map_or(by_owner, |asked| asked.when_removed) {
            WhenRemoved::Delete => ClaimEnd::Delete,
            WhenRemoved::Retain => ClaimEnd::Retain,
        }
    }

    /// No pods, while the claims of all members stay.
    ///
    /// # Errors
    /// Who stays, and with it everybody: a group goes to sleep as a whole. Until it can, it is looked after like any other.
    pub(super) fn hibernation(&self) -> Result<BackupPlan, (String, Withheld)> {
        let staying = self.backups.iter().filter(|backup| backup.health != Health::Ending);
        let removals = staying.map(|backup| {
            let kept = |withheld| (backup.name.clone(), withheld);
            Ok(Removal {
                name: backup.name.clone(),
                pod: Some(backup.uid.clone()),
                claim: None,
                reason: RemovalReason::Hibernates,
                after: Vec::new(),
                licence: hibernation_licence(self.state, backup).map_err(kept)?,
                stay: None,
            })
        });
        Ok(BackupPlan { removals: removals.collect::<Result<_, _>>()?, exit: Exit::Alone, ..self.plan.clone() })
    }

    /// Removes claims whose pods are gone and that nobody takes up, once others hold the log.
    pub(super) fn remove_claims(&mut self) {
        let is_taken_up = |claim: &&MemberClaim| {
            self.plan.creations.iter().any(|creation| creation.name == claim.member)
                || self.observed.log().is_some_and(|log| log.has_member(&claim.member))
        };
        // If the group uses no claims any more, an administrator decides what becomes of them.
        if !flush::has_claim(&self.observed.group.spec) {
            return;
        }
        let idle: Vec<&MemberClaim> =
            self.state.orphans.iter().filter(|claim| claim.is_kept() && !is_taken_up(claim)).collect();
        if self.holders() < self.wanted {
            return;
        }
        for claim in idle {
            if let Ok(licence) = claim_licence(self.state, claim, &self.plan.removals) {
                let (name, claim) = (claim.member.clone(), Some(self.end_of(claim, None).of(claim)));
                let reason = RemovalReason::Surplus;
                self.plan.removals.push(Removal {
                    name,
                    pod: None,
                    claim,
                    reason,
                    after: Vec::new(),
                    licence,
                    stay: None,
                });
            }
        }
    }
}

/// A pod that ends before long, and whose claim stays.
pub(super) fn returns(observed: &Observed, backup: &BackupPod) -> bool {
    backup.returns(observed.now) && backup.node.as_deref().is_none_or(|node| observed.is_node_ready(node))
}
