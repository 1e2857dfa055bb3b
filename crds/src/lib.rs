//! `ReplicaGroup`, the one resource of Tailwind: what a team writes ([`spec`]), what it reads ([`status`]), and the rules
//! that both API server and operator check ([`problems`]).
//!
//! Known to the operator, to the sidecar's config store and to the end-to-end tests; knows only what a report is. The doc comments of
//! fields are what `kubectl explain rg.spec` shows.

#![allow(unreachable_pub, reason = "the derive of KubeSchema repeats each struct inside a function")]

pub mod names;
pub mod pod_template;
pub mod spec;
pub mod status;
pub mod table;
pub mod view;

#[cfg(feature = "rules")]
use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
#[cfg(feature = "rules")]
use kube::core::cel::{CompiledSchema, compile_schema, validate_compiled};

pub use pod_template::{PodTemplate, PodTemplateMetadata, PodTemplateSecurityContext, PodTemplateSpec};
pub use spec::{
    Deletion, Durability, ExtendedResource, FlushClaim, FlushVolume, Hugepages, Memlock, Network, NodeMaintenance,
    OnCordon, Placement, PrimaryPort, Rdma, Reads, ReplicaGroup, ReplicaGroupSpec, SegmentSize, TransportChoice,
    UpdateStrategy, WhenRemoved,
};
pub use status::{
    BackupState, BackupStatus, LogCut, LogKind, LogMember, LogPrimary, LogStatus, Phase, ReaderStatus,
    ReplicaGroupStatus, Switchover, TableStatus, Transport,
};
pub use table::{ResidentMemory, Table, TableMemory};

/// The definition as YAML, as it stands in `crds/replicagroups.yaml`.
///
/// # Panics
/// Never: the definition is made of plain maps, lists and texts.
pub fn definition() -> String {
    let definition = serde_yaml::to_string(&typed_definition()).unwrap_or_else(|error| panic!("{error}"));
    format!("# Generated from crds/src by `cargo run --package tailwind-crds`. Do not edit.\n{definition}")
}

/// The definition, for those that look into it.
pub fn typed_definition() -> CustomResourceDefinition {
    let mut definition = ReplicaGroup::crd();
    let schemas =
        definition.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut());
    for schema in schemas {
        change(schema, refuse_null);
        change(schema, check_quantity);
    }
    definition
}

/// Makes a change to a schema and to all that are in it.
fn change(schema: &mut JSONSchemaProps, make: fn(&mut JSONSchemaProps)) {
    make(schema);
    schema.properties.iter_mut().flatten().for_each(|(_, schema)| change(schema, make));
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        change(items, make);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        change(values, make);
    }
}

/// The derive lets every optional field be null. What may be null has no type in OpenAPI v2, so that `kubectl explain` of
/// servers before 1.27 falls silent about it; and a rule would have to ask twice whether a field is there.
fn refuse_null(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
}

/// What Kubernetes takes for a quantity in its own types. The derive only says that it is a number or a text, and a text that is no
/// quantity, such as 1GB, would count as nothing. No other field of ours is a number or a text.
/// <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>
fn check_quantity(schema: &mut JSONSchemaProps) {
    const PATTERN: &str = concat!(
        r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))",
        r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
    );
    if schema.x_kubernetes_int_or_string == Some(true) {
        schema.pattern = Some(PATTERN.to_owned());
    }
}

/// What is wrong with a spec, one sentence each: the very rules that the API server checks, for objects that were stored
/// before a rule was, or by a server that does not know CEL (older than 1.25).
#[cfg(feature = "rules")]
pub fn problems(group: &ReplicaGroup, before: Option<&ReplicaGroup>) -> Vec<String> {
    // They take some milliseconds to build, and the operator asks for each group at each look.
    static RULES: LazyLock<CompiledSchema> = LazyLock::new(|| {
        let definition = ReplicaGroup::crd().spec.versions.swap_remove(0);
        compile_schema(&json(&definition.schema.expect("a derived definition has a schema").open_api_v3_schema))
    });
    let checked = validate_compiled(&RULES, &json(group), before.map(json).as_ref());
    checked.err().into_iter().flatten().map(|error| error.message).collect()
}

#[cfg(feature = "rules")]
fn json(value: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_else(|error| panic!("{error}"))
}
