//! Disks that fill up: a log that is never trimmed waits before a kubelet evicts a pod for it; and what kubelets do evict is
//! replaced, and nothing is lost.
//!
//! Kubelets really evict here. Each test ends with the oracle's report and a look through all logs.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tailwind_crds::Phase;
use tailwind_e2e::cluster::kubernetes::{Cluster, holds, text};
use tailwind_e2e::cluster::namespace::Load;
use tailwind_e2e::cluster::operated::{FITS, OperatedGroup, spec};
use tailwind_e2e::cluster::reports::{backup_report, sidecar_report};
use tailwind_e2e::context::note;
use tailwind_report::sidecar::{MemberReport, MemberState};

use super::operated::{OUTAGE, condition, outage_and};

const MI: u64 = 1 << 20;
/// The volume of a backup's closed segments.
const FLUSH: &str = "flush";
/// Warnings of a backup whose folder has no room, and of a primary that waits for it.
const FULL: &[&str] = &["flush folder"];

/// A small group whose flush volumes have this limit.
fn spec_with_limit(limit: &str) -> Value {
    let mut spec = spec(2);
    spec["flushVolume"] = json!({"emptyDirSizeLimit": limit});
    spec
}

fn name(pod: &Value) -> String {
    text(pod, "/metadata/name").to_owned()
}

fn uids(pods: &[Value]) -> BTreeSet<String> {
    pods.iter().map(|pod| text(pod, "/metadata/uid").to_owned()).collect()
}

/// Waits until this primary reports that both members refuse to lend, and their folders are full.
fn wait_for_full_members(group: &OperatedGroup<'_>, primary: &str) {
    let members = group.members().unwrap();
    let full = || {
        let report = sidecar_report(&group.namespace.pod(primary)?)?;
        // A member says why it lends no buffer, and otherwise nothing.
        let refuses =
            |member: &MemberReport| member.in_set && member.state == MemberState::InSet && member.why.is_some();
        for name in &members {
            let found = report.members.iter().find(|member| member.name == *name);
            ensure!(found.is_some_and(refuses), "{name}: {found:?}");
            let folder = backup_report(&group.namespace.pod(name)?)?.folder.context("a bound")?;
            ensure!(folder.bytes <= folder.max && folder.bytes > folder.max * 8 / 10, "{name}: {folder:?}");
        }
        Ok(Some(()))
    };
    group.namespace.cluster.wait("both members to refuse to lend", full).unwrap();
}

/// The spec names no size. The limit by which the kubelet evicts comes from the namespace.
#[test]
fn limit_that_admission_sets_bounds_the_log() {
    let Some(cluster) = Cluster::join_own("limit_that_admission_sets_bounds_the_log").unwrap() else { return };
    let group = OperatedGroup::prepare(&cluster, "limited").unwrap();
    let limits = json!([{
        "type": "Container",
        "default": {"ephemeral-storage": "164Mi"},
        "defaultRequest": {"ephemeral-storage": "1Mi"},
    }]);
    let metadata = json!({"name": "disk", "namespace": group.namespace.name});
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}});
    cluster.apply(&[range]).unwrap();
    group.ask_for(spec(2)).unwrap();
    group.wait_for_phase(Phase::WaitingForApp).unwrap();
    // 64 MiB are for the container's logs, 5 % for the file system, and a segment of 256 KiB for the moment of a replacement.
    let bound = (100 - 5) * MI - 256 * 1024;
    for backup in group.backups().unwrap() {
        assert_eq!(backup_report(&backup).unwrap().folder.map(|folder| folder.max), Some(bound));
        let log = cluster.kubectl(&["logs", "-n", &group.namespace.name, &name(&backup)], "").unwrap();
        let ready = log.lines().find(|line| line.contains("flush_bytes_from")).unwrap();
        assert!(ready.contains("the pod's limit of ephemeral-storage"), "{ready}");
    }
}

