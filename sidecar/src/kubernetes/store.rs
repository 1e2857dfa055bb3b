//! A config store in the `status.log` of a `ReplicaGroup`: the API server's etcd decides which writer wins.
//!
//! A swap is one JSON Patch (RFC 6902) on the status subresource: it tests what it expects and replaces `log`, in one
//! transaction of etcd. No Lease is involved: a sidecar that wrongly believes to be primary is stopped by its backups.
//! While the API server is away, nothing here succeeds and nothing of the append path waits for it: elections and changes
//! of the member set do. One watch tells of changes; a task of the process keeps it up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures_util::{StreamExt, TryStreamExt};
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation, ReplaceOperation, TestOperation};
use kube::api::{Patch, PatchParams};
use kube::core::Status;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use tailwind_crds::view::GroupView;
use tailwind_protocol::config::{Configuration, PrimaryRef, Stamp, Swap, SwapOutcome};
use tailwind_protocol::ids::LogId;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::logging::Repeats;
use crate::store::{Joined, Store};

use super::primary_address::PrimaryAddress;
use super::{FIELD_MANAGER, GroupPath, convert};

/// How long one request may take. Longer than any healthy API server needs, and short enough for a waiting user.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// A first content meets every other change of the object, such as the operator's, and is tried again so often.
const TRIES: usize = 10;
/// Pause before a watch that has failed begins again.
const WATCH_AGAIN: Duration = Duration::from_millis(500);
/// The same error is logged at most this often.
const LOG_AGAIN: Duration = Duration::from_secs(30);
/// The operator gives a pod's service account its rights once it has seen the pod. Before that a refusal is expected.
const RIGHTS_PATIENCE: Duration = Duration::from_secs(20);
/// A config store in a `ReplicaGroup`.
#[derive(Clone)]
pub struct KubernetesStore {
    client: Client,
    api: Api<GroupView>,
    path: GroupPath,
    seen: watch::Receiver<Option<Arc<GroupView>>>,
    /// While the API server is away, calls fail many times a second.
    logged: Arc<Mutex<Repeats<String>>>,
}

impl std::fmt::Debug for KubernetesStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("KubernetesStore").field(&self.path).finish()
    }
}

/// Finds a group, as this pod's service account may see it. Waits for as long as there is none.
pub async fn join(path: &GroupPath) -> anyhow::Result<Joined> {
    let config = Config::infer().await.context(
        "cannot reach the Kubernetes API: --replica-group needs a pod with a service account token, or a kubeconfig",
    )?;
    let client = client(config).context("make a client of the Kubernetes API")?;
    let api: Api<GroupView> = Api::namespaced(client.clone(), &path.namespace);
    let (seen_by, mut seen) = watch::channel(None);
    let watching = tokio::spawn(watch(api.clone(), path.clone(), seen_by));
    let group = first(&mut seen).await?;
    let shape = convert::shape(&group.spec)?;
    let (tell, desired) = watch::channel(convert::desired(&group));
    let mut news = seen.clone();
    let watch_task = tokio::spawn(async move {
        while news.changed().await.is_ok() {
            let Some(group) = news.borrow_and_update().clone() else { continue };
            let now = convert::desired(&group);
            tell.send_if_modified(|known| std::mem::replace(known, now.clone()) != now);
        }
        // The watch has ended, which only a panic can do.
        drop(watching.await);
    });
    let logged = Arc::new(Mutex::new(Repeats::every(LOG_AGAIN)));
    let store = Store::Kubernetes(Box::new(KubernetesStore { client, api, path: path.clone(), seen, logged }));
    Ok(Joined { store, shape, desired, watch_task })
}

/// A client that repeats nothing by itself, as one does by default: over an API server that answers "unavailable" it pauses for
/// twice as long each time, minutes in the end, and the watch with it, long after the server is back. Those who call repeat at
/// a pace of their own, and say what was answered.
fn client(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    Client::try_from(config)
}

async fn first(seen: &mut watch::Receiver<Option<Arc<GroupView>>>) -> anyhow::Result<Arc<GroupView>> {
    let found = seen.wait_for(Option::is_some).await.context("the watch of the ReplicaGroup has ended")?;
    found.clone().context("a group was waited for")
}

/// Keeps `seen` at the latest content until the process ends.
async fn watch(api: Api<GroupView>, path: GroupPath, seen: watch::Sender<Option<Arc<GroupView>>>) {
    let mut logged = Repeats::every(LOG_AGAIN);
    let began = Instant::now();
    let mut say = |why: String, is_forbidden: bool| match logged.is_due(why.clone(), Instant::now()) {
        true if is_forbidden && began.elapsed() < RIGHTS_PATIENCE => {
            tracing::info!(replica_group = %path, %why, "waiting for the operator to let this pod's service account read the ReplicaGroup");
        }
        true => tracing::warn!(replica_group = %path, %why, "failed to watch the ReplicaGroup"),
        false => {}
    };
    loop {
        let mut changes = watcher::watch_object(api.clone(), path.name.as_str()).default_backoff().boxed();
        loop {
            match changes.try_next().await {
                Ok(Some(Some(group))) => drop(seen.send_replace(Some(Arc::new(group)))),
                Ok(Some(None)) => say("there is no such ReplicaGroup".to_owned(), false),
                Ok(None) => break,
                Err(error) => {
                    match refusal(&error) {
                        // It has gone on where the API server does not remember any more, and begins with a list again.
                        Some(status) if status.code == 410 => {}
                        Some(status) => say(status.message.clone(), status.code == 403),
                        None => say(error.to_string(), false),
                    }
                    tokio::time::sleep(WATCH_AGAIN).await;
                }
            }
        }
    }
}

