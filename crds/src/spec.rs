//! What a team asks for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, ResourceRequirements, Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pod_template::{PodTemplate, is_default};
use crate::status::{ReplicaGroupStatus, Transport};
use crate::table::Table;

/// A log of records, replicated at memory speed into the memory of backup pods, for one stateful app.
///
/// Label the app's pods with `replication.tailwind.dev/group: <name>`: each gets a sidecar, and one of them at a time may
/// append records through the socket that TAILWIND_SOCKET names. An append is acknowledged when every current member holds
/// it. When the primary dies, a standby pod takes over and has every acknowledged record.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "replication.tailwind.dev",
    version = "v1alpha1",
    kind = "ReplicaGroup",
    plural = "replicagroups",
    shortname = "rg",
    namespaced,
    status = "ReplicaGroupStatus",
    derive = "PartialEq",
    doc = "A log of records, replicated at memory speed into the memory of backup pods, for one stateful app.",
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')")
        .message("metadata.name: at most 40 lower-case letters, digits and dashes, beginning with a letter: names of services and labels are made from it"),
    printcolumn = r#"{"name":"Backups","type":"integer","jsonPath":".spec.backups","description":"Copies wanted"}"#,
    printcolumn = r#"{"name":"Members","type":"integer","jsonPath":".status.members","description":"Copies that acknowledgements need, and have"}"#,
    printcolumn = r#"{"name":"Epoch","type":"integer","jsonPath":".status.log.epoch","description":"Raised at every change of primary"}"#,
    printcolumn = r#"{"name":"Primary","type":"string","jsonPath":".status.log.primary.name","description":"The app pod that may append"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Transport","type":"string","jsonPath":".status.transport","priority":1}"#,
    printcolumn = r#"{"name":"Image","type":"string","jsonPath":".spec.image","description":"Pinned image of backups and sidecars","priority":1}"#,
    printcolumn = r#"{"name":"Readers","type":"integer","jsonPath":".status.readerCount","description":"Pods that follow the log","priority":1}"#,
    printcolumn = r#"{"name":"FailoverSafe","type":"string","jsonPath":".status.conditions[?(@.type==\"FailoverSafe\")].status","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.phaseReason","priority":1}"#
)]
#[cfg_attr(feature = "rules", kube(cel))]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.minInSync) || self.minInSync <= self.backups")
        .message("minInSync must not be greater than backups"),
    validation = Rule::new("self.transport != 'Rdma' || has(self.rdma)")
        .message("transport Rdma needs rdma: say which device request gives a pod its RDMA device"),
    validation = Rule::new("self.transport != 'Tcp' || !has(self.rdma)")
        .message("transport Tcp uses no RDMA device: remove rdma, or choose transport Auto or Rdma"),
    validation = Rule::new("!has(self.primaryPorts) || self.primaryPorts.size() < 2 || self.primaryPorts.all(port, has(port.name))")
        .message("primaryPorts: each needs a name where there are several"),
    validation = Rule::new("!has(self.rdma) || self.rdma.memlock != 'Capability' || !has(self.podTemplate) || !has(self.podTemplate.spec) || !has(self.podTemplate.spec.securityContext) || !has(self.podTemplate.spec.securityContext.runAsUser)")
        .message("podTemplate.spec.securityContext.runAsUser: with rdma.memlock Capability the backup runs as root; remove it, or choose memlock NodeLimit"),
    validation = Rule::new("!has(self.hibernate) || !self.hibernate || (self.durability == 'Flushed' && has(self.flushVolume) && has(self.flushVolume.claim))")
        .message("hibernate needs durability Flushed and flushVolume.claim: elsewhere the log ends with the last pod"),
    validation = Rule::new("!has(self.table) || int(self.table.memory.substring(0, self.table.memory.size() - 2)) * (self.table.memory.endsWith('Gi') ? 1048576 : 1024) >= 16 * int(self.segmentSize.substring(0, self.segmentSize.size() - 2)) * (self.segmentSize.endsWith('Mi') ? 1024 : 1)")
        .message("table.memory must be at least 16 segments: enlarge it, or choose a smaller segmentSize"),
    validation = Rule::new("!has(self.table) || self.segmentSize != '64Ki' || int(self.table.memory.substring(0, self.table.memory.size() - 2)) * (self.table.memory.endsWith('Gi') ? 1024 : 1) <= 7936")
        .message("table.memory must be at most 7936Mi with segmentSize 64Ki: choose a larger segmentSize"),
    validation = Rule::new("has(self.table) == has(oldSelf.table)")
        .message("table cannot be added or removed: make a new group, and copy the log or the table's keys into it"),
    validation = Rule::new("self.segmentSize == oldSelf.segmentSize")
        .message("segmentSize cannot be changed: make a new group and copy the log into it"),
    validation = Rule::new("self.durability == oldSelf.durability")
        .message("durability cannot be changed: make a new group and copy the log into it"),
    validation = Rule::new("self.transport == oldSelf.transport && has(self.rdma) == has(oldSelf.rdma)")
        .message("transport cannot be changed, nor rdma added or removed: every process of the group must use the same")
)]
pub struct ReplicaGroupSpec {
    /// Copies of each record, every one in another pod on another node. With r copies the log survives r - 1 deaths at once.
    /// Three is the usual choice. 1 to 7.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = 7))]
    pub backups: u8,

