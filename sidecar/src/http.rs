//! The sidecar's and the backup's HTTP endpoints: [`tailwind_runtime::http`] with the control RPC's authentication.
//!
//! `run` and `backup` call [`listen`] and [`server`]. A peer without the right certificate gets a closed connection and nothing
//! else; one without the token is refused before its body is read.

mod token;

use std::net::SocketAddr;

use anyhow::ensure;
use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tailwind_protocol::rpc::Refusal;
use tailwind_runtime::http::{self, Server};
use tokio::net::TcpListener;
use tracing::info;

use crate::access::Access;
use crate::tls::{PeerRole, Tls};

pub(crate) use token::{NONCE_HEADER, PROOF};

/// Listens for the control RPC. Without TLS on loopback only: the token would travel in the clear.
pub async fn listen(address: SocketAddr, access: &Access) -> anyhow::Result<TcpListener> {
    check_guarded(address, access.tls())?;
    let listener = http::listen(address).await?;
    if let Access::Token(token) = access {
        info!(%address, token = %token.path().display(), "no TLS material: listening on loopback only, with the token");
    }
    Ok(listener)
}

/// Refuses addresses that other hosts can reach, unless TLS guards them.
pub fn check_guarded(address: SocketAddr, tls: Option<&Tls>) -> anyhow::Result<()> {
    ensure!(
        tls.is_some() || address.ip().is_loopback(),
        "refusing to listen on {address} without TLS: give --tls-ca, --tls-cert and --tls-key, or listen on loopback (127.0.0.1)"
    );
    Ok(())
}

/// An endpoint for the sidecars of this group.
pub fn server(router: Router, access: &Access) -> Server {
    let refuse = |status, why| response(status, Refusal::BadRequest { why });
    Server { authentication: access.authentication(PeerRole::Sidecar), refuse, ..Server::new(router) }
}

fn response(status: StatusCode, refusal: Refusal) -> Response {
    (status, axum::Json(refusal)).into_response()
}

#[cfg(test)]
mod tests;
