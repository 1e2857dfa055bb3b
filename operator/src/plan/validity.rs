//! What is wrong with a spec: the rules of its definition, and those that need to know the server or the log's pods.
//!
//! Called by [`plan`](super) before anything else: an invalid group is left as it is.

use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use strum::EnumIter;
use tailwind_crds::names::ANNOTATION_SHAPE;
use tailwind_crds::{LogKind, ReplicaGroupSpec};

use super::table;
use crate::objects::flush;
use crate::objects::pod::shape;
use crate::objects::table::memory_bytes;
use crate::observed::Observed;
use crate::quantity;

/// A problem, for the author of the spec.
#[derive(Clone, Debug, PartialEq, Eq, EnumIter)]
pub(crate) enum Problem {
    BreaksRule(String),
    NoQuantity { field: String, text: String },
    ShapeChanged { now: String, before: String },
    NoResourceClaims(String),
    FlushVolumeTooSmall { has: String, needs: String },
    FlushVolumeTooSmallForTable { has: String, needs: String },
    KindChanged(LogKind),
    TableSmaller { field: &'static str, has: String, had: String },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::BreaksRule(rule) => rule.fmt(f),
            Problem::NoQuantity { field, text } => {
                write!(f, "{field} is {text:?}, which is no quantity: write one such as 500m, 64Mi or 2Gi")
            }
            Problem::ShapeChanged { now, before } => write!(
                f,
                "durability, transport and segmentSize cannot be changed: they are {now}, and the log was created \
                 with {before}. Change them back, or create a new group and copy the log into it"
            ),
            Problem::NoResourceClaims(server) => write!(
                f,
                "rdma.resourceClaimTemplateName needs Kubernetes 1.31 or later, and this is {server}: use \
                 rdma.extendedResource"
            ),
            Problem::FlushVolumeTooSmall { has, needs } => write!(
                f,
                "the flush volume has {has}, and a backup with segments of this size needs at least {needs}: enlarge \
                 flushVolume or backupResources' ephemeral-storage"
            ),
            Problem::FlushVolumeTooSmallForTable { has, needs } => write!(
                f,
                "the flush volume has {has}, and a backup with a table of this size needs at least {needs}, for the table, a \
                 sixteenth of it and six segments: enlarge flushVolume or backupResources' ephemeral-storage"
            ),
            Problem::KindChanged(LogKind::Log) => f.write_str(
                "table cannot be added: the group was started with a log. Remove it, or create a new group with a table",
            ),
            Problem::KindChanged(LogKind::Table) => f.write_str(
                "table cannot be removed: the group was started with one. Put it back, or create a new group with a log",
            ),
            Problem::TableSmaller { field, has, had } => write!(
                f,
                "{field} cannot be made smaller: it is {has}, and the primary was started with {had}. Change it back, or \
                 create a new group and put the table's keys into it"
            ),
        }
    }
}

/// All problems; none if the spec is valid.
pub(crate) fn problems(observed: &Observed) -> Vec<Problem> {
    let (spec, server) = (&observed.group.spec, observed.server);
    let rules = tailwind_crds::problems(&observed.group, None);
    let mut problems: Vec<Problem> = rules.into_iter().map(Problem::BreaksRule).collect();
    // Some servers do not check the pattern of a field that takes numbers and texts, and none has checked what was stored before.
    let wrong: Vec<Problem> = quantities(spec)
        .into_iter()
        .filter(|(_, quantity)| !quantity::is_valid(quantity))
        .map(|(field, Quantity(text))| Problem::NoQuantity { field, text: text.clone() })
        .collect();
    let are_quantities = wrong.is_empty();
    problems.extend(wrong);
    // Servers without CEL let anybody change what cannot be changed; the pods remember what it was.
    let now = shape(spec);
    let mut shapes = observed.backups.iter().filter_map(|pod| pod.annotations().get(ANNOTATION_SHAPE));
    if let Some(before) = shapes.find(|before| **before != now) {
        problems.push(Problem::ShapeChanged { now, before: before.clone() });
    }
    let by_claim = spec.rdma.as_ref().is_some_and(|rdma| rdma.resource_claim_template_name.is_some());
    if by_claim && !server.has_resource_claims() {
        problems.push(Problem::NoResourceClaims(server.to_string()));
    }
    let needs = flush::volume_bytes_min(spec);
    if let Some(has) = flush::volume_bytes(spec).filter(|has| are_quantities && *has < needs) {
        let needs = needs.next_multiple_of(1 << 20);
        let [has, needs] = [has, needs].map(|bytes| quantity::bytes(bytes).0);
        problems.push(match spec.table {
            Some(_) => Problem::FlushVolumeTooSmallForTable { has, needs },
            None => Problem::FlushVolumeTooSmall { has, needs },
        });
    }
    problems.extend(table_changed(observed));
    problems
}

