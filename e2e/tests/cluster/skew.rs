//! What another release has left or still runs: words of a newer operator that neither sidecars nor today's operator know, and
//! sidecars and backups of an earlier build.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};
use tailwind_e2e::cluster::kubernetes::{Cluster, text};
use tailwind_e2e::cluster::namespace::{Namespace, image, image_name};
use tailwind_e2e::cluster::operated::{HOME, OperatedGroup, SIDECAR, spec};
use tailwind_e2e::context::note;

use super::operated::outage_and;

const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/replicagroups.replication.tailwind.dev";

/// The definition and the operators as a newer release has them; today's again at the end, however the test ends.
struct NewerRelease<'c> {
    cluster: &'c Cluster,
    schema: Value,
    replicas: Value,
    ended: Cell<bool>,
}

impl<'c> NewerRelease<'c> {
    fn begin(cluster: &'c Cluster) -> NewerRelease<'c> {
        let definition = cluster.get(DEFINITION).unwrap().unwrap();
        let schema = definition["spec"]["versions"].clone();
        let replicas = cluster.get(&operator()).unwrap().unwrap()["spec"]["replicas"].clone();
        let newer = NewerRelease { cluster, schema, replicas, ended: Cell::new(false) };
        newer.scale(&json!(0));
        let mut versions = newer.schema.clone();
        let root = &mut versions[0]["schema"]["openAPIV3Schema"]["properties"];
        for part in ["spec", "status"] {
            root[part]["properties"]["somethingNew"] =
                json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        }
        let words = [
            ("/spec/properties/deletion/enum", "Archive"),
            ("/status/properties/phase/enum", "Hibernating"),
            ("/status/properties/backups/items/properties/state/enum", "Dreaming"),
        ];
        for (list, word) in words {
            root.pointer_mut(list)
                .and_then(Value::as_array_mut)
                .unwrap_or_else(|| panic!("no {list}"))
                .push(json!(word));
        }
        newer.define(&versions);
        newer
    }

    fn define(&self, versions: &Value) {
        self.cluster.patch(DEFINITION, &json!({"spec": {"versions": versions}})).unwrap();
    }

    fn scale(&self, replicas: &Value) {
        self.cluster.patch(&operator(), &json!({"spec": {"replicas": replicas}})).unwrap();
        let pods = format!("/api/v1/namespaces/{HOME}/pods");
        let done = || {
            let operator = self.cluster.get(&operator())?.unwrap_or_default();
            let ready = operator["status"]["readyReplicas"].as_u64().unwrap_or(0);
            let all = self.cluster.list(&pods)?.len() as u64;
            Ok((Some(ready) == replicas.as_u64() && all == ready).then_some(()))
        };
        self.cluster.wait("the operators to be as many as wanted", done).unwrap();
    }

    /// Today's operators meet what the newer one has left.
    fn roll_back_operators(&self) {
        self.scale(&self.replicas);
    }

    fn end(&self) {
        if !self.ended.replace(true) {
            self.define(&self.schema);
        }
    }
}

impl Drop for NewerRelease<'_> {
    fn drop(&mut self) {
        if !self.ended.get() {
            let _ = self.cluster.patch(DEFINITION, &json!({"spec": {"versions": self.schema}}));
            let _ = self.cluster.patch(&operator(), &json!({"spec": {"replicas": self.replicas}}));
        }
    }
}

fn names(pods: &[Value]) -> BTreeSet<String> {
    pods.iter().map(|pod| text(pod, "/metadata/name").to_owned()).collect()
}

/// Does something to a member that ends it, and waits until there are two members again.
fn lose_member(group: &OperatedGroup<'_>, what: &str, end: impl FnOnce(&Namespace<'_>) -> Result<()>) {
    let version = group.get().unwrap()["status"]["log"]["version"].as_u64();
    let began = Instant::now();
    end(&group.namespace).unwrap();
    let changed = |group: &Value| {
        let log = &group["status"]["log"];
        log["version"].as_u64() > version && log["members"].as_array().map_or(0, Vec::len) == 2
    };
    group.wait_for("the member to leave and to come back", changed).unwrap();
    group.namespace.wait_for_acks(1000).unwrap();
    note(&format!("{what} is lost and comes back: {:?}", began.elapsed()));
}

fn kill_member(group: &OperatedGroup<'_>, member: &str, what: &str) {
    lose_member(group, what, |namespace| namespace.kill_container(member, "backup"));
}

