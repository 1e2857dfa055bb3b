//! The Pod Security level `restricted`: what is made here passes it, but for pods that pin memory and ask for more.
//!
//! The rules are those of <https://kubernetes.io/docs/concepts/security/pod-security-standards/>, of 1.34.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::{Value, json};
use tailwind_crds::names::{PORT_BACKUP, PORT_BACKUP_PROBES};
use tailwind_crds::{Memlock, ReplicaGroup};
use tailwind_operator::objects::pod::{Creation, backup};
use tailwind_operator::options::Settings;
use tailwind_operator::platform::Platform;
use tailwind_operator::webhook::inject::{SidecarKind, inject};

const VOLUMES: [&str; 8] =
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];
const SYSCTLS: [&str; 10] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
];
const SELINUX_TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// What `restricted` refuses of a pod; each with its place.
fn violations(pod: &Value) -> BTreeSet<String> {
    let (spec, context) = (&pod["spec"], &pod["spec"]["securityContext"]);
    let mut found = of_context("pod", context);
    let mut refuse = |refused: bool, what: String| {
        if refused {
            found.insert(what);
        }
    };
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        refuse(spec[field] == true, format!("pod: {field}"));
    }
    for sysctl in list(&context["sysctls"]) {
        refuse(!SYSCTLS.contains(&sysctl["name"].as_str().unwrap()), format!("pod: sysctl {}", sysctl["name"]));
    }
    for volume in list(&spec["volumes"]) {
        let kinds = volume.as_object().unwrap().keys().filter(|key| *key != "name");
        kinds.for_each(|kind| refuse(!VOLUMES.contains(&kind.as_str()), format!("pod: volume {kind}")));
    }
    for (annotation, value) in pod["metadata"]["annotations"].as_object().into_iter().flatten() {
        let profile = annotation.starts_with("container.apparmor.security.beta.kubernetes.io/");
        let value = value.as_str().unwrap();
        refuse(profile && value != "runtime/default" && !value.starts_with("localhost/"), format!("pod: {annotation}"));
    }
    for kind in ["initContainers", "containers", "ephemeralContainers"] {
        found.extend(list(&spec[kind]).flat_map(|container| of_container(container, context)));
    }
    found
}

/// What pods and containers both have.
fn of_context(place: &str, context: &Value) -> BTreeSet<String> {
    let selinux = &context["seLinuxOptions"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rules = [
        ("runAsUser 0", context["runAsUser"] == 0),
        ("runAsNonRoot false", context["runAsNonRoot"] == false),
        ("seccompProfile Unconfined", context["seccompProfile"]["type"] == "Unconfined"),
        ("appArmorProfile Unconfined", context["appArmorProfile"]["type"] == "Unconfined"),
        ("hostProcess", context["windowsOptions"]["hostProcess"] == true),
        ("seLinuxOptions.type", !SELINUX_TYPES.contains(&text(&selinux["type"]).as_str())),
        ("seLinuxOptions.user", !text(&selinux["user"]).is_empty()),
        ("seLinuxOptions.role", !text(&selinux["role"]).is_empty()),
    ];
    rules.iter().filter(|(_, refused)| *refused).map(|(rule, _)| format!("{place}: {rule}")).collect()
}

fn of_container(container: &Value, pod: &Value) -> BTreeSet<String> {
    let place = container["name"].as_str().unwrap();
    let context = &container["securityContext"];
    let mut found = of_context(place, context);
    let mut refuse = |refused: bool, rule: &str| {
        if refused {
            found.insert(format!("{place}: {rule}"));
        }
    };
    let either = |field: &str| if context[field].is_null() { &pod[field] } else { &context[field] };
    refuse(either("runAsNonRoot") != true, "runAsNonRoot is not true");
    let seccomp = either("seccompProfile")["type"].as_str();
    refuse(!matches!(seccomp, Some("RuntimeDefault" | "Localhost")), "seccompProfile is not set");
    refuse(context["privileged"] == true, "privileged");
    refuse(context["allowPrivilegeEscalation"] != false, "allowPrivilegeEscalation is not false");
    refuse(!matches!(context["procMount"].as_str(), None | Some("Default")), "procMount");
    let capabilities = &context["capabilities"];
    refuse(!list(&capabilities["drop"]).any(|dropped| dropped == "ALL"), "capabilities: ALL are not dropped");
    for added in list(&capabilities["add"]).filter(|added| *added != "NET_BIND_SERVICE") {
        refuse(true, &format!("capabilities: {} is added", added.as_str().unwrap()));
    }
    for port in list(&container["ports"]).map(|port| &port["hostPort"]).filter(|port| !port.is_null() && **port != 0) {
        refuse(true, &format!("hostPort {port}"));
    }
    let hooks = [&container["lifecycle"]["postStart"], &container["lifecycle"]["preStop"]];
    let probes = ["startupProbe", "livenessProbe", "readinessProbe"].map(|probe| &container[probe]);
    for handler in probes.into_iter().chain(hooks) {
        let host = ["httpGet", "tcpSocket"].iter().any(|kind| !handler[*kind]["host"].is_null());
        refuse(host, "a probe or hook of another host");
    }
    found
}

fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    serde_yaml::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap()).collect()
}

