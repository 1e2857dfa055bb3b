//! A change of primary while the primary's sidecar is well: one that a person asks for by an annotation, checked, handed to the
//! sidecars, and taken away when done; or one that the primary's app needs, since it ends again and again.
//!
//! Called by [`plan`](super). The sidecar that is named does the work, and only from the epoch that was seen.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use kube::runtime::events::EventType;
use tailwind_crds::names::{ANNOTATION_SWITCHOVER, LABEL_GROUP, SIDECAR_CONTAINER};
use tailwind_crds::{LogStatus, Switchover};

use super::Notice;
use crate::observed::Observed;

/// What becomes of a wish.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// What the sidecars are told.
    pub switchover: Option<Switchover>,
    /// The annotation has served its turn.
    pub is_over: bool,
    /// What people are told.
    pub notice: Option<Notice>,
}

/// Looks at the annotation, and without one at the primary's app.
pub fn outcome(observed: &Observed) -> Outcome {
    match observed.group.annotations().get(ANNOTATION_SWITCHOVER) {
        Some(to) => asked_for(observed, to.trim()),
        None => needed(observed).unwrap_or_default(),
    }
}

/// The kubelet lets the primary's app wait before it starts again, for up to five minutes. Its sidecar is well and stays
/// primary all that time; another pod's app is ready to go on at once.
fn needed(observed: &Observed) -> Option<Outcome> {
    let status = observed.group.status.as_ref()?;
    let log = status.log.as_ref().filter(|_| !observed.group.spec.fenced)?;
    let primary = observed.app.iter().find(|pod| pod.name_any() == log.primary.name && crashes(pod))?;
    let asked = status.switchover.as_ref().filter(|asked| asked.from_epoch == log.epoch);
    let fits = |name: &str| obstacle(observed, log, name).is_none();
    if let Some(asked) = asked.filter(|asked| fits(&asked.to)) {
        return Some(Outcome { switchover: Some(asked.clone()), ..Outcome::default() });
    }
    let able = observed.app.iter().filter(|pod| is_ready(pod) && fits(&pod.name_any()));
    let to = able.map(Pod::name_any).min()?;
    let note =
        format!("the app of {} ends again and again; {to} is to become primary in its place", primary.name_any());
    Some(Outcome {
        switchover: Some(Switchover { to, from_epoch: log.epoch }),
        is_over: false,
        notice: Some(Notice { kind: EventType::Warning, reason: "AppCrashes", note }),
    })
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

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn asked_for(observed: &Observed, to: &str) -> Outcome {
    let group = &observed.group;
    let status = group.status.as_ref();
    let asked = status.and_then(|status| status.switchover.as_ref()).filter(|asked| asked.to == to);
    let Some(log) = status.and_then(|status| status.log.as_ref()) else {
        return refused(format!(
            "{to} cannot become primary: no app pod has been primary yet, the first one will be by itself"
        ));
    };
    match asked {
        Some(asked) if asked.from_epoch == log.epoch => {
            // Under way. It stays asked for until it has happened or the annotation is removed.
            match obstacle(observed, log, to) {
                Some(why) => refused(why),
                None => Outcome { switchover: Some(asked.clone()), ..Outcome::default() },
            }
        }
        Some(_) if log.primary.name == to => {
            over(EventType::Normal, "SwitchedOver", format!("{to} is primary, since epoch {}", log.epoch))
        }
        Some(asked) => refused(format!(
            "{to} was to become primary after epoch {}, but {} has become so in epoch {}: ask again if {to} still shall",
            asked.from_epoch, log.primary.name, log.epoch
        )),
        None => match obstacle(observed, log, to) {
            Some(why) => refused(why),
            None => Outcome {
                switchover: Some(Switchover { to: to.to_owned(), from_epoch: log.epoch }),
                is_over: false,
                notice: Some(Notice {
                    kind: EventType::Normal,
                    reason: "SwitchoverAsked",
                    note: format!("{to} is to become primary in place of {}", log.primary.name),
                }),
            },
        },
    }
}

/// Why this pod cannot become primary now.
fn obstacle(observed: &Observed, log: &LogStatus, to: &str) -> Option<String> {
    if observed.group.spec.fenced {
        return Some(format!("{to} cannot become primary while the group is fenced: set spec.fenced to false first"));
    }
    if log.primary.name == to {
        return Some(format!("{to} is primary already"));
    }
    let Some(pod) = observed.app.iter().find(|pod| pod.name_any() == to) else {
        let names: Vec<String> = observed.app.iter().map(Pod::name_any).collect();
        let group = observed.group.name_any();
        return Some(format!(
            "{to} cannot become primary: no pod of that name has the label {LABEL_GROUP}: {group}; those that have are {}",
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        ));
    };
    let running = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    if !running || pod.metadata.deletion_timestamp.is_some() {
        return Some(format!("{to} cannot become primary: it does not run, or is about to end"));
    }
    None
}

fn refused(why: String) -> Outcome {
    over(EventType::Warning, "SwitchoverRefused", why)
}

fn over(kind: EventType, reason: &'static str, note: String) -> Outcome {
    Outcome { switchover: None, is_over: true, notice: Some(Notice { kind, reason, note }) }
}
