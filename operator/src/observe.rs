//! Reads one group and what surrounds it from the API server.
//!
//! Called by [`controller`](crate::controller) at the start of each reconcile. Whatever decides about the life of a pod is
//! read anew each time: a watch may lag, and a pod that it does not show yet would be made twice. Nodes and what is used on
//! them come from watches; they only show where the scheduler may find room.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::{LABEL_BACKUP_OF, LABEL_GROUP, backup_secret, ca_secret, sidecar_secret};

use crate::capacity;
use crate::context::Context;
use crate::error::{Doing, Error};
use crate::objects::{Kind, Owned};
use crate::observed::{Observed, is_running, is_true};
use crate::secrets;

/// Enough for the most pods that can be missing at once, and names that are taken.
const NAMES: usize = 16;
/// Of pods' names, as Kubernetes has them: no vowels, so that no words appear.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A group, as far as it can be observed.
pub(crate) enum Observation {
    Missing,
    /// It does not fit the definition: it was stored under another one.
    Unreadable {
        object: Box<DynamicObject>,
        why: String,
    },
    Complete(Box<Observed>),
}

pub(crate) async fn observe(context: &Context, namespace: &str, name: &str) -> Result<Observation, Error> {
    let client = &context.client;
    let resource = ApiResource::erase::<ReplicaGroup>(&());
    let groups: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let found = groups.get_opt(name).await.doing(|| format!("read replicagroup {name}"))?;
    let Some(object) = found else { return Ok(Observation::Missing) };
    let group: ReplicaGroup = match serde_json::to_value(&object).and_then(serde_json::from_value) {
        Ok(group) => group,
        Err(error) => return Ok(Observation::Unreadable { object: Box::new(object), why: error.to_string() }),
    };

    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let secrets_api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let labelled = |label: &str| ListParams::default().labels(&format!("{label}={name}"));
    let (of_backups, of_app) = (labelled(LABEL_BACKUP_OF), labelled(LABEL_GROUP));
    let (authority, sidecar, backup) = (ca_secret(name), sidecar_secret(name), backup_secret(name));
    let (backups, app, authority, sidecar, backup, objects) = futures_util::join!(
        pods.list(&of_backups),
        pods.list(&of_app),
        secrets_api.get_opt(&authority),
        secrets_api.get_opt(&sidecar),
        secrets_api.get_opt(&backup),
        objects(context, namespace, name),
    );
    let mut backups = backups.doing(|| "list backup pods".to_owned())?.items;
    // A label is easily copied; only pods of this very group are touched.
    backups.retain(|pod| crate::objects::is_owned(&group, &pod.metadata));
    let app = app.doing(|| "list the app's pods".to_owned())?.items;
    let secret = || "read secrets".to_owned();
    let [authority, sidecar, backup] = [authority.doing(secret)?, sidecar.doing(secret)?, backup.doing(secret)?];

    let now = Timestamp::now();
    let certificates = secrets::facts(&group, [authority.as_ref(), sidecar.as_ref(), backup.as_ref()], now);
    let nodes = context.nodes.state();
    let all_pods = context.pods.state();
    let nodes = capacity::nodes(nodes.iter().map(AsRef::as_ref), all_pods.iter().map(AsRef::as_ref));

    let log = group.status.as_ref().and_then(|status| status.log.as_ref());
    let primary = log.and_then(|log| app.iter().find(|pod| pod.name_any() == log.primary.name));
    // A backup that has just been started does not listen yet.
    let is_asked =
        |pod: &&Pod| is_true(pod, "ContainersReady") || log.is_some_and(|log| log.has_member(&pod.name_any()));
    let (sidecars, obstacles, reports) = futures_util::join!(
        context.prober.sidecar_reports(name, app.iter().filter(|pod| is_running(pod))),
        context.prober.obstacles(&backups),
        context.prober.backup_reports(name, backups.iter().filter(is_asked)),
    );
    // Without a report the status keeps the last positions.
    let positions = primary.and_then(|pod| sidecars.get(&pod.name_any())?.as_ref().ok()?.positions);
    Ok(Observation::Complete(Box::new(Observed {
        now,
        server: context.server,
        settings: context.settings.clone(),
        backups,
        app,
        nodes,
        certificates,
        objects: objects?,
        names: names(),
        positions,
        obstacles,
        reports,
        sidecars,
        group,
    })))
}

async fn objects(context: &Context, namespace: &str, group: &str) -> Result<Vec<Owned>, Error> {
    let mut objects = Vec::new();
    let lookups = Kind::ALL.into_iter().map(|kind| {
        let resource = kind.resource(context.server);
        let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &resource);
        let name = kind.name(group);
        async move {
            let found = api.get_opt(&name).await.doing(|| format!("read {} {name}", kind.as_str()))?;
            Ok::<_, Error>(found.map(|object| Owned { kind, object }))
        }
    });
    for found in futures_util::future::join_all(lookups).await {
        objects.extend(found?);
    }
    Ok(objects)
}

/// Random names for pods. Without randomness there are none, and no pod is made until there are.
fn names() -> Vec<String> {
    let mut bytes = [0_u8; NAMES * 5];
    if let Err(error) = getrandom::fill(&mut bytes) {
        tracing::error!(%error, "no random bytes for names of pods");
        return Vec::new();
    }
    let letter = |byte: &u8| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]);
    bytes.chunks(5).map(|chunk| chunk.iter().map(letter).collect()).collect()
}
