//! The conditions of a group: each a question, and the answer that holds now.
//!
//! Called by [`status`](super::status). The moment of a condition is that of its last flip: a look that finds the same
//! answer changes nothing.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use tailwind_crds::names::{ANNOTATION_INJECTED, flush_claim};
use tailwind_crds::{Phase, ReplicaGroupStatus, UpdateStrategy};
use tailwind_report::readiness::WaitsFor;

use super::answer::{
    Acked, Answer, BackupsCurrent, Degraded, FailoverSafe, Fenced, LogFits, Paused, Placeable, Progressing,
    QuarantineEmpty, Ready, SidecarsCurrent, TableHasRoom,
};
use super::backup_pod::{BackupPod, Health};
use super::backups::BackupPlan;
use super::candidate::{Candidate, candidate};
use super::count::Count;
use super::group_state::GroupState;
use super::licence::unread_claims;
use super::phase::{PhaseReason, config_store_empty};
use super::primary::{Primary, Standby, standby};
use super::readers::SHOWN_MAX;
use super::rollout::Rollout;
use super::table::{self, Difference};
use super::trouble::{NoReport, Trouble, damage, folder_percent, quarantined, trouble};
use crate::observed::{Observed, has_ended, has_sidecar};

/// Above this the status advises to trim the log or enlarge the volume.
const NEARLY_FULL_PERCENT: u64 = 80;

pub(crate) fn all(
    state: &GroupState<'_>,
    plan: &BackupPlan,
    (phase, reason): (Phase, &PhaseReason),
    not_owned: &[String],
) -> Vec<Condition> {
    let (observed, spec) = (state.observed, &state.observed.group.spec);
    let mut conditions = vec![
        condition(observed, &ready(state, phase, reason)),
        condition(observed, &progressing(state, plan)),
        condition(observed, &degraded(state, plan, phase, reason, not_owned)),
        condition(observed, &failover_safe(state)),
        condition(observed, &quarantine_empty(state)),
        condition(observed, &log_fits(state)),
    ];
    conditions.extend(table::has_room(state).map(|answer| condition(observed, &answer)));
    conditions.extend([
        condition(observed, if spec.fenced { &Fenced::FencedBySpec } else { &Fenced::NotFenced }),
        condition(observed, if spec.paused { &Paused::PausedBySpec } else { &Paused::NotPaused }),
    ]);
    // A look that decides nothing has surveyed nothing: the answer stays as it was.
    if spec.paused || state.is_deleting() {
        let before = state.before().and_then(|before| find(before, Placeable::CONDITION)).cloned();
        let observed_generation = observed.group.metadata.generation;
        conditions.extend(before.map(|before| Condition { observed_generation, ..before }));
    } else {
        conditions.push(condition(observed, &placeable(plan)));
    }
    conditions.push(condition(observed, &backups_current(state)));
    conditions.extend(sidecars_current(state).map(|answer| condition(observed, &answer)));
    conditions
}

/// The conditions of a group whose spec is wrong: it is not ready for that reason, and the rest stays as it was. But whether there
/// is a log may have to be known before the spec is right: the group may be deleted.
pub(crate) fn invalid(state: &GroupState<'_>, problems: &str) -> Vec<Condition> {
    let mut status = state.before().cloned().unwrap_or_default();
    replace(&mut status, state.observed, &Ready::InvalidSpec(problems.to_owned()));
    replace(&mut status, state.observed, &Progressing::InvalidSpec(problems.to_owned()));
    if state.observed.log().is_none() {
        replace(&mut status, state.observed, &without_log(state));
    }
    status.conditions
}

pub(crate) fn find<'a>(status: &'a ReplicaGroupStatus, kind: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == kind)
}

/// Puts one answer in place of that of the same condition.
pub(crate) fn replace<A: Answer>(status: &mut ReplicaGroupStatus, observed: &Observed, answer: &A) {
    let answer = condition(observed, answer);
    match status.conditions.iter_mut().find(|condition| condition.type_ == answer.type_) {
        Some(place) => *place = answer,
        None => status.conditions.push(answer),
    }
}

fn condition<A: Answer>(observed: &Observed, answer: &A) -> Condition {
    let status = answer.status();
    let observed_generation = observed.group.metadata.generation;
    let before = observed.group.status.as_ref().and_then(|before| find(before, A::CONDITION));
    // An operator that has just started has asked nobody yet, and knows no better than the one before it.
    let asked_nobody = match A::CONDITION {
        Ready::CONDITION | TableHasRoom::CONDITION => observed.sidecars.is_empty(),
        _ => observed.reports.is_empty(),
    };
    if let Some(before) = before.filter(|_| status == "Unknown" && asked_nobody) {
        return Condition { observed_generation, ..before.clone() };
    }
    // Kubernetes keeps seconds.
    let now = jiff::Timestamp::from_second(observed.now.as_second()).unwrap_or(observed.now);
    Condition {
        type_: A::CONDITION.to_owned(),
        status: status.to_owned(),
        reason: answer.reason().to_owned(),
        message: answer.to_string(),
        observed_generation,
        last_transition_time: before
            .filter(|before| before.status == status)
            .map_or(Time(now), |before| before.last_transition_time.clone()),
    }
}