fn top() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The groups of all samples, and those that pin memory also without a capability for it.
fn groups() -> Vec<ReplicaGroup> {
    let samples = fs::read_dir(top().join("manifests/samples")).unwrap();
    let documents = samples.flat_map(|entry| documents(&entry.unwrap().path()));
    let mut groups: Vec<ReplicaGroup> = documents
        .filter(|document| document["kind"] == "ReplicaGroup")
        .map(|document| serde_json::from_value(document).unwrap())
        .collect();
    for mut group in groups.clone() {
        if let Some(rdma) = &mut group.spec.rdma {
            rdma.memlock = Memlock::NodeLimit;
            groups.push(group);
        }
    }
    assert!(groups.len() >= 10, "samples are missing");
    groups
}

const KINDS: [SidecarKind; 2] = [SidecarKind::App, SidecarKind::Reader];

fn settings(platform: Platform) -> Settings {
    Settings { sidecar_image: "sidecar:1".to_owned(), platform, ..Settings::default() }
}

fn backup_of(group: &ReplicaGroup, platform: Platform) -> Value {
    let creation = Creation { name: "b".to_owned(), ..Creation::default() };
    let pod: Pod = backup(group, &settings(platform), &creation);
    serde_json::to_value(pod).unwrap()
}

/// What was added to an app's pod: the sidecar and its volumes.
fn injected(group: &ReplicaGroup, kind: SidecarKind, platform: Platform) -> Value {
    let app = json!({"metadata": {"name": "a"}, "spec": {"containers": []}});
    inject(&app, group, kind, &settings(platform), "1.34".parse().unwrap()).unwrap()
}

fn pins_memory(group: &ReplicaGroup) -> bool {
    group.spec.rdma.as_ref().is_some_and(|rdma| rdma.memlock == Memlock::Capability)
}

/// What a group asks for that `restricted` refuses.
fn asked_for(group: &ReplicaGroup, container: &str, is_backup: bool) -> BTreeSet<String> {
    let mut asked = BTreeSet::new();
    if pins_memory(group) {
        for rule in ["runAsUser 0", "runAsNonRoot false", "runAsNonRoot is not true", "capabilities: IPC_LOCK is added"]
        {
            asked.insert(format!("{container}: {rule}"));
        }
    }
    if is_backup && group.spec.rdma.as_ref().is_some_and(|rdma| rdma.host_network) {
        asked.insert("pod: hostNetwork".to_owned());
        asked.extend([PORT_BACKUP, PORT_BACKUP_PROBES].map(|port| format!("{container}: hostPort {port}")));
    }
    asked
}

#[test]
fn pods_of_groups_pass_unless_they_pin_memory() {
    for group in groups() {
        for platform in [Platform::Kubernetes, Platform::OpenShift] {
            let name = format!("{:?} {platform:?}", group.metadata.name);
            assert_eq!(violations(&backup_of(&group, platform)), asked_for(&group, "backup", true), "{name}");
            for kind in KINDS {
                let sidecar = injected(&group, kind, platform);
                let asked_for = asked_for(&group, "tailwind-sidecar", false);
                assert_eq!(violations(&sidecar), asked_for, "{name} {kind:?}");
            }
        }
    }
}

/// The cluster refuses users and groups outside of the range that it has given to the namespace.
#[test]
fn pods_on_openshift_name_no_users() {
    let names_users = |pod: &Value| {
        let text = pod.to_string();
        ["runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"].iter().any(|field| text.contains(field))
    };
    for group in groups().iter().filter(|group| !pins_memory(group)) {
        let pods = |platform| {
            let sidecars = KINDS.map(|kind| injected(group, kind, platform));
            [backup_of(group, platform)].into_iter().chain(sidecars)
        };
        assert!(pods(Platform::Kubernetes).all(|pod| names_users(&pod)));
        assert!(!pods(Platform::OpenShift).any(|pod| names_users(&pod)), "{:?}", group.metadata.name);
    }
}

