//! The sidecar's and the backup's HTTP endpoints: [`tailwind_runtime::http`] with the control RPC's authentication.
//!
//! `run` and `backup` call [`listen`] and [`server`]. A peer without the right certificate gets a closed connection and nothing
//! else; one without the token is refused before its body is read. What a reader or another backup asks for is compared with
//! a list.

mod token;

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tailwind_protocol::rpc::Refusal;
use tailwind_runtime::ensure_usage;
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
    ensure_usage!(
        tls.is_some() || address.ip().is_loopback(),
        "refusing to listen on {address} without TLS: give --tls-ca, --tls-cert and --tls-key, or listen on loopback (127.0.0.1)"
    );
    Ok(())
}

/// Paths that roles other than sidecars may ask for. Readers may also see the probes.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    /// Readers.
    pub readers: &'static [&'static str],
    /// Backups.
    pub backups: &'static [&'static str],
}

/// An endpoint for the sidecars of this group, and on some paths for others of it. A token says nothing about roles: its holder
/// may ask for everything.
pub fn server(router: Router, access: &Access, rights: Rights) -> Server {
    let refuse = |status, why| response(status, Refusal::BadRequest { why });
    let router = match access {
        Access::Tls(_) => router.layer(middleware::from_fn_with_state(rights, check_role)),
        Access::Token(_) => router,
    };
    Server { authentication: access.authentication(), refuse, ..Server::new(router) }
}

/// Lets a caller ask for what its role permits. Paths that are not listed are for sidecars alone.
async fn check_role(State(rights): State<Rights>, request: Request, next: Next) -> Response {
    let (path, caller) = (request.uri().path(), request.extensions().get::<PeerRole>());
    let may = match caller {
        Some(PeerRole::Sidecar) => true,
        Some(PeerRole::Reader) => rights.readers.contains(&path) || token::OPEN.contains(&path),
        Some(PeerRole::Backup) => rights.backups.contains(&path),
        None => false,
    };
    if may {
        return next.run(request).await;
    }
    let caller = caller.map_or_else(|| "nobody of this group".to_owned(), PeerRole::to_string);
    let why = format!(
        "{path} is not for the role of this certificate ({caller}): docs/security.md lists what each may ask for"
    );
    response(StatusCode::FORBIDDEN, Refusal::Forbidden { why })
}

fn response(status: StatusCode, refusal: Refusal) -> Response {
    (status, axum::Json(refusal)).into_response()
}

#[cfg(test)]
mod tests;
