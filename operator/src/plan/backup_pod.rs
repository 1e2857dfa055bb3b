//! What each backup pod is worth: read from the pod, its node and the log, once, before anything is decided.
//!
//! Called by [`plan`](super); what it finds is used by [`backups`](super::backups) and [`status`](super::status).

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, Taint, Toleration};
use kube::ResourceExt;
use strum::EnumIter;
use tailwind_crds::OnCordon;
use tailwind_crds::names::{
    ANNOTATION_ATTEMPT, ANNOTATION_CLAIM, ANNOTATION_TEMPLATE, BACKUP_CONTAINER, GATE_CAUGHT_UP, LEFT_THE_SET,
    PORT_BACKUP, flush_claim,
};

use super::placement::{Refusal, is_about_to_go};
use crate::objects::claim::MemberClaim;
use crate::observed::{NodeFacts, Observed, condition, has_ended, is_healthy, is_true};
use crate::planted::{self, Bug};
use crate::tolerations::tolerates;

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
/// A pod that has not ended so long after its time hangs.
const HANGING_PATIENCE: SignedDuration = SignedDuration::from_secs(60);
/// A pod that lived for so long did not fail at its start.
const PROVEN: SignedDuration = SignedDuration::from_mins(10);
/// A successor should hold the log after so long: 1 TiB at 500 MB/s takes 37 minutes.
const SUCCESSOR_PATIENCE: SignedDuration = SignedDuration::from_hours(1);
/// Characters of a container's last line of output that people are shown.
const LAST_OUTPUT_CHARS_MAX: usize = 400;
/// A pod that no node took for so long will hardly be taken by one.
const UNPLACED_PATIENCE: SignedDuration = SignedDuration::from_mins(2);
/// The same of a pod for which the scheduler has found no node: it tries again when a pod ends or a volume has been made, which takes
/// some seconds.
const UNSCHEDULABLE_PATIENCE: SignedDuration = SignedDuration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackupPod {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) node: Option<String>,
    /// `host:port` of its control RPC.
    pub(crate) control: Option<String>,
    pub(crate) health: Health,
    /// Why it has no node, in the scheduler's words.
    pub(crate) unschedulable: Option<String>,
    /// In the set.
    pub(crate) member: bool,
    /// Its containers are ready.
    pub(crate) ready: bool,
    /// What its readiness gate says now.
    pub(crate) gate: Option<bool>,
    /// It says that it was in a set before.
    pub(crate) left: bool,
    /// A budget counts it, or will in a moment: also one that has just left the set, until its kubelet has heard of that.
    pub(crate) counted: bool,
    /// A budget counts it, even if it is lost: its node may be gone, and nobody has said so of the pod.
    pub(crate) counted_lost: bool,
    /// It was created from an older spec or image.
    pub(crate) outdated: bool,
    /// Why it should leave, although it works.
    pub(crate) leave: Option<Leave>,
    /// When it should leave its node, if not yet.
    pub(crate) leaves_at: Option<Timestamp>,
    /// Since when it should, if that is known.
    pub(crate) leaves_since: Option<Timestamp>,
    /// A pod that takes its place finds no room on its node, which is cordoned or about to go.
    pub(crate) node_closed: bool,
    /// It tolerates that its node is cordoned or about to go, so it stays there.
    pub(crate) tolerates_node: bool,
    /// How many before it failed one after the other.
    pub(crate) attempt: u32,
    pub(crate) created: Timestamp,
    /// Since when it is in no set, if it is in none.
    outside_since: Option<Timestamp>,
    /// All of its containers have ended, for good.
    pub(crate) ended: bool,
    /// When its deletion was to be over.
    ends_at: Option<Timestamp>,
    /// Its container has not started, although it has had a node for a while: its disk may not come to that node.
    never_started: bool,
    /// Its flush volume is its member's claim.
    pub(crate) uses_claim: bool,
    /// The pod's claim, which outlives the pod.
    pub(crate) claim: Option<MemberClaim>,
}

/// The health of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Works, or starts.
    Alive,
    /// No node has taken it for a while.
    Unplaced,
    /// It has been asked to end.
    Ending,
    /// Does not work and will not by itself.
    Failed { failure: PodFailure, since: Timestamp },
}

