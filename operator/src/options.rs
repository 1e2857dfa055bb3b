//! Options of `tailwind-operator run`: each has a flag and an environment variable.

use std::net::SocketAddr;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use crate::platform::Platform;

/// Be the operator.
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// Image of sidecars and backups
    #[arg(long, env = "TAILWIND_SIDECAR_IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub sidecar_image: String,
    /// When their image is pulled: Always, IfNotPresent or Never; Kubernetes decides by the tag if not given
    #[arg(long, env = "TAILWIND_IMAGE_PULL_POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub image_pull_policy: Option<String>,
    /// Who chooses the users and groups of pods: pods themselves, or OpenShift, which refuses pods that name some; asked of the
    /// API server if not given
    #[arg(long, env = "TAILWIND_PLATFORM", value_enum)]
    pub platform: Option<Platform>,
    /// Where /healthz, /readyz and /metrics are served; [::] is every address, IPv4 too
    #[arg(long, env = "TAILWIND_LISTEN", default_value = "[::]:8080", value_name = "IP:PORT")]
    pub listen: SocketAddr,
    /// Where the injection webhook is served, over TLS
    #[arg(long, env = "TAILWIND_WEBHOOK_LISTEN", default_value = "[::]:8443", value_name = "IP:PORT")]
    pub webhook_listen: SocketAddr,
    /// The service in front of the webhook, in the operator's own namespace; no webhook if not given
    #[arg(long, env = "TAILWIND_WEBHOOK_SERVICE", requires = "webhook_configuration")]
    pub webhook_service: Option<String>,
    /// The MutatingWebhookConfiguration that is told whom to trust
    #[arg(long, env = "TAILWIND_WEBHOOK_CONFIGURATION", requires = "webhook_service")]
    pub webhook_configuration: Option<String>,
    /// A name or address, beside the service's own, that API servers reach the webhook at
    #[arg(long, env = "TAILWIND_WEBHOOK_NAME", value_delimiter = ',', value_name = "NAME")]
    pub webhook_name: Vec<String>,
    /// Look after the groups of this namespace alone; of all if not given
    #[arg(long, env = "TAILWIND_WATCH_NAMESPACE")]
    pub watch_namespace: Option<String>,
    /// The Lease, in the operator's own namespace, whose holder is the one that writes
    #[arg(long, env = "TAILWIND_LEASE_NAME", default_value = "tailwind-operator")]
    pub lease_name: String,
    /// Groups that are worked on at a time
    #[arg(long, env = "TAILWIND_CONCURRENCY", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// This pod's name
    #[arg(long, env = "POD_NAME", default_value = "tailwind-operator")]
    pub pod_name: String,
    /// This pod's namespace
    #[arg(long, env = "POD_NAMESPACE", default_value = "tailwind-system")]
    pub pod_namespace: String,
}

/// What concerns every group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Image of sidecars and backups.
    pub sidecar_image: String,
    /// When it is pulled.
    pub image_pull_policy: Option<String>,
    /// Who chooses users and groups of pods.
    pub platform: Platform,
}

impl RunOptions {
    /// What plans depend on.
    pub fn settings(&self, platform: Platform) -> Settings {
        Settings {
            sidecar_image: self.sidecar_image.clone(),
            image_pull_policy: self.image_pull_policy.clone(),
            platform,
        }
    }
}
