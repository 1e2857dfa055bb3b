//! A pod with its sidecar: pure, and the same by the webhook and by `tailwind-operator inject`.
//!
//! Works on the pod as JSON, so that fields which this program does not know stay as they are.

use kube::ResourceExt;
use serde_json::{Value, json};
use tailwind_crds::names::{
    ANNOTATION_ALLOW_UID, ANNOTATION_INJECT, ANNOTATION_INJECTED, LABEL_GROUP, LABEL_READS, PORT_SIDECAR,
    PORT_SIDECAR_PROBES, SIDECAR_CONTAINER, SOCKET, SOCKET_FOLDER, TLS_FOLDER, primary_service, reader_secret,
    sidecar_secret,
};
use tailwind_crds::{Reads, ReplicaGroup};

use crate::objects::{container, table};
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

/// What a pod's sidecar is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SidecarKind {
    /// The pod is one of the group's app: its sidecar is primary, or stands by.
    App,
    /// The pod follows the log of another app.
    Reader,
}

/// The group and the sidecar that a pod wants; none if it brings its own. The error is for the user who creates the pod.
pub fn wanted(pod: &Value) -> Result<Option<(&str, SidecarKind)>, String> {
    let brings_its_own = pod["metadata"]["annotations"][ANNOTATION_INJECT].as_str() == Some("false");
    if brings_its_own { Ok(None) } else { labelled(pod) }
}

/// The group and the sidecar that a pod's labels name. The error is for the user who creates the pod.
pub fn labelled(pod: &Value) -> Result<Option<(&str, SidecarKind)>, String> {
    let label = |label: &str| pod["metadata"]["labels"][label].as_str();
    match (label(LABEL_GROUP), label(LABEL_READS)) {
        (Some(group), None) => Ok(Some((group, SidecarKind::App))),
        (None, Some(group)) => Ok(Some((group, SidecarKind::Reader))),
        (None, None) => Ok(None),
        (Some(group), Some(read)) => Err(format!(
            "the pod has the labels {LABEL_GROUP}: {group} and {LABEL_READS}: {read}, and can have one sidecar: remove one of \
             them. A pod of a group's app may follow that group's log without the latter"
        )),
    }
}

/// Why this group gives no sidecar of this kind, for the user who creates the pod.
pub fn refusal(group: &ReplicaGroup, kind: SidecarKind) -> Option<String> {
    let is_refused = kind == SidecarKind::Reader && group.spec.reads == Reads::Disabled;
    is_refused.then(|| {
        let (namespace, name) = (group.namespace().unwrap_or_default(), group.name_any());
        format!(
            "ReplicaGroup {namespace}/{name} has spec.reads: Disabled: set it to Enabled, or remove the pod's label {LABEL_READS}"
        )
    })
}

/// Whether the pod has its sidecar already.
pub fn has_sidecar(pod: &Value) -> bool {
    let lists = ["containers", "initContainers"].into_iter().filter_map(|list| pod["spec"][list].as_array());
    lists.flatten().any(|container| container["name"] == SIDECAR_CONTAINER)
}

/// The users that may connect to the socket, as the sidecar's option takes them: with anything else it would end at each start. The
/// error is for the user who creates the pod.
fn allowed_users(pod: &Value) -> Result<String, String> {
    let Some(text) = pod["metadata"]["annotations"][ANNOTATION_ALLOW_UID].as_str() else { return Ok("any".to_owned()) };
    let users: Vec<&str> = text.split(',').map(str::trim).collect();
    if users.iter().all(|user| *user == "any" || user.parse::<u32>().is_ok()) {
        Ok(users.join(","))
    } else {
        Err(format!(
            "the pod's annotation {ANNOTATION_ALLOW_UID} is {text:?}, and must be any, or numbers of users with commas between \
             them, such as 1000,1001"
        ))
    }
}

