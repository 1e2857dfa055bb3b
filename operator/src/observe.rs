//! Sees one group and what surrounds it.
//!
//! Called by [`controller`](crate::controller), which looks twice. A [`glance`] at what watches have brought tells
//! whether anything is to be done; it costs the API server nothing. If so, everything that decides about the life of a pod is
//! [read again](observe): a watch may lag, and a pod that it does not show yet would be made twice. Nodes and what is used on
//! them always come from watches; they only show where the scheduler may find room.

use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use serde_json::json;
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::{
    LABEL_BACKUP_OF, LABEL_GROUP, LABEL_READS, backup_secret, ca_secret, reader_secret, sidecar_secret,
};

use crate::apply::leaving::call_off;
use crate::cache::GroupRef;
use crate::context::Context;
use crate::error::{Doing, Error};
use crate::installation::Ownership;
use crate::objects::{Kind, Owned, flush, is_owned};
use crate::observed::{Certificates, Observed, has_ended, is_healthy, is_leaving, is_running, is_true};
use crate::plan::READERS_SHOWN_MAX;
use crate::probe::is_running_unready;
use crate::secrets;
use crate::wake::digest_of;

/// Enough for the most pods that can be missing at once, and names that are taken.
const NAMES: usize = 16;
/// The characters of pods' names, as Kubernetes has them: no vowels, so that no words appear.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A group, as far as it can be observed.
pub(crate) enum Observation {
    Missing,
    /// It is for operators of another class.
    OtherClass,
    /// Another installation manages it.
    Refused {
        object: Box<DynamicObject>,
        owner: String,
    },
    /// It does not fit the definition: it was stored under another one.
    Unreadable {
        object: Box<DynamicObject>,
        why: String,
        /// What its metadata tells: its certificates, and its app's pods.
        observed: Box<Observed>,
    },
    Complete(Box<Observed>),
}

/// What decides about a group, apart from what is known of nodes and what pods report.
struct Seen {
    group: ReplicaGroup,
    /// Pods that say that they are backups of it, those of its app, and those that read it.
    pods: [Vec<Pod>; 3],
    objects: Vec<Owned>,
    certificates: Certificates,
}

/// A group as watches show it. Nothing if they do not, if it cannot be read, or if the last look at the API server was before
/// the last change that wakes the group, or long ago: secrets may not be watched, and a watch may have missed something. Nor while a
/// deletion may be on its way.
pub(crate) async fn glance(context: &Context, at: &GroupRef) -> Option<Box<Observed>> {
    let group = context.cache.groups.get(at)?.0.clone().ok()?;
    let (namespace, name) = (at.namespace.as_deref()?, at.name.as_str());
    let certificates = context.last_looks.certificates(at, digest_of(&group), Instant::now())?;
    let pods = context.cache.pods_of(namespace, name);
    let [backups, ..] = &pods;
    if backups.iter().any(|pod| is_leaving(pod) && is_owned(&group, &pod.metadata)) {
        return None;
    }
    let objects = context.cache.objects_of(namespace, name);
    Some(complete(context, Seen { group, pods, objects, certificates }).await)
}

/// A group as the API server has it now.
pub(crate) async fn observe(context: &Context, at: &GroupRef) -> Result<Observation, Error> {
    let client = &context.client;
    let (namespace, name) = (at.namespace.as_deref().unwrap_or_default(), at.name.as_str());
    let resource = ApiResource::erase::<ReplicaGroup>(&());
    let groups: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let found = groups.get_opt(name).await.doing(|| format!("read replicagroup {name}"))?;
    let Some(mut object) = found else { return Ok(Observation::Missing) };
    match context.installation.ownership(&object) {
        Ownership::Ours => {}
        Ownership::Unclaimed => object = context.installation.record(&groups, &object, true).await?,
        Ownership::OtherClass => return Ok(Observation::OtherClass),
        Ownership::GivenUp => {
            context.installation.record(&groups, &object, false).await?;
            return Ok(Observation::OtherClass);
        }
        Ownership::Other(owner) => return Ok(Observation::Refused { object: Box::new(object), owner }),
    }
    let group: ReplicaGroup = match serde_json::to_value(&object).and_then(serde_json::from_value) {
        Ok(group) => group,
        Err(error) => return unreadable(context, at, object, error.to_string()).await,
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let labelled = |label: &str| ListParams::default().labels(&format!("{label}={name}"));
    let [of_backups, of_app, of_readers] = [LABEL_BACKUP_OF, LABEL_GROUP, LABEL_READS].map(labelled);
    let (backups, app, readers, certificates, objects) = futures_util::join!(
        pods.list(&of_backups),
        pods.list(&of_app),
        pods.list(&of_readers),
        certificates_of(context, at, &group),
        objects(context, namespace, name),
    );
    let claims = claims(context, &group, namespace, name).await;
    let backups = backups.doing(|| "list backup pods".to_owned())?.items;
    let backups = call_off(&pods, &group, backups, Timestamp::now() + context.clock.ahead()).await?;
    let app = app.doing(|| "list the app's pods".to_owned())?.items;
    let readers = readers.doing(|| "list the pods that read".to_owned())?.items;
    let (certificates, mut objects) = (certificates?, objects?);
    objects.extend(claims?);
    let seen = Seen { group, pods: [backups, app, readers], objects, certificates };
    Ok(Observation::Complete(complete(context, seen).await))
}

/// A group of which only the metadata is known.
async fn unreadable(
    context: &Context,
    at: &GroupRef,
    object: DynamicObject,
    why: String,
) -> Result<Observation, Error> {
    let group = json!({"metadata": object.metadata, "spec": {}});
    let group: ReplicaGroup =
        serde_json::from_value(group).map_err(kube::Error::SerdeError).doing(|| "read its metadata".to_owned())?;
    let namespace = at.namespace.as_deref().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let of_app = ListParams::default().labels(&format!("{LABEL_GROUP}={}", at.name));
    let app = pods.list(&of_app).await.doing(|| "list the app's pods".to_owned())?.items;
    let certificates = certificates_of(context, at, &group).await?;
    let seen = Seen { group, pods: [Vec::new(), app, Vec::new()], objects: Vec::new(), certificates };
    let observed = complete(context, seen).await;
    Ok(Observation::Unreadable { object: Box::new(object), why, observed })
}

async fn certificates_of(context: &Context, at: &GroupRef, group: &ReplicaGroup) -> Result<Certificates, Error> {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), at.namespace.as_deref().unwrap_or_default());
    let (asked, name) = (Instant::now(), at.name.as_str());
    let [authority, sidecar, backup, reader] =
        [ca_secret(name), sidecar_secret(name), backup_secret(name), reader_secret(name)];
    let (authority, sidecar, backup, reader) = futures_util::join!(
        secrets.get_opt(&authority),
        secrets.get_opt(&sidecar),
        secrets.get_opt(&backup),
        secrets.get_opt(&reader),
    );
    let read = |found: Result<Option<Secret>, kube::Error>| found.doing(|| "read secrets".to_owned());
    let secrets = [read(authority)?, read(sidecar)?, read(backup)?, read(reader)?];
    let certificates = secrets::facts(group, secrets.each_ref().map(Option::as_ref), Timestamp::now());
    context.last_looks.keep_certificates(at, digest_of(group), asked, certificates.clone());
    Ok(certificates)
}

