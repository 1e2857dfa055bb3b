//! What each backup pod is worth: read from the pod, its node and the log, once, before anything is decided.
//!
//! Called by [`plan`](super); what it finds is used by [`backups`](super::backups) and [`status`](super::status).

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use tailwind_crds::names::{ANNOTATION_ATTEMPT, ANNOTATION_TEMPLATE, BACKUP_CONTAINER, PORT_BACKUP};

use super::placement::is_being_drained;
use crate::observed::{NodeFacts, Observed};

/// A node counts as not ready when it has been silent for a while already. What on it is in no set holds nothing that is
/// needed, and waits only as long as a kubelet takes to start.
const OUTSIDER_PATIENCE: SignedDuration = SignedDuration::from_secs(10);
/// A member may well work while its kubelet is silent: then the primary still hears it. A spare costs memory, so this waits.
const MEMBER_PATIENCE: SignedDuration = SignedDuration::from_secs(60);
/// A pod may be known before its node is.
const NEW_NODE_PATIENCE: SignedDuration = SignedDuration::from_secs(60);
/// Starts of a container that never stayed: then another node may do better.
const RESTARTS_MAX: i32 = 5;
/// A backup that has been running for so long and is still not ready may do better on another node.
const UNREADY_PATIENCE: SignedDuration = SignedDuration::from_mins(5);
/// A pod that lived for so long did not fail at its start.
const PROVEN: SignedDuration = SignedDuration::from_mins(10);
/// Characters of a container's last words that people are shown.
const WORDS_MAX: usize = 400;
/// A pod that no node took for so long will hardly be taken by one.
const UNPLACED_PATIENCE: SignedDuration = SignedDuration::from_mins(2);

/// A backup pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupPod {
    /// Its name.
    pub name: String,
    /// Which of that name.
    pub uid: String,
    /// Its node.
    pub node: Option<String>,
    /// `host:port` of its control RPC.
    pub control: Option<String>,
    /// How it is.
    pub health: Health,
    /// In the set.
    pub member: bool,
    /// Its containers are ready.
    pub ready: bool,
    /// What its readiness gate says now.
    pub gate: Option<bool>,
    /// Why it should leave, although it works.
    pub leave: Option<Leave>,
    /// How many before it failed one after the other.
    pub attempt: u32,
    /// When it was made.
    pub created: Timestamp,
}

/// How a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Works, or starts.
    Alive,
    /// No node has taken it for a while.
    Unplaced,
    /// Told to end.
    Ending,
    /// Does not work and will not by itself.
    Failed {
        /// Why.
        why: String,
        /// Since when.
        since: Timestamp,
        /// The node refused it: another one may not.
        refused: bool,
    },
}

/// Why a pod that works should leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leave {
    /// Its node is being drained.
    Drained,
    /// It was made from an older spec or image.
    Outdated,
}

impl BackupPod {
    /// Works or may do so yet.
    pub fn is_alive(&self) -> bool {
        matches!(self.health, Health::Alive | Health::Unplaced)
    }
}

