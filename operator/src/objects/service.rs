//! The service that follows the primary: it selects the one app pod that has the role.
//!
//! Called by [`plan`](crate::plan).

use kube::ResourceExt;
use serde_json::{Value, json};
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::{LABEL_GROUP, LABEL_ROLE, ROLE_PRIMARY};

use super::{Kind, Owned};
use crate::server_version::ServerVersion;

/// The service. Without ports it has no address of its own, and its name resolves to the pod's.
pub(crate) fn primary(group: &ReplicaGroup, server: ServerVersion) -> Owned {
    let name = group.name_any();
    let mut spec = json!({"selector": {LABEL_GROUP: name, LABEL_ROLE: ROLE_PRIMARY}});
    if group.spec.primary_ports.is_empty() {
        spec["clusterIP"] = json!("None");
    } else {
        let ports = group.spec.primary_ports.iter().map(|port| {
            let mut rendered = json!({"port": port.port, "protocol": "TCP"});
            rendered["targetPort"] = json!(port.target_port.unwrap_or(port.port));
            if let Some(name) = &port.name {
                rendered["name"] = json!(name);
            }
            rendered
        });
        spec["ports"] = ports.collect::<Value>();
    }
    Owned::new(Kind::Service, group, server, json!({"spec": spec}))
}
