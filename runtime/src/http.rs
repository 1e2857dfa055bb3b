//! Serves a router over TCP with bounds on everything: connections, heads, bodies, and how slow a peer may be.
//!
//! Every HTTP endpoint is a [`Server`]: axum routes, hyper speaks HTTP/1.1, [`Authentication`] decides which peers are served,
//! and `connections` which one to disconnect when the endpoint is full.

mod connections;

use std::convert::Infallible;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use anyhow::anyhow;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{Extensions, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tracing::debug;

use crate::listener::bind_listener;

use connections::Connections;
pub use connections::{Connection, Standing};

/// How long a connection may stay idle between two requests, unless [`Limits`] say otherwise.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest request head.
const HEAD_SIZE_MAX: usize = 16 << 10;
/// Until the TLS handshake must be done.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Until a request's body must be here.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long responses may still take once the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after an accept that failed, as when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bounds of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of peers that have not been authenticated. Each costs a socket and a handshake's few KiB of memory.
    pub unauthenticated: usize,
    /// The most of these from one address: if fewer than all, no single address fills the endpoint.
    pub unauthenticated_per_source: usize,
    /// Connections of peers that have, and are guests: they may be many, and displace nobody but each other.
    pub guests: usize,
    /// Connections of all other peers that have. Each costs two 16 KiB TLS records and a body.
    pub authenticated: usize,
    /// Largest request body.
    pub body_bytes: usize,
    /// Largest request body of a guest, and of everybody at an endpoint that authenticates nobody.
    pub guest_body_bytes: usize,
    /// How long a request's head may take. Also how long a connection may stay idle between two requests.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    /// With a control endpoint and one for metrics, these are 448 sockets: less than half of the 1024 files that a process
    /// may usually open. Bodies take 194 MiB if all authenticated peers send at once.
    fn default() -> Limits {
        Limits {
            unauthenticated: 64,
            unauthenticated_per_source: 32,
            // A few for each of 32 readers, as many as a backup admits.
            guests: 128,
            // A few for each sidecar of a group.
            authenticated: 192,
            // A drop request of some thousand copies fits.
            body_bytes: 1 << 20,
            // What a reader asks for takes some hundred bytes.
            guest_body_bytes: 16 << 10,
            idle_timeout: IDLE_TIMEOUT,
        }
    }
}

/// Which peers are served.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// Everybody: probes and metrics.
    None,
    /// Requests that pass a check.
    Request(Arc<dyn CheckRequest>),
    /// Peers that complete a TLS handshake. Those that show a certificate in it are authenticated.
    Tls(Arc<dyn Handshake>),
}

/// Looks at each request before its body is read.
pub trait CheckRequest: Debug + Send + Sync {
    /// The response to a request that does not pass. One that does may authenticate its connection.
    fn refuse(&self, request: &Request, connection: &Connection) -> Option<Response>;
}

/// A peer that has shown a certificate.
#[derive(Debug)]
pub struct Peer {
    /// Which connections its own may displace, and how much it may send.
    pub standing: Standing,
    /// What each of its requests carries, for routes that check the sender.
    pub extensions: Extensions,
}

/// The server's side of TLS.
pub trait Handshake: Debug + Send + Sync {
    /// For the next connection: certificates may be renewed.
    fn acceptor(&self) -> TlsAcceptor;

    /// The peer that has shown this certificate.
    fn peer(&self, _certificate: &CertificateDer<'_>) -> Peer {
        Peer { standing: Standing::Authenticated, extensions: Extensions::new() }
    }

    /// Why a handshake failed, for the log.
    fn explain(&self, error: &io::Error) -> String {
        error.to_string()
    }
}

impl Handshake for Arc<ServerConfig> {
    fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(self))
    }
}

/// Listens on this address; on `[::]` for IPv4 as well, see [`bind_listener`].
pub async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = bind_listener(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            anyhow!("listen on {address}: the port is in use: stop what listens there, or choose another port")
        }
        _ => anyhow!("listen on {address}: {error}"),
    })
}

/// Disables Nagle's algorithm, and makes the connection fail when the other host is dead.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_tcp_user_timeout(stream, 8_000)?;
    Ok(())
}

/// Makes a response from a status and its reason.
pub type Refuse = fn(StatusCode, String) -> Response;

/// A router and what guards it.
#[derive(Clone, Debug)]
pub struct Server {
    /// The routes. Bodies reach them whole.
    pub router: Router,
    /// Which peers are served.
    pub authentication: Authentication,
    /// Bounds.
    pub limits: Limits,
    /// Makes the response to a body that is too large or too slow.
    pub refuse: Refuse,
}

impl Server {
    /// Serves everybody, with the default limits.
    pub fn new(router: Router) -> Server {
        let refuse = |status, why| (status, why).into_response();
        Server { router, authentication: Authentication::None, limits: Limits::default(), refuse }
    }

