//! Which nodes could take another backup, and why the others cannot: what the scheduler will find, guessed beforehand. It knows
//! more than this survey does, such as zones of volumes and other pods' affinity: once it has refused a pod, its word counts.
//!
//! Called by [`backups`](super::backups), which moves a backup only where there is a node for it, and by
//! [`conditions`](super::conditions) for `Placeable`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration};
use strum::EnumIter;

use crate::capacity::{Amounts, host_ports, requests};
use crate::observed::NodeFacts;
use crate::quantity::milli;
use crate::tolerations::tolerates;

/// Nodes named in a message; the others are counted.
const NAMED_MAX: usize = 12;

/// What was found out about every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Nodes that can take a backup now.
    pub(crate) free: Vec<String>,
    /// The others, and why they cannot.
    pub(crate) unfit: Vec<(String, Unfit)>,
    /// What the scheduler says of a pod that it has found no node for.
    pub(crate) refusal: Option<Refusal>,
}

/// What the scheduler says of a pod that it has no node for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) pod: String,
    pub(crate) words: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { pod, words } = self;
        write!(f, "The scheduler has no node for {pod}: {words}")
    }
}

/// Why a node cannot take a backup.
#[derive(Clone, Debug, PartialEq, Eq, EnumIter)]
pub(crate) enum Unfit {
    HasBackup,
    Refused,
    NotReady,
    Cordoned,
    Tainted(String),
    Unlabelled(String, String),
    Affinity,
    PortInUse(u16),
    NoDevice(String),
    DevicesInUse(String, i128),
    TooFewDevices { device: String, free: i128, all: i128, needed: i128 },
    TooLittle { resource: String, free: String, needed: String },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::HasBackup => f.write_str("has a backup of this group already"),
            Unfit::Refused => f.write_str("is not taken by the scheduler"),
            Unfit::NotReady => f.write_str("is not ready"),
            Unfit::Cordoned => f.write_str("is cordoned"),
            Unfit::Tainted(taint) => write!(f, "has taint {taint}, which is not tolerated"),
            Unfit::Unlabelled(key, value) => write!(f, "has no label {key}={value}"),
            Unfit::Affinity => f.write_str("does not fit the required node affinity"),
            Unfit::PortInUse(port) => write!(f, "has its port {port} in use, which rdma.hostNetwork needs"),
            Unfit::NoDevice(device) => write!(f, "has no {device}"),
            Unfit::DevicesInUse(device, all) => write!(f, "has all {all} {device} in use"),
            Unfit::TooFewDevices { device, free, all, needed } => {
                write!(f, "has {free} of {all} {device} free, {needed} are needed")
            }
            Unfit::TooLittle { resource, free, needed } => {
                write!(f, "has {free} of {resource} free, {needed} is needed")
            }
        }
    }
}

/// Looks at every node for a pod like `pod`, where `occupied` have a backup of the group already.
pub(crate) fn survey(pod: &Pod, nodes: &[NodeFacts], occupied: &BTreeSet<&str>) -> Survey {
    let Some(spec) = &pod.spec else { return Survey::default() };
    let needs = requests(spec);
    let mut survey = Survey::default();
    for node in nodes {
        match unfit(spec, &needs, node, occupied) {
            None => survey.free.push(node.name.clone()),
            Some(unfit) => survey.unfit.push((node.name.clone(), unfit)),
        }
    }
    survey
}

impl Survey {
    /// The scheduler has refused a pod like the one that was looked for, and not only for a moment: no node is free.
    pub(crate) fn overrule(&mut self) {
        self.unfit.extend(self.free.drain(..).map(|node| (node, Unfit::Refused)));
    }

    /// Whether a device is what some node lacks.
    pub(crate) fn lacks_device(&self) -> bool {
        let is_device =
            |unfit: &Unfit| matches!(unfit, Unfit::NoDevice(_) | Unfit::DevicesInUse(..) | Unfit::TooFewDevices { .. });
        self.unfit.iter().any(|(_, unfit)| is_device(unfit))
    }
}

/// One clause for each node, so that an administrator sees what to change.
impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(refusal) = &self.refusal {
            write!(f, "{refusal}")?;
            // What this survey takes for free is not.
            if !self.free.is_empty() {
                return Ok(());
            }
            f.write_str(". ")?;
        }
        let all = self.unfit.len() + self.free.len();
        if all == 0 {
            return f.write_str("the cluster has no nodes");
        }
        write!(f, "{} of {all} nodes can take another backup", self.free.len())?;
        for (index, (node, unfit)) in self.unfit.iter().take(NAMED_MAX).enumerate() {
            write!(f, "{} {node} {unfit}", if index == 0 { ":" } else { ";" })?;
        }
        match self.unfit.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// Whether the node has a taint that says that it is about to go, and which the pods do not tolerate. Any other taint keeps new
