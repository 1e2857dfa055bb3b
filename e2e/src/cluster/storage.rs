//! What pods keep in their volumes on their node's disk: more is put there, kubelets measure it, and evict.
//!
//! Used by `tests/cluster/evictions.rs`, on a cluster that is this machine's own.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::kubernetes::{Cluster, text};
use super::namespace::Namespace;

/// Where kubelets keep volumes.
const KUBELET: &str = "/var/lib/kubelet";

/// How full a volume is, as its kubelet last measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Measured {
    /// When, in RFC 3339.
    pub time: String,
    /// What is in it.
    pub bytes: u64,
}

impl Cluster {
    /// Runs a command on a node; what it prints.
    pub fn run_on(&self, node: &str, command: &[&str]) -> Result<String> {
        let number = node.strip_prefix("node-").with_context(|| format!("{node} is no node of this machine's"))?;
        self.command(&[&["node", number, "run"], command].concat())
    }

    /// Puts a file of so many bytes into a volume of a pod, from outside.
    pub fn fill_volume(&self, pod: &Value, volume: &str, bytes: u64) -> Result<()> {
        let uid = text(pod, "/metadata/uid");
        let file = format!("{KUBELET}/pods/{uid}/volumes/kubernetes.io~empty-dir/{volume}/filler");
        self.fill(text(pod, "/spec/nodeName"), &file, bytes)
    }

    /// A file of so many bytes on the disk with the node's volumes, and in none of them.
    pub fn fill_disk(&self, node: &str, bytes: u64) -> Result<()> {
        self.fill(node, &format!("{KUBELET}/filler"), bytes)
    }

    fn fill(&self, node: &str, file: &str, bytes: u64) -> Result<()> {
        self.run_on(node, &["fallocate", "--length", &bytes.to_string(), file]).map(|_| ())
    }

    /// How full this volume of a pod is; `None` before its kubelet has measured it.
    pub fn measured(&self, pod: &Value, volume: &str) -> Result<Option<Measured>> {
        let summary = format!("/api/v1/nodes/{}/proxy/stats/summary", text(pod, "/spec/nodeName"));
        let summary = self.get(&summary)?.context("the kubelet has no statistics")?;
        let is_this = |stats: &&Value| stats["podRef"]["uid"] == pod["metadata"]["uid"];
        let stats = summary["pods"].as_array().into_iter().flatten().find(is_this);
        let volumes = stats.and_then(|stats| stats["volume"].as_array()).into_iter().flatten();
        let stats = volumes.into_iter().find(|stats| stats["name"] == volume);
        Ok(stats.and_then(|stats| {
            Some(Measured { time: text(stats, "/time").to_owned(), bytes: stats["usedBytes"].as_u64()? })
        }))
    }
}

impl Namespace<'_> {
    /// Pods here that a kubelet has evicted.
    pub fn evicted(&self) -> Result<BTreeSet<String>> {
        let mut events = self.cluster.list(&self.core("events"))?;
        events.retain(|event| event["reason"] == "Evicted");
        Ok(events.iter().map(|event| text(event, "/involvedObject/name").to_owned()).collect())
    }

    /// Waits until a kubelet has evicted this pod; what it says why.
    pub fn wait_for_eviction(&self, pod: &str) -> Result<String> {
        let found = self.cluster.wait(&format!("{pod} to be evicted"), || {
            let events = self.cluster.list(&self.core("events"))?;
            let is_it = |event: &&Value| event["reason"] == "Evicted" && event["involvedObject"]["name"] == pod;
            Ok(events.iter().find(is_it).map(|event| text(event, "/message").to_owned()))
        });
        found.with_context(|| self.events())
    }

    /// A pod on this node that sleeps, with an emptyDir `fill` of which it has requested nothing.
    pub fn start_squatter(&self, name: &str, node: &str) -> Result<Value> {
        self.cluster.apply(&[json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.name},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "sleeps", "image": super::namespace::image("tools"), "imagePullPolicy": "IfNotPresent",
                                "command": ["sleep", "infinity"], "volumeMounts": [{"name": "fill", "mountPath": "/fill"}]}],
                "volumes": [{"name": "fill", "emptyDir": {}}],
            },
        })])?;
        self.wait_for_pod(name)
    }
}
