//! Wakes up for a group when something about it changes, and lets one reconcile at a time run for it.
//!
//! Run by [`run`](crate::run) while the lease is held. A group that cannot be read does not stop the others.

mod watches;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::controller::{Action, Config as ControllerConfig, Controller};
use serde_json::json;
use tokio::time::timeout;
use tracing::{Instrument, Span, error, info, info_span, warn};

use self::watches::{FixedPause, Interruptions};
use crate::apply;
use crate::cache::{Group, GroupRef, Writers};
use crate::context::{Context, key};
use crate::error::{Class, Error};
use crate::metrics::Reported;
use crate::observe::{Observation, glance, observe};
use crate::observed::Observed;
use crate::plan::news::News;
use crate::plan::phase::PhaseReason;
use crate::plan::{self, Notice, Plan, Rollout, plan};
use crate::wake::Wakes;

/// Reconciles wait so long for the first lists of everything.
const LISTS_PATIENCE: Duration = Duration::from_secs(20);
/// A group that cannot be read is looked at so often: its certificates age.
const UNREADABLE_AGAIN: Duration = Duration::from_mins(5);
/// A reconcile that takes longer is given up, and begun again.
const RECONCILE_MAX: Duration = Duration::from_secs(120);

/// Why a reconcile has not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    #[error(transparent)]
    Call(#[from] Error),
    #[error("the API server took too long")]
    TooSlow,
    #[error("groups, their objects, pods and nodes are not all listed yet")]
    NotListed,
}

impl ReconcileError {
    fn class(&self) -> Class {
        match self {
            ReconcileError::Call(error) => error.class(),
            ReconcileError::TooSlow | ReconcileError::NotListed => Class::Unavailable,
        }
    }
}

/// Reconciles until `stop` is ready. Then it lets those that run come to their end.
pub(crate) async fn run(
    context: Arc<Context>,
    writers: Writers,
    wakes: Arc<Wakes>,
    namespace: Option<String>,
    concurrency: u16,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let client = context.client.clone();
    let groups: Api<Group> = match &namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let changed = watches::groups(&context, groups, writers.groups);
    let mut controller = Controller::for_stream(changed, context.cache.groups.clone())
        .with_config(ControllerConfig::default().concurrency(concurrency))
        .trigger_backoff(FixedPause)
        .graceful_shutdown_on(stop)
        .reconcile_on(Arc::clone(&wakes).stream());
    for (resource, writer) in writers.objects {
        let api: Api<DynamicObject> = match &namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        controller = controller.owns_stream_with(watches::objects(api, writer), resource);
    }
    let mut interruptions = Interruptions::default();
    let reconciles = controller.run(reconcile, on_error, Arc::clone(&context)).for_each(|result| {
        // Errors of reconciles are logged by `on_error`; these are those of watches.
        if let Err(error @ kube::runtime::controller::Error::QueueError(_)) = result {
            interruptions.report("groups or their objects", error);
        }
        std::future::ready(())
    });
    tokio::select! {
        () = reconciles => Ok(()),
        () = watches::pods(&context, &wakes) => bail!("the watch of pods has ended"),
        () = watches::nodes(&context, &wakes) => bail!("the watch of nodes has ended"),
    }
}

async fn reconcile(group: Arc<Group>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let at = GroupRef::from_obj(group.as_ref());
    let started = Instant::now();
    let work = reconcile_group(&context, &at).instrument(span(&group));
    let result = match timeout(RECONCILE_MAX, work).await {
        Ok(result) => result,
        Err(_) => Err(ReconcileError::TooSlow),
    };
    if context.cache.groups.get(&at).is_none() {
        // The group was deleted during this reconcile, and forgotten before it ended.
        context.forget(&at);
    }
    let class = result.as_ref().err().map(|failure| failure.class().name());
    context.metrics.reconciled(started.elapsed(), class);
    if result.is_ok() {
        context.failures.clear(&path(&group));
    }
    result
}

