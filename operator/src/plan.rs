//! What is to be done for one group: from an [`Observed`] to a [`Plan`], both values. No clock, no network, no chance.
//!
//! Called by [`controller`](crate::controller); carried out by [`apply`](crate::apply). Read in this order: [`backup_pod`]
//! (what each backup pod is worth), [`placement`] (where another could go), [`backups`] (which to make and remove),
//! [`rollout`] (whether outdated ones are replaced now), [`certificates`], [`switchover`], [`candidate`] (which sidecar waits
//! to become primary), [`phase`], [`answer`] and [`conditions`], [`readers`] (who reads the log, and how far), [`table`] (how full it
//! is), [`status`]. Each
//! decision is a type whose text is what people read. The examples are in `tests/plans`.

mod action;
mod answer;
pub mod backup_pod;
mod backups;
mod candidate;
pub mod certificates;
mod conditions;
mod count;
mod group_state;
pub(crate) mod licence;
pub(crate) mod news;
pub(crate) mod phase;
mod placement;
mod primary;
mod readers;
pub mod removal;
mod rollout;
pub(crate) mod status;
mod switchover;
mod table;
mod trouble;
mod validity;

use std::collections::BTreeSet;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tailwind_crds::names::{LABEL_ROLE, ROLE_PRIMARY, flush_claim};
use tailwind_crds::{Deletion, ReplicaGroupSpec, ReplicaGroupStatus, WhenRemoved};

use crate::objects::claim::MemberClaim;
use crate::objects::disruption::Exit;
use crate::objects::stored::difference;
use crate::objects::{Kind, Owned, claim, disruption, flush, is_owned, pod, roles, service};
use crate::observed::{Certificates, Observed};
pub use action::{Action, Notice, Plan};
pub use answer::{Question, questions};
use backups::BackupPlan;
use group_state::GroupState;
pub use licence::{Licence, Look};
use primary::{Leading, Primary, Standby};
pub(crate) use readers::{SHOWN_MAX as READERS_SHOWN_MAX, stale as stale_readers};
use removal::Removal;
pub use rollout::Rollout;
use trouble::NoReport;

/// A look at everything, without a reason: certificates age, and a watch may have missed something.
const AGAIN_MAX: SignedDuration = SignedDuration::from_mins(5);
/// While something is waited for that no watch reports.
const AGAIN_WAITING: SignedDuration = SignedDuration::from_secs(15);
/// While a sidecar waits to become primary, or a report is under way: messages about that should not outlive it for long.
const AGAIN_SOON: SignedDuration = SignedDuration::from_secs(5);
/// The next step follows as soon as this one is in the status.
const AGAIN_AT_ONCE: SignedDuration = SignedDuration::from_secs(1);
/// Positions are looked up so often.
const AGAIN_POSITIONS: SignedDuration = SignedDuration::from_secs(30);

/// Plans.
pub fn plan(observed: &Observed) -> Plan {
    let state = GroupState::new(observed);
    if state.is_deleting() && observed.waits_for_app() == 0 {
        return Plan::last(&state);
    }
    let problems = validity::problems(observed);
    if !problems.is_empty() {
        return Plan::only_status(status::invalid(&state, &problems), observed).kept_safe(&state);
    }
    if observed.group.spec.paused && !state.is_deleting() {
        return Plan::paused(&state);
    }
    Plan::whole(&state)
}

impl Plan {
    fn only_status(status: ReplicaGroupStatus, observed: &Observed) -> Plan {
        let notices = status::notices(observed, &status);
        Plan {
            actions: Vec::new(),
            status,
            notices,
            again: AGAIN_MAX,
            spare_nodes: usize::MAX,
            rollout: Rollout::default(),
        }
    }

    /// Nothing is decided about backups.
    fn unchanged(state: &GroupState<'_>) -> Plan {
        let backups = BackupPlan { members_wanted: state.members_wanted(), ..BackupPlan::default() };
        Plan::only_status(status::status(state, &backups, None, &[]), state.observed)
    }

    /// The group goes; Kubernetes removes what belongs to it.
    fn last(state: &GroupState<'_>) -> Plan {
        let mut plan = Plan::unchanged(state);
        plan.actions.extend(owned_claims(state));
        plan.actions.extend(state.observed.has_finalizer().then_some(Action::Finalizer(false)));
        plan
    }