/// Appends wait, through a failover too, and no kubelet evicts a pod. A larger volume lets them continue.
#[test]
fn untrimmed_log_waits_and_nobody_is_evicted() {
    let Some(cluster) = Cluster::join_own("untrimmed_log_waits_and_nobody_is_evicted").unwrap() else { return };
    const LIMIT: u64 = 64 * MI;
    let group = OperatedGroup::prepare(&cluster, "untrimmed").unwrap();
    let mut small = spec_with_limit("64Mi");
    small["segmentSize"] = json!("1Mi");
    group.ask_for(small.clone()).unwrap();
    let began = Instant::now();
    group.start_apps_with(2, Load { rate: 1000, length_max: 4000 }).unwrap();
    group.namespace.wait_for_report("the first acks", |report| report.acked > 0).unwrap();
    let filling = |group: &Value| condition(group, "LogFits")["reason"] == "NearlyFull";
    let warned = group.wait_for("the warning that the log is long", filling).unwrap();
    assert_eq!(condition(&warned, "LogFits")["status"], "False");
    let (epoch, first) = group.namespace.primary().unwrap();
    wait_for_full_members(&group, &first);
    let waits = |group: &Value| condition(group, "Ready")["reason"] == "AppendsWait";
    group.wait_for("the group to say that appends wait", waits).unwrap();
    let full = group.namespace.report().unwrap();
    note(&format!("appends wait after {:?} and {} records", began.elapsed(), full.acked));

    let backups = group.backups().unwrap();
    let nobody_is_evicted = || {
        // A kubelet that has measured twice has decided in between.
        for backup in &backups {
            let mut times = BTreeSet::new();
            let measured = cluster.wait("a kubelet to have measured a full volume twice", || {
                let measured = cluster.measured(backup, FLUSH)?;
                let measured = measured.filter(|measured| measured.bytes > LIMIT * 8 / 10);
                times.extend(measured.clone().map(|measured| measured.time));
                Ok(measured.filter(|_| times.len() > 3))
            });
            let measured = measured.unwrap();
            note(&format!("{}: {} of {LIMIT} bytes at {}", name(backup), measured.bytes, measured.time));
            assert!(measured.bytes < LIMIT, "{measured:?}");
        }
        assert_eq!(group.namespace.evicted().unwrap(), BTreeSet::new());
        assert_eq!(uids(&group.backups().unwrap()), uids(&backups), "the same pods");
    };
    nobody_is_evicted();

    let first = group.namespace.pod(&first).unwrap();
    group.namespace.delete_pod_at_once(&name(&first)).unwrap();
    let later = |group: &Value| group["status"]["log"]["epoch"].as_u64() > Some(epoch);
    let taken = group.wait_for("another primary", later).unwrap();
    wait_for_full_members(&group, text(&taken, "/status/log/primary/name"));
    nobody_is_evicted();
    let waits = group.namespace.report().unwrap();
    assert_eq!(waits.acked, full.acked, "records are acknowledged that there is no room for");

    let began = Instant::now();
    small["flushVolume"]["emptyDirSizeLimit"] = json!("1Gi");
    group.ask_for(small).unwrap();
    group.namespace.wait_for_acks(200).unwrap();
    note(&format!("a larger volume lets appends continue after {:?}", began.elapsed()));
    group.wait_until_whole(2).unwrap();
    assert!(uids(&group.backups().unwrap()).is_disjoint(&uids(&backups)), "pods of the old size are left");
    let fits = group.wait_for("the log to fit", |group| holds(group, "LogFits")).unwrap();
    note(&format!("the group is whole after {:?}: {}", began.elapsed(), condition(&fits, "LogFits")["message"]));
    assert_eq!(group.namespace.evicted().unwrap(), BTreeSet::new());
    group.finish(&outage_and(FULL)).unwrap();
}

/// Another program writes more into a backup's volume than it may hold. The kubelet evicts that pod, and the volume goes with
/// it.
#[test]
fn backup_over_its_limit_is_evicted_and_replaced() {
    let Some(cluster) = Cluster::join_own("backup_over_its_limit_is_evicted_and_replaced").unwrap() else { return };
    let group = OperatedGroup::prepare(&cluster, "over").unwrap();
    group.ask_for(spec_with_limit("64Mi")).unwrap();
    group.start_apps(2).unwrap();
    group.wait_until_whole(2).unwrap();
    let began = Instant::now();
    let member = group.members().unwrap().remove(0);
    cluster.fill_volume(&group.namespace.pod(&member).unwrap(), FLUSH, 80 * MI).unwrap();
    let why = group.namespace.wait_for_eviction(&member).unwrap();
    note(&format!("{member} is evicted after {:?}: {why}", began.elapsed()));
    let leaves = |group: &Value| !group["status"]["log"].to_string().contains(&member);
    group.wait_for("another member", leaves).unwrap();
    group.wait_until_whole(2).unwrap();
    note(&format!("the group is whole again after {:?}", began.elapsed()));
    assert_eq!(group.namespace.evicted().unwrap(), BTreeSet::from([member]), "nobody else is evicted");
    group.finish(&outage_and(FULL)).unwrap();
}

