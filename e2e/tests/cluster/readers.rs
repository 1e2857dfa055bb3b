//! Pods that only read: each answers from the log of a group that it is no part of, through the death of a primary, and is told
//! so when nobody may read any longer.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailwind_crds::ReaderStatus;
use tailwind_e2e::cluster::kubernetes::{Cluster, text};
use tailwind_e2e::cluster::namespace::image;
use tailwind_e2e::cluster::operated::{GROUP, OperatedGroup, SIDECAR, spec};
use tailwind_e2e::cluster::reports::sidecar_readiness;

use crate::operated::outage_and;
use crate::service::{PORT, primary_with_standby};

/// Readers of the group.
const READERS: usize = 2;
/// How long a register may take to connect, or to answer; it is asked again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Two pods of another app, with an account of their own, that follow the group's log.
fn start_readers(group: &OperatedGroup<'_>) -> Result<()> {
    let namespace = &group.namespace.name;
    let labels = json!({"app": "readers", "replication.tailwind.dev/reads": GROUP});
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "readers", "namespace": namespace},
        "automountServiceAccountToken": false,
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "readers", "namespace": namespace},
        "spec": {
            "replicas": READERS, "selector": {"matchLabels": {"app": "readers"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": "readers", "terminationGracePeriodSeconds": 5, "containers": [register()],
                },
            },
        },
    });
    group.namespace.cluster.apply(&[account, deployment])
}

/// A value over a plain log. It listens once it has followed the log up to its end.
fn register() -> Value {
    json!({
        // By this name its lines are known to be for people.
        "name": "loader", "image": image("loader"), "imagePullPolicy": "IfNotPresent",
        "args": ["register", format!("--listen=0.0.0.0:{PORT}")],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1, "timeoutSeconds": 5},
    })
}

/// One command to the register in a pod: the value that it answers with, or its answer as it is.
fn ask(pod: &Value, command: &str) -> Result<String> {
    let address: SocketAddr = format!("{}:{PORT}", text(pod, "/status/podIP")).parse().context("the pod's address")?;
    let mut server = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
    server.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    server.write_all(format!("{command}\r\n").as_bytes())?;
    let mut lines = BufReader::new(server).lines();
    let mut line = || lines.next().context("the connection has ended")?.context("read an answer");
    let first = line()?;
    match first.strip_prefix('$') {
        Some(length) if length != "-1" => line(),
        _ => Ok(first),
    }
}

/// Writes at the primary, whichever pod that is.
fn write(group: &OperatedGroup<'_>, value: &str) {
    let written = group.namespace.cluster.wait("a write at the primary", || {
        let primary = text(&group.get()?, "/status/log/primary/name").to_owned();
        let answer = ask(&group.namespace.pod(&primary)?, &format!("SET key {value}"))?;
        ensure!(answer == "+OK", "{primary} answers {answer}");
        Ok(Some(()))
    });
    written.unwrap();
}

fn readers(group: &OperatedGroup<'_>) -> Result<Vec<Value>> {
    let pods = group.namespace.pods("app=readers")?;
    ensure!(pods.len() == READERS, "{} pods", pods.len());
    Ok(pods)
}

/// Waits until every reader answers with this value, and none of them as a primary.
fn wait_for_value(group: &OperatedGroup<'_>, value: &str) {
    let shown = group.namespace.cluster.wait(&format!("{value} to be read at every reader"), || {
        for reader in readers(group)? {
            let answer = ask(&reader, "GET key")?;
            ensure!(answer == value, "{} answers {answer}", text(&reader, "/metadata/name"));
            let refusal = ask(&reader, "SET key taken")?;
            assert!(refusal.starts_with('-'), "a reader takes writes: {refusal}");
        }
        Ok(Some(()))
    });
    shown.unwrap();
}

