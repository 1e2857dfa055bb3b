//! What people copy is right: the samples, and the alerts and dashboard of the chart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{documents, lost, top};
use serde::Deserialize;
use serde_json::Value;
use tailwind_crds::names::{ANNOTATION_DELETE_DEFINITION, ANNOTATION_DELETE_LOG, ANNOTATION_OPERATOR};
use tailwind_crds::{ReplicaGroup, definition, problems};

fn read(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A group as people write it: no rule is broken, and no field is unknown.
fn assert_valid(document: &Value, place: &str) {
    let group: ReplicaGroup =
        serde_json::from_value(document.clone()).unwrap_or_else(|error| panic!("{place}: {error}"));
    assert_eq!(problems(&group, None), Vec::<String>::new(), "{place}");
    let again = serde_json::to_value(&group).unwrap();
    assert_eq!(lost(document, &again, ""), Vec::<String>::new(), "{place}: no such fields");
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
            assert_valid(&document, &path.display().to_string());
            groups += 1;
        }
    }
    assert_eq!(groups, 10, "each sample has one group");
}

/// Markdown files that people read.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            pages(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// The fenced blocks of a page, each with its language.
fn blocks(page: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, String)> = None;
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), open.as_mut()) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => open = Some((language.trim(), String::new())),
            (None, Some((_, text))) => *text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block does not end");
    blocks
}

#[test]
fn groups_in_the_docs_are_valid() {
    let (mut files, mut groups) = (Vec::new(), 0);
    pages(&top(), &mut files);
    for path in files {
        let page = fs::read_to_string(&path).unwrap();
        for (_, text) in blocks(&page).into_iter().filter(|(language, _)| *language == "yaml") {
            let place = format!("{}\n{text}", path.display());
            for document in serde_yaml::Deserializer::from_str(&text) {
                let document = Value::deserialize(document).unwrap_or_else(|error| panic!("{place}{error}"));
                let is_group = document["kind"] == "ReplicaGroup";
                // A page may show no more than the spec of a group.
                let part = document["spec"].as_object().filter(|_| document["kind"].is_null());
                if is_group {
                    assert_valid(&document, &place);
                } else if let Some(spec) = part {
                    let whole = serde_json::json!({
                        "apiVersion": "replication.tailwind.dev/v1alpha1",
                        "kind": "ReplicaGroup",
                        "metadata": {"name": "orders"},
                        "spec": spec,
                    });
                    assert_valid(&whole, &place);
                }
                groups += usize::from(is_group || part.is_some());
            }
        }
    }
    assert!(groups >= 5, "only {groups} groups");
}

/// What a link to a heading ends with, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

/// Links between pages, and to places in them.
#[test]
fn links_in_the_docs_resolve() {
    let mut files = Vec::new();
    pages(&top(), &mut files);
    let mut seen = 0;
    for path in files {
        let page = fs::read_to_string(&path).unwrap();
        for link in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            // Or an expression in a cell of the reference.
            if link.contains("://") || link.contains(char::is_whitespace) || link.starts_with('[') {
                continue;
            }
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link} does not exist", path.display());
            let is_there = || {
                let target = fs::read_to_string(&target).unwrap();
                target
                    .lines()
                    .filter(|line| line.starts_with('#'))
                    .any(|line| anchor(line.trim_start_matches(['#', ' '])) == place)
            };
            assert!(place.is_empty() || is_there(), "{}: {link}: no such heading", path.display());
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} links");
}

