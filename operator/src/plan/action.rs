//! What a plan consists of: actions, the new status, and notices for people.
//!
//! Made by [`plan`](super); actions are carried out by [`apply`](crate::apply), notices published by
//! [`events`](crate::events).

use std::fmt;

use displaydoc::Display;
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
            Action::Delete(Removal { name, .. }) => Some(Notice::ClaimReleased(flush_claim(name))),
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
            Action::Gate { pod, caught_up } => write!(f, "set the readiness gate of pod {pod} to {caught_up}"),
            Action::Role { pod, primary: true } => write!(f, "label pod {pod} primary"),
            Action::Role { pod, primary: false } => write!(f, "remove the primary label from pod {pod}"),
        }
    }
}

/// An event for people: the variant's name is its reason, its text is the note.
#[derive(Clone, Debug, PartialEq, Eq, Display, AsRefStr, EnumIter)]
pub enum Notice {
    /// created backup pod {0}
    BackupCreated(String),
    /// created backup pod {0}, after {1} that failed
    #[strum(serialize = "BackupCreated")]
    BackupReplaced(String, String),
    /// removed backup pod {0}: {1}
    BackupRemoved(String, RemovalReason),
    /// removed backup pod {0}: {1}. Its claim {2} stays and is yours: look at it, and delete it
    #[strum(serialize = "BackupRemoved")]
    BackupReleased(String, RemovalReason, String),
    /// released claim {0}: its pod is gone, others hold the log, and nobody reports whether there are files in quarantine on it.
    /// Look, and delete it
    ClaimReleased(String),
    /// made a new CA; certificates are issued by it when every pod trusts it
    AuthorityRenewed,
    /// {0} is primary
    Primary(String),
    /// {2} is to become primary in place of {0}: {1}
    HandsOver(String, HandoverReason, String),
    /// {0} is to become primary in place of {1}
    SwitchoverAsked(String, String),
    /// {0} is primary, since epoch {1}
    SwitchedOver(String, u64),
    /// {0}
    SwitchoverRefused(Refusal),
    /// {0}
    NotPlaceable(String),
    /// operator {0} manages this group, and operator {1} leaves it alone. If both are installed, give one of them another
    /// --watch-namespace or --class. If {0} is gone, remove the annotation replication.tailwind.dev/operator from the group
    Refused(String, String),
    /// {1}
    #[strum(disabled)]
    Phase(Phase, String),
}

/// Why a pod does not become primary as the switchover annotation asks.
#[derive(Clone, Debug, PartialEq, Eq, Display, EnumIter)]
pub enum Refusal {
    /// {0} cannot become primary: no app pod has been primary yet, the first one will be by itself
    NoPrimaryYet(String),
    /// {0} cannot become primary while the group is fenced: set spec.fenced to false first
    Fenced(String),
    /// {0} is primary already
    AlreadyPrimary(String),
    /// {0} cannot become primary: no pod of that name has the label replication.tailwind.dev/group: {1}; those that have
    /// are {2}
    NotInGroup(String, String, String),
    /// {0} cannot become primary: it does not run, or is about to end
    NotRunning(String),
    /// {0} was to become primary after epoch {1}, but {2} has become so in epoch {3}: ask again if {0} still shall
    Overtaken(String, u64, String, u64),
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
