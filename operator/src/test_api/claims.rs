//! What becomes of members' claims in a cluster that keeps a claim while a pod uses it, and in which other clients may act
//! between a look and what follows from it.

#![cfg(test)]

use serde_json::{Value, json};
use tailwind_crds::names::{ANNOTATION_ATTEMPT, LABEL_BACKUP_OF, LABEL_RETAINED_OF};

use super::cluster::{is_ending, list};
use super::shop::{CLAIMS, ORDERS, PODS, Shop};
use crate::error::Class;
use crate::observed::Observed;
use crate::plan::{Action, plan};

/// Durability `Flushed`, on claims with which this is done when their members leave.
fn spec(backups: u8, when_removed: &str) -> Value {
    let claim = json!({"size": "20Gi", "whenRemoved": when_removed});
    json!({"backups": backups, "durability": "Flushed", "flushVolume": {"claim": claim}})
}

/// Two backups, of which the second one is to leave: neither holds anything.
async fn one_too_many(when_removed: &str) -> (Shop, [String; 2]) {
    let shop = Shop::with_backups(spec(2, when_removed)).await;
    let backups: [String; 2] = shop.backups().try_into().unwrap();
    shop.cluster.change(ORDERS, &json!({"spec": {"backups": 1}}));
    (shop, backups)
}

/// One backup, whose pod has been evicted by its node.
async fn ended() -> (Shop, String) {
    let shop = Shop::with_backups(spec(1, "Delete")).await;
    let backup = shop.backups().remove(0);
    shop.stop(&backup).await;
    let unready = json!([{"type": "ContainersReady", "status": "False"}]);
    let status = json!({"phase": "Failed", "reason": "Evicted", "conditions": unready});
    shop.cluster.change(&format!("{PODS}/{backup}"), &json!({"status": status}));
    (shop, backup)
}

/// A user deletes the claim, removes its finalizer and creates another one of its name, with another disk.
fn replace_claim(shop: &Shop, member: &str) -> Value {
    let path = format!("{CLAIMS}/{member}-flush");
    let mut claim = shop.claim(member).unwrap();
    assert_eq!(shop.cluster.delete(&path).0, 200);
    shop.cluster.change(&path, &json!({"metadata": {"finalizers": []}}));
    assert!(!shop.cluster.has(&path));
    claim["spec"]["volumeName"] = json!("another disk");
    shop.cluster.create(CLAIMS, &claim)
}

/// Argo CD, with label tracking: it takes what has this label and no owner for an application's, and its repository lacks it.
fn prune(shop: &Shop) {
    for name in shop.cluster.names(CLAIMS) {
        let path = format!("{CLAIMS}/{name}");
        let metadata = &shop.cluster.get(&path).unwrap()["metadata"];
        let has_owner = list(&metadata["ownerReferences"]).next().is_some();
        if metadata["labels"]["app.kubernetes.io/instance"] == "orders" && !has_owner {
            shop.cluster.delete(&path);
        }
    }
}

fn planned(observed: &Observed) -> Vec<String> {
    plan(observed).actions.iter().filter(|action| matches!(action, Action::Delete(_))).map(Action::to_string).collect()
}

#[tokio::test]
async fn a_claim_goes_with_its_pod_and_not_before() {
    let (shop, [stays, leaves]) = one_too_many("Delete").await;
    let observed = shop.look().await;
    assert_eq!(planned(&observed), [format!("delete pod {leaves}, and delete its claim")]);
    shop.act(&observed).await.unwrap();
    assert!(is_ending(&shop.pod(&leaves).unwrap()) && is_ending(&shop.claim(&leaves).unwrap()));
    // Nothing else happens while it ends.
    shop.reconcile().await;
    assert!(shop.pod(&leaves).is_some() && shop.claim(&leaves).is_some());
    shop.cluster.stop_deleted_pods();
    assert_eq!((shop.pod(&leaves), shop.claim(&leaves)), (None, None));
    assert!(!is_ending(&shop.pod(&stays).unwrap()) && !is_ending(&shop.claim(&stays).unwrap()));
}

