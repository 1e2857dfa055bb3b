//! What leaves, why, and how far the replacement of a pod is: the words of what [`backups`](super::backups) decides.

use std::fmt;

use displaydoc::Display;
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Display, EnumIter)]
pub enum RemovalReason {
    /// it has failed: {0}
    Failed(PodFailure),
    /// {0}
    Leaves(Leave),
    /// {0}, and no other node can take a backup before it has gone
    LeavesFirst(Leave),
    /// there are more backups than spec.backups
    #[default]
    Surplus,
    /// spec.hibernate is true
    Hibernates,
}

/// How far the replacement of a pod that works is. The name is that of the pod that leaves.
#[derive(Clone, Debug, PartialEq, Eq, Display, EnumIter)]
pub(crate) enum Replacement {
    /// replacing {0}, because {1}
    OutsideSet(String, Leave),
    /// {0} leaves next ({1}), when the set has let go the one before
    AfterLeavingMember(String, Leave),
    /// {0} leaves, because {1}; its successor is in the set
    AfterSuccessor(String, Leave),
    /// a successor of {0} is catching up ({1})
    SuccessorCatchesUp(String, Leave),
    /// {0} should go ({1}), and {2} has not joined the set in an hour: look at the log of {2}. Meanwhile one backup may be evicted
    NeverJoins(String, Leave, String),
    /// {0} leaves next ({1}), when the others are in the set
    AfterOthersJoin(String, Leave),
    /// {0} leaves next ({1}), when {2} has ended and its node is free
    AfterEndingPod(String, Leave, String),
    /// creating a successor of {0} ({1})
    CreatesSuccessor(String, Leave),
    /// {0} leaves next ({1}): a backup that failed several times is replaced first, after a pause
    AfterPause(String, Leave),
    /// {0} leaves first, because {1} and no other node is free
    BeforeSuccessor(String, Leave),
    /// {0} leaves, since spec.backups is {1}
    ScaledDown(String, usize),
    /// {0} should go, and stays: {1}
    Kept(String, Withheld),
    /// the group hibernates when no pod of the app is left: remove {0}
    HibernatesAfter(Count),
    /// {pod} stays on {node}, although {why}, until another node can take a backup or it is evicted: {advice}. {survey}
    NoNode { pod: String, node: String, why: Leave, advice: Advice, survey: Survey },
    /// {pod} should leave {node}, because {why}, but there is no primary that could give its copy to another: start the
    /// app
    NoPrimary { pod: String, node: String, why: Leave },
    /// {pod} should leave {node}, because {why}. No other node can take a backup and without it {left} of minInSync
    /// {floor} copies would be left: {advice}. {survey}
    TooFewCopies { pod: String, node: String, why: Leave, left: usize, floor: usize, advice: Advice, survey: Survey },
    /// {pod} should leave {node}, because {why}. No other node can take a backup and not every other backup is in the
    /// set: {advice}. {survey}
    OthersOutsideSet { pod: String, node: String, why: Leave, advice: Advice, survey: Survey },
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumIter)]
pub(crate) enum Advice {
    /// free or add a node
    #[default]
    AddNode,
    /// free or add a node, or drain the node
    OrDrain,
    /// free or add a node, or lower minInSync
    OrLowerMinInSync,
}
