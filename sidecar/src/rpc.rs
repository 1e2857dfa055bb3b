//! Asks a backup over the control RPC, and listens to the heartbeats of a backup or a primary.
//!
//! Called by `control`; speaks HTTP/1.1 with kept-alive connections, plain or by [`tls`]. The messages are
//! [`tailwind_protocol::rpc`]. A request whose bytes may have been sent is never sent again by itself: its caller knows
//! what may be repeated.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tailwind_protocol::rpc::{FetchRequest, Refusal, path};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http::{self, HEAD_TIMEOUT};
use crate::tls::{self, Guard, Role, Tls};

/// Largest reply but for segments: an inventory of 100 000 copies, of some 300 bytes each, fits twice.
const REPLY_SIZE_MAX: usize = 64 << 20;
/// A refusal is some hundred bytes; room for a long explanation where little else is expected.
const REFUSAL_SIZE_MAX: usize = 16 << 10;
/// Connections kept for later. Few requests to one backup are under way at a time.
const IDLE_MAX: usize = 4;
/// Idle connections are not used for longer than this: the server ends them soon after, and a request that meets the end
/// on its way would not be repeated.
const IDLE_TIME_MAX: Duration = Duration::from_secs(HEAD_TIMEOUT.as_secs() / 2);

/// Why a call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The backup said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No usable answer: the request may or may not have been carried out.
    #[error("{0}")]
    Unreachable(String),
}

/// Asks one backup. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct BackupClient(Arc<Client>);

struct Client {
    control: String,
    guard: Option<Guard>,
    idle: Mutex<Vec<Idle>>,
    peer: Mutex<Option<IpAddr>>,
}

type Link = SendRequest<Full<Bytes>>;

struct Idle {
    link: Link,
    since: Instant,
}

/// How heartbeats have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// The reason, for people.
    pub why: String,
    /// Whether there was any before.
    pub heard: bool,
}

impl BackupClient {
    /// A client of the endpoint at `control` (`host:port`), which must show a certificate of the role `expected`.
    /// Connects when first asked.
    pub fn new(control: impl Into<String>, tls: Option<&Tls>, expected: Role) -> BackupClient {
        BackupClient(Arc::new(Client {
            control: control.into(),
            guard: tls.map(|tls| tls.guard(expected)),
            idle: Mutex::default(),
            peer: Mutex::default(),
        }))
    }

    /// `host:port` of the endpoint.
    pub fn control(&self) -> &str {
        &self.0.control
    }

