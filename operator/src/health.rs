//! `/healthz`, `/readyz` and `/metrics` over plain HTTP.
//!
//! Served by [`run`](crate::run) from the first moment on, with the lease and without.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::metrics::Metrics;

/// What this process is still waiting for before it can do its part.
#[derive(Debug, Default)]
pub struct Readiness(Mutex<BTreeMap<&'static str, String>>);

impl Readiness {
    /// This is not there yet, or no longer.
    pub fn lacks(&self, what: &'static str, why: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(what, why.into());
    }

    /// This is there.
    pub fn has(&self, what: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(what);
    }

    fn obstacles(&self) -> Vec<String> {
        let waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waits.iter().map(|(what, why)| format!("{what}: {why}")).collect()
    }
}

#[derive(Clone)]
struct Endpoints {
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
}

/// Serves for ever.
pub async fn serve(address: SocketAddr, metrics: Arc<Metrics>, readiness: Arc<Readiness>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("listen on {address} (--listen)"))?;
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .with_state(Endpoints { metrics, readiness });
    axum::serve(listener, router).await.context("serve metrics and probes")
}

async fn readyz(State(endpoints): State<Endpoints>) -> impl IntoResponse {
    match endpoints.readiness.obstacles().as_slice() {
        [] => (StatusCode::OK, "ok\n".to_owned()),
        obstacles => (StatusCode::SERVICE_UNAVAILABLE, obstacles.join("\n") + "\n"),
    }
}

async fn metrics_page(State(endpoints): State<Endpoints>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], endpoints.metrics.text())
}
