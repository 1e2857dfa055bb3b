//! In a real Kubernetes cluster: what tests rely on there, and groups that lose containers, pods and nodes.
//!
//! Behind the feature `cluster`, since it takes a cluster: `scripts/cluster.sh [NAME]` starts one and runs them.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod certificates;
mod webhook;

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::json;
use tailwind_e2e::cluster::stage::{Stage, distribution, image};
use tailwind_e2e::cluster::{Cluster, bare, holds, text};
use tailwind_e2e::steps::OUTAGE;

use certificates::Authority;

/// All tests play on the same nodes.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For people who read along, past the test harness.
fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "note: {line}");
}

fn certify(folder: &std::path::Path, sidecars: &[&str], backups: &[&str]) {
    let authority = Authority::new();
    authority.certify(folder, &[], &[]);
    sidecars.iter().for_each(|name| authority.issue(folder, name, "tailwind://demo/sidecar/any"));
    backups.iter().for_each(|name| authority.issue(folder, name, "tailwind://demo/backup/any"));
}

// ---- The cluster itself -------------------------------------------------------------------------------------------------

/// A pod with an account finds the API server where every pod finds it, and says who it is.
#[test]
fn a_pod_reaches_the_api_server() {
    let _alone = alone();
    let cluster = Cluster::join().unwrap();
    let stage = Stage::set(&cluster, "account").unwrap();
    let script = "cd /var/run/secrets/kubernetes.io/serviceaccount && curl -sS --cacert ca.crt \
                  -H \"Authorization: Bearer $(cat token)\" \
                  https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/api/v1/namespaces/$(cat namespace)/pods";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asks", "namespace": stage.namespace},
        "spec": {"restartPolicy": "Never", "containers": [
            {"name": "loader", "image": image("tools"), "imagePullPolicy": "IfNotPresent", "command": ["bash", "-c", script]},
        ]},
    });
    cluster.apply(&[pod]).unwrap();
    cluster
        .wait("the pod to end", || Ok((text(&stage.pod("asks")?, "/status/phase") == "Succeeded").then_some(())))
        .unwrap();
    let said = cluster.kubectl(&["logs", "-n", &stage.namespace, "asks"], "").unwrap();
    let account = format!("system:serviceaccount:{}:default", stage.namespace);
    assert!(said.contains(&account) && said.contains("Forbidden"), "it was to be told that it may not: {said}");
}

/// The API server finds a webhook behind a service, although services have no addresses here.
#[test]
fn an_admission_webhook_is_reached_by_its_service() {
    let _alone = alone();
    let cluster = Cluster::join().unwrap();
    if !cluster.may_be_broken("an_admission_webhook_is_reached_by_its_service") {
        return;
    }
    let stage = Stage::set(&cluster, "webhook").unwrap();
    let webhook = webhook::Webhook::start("10.88.0.1:0", &format!("answers.{}.svc", stage.namespace));
    let name = json!({"name": "answers", "namespace": stage.namespace});
    let rules =
        json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]);
    let configuration = "tailwind-e2e-webhook";
    cluster
        .apply(&[
            json!({"apiVersion": "v1", "kind": "Service", "metadata": name,
                   "spec": {"ports": [{"port": 443, "targetPort": webhook.port}]}}),
            json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": name,
                   "subsets": [{"addresses": [{"ip": "10.88.0.1"}], "ports": [{"port": webhook.port}]}]}),
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
                   "metadata": {"name": configuration},
                   "webhooks": [{"name": "answers.tailwind.test", "rules": rules, "sideEffects": "None",
                                 "failurePolicy": "Fail", "admissionReviewVersions": ["v1"],
                                 "namespaceSelector": {"matchLabels": {"asked": "yes"}},
                                 "clientConfig": {"caBundle": webhook.authority,
                                                  "service": {"name": "answers", "namespace": stage.namespace}}}]}),
        ])
        .unwrap();
    cluster
        .patch(&format!("/api/v1/namespaces/{}", stage.namespace), &json!({"metadata": {"labels": {"asked": "yes"}}}))
        .unwrap();
    let changed = cluster.wait("the webhook to be asked", || {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "map-"}});
        let made = cluster.ask("POST", &stage.core("configmaps"), "application/json", Some(&map))?.unwrap_or_default();
        Ok((text(&made, "/metadata/labels/webhook") == "was-here").then_some(()))
    });
    cluster
        .delete(&format!("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{configuration}"))
        .unwrap();
    changed.unwrap();
}

