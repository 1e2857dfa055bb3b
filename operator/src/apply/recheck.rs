//! Looks once more before anything is deleted. What a plan was made from may be minutes old, and what is deleted is gone.
//!
//! Called by [`apply`](super).

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use serde_json::{Value, json};
use tailwind_crds::names::LABEL_BACKUP_OF;
use tailwind_crds::{LogStatus, ReplicaGroup};

use super::{MANAGER, gone, of_uid};
use crate::error::{Cause, Doing, Error};
use crate::objects::disruption::{budget_name, stays};
use crate::objects::service::is_headless;
use crate::objects::stored::altered;
use crate::objects::{Kind, LABEL_INSTANCE, Owned, is_owned};
use crate::observed::Observed;
use crate::plan::licence::{Licence, Look};
use crate::plan::removal::Removal;
use crate::probe::Prober;

/// Ends the name of the object with which is tried whether a new one would be admitted.
const TRIAL: &str = "-trial";

/// Whether the log is still as it was when the deletion of a backup pod was decided: a set that has changed since may need that
/// pod.
pub(super) async fn same_log(
    groups: &Api<ReplicaGroup>,
    name: &str,
    planned: Option<&LogStatus>,
    doing: impl Fn() -> String,
) -> Result<(), Error> {
    let group = groups.get(name).await.doing(&doing)?;
    let now = group.status.and_then(|status| status.log);
    if now.as_ref() == planned {
        return Ok(());
    }
    let text = |log: Option<&LogStatus>| {
        log.map_or_else(|| "no log".to_owned(), |log| format!("epoch {}, version {}", log.epoch, log.version))
    };
    let source = Cause::Outdated { planned: text(planned), now: text(now.as_ref()) };
    Err(Error { doing: doing(), source })
}

/// Whether what allows a removal is still so, and those whose reports it is stay: what the plan was made from may be some seconds old.
pub(super) async fn still_held(
    prober: &Prober,
    (budgets, pods): (&Api<DynamicObject>, &Api<Pod>),
    observed: &Observed,
    removal: &Removal,
    doing: impl Fn() -> String,
) -> Result<(), Error> {
    let (name, licence) = (observed.group.name_any(), &removal.licence);
    let asked = observed.backups.iter().filter(|pod| licence.asks(&pod.name_any(), &removal.name));
    let reports = prober.backup_reports_now(&name, asked).await;
    // The pod of an eviction that was allowed stands in the budget until it is known to end. So the budget is read first.
    let budget = budgets.get_opt(&budget_name(&name)).await.doing(&doing)?;
    keeps_others(budget.as_ref(), observed, removal)
        .map_err(|why| Error { doing: doing(), source: Cause::NotHeld(why) })?;
    let evicted = budget.iter().filter_map(|budget| budget.data["status"]["disruptedPods"].as_object()).flatten();
    let evicted = evicted.map(|(pod, _)| pod.clone()).collect();
    let unobserved = budget
        .as_ref()
        .is_some_and(|budget| budget.data["status"]["observedGeneration"].as_i64() != budget.metadata.generation);
    let labelled = ListParams::default().labels(&format!("{LABEL_BACKUP_OF}={name}"));
    let pods = pods.list(&labelled).await.doing(&doing)?.items;
    let held = licence.holds_still(&removal.name, observed, &Look { reports, evicted, unobserved, pods });
    held.map_err(|why| Error { doing: doing(), source: Cause::NotHeld(why) })
}

/// Whether the budget is still the one that keeps those from being evicted on whose reports the removal rests.
fn keeps_others(budget: Option<&DynamicObject>, observed: &Observed, removal: &Removal) -> Result<(), String> {
    let Some(stay) = removal.stay.filter(|_| !removal.licence.holders().is_empty()) else { return Ok(()) };
    let own = budget.filter(|budget| is_owned(&observed.group, &budget.metadata));
    match own.map(stays) {
        Some(Some(now)) if now >= stay => Ok(()),
        Some(Some(now)) => Err(format!("the budget keeps {now} pods, and is to keep {stay}")),
        Some(None) => Err("the budget does not say how many pods it keeps".to_owned()),
        None => Err("the budget is gone, or belongs to another owner".to_owned()),
    }
}

