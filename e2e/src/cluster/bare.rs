//! A group without an operator: bare pods and a `ReplicaGroup` that only its sidecars change.
//!
//! Shows that what tests rely on works (loaders, the oracle, faults of nodes and containers), and that failover needs no
//! operator.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kubernetes::{Cluster, holds, text};
use super::namespace::{KEPT, Load, Namespace, image};
use super::operated::{HOME, RELEASE};
use crate::certificates::Authority;

/// The group's name, as its certificates say.
const GROUP: &str = "demo";
/// Its API group and version.
const API: &str = "replication.tailwind.dev/v1alpha1";
/// Where the definition of `ReplicaGroup` is kept.
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/replicagroups.replication.tailwind.dev";

/// A group of pods `app-1`, `app-2`, ... and `backup-1`, ....
pub struct BareGroup<'s, 'c> {
    namespace: &'s Namespace<'c>,
}

/// Starts `backups` backups and `apps` apps, each on another node than the others of its kind; returns when the first app is
/// primary and the others are standbys.
pub fn start<'s, 'c>(namespace: &'s Namespace<'c>, apps: usize, backups: usize) -> Result<BareGroup<'s, 'c>> {
    define(namespace.cluster)?;
    namespace.cluster.apply(&roles(namespace))?;
    secret(namespace)?;
    let backup_names: Vec<String> = (1..=backups).map(|number| format!("backup-{number}")).collect();
    namespace.cluster.apply(&backup_names.iter().map(|name| backup(namespace, name)).collect::<Vec<_>>())?;
    let mut known = Vec::new();
    for name in &backup_names {
        let address = format!("{}:7420", text(&namespace.wait_for_pod(name)?, "/status/podIP"));
        known.push(json!({"name": name, "control": address, "state": "Spare"}));
    }
    let spec = json!({"backups": backups, "segmentSize": "256Ki", "transport": "Tcp"});
    let group = json!({"apiVersion": API, "kind": "ReplicaGroup", "metadata": {"name": GROUP}, "spec": spec});
    let collection = namespace.path(API, "replicagroups");
    namespace.cluster.ask("POST", &collection, "application/json", Some(&group))?.context("no ReplicaGroups here")?;
    // What the operator would write.
    let status = json!({"status": {"transport": "Tcp", "membersWanted": backups, "backups": known}});
    namespace.cluster.patch(&format!("{collection}/{GROUP}/status"), &status)?;
    let group = BareGroup { namespace };
    for number in 1..=apps {
        group.start_app(&format!("app-{number}"))?;
        namespace.wait_for_report("the first acks", |report| report.acked > 0)?;
    }
    Ok(group)
}

impl BareGroup<'_, '_> {
    /// Starts an app, or starts it again after its pod was removed; returns when its sidecar knows whether it is primary.
    pub fn start_app(&self, name: &str) -> Result<()> {
        self.namespace.cluster.apply(&[app(self.namespace, name)])?;
        self.namespace.wait_for_pod(name).map(|_| ())
    }
}

/// Defines `ReplicaGroup` where it is not defined yet. Old servers refuse its rules from `apply`, and drop them from `create`.
fn define(cluster: &Cluster) -> Result<()> {
    if cluster.get(DEFINITION)?.is_none() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/replicagroups.yaml");
        cluster.kubectl(&["create", "--validate=false", "-f", &file.to_string_lossy()], "")?;
        // Helm takes over what bears its marks: other tests install the chart.
        let marks = json!({
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": HOME},
        });
        cluster.patch(DEFINITION, &json!({"metadata": marks}))?;
    }
    cluster.wait("ReplicaGroup to be defined", || {
        let definition = cluster.get(DEFINITION)?.context("defined")?;
        ensure!(holds(&definition, "Established"), "{}", definition["status"]);
        Ok(Some(()))
    })
}