pub(crate) async fn reconcile_group(context: &Context, at: &GroupRef) -> Result<Action, ReconcileError> {
    if timeout(LISTS_PATIENCE, context.cache.wait_until_listed()).await.is_err() {
        return Err(ReconcileError::NotListed);
    }
    if let Some(mut observed) = glance(context, at).await {
        let plan = plan_in_turn(context, at, &mut observed);
        let news = plan.news(&observed);
        if news < News::Facts {
            remember(context, at, &observed, &plan);
            record_rollout(context, at, &plan);
            let wait = context.last_looks.wait(at, news, Instant::now());
            if wait == Some(Duration::ZERO) {
                apply::write_texts(context, &observed.group, &plan.status).await?;
                return Ok(again(&plan, None));
            }
            return Ok(again(&plan, wait));
        }
    }
    let observation = observe(context, at).await?;
    if !matches!(observation, Observation::Refused { .. }) {
        context.metrics.not_refused(at.namespace.as_deref().unwrap_or_default(), &at.name);
    }
    let mut observed = match observation {
        Observation::Complete(observed) => observed,
        Observation::Missing => {
            context.forget(at);
            return Ok(Action::await_change());
        }
        Observation::OtherClass => {
            leave_alone(context, at);
            return Ok(Action::await_change());
        }
        Observation::Refused { object, owner } => {
            leave_alone(context, at);
            refuse(context, at, &object, owner).await;
            return Ok(Action::await_change());
        }
        Observation::Unreadable { object, why, observed } => {
            context.rollout_turns.saw(&key(at), Rollout::Idle, || context.all_groups());
            let actions = plan::unreadable(&observed);
            forget_certificates(context, at, &actions);
            let acted = apply::act(context, &observed, &actions).await;
            report_unreadable(context, at, &object, &why).await?;
            acted?;
            return Ok(Action::requeue(UNREADABLE_AGAIN));
        }
    };
    let plan = plan_in_turn(context, at, &mut observed);
    remember(context, at, &observed, &plan);
    forget_certificates(context, at, &plan.actions);
    let applied = apply::apply(context, &observed, &plan).await;
    // The next group begins once the status says that this one has ended, lest two say that they are updated.
    record_rollout(context, at, &plan);
    applied?;
    Ok(again(&plan, None))
}

/// What is known of certificates that are about to change.
fn forget_certificates(context: &Context, at: &GroupRef, actions: &[plan::Action]) {
    if actions.iter().any(|action| matches!(action, plan::Action::Certificates(_))) {
        context.last_looks.drop_certificates(at);
    }
}

/// Plans; where outdated backups wait to be replaced, and it is the group's turn, so that they are.
fn plan_in_turn(context: &Context, at: &GroupRef, observed: &mut Observed) -> Plan {
    let planned = plan(observed);
    if planned.rollout == Rollout::Queued && context.rollout_turns.claim(&key(at), || context.all_groups()) {
        observed.may_update = true;
        return plan(observed);
    }
    planned
}

/// What was planned is done, or nothing was to be done.
fn record_rollout(context: &Context, at: &GroupRef, plan: &Plan) {
    context.rollout_turns.saw(&key(at), plan.rollout, || context.all_groups());
}

/// When to look again: at the latest when what is not written yet may be.
fn again(plan: &Plan, unwritten: Option<Duration>) -> Action {
    let again = Duration::try_from(plan.again).unwrap_or(Duration::from_secs(1));
    Action::requeue(unwritten.map_or(again, |wait| again.min(wait)))
}

/// The group is not this installation's.
fn leave_alone(context: &Context, at: &GroupRef) {
    context.metrics.forget(at.namespace.as_deref().unwrap_or_default(), &at.name);
    context.last_looks.forget(at);
    context.rollout_turns.saw(&key(at), Rollout::Idle, || context.all_groups());
}

