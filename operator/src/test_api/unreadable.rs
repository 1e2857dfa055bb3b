//! Operator and definition of different versions. A group that an older operator cannot read, because a newer one knows more
//! values of a field: what keeps it safe is done all the same. And one whose status an older definition cannot hold.

#![cfg(test)]

use serde_json::{Value, json};

use super::shop::{ORDERS, PODS, Shop};

const SECRETS: &str = "/api/v1/namespaces/shop/secrets";

/// It was made by this operator, and waits for its app before it goes.
async fn open() -> Shop {
    let shop = Shop::open(json!({"backups": 1, "deletion": "AfterApp"})).await;
    shop.reconcile().await;
    shop.cluster.change(ORDERS, &json!({"spec": {"durability": "Eternal"}}));
    shop
}

#[tokio::test]
async fn its_certificates_are_renewed_and_it_says_why_it_is_left_alone() {
    let shop = open().await;
    let secret = format!("{SECRETS}/orders-tailwind-sidecar");
    let (status, pods) = (shop.cluster.get(ORDERS).unwrap()["status"].clone(), shop.backups());
    // One that cannot be used is issued again, like one that is about to end.
    shop.cluster.change(&secret, &json!({"data": {"tls.crt": ""}}));
    shop.reconcile_any().await;
    assert_ne!(shop.cluster.get(&secret).unwrap()["data"]["tls.crt"], "");
    let group = shop.cluster.get(ORDERS).unwrap();
    assert_eq!(group["status"]["phase"], "Invalid");
    let reason = group["status"]["phaseReason"].as_str().unwrap();
    assert!(reason.contains("Eternal"), "{reason}");
    assert_eq!((&group["status"]["backups"], shop.backups()), (&status["backups"], pods));
}

#[tokio::test]
async fn it_goes_once_its_app_has_gone() {
    let shop = open().await;
    shop.start_app("app-0", 100);
    shop.cluster.delete(ORDERS);
    shop.reconcile_any().await;
    assert!(shop.cluster.has(ORDERS), "its app still writes to it");
    shop.cluster.delete(&format!("{PODS}/app-0"));
    shop.cluster.stop_deleted_pods();
    shop.reconcile_any().await;
    assert!(!shop.cluster.has(ORDERS));
}

#[tokio::test]
async fn a_status_is_written_without_what_the_definition_lacks() {
    let shop = Shop::open(json!({"backups": 1})).await;
    shop.cluster.undeclare(&["transport", "node"]);
    shop.reconcile().await;
    let backup = shop.backups().remove(0);
    shop.start(&backup, "n0").await;
    shop.reconcile().await;
    let status = shop.cluster.get(ORDERS).unwrap()["status"].clone();
    assert_eq!((&status["membersWanted"], &status["transport"]), (&json!(1), &Value::Null));
    let backup = &status["backups"][0];
    assert!(backup["control"].is_string() && backup["node"].is_null(), "{backup}");
}
