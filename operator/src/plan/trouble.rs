//! What is wrong with a backup that works or starts, as its kubelet, the scheduler or the backup itself reports it.
//!
//! Called by [`status`](super::status) and [`conditions`](super::conditions).

use std::fmt;

use kube::ResourceExt;
use strum::{AsRefStr, VariantNames};
use tailwind_crds::names::BACKUP_CONTAINER;
use tailwind_report::readiness::{Unready, UnreadyReason};
use tailwind_report::report::BackupReport;

use super::backup_pod::{BackupPod, last_output};
use super::count::Count;
use super::group_state::GroupState;
use crate::observed::condition;

/// What keeps a pod from working: the variant's name is a reason of the condition Degraded, the text is as it was reported.
#[derive(Clone, Debug, PartialEq, Eq, AsRefStr, VariantNames)]
pub(crate) enum Trouble {
    DeviceMissing(String),
    MemlockTooLow(String),
    DeviceFailed(String),
    BackupNotReady(String),
    ImagePullFailed(String),
    BackupCrashes(String),
    ContainerFailed(String),
    Unscheduled(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::DeviceMissing(text)
            | Trouble::MemlockTooLow(text)
            | Trouble::DeviceFailed(text)
            | Trouble::BackupNotReady(text)
            | Trouble::ImagePullFailed(text)
            | Trouble::BackupCrashes(text)
            | Trouble::ContainerFailed(text)
            | Trouble::Unscheduled(text) => text.fmt(f),
        }
    }
}

impl From<&Unready> for Trouble {
    fn from(Unready { reason, why }: &Unready) -> Trouble {
        let why = why.clone();
        match reason {
            UnreadyReason::DeviceMissing => Trouble::DeviceMissing(why),
            UnreadyReason::MemlockTooLow => Trouble::MemlockTooLow(why),
            UnreadyReason::FabricFailed => Trouble::DeviceFailed(why),
            UnreadyReason::NoRoom | UnreadyReason::Unresponsive | UnreadyReason::Other => Trouble::BackupNotReady(why),
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

/// Segments that a backup should hold and lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Damage(Count);

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage(segments) = self;
        write!(f, "{segments} damaged, which the primary restores from other members: see TailwindMemberDamaged")
    }
}

/// Why it is unknown how a sidecar or a backup is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum NoReport {
    #[default]
    NotAsked,
    Unreadable(String),
    Outdated(u64),
    DiskUnreadable,
}

impl fmt::Display for NoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoReport::NotAsked => f.write_str("it has not been asked yet"),
            NoReport::Unreadable(why) => why.fmt(f),
            NoReport::Outdated(epoch) => write!(f, "its last report is from before epoch {epoch}"),
            NoReport::DiskUnreadable => f.write_str("its disk cannot be read"),
        }
    }
}

/// What a backup reports of its own damage, if there is any.
pub(crate) fn damage(state: &GroupState<'_>, backup: &BackupPod) -> Result<Option<Damage>, NoReport> {
    let segments = report(state, backup)?.filter(|_| backup.is_alive()).map_or(0, |report| report.damaged);
    Ok((segments > 0).then(|| Damage(Count(usize::try_from(segments).unwrap_or(usize::MAX), "segment"))))
}

/// Copies that a backup keeps in quarantine, if any: as it reports, or as it reported before it fell silent. They outlive
/// its process. An error if neither is known.
pub(crate) fn quarantined(state: &GroupState<'_>, backup: &BackupPod) -> Result<Option<u64>, NoReport> {
    let before = || state.before()?.backups.iter().find(|before| before.name == backup.name)?.quarantined;
    let reported = report(state, backup).and_then(|report| match report {
        Some(report) => report.quarantined.map(Some).ok_or(NoReport::DiskUnreadable),
        None => Ok(None),
    });
    match reported {
        Ok(Some(copies)) => Ok((copies > 0).then_some(copies)),
        unknown => before().map_or(unknown, |copies| Ok(Some(copies))),
    }
}

/// How full a backup's flush folder is; nothing where it has no bound, or is too old to tell.
pub(crate) fn folder_percent(state: &GroupState<'_>, backup: &BackupPod) -> Result<Option<u64>, NoReport> {
    let folder = report(state, backup)?.and_then(|report| report.folder);
    Ok(folder.map(|folder| folder.bytes.saturating_mul(100).checked_div(folder.max).unwrap_or(100)))
}

/// What a backup reports. There is nothing to report in one that is in no set and not ready.
fn report<'a>(state: &GroupState<'a>, backup: &BackupPod) -> Result<Option<&'a BackupReport>, NoReport> {
    let must_report = backup.is_alive() && (backup.member || backup.ready);
    match state.observed.reports.get(&backup.name) {
        Some(Ok(report)) => Ok(Some(report)),
        _ if !must_report => Ok(None),
        Some(Err(why)) => Err(NoReport::Unreadable(why.clone())),
        None => Err(NoReport::NotAsked),
    }
}
