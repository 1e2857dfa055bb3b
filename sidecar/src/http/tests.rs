use std::net::Ipv4Addr;
use std::time::Instant;

use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::*;
use crate::tls::Role;
use crate::tls::authority::{Authority, Files};

/// A server that stops when this is dropped.
struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<()>,
}

async fn start(guard: Option<crate::tls::Guard>) -> Server {
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/length", post(|body: axum::body::Bytes| async move { body.len().to_string() }));
    let listener = listen_openly((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let ended = tokio::spawn(serve(listener, router, guard, async { drop(stopped.await) }));
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
    Tls::load(&ca, &cert, &key, &"db".parse().unwrap(), Role::Backup).unwrap()
}

#[tokio::test]
async fn without_tls_only_loopback_is_listened_on() {
    let error = listen("0.0.0.0:0".parse().unwrap(), None).await.unwrap_err();
    assert!(error.to_string().contains("--tls-ca, --tls-cert and --tls-key"), "{error}");
    assert!(listen("127.0.0.1:0".parse().unwrap(), None).await.is_ok());
    assert!(listen("0.0.0.0:0".parse().unwrap(), Some(&tls(&Authority::new()))).await.is_ok());
}

#[tokio::test]
async fn a_taken_port_is_told() {
    let server = start(None).await;
    let error = listen(server.address, None).await.unwrap_err();
    assert!(error.to_string().contains("the port is in use"), "{error}");
}

#[tokio::test]
async fn a_plain_peer_gets_nothing_from_a_tls_port() {
    let authority = Authority::new();
    let server = start(Some(tls(&authority).guard(Role::Sidecar))).await;
    let answer = server.say(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(!answer.contains("HTTP") && !answer.contains("hello"), "{answer:?}");
}

#[tokio::test]
async fn bodies_are_bounded() {
    let server = start(None).await;
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
    let server = start(None).await;
    let answer = server.say(format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(2 * HEAD_SIZE_MAX)).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn slow_peers_are_sent_away() {
    let server = start(None).await;
    let started = tokio::time::Instant::now();
    assert_eq!(server.say(b"GET / HTTP/1.1\r\nhost").await, "");
    assert!(started.elapsed() >= HEAD_TIMEOUT, "not before its time");
    let answer = server.say(b"POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nab").await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_shake_hands_is_sent_away() {
    let authority = Authority::new();
    let server = start(Some(tls(&authority).guard(Role::Sidecar))).await;
    assert_eq!(server.say(b"").await, "");
}

#[tokio::test]
async fn connections_are_bounded() {
    let server = start(None).await;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = server.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        idle.push(stream);
    }
    let mut waiting = server.connect().await;
    waiting.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut byte = [0];
    let early = timeout(Duration::from_millis(50), waiting.read_exact(&mut byte)).await;
    assert!(early.is_err(), "no place for one more");
    idle.pop();
    timeout(Duration::from_secs(5), waiting.read_exact(&mut byte)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_stops_closes_its_connections() {
    let server = start(None).await;
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
