//! Groups in production form: the chart's operators, and apps with injected sidecars. What happens to clusters happens to
//! them, under load.
//!
//! Each test ends with the oracle's report and a look through all logs.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use tailwind_crds::{BackupState, BackupStatus, Phase, ReplicaGroupStatus};
use tailwind_e2e::cluster::ack_oracle::OracleReport;
use tailwind_e2e::cluster::kubernetes::{Cluster, POLL_INTERVAL, TIMEOUT, holds, text};
use tailwind_e2e::cluster::namespace::{Load, distribution, image, image_name};
use tailwind_e2e::cluster::operated::{
    self, FITS, GROUP, HOME, OperatedGroup, RELEASE, SIDECAR, helm, image_with_tag, operators, spec,
};
use tailwind_e2e::cluster::reports::failed_looks;
use tailwind_e2e::context::{note, rounds};

/// A condition of a group; null if it has none of this type.
pub(crate) fn condition(group: &Value, kind: &str) -> Value {
    let conditions = group["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
}

/// Words of the warnings that sidecars and backups rightly write when others die.
pub(crate) const OUTAGE: [&str; 6] =
    ["primary is gone", "no heartbeat", "member lost", "member failed", "waiting", "stepped down"];

/// The same, and more.
pub(crate) fn outage_and(more: &[&'static str]) -> Vec<&'static str> {
    OUTAGE.iter().chain(more).copied().collect()
}

// ---- Normal operation ------------------------------------------------------------------------------------------------

/// From an empty cluster to the first append; then more and fewer backups, a switchover and a fence.
#[test]
fn group_lifecycle() {
    let cluster = Cluster::join().unwrap();
    let began = Instant::now();
    let group = OperatedGroup::prepare(&cluster, "lives").unwrap();
    note(&format!("the chart is installed: {:?}", began.elapsed()));
    let began = Instant::now();
    group.ask_for(spec(2)).unwrap();
    group.wait_for_phase(Phase::WaitingForApp).unwrap();
    note(&format!("a group waits for its app: {:?}", began.elapsed()));
    group.start_apps(2).unwrap();
    group.namespace.wait_for_report("the first acks", |report| report.acked > 0).unwrap();
    note(&format!("the first append: {:?}", began.elapsed()));
    let whole = group.wait_until_whole(2).unwrap();
    let (_, primary) = group.namespace.primary().unwrap();
    assert_eq!(text(&whole, "/status/log/primary/name"), primary);
    // The service leads to it.
    let leads = |group: &OperatedGroup<'_>, pod: &str| {
        let what = format!("the service to lead to {pod}");
        group.namespace.cluster.wait(&what, || {
            let names = group.primary_endpoints()?;
            Ok((names == [pod.to_owned()]).then_some(()))
        })
    };
    leads(&group, &primary).unwrap();

    let began = Instant::now();
    group.change(&json!({"spec": {"backups": 3}})).unwrap();
    group.wait_until_whole(3).unwrap();
    note(&format!("from two backups to three: {:?}", began.elapsed()));
    let began = Instant::now();
    group.change(&json!({"spec": {"backups": 2}})).unwrap();
    group.wait_until_whole(2).unwrap();
    note(&format!("from three to two: {:?}", began.elapsed()));

    let (epoch, old) = group.namespace.primary().unwrap();
    let apps = group.apps().unwrap();
    let to = apps.iter().map(|pod| text(pod, "/metadata/name")).find(|name| *name != old).unwrap();
    let annotation = "replication.tailwind.dev/switchover";
    group.change(&json!({"metadata": {"annotations": {annotation: to}}})).unwrap();
    let failover = group.namespace.wait_for_failover(epoch).unwrap();
    assert_eq!(failover.pod, to);
    note(&format!("handed over: {} ms", failover.gap_us / 1000));
    group.wait_for("the annotation to go", |group| group["metadata"]["annotations"][annotation].is_null()).unwrap();
    leads(&group, to).unwrap();

    group.change(&json!({"spec": {"fenced": true}})).unwrap();
    group.wait_for_phase(Phase::Fenced).unwrap();
    let fenced = group.namespace.report().unwrap();
    group.change(&json!({"spec": {"fenced": false}})).unwrap();
    group.wait_for_phase(Phase::Ready).unwrap();
    group.namespace.wait_for_acks(200).unwrap();
    let after = group.namespace.report().unwrap();
    let pause =
        after.pauses.iter().filter(|pause| pause.to_us > fenced.last_ack_us).max_by_key(|p| p.to_us - p.from_us);
    note(&format!(
        "fenced, and resumed: {:?} ms without acks",
        pause.map(|pause| (pause.to_us - pause.from_us) / 1000)
    ));
    // A primary that is fenced or hands over steps down, and a backup that is not needed any more leaves the set by ending.
    group.finish(&outage_and(&["fenced"])).unwrap();
}

// ---- The primary --------------------------------------------------------------------------------------------------------

/// Its container is killed again and again, with running and with frozen operators; its pod is deleted; and it is frozen while
/// another takes over, and resumed.
#[test]
fn primary_dies() {
    let Some(cluster) = Cluster::join_own("primary_dies").unwrap() else { return };
    let group = OperatedGroup::start(&cluster, "primary", 2).unwrap();
    // So that there is a standby while the earlier one is recreated.
    group.start_apps(3).unwrap();
    group.wait_for_standby().unwrap();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..rounds(20) {
        let (epoch, pod) = group.wait_for_takeover().unwrap();
        let operators = if round % 2 == 0 { Vec::new() } else { operators(&cluster).unwrap() };
        operators.iter().for_each(|operator| cluster.freeze(operator, true).unwrap());
        group.namespace.kill_container(&pod, SIDECAR).unwrap();
        let failover = group.namespace.wait_for_failover(epoch).unwrap();
        if operators.is_empty() { &mut with } else { &mut without }.push(failover.gap_us);
        operators.iter().for_each(|operator| cluster.freeze(operator, false).unwrap());
        // Kubernetes delays the restart of a container that dies often; not that of a new pod. The old pod's token is void at
        // once, while its containers have not all ended yet.
        group.namespace.delete_pod_at_once(&pod).unwrap();
    }
    note(&format!("the primary's container is killed: {}", distribution(&with)));
    note(&format!("the same with frozen operators: {}", distribution(&without)));

    let (epoch, pod) = group.wait_for_takeover().unwrap();
    cluster.delete(&group.namespace.core(&format!("pods/{pod}"))).unwrap();
    let failover = group.namespace.wait_for_failover(epoch).unwrap();
    note(&format!("the primary's pod is deleted: {} ms", failover.gap_us / 1000));

    let (epoch, pod) = group.wait_for_takeover().unwrap();
    let before = group.namespace.report().unwrap();
    group.namespace.kill_container(&pod, "loader").unwrap();
    let new =
        |report: &OracleReport| report.sessions.last().filter(|session| session.begun_us > before.now_us).cloned();
    let goes_on = |report: &OracleReport| new(report).is_some_and(|session| session.acked > 1000);
    let after = group.namespace.wait_for_report("the app to continue", goes_on).unwrap();
    let session = new(&after).unwrap();
    assert_eq!((session.epoch, &session.pod), (epoch, &pod));
    let pauses = after.pauses.iter().filter(|pause| pause.to_us > before.now_us);
    let longest = pauses.map(|pause| (pause.to_us - pause.from_us) / 1000).max().unwrap_or(0);
    note(&format!("the primary's app is killed, and not its sidecar: {longest} ms, in the same epoch"));
    let began_anew = || {
        let pod = group.namespace.pod(&pod)?;
        let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let app = statuses.iter().find(|status| status["name"] == "loader").cloned().unwrap_or_default();
        Ok((app["restartCount"] == 1 && app["state"]["running"].is_object()).then_some(()))
    };
    cluster.wait("the app's new container", began_anew).unwrap();
    group.namespace.kill_container(&pod, "loader").unwrap();
    let failover = group.namespace.wait_for_failover(epoch).unwrap();
    assert_ne!(failover.pod, pod);
    let gap = failover.gap_us / 1000;
    note(&format!("it is killed again, and its kubelet delays the restart: another pod takes over, {gap} ms"));

    let (epoch, pod) = group.wait_for_takeover().unwrap();
    let zombie = [SIDECAR, "loader"].map(|name| cluster.container(&group.namespace.pod(&pod).unwrap(), name).unwrap());
    zombie.iter().for_each(|container| cluster.freeze(container, true).unwrap());
    let failover = group.namespace.wait_for_failover(epoch).unwrap();
    note(&format!("the primary's containers are frozen: {} ms", failover.gap_us / 1000));
    group.namespace.wait_for_acks(500).unwrap();
    zombie.iter().for_each(|container| cluster.freeze(container, false).unwrap());
    group.namespace.wait_for_acks(2000).unwrap();
    group.wait_until_whole(2).unwrap();
    group.finish(&outage_and(&[FROZEN_OPERATORS, &["Unauthorized"]].concat())).unwrap();
}

/// Warnings of operators that were frozen.
pub(crate) const FROZEN_OPERATORS: &[&str] = &["lease not", "watch interrupted"];

/// Its node loses its power, with the backup on it if there is one; everything is replaced elsewhere before the node is back.
#[test]
fn primary_node_dies() {
    let Some(cluster) = Cluster::join_own("primary_node_dies").unwrap() else { return };
    let group = OperatedGroup::prepare(&cluster, "node").unwrap();
    group.ask_for(spec(2)).unwrap();
    // Twenty rounds take a quarter of an hour, and an app that takes over reads everything that was written in it.
    group.start_apps_with(2, Load::of_rate(200)).unwrap();
    group.wait_until_whole(2).unwrap();
    let mut gaps = Vec::new();
    for _ in 0..rounds(1) {
        let (epoch, pod) = group.wait_for_takeover().unwrap();
        let node = group.node_of(&pod).unwrap();
        let began = Instant::now();
        cluster.node(&node, "kill").unwrap();
        gaps.push(group.namespace.wait_for_failover(epoch).unwrap().gap_us);
        group.wait_for_members_off(&node, 2).unwrap();
        note(&format!("node {node} is dead; two members elsewhere after {:?}", began.elapsed()));
        cluster.node(&node, "start").unwrap();
        group.wait_until_whole(2).unwrap();
    }
    note(&format!("the primary's node is killed: {}", distribution(&gaps)));
    group.finish(&OUTAGE).unwrap();
}

// ---- Backups ------------------------------------------------------------------------------------------------------------

/// A backup's container is killed, its pod is deleted at once, its node loses its power: it is replaced and caught up.
#[test]
fn backups_die() {
    let Some(cluster) = Cluster::join_own("backups_die").unwrap() else { return };
    let group = OperatedGroup::start(&cluster, "backups", 2).unwrap();
    let last_pause = |since_us: u64| {
        let report = group.namespace.report().unwrap();
        let pauses = report.pauses.iter().filter(|pause| pause.to_us > since_us);
        pauses.map(|pause| (pause.to_us - pause.from_us) / 1000).max().unwrap_or(0)
    };
    let since = group.namespace.report().unwrap().now_us;
    let began = Instant::now();
    let member = group.members().unwrap().remove(0);
    group.namespace.kill_container(&member, "backup").unwrap();
    group.namespace.wait_for_acks(200).unwrap();
    group.wait_for("the member to be let go", |group| group["status"]["log"]["version"].as_u64() > Some(2)).unwrap();
    group.wait_until_whole(2).unwrap();
    note(&format!(
        "a backup's container is killed: {} ms without acks, whole after {:?}",
        last_pause(since),
        began.elapsed()
    ));

    let since = group.namespace.report().unwrap().now_us;
    let began = Instant::now();
    let member = group.members().unwrap().remove(0);
    group.namespace.delete_pod_at_once(&member).unwrap();
    group.wait_for("another member", |group| !group["status"]["log"].to_string().contains(&member)).unwrap();
    group.wait_until_whole(2).unwrap();
    note(&format!("a backup's pod is gone: {} ms without acks, whole after {:?}", last_pause(since), began.elapsed()));

    let since = group.namespace.report().unwrap().now_us;
    let began = Instant::now();
    let home = group.node_of(&group.namespace.primary().unwrap().1).unwrap();
    let nodes = group.members().unwrap().into_iter().map(|member| group.node_of(&member).unwrap());
    let node = nodes.into_iter().find(|node| *node != home).unwrap();
    cluster.node(&node, "kill").unwrap();
    group.wait_for_members_off(&node, 2).unwrap();
    note(&format!(
        "a backup's node dies: {} ms without acks, two members after {:?}",
        last_pause(since),
        began.elapsed()
    ));
    cluster.node(&node, "start").unwrap();
    group.wait_until_whole(2).unwrap();
    group.finish(&OUTAGE).unwrap();
}

/// The control plane does not hear the members' nodes for longer than Kubernetes keeps pods there by default. Other pods are
/// given up; the backups stay, with the very memory that they had.
#[test]
fn silent_nodes_keep_their_backups() {
    let Some(cluster) = Cluster::join_own("silent_nodes_keep_their_backups").unwrap() else { return };
    let group = OperatedGroup::start(&cluster, "silent", 2).unwrap();
    group.namespace.wait_for_acks(200).unwrap();
    let members = group.members().unwrap();
    let nodes: BTreeSet<String> = members.iter().map(|member| group.node_of(member).unwrap()).collect();
    let bystander = |node: &String| format!("bystander-{node}");
    let pods: Vec<Value> = nodes
        .iter()
        .map(|node| {
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": bystander(node), "namespace": group.namespace.name},
                "spec": {"nodeName": node, "containers": [
                    {"name": "sleeps", "image": image("tools"), "imagePullPolicy": "IfNotPresent", "command": ["sleep", "infinity"]},
                ]},
            })
        })
        .collect();
    cluster.apply(&pods).unwrap();
    cluster
        .wait("bystanders", || {
            let pods = nodes.iter().map(|node| group.namespace.pod(&bystander(node)));
            let phases =
                pods.map(|pod| Ok(text(&pod?, "/status/phase").to_owned())).collect::<anyhow::Result<Vec<_>>>()?;
            Ok(phases.iter().all(|phase| phase == "Running").then_some(()))
        })
        .unwrap();
    let uids = |members: &[String]| -> Vec<Value> {
        members.iter().map(|member| group.namespace.pod(member).unwrap()["metadata"]["uid"].clone()).collect()
    };
    let (before, log) = (uids(&members), group.get().unwrap()["status"]["log"]["members"].clone());

    nodes.iter().for_each(|node| cluster.node(node, "kubelet stop").unwrap());
    for node in &nodes {
        cluster
            .wait("Kubernetes to give up a pod on a silent node", || {
                let pod = group.namespace.pod(&bystander(node))?;
                Ok(pod["metadata"]["deletionTimestamp"].is_string().then_some(()))
            })
            .unwrap();
    }
    group.namespace.wait_for_acks(200).unwrap();
    for member in &members {
        let pod = group.namespace.pod(member).unwrap();
        assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{member} is given up");
    }
    nodes.iter().for_each(|node| cluster.node(node, "kubelet start").unwrap());
    group.wait_until_whole(2).unwrap();
    assert_eq!(uids(&members), before, "the same pods");
    let boots = |members: &Value| -> BTreeSet<String> {
        members.as_array().unwrap().iter().map(|member| text(member, "/boot").to_owned()).collect()
    };
    assert_eq!(boots(&group.get().unwrap()["status"]["log"]["members"]), boots(&log), "the same memory");
    group.finish(&OUTAGE).unwrap();
}

