//! Groups in a real Kubernetes cluster: what tests rely on there, groups without an operator that lose containers and nodes,
//! and [`operated`] groups, whose disks fill up ([`evictions`]) or outlive them ([`claims`]) and whose operator is newer than they are ([`skew`]).
//!
//! Behind the feature `cluster`, since it takes a cluster: `scripts/cluster.sh [NAME]` starts one and runs them.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod claims;
mod evictions;
mod idle;
mod operated;
mod readers;
mod redis;
mod rollout;
mod service;
mod skew;
mod tables;
mod truth;
mod webhook;

use std::time::Instant;

use serde_json::{Value, json};
use tailwind_e2e::cluster::bare;
use tailwind_e2e::cluster::kubernetes::{Cluster, holds, text};
use tailwind_e2e::cluster::namespace::{Namespace, distribution, image};
use tailwind_e2e::context::note;
use tailwind_e2e::processes::steps::OUTAGE;

// ---- The cluster itself -------------------------------------------------------------------------------------------------

/// A pod with an account reaches the API server as every pod does, and is authenticated.
#[test]
fn pod_reaches_the_api_server() {
    let cluster = Cluster::join().unwrap();
    let namespace = Namespace::create(&cluster, "account").unwrap();
    let script = "cd /var/run/secrets/kubernetes.io/serviceaccount && curl -sS --cacert ca.crt \
                  -H \"Authorization: Bearer $(cat token)\" \
                  https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/api/v1/namespaces/$(cat namespace)/pods";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asks", "namespace": namespace.name},
        "spec": {"restartPolicy": "Never", "containers": [
            {"name": "loader", "image": image("tools"), "imagePullPolicy": "IfNotPresent", "command": ["bash", "-c", script]},
        ]},
    });
    cluster.apply(&[pod]).unwrap();
    cluster
        .wait("the pod to end", || Ok((text(&namespace.pod("asks")?, "/status/phase") == "Succeeded").then_some(())))
        .unwrap();
    let log = cluster.kubectl(&["logs", "-n", &namespace.name, "asks"], "").unwrap();
    let refusal: Value = serde_json::from_str(&log).unwrap_or_else(|error| panic!("{error}: {log}"));
    assert_eq!((&refusal["code"], &refusal["reason"]), (&json!(403), &json!("Forbidden")), "{log}");
    let account = format!("system:serviceaccount:{}:default", namespace.name);
    assert!(text(&refusal, "/message").contains(&account), "{log}");
}

/// The API server finds a webhook behind a service, although services have no addresses here.
#[test]
fn admission_webhook_is_reached_by_its_service() {
    let Some(cluster) = Cluster::join_own("admission_webhook_is_reached_by_its_service").unwrap() else { return };
    let namespace = Namespace::create(&cluster, "webhook").unwrap();
    let webhook = webhook::Webhook::start("10.88.0.1:0", &format!("answers.{}.svc", namespace.name));
    let name = json!({"name": "answers", "namespace": namespace.name});
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
                                                  "service": {"name": "answers", "namespace": namespace.name}}}]}),
        ])
        .unwrap();
    cluster
        .patch(&format!("/api/v1/namespaces/{}", namespace.name), &json!({"metadata": {"labels": {"asked": "yes"}}}))
        .unwrap();
    let changed = cluster.wait("the webhook to be asked", || {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "map-"}});
        let made =
            cluster.ask("POST", &namespace.core("configmaps"), "application/json", Some(&map))?.unwrap_or_default();
        Ok((text(&made, "/metadata/labels/webhook") == "was-here").then_some(()))
    });
    cluster
        .delete(&format!("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{configuration}"))
        .unwrap();
    changed.unwrap();
}

/// Nodes lose their power and come back, and their API server does.
#[test]
fn node_dies_and_returns() {
    let Some(cluster) = Cluster::join_own("node_dies_and_returns").unwrap() else { return };
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

/// Containers that are killed, and one that is frozen while another takes over, and is resumed.
#[test]
fn bare_group_loses_its_primary() {
    let Some(cluster) = Cluster::join_own("bare_group_loses_its_primary").unwrap() else { return };
    let namespace = Namespace::create(&cluster, "bare").unwrap();
    let group = bare::start(&namespace, 2, 2).unwrap();
    let mut gaps = Vec::new();
    for _ in 0..5 {
        namespace.wait_for_acks(500).unwrap();
        let (epoch, pod) = namespace.primary().unwrap();
        namespace.kill_container(&pod, "sidecar").unwrap();
        gaps.push(namespace.wait_for_failover(epoch).unwrap().gap_us);
        // Kubernetes delays the restart of a container that dies often; not that of a new pod.
        namespace.remove_pod(&pod).unwrap();
        group.start_app(&pod).unwrap();
    }
    note(&format!("the primary's container is killed: {}", distribution(&gaps)));

    namespace.wait_for_acks(500).unwrap();
    let (epoch, pod) = namespace.primary().unwrap();
    let zombie = ["sidecar", "loader"].map(|name| cluster.container(&namespace.pod(&pod).unwrap(), name).unwrap());
    zombie.iter().for_each(|container| cluster.freeze(container, true).unwrap());
    let failover = namespace.wait_for_failover(epoch).unwrap();
    note(&format!("the primary's containers are frozen: {} ms", failover.gap_us / 1000));
    namespace.wait_for_acks(500).unwrap();
    zombie.iter().for_each(|container| cluster.freeze(container, false).unwrap());
    namespace.wait_for_acks(2000).unwrap();
    namespace.finish(&OUTAGE).unwrap();
}

/// The primary's node, and what else is on it, dies.
#[test]
fn bare_group_loses_its_primary_node() {
    let Some(cluster) = Cluster::join_own("bare_group_loses_its_primary_node").unwrap() else { return };
    let namespace = Namespace::create(&cluster, "bare-node").unwrap();
    bare::start(&namespace, 2, 2).unwrap();
    namespace.wait_for_acks(500).unwrap();
    let (epoch, pod) = namespace.primary().unwrap();
    let node = text(&namespace.pod(&pod).unwrap(), "/spec/nodeName").to_owned();
    cluster.node(&node, "kill").unwrap();
    let failover = namespace.wait_for_failover(epoch).unwrap();
    note(&format!("the primary's node is killed: {} ms", failover.gap_us / 1000));
    namespace.wait_for_acks(500).unwrap();
    cluster.node(&node, "start").unwrap();
    namespace.wait_for_acks(500).unwrap();
    namespace.finish(&OUTAGE).unwrap();
}
