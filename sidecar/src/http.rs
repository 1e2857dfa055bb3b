//! The sidecar's and the backup's HTTP endpoints: [`tailwind_runtime::http`] with the control RPC's authentication.
//!
//! `run` and `backup` call [`listen`] and [`serve`]. A peer without the right certificate gets a closed connection and nothing
//! else; one without the token is refused before its body is read.

mod token;

use std::net::SocketAddr;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tailwind_protocol::rpc::Refusal;
pub use tailwind_runtime::http::Authentication;
use tailwind_runtime::http::{self, Server};
use tokio::net::TcpListener;
use tracing::info;

use crate::access::Access;
use crate::tls::Tls;

pub(crate) use token::{NONCE_HEADER, PROOF};

/// Why an endpoint cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Other hosts could reach it, and nothing guards it.
    #[error(
        "refusing to listen on {address} without TLS: give --tls-ca, --tls-cert and --tls-key, or listen on loopback \
         (127.0.0.1)"
    )]
    Unguarded {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be had.
    #[error(transparent)]
    Listen(#[from] http::ListenError),
}

/// Listens for the control RPC. Without TLS on loopback only: the token would travel in the clear.
pub async fn listen(address: SocketAddr, access: &Access) -> Result<TcpListener, ListenError> {
    check_guarded(address, access.tls())?;
    let listener = http::listen(address).await?;
    if let Access::Token(token) = access {
        info!(%address, token = %token.path().display(), "no TLS material: listening on loopback only, to whoever has the token");
    }
    Ok(listener)
}

/// Refuses addresses that other hosts can reach, unless TLS guards them.
pub fn check_guarded(address: SocketAddr, tls: Option<&Tls>) -> Result<(), ListenError> {
    if tls.is_none() && !address.ip().is_loopback() {
        return Err(ListenError::Unguarded { address });
    }
    Ok(())
}

/// Serves until `shutdown` is ready, as [`Server::serve`] does.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    authentication: Authentication,
    shutdown: impl Future<Output = ()>,
) {
    let refuse = |status, why| response(status, Refusal::BadRequest { why });
    Server { authentication, refuse, ..Server::new(router) }.serve(listener, shutdown).await;
}

fn response(status: StatusCode, refusal: Refusal) -> Response {
    (status, axum::Json(refusal)).into_response()
}

#[cfg(test)]
mod tests;