    /// Nothing is done to the group but what keeps it safe.
    fn paused(state: &GroupState<'_>) -> Plan {
        Plan::unchanged(state).kept_safe(state)
    }

    /// What keeps a group safe while everything else is left as it is: its certificates are renewed; its deletion waits for the app,
    /// and its claims go with it or outlive it, as its spec says; and its budget follows what members report. Nobody moves its
    /// backups, so a budget that counts on that is loosened; but not that of a single backup, which would be none.
    fn kept_safe(mut self, state: &GroupState<'_>) -> Plan {
        let observed = state.observed;
        self.actions.extend(finalizer(state));
        self.actions.extend(kept_certificates(observed));
        self.actions.extend(owned_claims(state));
        let has_budget = observed.objects.iter().any(|owned| owned.kind == Kind::DisruptionBudget);
        if has_budget || observed.group.spec.backups > 1 {
            let is_one_ending = state.backups.iter().any(|backup| backup.member && backup.ends_in_time(observed.now));
            let keeps_all = licence::is_any_damaged(state) || licence::is_any_quarantined(state) || is_one_ending;
            let exit = match keeps_all {
                true => Exit::Never,
                false if observed.group.spec.backups == 1 => Exit::AfterSuccessor,
                false => Exit::BeforeSuccessor,
            };
            // Members that are more than the spec has by now stay: nobody removes them, nor may a drain.
            let members = observed.log().map_or(0, |log| u8::try_from(log.members.len()).unwrap_or(u8::MAX));
            let budget = budget(state, exit, observed.group.spec.backups.max(members));
            self.actions.extend(needless_budget(observed, budget.as_ref()));
            self.actions.extend(budget.and_then(|budget| apply(observed, budget).ok()?));
        }
        self
    }

    fn whole(state: &GroupState<'_>) -> Plan {
        let observed = state.observed;
        let group = &observed.group;
        let backups = rollout::decide(state);
        let switchover = switchover::switchover(observed);
        let mut not_owned: BTreeSet<String> = observed.certificates.not_owned.iter().cloned().collect();

        let mut actions = Vec::from_iter(finalizer(state));
        if not_owned.is_empty() {
            let steps = certificates::steps(&observed.certificates, observed.now);
            actions.extend(steps.into_iter().map(Action::Certificates));
        }
        let budget = budget(state, backups.exit, group.spec.backups);
        let needless_budget = needless_budget(observed, budget.as_ref());
        let stay = budget.as_ref().and_then(|budget| disruption::stays(&budget.object));
        for object in wanted_objects(observed).into_iter().chain(budget) {
            match apply(observed, object) {
                Ok(action) => actions.extend(action),
                Err(NotOwned(object)) => _ = not_owned.insert(object),
            }
        }
        actions.extend(needless_budget);
        actions.extend(stale_endpoints(observed));
        actions.extend(owned_claims(state));
        actions.extend(claims(state, &backups));
        let pods = backups.creations.iter().map(|creation| pod::backup(group, &observed.settings, creation));
        actions.extend(pods.map(|pod| Action::Create(Box::new(pod))));
        let removals = backups.removals.iter().cloned();
        actions.extend(removals.map(|removal| Action::Delete(Removal { stay, ..removal })));
        actions.extend(gates(state));
        actions.extend(role_labels(state));
        if switchover.is_over {
            actions.push(Action::ForgetSwitchover);
        }

        let not_owned: Vec<String> = not_owned.into_iter().collect();
        let status = status::status(state, &backups, switchover.switchover, &not_owned);
        let mut notices: Vec<Notice> = switchover.notice.into_iter().collect();
        notices.extend(status::notices(observed, &status));
        let (spare_nodes, rollout) = (spare_nodes(&backups), backups.rollout);
        Plan { actions, again: again(state, &backups), status, notices, spare_nodes, rollout }
    }
}

/// What is done to a group of which only the metadata can be read, since it was stored by a newer operator perhaps: its certificates
/// are renewed, and it does not wait for an app that is gone.
pub(crate) fn unreadable(observed: &Observed) -> Vec<Action> {
    let is_deleting = observed.group.metadata.deletion_timestamp.is_some();
    let goes = is_deleting && observed.has_finalizer() && observed.waits_for_app() == 0;
    kept_certificates(observed).chain(goes.then_some(Action::Finalizer(false))).collect()
}

