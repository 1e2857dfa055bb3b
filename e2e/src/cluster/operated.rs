//! A group in production form: the chart, its operators, a `ReplicaGroup`, and a Deployment of loaders with injected sidecars.
//!
//! The chart is installed once, by the first test that needs it; its operators are on the node that tests leave alone.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailwind_crds::{Phase, ReplicaGroupStatus};

use super::ack_oracle::OracleReport;
use super::container_logs::ContainerLogs;
use super::kubernetes::{Cluster, Container, holds, text};
use super::namespace::{KEPT, Load, Namespace, image, image_name};
use crate::logs::{check, last_lines};

/// The group's name.
pub const GROUP: &str = "demo";
/// The release of the chart, and its namespace.
pub const RELEASE: &str = "tailwind";
/// Where the operators are.
pub const HOME: &str = "tailwind-system";
/// Container of a sidecar in an app's pod.
pub const SIDECAR: &str = "tailwind-sidecar";
/// The label of nodes that some test wants for its backups.
pub const FITS: &str = "tailwind.test/fits";
/// The API group of groups, and its version.
const API: &str = "replication.tailwind.dev/v1alpha1";
/// The label of app pods.
const LABEL_GROUP: &str = "replication.tailwind.dev/group";
/// Records a second: an app that takes over reads all of them first, and on two processors that takes its time.
const RATE: u64 = 1000;
/// What an operator says on a cluster as old as this machine's own.
const OLD_SERVER: &str = "the API server is older than this operator supports";

// ---- The chart ----------------------------------------------------------------------------------------------------------

/// Installs the chart, unless it is installed, and waits until its webhook is asked.
pub fn install(cluster: &Cluster) -> Result<()> {
    if cluster.helm(&["status", RELEASE, "--namespace", HOME]).is_err() {
        helm(cluster, "install", json!({}))?;
    }
    let deployment = format!("/apis/apps/v1/namespaces/{HOME}/deployments/tailwind-operator");
    cluster.wait("the operators to be ready", || {
        let deployment = cluster.get(&deployment)?.context("no operator")?;
        Ok((deployment["status"]["readyReplicas"] == deployment["spec"]["replicas"]).then_some(()))
    })?;
    let webhook = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tailwind-operator";
    cluster.wait("the webhook to be trusted", || {
        let webhook = cluster.get(webhook)?.context("no webhook")?;
        Ok((!text(&webhook, "/webhooks/0/clientConfig/caBundle").is_empty()).then_some(()))
    })
}

/// Undoes what an earlier test that failed has left.
fn restore(cluster: &Cluster) -> Result<()> {
    if cluster.folder().is_none() {
        return Ok(());
    }
    if cluster.get("/version").is_err() {
        cluster.api("start")?;
    }
    for node in cluster.list("/api/v1/nodes")? {
        let name = text(&node, "/metadata/name");
        if !holds(&node, "Ready") {
            // It may run, and be cut off or have come up in part.
            let _ = cluster.node(name, "kill");
            cluster.node(name, "start")?;
        }
        let labels = json!({FITS: null});
        let change = json!({"metadata": {"labels": labels}, "spec": {"unschedulable": null}});
        cluster.patch(&format!("/api/v1/nodes/{name}"), &change)?;
        cluster.node(name, "devices 4")?;
    }
    Ok(())
}

/// Installs or upgrades the chart with the images of this build, the operators on the kept node, and these values over all.
pub fn helm(cluster: &Cluster, action: &str, values: Value) -> Result<()> {
    helm_release(cluster, action, (RELEASE, HOME), values)
}

/// The same as a release of this name, in this namespace.
pub fn helm_release(cluster: &Cluster, action: &str, (release, home): (&str, &str), values: Value) -> Result<()> {
    let (operator, sidecar) = (image_name("operator"), image_name("sidecar"));
    let kept = cluster.list("/api/v1/nodes")?.iter().any(|node| !node["metadata"]["labels"][KEPT].is_null());
    let mut all = json!({
        "image": {"repository": operator, "tag": "e2e"},
        "sidecarImage": {"repository": sidecar, "tag": "e2e"},
        "nodeSelector": if kept { json!({KEPT: "yes"}) } else { json!({}) },
    });
    merge(&mut all, values);
    let folder = tempfile::tempdir().context("make a folder")?;
    let file = folder.path().join("values.json");
    fs::write(&file, all.to_string()).context("write values")?;
    let (chart, file) = (chart(), file.to_string_lossy().into_owned());
    let chart = chart.to_string_lossy();
    cluster.helm(&[action, release, &chart, "--namespace", home, "--values", &file]).map(|_| ())
}

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/tailwind")
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