fn ready(state: &GroupState<'_>, phase: Phase, reason: &PhaseReason) -> Ready {
    if let Some(reason) = config_store_empty(state).filter(|_| phase == Phase::Unavailable) {
        return Ready::ConfigStoreEmpty(reason);
    }
    let waits = matches!(phase, Phase::WaitingForApp | Phase::Unavailable);
    if let Some(candidate) = candidate(state).filter(|_| waits) {
        return promotion_waits(state, candidate);
    }
    let reason = reason.clone();
    match phase {
        Phase::Degraded if matches!(reason, PhaseReason::NodeSilent(..)) => Ready::NodeSilent(reason),
        Phase::Degraded if matches!(reason, PhaseReason::NoReport { .. }) => Ready::NoReport(reason),
        Phase::Unavailable if matches!(reason, PhaseReason::AppendsWait { .. }) => Ready::AppendsWait(reason),
        Phase::Ready => Ready::AllCopies(reason),
        Phase::Degraded => Ready::FewerCopies(reason),
        Phase::Invalid => Ready::InvalidSpec(reason.to_string()),
        Phase::Pending => Ready::BackupsStarting(reason),
        Phase::WaitingForApp => Ready::WaitingForApp(reason),
        Phase::Unavailable => Ready::Unavailable(reason),
        Phase::Fenced => Ready::Fenced(reason),
        Phase::Paused => Ready::Paused(reason),
        Phase::Hibernated => Ready::Hibernated(reason),
        Phase::Deleting => Ready::Deleting(reason),
    }
}

fn promotion_waits(state: &GroupState<'_>, candidate: Candidate) -> Ready {
    let log_id = || state.observed.log().map_or("LOG", |log| &log.id).to_owned();
    match candidate.what {
        WaitsFor::ConfigStore => Ready::ConfigStoreUnreadable(candidate),
        // Only a reader says so, and none is a candidate: its words are shown without advice.
        WaitsFor::Reads => Ready::Unavailable(PhaseReason::CandidateWaits(candidate)),
        // Its words say to recreate the pod.
        WaitsFor::OtherKind => Ready::Unavailable(PhaseReason::CandidateWaits(candidate)),
        WaitsFor::Backups => Ready::WaitsForBackups(candidate),
        WaitsFor::Members => Ready::WaitsForMembers(candidate),
        WaitsFor::Evidence => {
            let before = || state.before()?.positions;
            Ready::WaitsForEvidence(candidate, log_id(), Acked(state.observed.positions.or_else(before)))
        }
        WaitsFor::ForgottenLog => Ready::ConfigStoreEmpty(PhaseReason::CandidateWaits(candidate)),
        WaitsFor::NewerConfigStore => Ready::ConfigStoreWentBack(candidate, log_id()),
    }
}

fn progressing(state: &GroupState<'_>, plan: &BackupPlan) -> Progressing {
    if state.observed.group.spec.paused {
        return Progressing::Paused;
    }
    if let Some(replacement) = plan.replacement.clone() {
        return match plan.rollout {
            Rollout::Stalled => Progressing::Stalled(replacement),
            _ if replacement.is_blocked() => Progressing::Waiting(replacement),
            _ => Progressing::Moving(replacement),
        };
    }
    if !plan.creations.is_empty() {
        return Progressing::Creating(Count(plan.creations.len(), "backup pod"));
    }
    if plan.retry_at.is_some() {
        return Progressing::BackingOff;
    }
    let starting = state.alive().filter(|backup| !backup.ready).count();
    if starting > 0 {
        return Progressing::Starting(Count(starting, "backup"));
    }
    let spares: Vec<&str> = state.alive().filter(|backup| !backup.member).map(|backup| backup.name.as_str()).collect();
    match (state.observed.log(), spares.is_empty()) {
        (Some(_), false) => Progressing::CatchingUp(spares.join(", ")),
        _ => match (plan.rollout, Count(state.outdated().count(), "backup")) {
            (Rollout::Idle, _) => plan.stays.clone().map_or(Progressing::Settled, Progressing::Waiting),
            (Rollout::Queued, outdated) => Progressing::Queued(outdated),
            (Rollout::Begins | Rollout::Underway | Rollout::Stalled, outdated) => Progressing::Updating(outdated),
        },
    }
}

