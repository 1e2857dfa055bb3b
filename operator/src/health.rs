//! `/healthz`, `/readyz` and `/metrics` over plain HTTP.
//!
//! Served by [`run`](crate::run) from the start, with the lease and without.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tailwind_runtime::http::{Server, listen};

use crate::metrics::Metrics;

/// What this process is still waiting for before it can do its part.
#[derive(Debug, Default)]
pub struct Readiness(Mutex<BTreeMap<&'static str, String>>);

impl Readiness {
    /// This is not ready yet, or no longer.
    pub fn set_unready(&self, what: &'static str, why: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(what, why.into());
    }

    /// This is ready.
    pub fn set_ready(&self, what: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(what);
    }

    fn obstacles(&self) -> Vec<String> {
        let waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waits.iter().map(|(what, why)| format!("{what}: {why}")).collect()
    }
}

/// Serves until the process ends.
pub async fn serve(address: SocketAddr, metrics: Arc<Metrics>, readiness: Arc<Readiness>) -> anyhow::Result<()> {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { readyz(&readiness) }))
        .route("/metrics", get(move || async move { metrics.snapshot() }));
    Server::new(router).serve(listen(address).await?, std::future::pending()).await;
    Ok(())
}

fn readyz(readiness: &Readiness) -> (StatusCode, String) {
    match readiness.obstacles().as_slice() {
        [] => (StatusCode::OK, "ok\n".to_owned()),
        obstacles => (StatusCode::SERVICE_UNAVAILABLE, obstacles.join("\n") + "\n"),
    }
}
