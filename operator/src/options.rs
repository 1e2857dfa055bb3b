//! Options of `tailwind-operator run`: each has a flag and an environment variable.

use std::net::SocketAddr;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use tailwind_crds::ReplicaGroupSpec;

use crate::installation::{self, Installation};

use crate::platform::Platform;

/// Be the operator.
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// Image of sidecars and backups, where a group's spec.image pins no other
    #[arg(long, env = "TAILWIND_SIDECAR_IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub sidecar_image: String,
    /// When their image is pulled: Always, IfNotPresent or Never; Kubernetes decides by the tag if not given
    #[arg(long, env = "TAILWIND_IMAGE_PULL_POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub image_pull_policy: Option<String>,
    /// Who chooses the users and groups of pods: pods themselves, or OpenShift, which refuses pods that name some; asked of the
    /// API server if not given
    #[arg(long, env = "TAILWIND_PLATFORM", value_enum)]
    pub platform: Option<Platform>,
    /// Where /healthz, /readyz and /metrics are served; `[::]` is every address, IPv4 too
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
    /// Groups whose backups are replaced at a time because of an older spec or image; the others wait. Drains, failures and
    /// changes of spec.backups do not wait
    #[arg(long, env = "TAILWIND_MAX_CONCURRENT_ROLLOUTS", default_value_t = 3, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub max_concurrent_rollouts: u16,
    /// Manage groups with this spec.operatorClass, and leave all others alone; if not given, those without a class
    #[arg(long, env = "TAILWIND_CLASS", value_name = "CLASS", value_parser = installation::class)]
    pub class: Option<String>,
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
    /// Image of sidecars and backups, where a group pins no other.
    pub sidecar_image: String,
    /// When it is pulled.
    pub image_pull_policy: Option<String>,
    /// Who chooses users and groups of pods.
    pub platform: Platform,
}

impl Settings {
    /// The image of a group's sidecars and backups.
    pub fn image<'a>(&'a self, spec: &'a ReplicaGroupSpec) -> &'a str {
        spec.image.as_deref().unwrap_or(&self.sidecar_image)
    }
}

impl RunOptions {
    /// What this installation is called, and which groups are its own.
    pub fn installation(&self) -> Installation {
        let name = format!("{}/{}", self.pod_namespace, self.lease_name);
        Installation { name, class: self.class.clone() }
    }

    /// What plans depend on.
    pub fn settings(&self, platform: Platform) -> Settings {
        Settings {
            sidecar_image: self.sidecar_image.clone(),
            image_pull_policy: self.image_pull_policy.clone(),
            platform,
        }
    }
}
