//! What the sidecars of a group may do: read this one group, change its status, and say who is primary. Nothing else, and
//! nobody else.
//!
//! Called by [`plan`](crate::plan).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::{API_GROUP, DISCOVERY_GROUP};

use super::{Kind, Owned};
use crate::server_version::ServerVersion;

pub(crate) fn role(group: &ReplicaGroup, server: ServerVersion) -> Owned {
    let name = group.name_any();
    let rules = json!([
        {
            "apiGroups": [API_GROUP],
            "resources": ["replicagroups"],
            "resourceNames": [name],
            "verbs": ["get", "list", "watch"],
        },
        {
            "apiGroups": [API_GROUP],
            "resources": ["replicagroups/status"],
            "resourceNames": [name],
            "verbs": ["patch"],
        },
        {
            "apiGroups": [DISCOVERY_GROUP],
            "resources": ["endpointslices"],
            "resourceNames": [Kind::EndpointSlice.name(&name)],
            "verbs": ["get", "list", "watch", "patch"],
        },
        // OpenShift asks for this where an address is one of a pod.
        {
            "apiGroups": [DISCOVERY_GROUP],
            "resources": ["endpointslices/restricted"],
            "resourceNames": [Kind::EndpointSlice.name(&name)],
            "verbs": ["create"],
        },
    ]);
    Owned::new(Kind::Role, group, server, json!({"rules": rules}))
}

/// Its binding to the service accounts that the app's pods run as.
pub(crate) fn binding(group: &ReplicaGroup, server: ServerVersion, app: &[Pod]) -> Owned {
    let namespace = group.namespace().unwrap_or_default();
    let accounts: BTreeSet<&str> = app
        .iter()
        .map(|pod| {
            let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
            account.filter(|account| !account.is_empty()).unwrap_or("default")
        })
        .collect();
    let subjects: Value = accounts
        .into_iter()
        .map(|account| json!({"kind": "ServiceAccount", "name": account, "namespace": namespace}))
        .collect();
    let role = Kind::Role.name(&group.name_any());
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role});
    Owned::new(Kind::RoleBinding, group, server, json!({"roleRef": role, "subjects": subjects}))
}
