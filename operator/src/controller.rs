//! Wakes up for a group when something about it changes, and lets one reconcile at a time run for it.
//!
//! Run by [`run`](crate::run) while the lease is held. Groups are watched by their metadata alone, so that an object that
//! cannot be read stops nobody else's; each reconcile reads its group itself.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use futures_util::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DynamicObject, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{Action, Config as ControllerConfig, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::{LABEL_BACKUP_OF, LABEL_GROUP};
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{Instrument, Span, error, info, info_span, warn};

use crate::apply;
use crate::context::Context;
use crate::error::{Class, Error};
use crate::objects::Kind;
use crate::observe::{Observation, observe};
use crate::observed::NodeFacts;
use crate::plan::phase::PhaseReason;
use crate::plan::plan;

/// Nodes change in bursts, and every group looks at them.
const NODES_PAUSE: Duration = Duration::from_secs(1);
/// Reconciles wait so long for the first lists of nodes and pods.
const LISTS_PATIENCE: Duration = Duration::from_secs(20);
/// Pause after a watch has failed. All of a controller's watches share it: were it to grow, a dozen that have expired together,
/// since the API server was away, would make each other wait for minutes.
const WATCH_PAUSE: Duration = Duration::from_millis(250);
/// Interrupted watches are logged at most so often.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// A reconcile that takes longer is given up, and begun anew.
const RECONCILE_MAX: Duration = Duration::from_secs(120);

type GroupMeta = PartialObjectMeta<ReplicaGroup>;

/// Why a reconcile has not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    #[error(transparent)]
    Call(#[from] Error),
    #[error("the API server took too long")]
    TooSlow,
    #[error("nodes and pods are not listed yet")]
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
    (nodes, pods): (Writer<Node>, Writer<Pod>),
    namespace: Option<String>,
    concurrency: u16,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let client = context.client.clone();
    let any = watcher::Config::default;
    let groups: Api<GroupMeta> = scoped(&client, namespace.as_deref());
    let mut controller = Controller::new(groups, any())
        .with_config(ControllerConfig::default().concurrency(concurrency))
        .trigger_backoff(FixedPause)
        .graceful_shutdown_on(stop)
        .watches_stream(pod_changes(&client, pods), |pod| group_of(&pod));
    for resource in Kind::ALL.map(|kind| kind.resource(context.server)) {
        let api: Api<DynamicObject> = match &namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let ours = any().labels("app.kubernetes.io/managed-by=tailwind-operator");
        controller = controller.owns_with(api, resource, ours);
    }
    let changed = Arc::new(Notify::new());
    let wake = futures_util::stream::unfold(Arc::clone(&changed), |changed| async {
        changed.notified().await;
        tokio::time::sleep(NODES_PAUSE).await;
        Some(((), changed))
    });
    let mut logged: Option<Instant> = None;
    let reconciles = controller.reconcile_all_on(wake).run(reconcile, on_error, context).for_each(|result| {
        // Errors of reconciles are logged by `on_error`; these are those of watches, which are many while the API server is away.
        if let Err(error @ kube::runtime::controller::Error::QueueError(_)) = result
            && logged.is_none_or(|at| at.elapsed() > LOG_INTERVAL)
        {
            warn!(%error, "watch interrupted");
            logged = Some(Instant::now());
        }
        std::future::ready(())
    });
    tokio::select! {
        () = reconciles => Ok(()),
        () = watch_nodes(&client, nodes, &changed) => bail!("the watch of nodes has ended"),
    }
}

/// The same pause each time.
struct FixedPause;

impl Iterator for FixedPause {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(WATCH_PAUSE)
    }
}

impl Backoff for FixedPause {
    fn reset(&mut self) {}
}

