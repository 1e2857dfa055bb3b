//! A backup pod.
//!
//! Called by [`backups`](crate::plan) for each pod that is to be made; its template's hash tells which pods are of
//! an older spec or image.

use k8s_openapi::DeepMerge;
use k8s_openapi::api::core::v1::{Pod, Taint};
use kube::ResourceExt;
use serde_json::{Value, json};
use tailwind_crds::names::{
    ANNOTATION_ATTEMPT, ANNOTATION_CLAIM, ANNOTATION_SHAPE, ANNOTATION_TEMPLATE, BACKUP_CONTAINER, GATE_CAUGHT_UP,
    LABEL_BACKUP_OF, PORT_BACKUP, PORT_BACKUP_DATA, PORT_BACKUP_PROBES, TLS_FOLDER, USER, backup_secret, flush_claim,
};
use tailwind_crds::{Hugepages, PodTemplateSpec, ReplicaGroup, ReplicaGroupSpec, Transport};
use tailwind_report::memory;

use super::{LABEL_INSTANCE, container, flush, table};
use crate::digest::sha256;
use crate::options::Settings;
use crate::platform::Platform;
use crate::quantity;
use crate::tolerations::tolerates;

/// Its place among the volumes.
const FLUSH_VOLUME: usize = 1;
/// Where the flush volume is mounted.
const FLUSH_FOLDER: &str = "/flush";
/// Between the signal to end and the kill: flushing may take all of holdUpSeconds.
const GRACE_MORE_SECONDS: u32 = 10;
/// What the control plane puts on a node that it does not hear, or that is not well: pods without a toleration go.
const NODE_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
const NO_EXECUTE: &str = "NoExecute";
/// NFD says so of nodes whose RDMA drivers are loaded. Preferred, never required: with dynamic allocation it is absent.
const LABEL_RDMA: &str = "feature.node.kubernetes.io/custom-rdma.available";

/// A pod to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Creation {
    /// Its name.
    pub name: String,
    /// Nodes that have just refused another.
    pub avoid: Vec<String>,
    /// How many before it failed one after the other.
    pub attempt: u32,
}

/// The pod.
///
/// # Panics
/// If the template is no pod; the golden tests render it in all its forms.
pub fn backup(group: &ReplicaGroup, settings: &Settings, creation: &Creation) -> Pod {
    let mut pod = template(group, settings);
    let hash = sha256(pod.to_string().as_bytes());
    pod["metadata"]["name"] = json!(creation.name);
    if flush::has_claim(&group.spec) {
        let claim = json!(flush_claim(&creation.name));
        pod["metadata"]["annotations"][ANNOTATION_CLAIM] = claim.clone();
        pod["spec"]["volumes"][FLUSH_VOLUME]["persistentVolumeClaim"]["claimName"] = claim;
    }
    let annotations = &mut pod["metadata"]["annotations"];
    annotations[ANNOTATION_TEMPLATE] = json!(hash);
    annotations[ANNOTATION_SHAPE] = json!(shape(&group.spec));
    if creation.attempt > 0 {
        annotations[ANNOTATION_ATTEMPT] = json!(creation.attempt.to_string());
    }
    avoid(&mut pod["spec"]["affinity"], &creation.avoid);
    serde_json::from_value(pod).unwrap_or_else(|error| panic!("a backup pod made here is none: {error}"))
}

/// Names what pods are made from: another hash, and they are out of date.
pub fn template_hash(group: &ReplicaGroup, settings: &Settings) -> String {
    sha256(template(group, settings).to_string().as_bytes())
}

/// The part of a spec that can never change while a log lives in the pods.
pub fn shape(spec: &ReplicaGroupSpec) -> String {
    format!("{:?} {:?} {}", spec.durability, spec.transport(), spec.segment_size.bytes())
}

