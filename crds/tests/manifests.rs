//! What people copy is right: the samples, and the alerts and dashboard of the chart.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use tailwind_crds::names::ANNOTATION_DELETE_LOG;
use tailwind_crds::{ReplicaGroup, definition, problems};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn documents(text: &str) -> Vec<Value> {
    let all = serde_yaml::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap());
    all.filter(|document| !document.is_null()).collect()
}

/// Whether all that was written is there when it has been read; what is not was no field.
fn lost(written: &Value, found: &Value, path: &str) -> Vec<String> {
    match (written, found) {
        (Value::Object(written), Value::Object(found)) => {
            let of = |(key, value): (&String, &Value)| match found.get(key) {
                Some(found) => lost(value, found, &format!("{path}.{key}")),
                None => vec![format!("{path}.{key}")],
            };
            written.iter().flat_map(of).collect()
        }
        (Value::Array(written), Value::Array(found)) if written.len() == found.len() => {
            written.iter().zip(found).flat_map(|(written, found)| lost(written, found, path)).collect()
        }
        _ if written == found => Vec::new(),
        _ => vec![format!("{path}: {written} became {found}")],
    }
}

#[test]
fn samples_are_valid_groups() {
    let mut groups = 0;
    for entry in fs::read_dir(top().join("manifests/samples")).unwrap() {
        let path = entry.unwrap().path();
        for document in documents(&fs::read_to_string(&path).unwrap()) {
            if document["kind"] != "ReplicaGroup" {
                continue;
            }
            let group: ReplicaGroup = serde_json::from_value(document.clone()).unwrap();
            assert_eq!(problems(&group, None), Vec::<String>::new(), "{}", path.display());
            let again = serde_json::to_value(&group).unwrap();
            assert_eq!(lost(&document, &again, ""), Vec::<String>::new(), "{}: no such fields", path.display());
            groups += 1;
        }
    }
    assert_eq!(groups, 6, "each sample has one group");
}

#[test]
fn unknown_fields_are_found() {
    let text =
        "apiVersion: replication.tailwind.dev/v1alpha1\nkind: ReplicaGroup\nmetadata: {name: a}\nspec: {backup: 3}";
    let document = documents(text).remove(0);
    let group: ReplicaGroup = serde_json::from_value(document.clone()).unwrap();
    assert_eq!(lost(&document, &serde_json::to_value(&group).unwrap(), ""), [".spec.backup"]);
}

#[test]
fn the_chart_has_the_definition() {
    assert!(read("charts/tailwind/files/replicagroups.yaml") == definition(), "run: scripts/manifests.sh");
}

#[test]
fn alerts_and_runbooks_match() {
    let file = documents(&read("charts/tailwind/files/alerts.yaml")).remove(0);
    let groups = file["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    let alerts: BTreeSet<String> = rules.map(|rule| rule["alert"].as_str().unwrap().to_owned()).collect();
    let pages = fs::read_dir(top().join("docs/runbooks")).unwrap();
    let pages = pages.map(|page| page.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned());
    assert_eq!(alerts, pages.collect());
}

/// By name, in the text of the programs: a metric that was renamed leaves an alert that never fires.
#[test]
fn alerts_and_dashboard_use_existing_metrics() {
    let sources = ["sidecar/src/control/status.rs", "sidecar/src/backup/status.rs", "operator/src/metrics.rs"];
    let source: String = sources.map(read).concat();
    let asked = read("charts/tailwind/files/alerts.yaml") + &read("charts/tailwind/files/dashboard.json");
    let names = asked.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names: BTreeSet<&str> = names.filter(|name| name.starts_with("tailwind_")).collect();
    assert!(names.len() > 20, "{names:?}");
    // Samples of a histogram have its name and a suffix.
    let histograms: Vec<&str> =
        source.split("now.histogram(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(histograms.len() > 3, "{histograms:?}");
    let of_histogram = |name: &str| {
        let base = name.strip_suffix("_bucket").or(name.strip_suffix("_sum")).or(name.strip_suffix("_count"));
        base.is_some_and(|base| histograms.contains(&base))
    };
    for name in names {
        assert!(!histograms.contains(&name), "{name} has no sample of that name: use {name}_bucket");
        if of_histogram(name) {
            continue;
        }
        let short = name.trim_start_matches("tailwind_");
        let there = source.contains(&format!("\"{name}\"")) || source.contains(&format!("(\"{short}\", "));
        assert!(there, "no program has the metric {name}");
    }
}

/// The expression by which the API server decides: see decision 33.
#[test]
fn a_log_is_deleted_only_on_confirmation() {
    let expression = cel::Program::compile(&read("charts/tailwind/files/deletion.cel")).unwrap();
    let allows = |group: Value, namespace: Value| {
        let mut context = cel::Context::default();
        context.add_variable("oldObject", group).unwrap();
        context.add_variable("namespaceObject", namespace).unwrap();
        expression.execute(&context).unwrap() == cel::Value::Bool(true)
    };
    let group = |annotations: Value, status: Value| {
        let mut group = serde_json::json!({"metadata": {"name": "orders"}, "spec": {}});
        for (part, value) in [("/metadata/annotations", annotations), ("/status", status)] {
            let (parent, field) = part.rsplit_once('/').unwrap();
            if !value.is_null() {
                group.pointer_mut(parent).unwrap()[field] = value;
            }
        }
        group
    };
    let log = || serde_json::json!({"phase": "Ready", "log": {"epoch": 3}});
    let confirmed = |name: &str| serde_json::json!({ANNOTATION_DELETE_LOG: name});
    let alive = || serde_json::json!({"metadata": {"name": "shop"}});
    assert!(!allows(group(Value::Null, log()), alive()));
    assert!(!allows(group(serde_json::json!({"team": "payments"}), log()), alive()));
    assert!(!allows(group(confirmed("payments"), log()), alive()), "the name of another group");
    assert!(allows(group(confirmed("orders"), log()), alive()));
    assert!(allows(group(Value::Null, Value::Null), alive()), "never started");
    assert!(allows(group(Value::Null, serde_json::json!({"phase": "Pending"})), alive()), "never had a log");
    let ending = serde_json::json!({"metadata": {"name": "shop", "deletionTimestamp": "2026-06-01T11:59:00Z"}});
    assert!(allows(group(Value::Null, log()), ending), "its namespace goes");
}
