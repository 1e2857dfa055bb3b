//! A member that holds the log leaves on what the others report: to the plan, and once more right before its pod is deleted.
//! Here all of that is real: observation, plan, apply, and reports over HTTP; and holders change between plan and deletion.

#![cfg(test)]

use serde_json::json;
use tailwind_report::report::{BackupReport, Report};

use super::backup::BOOT;
use super::cluster::is_ending;
use super::shop::{CLAIMS, ORDERS, PODS, Shop};
use crate::error::Class;
use crate::observed::Observed;
use crate::plan::removal::Removal;
use crate::plan::{Action, plan};

/// Three members hold the log, and one is to leave on the reports of the others.
struct Leaving {
    shop: Shop,
    /// Observed when all was well.
    observed: Observed,
    leaver: String,
    holders: [String; 2],
}

impl Leaving {
    async fn planned() -> Leaving {
        let claim = json!({"size": "20Gi", "whenRemoved": "Delete"});
        let spec = json!({"backups": 3, "durability": "Flushed", "flushVolume": {"claim": claim}});
        let shop = Shop::with_backups(spec).await;
        let members = shop.backups();
        shop.write_log(&members).await;
        shop.cluster.change(ORDERS, &json!({"spec": {"backups": 2}}));
        let observed = shop.look().await;
        let [removal] = removals(&observed).try_into().unwrap();
        let leaver = removal.name.clone();
        let holders: Vec<String> = members.into_iter().filter(|member| *member != leaver).collect();
        let proof = format!("others report that they hold the whole log: {}", holders.join(", "));
        assert_eq!(removal.licence.to_string(), proof);
        Leaving { shop, observed, leaver, holders: holders.try_into().unwrap() }
    }

    /// Does what was planned: nothing is deleted, and this is why.
    async fn assert_kept(&self, why: &str) {
        let error = self.shop.act(&self.observed).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("delete pod {}", self.leaver)) && error.contains(why), "{error}");
        for backup in [&self.leaver].into_iter().chain(&self.holders) {
            assert!(!is_ending(&self.shop.pod(backup).unwrap()), "{backup}: {why}");
            assert!(!is_ending(&self.shop.claim(backup).unwrap()), "{backup}: {why}");
        }
    }

    /// Nor does any later plan rest on what this holder reports by now.
    async fn assert_no_proof(&self, holder: &String) {
        for removal in removals(&self.shop.look().await) {
            assert!(!removal.licence.holders().contains(holder), "{removal}: {}", removal.licence);
        }
    }
}

fn removals(observed: &Observed) -> Vec<Removal> {
    let removal = |action| if let Action::Delete(removal) = action { Some(removal) } else { None };
    plan(observed).actions.into_iter().filter_map(removal).collect()
}

#[tokio::test]
async fn a_member_leaves_when_the_others_hold_the_log() {
    let Leaving { shop, observed, leaver, holders } = Leaving::planned().await;
    shop.act(&observed).await.unwrap();
    assert!(is_ending(&shop.pod(&leaver).unwrap()) && is_ending(&shop.claim(&leaver).unwrap()));
    shop.cluster.stop_deleted_pods();
    assert_eq!((shop.pod(&leaver), shop.claim(&leaver)), (None, None));
    assert_eq!(shop.backups(), holders);
    for holder in &holders {
        assert!(!is_ending(&shop.pod(holder).unwrap()) && !is_ending(&shop.claim(holder).unwrap()));
    }
}

/// One of two is as many as an append needs; but nobody hurries to remove what is one too many.
#[tokio::test]
async fn a_surplus_member_stays_if_one_of_the_others_says_nothing() {
    let Leaving { shop, holders: [_, silent], .. } = Leaving::planned().await;
    shop.withhold_report(&silent);
    assert!(removals(&shop.look().await).is_empty());
}

#[tokio::test]
async fn a_member_stays_if_a_holder_reports_otherwise_by_now() {
    type Change = fn(&mut BackupReport);
    let changes: [(Change, &str); 6] = [
        (|report| report.boot = "01".to_owned(), "has lost its memory since it joined the set"),
        (|report| report.damaged = 1, "is damaged: 1 segment missing"),
        (|report| report.log = Some("f".repeat(32)), "belongs to another log"),
        (|report| report.log = None, "belongs to another log"),
        (|report| report.epoch = 0, "has promised epoch 0, and epoch 1 had a primary"),
        (|report| report.epoch = 2, "has promised epoch 2, and the config store is at epoch 1"),
    ];
    for (number, (change, why)) in changes.into_iter().enumerate() {
        let leaving = Leaving::planned().await;
        let holder = &leaving.holders[number % 2];
        leaving.shop.report(holder, |report| change(&mut report.content));
        leaving.assert_kept(&format!("{holder} {why}")).await;
        leaving.assert_no_proof(holder).await;
    }
}

