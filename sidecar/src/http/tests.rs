use std::net::Ipv4Addr;
use std::time::Duration;

use axum::routing::{get, post};
use tailwind_runtime::http::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;
use crate::access::{Token, TokenOptions};
use crate::tls::authority::{Authority, Files};

/// What others than sidecars may ask the endpoint for.
const RIGHTS: Rights = Rights { readers: &["/length"], backups: &["/"] };

/// An endpoint that is served until the test ends.
struct Endpoint(SocketAddr);

/// A file with a token of its own.
fn make_token(folder: &tempfile::TempDir, name: &str) -> std::path::PathBuf {
    let path = folder.path().join(name);
    let options = TokenOptions { control_token: Some(path.clone()) };
    options.load(&"db".parse().unwrap()).unwrap();
    path
}

fn token() -> (Token, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Token::read(&make_token(&folder, "token")).unwrap(), folder)
}

async fn start(access: Access) -> Endpoint {
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/healthz", get(|| async { "ok" }))
        .route("/length", post(|body: axum::body::Bytes| async move { body.len().to_string() }));
    let listener = http::listen((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(server(router, &access, RIGHTS).serve(listener, std::future::pending()));
    Endpoint(address)
}

impl Endpoint {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.0).await.unwrap()
    }

    /// Everything that comes back for these bytes until the connection ends.
    async fn say(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        // The server may hang up in the middle of it.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn tls(authority: &Authority) -> Tls {
    let Files { ca, cert, key } = authority.issue("tailwind://db/backup/b0");
    Tls::load(&ca, &cert, &key, &"db".parse().unwrap(), PeerRole::Backup).unwrap()
}

#[tokio::test]
async fn without_tls_only_loopback_is_allowed() {
    let (token, _folder) = token();
    let with_token = Access::Token(token);
    let error = listen("0.0.0.0:0".parse().unwrap(), &with_token).await.unwrap_err();
    assert!(error.to_string().contains("--tls-ca, --tls-cert and --tls-key"), "{error}");
    assert!(listen("127.0.0.1:0".parse().unwrap(), &with_token).await.is_ok());
    assert!(listen("0.0.0.0:0".parse().unwrap(), &Access::Tls(tls(&Authority::new()))).await.is_ok());
}

#[tokio::test]
async fn a_plain_peer_gets_nothing_from_a_tls_port() {
    let authority = Authority::new();
    let server = start(Access::Tls(tls(&authority))).await;
    let answer = server.say(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(!answer.contains("HTTP") && !answer.contains("hello"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_without_a_handshake_is_disconnected() {
    let authority = Authority::new();
    let server = start(Access::Tls(tls(&authority))).await;
    assert_eq!(server.say(b"").await, "");
}

/// Silent connections, many times more than the endpoint keeps.
async fn flood(server: &Endpoint) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    for _ in 0..6 * Limits::default().unauthenticated {
        silent.push(server.connect().await);
    }
    silent
}

async fn expect(stream: &mut TcpStream, text: &str) {
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains(text) {
        let mut some = [0; 1024];
        let count = timeout(Duration::from_secs(20), stream.read(&mut some)).await.unwrap().unwrap();
        assert!(count > 0, "the end instead of `{text}` after {:?}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&some[..count]);
    }
}

#[tokio::test]
async fn silent_connections_do_not_block_the_token() {
    let (token, _folder) = token();
    let server = start(Access::Token(token.clone())).await;
    let authorized = format!("GET / HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\n\r\n", token.bearer());
    let mut authenticated = server.connect().await;
    authenticated.write_all(authorized.as_bytes()).await.unwrap();
    expect(&mut authenticated, "hello").await;
    let _silent = flood(&server).await;
    let mut late = server.connect().await;
    late.write_all(authorized.as_bytes()).await.unwrap();
    expect(&mut late, "hello").await;
    authenticated.write_all(authorized.as_bytes()).await.unwrap();
    expect(&mut authenticated, "hello").await;
}

impl Endpoint {
    /// The answer to a request of this role.
    async fn ask(&self, authority: &Authority, role: PeerRole, request: &str) -> String {
        self.ask_with(authority, role, request, 0, b"").await
    }

    /// The same with a body, of which the length is announced.
    async fn ask_with(
        &self,
        authority: &Authority,
        role: PeerRole,
        request: &str,
        length: usize,
        body: &[u8],
    ) -> String {
        let Files { ca, cert, key } = authority.issue(&format!("tailwind://db/{role}/a"));
        let ours = Tls::load(&ca, &cert, &key, &"db".parse().unwrap(), role).unwrap();
        let name = rustls::pki_types::ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
        let stream = self.connect().await;
        let mut stream = ours.guard(PeerRole::Backup).connector().connect(name, stream).await.unwrap();
        let head = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

#[tokio::test]
async fn silent_connections_do_not_block_certificates() {
    let authority = Authority::new();
    let server = start(Access::Tls(tls(&authority))).await;
    let _silent = flood(&server).await;
    let answer = server.ask(&authority, PeerRole::Sidecar, "GET /").await;
    assert!(answer.ends_with("hello"), "{answer}");
}

#[tokio::test]
async fn readers_may_ask_for_what_is_listed() {
    let authority = Authority::new();
    let server = start(Access::Tls(tls(&authority))).await;
    for request in ["GET /healthz", "POST /length", "GET /length"] {
        let [reader, sidecar] = [PeerRole::Reader, PeerRole::Sidecar];
        let answer = server.ask(&authority, reader, request).await;
        let status = answer.lines().next().map(str::to_owned);
        assert_eq!(
            status,
            server.ask(&authority, sidecar, request).await.lines().next().map(str::to_owned),
            "{request}"
        );
    }
    for path in ["/", "/no/such/path", "/length/", "//length", "/%6cength", "/length/../", "/status"] {
        let answer = server.ask(&authority, PeerRole::Reader, &format!("GET {path}")).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("\"refused\":\"forbidden\""), "{path}: {answer}");
        assert!(answer.contains("(reader)"), "{answer}");
    }
}

/// Another backup copies segments, and has no other business here.
#[tokio::test]
async fn backups_may_ask_for_what_is_listed() {
    let authority = Authority::new();
    let server = start(Access::Tls(tls(&authority))).await;
    let answer = server.ask(&authority, PeerRole::Backup, "GET /").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
    for path in ["/length", "/healthz", "/no/such/path", "//", "/%2f", "/status"] {
        let answer = server.ask(&authority, PeerRole::Backup, &format!("GET {path}")).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("\"refused\":\"forbidden\""), "{path}: {answer}");
        assert!(answer.contains("(backup)"), "{answer}");
    }
}

/// Many readers that send at once take little memory.
#[tokio::test]
async fn readers_send_small_bodies() {
    let authority = Authority::new();
    let server = start(Access::Tls(tls(&authority))).await;
    let small = Limits::default().guest_body_bytes;
    let body = vec![b'x'; small + 1];
    for (role, length) in [(PeerRole::Reader, small), (PeerRole::Sidecar, small + 1)] {
        let answer = server.ask_with(&authority, role, "POST /length", length, &body[..length]).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(&length.to_string()), "{role}: {answer}");
    }
    // Refused by what is announced, before any of it is sent.
    let answer = server.ask_with(&authority, PeerRole::Reader, "POST /length", small + 1, b"").await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn an_idle_authenticated_connection_makes_room() {
    let (token, _folder) = token();
    let server = start(Access::Token(token.clone())).await;
    let authorized = format!("GET / HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\n\r\n", token.bearer());
    let mut authenticated = Vec::new();
    for _ in 0..Limits::default().authenticated + 1 {
        let mut stream = server.connect().await;
        stream.write_all(authorized.as_bytes()).await.unwrap();
        expect(&mut stream, "hello").await;
        authenticated.push(stream);
    }
    assert_eq!(authenticated[0].read(&mut [0; 8]).await.unwrap_or_default(), 0, "idle for longest");
    authenticated[1].write_all(authorized.as_bytes()).await.unwrap();
    expect(&mut authenticated[1], "hello").await;
}

#[tokio::test]
async fn without_the_token_only_probes_are_answered() {
    let (token, _folder) = token();
    let server = start(Access::Token(token.clone())).await;
    let other = Token::read(&make_token(&_folder, "other")).unwrap();
    for shown in [String::new(), format!("authorization: {}\r\n", other.bearer()), "authorization: x\r\n".to_owned()] {
        for (method, path) in [("GET", "/"), ("POST", "/length"), ("GET", "/no/such/path"), ("GET", "//healthz")] {
            // The body is announced and never sent: it must not be waited for.
            let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{shown}content-length: 5\r\n\r\n");
            let answer = server.say(head.as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 401"), "{method} {path}: {answer}");
            let told = token.path().display().to_string();
            assert!(answer.contains("\"refused\":\"unauthorized\"") && answer.contains(&told), "{answer}");
        }
    }
    let open = server.say(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(open.starts_with("HTTP/1.1 200"), "{open}");
    let request = format!(
        "POST /length HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: {}\r\ncontent-length: 5\r\n\r\nabcde",
        token.bearer()
    );
    assert!(server.say(request.as_bytes()).await.ends_with('5'));
}