/// Nodes lose their power and come back, and their API server does.
#[test]
fn a_node_dies_and_comes_back() {
    let _alone = alone();
    let cluster = Cluster::join().unwrap();
    if !cluster.may_be_broken("a_node_dies_and_comes_back") {
        return;
    }
    let node = "/api/v1/nodes/node-2";
    let began = Instant::now();
    cluster.node("node-2", "kill").unwrap();
    let killed = began.elapsed();
    cluster
        .wait("the node to be missed", || Ok((!holds(&cluster.get(node)?.unwrap(), "Ready")).then_some(())))
        .unwrap();
    let missed = began.elapsed();
    cluster.node("node-2", "start").unwrap();
    assert!(holds(&cluster.get(node).unwrap().unwrap(), "Ready"));
    note(&format!("a node is killed in {killed:?}, missed after {missed:?}, and back after {:?}", began.elapsed()));
    let node = cluster.get(node).unwrap().unwrap();
    assert_eq!(node["status"]["allocatable"]["tailwind.test/rdma"], "4", "it still has its devices");

    cluster.api("freeze").unwrap();
    cluster.get("/version").unwrap_err();
    cluster.api("thaw").unwrap();
    cluster.api("stop").unwrap();
    cluster.get("/version").unwrap_err();
    cluster.api("start").unwrap();
    cluster.wait("the API server to be back", || cluster.get("/version")).unwrap();
}

// ---- A group without an operator ----------------------------------------------------------------------------------------

/// Containers that are killed, and one that is frozen while another takes over, and goes on as if nothing had happened.
#[test]
fn a_bare_group_loses_its_primary() {
    let _alone = alone();
    let cluster = Cluster::join().unwrap();
    if !cluster.may_be_broken("a_bare_group_loses_its_primary") {
        return;
    }
    let stage = Stage::set(&cluster, "bare").unwrap();
    let group = bare::start(&stage, 2, 2, certify).unwrap();
    let mut gaps = Vec::new();
    for _ in 0..5 {
        stage.wait_for_acks(500).unwrap();
        let (epoch, pod) = stage.primary().unwrap();
        stage.kill_container(&pod, "sidecar").unwrap();
        gaps.push(stage.wait_for_failover(epoch).unwrap().gap_us);
        // A container that dies often is made to wait; a new pod is not.
        stage.remove_pod(&pod).unwrap();
        group.start_app(&pod).unwrap();
    }
    note(&format!("the primary's container is killed: {}", distribution(&gaps)));

    stage.wait_for_acks(500).unwrap();
    let (epoch, pod) = stage.primary().unwrap();
    let zombie = ["sidecar", "loader"].map(|name| cluster.container(&stage.pod(&pod).unwrap(), name).unwrap());
    zombie.iter().for_each(|container| cluster.freeze(container, true).unwrap());
    let failover = stage.wait_for_failover(epoch).unwrap();
    note(&format!("the primary's containers are frozen: {} ms", failover.gap_us / 1000));
    stage.wait_for_acks(500).unwrap();
    zombie.iter().for_each(|container| cluster.freeze(container, false).unwrap());
    stage.wait_for_acks(2000).unwrap();
    stage.finish(&OUTAGE).unwrap();
}

/// The primary's node, and what else is on it, dies.
#[test]
fn a_bare_group_loses_its_primarys_node() {
    let _alone = alone();
    let cluster = Cluster::join().unwrap();
    if !cluster.may_be_broken("a_bare_group_loses_its_primarys_node") {
        return;
    }
    let stage = Stage::set(&cluster, "bare-node").unwrap();
    bare::start(&stage, 2, 2, certify).unwrap();
    stage.wait_for_acks(500).unwrap();
    let (epoch, pod) = stage.primary().unwrap();
    let node = text(&stage.pod(&pod).unwrap(), "/spec/nodeName").to_owned();
    cluster.node(&node, "kill").unwrap();
    let failover = stage.wait_for_failover(epoch).unwrap();
    note(&format!("the primary's node is killed: {} ms", failover.gap_us / 1000));
    stage.wait_for_acks(500).unwrap();
    cluster.node(&node, "start").unwrap();
    stage.wait_for_acks(500).unwrap();
    stage.finish(&OUTAGE).unwrap();
}
