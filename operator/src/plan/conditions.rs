//! The conditions of a group: each a question, an answer, a word for machines and a sentence that says what to do.
//!
//! Called by [`status`](super::status). The moment of a condition is that of its last flip: a look that finds the same
//! answer changes nothing.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use tailwind_crds::names::{ANNOTATION_INJECTED, BACKUP_CONTAINER, SIDECAR_CONTAINER};
use tailwind_crds::readiness::{Unready, UnreadyReason};
use tailwind_crds::{Phase, ReplicaGroupStatus};

use super::backup_pod::{BackupPod, Health, last_words};
use super::backups::Decision;
use super::candidate::{Candidate, candidate};
use super::primary::{Primary, standbys};
use super::status::View;
use crate::observed::Observed;

/// Whether every backup has a node or can have one.
pub const PLACEABLE: &str = "Placeable";
/// Whether no backup keeps a copy for a person to look at.
pub const QUARANTINE_EMPTY: &str = "QuarantineEmpty";
/// Whether something is worse than asked for.
pub const DEGRADED: &str = "Degraded";

/// `1 backup`, `2 backups`, `2 copies`.
pub(super) fn count(n: usize, thing: &str) -> String {
    match (n, thing.strip_suffix('y')) {
        (1, _) => format!("1 {thing}"),
        (_, Some(stem)) => format!("{n} {stem}ies"),
        _ => format!("{n} {thing}s"),
    }
}

fn count_of(n: u64, thing: &str) -> String {
    count(usize::try_from(n).unwrap_or(usize::MAX), thing)
}

struct Verdict {
    kind: &'static str,
    status: &'static str,
    reason: &'static str,
    message: String,
}

fn verdict(kind: &'static str, yes: bool, reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict { kind, status: if yes { "True" } else { "False" }, reason, message: message.into() }
}

/// All of them.
pub fn all(view: &View<'_>, decision: &Decision, phase: Phase, why: &str, foreign: &[String]) -> Vec<Condition> {
    let spec = &view.observed.group.spec;
    let mut verdicts = vec![
        ready(view, phase, why),
        progressing(view, decision),
        degraded(view, decision, phase, why, foreign),
        failover_safe(view),
        quarantine_empty(view),
        match spec.fenced {
            true => verdict("Fenced", true, "FencedBySpec", "nobody may append; set spec.fenced to false to go on"),
            false => verdict("Fenced", false, "NotFenced", "spec.fenced is false"),
        },
        match spec.paused {
            true => verdict(
                "Paused",
                true,
                "PausedBySpec",
                "the operator changes nothing; set spec.paused to false to go on",
            ),
            false => verdict("Paused", false, "NotPaused", "spec.paused is false"),
        },
    ];
    // A look that decides nothing has surveyed nothing.
    if spec.paused || view.observed.group.metadata.deletion_timestamp.is_some() {
        verdicts.extend(before(view, PLACEABLE));
    } else {
        verdicts.push(placeable(decision));
    }
    verdicts.extend(sidecars_current(view));
    verdicts.into_iter().map(|answer| stamp(view.observed, answer)).collect()
}

/// Those of a group whose spec is wrong: it is not ready for that reason, and the rest stays as it was.
pub fn invalid(view: &View<'_>, text: &str) -> Vec<Condition> {
    let mut status = view.observed.group.status.clone().unwrap_or_default();
    replace(&mut status, view.observed, "Ready", "False", "InvalidSpec", text);
    replace(&mut status, view.observed, "Progressing", "False", "InvalidSpec", text);
    status.conditions
}

/// Puts one answer in place of that of the same kind.
pub fn replace(
    status: &mut ReplicaGroupStatus,
    observed: &Observed,
    kind: &'static str,
    yes: &'static str,
    reason: &'static str,
    message: &str,
) {
    let condition = stamp(observed, Verdict { kind, status: yes, reason, message: message.to_owned() });
    match status.conditions.iter_mut().find(|condition| condition.type_ == kind) {
        Some(place) => *place = condition,
        None => status.conditions.push(condition),
    }
}

