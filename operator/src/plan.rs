//! What is to be done for one group: from an [`Observed`] to a [`Plan`], both values. No clock, no network, no chance.
//!
//! Called by [`controller`](crate::controller); carried out by [`apply`](crate::apply). Read in this order: [`backup_pod`]
//! (what each backup pod is worth), [`placement`] (where another could go), [`backups`] (which to make and remove),
//! [`certificates`], [`switchover`], [`candidate`] (who waits to be primary), [`status`] with [`conditions`]. The stories
//! are in `tests/plans`.

pub mod backup_pod;
pub mod backups;
pub mod candidate;
pub mod certificates;
pub mod conditions;
pub mod objects;
pub mod placement;
pub mod primary;
pub mod status;
pub mod switchover;
pub mod validity;

use std::collections::BTreeSet;
use std::fmt;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::runtime::events::EventType;
use tailwind_crds::names::{ANNOTATION_ATTEMPT, FINALIZER};
use tailwind_crds::{Deletion, ReplicaGroupStatus};

use crate::observed::Observed;
use backup_pod::BackupPod;
use backups::{Decision, Exit, Removal};
use objects::{Kind, Owned, disruption, is_owned, pod, roles, service};

/// A look at everything, without a reason: certificates age, and a watch may have missed something.
const AGAIN_MAX: SignedDuration = SignedDuration::from_mins(5);
/// While something is waited for that no watch tells.
const AGAIN_WAITING: SignedDuration = SignedDuration::from_secs(15);
/// While somebody waits to become primary: what is told of that should not outlive it for long.
const AGAIN_CANDIDATE: SignedDuration = SignedDuration::from_secs(5);
/// Positions are looked up so often.
const AGAIN_POSITIONS: SignedDuration = SignedDuration::from_secs(30);

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In this order.
    pub actions: Vec<Action>,
    /// All of the status but the log, which belongs to the sidecars.
    pub status: ReplicaGroupStatus,
    /// What people are told once the status is written; of what is done they are told when it is done.
    pub notices: Vec<Notice>,
    /// When to look again if nothing happens.
    pub again: SignedDuration,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The finalizer is put on or taken off.
    Finalizer(bool),
    /// The switchover annotation is taken off.
    ForgetSwitchover,
    /// About certificates.
    Certificates(certificates::Step),
    /// An object of the group is made, or made to be as it should.
    Apply(Box<Owned>),
    /// An object of the group is no longer wanted.
    Remove(Box<Owned>),
    /// A backup pod is made.
    Create(Box<Pod>),
    /// A backup pod is removed.
    Delete(Removal),
    /// A backup pod's readiness gate is set.
    Gate {
        /// The pod.
        pod: String,
        /// In the set.
        caught_up: bool,
    },
    /// An app pod gets the role, or loses it.
    Role {
        /// The pod.
        pod: String,
        /// It is the primary.
        primary: bool,
    },
}

/// An event for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// Whether somebody should look.
    pub kind: EventType,
    /// In one word.
    pub reason: &'static str,
    /// In a sentence.
    pub note: String,
}

/// Plans.
pub fn plan(observed: &Observed) -> Plan {
    let group = &observed.group;
    let hash = pod::template_hash(group, &observed.settings);
    let backups = backup_pod::backup_pods(observed, &hash);
    let primary = primary::primary(observed);
    let view = status::View { observed, backups: &backups, primary: &primary };

    let problems = validity::problems(observed);
    if !problems.is_empty() {
        return Plan::only_status(status::invalid(&view, &problems), observed);
    }
    let deleting = group.metadata.deletion_timestamp.is_some();
    let waits_for_app = has_finalizer(observed) && !observed.app.is_empty();
    if deleting && !waits_for_app {
        return Plan::last(&view);
    }
    if group.spec.paused && !deleting {
        return Plan::paused(&view);
    }
    Plan::whole(&view, deleting)
}

impl Plan {
    fn only_status(status: ReplicaGroupStatus, observed: &Observed) -> Plan {
        let notices = status::notices(observed, &status);
        Plan { actions: Vec::new(), status, notices, again: AGAIN_MAX }
    }

    /// The group goes; Kubernetes removes what belongs to it.
    fn last(view: &status::View<'_>) -> Plan {
        let decision = Decision { members_wanted: status::wanted_before(view), ..Decision::default() };
        let mut plan = Plan::only_status(status::status(view, &decision, None, &[]), view.observed);
        if has_finalizer(view.observed) {
            plan.actions.push(Action::Finalizer(false));
        }
        plan
    }