/// What the API server answered, if it is the one that refused.
fn refusal(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        _ => None,
    }
}

impl KubernetesStore {
    /// The content.
    pub async fn read(&self) -> Result<Option<Configuration>, String> {
        convert::configuration(&self.get().await?)
    }

    async fn get(&self) -> Result<GroupView, String> {
        let told = |why: String| format!("read ReplicaGroup {}: {why}", self.path);
        match timeout(REQUEST_TIMEOUT, self.api.get(self.path.name.as_str())).await {
            Ok(got) => got.map_err(|error| told(error.to_string())),
            Err(_) => Err(told(format!("no answer from the API server within {REQUEST_TIMEOUT:?}"))),
        }
    }

    /// What leads clients of this service to a sidecar of the group.
    pub fn primary_address(&self, service: String, me: &PrimaryRef) -> Option<PrimaryAddress> {
        PrimaryAddress::new(self.client.clone(), self.path.namespace.clone(), service, me)
    }

    /// True if an error has not just been logged.
    pub fn is_new(&self, error: &str) -> bool {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner).is_due(error.to_owned(), Instant::now())
    }

    /// Replaces the content if it is still the one that the swap expects. An error means that the outcome is unknown.
    pub async fn swap(&self, swap: &Swap) -> Result<SwapOutcome, String> {
        let mut refusal = String::new();
        for _ in 0..TRIES {
            let group = self.get().await?;
            let found = convert::configuration(&group)?;
            if !swap.expects(found.as_ref()) {
                return Ok(SwapOutcome::Conflict(found));
            }
            match self.patch(tests_and_replacement(&group, found.as_ref(), &swap.proposed)).await? {
                PatchResult::Done => return Ok(SwapOutcome::Applied),
                // Another writer was faster: its content is read in the next iteration.
                PatchResult::Refused(why) => refusal = why,
            }
        }
        Err(format!(
            "write status.log of ReplicaGroup {}: refused {TRIES} times, though it is as expected: {refusal}",
            self.path
        ))
    }

    async fn patch(&self, operations: Vec<PatchOperation>) -> Result<PatchResult, String> {
        let told = |why: String| format!("write status.log of ReplicaGroup {}: {why}", self.path);
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Json::<()>(JsonPatch(operations));
        match timeout(REQUEST_TIMEOUT, self.api.patch_status(self.path.name.as_str(), &params, &patch)).await {
            Ok(Ok(_)) => Ok(PatchResult::Done),
            // "test" failed: 422 (Invalid). Or another writer came between the API server's own read and write: 409.
            Ok(Err(kube::Error::Api(status))) if status.code == 422 || status.code == 409 => {
                Ok(PatchResult::Refused(status.message))
            }
            Ok(Err(error)) => Err(told(error.to_string())),
            Err(_) => Err(told(format!("no answer from the API server within {REQUEST_TIMEOUT:?}"))),
        }
    }

    /// Returns once the content is newer than `known`, with that content. What the watch says may be older than what a
    /// swap of ours has just done; older contents are no news.
    pub async fn changed(&self, known: Option<Stamp>) -> Configuration {
        self.shows(|config| Some(config.stamp()) > known).await
    }

    /// The same for a process that writes nothing; also returns once the content is of another log, because the object was
    /// recreated.
    pub async fn news(&self, known: Option<(LogId, Stamp)>) -> Configuration {
        self.shows(|config| known.is_none_or(|(log, stamp)| config.log != log || config.stamp() > stamp)).await
    }

    /// Returns once the content is such a one.
    async fn shows(&self, wanted: impl Fn(&Configuration) -> bool) -> Configuration {
        let mut seen = self.seen.clone();
        loop {
            let content = seen.borrow_and_update().as_ref().map(|group| convert::configuration(group));
            match content {
                Some(Ok(Some(config))) if wanted(&config) => return config,
                Some(Err(error)) => tracing::warn!(%error, "failed to read the configuration"),
                _ => {}
            }
            if seen.changed().await.is_err() {
                // The process ends with its watch.
                std::future::pending::<()>().await;
            }
        }
    }
}

enum PatchResult {
    Done,
    Refused(String),
}

/// The first content has nothing to be compared with but the object as a whole.
fn tests_and_replacement(
    group: &GroupView,
    found: Option<&Configuration>,
    proposed: &Configuration,
) -> Vec<PatchOperation> {
    let test = |path: &[&str], value: Value| {
        PatchOperation::Test(TestOperation { path: PointerBuf::from_tokens(path.iter().copied()), value })
    };
    let log = json!(convert::log_status(proposed));
    let place = PointerBuf::from_tokens(["status", "log"]);
    match found {
        Some(found) => vec![
            test(&["status", "log", "id"], json!(found.log.to_string())),
            test(&["status", "log", "epoch"], json!(found.epoch.0)),
            test(&["status", "log", "version"], json!(found.version.0)),
            PatchOperation::Replace(ReplaceOperation { path: place, value: log }),
        ],
        None => {
            let same = test(&["metadata", "resourceVersion"], json!(group.resource_version()));
            let add = match group.status {
                Some(_) => AddOperation { path: place, value: log },
                None => AddOperation { path: PointerBuf::from_tokens(["status"]), value: json!({ "log": log }) },
            };
            vec![same, PatchOperation::Add(add)]
        }
    }
}

#[cfg(test)]
mod tests;
