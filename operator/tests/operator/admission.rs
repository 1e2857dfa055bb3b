//! What admission makes of what is written, in the worlds of [`safety`](crate::safety): webhooks and policies of a cluster that
//! change pods, claims and budgets on their way into the API server.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Toleration};
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::{Value, json};
use tailwind_crds::names::{ANNOTATION_TEMPLATE, LABEL_BACKUP_OF};
use tailwind_operator::objects::{Kind, Owned};
use tailwind_operator::observed::NodeFacts;

/// The label of nodes that pods are kept to.
const POOL: &str = "pool";

/// What is changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Admission {
    /// Pods tolerate every taint, that of cordoned nodes as well.
    pub(crate) tolerates: bool,
    /// Pods are kept to those nodes of which the bit is set.
    pub(crate) keeps_to: Option<u8>,
    /// Pods get labels, annotations, smaller limits and another container, and other objects get labels and annotations.
    pub(crate) adds: bool,
    /// Pods and claims lose something that the operator knows them by.
    pub(crate) strips: Option<Strips>,
    pub(crate) budget: Option<Budget>,
}

/// What pods and claims lose.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Strips {
    Label,
    Owner,
    TemplateHash,
    Gate,
}

/// What becomes of budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    /// Where no policy for pods that are not ready is given, they may be evicted.
    UnreadyByDefault,
    /// They may be evicted in any case.
    Unready,
    /// One pod alone has to stay.
    Loose,
}

pub(crate) fn admission() -> impl Strategy<Value = Admission> {
    let strips = prop_oneof![Just(Strips::Label), Just(Strips::Owner), Just(Strips::TemplateHash), Just(Strips::Gate)];
    let budget = prop_oneof![Just(Budget::UnreadyByDefault), Just(Budget::Unready), Just(Budget::Loose)];
    (
        prop::bool::weighted(0.1),
        prop::option::weighted(0.1, any::<u8>()),
        prop::bool::weighted(0.2),
        prop::option::weighted(0.03, strips),
        prop::option::weighted(0.15, budget),
    )
        .prop_map(|(tolerates, keeps_to, adds, strips, budget)| Admission {
            tolerates,
            keeps_to,
            adds,
            strips,
            budget,
        })
}

impl Admission {
    /// Whether only an administrator can help.
    pub(crate) fn is_in_the_way(&self) -> bool {
        self.strips.is_some() || self.budget == Some(Budget::Loose)
    }

    /// Whether budgets are not what the operator writes.
    pub(crate) fn changes_budget(&self) -> bool {
        matches!(self.budget, Some(Budget::Unready | Budget::Loose))
    }

    /// The labels of the node of this number.
    pub(crate) fn node_labels(&self, number: usize) -> BTreeMap<String, String> {
        let is_in_pool = self.keeps_to.is_some_and(|nodes| nodes & 1 << (number % 8) != 0);
        is_in_pool.then(|| (POOL.to_owned(), "backups".to_owned())).into_iter().collect()
    }

    /// A pod, as it is stored.
    pub(crate) fn pod(&self, pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        let spec = pod.spec.as_mut().unwrap();
        if self.tolerates {
            let all = Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() };
            spec.tolerations.get_or_insert_default().push(all);
        }
        if self.keeps_to.is_some() {
            spec.node_selector.get_or_insert_default().insert(POOL.to_owned(), "backups".to_owned());
        }
        if self.adds {
            let proxy = json!({"name": "proxy", "image": "proxy", "resources": {"requests": {"cpu": "100m"}}});
            spec.containers.push(serde_json::from_value(proxy).unwrap());
            let limits = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
            spec.containers[0].resources = Some(serde_json::from_value(limits).unwrap());
            pod.labels_mut().insert("mesh".to_owned(), "yes".to_owned());
            pod.annotations_mut().insert("mesh".to_owned(), "yes".to_owned());
        }
        match self.strips {
            Some(Strips::Label) => _ = pod.labels_mut().remove(LABEL_BACKUP_OF),
            Some(Strips::Owner) => pod.metadata.owner_references = None,
            Some(Strips::TemplateHash) => _ = pod.annotations_mut().remove(ANNOTATION_TEMPLATE),
            Some(Strips::Gate) => pod.spec.as_mut().unwrap().readiness_gates = None,
            None => {}
        }
        pod
    }

    /// Any other object, as it is stored.
    pub(crate) fn object(&self, Owned { kind, object }: &Owned) -> Owned {
        let mut object = object.clone();
        if self.adds {
            object.labels_mut().insert("team".to_owned(), "shop".to_owned());
            object.annotations_mut().insert("mesh".to_owned(), "yes".to_owned());
        }
        match (kind, self.strips) {
            (Kind::Claim, Some(Strips::Label)) => _ = object.labels_mut().remove(LABEL_BACKUP_OF),
            (Kind::Claim, Some(Strips::Owner)) => object.metadata.owner_references = None,
            (Kind::Claim, Some(Strips::TemplateHash)) => _ = object.annotations_mut().remove(ANNOTATION_TEMPLATE),
            _ => {}
        }
        if *kind == Kind::DisruptionBudget {
            let spec = &mut object.data["spec"];
            let policy = &mut spec["unhealthyPodEvictionPolicy"];
            match self.budget {
                Some(Budget::UnreadyByDefault) if policy.is_null() => *policy = json!("AlwaysAllow"),
                Some(Budget::Unready) => *policy = json!("AlwaysAllow"),
                Some(Budget::Loose) => spec["minAvailable"] = json!(1),
                _ => {}
            }
            spec.as_object_mut().unwrap().retain(|_, value: &mut Value| !value.is_null());
        }
        Owned { kind: *kind, object }
    }
}

/// Whether the scheduler puts this pod on this node, cordoned or not.
pub(crate) fn fits(pod: &Pod, node: &NodeFacts) -> bool {
    let spec = pod.spec.as_ref().unwrap();
    let tolerates =
        |toleration: &Toleration| toleration.key.is_none() && toleration.operator.as_deref() == Some("Exists");
    let is_open = !node.unschedulable || spec.tolerations.iter().flatten().any(tolerates);
    let selected = spec.node_selector.iter().flatten().all(|(label, value)| node.labels.get(label) == Some(value));
    is_open && selected && node.not_ready_since.is_none()
}
