//! Makes connections for the control RPC: to the first of several addresses that answers as one of the group.
//!
//! Used by [`BackupClient`](super::BackupClient). With TLS the other side shows a certificate; without, it proves that it knows
//! the token before it is shown it: whoever took the port of a process that is down would be told it otherwise.

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

/// How long an address has before the next one is tried beside it: many times what a connection in one data center takes. A
/// dead host's address says nothing at all, and a sidecar's patience with a silent member is as short as 300 ms.
const HEAD_START: Duration = Duration::from_millis(50);
/// A proof is 64 digits.
const PROOF_SIZE_MAX: usize = 256;
/// How often an address is dialled again that hangs up before anything was asked. An endpoint that is full sends away who
/// has been silent for longest, which may be a caller whose host is busy; a process that is dead refuses connections
/// instead.
const HANG_UPS_MAX: u32 = 4;
/// Pause before that.
const AGAIN: Duration = Duration::from_millis(5);

/// Connects on behalf of one process.
pub(super) struct Dialer {
    manner: Manner,
}

enum Manner {
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
        let manner = match access {
            Access::Tls(tls) => Manner::Tls(tls.guard(expected)),
            Access::Token(token) => Manner::Token(token.clone()),
        };
        Dialer { manner }
    }

    /// What each request must show.
    pub(super) fn bearer(&self) -> Option<String> {
        match &self.manner {
            Manner::Tls(_) => None,
            Manner::Token(token) => Some(token.bearer()),
        }
    }

    /// Connects to the first that answers. The next is tried when one has failed, or has taken long. The error says why each
    /// of them did not do.
    pub(super) async fn dial(&self, addresses: &[String]) -> Result<Link, String> {
        let mut left = addresses.iter();
        let mut tried = FuturesUnordered::new();
        let mut failures = Vec::new();
        tried.extend(left.next().map(|address| self.connect(address)));
        loop {
            let head_start = async {
                match left.as_slice() {
                    [] => std::future::pending().await,
                    _ => sleep(HEAD_START).await,
                }
            };
            tokio::select! {
                connected = tried.next() => match connected {
                    Some(Ok(link)) => return Ok(link),
                    Some(Err(why)) => failures.push(why),
                    None if left.as_slice().is_empty() => break,
                    None => {}
                },
                () = head_start => {}
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
            match self.greet(address).await {
                Err(Trouble { hung_up: true, .. }) if hang_ups < HANG_UPS_MAX => hang_ups += 1,
                greeted => return greeted.map_err(|Trouble { why, .. }| format!("connect to {address}: {why}")),
            }
            sleep(AGAIN).await;
        }
    }

    async fn greet(&self, address: &str) -> Result<Link, Trouble> {
        let refused = |error: io::Error| Trouble { why: error.to_string(), hung_up: false };
        let stream = TcpStream::connect(address).await.map_err(refused)?;
        let peer = stream.peer_addr().map_err(Trouble::from)?;
        tune(&stream).map_err(Trouble::from)?;
        let address = address.to_owned();
        match &self.manner {
            Manner::Tls(guard) => {
                let name = ServerName::IpAddress(peer.ip().into());
                let stream = guard.connector().connect(name, stream).await.map_err(Trouble::from)?;
                Ok(Link { sender: speak_http(stream).await?, address, peer })
            }
            Manner::Token(token) => {
                let mut link = Link { sender: speak_http(stream).await?, address, peer };
                demand_proof(&mut link, token).await?;
                Ok(link)
            }
        }
    }
}

/// Why a connection has not come about.
struct Trouble {
    why: String,
    /// The other side was there, and has gone without a word.
    hung_up: bool,
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
        let gone = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof];
        Trouble { why: tls::readable(&error), hung_up: gone.contains(&error.kind()) }
    }
}

impl From<hyper::Error> for Trouble {
    fn from(error: hyper::Error) -> Trouble {
        let io = error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
        let reset = io == Some(io::ErrorKind::ConnectionReset) || io == Some(io::ErrorKind::BrokenPipe);
        let hung_up = reset || error.is_closed() || error.is_canceled() || error.is_incomplete_message();
        Trouble { why: super::causes(&error), hung_up }
    }
}

async fn speak_http<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, Trouble>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends when the sender is dropped or the other side hangs up; the sender then tells.
    tokio::spawn(connection);
    Ok(sender)
}

async fn demand_proof(link: &mut Link, token: &Token) -> Result<(), Trouble> {
    let other = |why: String| Trouble { why, hung_up: false };
    let nonce = nonce().map_err(|error| other(error.to_string()))?;
    let request = Request::get(PROOF).header(HOST, &link.address).header(NONCE_HEADER, &nonce).body(Full::default());
    let request = request.map_err(|error| other(error.to_string()))?;
    let response = link.sender.send_request(request).await?;
    let body = Limited::new(response.into_body(), PROOF_SIZE_MAX).collect().await;
    let body = body.map_err(|error| other(error.to_string()))?.to_bytes();
    if token.is_proof(&body, &nonce, link.peer) {
        return Ok(());
    }
    Err(other(format!(
        "whoever listens there does not know the control token in {}: give every process of the group the same \
         --control-token",
        token.path().display()
    )))
}
