//! `tailwind-operator run`: health from the first moment on, the webhook on every replica, reconciles on one.
//!
//! Called by `main`. Every task that is started here ends the process when it ends.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kube::api::{Api, ListParams, PartialObjectMeta};
use kube::runtime::events::{Recorder, Reporter};
use kube::{Client, Config};
use tailwind_crds::ReplicaGroup;
use tailwind_runtime::process::Signals;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::api_requests::{counted_client, unrepeating_client};
use crate::cache::Cache;
use crate::context::{Context, Failures};
use crate::health::{self, Readiness};
use crate::installation::Installation;
use crate::last_look::LastLooks;
use crate::lease::LeaderElector;
use crate::metrics::Metrics;
use crate::options::{RunOptions, Settings};
use crate::platform::Platform;
use crate::probe::Prober;
use crate::rollout_turns::RolloutTurns;
use crate::server_clock::ServerClock;
use crate::server_version::ServerVersion;
use crate::wake::Wakes;
use crate::{controller, webhook};

/// Between two looks for the definition of ReplicaGroup.
const DEFINITION_WAIT: Duration = Duration::from_secs(5);

/// Runs until a signal ends it. After an error the process should be restarted.
pub async fn run(options: RunOptions) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let metrics = Arc::new(Metrics::default());
    let readiness = Arc::new(Readiness::default());
    readiness.set_unready("api server", "not connected yet");
    let health = health::serve(options.listen, Arc::clone(&metrics), Arc::clone(&readiness));
    let work = work(options, metrics, readiness);
    let (stop, stopped) = watch::channel(false);
    let mut work = std::pin::pin!(work(stopped));
    tokio::select! {
        result = health => return result.context("--listen").and(Err(anyhow!("the metrics endpoint has ended"))),
        result = &mut work => return result,
        signal = signals.next() => info!(signal, "ending"),
    }
    // Reconciles that run come to their end, and the lease is released.
    stop.send_replace(true);
    work.await
}

fn work(
    options: RunOptions,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
) -> impl FnOnce(watch::Receiver<bool>) -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>> {
    move |stopped| {
        Box::pin(async move {
            let config = Config::infer().await.context("find the API server: run in a pod, or with a kubeconfig")?;
            let clock = Arc::default();
            let client = counted_client(config.clone(), &metrics, &clock).context("make a client of the API server")?;
            let info = client.apiserver_version().await.context("ask the API server for its version")?;
            let server = ServerVersion::try_from(&info).map_err(anyhow::Error::msg)?;
            readiness.set_ready("api server");
            let platform = match options.platform {
                Some(platform) => platform,
                None => Platform::detect(&client).await?,
            };
            let settings = options.settings(platform);
            let Installation { name, class } = options.installation();
            info!(%server, ?platform, version = env!("CARGO_PKG_VERSION"), installation = name, class, "started");
            for shortfall in server.shortfalls() {
                warn!(%server, target = %ServerVersion::TARGET, "the API server is older than this operator supports: {shortfall}");
            }
            let webhook = webhook::run(client, &options, settings.clone(), server, Arc::clone(&metrics), readiness);
            let client = unrepeating_client(config, &metrics, &clock).context("make a client of the API server")?;
            let reconciles = lead((client, clock), &options, settings, server, metrics, stopped);
            tokio::select! {
                result = webhook => result.and(Err(anyhow!("the webhook has ended"))),
                result = reconciles => result,
            }
        })
    }
}

/// Waits for the lease, then reconciles for as long as it is held.
async fn lead(
    (client, clock): (Client, Arc<ServerClock>),
    options: &RunOptions,
    settings: Settings,
    server: ServerVersion,
    metrics: Arc<Metrics>,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let mut salt = [0_u8; 4];
    getrandom::fill(&mut salt).map_err(|error| anyhow!("random bytes: {error}"))?;
    // A restarted container has its pod's name, but not what it held.
    let identity = format!("{}_{:08x}", options.pod_name, u32::from_be_bytes(salt));
    let mut elector = LeaderElector::new(client.clone(), &options.pod_namespace, &options.lease_name, identity);
    tokio::select! {
        () = elector.acquire() => {}
        () = until(stopped.clone()) => return Ok(()),
    }
    metrics.set_leader(true);
    tokio::select! {
        lost = elector.keep() => return Err(lost),
        () = until(stopped.clone()) => {
            give_back(&mut elector).await;
            return Ok(());
        }
        () = definition(&client, options.watch_namespace.as_deref()) => {}
    }
    let (cache, writers) = Cache::new(server);
    let reporter = Reporter { controller: "tailwind-operator".to_owned(), instance: Some(options.pod_name.clone()) };
    let wakes = Arc::new(Wakes::default());
    let rollout_turns = Arc::new(RolloutTurns::new(options.max_concurrent_rollouts, Arc::clone(&wakes)));
    metrics.set_rollout_turns(Arc::clone(&rollout_turns));
    let context = Arc::new(Context {
        recorder: Recorder::new(client.clone(), reporter),
        client,
        clock,
        server,
        settings,
        installation: options.installation(),
        rollout_turns,
        cache,
        last_looks: LastLooks::default(),
        metrics,
        prober: Arc::new(Prober::default()),
        failures: Failures::default(),
    });
    let namespace = options.watch_namespace.clone();
    let reconciles = controller::run(context, writers, wakes, namespace, options.concurrency, until(stopped));
    tokio::select! {
        result = reconciles => result?,
        lost = elector.keep() => return Err(lost),
    }
    give_back(&mut elector).await;
    Ok(())
}

/// When the chart is uninstalled, the permission to do so may be deleted before the operator. The next holder then waits until
/// the lease has expired.
async fn give_back(elector: &mut LeaderElector) {
    match elector.release().await {
        Ok(()) => info!("lease released"),
        Err(error) => info!(error = format!("{error:#}"), "lease not released: it will expire"),
    }
}

/// Waits until the API server knows what a ReplicaGroup is.
async fn definition(client: &Client, namespace: Option<&str>) {
    let groups: Api<PartialObjectMeta<ReplicaGroup>> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let one = ListParams::default().limit(1);
    while let Err(error) = groups.list_metadata(&one).await {
        match error {
            kube::Error::Api(status) if status.code == 404 => error!(
                "ReplicaGroup is not defined in this cluster: install the definition, such as with \
                 `tailwind-operator crd | kubectl create --filename -`"
            ),
            error => warn!(%error, "failed to list groups"),
        }
        tokio::time::sleep(DEFINITION_WAIT).await;
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the end as well.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