#[test]
fn operator_and_sample_app_pass_on_both_platforms() {
    let mut checked = 0;
    for file in ["manifests/install.yaml", "manifests/samples/kv.yaml", "manifests/samples/kv-readers.yaml"] {
        for document in documents(&top().join(file)) {
            if document["kind"] == "Deployment" || document["kind"] == "StatefulSet" {
                let pod = &document["spec"]["template"];
                assert_eq!(violations(pod), BTreeSet::new(), "{file}");
                let context = &pod["spec"]["securityContext"];
                assert!(context["runAsUser"].is_null() && context["fsGroup"].is_null(), "{file}: OpenShift refuses it");
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 3);
}

/// Images of others may not say which user is theirs.
#[test]
fn samples_of_unmodified_programs_pass() {
    for file in ["manifests/samples/redis.yaml", "manifests/samples/sqlite.yaml"] {
        let documents = documents(&top().join(file));
        let pod = &documents.iter().find(|document| document["kind"] == "StatefulSet").unwrap()["spec"]["template"];
        assert_eq!(violations(pod), BTreeSet::new(), "{file}");
        assert!(pod["spec"]["shareProcessNamespace"].is_null(), "{file}: tailwind-exec would not be PID 1");
    }
}

/// Each rule finds what breaks it, and nothing else does.
#[test]
fn each_rule_refuses_what_it_should() {
    let good = || {
        json!({"metadata": {}, "spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{
                "name": "c",
                "ports": [{"containerPort": 1}],
                "livenessProbe": {"httpGet": {"port": 1}},
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        }})
    };
    assert_eq!(violations(&good()), BTreeSet::new());
    let container = "/spec/containers/0";
    let cases = [
        ("/spec/hostNetwork", json!(true), "pod: hostNetwork"),
        ("/spec/hostPID", json!(true), "pod: hostPID"),
        ("/spec/hostIPC", json!(true), "pod: hostIPC"),
        ("/spec/securityContext/sysctls", json!([{"name": "kernel.msgmax"}]), "pod: sysctl \"kernel.msgmax\""),
        ("/spec/securityContext/runAsUser", json!(0), "pod: runAsUser 0"),
        ("/spec/securityContext/runAsNonRoot", Value::Null, "c: runAsNonRoot is not true"),
        ("/spec/securityContext/seccompProfile", Value::Null, "c: seccompProfile is not set"),
        ("/spec/securityContext/seLinuxOptions", json!({"type": "spc_t"}), "pod: seLinuxOptions.type"),
        ("/spec/volumes/0/hostPath", json!({"path": "/"}), "pod: volume hostPath"),
        ("C/securityContext/privileged", json!(true), "c: privileged"),
        ("C/securityContext/allowPrivilegeEscalation", Value::Null, "c: allowPrivilegeEscalation is not false"),
        ("C/securityContext/procMount", json!("Unmasked"), "c: procMount"),
        ("C/securityContext/capabilities/drop", json!(["NET_RAW"]), "c: capabilities: ALL are not dropped"),
        ("C/securityContext/capabilities/add", json!(["IPC_LOCK"]), "c: capabilities: IPC_LOCK is added"),
        ("C/securityContext/runAsUser", json!(0), "c: runAsUser 0"),
        ("C/securityContext/seccompProfile", json!({"type": "Unconfined"}), "c: seccompProfile Unconfined"),
        ("C/securityContext/appArmorProfile", json!({"type": "Unconfined"}), "c: appArmorProfile Unconfined"),
        ("C/securityContext/windowsOptions", json!({"hostProcess": true}), "c: hostProcess"),
        ("C/ports/0/hostPort", json!(80), "c: hostPort 80"),
        ("C/livenessProbe/httpGet/host", json!("10.0.0.1"), "c: a probe or hook of another host"),
        ("C/lifecycle", json!({"preStop": {"tcpSocket": {"host": "a"}}}), "c: a probe or hook of another host"),
    ];
    for (path, value, refused) in cases {
        let mut pod = good();
        let path = path.strip_prefix('C').map_or(path.to_owned(), |rest| format!("{container}{rest}"));
        let (parent, field) = path.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[field] = value;
        assert!(violations(&pod).contains(refused), "{path}: {:?}", violations(&pod));
    }
    let mut pod = good();
    pod["spec"]["initContainers"] = json!([{"name": "i"}]);
    assert!(violations(&pod).contains("i: allowPrivilegeEscalation is not false"), "init containers count too");
}