    /// Nothing is done to the group. Nobody moves its backups either, so a budget that counts on it is loosened.
    fn paused(view: &status::View<'_>) -> Plan {
        let decision = Decision { members_wanted: status::wanted_before(view), ..Decision::default() };
        let mut plan = Plan::only_status(status::status(view, &decision, None, &[]), view.observed);
        if view.observed.objects.iter().any(|owned| owned.kind == Kind::DisruptionBudget) {
            plan.actions
                .extend(budget(view.observed, decision.exit).and_then(|budget| keep(view.observed, budget).ok()?));
            plan.actions.extend(needless_budget(view.observed, decision.exit));
        }
        plan
    }

    fn whole(view: &status::View<'_>, deleting: bool) -> Plan {
        let status::View { observed, backups, primary } = *view;
        let group = &observed.group;
        let decision = backups::decide(observed, backups, primary.is_here());
        let switchover = switchover::outcome(observed);
        let mut foreign: BTreeSet<String> = observed.certificates.foreign.iter().cloned().collect();

        let mut actions = Vec::new();
        let wants_finalizer = group.spec.deletion == Deletion::AfterApp;
        if has_finalizer(observed) != wants_finalizer && !deleting {
            actions.push(Action::Finalizer(wants_finalizer));
        }
        if foreign.is_empty() {
            let steps = certificates::steps(&observed.certificates, observed.now);
            actions.extend(steps.into_iter().map(Action::Certificates));
        }
        for object in wanted_objects(observed, decision.exit) {
            match keep(observed, object) {
                Ok(action) => actions.extend(action),
                Err(Foreign(object)) => _ = foreign.insert(object),
            }
        }
        actions.extend(needless_budget(observed, decision.exit));
        let creations = decision.creations.iter();
        actions.extend(
            creations.map(|creation| Action::Create(Box::new(pod::backup(group, &observed.settings, creation)))),
        );
        actions.extend(decision.removals.iter().cloned().map(Action::Delete));
        actions.extend(gates(backups));
        actions.extend(primary.labels(observed));
        if switchover.is_over {
            actions.push(Action::ForgetSwitchover);
        }

        let foreign: Vec<String> = foreign.into_iter().collect();
        let status = status::status(view, &decision, switchover.switchover, &foreign);
        let mut notices: Vec<Notice> = switchover.notice.into_iter().collect();
        notices.extend(status::notices(observed, &status));
        Plan { actions, again: again(view, &decision), status, notices }
    }
}

