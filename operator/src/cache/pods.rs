//! Every pod of the cluster: those of groups without their bulk, of all others only what they have asked for on their node.
//!
//! A pod of a group takes some ten kilobytes of memory, any other some 600 bytes: its name, its node, an amount for each
//! resource that it has asked for, and the node's ports that it uses.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use tailwind_crds::names::{LABEL_BACKUP_OF, LABEL_GROUP, LABEL_READS};
use tokio::sync::watch;

use super::{GroupRef, group_ref};
use crate::capacity::{Amounts, Usage, usage};
use crate::observed::NodeFacts;

/// kubectl keeps a copy of the whole object in it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[derive(Debug, Default)]
pub(crate) struct Pods {
    state: Mutex<State>,
    listed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    known: Index,
    /// A list that is not complete yet. Until it is, what was known holds.
    list: Index,
}

/// Namespace and name.
type PodKey = (Box<str>, Box<str>);

#[derive(Debug, Default)]
struct Index {
    pods: HashMap<PodKey, Known>,
    /// What pods have asked for, by node.
    requested: HashMap<Box<str>, Amounts>,
    /// TCP ports of nodes that pods use, by node; each as often as there are such pods.
    host_ports: HashMap<Box<str>, Vec<u16>>,
    /// Names of pods that have a label of a group.
    groups: HashMap<GroupRef, BTreeMap<Box<str>, Arc<Pod>>>,
}

/// What is kept of each pod.
#[derive(Debug)]
struct Known {
    node: Option<Box<str>>,
    asked: Box<[(Box<str>, i128)]>,
    host_ports: Box<[u16]>,
    groups: Box<[GroupRef]>,
}

impl Pods {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event of the watch; the groups that it is about.
    pub(crate) fn apply(&self, event: Event<Pod>) -> HashSet<GroupRef> {
        let mut state = self.state();
        match event {
            Event::Apply(pod) => state.known.insert(pod),
            Event::Delete(pod) => state.known.remove(&key(&pod)),
            Event::Init => {
                state.list = Index::default();
                HashSet::new()
            }
            Event::InitApply(pod) => {
                state.list.insert(pod);
                HashSet::new()
            }
            Event::InitDone => {
                let list = std::mem::take(&mut state.list);
                let before = std::mem::replace(&mut state.known, list);
                self.listed.send_replace(true);
                // What was missed between the two is not known.
                before.groups.into_keys().chain(state.known.groups.keys().cloned()).collect()
            }
        }
    }

    pub(crate) async fn wait_until_listed(&self) {
        // The sender is in here.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// The pods with this label of a group, in the order of their names.
    pub(super) fn labelled(&self, namespace: &str, label: &str, group: &str) -> Vec<Pod> {
        let state = self.state();
        let pods = state.known.groups.get(&group_ref(namespace, group)).into_iter().flat_map(BTreeMap::values);
        let labelled = pods.filter(|pod| pod.labels().get(label).is_some_and(|name| name == group));
        labelled.map(|pod| pod.as_ref().clone()).collect()
    }

    /// Whether a pod of this group is on one of these nodes.
    pub(crate) fn is_on(&self, group: &GroupRef, is_one: impl Fn(&str) -> bool) -> bool {
        let state = self.state();
        let mut pods = state.known.groups.get(group).into_iter().flat_map(BTreeMap::values);
        pods.any(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(&is_one))
    }

    /// Adds to nodes what pods have asked for and use there.
    pub(super) fn fill_in_usage(&self, nodes: &mut [NodeFacts]) {
        let state = self.state();
        for node in nodes {
            node.requested = state.known.requested.get(node.name.as_str()).cloned().unwrap_or_default();
            node.host_ports = state.known.host_ports.get(node.name.as_str()).into_iter().flatten().copied().collect();
        }
    }
}

impl Index {
    fn insert(&mut self, pod: Pod) -> HashSet<GroupRef> {
        let key = key(&pod);
        let mut touched = self.remove(&key);
        let (node, usage) = usage(&pod).unzip();
        let node: Option<Box<str>> = node.map(Into::into);
        let Usage { amounts, host_ports } = usage.unwrap_or_default();
        let asked: Box<[_]> = amounts.into_iter().map(|(name, amount)| (name.into_boxed_str(), amount)).collect();
        if let Some(node) = &node {
            let sum = self.requested.entry(Box::clone(node)).or_default();
            for (resource, amount) in &asked {
                *sum.entry(resource.to_string()).or_default() += amount;
            }
            if !host_ports.is_empty() {
                self.host_ports.entry(Box::clone(node)).or_default().extend(&host_ports);
            }
        }
        let groups: Box<[GroupRef]> = groups_of(&pod);
        if !groups.is_empty() {
            let pod = Arc::new(pruned(pod));
            for group in &groups {
                self.groups.entry(group.clone()).or_default().insert(Box::clone(&key.1), Arc::clone(&pod));
            }
            touched.extend(groups.iter().cloned());
        }
        self.pods.insert(key, Known { node, asked, host_ports: host_ports.into(), groups });
        touched
    }