/// Keeps what metrics show of a group, and what tells whether a change of a node concerns it.
fn remember(context: &Context, at: &GroupRef, observed: &Observed, plan: &Plan) {
    let certificates = &observed.certificates;
    let leaves = [&certificates.sidecar, &certificates.backup, &certificates.reader];
    let ends = leaves
        .into_iter()
        .flatten()
        .filter_map(|leaf| leaf.certificate.as_ref())
        .map(|leaf| leaf.not_after.as_second());
    let namespace = at.namespace.as_deref().unwrap_or_default();
    let reported = Reported { damaged: observed.damaged(), stale_readers: plan::stale_readers(observed) };
    context.metrics.saw(namespace, &at.name, &plan.status, ends.min(), reported);
    context.last_looks.keep_spare_nodes(at, plan.spare_nodes);
}

/// Another installation manages the group. Its status is not ours to write: what has to be said is said once, where people look.
async fn refuse(context: &Context, at: &GroupRef, object: &DynamicObject, owner: String) {
    if context.metrics.refused(at.namespace.as_deref().unwrap_or_default(), &at.name, &owner) {
        let refusal = Notice::Refused(owner, context.installation.name.clone());
        error!(%refusal, "group left alone");
        crate::events::publish_about(&context.recorder, reference(object), &[refusal]).await;
    }
}

