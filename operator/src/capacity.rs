//! What nodes have and what pods on them have asked for: the arithmetic that the scheduler does, for a message before it.
//!
//! Called by [`cache`](crate::cache) with what watches bring.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Node, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::observed::NodeFacts;
use crate::quantity::milli;

/// Amounts by resource, in thousandths.
pub(crate) type Amounts = BTreeMap<String, i128>;

/// What a pod has asked for on its node.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) amounts: Amounts,
    pub(crate) host_ports: Vec<u16>,
}

/// The node of a pod, and what the pod has asked for there. Nothing where it has no node yet, or has given everything back.
pub(crate) fn usage(pod: &Pod) -> Option<(&str, Usage)> {
    let spec = pod.spec.as_ref()?;
    let node = spec.node_name.as_deref()?;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let mut amounts = requests(spec);
    amounts.insert("pods".to_owned(), 1000);
    Some((node, Usage { amounts, host_ports: host_ports(spec).collect() }))
}

/// The TCP ports of its node that a pod takes, on any address: backups listen on all. To the scheduler, init containers other
/// than sidecars take none.
pub(crate) fn host_ports(spec: &PodSpec) -> impl Iterator<Item = u16> {
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(is_sidecar));
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let tcp = ports.filter(|port| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"));
    tcp.filter_map(|port| u16::try_from(port.host_port?).ok())
}

/// What matters of a node. What is used on it is added later.
pub(crate) fn node_facts(node: &Node) -> NodeFacts {
    let name = node.metadata.name.clone().unwrap_or_default();
    let spec = node.spec.clone().unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let ready = status.conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    let not_ready_since = ready
        .filter(|ready| ready.status != "True")
        .map(|ready| ready.last_transition_time.map_or(jiff::Timestamp::UNIX_EPOCH, |time| time.0));
    NodeFacts {
        requested: Amounts::new(),
        host_ports: BTreeSet::new(),
        name,
        labels: node.metadata.labels.clone().unwrap_or_default(),
        taints: spec.taints.unwrap_or_default(),
        unschedulable: spec.unschedulable.unwrap_or(false),
        marked_since: None,
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

    #[test]
    fn host_ports_are_those_that_the_scheduler_compares() {
        let spec: PodSpec = serde_yaml::from_str(
            "{initContainers: [{name: s, restartPolicy: Always, ports: [{containerPort: 1, hostPort: 1}]}, \
             {name: i, ports: [{containerPort: 2, hostPort: 2}]}], \
             containers: [{name: a, ports: [{containerPort: 3, hostPort: 30, protocol: TCP}, {containerPort: 4}, \
             {containerPort: 5, hostPort: 5, protocol: UDP}]}]}",
        )
        .expect("a pod's spec");
        assert_eq!(host_ports(&spec).collect::<Vec<_>>(), [30, 1]);
    }
}
