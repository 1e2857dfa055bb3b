//! Probes and metrics over plain HTTP: they reveal no keys and change nothing.
//!
//! Started by [`run`](crate::run). `/healthz`: the process answers. `/readyz`: it serves, or is a standby that knows its
//! primary. `/metrics`: Prometheus.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tailwind_runtime::http::Server;
use tokio::net::TcpListener;

use crate::gate::Gate;
use crate::stats::Stats;

/// Serves for ever.
pub async fn serve(listener: TcpListener, gate: Gate, stats: Arc<Stats>) {
    let probed = gate.clone();
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(move || async move { readyz(&probed) }))
        .route("/metrics", get(move || async move { stats.metrics(&gate.borrow()) }));
    Server::new(router).serve(listener, std::future::pending()).await;
}

fn readyz(gate: &Gate) -> (StatusCode, String) {
    let standing = gate.borrow().clone();
    match standing.readiness() {
        Ok(()) => (StatusCode::OK, format!("{}\n", standing.role())),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
