//! Which nodes could take another backup, and why the others cannot: what the scheduler will find, told beforehand.
//!
//! Called by [`backups`](super::backups), which moves a backup only where there is a node for it, and by
//! [`conditions`](super::conditions) for `Placeable`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Taint, Toleration};

use crate::capacity::{Amounts, requests};
use crate::observed::NodeFacts;
use crate::quantity::milli;

/// Nodes named in a message; the others are counted.
const NAMED_MAX: usize = 12;

/// What was found out about every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Nodes that can take a backup now.
    pub free: Vec<String>,
    /// The others.
    pub refused: Vec<Refusal>,
}

/// Why a node cannot take a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The node.
    pub node: String,
    /// Why.
    pub why: String,
    /// It is the device that is lacking.
    pub lacks_device: bool,
}

/// Looks at every node for a pod like `pod`, where `occupied` have a backup of the group already.
pub fn survey(pod: &Pod, nodes: &[NodeFacts], occupied: &BTreeSet<&str>) -> Survey {
    let Some(spec) = &pod.spec else { return Survey::default() };
    let needs = requests(spec);
    let mut survey = Survey::default();
    for node in nodes {
        match refusal(spec, &needs, node, occupied) {
            None => survey.free.push(node.name.clone()),
            Some((why, lacks_device)) => survey.refused.push(Refusal { node: node.name.clone(), why, lacks_device }),
        }
    }
    survey
}

impl Survey {
    /// One clause for each node, so that a person sees what to change.
    pub fn explain(&self) -> String {
        let all = self.refused.len() + self.free.len();
        if all == 0 {
            return "the cluster has no nodes".to_owned();
        }
        let mut clauses: Vec<String> =
            self.refused.iter().take(NAMED_MAX).map(|refusal| format!("{} {}", refusal.node, refusal.why)).collect();
        if let more @ 1.. = self.refused.len().saturating_sub(NAMED_MAX) {
            clauses.push(format!("and {more} more"));
        }
        let head = format!("{} of {all} nodes can take another backup", self.free.len());
        if clauses.is_empty() { head } else { format!("{head}: {}", clauses.join("; ")) }
    }
}

/// Whether new pods keep off the node, although those on it run on: it is cordoned, or about to go.
pub fn is_being_drained(node: &NodeFacts, tolerations: &[Toleration]) -> bool {
    let untolerated = |taint: &&Taint| {
        taint.effect != "PreferNoSchedule"
            && !is_of_kubernetes(&taint.key)
            && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    };
    node.unschedulable || node.taints.iter().any(|taint| untolerated(&taint))
}

/// Taints that say how a node is, set by Kubernetes itself; they come and go.
fn is_of_kubernetes(key: &str) -> bool {
    key.starts_with("node.kubernetes.io/") && key != "node.kubernetes.io/out-of-service"
        || key.starts_with("node.cloudprovider.kubernetes.io/")
}

fn refusal(spec: &PodSpec, needs: &Amounts, node: &NodeFacts, occupied: &BTreeSet<&str>) -> Option<(String, bool)> {
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let because = |why: &str| Some((why.to_owned(), false));
    if occupied.contains(node.name.as_str()) {
        return because("has a backup of this group already");
    }
    if node.not_ready_since.is_some() {
        return because("is not ready");
    }
    if node.unschedulable {
        return because("is cordoned");
    }
    let taint = node.taints.iter().find(|taint| {
        taint.effect != "PreferNoSchedule" && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    });
    if let Some(taint) = taint {
        let value = taint.value.as_ref().map_or_else(String::new, |value| format!("={value}"));
        return Some((format!("has taint {}{value}:{}, which is not tolerated", taint.key, taint.effect), false));
    }
    let unlike = spec.node_selector.iter().flatten().find(|(label, value)| node.labels.get(*label) != Some(value));
    if let Some((label, value)) = unlike {
        return Some((format!("has no label {label}={value}"), false));
    }
    if !matches_affinity(spec, node) {
        return because("does not fit the required node affinity");
    }
    lacking(needs, node)
}