    /// Copies needed to acknowledge appends. With fewer, appends wait until backups return. Fewer keep appends going longer,
    /// more keep each record safer. Half of backups, rounded up, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 7))]
    pub min_in_sync: Option<u8>,

    /// What an acknowledgement promises. Memory: in the memory of every member. Battery: the same, and you attest that every
    /// backup's node has power for holdUpSeconds after an outage. Flushed: on the disk of every member as well; slower.
    /// Cannot be changed.
    #[serde(default)]
    pub durability: Durability,

    /// The unit in which the log is opened, closed and flushed. Larger ones cost memory, smaller ones more control calls.
    /// The longest record fits into one. Cannot be changed.
    #[serde(default)]
    pub segment_size: SegmentSize,

    /// Buffers of one segment each that a backup has. Its pool takes (buffers + 2) × (segmentSize + 4 KiB), buffers × 2 KiB
    /// and 1 MiB. Six at least; more for segments that wait for the disk. A table adds buffers that closed segments stay in.
    #[serde(default = "sixteen")]
    #[schemars(range(min = 6, max = 4096))]
    pub buffers: u32,

    /// Keep a table, the last value of each key, in place of a log that the app trims. A group is made with one or without one: it
    /// can be neither added nor removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<Table>,

    /// How bytes reach backups. Auto: Rdma where rdma is given, else Tcp. Rdma: one-sided RDMA writes; backups spend no CPU.
    /// Tcp: any network. Cannot be changed.
    #[serde(default)]
    pub transport: TransportChoice,

    /// How a pod gets its RDMA device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<Rdma>,

    /// Which nodes backups may run on. Two backups of a group never share a node.
    #[serde(default)]
    pub placement: Placement,

    /// Where backups keep closed segments. An emptyDir on the node's disk if not given: it survives restarts of containers, not
    /// the loss of pods. A claim survives that as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush_volume: Option<FlushVolume>,

    /// No pods, while the log stays on the members' claims: the backups are removed once no pod of the app is left, and come back
    /// under their names with false. Needs durability Flushed and flushVolume.claim.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hibernate: bool,

    /// Seconds that a backup is given to bring its memory to its disk when it must stop; also how long its node has power
    /// after an outage, for durability Battery. No more is lent than can be flushed in that time.
    #[serde(default = "thirty")]
    #[schemars(range(min = 1, max = 86_400))]
    pub hold_up_seconds: u32,

    /// CPU and memory of the backup container. Memory for the buffers, and for a table, is added to what stands here.
    /// ephemeral-storage bounds the log where flushVolume is an emptyDir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_resources: Option<ResourceRequirements>,

    /// CPU and memory of the sidecar container in app pods. It needs twelve segments of memory at least, and what a
    /// table's keys take: 93 bytes for each that there may be, and two segments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar_resources: Option<ResourceRequirements>,