/// `spec.NAME` and `status.NAME` in running text are fields.
#[test]
fn fields_in_the_docs_exist() {
    let definition: Value = serde_yaml::from_str(&definition()).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    // Paths of fields of pods, and one that is refused.
    let others = ["spec.containers", "spec.nodeName", "status.podIP", "spec.podTemplate.spec.hostNetwork"];
    let (mut files, mut seen) = (Vec::new(), 0);
    pages(&top().join("docs"), &mut files);
    files.push(top().join("README.md"));
    // Decisions also name what was rejected.
    files.retain(|path| !path.starts_with(top().join("docs/decisions")));
    for path in files {
        let page = fs::read_to_string(&path).unwrap();
        for word in page.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '_')) {
            let word = word.trim_matches('.');
            if !(word.starts_with("spec.") || word.starts_with("status."))
                || word.ends_with(".rs")
                || word.ends_with(".md")
                || others.contains(&word)
            {
                continue;
            }
            let mut at = schema;
            for name in word.split('.') {
                let inner = if at["items"].is_object() { &at["items"] } else { at };
                // Below a map, or what Kubernetes knows, anything goes.
                if inner["properties"].is_null() {
                    break;
                }
                at = &inner["properties"][name];
                assert!(at.is_object(), "{}: no field {word}", path.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 50, "only {seen} fields");
}

/// What a release means for its users, not a history. See "Changes" in CONTRIBUTING.md.
#[test]
fn the_changelog_is_short() {
    const LINES_MAX: usize = 80;
    let changelog = read("CHANGELOG.md");
    let releases: Vec<&str> = changelog.split("\n## ").skip(1).collect();
    assert!(!releases.is_empty(), "no release");
    for release in releases {
        let name = release.lines().next().unwrap();
        let lines = release.trim_end().lines().count();
        assert!(lines <= LINES_MAX, "{name}: {lines} lines, {LINES_MAX} at most");
        let parts: Vec<&str> = release.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        assert_eq!(parts, ["Safety", "Features", "Internals"], "{name}");
    }
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

/// A phase that alerts do not know would wake people for what they have asked for.
#[test]
fn alerts_know_every_phase() {
    let schema: Value = documents(&definition()).remove(0);
    let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/phase/enum";
    let phases = schema.pointer(status).and_then(Value::as_array).unwrap().iter();
    let phases: BTreeSet<&str> = phases.filter_map(Value::as_str).collect();
    let alerts = read("charts/tailwind/files/alerts.yaml");
    let mut lists = 0;
    for list in alerts.split("phase=~\"").skip(1) {
        let quiet: BTreeSet<&str> = list.split('"').next().unwrap().split('|').collect();
        let loud: BTreeSet<&str> = phases.difference(&quiet).copied().filter(|phase| *phase != "Paused").collect();
        assert!(quiet.is_subset(&phases), "{quiet:?}");
        assert_eq!(loud, BTreeSet::from(["Degraded", "Ready", "Unavailable"]));
        lists += 1;
    }
    assert_eq!(lists, 3);
}

/// Cargo reads the manifest of every member, whichever it builds.
#[test]
fn images_are_built_from_every_workspace_member() {
    let manifest = read("Cargo.toml");
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = ")).unwrap();
    let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    assert!(members.contains(&"sidecar/protocol/fuzz"), "{members:?}");
    let ignored = read(".dockerignore");
    let (sent, left_out): (Vec<&str>, Vec<&str>) = ignored.lines().skip(2).partition(|line| line.starts_with('!'));
    for member in members {
        let path = format!("{member}/");
        assert!(sent.iter().any(|folder| path.starts_with(&folder[1..])), ".dockerignore lacks {member}");
        let of_member = |pattern: &&&str| path.contains(pattern.trim_start_matches("**"));
        assert_eq!(left_out.iter().find(of_member), None, "{member}");
    }
}

/// A metric that was renamed leaves an alert that never fires. What there is stands in the reference.
#[test]
fn alerts_and_dashboard_use_existing_metrics() {
    let page = read("docs/reference/metrics.md");
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        Some((cells.next()?.trim_end_matches('`').to_owned(), cells.next()? == "histogram"))
    };
    let metrics: BTreeMap<String, bool> = page.lines().filter_map(row).collect();
    let is_sample = |name: &str| match metrics.get(name) {
        Some(is_histogram) => !is_histogram,
        None => ["_bucket", "_sum", "_count"]
            .iter()
            .any(|ending| name.strip_suffix(ending).is_some_and(|base| metrics.get(base) == Some(&true))),
    };
    assert!(is_sample("tailwind_append_seconds_count") && !is_sample("tailwind_append_seconds"), "{metrics:?}");
    let asked = read("charts/tailwind/files/alerts.yaml") + &read("charts/tailwind/files/dashboard.json");
    let names = asked.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names: BTreeSet<&str> = names.filter(|name| name.starts_with("tailwind_")).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(is_sample(name), "no program has samples of the name {name}");
    }
}

