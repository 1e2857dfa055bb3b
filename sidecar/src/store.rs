//! The config store: where epoch, version, primary and members live, changed by compare-and-swap only.
//!
//! Asked by [`control`](crate::control). A [`mod@file`], for one host or several that share a folder; or the `status.log` of
//! a `ReplicaGroup`, [`kubernetes`](crate::kubernetes), where the API server's etcd decides.

pub mod file;

use std::time::{Duration, Instant};

use tailwind_protocol::config::{Configuration, Durability, PrimaryRef, Stamp, Swap, SwapOutcome};
use tailwind_protocol::ids::LogId;
use tailwind_protocol::layout::SegmentSize;
use tokio::sync::watch;

use crate::control::desired::DesiredState;
use crate::fabric::FabricOption;
use crate::kubernetes::{KubernetesStore, PrimaryAddress};

use file::{FileStore, Newest};

/// How often a watch looks whether a file has a successor.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);
/// How often it reads the content in any case: a file that an operator has put back may look like the one before.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// A group that has been found.
pub struct Joined {
    /// Its config store.
    pub store: Store,
    /// The part of it that never changes.
    pub shape: Shape,
    /// The part of it that may change.
    pub desired: watch::Receiver<DesiredState>,
    /// Keeps both up to date, and ends only by a panic: its owner ends the process then.
    pub watch_task: tokio::task::JoinHandle<()>,
}

/// The part of a group that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What an ack promises.
    pub durability: Durability,
    /// Size of segments.
    pub segment_size: SegmentSize,
    /// How bytes reach backups.
    pub fabric: FabricOption,
}

/// A config store.
#[derive(Clone, Debug)]
pub enum Store {
    /// A file, and its numbered successors.
    File(FileStore),
    /// A `ReplicaGroup`.
    Kubernetes(Box<KubernetesStore>),
}

impl Store {
    /// The content; the error is for people.
    pub async fn read(&self) -> Result<Option<Configuration>, String> {
        match self {
            Store::File(store) => store.in_turn(FileStore::read).await,
            Store::Kubernetes(store) => store.read().await,
        }
    }

    /// What to say of a store that has no content, to processes that only read it.
    pub fn nothing_yet(&self) -> String {
        match self {
            Store::File(store) => format!(
                "there is no config file {}: the first primary of the group makes it. If the group runs already, give the \
                 --group and --config of its sidecars",
                store.path().display()
            ),
            Store::Kubernetes(_) => "status.log of the ReplicaGroup is empty: the group has not started yet".to_owned(),
        }
    }

    /// Whether a look at it costs others nothing.
    pub fn is_a_file(&self) -> bool {
        matches!(self, Store::File(_))
    }

    /// Compare-and-swap.
    pub async fn swap(&self, swap: Swap) -> SwapOutcome {
        let outcome = match self {
            Store::File(store) => store.in_turn(move |store| store.swap(&swap)).await,
            Store::Kubernetes(store) => store.swap(&swap).await,
        };
        outcome.unwrap_or_else(|error| {
            let is_new = match self {
                Store::File(store) => store.is_new(&error),
                Store::Kubernetes(store) => store.is_new(&error),
            };
            if is_new {
                tracing::warn!(%error, "failed to swap the configuration");
            }
            SwapOutcome::Unknown
        })
    }

    /// What leads clients of this service to a sidecar while it is primary; only where the store is in Kubernetes.
    pub fn primary_address(&self, service: String, me: &PrimaryRef) -> Option<PrimaryAddress> {
        match self {
            Store::File(_) => None,
            Store::Kubernetes(store) => store.primary_address(service, me),
        }
    }

    /// Returns once the content is newer than `known`, or of another log, with that content: for processes that write nothing.
    pub async fn news(&self, known: Option<(LogId, Stamp)>) -> Configuration {
        match self {
            Store::Kubernetes(store) => store.news(known).await,
            Store::File(store) => differs(store, |config| Some((config.log, config.stamp())) != known).await,
        }
    }

    /// Returns once the content is newer than `known`, with that content.
    pub async fn changed(&self, known: Option<Stamp>) -> Configuration {
        match self {
            Store::Kubernetes(store) => store.changed(known).await,
            Store::File(store) => differs(store, |config| Some(config.stamp()) != known).await,
        }
    }
}

async fn differs(store: &FileStore, wanted: impl Fn(&Configuration) -> bool) -> Configuration {
    let mut unwanted: Option<(Newest, Instant)> = None;
    loop {
        // Before the content: what comes between the two is looked at again.
        let newest = store.in_turn(FileStore::newest).await.ok();
        let is_known =
            |(before, read_at): &(Newest, Instant)| newest == Some(*before) && read_at.elapsed() < READ_INTERVAL;
        if !unwanted.as_ref().is_some_and(is_known) {
            match store.in_turn(FileStore::read).await {
                Ok(Some(config)) if wanted(&config) => return config,
                Ok(_) => unwanted = newest.map(|newest| (newest, Instant::now())),
                Err(_) => unwanted = None,
            }
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}