/// A change of the spec that replaces every backup, then a drain: never fewer members than wanted, since a node is free.
#[test]
fn backups_are_replaced_and_drained() {
    let Some(cluster) = Cluster::join_own("backups_are_replaced_and_drained").unwrap() else { return };
    // A pod that has ended keeps its node for up to a minute on old kubelets; with four nodes there is a free one all the same.
    cluster.node("node-5", "start").unwrap();
    let group = OperatedGroup::start(&cluster, "moves", 2).unwrap();
    let fewest = Cell::new(usize::MAX);
    let count_members = |group: &Value| {
        let members = group["status"]["log"]["members"].as_array().map_or(0, Vec::len);
        fewest.set(fewest.get().min(members));
        members
    };
    let began = Instant::now();
    group
        .change(&json!({"spec": {"podTemplate": {"metadata": {"annotations": {"example.com/team": "blue"}}}}}))
        .unwrap();
    cluster
        .wait("every backup to be recreated", || {
            count_members(&group.get()?);
            let backups = group.backups()?;
            let annotated = |pod: &Value| pod["metadata"]["annotations"]["example.com/team"] == "blue";
            Ok((backups.len() == 2 && backups.iter().all(annotated)).then_some(()))
        })
        .unwrap();
    group.wait_until_whole(2).unwrap();
    note(&format!("every backup is recreated: {:?}, never fewer than {} members", began.elapsed(), fewest.get()));

    let home = group.node_of(&group.namespace.primary().unwrap().1).unwrap();
    let members = group.members().unwrap();
    let node = members.iter().map(|member| group.node_of(member).unwrap()).find(|node| *node != home).unwrap();
    let began = Instant::now();
    let timeout = format!("{}s", TIMEOUT.as_secs());
    let drain = ["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout", &timeout];
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| cluster.kubectl(&drain, ""));
        while !drained.is_finished() {
            // Again and again: it is the fewest that counts.
            count_members(&group.get().unwrap());
            std::thread::sleep(POLL_INTERVAL);
        }
        drained.join().unwrap().unwrap();
    });
    note(&format!("node {node} is drained: {:?}, never fewer than {} members", began.elapsed(), fewest.get()));
    assert!(fewest.get() >= 2);
    group.wait_for_members_off(&node, 2).unwrap();
    cluster.kubectl(&["uncordon", &node], "").unwrap();
    group.wait_until_whole(2).unwrap();
    // A backup that leaves ends, and so is noticed.
    group.finish(&OUTAGE).unwrap();
    cluster.node("node-5", "kill").unwrap();
    cluster.delete("/api/v1/nodes/node-5").unwrap();
}

