//! The PodDisruptionBudget of a group's backups, and when there is none.
//!
//! Called by [`plan`](crate::plan). A budget that can never be met keeps a node from being drained for ever, so there is one
//! only while there is something to protect, and it asks for no more than can be had: it refuses every eviction only while a
//! member is damaged or leaves, or a pod keeps what is in quarantine, and while the operator itself moves the backups of a node that is drained.
//!
//! A budget that is made stricter refuses evictions of ready pods from that moment on, although its status lags: the API server
//! evicts none of them before the disruption controller has observed the newest generation of the budget. Pods that are not ready
//! go by what was observed last; so [`Look`](crate::plan::licence::Look) does not rest on them before.

use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::json;
use tailwind_crds::names::LABEL_BACKUP_OF;
use tailwind_crds::{ReplicaGroup, ReplicaGroupSpec};

use super::{Kind, Owned};
use crate::planted::{self, Bug};
use crate::server_version::ServerVersion;

/// How a backup leaves that has to, such as when its node is drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Not now: a member is damaged, and what it lacks may be at one of the others alone; or a pod keeps what is in quarantine; or a
    /// member leaves, and rests on the others; or backups hold a log, or a later epoch of it, of which the config store knows
    /// nothing.
    Never,
    /// Once its successor has its copy: there is a primary to fill one, and a node for it.
    AfterSuccessor,
    /// Its successor is filled afterwards.
    #[default]
    BeforeSuccessor,
    /// It may stay without a successor: there is no node for one, or backups that were made fail one after the other.
    Alone,
}

/// More pods than a group ever has. With all members ready, a budget of as many lets pods be evicted that are in no set; and where a
/// member is damaged, one of those may have what it lacks.
const EVERYBODY: u8 = u8::MAX;

/// How many backups of a group with a log have to stay, if there is to be a budget.
///
/// All of them while a successor can be filled first: then evictions by a drain are refused until the operator has moved the
/// backup. All but one where that cannot be, and as many as appends need where the missing one may never come, since a
/// drain shall not wait for it; never fewer than appends need. A single backup could then never leave, and has no budget.
///
/// A budget counts every pod that is ready. For each of them that does not prove that it holds the log (`unproved`), one more
/// must stay: then, whichever pod is evicted, enough pods for appends are left that prove that they hold the log, or all of them
/// where a successor comes first. Nor do fewer stay than `before`, where that is given.
pub(crate) fn stay(spec: &ReplicaGroupSpec, exit: Exit, unproved: usize, before: Option<u8>) -> Option<u8> {
    let unproved = u8::try_from(unproved).unwrap_or(EVERYBODY);
    let floor = spec.min_in_sync().max(1).saturating_add(unproved);
    let stay = match exit {
        Exit::Never => Some(EVERYBODY),
        Exit::AfterSuccessor => Some(floor.max(spec.backups.saturating_add(unproved))),
        Exit::BeforeSuccessor | Exit::Alone if spec.backups == 1 => None,
        // An invalid spec may ask for none.
        Exit::BeforeSuccessor => Some(floor.max(spec.backups.saturating_sub(1))),
        Exit::Alone => Some(floor),
    };
    stay.max(before)
}

/// How many have to stay as a budget says that was made here.
pub(crate) fn stays(budget: &DynamicObject) -> Option<u8> {
    u8::try_from(budget.data["spec"]["minAvailable"].as_u64()?).ok()
}

/// Name of a group's budget.
pub(crate) fn budget_name(group: &str) -> String {
    format!("{group}-tailwind-backup")
}

pub(crate) fn budget(group: &ReplicaGroup, server: ServerVersion, stay: u8) -> Owned {
    // A pod that is not ready may be evicted only while as many others as have to stay are ready: a member whose fabric has failed
    // is not ready, and holds the log all the same. That is the default, and said all the same: some clusters have an admission
    // policy that sets the other one where none is given.
    let mut spec = json!({
        "minAvailable": stay,
        "selector": {"matchLabels": {LABEL_BACKUP_OF: group.name_any()}},
    });
    let policy = if planted::has(Bug::EvictsUnready) { "AlwaysAllow" } else { "IfHealthyBudget" };
    if server.has_eviction_policy() && !planted::has(Bug::LeavesPolicyOpen) {
        spec["unhealthyPodEvictionPolicy"] = json!(policy);
    }
    Owned::new(Kind::DisruptionBudget, &budget_name(&group.name_any()), group, server, json!({"spec": spec}))
}
