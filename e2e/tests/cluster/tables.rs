//! A group that keeps a table: its pods' sidecars are given its size, a key that was put outlives the primary's pod, and the status
//! tells of the table.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailwind_crds::{LogKind, ReplicaGroupStatus};
use tailwind_e2e::cluster::kubernetes::{Cluster, holds, text};
use tailwind_e2e::cluster::namespace::image;
use tailwind_e2e::cluster::operated::{OperatedGroup, SIDECAR, spec};

use crate::operated::outage_and;
use crate::service::primary_with_standby;

/// Name of the app's container: what one of this name prints is for people, and no log.
const APP: &str = "loader";
/// Shows the table and its changes, and puts a key with its pod's name as soon as the pod is primary.
const SCRIPT: &str = "tailwind-sidecar table watch --wait & \
                      until tailwind-sidecar table put from/$POD here --wait; do sleep 0.2; done; wait";

fn app() -> Value {
    json!({
        "name": APP, "image": image("table"), "imagePullPolicy": "IfNotPresent", "command": ["bash", "-c", SCRIPT],
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    })
}

/// A table of 32 segments.
fn table() -> Value {
    let mut spec = spec(2);
    spec["table"] = json!({"memory": "8Mi", "keys": 5000});
    spec
}

/// Whether a pod shows the key that another has put.
fn shows(group: &OperatedGroup<'_>, pod: &str, put_by: &str) -> Result<bool> {
    let log = group.namespace.cluster.kubectl(&["logs", "-n", &group.namespace.name, pod, "-c", APP], "")?;
    Ok(log.lines().any(|line| line.split('\t').nth(1) == Some(&format!("from/{put_by}"))))
}

/// Waits until every pod of the app shows the key that this one has put.
fn wait_for_key(group: &OperatedGroup<'_>, put_by: &str) {
    let shown = group.namespace.cluster.wait(&format!("the key of {put_by} at every pod"), || {
        for pod in group.apps()? {
            let pod = text(&pod, "/metadata/name");
            ensure!(shows(group, pod, put_by)?, "{pod} does not show it");
        }
        Ok(Some(()))
    });
    shown.unwrap();
}

/// Waits until the status says so many keys, and that there is room.
fn wait_for_keys(group: &OperatedGroup<'_>, keys: u64) {
    let tells = |status: &ReplicaGroupStatus| {
        let kind = status.log.as_ref().map(|log| log.kind);
        let table =
            status.table.filter(|table| (table.keys, table.keys_max, table.memory_bytes) == (keys, 5000, 8 << 20));
        kind == Some(LogKind::Table) && table.is_some()
    };
    let state = group.wait_for_status(&format!("{keys} keys in the status"), tells).unwrap();
    assert!(holds(&state, "TableHasRoom"), "{}", state["status"]);
}

#[test]
fn a_key_outlives_the_primary_that_has_put_it() {
    let Some(cluster) = Cluster::join_own("a_key_outlives_the_primary_that_has_put_it").unwrap() else { return };
    let group = OperatedGroup::prepare(&cluster, "tables").unwrap();
    group.ask_for(table()).unwrap();
    group.start_apps_of(2, app()).unwrap();
    let first = primary_with_standby(&group, 2);
    let pod = group.namespace.pod(&first).unwrap();
    let lists = ["containers", "initContainers"].map(|list| pod["spec"][list].as_array().cloned().unwrap_or_default());
    let sidecar = lists.iter().flatten().find(|container| container["name"] == SIDECAR).context("a sidecar").unwrap();
    let arguments = sidecar["args"].as_array().unwrap();
    assert!(
        arguments.contains(&json!("--table=8388608")) && arguments.contains(&json!("--table-keys=5000")),
        "{sidecar}"
    );
    wait_for_key(&group, &first);
    wait_for_keys(&group, 1);

    group.namespace.remove_pod(&first).unwrap();
    let second = primary_with_standby(&group, 2);
    assert_ne!(second, first);
    // The pod that has come in place of the first one has read the whole table.
    wait_for_key(&group, &first);
    wait_for_key(&group, &second);
    wait_for_keys(&group, 2);
    group.finish_without_log(&outage_and(&[])).unwrap();
}
