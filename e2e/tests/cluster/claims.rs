//! Disks that are claimed for members: they outlive pods and nodes, and a group of durability `Flushed` comes back from them.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};
use tailwind_e2e::cluster::kubernetes::{Cluster, text};
use tailwind_e2e::cluster::operated::{OperatedGroup, spec};
use tailwind_e2e::context::note;

use super::operated::outage_and;

/// Nodes with a disk for one member each.
const NODES: [&str; 3] = ["node-2", "node-3", "node-4"];
const DISK: &str = "/var/lib/tailwind-e2e-disk";
const CLASS: &str = "tailwind-e2e";

/// A volume on each node that the first claim gets which is scheduled there.
fn provide_disks(cluster: &Cluster) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    });
    let volumes = NODES.iter().map(|node| {
        cluster.node(node, &format!("run mkdir -p {DISK}")).unwrap();
        let on_node = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("{CLASS}-{node}")},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
                "persistentVolumeReclaimPolicy": "Retain", "local": {"path": DISK},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
            },
        })
    });
    cluster.apply(&[class].into_iter().chain(volumes).collect::<Vec<_>>()).unwrap();
}

/// The claims of a group's members, with their identity.
fn claims(group: &OperatedGroup<'_>) -> BTreeMap<String, String> {
    let path = group.namespace.core("persistentvolumeclaims");
    let claims = group.namespace.cluster.list(&path).unwrap();
    claims
        .iter()
        .map(|claim| (text(claim, "/metadata/name").to_owned(), text(claim, "/metadata/uid").to_owned()))
        .collect()
}

/// The members with their identities, in whichever order a promotion has put them.
fn set(group: &Value) -> BTreeMap<String, String> {
    let members = group["status"]["log"]["members"].as_array().cloned().unwrap_or_default();
    members.iter().map(|member| (text(member, "/name").to_owned(), text(member, "/boot").to_owned())).collect()
}

/// All nodes with the group's pods lose their power and their node objects, so the control plane removes all of its pods. When the
/// nodes come back, so do the members, with what they had acknowledged. Then the group hibernates, and wakes up.
#[test]
fn group_comes_back_from_its_claims() {
    let Some(cluster) = Cluster::join_own("group_comes_back_from_its_claims").unwrap() else { return };
    let group = OperatedGroup::prepare(&cluster, "claims").unwrap();
    provide_disks(&cluster);
    let mut claimed = spec(2);
    claimed["durability"] = json!("Flushed");
    claimed["flushVolume"] = json!({"claim": {"size": "256Mi", "storageClassName": CLASS}});
    group.ask_for(claimed).unwrap();
    group.start_apps(2).unwrap();
    let whole = group.wait_until_whole(2).unwrap();
    let (before, members) = (claims(&group), set(&whole));
    assert_eq!(before.len(), 2, "{before:?}");

    let began = Instant::now();
    for node in NODES {
        cluster.node(node, "kill").unwrap();
        cluster.delete(&format!("/api/v1/nodes/{node}")).unwrap();
    }
    let gone = || Ok(group.backups()?.is_empty().then_some(()));
    cluster.wait("the control plane to remove the pods of nodes that are gone", gone).unwrap();
    note(&format!("all nodes are deleted, and their pods with them: {:?}", began.elapsed()));
    assert_eq!(claims(&group), before, "the claims stay");
    let began = Instant::now();
    for node in NODES {
        cluster.node(node, "start").unwrap();
    }
    let back = group.wait_until_whole(2).unwrap();
    note(&format!("the group has come back from its disks: {:?}", began.elapsed()));
    assert_eq!(set(&back), members, "the same members, under the identities that they had");
    assert_eq!(claims(&group), before);

    let began = Instant::now();
    group.start_apps(0).unwrap();
    group.change(&json!({"spec": {"hibernate": true}})).unwrap();
    group.wait_for_phase("Hibernated").unwrap();
    note(&format!("the group hibernates: {:?}", began.elapsed()));
    assert!(group.backups().unwrap().is_empty());
    assert_eq!(claims(&group), before);
    let began = Instant::now();
    group.change(&json!({"spec": {"hibernate": false}})).unwrap();
    group.start_apps(2).unwrap();
    let awake = group.wait_until_whole(2).unwrap();
    note(&format!("it is awake: {:?}", began.elapsed()));
    assert_eq!(set(&awake), members);

    group.namespace.replay().unwrap();
    group.start_apps(0).unwrap();
    cluster.wait("the app's pods to end", || Ok(group.namespace.pods("app=loader")?.is_empty().then_some(()))).unwrap();
    group.delete().unwrap();
    let without_claims = || Ok(claims(&group).is_empty().then_some(()));
    cluster.wait("the claims to go with their group", without_claims).unwrap();
    group.finish_without_log(&outage_and(&[])).unwrap();
}