/// Why a pod does not work and will not by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, EnumIter)]
pub enum PodFailure {
    /// The node, which has been deleted.
    NodeGone(String),
    /// The node, which has not been ready for a while.
    NodeNotReady(String),
    /// How often its container has ended, and how it did last.
    KeepsEnding(i32, String),
    /// Its container has been running for a while.
    NeverReady,
    /// Its container has ended and does not start again.
    #[default]
    Ended,
    /// What its kubelet says of its end.
    PodEnded(String),
    /// Why its kubelet has not admitted it.
    Refused(String),
}

impl fmt::Display for PodFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PodFailure::NodeGone(node) => write!(f, "node {node} is gone"),
            PodFailure::NodeNotReady(node) => write!(f, "node {node} is not ready"),
            PodFailure::KeepsEnding(times, how) => write!(f, "its container ended {times} times: {how}"),
            PodFailure::NeverReady => f.write_str("it is running but does not become ready"),
            PodFailure::Ended => f.write_str("its container ended"),
            PodFailure::PodEnded(why) => write!(f, "its pod ended: {why}"),
            PodFailure::Refused(why) => write!(f, "its node refused it: {why}"),
        }
    }
}

/// Why a pod that works should leave.
#[derive(Clone, Debug, Default, PartialEq, Eq, EnumIter)]
pub enum Leave {
    /// The node, which is being drained or removed.
    Drained(String),
    /// The node, which takes no new pods.
    Cordoned(String),
    /// The claim, which a user has deleted.
    ClaimDeleted(String),
    /// A pod that is made now differs from it.
    #[default]
    Outdated,
}

impl fmt::Display for Leave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Leave::Drained(node) => write!(f, "node {node} is about to go"),
            Leave::Cordoned(node) => write!(f, "node {node} is cordoned"),
            Leave::ClaimDeleted(claim) => write!(f, "its claim {claim} has been deleted"),
            Leave::Outdated => f.write_str("it was created from an older spec or image"),
        }
    }
}

impl BackupPod {
    /// Is or was in a set, by what its gate says.
    pub(crate) fn was_in_set(&self) -> bool {
        self.gate == Some(true) || self.left
    }

    /// Works or may do so yet.
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.health, Health::Alive | Health::Unplaced)
    }

    /// A pod whose claim is being deleted can start nowhere else.
    pub(crate) fn take_claim(&mut self, claim: MemberClaim) {
        self.outdated |= claim.is_outdated();
        if claim.ending && !self.leaves_node() {
            self.leave = Some(Leave::ClaimDeleted(flush_claim(&self.name)));
        }
        self.claim = Some(claim);
    }

    /// The next pod of its name takes up what it has written.
    pub(crate) fn leaves_files(&self) -> bool {
        self.claim.as_ref().is_some_and(MemberClaim::has_files)
    }

    /// No node takes it, or none starts it, perhaps because its disk is where no pod can go any more.
    pub(crate) fn is_stuck(&self) -> bool {
        let waits = self.health == Health::Unplaced || self.health == Health::Alive && self.never_started;
        waits && self.claim.as_ref().is_some_and(|claim| claim.is_older_than(self.created))
    }

    /// It has been asked to end. One that hangs in its end is not waited for.
    pub(crate) fn ends_in_time(&self, now: Timestamp) -> bool {
        self.health == Health::Ending && self.ends_at.is_some_and(|at| now < at + HANGING_PATIENCE)
    }

    /// It is about to end, and the next pod of its name takes up its claim.
    pub(crate) fn returns(&self, now: Timestamp) -> bool {
        self.ends_in_time(now) && self.claim.as_ref().is_some_and(MemberClaim::is_kept)
    }

    /// It should have joined the set by now, if it was to do so from when it was `wanted`.
    pub(crate) fn is_late(&self, now: Timestamp, wanted: Option<Timestamp>) -> bool {
        let since = self.outside_since.map(|since| wanted.map_or(since, |wanted| wanted.max(since)));
        since.is_some_and(|since| now.duration_since(since) > SUCCESSOR_PATIENCE)
    }

    /// What the scheduler says, if it has found no node.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        let words = self.unschedulable.as_ref()?.trim_end_matches('.').to_owned();
        Some(Refusal { pod: self.name.clone(), words })
    }

    /// Its group is being updated.
    pub(crate) fn update(&mut self) {
        if self.outdated && self.leave.is_none() {
            self.leave = Some(Leave::Outdated);
        }
    }

    /// Its group is not being updated any more.
    pub(crate) fn stop_update(&mut self) {
        self.leave.take_if(|why| *why == Leave::Outdated);
    }

    /// Its node, for people.
    pub(crate) fn node_name(&self) -> String {
        self.node.clone().unwrap_or_else(|| "its node".to_owned())
    }

    /// It leaves because of its node.
    pub(crate) fn leaves_node(&self) -> bool {
        matches!(self.leave, Some(Leave::Drained(_) | Leave::Cordoned(_)))
    }
}

