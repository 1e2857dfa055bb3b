//! A group without an operator: bare pods and a `ReplicaGroup` that nobody looks after but its sidecars.
//!
//! Used by `tests/cluster.rs` to show that what tests rely on works (loaders, the ledger, and all that is done to nodes and
//! containers), and that failover needs no operator.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::operated::{HOME, RELEASE};
use super::stage::{KEPT, Stage, image};
use super::{Cluster, holds, text};

/// The group's name, as its certificates say.
pub const GROUP: &str = "demo";
/// Its API group and version.
const API: &str = "replication.tailwind.dev/v1alpha1";
/// Where the definition of `ReplicaGroup` is kept.
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/replicagroups.replication.tailwind.dev";

/// A group of pods `app-1`, `app-2`, ... and `backup-1`, ....
pub struct Bare<'s, 'c> {
    stage: &'s Stage<'c>,
}

/// Starts `backups` backups and `apps` apps, each on another node than the others of its kind; returns when the first app is
/// primary and the others are standbys. `certify` writes `ca.pem`, `NAME.pem` and `NAME.key` for these sidecars and backups.
pub fn start<'s, 'c>(
    stage: &'s Stage<'c>,
    apps: usize,
    backups: usize,
    certify: impl FnOnce(&Path, &[&str], &[&str]),
) -> Result<Bare<'s, 'c>> {
    define(stage.cluster)?;
    stage.cluster.apply(&roles(stage))?;
    secret(stage, certify)?;
    let backup_names: Vec<String> = (1..=backups).map(|number| format!("backup-{number}")).collect();
    stage.cluster.apply(&backup_names.iter().map(|name| backup(stage, name)).collect::<Vec<_>>())?;
    let mut known = Vec::new();
    for name in &backup_names {
        let address = format!("{}:7420", text(&stage.wait_for_pod(name)?, "/status/podIP"));
        known.push(json!({"name": name, "control": address, "state": "Spare"}));
    }
    let spec = json!({"backups": backups, "segmentSize": "256Ki", "transport": "Tcp"});
    let group = json!({"apiVersion": API, "kind": "ReplicaGroup", "metadata": {"name": GROUP}, "spec": spec});
    let collection = stage.path(API, "replicagroups");
    stage.cluster.ask("POST", &collection, "application/json", Some(&group))?.context("no ReplicaGroups here")?;
    // What the operator would say.
    let status = json!({"status": {"transport": "Tcp", "membersWanted": backups, "backups": known}});
    stage.cluster.patch(&format!("{collection}/{GROUP}/status"), &status)?;
    let group = Bare { stage };
    for number in 1..=apps {
        group.start_app(&format!("app-{number}"))?;
        stage.wait_for_report("the first acks", |report| report.acked > 0)?;
    }
    Ok(group)
}

impl Bare<'_, '_> {
    /// Starts an app, or starts it again after its pod was removed; returns when its sidecar knows whether it is primary.
    pub fn start_app(&self, name: &str) -> Result<()> {
        self.stage.cluster.apply(&[app(self.stage, name)])?;
        self.stage.wait_for_pod(name).map(|_| ())
    }

    /// The status of its `ReplicaGroup`.
    pub fn status(&self) -> Result<Value> {
        let group = self.stage.cluster.get(&self.stage.path(API, &format!("replicagroups/{GROUP}")))?;
        Ok(group.context("no such group")?["status"].clone())
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
fn roles(stage: &Stage<'_>) -> [Value; 2] {
    let metadata = json!({"name": "sidecar", "namespace": stage.namespace});
    let api_group = API.split('/').next();
    [
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": [
            {"apiGroups": [api_group], "resources": ["replicagroups"], "resourceNames": [GROUP], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [api_group], "resources": ["replicagroups/status"], "resourceNames": [GROUP], "verbs": ["patch"]},
        ]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "sidecar"},
               "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": stage.namespace}]}),
    ]
}

fn secret(stage: &Stage<'_>, certify: impl FnOnce(&Path, &[&str], &[&str])) -> Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    certify(folder.path(), &["any-sidecar"], &["any-backup"]);
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder.path()).context("list certificates")?.flatten() {
        let text = fs::read_to_string(entry.path()).context("read a certificate")?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), text);
    }
    stage.cluster.apply(&[json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls", "namespace": stage.namespace},
        "stringData": files,
    })])
}

fn backup(stage: &Stage<'_>, name: &str) -> Value {
    let arguments = format!(
        "backup --group {GROUP} --name {name} --fabric tcp --listen 0.0.0.0:7420 --advertise $(POD_IP):7420 \
         --data-listen 0.0.0.0:7422 --segment-size 256KiB --buffers 64 --pool /pool/buffers --flush-dir /flush \
         --flush-bandwidth 1GiB {}",
        tls("any-backup")
    );
    let volumes = [("pool", "/pool", json!({"medium": "Memory"})), ("flush", "/flush", json!({}))];
    let mounts: Vec<Value> = volumes.iter().map(|(name, path, _)| json!({"name": name, "mountPath": path})).collect();
    let volumes = volumes.iter().map(|(name, _, of)| json!({"name": name, "emptyDir": of})).collect();
    pod(stage, name, "backup", vec![container("backup", &arguments, mounts)], volumes)
}

fn app(stage: &Stage<'_>, name: &str) -> Value {
    let arguments = format!(
        "run --replica-group {}/{GROUP} --name {name} --listen 0.0.0.0:7410 --advertise $(POD_IP):7410 \
         --metrics-listen 0.0.0.0:7411 --socket /run/tailwind/log.sock --allow-uid any {}",
        stage.namespace,
        tls("any-sidecar")
    );
    let socket = json!({"name": "socket", "mountPath": "/run/tailwind"});
    let mut sidecar = container("sidecar", &arguments, vec![socket.clone()]);
    sidecar["readinessProbe"] = json!({"httpGet": {"path": "/readyz", "port": 7411}, "periodSeconds": 1});
    let mut loader = stage.loader(2000);
    loader["volumeMounts"] = json!([socket]);
    let volumes = vec![json!({"name": "socket", "emptyDir": {"medium": "Memory"}})];
    let mut app = pod(stage, name, "app", vec![sidecar, loader], volumes);
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

fn pod(stage: &Stage<'_>, name: &str, kind: &str, containers: Vec<Value>, mut volumes: Vec<Value>) -> Value {
    volumes.push(json!({"name": "tls", "secret": {"secretName": "tls"}}));
    let apart = json!({"labelSelector": {"matchLabels": {"kind": kind}}, "topologyKey": "kubernetes.io/hostname"});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": stage.namespace, "labels": {"kind": kind}},
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
