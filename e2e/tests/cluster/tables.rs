//! Groups that keep a table: their pods' sidecars are given its size, a key that was put outlives the primary's pod, mirrors answer
//! gets while every node loses its power in turn, a full table is enlarged, builds of different ages keep one table, and the status
//! tells of all that.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailwind_crds::{LogKind, ReplicaGroupStatus, TableStatus};
use tailwind_e2e::cluster::kubernetes::{Cluster, holds, text};
use tailwind_e2e::cluster::namespace::{KEPT, image};
use tailwind_e2e::cluster::operated::{GROUP, OperatedGroup, SIDECAR, spec};
use tailwind_e2e::cluster::reports::{sidecar_metric, sidecar_report};
use tailwind_e2e::context::note;
use tailwind_report::table::{MirrorState, TableReport};

use crate::operated::{condition, outage_and};
use crate::service::primary_with_standby;
use crate::skew::{image_of, replace_app, standby_of, start_earlier_build};

/// Name of the app's container: what one of this name prints is for people, and no log.
const APP: &str = "loader";
/// Shows the table and its changes, and puts a key with its pod's name as soon as the pod is primary.
const SCRIPT: &str = "tailwind-sidecar table watch --wait & \
                      until tailwind-sidecar table put from/$POD here --wait; do sleep 0.2; done; wait";
/// Does nothing: the tests run commands beside it.
const IDLE: &str = "sleep infinity";
/// Keys with values of 15,000 bytes, until one is refused or so many are there.
const FILL: &str = "value=$(printf %015000d 0); n=0; \
                    while ((n < 1000)) && tailwind-sidecar table put full/$n $value; do ((++n)); done";
/// Keys and bytes that a table has room for, in 32 segments.
const KEYS: u64 = 5000;
const MEMORY: u64 = 8 << 20;

fn app(script: &str) -> Value {
    json!({
        "name": APP, "image": image("table"), "imagePullPolicy": "IfNotPresent", "command": ["bash", "-c", script],
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    })
}

/// A group of so many backups that keeps a table.
fn table(backups: u8) -> Value {
    let mut spec = spec(backups);
    spec["table"] = json!({"memory": "8Mi", "keys": KEYS});
    spec
}

/// A pod that only reads, on the node that tests leave alone.
fn start_reader(group: &OperatedGroup<'_>) -> Result<()> {
    let labels = json!({"app": "reader", "replication.tailwind.dev/reads": GROUP});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "reader", "namespace": group.namespace.name, "labels": labels},
        "spec": {"nodeSelector": {KEPT: "yes"}, "automountServiceAccountToken": false, "containers": [app(IDLE)]},
    });
    group.namespace.cluster.apply(&[pod])
}

// ---- What pods show ----------------------------------------------------------------------------------------------------------

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

/// Waits until the status says so many keys in so many bytes of memory, a live mirror at every member, and that there is room.
fn wait_for_keys(group: &OperatedGroup<'_>, keys: u64, memory: u64) {
    let tells = |status: &ReplicaGroupStatus| {
        let log = status.log.as_ref().filter(|log| log.kind == LogKind::Table);
        let members = log.map(|log| log.members.len() as u32);
        let fits = |table: &TableStatus| {
            (table.keys, table.keys_max, table.memory_bytes, table.mirrors) == (keys, KEYS, memory, members)
        };
        status.table.as_ref().is_some_and(fits)
    };
    let state = group.wait_for_status(&format!("{keys} keys in the status"), tells).unwrap();
    assert!(holds(&state, "TableHasRoom"), "{}", state["status"]);
}

/// Arguments of the container of this name.
fn arguments(pod: &Value, container: &str) -> Vec<String> {
    let lists = ["containers", "initContainers"].into_iter().filter_map(|list| pod["spec"][list].as_array());
    let found = lists.flatten().find(|one| one["name"] == container);
    let arguments = found.and_then(|container| container["args"].as_array()).cloned().unwrap_or_default();
    arguments.iter().map(|argument| argument.as_str().unwrap_or_default().to_owned()).collect()
}

/// Runs a script beside a sidecar; what it prints.
fn run_in(group: &OperatedGroup<'_>, pod: &str, script: &str) -> Result<String> {
    let arguments = ["exec", "-n", &group.namespace.name, pod, "-c", APP, "--", "bash", "-c", script];
    group.namespace.cluster.kubectl(&arguments, "")
}

fn primary(group: &OperatedGroup<'_>) -> Result<String> {
    Ok(text(&group.get()?, "/status/log/primary/name").to_owned())
}

/// What the primary reports of the table.
fn reported(group: &OperatedGroup<'_>) -> Result<TableReport> {
    sidecar_report(&group.namespace.pod(&primary(group)?)?)?.table.context("the primary's sidecar reports no table")
}