/// Whether the claim on which a member's files shall stay is there, and is the one that was seen.
pub(super) async fn still_claimed(
    claims: &Api<DynamicObject>,
    observed: &Observed,
    licence: &Licence,
    doing: impl Fn() -> String,
) -> Result<(), Error> {
    let Some(name) = licence.claim() else { return Ok(()) };
    let claim = claims.get_opt(name).await.doing(&doing)?;
    let mut seen = observed.objects.iter().filter(|owned| owned.kind == Kind::Claim);
    let seen = seen.find(|owned| owned.object.name_any() == name).and_then(|owned| owned.object.uid());
    let is_there = |claim: &DynamicObject| claim.metadata.deletion_timestamp.is_none() && claim.uid() == seen;
    match claim.as_ref().is_some_and(is_there) {
        true => Ok(()),
        false => Err(Error { doing: doing(), source: Cause::NotHeld(format!("claim {name} has no disk any more")) }),
    }
}

/// Lets the claim of this name and UID go with the group, or outlive it. Another one of the name is left as it is. If somebody else
/// has changed the claim at the same time, that is an error: a group must not go while it owns a claim that shall outlive it.
pub(super) async fn own(
    claims: &Api<DynamicObject>,
    (name, uid): (&str, &str),
    owners: Value,
    doing: impl Fn() -> String,
) -> Result<(), Error> {
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    // Claims of earlier versions have the label.
    let labels = json!({LABEL_INSTANCE: null});
    let patch = json!({"metadata": {"uid": uid, "labels": labels, "ownerReferences": owners}});
    match claims.patch(name, &params, &Patch::Merge(patch)).await {
        Err(kube::Error::Api(status)) if status.is_conflict() => {
            let now = claims.get_opt(name).await.doing(&doing)?;
            let is_other = now.and_then(|claim| claim.uid()).as_deref() != Some(uid);
            if is_other { Ok(()) } else { Err(kube::Error::Api(status)).doing(doing) }
        }
        patched => gone(patched.map(drop)).doing(doing),
    }
}

/// Makes an object as it should be. Where the server says that a field cannot be changed, or leaves one as it was, the object
/// is deleted and recreated; but only for fields that are known to be such, and once the server would admit a new one. Anything
/// else that it refuses, an admission policy perhaps, deletes nothing: without its role binding a group could not fail over.
pub(super) async fn put(api: &Api<DynamicObject>, Owned { kind, object }: &Owned) -> Result<(), Error> {
    let name = object.name_any();
    let doing = || format!("apply {name}");
    let params = PatchParams::apply(MANAGER).force();
    match api.patch(&name, &params, &Patch::Apply(object)).await {
        Err(kube::Error::Api(status)) if cannot_change(*kind, &status) => {}
        // What is not said of a service's address stays, `None` included.
        Ok(now) if *kind == Kind::Service && is_headless(&now) != is_headless(object) => {}
        other => return other.doing(doing).and_then(|now| as_written(object, &now, doing)),
    }
    if let Some(old) = api.get_opt(&name).await.doing(doing)? {
        let mut trial = object.clone();
        trial.metadata.name = Some(format!("{name}{TRIAL}"));
        let dry = PostParams { dry_run: true, field_manager: Some(MANAGER.to_owned()) };
        api.create(&dry, &trial).await.doing(|| format!("check whether {name} can be recreated"))?;
        gone(api.delete(&name, &of_uid(old.uid())).await.map(drop)).doing(doing)?;
    }
    let now = api.patch(&name, &params, &Patch::Apply(object)).await.doing(doing)?;
    as_written(object, &now, doing)
}

fn as_written(written: &DynamicObject, now: &DynamicObject, doing: impl Fn() -> String) -> Result<(), Error> {
    let changed = altered(written, now);
    changed.map_or(Ok(()), |field| Err(Error { doing: doing(), source: Cause::Altered(field) }))
}

