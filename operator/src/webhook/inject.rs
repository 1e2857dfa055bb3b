//! A pod with its sidecar: pure, and the same by the webhook and by `tailwind-operator inject`.
//!
//! Works on the pod as JSON, so that fields which this program does not know stay as they are.

use kube::ResourceExt;
use serde_json::{Value, json};
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::{
    ANNOTATION_ALLOW_UID, ANNOTATION_INJECT, ANNOTATION_INJECTED, LABEL_GROUP, PORT_SIDECAR, PORT_SIDECAR_PROBES,
    SIDECAR_CONTAINER, SOCKET, SOCKET_FOLDER, TLS_FOLDER, primary_service, sidecar_secret,
};

use crate::objects::container;
use crate::options::Settings;
use crate::server_version::ServerVersion;

/// Where a pod finds its service account's token.
const TOKEN_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A sidecar starts before its app, whose image may not even be there: those with an app stand first. A failover takes a fraction
/// of this.
const APP_WAIT_MS: u32 = 2000;
/// There is only the socket in it. In memory, because autoscalers keep nodes with pods that have volumes on the node's disk.
const SOCKET_VOLUME_SIZE: &str = "1Mi";
/// Kubelets renew the token long before it ends.
const TOKEN_SECONDS: u32 = 3607;
/// Memory of the sidecar beside its segments.
const PROGRAM_BYTES: u64 = 96 << 20;
/// Segments that it holds: those being written and closed, two kept for the next ones, and what one reader or one backup that
/// catches up needs.
const SEGMENTS: u64 = 12;

/// The group that a pod belongs to and wants a sidecar for.
pub fn wanted_group(pod: &Value) -> Option<&str> {
    let group = pod["metadata"]["labels"][LABEL_GROUP].as_str()?;
    let refused = pod["metadata"]["annotations"][ANNOTATION_INJECT].as_str() == Some("false");
    (!refused).then_some(group)
}

/// Whether the pod has its sidecar already.
pub fn has_sidecar(pod: &Value) -> bool {
    let lists = ["containers", "initContainers"].into_iter().filter_map(|list| pod["spec"][list].as_array());
    lists.flatten().any(|container| container["name"] == SIDECAR_CONTAINER)
}

/// The pod with the sidecar. One that has it already stays as it is.
pub fn inject(pod: &Value, group: &ReplicaGroup, settings: &Settings, server: ServerVersion) -> Value {
    let mut pod = pod.clone();
    if has_sidecar(&pod) {
        return pod;
    }
    let native = server.has_native_sidecars();
    let sidecar = sidecar(&pod, group, settings, native);
    // A sidecar that is no native one starts after all init containers have ended, so these cannot use it.
    for list in if native { &["containers", "initContainers"][..] } else { &["containers"] } {
        for app in pod["spec"][*list].as_array_mut().into_iter().flatten() {
            push(&mut app["volumeMounts"], json!({"name": "tailwind-socket", "mountPath": SOCKET_FOLDER}));
            push(&mut app["env"], json!({"name": "TAILWIND_SOCKET", "value": SOCKET}));
        }
    }
    if native {
        // First: the app's init containers may append, too.
        match pod["spec"]["initContainers"].as_array_mut() {
            Some(list) => list.insert(0, sidecar),
            None => pod["spec"]["initContainers"] = json!([sidecar]),
        }
    } else {
        // Last: what people do with a pod they do with its first container.
        push(&mut pod["spec"]["containers"], sidecar);
    }
    for volume in volumes(group) {
        push(&mut pod["spec"]["volumes"], volume);
    }
    if let Some(claim) = container::claim(&group.spec) {
        push(&mut pod["spec"]["resourceClaims"], claim);
    }
    for secret in &group.spec.pod_template.spec.image_pull_secrets {
        let list = &mut pod["spec"]["imagePullSecrets"];
        if !list.as_array().is_some_and(|list| list.iter().any(|known| known["name"] == secret.name)) {
            push(list, json!(secret));
        }
    }

    let annotations = &mut pod["metadata"]["annotations"];
    if annotations.is_null() {
        *annotations = json!({});
    }
    annotations[ANNOTATION_INJECTED] = json!(settings.image(&group.spec));
    let networks = group.spec.rdma.as_ref().map_or(&[][..], |rdma| &rdma.networks);
    let existing = annotations[container::ANNOTATION_NETWORKS].as_str().map(str::to_owned);
    let namespace = group.namespace().unwrap_or_default();
    match container::networks(existing.as_ref(), networks, &namespace) {
        Some(networks) => annotations[container::ANNOTATION_NETWORKS] = json!(networks),
        None => drop(annotations.as_object_mut().map(|map| map.remove(container::ANNOTATION_NETWORKS))),
    }
    pod
}