fn degraded(
    state: &GroupState<'_>,
    plan: &BackupPlan,
    phase: Phase,
    reason: &PhaseReason,
    not_owned: &[String],
) -> Degraded {
    if !not_owned.is_empty() {
        return Degraded::NameTaken(not_owned.join(", "));
    }
    for backup in state.alive() {
        // What has no node yet is the question of the condition Placeable.
        if let Some(trouble) = trouble(state, backup).filter(|trouble| !matches!(trouble, Trouble::Unscheduled(_))) {
            return Degraded::Reported(backup.name.clone(), trouble);
        }
    }
    for backup in &state.backups {
        if let Health::Failed { failure, .. } = &backup.health {
            return Degraded::BackupFailed(backup.name.clone(), failure.clone());
        }
    }
    for backup in &state.backups {
        if let Ok(Some(damage)) = damage(state, backup) {
            return Degraded::MemberDamaged(backup.name.clone(), damage);
        }
    }
    let blocked = plan.replacement.as_ref().filter(|replacement| replacement.is_blocked());
    match (phase, blocked) {
        (Phase::Degraded, _) if matches!(reason, PhaseReason::NodeSilent(..)) => Degraded::NodeSilent(reason.clone()),
        (Phase::Degraded, _) if matches!(reason, PhaseReason::NoReport { .. }) => {
            Degraded::PrimaryUnknown(reason.clone())
        }
        (Phase::Degraded, _) => Degraded::FewerCopies(reason.clone()),
        (Phase::Unavailable, _) => Degraded::Unavailable(reason.clone()),
        (_, Some(replacement)) => Degraded::MoveWaits(replacement.clone()),
        (_, None) => match no_report(&state.backups, |backup| damage(state, backup)) {
            Some((backup, why)) => Degraded::NoReport(backup, why),
            None => Degraded::AsWanted,
        },
    }
}

fn failover_safe(state: &GroupState<'_>) -> FailoverSafe {
    let Some(log) = state.observed.log() else { return without_log(state) };
    if state.observed.group.spec.fenced {
        return FailoverSafe::Fenced;
    }
    let (holders, members) = (state.holders().min(state.copies()), log.members.len());
    if holders == 0 {
        return FailoverSafe::NoCopy;
    }
    let standby = standby(state.observed, &state.primary);
    if standby == Standby::Missing {
        return FailoverSafe::NoStandby;
    }
    if let Some(Candidate { pod, .. }) = candidate(state) {
        return FailoverSafe::PromotionWaits(pod);
    }
    let in_set = state.backups.iter().filter(|backup| backup.member);
    if let Some(damaged) = in_set.clone().find(|backup| matches!(damage(state, backup), Ok(Some(_)))) {
        return FailoverSafe::MemberDamaged(damaged.name.clone());
    }
    if holders < members {
        return FailoverSafe::MemberMissing { holders, members };
    }
    match (standby, no_report(in_set, |backup| damage(state, backup))) {
        (Standby::Unable(pod, why), _) => FailoverSafe::StandbyUnable(pod, why),
        (Standby::Unknown(pod, why), _) => FailoverSafe::StandbyUnknown(pod, why),
        (_, Some((backup, why))) => FailoverSafe::NoReport(backup, why),
        (_, None) => FailoverSafe::StandbyAndCopies(Count(members, "complete copy")),
    }
}

/// Where the config store knows of no log. The API server lets a group be deleted without confirmation if the answer is `NoLog`, so
/// that has to be shown: see docs/decisions/0033-deletion-by-admission-policy.md.
fn without_log(state: &GroupState<'_>) -> FailoverSafe {
    if config_store_empty(state).is_some() {
        return FailoverSafe::ConfigStoreEmpty;
    }
    let unread: Vec<String> = unread_claims(state).map(|claim| flush_claim(&claim.member)).collect();
    if unread.is_empty() { FailoverSafe::NoLog } else { FailoverSafe::ClaimsUnread(first_of(&unread)) }
}

/// The first backup of which this is unknown, and why.
fn no_report<'a, T>(
    backups: impl IntoIterator<Item = &'a BackupPod>,
    known: impl Fn(&BackupPod) -> Result<T, NoReport>,
) -> Option<(String, NoReport)> {
    backups.into_iter().find_map(|backup| Some((backup.name.clone(), known(backup).err()?)))
}

fn quarantine_empty(state: &GroupState<'_>) -> QuarantineEmpty {
    let kept = state.backups.iter().filter_map(|backup| {
        let copies = usize::try_from(quarantined(state, backup).ok()??).unwrap_or(usize::MAX);
        Some(format!("{} keeps {}", backup.name, Count(copies, "copy")))
    });
    let kept = kept.collect::<Vec<_>>();
    match no_report(&state.backups, |backup| quarantined(state, backup)) {
        _ if !kept.is_empty() => QuarantineEmpty::CopiesKept(kept.join(", ")),
        Some((backup, why)) => QuarantineEmpty::NoReport(backup, why),
        None => QuarantineEmpty::NothingKept,
    }
}

