//! The webhook that gives app pods their sidecar. Users label the pods that want one; other pods are not looked at.
//!
//! Run by [`run`](crate::run) on every replica, with the lease and without: [`certificate`] keeps what API servers trust,
//! [`server`] answers them, [`inject`] is the pure part.

pub mod certificate;
pub mod inject;
pub mod server;

use std::sync::Arc;

use kube::Client;

use crate::health::Readiness;
use crate::metrics::Metrics;
use crate::options::{RunOptions, Settings};
use crate::server_version::ServerVersion;

/// Serves until the process ends; does nothing if it is not wanted.
pub async fn run(
    client: Client,
    options: &RunOptions,
    settings: Settings,
    version: ServerVersion,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
) -> anyhow::Result<()> {
    let (Some(service), Some(configuration)) = (&options.webhook_service, &options.webhook_configuration) else {
        return std::future::pending().await;
    };
    let serving = Arc::new(certificate::ServingCertificate::default());
    let rotator = certificate::CertificateRotator::new(
        client.clone(),
        &options.pod_namespace,
        service,
        configuration,
        &options.webhook_name,
        Arc::clone(&serving),
        readiness,
    );
    let installation = options.installation();
    let webhook = server::Webhook { client, settings, installation, version, metrics };
    tokio::select! {
        never = rotator.run() => match never {},
        result = server::serve(options.webhook_listen, webhook, serving) => result,
    }
}