/// The primary, once another pod could take over, and every backup is a member whose mirror is read.
fn primary_with_mirrors(group: &OperatedGroup<'_>, copies: usize) -> String {
    // One that comes in place of another on the same node waits for up to a minute until old kubelets let go of that.
    let ready = group.namespace.cluster.wait("all backups to be ready", || {
        let backups = group.backups()?;
        Ok((backups.len() == copies && backups.iter().all(|pod| holds(pod, "Ready"))).then_some(()))
    });
    ready.unwrap();
    let primary = primary_with_standby(group, copies);
    let live = group.namespace.cluster.wait("a live mirror at every member", || {
        let mirrors = reported(group)?.mirrors;
        let live = mirrors.iter().filter(|mirror| mirror.state == MirrorState::Live).count();
        ensure!((live, mirrors.len()) == (copies, copies), "{mirrors:?}");
        Ok(Some(()))
    });
    live.unwrap();
    primary
}

// ---- Puts and gets -----------------------------------------------------------------------------------------------------------

/// Puts at the primary, whichever pod that is, once it is on a node that is not dead.
fn put(group: &OperatedGroup<'_>, key: &str, value: &str, dead: Option<&str>) {
    let done = group.namespace.cluster.wait(&format!("{key} to be put"), || {
        let primary = primary(group)?;
        let node = group.node_of(&primary)?;
        ensure!(Some(node.as_str()) != dead, "the primary is still {primary} on {node}");
        run_in(group, &primary, &format!("tailwind-sidecar table put {key} {value}")).map(Some)
    });
    done.unwrap();
}

/// The pods that get out of mirrors, at least so many: a reader, and those of the app that are ready and do not lead, off a dead node.
fn getters(group: &OperatedGroup<'_>, least: usize, dead: Option<&str>) -> Vec<Value> {
    let found = group.namespace.cluster.wait("pods that get out of mirrors", || {
        let primary = primary(group)?;
        let mut pods = group.apps()?;
        pods.retain(|pod| text(pod, "/metadata/name") != primary && dead != Some(text(pod, "/spec/nodeName")));
        pods.extend(group.namespace.pods("app=reader")?);
        pods.retain(|pod| holds(pod, "Ready"));
        Ok((pods.len() >= least).then_some(pods))
    });
    found.unwrap()
}

/// Waits until each of these pods has shown this value, acknowledged before, out of a mirror. No mirror shows anything else.
fn wait_for_gets(group: &OperatedGroup<'_>, pods: &[Value], key: &str, value: &str) {
    for pod in pods {
        let name = text(pod, "/metadata/name");
        let gets = |result: &str| sidecar_metric(pod, "tailwind_table_gets_total", &format!("result=\"{result}\""));
        let got = group.namespace.cluster.wait(&format!("{key} out of a mirror at {name}"), || {
            let before = gets("value")?;
            let shown = run_in(group, name, &format!("tailwind-sidecar table get {key}"));
            assert_eq!(gets("absent")?, 0, "a mirror shows {name} no {key}");
            let shown = shown?;
            ensure!(gets("value")? == before + 1, "{name} has read the whole log");
            assert_eq!(shown.trim_end(), value, "{key} at {name}");
            Ok(Some(()))
        });
        got.unwrap();
    }
}

// ---- The tests ---------------------------------------------------------------------------------------------------------------

#[test]
fn a_key_outlives_the_primary_that_has_put_it() {
    let Some(cluster) = Cluster::join_own("a_key_outlives_the_primary_that_has_put_it").unwrap() else { return };
    let group = OperatedGroup::prepare(&cluster, "tables").unwrap();
    group.ask_for(table(2)).unwrap();
    group.start_apps_of(2, app(SCRIPT)).unwrap();
    let first = primary_with_standby(&group, 2);
    let sidecar = arguments(&group.namespace.pod(&first).unwrap(), SIDECAR);
    assert!(
        ["--table=8388608", "--table-keys=5000"].iter().all(|flag| sidecar.contains(&(*flag).into())),
        "{sidecar:?}"
    );
    wait_for_key(&group, &first);
    wait_for_keys(&group, 1, MEMORY);

    group.namespace.remove_pod(&first).unwrap();
    let second = primary_with_standby(&group, 2);
    assert_ne!(second, first);
    // The pod that has come in place of the first one has read the whole table.
    wait_for_key(&group, &first);
    wait_for_key(&group, &second);
    wait_for_keys(&group, 2, MEMORY);
    group.finish_without_log(&outage_and(&[])).unwrap();
}

