//! Probes and metrics over plain HTTP: they reveal no keys and change nothing.
//!
//! Started by [`run`](crate::run). `/healthz`: the process answers. `/readyz`: it serves, or is a standby that is
//! warm and knows its primary. `/metrics`: Prometheus.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tailwind_runtime::http::Server;
use tokio::net::TcpListener;

use crate::server_state::StateWatch;
use crate::stats::Stats;

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, state: StateWatch, stats: Arc<Stats>) {
    let probed = state.clone();
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(move || async move { readyz(&probed) }))
        .route("/metrics", get(move || async move { stats.metrics(&state.borrow()) }));
    Server::new(router).serve(listener, std::future::pending()).await;
}

fn readyz(state: &StateWatch) -> (StatusCode, String) {
    let state = state.borrow().clone();
    match state.readiness() {
        Ok(()) => (StatusCode::OK, format!("{}\n", state.role())),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
