//! What a plan consists of: actions, the new status, and notices for people.
//!
//! Made by [`plan`](super); actions are carried out by [`apply`](crate::apply), notices published by
//! [`events`](crate::events).

use std::fmt;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::events::EventType;
use strum::{AsRefStr, EnumIter};
use tailwind_crds::names::{ANNOTATION_ATTEMPT, flush_claim};
use tailwind_crds::{Phase, ReplicaGroupStatus};

use super::certificates::CertificateStep;
use super::removal::{Removal, RemovalReason};
use super::rollout::Rollout;
use super::switchover::HandoverReason;
use crate::objects::claim::ClaimEnd;
use crate::objects::{Kind, Owned};

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In this order.
    pub actions: Vec<Action>,
    /// All of the status but the log, which belongs to the sidecars.
    pub status: ReplicaGroupStatus,
    /// Published once the status is written; those of actions are published when the action is done.
    pub notices: Vec<Notice>,
    /// When to look again if nothing happens.
    pub again: SignedDuration,
    /// Nodes that could take another backup. As long as fewer than so many nodes have changed, none of them with a pod of the
    /// group, the plan stays the same. 0 while something waits for a node.
    pub spare_nodes: usize,
    /// How far the replacement of outdated backups is.
    pub rollout: Rollout,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The finalizer is put on or taken off.
    Finalizer(bool),
    /// The switchover annotation is taken off.
    ForgetSwitchover,
    /// About certificates.
    Certificates(CertificateStep),
    /// An object of the group is made, or made to be as it should.
    Apply(Box<Owned>),
    /// An object of the group is no longer wanted.
    Remove(Box<Owned>),
    /// The address of a pod that is gone is taken out of the primary's EndpointSlice, unless it has changed since.
    ClearEndpoints(Box<Owned>),
    /// A member's claim is made.
    Claim(Box<Owned>),
    /// A member's claim is made to go with the group, or to outlive it.
    OwnClaim {
        /// The claim.
        name: String,
        /// Which of that name.
        uid: String,
        /// It goes with the group.
        owned: bool,
    },
    /// A backup pod is made.
    Create(Box<Pod>),
    /// A backup pod is removed, and its claim perhaps; or the claim of one that is gone.
    Delete(Removal),
    /// A backup pod's readiness gate is set.
    Gate {
        /// The pod.
        pod: String,
        /// In the set.
        caught_up: bool,
        /// It was in the set.
        left: bool,
    },
    /// An app pod gets the role label, or loses it.
    Role {
        /// The pod.
        pod: String,
        /// It is the primary.
        primary: bool,
    },
}

impl Action {
    /// Whether this one is done only if that one, before it in the plan, has been done.
    pub fn follows(&self, before: &Action) -> bool {
        match (self, before) {
            // A pod without its claim would wait for it, and count.
            (Action::Create(pod), Action::Claim(claim)) => claim.object.name_any() == flush_claim(&pod.name_any()),
            (Action::Delete(removal), Action::Create(pod)) => removal.after.contains(&pod.name_any()),
            // Until the disruption controller has noticed a deletion, the budget would let those be evicted that it rests on.
            (Action::Delete(removal), Action::Apply(owned)) => {
                owned.kind == Kind::DisruptionBudget && !removal.licence.holders().is_empty()
            }
            // Without the finalizer the group goes, and takes the claims that it owns.
            (Action::Finalizer(false), Action::OwnClaim { .. }) => true,
            // At no moment do two pods have the label.
            (Action::Role { primary: true, .. }, Action::Role { primary: false, .. }) => true,
            _ => false,
        }
    }

