//! The kind of cluster, which decides what chooses the users of pods. Detected once at the start, and passed as a value from
//! then on.

use anyhow::Context;
use clap::ValueEnum;
use kube::Client;
use serde::Deserialize;

/// API group of OpenShift's SecurityContextConstraints.
const OPENSHIFT_GROUP: &str = "security.openshift.io";

/// What chooses the users and groups of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// Pods choose, as in every cluster but OpenShift
    #[default]
    Kubernetes,
    /// The cluster chooses, from a range for each namespace, and refuses pods that name others
    // See <https://docs.openshift.com/container-platform/latest/authentication/managing-security-context-constraints.html>
    #[value(name = "openshift")]
    OpenShift,
}

impl Platform {
    /// Asks the API server. Everybody who is authenticated may do so.
    pub(crate) async fn detect(client: &Client) -> anyhow::Result<Platform> {
        let groups = client.list_api_groups().await.context("ask the API server for its API groups")?;
        let is_openshift = groups.groups.iter().any(|group| group.name == OPENSHIFT_GROUP);
        Ok(if is_openshift { Platform::OpenShift } else { Platform::Kubernetes })
    }
}