/// Renews certificates that there are: without them no sidecar reaches a backup any more, and nobody can take over.
fn kept_certificates(observed: &Observed) -> impl Iterator<Item = Action> {
    let Certificates { authority, not_owned, .. } = &observed.certificates;
    let is_there = authority.is_some() && not_owned.is_empty();
    let steps = is_there.then(|| certificates::steps(&observed.certificates, observed.now));
    steps.into_iter().flatten().map(Action::Certificates)
}

/// What belongs to every group, beside pods and secrets.
fn wanted_objects(observed: &Observed) -> Vec<Owned> {
    let Observed { group, server, app, readers, .. } = observed;
    let mut objects = Vec::new();
    for (role, pods) in [(roles::sidecars(group, *server), app), (roles::readers(group, *server), readers)] {
        let existing = find(observed, Kind::RoleBinding, &role.object.name_any());
        let binding = roles::binding(group, *server, &role, pods, existing);
        objects.extend([role, binding]);
    }
    objects.push(service::primary(group, *server));
    objects.extend(service::endpoints(group, *server, app));
    objects
}

/// Claims of the pods that are made, and of those that wait for one that could not be made, or is gone.
fn claims(state: &GroupState<'_>, backups: &BackupPlan) -> impl Iterator<Item = Action> {
    let observed = state.observed;
    let existing: BTreeSet<String> = claim::claims(observed).into_iter().map(|claim| claim.member).collect();
    let made = backups.creations.iter().map(|creation| creation.name.clone());
    let waiting = state.backups.iter().filter(|backup| backup.uses_claim && backup.node.is_none() && backup.is_alive());
    let names = made.chain(waiting.map(|backup| backup.name.clone())).collect::<Vec<_>>();
    let missing = names.into_iter().filter(move |name| !existing.contains(name));
    let claims = missing.filter_map(|name| claim::claim(&observed.group, observed.server, &name));
    claims.map(|claim| Action::Claim(Box::new(claim)))
}

/// What lets the group's deletion wait for the app, or not.
fn finalizer(state: &GroupState<'_>) -> Option<Action> {
    let wanted = state.observed.group.spec.deletion == Deletion::AfterApp;
    (state.observed.has_finalizer() != wanted && !state.is_deleting()).then_some(Action::Finalizer(wanted))
}

/// What lets claims go with the group, or outlive it, as its spec says: also while everything else is left alone, since the group may
/// be deleted at any time. A claim that was retained goes with this group only if the log names its member, or its backup reports that
/// nothing is on it: another group of the same name may have left it, as the only copy. Nor does one go of which nobody says what is
/// on it, if the config store may have been emptied.
fn owned_claims(state: &GroupState<'_>) -> impl Iterator<Item = Action> {
    let observed = state.observed;
    let wanted = flush::claim(&observed.group.spec).map(|asked| asked.when_removed == WhenRemoved::Delete);
    let unread: BTreeSet<String> = licence::unread_claims(state).map(|claim| claim.member.clone()).collect();
    let claims = claim::claims(observed).into_iter().filter(MemberClaim::is_kept);
    claims.filter_map(move |claim| {
        let is_member = observed.log().is_some_and(|log| log.has_member(&claim.member));
        let is_known = is_member || licence::reports_nothing(observed, &claim.member);
        let wanted = wanted.map(|wanted| wanted && !unread.contains(&claim.member));
        let owned = wanted.filter(|wanted| *wanted != claim.owned && (!wanted || is_known))?;
        Some(Action::OwnClaim { name: flush_claim(&claim.member), uid: claim.uid, owned })
    })
}

