//! Serves a router over TCP, guarded by TLS: bounded connections, bounded bodies, and nobody may be slow for long.
//!
//! `run` and `backup` call [`listen`] and [`serve`]; axum routes, hyper speaks HTTP/1.1, [`tls`] decides who
//! gets in. A peer without the right certificate gets a closed connection and nothing else.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tailwind_protocol::rpc::Refusal;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, info};

use crate::tls::{self, Guard, Tls};

/// Connections at a time: a few for each sidecar of a group, and room for people with a browser. Each costs two 16 KiB
/// TLS records and a body of at most [`BODY_SIZE_MAX`]: 256 MiB if all were filled at once by holders of certificates.
pub const CONNECTIONS_MAX: usize = 256;
/// Largest request body: a drop request of some thousand copies fits.
pub const BODY_SIZE_MAX: usize = 1 << 20;
/// Largest request head.
const HEAD_SIZE_MAX: usize = 16 << 10;
/// Until the TLS handshake must be done.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Until a request's head must be here; also how long a connection may stay idle between two requests.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Until a request's body must be here.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long replies under way may take once the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long no connections are taken after one could not be, as when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why an endpoint cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Nobody guards it.
    #[error(
        "refusing to listen on {address} without TLS: give --tls-ca, --tls-cert and --tls-key, or listen on loopback \
         (127.0.0.1)"
    )]
    Unguarded {
        /// The address.
        address: SocketAddr,
    },
    /// The port is taken.
    #[error("listen on {address}: the port is in use: stop what listens there, or choose another port")]
    InUse {
        /// The address.
        address: SocketAddr,
    },
    /// The operating system said no.
    #[error("listen on {address}: {source}")]
    Io {
        /// The address.
        address: SocketAddr,
        /// Its answer.
        source: io::Error,
    },
}

/// Listens for the control RPC. Without TLS on loopback only, where the host's own rules guard it.
pub async fn listen(address: SocketAddr, tls: Option<&Tls>) -> Result<TcpListener, ListenError> {
    check_guarded(address, tls)?;
    let listener = listen_openly(address).await?;
    if tls.is_none() {
        info!(%address, "no TLS material: listening on loopback only");
    }
    Ok(listener)
}

/// Refuses addresses that others can reach, unless TLS guards them.
pub fn check_guarded(address: SocketAddr, tls: Option<&Tls>) -> Result<(), ListenError> {
    if tls.is_none() && !address.ip().is_loopback() {
        return Err(ListenError::Unguarded { address });
    }
    Ok(())
}

/// Listens for probes and metrics, which tell nothing that must be guarded and change nothing.
pub async fn listen_openly(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address },
        _ => ListenError::Io { address, source },
    })
}

/// Serves `router` until `shutdown` is ready; then replies under way get a moment to leave. Never returns earlier.
pub async fn serve(listener: TcpListener, router: Router, guard: Option<Guard>, shutdown: impl Future<Output = ()>) {
    let router = router.layer(middleware::from_fn(whole_body));
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            (stream, place) = next_connection(&listener, &places) => {
                let (router, guard, stopped) = (router.clone(), guard.clone(), stopped.clone());
                connections.spawn(async move {
                    attend(stream, router, guard, stopped).await;
                    drop(place);
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(stop);
    let _ = timeout(DRAIN_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
}

async fn next_connection(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, tokio::sync::OwnedSemaphorePermit) {
    loop {
        let Ok(place) = Arc::clone(places).acquire_owned().await else { unreachable!("the semaphore is never closed") };
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) => {
                debug!(%error, "accept connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn attend(stream: TcpStream, router: Router, guard: Option<Guard>, stopped: watch::Receiver<()>) {
    if let Err(error) = tune(&stream) {
        debug!(%error, "set socket options");
        return;
    }
    let Some(guard) = guard else { return talk(stream, router, stopped).await };
    match timeout(HANDSHAKE_TIMEOUT, guard.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => talk(stream, router, stopped).await,
        Ok(Err(error)) => debug!(error = tls::readable(&error), "refused a connection"),
        Err(_) => debug!("refused a connection: no handshake in time"),
    }
}

async fn talk<S>(stream: S, router: Router, mut stopped: watch::Receiver<()>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connection = pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_SIZE_MAX)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}

/// No waiting for more bytes to send, and an end when the other host is dead.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_tcp_user_timeout(stream, 8_000)?;
    Ok(())
}

/// Reads the whole body before anybody looks at it: not too long, not too slowly.
async fn whole_body(request: Request, next: Next) -> Result<Response, Infallible> {
    let (head, body) = request.into_parts();
    let refused = |status: StatusCode, why: &str| {
        let refusal = Refusal::BadRequest { why: why.to_owned() };
        // The rest of the body is not read, so the connection cannot be used again.
        Ok((status, [("connection", "close")], axum::Json(refusal)).into_response())
    };
    const TOO_LARGE: &str = "the body is larger than 1 MiB, or broken off";
    if body.size_hint().lower() > BODY_SIZE_MAX as u64 {
        return refused(StatusCode::PAYLOAD_TOO_LARGE, TOO_LARGE);
    }
    match timeout(BODY_TIMEOUT, to_bytes(body, BODY_SIZE_MAX)).await {
        Ok(Ok(bytes)) => Ok(next.run(Request::from_parts(head, Body::from(bytes))).await),
        Ok(Err(_)) => refused(StatusCode::PAYLOAD_TOO_LARGE, TOO_LARGE),
        Err(_) => refused(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
    }
}

#[cfg(test)]
mod tests;
