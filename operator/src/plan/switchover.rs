//! A change of primary while the primary's sidecar is well. Either a user requests it by an annotation, which is checked,
//! handed to the sidecars, and removed when done; or the primary's pod needs it, since its app cannot run or it is about to
//! end.
//!
//! Called by [`plan`](super). The sidecar that is named does the work, and only from the epoch that was seen.

use std::fmt;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use strum::EnumIter;
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

/// Why the primary's pod should hand over while its sidecar is well.
#[derive(Clone, Debug, Default, PartialEq, Eq, EnumIter)]
pub enum HandoverReason {
    #[default]
    AppCrashes,
    AppCannotStart(String),
    PodEnds,
    NodeCordoned(String),
}

impl fmt::Display for HandoverReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandoverReason::AppCrashes => f.write_str("its app ends again and again"),
            HandoverReason::AppCannotStart(why) => write!(f, "a container of its app cannot start: {why}"),
            HandoverReason::PodEnds => f.write_str("it is being deleted"),
            HandoverReason::NodeCordoned(node) => write!(f, "its node {node} is cordoned"),
        }
    }
}

/// The kubelet lets an app wait before it starts again, for up to five minutes, and the sidecar stays primary all that time. A
/// pod that ends, or will when its node is drained, hands over before its app is told to end. Another pod's app is ready to go
/// on at once.
fn needed(observed: &Observed) -> Option<SwitchoverPlan> {
    let log = observed.log().filter(|_| !observed.group.spec.fenced)?;
    let primary = observed.app.iter().find(|pod| pod.name_any() == log.primary.name)?;
    let reason = handover_reason(observed, primary)?;
    let asked = observed.group.status.as_ref()?.switchover.as_ref();
    let fits = |name: &str| refusal(observed, log, name).is_none();
    if let Some(asked) = asked.filter(|asked| asked.from_epoch == log.epoch && fits(&asked.to)) {
        return Some(under_way(asked.clone(), None));
    }
    let stays = |pod: &&Pod| observed.cordoned_node(pod).is_none() && observed.silent_node(pod).is_none();
    let able = observed.app.iter().filter(|pod| is_true(pod, "Ready") && fits(&pod.name_any())).filter(stays);
    let to = able.map(Pod::name_any).min()?;
    let notice = Notice::HandsOver(primary.name_any(), reason, to.clone());
    Some(under_way(Switchover { to, from_epoch: log.epoch }, Some(notice)))
}

fn handover_reason(observed: &Observed, primary: &Pod) -> Option<HandoverReason> {
    if primary.metadata.deletion_timestamp.is_some() {
        return Some(HandoverReason::PodEnds);
    }
    if let Some(node) = observed.cordoned_node(primary) {
        return Some(HandoverReason::NodeCordoned(node.to_owned()));
    }
    let statuses = primary.status.iter().flat_map(|status| {
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
    });
    let (sidecar, app): (Vec<_>, Vec<_>) = statuses.partition(|container| container.name == SIDECAR_CONTAINER);
    // Without its sidecar the pod is no longer primary, and the operator does not choose which sidecar takes over.
    if sidecar.into_iter().any(|container| waits(container).is_some()) {
        return None;
    }
    app.into_iter().find_map(waits)
}

/// Why the kubelet does not start this container now, unless it is about to.
fn waits(container: &ContainerStatus) -> Option<HandoverReason> {
    let reason = container.state.as_ref()?.waiting.as_ref()?.reason.as_deref()?;
    match reason {
        "ContainerCreating" | "PodInitializing" => None,
        "CrashLoopBackOff" => Some(HandoverReason::AppCrashes),
        reason => Some(HandoverReason::AppCannotStart(reason.to_owned())),
    }
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
