//! The order in which a kubelet starts and ends the containers of a pod, and that an injected sidecar is there for as long as
//! containers need it. <https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/>

#![cfg(test)]

use serde_json::{Value, json};
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::SIDECAR_CONTAINER;

use crate::options::Settings;
use crate::server_version::ServerVersion;
use crate::webhook::inject::{SidecarKind, inject};

/// What happens to containers, in order. Those of one step do it at the same time, in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    Start(Vec<String>),
    /// By itself: an init container that has done its work, or the app of a pod that is not to be restarted.
    Complete(Vec<String>),
    /// By a signal, since the pod has completed or was deleted.
    Stop(Vec<String>),
}

fn names(containers: &Value) -> Vec<String> {
    let name = |container: &Value| container["name"].as_str().unwrap().to_owned();
    containers.as_array().into_iter().flatten().map(name).collect()
}

/// From its creation to its end: by deletion, or, with `restartPolicy` other than `Always`, because its app is done.
fn life(pod: &Value) -> Vec<Step> {
    let spec = &pod["spec"];
    let (mut steps, mut sidecars) = (Vec::new(), Vec::new());
    for container in spec["initContainers"].as_array().into_iter().flatten() {
        let name = names(&json!([container]));
        steps.push(Step::Start(name.clone()));
        if container["restartPolicy"] == "Always" {
            // The next one starts once the startup probe of this one has passed.
            sidecars.extend(name);
        } else {
            steps.push(Step::Complete(name));
        }
    }
    let app = names(&spec["containers"]);
    steps.push(Step::Start(app.clone()));
    let completes = spec["restartPolicy"].as_str().is_some_and(|policy| policy != "Always");
    steps.push(if completes { Step::Complete(app) } else { Step::Stop(app) });
    // One after the other, in the reverse order of their starts.
    steps.extend(sidecars.into_iter().rev().map(|sidecar| Step::Stop(vec![sidecar])));
    steps
}

fn position(life: &[Step], step: fn(&Step) -> Option<&Vec<String>>, name: &str) -> Option<usize> {
    life.iter().position(|at| step(at).is_some_and(|names| names.iter().any(|other| other == name)))
}

fn started(step: &Step) -> Option<&Vec<String>> {
    if let Step::Start(names) = step { Some(names) } else { None }
}

fn ended(step: &Step) -> Option<&Vec<String>> {
    if let Step::Complete(names) | Step::Stop(names) = step { Some(names) } else { None }
}

/// A pod with an init container and an exporter, with its sidecar for a server of this version.
fn injected(server: &str, restart_policy: &str) -> Value {
    let group: ReplicaGroup = serde_json::from_value(json!({
        "apiVersion": "replication.tailwind.dev/v1alpha1",
        "kind": "ReplicaGroup",
        "metadata": {"name": "orders", "namespace": "shop"},
        "spec": {},
    }))
    .unwrap();
    let pod = json!({
        "metadata": {"name": "app-0"},
        "spec": {
            "restartPolicy": restart_policy,
            "initContainers": [{"name": "prepare"}],
            "containers": [{"name": "app"}, {"name": "exporter"}],
        },
    });
    let server: ServerVersion = server.parse().unwrap();
    inject(&pod, &group, SidecarKind::App, &Settings::default(), server).unwrap()
}

/// The containers that are given the socket.
fn users(pod: &Value) -> Vec<String> {
    let lists = ["initContainers", "containers"].into_iter().flat_map(|list| pod["spec"][list].as_array());
    let mounts = |container: &&Value| container["volumeMounts"].to_string().contains("tailwind-socket");
    let users = lists.flatten().filter(mounts).cloned().collect::<Vec<_>>();
    names(&json!(users)).into_iter().filter(|name| name != SIDECAR_CONTAINER).collect()
}

#[test]
fn a_native_sidecar_is_there_before_and_after_all_that_use_it() {
    for restart_policy in ["Always", "Never"] {
        let pod = injected("1.29", restart_policy);
        let life = life(&pod);
        assert_eq!(users(&pod), ["prepare", "app", "exporter"]);
        let (begin, end) = (position(&life, started, SIDECAR_CONTAINER), position(&life, ended, SIDECAR_CONTAINER));
        for user in users(&pod) {
            assert!(begin < position(&life, started, &user), "{user} starts first: {life:?}");
            assert!(position(&life, ended, &user) < end, "{user} ends last: {life:?}");
        }
    }
    // Started means that it serves: the next container would find no socket otherwise.
    let pod = injected("1.29", "Always");
    assert!(!pod["spec"]["initContainers"][0]["startupProbe"].is_null(), "{pod}");
}

#[test]
fn a_pod_that_is_done_does_not_wait_for_a_native_sidecar() {
    let life = life(&injected("1.29", "Never"));
    let app = position(&life, ended, "app").unwrap();
    assert!(matches!(&life[app], Step::Complete(_)), "{life:?}");
    assert_eq!(life[app + 1..], [Step::Stop(vec![SIDECAR_CONTAINER.to_owned()])]);
}

/// Without native sidecars it starts and ends with the app: containers that use it wait for its socket, and init containers get
/// none.
#[test]
fn before_native_sidecars_no_init_container_is_given_the_socket() {
    let pod = injected("1.28", "Always");
    assert_eq!(users(&pod), ["app", "exporter"]);
    let life = life(&pod);
    let all = ["app", "exporter", SIDECAR_CONTAINER].map(str::to_owned).to_vec();
    assert_eq!(life[life.len() - 2..], [Step::Start(all.clone()), Step::Stop(all)]);
}
