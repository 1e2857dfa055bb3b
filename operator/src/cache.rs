//! What watches have brought: groups with their pods and objects, every node, and what every pod of the cluster has asked for.
//!
//! Kept by `controller::watches`, read by [`observe`](crate::observe). See "What is read when" in
//! docs/decisions/0035-look-twice.md.

mod nodes;
mod pods;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::{LABEL_BACKUP_OF, LABEL_GROUP, LABEL_READS};

pub(crate) use self::nodes::Nodes;
pub(crate) use self::pods::Pods;
use crate::objects::{Kind, Owned};
use crate::observed::NodeFacts;
use crate::server_version::ServerVersion;

/// A group as the API server has it. One that cannot be read stops none of the others.
pub(crate) type Group = DeserializeGuard<ReplicaGroup>;
/// Where it is.
pub(crate) type GroupRef = ObjectRef<Group>;

/// A reference to a group.
pub(crate) fn group_ref(namespace: &str, name: &str) -> GroupRef {
    GroupRef::new(name).within(namespace)
}

#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) groups: Store<Group>,
    pub(crate) nodes: Nodes,
    pub(crate) pods: Pods,
    objects: [(Kind, ApiResource, Store<DynamicObject>); Kind::ALL.len()],
}

/// What fills the parts of a [`Cache`] that are stores of `kube`.
pub(crate) struct Writers {
    pub(crate) groups: Writer<Group>,
    pub(crate) objects: Vec<(ApiResource, Writer<DynamicObject>)>,
}

impl Cache {
    /// An empty one.
    pub(crate) fn new(server: ServerVersion) -> (Cache, Writers) {
        let mut writers = Writers { groups: Writer::default(), objects: Vec::new() };
        let objects = Kind::ALL.map(|kind| {
            let resource = kind.resource(server);
            let writer = Writer::new(resource.clone());
            let store = writer.as_reader();
            writers.objects.push((resource.clone(), writer));
            (kind, resource, store)
        });
        let groups = writers.groups.as_reader();
        (Cache { groups, nodes: Nodes::default(), pods: Pods::default(), objects }, writers)
    }

    /// Returns when everything has been listed once.
    pub(crate) async fn wait_until_listed(&self) {
        // A writer that is gone has ended with the watches, and then the process ends as well.
        let _ = self.groups.wait_until_ready().await;
        for (_, _, store) in &self.objects {
            let _ = store.wait_until_ready().await;
        }
        self.nodes.wait_until_listed().await;
        self.pods.wait_until_listed().await;
    }

    /// The pods of a group: backups, the app's, and those that read.
    pub(crate) fn pods_of(&self, namespace: &str, name: &str) -> [Vec<Pod>; 3] {
        [LABEL_BACKUP_OF, LABEL_GROUP, LABEL_READS].map(|label| self.pods.labelled(namespace, label, name))
    }

    /// The objects of the operator that have names of this group's.
    pub(crate) fn objects_of(&self, namespace: &str, name: &str) -> Vec<Owned> {
        let claims = self.claims_of(namespace, name);
        let found = self.objects.iter().flat_map(|(kind, resource, store)| {
            kind.names(name).into_iter().filter_map(move |name| {
                let object = ObjectRef::new_with(&name, resource.clone()).within(namespace);
                Some(Owned { kind: *kind, object: store.get(&object)?.as_ref().clone() })
            })
        });
        found.chain(claims).collect()
    }

    /// The claims of a group's members.
    pub(crate) fn claims_of(&self, namespace: &str, name: &str) -> Vec<Owned> {
        let stores = self.objects.iter().filter(|(kind, ..)| *kind == Kind::Claim);
        let claims = stores.flat_map(|(_, _, store)| store.state());
        let is_of_group = |claim: &DynamicObject| {
            claim.metadata.namespace.as_deref() == Some(namespace)
                && claim.labels().get(LABEL_BACKUP_OF).is_some_and(|of| of == name)
        };
        let claims = claims.filter(|claim| is_of_group(claim));
        claims.map(|claim| Owned { kind: Kind::Claim, object: claim.as_ref().clone() }).collect()
    }

    /// Every node, with what is used on it.
    pub(crate) fn node_facts(&self) -> Vec<NodeFacts> {
        let mut nodes = self.nodes.all();
        self.pods.fill_in_usage(&mut nodes);
        nodes
    }
}
