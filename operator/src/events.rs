//! Events: what `kubectl describe rg` tells people.
//!
//! Called by [`apply`](crate::apply) and [`controller`](crate::controller). An event that cannot be written is logged: nothing
//! depends on it.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::runtime::events::{Event, Recorder};
use tailwind_crds::ReplicaGroup;
use tracing::warn;

use crate::context::Context;
use crate::error::is_ending;
use crate::plan::Notice;

/// The API server takes no longer ones.
const NOTE_MAX: usize = 1024;

pub(crate) async fn publish(context: &Context, group: &ReplicaGroup, notices: &[Notice]) {
    publish_about(context, group.object_ref(&()), notices).await;
}

pub(crate) async fn publish_about(context: &Context, reference: ObjectReference, notices: &[Notice]) {
    // A new one each time: it would publish only the first of several texts with one reason, and count the others.
    let recorder = Recorder::new(context.client.clone(), context.reporter.clone());
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
            secondary: None,
        };
        match recorder.publish(&event, &reference).await {
            Err(error) if is_ending(&error) => return,
            Err(error) => warn!(%error, reason = notice.reason(), "event not written"),
            Ok(()) => {}
        }
    }
}