/// The pod with the sidecar. One that has it already stays as it is. The error is for the user who creates the pod.
pub fn inject(
    pod: &Value,
    group: &ReplicaGroup,
    kind: SidecarKind,
    settings: &Settings,
    server: ServerVersion,
) -> Result<Value, String> {
    let mut pod = pod.clone();
    if has_sidecar(&pod) {
        return Ok(pod);
    }
    let native = server.has_native_sidecars();
    let users = allowed_users(&pod)?;
    let sidecar = sidecar(&pod, &users, group, kind, settings, native);
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
    for volume in volumes(group, kind) {
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
    Ok(pod)
}

/// What the user who creates the pod should know. API servers may cut a warning off after 256 characters, so advice comes
/// first.
pub fn warnings(pod: &Value, group: &ReplicaGroup, kind: SidecarKind) -> Vec<String> {
    let mut warnings = Vec::new();
    let with_token = with_token(pod);
    // A reader's token only reads the group.
    if kind == SidecarKind::App && !with_token.is_empty() {
        warnings.push(format!(
            "set automountServiceAccountToken: false in this pod unless its app needs the Kubernetes API: with the token that is \
             mounted, the status of ReplicaGroup {} can be changed by container {}",
            group.name_any(),
            with_token.join(", ")
        ));
    }
    let wants_host = group.spec.rdma.as_ref().is_some_and(|rdma| rdma.host_network);
    if wants_host && pod["spec"]["hostNetwork"] != json!(true) {
        let group = group.name_any();
        warnings.push(format!(
            "ReplicaGroup {group} has rdma.hostNetwork: set hostNetwork: true in this pod, or its sidecar finds no RDMA address"
        ));
    }
    warnings
}

/// Containers beside the sidecar that find a token of the pod's service account, to which the sidecar's rights are bound. API
/// servers mount it before they ask a webhook (admission plugin `ServiceAccount`), so what is not mounted here never will be.
fn with_token(pod: &Value) -> Vec<&str> {
    let spec = &pod["spec"];
    let all = |list: &'static str| spec[list].as_array().into_iter().flatten();
    // One with an audience is not for the API server, which does not accept it.
    let is_token = |source: &Value| {
        let token = &source["serviceAccountToken"];
        token.is_object() && token["audience"].as_str().unwrap_or_default().is_empty()
    };
    let has_token = |volume: &&Value| volume["projected"]["sources"].as_array().into_iter().flatten().any(is_token);
    let tokens: Vec<&Value> = all("volumes").filter(has_token).map(|volume| &volume["name"]).collect();
    let finds_token = |container: &&Value| {
        let mounts = container["volumeMounts"].as_array().into_iter().flatten();
        container["name"] != SIDECAR_CONTAINER && mounts.into_iter().any(|mount| tokens.contains(&&mount["name"]))
    };
    let containers = all("initContainers").chain(all("containers")).filter(finds_token);
    containers.filter_map(|container| container["name"].as_str()).collect()
}

fn sidecar(
    pod: &Value,
    users: &str,
    group: &ReplicaGroup,
    kind: SidecarKind,
    settings: &Settings,
    native: bool,
) -> Value {
    let spec = &group.spec;
    let (namespace, name) = (group.namespace().unwrap_or_default(), group.name_any());
    let mut arguments = vec![
        "run".to_owned(),
        format!("--replica-group={namespace}/{name}"),
        "--name=$(POD_NAME)".to_owned(),
        format!("--listen=[::]:{PORT_SIDECAR}"),
        "--advertise-ip=$(POD_IP)".to_owned(),
        format!("--metrics-listen=[::]:{PORT_SIDECAR_PROBES}"),
        format!("--socket={SOCKET}"),
        format!("--allow-uid={users}"),
    ];
    match kind {
        SidecarKind::App => arguments
            .extend([format!("--app-wait-ms={APP_WAIT_MS}"), format!("--primary-service={}", primary_service(&name))]),
        SidecarKind::Reader => arguments.push("--reader".to_owned()),
    }
    arguments.extend(table::flags(spec));
    arguments.extend(container::rdma_flags(spec.rdma.as_ref()));
    arguments.extend(container::tls_flags());
    let segments = SEGMENTS * spec.segment_size.bytes();
    let index = if kind == SidecarKind::App { table::index_bytes(spec) } else { 0 };
    // If the pod's own user is root, the sidecar would inherit it, and is refused as such.
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
        "resources": container::resources(spec, spec.sidecar_resources.as_ref(), PROGRAM_BYTES + segments + index, 0),
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
fn volumes(group: &ReplicaGroup, kind: SidecarKind) -> [Value; 3] {
    let secret = match kind {
        SidecarKind::App => sidecar_secret(&group.name_any()),
        SidecarKind::Reader => reader_secret(&group.name_any()),
    };
    let token = json!([
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
        ]}},
    ]);
    [
        json!({"name": "tailwind-socket", "emptyDir": {"medium": "Memory", "sizeLimit": SOCKET_VOLUME_SIZE}}),
        json!({"name": "tailwind-tls", "secret": {"secretName": secret}}),
        json!({"name": "tailwind-token", "projected": {"sources": token}}),
    ]
}