    /// Published once the action is done.
    pub fn notice(&self) -> Option<Notice> {
        match self {
            Action::Create(pod) => Some(match pod.annotations().get(ANNOTATION_ATTEMPT) {
                None => Notice::BackupCreated(pod.name_any()),
                Some(failed) => Notice::BackupReplaced(pod.name_any(), failed.clone()),
            }),
            Action::Delete(Removal { name, pod: Some(_), claim, reason, .. }) => {
                let is_released = claim.as_ref().is_some_and(|step| step.end == ClaimEnd::Retain);
                Some(match is_released {
                    true => Notice::BackupReleased(name.clone(), reason.clone(), flush_claim(name)),
                    false => Notice::BackupRemoved(name.clone(), reason.clone()),
                })
            }
            Action::Delete(Removal { name, claim, .. }) => {
                let is_deleted = claim.as_ref().is_some_and(|step| step.end == ClaimEnd::Delete);
                (!is_deleted).then(|| Notice::ClaimReleased(flush_claim(name)))
            }
            Action::Certificates(CertificateStep::RenewAuthority) => Some(Notice::AuthorityRenewed),
            Action::Role { pod, primary: true } => Some(Notice::Primary(pod.clone())),
            _ => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Finalizer(true) => f.write_str("add the finalizer"),
            Action::Finalizer(false) => f.write_str("remove the finalizer"),
            Action::ForgetSwitchover => f.write_str("remove the switchover annotation"),
            Action::Certificates(step) => step.fmt(f),
            Action::Apply(object) => write!(f, "apply {object}"),
            Action::Remove(object) => write!(f, "remove {object}"),
            Action::ClearEndpoints(object) => write!(f, "take the address of a pod that is gone out of {object}"),
            Action::Create(pod) => write!(f, "create pod {}", pod.name_any()),
            Action::Claim(object) => write!(f, "create {object}"),
            Action::OwnClaim { name, owned: true, .. } => write!(f, "let claim {name} go with the group"),
            Action::OwnClaim { name, owned: false, .. } => write!(f, "let claim {name} outlive the group"),
            Action::Delete(removal) => removal.fmt(f),
            Action::Gate { pod, caught_up, .. } => write!(f, "set the readiness gate of pod {pod} to {caught_up}"),
            Action::Role { pod, primary: true } => write!(f, "label pod {pod} primary"),
            Action::Role { pod, primary: false } => write!(f, "remove the primary label from pod {pod}"),
        }
    }
}

/// An event for people: the variant's name is its reason, its text is the note.
#[derive(Clone, Debug, PartialEq, Eq, AsRefStr, EnumIter)]
pub enum Notice {
    /// The pod that was created.
    BackupCreated(String),
    /// The pod that was created, and how many before it failed.
    #[strum(serialize = "BackupCreated")]
    BackupReplaced(String, String),
    /// The pod that was removed, and why.
    BackupRemoved(String, RemovalReason),
    /// The pod that was removed, why, and its claim, which stays.
    #[strum(serialize = "BackupRemoved")]
    BackupReleased(String, RemovalReason, String),
    /// The claim that is the user's from now on.
    ClaimReleased(String),
    /// A new CA was made.
    AuthorityRenewed,
    /// The pod that was labelled primary.
    Primary(String),
    /// The primary, why it hands over, and the pod that is to be the next.
    HandsOver(String, HandoverReason, String),
    /// The pod that is to become primary, and the primary.
    SwitchoverAsked(String, String),
    /// The new primary, and its epoch.
    SwitchedOver(String, u64),
    /// Why a switchover that was asked for does not happen.
    SwitchoverRefused(Refusal),
    /// The message of condition `Placeable`.
    NotPlaceable(String),
    /// The operator that manages the group, and this one.
    Refused(String, String),
    /// The new phase, and the reason.
    #[strum(disabled)]
    Phase(Phase, String),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::BackupCreated(pod) => write!(f, "created backup pod {pod}"),
            Notice::BackupReplaced(pod, failed) => write!(f, "created backup pod {pod}, after {failed} that failed"),
            Notice::BackupRemoved(pod, reason) => write!(f, "removed backup pod {pod}: {reason}"),
            Notice::BackupReleased(pod, reason, claim) => write!(
                f,
                "removed backup pod {pod}: {reason}. Its claim {claim} stays and is yours: look at it, and delete it"
            ),
            Notice::ClaimReleased(claim) => write!(
                f,
                "released claim {claim}: its pod is gone, others hold the log, and nobody reports whether there are \
                 files in quarantine on it. Look, and delete it"
            ),
            Notice::AuthorityRenewed => {
                f.write_str("made a new CA; certificates are issued by it when every pod trusts it")
            }
            Notice::Primary(pod) => write!(f, "{pod} is primary"),
            Notice::HandsOver(from, why, to) => write!(f, "{to} is to become primary in place of {from}: {why}"),
            Notice::SwitchoverAsked(to, from) => write!(f, "{to} is to become primary in place of {from}"),
            Notice::SwitchedOver(pod, epoch) => write!(f, "{pod} is primary, since epoch {epoch}"),
            Notice::SwitchoverRefused(refusal) => refusal.fmt(f),
            Notice::NotPlaceable(message) => message.fmt(f),
            Notice::Refused(owner, other) => write!(
                f,
                "operator {owner} manages this group, and operator {other} leaves it alone. If both are installed, \
                 give one of them another --watch-namespace or --class. If {owner} is gone, remove the annotation \
                 replication.tailwind.dev/operator from the group"
            ),
            Notice::Phase(_, reason) => reason.fmt(f),
        }
    }
}

