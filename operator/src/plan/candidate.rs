//! A sidecar that should be primary and cannot be: who it is, what it waits for, and what a person can do about it.
//!
//! Called by [`status`](super::status) and [`conditions`](super::conditions). The sidecars decide all by themselves; this only
//! says so where people look.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tailwind_crds::names::ROLE_PRIMARY;
use tailwind_crds::readiness::{Waiting, WaitsFor};

use super::primary::Primary;
use super::status::View;

/// A sidecar that waits to become primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its pod.
    pub pod: &'a str,
    /// What it waits for.
    pub waiting: &'a Waiting,
}

/// The candidate that the group waits with, if there is no primary. Whoever has claimed the epoch comes first; of others the
/// one that needs a person most.
pub fn candidate<'a>(view: &View<'a>) -> Option<Candidate<'a>> {
    let waiting = view.observed.app.iter().filter_map(|pod| {
        let (pod, sidecar) = view.observed.sidecars.get_key_value(&pod.name_any())?;
        Some(Candidate { pod, waiting: sidecar.waiting.as_ref()? })
    });
    let mut waiting: Vec<Candidate<'a>> = waiting.collect();
    let named = view.log().map(|log| log.primary.name.as_str());
    if let Some(claimed) = waiting.iter().find(|candidate| Some(candidate.pod) == named) {
        return Some(*claimed);
    }
    waiting.sort_by_key(|candidate| candidate.waiting.what);
    waiting.last().copied().filter(|_| !may_lead(view))
}

/// Whether it is worth a look soon who waits. Nobody does while the group is fenced.
pub fn may_be(view: &View<'_>) -> bool {
    if view.observed.group.spec.fenced {
        return false;
    }
    let named = view.log().and_then(|log| view.observed.sidecars.get(&log.primary.name));
    candidate(view).is_some() || named.is_some_and(|sidecar| sidecar.role != ROLE_PRIMARY)
}

/// A standby that is cut off waits for members as well, while the primary is well. One that has not been heard yet is believed
/// to be, as long as its pod is ready.
fn may_lead(view: &View<'_>) -> bool {
    let Primary::Here { pod: name, .. } = view.primary else { return false };
    match view.observed.sidecars.get(name) {
        Some(sidecar) => sidecar.role == ROLE_PRIMARY,
        None => view.observed.app.iter().any(|pod| pod.name_any() == *name && is_ready(pod)),
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

impl Candidate<'_> {
    /// In a sentence.
    pub fn sentence(&self) -> String {
        format!("{} waits to become primary: {}", self.pod, self.waiting.why)
    }

    /// What it waits for, as a condition's reason.
    pub fn reason(&self) -> &'static str {
        match self.waiting.what {
            WaitsFor::ConfigStore => "ConfigStoreUnreadable",
            WaitsFor::Backups => "WaitsForBackups",
            WaitsFor::Members => "WaitsForMembers",
            WaitsFor::Evidence => "WaitsForEvidence",
            WaitsFor::ForgottenLog => "ConfigStoreEmpty",
            WaitsFor::NewerConfigStore => "ConfigStoreWentBack",
        }
    }

    /// What to do, and which runbook says more.
    pub fn advice(&self, view: &View<'_>) -> String {
        match self.waiting.what {
            WaitsFor::ConfigStore => "The API server must answer: see TailwindNoPrimary".to_owned(),
            WaitsFor::Backups => "The backup pods must come up: see TailwindGroupPending".to_owned(),
            WaitsFor::Members => {
                "Bring back the members that are missing, and delete none: see TailwindGroupUnavailable".to_owned()
            }
            WaitsFor::Evidence => format!(
                "Bring back what it names, and delete no backup. If nobody can, a person ends the wait by \
                 spec.acceptLossUpTo: {}/LSN, where LSN is the last record that must be there, and what lies past it may be \
                 lost ({}). See TailwindMemberDamaged",
                log_id(view),
                acked(view)
            ),
            WaitsFor::ForgottenLog => {
                "Put status.log back, and delete no backup: see TailwindConfigStoreWentBack".to_owned()
            }
            WaitsFor::NewerConfigStore => format!(
                "Put the newer status.log back, and delete no backup: see TailwindConfigStoreWentBack. If there is none, a \
                 person decides as told there where the log ends, by spec.acceptLossUpTo: {}/LSN",
                log_id(view)
            ),
        }
    }
}

fn log_id<'a>(view: &'a View<'_>) -> &'a str {
    view.log().map_or("LOG", |log| &log.id)
}

/// How far the log was, for whoever has to choose an LSN.
fn acked(view: &View<'_>) -> String {
    let before = || view.observed.group.status.as_ref()?.positions;
    match view.observed.positions.or_else(before) {
        Some(positions) => format!("LSN {} was acknowledged when the operator last looked", positions.acked),
        None => "the operator does not know how much was acknowledged".to_owned(),
    }
}