    fn remove(&mut self, key: &PodKey) -> HashSet<GroupRef> {
        let Some(Known { node, asked, host_ports, groups }) = self.pods.remove(key) else { return HashSet::new() };
        if let Some(node) = &node
            && let Some(used) = self.host_ports.get_mut(node)
        {
            for port in host_ports {
                used.iter().position(|other| *other == port).map(|at| used.swap_remove(at));
            }
            if used.is_empty() {
                self.host_ports.remove(node);
            }
        }
        if let Some(node) = node
            && let Some(sum) = self.requested.get_mut(&node)
        {
            for (resource, amount) in asked {
                if let Some(left) = sum.get_mut(&*resource) {
                    *left -= amount;
                }
            }
            sum.retain(|_, left| *left != 0);
            if sum.is_empty() {
                self.requested.remove(&node);
            }
        }
        for group in &groups {
            if let Some(pods) = self.groups.get_mut(group) {
                pods.remove(&key.1);
                if pods.is_empty() {
                    self.groups.remove(group);
                }
            }
        }
        groups.into_iter().collect()
    }
}

fn key(pod: &Pod) -> PodKey {
    (pod.namespace().unwrap_or_default().into(), pod.name_any().into())
}

/// The groups that a pod is a backup of, of the app of, or reads: one, where nobody has played with labels.
fn groups_of(pod: &Pod) -> Box<[GroupRef]> {
    let namespace = pod.namespace().unwrap_or_default();
    let names: HashSet<&String> =
        [LABEL_BACKUP_OF, LABEL_GROUP, LABEL_READS].iter().filter_map(|label| pod.labels().get(*label)).collect();
    names.into_iter().map(|name| group_ref(&namespace, name)).collect()
}

/// A pod of a group without what is large and read by nobody here.
fn pruned(mut pod: Pod) -> Pod {
    pod.managed_fields_mut().clear();
    pod.annotations_mut().remove(LAST_APPLIED);
    if let Some(spec) = &mut pod.spec {
        spec.volumes = None;
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            let Container { name, image, resources, restart_policy, .. } = std::mem::take(container);
            *container = Container { name, image, resources, restart_policy, ..Container::default() };
        }
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, node: &str, label: Option<(&str, &str)>) -> Pod {
        let labels = label.map(|(label, group)| json!({label: group}));
        serde_json::from_value(json!({
            "metadata": {
                "namespace": "shop", "name": name, "labels": labels,
                "managedFields": [{"manager": "kubectl"}],
                "annotations": {LAST_APPLIED: "{}", "kept": "yes"},
            },
            "spec": {
                "nodeName": node, "volumes": [{"name": "v"}], "serviceAccountName": "app",
                "containers": [{
                    "name": "c", "image": "i", "env": [{"name": "A"}], "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                    "resources": {"requests": {"cpu": "500m"}},
                }],
            },
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        }))
        .unwrap()
    }

    fn cpu(pods: &Pods, node: &str) -> Option<i128> {
        let mut nodes = [NodeFacts { name: node.to_owned(), ..NodeFacts::default() }];
        pods.fill_in_usage(&mut nodes);
        nodes[0].requested.get("cpu").copied()
    }

    fn refs(names: &[&str]) -> HashSet<GroupRef> {
        names.iter().map(|name| group_ref("shop", name)).collect()
    }

    #[test]
    fn requests_are_summed_by_node_as_pods_come_and_go() {
        let pods = Pods::default();
        assert!(pods.apply(Event::Apply(pod("a", "n1", None))).is_empty());
        pods.apply(Event::Apply(pod("b", "n1", None)));
        assert_eq!(cpu(&pods, "n1"), Some(1000));
        // An update of the same pod is not one more.
        pods.apply(Event::Apply(pod("b", "n1", None)));
        assert_eq!(cpu(&pods, "n1"), Some(1000));
        let mut ended = pod("b", "n1", None);
        ended.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
        pods.apply(Event::Apply(ended));
        assert_eq!(cpu(&pods, "n1"), Some(500));
        pods.apply(Event::Delete(pod("a", "n1", None)));
        assert_eq!(cpu(&pods, "n1"), None);
        assert!(pods.state().known.requested.is_empty());
    }

