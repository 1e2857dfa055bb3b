//! What is wrong with a backup that works or starts, as its kubelet, the scheduler or the backup itself reports it.
//!
//! Called by [`status`](super::status) and [`conditions`](super::conditions).

use displaydoc::Display;
use kube::ResourceExt;
use strum::{AsRefStr, VariantNames};
use tailwind_crds::names::BACKUP_CONTAINER;
use tailwind_crds::readiness::{Unready, UnreadyReason};

use super::backup_pod::{BackupPod, last_output};
use super::count::Count;
use super::group_state::GroupState;
use crate::observed::condition;

/// What keeps a pod from working: the variant's name is a reason of the condition Degraded, the text is as it was reported.
#[derive(Clone, Debug, PartialEq, Eq, Display, AsRefStr, VariantNames)]
pub(crate) enum Trouble {
    /// {0}
    DeviceMissing(String),
    /// {0}
    MemlockTooLow(String),
    /// {0}
    DeviceFailed(String),
    /// {0}
    BackupNotReady(String),
    /// {0}
    ImagePullFailed(String),
    /// {0}
    BackupCrashes(String),
    /// {0}
    ContainerFailed(String),
    /// {0}
    Unscheduled(String),
}

impl From<&Unready> for Trouble {
    fn from(Unready { reason, why }: &Unready) -> Trouble {
        let why = why.clone();
        match reason {
            UnreadyReason::DeviceMissing => Trouble::DeviceMissing(why),
            UnreadyReason::MemlockTooLow => Trouble::MemlockTooLow(why),
            UnreadyReason::FabricFailed => Trouble::DeviceFailed(why),
            UnreadyReason::Unresponsive | UnreadyReason::Other => Trouble::BackupNotReady(why),
        }
    }
}

/// What keeps a pod from working, if anything does.
pub(crate) fn trouble(state: &GroupState<'_>, backup: &BackupPod) -> Option<Trouble> {
    if let Some(unready) = state.observed.obstacles.get(&backup.name).filter(|_| !backup.ready) {
        return Some(unready.into());
    }
    let pod = state.observed.backups.iter().find(|pod| pod.name_any() == backup.name)?;
    let status = pod.status.as_ref()?;
    let container = status.container_statuses.iter().flatten().find(|container| container.name == BACKUP_CONTAINER);
    let waiting = container.and_then(|container| container.state.as_ref()?.waiting.as_ref());
    if let Some(waiting) = waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let text = [Some(reason), waiting.message.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(": ");
        match reason {
            "" | "ContainerCreating" | "PodInitializing" => {}
            "ImagePullBackOff" | "ErrImagePull" | "InvalidImageName" => return Some(Trouble::ImagePullFailed(text)),
            "CrashLoopBackOff" => {
                return Some(Trouble::BackupCrashes(container.and_then(last_output).unwrap_or(text)));
            }
            _ => return Some(Trouble::ContainerFailed(text)),
        }
    }
    let unscheduled = condition(pod, "PodScheduled").filter(|scheduled| scheduled.status == "False");
    let unscheduled = unscheduled.filter(|_| backup.node.is_none());
    unscheduled.map(|scheduled| Trouble::Unscheduled(scheduled.message.clone().unwrap_or_default()))
}

/// {0} damaged: the primary has them installed anew from other members, see TailwindMemberDamaged
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display)]
pub(crate) struct Damage(Count);

/// What a backup reports of its own damage.
pub(crate) fn damage(state: &GroupState<'_>, backup: &BackupPod) -> Option<Damage> {
    let segments = *state.observed.damaged.get(&backup.name).filter(|_| backup.is_alive())?;
    Some(Damage(Count(usize::try_from(segments).unwrap_or(usize::MAX), "segment")))
}

/// Copies that a backup keeps in quarantine, if any: as it reports, or as it reported before it fell silent. They outlive
/// its process.
pub(crate) fn quarantined(state: &GroupState<'_>, backup: &BackupPod) -> Option<u64> {
    let reported = state.observed.quarantined.get(&backup.name).copied();
    let before = || state.before()?.backups.iter().find(|before| before.name == backup.name)?.quarantined;
    reported.or_else(before).filter(|copies| *copies > 0)
}
