//! Probes and metrics over plain HTTP: they tell no keys and change nothing.
//!
//! Started by [`run`](crate::run). `/healthz`: the process answers. `/readyz`: it serves, or stands by and knows for whom.
//! `/metrics`: Prometheus.

use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::debug;

use crate::gate::Gate;
use crate::limits::{PROBE_PATIENCE, PROBES_MAX, RETRY_PAUSE};
use crate::stats::Stats;

#[derive(Clone)]
struct Facts {
    gate: Gate,
    stats: Arc<Stats>,
}

/// Serves for ever.
pub async fn serve(listener: TcpListener, gate: Gate, stats: Arc<Stats>) {
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Facts { gate, stats });
    let places = Arc::new(Semaphore::new(PROBES_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            unreachable!("the semaphore is never closed")
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!(%error, "accept a probe");
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PROBE_PATIENCE)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = pin!(connection).await {
                debug!(%error, "a probe's connection ended");
            }
            drop(place);
        });
    }
}

async fn readyz(State(facts): State<Facts>) -> (StatusCode, String) {
    let standing = facts.gate.borrow().clone();
    match standing.readiness() {
        Ok(()) => (StatusCode::OK, format!("{}\n", standing.role())),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

async fn metrics(State(facts): State<Facts>) -> String {
    facts.stats.metrics(&facts.gate.borrow())
}