/// The claim is asked for first: a pod whose claim cannot go stays with it.
#[tokio::test]
async fn a_pod_stays_if_its_claim_may_not_be_deleted() {
    let (shop, [_, leaves]) = one_too_many("Delete").await;
    shop.forbid("DELETE", "", "persistentvolumeclaims");
    let error = shop.act(&shop.look().await).await.unwrap_err().to_string();
    assert!(error.contains("nobody may DELETE persistentvolumeclaims"), "{error}");
    assert!(!is_ending(&shop.pod(&leaves).unwrap()) && !is_ending(&shop.claim(&leaves).unwrap()));
}

/// A member that stays needs its claim: its next pod would find none.
#[tokio::test]
async fn a_claim_stays_if_its_pod_may_not_be_deleted() {
    for when_removed in ["Delete", "Retain"] {
        let (shop, [_, leaves]) = one_too_many(when_removed).await;
        let claim = shop.claim(&leaves);
        shop.forbid("DELETE", "", "pods");
        let error = shop.act(&shop.look().await).await.unwrap_err().to_string();
        assert!(error.contains("nobody may DELETE pods"), "{error}");
        assert_eq!(shop.claim(&leaves), claim, "{when_removed}");
    }
}

/// A webhook that may have side effects makes the server refuse every trial, and says nothing of the deletion itself.
#[tokio::test]
async fn a_pod_and_its_claim_go_where_deletions_cannot_be_tried() {
    let (shop, [_, leaves]) = one_too_many("Delete").await;
    shop.cluster.refuse_trials("pods");
    shop.act(&shop.look().await).await.unwrap();
    assert!(is_ending(&shop.pod(&leaves).unwrap()) && is_ending(&shop.claim(&leaves).unwrap()));
}

/// The name of the pod that was to be made says nothing: the next try has another one.
#[tokio::test]
async fn a_refused_pod_or_claim_is_named_without_its_suffix() {
    for (resource, named) in [("persistentvolumeclaims", "orders-backup-…-flush"), ("pods", "orders-backup-…")] {
        let shop = Shop::open(spec(1, "Delete")).await;
        shop.forbid("CREATE", "", resource);
        shop.act(&shop.look().await).await.unwrap_err();
        let group = shop.cluster.get(ORDERS).unwrap();
        let conditions = group["status"]["conditions"].as_array().unwrap();
        let degraded = conditions.iter().find(|condition| condition["type"] == "Degraded").unwrap();
        let message = degraded["message"].as_str().unwrap();
        assert!(message.contains(&format!("{named}: ")), "{message}");
        assert!(message.contains(&format!("nobody may CREATE {resource}")), "{message}");
    }
}

#[tokio::test]
async fn a_retained_claim_outlives_pod_and_group() {
    let (shop, [stays, leaves]) = one_too_many("Retain").await;
    let observed = shop.look().await;
    assert_eq!(planned(&observed), [format!("delete pod {leaves}, and retain its claim")]);
    shop.act(&observed).await.unwrap();
    shop.cluster.stop_deleted_pods();
    assert_eq!(shop.pod(&leaves), None);
    let labels = &shop.claim(&leaves).unwrap()["metadata"]["labels"];
    assert_eq!((&labels[LABEL_BACKUP_OF], &labels[LABEL_RETAINED_OF]), (&Value::Null, &json!("orders")));
    shop.cluster.delete(ORDERS);
    shop.cluster.stop_deleted_pods();
    assert!(shop.backups().is_empty());
    assert!(!is_ending(&shop.claim(&leaves).unwrap()) && !is_ending(&shop.claim(&stays).unwrap()));
}

/// A claim that was made to go with the group is released when its member leaves, if nobody reports what is on it.
#[tokio::test]
async fn a_released_claim_outlives_the_group_that_owned_it() {
    let (shop, [stays, leaves]) = one_too_many("Delete").await;
    shop.cluster.change(ORDERS, &json!({"spec": {"flushVolume": {"claim": {"whenRemoved": "Retain"}}}}));
    let observed = shop.look().await;
    assert_eq!(planned(&observed), [format!("delete pod {leaves}, and retain its claim")]);
    shop.act(&observed).await.unwrap();
    // Which claims are this group's, the log tells.
    shop.start_log(std::slice::from_ref(&stays));
    shop.cluster.change(ORDERS, &json!({"spec": {"flushVolume": {"claim": {"whenRemoved": "Delete"}}}}));
    shop.reconcile().await;
    shop.cluster.delete(ORDERS);
    shop.cluster.stop_deleted_pods();
    assert_eq!((shop.claim(&stays), shop.claim(&leaves).is_some()), (None, true));
}

