//! The fields of a `ReplicaGroup` and the columns of `kubectl get rg`, from the definition.
//!
//! Called by [`kubernetes`](super).

use std::collections::BTreeSet;
use std::fmt::Write;

use k8s_openapi::api::core::v1::{
    Affinity, Container, LocalObjectReference, PodSpec, PodTemplateSpec, ResourceRequirements, Toleration,
    TopologySpreadConstraint,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, schema_for};
use tailwind_crds::typed_definition;

use super::one_line;

/// A section for each version.
pub(super) fn fields() -> String {
    let mut page = String::new();
    for version in typed_definition().spec.versions {
        let Some(schema) = version.schema.and_then(|schema| schema.open_api_v3_schema) else { continue };
        let _ = writeln!(page, "\n## Fields of {}\n", version.name);
        page += &rules(&schema);
        for part in ["spec", "status"] {
            if let Some(schema) = schema.properties.as_ref().and_then(|properties| properties.get(part)) {
                object(&mut page, part, schema);
            }
        }
    }
    page
}

/// A table of an object's fields, then one of each object in it.
fn object(page: &mut String, path: &str, schema: &JSONSchemaProps) {
    let about = one_line(schema.description.as_deref().unwrap_or_default());
    let _ = writeln!(page, "\n### {path}\n\n{about}\n");
    *page += "| field | type | default | allowed | description |\n|---|---|---|---|---|\n";
    let properties = schema.properties.iter().flatten();
    for (name, field) in properties.clone() {
        let is_required = schema.required.iter().flatten().any(|required| required == name);
        let default = field.default.as_ref().map(|value| format!("`{}`", value.0.to_string().trim_matches('"')));
        let default = default.or_else(|| is_required.then(|| "required".to_owned())).unwrap_or_default();
        let (kind, allowed) = (kind(&format!("{path}.{name}"), field), allowed(name, field, schema));
        let about = one_line(field.description.as_deref().unwrap_or_default());
        let _ = writeln!(page, "| `{name}` | {kind} | {default} | {allowed} | {about} |");
    }
    let rules = rules(schema);
    if !rules.is_empty() {
        let _ = write!(page, "\nRules:\n{rules}");
    }
    for (name, field) in properties {
        if let Some((suffix, inner)) = inner(field) {
            object(page, &format!("{path}.{name}{suffix}"), inner);
        }
    }
}

/// The object that has a table of its own: the field itself, or what it is a list or map of.
fn inner(schema: &JSONSchemaProps) -> Option<(&'static str, &JSONSchemaProps)> {
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        return inner(items).map(|(_, inner)| ("[]", inner));
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        return inner(values).map(|(_, inner)| (".*", inner));
    }
    (schema.properties.is_some() && kubernetes_type(schema).is_none()).then_some(("", schema))
}

fn kind(path: &str, schema: &JSONSchemaProps) -> String {
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        return format!("list of {}", kind(&format!("{path}[]"), items));
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        return format!("map of {}", kind(&format!("{path}.*"), values));
    }
    if let Some(name) = kubernetes_type(schema) {
        return format!("`{name}`");
    }
    if schema.properties.is_some() {
        return format!("[object](#{})", anchor(path));
    }
    if schema.x_kubernetes_int_or_string == Some(true) {
        return "quantity".to_owned();
    }
    schema.type_.clone().unwrap_or_else(|| "any".to_owned())
}

/// What a link to a heading ends with, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