/// All of them, in the order of their names.
pub fn backup_pods(observed: &Observed, template_hash: &str) -> Vec<BackupPod> {
    let nodes: BTreeMap<&str, &NodeFacts> = observed.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
    let mut all: Vec<BackupPod> =
        observed.backups.iter().map(|pod| backup_pod(pod, observed, &nodes, template_hash)).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn backup_pod(pod: &Pod, observed: &Observed, nodes: &BTreeMap<&str, &NodeFacts>, template_hash: &str) -> BackupPod {
    let name = pod.name_any();
    let log = observed.group.status.as_ref().and_then(|status| status.log.as_ref());
    let member = log.is_some_and(|log| log.members.iter().any(|member| member.name == name));
    let node_name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let node = node_name.as_deref().and_then(|node| nodes.get(node).copied());
    let status = pod.status.as_ref();
    let condition = |kind: &str| {
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        conditions.iter().find(|condition| condition.type_ == kind)
    };
    let created = pod.metadata.creation_timestamp.as_ref().map_or(observed.now, |time| time.0);
    let health = health(pod, observed.now, member, node_name.as_deref(), node, nodes.is_empty());
    let tolerations = observed.group.spec.placement.tolerations.as_slice();
    let outdated = pod.annotations().get(ANNOTATION_TEMPLATE).is_none_or(|hash| hash != template_hash);
    let drained = node.is_some_and(|node| is_being_drained(node, tolerations));
    let leave = if drained { Some(Leave::Drained) } else { outdated.then_some(Leave::Outdated) };
    let ip = status.and_then(|status| status.pod_ip.as_deref()).filter(|ip| !ip.is_empty());
    let attempt = pod.annotations().get(ANNOTATION_ATTEMPT).and_then(|text| text.parse().ok()).unwrap_or(0);
    BackupPod {
        uid: pod.uid().unwrap_or_default(),
        node: node_name,
        control: ip
            .map(|ip| if ip.contains(':') { format!("[{ip}]:{PORT_BACKUP}") } else { format!("{ip}:{PORT_BACKUP}") }),
        member,
        ready: condition("ContainersReady").is_some_and(|condition| condition.status == "True"),
        gate: condition(tailwind_crds::names::GATE_CAUGHT_UP).map(|condition| condition.status == "True"),
        leave,
        // One that has proven itself starts its successors' count anew.
        attempt: if observed.now.duration_since(created) > PROVEN { 0 } else { attempt },
        name,
        health,
        created,
    }
}

fn health(
    pod: &Pod,
    now: Timestamp,
    member: bool,
    node_name: Option<&str>,
    node: Option<&NodeFacts>,
    nodes_unknown: bool,
) -> Health {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let created = pod.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    if pod.metadata.deletion_timestamp.is_some() {
        return Health::Ending;
    }
    if let Some("Failed" | "Succeeded") = phase {
        return failed(pod, created);
    }
    let Some(node_name) = node_name else {
        return if now.duration_since(created) > UNPLACED_PATIENCE { Health::Unplaced } else { Health::Alive };
    };
    let lost = |why: String, since| Health::Failed { why, since, refused: false };
    let Some(node) = node else {
        // Before the first list of nodes nothing is known about any, and of a new node a pod may be known first.
        return if nodes_unknown || now.duration_since(created) < NEW_NODE_PATIENCE {
            Health::Alive
        } else {
            lost(format!("node {node_name} is gone"), now)
        };
    };
    let patience = if member { MEMBER_PATIENCE } else { OUTSIDER_PATIENCE };
    if let Some(since) = node.not_ready_since.filter(|since| now.duration_since(*since) > patience) {
        return lost(format!("node {node_name} is not ready"), since);
    }
    // For the rest the set knows better than Kubernetes who can be reached.
    if member {
        return Health::Alive;
    }
    let container = status
        .and_then(|status| status.container_statuses.as_deref())
        .unwrap_or_default()
        .iter()
        .find(|container| container.name == BACKUP_CONTAINER);
    let Some(container) = container else { return Health::Alive };
    if container.restart_count >= RESTARTS_MAX && !container.ready {
        let since = last_end(container).unwrap_or(now);
        let words = last_words(container).unwrap_or_else(|| "see its log".to_owned());
        return lost(format!("its container ended {} times: {words}", container.restart_count), since);
    }
    let running = container.state.as_ref().and_then(|state| state.running.as_ref());
    let since = running.and_then(|running| running.started_at.as_ref()).map(|time| time.0);
    match since.filter(|since| !container.ready && now.duration_since(*since) > UNREADY_PATIENCE) {
        Some(since) => lost("it runs and does not become ready".to_owned(), since),
        None => Health::Alive,
    }
}

fn failed(pod: &Pod, created: Timestamp) -> Health {
    let status = pod.status.clone().unwrap_or_default();
    let reason = status.reason.unwrap_or_default();
    let ends =
        status.container_statuses.iter().flatten().filter_map(|container| {
            container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0)
        });
    // A pod that the kubelet refuses has no containers.
    let refused = matches!(reason.as_str(), "UnexpectedAdmissionError" | "NodeAffinity" | "NodePorts")
        || reason.starts_with("OutOf")
        || reason.ends_with("AffinityError");
    let why = match (reason.as_str(), status.message.as_deref().unwrap_or_default()) {
        ("", "") => "its container ended".to_owned(),
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    };
    Health::Failed { why, since: ends.max().unwrap_or(created), refused }
}

/// What a container wrote last before it ended, which kubelets keep: see `terminationMessagePolicy` of its container.
pub fn last_words(container: &ContainerStatus) -> Option<String> {
    let ended = container.last_state.as_ref()?.terminated.as_ref()?;
    let line = ended.message.as_deref()?.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    let logged: Option<serde_json::Value> = serde_json::from_str(line).ok();
    let text = logged.as_ref().and_then(|logged| logged["message"].as_str()).unwrap_or(line);
    Some(text.chars().take(WORDS_MAX).collect())
}

fn last_end(container: &ContainerStatus) -> Option<Timestamp> {
    let ended = container.last_state.as_ref()?.terminated.as_ref()?;
    ended.finished_at.as_ref().map(|time| time.0)
}