    /// The address that the last connection reached; the data channel of a backup that listens on every address goes
    /// there too. `None` before the first connection.
    pub fn peer_ip(&self) -> Option<IpAddr> {
        *self.0.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts `request` as JSON to `path` and reads the JSON reply.
    pub async fn call<Req, Rep>(&self, path: &str, request: &Req, timeout: Duration) -> Result<Rep, CallError>
    where
        Req: Serialize + ?Sized,
        Rep: DeserializeOwned,
    {
        let body = self.post(path, request, REPLY_SIZE_MAX, timeout).await?;
        serde_json::from_slice(&body).map_err(|error| self.unreachable(path, &format!("reply not understood: {error}")))
    }

    /// Fetches the bytes of a closed segment. As many as the closure says; whether they are right is for the caller to scan.
    pub async fn fetch(&self, request: &FetchRequest, timeout: Duration) -> Result<Bytes, CallError> {
        let wanted = request.closure.end.0 as usize;
        let bytes = self.post(path::FETCH, request, wanted, timeout).await?;
        if bytes.len() != wanted {
            return Err(self.unreachable(path::FETCH, &format!("{} bytes instead of {wanted}", bytes.len())));
        }
        Ok(bytes)
    }

    /// Listens to heartbeats on a connection of its own. Returns when they end.
    pub async fn watch_heartbeats(&self, silence_max: Duration) -> Silence {
        let mut heard = false;
        let why = self.listen(silence_max, &mut heard).await;
        Silence { why, heard }
    }

    async fn listen(&self, silence_max: Duration, heard: &mut bool) -> String {
        let silent = || format!("{}: silent for {silence_max:?}", self.control());
        let Ok(opened) = timeout(silence_max, self.open_heartbeats()).await else { return silent() };
        let (_link, mut response) = match opened {
            Ok(opened) => opened,
            Err(error) => return error.to_string(),
        };
        loop {
            match timeout(silence_max, response.body_mut().frame()).await {
                Ok(Some(Ok(_))) => *heard = true,
                Ok(Some(Err(error))) => return format!("{}: connection lost: {}", self.control(), causes(&error)),
                Ok(None) => return format!("{}: connection closed", self.control()),
                Err(_) => return silent(),
            }
        }
    }

    /// Returns once the other side has answered at all.
    pub async fn answers(&self, patience: Duration) -> Result<(), CallError> {
        let silent = |_| self.unreachable(path::HEARTBEATS, &format!("silent for {patience:?}"));
        timeout(patience, self.open_heartbeats()).await.map_err(silent)?.map(|_| ())
    }

    async fn open_heartbeats(&self) -> Result<(Link, Response<Incoming>), CallError> {
        let mut link = self.connect().await?;
        let request = self.request(Method::GET, path::HEARTBEATS, Bytes::new());
        let sent = link.send_request(request).await;
        let response = sent.map_err(|error| self.unreachable(path::HEARTBEATS, &causes(&error)))?;
        if response.status().is_success() {
            return Ok((link, response));
        }
        let status = response.status();
        let body = self.body(path::HEARTBEATS, response, REPLY_SIZE_MAX).await?;
        Err(self.refusal(path::HEARTBEATS, status, &body))
    }

    async fn post<Req>(&self, path: &str, request: &Req, limit: usize, time: Duration) -> Result<Bytes, CallError>
    where
        Req: Serialize + ?Sized,
    {
        let body = serde_json::to_vec(request).map_err(|error| self.unreachable(path, &error.to_string()))?;
        match timeout(time, self.exchange(path, body.into(), limit)).await {
            Ok(result) => result,
            Err(_) => Err(self.unreachable(path, &format!("no answer within {time:?}"))),
        }
    }

    async fn exchange(&self, path: &str, body: Bytes, limit: usize) -> Result<Bytes, CallError> {
        let request = self.request(Method::POST, path, body);
        let (link, response) = self.send(path, request).await?;
        let status = response.status();
        let body = self.body(path, response, limit.max(REFUSAL_SIZE_MAX)).await?;
        self.keep(link);
        if status.is_success() { Ok(body) } else { Err(self.refusal(path, status, &body)) }
    }

    /// Sends over an idle connection, or over a new one. A request comes back to be sent again only from a connection
    /// that had ended before any of it was written.
    async fn send(
        &self,
        path: &str,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Link, Response<Incoming>), CallError> {
        loop {
            let (mut link, fresh) = match self.idle() {
                Some(link) => (link, false),
                None => (self.connect().await?, true),
            };
            if let Err(error) = link.ready().await {
                match fresh {
                    true => return Err(self.unreachable(path, &causes(&error))),
                    false => continue,
                }
            }
            match link.try_send_request(request).await {
                Ok(response) => return Ok((link, response)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !fresh => request = unsent,
                    _ => return Err(self.unreachable(path, &causes(&error.into_error()))),
                },
            }
        }
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.control())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body));
        request.expect("paths are constants and the host has been connected to")
    }

    async fn body(&self, path: &str, response: Response<Incoming>, limit: usize) -> Result<Bytes, CallError> {
        let collected = Limited::new(response.into_body(), limit).collect().await;
        let collected = collected.map_err(|error| self.unreachable(path, &format!("reply broken off: {error}")))?;
        Ok(collected.to_bytes())
    }

    fn idle(&self) -> Option<Link> {
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|kept| kept.since.elapsed() < IDLE_TIME_MAX && !kept.link.is_closed());
        idle.pop().map(|kept| kept.link)
    }

    fn keep(&self, link: Link) {
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !link.is_closed() {
            idle.push(Idle { link, since: Instant::now() });
        }
    }

    async fn connect(&self) -> Result<Link, CallError> {
        let unreachable = |why: String| CallError::Unreachable(format!("connect to {}: {why}", self.control()));
        let stream = TcpStream::connect(self.control()).await.map_err(|error| unreachable(error.to_string()))?;
        let peer = stream.peer_addr().map_err(|error| unreachable(error.to_string()))?.ip();
        http::tune(&stream).map_err(|error| unreachable(error.to_string()))?;
        *self.0.peer.lock().unwrap_or_else(PoisonError::into_inner) = Some(peer);
        let Some(guard) = &self.0.guard else { return self.greet(stream).await };
        let name = ServerName::IpAddress(peer.into());
        let stream =
            guard.connector().connect(name, stream).await.map_err(|error| unreachable(tls::readable(&error)))?;
        self.greet(stream).await
    }

    async fn greet<S>(&self, stream: S) -> Result<Link, CallError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let greeted = http1::handshake(TokioIo::new(stream)).await;
        let (link, connection) =
            greeted.map_err(|error| CallError::Unreachable(format!("connect to {}: {error}", self.control())))?;
        // Ends when the link is dropped or the other side hangs up; the link then tells.
        tokio::spawn(connection);
        Ok(link)
    }

    fn refusal(&self, path: &str, status: hyper::StatusCode, body: &[u8]) -> CallError {
        match serde_json::from_slice::<Refusal>(body) {
            Ok(refusal) => CallError::Refused(refusal),
            Err(_) => self.unreachable(path, &format!("answered {status}, which is no answer of a backup")),
        }
    }

    fn unreachable(&self, path: &str, why: &str) -> CallError {
        CallError::Unreachable(format!("{path} of {}: {why}", self.control()))
    }
}

impl fmt::Debug for BackupClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BackupClient").field(&self.0.control).finish()
    }
}

/// An error in words: hyper tells the interesting part in the cause.
fn causes(error: &hyper::Error) -> String {
    match error.source() {
        Some(source) => match source.downcast_ref::<std::io::Error>() {
            Some(io) => tls::readable(io),
            None => format!("{error}: {source}"),
        },
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
