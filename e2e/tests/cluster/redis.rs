//! An unmodified Redis as in the sample, under `tailwind-exec`: its pods and nodes die, and no answered write is lost.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tailwind_e2e::cluster::kubernetes::{Cluster, TIMEOUT, text};
use tailwind_e2e::cluster::namespace::image;
use tailwind_e2e::cluster::operated::{GROUP, OperatedGroup, SIDECAR, not_kept, spec};
use tailwind_e2e::context::{note, rounds};

use crate::operated::outage_and;
use crate::service::{Ack, PORT, acks, beside_client, primary_with_standby};

/// The container of Redis, and what the sample calls its objects.
const REDIS: &str = "redis";
/// Answers that show that a Redis serves.
const SERVES: usize = 50;
/// Copies of the log.
const COPIES: u8 = 2;
/// Warnings of a `tailwind-exec` that loses the role or its sidecar.
const EXEC: [&str; 3] = ["the program must not continue", "waits for the sidecar", "the role is lost again"];

/// Log lines of a sidecar whose pod is gone, and of the next one: a StatefulSet gives it the name of the pod that is still
/// primary.
const NAMESAKE: [&str; 2] = ["Unauthorized", "the primary has this sidecar's name"];

/// What happens to the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    ExecIsKilled,
    SidecarIsKilled,
    PodIsKilled,
    NodeIsKilled,
    NodeIsDrained,
}

use Fault::*;

/// The kubelet delays what has ended before: so the one that it has to start again comes first.
const FAULTS: [Fault; 5] = [ExecIsKilled, SidecarIsKilled, PodIsKilled, NodeIsKilled, NodeIsDrained];

/// One document of the sample.
fn sample(cluster: &Cluster, kind: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/samples/redis.yaml");
    let all = fs::read_to_string(file).unwrap();
    let line = format!("\nkind: {kind}\n");
    let document = all.split("\n---\n").find(|document| document.contains(&line)).unwrap();
    // Before Kubernetes 1.21 budgets had another version.
    let is_old = cluster.get("/apis/policy/v1").unwrap().is_none();
    let document = if is_old { document.replace("policy/v1\n", "policy/v1beta1\n") } else { document.to_owned() };
    let made = cluster.kubectl(&["create", "--dry-run=client", "-o", "json", "-f", "-"], &document).unwrap();
    serde_json::from_str(&made).unwrap()
}

/// The sample, with the images of this build and nodes that may die.
fn start_redis(group: &OperatedGroup<'_>) {
    let cluster = group.namespace.cluster;
    let mut set = sample(cluster, "StatefulSet");
    let template = &mut set["spec"]["template"];
    template["metadata"]["labels"]["replication.tailwind.dev/group"] = json!(GROUP);
    template["metadata"]["labels"]["app"] = json!("loader");
    let pod = &mut template["spec"];
    pod["affinity"]["nodeAffinity"] = not_kept();
    pod["initContainers"][0]["image"] = json!(image("exec"));
    pod["containers"][0]["image"] = json!(image(REDIS));
    pod["containers"][0]["readinessProbe"]["periodSeconds"] = json!(1);
    let mut objects = [sample(cluster, "Service"), set, sample(cluster, "PodDisruptionBudget")];
    objects.iter_mut().for_each(|object| object["metadata"]["namespace"] = json!(group.namespace.name));
    cluster.apply(&objects).unwrap();
}

/// Seconds since 1970, as the client has them.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// The supervisor with its Redis, the sidecar, the pod and the node of the primary are killed, and its node is drained, while a
/// client outside of the group counts through the service.
#[test]
fn redis_never_counts_back() {
    let Some(cluster) = Cluster::join_own("redis_never_counts_back").unwrap() else { return };
    // A pod that has ended keeps its node for up to a minute on old kubelets; with this one there is a free one all the same.
    cluster.node("node-5", "start").unwrap();
    let group = OperatedGroup::prepare(&cluster, "redis").unwrap();
    let mut asked = spec(COPIES);
    asked["primaryPorts"] = json!([{"name": REDIS, "port": PORT}]);
    group.ask_for(asked).unwrap();
    start_redis(&group);
    primary_with_standby(&group, COPIES.into());
    let all = beside_client(&group, "INCR visits", |file| {
        for round in 0..rounds(FAULTS.len() as u64) {
            meet(&group, FAULTS[round as usize % FAULTS.len()], file);
        }
    });
    check(&all);
    let (last, seconds) = (all.last().unwrap(), all.last().unwrap().at - all[0].at);
    note(&format!("{} answers of {} increments that were sent, in {seconds:.0} s", all.len(), last.sent));
    group.finish_without_log(&outage_and(&[EXEC.as_slice(), &NAMESAKE].concat())).unwrap();
    cluster.node("node-5", "kill").unwrap();
    cluster.delete("/api/v1/nodes/node-5").unwrap();
}

