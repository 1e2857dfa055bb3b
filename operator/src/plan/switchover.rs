//! A change of primary while the primary's sidecar is well: one that a person asks for by an annotation, checked, handed to the
//! sidecars, and taken away when done; or one that the primary's app needs, since it ends again and again.
//!
//! Called by [`plan`](super). The sidecar that is named does the work, and only from the epoch that was seen.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use tailwind_crds::names::{ANNOTATION_SWITCHOVER, SIDECAR_CONTAINER};
use tailwind_crds::{LogStatus, Switchover};

use super::action::{Notice, Refusal};
use crate::observed::{Observed, is_running, is_true};

/// What is to be done about a switchover.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SwitchoverPlan {
    /// What the sidecars are asked to do.
    pub(crate) switchover: Option<Switchover>,
    /// The annotation is done with, and is removed.
    pub(crate) is_over: bool,
    pub(crate) notice: Option<Notice>,
}

/// Looks at the annotation, and without one at the primary's app.
pub(crate) fn switchover(observed: &Observed) -> SwitchoverPlan {
    match observed.group.annotations().get(ANNOTATION_SWITCHOVER) {
        Some(to) => asked_for(observed, to.trim()),
        None => needed(observed).unwrap_or_default(),
    }
}

/// The kubelet lets the primary's app wait before it starts again, for up to five minutes. Its sidecar is well and stays
/// primary all that time; another pod's app is ready to go on at once.
fn needed(observed: &Observed) -> Option<SwitchoverPlan> {
    let log = observed.log().filter(|_| !observed.group.spec.fenced)?;
    let primary = observed.app.iter().find(|pod| pod.name_any() == log.primary.name && crashes(pod))?;
    let asked = observed.group.status.as_ref()?.switchover.as_ref();
    let fits = |name: &str| refusal(observed, log, name).is_none();
    if let Some(asked) = asked.filter(|asked| asked.from_epoch == log.epoch && fits(&asked.to)) {
        return Some(under_way(asked.clone(), None));
    }
    let able = observed.app.iter().filter(|pod| is_true(pod, "Ready") && fits(&pod.name_any()));
    let to = able.map(Pod::name_any).min()?;
    let notice = Notice::AppCrashes(primary.name_any(), to.clone());
    Some(under_way(Switchover { to, from_epoch: log.epoch }, Some(notice)))
}

/// A container of the app waits to be started again, while the sidecar runs.
fn crashes(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let waits = |container: &ContainerStatus| {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CrashLoopBackOff"))
    };
    let (sidecar, app): (Vec<_>, Vec<_>) = statuses.partition(|container| container.name == SIDECAR_CONTAINER);
    !sidecar.into_iter().any(waits) && app.into_iter().any(waits)
}

fn asked_for(observed: &Observed, to: &str) -> SwitchoverPlan {
    let asked = observed.group.status.as_ref().and_then(|status| status.switchover.as_ref());
    let asked = asked.filter(|asked| asked.to == to);
    let Some(log) = observed.log() else { return refused(Refusal::NoPrimaryYet(to.to_owned())) };
    let primary = log.primary.name.clone();
    match asked {
        Some(asked) if asked.from_epoch != log.epoch => match primary == to {
            true => over(Notice::SwitchedOver(primary, log.epoch)),
            false => refused(Refusal::Overtaken(to.to_owned(), asked.from_epoch, primary, log.epoch)),
        },
        asked => match refusal(observed, log, to) {
            Some(refusal) => refused(refusal),
            None => {
                // Asked for until it has happened or the annotation is removed.
                let notice = asked.is_none().then(|| Notice::SwitchoverAsked(to.to_owned(), primary));
                under_way(Switchover { to: to.to_owned(), from_epoch: log.epoch }, notice)
            }
        },
    }
}

fn refusal(observed: &Observed, log: &LogStatus, to: &str) -> Option<Refusal> {
    let name = to.to_owned();
    if observed.group.spec.fenced {
        return Some(Refusal::Fenced(name));
    }
    if log.primary.name == to {
        return Some(Refusal::AlreadyPrimary(name));
    }
    let Some(pod) = observed.app.iter().find(|pod| pod.name_any() == to) else {
        let names: Vec<String> = observed.app.iter().map(Pod::name_any).collect();
        let others = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Some(Refusal::NotInGroup(name, observed.group.name_any(), others));
    };
    let is_able = is_running(pod) && pod.metadata.deletion_timestamp.is_none();
    (!is_able).then_some(Refusal::NotRunning(name))
}

fn under_way(switchover: Switchover, notice: Option<Notice>) -> SwitchoverPlan {
    SwitchoverPlan { switchover: Some(switchover), is_over: false, notice }
}

fn refused(refusal: Refusal) -> SwitchoverPlan {
    over(Notice::SwitchoverRefused(refusal))
}

fn over(notice: Notice) -> SwitchoverPlan {
    SwitchoverPlan { switchover: None, is_over: true, notice: Some(notice) }
}