#[tokio::test]
async fn a_member_stays_if_a_holder_cannot_be_read_by_now() {
    let leaving = Leaving::planned().await;
    let [first, second] = &leaving.holders;
    leaving.shop.withhold_report(second);
    leaving.assert_kept(&format!("{second} does not report: /report answers 503 Service Unavailable")).await;
    leaving.assert_no_proof(second).await;
    leaving.shop.stop(first).await;
    leaving.assert_kept(&format!("{first} does not report: no answer: Connection refused")).await;
}

/// The set may have changed when the API server could be asked again.
#[tokio::test]
async fn a_deletion_that_is_put_off_is_decided_again() {
    for of_claim in [true, false] {
        let Leaving { shop, observed, leaver, .. } = Leaving::planned().await;
        let deleted = if of_claim { format!("{CLAIMS}/{leaver}-flush") } else { format!("{PODS}/{leaver}") };
        shop.cluster.put_off_deletion(&deleted, (ORDERS, json!({"status": {"log": {"version": 2}}})));
        for class in [Class::Unavailable, Class::Conflict] {
            assert_eq!(shop.act(&observed).await.unwrap_err().class(), class, "{deleted}");
            assert!(!is_ending(&shop.cluster.get(&deleted).unwrap()), "{deleted}");
        }
    }
}

/// A drain evicts a holder, which serves its report until it has flushed.
#[tokio::test]
async fn a_member_stays_if_a_holder_is_being_evicted_by_now() {
    let leaving = Leaving::planned().await;
    let (shop, holder) = (&leaving.shop, &leaving.holders[1]);
    assert_eq!(shop.evict(holder), 201);
    let error = shop.act(&leaving.observed).await.unwrap_err().to_string();
    assert!(error.contains(&format!("{holder} leaves as well")), "{error}");
    assert!(!is_ending(&shop.pod(&leaving.leaver).unwrap()) && !is_ending(&shop.claim(&leaving.leaver).unwrap()));
    leaving.assert_no_proof(holder).await;
    shop.cluster.stop_deleted_pods();
    let error = shop.act(&leaving.observed).await.unwrap_err().to_string();
    assert!(error.contains(&format!("{holder} does not run")), "{error}");
}

/// What the config store names as the set held the log once. The one that leaves was in a later one.
#[tokio::test]
async fn a_member_stays_if_it_has_promised_a_later_epoch() {
    let leaving = Leaving::planned().await;
    leaving.shop.report(&leaving.leaver, |report| report.content.epoch = 9);
    leaving.assert_kept(&format!("{} has promised epoch 9, and the config store is at epoch 1", leaving.leaver)).await;
    assert!(removals(&leaving.shop.look().await).is_empty());
}

/// One that is in no set and not ready may not have answered before. What it keeps in quarantine may be the last copy all the
/// same.
#[tokio::test]
async fn an_unready_pod_stays_with_what_is_in_quarantine_by_now() {
    let leaving = Leaving::planned().await;
    leaving.shop.report(&leaving.leaver, |report| report.content.quarantined = Some(2));
    leaving.assert_kept(&format!("{} keeps 2 copies in quarantine", leaving.leaver)).await;
}

/// Its device has failed, and it answers all the same: it is asked before it is given up, not only at each try to delete it.
#[tokio::test]
async fn an_unready_spare_that_answers_is_asked() {
    let shop = Shop::with_backups(json!({"backups": 3})).await;
    let backups = shop.backups();
    let (spare, members) = backups.split_last().unwrap();
    shop.write_log(members).await;
    let running =
        json!({"name": "backup", "ready": false, "state": {"running": {"startedAt": "2026-06-01T10:00:00Z"}}});
    let unready = json!([{"type": "ContainersReady", "status": "False"}]);
    let status = json!({"conditions": unready, "containerStatuses": [running]});
    shop.cluster.change(&format!("{PODS}/{spare}"), &json!({"status": status}));
    shop.report(spare, |report| report.content.quarantined = Some(3));
    let observed = shop.look().await;
    assert!(removals(&observed).is_empty(), "{:?}", removals(&observed));
    shop.act(&observed).await.unwrap();
    let status = shop.cluster.get(ORDERS).unwrap()["status"].to_string();
    assert!(status.contains(&format!("{spare} keeps 3 copies")), "{status}");
}