    /// What to add to backup pods: labels, annotations, and fields of the pod spec. Everything else in them is the operator's.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pod_template: PodTemplate,

    /// Image of the group's backups and injected sidecars, in place of the operator's. Pins their version: an upgrade of the
    /// operator does not change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$"))]
    pub image: Option<String>,

    /// Who replaces backups of an older spec or image. RollingUpdate: the operator, one at a time. OnDelete: they stay until
    /// somebody deletes them, or they have to be replaced for another reason.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,

    /// When a backup leaves a node that is to be emptied.
    #[serde(default, skip_serializing_if = "is_default")]
    pub node_maintenance: NodeMaintenance,

    /// The class of operators that manage this group: those with the same --class. All others leave it alone. If not given,
    /// operators without a class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub operator_class: Option<String>,

    /// Whether to keep a PodDisruptionBudget for the backups. While there is a primary, and a node for a successor, it refuses
    /// every eviction: the operator moves a backup off a node that is cordoned, successor first, and the drain of the node
    /// continues after that. It also refuses every eviction while a member reports damage: another may hold what that one lacks.
    /// Otherwise one backup at a time may go. Autoscalers leave nodes alone whose pods may not be evicted; set this to false where
    /// they should take nodes of backups.
    #[serde(default = "yes")]
    pub disruption_budget: bool,

    /// Ports of the service NAME-primary, which leads to the app pod that may append. Without any it has no address of its own
    /// and gives that pod's by DNS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub primary_ports: Vec<PrimaryPort>,

    /// Whether pods that are not the app's may follow the log. Enabled: a pod with the label replication.tailwind.dev/reads:
    /// NAME gets a sidecar that reads from the backups and can change nothing. Disabled: such pods are refused, and those that
    /// run are refused what they ask for.
    #[serde(default)]
    pub reads: Reads,

    /// What deleting the group does, once it is allowed: a group that holds a log is deleted only if its annotation
    /// replication.tailwind.dev/delete-log repeats its name. Immediate: everything goes, and the log with it. AfterApp: it waits until no pod of
    /// the app belongs to the group any more.
    #[serde(default)]
    pub deletion: Deletion,

    /// Leave everything as it is: the operator reports, renews certificates, keeps the disruption budget, the finalizer and the
    /// owners of claims as they must be, and changes nothing else. Failover still works, since it needs no operator.
    #[serde(default)]
    pub paused: bool,

    /// Nobody may append: the primary steps down and no standby takes over, until this is false again. The log stays.
    #[serde(default)]
    pub fenced: bool,

    /// An administrator's decision, as LOG/LSN: the log of this id (status.log.id) may end at this record, even if more was
    /// acknowledged. Needed only where the group waits because its members are damaged, or because status.log was restored from
    /// an older copy. It holds once. What is given up goes into quarantine at the backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9a-f]{32}/[0-9]{1,20})?$"))]
    pub accept_loss_up_to: Option<String>,

    /// An administrator's order, as LOG/EPOCH: the log of this id (status.log.id) is recovered from disks, as it was after the last
    /// epoch that had a primary (status.log.wonEpoch), so the order ends with the recovery. Needed only where every member has lost
    /// its memory, and none that still has it will come back. One member's disk suffices; it must hold everything up to the last
    /// sync. What was acknowledged after that may be lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9a-f]{32}/[0-9]{1,20})?$"))]
    pub recover_from_disk: Option<String>,
}

/// A port of the service that leads to the primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrimaryPort {
    /// Its name; needed where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: Option<String>,
    /// The service's port, and the pod's if targetPort is not given.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: u16,
    /// The pod's port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub target_port: Option<u16>,
}

/// Who replaces backups of an older spec or image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategy {
    /// The operator, one at a time.
    #[default]
    RollingUpdate,
    /// The user who deletes them.
    OnDelete,
}

