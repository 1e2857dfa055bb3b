//! Makes connections for the control RPC: to the first of several addresses that answers as one of the group.
//!
//! Used by [`BackupClient`](super::BackupClient). With TLS the server shows a certificate. Without, it proves that it knows the
//! token before it is shown it: otherwise a process that takes the port of one that is down would learn the token.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tailwind_runtime::http::tune;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::access::token::nonce;
use crate::access::{Access, Token};
use crate::http::{NONCE_HEADER, PROOF};
use crate::tls::{self, Guard, PeerRole};

/// How long an address has before the next one is tried in parallel (RFC 8305): many times what a connection within a data
/// center takes. A dead host does not answer at all, and a sidecar may wait as little as 300 ms for a silent member.
const ATTEMPT_DELAY: Duration = Duration::from_millis(50);
/// A proof is 64 digits.
const PROOF_SIZE_MAX: usize = 256;
/// How often an address is dialled again that hangs up before the first request. An endpoint that is full closes the
/// connection that has been silent for longest, which may belong to a caller whose host is busy. A dead process refuses
/// connections instead.
const HANG_UPS_MAX: u32 = 4;
/// Pause before that.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Connects on behalf of one process.
pub(super) struct Dialer {
    credential: Credential,
}

enum Credential {
    Tls(Guard),
    Token(Token),
}

/// A connection that requests can be sent over.
pub(super) struct Link {
    pub(super) sender: SendRequest<Full<Bytes>>,
    /// As it was dialled.
    pub(super) address: String,
    /// As it was reached.
    pub(super) peer: SocketAddr,
}

impl Dialer {
    pub(super) fn new(access: &Access, expected: PeerRole) -> Dialer {
        let credential = match access {
            Access::Tls(tls) => Credential::Tls(tls.guard(expected)),
            Access::Token(token) => Credential::Token(token.clone()),
        };
        Dialer { credential }
    }

    /// What each request must show.
    pub(super) fn bearer(&self) -> Option<String> {
        match &self.credential {
            Credential::Tls(_) => None,
            Credential::Token(token) => Some(token.bearer()),
        }
    }

    /// Connects to the first that answers. The next is tried when one has failed or is slow. The error says why each of them
    /// failed.
    pub(super) async fn dial(&self, addresses: &[String]) -> Result<Link, String> {
        let mut left = addresses.iter();
        let mut tried = FuturesUnordered::new();
        let mut failures = Vec::new();
        tried.extend(left.next().map(|address| self.connect(address)));
        loop {
            let next_attempt = async {
                match left.as_slice() {
                    [] => std::future::pending().await,
                    _ => sleep(ATTEMPT_DELAY).await,
                }
            };
            tokio::select! {
                connected = tried.next() => match connected {
                    Some(Ok(link)) => return Ok(link),
                    Some(Err(why)) => failures.push(why),
                    None if left.as_slice().is_empty() => break,
                    None => {}
                },
                () = next_attempt => {}
            }
            tried.extend(left.next().map(|address| self.connect(address)));
        }
        match failures.is_empty() {
            true => Err("no address is known".to_owned()),
            false => Err(failures.join("; ")),
        }
    }

    async fn connect(&self, address: &str) -> Result<Link, String> {
        let mut hang_ups = 0;
        loop {
            match self.connect_once(address).await {
                Err(ConnectError { hung_up: true, .. }) if hang_ups < HANG_UPS_MAX => hang_ups += 1,
                connected => {
                    return connected.map_err(|ConnectError { why, .. }| format!("connect to {address}: {why}"));
                }
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn connect_once(&self, address: &str) -> Result<Link, ConnectError> {
        let refused = |error: io::Error| ConnectError { why: tls::readable(&error), hung_up: false };
        let stream = TcpStream::connect(address).await.map_err(refused)?;
        let peer = stream.peer_addr().map_err(ConnectError::from)?;
        tune(&stream).map_err(ConnectError::from)?;
        let address = address.to_owned();
        match &self.credential {
            Credential::Tls(guard) => {
                let name = ServerName::IpAddress(peer.ip().into());
                let stream = guard.connector().connect(name, stream).await.map_err(ConnectError::from)?;
                Ok(Link { sender: start_http(stream).await?, address, peer })
            }
            Credential::Token(token) => {
                let mut link = Link { sender: start_http(stream).await?, address, peer };
                check_proof(&mut link, token).await?;
                Ok(link)
            }
        }
    }
}

/// Why a connection could not be made.
struct ConnectError {
    why: String,
    /// The server accepted the connection and closed it.
    hung_up: bool,
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> ConnectError {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
        let gone = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof];
        ConnectError { why: tls::readable(&error), hung_up: gone.contains(&error.kind()) }
    }
}

impl From<hyper::Error> for ConnectError {
    fn from(error: hyper::Error) -> ConnectError {
        let io = error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
        let reset = io == Some(io::ErrorKind::ConnectionReset) || io == Some(io::ErrorKind::BrokenPipe);
        let hung_up = reset || error.is_closed() || error.is_canceled() || error.is_incomplete_message();
        ConnectError { why: super::causes(&error), hung_up }
    }
}

async fn start_http<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends when the sender is dropped or the server hangs up; the sender then returns an error.
    tokio::spawn(connection);
    Ok(sender)
}

async fn check_proof(link: &mut Link, token: &Token) -> Result<(), ConnectError> {
    let other = |why: String| ConnectError { why, hung_up: false };
    let nonce = nonce().map_err(|error| other(error.to_string()))?;
    let request = Request::get(PROOF).header(HOST, &link.address).header(NONCE_HEADER, &nonce).body(Full::default());
    let request = request.map_err(|error| other(error.to_string()))?;
    let response = link.sender.send_request(request).await?;
    let body = Limited::new(response.into_body(), PROOF_SIZE_MAX).collect().await;
    let body = body.map_err(|error| other(super::no_body(error.as_ref(), PROOF_SIZE_MAX)))?.to_bytes();
    if token.is_proof(&body, &nonce, link.peer) {
        return Ok(());
    }
    Err(other(format!(
        "the server there does not know the control token in {}: give every process of the group the same \
         --control-token",
        token.path().display()
    )))
}
