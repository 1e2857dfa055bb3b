//! A sidecar that should be primary and cannot be: who it is, and what it waits for.
//!
//! Called by [`status`](super::status) and [`conditions`](super::conditions). The sidecars decide all by themselves; this only
//! reports it where people look.

use std::fmt;

use kube::ResourceExt;
use tailwind_report::readiness::{Waiting, WaitsFor};

use super::group_state::GroupState;
use super::primary::{Leading, Primary};
use super::trouble::NoReport;
use crate::observed::is_true;

/// A sidecar that waits to become primary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) pod: String,
    pub(crate) what: WaitsFor,
    /// In the sidecar's own words.
    pub(crate) why: String,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Candidate { pod, why, .. } = self;
        write!(f, "{pod} waits to become primary: {why}")
    }
}

/// The candidate that the group's status shows if there is no primary. A candidate that has claimed the epoch comes first; then
/// the one that most needs an administrator.
pub(crate) fn candidate(state: &GroupState<'_>) -> Option<Candidate> {
    let waiting = state.observed.app.iter().filter_map(|pod| {
        let (pod, report) = state.observed.sidecars.get_key_value(&pod.name_any())?;
        let Waiting { what, why } = report.as_ref().ok()?.waiting.clone()?;
        Some(Candidate { pod: pod.clone(), what, why })
    });
    let mut waiting: Vec<Candidate> = waiting.collect();
    let named = state.observed.log().map(|log| log.primary.name.as_str());
    if let Some(claimed) = waiting.iter().position(|candidate| Some(candidate.pod.as_str()) == named) {
        return Some(waiting.swap_remove(claimed));
    }
    waiting.into_iter().max_by_key(|candidate| candidate.what).filter(|_| !may_lead(state))
}

/// Whether to look again soon at who waits, or whether appends still wait. While the group is fenced, nothing waits.
pub(crate) fn may_be(state: &GroupState<'_>) -> bool {
    if state.observed.group.spec.fenced {
        return false;
    }
    let is_new = |why: &NoReport| matches!(why, NoReport::NotAsked | NoReport::Outdated(_));
    candidate(state).is_some()
        || match &state.leading {
            Leading::Nobody => false,
            Leading::Primary(report) => report.appends_wait.is_some(),
            Leading::Other(_) => true,
            Leading::Unknown(why) => is_new(why),
        }
}

/// A standby that is cut off waits for members as well, while the primary is well. One that has not been heard yet is believed
/// to be, as long as its pod is ready.
fn may_lead(state: &GroupState<'_>) -> bool {
    let Primary::Here { pod: name, .. } = &state.primary else { return false };
    match state.observed.sidecars.get(name) {
        Some(Ok(report)) => report.is_primary(),
        _ => state.observed.app.iter().any(|pod| pod.name_any() == *name && is_true(pod, "Ready")),
    }
}
