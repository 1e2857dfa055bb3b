//! What the operators cost their cluster: requests to the API server, and memory. The figures are theirs, from `/metrics`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tailwind_e2e::cluster::kubernetes::{Cluster, text};
use tailwind_e2e::cluster::operated::{OperatedGroup, SIDECAR, spec};
use tailwind_e2e::cluster::reports::operator_metric;
use tailwind_e2e::context::note;

use crate::operated::{OUTAGE, condition};

/// Groups beside the one that appends.
const GROUPS: usize = 200;
/// As many of them are made at a time: each waits for its certificates, its objects and its pod.
const BATCH: usize = 20;
/// Glances at an idle group come every 15 to 30 seconds, looks at the API server every five to ten minutes.
const MEASURED: Duration = Duration::from_mins(2);
/// Requests, for each group and minute.
const REQUESTS_MAX: usize = 5;
/// Resident memory of an operator.
const MEMORY_BYTES_MAX: u64 = 150 << 20;

/// 200 groups whose backups find no node, and one under load, cost few requests; nor does a failover cost many.
#[test]
fn two_hundred_groups_are_idle() {
    let Some(cluster) = Cluster::join_own("two_hundred_groups_are_idle").unwrap() else { return };
    let group = OperatedGroup::start(&cluster, "idle", 2).unwrap();
    let began = (Instant::now(), requests(&cluster).unwrap());
    let (epoch, pod) = group.wait_for_takeover().unwrap();
    group.namespace.kill_container(&pod, SIDECAR).unwrap();
    group.namespace.wait_for_failover(epoch).unwrap();
    group.wait_until_whole(2).unwrap();
    let after = requests(&cluster).unwrap();
    note(&format!("a failover, until the group is whole: {} in {:?}", listed(&began.1, &after), began.0.elapsed()));

    let began = Instant::now();
    let names: Vec<String> = (0..GROUPS).map(|number| format!("idle-{number:03}")).collect();
    for names in names.chunks(BATCH) {
        cluster.apply(&names.iter().map(|name| idle_group(&group.namespace.name, name)).collect::<Vec<_>>()).unwrap();
        cluster.wait("groups whose backups have no node", || settled(&group, names)).unwrap();
    }
    // Looks that are under way come to their end.
    cluster.wait("all groups", || settled(&group, &names)).unwrap();
    note(&format!("{GROUPS} groups wait for a node after {:?}", began.elapsed()));

    let (began, before) = (Instant::now(), requests(&cluster).unwrap());
    // What is measured is the time in which nothing happens.
    std::thread::sleep(MEASURED);
    let (after, elapsed) = (requests(&cluster).unwrap(), began.elapsed());
    let most = REQUESTS_MAX * (GROUPS + 1) * usize::try_from(elapsed.as_secs()).unwrap() / 60;
    let made = total(&after) - total(&before);
    let each = made as f64 * 60.0 / elapsed.as_secs_f64() / (GROUPS + 1) as f64;
    note(&format!("{} groups: {} in {elapsed:?}", GROUPS + 1, listed(&before, &after)));
    note(&format!("that is {each:.2} for each group and minute"));
    let memory = memory(&cluster).unwrap();
    for (operator, bytes) in &memory {
        note(&format!("operator {operator}: {} MiB", bytes >> 20));
    }
    assert!(made <= most, "{made} requests in {elapsed:?}, {most} are allowed");
    assert!(memory.values().all(|bytes| *bytes <= MEMORY_BYTES_MAX), "{memory:?}");
    // They were looked at all the while: a node that fits is found.
    let node = "/api/v1/nodes/node-2";
    let label = |value: Value| cluster.patch(node, &json!({"metadata": {"labels": {SELECTED: value}}})).unwrap();
    label(json!("yes"));
    let is_placeable = |group: &Value| text(&condition(group, "Placeable"), "/status") == "True";
    let found =
        cluster.wait("a node for a backup", || Ok(groups(&group, &names)?.iter().any(is_placeable).then_some(())));
    label(Value::Null);
    found.unwrap();
    group.finish(&OUTAGE).unwrap();
}

/// The label of the nodes that the groups want, which none has.
const SELECTED: &str = "tailwind.test/idle";

fn idle_group(namespace: &str, name: &str) -> Value {
    let mut spec = spec(1);
    spec["placement"] = json!({"nodeSelector": {SELECTED: "yes"}});
    // A node that appears has room for a few; the others keep waiting.
    spec["backupResources"] = json!({"requests": {"cpu": "500m"}});
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "replication.tailwind.dev/v1alpha1", "kind": "ReplicaGroup", "metadata": metadata, "spec": spec})
}

/// The groups of these names.
fn groups(group: &OperatedGroup<'_>, names: &[String]) -> Result<Vec<Value>> {
    let path = group.namespace.path("replication.tailwind.dev/v1alpha1", "replicagroups");
    let mut groups = group.namespace.cluster.list(&path)?;
    groups.retain(|group| names.iter().any(|name| text(group, "/metadata/name") == name));
    ensure!(groups.len() == names.len(), "{} of {} groups", groups.len(), names.len());
    Ok(groups)
}

/// Whether each group says that no node fits, and that the scheduler says so too.
fn settled(group: &OperatedGroup<'_>, names: &[String]) -> Result<Option<()>> {
    for group in groups(group, names)? {
        let message = text(&group, "/status/backups/0/message");
        let placeable = condition(&group, "Placeable");
        ensure!(text(&placeable, "/reason") == "NoNodeFits" && !message.is_empty(), "{}", group["status"]);
    }
    Ok(Some(()))
}

/// Requests that each operator has made, by operator, verb and resource.
type Requests = BTreeMap<String, u64>;

fn requests(cluster: &Cluster) -> Result<Requests> {
    operator_metric(cluster, "tailwind_operator_api_requests_total")
}

fn memory(cluster: &Cluster) -> Result<BTreeMap<String, u64>> {
    operator_metric(cluster, "process_resident_memory_bytes")
}

fn total(requests: &Requests) -> usize {
    usize::try_from(requests.values().sum::<u64>()).unwrap()
}

/// How many more requests there are, and the names of the most frequent. An operator that has restarted has fewer: that fails.
fn listed(before: &Requests, after: &Requests) -> String {
    assert!(before.iter().all(|(sample, count)| after.get(sample) >= Some(count)), "an operator has ended");
    let mut more: BTreeMap<&str, u64> = BTreeMap::new();
    for (sample, count) in after {
        let labels = sample.split_once('{').map_or(sample.as_str(), |(_, labels)| labels.trim_end_matches('}'));
        *more.entry(labels).or_default() += count - before.get(sample).copied().unwrap_or(0);
    }
    let mut more: Vec<(u64, &str)> = more.into_iter().map(|(labels, count)| (count, labels)).collect();
    more.sort_unstable_by(|a, b| b.cmp(a));
    let most: Vec<String> = more.iter().take(8).map(|(count, labels)| format!("{count} {labels}")).collect();
    format!("{} requests ({})", more.iter().map(|(count, _)| count).sum::<u64>(), most.join(", "))
}
