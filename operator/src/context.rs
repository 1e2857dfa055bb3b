//! What every reconcile uses: the client, what watches have brought, counters.
//!
//! Made by [`run`](crate::run), read by all that is called from [`controller`](crate::controller).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::runtime::events::Reporter;
use kube::runtime::reflector::Store;

use crate::metrics::Metrics;
use crate::observed::Settings;
use crate::probe::Prober;
use crate::server_version::ServerVersion;

/// What every reconcile uses.
pub struct Context {
    /// Speaks to the API server.
    pub client: Client,
    /// What it is.
    pub server: ServerVersion,
    /// From the options.
    pub settings: Settings,
    /// Every node.
    pub nodes: Store<Node>,
    /// Every pod: what they have asked for is what is no longer free.
    pub pods: Store<Pod>,
    /// Who writes events.
    pub reporter: Reporter,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Asks backups and primaries how they are, beside the reconciles.
    pub prober: Arc<Prober>,
    /// Failures in a row, by group.
    pub failures: Failures,
}

/// Failures in a row, by `namespace/name`.
#[derive(Debug, Default)]
pub struct Failures(Mutex<BTreeMap<String, u32>>);

impl Failures {
    /// One more; how many it is now.
    pub fn add(&self, group: &str) -> u32 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(group.to_owned()).or_default();
        *count = count.saturating_add(1);
        *count
    }

    /// It went well, or is gone.
    pub fn clear(&self, group: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(group);
    }
}
