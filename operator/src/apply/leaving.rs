//! Marks a backup pod before it is deleted, and takes the mark off again. A deletion is bound to the version of the pod with the
//! mark. It may be on its way for long, and rest on what is no longer so: the next look at the group takes the mark off, and then
//! the deletion fails. See docs/decisions/0063-announced-deletions.md.
//!
//! Called by [`apply`](super), and by [`observe`](crate::observe) before anything is planned.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, Preconditions};
use serde_json::json;
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::CONDITION_LEAVING;

use super::{MANAGER, found};
use crate::error::{Doing, Error};
use crate::objects::is_owned;
use crate::observed::is_leaving;
use crate::plan::removal::Removal;

/// Says on a pod that it is about to be deleted: what its deletion is bound to from here on. Nothing if the pod is gone, or is another
/// one of its name by now.
pub(super) async fn announce(
    pods: &Api<Pod>,
    removal: &Removal,
    now: Timestamp,
) -> Result<Option<Preconditions>, kube::Error> {
    let Some(uid) = &removal.pod else { return Ok(None) };
    let pod = mark(pods, &removal.name, true, now).await?.filter(|pod| pod.uid().as_ref() == Some(uid));
    Ok(pod.map(|pod| Preconditions { uid: Some(uid.clone()), resource_version: pod.metadata.resource_version }))
}

/// Takes the mark off those of a group's backup pods that have it: the pods as they are then.
pub(crate) async fn call_off(
    pods: &Api<Pod>,
    group: &ReplicaGroup,
    backups: Vec<Pod>,
    now: Timestamp,
) -> Result<Vec<Pod>, Error> {
    let mut all = Vec::with_capacity(backups.len());
    for pod in backups {
        if is_leaving(&pod) && is_owned(group, &pod.metadata) {
            let name = pod.name_any();
            all.extend(mark(pods, &name, false, now).await.doing(|| format!("call off the deletion of pod {name}"))?);
        } else {
            all.push(pod);
        }
    }
    Ok(all)
}

/// The pod with the mark, or without it, if it is still there.
async fn mark(pods: &Api<Pod>, name: &str, leaving: bool, now: Timestamp) -> Result<Option<Pod>, kube::Error> {
    let (status, reason) = if leaving { ("True", "Removal") } else { ("False", "LookedAgain") };
    // Kubernetes keeps seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let condition = json!({
        "type": CONDITION_LEAVING,
        "status": status,
        "reason": reason,
        "lastTransitionTime": now.to_string(),
    });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    found(pods.patch_status(name, &params, &patch).await)
}