/// One fault, and what clients notice of it.
fn meet(group: &OperatedGroup<'_>, fault: Fault, file: &Path) {
    let cluster = group.namespace.cluster;
    let whole = now();
    // On a busy machine the primary may change by itself in the meantime.
    let serving = || {
        let primary = primary_with_standby(group, COPIES.into());
        let pod = group.namespace.pod(&primary)?;
        let address = text(&pod, "/status/podIP");
        let answered = acks(file).iter().rev().take_while(|ack| ack.at > whole && ack.address == address).count();
        Ok((answered >= SERVES).then_some((primary, pod)))
    };
    let (primary, pod) = cluster.wait("a primary whose Redis answers", serving).unwrap();
    let (old, node) = (text(&pod, "/status/podIP").to_owned(), text(&pod, "/spec/nodeName").to_owned());
    let starts = restarts(&pod);
    let epoch = || Ok::<_, anyhow::Error>(group.get()?["status"]["log"]["epoch"].as_u64());
    let epoch_before = epoch().unwrap();
    let began = now();
    match fault {
        SidecarIsKilled => group.namespace.kill_container(&primary, SIDECAR).unwrap(),
        PodIsKilled => group.namespace.delete_pod_at_once(&primary).unwrap(),
        ExecIsKilled => group.namespace.kill_container(&primary, REDIS).unwrap(),
        NodeIsKilled => cluster.node(&node, "kill").unwrap(),
        NodeIsDrained => {
            let timeout = format!("{}s", TIMEOUT.as_secs());
            let drain = ["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout", &timeout];
            cluster.kubectl(&drain, "").unwrap();
        }
    }
    let done = now();
    let starts_now = || group.namespace.pod(&primary).map(|pod| restarts(&pod));
    match fault {
        // Its sidecar stays primary, unless the operator hands over.
        ExecIsKilled => {
            let again = || Ok((starts_now()? > starts).then_some(()));
            cluster.wait("tailwind-exec to be started again", again).unwrap();
            answers(group, file, now(), |_| true);
        }
        // It kills its Redis and follows the other one, in the same process. On a busy machine the role may come back at once.
        SidecarIsKilled => {
            let later = || Ok((epoch()? > epoch_before).then_some(()));
            cluster.wait("a later epoch", later).unwrap();
            answers(group, file, now(), |_| true);
            primary_with_standby(group, COPIES.into());
            assert_eq!(starts_now().unwrap(), starts, "nobody had to start it again");
        }
        PodIsKilled | NodeIsKilled | NodeIsDrained => answers(group, file, began, |ack| ack.address != old),
    }
    let (first, pause) = outage(&acks(file), began);
    let took = if fault == NodeIsDrained { format!(", drained in {:.1} s", done - began) } else { String::new() };
    note(&format!("{fault:?}: answers again {first:.0} ms after it began, {pause:.0} ms without answers{took}"));
    match fault {
        NodeIsKilled => cluster.node(&node, "start").unwrap(),
        NodeIsDrained => cluster.kubectl(&["uncordon", &node], "").map(drop).unwrap(),
        _ => {}
    }
}

/// How often Redis was started again in this pod.
fn restarts(pod: &Value) -> u64 {
    let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let redis = statuses.into_iter().find(|status| status["name"] == REDIS);
    redis.and_then(|status| status["restartCount"].as_u64()).unwrap_or_default()
}

/// Waits until enough such answers have come since then.
fn answers(group: &OperatedGroup<'_>, file: &Path, since: f64, counts: impl Fn(&Ack) -> bool) {
    let come = || Ok((acks(file).iter().filter(|ack| ack.at > since && counts(ack)).count() >= SERVES).then_some(()));
    group.namespace.cluster.wait("answers of Redis through the service", come).unwrap();
}

/// The longest time without answers since then: milliseconds from then to its end, and how long it was.
fn outage(acks: &[Ack], since: f64) -> (f64, f64) {
    let pauses = acks.windows(2).filter(|pair| pair[1].at > since);
    let longest = pauses.max_by(|a, b| (a[1].at - a[0].at).total_cmp(&(b[1].at - b[0].at))).unwrap();
    ((longest[1].at - since) * 1000.0, (longest[1].at - longest[0].at) * 1000.0)
}

/// No answered increment is lost: each answer is above the one before. None is made twice: no answer is above what was sent.
fn check(acks: &[Ack]) {
    let mut before = 0;
    for ack in acks {
        let value: u64 = ack.reply.parse().unwrap();
        assert!(before < value && value <= ack.sent, "{before} was answered before {ack:?}");
        before = value;
    }
}