fn operator() -> String {
    format!("/apis/apps/v1/namespaces/{HOME}/deployments/tailwind-operator")
}

/// Sidecars continue, replace a member and pass the role on; an operator that cannot read the group leaves it alone; and once
/// it can, it continues as before.
#[test]
fn words_of_a_newer_release_stop_nothing() {
    let Some(cluster) = Cluster::join_own("words_of_a_newer_release_stop_nothing").unwrap() else { return };
    let group = OperatedGroup::start(&cluster, "skew", 2).unwrap();
    let newer = NewerRelease::begin(&cluster);
    let today = group.get().unwrap();
    let mut backups = today["status"]["backups"].clone();
    let states: Vec<Value> = backups.as_array().unwrap().iter().map(|backup| backup["state"].clone()).collect();
    backups.as_array_mut().unwrap().iter_mut().for_each(|backup| backup["state"] = json!("Dreaming"));
    let something = json!({"a": [1]});
    // It takes a moment until the new definition is served; before, the words are refused or left out.
    cluster
        .wait("a newer release's words", || {
            group.change(&json!({"spec": {"deletion": "Archive", "somethingNew": something}}))?;
            let status = json!({"status": {"phase": "Hibernating", "backups": backups, "somethingNew": something}});
            cluster.patch(&format!("{}/status", group.path()), &status)?;
            let group = group.get()?;
            let written = [&group["spec"], &group["status"]].iter().all(|part| part["somethingNew"] == something);
            Ok((written && group["status"]["phase"] == "Hibernating").then_some(()))
        })
        .unwrap();

    group.namespace.wait_for_acks(1000).unwrap();
    kill_member(&group, &group.members().unwrap()[0], "a member");
    let (epoch, primary) = group.wait_for_takeover().unwrap();
    group.namespace.kill_container(&primary, SIDECAR).unwrap();
    let failover = group.namespace.wait_for_failover(epoch).unwrap();
    note(&format!("the primary's container is killed: {} ms", failover.gap_us / 1000));
    let between = group.get().unwrap();
    assert_eq!(between["status"]["phase"], "Hibernating", "nobody but an operator writes that");

    let uids = || -> BTreeSet<String> {
        group.backups().unwrap().iter().map(|pod| text(pod, "/metadata/uid").to_owned()).collect()
    };
    let before = uids();
    newer.roll_back_operators();
    let unread =
        group.wait_for("an operator that cannot read it", |group| group["status"]["phase"] == "Invalid").unwrap();
    note(&format!("an older operator: {}", text(&unread, "/status/phaseReason")));
    assert!(text(&unread, "/status/phaseReason").contains("Archive"), "{}", unread["status"]);
    for kept in ["backups", "somethingNew", "log", "conditions", "membersWanted"] {
        assert_eq!(unread["status"][kept], between["status"][kept], "{kept} is changed");
    }
    group.namespace.wait_for_acks(1000).unwrap();
    assert_eq!(uids(), before, "the same backups");

    // The words go, as before a rollback.
    let mut known = group.get().unwrap()["status"]["backups"].clone();
    known.as_array_mut().unwrap().iter_mut().zip(states).for_each(|(backup, state)| backup["state"] = state);
    let status = json!({"status": {"backups": known, "somethingNew": null}});
    cluster.patch(&format!("{}/status", group.path()), &status).unwrap();
    group.change(&json!({"spec": {"deletion": today["spec"]["deletion"], "somethingNew": null}})).unwrap();
    newer.end();
    group.wait_until_whole(2).unwrap();
    assert_eq!(uids(), before, "the same backups");
    group.finish(&outage_and(&["error: group cannot be read"])).unwrap();
}

/// Kills the primary's sidecar and waits until the other pod's leads; which pod that is.
fn fail_over(group: &OperatedGroup<'_>, what: &str) -> String {
    let (epoch, primary) = group.wait_for_takeover().unwrap();
    group.namespace.kill_container(&primary, SIDECAR).unwrap();
    let failover = group.namespace.wait_for_failover(epoch).unwrap();
    note(&format!("{what}: {} ms", failover.gap_us / 1000));
    group.namespace.wait_for_acks(1000).unwrap();
    group.namespace.primary().unwrap().1
}

