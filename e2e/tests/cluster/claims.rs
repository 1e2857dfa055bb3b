//! Disks that are claimed for members: they outlive pods and nodes, and a group of durability `Flushed` comes back from them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde_json::{Value, json};
use tailwind_crds::Phase;
use tailwind_e2e::cluster::kubernetes::{Cluster, text};
use tailwind_e2e::cluster::operated::{OperatedGroup, spec};
use tailwind_e2e::context::note;

use super::operated::{condition, outage_and};

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

/// Two backups on such disks, with which this is done when the group is deleted.
fn claimed(when_removed: &str) -> Value {
    let claim = json!({"size": "256Mi", "storageClassName": CLASS, "whenRemoved": when_removed});
    let mut spec = spec(2);
    spec["durability"] = json!("Flushed");
    spec["flushVolume"] = json!({"claim": claim});
    spec
}

/// The operator has seen whether the claims go with the group.
fn wait_for_owners(group: &OperatedGroup<'_>, wanted: bool) {
    let path = group.namespace.core("persistentvolumeclaims");
    let is_owned = |claim: &Value| !claim["metadata"]["ownerReferences"].is_null();
    let seen = || Ok(group.namespace.cluster.list(&path)?.iter().all(|claim| is_owned(claim) == wanted).then_some(()));
    group.namespace.cluster.wait("the claims to have the right owner", seen).unwrap();
}

fn stop_apps(group: &OperatedGroup<'_>) {
    group.start_apps(0).unwrap();
    let ended = || Ok(group.namespace.pods("app=loader")?.is_empty().then_some(()));
    group.namespace.cluster.wait("the app's pods to end", ended).unwrap();
}

fn delete(group: &OperatedGroup<'_>) {
    group.delete().unwrap();
    let gone = || Ok(group.backups()?.is_empty().then_some(()));
    group.namespace.cluster.wait("the backups to go with their group", gone).unwrap();
}

/// All nodes with the group's pods lose their power and their node objects, so the control plane removes all of its pods. When the
/// nodes come back, so do the members, with what they had acknowledged. Those with their disks come first: where another node is
/// free half a minute before them, another member takes the place. Then the group hibernates, and wakes up. At last it is deleted
/// with claims to be retained, and made again: it takes them up, finds a log that its config store does not know, and continues
/// once that is put back.
#[test]
fn group_comes_back_from_its_claims() {
    let Some(cluster) = Cluster::join_own("group_comes_back_from_its_claims").unwrap() else { return };
    let group = OperatedGroup::prepare(&cluster, "claims").unwrap();
    provide_disks(&cluster);
    group.ask_for(claimed("Delete")).unwrap();
    group.start_apps(2).unwrap();
    let whole = group.wait_until_whole(2).unwrap();
    let (before, members) = (claims(&group), set(&whole));
    assert_eq!(before.len(), 2, "{before:?}");
    let disks: BTreeSet<String> = members.keys().map(|member| group.node_of(member).unwrap()).collect();

    let uid = |pod: &Value| text(pod, "/metadata/uid").to_owned();
    let old: BTreeSet<String> = group.backups().unwrap().iter().map(uid).collect();
    let began = Instant::now();
    for node in NODES {
        cluster.node(node, "kill").unwrap();
        cluster.delete(&format!("/api/v1/nodes/{node}")).unwrap();
    }
    let gone = || Ok(group.backups()?.iter().all(|pod| !old.contains(&uid(pod))).then_some(()));
    cluster.wait("the control plane to remove the pods of nodes that are gone", gone).unwrap();
    note(&format!("all nodes are deleted, and their pods with them: {:?}", began.elapsed()));
    let left = claims(&group);
    assert!(before.iter().all(|(name, uid)| left.get(name) == Some(uid)), "the claims stay: {left:?}");
    let began = Instant::now();
    let (disks, others): (Vec<_>, Vec<_>) = NODES.into_iter().partition(|node| disks.contains(*node));
    disks.iter().for_each(|node| cluster.node(node, "start").unwrap());
    let back = group.wait_until_whole(2).unwrap();
    note(&format!("the group has come back from its disks: {:?}", began.elapsed()));
    assert_eq!(set(&back), members, "the same members, under the identities that they had");
    // Where the control plane was slow, the operator has begun with other members. They leave, and their claims with them.
    let of_members = || Ok((claims(&group) == before).then_some(()));
    cluster.wait("only the claims of the members to be left", of_members).unwrap();
    others.iter().for_each(|node| cluster.node(node, "start").unwrap());

    let began = Instant::now();
    group.start_apps(0).unwrap();
    group.change(&json!({"spec": {"hibernate": true}})).unwrap();
    group.wait_for_phase(Phase::Hibernated).unwrap();
    note(&format!("the group hibernates: {:?}", began.elapsed()));
    assert!(group.backups().unwrap().is_empty());
    assert_eq!(claims(&group), before);
    let began = Instant::now();
    group.change(&json!({"spec": {"hibernate": false}})).unwrap();
    group.start_apps(2).unwrap();
    let awake = group.wait_until_whole(2).unwrap();
    note(&format!("it is awake: {:?}", began.elapsed()));
    assert_eq!(set(&awake), members);

    let began = Instant::now();
    group.ask_for(claimed("Retain")).unwrap();
    wait_for_owners(&group, false);
    stop_apps(&group);
    let log = group.get().unwrap()["status"]["log"].clone();
    delete(&group);
    note(&format!("the group is deleted: {:?}", began.elapsed()));
    assert_eq!(claims(&group), before);
    let began = Instant::now();
    group.ask_for(claimed("Retain")).unwrap();
    group.start_apps(2).unwrap();
    let found =
        group.wait_for("the log to be found", |group| condition(group, "Ready")["reason"] == "ConfigStoreEmpty");
    let found = found.unwrap();
    note(&format!("it is made again and has found its log: {:?}", began.elapsed()));
    assert!(found["status"]["log"].is_null());
    let message = condition(&found, "Ready")["message"].clone();
    assert!(message.to_string().contains(text(&log, "/id")), "{message}");
    assert_eq!(claims(&group), before);
    stop_apps(&group);
    let began = Instant::now();
    cluster.patch(&format!("{}/status", group.path()), &json!({"status": {"log": log}})).unwrap();
    group.start_apps(2).unwrap();
    let back = group.wait_until_whole(2).unwrap();
    note(&format!("it has its config store again, and continues: {:?}", began.elapsed()));
    assert_eq!(set(&back), members);
    assert_eq!(claims(&group), before);

    group.namespace.replay().unwrap();
    group.ask_for(claimed("Delete")).unwrap();
    wait_for_owners(&group, true);
    stop_apps(&group);
    delete(&group);
    let without_claims = || Ok(claims(&group).is_empty().then_some(()));
    cluster.wait("the claims to go with their group", without_claims).unwrap();
    group.finish_without_log(&outage_and(&[])).unwrap();
}
