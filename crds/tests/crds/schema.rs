//! Every object that people install has only fields that exist, of the right types: the chart with all values that are
//! documented, `manifests/install.yaml` and the samples.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::{Command, Output};

use crate::support::{documents, lost, top};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tailwind_crds::ReplicaGroup;

/// What is wrong with a document, each with its path.
fn problems(document: &Value) -> Vec<String> {
    let text = |field: &str| document[field].as_str().unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        ("v1", "ConfigMap") => read::<ConfigMap>(document),
        ("v1", "Namespace") => read::<Namespace>(document),
        ("v1", "Service") => read::<Service>(document),
        ("v1", "ServiceAccount") => read::<ServiceAccount>(document),
        ("apps/v1", "Deployment") => read::<Deployment>(document),
        ("apps/v1", "StatefulSet") => read::<StatefulSet>(document),
        ("policy/v1", "PodDisruptionBudget") => read::<PodDisruptionBudget>(document),
        ("networking.k8s.io/v1", "NetworkPolicy") => read::<NetworkPolicy>(document),
        ("rbac.authorization.k8s.io/v1", "Role") => read::<Role>(document),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => read::<RoleBinding>(document),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => read::<ClusterRole>(document),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => read::<ClusterRoleBinding>(document),
        ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration") => {
            read::<MutatingWebhookConfiguration>(document)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => read::<ValidatingAdmissionPolicy>(document),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            read::<ValidatingAdmissionPolicyBinding>(document)
        }
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => read::<CustomResourceDefinition>(document),
        ("resource.k8s.io/v1", "ResourceClaimTemplate") => read::<ResourceClaimTemplate>(document),
        ("monitoring.coreos.com/v1", "PodMonitor") => read::<Monitoring<PodMonitorSpec>>(document),
        ("monitoring.coreos.com/v1", "PrometheusRule") => read::<Monitoring<PrometheusRuleSpec>>(document),
        ("replication.tailwind.dev/v1alpha1", "ReplicaGroup") => read::<ReplicaGroup>(document),
        (version, kind) => vec![format!("no type for {version} {kind}")],
    }
}

fn read<T: DeserializeOwned + Serialize>(document: &Value) -> Vec<String> {
    match serde_path_to_error::deserialize::<_, T>(document) {
        Ok(object) => lost(document, &serde_json::to_value(object).unwrap(), ""),
        Err(error) => vec![format!(".{}: {}", error.path(), error.inner())],
    }
}