fn template(group: &ReplicaGroup, settings: &Settings) -> Value {
    let spec = &group.spec;
    let name = group.name_any();
    let namespace = group.namespace().unwrap_or_default();
    let root = container::needs_root(spec);

    let added = &spec.pod_template.metadata;
    let mut labels = json!(added.labels);
    for (label, value) in [
        ("app.kubernetes.io/name", "tailwind-backup"),
        (LABEL_INSTANCE, &name),
        ("app.kubernetes.io/managed-by", "tailwind-operator"),
        (LABEL_BACKUP_OF, &name),
    ] {
        labels[label] = json!(value);
    }
    let mut annotations = json!(added.annotations);
    let networks = spec.rdma.as_ref().map_or(&[][..], |rdma| &rdma.networks);
    let existing = added.annotations.get(container::ANNOTATION_NETWORKS);
    if let Some(networks) = container::networks(existing, networks, &namespace) {
        annotations[container::ANNOTATION_NETWORKS] = json!(networks);
    }

    let mut pod_spec = json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": spec.hold_up_seconds + GRACE_MORE_SECONDS,
        "readinessGates": [{"conditionType": GATE_CAUGHT_UP}],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": affinity(spec, &name),
        "topologySpreadConstraints": spread(spec, &name),
        "tolerations": tolerations(spec),
        "containers": [container(group, settings)],
        "volumes": volumes(spec, &name),
    });
    let placement = &spec.placement;
    let optional = [
        ("nodeSelector", (!placement.node_selector.is_empty()).then(|| json!(placement.node_selector))),
        ("resourceClaims", container::claim(spec).map(|claim| json!([claim]))),
    ];
    for (field, value) in optional {
        if let Some(value) = value {
            pod_spec[field] = value;
        }
    }
    if settings.platform == Platform::Kubernetes {
        // So that the user may write to the flush volume and read the key.
        pod_spec["securityContext"]["fsGroup"] = json!(if root { 0 } else { USER });
    }
    if has_host_network(spec) {
        pod_spec["hostNetwork"] = json!(true);
        pod_spec["dnsPolicy"] = json!("ClusterFirstWithHostNet");
    }
    merge(&mut pod_spec, &spec.pod_template.spec);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [super::owner(group)],
        },
        "spec": pod_spec,
    })
}

/// Puts what the group adds into a pod's spec. All of it are single values, objects that merge field by field, and a list that
/// is not there yet: so this is what a strategic merge makes of it. What it says of the pod's security holds for the containers
/// as well, whose own word would count before it.
fn merge(pod_spec: &mut Value, added: &PodTemplateSpec) {
    for field in json!(added.security_context).as_object().into_iter().flat_map(|context| context.keys()) {
        for container in pod_spec["containers"].as_array_mut().into_iter().flatten() {
            container["securityContext"].as_object_mut().map(|own| own.remove(field));
        }
    }
    pod_spec.merge_from(json!(added));
}

fn has_host_network(spec: &ReplicaGroupSpec) -> bool {
    spec.rdma.as_ref().is_some_and(|rdma| rdma.host_network)
}