/// What the person who makes the pod should know.
pub fn warnings(pod: &Value, group: &ReplicaGroup) -> Vec<String> {
    let mut warnings = Vec::new();
    let wants_host = group.spec.rdma.as_ref().is_some_and(|rdma| rdma.host_network);
    if wants_host && pod["spec"]["hostNetwork"] != json!(true) {
        let group = group.name_any();
        warnings.push(format!(
            "ReplicaGroup {group} has rdma.hostNetwork: set hostNetwork: true in this pod, or its sidecar finds no RDMA address"
        ));
    }
    warnings
}

fn sidecar(pod: &Value, group: &ReplicaGroup, settings: &Settings, native: bool) -> Value {
    let spec = &group.spec;
    let (namespace, name) = (group.namespace().unwrap_or_default(), group.name_any());
    let users = pod["metadata"]["annotations"][ANNOTATION_ALLOW_UID].as_str().unwrap_or("any");
    let mut arguments = vec![
        "run".to_owned(),
        format!("--replica-group={namespace}/{name}"),
        "--name=$(POD_NAME)".to_owned(),
        format!("--listen=[::]:{PORT_SIDECAR}"),
        "--advertise-ip=$(POD_IP)".to_owned(),
        format!("--metrics-listen=[::]:{PORT_SIDECAR_PROBES}"),
        format!("--socket={SOCKET}"),
        format!("--allow-uid={users}"),
        format!("--app-wait-ms={APP_WAIT_MS}"),
        format!("--primary-service={}", primary_service(&name)),
    ];
    arguments.extend(container::rdma_flags(spec.rdma.as_ref()));
    arguments.extend(container::tls_flags());
    let segments = SEGMENTS * spec.segment_size.bytes();
    // Of a pod whose own user is root: the sidecar would inherit it, and is refused as such.
    let pod_is_root = pod["spec"]["securityContext"]["runAsUser"] == 0;
    let mut sidecar = json!({
        "name": SIDECAR_CONTAINER,
        "image": settings.image(spec),
        "args": arguments,
        "env": container::environment(),
        // Why it ended is shown in its pod, where people and the operator look first.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [
            {"name": "tailwind", "containerPort": PORT_SIDECAR},
            {"name": "tailwind-probes", "containerPort": PORT_SIDECAR_PROBES},
        ],
        "resources": container::resources(spec, spec.sidecar_resources.as_ref(), PROGRAM_BYTES + segments, 0),
        "startupProbe": container::probe("/healthz", PORT_SIDECAR_PROBES, 1, 120),
        "livenessProbe": container::probe("/healthz", PORT_SIDECAR_PROBES, 10, 6),
        "readinessProbe": container::probe("/readyz", PORT_SIDECAR_PROBES, 5, 2),
        "securityContext": container::security(spec, settings.platform, pod_is_root),
        "volumeMounts": [
            {"name": "tailwind-socket", "mountPath": SOCKET_FOLDER},
            {"name": "tailwind-tls", "mountPath": TLS_FOLDER, "readOnly": true},
            {"name": "tailwind-token", "mountPath": TOKEN_FOLDER, "readOnly": true},
        ],
    });
    if let Some(policy) = &settings.image_pull_policy {
        sidecar["imagePullPolicy"] = json!(policy);
    }
    if native {
        sidecar["restartPolicy"] = json!("Always");
    }
    sidecar
}

/// The socket that is shared with the app; certificates and the token, which are not.
fn volumes(group: &ReplicaGroup) -> [Value; 3] {
    let token = json!([
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
        ]}},
    ]);
    [
        json!({"name": "tailwind-socket", "emptyDir": {"medium": "Memory", "sizeLimit": SOCKET_VOLUME_SIZE}}),
        json!({"name": "tailwind-tls", "secret": {"secretName": sidecar_secret(&group.name_any())}}),
        json!({"name": "tailwind-token", "projected": {"sources": token}}),
    ]
}

fn push(list: &mut Value, value: Value) {
    match list.as_array_mut() {
        Some(list) => list.push(value),
        None => *list = json!([value]),
    }
}
