//! Serves a router over TCP to whoever may come in: bounded connections, bounded bodies, and nobody may be slow for long.
//!
//! `run` and `backup` call [`listen`] and [`serve`]; axum routes, hyper speaks HTTP/1.1, [`tls`] or the `token` decides who
//! gets in, and `hall` who must go when many come. A peer without the right certificate gets a closed connection and nothing
//! else; one without the token a refusal before its body is read.

mod hall;
mod token;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tailwind_protocol::rpc::Refusal;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, info};

use crate::access::{Access, Token};
use crate::tls::{self, Guard, Tls};
use hall::{Bounds, Hall, Place};

pub(crate) use token::{NONCE_HEADER, PROOF};

/// Connections of those who have shown who they are: a few for each sidecar of a group. Each costs two 16 KiB TLS records and
/// a body of at most [`BODY_SIZE_MAX`]: 192 MiB if all were filled at once by holders of certificates.
pub const GUESTS_MAX: usize = 192;
/// Connections of others. Each costs a socket and a handshake's few KiB of memory; with the guests of a control endpoint
/// and the strangers of the metrics they are 320 sockets, a third of the 1024 files that a process may usually open.
pub const STRANGERS_MAX: usize = 64;
/// Of these from one address.
const STRANGERS_PER_SOURCE_MAX: usize = STRANGERS_MAX / 2;
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

/// Who may use an endpoint.
#[derive(Clone, Debug)]
pub enum Entry {
    /// Everybody: probes and metrics.
    Open,
    /// Whoever shows the token, but for probes and metrics.
    Token(Token),
    /// Whoever has the right certificate.
    Tls(Guard),
}

/// Listens for the control RPC. Without TLS on loopback only: the token would travel in the clear.
pub async fn listen(address: SocketAddr, access: &Access) -> Result<TcpListener, ListenError> {
    check_guarded(address, access.tls())?;
    let listener = listen_openly(address).await?;
    if let Access::Token(token) = access {
        info!(%address, token = %token.path().display(), "no TLS material: listening on loopback only, to whoever has the token");
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
pub async fn serve(listener: TcpListener, router: Router, entry: Entry, shutdown: impl Future<Output = ()>) {
    let mut router = router.layer(middleware::from_fn(whole_body));
    if let Entry::Token(token) = &entry {
        // Around the rest: nothing of a request without it is looked at.
        router = router.layer(middleware::from_fn_with_state(token.clone(), token::check));
    }
    let (strangers, strangers_per_source) = (STRANGERS_MAX, STRANGERS_PER_SOURCE_MAX);
    let hall = Hall::new(Bounds { strangers, strangers_per_source, guests: GUESTS_MAX });
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            (stream, peer, local) = next_connection(&listener) => {
                let stream = Arc::new(stream);
                let (place, leave) = hall.enter(&stream, peer, local);
                let (router, entry, stopped) = (router.clone(), entry.clone(), stopped.clone());
                connections.spawn(async move {
                    tokio::select! {
                        () = attend(stream, Arc::new(place), router, entry, stopped) => {}
                        _ = leave => {}
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(stop);
    let _ = timeout(DRAIN_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
}

/// Never waits for a place: those who are inside make room.
async fn next_connection(listener: &TcpListener) -> (TcpStream, SocketAddr, SocketAddr) {
    loop {
        match listener.accept().await.and_then(|(stream, peer)| Ok((stream.local_addr()?, stream, peer))) {
            Ok((local, stream, peer)) => return (stream, peer, local),
            Err(error) => {
                debug!(%error, "accept connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn attend(stream: Arc<TcpStream>, place: Arc<Place>, router: Router, entry: Entry, stopped: watch::Receiver<()>) {
    if let Err(error) = tune(&stream) {
        debug!(%error, "set socket options");
        return;
    }
    let patience = if matches!(entry, Entry::Tls(_)) { HANDSHAKE_TIMEOUT } else { HEAD_TIMEOUT };
    let mut stop_early = stopped.clone();
    let mut byte = [0; 1];
    tokio::select! {
        // A byte that is there: to be called readable, a stream need not have any.
        spoken = timeout(patience, stream.peek(&mut byte)) => if !matches!(spoken, Ok(Ok(1..))) {
            debug!("closed a connection: no request arrived in time");
            return;
        },
        _ = stop_early.changed() => return,
    }
    place.speaks();
    let Some(stream) = Arc::into_inner(stream) else { unreachable!("the hall holds silent ones only") };
    let Entry::Tls(guard) = entry else { return talk(stream, place, router, stopped).await };
    match timeout(HANDSHAKE_TIMEOUT, guard.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => {
            place.admit();
            place.rests();
            talk(stream, place, router, stopped).await;
        }
        Ok(Err(error)) => debug!(error = tls::readable(&error), "refused a connection"),
        Err(_) => debug!("closed a connection: the handshake timed out"),
    }
}

async fn talk<S>(stream: S, place: Arc<Place>, router: Router, mut stopped: watch::Receiver<()>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        place.works();
        request.extensions_mut().insert(Arc::clone(&place));
        let (answer, place) = (router.call(request), Arc::clone(&place));
        async move { answer.await.map(|response| response.map(|body| Watched { body, place })) }
    });
    let mut connection = pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_SIZE_MAX)
            .serve_connection(TokioIo::new(stream), service)
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

/// An answer's body. Its connection rests when all of it is on its way.
struct Watched {
    body: Body,
    place: Arc<Place>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.place.rests();
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
