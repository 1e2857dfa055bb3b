//! The objects that belong to a group, rendered from its spec: pure, each with golden tests.
//!
//! Called by [`plan`](super), and [`container`] by the webhook as well.

pub mod claim;
pub(crate) mod container;
pub(crate) mod disruption;
pub(crate) mod flush;
pub mod pod;
pub(crate) mod roles;
pub(crate) mod service;
pub mod stored;
pub(crate) mod table;

use std::fmt;

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::{DISCOVERY_GROUP, primary_service, reader_secret, sidecar_secret};

use crate::server_version::ServerVersion;

/// The label of the group's name. Argo CD may take an object that has it for a part of the application of that name, and prunes
/// it if it has no owner.
pub(crate) const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";

/// What every object of a group says: its owner. With it Kubernetes deletes the object after the group.
pub(crate) fn owner(group: &ReplicaGroup) -> Value {
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
pub(crate) fn metadata(group: &ReplicaGroup, name: &str) -> Value {
    json!({
        "name": name,
        "namespace": group.namespace().unwrap_or_default(),
        "labels": {
            "app.kubernetes.io/name": "tailwind",
            LABEL_INSTANCE: group.name_any(),
            "app.kubernetes.io/managed-by": "tailwind-operator",
        },
        "ownerReferences": [owner(group)],
    })
}

/// Whether the group owns an object of this metadata.
pub(crate) fn is_owned(group: &ReplicaGroup, object: &kube::core::ObjectMeta) -> bool {
    let owners = object.owner_references.iter().flatten();
    owners.into_iter().any(|owner| Some(&owner.uid) == group.metadata.uid.as_ref())
}

/// The kinds of object that a group owns beside its pods and secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What sidecars, and what readers may read and write: see [`roles`].
    Role,
    /// The bindings of these to the pods' service accounts.
    RoleBinding,
    /// The [`service`] that follows the primary.
    Service,
    /// The primary's address, which sidecars write: see [`service`].
    EndpointSlice,
    /// See [`disruption`].
    DisruptionBudget,
    /// See [`claim`].
    Claim,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] =
        [Kind::Role, Kind::RoleBinding, Kind::Service, Kind::EndpointSlice, Kind::DisruptionBudget, Kind::Claim];

    /// Kubernetes' name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Role => "Role",
            Kind::RoleBinding => "RoleBinding",
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::DisruptionBudget => "PodDisruptionBudget",
            Kind::Claim => "PersistentVolumeClaim",
        }
    }

    /// Group and version of its API at this server.
    fn api(self, server: ServerVersion) -> (&'static str, &'static str) {
        match self {
            Kind::Role | Kind::RoleBinding => ("rbac.authorization.k8s.io", "v1"),
            Kind::Service | Kind::Claim => ("", "v1"),
            Kind::EndpointSlice if server.has_discovery_v1() => (DISCOVERY_GROUP, "v1"),
            Kind::EndpointSlice => (DISCOVERY_GROUP, "v1beta1"),
            Kind::DisruptionBudget if server.has_policy_v1() => ("policy", "v1"),
            Kind::DisruptionBudget => ("policy", "v1beta1"),
        }
    }

    /// How it is asked for at this server.
    pub fn resource(self, server: ServerVersion) -> ApiResource {
        let (group, version) = self.api(server);
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, self.as_str()))
    }

    /// The names that a group's objects of this kind have. Claims have those of their members, and are found by their label.
    pub fn names(self, group: &str) -> Vec<String> {
        match self {
            Kind::Role | Kind::RoleBinding => vec![sidecar_secret(group), reader_secret(group)],
            Kind::Service | Kind::EndpointSlice => vec![primary_service(group)],
            Kind::DisruptionBudget => vec![disruption::budget_name(group)],
            Kind::Claim => Vec::new(),
        }
    }
}

/// An object that a group owns, or that has the name of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Owned {
    /// What it is.
    pub kind: Kind,
    /// The object.
    pub object: DynamicObject,
}

impl Owned {
    /// One with this name and content, as it is written to this server.
    ///
    /// # Panics
    /// If the content is no object: the golden tests render every one.
    fn new(kind: Kind, name: &str, group: &ReplicaGroup, server: ServerVersion, mut content: Value) -> Owned {
        let resource = kind.resource(server);
        content["apiVersion"] = json!(resource.api_version);
        content["kind"] = json!(resource.kind);
        let more = content["metadata"]["labels"].take();
        content["metadata"] = metadata(group, name);
        for (label, value) in more.as_object().into_iter().flatten() {
            content["metadata"]["labels"][label] = value.clone();
        }
        let object = serde_json::from_value(content);
        Owned { kind, object: object.unwrap_or_else(|error| panic!("an object made here is none: {error}")) }
    }
}

impl fmt::Display for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.object.name_any())
    }
}