fn container(group: &ReplicaGroup, settings: &Settings) -> Value {
    let spec = &group.spec;
    let tcp = spec.transport() == Transport::Tcp;
    let mut arguments = vec![
        "backup".to_owned(),
        format!("--group={}", group.name_any()),
        "--name=$(POD_NAME)".to_owned(),
        format!("--listen=[::]:{PORT_BACKUP}"),
        "--advertise-ip=$(POD_IP)".to_owned(),
        format!("--metrics-listen=[::]:{PORT_BACKUP_PROBES}"),
        format!("--fabric={}", if tcp { "tcp" } else { "verbs" }),
        format!("--segment-size={}", spec.segment_size.bytes()),
        format!("--buffers={}", spec.buffers),
        "--pool=/pool/buffers".to_owned(),
        format!("--hold-up={}", spec.hold_up_seconds),
    ];
    let mut ports = vec![
        json!({"name": "control", "containerPort": PORT_BACKUP}),
        json!({"name": "probes", "containerPort": PORT_BACKUP_PROBES}),
    ];
    if tcp {
        arguments.push(format!("--data-listen=[::]:{PORT_BACKUP_DATA}"));
        ports.push(json!({"name": "data", "containerPort": PORT_BACKUP_DATA}));
    }
    if has_host_network(spec) {
        for port in &mut ports {
            port["hostPort"] = port["containerPort"].clone();
        }
    }
    arguments.extend(flush::bound(spec).map(|bytes| format!("--flush-bytes={bytes}")));
    arguments.extend(table::backup_flags(spec));
    arguments.extend(container::rdma_flags(spec.rdma.as_ref()));
    arguments.extend(container::tls_flags());

    let segment = spec.segment_size.bytes();
    let pool = pool_bytes(spec);
    let in_memory = if hugepages(spec).is_some() { 0 } else { pool };
    let given = spec.backup_resources.as_ref();
    let beside = memory::beside_pool(memory::SEGMENTS_MAX, segment);
    let mut resources = container::resources(spec, given, beside, in_memory + table::loading_bytes(spec));
    if let Some((resource, _)) = hugepages(spec) {
        for side in [&mut resources.requests, &mut resources.limits].into_iter().flatten() {
            side.insert(resource.to_owned(), quantity::bytes(pool));
        }
    }
    flush::request_storage(spec, &mut resources);
    let mut container = json!({
        "name": BACKUP_CONTAINER,
        "image": settings.image(spec),
        "args": arguments,
        "env": environment(spec),
        // Why it ended is shown in its pod, where people and the operator look first.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": ports,
        "resources": resources,
        // Registering a large pool and measuring the disk take their time, once.
        "startupProbe": container::probe("/healthz", PORT_BACKUP_PROBES, 2, 150),
        "livenessProbe": container::probe("/healthz", PORT_BACKUP_PROBES, 10, 6),
        "readinessProbe": container::probe("/readyz", PORT_BACKUP_PROBES, 5, 2),
        "securityContext": container::security(spec, settings.platform, false),
        "volumeMounts": [
            {"name": "pool", "mountPath": "/pool"},
            {"name": "flush", "mountPath": FLUSH_FOLDER},
            {"name": "tls", "mountPath": TLS_FOLDER, "readOnly": true},
        ],
    });
    if let Some(policy) = &settings.image_pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
    container
}

/// The flush folder is given here and not among the arguments, so that `tailwind-sidecar quarantine` in this container has it.
/// The limit that counts for an emptyDir is the one that the pod has in the end, which an admission plugin may have set.
fn environment(spec: &ReplicaGroupSpec) -> Value {
    let mut variables = container::environment();
    push(&mut variables, json!({"name": "TAILWIND_FLUSH_DIR", "value": FLUSH_FOLDER}));
    if !flush::has_claim(spec) {
        let limit = json!({"resource": format!("limits.{}", flush::EPHEMERAL_STORAGE), "divisor": "1"});
        push(&mut variables, json!({"name": "TAILWIND_EPHEMERAL_STORAGE", "valueFrom": {"resourceFieldRef": limit}}));
    }
    variables
}

/// Resource and medium of huge pages.
fn hugepages(spec: &ReplicaGroupSpec) -> Option<(&'static str, &'static str)> {
    Some(match spec.rdma.as_ref()?.hugepages? {
        Hugepages::Mi2 => ("hugepages-2Mi", "HugePages-2Mi"),
        Hugepages::Gi1 => ("hugepages-1Gi", "HugePages-1Gi"),
    })
}