/// Waits until the operator has seen the spec, and the status says this of every reader.
fn wait_for_status(group: &OperatedGroup<'_>, what: &str, such: impl Fn(&ReaderStatus) -> bool) {
    let shown = group.wait_for_status(what, |status| {
        let all = [status.readers.len(), status.reader_count.unwrap_or_default() as usize] == [READERS; 2];
        all && status.readers.iter().all(&such)
    });
    shown.unwrap();
}

/// Starts of the sidecars' containers after their first.
fn restarts(group: &OperatedGroup<'_>) -> Vec<u64> {
    let of = |pod: &Value| {
        let statuses = ["containerStatuses", "initContainerStatuses"];
        let statuses = statuses.into_iter().filter_map(|list| pod["status"][list].as_array()).flatten();
        let sidecar = statuses.into_iter().find(|status| status["name"] == SIDECAR);
        sidecar.and_then(|status| status["restartCount"].as_u64()).unwrap()
    };
    readers(group).unwrap().iter().map(of).collect()
}

#[test]
fn readers_answer_through_a_failover_and_while_they_may() {
    let Some(cluster) = Cluster::join_own("readers_answer_through_a_failover_and_while_they_may").unwrap() else {
        return;
    };
    let group = OperatedGroup::prepare(&cluster, "readers").unwrap();
    group.ask_for(spec(2)).unwrap();
    group.start_apps_of(2, register()).unwrap();
    start_readers(&group).unwrap();
    let primary = primary_with_standby(&group, 2);
    write(&group, "before");
    wait_for_value(&group, "before");
    let follows = |reader: &ReaderStatus| !reader.stale && reader.from.is_some() && reader.lsn.is_some();
    wait_for_status(&group, "the readers in the status", follows);
    let table = cluster.kubectl(&["get", "rg", GROUP, "-n", &group.namespace.name, "-o", "wide"], "").unwrap();
    assert!(table.lines().next().is_some_and(|titles| titles.contains("READERS")), "{table}");

    let epoch = |group: &Value| group["status"]["log"]["epoch"].as_u64();
    let before = epoch(&group.get().unwrap());
    group.namespace.kill_container(&primary, SIDECAR).unwrap();
    group.wait_for("the next epoch", |group| epoch(group) > before).unwrap();
    write(&group, "after");
    wait_for_value(&group, "after");
    wait_for_status(&group, "the readers to follow the next primary", follows);

    group.change(&json!({"spec": {"reads": "Disabled"}})).unwrap();
    wait_for_status(&group, "the readers to be refused", |reader| {
        reader.stale && reader.from.is_none() && reader.lsn.is_none() && reader.message.is_some()
    });
    let refuses = || {
        let codes = readers(&group)?.into_iter().map(|reader| Ok(sidecar_readiness(&reader)?.status));
        Ok((codes.collect::<Result<Vec<_>>>()? == [503; READERS]).then_some(()))
    };
    cluster.wait("the readers' sidecars to refuse", refuses).unwrap();
    write(&group, "meanwhile");
    for reader in readers(&group).unwrap() {
        let answer = ask(&reader, "GET key").unwrap();
        assert_ne!(answer, "meanwhile", "a reader that may not read answers {answer}");
        let readiness = sidecar_readiness(&reader).unwrap();
        let readiness = String::from_utf8_lossy(&readiness.body);
        assert!(readiness.starts_with("reader\nwaits for reads: "), "{readiness}");
    }
    group.change(&json!({"spec": {"reads": "Enabled"}})).unwrap();
    wait_for_value(&group, "meanwhile");
    for reader in readers(&group).unwrap() {
        let sidecar = [text(&reader, "/metadata/name"), "-c", SIDECAR];
        let log = cluster.kubectl(&[&["logs", "-n", &group.namespace.name], &sidecar[..]].concat(), "").unwrap();
        assert!(log.contains("spec.reads: Disabled"), "a sidecar has not said why: {log}");
    }
    assert_eq!(restarts(&group), [0; READERS], "none of them has ended");
    group.finish_without_log(&outage_and(&["the turn as primary is over", "spec.reads: Disabled"])).unwrap();
}
