//! A start that finds no room in the file system of its pool: it is tried again until there is some.
//!
//! Called by [`run`](super::run). Any user of a host can fill `/dev/shm`; a backup that ended because of that would have to be
//! restarted, and would look as if it had crashed. So it stays, lends nothing, and says so to probes and to callers of the
//! control RPC.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tailwind_protocol::rpc::Refusal;
use tailwind_report::readiness::{Unready, UnreadyReason};
use tailwind_runtime::http::Server;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, info};

use super::memory::no_room;
use super::routes::RIGHTS;
use super::start_signals::StartSignals;
use crate::access::Access;
use crate::http;

/// Between two tries.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Where a backup answers.
pub(super) struct Listeners<'a> {
    pub(super) control: &'a TcpListener,
    pub(super) metrics: Option<&'a TcpListener>,
}

/// What `begin` gives once there is room for it; `None` if the process is told to end before. Any other failure is returned.
pub(super) async fn begin_with_room<T: Send + 'static>(
    begin: impl Fn() -> anyhow::Result<T> + Send + Sync + 'static,
    listeners: Listeners<'_>,
    access: &Access,
    signals: &mut StartSignals,
) -> anyhow::Result<Option<T>> {
    let begin = Arc::new(begin);
    let once = || {
        let begin = Arc::clone(&begin);
        move || begin()
    };
    let why = match signals.step(once()).await {
        Ok(begun) => return Ok(Some(begun)),
        Err(error) => no_room(&error).ok_or(error)?,
    };
    error!(%why, "this backup lends nothing");
    let (stop, stopped) = watch::channel(());
    let until_stopped = |mut stopped: watch::Receiver<()>| async move {
        // An error means that the sender is gone, which is the signal.
        let _ = stopped.changed().await;
    };
    let mut servers = JoinSet::new();
    let control = http::server(pages(&why), access, RIGHTS);
    servers.spawn(control.serve(again(listeners.control)?, until_stopped(stopped.clone())));
    if let Some(metrics) = listeners.metrics {
        servers.spawn(Server::new(pages(&why)).serve(again(metrics)?, until_stopped(stopped)));
    }
    let begun = loop {
        tokio::select! {
            name = signals.next() => {
                info!(signal = name, "ending: there was no room in the pool");
                return Ok(None);
            }
            Some(server) = servers.join_next() => {
                server.context("an HTTP server has panicked")?;
                bail!("an HTTP server has ended");
            }
            () = tokio::time::sleep(TRY_AGAIN) => {}
        }
        match signals.step(once()).await {
            Ok(begun) => break begun,
            Err(error) if no_room(&error).is_some() => {}
            Err(error) => return Err(error),
        }
    };
    drop(stop);
    while servers.join_next().await.is_some() {}
    info!("there is room in the pool again");
    Ok(Some(begun))
}

/// The same listener once more, to be served for a while.
fn again(listener: &TcpListener) -> anyhow::Result<TcpListener> {
    let copy = listener.as_fd().try_clone_to_owned().context("copy a listener")?;
    TcpListener::from_std(copy.into()).context("register a listener")
}

fn pages(why: &str) -> Router {
    let unready = Unready { reason: UnreadyReason::NoRoom, why: why.to_owned() };
    let refusal = Refusal::RetryLater { after_ms: TRY_AGAIN.as_millis() as u32, why: why.to_owned() };
    let unavailable = |answer: Response| async move { (StatusCode::SERVICE_UNAVAILABLE, answer).into_response() };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || unavailable(unready.to_string().into_response())))
        .fallback(move || unavailable(Json(refusal).into_response()))
}
