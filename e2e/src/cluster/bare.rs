//! A group without an operator: bare pods, and the config store in a folder that all nodes of this machine's cluster see.
//!
//! Used by `tests/cluster.rs` to show that what tests rely on works: loaders, the ledger, and all that is done to nodes and
//! containers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::stage::{KEPT, Stage, image};
use super::text;

/// The group's name, as its certificates say.
pub const GROUP: &str = "demo";
/// Files of the group in pods.
const STORE: &str = "/store";

/// A group of pods `app-1`, `app-2`, ... and `backup-1`, ....
pub struct Bare<'s, 'c> {
    stage: &'s Stage<'c>,
    backups: Vec<String>,
    shared: PathBuf,
}

/// Starts `backups` backups and `apps` apps, each on another node than the others of its kind; returns when the first app is
/// primary and the others are standbys. `certify` writes `ca.pem`, `NAME.pem` and `NAME.key` for these sidecars and backups.
pub fn start<'s, 'c>(
    stage: &'s Stage<'c>,
    apps: usize,
    backups: usize,
    certify: impl FnOnce(&Path, &[&str], &[&str]),
) -> Result<Bare<'s, 'c>> {
    let folder = stage.cluster.folder().context("bare groups need a cluster on this machine")?;
    let shared = folder.join("shared").join(&stage.namespace);
    fs::create_dir_all(&shared).context("make the shared folder")?;
    secret(stage, certify)?;
    let backup_names: Vec<String> = (1..=backups).map(|number| format!("backup-{number}")).collect();
    stage.cluster.apply(&backup_names.iter().map(|name| backup(stage, name)).collect::<Vec<_>>())?;
    let mut addresses = Vec::new();
    for name in &backup_names {
        addresses.push(format!("{name}={}:7420", text(&stage.wait_for_pod(name)?, "/status/podIP")));
    }
    let group = Bare { stage, backups: addresses, shared };
    for number in 1..=apps {
        group.start_app(&format!("app-{number}"))?;
        stage.wait_for_report("the first acks", |report| report.acked > 0)?;
    }
    Ok(group)
}

impl Bare<'_, '_> {
    /// Starts an app, or starts it again after its pod was removed; returns when its sidecar knows whether it is primary.
    pub fn start_app(&self, name: &str) -> Result<()> {
        self.stage.cluster.apply(&[app(self.stage, name, &self.backups, &self.shared)])?;
        self.stage.wait_for_pod(name).map(|_| ())
    }
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

fn app(stage: &Stage<'_>, name: &str, backups: &[String], shared: &Path) -> Value {
    let known: String = backups.iter().map(|backup| format!(" --backup {backup}")).collect();
    let arguments = format!(
        "run --group {GROUP} --name {name} --fabric tcp --listen 0.0.0.0:7410 --advertise $(POD_IP):7410 \
         --socket /run/tailwind/log.sock --config {STORE}/config.json --backups {} --segment-size 256KiB {}{known}",
        backups.len(),
        tls("any-sidecar")
    );
    let socket = json!({"name": "socket", "mountPath": "/run/tailwind"});
    let mounts = vec![socket.clone(), json!({"name": "store", "mountPath": STORE})];
    let mut sidecar = container("sidecar", &arguments, mounts);
    let status = ["tailwind-sidecar", "status", "--json", "--socket", "/run/tailwind/log.sock"];
    sidecar["readinessProbe"] = json!({"exec": {"command": status}, "periodSeconds": 1});
    let mut loader = stage.loader(2000);
    loader["volumeMounts"] = json!([socket]);
    let volumes = vec![
        json!({"name": "socket", "emptyDir": {"medium": "Memory"}}),
        json!({"name": "store", "hostPath": {"path": shared}}),
    ];
    pod(stage, name, "app", vec![sidecar, loader], volumes)
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