/// The first thing that the node has too little of; devices first, since they are what people look for.
fn lacking(needs: &Amounts, node: &NodeFacts) -> Option<(String, bool)> {
    let mut needs: BTreeMap<&str, i128> = needs.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
    needs.insert("pods", 1000);
    let is_device = |resource: &str| resource.contains('/');
    let (devices, others): (Vec<_>, Vec<_>) = needs.into_iter().partition(|(resource, _)| is_device(resource));
    for (resource, wanted) in devices.into_iter().chain(others) {
        let has = node.allocatable.get(resource).map_or(0, milli);
        let free = has - node.requested.get(resource).copied().unwrap_or(0);
        if wanted <= free {
            continue;
        }
        if is_device(resource) {
            let why = match has / 1000 {
                0 => format!("has no {resource}"),
                all if free <= 0 => format!("has all {all} {resource} in use"),
                all => format!("has {} of {all} {resource} free, {} are needed", free / 1000, wanted / 1000),
            };
            return Some((why, true));
        }
        let say = |amount: i128| readable(resource, amount.max(0));
        return Some((format!("has {} of {resource} free, {} is needed", say(free), say(wanted)), false));
    }
    None
}

fn readable(resource: &str, thousandths: i128) -> String {
    match resource {
        "cpu" => format!("{thousandths}m"),
        "pods" => (thousandths / 1000).to_string(),
        _ => format!("{}Mi", thousandths / (1000 << 20)),
    }
}

fn matches_affinity(spec: &PodSpec, node: &NodeFacts) -> bool {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| required.node_selector_terms.iter().any(|term| matches_term(term, node)))
}

/// All of a term's expressions; an empty term fits nothing.
fn matches_term(term: &NodeSelectorTerm, node: &NodeFacts) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label = |wish: &NodeSelectorRequirement| matches(wish, node.labels.get(&wish.key).map(String::as_str));
    let field =
        |wish: &NodeSelectorRequirement| matches(wish, (wish.key == "metadata.name").then_some(node.name.as_str()));
    !(expressions.is_empty() && fields.is_empty()) && expressions.iter().all(label) && fields.iter().all(field)
}

fn matches(wish: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let listed = || value.is_some_and(|value| wish.values.iter().flatten().any(|wanted| wanted == value));
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let bound = || number(wish.values.iter().flatten().next().map(String::as_str));
    match wish.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value).zip(bound()).is_some_and(|(value, bound)| value > bound),
        "Lt" => number(value).zip(bound()).is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && if key.is_empty() { exists } else { key == taint.key }
        && (exists || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() }
    }

    #[test]
    fn a_toleration_is_read_as_the_scheduler_reads_it() {
        let toleration = |text: &str| serde_yaml::from_str::<Toleration>(text).unwrap();
        let rdma = taint("rdma", "NoSchedule");
        for (text, tolerated) in [
            ("{operator: Exists}", true),
            ("{key: rdma, operator: Exists}", true),
            ("{key: rdma, operator: Exists, effect: NoExecute}", false),
            ("{key: rdma, value: yes-please}", false),
            ("{key: rdma}", true),
            ("{key: gpu, operator: Exists}", false),
            ("{}", false),
        ] {
            assert_eq!(tolerates(&toleration(text), &rdma), tolerated, "{text}");
        }
    }

    #[test]
    fn a_node_is_drained_when_people_say_so() {
        let node = |taints: &[Taint]| NodeFacts { taints: taints.to_vec(), ..NodeFacts::default() };
        assert!(is_being_drained(&NodeFacts { unschedulable: true, ..NodeFacts::default() }, &[]));
        assert!(is_being_drained(&node(&[taint("ToBeDeletedByClusterAutoscaler", "NoSchedule")]), &[]));
        assert!(!is_being_drained(&node(&[taint("node.kubernetes.io/memory-pressure", "NoSchedule")]), &[]));
        assert!(!is_being_drained(&node(&[taint("hint", "PreferNoSchedule")]), &[]));
    }

    #[test]
    fn affinity_is_read_as_the_scheduler_reads_it() {
        let node = NodeFacts {
            name: "n1".to_owned(),
            labels: BTreeMap::from([("cards".to_owned(), "4".to_owned())]),
            ..NodeFacts::default()
        };
        for (term, fits) in [
            ("{matchExpressions: [{key: cards, operator: Gt, values: ['3']}]}", true),
            ("{matchExpressions: [{key: cards, operator: Lt, values: ['3']}]}", false),
            ("{matchExpressions: [{key: cards, operator: In, values: ['4', '8']}]}", true),
            ("{matchExpressions: [{key: cards, operator: DoesNotExist}]}", false),
            ("{matchFields: [{key: metadata.name, operator: NotIn, values: [n1]}]}", false),
            ("{}", false),
        ] {
            assert_eq!(matches_term(&serde_yaml::from_str(term).unwrap(), &node), fits, "{term}");
        }
    }
}