#[tokio::test]
async fn nobody_prunes_the_claims_of_a_group_that_hibernates() {
    let shop = Shop::with_backups(spec(2, "Retain")).await;
    let claims = shop.cluster.names(CLAIMS);
    shop.cluster.change(ORDERS, &json!({"spec": {"hibernate": true}}));
    shop.reconcile().await;
    shop.cluster.stop_deleted_pods();
    assert!(shop.backups().is_empty());
    prune(&shop);
    assert_eq!((claims.len(), shop.cluster.names(CLAIMS)), (2, claims));
}

/// Earlier versions gave claims the label.
#[tokio::test]
async fn nobody_prunes_a_claim_that_loses_its_owner() {
    let (shop, [stays, leaves]) = one_too_many("Delete").await;
    for member in [&stays, &leaves] {
        let labels = json!({"app.kubernetes.io/instance": "orders"});
        shop.cluster.change(&format!("{CLAIMS}/{member}-flush"), &json!({"metadata": {"labels": labels}}));
    }
    shop.cluster.change(ORDERS, &json!({"spec": {"flushVolume": {"claim": {"whenRemoved": "Retain"}}}}));
    let observed = shop.look().await;
    assert_eq!(planned(&observed), [format!("delete pod {leaves}, and retain its claim")]);
    shop.act(&observed).await.unwrap();
    shop.cluster.stop_deleted_pods();
    prune(&shop);
    for member in [stays, leaves] {
        assert_eq!(shop.claim(&member).unwrap()["metadata"]["ownerReferences"], json!([]), "{member}");
    }
}

#[tokio::test]
async fn a_kept_claim_is_taken_up_by_the_next_pod() {
    let (shop, backup) = ended().await;
    let claim = shop.claim(&backup).unwrap();
    let observed = shop.look().await;
    assert_eq!(planned(&observed), [format!("delete pod {backup}, and keep its claim")]);
    shop.act(&observed).await.unwrap();
    assert_eq!(shop.pod(&backup), None);
    shop.reconcile().await;
    let pod = shop.pod(&backup).unwrap();
    assert_eq!(pod["metadata"]["annotations"][ANNOTATION_ATTEMPT], "1");
    assert!(pod.to_string().contains(&format!("{backup}-flush")));
    let now = shop.claim(&backup).unwrap();
    assert_eq!((&now["metadata"]["uid"], &now["spec"]), (&claim["metadata"]["uid"], &claim["spec"]));
}

#[tokio::test]
async fn an_ended_pod_stays_if_its_claim_was_deleted_meanwhile() {
    let (shop, backup) = ended().await;
    let observed = shop.look().await;
    assert_eq!(shop.cluster.delete(&format!("{CLAIMS}/{backup}-flush")).0, 200);
    assert!(is_ending(&shop.claim(&backup).unwrap()), "the pod is still there");
    let error = shop.act(&observed).await.unwrap_err().to_string();
    assert!(error.contains(&format!("claim {backup}-flush has no disk any more")), "{error}");
    assert!(shop.pod(&backup).is_some());
}

#[tokio::test]
async fn an_ended_pod_stays_if_its_claim_is_another_one_by_now() {
    let (shop, backup) = ended().await;
    let observed = shop.look().await;
    let another = replace_claim(&shop, &backup);
    shop.act(&observed).await.unwrap_err();
    assert!(shop.pod(&backup).is_some());
    assert_eq!(shop.claim(&backup), Some(another), "nothing is written to it");
}

#[tokio::test]
async fn only_the_very_pod_and_claim_that_were_seen_are_deleted() {
    let (shop, [_, leaves]) = one_too_many("Delete").await;
    let observed = shop.look().await;
    let another = replace_claim(&shop, &leaves);
    shop.cluster.delete(&format!("{PODS}/{leaves}"));
    let mut pod = shop.pod(&leaves).unwrap();
    shop.cluster.stop_deleted_pods();
    pod["metadata"].as_object_mut().unwrap().remove("deletionTimestamp");
    let pod = shop.cluster.create(PODS, &pod);
    shop.act(&observed).await.unwrap();
    assert_eq!(shop.claim(&leaves), Some(another));
    let now = shop.pod(&leaves).unwrap();
    assert!(now["metadata"]["uid"] == pod["metadata"]["uid"] && !is_ending(&now));
}

