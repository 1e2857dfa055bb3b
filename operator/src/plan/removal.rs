//! What leaves, why, and how far the replacement of a pod is: the words of what [`backups`](super::backups) decides.

use std::fmt;

use strum::EnumIter;
use tailwind_crds::names::flush_claim;

use super::backup_pod::{Leave, PodFailure};
use super::count::Count;
use super::licence::{Licence, Withheld};
use super::placement::Survey;
use crate::objects::claim::ClaimStep;

/// A pod to be removed, with its claim if that is not to be taken up again; or the claim of a pod that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The pod, and the member.
    pub name: String,
    /// Which pod of that name.
    pub pod: Option<String>,
    /// What becomes of its claim.
    pub claim: Option<ClaimStep>,
    /// Why.
    pub reason: RemovalReason,
    /// Pods that have to be made before: where one of them is refused, this one stays.
    pub after: Vec<String>,
    /// What shows that nothing is lost with it.
    pub licence: Licence,
    /// How many pods the budget keeps from being evicted in the meantime, if there is to be one.
    pub stay: Option<u8>,
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.claim.as_ref().map(|step| step.end);
        match (&self.pod, end) {
            (Some(_), Some(end)) => write!(f, "delete pod {}, and {end} its claim", self.name),
            (Some(_), None) => write!(f, "delete pod {}", self.name),
            (None, end) => write!(f, "{} claim {}", end.unwrap_or_default(), flush_claim(&self.name)),
        }
    }
}

/// Why a backup pod is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, EnumIter)]
pub enum RemovalReason {
    /// It does not work and will not by itself.
    Failed(PodFailure),
    /// It works and is to leave.
    Leaves(Leave),
    /// It works and is to leave before there is a successor.
    LeavesFirst(Leave),
    /// The group has been made smaller.
    #[default]
    Surplus,
    /// The group does without pods for a while.
    Hibernates,
}

impl fmt::Display for RemovalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemovalReason::Failed(failure) => write!(f, "it has failed: {failure}"),
            RemovalReason::Leaves(why) => why.fmt(f),
            RemovalReason::LeavesFirst(why) => {
                write!(f, "{why}, and no other node can take a backup before it has gone")
            }
            RemovalReason::Surplus => f.write_str("there are more backups than spec.backups"),
            RemovalReason::Hibernates => f.write_str("spec.hibernate is true"),
        }
    }
}

/// How far the replacement of a pod that works is. The name is that of the pod that leaves.
#[derive(Clone, Debug, PartialEq, Eq, EnumIter)]
pub(crate) enum Replacement {
    OutsideSet(String, Leave),
    AfterLeavingMember(String, Leave),
    AfterSuccessor(String, Leave),
    SuccessorCatchesUp(String, Leave),
    NeverJoins(String, Leave, String),
    AfterOthersJoin(String, Leave),
    AfterEndingPod(String, Leave, String),
    CreatesSuccessor(String, Leave),
    AfterPause(String, Leave),
    BeforeSuccessor(String, Leave),
    ScaledDown(String, usize),
    Kept(String, Withheld),
    HibernatesAfter(Count),
    NoNode { pod: String, node: String, why: Leave, advice: Advice, survey: Survey },
    NoPrimary { pod: String, node: String, why: Leave },
    TooFewCopies { pod: String, node: String, why: Leave, left: usize, floor: usize, advice: Advice, survey: Survey },
    OthersOutsideSet { pod: String, node: String, why: Leave, advice: Advice, survey: Survey },
}

impl fmt::Display for Replacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Replacement::OutsideSet(pod, why) => write!(f, "replacing {pod}, because {why}"),
            Replacement::AfterLeavingMember(pod, why) => {
                write!(f, "{pod} leaves next ({why}), when the set has let go the one before")
            }
            Replacement::AfterSuccessor(pod, why) => {
                write!(f, "{pod} leaves, because {why}; its successor is in the set")
            }
            Replacement::SuccessorCatchesUp(pod, why) => write!(f, "a successor of {pod} is catching up ({why})"),
            Replacement::NeverJoins(pod, why, successor) => write!(
                f,
                "{pod} should go ({why}), and {successor} has not joined the set in an hour: look at the log of \
                 {successor}. Meanwhile one backup may be evicted"
            ),
            Replacement::AfterOthersJoin(pod, why) => {
                write!(f, "{pod} leaves next ({why}), when the others are in the set")
            }
            Replacement::AfterEndingPod(pod, why, ending) => {
                write!(f, "{pod} leaves next ({why}), when {ending} has ended and its node is free")
            }
            Replacement::CreatesSuccessor(pod, why) => write!(f, "creating a successor of {pod} ({why})"),
            Replacement::AfterPause(pod, why) => write!(
                f,
                "{pod} leaves next ({why}): a backup that failed several times is replaced first, after a pause"
            ),
            Replacement::BeforeSuccessor(pod, why) => {
                write!(f, "{pod} leaves first, because {why} and no other node is free")
            }
            Replacement::ScaledDown(pod, backups) => write!(f, "{pod} leaves, since spec.backups is {backups}"),
            Replacement::Kept(pod, withheld) => write!(f, "{pod} should go, and stays: {withheld}"),
            Replacement::HibernatesAfter(pods) => {
                write!(f, "the group hibernates when no pod of the app is left: remove {pods}")
            }
            Replacement::NoNode { pod, node, why, advice, survey } => write!(
                f,
                "{pod} stays on {node}, although {why}, until another node can take a backup or it is evicted: \
                 {advice}. {survey}"
            ),
            Replacement::NoPrimary { pod, node, why } => write!(
                f,
                "{pod} should leave {node}, because {why}, but there is no primary that could give its copy to \
                 another: start the app"
            ),
            Replacement::TooFewCopies { pod, node, why, left, floor, advice, survey } => write!(
                f,
                "{pod} should leave {node}, because {why}. No other node can take a backup and without it {left} of \
                 minInSync {floor} copies would be left: {advice}. {survey}"
            ),
            Replacement::OthersOutsideSet { pod, node, why, advice, survey } => write!(
                f,
                "{pod} should leave {node}, because {why}. No other node can take a backup and not every other \
                 backup is in the set: {advice}. {survey}"
            ),
        }
    }
}

impl Replacement {
    /// Whether it begins with this plan.
    pub(crate) fn is_next(&self) -> bool {
        matches!(self, Replacement::CreatesSuccessor(..) | Replacement::BeforeSuccessor(..))
    }

    /// Whether it waits for something that the operator cannot do.
    pub(crate) fn is_blocked(&self) -> bool {
        match self {
            Replacement::NoPrimary { .. }
            | Replacement::NoNode { .. }
            | Replacement::TooFewCopies { .. }
            | Replacement::OthersOutsideSet { .. }
            | Replacement::NeverJoins(..) => true,
            Replacement::Kept(_, withheld) => !withheld.is_brief(),
            _ => false,
        }
    }
}

/// What an administrator can do about a pod that cannot leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumIter)]
pub(crate) enum Advice {
    #[default]
    AddNode,
    OrDrain,
    OrLowerMinInSync,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Advice::AddNode => f.write_str("free or add a node"),
            Advice::OrDrain => f.write_str("free or add a node, or drain the node"),
            Advice::OrLowerMinInSync => f.write_str("free or add a node, or lower minInSync"),
        }
    }
}
