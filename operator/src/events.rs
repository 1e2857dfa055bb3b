//! Events: what `kubectl describe rg` tells people.
//!
//! Called by [`apply`](crate::apply). Events of the same kind about the same group and pod, within six minutes, are one event
//! with a count, whatever their texts. An event that cannot be written is logged: nothing depends on it.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::Event;
use kube::{Resource, ResourceExt};
use tailwind_crds::ReplicaGroup;
use tracing::warn;

use crate::context::Context;
use crate::error::is_ending;
use crate::plan::Notice;

/// The API server takes no longer ones.
const NOTE_MAX: usize = 1024;
/// No object has a longer name. What a person asks for may be no name at all.
const NAME_CHARS_MAX: usize = 253;

pub(crate) async fn publish(context: &Context, group: &ReplicaGroup, notices: &[Notice]) {
    // Without the version that the group has just now: by it, no two events would be about the same object.
    let reference = ObjectReference { resource_version: None, ..group.object_ref(&()) };
    for notice in notices {
        let mut note = notice.to_string();
        if note.len() > NOTE_MAX {
            let end = (0..=NOTE_MAX - 4).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0);
            note.truncate(end);
            note.push_str(" ...");
        }
        let event = Event {
            type_: notice.kind(),
            reason: notice.reason(),
            note: Some(note),
            action: "Reconcile".to_owned(),
            secondary: notice.pod().map(|pod| pod_reference(group, pod)),
        };
        match context.recorder.publish(&event, &reference).await {
            Err(error) if is_ending(&error) => return,
            Err(error) => warn!(%error, reason = notice.reason(), "event not written"),
            Ok(()) => {}
        }
    }
}

fn pod_reference(group: &ReplicaGroup, pod: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: group.namespace(),
        name: Some(pod.chars().take(NAME_CHARS_MAX).collect()),
        ..ObjectReference::default()
    }
}