/// Nothing was at the spare when it was asked. Since then somebody has begun to fill it.
#[tokio::test]
async fn a_spare_stays_if_it_holds_something_by_now() {
    let shop = Shop::with_backups(json!({"backups": 3})).await;
    let backups = shop.backups();
    let (spare, members) = backups.split_last().unwrap();
    shop.write_log(members).await;
    shop.cluster.change(ORDERS, &json!({"spec": {"backups": 2}}));
    let observed = shop.look().await;
    let [removal] = removals(&observed).try_into().unwrap();
    assert_eq!((&removal.name, removal.licence.to_string().as_str()), (spare, "it reports that it holds nothing"));
    shop.report(spare, |report| (report.content.log, report.content.copies) = (Some("f".repeat(32)), 1));
    let error = shop.act(&observed).await.unwrap_err().to_string();
    assert!(error.contains(&format!("{spare} reports that it holds something")), "{error}");
    shop.withhold_report(spare);
    let error = shop.act(&observed).await.unwrap_err().to_string();
    assert!(error.contains(&format!("{spare} does not report")), "{error}");
    assert!(!is_ending(&shop.pod(spare).unwrap()));
}

/// No backup belonged to a log when all were asked.
#[tokio::test]
async fn a_pod_stays_if_a_backup_belongs_to_a_log_by_now() {
    let shop = Shop::with_backups(json!({"backups": 2})).await;
    let [stays, leaves] = shop.backups().try_into().unwrap();
    // It does not say that it holds nothing: its disk cannot be read.
    shop.report(&leaves, |report| report.content.copies = 1);
    shop.cluster.change(ORDERS, &json!({"spec": {"backups": 1}}));
    let observed = shop.look().await;
    let [removal] = removals(&observed).try_into().unwrap();
    assert_eq!(removal.licence.to_string(), "no backup of the group belongs to a log");
    let another = if removal.name == leaves { &stays } else { &leaves };
    shop.report(another, |report| report.content.log = Some("f".repeat(32)));
    let error = shop.act(&observed).await.unwrap_err().to_string();
    assert!(error.contains(&format!("{another} holds a copy of log ffff")), "{error}");
    shop.withhold_report(another);
    let error = shop.act(&observed).await.unwrap_err().to_string();
    assert!(error.contains(&format!("{another} does not report")), "{error}");
    assert!(!is_ending(&shop.pod(&removal.name).unwrap()));
}

/// Its pod is another one of its name, with nothing in its memory. Who has its old address?
#[tokio::test]
async fn a_member_stays_if_a_holder_is_another_pod_by_now() {
    let leaving = Leaving::planned().await;
    let ([holder, other], shop) = (&leaving.holders, &leaving.shop);
    let old = shop.pod(holder).unwrap();
    let path = format!("{PODS}/{holder}");
    shop.cluster.delete(&path);
    shop.cluster.stop_deleted_pods();
    let new = shop.cluster.create(PODS, &old);
    assert_ne!(new["metadata"]["uid"], old["metadata"]["uid"]);

    // The new one itself, and all but its identity is as before.
    shop.report(holder, |report| report.content.boot = "01".to_owned());
    leaving.assert_kept(&format!("{holder} has lost its memory since it joined the set")).await;
    leaving.assert_no_proof(holder).await;

    // Another backup that holds the log.
    let impostor = |report: &mut Report<BackupReport>| {
        report.content.boot = BOOT.to_owned();
        report.name.clone_from(other);
    };
    shop.report(holder, impostor);
    leaving.assert_kept(&format!("{holder} does not report: the report is from {other} of group orders")).await;
    leaving.assert_no_proof(holder).await;

    // One of that name in another group.
    shop.report(holder, |report| (report.name, report.group) = (holder.clone(), "payments".to_owned()));
    leaving.assert_kept(&format!("{holder} does not report: the report is from {holder} of group payments")).await;

    // Nobody.
    shop.stop(holder).await;
    shop.start(holder, "n0").await;
    leaving.assert_kept(&format!("{holder} does not report: no answer: Connection refused")).await;
    leaving.assert_no_proof(holder).await;
}
