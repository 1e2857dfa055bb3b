//! What the controllers and kubelets of a [`Cluster`](super::cluster::Cluster) do by themselves: at once, after every request.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::cluster::{
    BUDGETS, CLAIMS, IN_USE, Objects, Target, has_finalizers, is_ending, list, text, with_other_conditions,
};
use super::eviction;

impl Objects {
    /// What controllers and kubelets do, until nothing changes any more.
    pub(super) fn settle(&mut self) {
        loop {
            let before = self.all.clone();
            self.make_ephemeral_claims();
            self.all.values_mut().for_each(set_ready);
            self.count_disruptions();
            self.release_claims();
            self.collect_garbage();
            self.empty_namespaces();
            self.remove_definitions();
            self.all.retain(|path, object| {
                let target = Target::of(path);
                let waits = target.resource == "pods" || target.has_contents() || has_finalizers(object);
                waits || !is_ending(object)
            });
            if self.all == before {
                return;
            }
        }
    }

    /// <https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#generic-ephemeral-volumes>
    fn make_ephemeral_claims(&mut self) {
        for (path, pod) in self.all.clone() {
            let Target { resource, namespace: Some(namespace), .. } = Target::of(&path) else { continue };
            let volumes = list(&pod["spec"]["volumes"]).filter(|volume| volume["ephemeral"].is_object());
            for volume in volumes.filter(|_| resource == "pods" && !is_ending(&pod)) {
                let owner = json!({
                    "apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
                    "controller": true, "blockOwnerDeletion": true,
                });
                let name = format!("{}-{}", text(&pod["metadata"]["name"]), text(&volume["name"]));
                let spec = &volume["ephemeral"]["volumeClaimTemplate"]["spec"];
                let claim = json!({"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec});
                self.create(&Target::of(&format!("/api/v1/namespaces/{namespace}/{CLAIMS}")), "", &claim);
            }
        }
    }

    /// What budgets allow, by what the disruption controller has seen.
    fn count_disruptions(&mut self) {
        if self.disruption_lags {
            return;
        }
        for path in self.paths(|target| target.resource == BUDGETS) {
            let pods = self.of_namespace("pods", Target::of(&path).namespace.as_ref());
            let pods: Vec<&Value> = pods.into_iter().map(|(_, pod)| pod).collect();
            let status = eviction::status(&self.all[&path], &pods);
            self.all.get_mut(&path).unwrap()["status"] = status;
        }
    }

    /// A claim that was deleted stays while there is a pod that uses it.
    /// <https://kubernetes.io/docs/concepts/storage/persistent-volumes/#storage-object-in-use-protection>
    fn release_claims(&mut self) {
        let mut used = BTreeSet::new();
        for (path, pod) in self.all.iter().filter(|(path, _)| Target::of(path).resource == "pods") {
            let namespace = Target::of(path).namespace.unwrap_or_default();
            for volume in list(&pod["spec"]["volumes"]) {
                let own = format!("{}-{}", text(&pod["metadata"]["name"]), text(&volume["name"]));
                let named = volume["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned);
                let name = named.or_else(|| volume["ephemeral"].is_object().then_some(own));
                used.extend(name.map(|name| format!("/api/v1/namespaces/{namespace}/{CLAIMS}/{name}")));
            }
        }
        for (path, claim) in &mut self.all {
            if Target::of(path).resource == CLAIMS && is_ending(claim) && !used.contains(path) {
                let finalizers = claim["metadata"]["finalizers"].as_array_mut();
                finalizers.into_iter().for_each(|finalizers| finalizers.retain(|finalizer| finalizer != IN_USE));
            }
        }
    }

    /// An object goes when none of its owners is there any more.
    /// <https://kubernetes.io/docs/concepts/architecture/garbage-collection/#owners-dependents>
    fn collect_garbage(&mut self) {
        let uids: BTreeSet<String> = self.all.values().map(|object| text(&object["metadata"]["uid"])).collect();
        let is_garbage = |object: &Value| {
            let mut owners = list(&object["metadata"]["ownerReferences"]).peekable();
            !is_ending(object) && owners.peek().is_some() && owners.all(|owner| !uids.contains(&text(&owner["uid"])))
        };
        let garbage: Vec<String> = self.all.keys().filter(|path| is_garbage(&self.all[*path])).cloned().collect();
        garbage.iter().for_each(|path| self.mark_deleted(path));
    }

    /// A namespace that was deleted takes along what is in it. Each of these deletions is admitted like any other.
    /// <https://kubernetes.io/docs/tasks/administer-cluster/namespaces/#deleting-a-namespace>
    fn empty_namespaces(&mut self) {
        for namespace in self.ending("namespaces") {
            let name = Target::of(&namespace).name;
            let contents = self.paths(|target| target.namespace == name);
            for path in contents.iter().filter(|path| !is_ending(&self.all[*path])).cloned().collect::<Vec<_>>() {
                self.delete(&Target::of(&path), &Value::Null);
            }
            if contents.is_empty() {
                self.all.remove(&namespace);
            }
        }
    }

    /// A definition that was deleted takes along its objects, about which no policy is asked.
    /// <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#delete-a-customresourcedefinition>
    fn remove_definitions(&mut self) {
        for definition in self.ending("customresourcedefinitions") {
            let name = Target::of(&definition).name;
            let objects = self.paths(|target| Some(format!("{}.{}", target.resource, target.group)) == name);
            objects.iter().for_each(|path| self.mark_deleted(path));
            if objects.is_empty() {
                self.all.remove(&definition);
            }
        }
    }

    fn ending(&self, resource: &str) -> Vec<String> {
        let paths = self.paths(|target| target.resource == resource);
        paths.into_iter().filter(|path| is_ending(&self.all[path])).collect()
    }

    fn paths(&self, is_wanted: impl Fn(&Target) -> bool) -> Vec<String> {
        self.all.keys().filter(|path| is_wanted(&Target::of(path))).cloned().collect()
    }
}

/// A pod is ready if its containers are, and all of its gates say so.
/// <https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-readiness-gate>
fn set_ready(pod: &mut Value) {
    if pod["status"]["phase"].is_string() && pod["spec"]["containers"].is_array() {
        let ready = if is_ready(pod) { "True" } else { "False" };
        let mut patch = json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
        with_other_conditions(&mut patch, pod);
        json_patch::merge(pod, &patch);
    }
}

fn is_ready(pod: &Value) -> bool {
    let is_true = |kind: &Value| {
        list(&pod["status"]["conditions"]).any(|condition| condition["type"] == *kind && condition["status"] == "True")
    };
    is_true(&json!("ContainersReady"))
        && list(&pod["spec"]["readinessGates"]).all(|gate| is_true(&gate["conditionType"]))
}
