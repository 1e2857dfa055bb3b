//! What nodes have and what pods on them have asked for: the arithmetic that the scheduler does, for a message before it.
//!
//! Called by [`observe`](crate::observe) with what watches have brought.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Node, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::observed::NodeFacts;
use crate::quantity::milli;

/// Amounts by resource, in thousandths.
pub(crate) type Amounts = BTreeMap<String, i128>;

/// The nodes with what all these pods have asked for on them.
pub(crate) fn nodes<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    pods: impl IntoIterator<Item = &'a Pod>,
) -> Vec<NodeFacts> {
    let mut requested: BTreeMap<&str, Amounts> = BTreeMap::new();
    for pod in pods {
        let Some(spec) = &pod.spec else { continue };
        let Some(node) = spec.node_name.as_deref() else { continue };
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        // Such pods have given everything back.
        if matches!(phase, Some("Succeeded" | "Failed")) {
            continue;
        }
        let sum = requested.entry(node).or_default();
        add(sum, &requests(spec));
        *sum.entry("pods".to_owned()).or_default() += 1000;
    }
    let mut facts: Vec<NodeFacts> = nodes.into_iter().map(|node| node_facts(node, &mut requested)).collect();
    facts.sort_by(|a, b| a.name.cmp(&b.name));
    facts
}

fn node_facts(node: &Node, requested: &mut BTreeMap<&str, Amounts>) -> NodeFacts {
    let name = node.metadata.name.clone().unwrap_or_default();
    let spec = node.spec.clone().unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let ready = status.conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    let not_ready_since = ready
        .filter(|ready| ready.status != "True")
        .map(|ready| ready.last_transition_time.map_or(jiff::Timestamp::UNIX_EPOCH, |time| time.0));
    NodeFacts {
        requested: requested.remove(name.as_str()).unwrap_or_default(),
        name,
        labels: node.metadata.labels.clone().unwrap_or_default(),
        taints: spec.taints.unwrap_or_default(),
        unschedulable: spec.unschedulable.unwrap_or(false),
        not_ready_since,
        allocatable: status.allocatable.unwrap_or_default(),
    }
}

/// What a pod needs to be admitted: all that runs at once, or the largest init container beside the sidecars before it.
pub(crate) fn requests(spec: &PodSpec) -> Amounts {
    let mut running = Amounts::new();
    let mut largest = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let mut needs = of_container(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut running, &needs);
            continue;
        }
        add(&mut needs, &running);
        raise(&mut largest, needs);
    }
    for container in &spec.containers {
        add(&mut running, &of_container(container));
    }
    raise(&mut running, largest);
    if let Some(overhead) = &spec.overhead {
        add(&mut running, &amounts(overhead));
    }
    running
}

/// Where only a limit is given, it is the request too.
fn of_container(container: &Container) -> Amounts {
    let resources = container.resources.clone().unwrap_or_default();
    let mut needs = resources.limits.map(|limits| amounts(&limits)).unwrap_or_default();
    needs.extend(resources.requests.map(|requests| amounts(&requests)).unwrap_or_default());
    needs
}

fn amounts(quantities: &BTreeMap<String, Quantity>) -> Amounts {
    quantities.iter().map(|(name, quantity)| (name.clone(), milli(quantity))).collect()
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *sum.entry(name.clone()).or_default() += amount;
    }
}

fn raise(to: &mut Amounts, least: Amounts) {
    for (name, amount) in least {
        let now = to.entry(name).or_default();
        *now = amount.max(*now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(spec: &str) -> Amounts {
        requests(&serde_yaml::from_str(spec).expect("a pod's spec"))
    }

    #[test]
    fn containers_add_up() {
        let amounts = asked(
            "containers: [{name: a, resources: {requests: {cpu: 500m}, limits: {cpu: 1, rdma/hca: 1}}}, \
             {name: b, resources: {limits: {rdma/hca: 2}}}]",
        );
        assert_eq!(amounts, Amounts::from([("cpu".to_owned(), 500), ("rdma/hca".to_owned(), 3000)]));
    }

    #[test]
    fn init_containers_count_at_their_peak_and_sidecars_always() {
        let amounts = asked(
            "{initContainers: [{name: s, restartPolicy: Always, resources: {requests: {cpu: 1}}}, \
             {name: i, resources: {requests: {cpu: 4}}}], containers: [{name: a, resources: {requests: {cpu: 2}}}]}",
        );
        assert_eq!(amounts["cpu"], 5000);
    }
}