fn has_finalizer(observed: &Observed) -> bool {
    observed.group.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// What belongs to every group, beside pods and secrets.
fn wanted_objects(observed: &Observed, exit: Exit) -> Vec<Owned> {
    let Observed { group, server, app, .. } = observed;
    let mut objects =
        vec![roles::role(group, *server), roles::binding(group, *server, app), service::primary(group, *server)];
    objects.extend(budget(observed, exit));
    objects
}

fn budget(observed: &Observed, exit: Exit) -> Option<Owned> {
    let group = &observed.group;
    disruption::stay(group, exit).map(|stay| disruption::budget(group, observed.server, stay))
}

/// The group's budget, where there shall be none.
fn needless_budget(observed: &Observed, exit: Exit) -> Option<Action> {
    let own =
        |owned: &&Owned| owned.kind == Kind::DisruptionBudget && is_owned(&observed.group, &owned.object.metadata);
    let is_needless = disruption::stay(&observed.group, exit).is_none();
    let needless = observed.objects.iter().find(own).filter(|_| is_needless);
    needless.map(|object| Action::Remove(Box::new(object.clone())))
}

/// An object that is in the way, for people.
struct Foreign(String);

/// What makes an object as it should be; nothing if it is.
fn keep(observed: &Observed, wanted: Owned) -> Result<Option<Action>, Foreign> {
    let is_same = |existing: &&Owned| {
        existing.kind == wanted.kind && existing.object.metadata.name == wanted.object.metadata.name
    };
    match observed.objects.iter().find(is_same) {
        Some(existing) if !is_owned(&observed.group, &existing.object.metadata) => Err(Foreign(existing.to_string())),
        Some(existing) if contains(&existing.object, &wanted.object) => Ok(None),
        _ => Ok(Some(Action::Apply(Box::new(wanted)))),
    }
}

fn gates(backups: &[BackupPod]) -> impl Iterator<Item = Action> {
    let changed = backups
        .iter()
        .filter(|backup| backup.is_alive() && backup.node.is_some() && backup.gate != Some(backup.member));
    changed.map(|backup| Action::Gate { pod: backup.name.clone(), caught_up: backup.member })
}

fn again(view: &status::View<'_>, decision: &Decision) -> SignedDuration {
    let status::View { observed, backups, .. } = *view;
    let mut again = AGAIN_MAX;
    let has_log = view.log().is_some();
    if has_log {
        again = again.min(AGAIN_POSITIONS);
    }
    if !view.primary.is_here() && !observed.app.is_empty() {
        again = again.min(AGAIN_WAITING);
    }
    if candidate::may_be(view) {
        again = again.min(AGAIN_CANDIDATE);
    }
    let starting = backups.iter().any(|backup| backup.is_alive() && !(backup.ready && (backup.member || !has_log)));
    if decision.waiting.is_some() || decision.moving.is_some() || decision.unplaced > 0 || starting {
        again = again.min(AGAIN_WAITING);
    }
    if let Some(retry_at) = decision.retry_at {
        again = again.min(retry_at.duration_since(observed.now)).max(SignedDuration::from_secs(1));
    }
    again
}

/// Whether everything that is wanted is so: then nothing is written.
fn contains(existing: &DynamicObject, wanted: &DynamicObject) -> bool {
    fn within(wanted: &serde_json::Value, existing: &serde_json::Value) -> bool {
        use serde_json::Value::{Array, Object};
        match (wanted, existing) {
            (Object(wanted), Object(existing)) => wanted.iter().all(|(key, value)| {
                existing.get(key).map_or_else(|| is_empty(value), |existing| within(value, existing))
            }),
            (Array(wanted), Array(existing)) => {
                wanted.len() == existing.len() && wanted.iter().zip(existing).all(|(a, b)| within(a, b))
            }
            (wanted, existing) => wanted == existing,
        }
    }
    fn is_empty(value: &serde_json::Value) -> bool {
        value.as_array().is_some_and(Vec::is_empty)
    }
    let labels = wanted.labels().iter().all(|(label, value)| existing.labels().get(label) == Some(value));
    labels && within(&wanted.data, &existing.data)
}

impl Action {
    /// What people are told once it is done.
    pub fn notice(&self) -> Option<Notice> {
        let (reason, note) = match self {
            Action::Create(pod) => {
                let name = pod.name_any();
                let note = match pod.annotations().get(ANNOTATION_ATTEMPT) {
                    None => format!("made backup pod {name}"),
                    Some(count) => format!("made backup pod {name}, after {count} that failed"),
                };
                ("BackupCreated", note)
            }
            Action::Delete(removal) => {
                ("BackupRemoved", format!("removed backup pod {}: {}", removal.name, removal.why))
            }
            Action::Certificates(certificates::Step::RenewAuthority) => {
                ("AuthorityRenewed", "made a new CA; certificates are issued by it when every pod trusts it".to_owned())
            }
            Action::Role { pod, primary: true } => ("Primary", format!("{pod} is primary")),
            _ => return None,
        };
        Some(Notice { kind: EventType::Normal, reason, note })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Finalizer(true) => f.write_str("add the finalizer"),
            Action::Finalizer(false) => f.write_str("remove the finalizer"),
            Action::ForgetSwitchover => f.write_str("remove the switchover annotation"),
            Action::Certificates(step) => match step {
                certificates::Step::MakeAuthority => f.write_str("make a CA"),
                certificates::Step::RenewAuthority => f.write_str("make a new CA, keep the old one as the previous"),
                certificates::Step::ForgetPrevious => f.write_str("forget the previous CA"),
                certificates::Step::Issue(role) => write!(f, "issue the {role} certificate, with the bundle of CAs"),
                certificates::Step::Bundle(role) => write!(f, "write the bundle of CAs for the {role} certificate"),
            },
            Action::Apply(object) => write!(f, "apply {object}"),
            Action::Remove(object) => write!(f, "remove {object}"),
            Action::Create(pod) => write!(f, "create pod {}", pod.name_any()),
            Action::Delete(removal) => write!(f, "delete pod {}", removal.name),
            Action::Gate { pod, caught_up } => write!(f, "say that pod {pod} is caught up: {caught_up}"),
            Action::Role { pod, primary: true } => write!(f, "label pod {pod} primary"),
            Action::Role { pod, primary: false } => write!(f, "take the primary label off pod {pod}"),
        }
    }
}

impl fmt::Display for certificates::Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            certificates::Role::Sidecar => "sidecars'",
            certificates::Role::Backup => "backups'",
        })
    }
}
