//! Which groups a change wakes.
//!
//! Used by `controller::watches`.

use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{Stream, StreamExt, stream};
use serde_json::json;
use tailwind_crds::ReplicaGroup;
use tokio::sync::Notify;

use crate::cache::{Cache, Group, GroupRef};
use crate::last_look::LastLooks;

/// What of a group wakes it when it changes: what people ask for, and what sidecars write. The rest of the status is the
/// operator's own, and what it has written itself is no reason to look again.
pub(crate) fn digest(group: &Group) -> u64 {
    match &group.0 {
        Ok(group) => digest_of(group),
        // Its digest differs from that of any object that can be read.
        Err(invalid) => hash((&invalid.metadata.uid, invalid.metadata.generation, &invalid.error)),
    }
}

/// The same of one that can be read.
pub(crate) fn digest_of(group: &ReplicaGroup) -> u64 {
    let metadata = &group.metadata;
    let status = group.status.as_ref();
    let written = json!([status.map(|status| &status.log), status.map(|status| &status.switchover)]).to_string();
    let asked = (metadata.generation, &metadata.annotations, &metadata.finalizers);
    hash((&metadata.uid, asked, metadata.deletion_timestamp.is_some(), written))
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The groups that a change of these nodes may concern: those with a pod on one, and those that have no node to spare.
pub(crate) fn concerned(cache: &Cache, last_looks: &LastLooks, nodes: &BTreeSet<String>) -> Vec<GroupRef> {
    let groups = cache.groups.state();
    let groups = groups.iter().map(|group| GroupRef::from_obj(group.as_ref()));
    let concerned = groups.filter(|group| {
        let are_scarce = last_looks.change_nodes(group, nodes.len());
        are_scarce || cache.pods.is_on(group, |node| nodes.contains(node))
    });
    concerned.collect()
}

/// Groups to look at. There are never more in here than there are.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    groups: Mutex<HashSet<GroupRef>>,
    added: Notify,
}

impl Wakes {
    pub(crate) fn add(&self, groups: impl IntoIterator<Item = GroupRef>) {
        let mut all = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(groups);
        if !all.is_empty() {
            self.added.notify_one();
        }
    }