/// The budget that the group is to have; none before there is a log. It is not loosened before all members have been asked: an
/// operator that has just started does not know yet what the one before it knew. Nor is it removed before that, where the config
/// store knows of no log.
fn budget(state: &GroupState<'_>, exit: Exit, backups: u8) -> Option<Owned> {
    let Observed { group, server, .. } = state.observed;
    let has_log = state.observed.log().is_some_and(|log| !log.members.is_empty());
    let had_log = || own_budget(state.observed).is_some() && licence::is_any_silent(state);
    let is_forgotten = licence::forgotten(state.observed).is_some() || !has_log && had_log();
    if !group.spec.disruption_budget || !has_log && !is_forgotten {
        return None;
    }
    let exit = if is_forgotten || licence::went_back(state.observed) { Exit::Never } else { exit };
    let before = own_budget(state.observed).filter(|_| licence::is_any_unasked(state));
    let before = before.and_then(|budget| disruption::stays(&budget.object));
    let spec = ReplicaGroupSpec { backups, ..group.spec.clone() };
    let stay = disruption::stay(&spec, exit, licence::unproved(state), before)?;
    Some(disruption::budget(group, *server, stay))
}

fn own_budget(observed: &Observed) -> Option<&Owned> {
    let own =
        |owned: &&Owned| owned.kind == Kind::DisruptionBudget && is_owned(&observed.group, &owned.object.metadata);
    observed.objects.iter().find(own)
}

/// The group's budget, where there shall be none.
fn needless_budget(observed: &Observed, wanted: Option<&Owned>) -> Option<Action> {
    let needless = own_budget(observed).filter(|_| wanted.is_none());
    needless.map(|object| Action::Remove(Box::new(object.clone())))
}

/// The slice that leads to a pod which is gone.
fn stale_endpoints(observed: &Observed) -> Option<Action> {
    let slice = observed.objects.iter().find(|owned| owned.kind == Kind::EndpointSlice)?;
    let is_own = is_owned(&observed.group, &slice.object.metadata);
    let is_stale = is_own && service::is_stale(&slice.object, &observed.app);
    is_stale.then(|| Action::ClearEndpoints(Box::new(slice.clone())))
}

/// The object that there is of this kind and name.
fn find<'a>(observed: &'a Observed, kind: Kind, name: &str) -> Option<&'a Owned> {
    observed.objects.iter().find(|owned| owned.kind == kind && owned.object.name_any() == name)
}

/// An object with the name of one of the group's that belongs to another owner.
struct NotOwned(String);

/// What makes an object as it should be; nothing if it is.
fn apply(observed: &Observed, wanted: Owned) -> Result<Option<Action>, NotOwned> {
    match find(observed, wanted.kind, &wanted.object.name_any()) {
        Some(existing) if !is_owned(&observed.group, &existing.object.metadata) => Err(NotOwned(existing.to_string())),
        Some(existing) if is_as_wanted(existing, &wanted) => Ok(None),
        _ => Ok(Some(Action::Apply(Box::new(wanted)))),
    }
}

/// Without a log nobody is in a set. A gate that says otherwise may be all that is left of a config store that was emptied: it
/// stays.
fn gates(state: &GroupState<'_>) -> impl Iterator<Item = Action> {
    let has_log = state.observed.log().is_some();
    let changed = state.alive().filter(|backup| backup.node.is_some() && backup.gate != Some(backup.member));
    let changed = changed.filter(move |backup| has_log || backup.gate.is_none());
    changed.map(|backup| {
        let left = !backup.member && backup.was_in_set();
        Action::Gate { pod: backup.name.clone(), caught_up: backup.member, left }
    })
}

/// The role label on the primary alone; on nobody while the group is fenced, since then nobody may append.
fn role_labels(state: &GroupState<'_>) -> impl Iterator<Item = Action> {
    let is_labelled = |pod: &&Pod| pod.labels().get(LABEL_ROLE).map(String::as_str) == Some(ROLE_PRIMARY);
    let (with, without): (Vec<&Pod>, Vec<&Pod>) = state.observed.app.iter().partition(is_labelled);
    let is_primary = |name: &String| match &state.primary {
        Primary::Here { pod, .. } => pod == name && !state.observed.group.spec.fenced,
        _ => false,
    };
    let off = with.into_iter().map(Pod::name_any).filter(move |name| !is_primary(name));
    let on = without.into_iter().map(Pod::name_any).filter(move |name| is_primary(name));
    off.map(|pod| Action::Role { pod, primary: false }).chain(on.map(|pod| Action::Role { pod, primary: true }))
}