fn reference(object: &DynamicObject) -> ObjectReference {
    let types = object.types.clone().unwrap_or_default();
    ObjectReference {
        api_version: Some(types.api_version),
        kind: Some(types.kind),
        name: object.metadata.name.clone(),
        namespace: object.metadata.namespace.clone(),
        uid: object.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// Says in the status what makes a group unreadable. Nothing else about it is known.
async fn report_unreadable(context: &Context, at: &GroupRef, object: &DynamicObject, why: &str) -> Result<(), Error> {
    let text = PhaseReason::Unreadable(why.to_owned()).to_string();
    if object.data.pointer("/status/phaseReason").and_then(|reason| reason.as_str()) == Some(&text) {
        return Ok(());
    }
    error!(%why, "group cannot be read");
    // Not by an apply, which would take everything else out of the status: the backups' addresses, by which sidecars fail over.
    let patch = json!({"status": {"phase": "Invalid", "phaseReason": text}});
    apply::merge_status(context, at.namespace.as_deref().unwrap_or_default(), &at.name, &patch).await
}

/// What log lines about a group say of it.
fn span(group: &Group) -> Span {
    info_span!("reconcile", namespace = group.namespace(), group = group.name_any())
}

fn path(group: &Group) -> String {
    format!("{}/{}", group.namespace().unwrap_or_default(), group.name_any())
}

fn on_error(group: Arc<Group>, failure: &ReconcileError, context: Arc<Context>) -> Action {
    let _entered = span(&group).entered();
    let status = group.0.as_ref().ok().and_then(|group| group.status.as_ref());
    let updating = status.is_some_and(|status| status.updating == Some(true));
    context.rollout_turns.pass_over(&key(&GroupRef::from_obj(group.as_ref())), updating, || context.all_groups());
    let class = failure.class();
    let (failures, wait) = context.failures.add(&path(&group), Instant::now(), |failures| class.wait(failures));
    match class {
        Class::Conflict | Class::Ending => info!(%failure, ?wait, "will retry"),
        _ => warn!(%failure, failures, ?wait, "reconcile failed"),
    }
    Action::requeue(wait)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::http::Method;
    use kube::runtime::watcher::Event;
    use serde_json::Value;
    use tailwind_crds::names::{ANNOTATION_OPERATOR, LABEL_BACKUP_OF};

    use super::*;
    use crate::cache::{Writers, group_ref};
    use crate::plan::licence::Licence;
    use crate::plan::removal::{Removal, RemovalReason};
    use crate::test_api::{self, failure};

    /// An API server with one group and nothing else, which takes changes of its status; and the calls that it has got.
    #[derive(Clone)]
    struct Server {
        group: Arc<Mutex<Value>>,
        calls: Arc<Mutex<Vec<String>>>,
    }

    impl Server {
        fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
            let (path, query) = path.split_once('?').unwrap_or((path, ""));
            let mut calls = self.calls.lock().unwrap();
            calls.push(format!("{method} {path}"));
            let mut group = self.group.lock().unwrap();
            match method.as_str() {
                "PATCH" if path.ends_with("/replicagroups/orders/status") => {
                    let patch: Value = serde_json::from_slice(body).unwrap();
                    let version = &patch["metadata"]["resourceVersion"];
                    if !version.is_null() && *version != group["metadata"]["resourceVersion"] {
                        return failure(409, "Conflict");
                    }
                    group["status"] = patch["status"].clone();
                    group["metadata"]["resourceVersion"] = json!((calls.len() + 100).to_string());
                    (200, group.clone())
                }
                "PATCH" if path.ends_with("/pods/leaves/status") => {
                    (200, json!({"metadata": {"name": "leaves", "uid": "1", "resourceVersion": "1"}}))
                }
                "GET" if path.ends_with("/replicagroups/orders") => (200, group.clone()),
                "GET" if path.ends_with("/pods") => (200, json!({"metadata": {}, "items": []})),
                // An image policy refuses this one.
                "POST" if path.ends_with("/pods") && body.windows(7).any(|text| text == b"refused") => {
                    failure(403, "Forbidden")
                }
                "POST" => {
                    let mut made: Value = serde_json::from_slice(body).unwrap();
                    // A webhook takes all labels away; one of those from real objects alone.
                    let name = made["metadata"]["name"].as_str().unwrap_or_default();
                    if name == "stripped" || name == "stripped-later" && !query.contains("dryRun=All") {
                        made["metadata"]["labels"] = json!({});
                    }
                    (200, made)
                }
                "DELETE" if path.contains("/pods/") => (200, json!({"kind": "Status", "status": "Success"})),
                _ => failure(404, "NotFound"),
            }
        }

        fn take_calls(&self) -> Vec<String> {
            std::mem::take(&mut *self.calls.lock().unwrap())
        }

        fn change_status(&self, change: &Value) {
            json_patch::merge(&mut self.group.lock().unwrap()["status"], change);
        }

        /// The watch of groups catches up.
        fn show(&self, writers: &mut Writers) {
            let group: Group = serde_json::from_value(self.group.lock().unwrap().clone()).unwrap();
            writers.groups.apply_watcher_event(&Event::Apply(group));
        }
    }

    async fn start() -> (Server, Context, Writers) {
        let group = json!({
            "apiVersion": "replication.tailwind.dev/v1alpha1", "kind": "ReplicaGroup",
            "metadata": {
                "namespace": "shop", "name": "orders", "uid": "1", "generation": 1, "resourceVersion": "1",
                "annotations": {ANNOTATION_OPERATOR: "ops/tailwind"},
            },
            "spec": {"paused": true},
        });
        let server = Server { group: Arc::new(Mutex::new(group)), calls: Arc::default() };
        let answers = server.clone();
        let client = test_api::serve(move |method, path, body| answers.answer(method, path, body)).await;
        let (context, mut writers) = test_api::context(client);
        server.show(&mut writers);
        (server, context, writers)
    }

    #[tokio::test]
    async fn an_idle_group_costs_no_requests() {
        let (server, context, mut writers) = start().await;
        let at = group_ref("shop", "orders");
        reconcile_group(&context, &at).await.unwrap();
        let calls = server.take_calls();
        let patches = calls.iter().filter(|call| call.starts_with("PATCH")).count();
        assert!(patches == 1 && calls.iter().any(|call| call.starts_with("GET")), "{calls:?}");
        // The watch has not brought that yet: it is read, and found to be done.
        reconcile_group(&context, &at).await.unwrap();
        let calls = server.take_calls();
        assert!(!calls.is_empty() && calls.iter().all(|call| call.starts_with("GET")), "{calls:?}");
        server.show(&mut writers);
        for _ in 0..3 {
            reconcile_group(&context, &at).await.unwrap();
        }
        assert_eq!(server.take_calls(), [""; 0]);
        assert!(context.metrics.snapshot().text().contains("phase=\"Paused\"} 1"));
    }

    #[tokio::test]
    async fn texts_are_written_to_the_version_that_was_seen() {
        let (server, context, mut writers) = start().await;
        let at = group_ref("shop", "orders");
        reconcile_group(&context, &at).await.unwrap();
        server.change_status(&json!({"phaseReason": null}));
        server.show(&mut writers);
        server.take_calls();
        reconcile_group(&context, &at).await.unwrap();
        assert_eq!(server.take_calls().len(), 1);
        assert!(server.group.lock().unwrap()["status"]["phaseReason"].is_string());
        // The cache does not know the newest version yet.
        let failure = reconcile_group(&context, &at).await.unwrap_err();
        assert_eq!(failure.class(), Class::Conflict);
        server.show(&mut writers);
        reconcile_group(&context, &at).await.unwrap();
    }

    #[tokio::test]
    async fn a_refusal_is_told_as_the_server_gave_it_last() {
        let (server, context, mut writers) = start().await;
        let at = group_ref("shop", "orders");
        for name in ["refused-0", "refused-1"] {
            let Observation::Complete(observed) = observe(&context, &at).await.unwrap() else {
                panic!("there is a group")
            };
            let mut plan = plan(&observed);
            let pod = json!({"metadata": {"name": format!("{name}-new")}});
            plan.actions = vec![plan::Action::Create(serde_json::from_value(pod).unwrap())];
            context.last_looks.forget(&at);
            apply::apply(&context, &observed, &plan).await.unwrap_err();
            assert!(server.group.lock().unwrap().to_string().contains(&format!("create pod {name}")), "{name}");
            server.show(&mut writers);
        }
    }

    #[tokio::test]
    async fn nothing_leaves_for_a_pod_that_the_server_refuses() {
        let (server, context, _) = start().await;
        let observation = observe(&context, &group_ref("shop", "orders")).await.unwrap();
        let Observation::Complete(observed) = observation else { panic!("the group is there") };
        let pod = |name: &str| {
            let labels = json!({LABEL_BACKUP_OF: "orders"});
            serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
        };
        let leaves = |after: &str| {
            let after = vec![after.to_owned()];
            plan::Action::Delete(Removal {
                name: "leaves".to_owned(),
                pod: Some("1".to_owned()),
                claim: None,
                reason: RemovalReason::Surplus,
                after,
                licence: Licence::for_tests(),
                stay: None,
            })
        };
        // One that admission makes useless is not made, or deleted again, lest the next plan make another.
        for (successor, deleted) in [
            ("taken", Some("leaves")),
            ("refused", None),
            ("stripped", None),
            ("stripped-later", Some("stripped-later")),
        ] {
            server.take_calls();
            let mut plan = plan(&observed);
            plan.actions = vec![plan::Action::Create(Box::new(pod(successor))), leaves(successor)];
            assert_eq!(apply::apply(&context, &observed, &plan).await.is_ok(), successor == "taken");
            let calls = server.take_calls();
            let deletions: Vec<_> = calls.iter().filter_map(|call| call.strip_prefix("DELETE ")).collect();
            let expected: Vec<_> =
                deleted.map(|pod| format!("/api/v1/namespaces/shop/pods/{pod}")).into_iter().collect();
            assert_eq!(deletions, expected, "{calls:?}");
        }
    }

    #[tokio::test]
    async fn a_group_that_is_gone_is_forgotten() {
        let (_, context, mut writers) = start().await;
        let at = group_ref("shop", "orders");
        reconcile_group(&context, &at).await.unwrap();
        assert!(context.metrics.snapshot().text().contains("orders"));
        context.forget_missing();
        assert_eq!(context.last_looks.groups(), [at]);
        writers.groups.apply_watcher_event(&Event::Init);
        writers.groups.apply_watcher_event(&Event::InitDone);
        context.forget_missing();
        assert!(context.last_looks.groups().is_empty());
        assert!(!context.metrics.snapshot().text().contains("orders"));
    }
}