    /// The groups that are to be looked at now.
    pub(crate) fn take(&self) -> HashSet<GroupRef> {
        std::mem::take(&mut self.groups.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Each group that is added, once if it is added again before it is taken.
    pub(crate) fn stream(self: Arc<Wakes>) -> impl Stream<Item = GroupRef> + Send + use<> {
        let batches = stream::unfold(self, |wakes| async {
            wakes.added.notified().await;
            Some((stream::iter(wakes.take()), wakes))
        });
        batches.flatten()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use k8s_openapi::api::core::v1::Pod;
    use kube::core::DeserializeGuard;
    use kube::runtime::watcher::Event;
    use serde_json::Value;
    use tailwind_crds::names::LABEL_GROUP;

    use super::*;
    use crate::cache::group_ref;
    use crate::server_version::ServerVersion;

    fn group(change: Value) -> Group {
        let mut object = json!({
            "apiVersion": "replication.tailwind.dev/v1alpha1", "kind": "ReplicaGroup",
            "metadata": {
                "namespace": "shop", "name": "orders", "uid": "1", "generation": 3, "resourceVersion": "7",
                "annotations": {"a": "b"}, "labels": {"c": "d"},
            },
            "spec": {"sidecarResources": {"limits": {"cpu": "500m"}}, "primaryPorts": [{"port": 6379}]},
            "status": {
                "phase": "Ready",
                "positions": {"first": 1, "acked": 5},
                "log": {
                    "id": "0", "epoch": 18_446_744_073_709_551_615_u64, "claim": "0", "version": 2,
                    "primary": {"name": "kv-0", "control": "h:1"}, "members": [],
                },
            },
        });
        json_patch::merge(&mut object, &change);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_group_is_read_as_the_watch_brings_it() {
        let DeserializeGuard(read) = group(json!({}));
        let group = read.unwrap();
        assert_eq!(group.status.unwrap().log.unwrap().epoch, u64::MAX);
        assert_eq!(group.spec.primary_ports[0].port, 6379);
    }

    #[test]
    fn the_operators_own_writes_wake_nobody() {
        let before = digest(&group(json!({})));
        for own in [
            json!({"status": {"positions": {"acked": 6}}}),
            json!({"status": {"phase": "Degraded", "phaseReason": "why", "membersWanted": 3}}),
            json!({"status": {"backups": [{"name": "b", "state": "Member"}]}}),
            json!({"metadata": {"resourceVersion": "8", "labels": {"c": "e"}}}),
        ] {
            assert_eq!(digest(&group(own.clone())), before, "{own}");
        }
    }

    #[test]
    fn a_failover_or_a_request_wakes_its_group() {
        let before = digest(&group(json!({})));
        for change in [
            json!({"status": {"log": {"epoch": 1}}}),
            json!({"status": {"log": {"version": 3}}}),
            json!({"status": {"log": {"primary": {"name": "kv-1"}}}}),
            json!({"status": {"log": null}}),
            json!({"status": {"switchover": {"to": "kv-1", "fromEpoch": 1}}}),
            json!({"metadata": {"generation": 4}}),
            json!({"metadata": {"annotations": {"a": "c"}}}),
            json!({"metadata": {"finalizers": ["f"]}}),
            json!({"metadata": {"deletionTimestamp": "2026-06-01T12:00:00Z"}}),
            json!({"metadata": {"uid": "2"}}),
            json!({"spec": {"backups": "three"}}),
        ] {
            assert_ne!(digest(&group(change.clone())), before, "{change}");
        }
    }

    #[test]
    fn a_node_wakes_only_groups_that_can_care() {
        let (cache, mut writers) = Cache::new(ServerVersion::TARGET);
        let last_looks = LastLooks::default();
        for name in ["there", "elsewhere", "scarce", "new"] {
            let group = group(json!({"metadata": {"name": name}}));
            writers.groups.apply_watcher_event(&Event::Apply(group));
        }
        for (name, spare) in [("there", 5), ("elsewhere", 2), ("scarce", 0)] {
            last_looks.keep_spare_nodes(&group_ref("shop", name), spare);
        }
        let pod = |group: &str, node: &str| -> Pod {
            let metadata = json!({"namespace": "shop", "name": group, "labels": {LABEL_GROUP: group}});
            serde_json::from_value(json!({"metadata": metadata, "spec": {"nodeName": node, "containers": []}})).unwrap()
        };
        cache.pods.apply(Event::Apply(pod("there", "n1")));
        cache.pods.apply(Event::Apply(pod("elsewhere", "n2")));
        let concerned = |node: &str| {
            let groups = concerned(&cache, &last_looks, &BTreeSet::from([node.to_owned()]));
            groups.into_iter().map(|group| group.name).collect::<BTreeSet<_>>()
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        // Nothing is known yet about the one that nobody has looked at.
        assert_eq!(concerned("n1"), names(&["there", "scarce", "new"]));
        // Each node that changes unseen may be one of those that were to spare.
        assert_eq!(concerned("n3"), names(&["elsewhere", "scarce", "new"]));
    }

    #[test]
    fn a_group_is_woken_once_by_many_changes() {
        let wakes = Arc::new(Wakes::default());
        wakes.add([group_ref("shop", "orders"), group_ref("shop", "users")]);
        wakes.add([group_ref("shop", "orders")]);
        wakes.add([]);
        let mut woken = std::pin::pin!(Arc::clone(&wakes).stream());
        let next = || woken.next().now_or_never().flatten().map(|group| group.name);
        let both: BTreeSet<Option<String>> = std::iter::repeat_with(next).take(3).collect();
        assert_eq!(both, [None, Some("orders".to_owned()), Some("users".to_owned())].into());
        wakes.add([group_ref("shop", "orders")]);
        let woken = woken.next().now_or_never().flatten();
        assert_eq!(woken, Some(group_ref("shop", "orders")));
    }
}
