//! Upgrades of many groups, and several operators in one cluster.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::{Value, json};
use tailwind_crds::Phase;
use tailwind_e2e::cluster::kubernetes::{Cluster, holds, text};
use tailwind_e2e::cluster::namespace::image_name;
use tailwind_e2e::cluster::operated::{HOME, OperatedGroup, RELEASE, helm, helm_release, image_with_tag, spec};
use tailwind_e2e::cluster::reports::is_left_to;
use tailwind_e2e::context::note;

use crate::operated::outage_and;

/// Every group of the cluster.
const GROUPS: &str = "/apis/replication.tailwind.dev/v1alpha1/replicagroups";
/// Annotation of a group: the operator that manages it.
const OPERATOR: &str = "replication.tailwind.dev/operator";
/// Namespace of the second installation, its release, and its Lease.
const OTHER_HOME: &str = "tailwind-other";
const OTHER_RELEASE: &str = "other";
const OTHER_OPERATOR: &str = "tailwind-other/other-tailwind-operator";

/// Words of the warnings of operators that end.
const MOVES: [&str; 2] = ["watch interrupted", "lease not"];

fn reason(group: &Value, kind: &str) -> String {
    let conditions = group["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind);
    found.map(|condition| text(&condition, "/reason").to_owned()).unwrap_or_default()
}

/// The operator gets a new image for backups: with a limit of one, one group at a time replaces its backups, and all do in the
/// end, although the leader is deleted in the middle. A failure during the rollout is handled at once.
#[test]
fn a_fleet_rolls_a_few_groups_at_a_time() {
    let Some(cluster) = Cluster::join_own("a_fleet_rolls_a_few_groups_at_a_time").unwrap() else { return };
    let busy = OperatedGroup::start(&cluster, "fleet-a", 2).unwrap();
    let idle: Vec<OperatedGroup<'_>> = ["fleet-b", "fleet-c", "fleet-d"]
        .into_iter()
        .map(|name| {
            let group = OperatedGroup::prepare(&cluster, name).unwrap();
            group.ask_for(spec(1)).unwrap();
            group.wait_for_phase(Phase::WaitingForApp).unwrap();
            group
        })
        .collect();
    let namespaces: BTreeSet<&str> = idle.iter().chain([&busy]).map(|group| group.namespace.name.as_str()).collect();
    let (most, queued) = (Cell::new(0), RefCell::new(BTreeSet::new()));
    let look = || {
        let mut groups = cluster.list(GROUPS)?;
        groups.retain(|group| namespaces.contains(text(group, "/metadata/namespace")));
        let updating = groups.iter().filter(|group| group["status"]["updating"] == true).count();
        most.set(most.get().max(updating));
        let waiting = groups.iter().filter(|group| reason(group, "Progressing") == "Queued");
        queued.borrow_mut().extend(waiting.map(|group| text(group, "/metadata/namespace").to_owned()));
        anyhow::Ok(groups)
    };

    image_with_tag(&cluster, "sidecar", "fleet").unwrap();
    let began = Instant::now();
    helm(&cluster, "upgrade", json!({"sidecarImage": {"tag": "fleet"}, "maxConcurrentRollouts": 1})).unwrap();
    cluster
        .wait("a group to be updated while others wait", || {
            let groups = look()?;
            Ok((groups.iter().any(|group| group["status"]["updating"] == true) && !queued.borrow().is_empty())
                .then_some(()))
        })
        .unwrap();
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/tailwind-operator");
    let lease = cluster.get(&lease).unwrap().unwrap();
    let leader = text(&lease, "/spec/holderIdentity").split('_').next().unwrap().to_owned();
    cluster.kubectl(&["delete", "pod", "-n", HOME, &leader, "--wait=false"], "").unwrap();
    note(&format!("the leader {leader} is deleted: {:?}", began.elapsed()));

    let image = format!("{}:fleet", image_name("sidecar"));
    for group in idle.iter().chain([&busy]) {
        cluster
            .wait("backups of the new image", || {
                look()?;
                let backups = group.backups()?;
                let is_new = |pod: &Value| pod["spec"]["containers"][0]["image"] == image;
                Ok((holds(&group.get()?, "BackupsCurrent") && backups.iter().all(is_new)).then_some(()))
            })
            .unwrap();
    }
    note(&format!("four groups are updated: {:?}; {} at a time at most", began.elapsed(), most.get()));
    assert_eq!(most.get(), 1, "groups that were updated at the same time");
    assert!(!queued.borrow().is_empty());
    busy.wait_until_whole(2).unwrap();

    // A pinned image is the group's own, for backups and for what the status asks of sidecars.
    let pinned = format!("{}:e2e", image_name("sidecar"));
    busy.change(&json!({"spec": {"image": pinned, "updateStrategy": "OnDelete"}})).unwrap();
    let waits = busy.wait_for("backups that wait to be deleted", |group| reason(group, "BackupsCurrent") == "OnDelete");
    assert!(waits.unwrap()["status"]["updating"].is_null());
    let old = busy.members().unwrap().remove(0);
    busy.namespace.remove_pod(&old).unwrap();
    cluster
        .wait("one backup of the pinned image", || {
            let backups = busy.backups()?;
            let of_pinned = backups.iter().filter(|pod| pod["spec"]["containers"][0]["image"] == pinned).count();
            Ok((backups.len() == 2 && of_pinned == 1).then_some(()))
        })
        .unwrap();
    busy.change(&json!({"spec": {"image": null, "updateStrategy": "RollingUpdate"}})).unwrap();
    busy.wait_until_whole(2).unwrap();

    helm(&cluster, "upgrade", json!({})).unwrap();
    for group in idle {
        group.finish_without_log(&outage_and(&MOVES)).unwrap();
    }
    busy.finish(&outage_and(&MOVES)).unwrap();
}

/// Two installations of one class see the same group: the second leaves it alone and says so, until the group is handed over.
/// With another class it manages the groups of that class, and no others.
#[test]
fn a_group_has_one_operator() {
    let Some(cluster) = Cluster::join_own("a_group_has_one_operator").unwrap() else { return };
    let group = OperatedGroup::start(&cluster, "owned", 2).unwrap();
    let owner = |group: &Value| group["metadata"]["annotations"][OPERATOR].as_str().unwrap_or_default().to_owned();
    let first = owner(&group.get().unwrap());
    assert_eq!(first, format!("{HOME}/tailwind-operator"));

    let other = |action: &str, class: &str| {
        let values = json!({"class": class, "replicas": 1, "crds": {"create": false}, "webhook": {"enabled": false},
                            "deletionProtection": {"enabled": false}});
        helm_release(&cluster, action, (OTHER_RELEASE, OTHER_HOME), values).unwrap();
    };
    other("install", "");
    let refused = |group: &OperatedGroup<'_>| {
        let events = cluster.list(&group.namespace.path("events.k8s.io/v1", "events"))?;
        anyhow::Ok(events.iter().any(|event| event["reason"] == "Refused").then_some(()))
    };
    cluster.wait("the second operator to refuse", || refused(&group)).unwrap();
    let member = group.members().unwrap().remove(0);
    group.namespace.delete_pod_at_once(&member).unwrap();
    group.wait_for("another member", |group| !group["status"]["log"].to_string().contains(&member)).unwrap();
    assert_eq!(owner(&group.wait_until_whole(2).unwrap()), first);

    // An operator of another class gets the group when the group gets that class, and gives it back.
    other("upgrade", "blue");
    group.change(&json!({"spec": {"operatorClass": "blue"}})).unwrap();
    group.wait_for("the operator of the class", |group| owner(group) == OTHER_OPERATOR).unwrap();
    group.change(&json!({"spec": {"backups": 3}})).unwrap();
    assert_eq!(owner(&group.wait_until_whole(3).unwrap()), OTHER_OPERATOR);
    group.change(&json!({"spec": {"operatorClass": null}})).unwrap();
    group.wait_for("the first operator", |group| owner(group) == first).unwrap();

    // The second is gone without having given a group back: an administrator hands it over.
    group.change(&json!({"spec": {"operatorClass": "blue"}})).unwrap();
    group.wait_for("the operator of the class", |group| owner(group) == OTHER_OPERATOR).unwrap();
    cluster.helm(&["uninstall", OTHER_RELEASE, "--namespace", OTHER_HOME]).unwrap();
    let pods = format!("/api/v1/namespaces/{OTHER_HOME}/pods");
    cluster.wait("the second operator to go", || Ok(cluster.list(&pods)?.is_empty().then_some(()))).unwrap();
    group.change(&json!({"spec": {"operatorClass": null, "backups": 2}})).unwrap();
    cluster
        .wait("the first operator to refuse", || {
            Ok(is_left_to(&cluster, &group.namespace.name, OTHER_OPERATOR)?.then_some(()))
        })
        .unwrap();
    group.change(&json!({"metadata": {"annotations": {OPERATOR: null}}})).unwrap();
    assert_eq!(owner(&group.wait_until_whole(2).unwrap()), first);

    assert!(cluster.helm(&["status", RELEASE, "--namespace", HOME]).is_ok());
    cluster.delete(&format!("/api/v1/namespaces/{OTHER_HOME}")).unwrap();
    group.finish(&outage_and(&[&MOVES[..], &["error: group left alone"]].concat())).unwrap();
}