fn log_fits(state: &GroupState<'_>) -> LogFits {
    let filling = state.backups.iter().filter_map(|backup| {
        let percent = folder_percent(state, backup).ok()??;
        (percent > NEARLY_FULL_PERCENT).then(|| format!("the flush folder of {} is {percent} % full", backup.name))
    });
    let filling = filling.collect::<Vec<_>>();
    match no_report(&state.backups, |backup| folder_percent(state, backup)) {
        _ if !filling.is_empty() => LogFits::NearlyFull(filling.join(", ")),
        Some((backup, why)) => LogFits::NoReport(backup, why),
        None => LogFits::RoomLeft,
    }
}

fn placeable(plan: &BackupPlan) -> Placeable {
    let (unplaced, free) = (Count(plan.unplaced, "backup"), plan.survey.free.len());
    match plan.unplaced {
        0 => Placeable::Placed,
        n if n <= free && plan.survey.refusal.is_none() => Placeable::NodesFree(unplaced, Count(free, "node")),
        n if n <= free => Placeable::NoNodeFits(unplaced, plan.survey.clone()),
        _ if plan.survey.lacks_device() => Placeable::NoFreeDevice(unplaced, plan.survey.clone()),
        _ => Placeable::NoNodeFits(unplaced, plan.survey.clone()),
    }
}

/// Pods that work, of an older spec or image.
fn backups_current(state: &GroupState<'_>) -> BackupsCurrent {
    let outdated: Vec<&str> = state.outdated().map(|backup| backup.name.as_str()).collect();
    let count = Count(outdated.len(), "backup");
    match (state.observed.group.spec.update_strategy, outdated.is_empty()) {
        (_, true) => BackupsCurrent::Current,
        (UpdateStrategy::RollingUpdate, false) => BackupsCurrent::Outdated(count),
        (UpdateStrategy::OnDelete, false) => BackupsCurrent::OnDelete(count, outdated.join(", ")),
    }
}

/// Names for people. There may be thousands of readers, and every sidecar watches the object that this is a part of.
fn first_of(names: &[String]) -> String {
    let (shown, more) = names.split_at(names.len().min(SHOWN_MAX));
    match more.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Sidecars are updated with the app's pods, which are not the operator's to restart.
fn sidecars_current(state: &GroupState<'_>) -> Option<SidecarsCurrent> {
    let Observed { app, readers, sidecars, reader_sidecars, .. } = state.observed;
    let pods = || readers.iter().chain(app).filter(|pod| !has_ended(pod));
    let without: Vec<String> = pods().filter(|pod| !has_sidecar(pod)).map(ResourceExt::name_any).collect();
    if !without.is_empty() {
        return Some(SidecarsCurrent::Missing(first_of(&without)));
    }
    let primary = match &state.primary {
        Primary::Here { pod, .. } => Some(pod),
        _ => None,
    };
    // Readers first, since nothing waits for them. The primary last: each change of primary costs a failover.
    let is_app = |name: &String| app.iter().any(|pod| pod.name_any() == *name);
    let in_order = |mut names: Vec<String>| {
        names.sort_by_key(|name| (is_app(name), Some(name) == primary, name.clone()));
        first_of(&names)
    };
    let spec = &state.observed.group.spec;
    let report = |name: &String| sidecars.get(name).or_else(|| reader_sidecars.get(name))?.as_ref().ok();
    let differing = |how: Difference| {
        let differs = |name: &String| report(name).and_then(|report| table::difference(spec, report)) == Some(how);
        pods().map(ResourceExt::name_any).filter(differs).collect::<Vec<_>>()
    };
    let [of_kind, of_size] = [Difference::Kind, Difference::Size].map(differing);
    if !of_kind.is_empty() {
        return Some(SidecarsCurrent::OtherKind(in_order(of_kind)));
    }
    let injected = pods().filter_map(|pod| Some((pod.name_any(), pod.annotations().get(ANNOTATION_INJECTED)?)));
    let wanted = state.observed.settings.image(spec);
    let (current, old): (Vec<_>, Vec<_>) = injected.partition(|(_, image)| image.as_str() == wanted);
    let old: Vec<String> = old.into_iter().map(|(name, _)| name).collect();
    match (current.is_empty(), old.is_empty(), of_size.is_empty()) {
        (_, false, _) => Some(SidecarsCurrent::Outdated(wanted.to_owned(), in_order(old))),
        (_, true, false) => Some(SidecarsCurrent::OtherSize(in_order(of_size))),
        (true, true, true) => None,
        (false, true, true) => Some(SidecarsCurrent::Current),
    }
}
