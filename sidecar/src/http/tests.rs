use std::net::Ipv4Addr;
use std::time::Instant;

use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::*;
use crate::access::TokenOptions;
use crate::tls::PeerRole;
use crate::tls::authority::{Authority, Files};

/// A server that stops when this is dropped.
struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<()>,
}

/// A file with a token of its own.
fn made(folder: &tempfile::TempDir, name: &str) -> std::path::PathBuf {
    let path = folder.path().join(name);
    let options = TokenOptions { control_token: Some(path.clone()) };
    options.load(&"db".parse().unwrap()).unwrap();
    path
}

fn token() -> (Token, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Token::read(&made(&folder, "token")).unwrap(), folder)
}

async fn start(entry: Entry) -> Server {
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/healthz", get(|| async { "ok" }))
        .route("/length", post(|body: axum::body::Bytes| async move { body.len().to_string() }));
    let listener = listen_openly((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let ended = tokio::spawn(serve(listener, router, entry, async { drop(stopped.await) }));
    Server { address, stop, ended }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
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
async fn without_tls_only_loopback_is_listened_on() {
    let (token, _folder) = token();
    let with_token = Access::Token(token);
    let error = listen("0.0.0.0:0".parse().unwrap(), &with_token).await.unwrap_err();
    assert!(error.to_string().contains("--tls-ca, --tls-cert and --tls-key"), "{error}");
    assert!(listen("127.0.0.1:0".parse().unwrap(), &with_token).await.is_ok());
    assert!(listen("0.0.0.0:0".parse().unwrap(), &Access::Tls(tls(&Authority::new()))).await.is_ok());
}

#[tokio::test]
async fn a_taken_port_is_told() {
    let server = start(Entry::Open).await;
    let error = listen(server.address, &Access::Tls(tls(&Authority::new()))).await.unwrap_err();
    assert!(error.to_string().contains("the port is in use"), "{error}");
}

#[tokio::test]
async fn a_plain_peer_gets_nothing_from_a_tls_port() {
    let authority = Authority::new();
    let server = start(Entry::Tls(tls(&authority).guard(PeerRole::Sidecar))).await;
    let answer = server.say(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(!answer.contains("HTTP") && !answer.contains("hello"), "{answer:?}");
}

#[tokio::test]
async fn bodies_are_bounded() {
    let server = start(Entry::Open).await;
    let head = |length: usize| {
        format!("POST /length HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
            .into_bytes()
    };
    let fits = server.say(&[head(BODY_SIZE_MAX), vec![b'x'; BODY_SIZE_MAX]].concat()).await;
    assert!(fits.ends_with(&BODY_SIZE_MAX.to_string()), "{fits}");
    let too_long = server.say(&head(BODY_SIZE_MAX + 1)).await;
    assert!(too_long.starts_with("HTTP/1.1 413") && too_long.contains("1 MiB"), "{too_long}");
}

#[tokio::test]
async fn heads_are_bounded() {
    let server = start(Entry::Open).await;
    let answer = server.say(format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(2 * HEAD_SIZE_MAX)).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn slow_peers_are_sent_away() {
    let server = start(Entry::Open).await;
    let started = tokio::time::Instant::now();
    assert_eq!(server.say(b"GET / HTTP/1.1\r\nhost").await, "");
    assert!(started.elapsed() >= HEAD_TIMEOUT, "not before its time");
    let answer = server.say(b"POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nab").await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_shake_hands_is_sent_away() {
    let authority = Authority::new();
    let server = start(Entry::Tls(tls(&authority).guard(PeerRole::Sidecar))).await;
    assert_eq!(server.say(b"").await, "");
}

/// As many connections as strangers ever made, none of which says a word.
async fn idle(server: &Server, count: usize) -> Vec<TcpStream> {
    let mut idle = Vec::new();
    for _ in 0..count {
        idle.push(server.connect().await);
    }
    idle
}

async fn hears(stream: &mut TcpStream, words: &str) {
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains(words) {
        let mut some = [0; 1024];
        let count = timeout(Duration::from_secs(20), stream.read(&mut some)).await.unwrap().unwrap();
        assert!(count > 0, "the end instead of `{words}` after {:?}", String::from_utf8_lossy(&heard));
        heard.extend_from_slice(&some[..count]);
    }
}

#[tokio::test]
async fn idle_strangers_keep_nobody_from_the_metrics() {
    let server = start(Entry::Open).await;
    let mut strangers = idle(&server, 6 * STRANGERS_MAX).await;
    assert!(server.say(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.ends_with("hello"));
    // The first of them has been sent away.
    assert_eq!(strangers[0].read(&mut [0; 8]).await.unwrap_or_default(), 0);
}

#[tokio::test]
async fn idle_strangers_keep_no_holder_of_the_token_out() {
    let (token, _folder) = token();
    let server = start(Entry::Token(token.clone())).await;
    let authorized = format!("GET / HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\n\r\n", token.bearer());
    let mut guest = server.connect().await;
    guest.write_all(authorized.as_bytes()).await.unwrap();
    hears(&mut guest, "hello").await;
    let _strangers = idle(&server, 6 * STRANGERS_MAX).await;
    let mut late = server.connect().await;
    late.write_all(authorized.as_bytes()).await.unwrap();
    hears(&mut late, "hello").await;
    guest.write_all(authorized.as_bytes()).await.unwrap();
    hears(&mut guest, "hello").await;
}

#[tokio::test]
async fn idle_strangers_keep_no_certificate_out() {
    use rustls::pki_types::ServerName;
    let authority = Authority::new();
    let server = start(Entry::Tls(tls(&authority).guard(PeerRole::Sidecar))).await;
    let Files { ca, cert, key } = authority.issue("tailwind://db/sidecar/a");
    let ours = Tls::load(&ca, &cert, &key, &"db".parse().unwrap(), PeerRole::Sidecar).unwrap();
    let _strangers = idle(&server, 6 * STRANGERS_MAX).await;
    let stream = server.connect().await;
    let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    let mut stream = ours.guard(PeerRole::Backup).connector().connect(name, stream).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("hello"), "{answer}");
}

#[tokio::test]
async fn idle_guests_make_room_for_one_more() {
    let (token, _folder) = token();
    let server = start(Entry::Token(token.clone())).await;
    let authorized = format!("GET / HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\n\r\n", token.bearer());
    let mut guests = Vec::new();
    for _ in 0..GUESTS_MAX + 1 {
        let mut stream = server.connect().await;
        stream.write_all(authorized.as_bytes()).await.unwrap();
        hears(&mut stream, "hello").await;
        guests.push(stream);
    }
    assert_eq!(guests[0].read(&mut [0; 8]).await.unwrap_or_default(), 0, "the one that has been idle for longest");
    guests[1].write_all(authorized.as_bytes()).await.unwrap();
    hears(&mut guests[1], "hello").await;
}

#[tokio::test]
async fn without_the_token_nothing_is_heard_but_probes() {
    let (token, _folder) = token();
    let server = start(Entry::Token(token.clone())).await;
    let other = Token::read(&made(&_folder, "other")).unwrap();
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

#[tokio::test]
async fn a_server_that_stops_closes_its_connections() {
    let server = start(Entry::Open).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut some = [0; 8];
    stream.read_exact(&mut some).await.unwrap();
    let Server { stop, ended, .. } = server;
    let started = Instant::now();
    drop(stop);
    ended.await.unwrap();
    stream.read_to_end(&mut Vec::new()).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
}
