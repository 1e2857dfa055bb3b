//! The service that follows the primary, and the EndpointSlice with the primary's address.
//!
//! Called by [`plan`](crate::plan). The service has no selector: a new primary writes its own address into the slice, so that
//! clients follow it even while no operator runs. The operator creates the slice, sets its ports, and removes the address of a
//! pod that is gone, since another pod may be given that address.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tailwind_crds::names::primary_service;
use tailwind_crds::{PrimaryPort, ReplicaGroup};

use super::{Kind, Owned};
use crate::observed::has_ended;
use crate::server_version::ServerVersion;

/// The service. Without ports it has no address of its own, and its name resolves to the pod's.
pub(crate) fn primary(group: &ReplicaGroup, server: ServerVersion) -> Owned {
    let ports = &group.spec.primary_ports;
    let spec = match ports.is_empty() {
        true => json!({"clusterIP": "None"}),
        false => {
            let rendered = ports.iter().map(|port| {
                let mut rendered = rendered(port, port.port);
                rendered["targetPort"] = json!(target(port));
                rendered
            });
            json!({"ports": rendered.collect::<Value>()})
        }
    };
    let name = primary_service(&group.name_any());
    Owned::new(Kind::Service, &name, group, server, json!({"spec": spec}))
}

/// The slice, without addresses: those are the sidecars' to write. `None` while no pod of the app tells which family they are of.
pub(crate) fn endpoints(group: &ReplicaGroup, server: ServerVersion, app: &[Pod]) -> Option<Owned> {
    let family = match app.iter().find_map(address)? {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    };
    let ports = group.spec.primary_ports.iter().map(|port| rendered(port, target(port)));
    let name = primary_service(&group.name_any());
    let content = json!({
        "metadata": {"labels": {
            "kubernetes.io/service-name": name,
            "endpointslice.kubernetes.io/managed-by": "tailwind-sidecar",
        }},
        "addressType": family,
        "ports": ports.collect::<Value>(),
    });
    Some(Owned::new(Kind::EndpointSlice, &name, group, server, content))
}

/// Whether the slice leads to an address that is no longer that of the pod which it names. A pod whose address the API does not
/// show yet may have written it already.
pub(crate) fn is_stale(slice: &DynamicObject, app: &[Pod]) -> bool {
    let endpoints = slice.data["endpoints"].as_array().map_or(&[][..], Vec::as_slice);
    endpoints.iter().any(|endpoint| {
        let named = |pod: &&Pod| endpoint["targetRef"]["name"] == json!(pod.name_any());
        let Some(pod) = app.iter().filter(|pod| !has_ended(pod)).find(named) else { return true };
        let ip = address(pod).map(|ip| json!(ip.to_string()));
        let addresses = endpoint["addresses"].as_array().map_or(&[][..], Vec::as_slice);
        ip.is_some_and(|ip| addresses.iter().any(|address| *address != ip))
    })
}

/// Whether the service has no address of its own. The API server copies that from the service as it was, so one that is to have
/// an address, or none, has to be recreated.
pub(crate) fn is_headless(service: &DynamicObject) -> bool {
    service.data["spec"]["clusterIP"] == json!("None")
}

fn address(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

fn target(port: &PrimaryPort) -> u16 {
    port.target_port.unwrap_or(port.port)
}

fn rendered(port: &PrimaryPort, number: u16) -> Value {
    let mut rendered = json!({"port": number, "protocol": "TCP"});
    if let Some(name) = &port.name {
        rendered["name"] = json!(name);
    }
    rendered
}
