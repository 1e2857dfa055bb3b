//! Options of `tailwind-operator run`: each has a flag and an environment variable.

use std::net::SocketAddr;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use tailwind_crds::ReplicaGroupSpec;

use crate::installation::{self, Installation};

use crate::platform::Platform;

/// Run the operator.
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// Image of sidecars and backups, unless a group's spec.image names another
    #[arg(long, env = "TAILWIND_SIDECAR_IMAGE", value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub sidecar_image: String,
    /// When that image is pulled; if not given, Kubernetes decides by the tag
    #[arg(long, env = "TAILWIND_IMAGE_PULL_POLICY", value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub image_pull_policy: Option<String>,
    /// The kind of cluster, which decides who chooses the users and groups of pods; if not given, the API server is asked
    #[arg(long, env = "TAILWIND_PLATFORM", value_enum)]
    pub platform: Option<Platform>,
    /// Where /healthz, /readyz and /metrics are served; `[::]` means every address, IPv4 included
    #[arg(long, env = "TAILWIND_LISTEN", default_value = "[::]:8080", value_name = "IP:PORT")]
    pub listen: SocketAddr,
    /// Where the injection webhook is served, over TLS
    #[arg(long, env = "TAILWIND_WEBHOOK_LISTEN", default_value = "[::]:8443", value_name = "IP:PORT")]
    pub webhook_listen: SocketAddr,
    /// The service in front of the webhook, in the operator's own namespace; no webhook if not given
    #[arg(long, env = "TAILWIND_WEBHOOK_SERVICE", value_name = "NAME", requires = "webhook_configuration")]
    pub webhook_service: Option<String>,
    /// The MutatingWebhookConfiguration in which the operator keeps the webhook's CA certificate; needed with --webhook-service
    #[arg(long, env = "TAILWIND_WEBHOOK_CONFIGURATION", value_name = "NAME", requires = "webhook_service")]
    pub webhook_configuration: Option<String>,
    /// Another name or address, besides the service's own, at which API servers reach the webhook
    #[arg(long, env = "TAILWIND_WEBHOOK_NAME", value_delimiter = ',', value_name = "NAME")]
    pub webhook_name: Vec<String>,
    /// Manage only the groups in this namespace; if not given, those in all namespaces
    #[arg(long, env = "TAILWIND_WATCH_NAMESPACE", value_name = "NAMESPACE")]
    pub watch_namespace: Option<String>,
    /// The Lease, in the operator's own namespace, by which one of its replicas is elected to write
    #[arg(long, env = "TAILWIND_LEASE_NAME", value_name = "NAME", default_value = "tailwind-operator")]
    pub lease_name: String,
    /// Number of groups whose backups are replaced at the same time because of an older spec or image; the others wait. Drains,
    /// failures and changes of spec.backups do not wait
    #[arg(long, env = "TAILWIND_MAX_CONCURRENT_ROLLOUTS", default_value_t = 3, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub max_concurrent_rollouts: u16,
    /// Keys of taints that say that a node is about to go or to be emptied: backups leave such nodes. Any other taint, and a cordon,
    /// only keeps new pods off; see spec.nodeMaintenance
    #[arg(long, env = "TAILWIND_DRAIN_TAINTS", value_name = "KEY,...", value_delimiter = ',', default_values = DRAIN_TAINTS)]
    pub drain_taints: Vec<String>,
    /// Manage only groups with this spec.operatorClass; if not given, only those without a class
    #[arg(long, env = "TAILWIND_CLASS", value_name = "CLASS", value_parser = installation::class)]
    pub class: Option<String>,
    /// Number of groups that are reconciled at the same time
    #[arg(long, env = "TAILWIND_CONCURRENCY", default_value_t = 8, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// This pod's name
    #[arg(long, env = "POD_NAME", value_name = "NAME", default_value = "tailwind-operator")]
    pub pod_name: String,
    /// This pod's namespace
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = "tailwind-system")]
    pub pod_namespace: String,
}

/// Taints that the Cluster Autoscaler, Karpenter, GKE, the AWS Node Termination Handler, the node maintenance operator of medik8s
/// and administrators (`out-of-service`) put on nodes that are about to go.
const DRAIN_TAINTS: [&str; 10] = [
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "medik8s.io/drain",
    "node.kubernetes.io/out-of-service",
    "node.cloudprovider.kubernetes.io/shutdown",
];

/// Settings that concern every group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Image of sidecars and backups, where a group pins no other.
    pub sidecar_image: String,
    /// When it is pulled.
    pub image_pull_policy: Option<String>,
    /// What chooses the users and groups of pods.
    pub platform: Platform,
    /// Keys of taints that say that a node is about to go.
    pub drain_taints: Vec<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sidecar_image: String::new(),
            image_pull_policy: None,
            platform: Platform::default(),
            drain_taints: DRAIN_TAINTS.map(str::to_owned).to_vec(),
        }
    }
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
            drain_taints: self.drain_taints.clone(),
        }
    }
}
