//! A deletion that is on its way for long: its operator may have ended since, and what it rests on may have changed. It has no effect
//! once anybody has looked at the group again. See docs/decisions/0063-announced-deletions.md.

#![cfg(test)]

use serde_json::{Value, json};
use tailwind_crds::names::CONDITION_LEAVING;

use super::cluster::{is_ending, list};
use super::shop::{ORDERS, PODS, Shop};
use crate::error::Class;
use crate::observed::Observed;
use crate::plan::{Action, plan};

/// Of three members one is to leave; and what was observed when that was decided.
async fn one_too_many() -> (Shop, Observed, String) {
    let shop = Shop::with_backups(json!({"backups": 3, "minInSync": 2})).await;
    shop.write_log(&shop.backups()).await;
    shop.cluster.change(ORDERS, &json!({"spec": {"backups": 2}}));
    let observed = shop.look().await;
    let leaver = leaver(&observed).unwrap();
    (shop, observed, leaver)
}

/// The pod that is to leave, if one is.
fn leaver(observed: &Observed) -> Option<String> {
    plan(observed).actions.into_iter().find_map(|action| match action {
        Action::Delete(removal) => Some(removal.name),
        _ => None,
    })
}

/// The operator has decided to delete it, and has got no answer.
async fn delayed() -> (Shop, String) {
    let (shop, observed, leaver) = one_too_many().await;
    shop.cluster.delay_deletion(&format!("{PODS}/{leaver}"));
    let error = shop.act(&observed).await.unwrap_err();
    assert_eq!(error.class(), Class::Unavailable, "{error}");
    (shop, leaver)
}

/// What the pod says of its own deletion.
fn mark(shop: &Shop, pod: &str) -> Value {
    let pod = shop.pod(pod).unwrap();
    let mark = list(&pod["status"]["conditions"]).find(|condition| condition["type"] == CONDITION_LEAVING);
    mark.map_or(Value::Null, |condition| condition["status"].clone())
}

#[tokio::test]
async fn a_late_deletion_succeeds_if_nothing_has_happened() {
    let (shop, leaver) = delayed().await;
    assert_eq!(mark(&shop, &leaver), "True");
    assert_eq!(shop.cluster.deliver_deletion().0, 200);
    assert!(is_ending(&shop.pod(&leaver).unwrap()));
}

/// Another operator, or the same one: it takes the pod for one that stays.
#[tokio::test]
async fn a_late_deletion_fails_when_somebody_has_looked_again() {
    let (shop, leaver) = delayed().await;
    shop.cluster.change(ORDERS, &json!({"spec": {"backups": 3}}));
    assert_eq!(self::leaver(&shop.look().await), None);
    assert_eq!(mark(&shop, &leaver), "False");
    assert_eq!(shop.cluster.deliver_deletion().0, 409);
    assert!(!is_ending(&shop.pod(&leaver).unwrap()));
    // What is decided after that look is another deletion.
    shop.cluster.change(ORDERS, &json!({"spec": {"backups": 2}}));
    shop.reconcile().await;
    assert!(is_ending(&shop.pod(&leaver).unwrap()));
}

/// Its kubelet has something new to say of it.
#[tokio::test]
async fn a_late_deletion_fails_when_its_pod_has_changed() {
    let (shop, leaver) = delayed().await;
    let unready = json!([{"type": "ContainersReady", "status": "False"}]);
    shop.cluster.change(&format!("{PODS}/{leaver}"), &json!({"status": {"conditions": unready}}));
    assert_eq!(shop.cluster.deliver_deletion().0, 409);
    assert!(!is_ending(&shop.pod(&leaver).unwrap()));
}

/// Otherwise two removals could rest on each other.
#[tokio::test]
async fn a_pod_that_may_be_deleted_at_any_moment_proves_nothing() {
    let (shop, observed, leaver) = one_too_many().await;
    let holder = shop.backups().into_iter().find(|backup| *backup != leaver).unwrap();
    let marked = json!([{"type": CONDITION_LEAVING, "status": "True"}]);
    shop.cluster.change(&format!("{PODS}/{holder}"), &json!({"status": {"conditions": marked}}));
    let error = shop.act(&observed).await.unwrap_err().to_string();
    assert!(error.contains(&format!("{holder} leaves as well")), "{error}");
    assert!(!is_ending(&shop.pod(&leaver).unwrap()));
    // The next look calls both deletions off, and begins again.
    shop.reconcile().await;
    assert_eq!(mark(&shop, &holder), "False");
    assert!(is_ending(&shop.pod(&leaver).unwrap()));
}