/// When a backup leaves a node that is to be emptied. It never leaves before its successor holds the log; where no node is free for
/// one, it stays until one is, or until it is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMaintenance {
    /// What a cordon does. MoveWhenFree: a backup on the node moves if another node is free and all copies are there. Stay: it
    /// stays until it is evicted. A node with one of the operator's drain taints (--drain-taints) is always left.
    #[serde(default)]
    pub on_cordon: OnCordon,
    /// For how long the operator must have seen a node cordoned or tainted before a backup leaves it, in seconds.
    #[serde(default = "ten")]
    #[schemars(range(min = 0, max = 86_400))]
    pub grace_seconds: u32,
}

impl Default for NodeMaintenance {
    fn default() -> NodeMaintenance {
        NodeMaintenance { on_cordon: OnCordon::default(), grace_seconds: ten() }
    }
}

fn ten() -> u32 {
    10
}

/// What a cordon of its node means to a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnCordon {
    /// It moves if another node is free and all copies are there.
    #[default]
    MoveWhenFree,
    /// It stays until it is evicted.
    Stay,
}

/// Whether pods that are not the app's may follow the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Reads {
    /// Pods with the label replication.tailwind.dev/reads may.
    #[default]
    Enabled,
    /// Nobody may.
    Disabled,
}

/// What deleting a group does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Deletion {
    /// Everything goes at once, and the log with it.
    #[default]
    Immediate,
    /// It waits until no pod of the app belongs to the group.
    AfterApp,
}

/// What an acknowledgement promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Durability {
    /// In the memory of every member.
    #[default]
    Memory,
    /// As Memory; the nodes' hold-up power is attested.
    Battery,
    /// Also on the disk of every member.
    Flushed,
}

/// How bytes shall reach backups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TransportChoice {
    /// Rdma where rdma is given, else Tcp.
    #[default]
    Auto,
    /// One-sided RDMA writes.
    Rdma,
    /// Any network.
    Tcp,
}

/// Size of a segment: a power of two from 64 KiB to 64 MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "each says its size")]
pub enum SegmentSize {
    #[serde(rename = "64Ki")]
    Ki64,
    #[serde(rename = "128Ki")]
    Ki128,
    #[serde(rename = "256Ki")]
    Ki256,
    #[serde(rename = "512Ki")]
    Ki512,
    #[serde(rename = "1Mi")]
    Mi1,
    #[serde(rename = "2Mi")]
    Mi2,
    #[serde(rename = "4Mi")]
    Mi4,
    #[default]
    #[serde(rename = "8Mi")]
    Mi8,
    #[serde(rename = "16Mi")]
    Mi16,
    #[serde(rename = "32Mi")]
    Mi32,
    #[serde(rename = "64Mi")]
    Mi64,
}

impl SegmentSize {
    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        (64 << 10) << self as u64
    }
}

/// How a pod gets its RDMA device: exactly one of extendedResource and resourceClaimTemplateName.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.extendedResource) != has(self.resourceClaimTemplateName)")
        .message("exactly one of extendedResource and resourceClaimTemplateName must be given")
)]
pub struct Rdma {
    /// A device plugin's resource, such as that of an SR-IOV pool or of shared HCAs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extended_resource: Option<ExtendedResource>,

    /// A ResourceClaimTemplate in the group's namespace, for devices of dynamic resource allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub resource_claim_template_name: Option<String>,

    /// Networks of Multus to attach, where the device's addresses come from one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub networks: Vec<Network>,

    /// Run backups and the pods of the app in the node's own network, where the device's addresses are. Ports 7420 to 7422 must
    /// be free on every node. The app's pods have to ask for hostNetwork themselves.
    #[serde(default)]
    pub host_network: bool,

    /// RDMA device to use, as NAME or NAME/PORT, where a pod sees several and none is named by the device plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub device: Option<String>,

    /// Place in the port's GID table. If not given, a RoCE v2 entry with an address of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub gid_index: Option<u8>,

    /// Traffic class of RoCE packets, DSCP × 4: what the switches' lossless class wants, often 106.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub traffic_class: Option<u8>,

    /// InfiniBand's service level; on RoCE the priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 15))]
    pub service_level: Option<u8>,

