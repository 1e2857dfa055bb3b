//! Every node, as far as it matters to a backup. Heartbeats change nothing here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use crate::capacity::node_facts;
use crate::observed::NodeFacts;

type Known = BTreeMap<String, NodeFacts>;

/// What is known of nodes, by their names. What pods have asked for on them is not in it.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    state: Mutex<State>,
    listed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    known: Known,
    /// A list that is not complete yet. Until it is, what was known holds.
    list: Known,
}

impl Nodes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event of the watch; the names of nodes about which something has changed that matters.
    pub(crate) fn apply(&self, event: Event<Node>) -> BTreeSet<String> {
        let mut state = self.state();
        match event {
            Event::Apply(node) => {
                let mut facts = node_facts(&node);
                let name = facts.name.clone();
                facts.marked_since = marked_since(&facts, state.known.get(&name));
                let before = state.known.insert(name.clone(), facts);
                if before.as_ref() == state.known.get(&name) { BTreeSet::new() } else { BTreeSet::from([name]) }
            }
            Event::Delete(node) => {
                let name = node.name_any();
                state.known.remove(&name);
                BTreeSet::from([name])
            }
            Event::Init => {
                state.list.clear();
                BTreeSet::new()
            }
            Event::InitApply(node) => {
                let facts = node_facts(&node);
                state.list.insert(facts.name.clone(), facts);
                BTreeSet::new()
            }
            Event::InitDone => {
                let mut list = std::mem::take(&mut state.list);
                // What was so at the start has been so for a time that nobody knows.
                if *self.listed.borrow() {
                    for (name, facts) in &mut list {
                        facts.marked_since = marked_since(facts, state.known.get(name));
                    }
                }
                let before = std::mem::replace(&mut state.known, list);
                self.listed.send_replace(true);
                let names = before.keys().chain(state.known.keys());
                names.filter(|name| before.get(*name) != state.known.get(*name)).cloned().collect()
            }
        }
    }

    pub(crate) async fn wait_until_listed(&self) {
        // The sender is in here.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// All of them, in the order of their names.
    pub(crate) fn all(&self) -> Vec<NodeFacts> {
        self.state().known.values().cloned().collect()
    }
}

/// When a node came to be cordoned and tainted as it is.
fn marked_since(now: &NodeFacts, before: Option<&NodeFacts>) -> Option<Timestamp> {
    match before {
        Some(before) if (before.unschedulable, &before.taints) == (now.unschedulable, &now.taints) => {
            before.marked_since
        }
        _ => Some(Timestamp::now()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, ready: &str, heartbeat: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"zone": "a"}, "resourceVersion": heartbeat},
            "status": {"conditions": [{
                "type": "Ready", "status": ready,
                "lastHeartbeatTime": heartbeat, "lastTransitionTime": "2026-06-01T12:00:00Z",
            }], "images": [{"names": ["large"]}]},
        }))
        .unwrap()
    }

    const EARLY: &str = "2026-06-01T12:00:01Z";
    const LATE: &str = "2026-06-01T12:05:01Z";

    fn listed(names: &[&str]) -> Nodes {
        let nodes = Nodes::default();
        list(&nodes, names);
        nodes
    }

    fn list(nodes: &Nodes, names: &[&str]) -> Vec<String> {
        nodes.apply(Event::Init);
        for name in names {
            assert!(nodes.apply(Event::InitApply(node(name, "True", EARLY))).is_empty());
        }
        nodes.apply(Event::InitDone).into_iter().collect()
    }

    #[test]
    fn a_heartbeat_is_no_change() {
        let nodes = listed(&["a"]);
        assert!(nodes.apply(Event::Apply(node("a", "True", LATE))).is_empty());
        assert_eq!(nodes.apply(Event::Apply(node("a", "Unknown", LATE))), BTreeSet::from(["a".to_owned()]));
        let mut relabelled = node("a", "Unknown", LATE);
        relabelled.labels_mut().insert("zone".to_owned(), "b".to_owned());
        assert_eq!(nodes.apply(Event::Apply(relabelled)), BTreeSet::from(["a".to_owned()]));
        assert_eq!(nodes.apply(Event::Delete(node("a", "True", LATE))), BTreeSet::from(["a".to_owned()]));
        assert!(nodes.all().is_empty());
    }

    #[test]
    fn the_operator_remembers_since_when_a_node_is_cordoned() {
        let nodes = listed(&["a", "b"]);
        let since = |nodes: &Nodes| nodes.all()[0].marked_since;
        assert_eq!(since(&nodes), None, "as it was at the start");
        let mut cordoned = node("a", "True", LATE);
        cordoned.spec = Some(serde_json::from_value(json!({"unschedulable": true})).unwrap());
        nodes.apply(Event::Apply(cordoned.clone()));
        let first = since(&nodes);
        assert!(first.is_some());
        cordoned.labels_mut().insert("zone".to_owned(), "b".to_owned());
        nodes.apply(Event::Apply(cordoned.clone()));
        nodes.apply(Event::Init);
        nodes.apply(Event::InitApply(cordoned));
        nodes.apply(Event::InitDone);
        assert_eq!(since(&nodes), first, "the cordon is the same");
    }

    #[test]
    fn a_new_list_says_what_was_missed() {
        let nodes = Nodes::default();
        assert_eq!(list(&nodes, &["a", "b"]), ["a", "b"]);
        assert!(*nodes.listed.borrow());
        nodes.apply(Event::Init);
        assert_eq!(nodes.all().len(), 2, "a list that is not complete yet hides nothing");
        assert_eq!(list(&nodes, &["b", "c"]), ["a", "c"]);
        assert_eq!(nodes.all().iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["b", "c"]);
    }
}