#[tokio::test]
async fn a_claim_that_is_there_already_keeps_its_disk() {
    let shop = Shop::open(spec(1, "Delete")).await;
    let observed = shop.look().await;
    let actions = plan(&observed).actions;
    let made = actions.iter().find_map(|action| match action {
        Action::Claim(owned) => Some(json!(owned.object)),
        _ => None,
    });
    // A user has put back a claim that was retained, with the member's files.
    let mut kept = made.unwrap();
    kept["spec"] = json!({"volumeName": "a disk", "resources": {"requests": {"storage": "10Gi"}}});
    kept["metadata"]["ownerReferences"].take();
    let kept = shop.cluster.create(CLAIMS, &kept);
    shop.act(&observed).await.unwrap();
    // No log names its member, so it may be of an earlier group, as the only copy: it would go with this one.
    shop.reconcile().await;
    let now = shop.claim(&shop.backups()[0]).unwrap();
    assert_eq!((&now["spec"], &now["metadata"]["uid"]), (&kept["spec"], &kept["metadata"]["uid"]));
    assert_eq!(now["metadata"]["ownerReferences"], Value::Null);
}

/// A node that is deleted takes its pods along. A generic ephemeral volume belongs to its pod, a member's claim does not.
#[tokio::test]
async fn a_members_disk_outlives_the_deletion_of_its_pod() {
    let shop = Shop::with_backups(spec(1, "Delete")).await;
    let backup = shop.backups().remove(0);
    let disk = json!({"name": "disk", "ephemeral": {"volumeClaimTemplate": {"spec": {"volumeName": "another disk"}}}});
    let other = json!({"metadata": {"name": "other"}, "spec": {"nodeName": "n0", "volumes": [disk]}});
    shop.cluster.create(PODS, &other);
    assert!(shop.cluster.has(&format!("{CLAIMS}/other-disk")));
    for pod in [backup.as_str(), "other"] {
        shop.cluster.delete(&format!("{PODS}/{pod}"));
    }
    shop.cluster.stop_deleted_pods();
    assert!(!shop.cluster.has(&format!("{CLAIMS}/other-disk")));
    let claim = shop.claim(&backup).unwrap();
    shop.reconcile().await;
    assert_eq!(shop.backups(), [backup.as_str()]);
    let now = shop.claim(&backup).unwrap();
    assert_eq!((&now["metadata"]["uid"], &now["spec"]), (&claim["metadata"]["uid"], &claim["spec"]));
}

/// Without a pod, and without a log in the status, it may be all that is left of one.
#[tokio::test]
async fn a_claim_with_unknown_content_outlives_its_group() {
    let shop = Shop::with_backups(spec(1, "Delete")).await;
    let backup = shop.backups().remove(0);
    let owners = || shop.claim(&backup).unwrap()["metadata"]["ownerReferences"].clone();
    let owned = owners();
    assert_eq!(list(&owned).count(), 1);
    shop.cluster.delete(&format!("{PODS}/{backup}"));
    shop.cluster.stop_deleted_pods();
    shop.reconcile().await;
    assert_eq!(owners(), json!([]), "nobody says what is on it");
    shop.stop(&backup).await;
    shop.start(&backup, "n0").await;
    shop.reconcile().await;
    assert_eq!(owners(), owned, "it is empty");
}

/// An app has started since the plan was made, and writes its log to both.
#[tokio::test]
async fn a_pod_and_its_claim_stay_if_the_log_has_changed() {
    let (shop, backups) = one_too_many("Delete").await;
    let observed = shop.look().await;
    assert_eq!(planned(&observed).len(), 1);
    shop.start_log(&backups);
    let error = shop.act(&observed).await.unwrap_err();
    assert_eq!(error.class(), Class::Conflict, "{error}");
    for backup in backups {
        assert!(!is_ending(&shop.pod(&backup).unwrap()) && !is_ending(&shop.claim(&backup).unwrap()), "{backup}");
    }
}