/// pods off and says nothing of those that run: an agent that is not ready taints a whole fleet at once.
pub(crate) fn is_about_to_go(node: &NodeFacts, tolerations: &[Toleration], drain_taints: &[String]) -> bool {
    node.taints.iter().any(|taint| {
        taint.effect != "PreferNoSchedule"
            && drain_taints.contains(&taint.key)
            && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    })
}

fn unfit(spec: &PodSpec, needs: &Amounts, node: &NodeFacts, occupied: &BTreeSet<&str>) -> Option<Unfit> {
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    if occupied.contains(node.name.as_str()) {
        return Some(Unfit::HasBackup);
    }
    if node.not_ready_since.is_some() {
        return Some(Unfit::NotReady);
    }
    if node.unschedulable {
        return Some(Unfit::Cordoned);
    }
    let taint = node.taints.iter().find(|taint| {
        taint.effect != "PreferNoSchedule" && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    });
    if let Some(taint) = taint {
        let value = taint.value.as_ref().map_or_else(String::new, |value| format!("={value}"));
        return Some(Unfit::Tainted(format!("{}{value}:{}", taint.key, taint.effect)));
    }
    let unlike = spec.node_selector.iter().flatten().find(|(label, value)| node.labels.get(*label) != Some(value));
    if let Some((label, value)) = unlike {
        return Some(Unfit::Unlabelled(label.clone(), value.clone()));
    }
    if !matches_affinity(spec, node) {
        return Some(Unfit::Affinity);
    }
    if let Some(port) = host_ports(spec).find(|port| node.host_ports.contains(port)) {
        return Some(Unfit::PortInUse(port));
    }
    lacking(needs, node)
}

/// The first thing that the node has too little of; devices first, since they are what people look for.
fn lacking(needs: &Amounts, node: &NodeFacts) -> Option<Unfit> {
    let mut needs: BTreeMap<&str, i128> = needs.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
    needs.insert("pods", 1000);
    let is_device = |resource: &str| resource.contains('/');
    let (devices, others): (Vec<_>, Vec<_>) = needs.into_iter().partition(|(resource, _)| is_device(resource));
    for (name, wanted) in devices.into_iter().chain(others) {
        let has = node.allocatable.get(name).map_or(0, milli);
        let free = has - node.requested.get(name).copied().unwrap_or(0);
        if wanted <= free {
            continue;
        }
        let (resource, all) = (name.to_owned(), has / 1000);
        let amount = |amount: i128| readable(name, amount.max(0));
        return Some(match all {
            _ if !is_device(name) => Unfit::TooLittle { resource, free: amount(free), needed: amount(wanted) },
            0 => Unfit::NoDevice(resource),
            all if free <= 0 => Unfit::DevicesInUse(resource, all),
            all => Unfit::TooFewDevices { device: resource, free: free / 1000, all, needed: wanted / 1000 },
        });
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
    let label = |requirement: &NodeSelectorRequirement| {
        matches(requirement, node.labels.get(&requirement.key).map(String::as_str))
    };
    let field = |requirement: &NodeSelectorRequirement| {
        matches(requirement, (requirement.key == "metadata.name").then_some(node.name.as_str()))
    };
    !(expressions.is_empty() && fields.is_empty()) && expressions.iter().all(label) && fields.iter().all(field)
}

fn matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let listed = || value.is_some_and(|value| requirement.values.iter().flatten().any(|wanted| wanted == value));
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let bound = || number(requirement.values.iter().flatten().next().map(String::as_str));
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value).zip(bound()).is_some_and(|(value, bound)| value > bound),
        "Lt" => number(value).zip(bound()).is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Taint;

    use super::*;

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() }
    }

    #[test]
    fn only_drain_taints_empty_a_node() {
        let drain_taints = crate::options::Settings::default().drain_taints;
        let goes = |key: &str, effect: &str| {
            let node = NodeFacts { taints: vec![taint(key, effect)], unschedulable: true, ..NodeFacts::default() };
            is_about_to_go(&node, &[], &drain_taints)
        };
        assert!(goes("ToBeDeletedByClusterAutoscaler", "NoSchedule"));
        assert!(goes("node.kubernetes.io/out-of-service", "NoExecute"));
        assert!(!goes("ToBeDeletedByClusterAutoscaler", "PreferNoSchedule"));
        for key in
            ["node.kubernetes.io/unschedulable", "node.kubernetes.io/memory-pressure", "agent.example.com/not-ready"]
        {
            assert!(!goes(key, "NoSchedule"), "{key}");
        }
    }

    #[test]
    fn affinity_matches_as_in_the_scheduler() {
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
