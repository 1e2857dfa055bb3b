//! The watches: each keeps its part of the [`Cache`](crate::cache::Cache), and wakes the groups that a change may concern.
//!
//! Run by [`controller`](super).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::Lookup;
use kube::runtime::reflector::store::Writer;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::Instant;
use tracing::warn;

use crate::cache::{Group, GroupRef};
use crate::context::Context;
use crate::wake::{Wakes, concerned, digest};

/// Nodes change in bursts.
const NODES_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a watch has failed. All of a controller's watches share it: were it to grow, a dozen that have expired together,
/// since the API server was away, would make each other wait for minutes.
const WATCH_PAUSE: Duration = Duration::from_millis(250);
/// Seconds after which each watch is restarted from where it was. That detects a connection that has died silently. It costs
/// one request a minute for each of the seven watches, regardless of the number of groups.
const WATCH_SECONDS_MAX: u32 = 60;
/// Interrupted watches are logged at most so often.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

fn config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS_MAX)
}

/// The same pause each time.
pub(super) struct FixedPause;

impl Iterator for FixedPause {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(WATCH_PAUSE)
    }
}

impl Backoff for FixedPause {
    fn reset(&mut self) {}
}

/// Says now and then that a watch is interrupted: they are many while the API server is away.
#[derive(Debug, Default)]
pub(super) struct Interruptions(Option<Instant>);

impl Interruptions {
    pub(super) fn report(&mut self, of: &str, error: impl std::fmt::Display) {
        if self.0.is_none_or(|at| at.elapsed() > LOG_INTERVAL) {
            warn!(of, %error, "watch interrupted");
            self.0 = Some(Instant::now());
        }
    }
}

/// Groups about which something has changed that wakes them.
pub(super) fn groups(
    context: &Arc<Context>,
    api: Api<Group>,
    writer: Writer<Group>,
) -> impl Stream<Item = Result<Group, watcher::Error>> + Send + use<> {
    let context = Arc::clone(context);
    let watched = watcher(api, config()).modify(|group| group.managed_fields_mut().clear());
    let changed = reflect(watched, writer, move |event| match event {
        Event::Delete(group) => context.forget(&GroupRef::from_obj(group)),
        Event::InitDone => context.forget_missing(),
        _ => {}
    });
    changed.predicate_filter(|group: &Group| Some(digest(group)), Default::default())
}

/// Objects of groups of one kind that have changed.
pub(super) fn objects(
    api: Api<DynamicObject>,
    writer: Writer<DynamicObject>,
) -> impl Stream<Item = Result<DynamicObject, watcher::Error>> + Send + use<> {
    let ours = config().labels("app.kubernetes.io/managed-by=tailwind-operator");
    reflect(watcher(api, ours).modify(|object| object.managed_fields_mut().clear()), writer, |_| {})
}

/// Keeps a store, and passes on what has changed in it, once it is in there. What a new list brings is in there only when the
/// list is complete; passed on any earlier, it would be looked up too early, and seem to be as it was.
fn reflect<K>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send,
    mut writer: Writer<K>,
    mut applied: impl FnMut(&Event<K>) + Send,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send
where
    K: Lookup<DynamicType: Clone + Eq + std::hash::Hash + Send + Sync> + Clone + Send + Sync + 'static,
{
    let store = writer.as_reader();
    let changes = events.map(move |event| {
        let event = match event {
            Ok(event) => event,
            Err(error) => return stream::iter(vec![Err(error)]),
        };
        // What a new list lacks was deleted since the last one.
        let before = if matches!(event, Event::InitDone) { store.state() } else { Vec::new() };
        writer.apply_watcher_event(&event);
        applied(&event);
        let changed = match event {
            Event::Apply(object) | Event::Delete(object) => vec![Ok(object)],
            Event::InitDone => {
                before.into_iter().chain(store.state()).map(|object| Ok(object.as_ref().clone())).collect()
            }
            Event::Init | Event::InitApply(_) => Vec::new(),
        };
        stream::iter(changed)
    });
    changes.flatten()
}

/// Every pod of the cluster. Wakes the groups of those that change.
pub(super) async fn pods(context: &Context, wakes: &Wakes) {
    let events = watcher(Api::<Pod>::all(context.client.clone()), config()).backoff(FixedPause);
    let (mut events, mut interruptions) = (std::pin::pin!(events), Interruptions::default());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => wakes.add(context.cache.pods.apply(event)),
            Err(error) => interruptions.report("pods", error),
        }
    }
}

/// Every node. Wakes the groups that a change of some may concern, a little later: the next change is not far.
pub(super) async fn nodes(context: &Context, wakes: &Wakes) {
    let events = watcher(Api::<Node>::all(context.client.clone()), config()).backoff(FixedPause);
    let (mut events, mut interruptions) = (std::pin::pin!(events), Interruptions::default());
    let (mut changed, mut due) = (BTreeSet::new(), None);
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => changed.extend(context.cache.nodes.apply(event)),
                Some(Err(error)) => interruptions.report("nodes", error),
                None => return,
            },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                wakes.add(concerned(&context.cache, &context.last_looks, &changed));
                changed.clear();
                due = None;
            }
        }
        if !changed.is_empty() {
            due.get_or_insert_with(|| Instant::now() + NODES_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;

    fn group(name: &str, epoch: u64) -> Group {
        let log = json!({
            "id": "0", "epoch": epoch, "claim": "0", "version": 1,
            "primary": {"name": "kv-0", "control": "h:1"}, "members": [],
        });
        let value = json!({
            "apiVersion": "replication.tailwind.dev/v1alpha1", "kind": "ReplicaGroup",
            "metadata": {"namespace": "shop", "name": name, "uid": name}, "spec": {}, "status": {"log": log},
        });
        serde_json::from_value(value).unwrap()
    }

    fn epoch(group: &Group) -> u64 {
        group.0.as_ref().unwrap().status.as_ref().unwrap().log.as_ref().unwrap().epoch
    }

    /// A failover that happens while the watch is interrupted, and comes with a new list.
    #[test]
    fn a_change_is_passed_on_once_the_store_has_it() {
        let (events, mut received) = mpsc::unbounded_channel();
        let events_of = |more: Vec<Event<Group>>| more.into_iter().for_each(|event| events.send(Ok(event)).unwrap());
        let writer = Writer::default();
        let store = writer.as_reader();
        let watched = stream::poll_fn(move |context| received.poll_recv(context));
        let changed = reflect(watched, writer, |_| {});
        let changed = changed.predicate_filter(|group: &Group| Some(digest(group)), Default::default());
        let mut changed = std::pin::pin!(changed);
        let mut next = || {
            let changed = changed.next().now_or_never().flatten()?.unwrap();
            let at = GroupRef::from_obj(&changed);
            Some((at.name.clone(), store.get(&at).map(|stored| epoch(&stored))))
        };
        events_of(vec![Event::Init, Event::InitApply(group("a", 1)), Event::InitApply(group("b", 1))]);
        assert_eq!(next(), None);
        events_of(vec![Event::InitDone]);
        let mut first = [next().unwrap(), next().unwrap()];
        first.sort_unstable();
        assert_eq!(first, [("a".to_owned(), Some(1)), ("b".to_owned(), Some(1))]);
        events_of(vec![Event::Apply(group("a", 1))]);
        assert_eq!(next(), None, "nothing has changed");
        events_of(vec![Event::Init, Event::InitApply(group("a", 2))]);
        assert_eq!(next(), None, "the store still has the old one");
        events_of(vec![Event::InitDone]);
        assert_eq!(next(), Some(("a".to_owned(), Some(2))));
    }
}