fn stamp(observed: &Observed, answer: Verdict) -> Condition {
    let Verdict { kind, status, reason, message } = answer;
    let conditions = observed.group.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let same = conditions.iter().find(|condition| condition.type_ == kind && condition.status == status);
    // Kubernetes keeps seconds.
    let now = jiff::Timestamp::from_second(observed.now.as_second()).unwrap_or(observed.now);
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: observed.group.metadata.generation,
        last_transition_time: same.map_or(Time(now), |condition| condition.last_transition_time.clone()),
    }
}

fn before(view: &View<'_>, kind: &'static str) -> Option<Verdict> {
    let conditions = view.observed.group.status.as_ref().map(|status| status.conditions.as_slice())?;
    let before = conditions.iter().find(|condition| condition.type_ == kind)?;
    let reason = if before.status == "True" { "Placed" } else { "NoNodeFits" };
    Some(verdict(kind, before.status == "True", reason, before.message.clone()))
}

fn ready(view: &View<'_>, phase: Phase, why: &str) -> Verdict {
    let waits = matches!(phase, Phase::WaitingForApp | Phase::Unavailable);
    if let Some(candidate) = candidate(view).filter(|_| waits) {
        let text = format!("{}. {}", candidate.sentence(), candidate.advice(view));
        return verdict("Ready", false, candidate.reason(), text);
    }
    let (yes, reason) = match phase {
        Phase::Ready => (true, "AllCopies"),
        Phase::Degraded => (true, "FewerCopies"),
        Phase::Invalid => (false, "InvalidSpec"),
        Phase::Pending => (false, "BackupsStarting"),
        Phase::WaitingForApp => (false, "WaitingForApp"),
        Phase::Unavailable => (false, "Unavailable"),
        Phase::Fenced => (false, "Fenced"),
        Phase::Paused => (false, "Paused"),
        Phase::Deleting => (false, "Deleting"),
    };
    verdict("Ready", yes, reason, why)
}

fn progressing(view: &View<'_>, decision: &Decision) -> Verdict {
    let settled = |message: &str| verdict("Progressing", false, "Settled", message);
    if view.observed.group.spec.paused {
        return settled("paused");
    }
    if let Some(waiting) = &decision.waiting {
        return verdict("Progressing", false, "Waiting", waiting);
    }
    if let Some(moving) = &decision.moving {
        return verdict("Progressing", true, "Moving", moving);
    }
    if !decision.creations.is_empty() {
        return verdict(
            "Progressing",
            true,
            "Creating",
            format!("making {}", count(decision.creations.len(), "backup pod")),
        );
    }
    if decision.retry_at.is_some() {
        return verdict(
            "Progressing",
            true,
            "BackingOff",
            "a backup that failed several times is replaced after a wait",
        );
    }
    let starting = view.backups.iter().filter(|backup| backup.is_alive() && !backup.ready).count();
    if starting > 0 {
        return verdict("Progressing", true, "Starting", format!("{} not ready yet", count(starting, "backup")));
    }
    let spares: Vec<&str> = view
        .backups
        .iter()
        .filter(|backup| backup.is_alive() && !backup.member)
        .map(|backup| backup.name.as_str())
        .collect();
    match (view.log(), spares.is_empty()) {
        (Some(_), false) => verdict("Progressing", true, "CatchingUp", format!("{} is catching up", spares.join(", "))),
        _ => settled("nothing is under way"),
    }
}

fn degraded(view: &View<'_>, decision: &Decision, phase: Phase, why: &str, foreign: &[String]) -> Verdict {
    let yes = |reason, message: String| verdict(DEGRADED, true, reason, message);
    if !foreign.is_empty() {
        let names = foreign.join(", ");
        return yes(
            "NameTaken",
            format!(
                "{names} exists and belongs to somebody else: it is left alone. Remove it, or give the group another name"
            ),
        );
    }
    for backup in view.backups.iter().filter(|backup| backup.is_alive()) {
        if let Some((reason, text)) = trouble(view, backup).filter(|(reason, _)| *reason != UNSCHEDULED) {
            return yes(reason, format!("{}: {text}", backup.name));
        }
    }
    if let Some((backup, why)) = view.backups.iter().find_map(|backup| match &backup.health {
        Health::Failed { why, .. } => Some((backup, why)),
        _ => None,
    }) {
        return yes("BackupFailed", format!("{}: {why}", backup.name));
    }
    if let Some((backup, text)) = view.backups.iter().find_map(|backup| Some((backup, damage(view, backup)?))) {
        return yes("MemberDamaged", format!("{}: {text}", backup.name));
    }
    match phase {
        Phase::Degraded => yes("FewerCopies", why.to_owned()),
        Phase::Unavailable => yes("Unavailable", why.to_owned()),
        _ if decision.waiting.is_some() => yes("MoveWaits", decision.waiting.clone().unwrap_or_default()),
        _ => verdict(DEGRADED, false, "AsWanted", "nothing is worse than asked for"),
    }
}