fn again(state: &GroupState<'_>, plan: &BackupPlan) -> SignedDuration {
    let observed = state.observed;
    let has_log = observed.log().is_some();
    let is_starting = state.alive().any(|backup| !(backup.ready && (backup.member || !has_log)));
    let missing: Vec<NoReport> =
        state.backups.iter().filter_map(|backup| trouble::damage(state, backup).err()).collect();
    let standby = primary::standby(observed, &state.primary);
    let is_unknown = matches!(state.leading, Leading::Unknown(_)) || matches!(standby, Standby::Unknown(..));
    let is_waiting = !state.primary.is_here() && !observed.app.is_empty()
        || plan.replacement.is_some()
        || plan.unplaced > 0
        || is_starting
        || !missing.is_empty()
        || is_unknown;
    let again = match () {
        () if plan.rollout == Rollout::Begins => AGAIN_AT_ONCE,
        () if candidate::may_be(state) || missing.contains(&NoReport::NotAsked) => AGAIN_SOON,
        () if is_waiting => AGAIN_WAITING,
        () if has_log => AGAIN_POSITIONS,
        () => AGAIN_MAX,
    };
    let leaves_at = state.alive().filter_map(|backup| backup.leaves_at);
    match leaves_at.chain(plan.retry_at).min() {
        Some(at) => again.min(at.duration_since(observed.now)).max(SignedDuration::from_secs(1)),
        None => again,
    }
}

/// See [`Plan::spare_nodes`]. Whether one is free for a successor decides how a backup may leave.
fn spare_nodes(plan: &BackupPlan) -> usize {
    let waits = plan.unplaced > 0 || plan.replacement.is_some() || plan.retry_at.is_some();
    if waits { 0 } else { plan.survey.free.len() }
}

fn is_as_wanted(existing: &Owned, wanted: &Owned) -> bool {
    let headless = |owned: &Owned| owned.kind == Kind::Service && service::is_headless(&owned.object);
    headless(existing) == headless(wanted) && difference(&existing.object, &wanted.object).is_none()
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::fs;

    use strum::IntoEnumIterator;

    use super::answer::*;
    use super::*;

    /// The texts of a decision's variants, with empty values in them. One of them may be empty: it passes on a text.
    fn texts<D: IntoEnumIterator + fmt::Display>() -> Vec<String> {
        D::iter().map(|decision| decision.to_string()).collect()
    }

    #[test]
    fn each_decision_has_its_own_text() {
        for texts in [
            texts::<Notice>(),
            texts::<backup_pod::PodFailure>(),
            texts::<backup_pod::Leave>(),
            texts::<removal::Advice>(),
            texts::<removal::RemovalReason>(),
            texts::<removal::Replacement>(),
            texts::<licence::Evidence>(),
            texts::<licence::NotWhole>(),
            texts::<licence::Withheld>(),
            texts::<certificates::CertificateRole>(),
            texts::<certificates::CertificateStep>(),
            texts::<phase::PhaseReason>(),
            texts::<placement::Unfit>(),
            texts::<action::Refusal>(),
            texts::<validity::Problem>(),
            texts::<FailoverSafe>(),
            texts::<Fenced>(),
            texts::<Paused>(),
            texts::<QuarantineEmpty>(),
            texts::<LogFits>(),
            texts::<BackupsCurrent>(),
            texts::<SidecarsCurrent>(),
        ] {
            let distinct: BTreeSet<&String> = texts.iter().collect();
            assert_eq!(distinct.len(), texts.len(), "{texts:#?}");
        }
    }

    /// `ApiRefused` comes after a plan.
    #[test]
    fn each_answer_but_one_is_in_a_plan() {
        let plans = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plans")).unwrap();
        let plans: String = plans.map(|plan| fs::read_to_string(plan.unwrap().path()).unwrap()).collect();
        let is_in_plan = |(condition, reason): &(&str, &str)| {
            ["True", "False", "Unknown"]
                .iter()
                .any(|answer| plans.contains(&format!("\"{condition} {answer} {reason}: ")))
        };
        let all = questions();
        let all = all.iter().flat_map(|question| question.reasons.iter().map(|reason| (question.condition, *reason)));
        let missing: Vec<_> = all.filter(|answer| !is_in_plan(answer)).collect();
        assert_eq!(missing, [("Degraded", "ApiRefused")]);
    }
}