/// What a value must be like, and whether it can be changed.
fn allowed(name: &str, schema: &JSONSchemaProps, parent: &JSONSchemaProps) -> String {
    let number = |number: Option<f64>| number.map(|number| number.to_string());
    let mut all = Vec::new();
    if let Some(values) = &schema.enum_ {
        let values: Vec<_> =
            values.iter().map(|value| format!("`{}`", value.0.to_string().trim_matches('"'))).collect();
        all.push(values.join(", "));
    }
    for (unit, min, max) in [
        ("", number(schema.minimum), number(schema.maximum)),
        (" characters", bound(schema.min_length), bound(schema.max_length)),
        (" entries", bound(schema.min_items), bound(schema.max_items)),
    ] {
        match (min.filter(|min| *min != "0" || max_is_chosen(schema)), max) {
            (Some(min), Some(max)) => all.push(format!("{min} to {max}{unit}")),
            (Some(min), None) => all.push(format!("{min}{unit} or more")),
            (None, Some(max)) if unit.is_empty() && !max_is_chosen(schema) => drop(max),
            (None, Some(max)) => all.push(format!("at most {max}{unit}")),
            (None, None) => {}
        }
    }
    // That of a quantity says no more than its type.
    let pattern = schema.pattern.as_ref().filter(|_| schema.x_kubernetes_int_or_string != Some(true));
    all.extend(pattern.map(|pattern| format!("`{}`", pattern.replace('|', "\\|"))));
    let rules: String = parent.x_kubernetes_validations.iter().flatten().map(|rule| rule.rule.as_str()).collect();
    if rules.contains(&format!("self.{name} == oldSelf.{name}")) {
        all.push("cannot be changed".to_owned());
    } else if rules.contains(&format!("has(self.{name}) == has(oldSelf.{name})")) {
        all.push("cannot be added or removed".to_owned());
    }
    all.join("; ")
}

fn bound(bound: Option<i64>) -> Option<String> {
    bound.map(|bound| bound.to_string())
}

/// A type of a byte has the bounds of a byte, which nobody chose.
fn max_is_chosen(schema: &JSONSchemaProps) -> bool {
    schema.maximum.is_some() && (schema.format.as_deref(), schema.maximum) != (Some("uint8"), Some(255.0))
}

fn rules(schema: &JSONSchemaProps) -> String {
    let rules = schema.x_kubernetes_validations.iter().flatten();
    rules.filter_map(|rule| rule.message.as_ref()).fold(String::new(), |mut list, message| {
        let _ = writeln!(list, "- {}", one_line(message));
        list
    })
}

/// Which type of Kubernetes has just these fields.
fn kubernetes_type(schema: &JSONSchemaProps) -> Option<&'static str> {
    fn named<T: JsonSchema>() -> (BTreeSet<String>, &'static str) {
        let schema = schema_for!(T);
        let fields = schema.get("properties").and_then(|properties| properties.as_object()).into_iter().flatten();
        (
            fields.map(|(name, _)| name.clone()).collect(),
            std::any::type_name::<T>().rsplit("::").next().unwrap_or_default(),
        )
    }
    let fields: BTreeSet<String> = schema.properties.as_ref()?.keys().cloned().collect();
    let known = [
        named::<Affinity>(),
        named::<Condition>(),
        named::<Container>(),
        named::<LocalObjectReference>(),
        named::<PodSpec>(),
        named::<PodTemplateSpec>(),
        named::<ResourceRequirements>(),
        named::<Toleration>(),
        named::<TopologySpreadConstraint>(),
    ];
    known.into_iter().find(|(names, _)| *names == fields).map(|(_, name)| name)
}

/// What `kubectl get rg` shows.
pub(super) fn columns() -> String {
    let mut page = "\n## Columns of `kubectl get rg`\n\n| column | field | description |\n|---|---|---|\n".to_owned();
    for version in typed_definition().spec.versions {
        for column in version.additional_printer_columns.unwrap_or_default() {
            let wide = if column.priority.is_some_and(|priority| priority > 0) { "with `-o wide`. " } else { "" };
            let about = column.description.unwrap_or_default();
            let path = column.json_path.trim_start_matches('.').replace('|', "\\|");
            let _ = writeln!(page, "| {} | `{path}` | {} |", column.name, format!("{wide}{about}").trim_end());
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_github() {
        assert_eq!(anchor("spec.rdma.networks[]"), "specrdmanetworks");
    }
}