/// True if all that the server refuses is a change of fields that cannot change in this kind of object.
fn cannot_change(kind: Kind, status: &Status) -> bool {
    let fixed: &[&str] = match kind {
        // Nothing is worth a disk.
        Kind::Role | Kind::DisruptionBudget | Kind::Claim => &[],
        Kind::RoleBinding => &["roleRef"],
        Kind::EndpointSlice => &["addressType"],
        Kind::Service => &["spec.clusterIP", "spec.clusterIPs", "spec.ipFamilies", "spec.ipFamilyPolicy"],
    };
    let mut causes = status.details.iter().flat_map(|details| &details.causes).peekable();
    let is_fixed = |field: &str| fixed.iter().any(|fixed| field.split('[').next() == Some(fixed));
    status.is_invalid() && causes.peek().is_some() && causes.all(|cause| is_fixed(&cause.field))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kube::Client;
    use kube::api::ApiResource;

    use super::*;
    use crate::server_version::ServerVersion;
    use crate::test_api;

    type Calls = Arc<Mutex<Vec<String>>>;

    /// An API server that answers each call as `answer` says; and the calls that it has got.
    async fn server(answer: impl Fn(&str) -> (u16, Value) + Clone + Send + Sync + 'static) -> (Client, Calls) {
        let calls = Calls::default();
        let seen = Arc::clone(&calls);
        let client = test_api::serve(move |method, path, _| {
            let call = format!("{method} {path}");
            let response = answer(&call);
            seen.lock().unwrap().push(call);
            response
        });
        let client = client.await;
        (client, calls)
    }

    fn refused(field: &str) -> (u16, Value) {
        let causes = json!([{"reason": "FieldValueInvalid", "message": "no", "field": field}]);
        let details = json!({"causes": causes});
        (
            422,
            json!({"kind": "Status", "status": "Failure", "code": 422, "reason": "Invalid", "message": "no", "details": details}),
        )
    }

    fn object(kind: Kind) -> Owned {
        let content = json!({"apiVersion": "v1", "kind": kind.as_str(), "metadata": {"name": "orders", "uid": "1"}});
        Owned { kind, object: serde_json::from_value(content).unwrap() }
    }

    async fn put_to(
        kind: Kind,
        answer: impl Fn(&str) -> (u16, Value) + Clone + Send + Sync + 'static,
    ) -> (Result<(), Error>, Vec<String>) {
        let (client, calls) = server(answer).await;
        let resource: ApiResource = kind.resource(ServerVersion::TARGET);
        let api = Api::namespaced_with(client, "shop", &resource);
        let result = put(&api, &object(kind)).await;
        let methods = calls.lock().unwrap().iter().map(|call| call.split('?').next().unwrap().to_owned()).collect();
        (result, methods)
    }

    fn written() -> (u16, Value) {
        (200, json!(object(Kind::Service).object))
    }

    #[tokio::test]
    async fn a_refusal_by_policy_deletes_nothing() {
        for field in ["", "metadata.labels", "spec.ports"] {
            let (result, calls) = put_to(Kind::RoleBinding, move |_| refused(field)).await;
            assert!(result.is_err());
            assert_eq!(calls.len(), 1, "{calls:?}");
        }
        let without_causes =
            json!({"kind": "Status", "status": "Failure", "code": 422, "reason": "Invalid", "message": "no"});
        let (result, calls) = put_to(Kind::Service, move |_| (422, without_causes.clone())).await;
        assert!(result.is_err());
        assert_eq!(calls.len(), 1, "{calls:?}");
    }

    #[tokio::test]
    async fn nothing_is_deleted_that_would_not_be_admitted_again() {
        let (result, calls) = put_to(Kind::Service, |call| match call {
            call if call.starts_with("PATCH") => refused("spec.clusterIPs[0]"),
            call if call.starts_with("POST") => refused("metadata.labels"),
            _ => written(),
        })
        .await;
        assert!(result.unwrap_err().to_string().contains("check whether orders can be recreated"));
        assert!(!calls.iter().any(|call| call.starts_with("DELETE")), "{calls:?}");
    }

    #[tokio::test]
    async fn fixed_fields_are_changed_by_making_anew() {
        let patches = Arc::new(Mutex::new(0));
        let (result, calls) = put_to(Kind::Service, move |call| {
            let mut patches = patches.lock().unwrap();
            *patches += u32::from(call.starts_with("PATCH"));
            if call.starts_with("PATCH") && *patches == 1 { refused("spec.clusterIP") } else { written() }
        })
        .await;
        result.unwrap();
        let methods: Vec<&str> = calls.iter().map(|call| call.split(' ').next().unwrap()).collect();
        assert_eq!(methods, ["PATCH", "GET", "POST", "DELETE", "PATCH"]);
    }

    #[tokio::test]
    async fn a_headless_service_gets_an_address_when_it_gets_ports() {
        let service = |address: &str| {
            let mut object = object(Kind::Service);
            object.object.data = json!({"spec": {"clusterIP": address, "ports": [{"port": 6379}]}});
            object
        };
        let recreated = Arc::new(Mutex::new(false));
        let (client, calls) = server(move |call| {
            let mut recreated = recreated.lock().unwrap();
            *recreated |= call.starts_with("DELETE");
            // As the API server does: the address that a service has is copied into what is written without one.
            (200, json!(service(if *recreated { "10.96.0.7" } else { "None" }).object))
        })
        .await;
        let api = Api::namespaced_with(client, "shop", &Kind::Service.resource(ServerVersion::TARGET));
        let mut wanted = service("");
        wanted.object.data["spec"].as_object_mut().unwrap().remove("clusterIP");
        put(&api, &wanted).await.unwrap();
        let methods = |calls: &Calls| -> Vec<String> {
            calls.lock().unwrap().iter().map(|call| call.split(' ').next().unwrap().to_owned()).collect()
        };
        assert_eq!(methods(&calls), ["PATCH", "GET", "POST", "DELETE", "PATCH"]);
        put(&api, &wanted).await.unwrap();
        assert_eq!(methods(&calls).len(), 6, "one that has an address is changed in place");
    }

    #[tokio::test]
    async fn a_claim_that_another_writer_changed_is_not_released() {
        for (uid, is_released) in [("1", false), ("2", true)] {
            let (client, _) = server(move |call| match call {
                call if call.starts_with("PATCH") => (
                    409,
                    json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "no"}),
                ),
                _ => {
                    let mut claim = json!(object(Kind::Claim).object);
                    claim["metadata"]["uid"] = json!(uid);
                    (200, claim)
                }
            })
            .await;
            let api = Api::namespaced_with(client, "shop", &Kind::Claim.resource(ServerVersion::TARGET));
            let result =
                own(&api, ("orders", "1"), json!([]), || "let claim orders outlive the group".to_owned()).await;
            assert_eq!(result.is_ok(), is_released, "the claim of UID {uid}");
        }
    }

    #[tokio::test]
    async fn what_admission_has_changed_counts_as_not_done() {
        let budget = |stay: u64| {
            let mut owned = object(Kind::DisruptionBudget);
            owned.object.data = json!({"spec": {"minAvailable": stay}});
            owned
        };
        for (stored, field) in [(255, None), (1, Some("changes spec.minAvailable"))] {
            let (client, calls) = server(move |_| {
                let mut stored = json!(budget(stored).object);
                stored["metadata"]["labels"] = json!({"added": "by a webhook"});
                stored["spec"]["maxUnavailable"] = json!(1);
                (200, stored)
            })
            .await;
            let api = Api::namespaced_with(client, "shop", &Kind::DisruptionBudget.resource(ServerVersion::TARGET));
            let result = put(&api, &budget(255)).await;
            match field {
                None => result.unwrap(),
                Some(field) => {
                    let error = result.unwrap_err();
                    assert_eq!(error.class(), crate::error::Class::Refused);
                    assert!(error.to_string().contains(field), "{error}");
                }
            }
            assert_eq!(calls.lock().unwrap().len(), 1, "it is not deleted for that");
        }
    }

    fn log(version: u64) -> LogStatus {
        serde_json::from_value(json!({
            "id": "0", "epoch": 1, "claim": "0", "version": version,
            "primary": {"name": "app-0", "control": "h:1"}, "members": [],
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_changed_set_keeps_every_backup() {
        let group = json!({
            "apiVersion": "replication.tailwind.dev/v1alpha1", "kind": "ReplicaGroup",
            "metadata": {"name": "orders"}, "spec": {}, "status": {"log": log(2)},
        });
        let (client, _) = server(move |_| (200, group.clone())).await;
        let groups = Api::namespaced(client, "shop");
        let doing = || "delete pod a".to_owned();
        same_log(&groups, "orders", Some(&log(2)), doing).await.unwrap();
        for planned in [Some(log(1)), None] {
            let error = same_log(&groups, "orders", planned.as_ref(), doing).await.unwrap_err();
            assert_eq!(error.class(), crate::error::Class::Conflict);
            assert!(error.to_string().contains("epoch 1, version 2"), "{error}");
        }
    }
}