    #[test]
    fn ports_of_a_node_are_in_use_until_their_last_pod_is_gone() {
        let pods = Pods::default();
        let listening = |name: &str| {
            let mut pod = pod(name, "n1", None);
            pod.spec.as_mut().unwrap().containers[0].ports =
                Some(vec![serde_json::from_value(json!({"containerPort": 7420, "hostPort": 7420})).unwrap()]);
            pod
        };
        let in_use = |pods: &Pods| {
            let mut nodes = [NodeFacts { name: "n1".to_owned(), ..NodeFacts::default() }];
            pods.fill_in_usage(&mut nodes);
            nodes[0].host_ports.contains(&7420)
        };
        pods.apply(Event::Apply(listening("a")));
        pods.apply(Event::Apply(listening("b")));
        pods.apply(Event::Apply(listening("b")));
        pods.apply(Event::Delete(listening("a")));
        assert!(in_use(&pods));
        pods.apply(Event::Delete(listening("b")));
        assert!(!in_use(&pods) && pods.state().known.host_ports.is_empty());
    }

    #[test]
    fn foreign_pods_are_kept_as_numbers_alone() {
        let pods = Pods::default();
        pods.apply(Event::Apply(pod("a", "n1", None)));
        let state = pods.state();
        assert!(state.known.groups.is_empty());
        let known = &state.known.pods[&key(&pod("a", "n1", None))];
        assert_eq!((known.node.as_deref(), &*known.groups), (Some("n1"), [].as_slice()));
        assert_eq!(&*known.asked, [("cpu".into(), 500), ("pods".into(), 1000)]);
    }

    #[test]
    fn pods_of_groups_are_kept_without_bulk() {
        let pods = Pods::default();
        assert_eq!(pods.apply(Event::Apply(pod("b", "n1", Some((LABEL_BACKUP_OF, "orders"))))), refs(&["orders"]));
        pods.apply(Event::Apply(pod("a", "n2", Some((LABEL_GROUP, "orders")))));
        pods.apply(Event::Apply(pod("r", "n2", Some((LABEL_READS, "orders")))));
        let [backup] = pods.labelled("shop", LABEL_BACKUP_OF, "orders").try_into().unwrap();
        let [reader] = pods.labelled("shop", LABEL_READS, "orders").try_into().unwrap();
        assert_eq!(reader.name_any(), "r");
        let [app] = pods.labelled("shop", LABEL_GROUP, "orders").try_into().unwrap();
        assert_eq!((backup.name_any().as_str(), app.name_any().as_str()), ("b", "a"));
        assert!(pods.labelled("other", LABEL_GROUP, "orders").is_empty());
        assert_eq!((backup.managed_fields(), backup.annotations().len()), ([].as_slice(), 1));
        let (spec, status) = (backup.spec.unwrap(), backup.status.unwrap());
        assert_eq!((spec.volumes, spec.service_account_name.as_deref()), (None, Some("app")));
        let [container] = spec.containers.try_into().unwrap();
        assert_eq!((container.name.as_str(), container.env, container.volume_mounts), ("c", None, None));
        assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.1"));
    }

    #[test]
    fn a_pod_that_changes_its_group_wakes_both() {
        let pods = Pods::default();
        pods.apply(Event::Apply(pod("a", "n1", Some((LABEL_GROUP, "orders")))));
        let moved = pod("a", "n1", Some((LABEL_GROUP, "users")));
        assert_eq!(pods.apply(Event::Apply(moved)), refs(&["orders", "users"]));
        assert!(pods.labelled("shop", LABEL_GROUP, "orders").is_empty());
        assert_eq!(pods.apply(Event::Delete(pod("a", "n1", None))), refs(&["users"]));
        assert!(pods.state().known.groups.is_empty());
    }

    #[test]
    fn a_new_list_replaces_what_was_known() {
        let pods = Pods::default();
        pods.apply(Event::Apply(pod("a", "n1", Some((LABEL_GROUP, "orders")))));
        pods.apply(Event::Init);
        assert!(pods.apply(Event::InitApply(pod("b", "n2", Some((LABEL_GROUP, "users"))))).is_empty());
        assert_eq!(cpu(&pods, "n1"), Some(500), "a list that is not complete yet hides nothing");
        assert!(!*pods.listed.borrow());
        assert_eq!(pods.apply(Event::InitDone), refs(&["orders", "users"]));
        assert!(*pods.listed.borrow());
        assert_eq!((cpu(&pods, "n1"), cpu(&pods, "n2")), (None, Some(500)));
        assert!(pods.labelled("shop", LABEL_GROUP, "orders").is_empty());
    }

    #[test]
    fn a_group_has_pods_on_its_nodes_alone() {
        let pods = Pods::default();
        pods.apply(Event::Apply(pod("a", "n1", Some((LABEL_GROUP, "orders")))));
        let orders = group_ref("shop", "orders");
        assert!(pods.is_on(&orders, |node| node == "n1"));
        assert!(!pods.is_on(&orders, |node| node == "n2"));
        assert!(!pods.is_on(&group_ref("shop", "users"), |_| true));
    }
}