/// Whether a failover now would find everything that was acknowledged, and somebody to take over. No unless shown.
fn failover_safe(view: &View<'_>) -> Verdict {
    let no = |reason, message: String| verdict("FailoverSafe", false, reason, message);
    let Some(log) = view.log() else { return no("NoLog", "there is no log yet".to_owned()) };
    if view.observed.group.spec.fenced {
        return no("Fenced", "nobody takes over while the group is fenced".to_owned());
    }
    let holders = view.holders();
    if holders == 0 {
        return no("NoCopy", "no member's pod works: the log cannot be read until one comes back".to_owned());
    }
    if standbys(view.observed, view.primary) == 0 {
        return no("NoStandby", "no other pod of the app runs that could take over: run two or more".to_owned());
    }
    if let Some(Candidate { pod, .. }) = candidate(view) {
        return no(
            "PromotionWaits",
            format!("{pod} waits to become primary, and so would another: see condition Ready"),
        );
    }
    let damaged = |backup: &&BackupPod| backup.member && damage(view, backup).is_some();
    if let Some(backup) = view.backups.iter().find(damaged) {
        let text = format!("{} lacks segments that it should hold: it is repaired from the others", backup.name);
        return no("MemberDamaged", text);
    }
    match log.members.len() {
        members if holders < members => no(
            "MemberMissing",
            format!("the pods of {holders} of {members} members work: one more loss may be one too many"),
        ),
        members => verdict(
            "FailoverSafe",
            true,
            "StandbyAndCopies",
            format!("{}, and a standby", count(members, "complete copy")),
        ),
    }
}

/// Nothing that runs is the worse for what is in quarantine, so the group is not degraded by it.
fn quarantine_empty(view: &View<'_>) -> Verdict {
    let kept: Vec<String> = view
        .backups
        .iter()
        .filter_map(|backup| Some((backup, quarantined(view, backup)?)))
        .map(|(backup, copies)| format!("{} keeps {}", backup.name, count_of(copies, "copy")))
        .collect();
    match kept.is_empty() {
        true => verdict(QUARANTINE_EMPTY, true, "NothingKept", "no backup tells of a copy in quarantine"),
        false => verdict(
            QUARANTINE_EMPTY,
            false,
            "CopiesKept",
            format!(
                "{}. Such copies are no part of the log, and stay until a person has looked at them and releases them: see \
                 TailwindQuarantine",
                kept.join(", ")
            ),
        ),
    }
}

fn placeable(decision: &Decision) -> Verdict {
    let free = decision.survey.free.len();
    match decision.unplaced {
        0 => verdict(PLACEABLE, true, "Placed", "every backup has a node"),
        n if n <= free => verdict(
            PLACEABLE,
            true,
            "NodesFree",
            format!("{} without a node yet, and {} free", count(n, "backup"), count(free, "node")),
        ),
        n => {
            let device = decision.survey.refused.iter().any(|refusal| refusal.lacks_device);
            let reason = if device { "NoFreeDevice" } else { "NoNodeFits" };
            verdict(
                PLACEABLE,
                false,
                reason,
                format!("{} without a node. {}", count(n, "backup"), decision.survey.explain()),
            )
        }
    }
}

