//! Clients outside of the group follow its primary through the service, without an operator; and a primary that is about to go
//! hands over before it does.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tailwind_e2e::cluster::kubernetes::{Cluster, holds, text};
use tailwind_e2e::cluster::namespace::{distribution, image};
use tailwind_e2e::cluster::operated::{GROUP, OperatedGroup, SIDECAR, operators, spec};
use tailwind_e2e::context::{note, rounds};

use crate::operated::{FROZEN_OPERATORS, outage_and};

pub(crate) const PORT: u16 = 6379;

/// An acknowledged write.
#[derive(Clone, Debug)]
pub(crate) struct Ack {
    /// Seconds since 1970.
    pub(crate) at: f64,
    /// The address that acknowledged it.
    pub(crate) address: String,
    /// How many had been sent until then.
    pub(crate) sent: u64,
    pub(crate) reply: String,
}

pub(crate) fn acks(file: &Path) -> Vec<Ack> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let ack = |line: &str| {
        let [at, address, sent, reply] = line.splitn(4, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let (at, sent) = (at.parse().unwrap(), sent.parse().unwrap());
        Ack { at, address: address.to_owned(), sent, reply: reply.to_owned() }
    };
    whole.lines().map(ack).collect()
}

/// Does something while a client sends a command through the service again and again; all writes that were acknowledged. What is
/// done is given the file in which [`acks`] are.
pub(crate) fn beside_client(group: &OperatedGroup<'_>, command: &str, work: impl FnOnce(&Path)) -> Vec<Ack> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("acks");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/service_client.py");
    std::thread::scope(|threads| {
        let (slice, port) = (format!("{GROUP}-primary"), PORT.to_string());
        let (script, out) = (script.to_string_lossy(), file.to_string_lossy());
        let client =
            ["run", "python3", &script, &group.namespace.name, &slice, &port, &out, command].map(str::to_owned);
        let cluster = group.namespace.cluster;
        let client = threads.spawn(move || cluster.command(&client.each_ref().map(String::as_str)));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&file)));
        fs::write(folder.path().join("acks.stop"), "").unwrap();
        client.join().unwrap().unwrap();
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
    acks(&file)
}

fn store() -> Value {
    json!({
        "name": "kv", "image": image("kv"), "imagePullPolicy": "IfNotPresent",
        "args": [format!("--listen=0.0.0.0:{PORT}"), "--probes-listen=0.0.0.0:9121"],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 9121}, "periodSeconds": 1, "timeoutSeconds": 5},
    })
}

/// The primary, once another pod could take over from it at once.
pub(crate) fn primary_with_standby(group: &OperatedGroup<'_>, copies: usize) -> String {
    let what = "a primary, a ready standby and all copies";
    let found = group.namespace.cluster.wait(what, || {
        let state = group.get()?;
        let primary = text(&state, "/status/log/primary/name").to_owned();
        let members = state["status"]["log"]["members"].as_array().map_or(0, Vec::len);
        let apps = group.apps()?;
        let ready = apps.iter().filter(|pod| holds(pod, "Ready"));
        let (leading, standing): (Vec<_>, Vec<_>) = ready.partition(|pod| text(pod, "/metadata/name") == primary);
        Ok((leading.len() == 1 && !standing.is_empty() && members == copies).then_some(primary))
    });
    found.unwrap()
}

/// The primary's sidecar is killed again and again while the operators are frozen: how long a client of the service waits from
/// the last write that the old primary acknowledged to the first of the new one.
#[test]
fn clients_follow_the_primary_without_operators() {
    let Some(cluster) = Cluster::join_own("clients_follow_the_primary_without_operators").unwrap() else { return };
    let group = OperatedGroup::prepare(&cluster, "service").unwrap();
    let mut asked = spec(2);
    asked["primaryPorts"] = json!([{"name": "redis", "port": PORT}]);
    asked["table"] = json!({"memory": "16Mi", "keys": 1000});
    group.ask_for(asked).unwrap();
    group.start_apps_of(3, store()).unwrap();
    primary_with_standby(&group, 2);

    let mut gaps = Vec::new();
    beside_client(&group, "SET key value", |file| {
        for _ in 0..rounds(20) {
            let primary = primary_with_standby(&group, 2);
            let old = text(&group.namespace.pod(&primary).unwrap(), "/status/podIP").to_owned();
            cluster
                .wait("writes through the service", || {
                    Ok(acks(file).last().is_some_and(|ack| ack.address == old).then_some(()))
                })
                .unwrap();
            let frozen = operators(&cluster).unwrap();
            frozen.iter().for_each(|operator| cluster.freeze(operator, true).unwrap());
            group.namespace.kill_container(&primary, SIDECAR).unwrap();
            // Its sidecar may be back, and primary again, before another has noticed.
            let gap = cluster
                .wait("a write through the service to be acknowledged", || Ok(failover(&acks(file), &old)))
                .unwrap();
            frozen.iter().for_each(|operator| cluster.freeze(operator, false).unwrap());
            gaps.extend(gap);
            group.namespace.delete_pod_at_once(&primary).unwrap();
            cluster
                .wait("the next primary", || {
                    Ok((text(&group.get()?, "/status/log/primary/name") != primary).then_some(()))
                })
                .unwrap();
        }
    });
    let median = {
        gaps.sort_unstable();
        gaps[gaps.len() / 2]
    };
    note(&format!(
        "first write through the service, primary's sidecar killed, operators frozen: {}",
        distribution(&gaps)
    ));
    note(&format!("median of {}: {} ms", gaps.len(), median / 1000));
    // A sidecar that is started again may still see that its pod is gone.
    let expected = ["the turn as primary is over", "Unauthorized"];
    group.finish_without_log(&outage_and(&[FROZEN_OPERATORS, &expected].concat())).unwrap();
}