// ---- The cluster around a group ---------------------------------------------------------------------------------------------

/// Nothing may take over in this time, several times that after which a standby misses its primary. A busy machine, on which it
/// notices later, only tests less.
const WITHOUT_FAILOVER: Duration = Duration::from_secs(3);

/// Appends continue without an API server. If a member dies then, appends stop until the API server is back: only it may
/// decide.
#[test]
fn api_server_outage() {
    let Some(cluster) = Cluster::join_own("api_server_outage").unwrap() else { return };
    let group = OperatedGroup::start(&cluster, "api", 2).unwrap();
    let member = group.members().unwrap().remove(0);
    let container = cluster.container(&group.namespace.pod(&member).unwrap(), "backup").unwrap();
    cluster.api("stop").unwrap();
    group.namespace.wait_for_acks(2000).unwrap();
    cluster.kill(&container).unwrap();
    let began = Instant::now();
    cluster.api("start").unwrap();
    note(&format!("the API server is back {:?} after a backup died", began.elapsed()));
    group.namespace.wait_for_acks(2000).unwrap();
    group.wait_until_whole(2).unwrap();
    let report = group.namespace.report().unwrap();
    let longest = report.pauses.iter().map(|pause| (pause.to_us - pause.from_us) / 1000).max();
    note(&format!("without acks: {} ms", longest.unwrap_or(0)));

    // It accepts calls and answers none: a standby waits for its answer before it takes over.
    let (epoch, pod) = group.wait_for_takeover().unwrap();
    let container = cluster.container(&group.namespace.pod(&pod).unwrap(), SIDECAR).unwrap();
    cluster.api("freeze").unwrap();
    group.namespace.wait_for_acks(2000).unwrap();
    cluster.kill(&container).unwrap();
    std::thread::sleep(WITHOUT_FAILOVER);
    assert!(
        group.namespace.report().unwrap().sessions.iter().all(|session| session.epoch <= epoch),
        "a failover without the API server"
    );
    let began = Instant::now();
    cluster.api("thaw").unwrap();
    group.namespace.wait_for_failover(epoch).unwrap();
    note(&format!("a failover that waited for the API server: {:?} after that resumed", began.elapsed()));
    group.wait_until_whole(2).unwrap();
    group.finish(&outage_and(API_AWAY)).unwrap();
}