/// Sidecars are updated with the app's pods, which are not the operator's to restart.
fn sidecars_current(view: &View<'_>) -> Option<Verdict> {
    let without: Vec<String> =
        view.observed.app.iter().filter(|pod| !has_sidecar(pod)).map(ResourceExt::name_any).collect();
    if !without.is_empty() {
        let text = format!(
            "these pods of the app have no sidecar, perhaps because they were made while no operator ran: make them anew: {}",
            without.join(", ")
        );
        return Some(verdict("SidecarsCurrent", false, "Missing", text));
    }
    let injected =
        view.observed.app.iter().filter_map(|pod| Some((pod.name_any(), pod.annotations().get(ANNOTATION_INJECTED)?)));
    let wanted = &view.observed.settings.sidecar_image;
    let (current, old): (Vec<_>, Vec<_>) = injected.partition(|(_, image)| *image == wanted);
    let primary = match view.primary {
        Primary::Here { pod, .. } => Some(pod),
        _ => None,
    };
    // The primary last: each change of primary costs a failover.
    let mut names: Vec<String> = old.into_iter().map(|(name, _)| name).collect();
    names.sort_by_key(|name| (Some(name) == primary, name.clone()));
    match (current.is_empty(), names.is_empty()) {
        (true, true) => None,
        (_, true) => {
            Some(verdict("SidecarsCurrent", true, "Current", "every injected sidecar has the image that is wanted"))
        }
        _ => Some(verdict(
            "SidecarsCurrent",
            false,
            "Outdated",
            format!(
                "restart these pods of the app, in this order, to give them sidecars of {wanted}: {}",
                names.join(", ")
            ),
        )),
    }
}

fn has_sidecar(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.into_iter().any(|container| container.name == SIDECAR_CONTAINER)
}

/// What a backup says of its own damage.
pub fn damage(view: &View<'_>, backup: &BackupPod) -> Option<String> {
    let damaged = view.observed.damaged.get(&backup.name).filter(|_| backup.is_alive())?;
    let segments = count_of(*damaged, "segment");
    Some(format!(
        "{segments} damaged: the primary has them installed anew from other members, see TailwindMemberDamaged"
    ))
}

/// Copies that a backup keeps in quarantine, if any: as it says, or as it said before it fell silent. They outlive its
/// process.
pub fn quarantined(view: &View<'_>, backup: &BackupPod) -> Option<u64> {
    let name = &backup.name;
    let told = view.observed.quarantined.get(name).copied();
    let before = || {
        let status = view.observed.group.status.as_ref()?;
        status.backups.iter().find(|backup| backup.name == *name)?.quarantined
    };
    told.or_else(before).filter(|copies| *copies > 0)
}

const UNSCHEDULED: &str = "Unscheduled";

/// What keeps a pod from working, in its kubelet's, the scheduler's or its own words.
pub fn trouble(view: &View<'_>, backup: &BackupPod) -> Option<(&'static str, String)> {
    if let Some(Unready { reason, why }) = view.observed.obstacles.get(&backup.name).filter(|_| !backup.ready) {
        return Some((unready_reason(*reason), why.clone()));
    }
    let pod = view.observed.backups.iter().find(|pod| pod.name_any() == backup.name)?;
    let status = pod.status.as_ref()?;
    let container = status.container_statuses.iter().flatten().find(|container| container.name == BACKUP_CONTAINER);
    let waiting = container.and_then(|container| container.state.as_ref()?.waiting.as_ref());
    if let Some(waiting) = waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let text = [Some(reason), waiting.message.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(": ");
        match reason {
            "" | "ContainerCreating" | "PodInitializing" => {}
            "ImagePullBackOff" | "ErrImagePull" | "InvalidImageName" => return Some(("ImagePullFailed", text)),
            "CrashLoopBackOff" => {
                return Some(("BackupCrashes", container.and_then(last_words).unwrap_or(text)));
            }
            _ => return Some(("ContainerFailed", text)),
        }
    }
    let unscheduled =
        status.conditions.iter().flatten().find(|condition| {
            condition.type_ == "PodScheduled" && condition.status == "False" && backup.node.is_none()
        });
    unscheduled.map(|condition| (UNSCHEDULED, condition.message.clone().unwrap_or_default()))
}

/// The reason of a condition for what a backup says.
fn unready_reason(reason: UnreadyReason) -> &'static str {
    match reason {
        UnreadyReason::DeviceMissing => "DeviceMissing",
        UnreadyReason::MemlockTooLow => "MemlockTooLow",
        UnreadyReason::FabricFailed => "DeviceFailed",
        UnreadyReason::Unresponsive | UnreadyReason::Other => "BackupNotReady",
    }
}