fn push(list: &mut Value, value: Value) {
    match list.as_array_mut() {
        Some(list) => list.push(value),
        None => *list = json!([value]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_say_which_sidecar_a_pod_wants() {
        let pod = |labels: Value, inject: &str| json!({"metadata": {"labels": labels, "annotations": {ANNOTATION_INJECT: inject}}});
        let wants = |group, kind| Ok(Some((group, kind)));
        assert_eq!(wanted(&pod(json!({LABEL_GROUP: "orders"}), "")), wants("orders", SidecarKind::App));
        assert_eq!(wanted(&pod(json!({LABEL_READS: "orders"}), "")), wants("orders", SidecarKind::Reader));
        assert_eq!(wanted(&pod(json!({"app": "orders"}), "")), Ok(None));
        let both = json!({LABEL_GROUP: "orders", LABEL_READS: "stock"});
        let refused = wanted(&pod(both.clone(), "")).unwrap_err();
        assert!(refused.contains("group: orders") && refused.contains("reads: stock"), "{refused}");
        for labels in [json!({LABEL_GROUP: "orders"}), json!({LABEL_READS: "orders"}), both] {
            assert_eq!(wanted(&pod(labels.clone(), "false")), Ok(None), "{labels}, and a sidecar of its own");
        }
    }

    fn group() -> ReplicaGroup {
        serde_yaml::from_str(
            "{apiVersion: replication.tailwind.dev/v1alpha1, kind: ReplicaGroup, metadata: {name: orders, namespace: shop}, spec: {}}",
        )
        .unwrap()
    }

    /// A pod as API servers show it to webhooks, where this is the source of the volume that its app's container mounts.
    fn with_volume(source: &Value) -> Value {
        let mounts = json!([{"name": "a", "mountPath": TOKEN_FOLDER}]);
        json!({
            "metadata": {"name": "app-0"},
            "spec": {
                "initContainers": [{"name": "prepare"}],
                "containers": [{"name": "app", "volumeMounts": mounts}, {"name": "exporter"}],
                "volumes": [{"name": "a", "projected": {"sources": [source, {"configMap": {"name": "kube-root-ca.crt"}}]}}],
            },
        })
    }

    #[test]
    fn apps_with_the_token_are_warned_about() {
        let group = group();
        let warned = |pod: &Value, kind| warnings(pod, &group, kind).join("; ");
        let mounted = with_volume(&json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}));
        let warning = warned(&mounted, SidecarKind::App);
        assert!(warning.starts_with("set automountServiceAccountToken: false"), "{warning}");
        assert!(warning.ends_with("ReplicaGroup orders can be changed by container app"), "{warning}");
        assert!(warning.len() < 256, "{warning}");
        assert_eq!(warned(&mounted, SidecarKind::Reader), "", "its account may only read the group");
        // The sidecar's own token, for which no app is to blame.
        let unmounted = with_volume(&json!({"secret": {"name": "a"}}));
        let injected =
            inject(&unmounted, &group, SidecarKind::App, &Settings::default(), ServerVersion::TARGET).unwrap();
        assert!(injected.to_string().contains("serviceAccountToken"), "{injected}");
        assert_eq!(warned(&injected, SidecarKind::App), "");
        let elsewhere = with_volume(&json!({"serviceAccountToken": {"path": "token", "audience": "vault"}}));
        assert_eq!(warned(&elsewhere, SidecarKind::App), "", "a token that the API server does not accept");
    }

    #[test]
    fn the_sidecar_alone_is_given_a_token() {
        let group = group();
        let pod =
            json!({"metadata": {}, "spec": {"initContainers": [{"name": "prepare"}], "containers": [{"name": "app"}]}});
        for server in [ServerVersion::TARGET, "1.28".parse().unwrap()] {
            for kind in [SidecarKind::App, SidecarKind::Reader] {
                let pod = inject(&pod, &group, kind, &Settings::default(), server).unwrap();
                assert!(pod["spec"]["automountServiceAccountToken"].is_null(), "the app may need its own: {pod}");
                let lists = ["initContainers", "containers"].into_iter().flat_map(|list| pod["spec"][list].as_array());
                let with = lists.flatten().filter(|container| container.to_string().contains("tailwind-token"));
                let with: Vec<&Value> = with.map(|container| &container["name"]).collect();
                assert_eq!(with, [SIDECAR_CONTAINER], "{server} {kind:?}");
            }
        }
    }

    #[test]
    fn only_numbers_of_users_and_any_are_allowed() {
        let injected = |users: &str| {
            let annotations = json!({ANNOTATION_ALLOW_UID: users});
            let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "app"}]}});
            inject(&pod, &group(), SidecarKind::App, &Settings::default(), ServerVersion::TARGET)
        };
        for (users, option) in [("any", "any"), ("1000", "1000"), (" 1000, 1001 ", "1000,1001")] {
            let pod = injected(users).unwrap();
            let arguments = pod["spec"]["initContainers"][0]["args"].as_array().unwrap();
            assert!(arguments.contains(&json!(format!("--allow-uid={option}"))), "{users:?}: {arguments:?}");
        }
        for users in ["", "postgres", "1000,", "1000 1001", "-1", "4294967296"] {
            let why = injected(users).unwrap_err();
            assert!(why.contains(ANNOTATION_ALLOW_UID) && why.contains(&format!("{users:?}")), "{why}");
        }
    }
}