/// All of them, in the order of their names.
pub(crate) fn backup_pods(observed: &Observed, template_hash: &str) -> Vec<BackupPod> {
    let nodes: BTreeMap<&str, &NodeFacts> = observed.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
    let mut all: Vec<BackupPod> =
        observed.backups.iter().map(|pod| backup_pod(pod, observed, &nodes, template_hash)).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn backup_pod(pod: &Pod, observed: &Observed, nodes: &BTreeMap<&str, &NodeFacts>, template_hash: &str) -> BackupPod {
    let name = pod.name_any();
    let member = observed.log().is_some_and(|log| log.has_member(&name));
    let node_name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let node = node_name.as_deref().and_then(|node| nodes.get(node).copied());
    let created = pod.metadata.creation_timestamp.as_ref().map_or(observed.now, |time| time.0);
    let outdated = pod.annotations().get(ANNOTATION_TEMPLATE).is_none_or(|hash| hash != template_hash);
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let leaves_untolerated = node.and_then(|node| leaves_node(observed, node, &[]));
    let leaves_node = node.and_then(|node| leaves_node(observed, node, tolerations));
    let grace = SignedDuration::from_secs(observed.group.spec.node_maintenance.grace_seconds.into());
    let leaves_at = node.filter(|_| leaves_node.is_some()).and_then(|node| Some(node.marked_since? + grace));
    let (leaves_at, leaves_since) =
        (leaves_at.filter(|at| *at > observed.now), leaves_at.filter(|at| *at <= observed.now));
    let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()?.parse::<IpAddr>().ok());
    let ready = is_true(pod, "ContainersReady");
    let attempt = pod.annotations().get(ANNOTATION_ATTEMPT).and_then(|text| text.parse().ok()).unwrap_or(0);
    let gate = condition(pod, GATE_CAUGHT_UP);
    let has_gate = gate.map(|gate| gate.status == "True");
    // A member that has been let go may come back at once. Its gate does not say so yet, or says since when.
    let outside_since = match gate.and_then(|gate| gate.last_transition_time.as_ref()) {
        _ if member || has_gate == Some(true) => None,
        Some(since) => Some(since.0.max(created)),
        None => Some(created),
    };
    BackupPod {
        uid: pod.uid().unwrap_or_default(),
        health: health(pod, observed.now, member, node_name.as_deref(), node, nodes.is_empty()),
        unschedulable: unschedulable(pod).map(|condition| condition.message.clone().unwrap_or_default()),
        node: node_name,
        control: ip.map(|ip| SocketAddr::new(ip, PORT_BACKUP).to_string()),
        member,
        ready,
        counted: ready && (member || is_true(pod, GATE_CAUGHT_UP) || is_true(pod, "Ready")),
        counted_lost: is_healthy(pod),
        gate: has_gate,
        left: gate.is_some_and(|gate| gate.reason.as_deref() == Some(LEFT_THE_SET)),
        outside_since,
        outdated,
        tolerates_node: leaves_node.is_none() && leaves_untolerated.is_some(),
        leave: leaves_node.filter(|_| leaves_at.is_none()),
        leaves_at,
        leaves_since,
        node_closed: node.is_some_and(|node| is_closed(observed, node)),
        // After one that has worked for a while, the count of attempts starts again at 0.
        attempt: if observed.now.duration_since(created) > PROVEN { 0 } else { attempt },
        ended: has_ended(pod),
        ends_at: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        never_started: observed.now.duration_since(created) > UNREADY_PATIENCE && !has_started(pod),
        uses_claim: pod.annotations().contains_key(ANNOTATION_CLAIM),
        claim: None,
        name,
        created,
    }
}

/// Whether new pods of the group keep off a node because it is about to be emptied.
fn is_closed(observed: &Observed, node: &NodeFacts) -> bool {
    let tolerations = &observed.group.spec.placement.tolerations;
    node.unschedulable || is_about_to_go(node, tolerations, &observed.settings.drain_taints)
}

