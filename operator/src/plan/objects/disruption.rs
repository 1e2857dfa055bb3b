//! The PodDisruptionBudget of a group's backups, and when there is none.
//!
//! Called by [`plan`](crate::plan). A budget that can never be met keeps a node from being drained for ever, so there is one
//! only while there is something to protect, and it asks for no more than can be had.

use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::json;
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::LABEL_BACKUP_OF;

use crate::server_version::ServerVersion;

/// Name of a group's budget.
pub fn name(group: &str) -> String {
    format!("{group}-tailwind-backup")
}

/// How many backups have to stay, if there is to be a budget.
///
/// None for a single backup, which could never leave, and none before there is a log. All but one as long as every backup
/// can have a node. Otherwise as many as appends need: the missing one may never come, and a drain shall not wait for it.
pub fn stay(group: &ReplicaGroup, placeable: bool) -> Option<u8> {
    let spec = &group.spec;
    let log = group.status.as_ref().and_then(|status| status.log.as_ref());
    if !spec.disruption_budget || spec.backups < 2 || log.is_none_or(|log| log.members.is_empty()) {
        return None;
    }
    let all_but_one = spec.backups - 1;
    Some(if placeable { all_but_one } else { spec.min_in_sync().clamp(1, all_but_one) })
}

/// The budget.
pub fn budget(group: &ReplicaGroup, server: ServerVersion, stay: u8) -> DynamicObject {
    let name_of_group = group.name_any();
    let mut spec = json!({
        "minAvailable": stay,
        "selector": {"matchLabels": {LABEL_BACKUP_OF: name_of_group}},
    });
    if server.has_unhealthy_eviction() {
        // One that is not caught up protects nothing.
        spec["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
    }
    super::object(json!({
        "apiVersion": if server.has_policy_v1() { "policy/v1" } else { "policy/v1beta1" },
        "kind": "PodDisruptionBudget",
        "metadata": super::metadata(group, &name(&name_of_group)),
        "spec": spec,
    }))
}