    /// How long a write is repeated before its backup counts as lost, as EXPONENT/RETRIES of the RC timer: 1 + RETRIES times,
    /// 4.096 µs × 2^EXPONENT apart. 11/6 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([1-9]|[12][0-9]|3[01])/[1-7]$"))]
    pub retry: Option<String>,

    /// How the containers may pin the memory that RDMA needs. Capability: they run as root with IPC_LOCK and nothing else.
    /// NodeLimit: they run as any user; the node's container runtime has a high enough limit (LimitMEMLOCK).
    #[serde(default)]
    pub memlock: Memlock,

    /// Use huge pages of this size for the backups' buffers. The nodes must have them free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<Hugepages>,
}

/// A device plugin's resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtendedResource {
    /// Its name with its prefix, such as openshift.io/tailnic or rdma/rdma_shared_device_a.
    #[schemars(length(min = 3, max = 316), regex(pattern = r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$"))]
    pub name: String,
    /// How many a pod asks for.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub count: u8,
}

/// A network of Multus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Name of the NetworkAttachmentDefinition.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its namespace, if not the group's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the interface in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// How memory is pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Memlock {
    /// Root with IPC_LOCK.
    #[default]
    Capability,
    /// The node's limit is high enough.
    NodeLimit,
}

/// Use huge pages of this size for the backups' buffers. The nodes must have them free.
// Each has its own sentence: without, `null` would be listed among the values, and Kubernetes 1.20 refuses the definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Hugepages {
    /// Pages of 2 MiB.
    #[serde(rename = "2Mi")]
    Mi2,
    /// Pages of 1 GiB: every buffer takes a whole one.
    #[serde(rename = "1Gi")]
    Gi1,
}

/// Which nodes backups may run on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Affinity, beside the rule that two backups of a group never share a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints that backups tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// How backups spread, in place of the rule that they spread over zones where they can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
}

/// Where a backup keeps closed segments.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.claim) != has(self.emptyDirSizeLimit)")
        .message("exactly one of claim and emptyDirSizeLimit must be given")
)]
pub struct FlushVolume {
    /// A PersistentVolumeClaim of each member's own. It outlives the member's pod, and the next pod of that name takes it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<FlushClaim>,
    /// An emptyDir on the node's disk, at most so large. Backups keep below it: appends wait before it is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir_size_limit: Option<Quantity>,
}

/// A claim for a backup's disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlushClaim {
    /// Its storage class; the cluster's default if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// Its size: the log's closed segments, as far as the app does not trim them. Appends wait before it is full.
    pub size: Quantity,
    /// What becomes of it when its member leaves the group for good, or the group is deleted. Delete: it is deleted as well.
    /// Retain: it stays, and is yours; if its member has left, the label retained-of takes the place of backup-of.
    #[serde(default, skip_serializing_if = "is_default")]
    pub when_removed: WhenRemoved,
}

/// What becomes of a claim that is no longer needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenRemoved {
    /// It is deleted.
    #[default]
    Delete,
    /// It stays.
    Retain,
}

impl ReplicaGroupSpec {
    /// How bytes reach backups.
    pub fn transport(&self) -> Transport {
        transport(self.transport, self.rdma.is_some())
    }

    /// Copies needed to acknowledge appends.
    pub fn min_in_sync(&self) -> u8 {
        min_in_sync(self.min_in_sync, self.backups)
    }
}

pub(crate) fn transport(choice: TransportChoice, has_rdma: bool) -> Transport {
    match choice {
        TransportChoice::Rdma => Transport::Rdma,
        TransportChoice::Auto if has_rdma => Transport::Rdma,
        TransportChoice::Auto | TransportChoice::Tcp => Transport::Tcp,
    }
}

pub(crate) fn min_in_sync(given: Option<u8>, backups: u8) -> u8 {
    given.unwrap_or(backups.div_ceil(2))
}

pub(crate) fn three() -> u8 {
    3
}

fn sixteen() -> u32 {
    16
}

fn thirty() -> u32 {
    30
}

fn one() -> u8 {
    1
}

fn yes() -> bool {
    true
}