fn scoped(client: &Client, namespace: Option<&str>) -> Api<GroupMeta> {
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Every pod of the cluster, without what nobody here reads.
fn pod_changes(client: &Client, writer: Writer<Pod>) -> impl Stream<Item = Result<Pod, watcher::Error>> + Send + use<> {
    watcher(Api::<Pod>::all(client.clone()), watcher::Config::default())
        .modify(|pod| {
            pod.managed_fields_mut().clear();
            if group_of(pod).is_none() {
                pod.annotations_mut().clear();
                pod.status = pod
                    .status
                    .take()
                    .map(|status| k8s_openapi::api::core::v1::PodStatus { phase: status.phase, ..Default::default() });
            }
        })
        .default_backoff()
        .reflect(writer)
        .touched_objects()
}

/// Keeps the store, and says when something about a node has changed that matters: heartbeats do not.
async fn watch_nodes(client: &Client, writer: Writer<Node>, changed: &Notify) {
    let watched = watcher(Api::<Node>::all(client.clone()), watcher::Config::default())
        .modify(|node| node.managed_fields_mut().clear())
        .default_backoff()
        .reflect(writer);
    let mut known: HashMap<String, NodeFacts> = HashMap::new();
    let mut watched = std::pin::pin!(watched);
    loop {
        match watched.try_next().await {
            Ok(Some(watcher::Event::Apply(node) | watcher::Event::InitApply(node))) => {
                let facts = crate::capacity::nodes([&node], []).remove(0);
                if known.get(&facts.name) != Some(&facts) {
                    known.insert(facts.name.clone(), facts);
                    changed.notify_one();
                }
            }
            Ok(Some(watcher::Event::Delete(node))) => {
                known.remove(&node.name_any());
                changed.notify_one();
            }
            Ok(Some(watcher::Event::Init | watcher::Event::InitDone)) => {}
            Ok(None) => return,
            Err(error) => warn!(%error, "watch of nodes interrupted"),
        }
    }
}

fn group_of(pod: &Pod) -> Option<ObjectRef<GroupMeta>> {
    let labels = pod.labels();
    let name = labels.get(LABEL_BACKUP_OF).or_else(|| labels.get(LABEL_GROUP))?;
    Some(ObjectRef::new(name).within(&pod.namespace()?))
}

async fn reconcile(meta: Arc<GroupMeta>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let (namespace, name) = (meta.namespace().unwrap_or_default(), meta.name_any());
    let started = Instant::now();
    let work = reconcile_group(&context, &namespace, &name).instrument(span(&meta));
    let result = match timeout(RECONCILE_MAX, work).await {
        Ok(result) => result,
        Err(_) => Err(ReconcileError::TooSlow),
    };
    let class = result.as_ref().err().map(|failure| failure.class().name());
    context.metrics.reconciled(started.elapsed(), class);
    if result.is_ok() {
        context.failures.clear(&format!("{namespace}/{name}"));
    }
    result
}

async fn reconcile_group(context: &Context, namespace: &str, name: &str) -> Result<Action, ReconcileError> {
    let lists =
        async { context.nodes.wait_until_ready().await.is_ok() && context.pods.wait_until_ready().await.is_ok() };
    if timeout(LISTS_PATIENCE, lists).await != Ok(true) {
        return Err(ReconcileError::NotListed);
    }
    let observed = match observe(context, namespace, name).await? {
        Observation::Complete(observed) => observed,
        Observation::Missing => {
            context.metrics.forget(namespace, name);
            return Ok(Action::await_change());
        }
        Observation::Unreadable { object, why } => {
            report_unreadable(context, namespace, name, &object, &why).await?;
            return Ok(Action::await_change());
        }
    };
    let plan = plan(&observed);
    let certificates = &observed.certificates;
    let leaves = [&certificates.sidecar, &certificates.backup];
    let ends = leaves
        .into_iter()
        .flatten()
        .filter_map(|leaf| leaf.certificate.as_ref())
        .map(|leaf| leaf.not_after.as_second());
    context.metrics.saw(namespace, name, &plan.status, ends.min(), observed.damaged());
    apply::apply(context, &observed, &plan).await?;
    let again = Duration::try_from(plan.again).unwrap_or(Duration::from_secs(1));
    Ok(Action::requeue(again))
}

/// Says in the status what makes a group unreadable. Nothing else about it is known.
async fn report_unreadable(
    context: &Context,
    namespace: &str,
    name: &str,
    object: &DynamicObject,
    why: &str,
) -> Result<(), Error> {
    let text = PhaseReason::Unreadable(why.to_owned()).to_string();
    if object.data.pointer("/status/phaseReason").and_then(|reason| reason.as_str()) == Some(&text) {
        return Ok(());
    }
    error!(%why, "group cannot be read");
    // Not by an apply, which would take everything else out of the status: the backups' addresses, by which sidecars fail over.
    let patch = json!({"status": {"phase": "Invalid", "phaseReason": text}});
    apply::merge_status(context, namespace, name, &patch).await
}

/// What log lines about a group say of it.
fn span(meta: &GroupMeta) -> Span {
    info_span!("reconcile", namespace = meta.namespace(), group = meta.name_any())
}

fn on_error(meta: Arc<GroupMeta>, failure: &ReconcileError, context: Arc<Context>) -> Action {
    let _entered = span(&meta).entered();
    let group = format!("{}/{}", meta.namespace().unwrap_or_default(), meta.name_any());
    let class = failure.class();
    let (failures, wait) = context.failures.add(&group, Instant::now(), |failures| class.wait(failures));
    match class {
        Class::Conflict | Class::Ending => info!(%failure, ?wait, "will retry"),
        _ => warn!(%failure, failures, ?wait, "reconcile failed"),
    }
    Action::requeue(wait)
}
