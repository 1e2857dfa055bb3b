//! What the sidecars of a group may do: read this one group, change its status, and say who is primary. Those of its readers may
//! do no more than read it.
//!
//! Called by [`plan`](crate::plan).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::{API_GROUP, DISCOVERY_GROUP, primary_service, reader_secret, sidecar_secret};

use super::{Kind, Owned};
use crate::observed::has_ended;
use crate::server_version::ServerVersion;

/// What sidecars may do that can become primary.
pub(crate) fn sidecars(group: &ReplicaGroup, server: ServerVersion) -> Owned {
    let name = group.name_any();
    let slice = primary_service(&name);
    let rules = json!([
        may_read(&name),
        {
            "apiGroups": [API_GROUP],
            "resources": ["replicagroups/status"],
            "resourceNames": [name],
            "verbs": ["patch"],
        },
        {
            "apiGroups": [DISCOVERY_GROUP],
            "resources": ["endpointslices"],
            "resourceNames": [slice],
            "verbs": ["get", "list", "watch", "patch"],
        },
        // OpenShift asks for this where an address is one of a pod.
        {
            "apiGroups": [DISCOVERY_GROUP],
            "resources": ["endpointslices/restricted"],
            "resourceNames": [slice],
            "verbs": ["create"],
        },
    ]);
    Owned::new(Kind::Role, &sidecar_secret(&name), group, server, json!({"rules": rules}))
}

/// What sidecars may do that only read the log.
pub(crate) fn readers(group: &ReplicaGroup, server: ServerVersion) -> Owned {
    let name = group.name_any();
    Owned::new(Kind::Role, &reader_secret(&name), group, server, json!({"rules": [may_read(&name)]}))
}

/// To know where backups and primary are: a watch begins with a list.
fn may_read(group: &str) -> Value {
    json!({
        "apiGroups": [API_GROUP],
        "resources": ["replicagroups"],
        "resourceNames": [group],
        "verbs": ["get", "list", "watch"],
    })
}

/// The binding of a role, which has the same name, to the service accounts that these pods run as. While all have ended, or
/// there are none, it keeps those of `existing`: an app that is scaled to zero and back finds its rights there, and does not
/// wait until the operator has seen its first pod.
pub(crate) fn binding(
    group: &ReplicaGroup,
    server: ServerVersion,
    role: &Owned,
    pods: &[Pod],
    existing: Option<&Owned>,
) -> Owned {
    let namespace = group.namespace().unwrap_or_default();
    let pods: Vec<&Pod> = pods.iter().filter(|pod| !has_ended(pod)).collect();
    let accounts: BTreeSet<&str> = pods
        .iter()
        .map(|pod| {
            let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
            account.filter(|account| !account.is_empty()).unwrap_or("default")
        })
        .collect();
    let subject = |account| json!({"kind": "ServiceAccount", "name": account, "namespace": namespace});
    let subjects: Value = match existing.and_then(|existing| existing.object.data.get("subjects")) {
        Some(subjects) if pods.is_empty() => subjects.clone(),
        _ => accounts.into_iter().map(subject).collect(),
    };
    let name = role.object.name_any();
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
    Owned::new(Kind::RoleBinding, &name, group, server, json!({"roleRef": role, "subjects": subjects}))
}
