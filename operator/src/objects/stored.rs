//! What has become of an object that was written: admission may have changed it on its way.
//!
//! Called by [`plan`](crate::plan), which writes nothing that is as it should be, and by [`apply`](crate::apply) with what the API
//! server answers. A webhook or a policy that adds something is none of our business. One that takes away what the operator relies
//! on is: pods that it cannot find again would be made without end, those without their template's hash replaced without end, and
//! a budget that was loosened would let a member be evicted beside one that is removed.

use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use tailwind_crds::names::API_GROUP;

use crate::planted::{self, Bug};

/// The last field of a budget. See [`disruption`](super::disruption).
const EVICTION_POLICY: &str = "spec.unhealthyPodEvictionPolicy";

/// Where an object differs from what is wanted of it; nothing if it has all of that. What it has beyond that does not count.
pub(crate) fn difference(existing: &DynamicObject, wanted: &DynamicObject) -> Option<String> {
    let mut labels = wanted.labels().iter();
    let label = labels.find(|(label, value)| existing.labels().get(*label) != Some(value));
    let label = label.map(|(label, _)| format!("metadata.labels.{label}"));
    label.or_else(|| differs(&wanted.data, &existing.data, ""))
}

/// The path of the first field that differs.
fn differs(wanted: &Value, existing: &Value, at: &str) -> Option<String> {
    use serde_json::Value::{Array, Object};
    let path = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
    match (wanted, existing) {
        (Object(wanted), Object(existing)) => {
            wanted.iter().find_map(|(key, value)| match existing.get(key).filter(|existing| !existing.is_null()) {
                Some(existing) => differs(value, existing, &path(key)),
                None => (!value.as_array().is_some_and(Vec::is_empty)).then(|| path(key)),
            })
        }
        (Array(wanted), Array(existing)) if wanted.len() == existing.len() => {
            wanted.iter().zip(existing).find_map(|(wanted, existing)| differs(wanted, existing, at))
        }
        (wanted, existing) => (wanted != existing).then(|| at.to_owned()),
    }
}

/// The field in which an object is not as it was written a moment ago. Where the cluster lets pods that are not ready be evicted in
/// any case, that is its decision: were a budget with it no good, nothing would leave, and drains would wait for that without end.
pub fn altered(written: &DynamicObject, stored: &DynamicObject) -> Option<String> {
    let altered = difference(stored, written).filter(|field| field != EVICTION_POLICY);
    altered.filter(|_| !planted::has(Bug::TrustsAdmission))
}

/// What a pod has lost on its way that the operator knows it by.
pub fn lost_of_pod(written: &Pod, stored: &Pod) -> Option<String> {
    let gates = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.readiness_gates.clone()).unwrap_or_default();
    let kept = gates(stored);
    let gate = gates(written).into_iter().find(|gate| !kept.contains(gate));
    let gate = gate.map(|gate| format!("readiness gate {}", gate.condition_type));
    lost(written.meta(), stored.meta()).or(gate.filter(|_| !planted::has(Bug::TrustsAdmission)))
}

/// What an object has lost on its way that the operator knows it by: its owner, and labels and annotations of its own.
pub fn lost(written: &ObjectMeta, stored: &ObjectMeta) -> Option<String> {
    let owners = |metadata: &ObjectMeta| metadata.owner_references.clone().unwrap_or_default();
    let kept = owners(stored);
    let owner = owners(written).into_iter().find(|owner| kept.iter().all(|kept| kept.uid != owner.uid));
    let owner = owner.map(|owner| format!("owner {}", owner.name));
    let of_ours = |what: &str, written: &ObjectMeta, stored: &ObjectMeta| {
        let fields = |metadata: &ObjectMeta| match what {
            "label" => metadata.labels.clone().unwrap_or_default(),
            _ => metadata.annotations.clone().unwrap_or_default(),
        };
        let kept = fields(stored);
        let ours = fields(written).into_iter().filter(|(name, _)| name.starts_with(API_GROUP));
        let mut lost = ours.filter(|(name, value)| kept.get(name) != Some(value));
        lost.next().map(|(name, _)| format!("{what} {name}"))
    };
    let lost = owner.or_else(|| of_ours("label", written, stored)).or_else(|| of_ours("annotation", written, stored));
    lost.filter(|_| !planted::has(Bug::TrustsAdmission))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_wanted_counts() {
        let object = |content: Value| -> DynamicObject {
            let mut object = json!({"metadata": {"name": "a", "labels": {"own": "1"}}});
            json_patch::merge(&mut object, &content);
            serde_json::from_value(object).unwrap()
        };
        let wanted = object(json!({"spec": {"ports": [{"port": 1}], "none": [], "stay": 3}}));
        for (existing, field) in [
            (json!({"spec": {"ports": [{"port": 1, "protocol": "TCP"}], "stay": 3, "more": 1}}), None),
            (json!({"spec": {"ports": [{"port": 1}], "stay": 1}}), Some("spec.stay")),
            (json!({"spec": {"ports": [{"port": 1}]}}), Some("spec.stay")),
            (json!({"spec": {"ports": [{"port": 1}, {"port": 2}], "stay": 3}}), Some("spec.ports")),
            (json!({"metadata": {"labels": {"own": "2"}}}), Some("metadata.labels.own")),
        ] {
            assert_eq!(difference(&object(existing.clone()), &wanted).as_deref(), field, "{existing}");
        }
    }

    #[test]
    fn a_pod_is_known_by_its_owner_labels_annotations_and_gate() {
        let whole = json!({
            "metadata": {
                "labels": {"replication.tailwind.dev/backup-of": "orders", "team": "shop"},
                "annotations": {"replication.tailwind.dev/template-hash": "1", "mesh": "no"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "ReplicaGroup", "name": "orders", "uid": "u"}],
            },
            "spec": {"containers": [], "readinessGates": [{"conditionType": "gate"}]},
        });
        let lost = |change: Value| {
            let mut stored = whole.clone();
            json_patch::merge(&mut stored, &change);
            let pod = |pod: &Value| serde_json::from_value::<Pod>(pod.clone()).unwrap();
            lost_of_pod(&pod(&whole), &pod(&stored))
        };
        for (change, name) in [
            (json!({"metadata": {"labels": {"team": null, "more": "1"}, "annotations": {"mesh": "yes"}}}), None),
            (json!({"metadata": {"labels": null}}), Some("label replication.tailwind.dev/backup-of")),
            (json!({"metadata": {"annotations": null}}), Some("annotation replication.tailwind.dev/template-hash")),
            (json!({"metadata": {"ownerReferences": []}}), Some("owner orders")),
            (json!({"spec": {"readinessGates": null}}), Some("readiness gate gate")),
        ] {
            assert_eq!(lost(change.clone()).as_deref(), name, "{change}");
        }
    }
}
