//! What the containers of sidecars and backups share: who they run as, their device, their flags for RDMA, their TLS.
//!
//! Called by [`pod`](super::pod) and by the webhook.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};
use tailwind_crds::names::{TLS_FOLDER, USER};
use tailwind_crds::{Memlock, Network, Rdma, ReplicaGroupSpec};

use crate::platform::Platform;
use crate::quantity;

/// Name of the claim of a pod that comes from a ResourceClaimTemplate.
pub(crate) const CLAIM: &str = "tailwind-rdma";
/// Where Multus reads which networks to attach.
pub(crate) const ANNOTATION_NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// Whether the container has to be root to be allowed to pin memory: Kubernetes gives capabilities to root alone.
pub(crate) fn needs_root(spec: &ReplicaGroupSpec) -> bool {
    spec.rdma.as_ref().is_some_and(|rdma| rdma.memlock == Memlock::Capability)
}

/// Read-only root file system and no capability, but IPC_LOCK where RDMA needs it. The user is named unless the platform
/// chooses it; `pod_is_root` where another user has to be named all the same.
pub(crate) fn security(spec: &ReplicaGroupSpec, platform: Platform, pod_is_root: bool) -> Value {
    let root = needs_root(spec);
    let mut capabilities = json!({"drop": ["ALL"]});
    if root {
        capabilities["add"] = json!(["IPC_LOCK"]);
    }
    let mut security = json!({
        "runAsNonRoot": !root,
        "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false,
        "capabilities": capabilities,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    if root || pod_is_root || platform == Platform::Kubernetes {
        security["runAsUser"] = json!(if root { 0 } else { USER });
    }
    security
}

/// Flags for TLS.
pub(crate) fn tls_flags() -> Vec<String> {
    let flag = |option: &str, file: &str| format!("--tls-{option}={TLS_FOLDER}/{file}");
    vec![flag("ca", "ca.crt"), flag("cert", "tls.crt"), flag("key", "tls.key")]
}

/// Flags for RDMA.
pub(crate) fn rdma_flags(rdma: Option<&Rdma>) -> Vec<String> {
    let Some(rdma) = rdma else { return Vec::new() };
    let number = |option: &str, value: Option<u8>| value.map(|value| format!("--rdma-{option}={value}"));
    let text = |option: &str, value: &Option<String>| value.as_ref().map(|value| format!("--rdma-{option}={value}"));
    let flags = [
        text("device", &rdma.device),
        number("gid-index", rdma.gid_index),
        text("retry", &rdma.retry),
        number("traffic-class", rdma.traffic_class),
        number("service-level", rdma.service_level),
    ];
    flags.into_iter().flatten().collect()
}

/// Resources of a container: what the spec says or else `cpu` and `memory`, then `more_memory` for what it is made for, and the
/// RDMA device. Memory is limited to what is requested: what is pinned cannot be taken back. Where only a limit of CPU is given,
/// it is requested as well, as API servers do it: more than the limit would be refused, and less is another QoS class.
pub(crate) fn resources(
    spec: &ReplicaGroupSpec,
    given: Option<&ResourceRequirements>,
    memory: u64,
    more_memory: u64,
) -> ResourceRequirements {
    let given = given.cloned().unwrap_or_default();
    let (mut requests, mut limits) = (given.requests.unwrap_or_default(), given.limits.unwrap_or_default());
    let cpu = limits.get("cpu").cloned().unwrap_or_else(|| Quantity("100m".to_owned()));
    requests.entry("cpu".to_owned()).or_insert(cpu);
    let named = limits.get("memory").or_else(|| requests.get("memory"));
    let memory = named.map_or(memory, quantity::whole) + more_memory;
    for side in [&mut requests, &mut limits] {
        side.insert("memory".to_owned(), quantity::bytes(memory));
    }
    let device = spec.rdma.as_ref().and_then(|rdma| rdma.extended_resource.as_ref());
    if let Some(device) = device {
        for side in [&mut requests, &mut limits] {
            side.insert(device.name.clone(), Quantity(device.count.to_string()));
        }
    }
    let mut claims = given.claims.unwrap_or_default();
    if spec.rdma.as_ref().is_some_and(|rdma| rdma.resource_claim_template_name.is_some()) {
        claims.push(k8s_openapi::api::core::v1::ResourceClaim { name: CLAIM.to_owned(), request: None });
    }
    let claims = (!claims.is_empty()).then_some(claims);
    ResourceRequirements { requests: Some(requests), limits: Some(limits), claims }
}

/// The claim that a pod brings for its device, where dynamic allocation gives it.
pub(crate) fn claim(spec: &ReplicaGroupSpec) -> Option<Value> {
    let template = spec.rdma.as_ref()?.resource_claim_template_name.as_ref()?;
    Some(json!({"name": CLAIM, "resourceClaimTemplateName": template}))
}

/// The annotation for Multus: these networks, beside those that the pod asks for already.
pub(crate) fn networks(existing: Option<&String>, networks: &[Network], namespace: &str) -> Option<String> {
    if networks.is_empty() {
        return existing.cloned();
    }
    let existing = existing.map(|text| text.trim()).filter(|text| !text.is_empty());
    // A list of names, or of objects: both are allowed, but not mixed.
    if let Some(names) = existing.filter(|text| !text.starts_with('[')) {
        let short = networks.iter().map(|network| {
            let namespace = network.namespace.as_deref().unwrap_or(namespace);
            let interface = network.interface.as_ref().map_or_else(String::new, |interface| format!("@{interface}"));
            format!("{namespace}/{}{interface}", network.name)
        });
        return Some([names.to_owned()].into_iter().chain(short).collect::<Vec<_>>().join(","));
    }
    let before = existing.and_then(|text| serde_json::from_str::<Vec<BTreeMap<String, Value>>>(text).ok());
    let ours = networks.iter().map(|network| {
        let namespace = network.namespace.as_deref().unwrap_or(namespace);
        let mut entry =
            BTreeMap::from([("name".to_owned(), json!(network.name)), ("namespace".to_owned(), json!(namespace))]);
        if let Some(interface) = &network.interface {
            entry.insert("interface".to_owned(), json!(interface));
        }
        entry
    });
    let all: Vec<_> = before.into_iter().flatten().chain(ours).collect();
    Some(json!(all).to_string())
}

/// A probe over plain HTTP.
pub(crate) fn probe(path: &str, port: u16, period_seconds: u32, failures: u32) -> Value {
    json!({
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    })
}

/// What the program learns about its pod, and how it logs.
pub(crate) fn environment() -> Value {
    json!([
        field("POD_NAME", "metadata.name"),
        field("POD_IP", "status.podIP"),
        {"name": "TAILWIND_LOG_FORMAT", "value": "json"},
    ])
}

/// An environment variable with what the pod learns about itself.
fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_cpu_is_requested_as_well() {
        let spec: ReplicaGroupSpec = serde_json::from_value(json!({})).unwrap();
        let requested = |given: Value| {
            let given: ResourceRequirements = serde_json::from_value(given).unwrap();
            resources(&spec, Some(&given), 1 << 20, 0).requests.unwrap()["cpu"].0.clone()
        };
        assert_eq!(requested(json!({})), "100m");
        for limit in ["50m", "4"] {
            assert_eq!(requested(json!({"limits": {"cpu": limit}})), limit);
        }
        assert_eq!(requested(json!({"limits": {"cpu": "4"}, "requests": {"cpu": "1"}})), "1");
    }

    #[test]
    fn networks_are_added_to_existing_ones() {
        let ours = [Network { name: "nic".into(), namespace: None, interface: Some("rdma0".into()) }];
        let say = |existing: Option<&str>| networks(existing.map(str::to_owned).as_ref(), &ours, "shop");
        let one = r#"{"interface":"rdma0","name":"nic","namespace":"shop"}"#;
        assert_eq!(say(None), Some(format!("[{one}]")));
        assert_eq!(say(Some("a,b/c@net1")), Some("a,b/c@net1,shop/nic@rdma0".to_owned()));
        assert_eq!(say(Some(r#"[{"name":"a"}]"#)), Some(format!(r#"[{{"name":"a"}},{one}]"#)));
        assert_eq!(networks(None, &[], "shop"), None);
    }
}
