//! Plans by example: what was observed, and what is planned. Each file in `tests/plans` opens with prose, then says what
//! there is, then what follows. `UPDATE_GOLDENFILES=1` rewrites the latter; read it before you keep it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::support::Example;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::events::EventType;
use serde_json::Value;
use tailwind_operator::observed::Observed;
use tailwind_operator::plan::{Action, Plan, plan};

#[test]
fn plans_match_their_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 20, "examples are missing");
    let mut wrong = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        let (given, expected) = text.split_once("\n---\n").unwrap_or((&text, ""));
        let given = given.trim_end();
        assert!(given.starts_with("# "), "{name}: begin with what happens, in prose");
        let example: Example = serde_yaml::from_str(given).unwrap_or_else(|error| panic!("{name}: {error}"));
        let observed = example.observed();
        let planned = plan(&observed);
        let described = describe(&planned, &observed, example.show_objects);
        if described == expected {
            continue;
        }
        if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
            fs::write(&path, format!("{given}\n---\n{described}")).unwrap();
        } else {
            wrong.push(format!("{name}: planned\n{described}"));
        }
    }
    assert!(wrong.is_empty(), "other plans than in the files; see the head of this file\n\n{}", wrong.join("\n"));
}

fn describe(plan: &Plan, observed: &Observed, show_objects: bool) -> String {
    let mut out = String::new();
    let mut list = |title: &str, lines: Vec<String>| {
        if lines.is_empty() {
            let _ = writeln!(out, "{title}: []");
            return;
        }
        let _ = writeln!(out, "{title}:");
        for line in lines {
            let _ = writeln!(out, "- {}", serde_json::to_string(&line).unwrap());
        }
    };
    list("actions", plan.actions.iter().map(describe_action).collect());
    let of_actions = plan.actions.iter().filter_map(Action::notice);
    let notices = of_actions.chain(plan.notices.iter().cloned());
    list(
        "events",
        notices
            .map(|notice| {
                let kind = if notice.kind() == EventType::Warning { "Warning" } else { "Normal" };
                format!("{kind} {}: {notice}", notice.reason())
            })
            .collect(),
    );
    let status = &plan.status;
    let before = observed.group.status.clone().map(|status| tailwind_crds::ReplicaGroupStatus { log: None, ..status });
    let _ = writeln!(out, "lookAgainAfterSeconds: {}", plan.again.as_secs());
    if before.as_ref() == Some(status) {
        let _ = writeln!(out, "status: unchanged");
    } else {
        let _ = writeln!(out, "status:");
        let mut shown = serde_json::to_value(status).unwrap();
        let conditions = shown.as_object_mut().unwrap().remove("conditions");
        for line in serde_yaml::to_string(&shown).unwrap().lines() {
            let _ = writeln!(out, "  {line}");
        }
        let _ = writeln!(out, "  conditions:");
        for condition in conditions.iter().flat_map(|list| list.as_array().unwrap()) {
            let text = |key: &str| condition[key].as_str().unwrap_or_default();
            let line = format!("{} {} {}: {}", text("type"), text("status"), text("reason"), text("message"));
            let _ = writeln!(out, "  - {}", serde_json::to_string(&line).unwrap());
        }
    }
    if show_objects {
        for action in &plan.actions {
            let object = match action {
                Action::Create(pod) => serde_json::to_value(pod).unwrap(),
                Action::Apply(owned) | Action::Claim(owned) => serde_json::to_value(&owned.object).unwrap(),
                _ => continue,
            };
            // As they are written to the API server, in an order that does not depend on features of crates.
            let sorted: Value = serde_json::from_str(&object.to_string()).unwrap();
            let _ = write!(out, "---\n{}", serde_yaml::to_string(&sorted).unwrap());
        }
    }
    out
}

fn describe_action(action: &Action) -> String {
    match action {
        Action::Create(pod) => match avoided(pod) {
            nodes if nodes.is_empty() => action.to_string(),
            nodes => format!("{action}, not on {}", nodes.join(" or ")),
        },
        Action::Delete(removal) => format!("{action}, because {}", removal.reason),
        Action::Apply(owned) if owned.object.name_any().ends_with("-backup") => {
            format!("{action}: {}", serde_json::to_string(&owned.object.data["spec"]).unwrap())
        }
        _ => action.to_string(),
    }
}

fn avoided(pod: &Pod) -> Vec<String> {
    let spec = serde_json::to_value(&pod.spec).unwrap();
    let terms = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields";
    let fields = spec.pointer(terms).and_then(Value::as_array).cloned().unwrap_or_default();
    fields.iter().filter_map(|field| field["values"][0].as_str().map(str::to_owned)).collect()
}
