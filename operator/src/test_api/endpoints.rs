//! The primary's EndpointSlice has two writers: sidecars write addresses, the operator ports, and it takes out the address of a
//! pod that is gone. <https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>

#![cfg(test)]

use serde_json::{Value, json};

use super::shop::{ORDERS, PODS, Shop};
use crate::observed::Observed;
use crate::plan::{Action, plan};

const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/orders-primary";

/// The sidecar in this pod is primary.
fn write_address(shop: &Shop, pod: &str) -> Value {
    let address = shop.pod(pod).unwrap()["status"]["podIP"].clone();
    let endpoints = json!([{"addresses": [address], "targetRef": {"kind": "Pod", "name": pod}}]);
    shop.cluster.change(SLICE, &json!({"endpoints": endpoints}));
    endpoints
}

fn clears(observed: &Observed) -> bool {
    plan(observed).actions.iter().any(|action| matches!(action, Action::ClearEndpoints(_)))
}

/// The slice leads to `app-0`, which is gone; `app-1` stands by. What the operator has seen of that.
async fn stale() -> (Shop, Observed) {
    let shop = Shop::open(json!({})).await;
    shop.start_app("app-0", 100);
    shop.start_app("app-1", 101);
    shop.reconcile().await;
    write_address(&shop, "app-0");
    assert!(!clears(&shop.look().await));
    shop.cluster.delete(&format!("{PODS}/app-0"));
    shop.cluster.stop_deleted_pods();
    let observed = shop.look().await;
    assert!(clears(&observed));
    (shop, observed)
}

fn endpoints(shop: &Shop) -> Value {
    shop.cluster.get(SLICE).unwrap()["endpoints"].clone()
}

#[tokio::test]
async fn the_address_of_a_pod_that_is_gone_is_taken_out() {
    let (shop, observed) = stale().await;
    shop.act(&observed).await.unwrap();
    assert_eq!(endpoints(&shop), json!([]));
    assert!(!clears(&shop.look().await));
}

#[tokio::test]
async fn an_address_that_was_written_meanwhile_stays() {
    let (shop, observed) = stale().await;
    let written = write_address(&shop, "app-1");
    shop.act(&observed).await.unwrap();
    assert_eq!(endpoints(&shop), written);
    assert!(!clears(&shop.look().await));
}

#[tokio::test]
async fn the_operators_ports_leave_addresses_as_they_are() {
    let (shop, _) = stale().await;
    let written = write_address(&shop, "app-1");
    shop.cluster.change(ORDERS, &json!({"spec": {"primaryPorts": [{"port": 6379}]}}));
    shop.reconcile().await;
    let slice = shop.cluster.get(SLICE).unwrap();
    assert_eq!((&slice["endpoints"], &slice["ports"][0]["port"]), (&written, &json!(6379)));
}