/// Objects of the Prometheus Operator, with the fields that the chart may use.
/// <https://prometheus-operator.dev/docs/api-reference/api/>
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Monitoring<T> {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    spec: T,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PodMonitorSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace_selector: Option<NamespaceSelector>,
    selector: LabelSelector,
    pod_metrics_endpoints: Vec<PodMetricsEndpoint>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NamespaceSelector {
    #[serde(skip_serializing_if = "Option::is_none")]
    any: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    match_names: Option<Vec<String>>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PodMetricsEndpoint {
    port: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    honor_labels: Option<bool>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PrometheusRuleSpec {
    groups: Vec<RuleGroup>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RuleGroup {
    name: String,
    rules: Vec<AlertRule>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct AlertRule {
    alert: String,
    expr: String,
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    duration: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<String, String>>,
}

/// What is wrong in a stream; at least as many documents must be there.
fn check(name: &str, text: &str, least: usize) -> Vec<String> {
    let documents = documents(text);
    assert!(documents.len() >= least, "{name}: {} documents", documents.len());
    let of = |document: &Value| {
        let object = format!("{} {}", document["kind"], document["metadata"]["name"]);
        problems(document).into_iter().map(|problem| format!("{name}: {object}: {problem}")).collect::<Vec<_>>()
    };
    documents.iter().flat_map(of).collect()
}

#[test]
fn committed_manifests_match_their_types() {
    let mut files = vec![top().join("manifests/install.yaml")];
    files.extend(fs::read_dir(top().join("manifests/samples")).unwrap().map(|entry| entry.unwrap().path()));
    let found = files.iter().flat_map(|path| check(&path.display().to_string(), &fs::read_to_string(path).unwrap(), 1));
    assert_eq!(found.collect::<Vec<_>>(), Vec::<String>::new());
    assert!(files.len() > 6, "files are missing");
}

/// Values to install the chart with: its defaults, the files in `ci`, those in the docs, and each switch the other way.
fn variants() -> Vec<Vec<String>> {
    let chart = top().join("charts/tailwind");
    let set = |settings: &str| vec!["--set".to_owned(), settings.to_owned()];
    let mut variants = vec![
        vec![],
        set("registry=registry.example.com/tailwind"),
        set("watchNamespace=shop"),
        installed_in("shop", "watchNamespace=shop"),
        set("platform=openshift"),
        set("webhook.failurePolicy=Fail"),
        set("alerts.enabled=true,alerts.runbookUrl=https://example.com/runbooks"),
        set("podMonitor.enabled=true,podMonitor.interval=30s,podMonitor.groupNamespaces={shop,bank}"),
    ];
    for entry in fs::read_dir(chart.join("ci")).unwrap() {
        variants.push(vec!["--values".to_owned(), entry.unwrap().path().display().to_string()]);
    }
    let values: Value = serde_yaml::from_str(&fs::read_to_string(chart.join("values.yaml")).unwrap()).unwrap();
    let switches = switches(&values, "");
    assert!(switches.len() > 10, "{switches:?}");
    // Policies for groups need a namespace.
    variants.extend(switches.iter().map(|(path, on)| set(&format!("watchNamespace=shop,{path}={}", !on))));
    variants
}

/// The chart in a namespace of the release's own, with these settings.
fn installed_in(namespace: &str, settings: &str) -> Vec<String> {
    ["--namespace", namespace, "--set", settings].map(str::to_owned).to_vec()
}

/// Each value that is true or false.
fn switches(values: &Value, path: &str) -> Vec<(String, bool)> {
    match values {
        Value::Bool(on) => vec![(path.trim_start_matches('.').to_owned(), *on)],
        Value::Object(map) => map.iter().flat_map(|(key, value)| switches(value, &format!("{path}.{key}"))).collect(),
        _ => Vec::new(),
    }
}

fn helm(arguments: &[&str], variant: &[String]) -> Output {
    let mut helm = Command::new(top().join("e2e/cluster/helm"));
    helm.args(arguments).args(variant).current_dir(top()).output().unwrap()
}

/// Whether the Helm engine is there. Without it a test of the chart says that it cannot run.
fn has_helm(test: &str) -> bool {
    let prepared = helm(&["prepare"], &[]);
    if !prepared.status.success() {
        let why = String::from_utf8_lossy(&prepared.stderr).trim().to_owned();
        let _ = writeln!(std::io::stderr(), "cannot run: {test}: {why}");
    }
    prepared.status.success()
}

/// The chart as it is rendered with these values.
fn rendered(variant: &[String]) -> String {
    let template = ["template", "tailwind", "charts/tailwind", "--namespace", "tailwind-system"];
    let rendered = helm(&template, variant);
    assert!(rendered.status.success(), "{variant:?}: {}", String::from_utf8_lossy(&rendered.stderr));
    String::from_utf8(rendered.stdout).unwrap()
}

#[test]
fn every_variant_of_the_chart_matches_its_types() {
    if !has_helm("every_variant_of_the_chart_matches_its_types") {
        return;
    }
    let found = variants().into_iter().flat_map(|variant| check(&variant.join(" "), &rendered(&variant), 4));
    assert_eq!(found.collect::<Vec<_>>(), Vec::<String>::new());
}

/// A namespace that is asked for and excluded is none: no pod would get its sidecar.
#[test]
fn the_webhook_is_called_in_the_watched_namespace() {
    if !has_helm("the_webhook_is_called_in_the_watched_namespace") {
        return;
    }
    for (release, watched) in
        [("tailwind-system", ""), ("tailwind-system", "shop"), ("shop", "shop"), ("kube-system", "kube-system")]
    {
        let chart = documents(&rendered(&installed_in(release, &format!("watchNamespace={watched}"))));
        let webhooks: Vec<&Value> = chart.iter().filter_map(|object| object["webhooks"].as_array()).flatten().collect();
        assert_eq!(webhooks.len(), 2, "{release} {watched}");
        for webhook in webhooks {
            let selector = &webhook["namespaceSelector"];
            let named = |operator: &str| {
                let expressions = selector["matchExpressions"].as_array().unwrap().iter();
                let those = expressions.filter(|expression| expression["operator"] == operator);
                let values = those.flat_map(|expression| {
                    let values = expression["values"].as_array().unwrap().iter();
                    values.map(move |value| (&expression["key"], value))
                });
                values.collect::<Vec<_>>()
            };
            let (asked, excluded) = (named("In"), named("NotIn"));
            assert!(asked.iter().all(|value| !excluded.contains(value)), "{release} {watched}: {selector}");
        }
    }
}

/// Pods in their node's network have its address, which no selector of pods or namespaces matches.
#[test]
fn the_operator_reaches_pods_in_the_nodes_network() {
    if !has_helm("the_operator_reaches_pods_in_the_nodes_network") {
        return;
    }
    let settings = ["--set", "networkPolicy.operator.enabled=true"].map(str::to_owned);
    let chart = documents(&rendered(&settings));
    let policy = chart.iter().find(|object| object["kind"] == "NetworkPolicy").unwrap();
    for port in [7411, 7421] {
        let leads_there = |rule: &&Value| rule["ports"].as_array().unwrap().iter().any(|entry| entry["port"] == port);
        let rules: Vec<&Value> = policy["spec"]["egress"].as_array().unwrap().iter().filter(leads_there).collect();
        assert!(!rules.is_empty(), "{port}: {policy}");
        assert!(rules.iter().all(|rule| rule["to"].is_null()), "{port}: {policy}");
    }
}

/// Helm deletes the definition first, which they refuse. Without them, the next uninstall would delete every log.
#[test]
fn helm_uninstall_leaves_what_protects_logs() {
    if !has_helm("helm_uninstall_leaves_what_protects_logs") {
        return;
    }
    for keep in [true, false] {
        let settings = ["--set".to_owned(), format!("crds.keep={keep}")];
        let chart = documents(&rendered(&settings));
        let is_kept = |object: &Value| object["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep";
        let definition = chart.iter().find(|object| object["kind"] == "CustomResourceDefinition").unwrap();
        assert_eq!(is_kept(definition), keep);
        for kind in ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] {
            let policies: Vec<&Value> = chart.iter().filter(|object| object["kind"] == kind).collect();
            assert_eq!(policies.len(), 2, "crds.keep={keep}: {kind}");
            assert!(policies.into_iter().all(is_kept), "crds.keep={keep}: {kind}");
        }
    }
}

/// A shell finds the end of the group only at the start of a line.
#[test]
fn the_group_in_the_notes_can_be_pasted() {
    if !has_helm("the_group_in_the_notes_can_be_pasted") {
        return;
    }
    for settings in ["watchNamespace=", "watchNamespace=shop"] {
        let notes = helm(&["notes", "tailwind", "charts/tailwind", "--set", settings], &[]);
        assert!(notes.status.success(), "{}", String::from_utf8_lossy(&notes.stderr));
        let notes = String::from_utf8(notes.stdout).unwrap();
        let (_, after) = notes.split_once("<<EOF\n").unwrap();
        let (group, _) = after.split_once("\nEOF\n").unwrap_or_else(|| panic!("no end: {notes}"));
        let groups = documents(group);
        assert_eq!(groups.len(), 1, "{group}");
        assert_eq!(problems(&groups[0]), Vec::<String>::new(), "{group}");
    }
}

#[test]
fn unknown_fields_and_wrong_types_have_a_path() {
    let deployment = |change: fn(&mut Value)| {
        let labels = json!({"app": "a"});
        let mut deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}},
            },
        });
        change(&mut deployment["spec"]);
        problems(&deployment)
    };
    assert_eq!(deployment(|_| ()), Vec::<String>::new());
    let container = |field: &str| format!(".spec.template.spec.containers[0].{field}");
    let unknown = deployment(|spec| spec["template"]["spec"]["containers"][0]["readynessProbe"] = json!({}));
    assert_eq!(unknown, [container("readynessProbe")]);
    let wrong =
        deployment(|spec| spec["template"]["spec"]["containers"][0]["env"] = json!([{"name": "a", "value": 1}]));
    assert!(wrong[0].starts_with(&container("env[0].value: ")), "{wrong:?}");
    let wrong = deployment(|spec| spec["replicas"] = json!("2"));
    assert!(wrong[0].starts_with(".spec.replicas: "), "{wrong:?}");
    assert_eq!(problems(&json!({"apiVersion": "v1", "kind": "Pot"})), ["no type for v1 Pot"]);
    let rule = json!({"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {},
        "spec": {"groups": [{"name": "a", "rules": [{"alert": "A", "expr": "1", "fro": "1m"}]}]}});
    assert!(problems(&rule)[0].starts_with(".spec.groups[0].rules[0].fro: unknown field"), "{:?}", problems(&rule));
}