/// The definition, with which every group goes, is deleted only on confirmation as well.
#[test]
fn the_definition_is_deleted_only_on_confirmation() {
    let expression = cel::Program::compile(&read("charts/tailwind/files/definition.cel")).unwrap();
    let allows_named = |name: &str, annotations: Value| {
        let mut definition = serde_json::json!({"metadata": {"name": name}});
        if !annotations.is_null() {
            definition["metadata"]["annotations"] = annotations;
        }
        let mut context = cel::Context::default();
        context.add_variable("oldObject", definition).unwrap();
        expression.execute(&context).unwrap() == cel::Value::Bool(true)
    };
    let allows = |annotations: Value| allows_named("replicagroups.replication.tailwind.dev", annotations);
    let confirmed = |name: &str| serde_json::json!({ANNOTATION_DELETE_DEFINITION: name});
    assert!(allows_named("orders.shop.example.com", Value::Null), "the policy is asked about every definition");
    assert!(!allows(Value::Null));
    assert!(!allows(serde_json::json!({"helm.sh/resource-policy": "keep"})));
    assert!(!allows(confirmed("true")));
    assert!(allows(confirmed("replicagroups.replication.tailwind.dev")));
}

/// The expression by which the API server decides: see decision 33.
fn deletion_is_allowed(group: Value, namespace: Value) -> bool {
    let expression = cel::Program::compile(&read("charts/tailwind/files/deletion.cel")).unwrap();
    let mut context = cel::Context::default();
    context.add_variable("oldObject", group).unwrap();
    context.add_variable("namespaceObject", namespace).unwrap();
    expression.execute(&context).unwrap() == cel::Value::Bool(true)
}

#[test]
fn a_log_is_deleted_only_on_confirmation() {
    let allows = deletion_is_allowed;
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
    let conditions = |reason: &str| {
        let condition =
            |kind: &str, reason: &str| serde_json::json!({"type": kind, "status": "False", "reason": reason});
        let conditions = [condition("Ready", "Paused"), condition("FailoverSafe", reason)];
        serde_json::json!({"phase": "Paused", "conditions": conditions})
    };
    assert!(allows(group(Value::Null, conditions("NoLog")), alive()), "never had a log");
    let emptied = || conditions("ConfigStoreEmpty");
    assert!(!allows(group(Value::Null, emptied()), alive()), "a backup holds a log");
    assert!(allows(group(confirmed("orders"), emptied()), alive()));
    let ending = serde_json::json!({"metadata": {"name": "shop", "deletionTimestamp": "2026-06-01T11:59:00Z"}});
    assert!(allows(group(Value::Null, emptied()), ending.clone()), "its namespace goes");
    assert!(allows(group(Value::Null, log()), ending), "its namespace goes");
}

/// A status that is missing shows nothing: it may have been emptied, or the group restored without it. If no operator has recorded
/// itself in the group, none has ever written one.
#[test]
fn a_group_without_a_status_is_deleted_only_if_it_never_had_one() {
    let allows = |is_recorded: bool, hibernate: bool, status: Value| {
        let mut group = serde_json::json!({"metadata": {"name": "orders"}, "spec": {"hibernate": hibernate}});
        if is_recorded {
            group["metadata"]["annotations"] = serde_json::json!({ANNOTATION_OPERATOR: "tailwind-system/tailwind"});
        }
        if !status.is_null() {
            group["status"] = status;
        }
        deletion_is_allowed(group, serde_json::json!({"metadata": {"name": "shop"}}))
    };
    assert!(allows(false, false, Value::Null), "no operator has seen it");
    assert!(!allows(false, true, Value::Null), "its log is on claims, if it has one");
    for status in [Value::Null, serde_json::json!({}), serde_json::json!({"phase": "Invalid"})] {
        for hibernate in [false, true] {
            assert!(!allows(true, hibernate, status.clone()), "an operator had written more: {status}");
        }
    }
    let failover_safe = |reason: &str| {
        let condition = serde_json::json!({"type": "FailoverSafe", "status": "False", "reason": reason});
        serde_json::json!({"phase": "Hibernated", "conditions": [condition]})
    };
    for hibernate in [false, true] {
        assert!(allows(true, hibernate, failover_safe("NoLog")), "the operator has looked, also for claims");
        assert!(!allows(true, hibernate, failover_safe("ClaimsUnread")));
    }
}
