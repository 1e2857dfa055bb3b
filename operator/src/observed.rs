//! What was seen of one group: everything that [`plan`](crate::plan) decides from, as a value.
//!
//! Filled by [`observe`](crate::observe), and by golden tests from YAML.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use tailwind_crds::names::{CONDITION_LEAVING, FINALIZER, SIDECAR_CONTAINER};
use tailwind_crds::{LogStatus, ReplicaGroup};
use tailwind_report::Positions;
use tailwind_report::readiness::Unready;
use tailwind_report::report::BackupReport;
use tailwind_report::sidecar::SidecarReport;

use crate::objects::Owned;
use crate::options::Settings;
use crate::server_version::ServerVersion;

/// One group and what surrounds it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// When it was seen.
    pub now: Timestamp,
    /// The version of the API server.
    pub server: ServerVersion,
    /// From the operator's own options.
    pub settings: Settings,
    /// The group.
    pub group: ReplicaGroup,
    /// Its backup pods.
    pub backups: Vec<Pod>,
    /// Pods that are ready and have the label of its backups, but are not its own. Budgets count them.
    pub strangers: usize,
    /// The app's pods that belong to it.
    pub app: Vec<Pod>,
    /// Pods that read its log, and are not its app's. In the order of their names, as its status lists them.
    pub readers: Vec<Pod>,
    /// Every node.
    pub nodes: Vec<NodeFacts>,
    /// Its certificates.
    pub certificates: Certificates,
    /// Objects of the names that the group's own have: services, roles and the like.
    pub objects: Vec<Owned>,
    /// Names for pods to make: the random part.
    pub names: Vec<String>,
    /// How far the log was, if that was observed lately.
    pub positions: Option<Positions>,
    /// What backups that are not ready say about it, by pod.
    pub obstacles: BTreeMap<String, Unready>,
    /// What backups report of their copies, or why that cannot be read, by pod; of those that have been asked.
    pub reports: BTreeMap<String, Result<BackupReport, String>>,
    /// Fewer groups than the operator allows are being updated, and this one is next.
    pub may_update: bool,
    /// What sidecars report of themselves, or why that cannot be read, by the app's pod; of those that have been asked.
    pub sidecars: BTreeMap<String, Result<SidecarReport, String>>,
    /// The same of the sidecars in the pods that read.
    pub reader_sidecars: BTreeMap<String, Result<SidecarReport, String>>,
}

impl Observed {
    /// The node of this pod, if the control plane does not hear it: what the API shows of the pod may be long over.
    pub(crate) fn silent_node(&self, pod: &Pod) -> Option<&str> {
        self.node_of(pod).filter(|node| node.not_ready_since.is_some()).map(|node| node.name.as_str())
    }

    /// The node of this pod, if it is cordoned.
    pub(crate) fn cordoned_node(&self, pod: &Pod) -> Option<&str> {
        self.node_of(pod).filter(|node| node.unschedulable).map(|node| node.name.as_str())
    }

    /// Whether the control plane hears the node of this name.
    pub(crate) fn is_node_ready(&self, name: &str) -> bool {
        self.nodes.iter().any(|node| node.name == name && node.not_ready_since.is_none())
    }

    fn node_of(&self, pod: &Pod) -> Option<&NodeFacts> {
        let name = pod.spec.as_ref()?.node_name.as_deref()?;
        self.nodes.iter().find(|node| node.name == name)
    }

    /// What the sidecars have written, once there is a log.
    pub(crate) fn log(&self) -> Option<&LogStatus> {
        self.group.status.as_ref()?.log.as_ref()
    }

    /// Copies of segments that backups report as damaged; nothing if no backup has reported.
    pub(crate) fn damaged(&self) -> Option<u64> {
        self.reports.values().flatten().map(|report| report.damaged).reduce(u64::saturating_add)
    }

    /// Pods of the app for which the group waits before it goes. One that has ended, a job's perhaps, needs no log.
    pub(crate) fn waits_for_app(&self) -> usize {
        if self.has_finalizer() { self.app.iter().filter(|pod| !has_ended(pod)).count() } else { 0 }
    }

    /// Whether the group waits for its app before it goes.
    pub(crate) fn has_finalizer(&self) -> bool {
        self.group.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
    }
}

/// Whether the pod has the container that answers for it.
pub(crate) fn has_sidecar(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.any(|container| container.name == SIDECAR_CONTAINER)
}

/// Whether budgets count the pod.
pub(crate) fn is_healthy(pod: &Pod) -> bool {
    is_true(pod, "Ready") && pod.metadata.deletion_timestamp.is_none() && !has_ended(pod)
}

/// Whether all of the pod's containers have ended for good.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether an operator was about to delete the pod: the deletion may still be on its way.
pub(crate) fn is_leaving(pod: &Pod) -> bool {
    is_true(pod, CONDITION_LEAVING) && pod.metadata.deletion_timestamp.is_none()
}

/// Whether the pod's containers have been started and not all have ended.
pub(crate) fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

/// A condition of the pod.
pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == kind)
}

/// Whether the pod has the condition, and it is true.
pub(crate) fn is_true(pod: &Pod, kind: &str) -> bool {
    condition(pod, kind).is_some_and(|condition| condition.status == "True")
}

/// A node, as far as it matters to a backup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Cordoned.
    pub unschedulable: bool,
    /// When the operator first saw the node cordoned and tainted as it is now; nothing if it was so when the operator started.
    pub marked_since: Option<Timestamp>,
    /// Since when it is not ready, if it is not.
    pub not_ready_since: Option<Timestamp>,
    /// What pods may ask for.
    pub allocatable: BTreeMap<String, Quantity>,
    /// What pods on it have asked for, in thousandths.
    pub requested: BTreeMap<String, i128>,
    /// TCP ports of the node itself that pods on it use.
    pub host_ports: BTreeSet<u16>,
}

/// The group's secrets, without what is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificates {
    /// The CA.
    pub authority: Option<Authority>,
    /// The sidecars' certificate.
    pub sidecar: Option<Leaf>,
    /// The backups' certificate.
    pub backup: Option<Leaf>,
    /// The readers' certificate.
    pub reader: Option<Leaf>,
    /// Secrets of these names that belong to another owner.
    pub not_owned: Vec<String>,
}

/// A CA: the certificate that signs, and the one before it while some still trust only that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// The CA that signs now.
    pub current: CertificateFacts,
    /// The CA that signed before.
    pub previous: Option<CertificateFacts>,
}

/// A certificate of a role with what its holders trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The certificate; none if it cannot be read, or does not name the group and role.
    pub certificate: Option<CertificateFacts>,
    /// Fingerprint of the CA certificate that has signed it, among those in the bundle.
    pub issuer: Option<String>,
    /// Fingerprints of the CA certificates that holders trust.
    pub bundle: Vec<String>,
    /// When the secret was last written; kubelets bring it to pods a while later.
    pub written: Option<Timestamp>,
}

/// What is to be known of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// SHA-256, in hexadecimal.
    pub fingerprint: String,
    /// Valid from.
    pub not_before: Timestamp,
    /// Valid to.
    pub not_after: Timestamp,
}