/// The image of a pod's sidecar or backup.
pub(crate) fn image_of(group: &OperatedGroup<'_>, pod: &str) -> String {
    let pod = group.namespace.pod(pod).unwrap();
    let lists = ["containers", "initContainers"].into_iter().filter_map(|list| pod["spec"][list].as_array());
    let ours = |container: &&Value| ["backup", SIDECAR].contains(&text(container, "/name"));
    text(lists.flatten().find(ours).unwrap(), "/image").to_owned()
}

/// A group whose pods stay as they are until they are recreated, of a build of `e2e/cluster/earlier_sidecar`; and its image.
pub(crate) fn start_earlier_build<'c>(
    cluster: &'c Cluster,
    name: &str,
    build: &str,
    mut asked: Value,
) -> (OperatedGroup<'c>, String) {
    let earlier = format!("{}:earlier-{build}", image_name("sidecar"));
    (asked["image"], asked["updateStrategy"]) = (json!(earlier), json!("OnDelete"));
    let group = OperatedGroup::prepare(cluster, name).unwrap();
    group.ask_for(asked).unwrap();
    (group, earlier)
}

/// The app's pod that is not the primary, of two.
pub(crate) fn standby_of(group: &OperatedGroup<'_>, primary: &str) -> String {
    names(&group.apps().unwrap()).into_iter().find(|name| name != primary).unwrap()
}

/// Removes a pod of the app and waits until there is another; which one that is.
pub(crate) fn replace_app(group: &OperatedGroup<'_>, pod: &str, wait: impl FnOnce()) -> String {
    let known = names(&group.apps().unwrap());
    group.namespace.remove_pod(pod).unwrap();
    wait();
    names(&group.apps().unwrap()).difference(&known).next().cloned().unwrap()
}

/// A group of an earlier build becomes one of today's, pod by pod: in every mixture on the way it loses a member and gets it back,
/// and the role passes from either build to the other with a log that the other has written.
#[test]
fn builds_of_different_ages_work_together() {
    let Some(cluster) = Cluster::join_own("builds_of_different_ages_work_together").unwrap() else { return };
    let today = image("sidecar");
    let (group, earlier) = start_earlier_build(&cluster, "builds", "log", spec(2));
    group.start_apps(2).unwrap();
    group.wait_until_whole(2).unwrap();
    group.change(&json!({"spec": {"image": today}})).unwrap();
    let new_pod = |pod: &str| replace_app(&group, pod, || drop(group.wait_for_takeover().unwrap()));

    // Today's standby beside an earlier primary and earlier backups, and then in its place.
    let (_, primary) = group.wait_for_takeover().unwrap();
    let app = new_pod(&standby_of(&group, &primary));
    assert_eq!((image_of(&group, &app), image_of(&group, &primary)), (today.clone(), earlier.clone()));
    assert_eq!(fail_over(&group, "today's sidecar takes over from an earlier one"), app);
    let members = group.members().unwrap();
    assert!(members.iter().all(|member| image_of(&group, member) == earlier), "earlier backups");
    kill_member(&group, &members[0], "an earlier backup at today's primary");
    assert_eq!(fail_over(&group, "an earlier sidecar takes over from today's"), primary);
    kill_member(&group, &members[1], "an earlier backup at an earlier primary");
    assert_eq!(fail_over(&group, "today's sidecar takes over again"), app);

    // One backup of today's, which copies the log from the other one or is given it.
    let replace = |member: &str| lose_member(&group, "a pod of a backup", |namespace| namespace.remove_pod(member));
    replace(&members[0]);
    let mixed = group.members().unwrap();
    let images: BTreeSet<String> = mixed.iter().map(|member| image_of(&group, member)).collect();
    assert_eq!(images, [today.clone(), earlier].into());
    for member in &mixed {
        kill_member(&group, member, "a member of a mixed set at today's primary");
    }
    assert_eq!(fail_over(&group, "an earlier sidecar takes over a mixed set"), primary);
    for member in &mixed {
        kill_member(&group, member, "a member of a mixed set at an earlier primary");
    }

    // And the rest.
    replace(&members[1]);
    new_pod(&primary);
    group.wait_until_whole(2).unwrap();
    let pods = names(&group.apps().unwrap()).into_iter().chain(group.members().unwrap());
    pods.for_each(|pod| assert_eq!(image_of(&group, &pod), today, "{pod}"));
    fail_over(&group, "today's build alone");
    group.finish(&outage_and(&[])).unwrap();
}