/// A node's disk fills up. The kubelet first evicts a pod that takes what it has not requested, and keeps the backup. When that
/// does not help, the backup goes too, and another node takes its place.
#[test]
fn disk_pressure_evicts_a_backup_last() {
    let Some(cluster) = Cluster::join_own("disk_pressure_evicts_a_backup_last").unwrap() else { return };
    let label = |node: &str, fits: Value| {
        cluster.patch(&format!("/api/v1/nodes/{node}"), &json!({"metadata": {"labels": {FITS: fits}}})).unwrap();
    };
    const FULL_NODE: &str = "node-5";
    let group = OperatedGroup::prepare(&cluster, "pressure").unwrap();
    let mut chosen = spec_with_limit("64Mi");
    chosen["placement"] = json!({"nodeSelector": {FITS: "yes"}});
    group.ask_for(chosen).unwrap();
    // Before the node is there that fills up: no app shall be on it.
    group.start_apps(2).unwrap();
    cluster
        .wait("the apps to have nodes", || {
            let apps = group.apps()?;
            Ok((apps.len() == 2 && apps.iter().all(|app| app["spec"]["nodeName"].is_string())).then_some(()))
        })
        .unwrap();
    cluster.node(FULL_NODE, "start 512M").unwrap();
    [FULL_NODE, "node-3"].iter().for_each(|node| label(node, json!("yes")));
    group.wait_until_whole(2).unwrap();
    let members = group.members().unwrap();
    let on_it = |member: &&String| group.node_of(member).unwrap() == FULL_NODE;
    let backup = group.namespace.pod(members.iter().find(on_it).unwrap()).unwrap();

    let began = Instant::now();
    let squatter = group.namespace.start_squatter("squatter", FULL_NODE).unwrap();
    cluster.fill_volume(&squatter, "fill", 430 * MI).unwrap();
    let why = group.namespace.wait_for_eviction("squatter").unwrap();
    note(&format!("a pod without a request is evicted after {:?}: {why}", began.elapsed()));
    let node = format!("/api/v1/nodes/{FULL_NODE}");
    let pressure = || Ok(holds(&cluster.get(&node)?.unwrap_or_default(), "DiskPressure").then_some(()));
    cluster.wait("the node to tell of disk pressure", pressure).unwrap();
    // Its kubelet has looked again, and sees that this was enough.
    let fillers = ["find", "/var/lib/kubelet/pods", "-name", "filler"];
    cluster
        .wait("what the pod held to go", || Ok(cluster.run_on(FULL_NODE, &fillers)?.is_empty().then_some(())))
        .unwrap();
    let mut times = BTreeSet::new();
    cluster
        .wait("the kubelet to have measured again", || {
            times.extend(cluster.measured(&backup, FLUSH)?.map(|measured| measured.time));
            Ok((times.len() > 4).then_some(()))
        })
        .unwrap();
    group.namespace.wait_for_acks(200).unwrap();
    assert_eq!(group.namespace.evicted().unwrap(), BTreeSet::from(["squatter".to_owned()]));
    assert_eq!(group.namespace.pod(&name(&backup)).unwrap()["metadata"]["uid"], backup["metadata"]["uid"]);

    let began = Instant::now();
    label("node-4", json!("yes"));
    cluster.fill_disk(FULL_NODE, 430 * MI).unwrap();
    let why = group.namespace.wait_for_eviction(&name(&backup)).unwrap();
    note(&format!("a disk that is full all the same: the backup is evicted after {:?}: {why}", began.elapsed()));
    group.wait_for_members_off(FULL_NODE, 2).unwrap();
    group.wait_until_whole(2).unwrap();
    note(&format!("the group is whole on other nodes after {:?}", began.elapsed()));
    assert_eq!(group.namespace.evicted().unwrap(), BTreeSet::from(["squatter".to_owned(), name(&backup)]));
    group.finish(&OUTAGE).unwrap();
    ["node-3", "node-4"].iter().for_each(|node| label(node, Value::Null));
    cluster.node(FULL_NODE, "kill").unwrap();
    cluster.delete(&node).unwrap();
}