/// What of the table has been changed that cannot be: servers without CEL let anybody do so. The sidecars have written what the
/// group keeps, and the operator how large the table of a primary was.
fn table_changed(observed: &Observed) -> Vec<Problem> {
    let spec = &observed.group.spec;
    let Some(log) = observed.log() else { return Vec::new() };
    if log.kind != table::kind(spec) {
        return vec![Problem::KindChanged(log.kind)];
    }
    let before = observed.group.status.as_ref().and_then(|status| status.table);
    let (Some(asked), Some(before)) = (&spec.table, before) else { return Vec::new() };
    let smaller = |field, has: u64, had: u64, text: fn(u64) -> String| {
        (has < had).then(|| Problem::TableSmaller { field, has: text(has), had: text(had) })
    };
    let problems = [
        smaller("table.memory", memory_bytes(spec), before.memory_bytes, |bytes| quantity::bytes(bytes).0),
        smaller("table.keys", asked.keys_max().into(), before.keys_max, |keys| keys.to_string()),
    ];
    problems.into_iter().flatten().collect()
}

/// The quantities of a spec, each with its field.
fn quantities(spec: &ReplicaGroupSpec) -> Vec<(String, &Quantity)> {
    let volume = spec.flush_volume.as_ref();
    let size = flush::claim(spec).map(|claim| &claim.size);
    let limit = volume.and_then(|volume| volume.empty_dir_size_limit.as_ref());
    let of_volume = [("flushVolume.claim.size", size), ("flushVolume.emptyDirSizeLimit", limit)];
    let mut all: Vec<(String, &Quantity)> =
        of_volume.into_iter().filter_map(|(field, quantity)| Some((field.to_owned(), quantity?))).collect();
    for (field, given) in [("backupResources", &spec.backup_resources), ("sidecarResources", &spec.sidecar_resources)] {
        let Some(given) = given else { continue };
        for (side, amounts) in [("limits", &given.limits), ("requests", &given.requests)] {
            let named = amounts.iter().flatten();
            all.extend(named.map(|(resource, amount)| (format!("{field}.{side}.{resource}"), amount)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The fields of a schema that take quantities.
    fn of_schema(schema: &Value, field: &str, found: &mut Vec<String>) {
        if schema["x-kubernetes-int-or-string"] == true {
            found.push(field.to_owned());
        }
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            of_schema(schema, &format!("{field}.{name}"), found);
        }
        if schema["additionalProperties"].is_object() {
            of_schema(&schema["additionalProperties"], &format!("{field}.memory"), found);
        }
    }

    #[test]
    fn every_quantity_of_a_spec_is_checked() {
        let amounts = json!({"limits": {"memory": "lots"}, "requests": {"memory": "lots"}});
        let spec: ReplicaGroupSpec = serde_json::from_value(json!({
            "flushVolume": {"claim": {"size": "lots"}, "emptyDirSizeLimit": "lots"},
            "backupResources": amounts,
            "sidecarResources": amounts,
        }))
        .unwrap();
        let mut checked: Vec<String> = quantities(&spec).into_iter().map(|(field, _)| format!(".{field}")).collect();
        let definition = serde_json::to_value(tailwind_crds::typed_definition()).unwrap();
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
        let mut fields = Vec::new();
        of_schema(definition.pointer(schema).unwrap(), "", &mut fields);
        checked.sort();
        fields.sort();
        assert_eq!(checked, fields);
    }
}
