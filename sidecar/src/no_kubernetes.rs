//! What stands in the place of `kubernetes` in a build without that feature, such as `./quickstart`'s: types of which there is no
//! value, so that nothing else needs to know how it was built.

use std::convert::Infallible;
use std::str::FromStr;

use tailwind_protocol::config::{Configuration, PrimaryRef, Stamp, Swap, SwapOutcome};
use tailwind_protocol::ids::{GroupName, LogId};

use crate::store::Joined;

/// Where a group is, which cannot be said here.
#[derive(Clone, Debug)]
pub struct GroupPath {
    /// No group has one.
    pub name: GroupName,
    never: Infallible,
}

impl FromStr for GroupPath {
    type Err = &'static str;

    fn from_str(_: &str) -> Result<GroupPath, Self::Err> {
        Err(
            "this tailwind-sidecar was built without Kubernetes: build it with `--features tailwind-sidecar/kubernetes`",
        )
    }
}

/// Finds a group.
///
/// # Errors
/// None: nobody can ask for one.
pub async fn join(path: &GroupPath) -> anyhow::Result<Joined> {
    match path.never {}
}

/// A config store in a `ReplicaGroup`.
#[derive(Clone, Copy, Debug)]
pub enum KubernetesStore {}

impl KubernetesStore {
    /// The content.
    pub async fn read(&self) -> Result<Option<Configuration>, String> {
        match *self {}
    }

    /// Compare-and-swap.
    pub async fn swap(&self, _: &Swap) -> Result<SwapOutcome, String> {
        match *self {}
    }

    /// Whether an error has not just been logged.
    pub fn is_new(&self, _: &str) -> bool {
        match *self {}
    }

    /// A newer content.
    pub async fn changed(&self, _: Option<Stamp>) -> Configuration {
        match *self {}
    }

    /// A newer content, or one of another log.
    pub async fn news(&self, _: Option<(LogId, Stamp)>) -> Configuration {
        match *self {}
    }

    /// What leads clients to the primary.
    pub fn primary_address(&self, _: String, _: &PrimaryRef) -> Option<PrimaryAddress> {
        match *self {}
    }
}

/// Leads clients to the primary.
#[derive(Clone, Copy, Debug)]
pub enum PrimaryAddress {}

impl PrimaryAddress {
    /// Leads them here.
    pub async fn publish(&self, _: &Configuration) -> Infallible {
        match *self {}
    }

    /// No longer.
    pub async fn withdraw(&self, _: &Configuration) {
        match *self {}
    }
}
