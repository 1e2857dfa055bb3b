//! The objects that belong to a group, rendered from its spec: pure, each with golden tests.
//!
//! Called by [`plan`](super), and [`container`] by the webhook as well.

pub mod container;
pub mod disruption;
pub mod pod;
pub mod roles;
pub mod service;

use kube::api::DynamicObject;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use tailwind_crds::ReplicaGroup;

/// What every object of a group says: its owner. With it Kubernetes deletes the object after the group.
pub fn owner(group: &ReplicaGroup) -> Value {
    json!({
        "apiVersion": ReplicaGroup::api_version(&()),
        "kind": ReplicaGroup::kind(&()),
        "name": group.name_any(),
        "uid": group.uid().unwrap_or_default(),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Metadata of an object of a group.
pub fn metadata(group: &ReplicaGroup, name: &str) -> Value {
    json!({
        "name": name,
        "namespace": group.namespace().unwrap_or_default(),
        "labels": {
            "app.kubernetes.io/name": "tailwind",
            "app.kubernetes.io/instance": group.name_any(),
            "app.kubernetes.io/managed-by": "tailwind-operator",
        },
        "ownerReferences": [owner(group)],
    })
}

/// Whether the group owns an object of this metadata.
pub fn is_owned(group: &ReplicaGroup, object: &kube::core::ObjectMeta) -> bool {
    let owners = object.owner_references.iter().flatten();
    owners.into_iter().any(|owner| Some(&owner.uid) == group.metadata.uid.as_ref())
}

/// A value made here as an object.
///
/// # Panics
/// If the value has no kind or name: the golden tests render every one.
pub fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap_or_else(|error| panic!("an object made here is none: {error}"))
}