/// The operators' containers that run.
pub fn operators(cluster: &Cluster) -> Result<Vec<Container>> {
    let pods = cluster.list(&format!("/api/v1/namespaces/{HOME}/pods"))?;
    let alive = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    alive.map(|pod| cluster.container(pod, "operator")).collect()
}

// ---- The group ----------------------------------------------------------------------------------------------------------

/// A group in a namespace of its own, under load.
pub struct OperatedGroup<'c> {
    /// Its namespace, its oracle and its pods.
    pub namespace: Namespace<'c>,
    operators: ContainerLogs,
    /// How often each container had taken up certificates when this was last asked for.
    reloads: RefCell<BTreeMap<String, usize>>,
    finished: bool,
}

/// What a small group asks for: records, not memory, are what these tests move.
pub fn spec(backups: u8) -> Value {
    json!({
        "backups": backups, "segmentSize": "256Ki", "buffers": 16, "transport": "Tcp",
        "placement": {"affinity": {"nodeAffinity": not_kept()}},
    })
}

impl<'c> OperatedGroup<'c> {
    /// A namespace, and the operators' logs from now on; no group yet.
    pub fn prepare(cluster: &'c Cluster, name: &str) -> Result<OperatedGroup<'c>> {
        restore(cluster)?;
        install(cluster)?;
        let operators = ContainerLogs::keep(cluster, HOME)?;
        Ok(OperatedGroup {
            namespace: Namespace::create(cluster, name)?,
            operators,
            reloads: RefCell::default(),
            finished: false,
        })
    }

    /// The same with a group of `backups` backups and two app pods that is whole and acknowledges.
    pub fn start(cluster: &'c Cluster, name: &str, backups: u8) -> Result<OperatedGroup<'c>> {
        let group = OperatedGroup::prepare(cluster, name)?;
        group.ask_for(spec(backups))?;
        group.start_apps(2)?;
        group.wait_until_whole(backups)?;
        Ok(group)
    }

    /// Makes the group, or changes its spec.
    pub fn ask_for(&self, spec: Value) -> Result<()> {
        let metadata = json!({"name": GROUP, "namespace": self.namespace.name});
        // The definition may have just been made.
        let group = json!({"apiVersion": API, "kind": "ReplicaGroup", "metadata": metadata, "spec": spec});
        self.namespace.cluster.apply(&[group])
    }

    /// Merges a change into the group.
    pub fn change(&self, change: &Value) -> Result<()> {
        self.namespace.cluster.patch(&self.path(), change).map(|_| ())
    }

    /// Deletes it with its log.
    pub fn delete(&self) -> Result<()> {
        self.change(&json!({"metadata": {"annotations": {"replication.tailwind.dev/delete-log": GROUP}}}))?;
        self.namespace.cluster.delete(&self.path())
    }

    /// The path of the group.
    pub fn path(&self) -> String {
        self.namespace.path(API, &format!("replicagroups/{GROUP}"))
    }

    /// The group as it is.
    pub fn get(&self) -> Result<Value> {
        self.namespace.cluster.get(&self.path())?.context("no such group")
    }

    /// Names of the members, in the set's order.
    pub fn members(&self) -> Result<Vec<String>> {
        let group = self.get()?;
        let members = group["status"]["log"]["members"].as_array().cloned().unwrap_or_default();
        Ok(members.iter().map(|member| text(member, "/name").to_owned()).collect())
    }

    /// The pods that the service of the primary leads to.
    pub fn primary_endpoints(&self) -> Result<Vec<String>> {
        let slice = self.namespace.cluster.get(&self.primary_slice()?)?.unwrap_or_default();
        let endpoints = slice["endpoints"].as_array().cloned().unwrap_or_default();
        Ok(endpoints.iter().map(|endpoint| text(endpoint, "/targetRef/name").to_owned()).collect())
    }

    /// The path of the EndpointSlice of the primary.
    pub fn primary_slice(&self) -> Result<String> {
        let discovery = self.namespace.cluster.get("/apis/discovery.k8s.io")?.context("no EndpointSlices")?;
        let version = text(&discovery, "/preferredVersion/groupVersion");
        Ok(self.namespace.path(version, &format!("endpointslices/{GROUP}-primary")))
    }

    /// The pods of its backups.
    pub fn backups(&self) -> Result<Vec<Value>> {
        self.namespace.pods(&format!("replication.tailwind.dev/backup-of={GROUP}"))
    }

    /// The pods of its app that are not about to end.
    pub fn apps(&self) -> Result<Vec<Value>> {
        let mut pods = self.namespace.pods("app=loader")?;
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        Ok(pods)
    }

    /// Lets so many app pods append, each on another node.
    pub fn start_apps(&self, count: usize) -> Result<()> {
        self.start_apps_with(count, Load::of_rate(RATE))
    }

    /// The same with another load.
    pub fn start_apps_with(&self, count: usize, load: Load) -> Result<()> {
        self.start_apps_of(count, self.namespace.loader(load))
    }

    /// App pods with this container, each on another node.
    pub fn start_apps_of(&self, count: usize, container: Value) -> Result<()> {
        let labels = json!({"app": "loader", LABEL_GROUP: GROUP});
        let apart =
            json!({"labelSelector": {"matchLabels": {"app": "loader"}}, "topologyKey": "kubernetes.io/hostname"});
        let template = json!({
            "metadata": {"labels": labels},
            "spec": {
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 5,
                "affinity": {
                    "nodeAffinity": not_kept(),
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
                },
                "containers": [container],
            },
        });
        self.namespace.cluster.apply(&[json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "app", "namespace": self.namespace.name},
            "spec": {"replicas": count, "selector": {"matchLabels": {"app": "loader"}}, "template": template},
        })])
    }

    /// Waits until the group meets a condition; as it is then.
    pub fn wait_for(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Result<Value> {
        let found = self.namespace.cluster.wait(what, || {
            let group = self.get()?;
            ensure!(condition(&group), "{}", group["status"]);
            Ok(Some(group))
        });
        found.with_context(|| self.namespace.events())
    }

    /// Waits until the operator has seen the spec and the group is in this phase.
    pub fn wait_for_phase(&self, phase: Phase) -> Result<Value> {
        self.wait_for_status(&format!("phase {phase:?}"), |status| status.phase == Some(phase))
    }

    /// Waits until the operator has seen the spec and the status meets a condition; the group as it is then.
    pub fn wait_for_status(&self, what: &str, condition: impl Fn(&ReplicaGroupStatus) -> bool) -> Result<Value> {
        self.wait_for(what, |group| {
            let status = serde_json::from_value::<ReplicaGroupStatus>(group["status"].clone());
            is_seen(group) && status.is_ok_and(|status| condition(&status))
        })
    }

    /// Waits until nothing is left to do: so many members, nothing on the move, a standby ready, and records acknowledged.
    pub fn wait_until_whole(&self, backups: u8) -> Result<Value> {
        let group = self.wait_for(&format!("a group of {backups} that is whole"), |group| {
            let members = group["status"]["log"]["members"].as_array().map_or(0, Vec::len);
            is_seen(group)
                && text(group, "/status/phase") == "Ready"
                && members == usize::from(backups)
                && group["status"]["backups"].as_array().map_or(0, Vec::len) == members
                && !holds(group, "Progressing")
                && holds(group, "BackupsCurrent")
                && holds(group, "FailoverSafe")
        })?;
        self.wait_for_standby()?;
        self.namespace.wait_for_acks(200)?;
        Ok(group)
    }

    /// Waits until all app pods are ready: the primary, and the standby.
    pub fn wait_for_standby(&self) -> Result<()> {
        let deployment = self.namespace.path("apps/v1", "deployments/app");
        let ready = self.namespace.cluster.wait("all app pods to be ready", || {
            let deployment = self.namespace.cluster.get(&deployment)?.context("no app")?;
            let (status, wanted) = (&deployment["status"], &deployment["spec"]["replicas"]);
            let seen = status["observedGeneration"] == deployment["metadata"]["generation"];
            let sums = ["replicas", "readyReplicas", "updatedReplicas"].iter().all(|sum| status[*sum] == *wanted);
            // A pod on a node that is lost is counted as ready until the node is given up.
            let on_time = self.apps()?.iter().all(|pod| holds(pod, "Ready"));
            Ok((seen && sums && on_time).then_some(()))
        });
        ready.with_context(|| self.namespace.events())
    }

    /// Waits until a standby could take over from the primary at once; the primary's epoch, and its pod.
    pub fn wait_for_takeover(&self) -> Result<(u64, String)> {
        self.namespace.wait_for_acks(200)?;
        let found = self.namespace.cluster.wait("a standby", || {
            let (epoch, primary) = self.namespace.primary()?;
            let apps = self.apps()?;
            let standby = |pod: &&Value| holds(pod, "Ready") && text(pod, "/metadata/name") != primary;
            Ok(apps.iter().any(|pod| standby(&pod)).then_some((epoch, primary)))
        });
        found.with_context(|| self.namespace.events())
    }

    /// Waits until there are so many members, and none of them on this node.
    pub fn wait_for_members_off(&self, node: &str, members: usize) -> Result<()> {
        let found = self.namespace.cluster.wait(&format!("{members} members, none of them on {node}"), || {
            let names = self.members()?;
            let nodes = names.iter().map(|name| self.node_of(name)).collect::<Result<Vec<_>>>()?;
            ensure!(names.len() == members && nodes.iter().all(|other| other != node), "{names:?} on {nodes:?}");
            Ok(Some(()))
        });
        found.with_context(|| self.namespace.events())
    }

    /// The node of a pod.
    pub fn node_of(&self, pod: &str) -> Result<String> {
        Ok(text(&self.namespace.pod(pod)?, "/spec/nodeName").to_owned())
    }

    /// From here on [`OperatedGroup::wait_for_reloads`] counts.
    pub fn count_reloads(&self) -> Result<()> {
        self.reloads.replace(self.reloads_now()?);
        Ok(())
    }

    /// Waits until every sidecar and every backup has taken up certificates since they were counted.
    pub fn wait_for_reloads(&self) -> Result<()> {
        // A kubelet looks at a pod once a minute or so, and at once when something about it has changed.
        for pod in self.apps()?.into_iter().chain(self.backups()?) {
            let path = self.namespace.core(&format!("pods/{}", text(&pod, "/metadata/name")));
            self.namespace.cluster.patch(&path, &touched())?;
        }
        self.namespace.cluster.wait("new certificates to be loaded everywhere", || {
            let before = self.reloads.borrow();
            let now = self.reloads_now()?;
            Ok(now.iter().all(|(container, count)| count > before.get(container).unwrap_or(&0)).then_some(()))
        })
    }

    fn reloads_now(&self) -> Result<BTreeMap<String, usize>> {
        let apps = self.apps()?.into_iter().map(|pod| (pod, SIDECAR));
        let containers = apps.chain(self.backups()?.into_iter().map(|pod| (pod, "backup")));
        let count = |(pod, container): (Value, &str)| {
            let name = text(&pod, "/metadata/name").to_owned();
            let log =
                self.namespace.cluster.kubectl(&["logs", "-n", &self.namespace.name, &name, "-c", container], "")?;
            Ok((name, log.matches("certificate reloaded").count()))
        };
        containers.map(count).collect()
    }

    /// Has the operator look at the group: it does not watch secrets.
    pub fn wake_operator(&self) -> Result<()> {
        self.change(&touched())
    }

    /// Certificates in this secret were written so long ago that every pod has them: what takes ten minutes otherwise.
    pub fn written_long_ago(&self, secret: &str) -> Result<()> {
        let annotations = json!({"replication.tailwind.dev/written": "2020-01-01T00:00:00Z"});
        let path = self.namespace.core(&format!("secrets/{secret}"));
        self.namespace.cluster.patch(&path, &json!({"metadata": {"annotations": annotations}})).map(|_| ())
    }

    /// The end of a test: the log is whole, and neither operators nor processes of the group have logged what they should not.
    pub fn finish(mut self, expected: &[&str]) -> Result<OracleReport> {
        let report = self.namespace.replay()?;
        self.check_logs(expected)?;
        Ok(report)
    }

    /// The same for a group that is gone, and its log with it: what is left are the logs of programs.
    pub fn finish_without_log(mut self, expected: &[&str]) -> Result<()> {
        self.check_logs(expected)
    }

    fn check_logs(&mut self, expected: &[&str]) -> Result<()> {
        self.namespace.check_logs(expected)?;
        let expected: Vec<&str> = expected.iter().copied().chain([OLD_SERVER]).collect();
        check(self.operators.finish(self.namespace.cluster)?, &expected).context("operators")?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for OperatedGroup<'_> {
    #[allow(clippy::print_stderr, reason = "a failing test reports to people")]
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        eprintln!("{}", self.get().map_or_else(|error| format!("{error:#}"), |group| format!("{:#}", group["status"])));
        for (container, lines) in self.operators.finish(self.namespace.cluster).unwrap_or_default() {
            eprint!("{}", last_lines(&container, lines.iter().map(String::as_str), 20));
        }
    }
}

/// A change without effect.
fn touched() -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string();
    json!({"metadata": {"annotations": {"tailwind.test/touched": now}}})
}

fn is_seen(group: &Value) -> bool {
    group["status"]["observedGeneration"] == group["metadata"]["generation"]
}

/// Tests kill every node but the kept one.
pub fn not_kept() -> Value {
    json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": KEPT, "operator": "DoesNotExist"}]},
    ]}})
}

/// The image of sidecars under another tag, as a newer release would have.
pub fn image_with_tag(cluster: &Cluster, name: &str, tag: &str) -> Result<()> {
    for node in cluster.list("/api/v1/nodes")? {
        let node = text(&node, "/metadata/name").to_owned();
        cluster.node(&node, &format!("ctr images tag --force {} {}:{tag}", image(name), image_name(name)))?;
    }
    Ok(())
}
