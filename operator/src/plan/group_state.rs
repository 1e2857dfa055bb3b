//! What plans and statuses are made from: all that was observed, and what its backup pods and its primary are worth.
//!
//! Made by [`plan`](super).

use tailwind_crds::{ReplicaGroupStatus, UpdateStrategy};

use super::backup_pod::{BackupPod, backup_pods};
use super::primary::{Leading, Primary, leading, primary};
use crate::objects::claim::{MemberClaim, claims};
use crate::objects::pod;
use crate::observed::Observed;

/// A group with its pods.
#[derive(Clone, Debug)]
pub(crate) struct GroupState<'a> {
    pub(crate) observed: &'a Observed,
    /// In the order of their names.
    pub(crate) backups: Vec<BackupPod>,
    /// Claims of members whose pods are gone.
    pub(crate) orphans: Vec<MemberClaim>,
    pub(crate) primary: Primary,
    /// Whether it works.
    pub(crate) leading: Leading<'a>,
    /// Its backups are being replaced because of their template, and have been since an earlier plan.
    pub(crate) updating: bool,
}

impl<'a> GroupState<'a> {
    pub(crate) fn new(observed: &'a Observed) -> GroupState<'a> {
        let hash = pod::template_hash(&observed.group, &observed.settings);
        let strategy = observed.group.spec.update_strategy;
        let has_begun = observed.group.status.as_ref().is_some_and(|status| status.updating == Some(true));
        let updating = has_begun && strategy == UpdateStrategy::RollingUpdate;
        let primary = primary(observed);
        let leading = leading(observed, &primary);
        let (mut orphans, mut backups) = (claims(observed), backup_pods(observed, &hash));
        for backup in &mut backups {
            let found = orphans.iter().position(|claim| backup.uses_claim && claim.member == backup.name);
            if let Some(claim) = found.map(|found| orphans.remove(found)) {
                backup.take_claim(claim);
            }
            if updating {
                backup.update();
            }
        }
        GroupState { observed, backups, orphans, primary, leading, updating }
    }

    /// The state as it would be if the group were being updated.
    pub(crate) fn if_updating(&self) -> GroupState<'a> {
        let mut state = self.clone();
        state.backups.iter_mut().for_each(BackupPod::update);
        state
    }

    /// The state as it would be if the group were not being updated.
    pub(crate) fn if_not_updating(&self) -> GroupState<'a> {
        let mut state = self.clone();
        state.updating = false;
        state.backups.iter_mut().for_each(BackupPod::stop_update);
        state
    }

    /// The status before.
    pub(crate) fn before(&self) -> Option<&'a ReplicaGroupStatus> {
        self.observed.group.status.as_ref()
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.observed.group.metadata.deletion_timestamp.is_some()
    }

    /// Backups that work, or may do so yet.
    pub(crate) fn alive(&self) -> impl Iterator<Item = &BackupPod> {
        self.backups.iter().filter(|backup| backup.is_alive())
    }

    /// The backups that were created from an older spec or image.
    pub(crate) fn outdated(&self) -> impl Iterator<Item = &BackupPod> {
        self.alive().filter(|backup| backup.outdated)
    }

    /// Members whose pods work.
    pub(crate) fn holders(&self) -> usize {
        self.alive().filter(|backup| backup.member).count()
    }

    /// Copies of the log that acks reach: members that the primary reports to write to. Without its report, members whose pods
    /// work.
    pub(crate) fn copies(&self) -> usize {
        let members = self.observed.log().map_or(0, |log| log.members.len());
        match self.leading {
            Leading::Primary(report) => report.connected.map_or(0, usize::from).min(members),
            _ => self.holders(),
        }
    }

    /// What the sidecars recruit up to now.
    pub(crate) fn members_wanted(&self) -> u8 {
        self.before().and_then(|status| status.members_wanted).unwrap_or(self.observed.group.spec.backups)
    }
}
