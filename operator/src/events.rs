//! Events: what `kubectl describe rg` tells people.
//!
//! Called by [`apply`](crate::apply). Events of the same kind about the same group and pod, within six minutes, are one event
//! with a count, even if their texts differ. An event that cannot be written is logged: nothing depends on it.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::runtime::events::{Event, Recorder};
use tailwind_crds::ReplicaGroup;
use tracing::warn;

use crate::error::is_ending;
use crate::plan::Notice;

/// The API server takes no longer ones.
const NOTE_MAX: usize = 1024;
/// No object has a longer name, but what a user asks for need not be a name at all.
const NAME_CHARS_MAX: usize = 253;

pub(crate) async fn publish(recorder: &Recorder, group: &ReplicaGroup, notices: &[Notice]) {
    publish_about(recorder, group.object_ref(&()), notices).await;
}

pub(crate) async fn publish_about(recorder: &Recorder, about: ObjectReference, notices: &[Notice]) {
    // Without the version that the group has just now: by it, no two events would be about the same object.
    let reference = ObjectReference { resource_version: None, ..about };
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
            secondary: notice.pod().map(|pod| pod_reference(&reference, pod)),
        };
        match recorder.publish(&event, &reference).await {
            Err(error) if is_ending(&error) => return,
            Err(error) => warn!(%error, reason = notice.reason(), "event not written"),
            Ok(()) => {}
        }
    }
}

fn pod_reference(group: &ObjectReference, pod: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: group.namespace.clone(),
        name: Some(pod.chars().take(NAME_CHARS_MAX).collect()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kube::runtime::events::Reporter;
    use serde_json::{Value, json};
    use tailwind_crds::Phase;

    use super::*;
    use crate::plan::removal::RemovalReason;
    use crate::test_api;

    #[tokio::test]
    async fn events_are_told_apart_by_kind_and_pod_not_by_text() {
        let events: Arc<Mutex<Vec<Value>>> = Arc::default();
        let seen = Arc::clone(&events);
        let client = test_api::serve(move |method, _, body| {
            let mut event: Value = serde_json::from_slice(body).unwrap();
            event["method"] = json!(method.as_str());
            seen.lock().unwrap().push(event.clone());
            (200, event)
        });
        let reporter = Reporter { controller: "test".to_owned(), instance: None };
        let recorder = Recorder::new(client.await, reporter);
        let group = |version: &str| -> ReplicaGroup {
            let metadata = json!({"namespace": "shop", "name": "orders", "uid": "1", "resourceVersion": version});
            let api = "replication.tailwind.dev/v1alpha1";
            serde_json::from_value(json!({"apiVersion": api, "kind": "ReplicaGroup", "metadata": metadata, "spec": {}}))
                .unwrap()
        };
        let removed = |pod: &str| Notice::BackupRemoved(pod.to_owned(), RemovalReason::Surplus);
        let phase = |text: &str| Notice::Phase(Phase::Degraded, text.to_owned());
        publish(&recorder, &group("1"), &[removed("a"), removed("b"), phase("for one reason")]).await;
        publish(&recorder, &group("2"), &[removed("a"), phase("for another"), Notice::Primary("a".to_owned())]).await;
        let events = events.lock().unwrap();
        let summary: Vec<String> = events
            .iter()
            .map(|event| {
                let [method, reason, pod] = ["/method", "/reason", "/related/name"]
                    .map(|field| event.pointer(field).and_then(Value::as_str).unwrap_or("-"));
                format!("{method} {reason} {pod} {}", event["series"]["count"])
            })
            .collect();
        assert_eq!(
            summary,
            [
                "POST BackupRemoved a null",
                "POST BackupRemoved b null",
                "POST Degraded - null",
                "PATCH BackupRemoved a 2",
                "PATCH Degraded - 2",
                "POST Primary a null",
            ]
        );
    }
}