/// Each has a backup; the last one to die has the primary as well, and the one before it the standby. What is put before and while a
/// node is dead is shown out of mirrors in the pods that are left, at once; at the end all of it is.
#[test]
fn mirrors_answer_gets_while_every_node_dies_in_turn() {
    let Some(cluster) = Cluster::join_own("mirrors_answer_gets_while_every_node_dies_in_turn").unwrap() else { return };
    let group = OperatedGroup::prepare(&cluster, "mirrors").unwrap();
    let mut asked = table(3);
    asked["table"]["resident"] = json!("4Mi");
    group.ask_for(asked).unwrap();
    group.start_apps_of(2, app(IDLE)).unwrap();
    start_reader(&group).unwrap();
    let home = group.node_of(&primary_with_mirrors(&group, 3)).unwrap();
    let backups = group.backups().unwrap();
    for backup in &backups {
        let flags = arguments(backup, "backup");
        assert!(flags.contains(&"--resident=4194304".to_owned()), "{flags:?}");
    }
    let node_of = |pod: &Value| text(pod, "/spec/nodeName").to_owned();
    let apps: Vec<String> = group.apps().unwrap().iter().map(node_of).collect();
    let mut nodes: Vec<String> = backups.iter().map(node_of).collect();
    nodes.sort_by_key(|node| (*node == home, apps.contains(node), node.clone()));
    nodes.dedup();
    assert_eq!(nodes.len(), 3);

    let mut put_until_now = Vec::new();
    for node in &nodes {
        let leads = group.node_of(&primary_with_mirrors(&group, 3)).unwrap() == *node;
        let (before, during) = (format!("{node}/before"), format!("{node}/during"));
        put(&group, &before, "alive", None);
        wait_for_gets(&group, &getters(&group, 2, None), &before, "alive");

        cluster.node(node, "kill").unwrap();
        let began = Instant::now();
        put(&group, &during, "dead", Some(node));
        // The standby lives on where nothing of the app is.
        let left = getters(&group, if apps.contains(node) { 1 } else { 2 }, Some(node));
        wait_for_gets(&group, &left, &during, "dead");
        wait_for_gets(&group, &left, &before, "alive");
        let shown = began.elapsed();
        cluster.node(node, "start").unwrap();
        primary_with_mirrors(&group, 3);
        put_until_now.extend([(before, "alive"), (during, "dead")]);
        let primary = if leads { " with the primary" } else { "" };
        note(&format!("{node}{primary} dies: shown after {shown:?}, three live mirrors after {:?}", began.elapsed()));
    }
    for (key, value) in &put_until_now {
        wait_for_gets(&group, &getters(&group, 2, None), key, value);
    }
    wait_for_keys(&group, put_until_now.len() as u64, MEMORY);
    group.finish_without_log(&outage_and(&["memory is lost", "too few members are left"])).unwrap();
}

/// The backups are replaced by larger ones, and once the app's pods are recreated, the primary's last, there is room again.
#[test]
fn a_full_table_is_enlarged() {
    let Some(cluster) = Cluster::join_own("a_full_table_is_enlarged").unwrap() else { return };
    let group = OperatedGroup::prepare(&cluster, "larger").unwrap();
    group.ask_for(table(2)).unwrap();
    group.start_apps_of(2, app(IDLE)).unwrap();
    primary_with_mirrors(&group, 2);
    let full = cluster.wait("a full table", || {
        run_in(&group, &primary(&group)?, FILL)?;
        let table = reported(&group)?;
        // A record with such a value takes less than 16 KiB, and only it is refused.
        ensure!(table.live_bytes.is_some_and(|bytes| bytes + (16 << 10) > table.live_bytes_max), "{table:?}");
        Ok(Some(table))
    });
    let full = full.unwrap();
    let keys = full.keys.unwrap();
    group
        .wait_for("a table that is nearly full", |group| condition(group, "TableHasRoom")["status"] == "False")
        .unwrap();

    let began = Instant::now();
    group.change(&json!({"spec": {"table": {"memory": "16Mi"}}})).unwrap();
    let larger = |pod: &Value| arguments(pod, "backup").contains(&"--resident=16777216".to_owned());
    for count in 1..=2 {
        let what = format!("{count} backups with more memory");
        cluster
            .wait(&what, || Ok((group.backups()?.iter().filter(|pod| larger(pod)).count() >= count).then_some(())))
            .unwrap();
    }
    let replaced = |state: &Value| {
        let all_are = group.backups().is_ok_and(|backups| backups.iter().all(larger));
        all_are && holds(state, "BackupsCurrent") && condition(state, "SidecarsCurrent")["reason"] == "OtherSize"
    };
    group.wait_for("backups that are all replaced, and pods that are not", replaced).unwrap();
    let old = primary_with_mirrors(&group, 2);
    assert_eq!(reported(&group).unwrap().memory_bytes, MEMORY, "the size that the primary's pod was created with");
    note(&format!("backups have the larger size after {:?}", began.elapsed()));

    let apps = group.apps().unwrap();
    let standbys = apps.iter().map(|pod| text(pod, "/metadata/name")).filter(|pod| *pod != old);
    for pod in standbys.chain([old.as_str()]) {
        group.namespace.remove_pod(pod).unwrap();
        primary_with_mirrors(&group, 2);
    }
    group.wait_for("pods of the larger size", |state| holds(state, "SidecarsCurrent")).unwrap();
    for pod in group.apps().unwrap() {
        let flags = arguments(&pod, SIDECAR);
        assert!(flags.contains(&"--table=16777216".to_owned()), "{flags:?}");
    }
    wait_for_keys(&group, keys, 2 * MEMORY);
    note(&format!("and the app's pods after {:?}", began.elapsed()));

    let value = "1".repeat(15_000);
    for number in 0..4 {
        put(&group, &format!("more/{number}"), &value, None);
    }
    let more = reported(&group).unwrap();
    assert_eq!(more.keys, Some(keys + 4));
    assert!(more.live_bytes.unwrap() > full.live_bytes_max, "{more:?} after {full:?}");
    let standby = getters(&group, 1, None);
    wait_for_gets(&group, &standby, "more/0", &value);
    for key in ["full/0".to_owned(), format!("full/{}", keys - 1)] {
        wait_for_gets(&group, &standby, &key, &"0".repeat(15_000));
    }
    group.finish_without_log(&outage_and(&[])).unwrap();
}

