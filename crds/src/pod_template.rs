//! What a team adds to its backup pods: the part of a pod's template that Tailwind does not need for itself.
//!
//! Field of [`spec`](crate::spec). A field that is not in here cannot be set: the API server refuses it by its name.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LocalObjectReference, SELinuxOptions, SeccompProfile};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Labels, annotations and fields of the pod spec, merged into each backup pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// Labels and annotations to add to backup pods, such as those that a mesh or a network plugin wants.
    #[serde(default, skip_serializing_if = "is_default")]
    pub metadata: PodTemplateMetadata,
    /// Fields of the pod spec. Nodes, affinity and tolerations are in spec.placement.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spec: PodTemplateSpec,
}

/// Labels and annotations.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.labels) || self.labels.all(key, !key.startsWith('replication.tailwind.dev/') && !(key in ['app.kubernetes.io/name', 'app.kubernetes.io/instance', 'app.kubernetes.io/managed-by']))")
        .message("podTemplate.metadata.labels: the operator sets replication.tailwind.dev/... and app.kubernetes.io/name, instance and managed-by itself"),
    validation = Rule::new("!has(self.annotations) || self.annotations.all(key, !key.startsWith('replication.tailwind.dev/'))")
        .message("podTemplate.metadata.annotations: the operator sets replication.tailwind.dev/... itself")
)]
pub struct PodTemplateMetadata {
    /// Labels to add to backup pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub labels: BTreeMap<String, String>,
    /// Annotations to add to backup pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub annotations: BTreeMap<String, String>,
}

/// Fields of the pod spec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplateSpec {
    /// Service account of backup pods. Its token is not mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Priority class of backup pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Runtime class of backup pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// Scheduler of backup pods, if not the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scheduler_name: Option<String>,
    /// Secrets to pull the image of backup pods with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Users, groups and profiles that backup pods run with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<PodTemplateSecurityContext>,
}

/// The part of a pod's security context that Tailwind leaves open. It holds for the backup's container as well, which otherwise
/// has its own user and seccomp profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplateSecurityContext {
    /// User of the backup; 65532 if not given. Not with rdma.memlock Capability, which needs root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647_i64))]
    pub run_as_user: Option<i64>,
    /// Its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647_i64))]
    pub run_as_group: Option<i64>,
    /// Group of the backup's volumes; 65532 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647_i64))]
    pub fs_group: Option<i64>,
    /// Further groups of the backup.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supplemental_groups: Vec<i64>,
    /// Its SELinux label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub se_linux_options: Option<SELinuxOptions>,
    /// Its seccomp profile; RuntimeDefault if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seccomp_profile: Option<SeccompProfile>,
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