/// Why a pod does not become primary as the switchover annotation asks.
#[derive(Clone, Debug, PartialEq, Eq, EnumIter)]
pub enum Refusal {
    NoPrimaryYet(String),
    Fenced(String),
    AlreadyPrimary(String),
    NotInGroup(String, String, String),
    NotRunning(String),
    Overtaken(String, u64, String, u64),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoPrimaryYet(pod) => write!(
                f,
                "{pod} cannot become primary: no app pod has been primary yet, the first one will be by itself"
            ),
            Refusal::Fenced(pod) => {
                write!(f, "{pod} cannot become primary while the group is fenced: set spec.fenced to false first")
            }
            Refusal::AlreadyPrimary(pod) => write!(f, "{pod} is primary already"),
            Refusal::NotInGroup(pod, group, members) => write!(
                f,
                "{pod} cannot become primary: no pod of that name has the label replication.tailwind.dev/group: \
                 {group}; those that have are {members}"
            ),
            Refusal::NotRunning(pod) => write!(f, "{pod} cannot become primary: it does not run, or is about to end"),
            Refusal::Overtaken(pod, asked, primary, epoch) => write!(
                f,
                "{pod} was to become primary after epoch {asked}, but {primary} has become so in epoch {epoch}: ask \
                 again if {pod} still shall"
            ),
        }
    }
}

impl Default for Refusal {
    fn default() -> Refusal {
        Refusal::NoPrimaryYet(String::new())
    }
}

impl Refusal {
    /// The pod that was to become primary.
    fn pod(&self) -> &str {
        match self {
            Refusal::NoPrimaryYet(pod)
            | Refusal::Fenced(pod)
            | Refusal::AlreadyPrimary(pod)
            | Refusal::NotInGroup(pod, ..)
            | Refusal::NotRunning(pod)
            | Refusal::Overtaken(pod, ..) => pod,
        }
    }
}

impl Notice {
    /// Whether an administrator should look.
    pub fn kind(&self) -> EventType {
        match self {
            Notice::HandsOver(_, HandoverReason::AppCrashes | HandoverReason::AppCannotStart(_), _)
            | Notice::SwitchoverRefused(_)
            | Notice::NotPlaceable(_)
            | Notice::Refused(..)
            | Notice::Phase(Phase::Invalid | Phase::Degraded | Phase::Unavailable, _) => EventType::Warning,
            _ => EventType::Normal,
        }
    }

    /// The pod that it is about, if it is about one.
    pub fn pod(&self) -> Option<&str> {
        match self {
            Notice::BackupCreated(pod)
            | Notice::BackupReplaced(pod, _)
            | Notice::BackupRemoved(pod, _)
            | Notice::BackupReleased(pod, ..)
            | Notice::Primary(pod)
            | Notice::HandsOver(pod, ..)
            | Notice::SwitchoverAsked(pod, _)
            | Notice::SwitchedOver(pod, _) => Some(pod),
            Notice::SwitchoverRefused(refusal) => Some(refusal.pod()),
            Notice::ClaimReleased(_)
            | Notice::AuthorityRenewed
            | Notice::NotPlaceable(_)
            | Notice::Refused(..)
            | Notice::Phase(..) => None,
        }
    }

    /// In one word.
    pub fn reason(&self) -> String {
        match self {
            Notice::Phase(phase, _) => format!("{phase:?}"),
            notice => notice.as_ref().to_owned(),
        }
    }
}