/// What the sidecars' account may do.
fn roles(namespace: &Namespace<'_>) -> [Value; 2] {
    let metadata = json!({"name": "sidecar", "namespace": namespace.name});
    let api_group = API.split('/').next();
    [
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": [
            {"apiGroups": [api_group], "resources": ["replicagroups"], "resourceNames": [GROUP], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [api_group], "resources": ["replicagroups/status"], "resourceNames": [GROUP], "verbs": ["patch"]},
        ]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "sidecar"},
               "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace.name}]}),
    ]
}

fn secret(namespace: &Namespace<'_>) -> Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let authority = Authority::generate()?;
    authority.issue_group(folder.path(), 0..0, 0..0)?;
    for role in ["sidecar", "backup"] {
        authority.issue(folder.path(), &format!("any-{role}"), &format!("tailwind://{GROUP}/{role}/any"))?;
    }
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder.path()).context("list certificates")?.flatten() {
        let text = fs::read_to_string(entry.path()).context("read a certificate")?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), text);
    }
    namespace.cluster.apply(&[json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls", "namespace": namespace.name},
        "stringData": files,
    })])
}

fn backup(namespace: &Namespace<'_>, name: &str) -> Value {
    let arguments = format!(
        "backup --group {GROUP} --name {name} --fabric tcp --listen [::]:7420 --advertise-ip $(POD_IP) \
         --data-listen [::]:7422 --segment-size 256KiB --buffers 64 --pool /pool/buffers --flush-dir /flush \
         --flush-bandwidth 1GiB {}",
        tls("any-backup")
    );
    let volumes = [("pool", "/pool", json!({"medium": "Memory"})), ("flush", "/flush", json!({}))];
    let mounts: Vec<Value> = volumes.iter().map(|(name, path, _)| json!({"name": name, "mountPath": path})).collect();
    let volumes = volumes.iter().map(|(name, _, of)| json!({"name": name, "emptyDir": of})).collect();
    pod(namespace, name, "backup", vec![container("backup", &arguments, mounts)], volumes)
}

fn app(namespace: &Namespace<'_>, name: &str) -> Value {
    let arguments = format!(
        "run --replica-group {}/{GROUP} --name {name} --listen [::]:7410 --advertise-ip $(POD_IP) \
         --metrics-listen [::]:7411 --socket /run/tailwind/log.sock --allow-uid any {}",
        namespace.name,
        tls("any-sidecar")
    );
    let socket = json!({"name": "socket", "mountPath": "/run/tailwind"});
    let mut sidecar = container("sidecar", &arguments, vec![socket.clone()]);
    sidecar["readinessProbe"] = json!({"httpGet": {"path": "/readyz", "port": 7411}, "periodSeconds": 1});
    let mut loader = namespace.loader(Load::of_rate(2000));
    loader["volumeMounts"] = json!([socket]);
    let volumes = vec![json!({"name": "socket", "emptyDir": {"medium": "Memory"}})];
    let mut app = pod(namespace, name, "app", vec![sidecar, loader], volumes);
    app["spec"]["automountServiceAccountToken"] = json!(true);
    app
}

fn tls(name: &str) -> String {
    format!("--tls-ca /tls/ca.pem --tls-cert /tls/{name}.pem --tls-key /tls/{name}.key")
}

fn container(name: &str, arguments: &str, mut mounts: Vec<Value>) -> Value {
    mounts.push(json!({"name": "tls", "mountPath": "/tls"}));
    json!({
        "name": name, "image": image("sidecar"), "imagePullPolicy": "IfNotPresent",
        "args": arguments.split_whitespace().collect::<Vec<_>>(),
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "volumeMounts": mounts,
    })
}

fn pod(namespace: &Namespace<'_>, name: &str, kind: &str, containers: Vec<Value>, mut volumes: Vec<Value>) -> Value {
    volumes.push(json!({"name": "tls", "secret": {"secretName": "tls"}}));
    let apart = json!({"labelSelector": {"matchLabels": {"kind": kind}}, "topologyKey": "kubernetes.io/hostname"});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace.name, "labels": {"kind": kind}},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 5,
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": KEPT, "operator": "DoesNotExist"}]},
                ]}},
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
            },
            "containers": containers, "volumes": volumes,
        },
    })
}