/// Warnings while the API server is away. An operator that cannot renew its lease for long ends.
const API_AWAY: &[&str] = &[
    "watch the ReplicaGroup",
    "read the configuration",
    "swap the configuration",
    "write the primary's address",
    "watch interrupted",
    "reconcile failed",
    "lease not",
    "event not written",
    "webhook's certificate",
    "error: could not be renewed",
];

/// Certificates are renewed under load, and then their CA, at once instead of over months: no process ever meets
/// a certificate that it does not trust, and a standby can take over after every step.
#[test]
fn certificates_are_renewed() {
    let cluster = Cluster::join().unwrap();
    let group = OperatedGroup::start(&cluster, "certificates", 2).unwrap();
    let [sidecars, backups, readers, authority] =
        ["sidecar", "backup", "reader", "ca"].map(|of| format!("{GROUP}-tailwind-{of}"));
    let leaves = [sidecars.as_str(), backups.as_str(), readers.as_str()];
    let wait_for = |what: &str, name: &str, fits: &dyn Fn(&Value) -> bool| {
        let found =
            cluster.wait(what, || Ok(cluster.get(&group.namespace.core(&format!("secrets/{name}")))?.filter(fits)));
        found.unwrap()
    };
    let read = |name: &str| wait_for("a secret", name, &|_| true);
    let issued_after = |before: &Value| {
        let before = text(before, "/data/tls.crt").to_owned();
        move |secret: &Value| text(secret, "/data/tls.crt") != before
    };
    let trusts =
        |count: usize| move |secret: &Value| decoded(secret, "ca.crt").matches("BEGIN CERTIFICATE").count() == count;
    let pass_on = |step: &str, began: Instant| {
        group.wait_for_reloads().unwrap();
        let (epoch, pod) = group.wait_for_takeover().unwrap();
        cluster.delete(&group.namespace.core(&format!("pods/{pod}"))).unwrap();
        let failover = group.namespace.wait_for_failover(epoch).unwrap();
        group.wait_until_whole(2).unwrap();
        note(&format!("{step}: taken up, and passed on within {} ms, {:?}", failover.gap_us / 1000, began.elapsed()));
    };

    let began = Instant::now();
    let before = leaves.map(read);
    group.count_reloads().unwrap();
    for name in leaves {
        cluster.delete(&group.namespace.core(&format!("secrets/{name}"))).unwrap();
    }
    group.wake_operator().unwrap();
    for (name, before) in leaves.iter().zip(&before) {
        wait_for("a new certificate", name, &issued_after(before));
    }
    pass_on("certificates that were gone are issued again", began);

    let began = Instant::now();
    group.count_reloads().unwrap();
    let aged = aged_authority(&read(&authority));
    cluster.patch(&group.namespace.core(&format!("secrets/{authority}")), &json!({"data": {"ca.crt": aged}})).unwrap();
    group.wake_operator().unwrap();
    leaves.iter().for_each(|name| drop(wait_for("both CAs to be trusted", name, &trusts(2))));
    assert!(!decoded(&read(&authority), "previous.crt").is_empty());
    pass_on("a CA that ends soon is renewed, and both are trusted", began);

    let began = Instant::now();
    let before = leaves.map(read);
    group.count_reloads().unwrap();
    leaves.iter().for_each(|name| group.written_long_ago(name).unwrap());
    group.wake_operator().unwrap();
    for (name, before) in leaves.iter().zip(&before) {
        wait_for("a certificate by the new CA", name, &issued_after(before));
    }
    pass_on("certificates are issued by it", began);

    let began = Instant::now();
    group.count_reloads().unwrap();
    leaves.iter().for_each(|name| group.written_long_ago(name).unwrap());
    group.wake_operator().unwrap();
    leaves.iter().for_each(|name| drop(wait_for("one CA to be trusted", name, &trusts(1))));
    assert!(read(&authority)["data"]["previous.crt"].is_null());
    pass_on("the old CA is forgotten", began);

    // A new member has never seen the first CA.
    let member = group.members().unwrap().remove(0);
    group.namespace.delete_pod_at_once(&member).unwrap();
    group.wait_for("another member", |group| !group["status"]["log"].to_string().contains(&member)).unwrap();
    group.wait_until_whole(2).unwrap();
    group.finish(&outage_and(&["Unauthorized"])).unwrap();
}