fn pool_bytes(spec: &ReplicaGroupSpec) -> u64 {
    let page: u64 = match spec.rdma.as_ref().and_then(|rdma| rdma.hugepages) {
        None | Some(Hugepages::Mi2) => 2 << 20,
        Some(Hugepages::Gi1) => 1 << 30,
    };
    let block = if hugepages(spec).is_some() { page } else { 4096 };
    let buffers = u64::from(spec.buffers) + table::residents(spec);
    let bytes = memory::pool(buffers, spec.segment_size.bytes(), block) + table::mirror_in_pool(spec, block);
    bytes.next_multiple_of(page)
}

fn volumes(spec: &ReplicaGroupSpec, name: &str) -> Value {
    let medium = hugepages(spec).map_or("Memory", |(_, medium)| medium);
    let pool = json!({"medium": medium, "sizeLimit": quantity::bytes(pool_bytes(spec))});
    let mut volume = json!({"name": "flush"});
    if flush::has_claim(spec) {
        volume["persistentVolumeClaim"] = json!({"claimName": ""});
    } else {
        let limit = spec.flush_volume.as_ref().and_then(|volume| volume.empty_dir_size_limit.as_ref());
        volume["emptyDir"] = limit.map_or_else(|| json!({}), |limit| json!({"sizeLimit": limit}));
    }
    json!([
        {"name": "pool", "emptyDir": pool},
        volume,
        {"name": "tls", "secret": {"secretName": backup_secret(name), "defaultMode": 0o440}},
    ])
}

/// Never two of a group on one node: both would be lost with it.
fn affinity(spec: &ReplicaGroupSpec, name: &str) -> Value {
    let mut affinity = json!(spec.placement.affinity.clone().unwrap_or_default());
    let apart = json!({
        "labelSelector": {"matchLabels": {LABEL_BACKUP_OF: name}},
        "topologyKey": "kubernetes.io/hostname",
    });
    push(&mut affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"], apart);
    if spec.transport() == Transport::Rdma {
        let drivers = json!({
            "weight": 50,
            "preference": {"matchExpressions": [{"key": LABEL_RDMA, "operator": "In", "values": ["true"]}]},
        });
        push(&mut affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"], drivers);
    }
    affinity
}

fn spread(spec: &ReplicaGroupSpec, name: &str) -> Value {
    match spec.placement.topology_spread_constraints.as_slice() {
        [] => json!([{
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {LABEL_BACKUP_OF: name}},
        }]),
        constraints => json!(constraints),
    }
}

/// A backup stays on a node that the control plane does not hear: its memory may be well, and the primary may hear it. By
/// default Kubernetes deletes such pods after five minutes, all members of a rack at once, and their memory and volumes with
/// them. Only the operator decides which backup is replaced, and when. A toleration of the group's own for the same taint
/// counts. <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions>
fn tolerations(spec: &ReplicaGroupSpec) -> Value {
    let given = &spec.placement.tolerations;
    let missing = NODE_TAINTS.iter().filter(|taint| {
        let taint = Taint { key: (**taint).to_owned(), effect: NO_EXECUTE.to_owned(), ..Taint::default() };
        !given.iter().any(|toleration| tolerates(toleration, &taint))
    });
    let added = missing.map(|key| json!({"key": key, "operator": "Exists", "effect": NO_EXECUTE}));
    given.iter().map(|toleration| json!(toleration)).chain(added).collect()
}

/// A term of its own for each node, since a field can be compared with one value only.
fn avoid(affinity: &mut Value, nodes: &[String]) {
    if nodes.is_empty() {
        return;
    }
    let terms = &mut affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    if terms.as_array().is_none_or(Vec::is_empty) {
        *terms = json!([{}]);
    }
    for term in terms.as_array_mut().into_iter().flatten() {
        for node in nodes {
            push(&mut term["matchFields"], json!({"key": "metadata.name", "operator": "NotIn", "values": [node]}));
        }
    }
}

fn push(list: &mut Value, value: Value) {
    match list.as_array_mut() {
        Some(list) => list.push(value),
        None => *list = json!([value]),
    }
}