/// What its node says to a backup whose pod has these tolerations: those of the spec, and those that admission has added. A pod
/// that left what it tolerates would make place for one that the scheduler puts on such a node again, without end.
fn leaves_node(observed: &Observed, node: &NodeFacts, tolerations: &[Toleration]) -> Option<Leave> {
    let spec = &observed.group.spec;
    if is_about_to_go(node, tolerations, &observed.settings.drain_taints) {
        return Some(Leave::Drained(node.name.clone()));
    }
    let tolerates = tolerations.iter().any(|toleration| tolerates(toleration, &cordon()));
    let stays = tolerates && !planted::has(Bug::LeavesTolerated);
    let moves = node.unschedulable && !stays && spec.node_maintenance.on_cordon == OnCordon::MoveWhenFree;
    moves.then(|| Leave::Cordoned(node.name.clone()))
}

/// The taint of a cordoned node.
fn cordon() -> Taint {
    let (key, effect) = ("node.kubernetes.io/unschedulable".to_owned(), "NoSchedule".to_owned());
    Taint { key, effect, ..Taint::default() }
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
        return ended(pod, created);
    }
    let Some(node_name) = node_name else {
        // Where the scheduler has chosen a node and waits for others to leave it, the pod has no node either.
        let is_nominated = status.is_some_and(|status| status.nominated_node_name.is_some());
        let refused = unschedulable(pod).filter(|_| !is_nominated);
        let refused = refused.map(|condition| condition.last_transition_time.as_ref().map_or(created, |time| time.0));
        let is_refused = refused.is_some_and(|since| now.duration_since(since) > UNSCHEDULABLE_PATIENCE);
        let is_unplaced = is_refused || now.duration_since(created) > UNPLACED_PATIENCE;
        return if is_unplaced { Health::Unplaced } else { Health::Alive };
    };
    let failed = |failure, since| Health::Failed { failure, since };
    let Some(node) = node else {
        // Before the first list of nodes nothing is known about any, and of a new node a pod may be known first.
        return if nodes_unknown || now.duration_since(created) < NEW_NODE_PATIENCE {
            Health::Alive
        } else {
            failed(PodFailure::NodeGone(node_name.to_owned()), now)
        };
    };
    let patience = if member { MEMBER_PATIENCE } else { OUTSIDER_PATIENCE };
    if let Some(since) = node.not_ready_since.filter(|since| now.duration_since(*since) > patience) {
        return failed(PodFailure::NodeNotReady(node_name.to_owned()), since);
    }
    // Beyond that, the set knows better than Kubernetes which members can be reached.
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
        let output = last_output(container).unwrap_or_else(|| "see its log".to_owned());
        return failed(PodFailure::KeepsEnding(container.restart_count, output), since);
    }
    let running = container.state.as_ref().and_then(|state| state.running.as_ref());
    let since = running.and_then(|running| running.started_at.as_ref()).map(|time| time.0);
    match since.filter(|since| !container.ready && now.duration_since(*since) > UNREADY_PATIENCE) {
        Some(since) => failed(PodFailure::NeverReady, since),
        None => Health::Alive,
    }
}

/// What the scheduler says of a pod that it has found no node for.
fn unschedulable(pod: &Pod) -> Option<&PodCondition> {
    let has_node = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let said = condition(pod, "PodScheduled").filter(|said| said.status == "False" && !has_node);
    said.filter(|said| said.reason.as_deref() == Some("Unschedulable"))
}

fn ended(pod: &Pod, created: Timestamp) -> Health {
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
    let message = status.message.unwrap_or_default();
    let text = [reason, message].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ");
    let failure = match text {
        text if refused => PodFailure::Refused(text),
        text if text.is_empty() => PodFailure::Ended,
        text => PodFailure::PodEnded(text),
    };
    Health::Failed { failure, since: ends.max().unwrap_or(created) }
}

/// What a container wrote last before it ended, which kubelets keep: see `terminationMessagePolicy` of its container.
pub(crate) fn last_output(container: &ContainerStatus) -> Option<String> {
    let ended = container.last_state.as_ref()?.terminated.as_ref()?;
    let line = ended.message.as_deref()?.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    let logged: Option<serde_json::Value> = serde_json::from_str(line).ok();
    let text = logged.as_ref().and_then(|logged| logged["message"].as_str()).unwrap_or(line);
    Some(text.chars().take(LAST_OUTPUT_CHARS_MAX).collect())
}

/// Whether a container of it runs, or has run.
fn has_started(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        || statuses.iter().any(|container| {
            let state = container.state.as_ref();
            container.restart_count > 0
                || state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
        })
}

fn last_end(container: &ContainerStatus) -> Option<Timestamp> {
    let ended = container.last_state.as_ref()?.terminated.as_ref()?;
    ended.finished_at.as_ref().map(|time| time.0)
}