/// Adds what is known of nodes, and what pods report.
async fn complete(context: &Context, seen: Seen) -> Box<Observed> {
    let Seen { group, pods: [backups, app, mut readers], objects, certificates } = seen;
    // A label is easily copied; only pods of this very group are touched.
    let (backups, strangers): (Vec<Pod>, Vec<Pod>) =
        backups.into_iter().partition(|pod| is_owned(&group, &pod.metadata));
    let strangers = strangers.iter().filter(|pod| is_healthy(pod)).count();
    // One that belongs to an app as well has the sidecar of that.
    readers.retain(|pod| !has_ended(pod) && !pod.labels().contains_key(LABEL_GROUP));
    readers.sort_by_key(ResourceExt::name_any);
    let name = &group.name_any();
    let log = group.status.as_ref().and_then(|status| status.log.as_ref());
    let primary = log.and_then(|log| app.iter().find(|pod| pod.name_any() == log.primary.name));
    // Also those that run and are not ready: one whose device has failed says what it keeps. One that has just been started does
    // not listen yet, and is not expected to.
    let is_member = |pod: &Pod| log.is_some_and(|log| log.has_member(&pod.name_any()));
    let is_asked = |pod: &&Pod| is_true(pod, "ContainersReady") || is_running_unready(pod) || is_member(pod);
    let readers_shown = readers.iter().take(READERS_SHOWN_MAX);
    let (sidecars, reader_sidecars, obstacles, reports) = futures_util::join!(
        context.prober.sidecar_reports(name, app.iter().filter(|pod| is_running(pod))),
        context.prober.sidecar_reports(name, readers_shown.filter(|pod| is_running(pod))),
        context.prober.obstacles(&backups),
        context.prober.backup_reports(name, backups.iter().filter(is_asked)),
    );
    // Without a report the status keeps the last positions.
    let positions = primary.and_then(|pod| sidecars.get(&pod.name_any())?.as_ref().ok()?.positions);
    // Both by the API server's clock, which has dated all else.
    let ahead = context.clock.ahead();
    let mut nodes = context.cache.node_facts();
    for marked_since in nodes.iter_mut().filter_map(|node| node.marked_since.as_mut()) {
        *marked_since += ahead;
    }
    Box::new(Observed {
        now: Timestamp::now() + ahead,
        server: context.server,
        settings: context.settings.clone(),
        backups,
        strangers,
        app,
        readers,
        nodes,
        certificates,
        objects,
        names: names(),
        positions,
        obstacles,
        reports,
        may_update: false,
        sidecars,
        reader_sidecars,
        group,
    })
}

async fn objects(context: &Context, namespace: &str, group: &str) -> Result<Vec<Owned>, Error> {
    let mut objects = Vec::new();
    let named = Kind::ALL.into_iter().flat_map(|kind| kind.names(group).into_iter().map(move |name| (kind, name)));
    let lookups = named.map(|(kind, name)| {
        let resource = kind.resource(context.server);
        let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &resource);
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

/// The claims of the group's members. Most groups have none, and cost no request.
async fn claims(context: &Context, group: &ReplicaGroup, namespace: &str, name: &str) -> Result<Vec<Owned>, Error> {
    if !flush::has_claim(&group.spec) && context.cache.claims_of(namespace, name).is_empty() {
        return Ok(Vec::new());
    }
    let resource = Kind::Claim.resource(context.server);
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &resource);
    let params = ListParams::default().labels(&format!("{LABEL_BACKUP_OF}={name}"));
    let claims = api.list(&params).await.doing(|| "list claims".to_owned())?;
    Ok(claims.items.into_iter().map(|object| Owned { kind: Kind::Claim, object }).collect())
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