/// What a secret has under this key, as text.
fn decoded(secret: &Value, key: &str) -> String {
    let bytes: ByteString = serde_json::from_value(secret["data"][key].clone()).unwrap_or_default();
    String::from_utf8(bytes.0).unwrap()
}

/// The CA's certificate as it will be shortly before its end: of the same name, for the same key.
fn aged_authority(secret: &Value) -> Value {
    let now = SystemTime::now();
    let day = Duration::from_secs(24 * 3600);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let name = text(secret, "/metadata/namespace");
    params.distinguished_name.push(DnType::CommonName, format!("Tailwind group {name}/{GROUP}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    (params.not_before, params.not_after) = ((now - 1000 * day).into(), (now + 30 * day).into());
    let key = KeyPair::from_pem(&decoded(secret, "ca.key")).unwrap();
    json!(ByteString(params.self_signed(&key).unwrap().pem().into_bytes()))
}

/// Warnings of operators whose rights are deleted before they are.
const UNINSTALLED: &[&str] = &["watch interrupted", "lease not", "reconcile failed", "event not written"];

/// The chart is upgraded to another image of sidecars, under load; and uninstalled, which leaves groups as they are.
#[test]
fn chart_is_upgraded_and_reinstalled() {
    let Some(cluster) = Cluster::join_own("chart_is_upgraded_and_reinstalled").unwrap() else { return };
    let group = OperatedGroup::start(&cluster, "chart", 2).unwrap();
    image_with_tag(&cluster, "sidecar", "next").unwrap();
    let began = Instant::now();
    helm(&cluster, "upgrade", json!({"sidecarImage": {"tag": "next"}})).unwrap();
    note(&format!("the chart is upgraded: {:?}", began.elapsed()));
    let image = format!("{}:next", image_name("sidecar"));
    let is_new = |pod: &Value| pod["spec"]["containers"][0]["image"] == image;
    cluster
        .wait("backups of the new image", || {
            let backups = group.backups()?;
            Ok((backups.len() == 2 && backups.iter().all(is_new)).then_some(()))
        })
        .unwrap();
    let old = group.wait_for("outdated sidecars in the status", |group| !holds(group, "SidecarsCurrent")).unwrap();
    let outdated = condition(&old, "SidecarsCurrent");
    note(&format!("backups are of the new image after {:?}: {}", began.elapsed(), text(&outdated, "/message")));
    cluster.kubectl(&["rollout", "restart", "deployment/app", "-n", &group.namespace.name], "").unwrap();
    group.wait_for("sidecars to be current", |group| holds(group, "SidecarsCurrent")).unwrap();
    group.wait_until_whole(2).unwrap();
    note(&format!("everything is of the new image: {:?}", began.elapsed()));

    cluster.helm(&["uninstall", RELEASE, "--namespace", HOME]).unwrap();
    let pods = format!("/api/v1/namespaces/{HOME}/pods");
    cluster.wait("the operators to go", || Ok(cluster.list(&pods)?.is_empty().then_some(()))).unwrap();
    assert!(cluster.helm(&["status", RELEASE, "--namespace", HOME]).is_err());
    let (epoch, pod) = group.wait_for_takeover().unwrap();
    group.namespace.kill_container(&pod, SIDECAR).unwrap();
    let failover = group.namespace.wait_for_failover(epoch).unwrap();
    note(&format!("the primary's container is killed without any operator: {} ms", failover.gap_us / 1000));
    group.namespace.wait_for_acks(500).unwrap();

    let began = Instant::now();
    operated::install(&cluster).unwrap();
    let is_old = |pod: &Value| !is_new(pod);
    cluster
        .wait("backups of the first image", || {
            let backups = group.backups()?;
            Ok((backups.len() == 2 && backups.iter().all(is_old)).then_some(()))
        })
        .unwrap();
    group.wait_until_whole(2).unwrap();
    note(&format!("the chart is installed again and has adopted the group: {:?}", began.elapsed()));
    group.finish(&outage_and(UNINSTALLED)).unwrap();
}

/// Time for a few tries at what is refused, which come five seconds apart and then more. It is watched to its end: a busy machine
/// only tries less often.
const UNHURRIED: Duration = Duration::from_secs(10);

/// A group that breaks a rule, one whose nodes are too few until one more appears, one whose devices are: each status says why.
#[test]
fn impossible_requests_are_reported() {
    let Some(cluster) = Cluster::join_own("impossible_requests_are_reported").unwrap() else { return };
    let group = OperatedGroup::prepare(&cluster, "impossible").unwrap();
    let with = |more: &[(&str, Value)]| {
        let mut spec = spec(2);
        more.iter().for_each(|(field, value)| spec[*field] = value.clone());
        spec
    };
    let error = group.ask_for(with(&[("backups", json!(9))])).unwrap_err().to_string();
    assert!(error.contains("spec.backups") && error.contains('7'), "{error}");
    let rule = "minInSync must not be greater than backups";
    match group.ask_for(with(&[("minInSync", json!(3))])) {
        Ok(()) => {
            let invalid = group.wait_for_phase(Phase::Invalid).unwrap();
            assert!(text(&invalid, "/status/phaseReason").contains(rule), "{}", invalid["status"]);
            assert!(group.backups().unwrap().is_empty());
            group.delete().unwrap();
        }
        // A server that knows the rules.
        Err(error) => assert!(error.to_string().contains(rule), "{error:#}"),
    }

    // A quota that leaves room for the oracle and one more.
    let quota = group.namespace.core("resourcequotas/tight");
    let metadata = json!({"name": "tight", "namespace": group.namespace.name});
    let spec_of_quota = json!({"hard": {"pods": "2"}});
    cluster
        .apply(&[json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec_of_quota})])
        .unwrap();
    let counted = || Ok((cluster.get(&quota)?.unwrap()["status"]["used"]["pods"] == "1").then_some(()));
    cluster.wait("the quota to count", counted).unwrap();
    group.ask_for(spec(2)).unwrap();
    let words = |group: &Value| text(&condition(group, "Degraded"), "/message").to_owned();
    let is_degraded_by = |group: &Value, reason: &str| condition(group, "Degraded")["reason"] == reason;
    let is_ready = |backup: &&BackupStatus| backup.state == BackupState::Spare;
    let one = |status: &ReplicaGroupStatus| {
        status.phase == Some(Phase::Pending) && status.backups.iter().filter(is_ready).count() == 1
    };
    group.wait_for_status("the backup that there is room for", one).unwrap();
    let refused = group.wait_for("the refusal in the status", |group| is_degraded_by(group, "ApiRefused")).unwrap();
    note(&format!("a quota is in the way: {}", words(&refused)));
    assert!(words(&refused).contains("exceeded quota"), "{}", words(&refused));
    // It is asked for again, but not in a hurry, once nothing else changes.
    let before = failed_looks(&cluster).unwrap();
    cluster.wait("another try", || Ok((failed_looks(&cluster)? > before).then_some(()))).unwrap();
    let before = failed_looks(&cluster).unwrap();
    std::thread::sleep(UNHURRIED);
    let more = failed_looks(&cluster).unwrap() - before;
    assert!(more <= 4, "{more} tries in {UNHURRIED:?}");
    cluster.delete(&quota).unwrap();
    group.wait_for_phase(Phase::WaitingForApp).unwrap();
    group.delete().unwrap();
    cluster.wait("the backups to go", || Ok(group.backups()?.is_empty().then_some(()))).unwrap();

    // Devices on one node alone.
    let placeable = |group: &Value| condition(group, "Placeable");
    for node in ["node-1", "node-3", "node-4"] {
        cluster.node(node, "devices 0").unwrap();
        // The scheduler goes by what the kubelet makes of it a little later.
        let path = format!("/api/v1/nodes/{node}");
        let gone =
            || Ok((cluster.get(&path)?.unwrap()["status"]["allocatable"]["tailwind.test/rdma"] == "0").then_some(()));
        cluster.wait("the devices to go", gone).unwrap();
    }
    let rdma = json!({"extendedResource": {"name": "tailwind.test/rdma"}, "memlock": "NodeLimit"});
    group.ask_for(with(&[("transport", json!("Rdma")), ("rdma", rdma)])).unwrap();
    let stuck = group.wait_for("a device to be missed", |group| placeable(group)["status"] == "False").unwrap();
    note(&format!("devices are too few: {}", text(&placeable(&stuck), "/message")));
    assert_eq!(text(&placeable(&stuck), "/reason"), "NoFreeDevice");
    assert!(text(&placeable(&stuck), "/message").contains("node-3"), "{stuck}");
    for node in ["node-1", "node-3", "node-4"] {
        cluster.node(node, "devices 4").unwrap();
    }
    group.wait_for("every backup to have a node", |group| placeable(group)["status"] == "True").unwrap();
    // No node has a real RDMA device, and a backup that must use one logs an error and ends.
    let crash = group.wait_for("backups to end", |group| is_degraded_by(group, "BackupCrashes")).unwrap();
    note(&format!("there are no devices: {}", words(&crash)));
    assert!(words(&crash).contains("RDMA"), "{}", words(&crash));
    group.delete().unwrap();
    cluster.wait("the backups to go", || Ok(group.backups()?.is_empty().then_some(()))).unwrap();

    // Nodes for two of three.
    let label = |node: &str, fits: Value| {
        cluster.patch(&format!("/api/v1/nodes/{node}"), &json!({"metadata": {"labels": {FITS: fits}}})).unwrap();
    };
    ["node-2", "node-3"].iter().for_each(|node| label(node, json!("yes")));
    let placement = json!({"nodeSelector": {FITS: "yes"}});
    group.ask_for(with(&[("backups", json!(3)), ("placement", placement)])).unwrap();
    group.start_apps(2).unwrap();
    group.namespace.wait_for_report("the first acks", |report| report.acked > 0).unwrap();
    let stuck = group.wait_for_phase(Phase::Degraded).unwrap();
    note(&format!("nodes are too few: {}", text(&placeable(&stuck), "/message")));
    assert_eq!(placeable(&stuck)["status"], "False");
    let began = Instant::now();
    label("node-4", json!("yes"));
    group.wait_until_whole(3).unwrap();
    note(&format!("one more node appears, and the group is whole after {:?}", began.elapsed()));
    ["node-2", "node-3", "node-4"].iter().for_each(|node| label(node, Value::Null));
    group.finish(&outage_and(&["error: RDMA", "reconcile failed"])).unwrap();
}