    /// Serves until `shutdown` is ready, then gives responses a moment to finish. Never returns earlier.
    pub async fn serve(mut self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        if let Authentication::None = &self.authentication {
            self.limits.body_bytes = self.limits.guest_body_bytes;
        }
        let bodies = middleware::from_fn_with_state((self.limits, self.refuse), read_body);
        self.router = self.router.layer(DefaultBodyLimit::disable()).layer(bodies);
        if let Authentication::Request(check) = &self.authentication {
            // Outermost: nothing else of a refused request is looked at.
            self.router = self.router.layer(middleware::from_fn_with_state(Arc::clone(check), check_request));
        }
        let server = Arc::new(self);
        let connections = Connections::new(server.limits);
        let (stop, stopped) = watch::channel(());
        let mut tasks = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                (stream, peer, local) = accept(&listener) => {
                    let stream = Arc::new(stream);
                    let (connection, evicted) = connections.add(&stream, peer, local);
                    let (server, stopped) = (Arc::clone(&server), stopped.clone());
                    tasks.spawn(async move {
                        tokio::select! {
                            () = server.attend(stream, Arc::new(connection), stopped) => {}
                            _ = evicted => {}
                        }
                    });
                }
                Some(_) = tasks.join_next() => {}
            }
        }
        drop(stop);
        let _ = timeout(DRAIN_TIMEOUT, async { while tasks.join_next().await.is_some() {} }).await;
    }

    async fn attend(&self, stream: Arc<TcpStream>, connection: Arc<Connection>, stopped: watch::Receiver<()>) {
        if let Err(error) = tune(&stream) {
            debug!(%error, "set socket options");
            return;
        }
        let is_tls = matches!(self.authentication, Authentication::Tls(_));
        let silence_max = if is_tls { HANDSHAKE_TIMEOUT } else { self.limits.idle_timeout };
        let mut stop_early = stopped.clone();
        let mut byte = [0; 1];
        tokio::select! {
            // A byte, not just readiness: a stream may be called readable without any.
            first = timeout(silence_max, stream.peek(&mut byte)) => if !matches!(first, Ok(Ok(1..))) {
                debug!("closed a connection: no request arrived in time");
                return;
            },
            _ = stop_early.changed() => return,
        }
        connection.set_busy();
        let Some(stream) = Arc::into_inner(stream) else { unreachable!("only silent connections are shared") };
        let Authentication::Tls(tls) = &self.authentication else {
            return self.serve_http(stream, connection, Extensions::new(), stopped).await;
        };
        match timeout(HANDSHAKE_TIMEOUT, tls.acceptor().accept(stream)).await {
            Ok(Ok(stream)) => {
                let mut extensions = Extensions::new();
                if let Some([certificate, ..]) = stream.get_ref().1.peer_certificates() {
                    let peer = tls.peer(certificate);
                    connection.authenticate(peer.standing);
                    extensions = peer.extensions;
                    extensions.insert(peer.standing);
                }
                connection.set_idle();
                self.serve_http(stream, connection, extensions, stopped).await;
            }
            Ok(Err(error)) => debug!(error = tls.explain(&error), "refused a connection"),
            Err(_) => debug!("closed a connection: the handshake timed out"),
        }
    }

    async fn serve_http<S>(
        &self,
        stream: S,
        connection: Arc<Connection>,
        extensions: Extensions,
        mut stopped: watch::Receiver<()>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let router = TowerToHyperService::new(self.router.clone());
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            connection.set_busy();
            request.extensions_mut().extend(extensions.clone());
            request.extensions_mut().insert(Arc::clone(&connection));
            let (response, connection) = (router.call(request), Arc::clone(&connection));
            async move { response.await.map(|response| response.map(|body| ResponseBody { body, connection })) }
        });
        let mut served = pin!(
            hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.limits.idle_timeout)
                .max_buf_size(HEAD_SIZE_MAX)
                .serve_connection(TokioIo::new(stream), service)
        );
        let ended = tokio::select! {
            ended = served.as_mut() => ended,
            _ = stopped.changed() => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(error) = ended {
            debug!(%error, "connection ended");
        }
    }
}

/// Accepts at once, however many connections there are: [`Connections`] makes room. On a socket for both, an IPv4 address comes
/// as `::ffff:a.b.c.d`; it is given as the peer knows it.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr, SocketAddr) {
    loop {
        match listener.accept().await.and_then(|(stream, peer)| Ok((stream.local_addr()?, stream, peer))) {
            Ok((local, stream, peer)) => return (stream, canonical(peer), canonical(local)),
            Err(error) => {
                debug!(%error, "accept connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A response's body. Its connection is idle when all of it has been handed to the socket.
struct ResponseBody {
    body: Body,
    connection: Arc<Connection>,
}

impl HttpBody for ResponseBody {
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

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.connection.set_idle();
    }
}

async fn check_request(State(check): State<Arc<dyn CheckRequest>>, request: Request, next: Next) -> Response {
    let Some(connection) = request.extensions().get::<Arc<Connection>>() else {
        unreachable!("every request carries its connection")
    };
    match check.refuse(&request, connection) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    }
}

/// Reads the whole body before any route sees the request: not too large, not too slow.
async fn read_body(
    State((limits, refuse)): State<(Limits, Refuse)>,
    request: Request,
    next: Next,
) -> Result<Response, Infallible> {
    let (head, body) = request.into_parts();
    let bytes_max = match head.extensions.get::<Standing>() {
        Some(Standing::Guest) => limits.guest_body_bytes,
        _ => limits.body_bytes,
    };
    // The rest of the body is not read, so the connection cannot be used again.
    let refused = |status, why| Ok(([("connection", "close")], refuse(status, why)).into_response());
    let too_large = || format!("the body is larger than {} KiB, or incomplete", bytes_max >> 10);
    if body.size_hint().lower() > bytes_max as u64 {
        return refused(StatusCode::PAYLOAD_TOO_LARGE, too_large());
    }
    match timeout(BODY_TIMEOUT, to_bytes(body, bytes_max)).await {
        Ok(Ok(bytes)) => Ok(next.run(Request::from_parts(head, Body::from(bytes))).await),
        Ok(Err(_)) => refused(StatusCode::PAYLOAD_TOO_LARGE, too_large()),
        Err(_) => refused(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time".to_owned()),
    }
}

#[cfg(test)]
mod tests;