/// Microseconds from the last write that `old` acknowledged to the next of another; `Some(None)` if the same pod continues.
fn failover(acks: &[Ack], old: &str) -> Option<Option<u64>> {
    const SETTLED_SECONDS: f64 = 5.0;
    let micros = |seconds: f64| (seconds * 1e6) as u64;
    let last = acks.iter().rposition(|ack| ack.address == old)?;
    match acks.get(last + 1) {
        Some(next) => Some(Some(micros(next.at - acks[last].at))),
        // A pause, after which the old one continues.
        None => {
            let pause = acks.windows(2).rev().find(|pair| pair[1].at - pair[0].at > 0.1);
            let settled = |pair: &&[Ack]| acks[last].at - pair[1].at > SETTLED_SECONDS;
            let resumed = pause.filter(settled).filter(|pair| pair.iter().all(|ack| ack.address == old));
            resumed.map(|_| None)
        }
    }
}

/// The pod of the primary is deleted, and then its node is cordoned: each time another pod is primary before the old one's app
/// has ended. A pod whose image cannot be pulled never becomes primary.
#[test]
fn primary_hands_over_before_it_goes() {
    let cluster = Cluster::join().unwrap();
    let group = OperatedGroup::start(&cluster, "handover", 2).unwrap();

    let (epoch, pod) = group.wait_for_takeover().unwrap();
    cluster.delete(&group.namespace.core(&format!("pods/{pod}"))).unwrap();
    let failover = group.namespace.wait_for_failover(epoch).unwrap();
    assert_ne!(failover.pod, pod);
    note(&format!("the primary's pod is deleted: {} ms without acks", failover.gap_us / 1000));
    group.wait_until_whole(2).unwrap();

    let (epoch, pod) = group.wait_for_takeover().unwrap();
    let node = text(&group.namespace.pod(&pod).unwrap(), "/spec/nodeName").to_owned();
    let path = format!("/api/v1/nodes/{node}");
    cluster.patch(&path, &json!({"spec": {"unschedulable": true}})).unwrap();
    let failover = group.namespace.wait_for_failover(epoch).unwrap();
    assert_ne!(failover.pod, pod);
    note(&format!("the primary's node is cordoned: {} ms without acks", failover.gap_us / 1000));
    assert!(group.apps().unwrap().iter().any(|app| text(app, "/metadata/name") == pod), "the old primary's pod stays");
    cluster.patch(&path, &json!({"spec": {"unschedulable": null}})).unwrap();
    group.wait_until_whole(2).unwrap();

    // A standby without an app: its image does not exist.
    let labels = json!({"replication.tailwind.dev/group": GROUP});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "broken", "namespace": group.namespace.name, "labels": labels},
        "spec": {"containers": [{"name": "app", "image": "localhost/tailwind-missing:none"}]},
    });
    cluster.apply(&[pod]).unwrap();
    let sidecar_runs = || {
        let pod = group.namespace.pod("broken")?;
        let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let starting = pod["status"]["initContainerStatuses"].as_array().cloned().unwrap_or_default();
        let is_up = |status: &Value| status["name"] == SIDECAR && status["ready"] == true;
        Ok(statuses.iter().chain(&starting).any(is_up).then_some(()))
    };
    cluster.wait("the sidecar without an app", sidecar_runs).unwrap();
    let mut gaps = Vec::new();
    for _ in 0..rounds(5) {
        let (epoch, pod) = group.wait_for_takeover().unwrap();
        group.namespace.kill_container(&pod, SIDECAR).unwrap();
        let failover = group.namespace.wait_for_failover(epoch).unwrap();
        assert_ne!(failover.pod, "broken");
        gaps.push(failover.gap_us);
        group.namespace.delete_pod_at_once(&pod).unwrap();
    }
    note(&format!("the primary's container is killed, beside a pod without an app: {}", distribution(&gaps)));
    cluster.delete(&group.namespace.core("pods/broken")).unwrap();
    cluster.wait("the pod without an app to go", || Ok(group.namespace.pod("broken").is_err().then_some(()))).unwrap();
    group.wait_until_whole(2).unwrap();
    group.finish(&outage_and(&["Unauthorized"])).unwrap();
}