/// Warnings of sidecars whose group is deleted.
const GROUP_GONE: &[&str] = &["watch the ReplicaGroup", "read the configuration", "configuration"];

/// A group is deleted under load: nothing of it stays but its app.
#[test]
fn group_is_deleted() {
    let cluster = Cluster::join().unwrap();
    let group = OperatedGroup::start(&cluster, "goes", 2).unwrap();
    group.namespace.replay().unwrap();
    let began = Instant::now();
    group.delete().unwrap();
    let owned = [
        "v1/pods",
        "v1/secrets",
        "v1/services",
        "rbac.authorization.k8s.io/v1/roles",
        "rbac.authorization.k8s.io/v1/rolebindings",
    ];
    for kind in owned {
        cluster
            .wait(&format!("no {kind}"), || {
                let (version, kind) = kind.rsplit_once('/').unwrap();
                let selector = "labelSelector=app.kubernetes.io%2Fmanaged-by%3Dtailwind-operator";
                let path = match version {
                    "v1" => group.namespace.core(kind),
                    version => group.namespace.path(version, kind),
                };
                let left = cluster.list(&format!("{path}?{selector}"))?;
                Ok(left.is_empty().then_some(()))
            })
            .unwrap();
    }
    note(&format!("a group is deleted, and all of it gone: {:?}", began.elapsed()));
    assert!(cluster.get(&group.path()).unwrap().is_none());
    group.finish_without_log(&outage_and(GROUP_GONE)).unwrap();
}

/// The same with its whole namespace.
#[test]
fn namespace_is_deleted() {
    let cluster = Cluster::join().unwrap();
    let group = OperatedGroup::start(&cluster, "namespace", 2).unwrap();
    group.namespace.replay().unwrap();
    let began = Instant::now();
    let namespace = format!("/api/v1/namespaces/{}", group.namespace.name);
    cluster.delete(&namespace).unwrap();
    cluster.wait("the namespace to go", || Ok(cluster.get(&namespace)?.is_none().then_some(()))).unwrap();
    note(&format!("a namespace with a group is gone: {:?}", began.elapsed()));
    group.finish_without_log(&outage_and(GROUP_GONE)).unwrap();
}