/// Kills the primary's sidecar until this pod's leads: one that is back at once may lead again.
fn hand_over_to(group: &OperatedGroup<'_>, pod: &str) {
    while primary_with_mirrors(group, 2) != pod {
        let epoch = group.get().unwrap()["status"]["log"]["epoch"].as_u64();
        group.namespace.kill_container(&primary(group).unwrap(), SIDECAR).unwrap();
        group.wait_for("a newer epoch", |group| group["status"]["log"]["epoch"].as_u64() > epoch).unwrap();
    }
}

/// A group of an earlier build becomes one of today's, pod by pod. In every mixture on the way a key is put, and it and all earlier
/// ones are shown out of mirrors: both builds lead, stand by and keep mirrors, each beside the other.
#[test]
fn tables_of_different_builds_work_together() {
    let Some(cluster) = Cluster::join_own("tables_of_different_builds_work_together").unwrap() else { return };
    let today = image("sidecar");
    let (group, earlier) = start_earlier_build(&cluster, "ages", "table", table(2));
    group.start_apps_of(2, app(IDLE)).unwrap();
    let first = primary_with_mirrors(&group, 2);
    group.change(&json!({"spec": {"image": today}})).unwrap();

    let mut keys = Vec::new();
    // Whose primary, standby and backups there are is checked: `E` for the earlier build, `T` for today's.
    let mut put_and_get = |mixture: &str| {
        let primary = primary_with_mirrors(&group, 2);
        let pods = [primary.clone(), standby_of(&group, &primary)].into_iter().chain(group.members().unwrap());
        let build = |pod: String| if image_of(&group, &pod) == today { 'T' } else { 'E' };
        let mut found: Vec<char> = pods.map(build).collect();
        found[2..].sort_unstable();
        assert_eq!(found.into_iter().collect::<String>(), mixture, "primary, standby, backups");
        put(&group, mixture, "here", None);
        keys.push(mixture.to_owned());
        for key in &keys {
            wait_for_gets(&group, &getters(&group, 1, None), key, "here");
        }
        note(&format!("{mixture}: {} keys out of mirrors", keys.len()));
    };
    let replace_backup = |number: usize| {
        let version = |group: &Value| group["status"]["log"]["version"].as_u64();
        let before = version(&group.get().unwrap());
        group.namespace.remove_pod(&group.members().unwrap()[number]).unwrap();
        group.wait_for("the backup to leave", |group| version(group) > before).unwrap();
    };

    put_and_get("EEEE");
    let new = replace_app(&group, &standby_of(&group, &first), || drop(primary_with_mirrors(&group, 2)));
    put_and_get("ETEE");
    hand_over_to(&group, &new);
    put_and_get("TEEE");
    replace_backup(0);
    put_and_get("TEET");
    hand_over_to(&group, &first);
    put_and_get("ETET");
    let members = group.members().unwrap();
    replace_backup(members.iter().position(|member| image_of(&group, member) == earlier).unwrap());
    put_and_get("ETTT");
    hand_over_to(&group, &new);
    put_and_get("TETT");
    replace_app(&group, &first, || drop(primary_with_mirrors(&group, 2)));
    put_and_get("TTTT");
    wait_for_keys(&group, 8, MEMORY);
    group.finish_without_log(&outage_and(&[])).unwrap();
}
